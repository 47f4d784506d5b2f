"""Bringing objects into the cache ahead of their use, and what reads do meanwhile."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import stoker
from stoker.cache import Streamed, prefetch
from stoker.cache.cached import BESIDES_AT_ONCE
from stoker.cache.prefetch import LARGE_AT_ONCE, Coming
from stoker.events import Events
from stoker.flow import parallel_map
from stoker.loader.job import Start
from stoker.loader.steps import samples_ahead
from stoker.order import Split, build_order
from stoker.store import ByteRange, Memory
from support_dataset import write_shards
from support_store import Counting, Gated, random_bytes, refs_of, until

SIZE = 3 << 20


def objects_of(count: int, size: int = SIZE) -> Memory:
    """A store of so many objects."""
    store = Memory()
    for number in range(count):
        store.put(f"{number:02d}.tar", random_bytes(number, size))
    return store


class LetGo(Counting):
    """Answers for no object before it is let go."""

    def __init__(self, inner: Memory) -> None:
        super().__init__(inner)
        self.asked: list[str] = []
        self.gates = {info.key: threading.Event() for info in inner.list()}

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        """As the store, later."""
        self.asked.append(key)
        assert self.gates[key].wait(60)
        return super().get_ranges(key, ranges, version=version)


def test_objects_come_in_in_the_order_asked_for(tmp_path: Path) -> None:
    """All that are not there are fetched once, first things first: none waits for a later one, and no more than four
    large ones are begun."""
    store, cache = LetGo(objects_of(6, 9 << 20)), stoker.Cache(tmp_path / "c")
    objects = cache.objects(store)
    refs = refs_of(store)
    wanted = [refs[number] for number in (4, 1, 5, 0, 2, 3)]
    prefetch(((objects, ref) for ref in wanted * 2), [objects])
    for at, ref in enumerate(wanted):
        until(lambda key=ref.key: key in store.asked)
        assert set(store.asked) <= {one.key for one in wanted[: at + LARGE_AT_ONCE]}
        store.gates[ref.key].set()
        until(lambda ref=ref: cache.contains(store, ref))
    assert store.read_bytes.total() == 6 * (9 << 20)
    before = store.calls.total()
    again = cache.objects(store)
    prefetch(((again, ref) for ref in wanted), [again])
    assert bytes(again.read(refs[3], [ByteRange(5, 50)]).data[0]) == random_bytes(3, 9 << 20)[5:50]
    objects.close()
    again.close()
    assert store.calls.total() == before


def test_a_full_cache_ends_it(tmp_path: Path) -> None:
    """What has no room is not fetched again and again: prefetching stops, reads go on."""
    store, cache = Counting(objects_of(6)), stoker.Cache(tmp_path / "c", limit=2 * SIZE + 1000)
    events = Events()
    objects = cache.objects(store, recorder=events)
    refs = refs_of(store)
    asked: list[str] = []

    def watched() -> Iterator[Coming]:
        for number in range(60):
            ref = replace(refs[number % 6], key=f"{number}", version=None) if number > 5 else refs[number]
            asked.append(ref.key)
            yield objects, ref

    prefetch(watched(), [objects])
    until(lambda: events.totals().get("cache.refused", 0) > 0)
    assert bytes(objects.read(refs[5], [ByteRange(0, 9)]).data[0]) == random_bytes(5, SIZE)[:9]
    objects.close()
    assert len(asked) < 60
    assert cache.status().bytes <= 2 * SIZE + 1000


class Watched(Gated):
    """Counts how many short reads are under way at once, and lets them wait for each other."""

    def __init__(self, inner: Memory) -> None:
        super().__init__(inner)
        self.lock, self.now, self.most = threading.Lock(), 0, 0

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        short = sum(map(len, ranges)) < 1000
        with self.lock:
            self.now += short
            self.most = max(self.most, self.now)
        time.sleep(0.01 * short)  # a round trip: long enough for others to come
        with self.lock:
            self.now -= short
        return super().get_ranges(key, ranges, version=version)


def test_few_reads_fetch_what_comes_in_anyway(tmp_path: Path) -> None:
    """While an object is on its way few reads at once ask for parts of it; once it is in, none does."""
    store, cache = Watched(objects_of(1)), stoker.Cache(tmp_path / "c")
    objects = cache.objects(store)
    ref = refs_of(store)[0]

    def read(at: int) -> bool:
        piece = ByteRange(at * 1000, at * 1000 + 10)
        return bytes(objects.read(ref, [piece]).data[0]) == random_bytes(0, SIZE)[piece.start : piece.stop]

    assert all(parallel_map(read, range(40), workers=2 * BESIDES_AT_ONCE))
    assert store.most == BESIDES_AT_ONCE
    store.open.set()
    until(lambda: cache.contains(store, ref))
    asked = len(store.ranges)
    assert all(parallel_map(read, range(40), workers=2 * BESIDES_AT_ONCE))
    objects.close()
    assert len(store.ranges) == asked


def test_the_objects_of_an_epoch_in_order_of_first_use(tmp_path: Path) -> None:
    """What a rank will need, each once, from the position where it stands: others' and past ones are not among it."""
    dataset = stoker.open(write_shards(tmp_path, 60, shards=6))
    order = build_order("full", shard_starts=dataset.shard_starts, seed=4)
    split = Split(60, 3, 1, 2)
    for position in (0, 48):
        samples = samples_ahead(dataset, order, split, Start(1, 2, position))
        found = list(dict.fromkeys(ref.key for some in samples for _, ref in dataset.reader().needs(some)))
        positions = np.concatenate([split.step(position, step)[0] for step in range(split.steps(position))])
        shards = np.searchsorted(dataset.shard_starts, order.at(2, positions), side="right") - 1
        expected = [f"shard_{shard:05d}.tar" for shard in dict.fromkeys(shards.tolist())]
        assert found == expected


