"""Two ranks under torchrun with gloo share an epoch, also across a resume."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stoker
from support_dataset import write_shards

LAUNCH = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.slow
def test_two_ranks_share_an_epoch(tmp_path: Path) -> None:
    """Rank and world size come from torch.distributed; steps interleave to the permutation; both states are equal."""
    folder = write_shards(tmp_path / "data", 64)
    done = subprocess.run(
        [*LAUNCH, str(TESTS / "support_torchrun.py"), str(folder)],
        capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    (first, state), (second, other_state) = json.loads(done.stdout.splitlines()[-1])
    assert state == other_state
    with stoker.Loader(stoker.open(folder), 1, fields={"cls": int}, seed=5, rank=0, world_size=1) as loader:
        whole = [int(b["__index__"][0]) for b in loader]
    assert [i for pair in zip(first, second, strict=True) for batch in pair for i in batch] == whole
