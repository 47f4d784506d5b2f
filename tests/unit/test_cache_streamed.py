"""Reading without a cache: files, stores, whole-compressed objects."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import lzma
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from stoker.cache import Streamed, WrongDigestError
from stoker.cache.descriptors import Descriptors
from stoker.cache.streamed import GAP_BYTES_MAX
from stoker.errors import ChangedError, NotFoundError, ShardError, StoreError
from stoker.events import Events
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, Local, Memory, Store, digest_of
from support_store import Counting, random_bytes

DATA = random_bytes(1, 400_000)
WANTED = [ByteRange(5, 10), ByteRange(0, 7), ByteRange(300_000, 400_000), ByteRange(9, 9), ByteRange(100, 200)]
COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor().compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def open_below(folder: Path) -> list[str]:
    """Files of a folder that this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(str(Path(f"/proc/self/fd/{number}").readlink()))
    return [path for path in found if path.startswith(str(folder))]


def ref_of(store: Store, key: str) -> ObjectRef:
    """The object as an index names it."""
    info = store.head(key)
    return ObjectRef(key, info.size, info.version)


def compressed(store: Store, key: str, data: bytes, compression: str) -> ObjectRef:
    """Put a whole-compressed object."""
    info = store.put(key, COMPRESSIONS[compression](data))
    return ObjectRef(key, info.size, info.version, compression=compression, expanded_size=len(data))


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_ranges_are_exact(tmp_path: Path, kind: str) -> None:
    """Ranges of files and of stores come exact and in the order asked."""
    store: Store = Local(tmp_path) if kind == "local" else Memory()
    store.put("x", DATA)
    objects = Streamed(store)
    for _ in range(2):
        read = objects.read(ref_of(store, "x"), WANTED)
        assert [bytes(data) for data in read.data] == [DATA[piece.start : piece.stop] for piece in WANTED]
        assert read.cached_bytes == 0 and read.stored_bytes >= 100_000
    objects.close()


def test_near_ranges_are_one_request() -> None:
    """What lies within the gap is fetched by one request, what lies beyond by another; the gap counts as fetched."""
    store = Counting(Memory())
    store.put("x", DATA)
    wanted = [ByteRange(0, 10), ByteRange(10 + GAP_BYTES_MAX, 20 + GAP_BYTES_MAX), ByteRange(300_000, 300_001)]
    read = Streamed(store).read(ref_of(store, "x"), wanted)
    assert [piece for _, piece in store.ranges] == [ByteRange(0, 20 + GAP_BYTES_MAX), ByteRange(300_000, 300_001)]
    assert read.stored_bytes == 21 + GAP_BYTES_MAX


def test_local_reads_are_counted(tmp_path: Path) -> None:
    """Bytes that are read from files show in the counts, though no store was asked."""
    store, events = Local(tmp_path), Events()
    store.put("x", DATA)
    Streamed(store, recorder=events).read(ref_of(store, "x"), WANTED)
    assert events.totals() == {"store.requests": 5, "store.read_bytes": sum(map(len, WANTED))}


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_changed_object_names_both_values(tmp_path: Path, kind: str) -> None:
    """An object that is another, before the first touch or after, is a ChangedError with key, indexed and found."""
    store: Store = Local(tmp_path) if kind == "local" else Memory()
    store.put("x", DATA)
    ref = ref_of(store, "x")
    objects = Streamed(store)
    objects.read(ref, [ByteRange(0, 5)])
    if kind == "local":
        with (tmp_path / "x").open("r+b") as file:  # in place: same inode, same size
            file.write(b"other")
        os.utime(tmp_path / "x", ns=(1, 1))
    else:
        store.put("x", b"other" + DATA[5:])
    now = store.head("x").version
    for reader in (objects, Streamed(store)):
        with pytest.raises(ChangedError) as caught:
            reader.read(ref, [ByteRange(0, 5)])
        for part in ("'x'", str(ref.version), str(now), store.url):
            assert part in str(caught.value)
    objects.close()


def test_without_versions_the_size_is_looked_at() -> None:
    """Where an index knows no version, the size is compared once, by one head."""
    store = Counting(Memory())
    store.put("x", DATA)
    objects = Streamed(store)
    for _ in range(3):
        objects.read(ObjectRef("x", len(DATA), None), [ByteRange(0, 5)])
    assert store.calls["head"] == 1
    with pytest.raises(ChangedError, match=f"indexed with 7 bytes, found {len(DATA)}"):
        Streamed(store).read(ObjectRef("x", 7, None), [ByteRange(0, 5)])


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_without_versions_the_first_touch_holds(tmp_path: Path, kind: str) -> None:
    """Of a shard that is known by size alone, what replaces it in mid-run is refused, and both versions are named."""
    store: Store = Local(tmp_path) if kind == "local" else Memory()
    store.put("x", DATA)
    ref = ObjectRef("x", len(DATA), None, expanded_size=len(DATA))
    objects = Streamed(store)
    assert bytes(objects.read(ref, [ByteRange(0, 5)]).data[0]) == DATA[:5]
    before = store.head("x").version
    if kind == "local":  # in place: an open file would give the old bytes for as long as it is open, unmixed
        (tmp_path / "x").write_bytes(DATA[::-1])
        os.utime(tmp_path / "x", ns=(5, 5))
    else:
        store.put("x", DATA[::-1])
    for _ in range(2):
        with pytest.raises(ChangedError, match=f"first read as version {before}, found {store.head('x').version}"):
            objects.read(ref, [ByteRange(5, 10)])
    assert bytes(Streamed(store).read(ref, [ByteRange(0, 5)]).data[0]) == DATA[::-1][:5]
    objects.close()


