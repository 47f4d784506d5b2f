"""Tries again what may succeed later: exponential backoff with full jitter, until a deadline.

Only a TransientError is tried again: what a server means to say (403, 404, 412) stays said. Ranges of one call are
fetched side by side and retried each for itself. A server that has never answered is most likely a wrong address, so
that is given up early; one that has answered before is waited for. Who retries for long says so, once an outage.
Surprising: a `put_if` whose answer was lost may have succeeded, so when a later attempt finds the object changed, its
bytes decide who wrote it.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterator, Sequence

from stoker.clock import SYSTEM, Clock
from stoker.errors import ChangedError, StoreError
from stoker.events import SILENT, Recorder
from stoker.flow import parallel_map
from stoker.store.base import Buffer, ByteRange, ObjectInfo, Store
from stoker.store.keys import key_bytes
from stoker.store.transient import UNREACHABLE, TransientError
from stoker.store.wrap import Around, Call, Result

_log = logging.getLogger("stoker.store")
BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.1, 10.0
UNREACHABLE_S_MAX = 10.0
"""Seconds of retrying a server that refuses the connection, or whose name nobody knows, and that never answered."""
SILENT_S_MAX = 5.0
"""Seconds of retrying after which a warning is logged (logging prints it to stderr unless set up otherwise)."""
RANGES_AT_ONCE = 8
"""Ranges of one call that are fetched side by side."""


def backoff_s(attempt: int, jitter: float) -> float:
    """Seconds to wait after failed attempt number *attempt* (1, 2, …); *jitter* in [0, 1) picks from the whole span."""
    return jitter * min(BACKOFF_S_MAX, BACKOFF_S_FIRST * 2.0 ** min(attempt - 1, 32))


class Retrying(Around):
    """Tries each call again for *deadline_s* seconds. Counts store.retries and store.retries.<reason>."""

    def __init__(
        self,
        inner: Store,
        *,
        deadline_s: float,
        clock: Clock = SYSTEM,
        recorder: Recorder = SILENT,
        seed: int | None = None,
    ) -> None:
        self._seed = seed
        super().__init__(inner)
        self._recorder = recorder
        self._deadline_s = deadline_s
        self._clock = clock

    def _begin(self) -> tuple[str, ...]:
        self._random = random.Random(self._seed)
        self._answered = self._told = False
        return ("_random", "_answered", "_told")

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        start_s = self._clock.monotonic()
        attempt = 1
        while True:
            try:
                result = work()
            except TransientError as error:
                self._back_off(error, attempt, start_s)
            except StoreError:
                self._answered = True  # refused, not found: somebody is there
                raise
            else:
                self._answered, self._told = True, False
                return result
            attempt += 1

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        if len(ranges) < 2:
            return super().get_ranges(key, ranges, version=version)

        def one(piece: ByteRange) -> bytes:
            return super(Retrying, self).get_ranges(key, [piece], version=version)[0]

        return list(parallel_map(one, ranges, workers=min(RANGES_AT_ONCE, len(ranges))))

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        attempts = 0

        def work() -> ObjectInfo:
            nonlocal attempts
            attempts += 1
            try:
                return self.inner.put_if(key, data, version=version)
            except ChangedError:
                if attempts > 1 and self.inner.get(key) == data:
                    return self.inner.head(key)
                raise

        return self.around(Call("put_if", key), work)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Begun anew after a failure, without what was given already; the deadline counts from the last key."""
        start_s = self._clock.monotonic()
        last: bytes | None = None
        attempt = 1
        while True:
            try:
                for info in self.inner.list(prefix):
                    if last is None or key_bytes(info.key) > last:
                        yield info
                        last, attempt = key_bytes(info.key), 1
                        start_s = self._clock.monotonic()
                        self._answered, self._told = True, False
                return
            except TransientError as error:
                self._back_off(error, attempt, start_s)
            attempt += 1

    def _back_off(self, error: TransientError, attempt: int, start_s: float) -> None:
        """Wait before the next attempt, or raise when the deadline would pass first."""
        if error.reason != UNREACHABLE:
            self._answered = True
        deadline_s = self._deadline_s if self._answered else min(self._deadline_s, UNREACHABLE_S_MAX)
        wait_s = backoff_s(attempt, self._random.random())
        spent_s = self._clock.monotonic() - start_s
        if spent_s + wait_s > deadline_s:
            hint = error.hint if self._answered else "check the address of the server, and whether it runs"
            raise StoreError(
                f"{error.message} (gave up after {attempt} attempts in {deadline_s:.0f} s)", hint
            ) from error
        if spent_s > SILENT_S_MAX and not self._told:
            self._told = True
            words = "stoker: %s (%s): trying again for %.0f s so far, at most %.0f s"
            _log.warning(words, error.message, error.reason, spent_s, deadline_s)
        self._recorder.count("store.retries")
        self._recorder.count(f"store.retries.{error.reason}")
        self._clock.sleep(wait_s)
