"""Reading through the cache in one process: hits, misses, admissions, what is refused, damaged or lost."""

from __future__ import annotations

import errno
import gzip
import os
import pickle
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cache import Cache, CacheStatus
from stoker.cache import cached as cached_module
from stoker.cache.policy import entry_name
from stoker.errors import CacheError, ChangedError, StoreError
from stoker.events import Events
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, Local, Memory, Store, digest_of
from support_store import Counting, Dataset, Gated, random_bytes, refs_of, until

BIG = 20_000_000
ONE = [ByteRange(1000, 1010)]


def stored(sizes: dict[str, int]) -> Memory:
    """A store with objects of those sizes."""
    store = Memory("source")
    for number, (key, size) in enumerate(sizes.items()):
        store.put(key, random_bytes(number, size))
    return store


@pytest.fixture
def big() -> Memory:
    """Two large objects."""
    return stored({"a": BIG, "b": BIG + 1})


def files_in(cache: Cache, folder: str) -> list[str]:
    """Names of the files below a folder of the cache."""
    return sorted(path.name for path in (cache.path / folder).rglob("*") if path.is_file())


def check(store: Store, objects: object, ref: ObjectRef, ranges: list[ByteRange]) -> tuple[int, int]:
    """Read and compare with the store; gives cached and stored bytes."""
    read = objects.read(ref, ranges)
    whole = store.get(ref.key)
    assert [bytes(data) for data in read.data] == [whole[piece.start : piece.stop] for piece in ranges]
    return read.cached_bytes, read.stored_bytes


def test_a_miss_comes_in_and_then_hits(tmp_path: Path, big: Memory) -> None:
    """The first read goes to the store, the object comes in behind it, later reads ask the store for nothing."""
    store, events, cache = Counting(big), Events(), Cache(tmp_path / "c")
    objects = cache.objects(store, recorder=events)
    ref = refs_of(big)[0]
    assert check(big, objects, ref, ONE)[0] == 0
    until(lambda: cache.contains(store, ref))
    until(lambda: cache.status().entries == 1)
    before = store.calls.total()
    assert check(big, objects, ref, [*ONE, ByteRange(BIG - 5, BIG), ByteRange(3, 3)]) == (15, 0)
    assert store.calls.total() == before
    assert events.totals()["cache.hits"] == events.totals()["cache.misses"] == 1
    assert events.totals()["cache.admitted_bytes"] == BIG == cache.status().bytes
    objects.close()
    assert (cache.path / "objects").is_dir() and files_in(cache, "tmp") == []


def test_a_miss_does_not_wait_for_its_object(tmp_path: Path, big: Memory) -> None:
    """While the whole object is still on its way, its ranges come by requests of their own."""
    store, cache = Gated(big), Cache(tmp_path / "c")
    objects = cache.objects(store)
    ref = refs_of(big)[0]
    for at in (0, 5_000_000, BIG - 10):
        assert check(big, objects, ref, [ByteRange(at, at + 10)]) == (0, 10)
    assert not cache.contains(store, ref)
    store.open.set()
    until(lambda: cache.contains(store, ref))
    assert check(big, objects, ref, ONE) == (10, 0)
    objects.close()


def test_what_has_arrived_is_served_from_disk(tmp_path: Path, big: Memory) -> None:
    """Ranges of an object that is still coming in are read from what has arrived, the rest by request."""

    class Stopping(Counting):
        """Gives the first 8 MiB of an object and holds the rest back."""

        go = threading.Event()

        def get_ranges(self, key: str, ranges: list[ByteRange], *, version: str | None = None) -> list[bytes]:
            if ranges[0].start >= 8 << 20 and len(ranges[0]) > 100:
                assert self.go.wait(30)
            return super().get_ranges(key, ranges, version=version)

    store, cache = Stopping(big), Cache(tmp_path / "c")
    objects = cache.objects(store)
    ref = refs_of(big)[0]
    until(lambda: check(big, objects, ref, ONE) == (10, 0))
    assert not cache.contains(store, ref)
    assert check(big, objects, ref, [ByteRange(BIG - 10, BIG)]) == (0, 10)
    store.go.set()
    objects.close()


