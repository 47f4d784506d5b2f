"""What a feeder's threads do next: decided here, under the engine's lock, without threads or clocks of its own.

Rules.
1. Batches exist in the order in which they will be handed over; chunks are given out first batch first. One slow sample
   holds nobody else: other threads go on with later chunks and batches.
2. A batch gets its slot in that order when its first chunk is decoded; without a free slot decoding stands still.
3. Reading ahead (by reading threads, where a read may mean a round trip) is bounded by bytes, and the first batch that
   is not finished may always be read, so the bound cannot block progress.
4. A new generation drops everything older; a slot that a thread still writes into is free when that thread is done.
5. The plan runs on into the next epoch: at the seam the trainer finds its batch ready.
6. Where samples are only copied, slots hold one step at first, and twice as many each time that all went well; one
   after what had to be read. A slot of several that fails, or whose values do not all fit, is made again step by step:
   the trainer gets every batch before the bad one.
"""

from __future__ import annotations

from collections import deque

from stoker.clock import SYSTEM
from stoker.dataset import Located, RawSamples
from stoker.loader.batch import Batch, Chunk, ChunkState
from stoker.loader.crew import Idle
from stoker.loader.job import Job, Start
from stoker.loader.slab import Slab
from stoker.loader.steps import Steps

CHUNK_ROWS = 8
"""Rows a thread takes at a time: 1 costs 5 % in hand-overs, 32 leaves threads idle at a batch's end (measured)."""
GATHER_BYTES = 4 << 20
"""Bytes that a thread copies at a time where nothing is decoded: some 500 µs."""
AHEAD_BATCHES_MAX = 64
"""Batches that may be read ahead, whatever their bytes: the plan of a tiny dataset must stay bounded too."""

Task = tuple[Batch, Chunk]


