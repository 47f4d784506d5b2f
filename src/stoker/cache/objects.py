"""The read side of objects, as datasets see it, and what reading with and without a cache have in common.

An object is checked when it is first touched: size and version must be those that were indexed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from stoker.cache.descriptors import Descriptor
from stoker.cache.mapped import Mapped
from stoker.errors import ChangedError, StoreError
from stoker.flow import Gate, parallel_map
from stoker.format.codec import expand
from stoker.index.entry import ObjectRef
from stoker.store.base import ByteRange, ObjectInfo, Store
from stoker.store.local import pread_exactly
from stoker.store.ranges import split

PIECE_BYTES = 8 << 20
"""Length of the pieces in which whole objects are fetched: one block of the tree digest."""
PIECES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Read:
    """What one read gave and where it came from."""

    data: list[bytes | memoryview]
    cached_bytes: int
    """Bytes served from the cache's disk."""
    stored_bytes: int
    """Bytes fetched from the store, gaps between ranges included."""


Wanted = tuple[ObjectRef, Sequence[ByteRange]]
"""Ranges of one object."""


class Objects(Protocol):
    """Objects of one store, to be read by ranges."""

    def read(self, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        """The ranges, each exactly as long as asked, in order; they count in expanded bytes. Thread-safe."""
        ...

    def read_all(self, wanted: Sequence[Wanted]) -> list[Read | WrongDigestError]:
        """The same of several objects, side by side where each costs a round trip; what is damaged is so by itself."""
        ...

    def file(self, ref: ObjectRef) -> Path:
        """The object as a file of this machine, of the indexed size and version. StoreError where there is none."""
        ...

    def mapped(self, ref: ObjectRef) -> Mapped | None:
        """The expanded object in memory where it lies on this machine already, else None: nothing is waited for."""
        ...

    def bring_in(self, ref: ObjectRef) -> bool:
        """Bring an object into the cache ahead of its use, if it is not there; whether to go on with others."""
        ...

    def close(self) -> None:
        """Let go of files and threads."""
        ...


class WrongDigestError(StoreError):
    """An object's bytes are not those that were packed, or that were there when it was first read."""


def read_or_error(objects: Objects, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read | WrongDigestError:
    """One of several reads: an object that is damaged must not cost the others theirs."""
    try:
        return objects.read(ref, ranges)
    except WrongDigestError as error:
        return error


def wrong_digest(store: Store, ref: ObjectRef, expected: str, found: str) -> WrongDigestError:
    """The error of an object that was wrong twice."""
    return WrongDigestError(
        f"{store.url}: {ref.key!r} is damaged: expected digest {expected}, found {found} (fetched twice)",
        "copy or pack the shard again; `stoker index URL --check` lists all that is wrong",
    )


def check_object(store: Store, ref: ObjectRef, found: ObjectInfo, *, when: str = "indexed") -> None:
    """ChangedError naming both values unless *found* is what was indexed; *when* says where the version comes from."""
    if found.size != ref.size:
        raise ChangedError(
            f"{store.url}: {ref.key!r} changed: indexed with {ref.size} bytes, found {found.size}", "index it again"
        )
    if ref.version is not None and found.version is not None and found.version != ref.version:
        raise ChangedError(
            f"{store.url}: {ref.key!r} changed: {when} as version {ref.version}, found {found.version}",
            "index it again",
        )


class Line:
    """Pieces of several objects on their way, in the order in which the objects came: a later one fills the wire as the
    pieces of the first ones get fewer, and never goes before them. Objects of one piece stand in no turn."""

    def __init__(self, pieces_max: int) -> None:
        self._turn = Gate(1)
        """Whose first pieces join the line now."""
        self._in_flight = Gate(pieces_max)

    def fetch(self, store: Store, ref: ObjectRef) -> Iterator[bytes]:
        """See `fetch_pieces`; of an object without a known version the size is compared first."""
        with contextlib.ExitStack() as turn:
            pieces = _pieces(ref)
            if len(pieces) > 1:
                turn.enter_context(self._turn)
            if ref.version is None:
                check_object(store, ref, store.head(ref.key))
            last_of_first = pieces[:PIECES_AT_ONCE][-1] if pieces else None

            def one(piece: ByteRange) -> bytes:
                with self._in_flight:
                    if piece == last_of_first:
                        turn.close()
                    return _piece(store, ref, piece)

            yield from _side_by_side(one, pieces)


def fetch_pieces(store: Store, ref: ObjectRef) -> Iterator[bytes]:
    """The stored bytes of a whole object in order, a few pieces ahead, all of the indexed version."""
    return _side_by_side(lambda piece: _piece(store, ref, piece), _pieces(ref))


def _pieces(ref: ObjectRef) -> list[ByteRange]:
    return split(ByteRange(0, ref.size), length_bytes_max=PIECE_BYTES)


def _piece(store: Store, ref: ObjectRef, piece: ByteRange) -> bytes:
    return store.get_ranges(ref.key, [piece], version=ref.version)[0]


def _side_by_side(one: Callable[[ByteRange], bytes], pieces: list[ByteRange]) -> Iterator[bytes]:
    if len(pieces) == 1:
        return map(one, pieces)  # threads would cost more than a small object
    return parallel_map(one, pieces, workers=PIECES_AT_ONCE)


def expand_object(store: Store, ref: ObjectRef, chunks: Iterable[bytes], out: BinaryIO) -> None:
    """Write the expanded object to *out*; ChangedError unless it has as many bytes as were indexed."""
    where = f"{store.url}: {ref.key!r}"
    count = expand(chunks, ref.compression, out, bytes_max=ref.expanded_size, where=where)
    if count != ref.expanded_size:
        raise ChangedError(
            f"{where} changed: indexed with {ref.expanded_size} expanded bytes, found {count}",
            "index it again",
        )


def slices(whole: bytes, ranges: Sequence[ByteRange], where: str) -> list[bytes | memoryview]:
    """The ranges of an object that is all here; StoreError where it ends before them."""
    view = memoryview(whole)
    for piece in ranges:
        if piece.stop > len(view):
            raise _ends_before(piece, len(view), where)
    return [view[piece.start : piece.stop] for piece in ranges]


def _ends_before(piece: ByteRange, size: int, where: str) -> StoreError:
    return StoreError(f"{where}: asked for bytes {piece.start} to {piece.stop}, the object ends at {size}")


def pread_ranges(file: Descriptor, ranges: Sequence[ByteRange], where: str) -> list[bytes | memoryview]:
    """The ranges of an open file; StoreError where it ends before them."""
    data: list[bytes | memoryview] = []
    for piece in ranges:
        part = pread_exactly(file.fd, piece)
        if len(part) != len(piece):
            raise _ends_before(piece, piece.start + len(part), where)
        data.append(part)
    return data
