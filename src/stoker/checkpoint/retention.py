"""Which checkpoints may go, which must be uploaded: decided from what lies where, and from nothing remembered.

The invariant, checked by a state machine in the tests. A checkpoint X is deleted from a tier only if
1. the tier keeps at least `VERIFIED_MIN` newer complete, verified checkpoints of the same lineage, and
2. for the local tier, every remote holds a verified copy of X, or a verified newer checkpoint of the same lineage, and
3. X is neither pinned nor a permanent one (every N steps), and nobody reads it just now.
Only complete checkpoints count towards `keep`: a step that was begun, or uploaded in part, protects nothing.
Lineages: after a rewind the abandoned steps are another lineage, whose newest stay until somebody deletes them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stoker.errors import UsageError

VERIFIED_MIN = 1
"""The fewest verified newer checkpoints that allow a deletion."""


@dataclass(frozen=True, slots=True)
class Held:
    """A complete checkpoint on one tier."""

    attempt: str
    number: int
    step: int
    lineage: str
    verified: bool
    """Every byte was read back from this tier and compared. At a remote, complete implies it."""
    pinned: bool = False
    read_now: bool = False
    """Some process holds a lease on it."""


@dataclass(frozen=True, slots=True)
class Keep:
    """How many checkpoints to keep."""

    local: int = 3
    remote: int = 3
    """At each remote."""
    every: int = 0
    """Steps that are multiples of this are permanent; 0: none are."""

    def __post_init__(self) -> None:
        if min(self.local, self.remote) < 1 or self.every < 0:
            raise UsageError(f"keep at least 1 on each tier, found {self}")

    @staticmethod
    def of(value: int | Mapping[str, Any] | Keep) -> Keep:
        """What a caller may say: a count for every tier, or {"local": 2, "remote": 5, "every": 5000}."""
        if isinstance(value, Keep):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return Keep(local=value, remote=value)
        if isinstance(value, Mapping) and set(value) <= {"local", "remote", "every"}:
            counts = {str(name): count for name, count in value.items()}
            if all(isinstance(count, int) and not isinstance(count, bool) for count in counts.values()):
                return Keep(**counts)
        raise UsageError(f"keep must be a count or {{'local': …, 'remote': …, 'every': …}}, found {value!r}")

    def permanent(self, step: int) -> bool:
        """Whether checkpoints of that step are kept for ever."""
        return self.every > 0 and step % self.every == 0


def expired_local(local: Sequence[Held], remotes: Sequence[Sequence[Held]], keep: Keep) -> list[str]:
    """The checkpoints that may be deleted from the local tier, oldest first. Permanents may, once every remote has
    them.

    Without a remote the local tier is all there is: then permanents stay here.
    """
    found = []
    for held in sorted(local, key=lambda one: one.number):
        permanent = keep.permanent(held.step) and not (
            remotes and all(any(other.attempt == held.attempt for other in tier) for tier in remotes)
        )
        if not permanent and _beyond(held, local, keep.local) and all(_safe_at(held, tier) for tier in remotes):
            found.append(held.attempt)
    return found


def expired_remote(tier: Sequence[Held], keep: Keep) -> list[str]:
    """The checkpoints that may be deleted from one remote, oldest first."""
    return [
        held.attempt
        for held in sorted(tier, key=lambda one: one.number)
        if not keep.permanent(held.step) and _beyond(held, tier, keep.remote)
    ]


def to_upload(local: Sequence[Held], remote: Sequence[Held], keep: Keep) -> list[str]:
    """What a remote lacks and must get, most urgent first: the newest, then pinned ones and permanents, newest first.

    Every other one that has a newer complete checkpoint is skipped: a slow remote thins the steps, it never falls
    behind without bound.
    """
    there = {held.attempt for held in remote}
    newest = max((held.number for held in local), default=-1)
    missing = sorted((held for held in local if held.attempt not in there), key=lambda one: -one.number)
    wanted = [held for held in missing if held.number == newest or held.pinned or keep.permanent(held.step)]
    return [held.attempt for held in wanted]


def _beyond(held: Held, tier: Sequence[Held], count: int) -> bool:
    """Whether the tier has enough newer ones of the lineage, enough of them verified, and nobody needs this one."""
    newer = [one for one in tier if one.lineage == held.lineage and one.number > held.number]
    enough = len(newer) >= count and sum(one.verified for one in newer) >= VERIFIED_MIN
    return enough and not held.pinned and not held.read_now


def _safe_at(held: Held, remote: Sequence[Held]) -> bool:
    """Whether a remote has this checkpoint or a newer one of its lineage, verified."""
    return any(
        one.verified and (one.attempt == held.attempt or (one.lineage == held.lineage and one.number > held.number))
        for one in remote
    )
