"""The contract of a store: objects by key under one URL. Everything that reads or writes bytes goes through it.

Rules that hold for every store and wrapper (StoreSuite checks them):
1. A key is relative to the store's URL, separated by "/", never empty, never leaves the URL ("..", absolute).
2. An object appears whole or not at all; a failed or killed `put` leaves what was there before.
3. A read gives exactly the bytes that were asked for or raises: a short answer, a 200 to a range, a changed version are
   errors. `version` is what `head` or `list` told: the ETag, or for local files mtime_ns and inode.
4. Errors are those of `stoker.errors` and name the store's URL and the key.
5. A store can be pickled; clients are made lazily, per process, never carried through fork or pickle.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True, order=True)
class ByteRange:
    """The bytes [start, stop) of an object."""

    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a store tells about an object without reading it."""

    key: str
    size: int
    version: str | None
    """Changes whenever the bytes change: ETag, or mtime_ns and inode. None where a server gives none."""


class Store(Protocol):
    """A place that holds objects by key."""

    @property
    def url(self) -> str:
        """Where the store lies, without secrets: "s3://bucket/prefix", "file:///data"."""
        ...

    def get(self, key: str, *, version: str | None = None) -> bytes:
        """The whole object. NotFoundError; ChangedError if it is no longer *version*."""
        ...

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        """One `bytes` a range, each exactly as long as its range. Same errors as `get`; a range past the end is one."""
        ...

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        """Write or replace the object, whole or not at all."""
        ...

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        """Like `put`, but only if the object is still *version* (None: does not exist), else ChangedError.

        UnsupportedError where the server ignores the condition: never overwrites instead.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key starts with *prefix* (a plain string prefix), lazily, in order of their UTF-8 bytes."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """Size and version, or NotFoundError."""
        ...

    def delete(self, key: str) -> None:
        """Remove the object; no error when there is none."""
        ...

    def copy(self, source: str, target: str) -> ObjectInfo:
        """Copy within the store, on the server's side where it can, whole or not at all."""
        ...


@runtime_checkable
class HasPaths(Protocol):
    """A store whose objects are files of this machine."""

    def path(self, key: str) -> Path:
        """The file of *key* (which need not exist)."""
        ...


@runtime_checkable
class Wrapper(Protocol):
    """A store that adds one concern to another: the chain can be walked to the innermost."""

    @property
    def inner(self) -> Store: ...
