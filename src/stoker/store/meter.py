"""Counts what is asked of a store: every attempt, so it stands inside `Retrying`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from stoker.errors import StokerError
from stoker.events import Recorder
from stoker.store.base import ObjectInfo, Store
from stoker.store.wrap import Around, Call, Result


class Metered(Around):
    """Counts store.requests, store.read_bytes, store.written_bytes, store.errors; a list counts as one request."""

    def __init__(self, inner: Store, recorder: Recorder) -> None:
        super().__init__(inner)
        self._recorder = recorder

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        self._recorder.count("store.requests")
        try:
            result = work()
        except StokerError:
            self._recorder.count("store.errors")
            raise
        read = len(result) if isinstance(result, bytes) else call.read_bytes
        if read:
            self._recorder.count("store.read_bytes", read)
        if call.written_bytes:
            self._recorder.count("store.written_bytes", call.written_bytes)
        return result

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._listed(self.around(Call("list", prefix), lambda: self._inner.list(prefix)))

    def _listed(self, found: Iterator[ObjectInfo]) -> Iterator[ObjectInfo]:
        try:
            yield from found
        except StokerError:
            self._recorder.count("store.errors")
            raise