def test_small_objects_come_in_by_the_request_that_serves(tmp_path: Path) -> None:
    """A small object is fetched once, whole, however little of it was wanted."""
    memory = stored({f"s{n:02d}": 5_000 + n for n in range(40)})
    store, cache = Counting(memory), Cache(tmp_path / "c")
    objects = cache.objects(store)
    refs = refs_of(memory)
    for ref in refs:
        assert check(memory, objects, ref, ONE) == (0, ref.size)
    until(lambda: cache.status().entries == 40)
    for ref in refs:
        assert check(memory, objects, ref, [ByteRange(0, ref.size)]) == (ref.size, 0)
    assert all(store.read_bytes[ref.key] == ref.size for ref in refs)
    objects.close()


def test_a_range_past_the_end_is_an_error_everywhere(tmp_path: Path) -> None:
    """On a miss, on a hit, small or large: bytes that the object does not have are an error, never fewer bytes."""
    memory = stored({"big": 3_000_000, "small": 1000})
    cache = Cache(tmp_path / "c")
    objects = cache.objects(memory)
    for ref in refs_of(memory):
        past = [ByteRange(0, 5), ByteRange(ref.size - 5, ref.size + 1)]
        for _ in range(2):
            with pytest.raises(StoreError, match=ref.key):
                objects.read(ref, past)
            until(lambda ref=ref: cache.contains(memory, ref))
    objects.close()


def test_empty_objects(tmp_path: Path) -> None:
    """An object of no bytes can be read and kept."""
    memory = stored({"empty": 0})
    cache = Cache(tmp_path / "c")
    objects = cache.objects(memory)
    ref = refs_of(memory)[0]
    assert check(memory, objects, ref, [ByteRange(0, 0)]) == (0, 0)
    until(lambda: cache.contains(memory, ref))
    assert check(memory, objects, ref, [ByteRange(0, 0)]) == (0, 0)
    objects.close()


