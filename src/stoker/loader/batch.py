"""One batch on its way through the feeder: its samples, its slot, its chunks, and the timeline that explains a wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from stoker.dataset import Located, RawSamples
from stoker.events import Stage
from stoker.loader.attribute import Interval, Timeline
from stoker.loader.job import Start

UNSET: Any = object()
"""Stands in `Batch.loose` for a row whose value lies in the slot, or that was skipped."""


class ChunkState(Enum):
    """Where a chunk stands. READ is skipped when the decoding thread reads for itself."""

    NEW = 0
    READING = 1
    READ = 2
    DECODING = 3
    DONE = 4


@dataclass(slots=True)
class Chunk:
    """A few neighbouring rows of a batch, worked on by one thread at a time."""

    first: int
    stop: int
    state: ChunkState = ChunkState.NEW
    raw: RawSamples | Located | None = None


@dataclass(frozen=True, slots=True)
class Bad:
    """A sample that could not be used."""

    index: int
    key: str
    reason: str
    """Short and countable: "undecodable", "missing field"."""
    message: str
    replaced_by: int | None = None


@dataclass(slots=True)
class Batch:
    """The state of one batch in the feeder. The engine's lock guards all but the rows that a chunk's thread writes."""

    start: Start
    epoch: int
    step: int
    samples: np.ndarray
    """int64 [steps × batch]: global sample numbers, changed where a bad one is replaced."""
    mask: np.ndarray | None
    chunks: list[Chunk]
    created_s: float
    steps: int = 1
    """How many batches of the trainer's lie in it, one behind the other."""
    slot: int | None = None
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    loose: dict[str, list[Any]] = field(default_factory=dict)
    """Values of fields without a fixed shape, by row."""
    rows: int = 0
    """Rows that count, once the batch is closed: fewer after skipped samples."""
    padded: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Fields that fill their part of the slot in another shape than the layout says, and that shape."""
    bad: dict[int, Bad] = field(default_factory=dict)
    """By row."""
    intervals: list[Interval] = field(default_factory=list)
    gathered: bool = True
    """Whether every chunk so far lay in mapped memory, where that is possible at all."""
    cancelled: bool = False
    closing: bool = False
    """Whether a thread makes the filled slot a batch at this moment."""
    done: bool = False
    done_s: float = 0.0
    failure: BaseException | None = None

    def remaining(self) -> int:
        """Chunks not done yet."""
        return sum(chunk.state is not ChunkState.DONE for chunk in self.chunks)

    def working(self) -> bool:
        """Whether a thread writes into the slot, or is about to."""
        return self.closing or any(chunk.state in (ChunkState.READING, ChunkState.DECODING) for chunk in self.chunks)

    def find(self, state: ChunkState) -> Chunk | None:
        """The first chunk in that state."""
        return next((chunk for chunk in self.chunks if chunk.state is state), None)

    def spent(self, stage: Stage, start_s: float, stop_s: float) -> None:
        """Note that *stage* worked for this batch (list.append is atomic: any thread may)."""
        self.intervals.append((stage, start_s, stop_s))


class Delivered(NamedTuple):
    """What the trainer is told of a batch that lies in a slot. A tuple: it is unpickled in the training process."""

    generation: int
    epoch: int
    step: int
    slot: int
    rows: int
    """Rows of the slot that count; fewer than the batch size after skipped samples."""
    loose: Mapping[str, list[Any]]
    """Fields whose values have no common shape."""
    bad: tuple[Bad, ...]
    timeline: Timeline
    counts: Mapping[str, float]
    """Totals of the feeder so far."""
    steps: int = 1
    """How many batches lie in the slot, this one and those behind it."""
    first: int = 0
    """Row of the slot where the batch begins."""
    padded: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """See `Batch.padded`."""

    @property
    def opens(self) -> bool:
        """Whether it is its slot's first. The last of another may never have been taken: a Ctrl-C fell in between."""
        return self.first == 0

    def apart(self) -> list[Delivered]:
        """The batches one by one, all of one length."""
        if self.steps == 1:
            return [self]
        rows = self.rows // self.steps
        return [
            self._replace(step=self.step + number, rows=rows, steps=self.steps - number, first=number * rows)
            for number in range(self.steps)
        ]


@dataclass(frozen=True, slots=True)
class Failed:
    """What the trainer is told when a batch cannot be made."""

    generation: int
    error: bytes
    """The exception, pickled."""
    text: str
    """Type, message and traceback, for when it cannot be rebuilt."""
