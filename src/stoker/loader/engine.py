"""The feeder's schedule: which thread does what next. One lock, one condition, work given out in order of batches.

Rules.
1. Batches exist in the order in which they will be handed over; chunks are given out first batch first. One slow sample
   holds nobody else: other threads go on with later chunks and batches.
2. A batch gets its slot in that order when its first chunk is decoded; without a free slot decoding stands still.
3. Reading ahead (by `readers` threads, where a read may mean a round trip) is bounded by bytes, and the first batch
   that is not finished may always be read, so the bound cannot block progress.
4. A new generation drops everything older; a slot that a thread still writes into is free when that thread is done.
5. The plan runs on into the next epoch: at the seam the trainer finds its batch ready.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType

import numpy as np

from stoker.clock import SYSTEM
from stoker.dataset import Located, RawSamples
from stoker.loader.batch import Batch, Chunk, ChunkState
from stoker.loader.collate import Collator
from stoker.loader.job import Job, Start
from stoker.loader.slab import Slab
from stoker.loader.steps import Steps
from stoker.loader.work import Workshop

CHUNK_ROWS = 8
"""Rows a thread takes at a time: 1 costs 5 % in hand-overs, 32 leaves threads idle at a batch's end (measured)."""
GATHER_BYTES = 1 << 20
"""Bytes that a thread copies at a time where nothing is decoded: some 100 µs."""
AHEAD_BATCHES_MAX = 64
"""Batches that may be read ahead, whatever their bytes: the plan of a tiny dataset must stay bounded too."""


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
        self._job = job
        self._slab = slab
        self._workshop = workshop
        self._collator = collator
        self._deliver = deliver
        self._tell_failure = fail
        self._board = slab.board()
        self._changed = threading.Condition()
        self._sending = threading.Lock()
        self._free = deque(range(slab.slots))
        self._upcoming: deque[Batch] = deque()
        self._steps: Steps | None = None
        self._chunk_rows = CHUNK_ROWS
        if workshop.gatherer is not None:
            self._chunk_rows = max(1, GATHER_BYTES // slab.layout.row_bytes(job.split.batch_size))
        self._read_bytes = 0
        self._stopped = False

    def run(self) -> None:
        """Start the threads; they are daemons, and end with the process."""
        work = self._job.work
        for number in range(work.readers):
            threading.Thread(target=self._reading, daemon=True, name=f"read-{number}").start()
        for number in range(work.threads):
            threading.Thread(target=self._decoding, args=(number,), daemon=True, name=f"decode-{number}").start()

    def start(self, start: Start) -> None:
        """Drop what is under way and begin at *start*."""
        with self._changed:
            for batch in self._upcoming:
                batch.cancelled = True
                self._retire(batch)
            self._upcoming.clear()
            self._read_bytes = 0
            self._steps = Steps(self._job.order, self._job.split, start)
            self._stopped = False
            self._changed.notify_all()

    def free(self, slots: list[int]) -> None:
        """The trainer no longer uses these slots."""
        with self._changed:
            self._free.extend(slots)
            self._changed.notify_all()

    def state(self) -> tuple[int, int]:
        """Batches under way and free slots, for a trainer that wonders."""
        with self._changed:
            return len(self._upcoming), len(self._free)

    # --- what comes next (all under the lock) ---

    def _extend(self) -> bool:
        """Put the plan's next batch in line."""
        if self._steps is None or self._stopped or len(self._upcoming) >= AHEAD_BATCHES_MAX:
            return False
        epoch, step, samples, mask = self._steps.take()
        size = self._chunk_rows
        if self._workshop.gatherer is None:
            size = min(size, max(1, -(-len(samples) // (2 * self._job.work.threads))))
        chunks = [Chunk(first, min(first + size, len(samples))) for first in range(0, len(samples), size)]
        self._upcoming.append(Batch(self._steps.start, epoch, step, samples, mask, chunks, SYSTEM.monotonic()))
        return True

    def _slotted(self, batch: Batch) -> bool:
        """Whether the batch has a slot, giving it one if there is one."""
        if batch.slot is None and self._free:
            batch.slot = self._free.popleft()
            batch.arrays = self._slab.arrays(batch.slot)
        return batch.slot is not None

    def _to_decode(self) -> tuple[Batch, Chunk] | None:
        ready = ChunkState.READ if self._job.work.readers else ChunkState.NEW
        for batch in self._upcoming:
            if not self._slotted(batch):
                return None
            chunk = batch.find(ready)
            if chunk is not None:
                chunk.state = ChunkState.DECODING
                return batch, chunk
        if self._job.work.readers or not self._free:
            return None
        return self._to_decode() if self._extend() else None

    def _to_read(self) -> tuple[Batch, Chunk] | None:
        full = self._read_bytes >= self._job.work.ram_bytes // 2
        for batch in self._upcoming:
            chunk = batch.find(ChunkState.NEW)
            if chunk is not None:
                chunk.state = ChunkState.READING
                return batch, chunk
            if full and not batch.done:
                return None
        return self._to_read() if not full and self._extend() else None

    def _take(self, pick: Callable[[], tuple[Batch, Chunk] | None]) -> tuple[Batch, Chunk] | None:
        """The next task; None when the plan itself failed, which the trainer is told."""
        with self._changed:
            try:
                while (task := pick()) is None:
                    self._changed.wait()
                return task
            except BaseException as error:  # the plan's own arithmetic: no batch to fail
                failure = error
                start = self._steps.start if self._steps is not None else Start(-1, 0, 0)
                self._steps = None
        self._tell_failure(start, failure)
        return None

    # --- the threads ---

    def _reading(self) -> None:
        while True:
            if (task := self._take(self._to_read)) is None:
                continue
            batch, chunk = task
            with _Failing(self, batch, chunk):
                raw = self._workshop.read(batch, chunk)
                with self._changed:
                    chunk.raw, chunk.state = raw, ChunkState.READ
                    if batch.cancelled:
                        chunk.raw, chunk.state = None, ChunkState.DONE
                        self._retire(batch)
                    else:
                        self._read_bytes += raw_bytes(raw)
                    self._changed.notify_all()

    def _decoding(self, number: int) -> None:
        seat = self._board[number : number + 1]
        while True:
            if (task := self._take(self._to_decode)) is None:
                continue
            batch, chunk = task
            with _Failing(self, batch, chunk, seat):
                self._work(batch, chunk, seat)
                self._flush()
            seat[0] = 0

    def _work(self, batch: Batch, chunk: Chunk, seat: np.ndarray) -> None:
        raw = chunk.raw
        if raw is None:
            raw = self._workshop.read(batch, chunk)
        self._workshop.fill(batch, chunk, raw, seat)
        with self._changed:
            if chunk.raw is not None and not batch.cancelled:
                self._read_bytes -= raw_bytes(chunk.raw)
            chunk.raw, chunk.state = None, ChunkState.DONE
            if batch.cancelled:
                self._retire(batch)
            self._changed.notify_all()
            last = batch.remaining() == 0 and not batch.cancelled and batch.failure is None
        if last:
            self._collator.finish(batch)
            with self._changed:
                batch.done, batch.done_s = True, SYSTEM.monotonic()
                if batch.cancelled:
                    self._retire(batch)

    def failed(self, batch: Batch, chunk: Chunk, error: BaseException) -> None:
        """The batch ends here, and so does the plan: the trainer gets the error where the batch would have come."""
        with self._changed:
            chunk.raw, chunk.state = None, ChunkState.DONE
            if batch.cancelled:
                self._retire(batch)
            else:
                batch.failure, batch.done, self._stopped = batch.failure or error, True, True
            self._changed.notify_all()
        self._flush()

    def _retire(self, batch: Batch) -> None:
        """Give a cancelled batch's slot back as soon as no thread writes into it."""
        if batch.slot is not None and not batch.working():
            self._free.append(batch.slot)
            batch.slot = None

    def _flush(self) -> None:
        """Hand over what is finished, in order."""
        with self._sending:
            while True:
                with self._changed:
                    if not self._upcoming or not self._upcoming[0].done:
                        return
                    batch = self._upcoming.popleft()
                    if batch.failure is not None:
                        batch.cancelled = True
                        self._retire(batch)
                    self._changed.notify_all()
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


def raw_bytes(raw: RawSamples | Located) -> int:
    """Bytes that a chunk's raw values hold in memory."""
    if not isinstance(raw, RawSamples):
        return 0
    return sum(
        len(v) for sample in raw.values for v in sample.values() if isinstance(v, bytes | bytearray | memoryview)
    )
