"""Reading through the cache. A hit is one pread and asks nobody; a miss never waits for its whole object.

A missed range comes from what an admission under way has already brought, or by a ranged request, while the admission
goes on in the background. Small objects come in by the very request that serves the read, and by it alone: where their
digest is known, nobody gets other bytes while the cache takes them in. Whole-compressed objects alone are waited for:
there is no other way to a range of theirs. When the cache's disk fails, reading goes on without.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from stoker.cache.admit import CACHE_FAILURES, Admitter, Flight, Pieces, admit
from stoker.cache.descriptors import Descriptor, Descriptors
from stoker.cache.home import Home
from stoker.cache.mapped import Mapped
from stoker.cache.objects import Line, Read, Wanted, WrongDigestError, pread_ranges, read_or_error, slices, wrong_digest
from stoker.cache.policy import entry_name
from stoker.cache.streamed import Streamed
from stoker.clock import SYSTEM, Clock
from stoker.errors import StokerError, StoreError
from stoker.events import Recorder
from stoker.flow import Gate
from stoker.index.entry import ObjectRef
from stoker.store.base import ByteRange, Store
from stoker.store.digest import digest_of

SMALL_BYTES_MAX = 1 << 20
"""Objects up to this size are fetched whole when any of their bytes is missed."""
ADMISSIONS_AT_ONCE = 4
ADMISSIONS_WAITING_MAX = 64
PATIENCE_S = 1.0
"""How long a miss waits for bytes that an admission is about to bring: a request of its own would fetch them twice."""
BESIDES_AT_ONCE = 6
"""Reads that may fetch parts of objects which come in whole anyway: enough for the next batch."""
BESIDES_BYTES_MIN, BESIDES_SHARE = 8 << 20, 0.01
"""What they may fetch in all, and of what came in whole: the first batches come soon, then the wire is for what stays.
Where it is the limit, every byte that is fetched twice is one that training waits for."""
PIECES_IN_FLIGHT = 8
"""Of all objects on their way in: 64 MiB, as much as 320 MB/s bring in 200 ms. More would hold up the first of them."""
LEASES_BATCH = 32
BACK_OFF_S = 5.0
"""Seconds without admissions after the disk failed or had no room."""
ELSEWHERE_POLL_S = 0.01
"""Seconds between looks at what another process brings in."""


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(ADMISSIONS_AT_ONCE, thread_name_prefix="stoker-admit")


@dataclass(slots=True)
class _Live:
    """What belongs to one process: a forked child makes its own."""

    home: Home | None
    pid: int = field(default_factory=os.getpid)
    lock: threading.Lock = field(default_factory=threading.Lock)
    files: Descriptors = field(default_factory=Descriptors)
    pool: ThreadPoolExecutor = field(default_factory=_pool)
    flights: dict[str, Flight] = field(default_factory=dict)
    line: Line = field(default_factory=lambda: Line(PIECES_IN_FLIGHT))
    failures: dict[str, BaseException] = field(default_factory=dict)
    """Objects that are damaged in the store: never served, not even in part."""
    leases: list[str] = field(default_factory=list)
    hits: int = 0
    misses: int = 0
    brought_bytes: int = 0
    """Of objects that came in whole."""
    beside_bytes: int = 0
    """Fetched by reads besides, and nearly always once more."""
    closed_until_s: float = 0.0


_inherited: list[object] = []
"""What forked children found of their parents: kept, since ending it would touch locks that nobody holds any more."""


class Cached:
    """Objects of one store through the cache. Made by `Cache.objects`."""

    def __init__(
        self, store: Store, open_home: Callable[[Recorder], Home | None], *, recorder: Recorder, clock: Clock = SYSTEM
    ) -> None:
        self._store = store
        self._open_home = open_home
        self._recorder = recorder
        self._clock = clock
        self._stopping = threading.Event()
        self._streamed = Streamed(store, recorder=recorder)
        self._besides = Gate(BESIDES_AT_ONCE)
        self._live = _Live(open_home(recorder))

    def read(self, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        live = self._here()
        if live.home is None:
            return self._streamed.read(ref, ranges)
        name = entry_name(self._store.url, ref)
        data = self._from_entry(live, live.home, name, ref, ranges)
        if data is None:
            return self._missed(live, live.home, name, ref, ranges)
        with live.lock:
            live.hits += 1
        self._recorder.count("cache.hits")
        return Read(data, sum(map(len, data)), 0)

    def read_all(self, wanted: Sequence[Wanted]) -> list[Read | WrongDigestError]:
        if self._here().home is None:
            return self._streamed.read_all(wanted)
        return [read_or_error(self, *one) for one in wanted]

    def file(self, ref: ObjectRef) -> Path:
        """The entry's file, brought in whole first; the store's own where the cache has no room for it."""
        live = self._here()
        name = entry_name(self._store.url, ref)
        while live.home is not None:
            if self._from_entry(live, live.home, name, ref, []) is not None:
                return live.home.entry(name)
            if name in live.failures:
                raise live.failures[name]
            if live.home.read_only or self._clock.monotonic() < live.closed_until_s:
                break
            flight, new = self._flight(live, name)
            if not new:
                flight.wait()
                continue
            self._bring_in(live, live.home, name, ref, flight, patient=True)
            if name not in live.failures and self._from_entry(live, live.home, name, ref, []) is None:
                break
        return self._streamed.file(ref)

    def mapped(self, ref: ObjectRef) -> Mapped | None:
        live = self._here()
        if live.home is None:
            return self._streamed.mapped(ref)
        name = entry_name(self._store.url, ref)
        if not ref.size or self._from_entry(live, live.home, name, ref, []) is None:
            return None
        file = live.files.get(name)
        if file is None:
            return None  # dropped by another thread in between
        with live.lock:
            live.hits += 1
        return Mapped(file, f"cache {live.home.entry(name)} of {self._store.url}: {ref.key!r}")

    def bring_in(self, ref: ObjectRef) -> bool:
        """See `Objects.bring_in`: False once the cache has no room, cannot be written or is closed."""
        live = self._here()
        home = live.home
        if home is None or home.read_only or self._stop() or self._clock.monotonic() < live.closed_until_s:
            return False
        name = entry_name(self._store.url, ref)
        if not home.holds(name, ref.expanded_size if ref.compression else ref.size):
            flight, new = self._flight(live, name)
            if new:
                self._bring_in(live, home, name, ref, flight)
        return True

    def close(self) -> None:
        """End admissions under way and leave nothing half-written."""
        self._stopping.set()
        live = self._live
        if live.pid == os.getpid():
            live.pool.shutdown(wait=True, cancel_futures=True)
            self._note_reads(live, at_least=0)
            live.files.close()
        self._streamed.close()

    def _here(self) -> _Live:
        """This process's part; made anew in a forked child."""
        live = self._live
        if live.pid == os.getpid():
            return live
        _inherited.extend((live, self._streamed))
        self._streamed = Streamed(self._store, recorder=self._recorder)
        self._besides = Gate(BESIDES_AT_ONCE)
        self._live = _Live(self._open_home(self._recorder))
        return self._live

    def _stop(self) -> bool:
        """Whether admissions should end: the reader was closed, or the interpreter is on its way out."""
        return self._stopping.is_set() or not threading.main_thread().is_alive()

    def _from_entry(
        self, live: _Live, home: Home, name: str, ref: ObjectRef, ranges: Sequence[ByteRange]
    ) -> list[bytes | memoryview] | None:
        """The ranges from the entry; None when there is none or its disk fails."""
        try:
            file = live.files.get(name) or self._opened(live, home, name, ref)
            if file is None:
                return None
            return pread_ranges(file, ranges, f"cache {home.entry(name)} of {self._store.url}: {ref.key!r}")
        except StoreError:
            raise
        except CACHE_FAILURES as error:
            live.files.drop(name)
            home.degrade(error, self._recorder)
            return None

    def _opened(self, live: _Live, home: Home, name: str, ref: ObjectRef) -> Descriptor | None:
        """The entry's file, opened and leased; None when there is none. One of a wrong length is taken out."""
        try:
            file = live.files.get_or_open(name, lambda: os.open(home.entry(name), os.O_RDONLY | os.O_CLOEXEC))
        except FileNotFoundError:
            return None
        if os.fstat(file.fd).st_size != (ref.expanded_size if ref.compression else ref.size):
            live.files.drop(name)
            home.remove(name)
            return None
        with live.lock:
            live.leases.append(name)
        self._note_reads(live, at_least=LEASES_BATCH)
        return file

    def _missed(self, live: _Live, home: Home, name: str, ref: ObjectRef, ranges: Sequence[ByteRange]) -> Read:
        """The ranges from elsewhere, and the object on its way in if it may."""
        with live.lock:
            live.misses += 1
        self._recorder.count("cache.misses")
        if name in live.failures:
            raise live.failures[name]
        if home.read_only or self._stop() or self._clock.monotonic() < live.closed_until_s:
            return self._streamed.read(ref, ranges)
        flight, new = self._flight(live, name)
        if ref.compression:
            return self._waited_for(live, home, name, ref, ranges, flight if new else None)
        if not new and ref.digest is not None and ref.size <= SMALL_BYTES_MAX:
            whole = flight.whole()  # one request brings it, verified: a range of our own would come no sooner
            if whole is None:
                return self.read(ref, ranges)  # it is in, or damaged, or somebody else must try
            return Read(slices(whole, ranges, f"{self._store.url}: {ref.key!r}"), sum(map(len, ranges)), 0)
        if not new:
            return self._beside(live, home, name, ref, ranges, flight)
        if ref.size <= SMALL_BYTES_MAX:
            return self._small(live, home, name, ref, ranges, flight)
        if len(live.flights) > ADMISSIONS_WAITING_MAX:
            self._land(live, name, flight)
        else:
            self._in_background(live, home, name, ref, flight)
        return self._beside(live, home, name, ref, ranges, flight)

    def _beside(
        self, live: _Live, home: Home, name: str, ref: ObjectRef, ranges: Sequence[ByteRange], flight: Flight
    ) -> Read:
        """Ranges of an object on its way in: what is there or nearly, else by requests of our own, a few at once."""
        with self._besides:
            spendable = live.beside_bytes < BESIDES_BYTES_MIN + BESIDES_SHARE * live.brought_bytes
            where, patience_s = f"{self._store.url}: {ref.key!r}", PATIENCE_S if spendable else None
            data = flight.read(ranges, where, patience_s=patience_s)
            if data is None and flight.came_in:  # while this read stood in line
                data = self._from_entry(live, home, name, ref, ranges)
            if data is not None:
                return Read(data, sum(map(len, data)), 0)
            read = self._streamed.read(ref, ranges)
            live.beside_bytes += read.stored_bytes
            return read

    def _small(
        self, live: _Live, home: Home, name: str, ref: ObjectRef, ranges: Sequence[ByteRange], flight: Flight
    ) -> Read:
        """Fetch a small object whole and serve the read; write it in the background, or here when that has too much."""
        whole = None
        try:
            whole = self._verified(live, name, ref)
        finally:
            if whole is None:
                self._land(live, name, flight)
        data = bytes(whole.data[0])
        flight.give(data)
        given = iter((data,))

        def pieces() -> Iterable[bytes]:
            """What was just fetched; asked again (its digest was not the learned one), what the store gives now."""
            return [next(given, None) or bytes(self._whole(ref).data[0])]

        if len(live.flights) > ADMISSIONS_WAITING_MAX:
            self._bring_in(live, home, name, ref, flight, pieces)
        else:
            self._in_background(live, home, name, ref, flight, pieces)
        return Read(slices(data, ranges, f"{self._store.url}: {ref.key!r}"), 0, whole.stored_bytes)

    def _whole(self, ref: ObjectRef) -> Read:
        return self._streamed.read(ref, [ByteRange(0, ref.size)])

    def _verified(self, live: _Live, name: str, ref: ObjectRef) -> Read:
        """A small object's bytes; where the digest is known, no others are ever given."""
        whole = self._whole(ref)
        if ref.digest is None or digest_of(whole.data[0]) == ref.digest:
            return whole
        self._recorder.count("cache.wrong_digests")
        again = self._whole(ref)
        found = digest_of(again.data[0])
        if found == ref.digest:
            return again
        self._recorder.count("cache.wrong_digests")
        self._recorder.count("cache.quarantined")
        live.failures[name] = wrong_digest(self._store, ref, ref.digest, found)
        raise live.failures[name]

    def _waited_for(
        self, live: _Live, home: Home, name: str, ref: ObjectRef, ranges: Sequence[ByteRange], mine: Flight | None
    ) -> Read:
        """Ranges of a whole-compressed object, once it is in; expanded aside where it may not come in."""
        if mine is not None:
            self._bring_in(live, home, name, ref, mine)
        else:
            flight = live.flights.get(name)
            if flight is not None:
                flight.wait()
        if name in live.failures:
            raise live.failures[name]
        data = self._from_entry(live, home, name, ref, ranges)
        if data is None:
            return self._streamed.read(ref, ranges)
        return Read(data, 0, ref.size) if mine is not None else Read(data, sum(map(len, data)), 0)

    def _flight(self, live: _Live, name: str) -> tuple[Flight, bool]:
        """The object's way in, and whether it begins just now."""
        with live.lock:
            new = name not in live.flights
            return live.flights.setdefault(name, Flight()), new

    def _land(self, live: _Live, name: str, flight: Flight) -> None:
        with live.lock:
            live.flights.pop(name, None)
        flight.end()

    def _in_background(
        self, live: _Live, home: Home, name: str, ref: ObjectRef, flight: Flight, pieces: Pieces | None = None
    ) -> None:
        def finished(future: Future[None]) -> None:
            if future.cancelled():
                self._land(live, name, flight)  # closed before it began: nobody must wait for it
            elif (fault := future.exception()) is not None:
                live.failures[name] = fault  # whatever it is, the next read of the object tells

        try:
            begun = live.pool.submit(self._bring_in, live, home, name, ref, flight, pieces)
        except RuntimeError:  # closed meanwhile
            self._land(live, name, flight)
        else:
            begun.add_done_callback(finished)

    def _bring_in(
        self,
        live: _Live,
        home: Home,
        name: str,
        ref: ObjectRef,
        flight: Flight,
        pieces: Pieces | None = None,
        *,
        patient: bool = False,
    ) -> None:
        """Admit the object and take note of how it went. Waits for another process only where there is no other way."""
        by = Admitter(home, self._store, self._recorder, self._stop, live.line)
        try:
            outcome = "stopped" if self._stop() else admit(by, name, ref, flight, pieces)
            while outcome == "elsewhere" and (patient or ref.compression) and not self._stop():
                self._clock.sleep(ELSEWHERE_POLL_S)
                outcome = admit(by, name, ref, flight, pieces)
            flight.came_in = outcome == "admitted"
            live.brought_bytes += ref.size if flight.came_in else 0
            if outcome == "refused":
                live.closed_until_s = self._clock.monotonic() + BACK_OFF_S
                home.say_full()
        except WrongDigestError as error:
            live.failures[name] = error
        except StokerError:
            self._recorder.count("cache.failed")  # the store's failure: a read that needs the object meets it too
        except CACHE_FAILURES as error:
            live.closed_until_s = self._clock.monotonic() + BACK_OFF_S
            home.degrade(error, self._recorder)
        finally:
            self._land(live, name, flight)

    def _note_reads(self, live: _Live, *, at_least: int) -> None:
        """Write down leases, hits and misses when there are enough new leases."""
        if live.home is None or live.home.read_only:
            return
        with live.lock:
            if len(live.leases) < at_least:
                return
            leases, hits, misses = live.leases, live.hits, live.misses
            live.leases, live.hits, live.misses = [], 0, 0
        try:
            live.home.ledger.note_reads(live.home.session, leases, hits, misses)
        except CACHE_FAILURES as error:
            live.home.degrade(error, self._recorder)
