"""`stoker.Loader`: batches of a dataset in an exact, resumable order, made by a feeder process.

Epochs: each `iter()` runs epoch `loader.epoch`, and its end adds one; `break` and a new `iter()` begin the next epoch;
after `load_state_dict` the next `iter()` goes on in mid-epoch. The state counts what `next()` returned, never what was
prefetched, and is the same on every rank.
"""

from __future__ import annotations

import contextlib
import importlib
import weakref
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Literal, Self

from stoker.clock import SYSTEM
from stoker.dataset import Dataset, Mixture
from stoker.errors import SampleError, UsageError
from stoker.events import RunLog
from stoker.loader.batch import Bad, Delivered, Failed
from stoker.loader.books import Books, Entry
from stoker.loader.buckets import Buckets
from stoker.loader.early import Early
from stoker.loader.handout import HandOut, as_tuple
from stoker.loader.job import BadPolicy, BatchTransform, Job, OnBad, Start, Transform
from stoker.loader.lanes import Lane, Lanes
from stoker.loader.plan import (
    Budget,
    Shuffle,
    check_arguments,
    check_choices,
    check_device,
    plan_batches,
    plan_fields,
    plan_work,
)
from stoker.loader.process import rebuild
from stoker.loader.ranks import find_ranks
from stoker.loader.report import LoaderReport
from stoker.loader.slab import Slab
from stoker.order import MixedOrder, Position, plan_hash


