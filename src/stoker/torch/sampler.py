"""Which samples this rank draws, in which order: stoker's order as samplers of `torch.utils.data`.

The order is that of `stoker.Loader` with the same seed, and so is the state: a run can change from one to the other.
Surprising: a DataLoader with workers draws batches long before the loop gets them, so a sampler cannot know what was
returned. torchdata's StatefulDataLoader keeps account of it by itself, through the state of the sampler's *iterator*; a
plain DataLoader's loop says how many batches it got: `state_after(returned)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
import torch.utils.data

from stoker.dataset import Dataset
from stoker.errors import UsageError
from stoker.loader.plan import Shuffle, plan_order, plan_split
from stoker.loader.ranks import find_ranks
from stoker.order import MixedOrder, Order, Position, Tail, build_order, plan_hash
from stoker.torch.number import Number

Drawn = TypeVar("Drawn")

AHEAD = 1024
"""Steps of a `Sampler` computed at a time."""


class Course:
    """An epoch's batches for this rank, and where in it the next iteration begins.

    Epoch and position lie in shared memory, so that worker processes see what the training process sets.
    """

    def __init__(
        self, source: object, batch_size: int, *, seed: int, shuffle: Shuffle, tail: Tail, ranks: tuple[int, int] | None
    ) -> None:
        if type(seed) is not int or not 0 <= seed < 2**64:
            raise UsageError(f"seed must be a whole number from 0 to 2^64 - 1, found {seed!r}")
        if type(batch_size) is not int or batch_size < 1:
            raise UsageError(f"batch_size must be a whole number, at least 1, found {batch_size!r}")
        data = getattr(source, "dataset", source)  # of a MapDataset, the dataset behind it
        who = find_ranks(*(ranks or (None, None)))
        self.seed = seed
        self.order, name, identity = _order(data, shuffle, seed)
        self.split = plan_split(self.order.samples, batch_size, who, 1, tail)
        self.plan = plan_hash(
            format_name=name, shards=[(identity, 0, self.order.samples)], seed=seed, mode=self.order.mode,
            canonical_nodes=1,
        )  # fmt: skip
        self._place = shared((3,))
        self.begun = False
        self.resumed = False

    @property
    def epoch(self) -> int:
        """The epoch that runs, or that the next iteration runs."""
        return int(self._place[0])

    @property
    def position(self) -> int:
        """Samples of it consumed over all ranks when the iteration began."""
        return int(self._place[1])

    def go(self, epoch: int, position: int) -> None:
        """Set both."""
        self._place[0], self._place[1], self._place[2] = epoch, position, -1

    def ran(self) -> bool:
        """Whether this epoch was begun before without a `go` in between; from now on it was. For iterable datasets."""
        before = int(self._place[2]) == self.epoch + 1
        self._place[2] = self.epoch + 1
        return before

    def coming(self) -> tuple[int, int]:
        """Epoch and position at which a new iteration would begin: after one that was begun comes the next epoch."""
        return (self.epoch + 1, 0) if self.begun else (self.epoch, self.position)

    def begin(self) -> tuple[int, int]:
        """A new iteration begins: its epoch and position."""
        self.go(*self.coming())
        self.begun, self.resumed = True, False
        return self.epoch, self.position

    def set_epoch(self, epoch: int) -> None:
        """The next iteration runs *epoch* from its beginning; after a resume into that epoch, from the position."""
        if type(epoch) is not int or epoch < 0:
            raise UsageError(f"epoch must be a whole number from 0 on, found {epoch!r}")
        if not (self.resumed and epoch == self.epoch):
            self.go(epoch, 0)
            self.begun = False

    def state(self, epoch: int, start: int, steps: int) -> dict[str, Any]:
        """The state after *steps* steps from position *start*."""
        left = self.split.steps(start)
        if type(steps) is not int or not 0 <= steps <= left:
            raise UsageError(f"this epoch's loop has at most {left} batches to return, found returned={steps!r}")
        return Position(epoch, self.split.consumed_after(start, steps), self.plan).to_dict()

    def read(self, state: Mapping[str, Any]) -> Position:
        """The position of a state, which must belong to the same plan."""
        if not isinstance(state, Mapping):
            raise UsageError(f"a state is what state_after() gave, found {type(state).__name__}")
        found = Position.from_dict(state)
        if found.plan != self.plan:
            raise UsageError(
                f"the state belongs to another plan: it says {found.plan}, this sampler's is {self.plan}",
                "dataset, seed and shuffle must be those of the run that saved it",
            )
        return found

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on where *state* was taken, on any number of ranks; a state of an epoch's end begins the next one."""
        found = self.read(state)
        whole = self.split.consumed_after(0, self.split.steps())
        if found.consumed >= min(whole, self.split.samples):
            found = Position(found.epoch + 1, 0, self.plan)
        self.split.steps(found.consumed)
        self.go(found.epoch, found.consumed)
        self.begun, self.resumed = False, True

    def numbers(self, epoch: int, start: int, first: int, count: int = 1) -> list[Number]:
        """The sample numbers of *count* steps from step *first* of an iteration that began at position *start*."""
        steps = [self.split.step(start, step) for step in range(first, first + count)]
        samples = self.order.at(epoch, np.concatenate([positions for positions, _ in steps])).tolist()
        if self.split.tail == "drop":
            return [Number(sample, epoch, self.seed) for sample in samples]
        masks = np.concatenate([mask for _, mask in steps if mask is not None]).tolist()
        return [Number(sample, epoch, self.seed, mask) for sample, mask in zip(samples, masks, strict=True)]


def shared(shape: tuple[int, ...]) -> torch.Tensor:
    """Zeros int64 of *shape* that worker processes see as the training process sets them."""
    made: Any = torch.zeros(shape, dtype=torch.int64)
    tensor: torch.Tensor = made.share_memory_()
    return tensor


