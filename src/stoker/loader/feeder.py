"""The feeder process: `python -P -m stoker.loader.feeder SOCKET TRAINER_PID`. It reads, decodes, batches; nobody else
does.

It never imports the user's `__main__`. It ends when the trainer does, by end of file on the socket or by the pidfd.

Scheduling decides more than code here: with all cores decoding, a woken feeder thread preempts the trainer for 4–6 ms.
SCHED_BATCH (no wake-up preemption) and nice 5 together took the stall share of a run from 3 % to 0.16 %; neither alone
does. Both are set before the first thread starts, because threads inherit them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import os
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections import deque
from dataclasses import replace
from typing import Any

from stoker.clock import SYSTEM
from stoker.decode import prepare, quiet_pillow
from stoker.errors import SampleError
from stoker.events import HERE
from stoker.loader.arrays import Shape, shape_of
from stoker.loader.attribute import Timeline
from stoker.loader.batch import Batch, Delivered, Failed
from stoker.loader.collate import Collator
from stoker.loader.control import Decision
from stoker.loader.engine import Engine
from stoker.loader.governor import Governor
from stoker.loader.job import Job, Start
from stoker.loader.layout import SlotLayout, lay_out
from stoker.loader.plan import shared, slots_within, steps_together
from stoker.loader.slab import Slab, create, grow
from stoker.loader.steps import Steps, samples_ahead
from stoker.loader.work import Workshop
from stoker.machine import give_way
from stoker.wire import Waiter, receive, send

FOREVER_S = 86_400.0
NICE = 5
Message = tuple[str, Any]
"""Kind and value."""


def open_many_files() -> None:
    """Raise this process's limit of open files to what it may be: every mapped shard takes some."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


PROBES = 4
"""Samples whose values decide which fields have a fixed shape, where the decoders do not say."""
PROBES_MAX = 64
"""Samples tried for those: when so many in a row are bad, the run is as well."""


def layout_of(job: Job, workshop: Workshop, start: Start) -> SlotLayout:
    """Which fields have a fixed shape: known from the decoders, else those that are alike in the first samples."""
    mask = job.split.tail == "pad"
    if workshop.gatherer is not None:
        step = lay_out(job.rows, workshop.gatherer.shapes, mask=mask)
        return lay_out(job.rows * steps_together(job, step.nbytes), workshop.gatherer.shapes, mask=mask)
    plain = job.transform is None and not job.dataset.maps
    fixed = {n: (tuple(d.shape), str(d.dtype)) for n, d in job.fields if d.shape is not None and d.dtype is not None}
    if not plain or len(fixed) < len(job.fields) or job.padding is not None:
        seen = probed(job, workshop, start)
        learned = {n: shape for n, shape in seen[0].items() if shape and all(one.get(n) == shape for one in seen)}
        fixed = {**learned, **fixed} if plain else learned
        if job.padding is not None:
            fixed |= job.padding.places(seen, job.rows)
    return lay_out(job.rows, fixed, mask=mask)


def probed(job: Job, workshop: Workshop, start: Start) -> list[dict[str, Shape | None]]:
    """Shape and dtype of each field in each of the first samples that can be used; None where it has none."""
    seen: list[dict[str, Shape | None]] = []
    failure: SampleError | None = None
    steps = Steps(job.order, job.split, start)
    samples: list[int] = []
    while len(samples) < min(PROBES_MAX, len(job.dataset)):
        samples += steps.take().samples.tolist()
    for at in range(0, min(len(samples), PROBES_MAX), PROBES):
        for sample, values in workshop.probe(samples[at : at + PROBES], start.epoch):
            if isinstance(values, SampleError):  # told when its turn comes, unless there is nothing else
                failure = failure or type(values)(f"sample {sample}: {values.message}", values.hint)
                continue
            if job.transform is not None and workshop.names is None:
                workshop.names = frozenset(values)
            seen.append({name: shape_of(value) for name, value in values.items()})
        if len(seen) >= PROBES:
            break
    if failure is not None and not seen:
        raise failure
    return seen


