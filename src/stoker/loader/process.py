"""The trainer's side of the feeder: start it, talk to it, notice its death and say what is known about it.

A dead feeder is seen at once (end of file, pidfd). One that is alive but answers nothing for SILENT_S_MAX is stopped or
stuck in foreign code; one that answers but finishes no batch for PROGRESS_S_MAX works on a sample that does not end.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import stoker
from stoker import machine
from stoker.clock import SYSTEM, Clock
from stoker.errors import FeederError, StokerError
from stoker.loader.batch import Delivered, Failed
from stoker.loader.control import Decision
from stoker.loader.job import Job, Start, pack
from stoker.loader.slab import Slab
from stoker.wire import Waiter, pair, receive, send

SILENT_S_MAX = 20.0
PROGRESS_S_MAX = 300.0
ASK_EVERY_S = 2.0
START_S_MAX = 120.0
FREED_TOGETHER = 4
"""A message may hold back a quarter of the slots: each wakes the feeder, and three quarters keep it busy."""


class FeederProcess:
    """A feeder of this process. Made by `Loader(…)`, so that its imports overlap the building of the model."""

    def __init__(self, job: Job, clock: Clock = SYSTEM) -> None:
        data = pack(job)
        self._clock = clock
        self._oom_kills = machine.oom_kills()
        self.started_s = clock.monotonic()
        self.ready_s: float | None = None
        self.slab: Slab | None = None
        self.decisions: list[Decision] = []
        """What its control changed, oldest first; whoever reads them empties the list."""
        self.counts: Mapping[str, float] = {}
        """Its totals, as of its last batch."""
        self.waited_s = 0.0
        """How long the trainer waited in all, which the feeder is told."""
        self._freed: list[int] = []
        self._heard_s = 0.0
        self._owner = os.getpid()
        self._link, theirs = pair("stoker.Loader")
        roots = [str(Path(stoker.__file__).parent.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "stoker.loader.feeder", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env={
                    **os.environ,
                    "PYTHONPATH": os.pathsep.join(roots),
                    "OMP_NUM_THREADS": "1",
                    "MKL_NUM_THREADS": "1",
                },
            )
        self._waiter = Waiter(self._link, self._process.pid)
        self._end = weakref.finalize(self, _end, self._link, self._process, self._waiter, os.getpid())
        self._say((list(sys.path), data))

    @property
    def pid(self) -> int:
        """The feeder's process id."""
        return self._process.pid

    def _say(self, message: object) -> None:
        try:
            send(self._link, message)
        except OSError as error:
            raise self._last_word() from error

    def _last_word(self) -> BaseException:
        """Why nobody listens any more: what the feeder said of itself, else how it died."""
        try:
            while (told := self.take()) is not None:
                if isinstance(told, Failed) and told.generation < 0:
                    return rebuild(told)
        except FeederError as error:
            return error
        return self._death()

    def start(self, start: Start) -> None:
        """Begin at *start*, dropping what was under way."""
        self._say(("start", start))

    def free(self, slots: list[int]) -> None:
        """Give slots back: a few at a time, or as soon as there is nothing to do but wait."""
        self._freed += slots
        if self.slab is None or len(self._freed) >= self.slab.slots // FREED_TOGETHER:
            self._tell_freed()

    def _tell_freed(self) -> None:
        if self._freed:
            freed, self._freed = self._freed, []
            self._say(("free", (freed, self.waited_s, self._clock.monotonic())))

    def check_owner(self) -> None:
        """FeederError in a forked child."""
        if os.getpid() != self._owner:
            raise FeederError("a Loader cannot be used in a forked child: make one there")

    def take(self) -> Delivered | Failed | None:
        """The next batch or failure, of any generation, if it is there: most are, and cost one system call. FeederError
        when none can come any more."""
        try:
            while True:
                (kind, value), descriptors = receive(self._link, socket.MSG_DONTWAIT)
                self._heard_s = self._clock.monotonic()
                if kind == "batch":
                    return value  # type: ignore[no-any-return]  # the wire carries our own frozen values
                self._note(kind, value, descriptors, self._heard_s)
        except BlockingIOError:
            return None
        except EOFError:
            raise self._death() from None

    def wait(self, since_s: float) -> None:
        """Wait until there may be something to take. FeederError when that takes too long, counted from *since_s*."""
        self._tell_freed()
        try:
            if self._waiter.wait(ASK_EVERY_S):
                return
        except EOFError:
            raise self._death() from None
        now = self._clock.monotonic()
        self._doubt(now - max(since_s, self._heard_s), now - since_s)

    def look(self) -> bool:
        """Whether it is ready; waits for nothing. FeederError when it is gone."""
        try:
            while self.ready_s is None:
                (kind, value), descriptors = receive(self._link, socket.MSG_DONTWAIT)
                if isinstance(value, Failed):
                    raise FeederError(f"the feeder (pid {self.pid}) cannot start: {value.text.strip()}")
                self._note(kind, value, descriptors, self._clock.monotonic())
        except BlockingIOError:
            return False
        except EOFError:
            raise self._death() from None
        return True

    def _note(self, kind: str, value: Any, descriptors: list[int], now: float) -> None:
        if kind == "slab":
            layout, slots, slots_max = value
            self.slab = Slab(descriptors[0], layout, slots, slots_max)
        elif kind == "slots" and self.slab is not None:
            self.slab.slots = value
        elif kind == "control":
            self.decisions.append(value)
        elif kind == "ready":
            self.ready_s = now

    def _doubt(self, silent_s: float, waited_s: float) -> None:
        """Nothing came for a while: ask, and give up when even that is not answered."""
        starting = self.ready_s is None
        if silent_s > (START_S_MAX if starting else SILENT_S_MAX):
            raise FeederError(
                f"the feeder (pid {self.pid}) has not answered for {silent_s:.0f} s{self._at_work()}",
                "it is stopped, or a transform holds the GIL in foreign code",
            )
        if waited_s > PROGRESS_S_MAX:
            raise FeederError(
                f"the feeder (pid {self.pid}) lives, but no batch came for {waited_s:.0f} s{self._at_work()}",
                "look at that sample and at the transform; `py-spy dump --pid` shows where it hangs",
            )
        if not starting:
            self._say(("state", None))

    def _at_work(self) -> str:
        """The samples that the feeder's threads were at, from the board in shared memory, which outlives it."""
        samples = [] if self.slab is None else sorted({int(seat) - 1 for seat in self.slab.board() if seat})
        return f"; its threads were at sample {', '.join(map(str, samples))}" if samples else ""

    def _death(self) -> FeederError:
        """What is known about a feeder that is gone."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        how = "closed its connection" if code is None else f"exited with code {code}"
        hint = "its last words are on stderr"
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
            kills, before = machine.oom_kills(), self._oom_kills
            if kills is not None and before is not None and kills > before:
                how += f", and the kernel killed {kills - before} process(es) of this cgroup for memory meanwhile"
                hint = "lower batch_size or Budget(ram_bytes=…), or give the job more memory"
            elif -code == signal.SIGBUS:
                hint = "a shard was cut short while it was mapped, or its disk failed (see dmesg)"
            elif -code == signal.SIGKILL:
                hint = "somebody killed it: the kernel for want of memory (see dmesg), or a person"
            else:
                hint = "a decoder or a transform crashed; the stack is on stderr"
        return FeederError(f"the feeder (pid {self.pid}) {how}{self._at_work()}", hint)

    def close(self) -> None:
        """End the feeder and give its memory back; batches still in use stay valid."""
        self._end()
        if self.slab is not None:
            self.slab.close()


def _noted(error: BaseException) -> str:
    return "".join(f" {note}" for note in getattr(error, "__notes__", []))


def rebuild(failure: Failed) -> BaseException:
    """The feeder's exception, with its traceback there as a note."""
    error: BaseException | None = pickle.loads(failure.error) if failure.error else None
    if error is None:
        return FeederError(f"the feeder failed:\n{failure.text}")
    if isinstance(error, StopIteration) or not isinstance(error, Exception):
        # Raised inside `next()`, StopIteration would end the epoch in silence; KeyboardInterrupt would seem a person's.
        return FeederError(f"{type(error).__name__} was raised in the feeder{_noted(error)}:\n{failure.text}")
    if not isinstance(error, StokerError):
        error.add_note(f"in the feeder process:\n{failure.text}")
    return error


def _end(link: socket.socket, process: subprocess.Popen[bytes], waiter: Waiter, owner: int) -> None:
    """Also the finalizer: runs at garbage collection and at interpreter exit, but not in forked children."""
    if os.getpid() != owner:
        return
    with contextlib.suppress(OSError):
        link.close()  # end of file tells the feeder to go
    try:
        process.wait(2)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    waiter.close()
