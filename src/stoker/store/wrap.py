"""How a wrapper is written: one method that goes around every call of the store inside.

`list` is left alone here, since it is lazy: a wrapper that cares overrides it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from stoker.store.base import Buffer, ByteRange, ObjectInfo, Store, Wrapper

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Call:
    """What is about to be asked of a store."""

    operation: str
    key: str
    read_bytes: int = 0
    """Bytes that the answer will hold; 0 where only the answer tells."""
    written_bytes: int = 0


class Around:
    """A store that passes every call to *inner* through `around`."""

    def __init__(self, inner: Store) -> None:
        self._inner = inner
        self._stays = self._begin()

    def _begin(self) -> tuple[str, ...]:
        """Make what belongs to this process (locks, generators) and give the names of its attributes."""
        return ()

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in self.__dict__.items() if name not in self._stays}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._stays = self._begin()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._inner!r})"

    @property
    def inner(self) -> Store:
        return self._inner

    @property
    def url(self) -> str:
        return self._inner.url

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        """Do *work*, which is *call*; the wrapper's concern stands here."""
        return work()

    def get(self, key: str, *, version: str | None = None) -> bytes:
        return self.around(Call("get", key), lambda: self._inner.get(key, version=version))

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        call = Call("get_ranges", key, read_bytes=sum(map(len, ranges)))
        return self.around(call, lambda: self._inner.get_ranges(key, ranges, version=version))

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        call = Call("put", key, written_bytes=memoryview(data).nbytes)
        return self.around(call, lambda: self._inner.put(key, data))

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        call = Call("put_if", key, written_bytes=memoryview(data).nbytes)
        return self.around(call, lambda: self._inner.put_if(key, data, version=version))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._inner.list(prefix)

    def head(self, key: str) -> ObjectInfo:
        return self.around(Call("head", key), lambda: self._inner.head(key))

    def delete(self, key: str) -> None:
        return self.around(Call("delete", key), lambda: self._inner.delete(key))

    def copy(self, source: str, target: str) -> ObjectInfo:
        return self.around(Call("copy", source), lambda: self._inner.copy(source, target))


def innermost(store: Store) -> Store:
    """The store at the bottom of a stack of wrappers."""
    while isinstance(store, Wrapper):
        store = store.inner
    return store
