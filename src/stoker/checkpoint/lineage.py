"""Which run this is and what it grew from: the names under which checkpoints are comparable.

Attempt numbers go on from the highest on any tier, so a newer checkpoint has a higher number, whatever its step is. The
lineage goes on when training goes on from the newest checkpoint there is, and is a new one after a rewind.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence

from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.peers import Peers, Place
from stoker.checkpoint.resume import Found, look
from stoker.checkpoint.tier import Tier
from stoker.errors import CheckpointError

_log = logging.getLogger("stoker.checkpoint")
LOOK_S_MAX = 300.0
"""Seconds that rank 0 may take to look at all tiers."""


class Lineage:
    """The run, the branch of it, and the checkpoint that training stands on. The same at every rank."""

    def __init__(self, peers: Peers, place: Place, tiers: Sequence[Tier]) -> None:
        self._peers, self._tiers = peers, tiers
        self._rounds = 0
        self.parent: str | None = None
        found = look(tiers) if place.leader == peers.rank else Found((), (), (), -1)
        told: list[Found] = peers.gather("identity", found, LOOK_S_MAX)
        identity = _identity_of(told) if peers.rank == 0 else None
        self.run, self.name, self.first_number, problem, troubles = peers.spread("identity", identity, LOOK_S_MAX)
        if problem is not None:
            raise CheckpointError(
                f"cannot see which checkpoints exist: {problem}", "wait until the remote answers again"
            )
        for line in troubles:
            _log.warning("stoker: %s", line)

    def follow(self, manifest: Manifest, *, rewound: bool) -> None:
        """Training goes on from that checkpoint. A call of all ranks."""
        self.parent = manifest.attempt
        newest = manifest.number
        if self._peers.rank == 0:
            newest = max((one.number for one in look(self._tiers).manifests), default=newest)
        self._rounds += 1
        newest = self._peers.spread(f"newest/{self._rounds}", newest, LOOK_S_MAX)
        if not rewound and manifest.number == newest:
            self.name = manifest.lineage


def _identity_of(told: Sequence[Found]) -> tuple[str, str, int, str | None, list[str]]:
    """Run, lineage, first attempt number, why it cannot be known, and what went wrong beside."""
    here = [one for one in told if one.manifests]
    troubles = sorted({line for one in told for line in one.troubles})
    # Numbers must grow over all tiers. A local tier with checkpoints has the newest; without one, a remote may.
    problem = "; ".join(troubles) if troubles and not here else None
    number = max((one.number_max for one in told), default=-1) + 1
    newest = max((one.manifests[0] for one in here), key=lambda one: one.number, default=None)
    run = newest.run if newest is not None else uuid.uuid4().hex
    return run, uuid.uuid4().hex[:12], number, problem, troubles