def _order(data: object, shuffle: Shuffle, seed: int) -> tuple[Order | MixedOrder, str, str]:
    """The order over *data*, and what names it in a plan hash: format and identity."""
    if hasattr(data, "plan_identity"):
        dataset: Any = data
        order = plan_order(dataset, shuffle, seed=seed, canonical_nodes=1)
        said = dataset.plan_until(2**62) + order.described
        return order, dataset.format_name, dataset.plan_identity() + said
    samples = data if type(data) is int else len(data) if isinstance(data, Sized) else -1
    if not isinstance(samples, int) or samples < 0:
        raise UsageError(f"a sampler takes a dataset, or how many samples there are, found {type(data).__name__}")
    mode: Literal["full", "none"] = "none" if shuffle in (False, "none") else "full"
    if shuffle not in (True, False, "auto", "full", "none"):
        raise UsageError(f"shuffle must be 'auto', 'full' or 'none' for a dataset without shards, found {shuffle!r}")
    return build_order(mode, shard_starts=np.array([0, samples], np.int64), seed=seed), "sized", ""


class _Sampling(torch.utils.data.Sampler[Drawn], Generic[Drawn]):
    """What both samplers have in common."""

    course: Course

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return self.course.split.steps()

    @property
    def epoch(self) -> int:
        """The epoch that runs now, or that the next `iter()` runs: each `iter()` after the first runs the next one."""
        return self.course.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` runs *epoch* from its beginning, as with torch's DistributedSampler."""
        self.course.set_epoch(epoch)

    def state_after(self, returned: int) -> dict[str, Any]:
        """The state once the loop has been given *returned* of this epoch's items, counted from its `iter()`.

        The items of a BatchSampler are batches; those of a Sampler are samples: batches × batch size. A few hundred
        bytes, the same on every rank; `stoker.Loader` of the same dataset, seed and shuffle reads it too.
        """
        return self.course.state(self.course.epoch, self.course.position, returned)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where *state* was taken, on any number of ranks, workers and any batch size. Before `iter()`."""
        self.course.load(state)


class BatchSampler(_Sampling[list[int]]):
    """Batches of sample numbers for `DataLoader(batch_sampler=…)`."""

    def __init__(
        self,
        source: Dataset | Sized | int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: Shuffle = "auto",
        tail: Tail = "drop",
        ranks: tuple[int, int] | None = None,
    ) -> None:
        """Batches of *batch_size* samples for this rank, out of *source*: a dataset, or how many samples there are.

        Steps are equal on all ranks; the rest of an epoch, less than a global batch, is dropped, or padded with repeats
        whose number has `mask` False. *ranks* is (rank, world_size); default: torch.distributed's, else the launcher's.
        UsageError for an epoch of no steps.
        """
        super().__init__()
        self.course = Course(source, batch_size, seed=seed, shuffle=shuffle, tail=tail, ranks=ranks)
        self.batch_size = batch_size
        self.drop_last = tail == "drop"

    def __iter__(self) -> Iterator[list[int]]:
        return _Batches(self.course)


class Sampler(_Sampling[int]):
    """Sample numbers for `DataLoader(sampler=…, batch_size=…, drop_last=True)`: rank r of W takes every W-th."""

    def __init__(
        self,
        source: Dataset | Sized | int,
        *,
        seed: int = 0,
        shuffle: Shuffle = "auto",
        tail: Tail = "drop",
        ranks: tuple[int, int] | None = None,
    ) -> None:
        """As `BatchSampler`, with batches of one."""
        super().__init__()
        self.course = Course(source, 1, seed=seed, shuffle=shuffle, tail=tail, ranks=ranks)

    def __iter__(self) -> Iterator[int]:
        return _Singles(self.course)


class _Draws(Iterator[Drawn]):
    """One pass over an epoch, begun with its first draw: a DataLoader with workers calls `iter` twice for each pass.

    Its state counts what was drawn, which is what StatefulDataLoader asks for.
    """

    def __init__(self, course: Course) -> None:
        self._course = course
        self._begun = False
        self._epoch, self._start, self._step, self._steps = 0, 0, 0, 0

    def _draw(self) -> int:
        """The number of the step that is drawn now. StopIteration at the epoch's end."""
        if not self._begun:
            self._go(*self._course.begin())
        if self._step >= self._steps:
            raise StopIteration
        self._step += 1
        return self._step - 1

    def _go(self, epoch: int, start: int) -> None:
        self._begun = True
        self._epoch, self._start, self._step = epoch, start, 0
        self._steps = self._course.split.steps(start)

    def state_dict(self) -> dict[str, Any]:
        """Where this pass stands."""
        if not self._begun:
            return self._course.state(*self._course.coming(), 0)
        return self._course.state(self._epoch, self._start, self._step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on there; the epoch's end is a place like any other."""
        found = self._course.read(state)
        self._course.go(found.epoch, found.consumed)
        self._course.begun = True
        self._go(found.epoch, found.consumed)


class _Batches(_Draws[list[int]]):
    """Passes of a BatchSampler."""

    def __next__(self) -> list[int]:
        step = self._draw()
        return list(self._course.numbers(self._epoch, self._start, step))


class _Singles(_Draws[int]):
    """Passes of a Sampler."""

    _first = 0
    _ready: tuple[Number, ...] = ()

    def __next__(self) -> int:
        step = self._draw()
        if not self._first <= step < self._first + len(self._ready):
            self._first = step
            self._ready = tuple(self._course.numbers(self._epoch, self._start, step, min(AHEAD, self._steps - step)))
        return self._ready[step - self._first]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._ready = ()
