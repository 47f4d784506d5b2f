"""Who this process is, from the caller or the launcher."""

from __future__ import annotations

import pytest

from stoker.errors import UsageError
from stoker.loader.ranks import Ranks, find_ranks


def test_alone_without_a_launcher() -> None:
    """No environment, no torch.distributed: rank 0 of 1."""
    assert find_ranks(None, None, {}) == Ranks(0, 1, 1)


def test_torchrun_speaks_before_slurm() -> None:
    """Under both, torchrun's is the training process's own numbering."""
    environ = {"RANK": "3", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}
    assert find_ranks(None, None, environ) == Ranks(3, 8, 4)


def test_slurm() -> None:
    """Slurm's variables count where torchrun's are absent."""
    environ = {"SLURM_PROCID": "5", "SLURM_NTASKS": "16", "SLURM_NTASKS_PER_NODE": "8"}
    assert find_ranks(None, None, environ) == Ranks(5, 16, 8)


def test_the_caller_wins() -> None:
    """Arguments are taken before the environment."""
    assert find_ranks(1, 2, {"RANK": "0", "WORLD_SIZE": "1"}) == Ranks(1, 2, 1)


@pytest.mark.parametrize(
    ("rank", "world", "environ", "words"),
    [
        (1, None, {}, "go together"),
        (2, 2, {}, "not among"),
        (-1, 2, {}, "not among"),
        (None, None, {"RANK": "x", "WORLD_SIZE": "2"}, "RANK must be a number"),
    ],
)
def test_impossible_numbers_are_refused(
    rank: int | None, world: int | None, environ: dict[str, str], words: str
) -> None:
    """The message says which number."""
    with pytest.raises(UsageError, match=words):
        find_ranks(rank, world, environ)