class Loader:
    """Iterable over batches: dicts of tensors (or tuples) with `__key__` and `__index__` (int64 global sample
    numbers)."""

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int | Buckets,
        *,
        fields: Mapping[str, object] | None = None,
        seed: int = 0,
        shuffle: Shuffle = "auto",
        canonical_nodes: int = 1,
        tail: Literal["drop", "pad"] = "drop",
        transform: Transform | None = None,
        batch_transform: BatchTransform | None = None,
        on_bad: OnBad = "raise",
        on_bad_max: float = 0.001,
        device: str | None = None,
        device_transform: BatchTransform | None = None,
        output: Literal["torch", "numpy"] = "torch",
        layout: Literal["dict", "tuple"] = "dict",
        rank: int | None = None,
        world_size: int | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Batches of *batch_size* samples for this rank, or of like length: `stoker.Buckets(…)`.

        *fields* maps a field to how it is decoded (`stoker.image.…`, `int`, `float`, `str`, `bytes`, `stoker.json`,
        `stoker.npy`, a function of bytes); default: every field by its name. *shuffle*: `auto` (full where random
        access is cheap, else a window of shards), `full`, `none`, `stoker.Window(shards=…)`. *tail*: the rest of an
        epoch, less than a global batch, is dropped, or padded with repeats and a bool `__mask__`. *transform* gets
        and gives a dict of a sample; *batch_transform* a dict of a batch's NumPy views, in the feeder. *on_bad_max*
        is the share of the rank's epoch that may be bad. *device* copies batches there; *device_transform* gets and
        gives a dict of its tensors, on the stream of the copies. *layout* "tuple" gives the fields in the order of
        *fields*.

        Raises UsageError when the arguments contradict each other or the data, FeederError when no feeder can start.
        """
        check_choices(output=output, layout=layout, on_bad=on_bad)
        check_device(device, device_transform, output)
        given = {"rank": rank, "world_size": world_size}
        sized = {} if isinstance(batch_size, Buckets) else {"batch_size": batch_size}
        whole = {**sized, "seed": seed, "canonical_nodes": canonical_nodes}
        check_arguments(dataset, {**whole, **{n: v for n, v in given.items() if v is not None}}, on_bad_max=on_bad_max)
        ranks = find_ranks(rank, world_size)
        self.dataset = dataset
        order, self._split = plan_batches(
            dataset, batch_size, shuffle, seed=seed, ranks=ranks, canonical_nodes=canonical_nodes, tail=tail
        )
        self._bad_policy = BadPolicy(on_bad, on_bad_max)
        self._fields = plan_fields(dataset, fields)
        self._layout = layout
        self._tensor = importlib.import_module("stoker.loader.torch") if output == "torch" else None
        self._device = self._tensor.device(device, device_transform, seed) if self._tensor is not None else None
        work = plan_work(dataset, budget, ranks, pinned=self._device is not None)
        self._job = Job(
            dataset, self._fields, order, self._split, seed, transform, batch_transform, self._bad_policy, work,
            natural=fields is None, padding=batch_size.padding() if isinstance(batch_size, Buckets) else None,
        )  # fmt: skip
        self.epoch = 0
        """The epoch that runs now, or that the next `iter()` runs."""
        self._position = 0
        self._begun = False
        self._resumed = False
        self._generation = 0
        self._ahead: tuple[int, int, int] | None = None
        self._live: weakref.ref[_Epoch] | None = None
        self._bad_count = 0
        feeders = budget.feeders if budget is not None and budget.feeders is not None else 1
        lanes = Lanes(self._job, self._hand_out, feeders)
        self._books = Books(lanes, RunLog.from_environment(), ranks.rank)
        self._early: Early | None = Early(lanes, self._books, self._device)
        self._begin()  # the first batches are made while the model is; a resumed run starts elsewhere all the same
        self._ahead = (self._generation, 0, 0)

    # --- epochs ---

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank."""
        return self._split.steps()

    def __iter__(self) -> Iterator[Any]:
        if self._early is None:
            raise UsageError("the loader is closed")
        if self._begun:  # the last iteration was left in the middle: this one is the next epoch
            self.epoch, self._position = self.epoch + 1, 0
        self._begun, self._resumed = True, False
        iterator = _Epoch(self)
        self._live = weakref.ref(iterator)
        return iterator

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` runs *epoch* from its beginning, as with torch's DistributedSampler."""
        check_arguments(self.dataset, {"epoch": epoch}, on_bad_max=0)
        if self._resumed and epoch == self.epoch:
            return  # a loop that says the epoch after a resume must not throw the position away
        self.epoch, self._position, self._begun = epoch, 0, False

    def state_dict(self) -> dict[str, Any]:
        """Where training stands: what `next()` returned so far. A few hundred bytes, the same on all ranks."""
        return Position(self.epoch, self._position, self._plan(self.epoch, self._position)).to_dict()

    def _plan(self, epoch: int, position: int) -> str:
        """The hash of all that decides which samples stand before *position* of *epoch*."""
        data, job = self.dataset, self._job
        until = data.plan_until(epoch * len(data) + position)
        return plan_hash(
            format_name=data.format_name, shards=[(data.plan_identity(), 0, len(data))], seed=job.seed,
            mode=job.order.mode, canonical_nodes=job.split.canonical_nodes, mixture=until + job.order.described,
        )  # fmt: skip

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where *state* was taken, on any number of ranks and any batch size, with the same data and seed.

        UsageError while an iterator lives, or when the state belongs to other data, another seed or another shuffle.
        """
        live = self._live() if self._live is not None else None
        if live is not None and not live.ended:
            raise UsageError(
                "load_state_dict while an iterator lives", "load before iter(), or drop the iterator first"
            )
        if not isinstance(state, Mapping):
            raise UsageError(f"a state is what state_dict() gave, found {type(state).__name__}")
        position = Position.from_dict(state)
        if position.consumed > self._split.samples:
            raise UsageError(f"an epoch has {self._split.samples} positions, the state stands at {position.consumed}")
        plan = self._plan(position.epoch, position.consumed)
        if position.plan != plan:
            raise UsageError(
                f"the state belongs to another plan: it says {position.plan}, this loader's is {plan}",
                "dataset, shards, seed, shuffle, canonical_nodes, the weights of a mixture and the sizes of "
                "buckets must be those of the run that saved it",
            )
        if position.consumed == self._split.consumed_after(0, len(self)) or position.consumed >= self._split.samples:
            position = Position(position.epoch + 1, 0, plan)  # saved at the very end of an epoch
        self._split.steps(position.consumed)
        self.epoch, self._position, self._begun, self._resumed = position.epoch, position.consumed, False, True

    # --- batches ---

    def _begin(self) -> Start:
        """Make sure that the feeder works on what comes next, and say from where."""
        assert self._early is not None
        with self._early.held():
            widened = self._early.lanes.widen()
            if widened or self._ahead != (self._generation, self.epoch, self._position):
                self._generation += 1
                self._early.start(Start(self._generation, self.epoch, self._position))
        return Start(self._generation, self.epoch, self._position)

    def _next(self, early: Early, start: Start, step: int) -> Any:
        began = SYSTEM.monotonic()
        taken = early.take(began)
        told = taken.told
        if isinstance(told, Failed):
            raise rebuild(told)
        assert (told.epoch, told.step) == (start.epoch, step), "the feeder's order is broken"
        if told.bad:
            self._check_bad(taken.lane, told)
        self._position = self._split.consumed_after(start.position, step + 1)
        if told.rows == 0:
            self._pass_over(taken.lane, told)
            return None
        copies = taken.batch is None and (self._device is not None or taken.lane.handed.must_copy(told))
        copied_s = SYSTEM.monotonic() if copies else None
        batch = early.batch(taken, told)
        ended = SYSTEM.monotonic()
        self._books.note(Entry(taken.lane, told, began, ended, copied_s))
        early.returned(ended, batch)
        return batch if self._layout == "dict" else as_tuple(batch, [name for name, _ in self._fields])

    def _pass_over(self, lane: Lane, told: Delivered) -> None:
        """Every sample of the batch was skipped: alone, this process goes on; with others it would fall out of step."""
        lane.feeder.free([told.slot])
        self._books.skipped(told.bad)
        if self._split.world_size > 1:
            raise SampleError(
                f"epoch {told.epoch}, step {told.step}: every sample of this rank's batch is bad; the first: "
                f"{told.bad[0].message}",
                "on_bad='replace' keeps the ranks in step",
            )

    def _hand_out(self, slab: Slab) -> HandOut:
        """What makes batches of a feeder's slots."""
        to_tensor = self._tensor.to_tensor if self._tensor is not None else None
        if self._device is not None:
            self._device.attach(slab)
        return HandOut(slab, to_tensor, self.dataset.key, kept=self._device is None)

    def _check_bad(self, lane: Lane, told: Delivered) -> None:
        self._bad_count += len(told.bad)
        share = len(self.dataset) // self._split.world_size
        allowed = self._bad_policy.limit(share)
        if self._bad_count > allowed:
            lane.feeder.free([told.slot])
            raise SampleError(
                f"{self._bad_count} bad samples, but at most {allowed} of {share} a rank and epoch may be "
                f"(on_bad_max={self._bad_policy.share_max}); the last: {told.bad[-1].message}",
                "`loader.bad` lists them; raise on_bad_max if so many are expected",
            )

    def _finish(self) -> None:
        """The epoch's last batch was drawn: the feeder is in the next one already."""
        order, data = self._job.order, self.dataset
        if isinstance(order, MixedOrder) and isinstance(data, Mixture) and self._books.logs:
            self._books.mixed(self.epoch, data.counts(order, self.epoch * len(data), (self.epoch + 1) * len(data)))
        self.epoch, self._position, self._begun, self._bad_count = self.epoch + 1, 0, False, 0
        self._ahead = (self._generation, self.epoch, 0)

    # --- what is known ---

    def report(self) -> LoaderReport:
        """Where every second of waiting went, so far."""
        with self._held():
            return self._books.report()

    @property
    def bad(self) -> list[Bad]:
        """The samples that could not be used, with reasons (the first 10,000)."""
        with self._held():
            return self._books.bad()

    def _held(self) -> AbstractContextManager[object]:
        return contextlib.nullcontext() if self._early is None else self._early.held()

    # --- the end ---

    def close(self) -> None:
        """End the feeder. Batches in use stay valid."""
        if self._early is not None:
            self._early.close()
            self._early = None
        self._books.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Epoch(Iterator[Any]):
    """One pass over an epoch, or over the rest of it."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._begin()
        self.ended = False

    def _begin(self) -> None:
        """From where the loader stands to the end of the epoch."""
        self._start = self._loader._begin()
        self._steps = self._loader._split.steps(self._start.position)
        self._step = 0

    def __next__(self) -> Any:
        loader = self._loader
        if self.ended:
            raise StopIteration
        if self._start.generation != loader._generation or loader._live is None or loader._live() is not self:
            raise UsageError("this iterator was replaced by a newer iter() of the same loader")
        if loader._early is None:
            raise UsageError("the loader is closed")
        with loader._early.held():
            return self._drawn(loader, loader._early)

    def _drawn(self, loader: Loader, early: Early) -> Any:
        if early.lanes.widen():  # the plan goes on from here with more feeders
            loader._ahead = None
            self._begin()
        self.ended = True  # unless a batch comes: after an error this epoch does not go on
        while self._step < self._steps:
            loader._ahead = None
            batch = loader._next(early, self._start, self._step)
            self._step += 1
            if batch is not None:
                self.ended = False
                return batch
        loader._finish()
        raise StopIteration
