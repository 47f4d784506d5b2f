"""What is on the wire while a cold epoch fills a cache, or does without one: full, in order, and nothing twice."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import stoker
from stoker.cache import Streamed, cached, objects
from stoker.cache.objects import PIECES_AT_ONCE, Line
from stoker.errors import StoreError
from stoker.events import Events
from stoker.store import ByteRange, Memory, ObjectInfo
from support_dataset import write_shards
from support_store import Counting, Gated, random_bytes, refs_of, until

PIECE = 1000


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of some KB have several pieces."""
    monkeypatch.setattr(objects, "PIECE_BYTES", PIECE)


def store_of(*sizes: int) -> Memory:
    """Objects of these sizes."""
    store = Memory()
    for number, size in enumerate(sizes):
        store.put(f"{number}.tar", random_bytes(number, size))
    return store


class Held(Counting):
    """Every piece waits until it is let go; who waits can be seen."""

    def __init__(self, inner: Memory) -> None:
        super().__init__(inner)
        self.lock, self.waiting, self.asked = threading.Condition(), list[tuple[str, int]](), list[tuple[str, int]]()
        self.heads: list[str] = []

    def head(self, key: str) -> ObjectInfo:
        self.heads.append(key)
        return super().head(key)

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        with self.lock:
            one = (key, ranges[0].start // PIECE)
            self.asked.append(one)
            self.waiting.append(one)
            self.lock.notify_all()
            self.lock.wait_for(lambda: one not in self.waiting)
        return super().get_ranges(key, ranges, version=version)

    def let_go(self) -> None:
        """The piece that has waited longest."""
        with self.lock:
            self.waiting.pop(0)
            self.lock.notify_all()


@pytest.mark.usefixtures("small_pieces")
def test_pieces_follow_each_other_over_objects() -> None:
    """A later object's pieces fill the places that an earlier one's leave, and none goes before them."""
    store = Held(store_of(*[6 * PIECE] * 3))
    refs, line = refs_of(store), Line(5)
    with ThreadPoolExecutor(3) as pool:
        asked = []
        for number, ref in enumerate(refs):
            asked.append(pool.submit(lambda ref: b"".join(line.fetch(store, ref)), ref))
            until(lambda number=number: len(store.asked) >= (4 if number == 0 else 5))
        until(lambda: len(store.waiting) == 5)
        assert [key for key, _ in sorted(store.waiting)] == ["0.tar"] * 4 + ["1.tar"]
        while not all(one.done() for one in asked):
            if store.waiting:
                assert len(store.waiting) <= 5
                store.let_go()
    assert [one.result() for one in asked] == [random_bytes(number, 6 * PIECE) for number in range(3)]
    firsts = [store.asked.index((f"{number}.tar", PIECES_AT_ONCE - 1)) for number in range(3)]
    assert firsts == sorted(firsts) and store.asked.index(("2.tar", 0)) > firsts[1] - PIECES_AT_ONCE


@pytest.mark.usefixtures("small_pieces")
def test_an_object_that_fails_does_not_block_the_line() -> None:
    """Its head or a first piece cannot be had, or nobody wants the rest: the next one has its turn all the same."""
    store, line = store_of(*[6 * PIECE] * 2), Line(5)
    good, other = refs_of(store)
    for bad in (replace(other, key="missing", version=None), replace(other, key="missing", version="1")):
        with pytest.raises(StoreError):
            list(line.fetch(store, bad))
        assert b"".join(line.fetch(store, good)) == random_bytes(0, 6 * PIECE)
    half = line.fetch(store, other)
    next(half)
    half.close()
    assert b"".join(line.fetch(store, good)) == random_bytes(0, 6 * PIECE)


def test_objects_without_pieces_or_with_one() -> None:
    """An empty object comes as nothing, a small one in one piece, and neither waits for anybody's turn."""
    store = store_of(0, 10)
    empty, small = refs_of(store)
    line = Line(1)
    assert list(line.fetch(store, empty)) == [] and list(line.fetch(store, small)) == [random_bytes(1, 10)]


class Together(Memory):
    """Gives nothing until so many requests are there at once."""

    def __init__(self, inner: Memory, parties: int) -> None:
        super().__init__()
        self._inner = inner
        self._meet = threading.Barrier(parties, timeout=20)

    def head(self, key: str) -> ObjectInfo:
        return replace(self._inner.head(key), version=None)  # indexed elsewhere

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        self._meet.wait()  # a BrokenBarrierError, if they come one by one
        return self._inner.get_ranges(key, ranges)


def test_objects_of_one_read_are_asked_side_by_side() -> None:
    """Eight samples of eight shards cost one round trip, not eight."""
    inner = store_of(*range(100, 108))
    store = Together(inner, 8)
    wanted = [(ref, [ByteRange(3, 9)]) for ref in refs_of(inner)]
    with_store = Streamed(store)
    found = with_store.read_all(wanted)
    with_store.close()
    assert [bytes(read.data[0]) for read in found if not isinstance(read, Exception)] == [
        random_bytes(number, 100 + number)[3:9] for number in range(8)
    ]


def test_samples_of_many_shards_are_read_side_by_side(tmp_path: Path) -> None:
    """The same through a dataset's reader."""
    dataset = stoker.open(write_shards(tmp_path, 6, shards=6))
    inner = Memory()
    for path in tmp_path.glob("*.tar"):
        inner.put(path.name, path.read_bytes())
    reader = stoker.Dataset(Together(inner, 6), dataset.index).reader(("cls",))
    raw = reader.read(range(6))
    assert [raw.sample(at) for at in range(6)] == [
        {"cls": dataset.reader(("cls",)).read([at]).sample(0)["cls"]} for at in range(6)
    ]


def test_reads_besides_do_not_take_the_wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once they fetched what they may, reads wait for the object that is coming instead of fetching its bytes twice."""
    monkeypatch.setattr(cached, "BESIDES_BYTES_MIN", 25)
    size = 3 << 20
    store, events = Gated(store_of(size)), Events()
    reading = stoker.Cache(tmp_path / "c").objects(store, recorder=events)
    ref = refs_of(store)[0]

    def read(at: int) -> bytes:
        return bytes(reading.read(ref, [ByteRange(at, at + 10)]).data[0])

    assert [read(at) for at in (0, 100, 200)] == [random_bytes(0, size)[at : at + 10] for at in (0, 100, 200)]
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(read, at) for at in range(0, size - 10, size // 20)]
        until(lambda: sum(one.running() for one in waiting) == 4)
        assert not any(one.done() for one in waiting)
        store.open.set()
        assert [one.result() for one in waiting] == [
            random_bytes(0, size)[at : at + 10] for at in range(0, size - 10, size // 20)
        ]
    reading.close()
    assert store.ranges.count((ref.key, ByteRange(0, size))) == 1  # the object itself; it may come before the reads
    assert len(store.ranges) == 1 + 3


class Plain(Counting):
    """Objects of 200,000 zeros, told by Python alone: the client of a real store has threads that no child inherits."""

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        return [bytes(len(one)) for one in ranges]


def test_a_forked_child_reads_with_threads_of_its_own() -> None:
    """It inherits the pools of its parent without their threads: what it asked them for would never come."""
    store = Plain(store_of(*[200_000] * 16))
    wanted, streamed = (
        [(ref, [ByteRange(0, 10), ByteRange(150_000, 150_009)]) for ref in refs_of(store)],
        Streamed(store),
    )
    expected = [one.data for one in streamed.read_all(wanted) if isinstance(one, objects.Read)]
    wanted, expected = wanted[:2], expected[:2]  # fewer than the threads that have nothing to do now
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # ends it where it would wait for ever
        os._exit(7 if [getattr(one, "data", None) for one in streamed.read_all(wanted)] == expected else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    streamed.close()


def test_closing_with_reads_in_flight() -> None:
    """Whoever waits for one that will not be made is told; so is who reads later."""
    store = Held(store_of(*[100] * 3))
    wanted, streamed = [(ref, [ByteRange(0, 10)]) for ref in refs_of(store)] * 60, Streamed(store)
    with ThreadPoolExecutor(2) as pool:
        read = pool.submit(streamed.read_all, wanted)
        until(lambda: len(store.asked) >= 100)
        closing = pool.submit(streamed.close)
        until(lambda: streamed._closed)
        while not (read.done() and closing.done()):
            if store.waiting:
                store.let_go()
        with pytest.raises(StoreError, match="closed while"):
            read.result()
    with pytest.raises(StoreError, match="after it was closed"):
        streamed.read_all(wanted)


def test_closing_ends_the_wait_for_what_did_not_begin(tmp_path: Path) -> None:
    """An admission that stood in line when the cache was closed lands; reads go on without the cache."""
    store = Held(store_of(*[2 << 20] * 7))
    refs, cache = refs_of(store), stoker.Cache(tmp_path / "cache").objects(store)
    assert isinstance(cache, cached.Cached)
    with ThreadPoolExecutor(8) as pool:
        reads = [pool.submit(cache.read, ref, [ByteRange(0, 10)]) for ref in refs[:6]]
        until(lambda: len(cache._live.flights) == 6)
        flights = list(cache._live.flights.values())
        closing = pool.submit(cache.close)
        while not closing.done() or not all(one.done() for one in reads):
            if store.waiting:
                store.let_go()
        assert all(flight._done for flight in flights)  # or `Cached.file`, for one, would wait for ever
        late = pool.submit(cache.read, refs[6], [ByteRange(0, 10)])
        until(lambda: bool(store.waiting))
        store.let_go()
        assert len(late.result(10).data[0]) == 10 and not cache._live.flights