def test_a_replaced_file_is_noticed_when_it_is_opened_again(tmp_path: Path) -> None:
    """Another file under the name of a shard is refused once the old one is no longer open."""
    store = Local(tmp_path)
    store.put("x", DATA)
    ref = ObjectRef("x", len(DATA), None, expanded_size=len(DATA))
    objects = Streamed(store)
    objects.read(ref, [ByteRange(0, 5)])
    store.put("x", DATA[::-1])
    assert bytes(objects.read(ref, [ByteRange(5, 10)]).data[0]) == DATA[5:10]
    objects._files.drop((ref.key, ref.version))
    with pytest.raises(ChangedError, match="first read as version"):
        objects.read(ref, [ByteRange(5, 10)])
    objects.close()


def test_the_digest_of_what_is_expanded_is_compared(tmp_path: Path) -> None:
    """A whole-compressed shard that was replaced by another of equal size is refused: it is read whole anyway."""
    store = Local(tmp_path)
    packed = zstandard.compress(DATA)
    store.put("x", packed)
    good = ObjectRef("x", len(packed), None, digest_of(packed), "zstd", len(DATA))
    objects = Streamed(store)
    assert bytes(objects.read(good, [ByteRange(0, 5)]).data[0]) == DATA[:5]
    with pytest.raises(WrongDigestError, match=r"expected digest 00, found .*fetched twice"):
        objects.read(replace(good, digest="00"), [ByteRange(0, 5)])
    objects.close()


def test_a_vanished_file(tmp_path: Path) -> None:
    """A file that is gone is a NotFoundError, a folder in its place too; an odd file does not block."""
    store = Local(tmp_path)
    store.put("x", DATA)
    ref = ref_of(store, "x")
    (tmp_path / "x").unlink()
    with pytest.raises(NotFoundError, match="x"):
        Streamed(store).read(ref, [ByteRange(0, 5)])
    os.mkfifo(tmp_path / "x")
    with pytest.raises(StoreError, match="x"):
        Streamed(store).read(ref, [ByteRange(0, 5)])


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_compressed_objects_are_read_expanded(tmp_path: Path, compression: str) -> None:
    """Ranges of a whole-compressed object count in expanded bytes; it is expanded once and leaves no file."""
    store = Counting(Memory())
    ref = compressed(store, "x", DATA, compression)
    objects = Streamed(store)
    first, second = objects.read(ref, WANTED), objects.read(ref, WANTED)
    for read in (first, second):
        assert [bytes(data) for data in read.data] == [DATA[piece.start : piece.stop] for piece in WANTED]
    assert (first.stored_bytes, second.stored_bytes) == (ref.size, 0) and store.read_bytes["x"] == ref.size
    objects.close()


def test_the_scratch_limit(tmp_path: Path) -> None:
    """What cannot fit is refused with a hint; what fits together stays, the oldest making room."""
    store = Counting(Memory())
    refs = [compressed(store, f"x{n}", DATA[n:], "gzip") for n in range(3)]
    objects = Streamed(store, scratch_bytes_max=900_000)
    for ref in (refs[0], refs[1], refs[0], refs[2], refs[0]):
        objects.read(ref, [ByteRange(0, 1)])
    assert [store.read_bytes[ref.key] // ref.size for ref in refs] == [1, 1, 1]
    objects.read(refs[1], [ByteRange(0, 1)])
    assert store.read_bytes["x1"] == 2 * refs[1].size
    with pytest.raises(StoreError, match="expands to 400000 bytes") as caught:
        Streamed(store, scratch_bytes_max=1000).read(refs[0], [ByteRange(0, 1)])
    assert "cache" in str(caught.value.hint)


def test_an_object_that_expands_to_something_else(tmp_path: Path) -> None:
    """More bytes than indexed are cut off as an error, fewer are a ChangedError; neither fills the disk."""
    store = Memory()
    ref = compressed(store, "x", DATA, "gzip")
    for size in (len(DATA) - 1, len(DATA) + 1):
        wrong = ObjectRef("x", ref.size, ref.version, compression="gzip", expanded_size=size)
        with pytest.raises((ChangedError, ShardError), match="x"):
            Streamed(store).read(wrong, [ByteRange(0, 1)])


def test_one_expansion_for_many_threads() -> None:
    """Threads that want one compressed object expand it once."""
    store = Counting(Memory())
    ref = compressed(store, "x", DATA, "zstd")
    objects = Streamed(store)
    results: list[bytes] = []
    threads = [
        threading.Thread(target=lambda n=n: results.append(bytes(objects.read(ref, [ByteRange(n, n + 9)]).data[0])))
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(DATA[n : n + 9] for n in range(8)) and store.read_bytes["x"] == ref.size


def test_open_files_are_bounded(tmp_path: Path) -> None:
    """However many objects are read, few files stay open, and one in use is not closed under its reader."""
    files = Descriptors(open_max=3)
    paths = [tmp_path / str(n) for n in range(10)]
    for path in paths:
        path.write_bytes(path.name.encode())
    held = files.get_or_open("0", lambda: os.open(paths[0], os.O_RDONLY))
    for path in paths:
        files.get_or_open(path.name, lambda path=path: os.open(path, os.O_RDONLY))
    assert len(open_below(tmp_path)) == 4 and os.pread(held.fd, 9, 0) == b"0" and files.get("0") is None
    del held
    files.close()
    assert open_below(tmp_path) == []
