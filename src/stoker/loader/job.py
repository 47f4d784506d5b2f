"""What a feeder is told: frozen values that cross to it by pickle, and nothing alive.

A `transform` from `__main__` travels by cloudpickle, so a script needs no main guard and a notebook works. What
cannot be pickled is found here, before the process starts, and named by argument and attribute."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

import cloudpickle

from stoker.dataset.dataset import Dataset
from stoker.decode.base import Decoder
from stoker.errors import UsageError
from stoker.loader.padding import Padding
from stoker.order import BucketedOrder, MixedOrder, Order, Split

OnBad = Literal["raise", "skip", "replace"]
AnyOrder = Order | MixedOrder | BucketedOrder
Sample = dict[str, Any]
Transform = Callable[[Sample], Sample]
BatchTransform = Callable[[Sample], Mapping[str, Any] | None]
"""What it returns replaces fields."""


@dataclass(frozen=True, slots=True)
class BadPolicy:
    """What happens to samples that cannot be used."""

    action: OnBad = "raise"
    share_max: float = 0.001
    """Share of the rank's epoch that may be bad before the run stops all the same."""

    def limit(self, samples: int) -> int:
        """How many of *samples* may be bad."""
        return -int(-self.share_max * samples // 1)


@dataclass(frozen=True, slots=True)
class Work:
    """Threads and memory of a feeder."""

    threads: int
    """Decoding threads."""
    readers: int
    """Threads that read ahead; 0: the decoding threads read for themselves, best when reading means the page cache."""
    slots: int
    """Slots wanted; fewer, but never under 4, when they would pass `ram_bytes`."""
    ram_bytes: int
    """Bytes for slots and for what was read ahead, half each."""
    cpus: int
    """CPU time that may be used, in cores."""
    adapt: bool = True
    """Whether threads, readers, slots and feeders follow the measured waits."""
    pinned: bool = False
    """Whether the slots will be page-locked, and so cannot become more."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a feeder must know, apart from where to start."""

    dataset: Dataset
    fields: tuple[tuple[str, Decoder], ...]
    order: AnyOrder
    split: Split
    seed: int
    transform: Transform | None
    batch_transform: BatchTransform | None
    bad: BadPolicy
    work: Work
    natural: bool
    """No fields were named: what a format gives as text stays text where no decoder is known for the field."""
    padding: Padding | None = None

    def __post_init__(self) -> None:
        for name, function in (("transform", self.transform), ("batch_transform", self.batch_transform)):
            if function is not None and not callable(function):
                raise UsageError(f"{name} is a function, found {function!r:.80}")

    @property
    def rows(self) -> int:
        """Samples of the largest batch."""
        return self.order.rows_max if isinstance(self.order, BucketedOrder) else self.split.batch_size


@dataclass(frozen=True, slots=True)
class Start:
    """Where to begin. A higher generation replaces all that went before."""

    generation: int
    epoch: int
    position: int
    feeders: int = 1
    """How many feeders share the plan, step by step in turn."""
    turn: int = 0
    """Which of them this one is."""


def pack(job: Job) -> bytes:
    """The job as bytes; UsageError names the argument, and the attribute inside it, that cannot be pickled."""
    try:
        return bytes(cloudpickle.dumps(job, protocol=5))
    except (TypeError, AttributeError, pickle.PicklingError, RecursionError) as error:
        raise UsageError(
            f"{_culprit(job)} cannot be sent to the feeder process: {error}",
            "make the object without open files, locks or clients, and open those on first use",
        ) from error


def _culprit(job: Job) -> str:
    for field in fields(job):
        value = getattr(job, field.name)
        if not _picklable(value):
            inner = [name for name, part in _attributes(value) if not _picklable(part)]
            return (
                f"{field.name}.{inner[0]} (a {type(dict(_attributes(value))[inner[0]]).__name__})"
                if inner
                else field.name
            )
    return "the loader's job"


def _attributes(value: object) -> list[tuple[str, object]]:
    found = list(getattr(value, "__dict__", {}).items())
    closure = getattr(value, "__closure__", None) or ()
    names = getattr(getattr(value, "__code__", None), "co_freevars", ())
    found += [(name, cell.cell_contents) for name, cell in zip(names, closure, strict=False)]
    used = getattr(getattr(value, "__code__", None), "co_names", ())
    known = getattr(value, "__globals__", {})
    return found + [(name, known[name]) for name in used if name in known]


def _picklable(value: object) -> bool:
    try:
        cloudpickle.dumps(value, protocol=5)
    except (TypeError, AttributeError, pickle.PicklingError, RecursionError):
        return False
    return True
