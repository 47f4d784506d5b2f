"""How an object comes into the cache: alone, with its room promised, verified, and then all at once.

Order of steps: lock the entry, promise bytes, write to tmp/ while hashing, compare the digest, fsync, rename, enter it
in the ledger. A wrong digest is fetched once more, in case the network did it; then it is an error and nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stoker.cache.descriptors import Descriptor
from stoker.cache.home import Home
from stoker.cache.objects import Line, expand_object, pread_ranges, wrong_digest
from stoker.cache.policy import refusal
from stoker.clock import SYSTEM
from stoker.errors import ChangedError, ShardError
from stoker.events import Recorder
from stoker.index.entry import ObjectRef
from stoker.store.base import ByteRange, Store
from stoker.store.digest import TreeDigest

Outcome = Literal["admitted", "present", "refused", "elsewhere", "stopped"]
"""elsewhere: another process has it in hand. stopped: the reader was closed meanwhile."""
CACHE_FAILURES = (OSError, sqlite3.Error)
"""What the cache's disk raises. Store errors are OSErrors too: catch them before."""


Pieces = Callable[[], Iterable[bytes]]
"""Gives the stored bytes of an object from the start, each time it is called."""


@dataclass(frozen=True, slots=True)
class Admitter:
    """What every admission of one reader needs."""

    home: Home
    store: Store
    recorder: Recorder
    stop: Callable[[], bool]
    """Asked between pieces; True ends the admission."""
    line: Line
    """In which the pieces stand that are fetched for all of these admissions."""


class Flight:
    """An object on its way in: how many of its first bytes can be read already."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._file: Descriptor | None = None
        self._ready_bytes = 0
        self._begun_s = 0.0
        self._whole: bytes | None = None
        self._done = False
        self.came_in = False
        """Whether the object is an entry of the cache now, by this flight."""

    def begin(self, fd: int) -> None:
        """Bytes come into *fd* from now on, from the start (again)."""
        with self._changed:
            self._file, self._ready_bytes, self._begun_s = Descriptor(os.dup(fd)), 0, SYSTEM.monotonic()

    def advance(self, count: int) -> None:
        with self._changed:
            self._ready_bytes += count
            self._changed.notify_all()

    def give(self, whole: bytes) -> None:
        """All stored bytes of a small object are here, verified, and may be read before they are on the disk."""
        with self._changed:
            self._whole = whole
            self._changed.notify_all()

    def whole(self) -> bytes | None:
        """What was given, waited for; None when the flight ended without."""
        with self._changed:
            self._changed.wait_for(lambda: self._done or self._whole is not None)
            return self._whole

    def end(self) -> None:
        """Nothing more comes; what was read stays readable for who holds it."""
        with self._changed:
            self._done, self._file = True, None
            self._changed.notify_all()

    def wait(self) -> None:
        """Until the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._done)

    def read(
        self, ranges: Sequence[ByteRange], where: str, *, patience_s: float | None
    ) -> list[bytes | memoryview] | None:
        """The ranges if all of them are there, or will be in *patience_s* at the speed seen so far; else None.

        Without a *patience_s* they are waited for as long as they are on their way."""
        stop = max((piece.stop for piece in ranges), default=0)
        with self._changed:
            self._changed.wait_for(lambda: self._done or not self._soon(stop, patience_s), patience_s)
            file, ready = self._file, self._ready_bytes
        return pread_ranges(file, ranges, where) if file is not None and stop <= ready else None

    def _soon(self, stop: int, patience_s: float | None) -> bool:
        """Whether byte *stop* is not there yet, but worth waiting for."""
        left, spent_s = stop - self._ready_bytes, SYSTEM.monotonic() - self._begun_s
        if self._file is None or left <= 0:
            return False
        return patience_s is None or left * spent_s < patience_s * self._ready_bytes


class _Stopped(Exception):  # noqa: N818  # not an error
    """The reader was closed while an object came in."""


