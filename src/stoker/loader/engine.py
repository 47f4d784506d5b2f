"""The feeder's threads: they take tasks from the schedule, read, decode, close batches and hand them over in order.

One lock; two conditions over it, for those who read and those who decode. Whoever takes a task wakes one more of its
kind, and so on while there is something to do: as many wake as are needed, not all of them at every change.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import NamedTuple

import numpy as np

from stoker.loader.batch import Batch, Chunk
from stoker.loader.collate import Collator
from stoker.loader.crew import Crew, CrewTimes
from stoker.loader.job import Job, Start
from stoker.loader.layout import BOARD_THREADS_MAX
from stoker.loader.schedule import Schedule, Task
from stoker.loader.slab import Slab
from stoker.loader.work import Workshop


class EngineState(NamedTuple):
    """How an engine stands."""

    reading: CrewTimes
    decoding: CrewTimes
    samples: int
    """Handed over so far."""
    batches: int
    under_way: int
    """Batches begun and not handed over."""
    free: int
    """Slots."""


class Engine:
    """The threads of a feeder. `deliver` gets finished batches, one by one in order, `fail` what has no batch."""

    def __init__(
        self,
        job: Job,
        slab: Slab,
        workshop: Workshop,
        collator: Collator,
        deliver: Callable[[Batch], None],
        fail: Callable[[Start, BaseException], None],
    ) -> None:
        self._slab = slab
        self._workshop = workshop
        self._collator = collator
        self._deliver = deliver
        self._tell_failure = fail
        self._board = slab.board()
        self._schedule = Schedule(job, slab, gathered=workshop.gatherer is not None)
        self._lock = threading.RLock()
        self._sending = threading.Lock()
        self._readers = Crew("read", self._lock, self._reading)
        self._decoders = Crew("decode", self._lock, self._decoding)
        self._samples = self._batches = 0

    def set(self, *, threads: int, readers: int) -> None:
        """How many threads decode and how many read ahead: now, and as often as wanted."""
        with self._lock:
            self._schedule.readers, self._schedule.threads = readers, threads
            self._readers.set(readers)
            self._decoders.set(min(threads, BOARD_THREADS_MAX))

    def start(self, start: Start) -> None:
        """Drop what is under way and begin at *start*."""
        with self._lock:
            self._schedule.begin(start)
            self._wake()

    def free(self, slots: list[int]) -> None:
        """The trainer no longer uses these slots, or they are new."""
        with self._lock:
            self._schedule.free(slots)
            self._wake()

    def state(self) -> EngineState:
        """How it stands at this moment."""
        with self._lock:
            times = self._readers.times(), self._decoders.times()
            return EngineState(*times, self._samples, self._batches, *self._schedule.state())

    def _wake(self) -> None:
        """There may be something to do: one of each kind looks, and passes it on."""
        self._readers.wake()
        self._decoders.wake()

    def _take(self, crew: Crew, number: int, pick: Callable[[], Task | None]) -> Task | None:
        """The next task; None when the plan itself failed, which the trainer is told."""
        with self._lock:
            try:
                crew.park(number)
                while (task := pick()) is None:
                    crew.wait(number, self._schedule.idle)
                    crew.park(number)
                crew.wake()
                return task
            except BaseException as error:  # the plan's own arithmetic: no batch to fail
                failure = error
                start = self._schedule.fail_plan()
        self._tell_failure(start, failure)
        return None

    # --- the threads ---

    def _reading(self, number: int) -> None:
        while True:
            if (task := self._take(self._readers, number, self._schedule.to_read)) is None:
                continue
            batch, chunk = task
            with _Failing(self, batch, chunk):
                raw = self._workshop.read(batch, chunk)
                with self._lock:
                    self._schedule.was_read(batch, chunk, raw)
                    self._wake()

    def _decoding(self, number: int) -> None:
        seat = self._board[number : number + 1]
        while True:
            if (task := self._take(self._decoders, number, self._schedule.to_decode)) is None:
                continue
            batch, chunk = task
            with _Failing(self, batch, chunk, seat):
                self._work(batch, chunk, seat)
                self._flush()
            seat[0] = 0

    def _work(self, batch: Batch, chunk: Chunk, seat: np.ndarray) -> None:
        raw = chunk.raw if chunk.raw is not None else self._workshop.read(batch, chunk)
        self._workshop.fill(batch, chunk, raw, seat)
        with self._lock:
            last = self._schedule.was_decoded(batch, chunk)
            self._readers.wake()
        if last:
            self._collator.finish(batch)
            with self._lock:
                self._schedule.was_closed(batch)

    def failed(self, batch: Batch, chunk: Chunk, error: BaseException) -> None:
        """See `Schedule.failed`."""
        with self._lock:
            self._schedule.failed(batch, chunk, error)
            self._wake()
        self._flush()

    def _flush(self) -> None:
        """Hand over what is finished, in order."""
        with self._sending:
            while True:
                with self._lock:
                    batch = self._schedule.finished()
                    if batch is None:
                        return
                    self._samples += batch.rows
                    self._batches += 1
                    self._wake()
                self._deliver(batch)


class _Failing:
    """What a thread's work raises (a user's transform may raise anything) is the batch's, and so the trainer's."""

    def __init__(self, engine: Engine, batch: Batch, chunk: Chunk, seat: np.ndarray | None = None) -> None:
        self._engine, self._batch, self._chunk, self._seat = engine, batch, chunk, seat

    def __enter__(self) -> None:
        """Nothing to prepare."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            if self._seat is not None and self._seat[0]:
                error.add_note(f"while the feeder worked on sample {self._seat[0] - 1}, epoch {self._batch.epoch}")
            self._engine.failed(self._batch, self._chunk, error)
        return True
