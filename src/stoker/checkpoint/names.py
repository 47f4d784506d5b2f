"""What the files of a checkpoint are called, and what their names alone tell.

A checkpoint lies in a folder of its own, `step-00001000.a000017-3fd2a9`: the step, the attempt's number, and a random
part. The number grows with every attempt of a run, over restarts and rewinds too, so names alone tell which is newer;
the random part makes a name unique, so that none is ever used twice and nothing is ever overwritten. What has no
`COMMITTED` file that fits its `MANIFEST.json` is no checkpoint, whatever else lies there.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from stoker.errors import UsageError

COMMITTED = "COMMITTED"
"""Written last: digest of the manifest. Without it there is no checkpoint."""
MANIFEST = "MANIFEST.json"
VERIFIED = "VERIFIED"
"""Written after every byte was read back and compared."""
PINNED = "PINNED"
"""Never deleted while it is there."""
DAMAGED = "DAMAGED"
"""Says what was found wrong when the bytes were read back; such a checkpoint is no candidate and protects nothing."""
OWNER = "OWNER"
"""Who writes here: the first file of an attempt, one a rank, so that what a dead process left can be told."""
READER = "READER"
"""Who reads here just now: keeps the janitor away."""
NODE = "NODE"
"""On a node-local disk of a run with several nodes: the ranks whose files lie here, as a JSON list."""
METADATA = ".metadata"
"""torch.distributed.checkpoint's own description of the tensors (a pickle)."""
LOADER = "loader.json"
_ATTEMPT = re.compile(r"step-([0-9]{8,18})\.a([0-9]{6,18})-([0-9a-f]{6})")


@dataclass(frozen=True, slots=True, order=True)
class Attempt:
    """One try to save one step. Ordered by age: a larger `number` is newer, whatever the steps are."""

    number: int
    step: int
    nonce: str

    @property
    def name(self) -> str:
        """The folder's name."""
        return f"step-{self.step:08d}.a{self.number:06d}-{self.nonce}"

    @staticmethod
    def parse(name: str) -> Attempt | None:
        """The attempt of a folder's name; None for every other name."""
        match = _ATTEMPT.fullmatch(name)
        return Attempt(int(match[2]), int(match[1]), match[3]) if match else None

    @staticmethod
    def new(step: int, number: int) -> Attempt:
        """A name that nobody used before. UsageError for a step that is no whole number from 0 on."""
        if isinstance(step, bool) or not isinstance(step, int) or not 0 <= step < 10**18:
            raise UsageError(f"a step is a whole number from 0 to 10^18, found {step!r}")
        return Attempt(number, step, uuid.uuid4().hex[:6])


def manifest_of_rank(rank: int) -> str:
    """Name of the part of the manifest that one rank vouches for."""
    return f"rank-{rank:05d}.manifest.json"


def verified_of_rank(rank: int) -> str:
    """Name of the mark, at a remote, that one rank's files were read back there and are right."""
    return f"rank-{rank:05d}.verified"


def own_of_rank(rank: int) -> str:
    """Name of what a rank keeps for itself (`per_rank`)."""
    return f"rank/{rank:05d}.pt"


def data_file(rank: int, number: int) -> str:
    """Name of a rank's data file; named as torch.distributed.checkpoint names its own."""
    return f"data/__{rank}_{number}.distcp"


def objects_file(rank: int) -> str:
    """Name of a rank's file of values that are no tensors."""
    return f"data/__{rank}_objects.distcp"
