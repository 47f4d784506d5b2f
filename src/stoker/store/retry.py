"""Tries again what may succeed later: exponential backoff with full jitter, until a deadline.

Only a TransientError is tried again: what a server means to say (403, 404, 412) stays said. Ranges of one call are
fetched side by side and retried each for itself. Surprising: a `put_if` whose answer was lost may have succeeded, so
when a later attempt finds the object changed, its bytes decide who wrote it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence

from stoker.clock import SYSTEM, Clock
from stoker.errors import ChangedError, StoreError
from stoker.events import SILENT, Recorder
from stoker.flow import parallel_map
from stoker.store.base import Buffer, ByteRange, ObjectInfo, Store
from stoker.store.keys import key_bytes
from stoker.store.transient import TransientError
from stoker.store.wrap import Around, Call, Result

BACKOFF_S_FIRST, BACKOFF_S_MAX = 0.1, 10.0
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
        return ("_random",)

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        until_s = self._clock.monotonic() + self._deadline_s
        attempt = 1
        while True:
            try:
                return work()
            except TransientError as error:
                self._back_off(error, attempt, until_s)
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
        until_s = self._clock.monotonic() + self._deadline_s
        last: bytes | None = None
        attempt = 1
        while True:
            try:
                for info in self.inner.list(prefix):
                    if last is None or key_bytes(info.key) > last:
                        yield info
                        last, attempt = key_bytes(info.key), 1
                        until_s = self._clock.monotonic() + self._deadline_s
                return
            except TransientError as error:
                self._back_off(error, attempt, until_s)
            attempt += 1

    def _back_off(self, error: TransientError, attempt: int, until_s: float) -> None:
        """Wait before the next attempt, or raise when the deadline would pass first."""
        wait_s = backoff_s(attempt, self._random.random())
        if self._clock.monotonic() + wait_s > until_s:
            raise StoreError(
                f"{error.message} (gave up after {attempt} attempts in {self._deadline_s:.0f} s)", error.hint
            ) from error
        self._recorder.count("store.retries")
        self._recorder.count(f"store.retries.{error.reason}")
        self._clock.sleep(wait_s)