class Feeder:
    """One trainer's feeder: its socket, and the engine once the first start is known."""

    def __init__(self, link: socket.socket, job: Job) -> None:
        self._link = link
        self._job = job
        names = None if job.dataset.maps else tuple(name for name, _ in job.fields)
        self._reader = job.dataset.reader(names, HERE)
        self._workshop = Workshop(job, self._reader)
        self._engine: Engine | None = None
        self._slab: Slab | None = None
        self._memory = -1
        """Descriptor of the slab's memory, by which it grows."""
        self._governor: Governor | None = None
        self._feeders = 0
        self._said: deque[Message] = deque()
        """What the trainer said and was not acted on yet."""

    def serve(self, waiter: Waiter) -> None:
        """Answer the trainer until it says close or is gone."""
        while True:
            kind, value = self._said.popleft() if self._said else self._hear(waiter)
            if kind == "close":
                return
            if kind == "start":
                if not self._superseded():
                    self._start(value)
            elif kind == "free" and self._engine is not None:
                slots, waited_s, at_s = value
                self._engine.free(slots)
                if self._governor is not None:
                    self._governor.heard(waited_s, at_s)
            elif kind == "state":
                send(self._link, ("state", None))

    def _hear(self, waiter: Waiter) -> Message:
        """The trainer's next word. EOFError when it is gone."""
        while not waiter.wait(FOREVER_S):
            pass
        message, _ = receive(self._link)
        return message  # type: ignore[no-any-return]  # the wire carries our own messages

    def _superseded(self) -> bool:
        """Whether the trainer has said already to start elsewhere: what it says at once is listened to first."""
        try:
            while True:
                self._said.append(receive(self._link, socket.MSG_DONTWAIT)[0])
        except BlockingIOError:
            return any(kind in ("start", "close") for kind, _ in self._said)

    def _start(self, start: Start) -> None:
        if self._engine is None:
            job = self._job
            self._reader.prefetch(samples_ahead(job.dataset, job.order, job.split, start))
            self._engine = self._make_engine(start)
        self._engine.start(start)
        if start.feeders != self._feeders:
            self._share(self._engine, start.feeders)

    def _make_engine(self, start: Start) -> Engine:
        """The slab, which the trainer is told of, and the engine over it."""
        layout = layout_of(self._job, self._workshop, start)
        slots, slots_max = slots_within(self._job.work, layout.nbytes, start.feeders)
        self._memory = create(layout, slots, slots_max)
        send(self._link, ("slab", (layout, slots, slots_max)), (self._memory,))
        self._slab = Slab(os.dup(self._memory), layout, slots, slots_max)
        return Engine(self._job, self._slab, self._workshop, Collator(self._job), self._deliver, self._fail)

    def _share(self, engine: Engine, feeders: int) -> None:
        """Work with this feeder's share of threads and CPUs, now that there are *feeders* of them."""
        assert self._slab is not None
        self._feeders = feeders
        setting, limits = shared(self._job.work, feeders, self._slab.slots, self._slab.slots_max)
        if self._workshop.gatherer is not None:  # memory is the limit: two threads would only wait for each other
            setting = replace(setting, threads=1)
        engine.set(threads=setting.threads, readers=setting.readers)
        if self._governor is not None:
            self._governor.stop()
        if self._job.work.adapt:
            self._governor = Governor(engine, setting, limits, self._deepen, self._decided)
            self._governor.start()

    def _deepen(self, slots: int) -> None:
        """Have *slots* slots, if memory allows it."""
        assert self._slab is not None and self._engine is not None
        new = grow(self._slab, self._memory, slots)
        if new:
            self._tell(("slots", self._slab.slots))
            self._engine.free(new)

    def _decided(self, decision: Decision) -> None:
        self._tell(("control", decision))

    def _deliver(self, batch: Batch) -> None:
        now = SYSTEM.monotonic()
        if batch.failure is not None:
            self._fail(batch.start, batch.failure)
            return
        assert batch.slot is not None
        batch.spent("queue", batch.created_s, batch.done_s)
        batch.spent("order_wait", batch.done_s, now)
        told = Delivered(
            batch.start.generation, batch.epoch, batch.step, batch.slot, batch.rows, batch.loose,
            tuple(batch.bad.values()), Timeline.of(batch.intervals), HERE.totals(), batch.steps,
            padded=batch.padded,
        )  # fmt: skip
        try:
            self._tell(("batch", told))
        except (TypeError, AttributeError, ValueError, pickle.PicklingError) as error:
            assert self._engine is not None
            self._engine.free([batch.slot])
            self._fail(batch.start, self._unsendable(batch, error))

    def _unsendable(self, batch: Batch, error: Exception) -> SampleError:
        """Which value cannot cross to the trainer."""
        for name, values in batch.loose.items():
            for row, value in enumerate(values if isinstance(values, list) else [values]):
                if not picklable(value):
                    key = self._job.dataset.key(int(batch.samples[row])) if isinstance(values, list) else "the batch"
                    what = f"field {name!r} of {key}: a {type(value).__name__}"
                    return SampleError(f"{what} cannot be sent to the training process: {error}")
        return SampleError(f"epoch {batch.epoch}, step {batch.step} cannot be sent to the training process: {error}")

    def _fail(self, start: Start, error: BaseException) -> None:
        self._tell(("batch", failed(start.generation, error)))

    def _tell(self, message: tuple[str, object]) -> None:
        """Called by threads: when nobody listens any more the process has nothing left to do."""
        try:
            send(self._link, message)
        except (BrokenPipeError, ConnectionResetError):
            os._exit(0)


def picklable(value: object) -> bool:
    """Whether a value can cross to the trainer."""
    try:
        pickle.dumps(value)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError):
        return False
    return True


def failed(generation: int, error: BaseException) -> Failed:
    """An exception made ready for the trainer; what cannot be rebuilt there still comes as text."""
    text = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except (TypeError, AttributeError, ValueError, pickle.PicklingError):
        data = b""
    return Failed(generation, data, text)


def main(arguments: list[str]) -> int:
    """Serve one trainer."""
    faulthandler.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the trainer's; it closes the feeder
    link = socket.socket(fileno=int(arguments[0]))
    try:
        waiter = Waiter(link, int(arguments[1]))
    except ProcessLookupError:
        return 0
    try:
        (path, data), _ = receive(link)
        sys.path[:] = path
        give_way(NICE)
        open_many_files()
        job: Job = pickle.loads(data)
        quiet_pillow()
        prepare([decoder for _, decoder in job.fields])
        single_threaded()
        feeder = Feeder(link, job)
        send(link, ("ready", os.getpid()))
        gc.freeze()
        feeder.serve(waiter)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the trainer is gone: so are we
    except BaseException as error:  # whatever it is, the trainer must be told instead of waiting for ever
        with contextlib.suppress(OSError):
            send(link, ("batch", failed(-1, error)))
    # Daemon threads may hold locks of libraries: leave without running destructors. Nothing of ours needs them.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def single_threaded() -> None:
    """The feeder's threads are its own: a torch that the decoders or the user's code brought in must not add more."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