def admit(by: Admitter, name: str, ref: ObjectRef, flight: Flight, pieces: Pieces | None = None) -> Outcome:
    """Bring the object in unless it is there, in other hands, or there is no room.

    *pieces* gives its stored bytes, each time anew; by default they are fetched side by side. StoreError and its kin
    when the store fails; CACHE_FAILURES when the cache does. Nothing is left behind in any case.
    """
    with by.home.alone(name) as alone:
        if not alone:
            return "elsewhere"
        need = ref.expanded_size if ref.compression else ref.size
        if by.home.holds(name, need):
            return "present"
        reason = by.home.ledger.reserve(
            by.home.session, name, need, lambda held, promised: refusal(by.home.room(held, promised), need)
        )
        if reason:
            by.home.refusal = reason
            by.recorder.count("cache.refused")
            return "refused"
        published = False
        try:
            learned = _fill(by, name, ref, flight, pieces or (lambda: by.line.fetch(by.store, ref)))
            by.home.ledger.publish(name, need, url=by.store.url, key=ref.key, digest=learned)
            published = True
        except _Stopped:
            return "stopped"
        finally:
            if not published:
                with contextlib.suppress(sqlite3.Error):
                    by.home.ledger.release(name)
        by.recorder.count("cache.admitted_bytes", need)
        return "admitted"


def _fill(by: Admitter, name: str, ref: ObjectRef, flight: Flight, pieces: Pieces) -> str | None:
    """Write, verify and publish; gives the digest if it was learned just now."""
    expected = ref.digest or by.home.ledger.digest(name)
    for last in (False, True):
        with by.home.temporary() as (path, fd):
            try:
                digest = _write(by, ref, flight, fd, pieces(), expected)
            except ShardError:  # what the network made of a compressed shard does not expand
                if last:
                    raise
                continue
            if expected is None or digest == expected:
                by.home.publish(path, fd, name)
                return digest if expected is None else None
            by.recorder.count("cache.wrong_digests")
            if last:
                by.recorder.count("cache.quarantined")
                raise wrong_digest(by.store, ref, expected, digest)
    raise AssertionError("the loop above returns or raises")


def _write(by: Admitter, ref: ObjectRef, flight: Flight, fd: int, pieces: Iterable[bytes], expected: str | None) -> str:
    """Write the object to *fd*, expanded where it is compressed; gives the digest of its stored bytes.

    ShardError when bytes of the *expected* digest, or of an unknown one, do not expand.
    """
    digest = TreeDigest()
    taken = 0

    def hashed() -> Iterator[bytes]:
        nonlocal taken
        for piece in pieces:
            if by.stop():
                raise _Stopped
            digest.update(piece)
            taken += len(piece)
            yield piece

    need = ref.expanded_size if ref.compression else ref.size
    if need:
        os.posix_fallocate(fd, 0, need)
    flight.begin(fd)
    out = _Out(fd, flight)
    stored = hashed()
    if ref.compression:
        try:
            expand_object(by.store, ref, stored, out)  # type: ignore[arg-type]  # only `write` is used
        except (ShardError, ChangedError):
            for _ in stored:  # whether the bytes or the shard are at fault, the digest of all says
                pass
            if expected in (None, digest.hexdigest()):
                raise
    else:
        for piece in stored:
            out.write(piece)
    if taken != ref.size:
        raise ChangedError(f"{by.store.url}: {ref.key!r} changed: indexed with {ref.size} bytes, found {taken}")
    return digest.hexdigest()


class _Out:
    """A file that tells the flight how far it is."""

    def __init__(self, fd: int, flight: Flight) -> None:
        self._fd, self._flight = fd, flight

    def write(self, data: bytes | memoryview) -> int:
        view = memoryview(data).cast("B")
        at = 0
        while at < len(view):
            at += os.write(self._fd, view[at:])
        self._flight.advance(at)
        return at
