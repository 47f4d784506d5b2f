"""The next batch, taken over while the training step runs.

What `next()` costs is the trainer's own CPU time: a message to take apart, an array and a tensor a field, and as many
to destroy of the batch before. After a step all of it has left the CPU's caches and takes three times as long. So a
thread does it in the middle of the step, and `next()` hands over what lies ready. What is not there yet is `next()`'s
own, which knows about feeders that die or hang.

The thread wakes by the clock. To be woken by `next()` would make it run at that very moment: it wants the interpreter
that the trainer needs, and a trainer that stands still for an instant finds its core taken by a decoding thread.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NamedTuple

from stoker.clock import SYSTEM
from stoker.loader.batch import Delivered, Failed
from stoker.loader.books import Books
from stoker.loader.job import Start
from stoker.loader.lanes import Lane, Lanes

if TYPE_CHECKING:
    from stoker.loader.torch import Device

STEP_S_MIN = 0.005
"""Python passes its lock from thread to thread every 5 ms (`sys.getswitchinterval`): a shorter step is over by then."""
LOOKS_A_STEP = 4
PAUSE_S_MAX = 0.1
STEPS_IDLE_MAX = 4
"""A trainer that stays away for so many steps does something else: the thread ends, and is back with the next batch."""


class Taken(NamedTuple):
    """What a feeder told, and the batch when it was made already."""

    lane: Lane
    told: Delivered | Failed
    batch: dict[str, Any] | None = None
    arrival: Any = None
    """Event of its copy to the device."""


class Early:
    """The trainer's end of the lanes. What is done here is done under `held()`, also what the thread does."""

    def __init__(self, lanes: Lanes, books: Books, device: Device | None) -> None:
        self.lanes = lanes
        self._books = books
        self._device = device
        self._generation = 0
        self._taken: Taken | None = None
        self._returned_s = SYSTEM.monotonic()
        """When `next()` returned last."""
        self._step_s = 0.0
        """How long the last step was."""
        self._held: tuple[object, ...] = ()
        """What the batch in use consists of: the trainer that drops it leaves the last reference to the thread."""
        self._spent: tuple[object, ...] = ()
        """The same of the batch before."""
        self._lock = threading.RLock()  # a signal handler may ask for a report in the middle of `next()`
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stoker-early")
        self._closing = threading.Event()
        self._work: Future[None] | None = None
        self._owner = os.getpid()

    def held(self) -> AbstractContextManager[object]:
        """The lock; none in a forked child, where the thread that may hold it is not."""
        return self._lock if os.getpid() == self._owner else contextlib.nullcontext()

    def start(self, start: Start) -> None:
        """Begin at *start*, dropping what was under way."""
        taken, self._taken = self._taken, None
        if taken is not None and taken.batch is None and isinstance(taken.told, Delivered) and taken.told.opens:
            taken.lane.feeder.free([taken.told.slot])  # nobody opened it
        self._generation = start.generation
        self.lanes.start(start)

    # --- the trainer's `next()` ---

    def take(self, began_s: float) -> Taken:
        """The plan's next batch; waits for it."""
        self.lanes.check_owner()
        self._step_s = began_s - self._returned_s
        if self._work is not None and self._work.done():
            work, self._work = self._work, None
            work.result()  # what it met is raised here
        taken, self._taken = self._taken, None
        if taken is not None:
            return taken
        self._tidy()
        return Taken(*self.lanes.receive(self._generation))

    def batch(self, taken: Taken, told: Delivered) -> dict[str, Any]:
        """The batch, usable from now on."""
        batch, arrival = (taken.batch, taken.arrival) if taken.batch is not None else self._made(taken.lane, told)
        if self._device is not None:
            self._device.arrived(batch, arrival)
        return batch

    def returned(self, now_s: float, batch: dict[str, Any]) -> None:
        """The trainer goes into its step."""
        self._returned_s = now_s
        if self._step_s < STEP_S_MIN:
            self._held = ()
            self._tidy()
            return
        self._spent, self._held = self._held, tuple(batch.values()) if self._device is None else ()
        if self._work is None:
            with contextlib.suppress(RuntimeError):  # no thread can be had, or the interpreter ends: it goes without
                self._work = self._thread.submit(_serve, weakref.ref(self), self._closing)

    def _tidy(self) -> None:
        self._spent = ()
        self._books.settle()

    # --- the thread ---

    def pause_s(self) -> float | None:
        """Until the thread looks again; None when it had better end."""
        step = self._step_s
        pause = min(max(step / LOOKS_A_STEP, STEP_S_MIN), PAUSE_S_MAX)
        away = SYSTEM.monotonic() - self._returned_s > STEPS_IDLE_MAX * step
        return None if away or not threading.main_thread().is_alive() else pause

    def look(self) -> None:
        """Take the next batch over, if it is there, and settle the accounts."""
        if not self._lock.acquire(blocking=False):
            return  # the trainer is in `next()`
        try:
            self._tidy()
            if self._taken is None:
                self._take_over()
        finally:
            self._lock.release()

    def _take_over(self) -> None:
        lane, told = self.lanes.look(self._generation)
        if told is None:
            return
        self._taken = Taken(lane, told)
        if isinstance(told, Failed) or told.bad or told.rows == 0 or lane.handed.must_copy(told):
            return  # something is to be said about it first
        self._taken = Taken(lane, told, *self._made(lane, told))

    def _made(self, lane: Lane, told: Delivered) -> tuple[dict[str, Any], Any]:
        batch = lane.handed.batch(told)
        return (batch, None) if self._device is None else self._device.copy(batch, told.epoch)

    def close(self) -> None:
        """End the thread, drop what it took, end the lanes. Batches in use stay valid."""
        if os.getpid() == self._owner:
            self._closing.set()
            self._thread.shutdown()
        self._held = ()
        self._tidy()
        self._taken = self._work = None
        if self._device is not None:
            self._device.close()
        self.lanes.close()


def _serve(early: weakref.ref[Early], closing: threading.Event) -> None:
    """Look again and again. It keeps nobody alive while it waits."""
    while (one := early()) is not None and (pause_s := one.pause_s()) is not None:
        del one
        if closing.wait(pause_s) or (one := early()) is None:
            return
        one.look()