def test_when_too_much_waits_small_objects_are_written_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a full background the reading thread writes a small object itself; a large one is left for later."""
    monkeypatch.setattr(cached_module, "ADMISSIONS_WAITING_MAX", 0)
    memory = stored({"big": BIG, "small": 1000})
    cache = Cache(tmp_path / "c")
    objects = cache.objects(memory)
    large, small = refs_of(memory)
    check(memory, objects, small, [ByteRange(0, 10)])
    check(memory, objects, large, ONE)
    assert cache.contains(memory, small) and not cache.contains(memory, large)
    objects.close()


def test_the_limit_refuses_and_streams(tmp_path: Path, big: Memory) -> None:
    """What does not fit is streamed and counted, what is there stays: nothing is evicted."""
    events, cache = Events(), Cache(tmp_path / "c", limit=BIG + 10)
    assert cache.warm(Dataset(big, refs_of(big)[:1])).refused_reason == ""
    objects = cache.objects(big, recorder=events)
    first, second = refs_of(big)
    for _ in range(3):
        assert check(big, objects, second, ONE) == (0, 10)
        assert check(big, objects, first, ONE) == (10, 0)
    until(lambda: events.totals().get("cache.refused") == 1)
    objects.close()
    assert "the limit of" in cache.warm(Dataset(big, refs_of(big))).refused_reason
    assert cache.status().bytes == BIG and cache.status().reserved_bytes == 0 and len(files_in(cache, "objects")) == 1


def test_what_must_stay_free_stays_free(tmp_path: Path, big: Memory) -> None:
    """When the disk would have less than `free_min`, nothing comes in."""
    cache = Cache(tmp_path / "c", free_min=10**18)
    report = cache.warm(Dataset(big, refs_of(big)))
    assert (report.refused_objects, report.admitted_objects) == (2, 0) and files_in(cache, "objects") == []
    assert "of them for others" in report.refused_reason
    events = Events()
    objects = cache.objects(big, recorder=events)
    with pytest.warns(RuntimeWarning, match=r"/c: the disk has .* left.*read without the cache") as told:
        for ref in refs_of(big) * 2:
            check(big, objects, ref, ONE)
        until(lambda: events.totals().get("cache.refused", 0) >= 1)
        objects.close()
    assert len(told) == 1


def test_known_digests_are_checked(tmp_path: Path) -> None:
    """A small object whose bytes are not the packed ones is never served: fetched twice, then an error with both."""
    memory = stored({"x": 5000})
    store, cache = Counting(memory), Cache(tmp_path / "c")
    good, bad = refs_of(memory, digests=True)[0], replace(refs_of(memory)[0], digest="00" * 32)
    objects = cache.objects(store)
    for _ in range(2):
        with pytest.raises(StoreError, match="expected digest 0000") as caught:
            objects.read(bad, ONE)
        assert str(good.digest) in str(caught.value)
    assert store.read_bytes["x"] == 10_000 and files_in(cache, "objects") == []
    assert check(memory, objects, good, ONE)[1] == 5000
    until(lambda: cache.contains(memory, good))
    objects.close()
    assert files_in(cache, "objects") == [good.digest]


def test_a_large_damaged_object_never_comes_in(tmp_path: Path, big: Memory) -> None:
    """A large object with the wrong digest is fetched twice, not kept, and named at the next read and by `warm`."""
    cache, events = Cache(tmp_path / "c"), Events()
    bad = replace(refs_of(big)[0], digest="11" * 32)
    objects = cache.objects(big, recorder=events)
    objects.read(bad, ONE)
    until(lambda: events.totals().get("cache.wrong_digests") == 2)
    until(lambda: cache.status().reserved_bytes == 0)

    def refused() -> bool:
        try:
            objects.read(bad, ONE)
        except StoreError as error:
            return "damaged" in str(error)
        return False

    until(refused)
    objects.close()
    with pytest.raises(StoreError, match="fetched twice"):
        cache.warm(Dataset(big, [bad]))
    assert files_in(cache, "objects") == files_in(cache, "tmp") == []


def test_a_passing_fault_is_cured_by_a_second_fetch(tmp_path: Path, big: Memory) -> None:
    """When only the network flipped a byte, the second fetch is right and is what comes in."""

    class Flipping(Counting):
        left = 1

        def get_ranges(self, key: str, ranges: list[ByteRange], *, version: str | None = None) -> list[bytes]:
            found = super().get_ranges(key, ranges, version=version)
            if self.left:
                self.left = 0
                found[0] = bytes([found[0][0] ^ 1]) + found[0][1:]
            return found

    store, cache = Flipping(big), Cache(tmp_path / "c")
    ref = refs_of(big, digests=True)[0]
    assert cache.warm(Dataset(store, [ref])).admitted_objects == 1
    assert cache.path.joinpath("objects", ref.digest[:2], ref.digest).read_bytes() == big.get("a")


def test_a_foreign_digest_is_learned_and_kept(tmp_path: Path, big: Memory) -> None:
    """What a foreign object was when first read whole it must be ever after, also when its entry is gone."""
    cache = Cache(tmp_path / "c")
    ref = refs_of(big)[0]
    cache.warm(Dataset(big, [ref]))
    (entry,) = (cache.path / "objects").rglob(entry_name(big.url, ref))
    entry.unlink()
    other = Memory("source")
    other._objects["a"] = random_bytes(99, BIG)

    class Lying(Counting):
        """Says that nothing changed."""

        def get_ranges(self, key: str, ranges: list[ByteRange], *, version: str | None = None) -> list[bytes]:
            return other.get_ranges(key, ranges)

    with pytest.raises(
        StoreError, match=f"expected digest {digest_of(big.get('a'))}, found {digest_of(other.get('a'))}"
    ):
        cache.warm(Dataset(Lying(big), [ref]))


def test_an_object_that_changed_is_named(tmp_path: Path, big: Memory) -> None:
    """A miss of an object that is no longer the indexed one is a ChangedError; a hit of the indexed one is a hit."""
    cache = Cache(tmp_path / "c")
    first, second = refs_of(big)
    cache.warm(Dataset(big, [first]))
    objects = cache.objects(big)
    was = big.get("a")[1000:1010]
    big.put("a", b"other")
    big.put("b", b"other")
    assert objects.read(first, ONE).data == [was]
    with pytest.raises(ChangedError, match="'b'"):
        objects.read(second, ONE)
    objects.close()


@pytest.mark.parametrize("limit", [None, 1000])
def test_compressed_objects(tmp_path: Path, limit: int | None) -> None:
    """A whole-compressed object comes in expanded and is waited for; without room it is expanded aside."""
    data = random_bytes(1, 3_000_000)
    store = Counting(Memory())
    info = store.put("x.tar.gz", gzip.compress(data, 1))
    ref = ObjectRef("x.tar.gz", info.size, info.version, compression="gzip", expanded_size=len(data))
    cache = Cache(tmp_path / "c", limit=limit)
    objects = cache.objects(store)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(bytes(objects.read(ref, ONE).data[0]))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [data[1000:1010]] * 4 and store.read_bytes["x.tar.gz"] == info.size
    assert objects.read(ref, [ByteRange(2_999_990, 3_000_000)]).data == [data[-10:]]
    assert cache.status().bytes == (len(data) if limit is None else 0)
    objects.close()


def test_a_truncated_entry_is_taken_out(tmp_path: Path, big: Memory) -> None:
    """An entry of the wrong length is not served but fetched again."""
    cache = Cache(tmp_path / "c")
    ref = refs_of(big)[0]
    cache.warm(Dataset(big, [ref]))
    (entry,) = (cache.path / "objects").rglob(entry_name(big.url, ref))
    os.truncate(entry, 100)
    objects = cache.objects(big)
    assert check(big, objects, ref, ONE) == (0, 10)
    until(lambda: cache.contains(big, ref) and cache.status().entries == 1)
    assert check(big, objects, ref, ONE) == (10, 0)
    objects.close()


def test_a_lost_ledger_is_rebuilt(tmp_path: Path, big: Memory) -> None:
    """A ledger that is missing or scrambled is made anew from the entries; nothing is fetched again."""
    cache = Cache(tmp_path / "c")
    refs = refs_of(big)
    cache.warm(Dataset(big, refs))
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"not a database at all" * 1000)):
        del cache
        for suffix in ("-wal", "-shm"):
            (tmp_path / "c" / f"ledger.sqlite{suffix}").unlink(missing_ok=True)
        damage(tmp_path / "c" / "ledger.sqlite")
        cache = Cache(tmp_path / "c")
        store = Counting(big)
        assert cache.warm(Dataset(store, refs)).admitted_objects == 0 and store.calls.total() == 0
        assert cache.status().bytes == 2 * BIG + 1 and cache.status().entries == 2


@pytest.mark.filterwarnings("default::RuntimeWarning")
@pytest.mark.parametrize("failing", ["posix_fallocate", "write", "fsync", "replace"])
def test_a_disk_that_fails_is_gone_around(
    tmp_path: Path, big: Memory, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """When the disk is full or fails at any step, reads go on, a warning says so once, and nothing is left behind."""
    events, cache = Events(), Cache(tmp_path / "c")
    objects = cache.objects(big, recorder=events)

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.warns(RuntimeWarning, match="No space left"):
        with monkeypatch.context() as patch:
            patch.setattr(Path if failing == "replace" else os, failing, fail)
            for ref in refs_of(big) * 2:
                check(big, objects, ref, ONE)
            until(lambda: events.totals().get("cache.degraded", 0) >= 1)
            until(lambda: cache.status().reserved_bytes == 0)
    objects.close()
    assert files_in(cache, "tmp") == files_in(cache, "objects") == []
    assert cache.warm(Dataset(big, refs_of(big))).admitted_objects == 2


def test_warming_onto_a_failing_disk_says_so(tmp_path: Path, big: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """`warm` has nothing to go around: it ends with the cache's path and what the disk said, and leaves nothing."""

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    cache = Cache(tmp_path / "c")
    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(CacheError, match=r"/c: .*Input/output error"):
        cache.warm(Dataset(big, refs_of(big)))
    assert files_in(cache, "tmp") == [] and cache.status().reserved_bytes == 0


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_read_error_goes_to_the_store(tmp_path: Path, big: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk cannot read an entry back, the store is read instead, with one warning for many failures."""
    events, cache = Events(), Cache(tmp_path / "c")
    refs = refs_of(big)
    cache.warm(Dataset(big, refs))
    objects = cache.objects(big, recorder=events)

    def fail(*_: object) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.warns(RuntimeWarning, match="Input/output error") as caught:
        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fail)
            for ref in refs * 3:
                assert check(big, objects, ref, ONE) == (0, 10)
    assert len(caught) == 1 and events.totals()["cache.degraded"] == 6
    assert check(big, objects, refs[0], ONE) == (10, 0)
    objects.close()


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_lost_folder_is_gone_around(tmp_path: Path, big: Memory) -> None:
    """When the cache's folder vanishes under a running reader, reading goes on from the store."""
    events, cache = Events(), Cache(tmp_path / "c")
    objects = cache.objects(big, recorder=events)
    (tmp_path / "c").rename(tmp_path / "gone")
    with pytest.warns(RuntimeWarning, match="goes on without"):
        for ref in refs_of(big):
            assert check(big, objects, ref, ONE)[0] == 0
        until(lambda: events.totals().get("cache.degraded", 0) >= 1)
        objects.close()


def test_a_folder_that_cannot_be_one(tmp_path: Path, big: Memory) -> None:
    """A file in the cache's place is a CacheError that names it, at once."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(CacheError, match="file"):
            Cache(path).objects(big)
    with pytest.raises(CacheError, match="no such folder"):
        Cache(tmp_path / "nothing", read_only=True).objects(big)


def test_a_read_only_cache_serves_and_admits_nothing(tmp_path: Path, big: Memory) -> None:
    """Read-only, entries are hits and misses are streamed; nothing in the folder changes."""
    first, second = refs_of(big)
    Cache(tmp_path / "c").warm(Dataset(big, [first]))
    cache = Cache(tmp_path / "c", read_only=True)
    before = sorted((path, path.stat().st_mtime_ns) for path in cache.path.rglob("*"))
    objects = cache.objects(big)
    assert check(big, objects, first, ONE) == (10, 0) and check(big, objects, second, ONE) == (0, 10)
    assert cache.status().entries == 1 and cache.status().read_only and cache.index_folder() is None
    with pytest.raises(CacheError, match="read-only"):
        cache.warm(Dataset(big, [second]))
    objects.close()
    assert sorted((path, path.stat().st_mtime_ns) for path in cache.path.rglob("*")) == before


def test_status_of_a_cache_that_nobody_used(tmp_path: Path) -> None:
    """Asking an unused cache for its state makes nothing and finds nothing."""
    cache = Cache(tmp_path / "deep" / "c", limit="2TB")
    status = cache.status()
    assert isinstance(status, CacheStatus) and (status.entries, status.bytes, status.limit) == (0, 0, 2 * 10**12)
    assert status.free_bytes > 0 and not (tmp_path / "deep").exists() and cache.index_folder() == cache.path / "index"


def test_leases_and_hits_are_known_to_all(tmp_path: Path, big: Memory) -> None:
    """What a reader opened is leased to its session while that lives; hits and misses of all readers add up."""
    cache = Cache(tmp_path / "c")
    refs = refs_of(big)
    cache.warm(Dataset(big, refs))
    objects = cache.objects(big)
    for ref in refs * 3:
        objects.read(ref, ONE)
    objects.close()
    other = Cache(tmp_path / "c")
    status = other.status()
    assert (status.readers, status.leases, status.hits, status.misses) == (1, 2, 6, 0)
    del cache, objects
    assert (other.status().readers, other.status().leases) == (0, 0)


def test_a_pickled_cache_is_the_same_folder(tmp_path: Path, big: Memory) -> None:
    """A cache in use can be pickled; the copy opens the folder for itself."""
    cache = Cache(tmp_path / "c", limit="1GB", free_min=5)
    cache.warm(Dataset(big, refs_of(big)))
    other = pickle.loads(pickle.dumps(cache))
    assert (other.path, other.limit, other.free_min) == (cache.path, 10**9, 5)
    objects = other.objects(big)
    assert check(big, objects, refs_of(big)[0], ONE) == (10, 0)
    objects.close()


def test_a_forked_child_reads_and_admits(tmp_path: Path) -> None:
    """A child forked from a reader in use reads hits and brings objects in, on its own."""
    store = Local(tmp_path / "source")
    for number, key in enumerate("ab"):
        store.put(key, random_bytes(number, BIG))
    cache = Cache(tmp_path / "c")
    first, second = refs_of(store)
    objects = cache.objects(store)
    check(store, objects, first, ONE)
    until(lambda: cache.contains(store, first))
    child = os.fork()
    if child == 0:
        try:
            assert check(store, objects, first, ONE) == (10, 0)
            check(store, objects, second, ONE)
            until(lambda: cache.contains(store, second))
            objects.close()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert check(store, objects, second, ONE) == (10, 0)
    objects.close()


def test_closing_in_mid_admission_leaves_nothing(tmp_path: Path, big: Memory) -> None:
    """A reader that is closed while objects come in ends them: no file, no promise, no thread stays."""
    before = threading.active_count()
    store, cache = Gated(big), Cache(tmp_path / "c")
    objects = cache.objects(store)
    for ref in refs_of(big):
        objects.read(ref, ONE)
    closing = threading.Thread(target=objects.close)
    closing.start()
    store.open.set()
    closing.join()
    assert files_in(cache, "tmp") == [] and cache.status().reserved_bytes == 0
    assert threading.active_count() == before


def test_readers_of_one_process_share_the_work(tmp_path: Path, big: Memory) -> None:
    """Two readers and a warm-up of the same objects in one process fetch each object whole once."""
    store, cache = Gated(big), Cache(tmp_path / "c")
    refs = refs_of(big)
    readers = [cache.objects(store) for _ in range(2)]
    for objects in readers:
        for ref in refs:
            check(big, objects, ref, ONE)
    warming = threading.Thread(target=cache.warm, args=(Dataset(store, refs),))
    warming.start()
    until(lambda: len([1 for name in files_in(cache, "tmp") if name]) == 2)
    store.open.set()
    warming.join()
    for objects in readers:
        objects.close()
    whole = [key for key, piece in store.ranges if piece.start == 0 and len(piece) > 100]
    assert sorted(whole) == ["a", "b"] and cache.status().entries == 2


def test_many_threads_one_cold_cache(tmp_path: Path) -> None:
    """Eight threads over one reader get right bytes everywhere, and each object is fetched whole once."""
    memory = stored({f"o{n}": 2_000_000 + n for n in range(10)})
    store, cache = Counting(memory), Cache(tmp_path / "c")
    objects = cache.objects(store)
    refs = refs_of(memory)
    faults: list[str] = []

    def work(seed: int) -> None:
        for turn in range(60):
            ref = refs[(seed * 7 + turn * 3) % len(refs)]
            at = (seed * 131 + turn * 7919) % 1_900_000
            data = objects.read(ref, [ByteRange(at, at + 50)]).data[0]
            if bytes(data) != memory._objects[ref.key][at : at + 50]:
                faults.append(f"{ref.key} at {at}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: cache.status().entries == 10)
    objects.close()
    assert not faults
    whole = [key for key, piece in store.ranges if len(piece) > 1000]
    assert sorted(whole) == sorted(ref.key for ref in refs)


@pytest.fixture(autouse=True)
def no_threads_stay() -> Iterator[None]:
    """Every reader of this file is closed: no admission thread outlives its test."""
    yield
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("stoker-admit")], seconds=10)