class Schedule:
    """The batches under way and the slots. Every method is called with the engine's lock held."""

    def __init__(self, job: Job, slab: Slab, *, gathered: bool) -> None:
        """*gathered*: samples are copied, not decoded, so a thread takes many at a time."""
        self._job = job
        self._slab = slab
        self._gathered = gathered
        self._free = deque(range(slab.slots))
        self._steps_max = slab.layout.rows // job.rows
        """Steps that a slot holds."""
        self._together = 1
        """Steps that the next slot gets."""
        self._upcoming: deque[Batch] = deque()
        self._steps: Steps | None = None
        self._read_bytes = 0
        self._stopped = False
        self.readers = 0
        """Threads that read ahead; 0: the decoding threads read for themselves."""
        self.threads = 1
        self.idle: Idle = "starved"
        """Why the last call found nothing to do."""

    def begin(self, start: Start) -> None:
        """Drop what is under way and begin at *start*."""
        for batch in self._upcoming:
            batch.cancelled = True
            self.retire(batch)
        self._upcoming.clear()
        self._read_bytes = 0
        self._steps = Steps(self._job.order, self._job.split, start)
        self._stopped = False

    def free(self, slots: list[int]) -> None:
        """The trainer no longer uses these slots, or they are new."""
        self._free.extend(slots)

    def state(self) -> tuple[int, int]:
        """Batches under way and free slots."""
        return len(self._upcoming), len(self._free)

    def fail_plan(self) -> Start:
        """The plan itself cannot go on; which start it was."""
        start = self._steps.start if self._steps is not None else Start(-1, 0, 0)
        self._steps = None
        return start

    # --- what comes next ---

    def _extend(self) -> bool:
        """Put the plan's next batch in line."""
        if self._steps is None or self._stopped or len(self._upcoming) >= AHEAD_BATCHES_MAX:
            self.idle = "starved" if self._steps is None else "blocked"
            return False
        epoch, step, samples, mask, steps = self._steps.take(self._together)
        size = self._chunk_rows(len(samples))
        chunks = [Chunk(first, min(first + size, len(samples))) for first in range(0, len(samples), size)]
        self._upcoming.append(Batch(self._steps.start, epoch, step, samples, mask, chunks, SYSTEM.monotonic(), steps))
        return True

    def _chunk_rows(self, samples: int) -> int:
        if self._gathered:
            return max(1, GATHER_BYTES // self._slab.layout.row_bytes)
        return min(CHUNK_ROWS, max(1, -(-samples // (2 * self.threads))))

    def _slotted(self, batch: Batch) -> bool:
        """Whether the batch has a slot, giving it one if there is one."""
        if batch.slot is None and self._free:
            batch.slot = self._free.popleft()
            batch.arrays = self._slab.arrays(batch.slot)
        return batch.slot is not None

    def to_decode(self) -> Task | None:
        """The next chunk to decode, read already where others read ahead."""
        for batch in self._upcoming:
            if not self._slotted(batch):
                self.idle = "blocked"
                return None
            chunk = batch.find(ChunkState.READ) or (None if self.readers else batch.find(ChunkState.NEW))
            if chunk is not None:
                chunk.state = ChunkState.DECODING
                return batch, chunk
        self.idle = "starved" if self.readers or self._free else "blocked"
        if self.readers or not self._free:
            return None
        return self.to_decode() if self._extend() else None

    def to_read(self) -> Task | None:
        """The next chunk to read ahead."""
        full = self._read_bytes >= self._job.work.ram_bytes // 2
        for batch in self._upcoming:
            chunk = batch.find(ChunkState.NEW)
            if chunk is not None:
                chunk.state = ChunkState.READING
                return batch, chunk
            if full and not batch.done:
                self.idle = "blocked"
                return None
        self.idle = "blocked"
        return self.to_read() if not full and self._extend() else None

    # --- what was done ---

    def was_read(self, batch: Batch, chunk: Chunk, raw: RawSamples | Located) -> None:
        """A chunk's raw values are here."""
        chunk.raw, chunk.state = raw, ChunkState.READ
        if batch.cancelled:
            chunk.raw, chunk.state = None, ChunkState.DONE
            self.retire(batch)
        else:
            self._read_bytes += raw_bytes(raw)

    def was_decoded(self, batch: Batch, chunk: Chunk) -> bool:
        """A chunk's rows are in the slot; whether it was the batch's last."""
        if chunk.raw is not None and not batch.cancelled:
            self._read_bytes -= raw_bytes(chunk.raw)
        chunk.raw, chunk.state = None, ChunkState.DONE
        self._together = min(2 * self._together, self._steps_max) if batch.gathered else 1
        if batch.loose and self._divisible(batch):
            self._singly(batch)
        if batch.cancelled:
            self.retire(batch)
        batch.closing = batch.remaining() == 0 and not batch.cancelled and batch.failure is None
        return batch.closing

    def was_closed(self, batch: Batch) -> None:
        """A batch is whole."""
        batch.closing, batch.done, batch.done_s = False, True, SYSTEM.monotonic()
        if batch.cancelled:
            self.retire(batch)

    def failed(self, batch: Batch, chunk: Chunk, error: BaseException) -> None:
        """The batch ends here, and so does the plan: the trainer gets the error where the batch would have come."""
        batch.closing = False
        if self._divisible(batch):
            self._singly(batch)
        chunk.raw, chunk.state = None, ChunkState.DONE
        if batch.cancelled:
            self.retire(batch)
        else:
            batch.failure, batch.done, self._stopped = batch.failure or error, True, True

    def _divisible(self, batch: Batch) -> bool:
        return batch.steps > 1 and not batch.cancelled and self._steps is not None

    def _singly(self, batch: Batch) -> None:
        """Make *batch* and what comes behind it again, from now on one step a slot."""
        assert self._steps is not None
        self._steps_max = self._together = 1
        self._stopped = False
        self._steps.go_back(batch.epoch, batch.step)
        while not batch.cancelled:
            last = self._upcoming.pop()
            last.cancelled = True
            self._read_bytes -= sum(raw_bytes(chunk.raw) for chunk in last.chunks if chunk.raw is not None)
            self.retire(last)

    def retire(self, batch: Batch) -> None:
        """Give a cancelled batch's slot back as soon as no thread writes into it."""
        if batch.slot is not None and not batch.working():
            self._free.append(batch.slot)
            batch.slot = None

    def finished(self) -> Batch | None:
        """The next batch in order, if it is ready to be handed over."""
        if not self._upcoming or not self._upcoming[0].done:
            return None
        batch = self._upcoming.popleft()
        if batch.failure is not None:
            batch.cancelled = True
            self.retire(batch)
        return batch


def raw_bytes(raw: RawSamples | Located) -> int:
    """Bytes that a chunk's raw values hold in memory."""
    if not isinstance(raw, RawSamples):
        return 0
    return sum(
        len(v) for sample in raw.values for v in sample.values() if isinstance(v, bytes | bytearray | memoryview)
    )
