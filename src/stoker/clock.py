"""Time as a value that can be replaced: stages take a Clock, tests give a fake one.

`monotonic` is CLOCK_MONOTONIC, which all processes of a node share: a span taken in the feeder can be compared with one
taken in the training process.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What a stage may know about time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, the same start for every process of this node."""
        ...

    def wall(self) -> float:
        """Seconds since the Unix epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Give the processor away for that long."""
        ...


class SystemClock:
    """The machine's own clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


SYSTEM: Clock = SystemClock()
