"""The whole resume state as a value: epoch, samples consumed, and a hash of the plan that gives them their meaning."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from stoker.errors import UsageError
from stoker.order.sequence import Mode
from stoker.order.window import Window

VERSION = 1
_PLAN = re.compile("[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Position:
    """How far training has come."""

    epoch: int
    consumed: int
    """Samples of this epoch that `next()` has returned, over all ranks."""
    plan: str
    """`plan_hash` of the dataset and order that it counts in: 32 hex digits."""
    version: int = VERSION

    def to_dict(self) -> dict[str, object]:
        """Plain values for a checkpoint."""
        return asdict(self)

    @classmethod
    def from_dict(cls, state: Mapping[str, object]) -> Position:
        """The inverse of `to_dict`. UsageError on anything else."""
        if set(state) != {"epoch", "consumed", "plan", "version"}:
            raise UsageError(f"a position holds epoch, consumed, plan and version, found {sorted(map(str, state))}")
        epoch, consumed, plan, version = (state[name] for name in ("epoch", "consumed", "plan", "version"))
        if version != VERSION:
            raise UsageError(f"this stoker reads positions of version {VERSION}, found {version!r}")
        if type(epoch) is not int or type(consumed) is not int or epoch < 0 or consumed < 0:
            raise UsageError(f"epoch and consumed are integers from 0 on, found {epoch!r} and {consumed!r}")
        if not isinstance(plan, str) or not _PLAN.fullmatch(plan):
            raise UsageError(f"a plan hash is 32 hex digits, found {plan!r}")
        return cls(epoch, consumed, plan)


def plan_hash(
    *,
    format_name: str,
    shards: Iterable[tuple[str, int, int]],
    seed: int,
    mode: Mode,
    canonical_nodes: int,
    mixture: str = "",
) -> str:
    """32 hex digits that change whenever a position would mean other samples.

    *shards* are (relative name, bytes, samples) in order. URL, ETag, mtime, world size, batch size and cache do not
    enter: a mirror or another cluster resumes.
    """
    described = f"window:{mode.shards}" if isinstance(mode, Window) else mode
    digest = hashlib.sha256(
        f"{format_name}\n{seed}\n{described}\n{canonical_nodes}\n{len(mixture)}:{mixture}\n".encode()
    )
    for name, size, samples in shards:
        digest.update(f"{len(name)}:{name} {size} {samples}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:32]