def test_a_loader_fills_the_cache_while_it_reads(tmp_path: Path) -> None:
    """After one epoch over a cache that has room everything is in it, without a warm-up."""
    folder = write_shards(tmp_path / "data", 60, shards=6)
    cache = stoker.Cache(tmp_path / "c")
    dataset = stoker.open(folder, cache=cache)
    with stoker.Loader(dataset, 4, fields={"cls": int}) as loader:
        for _ in loader:
            pass
        until(lambda: cache.status().entries == 6)


def test_stores_without_room_do_not_end_it_for_others(tmp_path: Path) -> None:
    """One row over several stores: small and large objects of those that take them come in, in order."""
    full, small, large = objects_of(4), Counting(objects_of(9, 2_000)), Counting(objects_of(3, 9 << 20))
    tiny, cache = stoker.Cache(tmp_path / "tiny", limit=SIZE + 1000), stoker.Cache(tmp_path / "c")
    stores = [tiny.objects(full), cache.objects(small), cache.objects(large), Streamed(full)]
    refs = [refs_of(full), refs_of(small), refs_of(large), refs_of(full)]
    row = [
        (store, ref)
        for number in range(9)
        for store, of in zip(stores, refs, strict=True)
        for ref in of[number : number + 1]
    ]
    prefetch(iter(row), stores)
    until(
        lambda: (
            all(cache.contains(small, ref) for ref in refs[1]) and all(cache.contains(large, ref) for ref in refs[2])
        )
    )
    for store in stores:
        store.close()
    assert tiny.status().bytes <= SIZE + 1000
    assert small.calls["get"] + small.calls["get_ranges"] <= 9
    assert large.read_bytes.total() == 3 * (9 << 20)


@pytest.mark.parametrize("epoch", ["all", 40])
def test_what_a_mixture_needs_comes_in(tmp_path: Path, epoch: stoker.dataset.mixture.EpochRule) -> None:
    """Into the caches of its parts that have one, also what a short epoch leaves out, before anything is read."""
    photos = stoker.open(write_shards(tmp_path / "data", 400, shards=40), cache=stoker.Cache(tmp_path / "a"))
    assert photos.cache is not None
    bare = stoker.open(write_shards(tmp_path / "bare", 20, shards=2))
    mixture = stoker.Mixture({"photos": (photos, 0.05), "bare": (bare, 0.95)}, epoch=epoch)
    with stoker.Loader(mixture, 4, fields={"cls": int}, shuffle="none"):
        until(lambda: photos.cache.status().entries == 40)


def test_a_mixtures_parts_take_turns(tmp_path: Path) -> None:
    """What is needed next comes next, whichever part has it: exact to NEEDS_AT_ONCE samples."""
    parts = {
        f"{at}": stoker.open(write_shards(tmp_path / f"{at}", 2_000, shards=20), cache=stoker.Cache(tmp_path / "c"))
        for at in range(2)
    }
    mixture = stoker.Mixture({name: (part, 1) for name, part in parts.items()})
    order = mixture.make_order(
        [build_order("none", shard_starts=part.shard_starts, seed=1) for part in parts.values()], 1
    )
    ahead = samples_ahead(mixture, order, Split(len(mixture), 8, 0, 1), Start(0, 0, 0))
    reader = mixture.reader()
    found = list(dict.fromkeys((id(store), ref.key) for some in ahead for store, ref in reader.needs(some)))
    assert len(found) == 40
    places = [[at for at, (store, _) in enumerate(found) if store == one] for one in dict(found)]
    assert all(abs(one - other) <= 4 for one, other in zip(*places, strict=True))
