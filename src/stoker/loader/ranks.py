"""Who this process is among all that train together: torch.distributed, else torchrun's, else Slurm's environment,
else alone."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from stoker.errors import UsageError

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE"),
)


@dataclass(frozen=True, slots=True)
class Ranks:
    """A training process among its peers."""

    rank: int
    world_size: int
    local_world_size: int
    """Training processes on this node: they share its CPUs and memory."""


def find_ranks(rank: int | None, world_size: int | None, environ: Mapping[str, str] = os.environ) -> Ranks:
    """The caller's word, if given, else what the launcher says. UsageError when the numbers cannot be true."""
    if (rank is None) != (world_size is None):
        raise UsageError(f"rank and world_size go together, found rank={rank}, world_size={world_size}")
    if rank is None or world_size is None:
        found = _distributed(environ) or _launched(environ) or Ranks(0, 1, 1)
    else:
        found = Ranks(rank, world_size, _number(environ, "LOCAL_WORLD_SIZE") or 1)
    if not 0 <= found.rank < found.world_size:
        raise UsageError(f"rank {found.rank} is not among 0 … {found.world_size - 1}")
    return found


def _distributed(environ: Mapping[str, str]) -> Ranks | None:
    """torch's word, without importing torch into a process that does not use it."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return Ranks(module.get_rank(), module.get_world_size(), _number(environ, "LOCAL_WORLD_SIZE") or 1)


def _launched(environ: Mapping[str, str]) -> Ranks | None:
    for rank_name, world_name, local_name in _LAUNCHERS:
        rank, world = _number(environ, rank_name), _number(environ, world_name)
        if rank is not None and world is not None:
            return Ranks(rank, world, _number(environ, local_name) or 1)
    return None


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if text is None or text == "":
        return None
    if not text.isdigit():
        raise UsageError(f"the environment variable {name} must be a number, found {text!r}")
    return int(text)
