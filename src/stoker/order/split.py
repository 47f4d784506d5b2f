"""Who takes which positions: the arithmetic of ranks, batches, steps and the rest at the epoch's end.

Resumed at position p, rank r of W takes at step s the batch r of the global batch [p + s·W·b, +W·b). With one canonical
node the positions run on through it in order, so the sequence over steps and ranks is 0, 1, 2, … whatever W and b are.
With K nodes the global batch is K equal slices, one a part, and a part's slice goes to neighbouring ranks, those of one
node.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from stoker.errors import UsageError
from stoker.order.shuffle import Int64Array

Tail = Literal["drop", "pad"]


@dataclass(frozen=True)
class Split:
    """One rank's share of an epoch of *samples* positions."""

    samples: int
    batch_size: int
    """Samples a batch of one rank."""
    rank: int
    world_size: int
    canonical_nodes: int = 1
    tail: Tail = "drop"
    """What becomes of the rest, less than a global batch: left out, or filled up with repeats whose mask is False."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, found {self.batch_size}")
        if not 0 <= self.rank < self.world_size:
            raise UsageError(f"rank must be from 0 to world_size - 1, found rank {self.rank} of {self.world_size}")
        if self.tail not in ("drop", "pad"):
            raise UsageError(f"tail is 'drop' or 'pad', found {self.tail!r}")
        if self.canonical_nodes < 1 or self.global_batch % self.canonical_nodes:
            raise UsageError(
                f"canonical_nodes must divide the global batch of {self.world_size} × {self.batch_size} = "
                f"{self.global_batch} samples, found {self.canonical_nodes}"
            )

    @property
    def global_batch(self) -> int:
        """Samples a step over all ranks."""
        return self.world_size * self.batch_size

    def steps(self, start: int = 0) -> int:
        """Steps left in the epoch from position *start*: the same on every rank."""
        if not 0 <= start <= self.samples:
            raise UsageError(f"a position runs from 0 to {self.samples}, found {start}")
        if start < self.samples and start % self.canonical_nodes:
            raise UsageError(
                f"with {self.canonical_nodes} canonical nodes a position is a multiple of it, found {start}",
                "resume with the canonical_nodes that the position was saved with",
            )
        rest = self.samples - start
        return rest // self.global_batch if self.tail == "drop" else -(-rest // self.global_batch)

    def step(self, start: int, number: int) -> tuple[Int64Array, npt.NDArray[np.bool_] | None]:
        """Positions int64 [batch_size] of step *number* after *start*; with tail "pad" a mask, False where repeated."""
        positions, mask = self.block(start, number, 1)
        return positions[0], None if mask is None else mask[0]

    def block(self, start: int, number: int, count: int) -> tuple[Int64Array, npt.NDArray[np.bool_] | None]:
        """The same of *count* steps from *number* on: [count, batch_size]."""
        if not 0 <= number < number + count <= self.steps(start):
            raise UsageError(
                f"from position {start} there are {self.steps(start)} steps, found {count} from number {number} on"
            )
        inside = np.arange(self.rank * self.batch_size, (self.rank + 1) * self.batch_size, dtype=np.int64)
        part, place = np.divmod(inside, self.global_batch // self.canonical_nodes)
        steps = np.arange(number, number + count, dtype=np.int64)[:, None]
        positions = start + steps * self.global_batch + place * self.canonical_nodes + part
        if self.tail == "drop":
            return positions, None
        return positions % self.samples, positions < self.samples

    def consumed_after(self, start: int, steps: int) -> int:
        """The position once every rank has taken *steps* steps from *start*."""
        return min(self.samples, start + steps * self.global_batch)
