"""Bounds what a process asks of a store: requests in flight and, when given, bytes a second (a token bucket, averaged).

The bucket pays after the read, when the length is known, so a rate may be passed by one answer and is made up for by
the wait before the next. Limits are per process: clients are never carried through fork or pickle.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from stoker.clock import SYSTEM, Clock
from stoker.errors import UsageError
from stoker.flow import Gate
from stoker.store.base import Store
from stoker.store.wrap import Around, Call, Result


class Limited(Around):
    """At most *requests_max* calls at once and, on average, *bytes_per_s_max* bytes a second in both directions."""

    def __init__(
        self, inner: Store, *, requests_max: int, bytes_per_s_max: float | None = None, clock: Clock = SYSTEM
    ) -> None:
        if requests_max < 1 or (bytes_per_s_max is not None and bytes_per_s_max <= 0):
            raise UsageError(f"limits must be positive, found {requests_max} requests, {bytes_per_s_max} bytes/s")
        self._requests_max = requests_max
        self._bytes_per_s_max = bytes_per_s_max
        self._clock = clock
        super().__init__(inner)

    def _begin(self) -> tuple[str, ...]:
        self._gate, self._lock, self._free_at_s = Gate(self._requests_max), threading.Lock(), 0.0
        return ("_gate", "_lock", "_free_at_s")

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        with self._gate:
            self._wait()
            result = work()
            self._pay((len(result) if isinstance(result, bytes) else call.read_bytes) + call.written_bytes)
            return result

    def _wait(self) -> None:
        """Sleep until the bytes moved so far are paid for."""
        if self._bytes_per_s_max is not None:
            with self._lock:
                owed_s = self._free_at_s - self._clock.monotonic()
            if owed_s > 0:
                self._clock.sleep(owed_s)

    def _pay(self, count: int) -> None:
        """Push the time at which the next call may start."""
        if self._bytes_per_s_max is not None:
            with self._lock:
                start = max(self._free_at_s, self._clock.monotonic())
                self._free_at_s = start + count / self._bytes_per_s_max
