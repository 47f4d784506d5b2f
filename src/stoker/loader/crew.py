"""The threads of one kind: how many of them may work, and what they spend their time on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stoker.clock import SYSTEM

Idle = Literal["starved", "blocked"]
"""Why a thread stands still: nothing has come for it, or there is no room for what it would make."""


@dataclass(frozen=True, slots=True)
class CrewTimes:
    """What the threads that may work did since the start, in thread-seconds."""

    busy_s: float
    """Working. All of the time, and still too slow: more threads may help, if there is CPU time for them."""
    starved_s: float
    """Idle for want of input: the fault lies upstream."""
    blocked_s: float
    """Idle for want of room: the fault lies downstream, or there is none."""


class Crew:
    """Threads that take tasks. All methods are called with *lock* held."""

    def __init__(self, name: str, lock: threading.RLock, body: Callable[[int], None]) -> None:
        self._name = name
        self._body = body
        self._started = 0
        self._parked = threading.Condition(lock)
        self._changed = threading.Condition(lock)
        self._waiting: dict[int, tuple[float, Idle]] = {}
        self._idle: dict[Idle, float] = {"starved": 0.0, "blocked": 0.0}
        self._since_s = SYSTEM.monotonic()
        self._offered_s = 0.0
        self.limit = 0

    def set(self, limit: int) -> None:
        """From now on *limit* threads work; those beyond it stop when their task is done."""
        self._offer()
        self.limit = limit
        while self._started < limit:
            threading.Thread(
                target=self._body, args=(self._started,), daemon=True, name=f"{self._name}-{self._started}"
            ).start()
            self._started += 1
        self._parked.notify_all()
        self._changed.notify_all()

    def wake(self) -> None:
        """One of those who wait looks again."""
        if self._waiting:
            self._changed.notify()

    def park(self, number: int) -> None:
        """Hold thread *number* while it is one too many."""
        if number >= self.limit:
            self.wake()  # it may have been woken for something
        while number >= self.limit:
            self._parked.wait()

    def wait(self, number: int, why: Idle) -> None:
        """Wait for a change, which may not be one for this thread."""
        self._waiting[number] = SYSTEM.monotonic(), why
        self._changed.wait()
        self._note(number, SYSTEM.monotonic())
        self._waiting.pop(number)

    def _note(self, number: int, now: float) -> None:
        since, why = self._waiting[number]
        if number < self.limit:
            self._idle[why] += now - since
        self._waiting[number] = now, why

    def _offer(self) -> None:
        now = SYSTEM.monotonic()
        self._offered_s += self.limit * (now - self._since_s)
        self._since_s = now

    def times(self) -> CrewTimes:
        """Since the start, to this moment."""
        self._offer()
        for number in self._waiting:
            self._note(number, self._since_s)
        starved, blocked = self._idle["starved"], self._idle["blocked"]
        return CrewTimes(max(0.0, self._offered_s - starved - blocked), starved, blocked)
