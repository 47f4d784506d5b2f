"""The cache on real file systems that are full, read-only or gone: loop devices, so these tests need root."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stoker.cache import Cache
from stoker.events import Events
from stoker.store import ByteRange, Memory
from support_disk import MEGABYTE, small_disk
from support_store import Dataset, random_bytes, refs_of, until

ONE = [ByteRange(10, 20)]


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of 64 MB."""
    with small_disk(tmp_path, 64) as mount:
        yield mount


def filled(count: int, size: int) -> Memory:
    """A store with that many objects."""
    store = Memory("disk")
    for number in range(count):
        store.put(f"o{number:02d}", random_bytes(number, size))
    return store


def test_a_full_disk_keeps_its_reserve(mounted: Callable[[str], Path]) -> None:
    """Warming more than the disk holds stops at what must stay free; what is in is whole and is served."""
    place = mounted("rw")
    store = filled(20, 5 * MEGABYTE)
    cache = Cache(place / "c", free_min="10MB")
    report = cache.warm(Dataset(store, refs_of(store)))
    assert report.admitted_objects >= 5 and report.admitted_objects + report.refused_objects == 20
    assert report.refused_reason.startswith("the disk has ")
    free = os.statvfs(place)
    assert free.f_bavail * free.f_frsize >= 10 * MEGABYTE
    objects = cache.objects(store)
    with pytest.warns(RuntimeWarning, match="the disk has .* left.*read without the cache") as told:
        for ref in refs_of(store):
            data = store.get(ref.key)
            assert bytes(objects.read(ref, ONE).data[0]) == data[10:20]
        objects.close()
    assert len(told) == 1


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_disk_that_others_fill(mounted: Callable[[str], Path]) -> None:
    """When others take the room that was promised, reading goes on with a warning and nothing half-written stays."""
    place = mounted("rw")
    store = filled(20, 5 * MEGABYTE)
    events, cache = Events(), Cache(place / "c", free_min=0)
    objects = cache.objects(store, recorder=events)
    refs = refs_of(store)
    free = os.statvfs(place)
    with (place / "others").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - 3 * MEGABYTE)
    cache.free_min = 0
    for ref in refs:
        assert bytes(objects.read(ref, ONE).data[0]) == store.get(ref.key)[10:20]
    until(lambda: events.totals().get("cache.refused", 0) + events.totals().get("cache.degraded", 0) > 0)
    objects.close()
    assert list((place / "c" / "tmp").iterdir()) == [] and cache.status().entries == 0


def test_a_read_only_mount_serves_hits(mounted: Callable[[str], Path]) -> None:
    """On a read-only mount, found out by itself, entries are served, the ledger is read, misses are streamed."""
    place = mounted("rw")
    store = filled(3, MEGABYTE)
    first, *others = refs_of(store)
    writer = Cache(place / "c", free_min=0)
    writer.warm(Dataset(store, [first]))
    del writer
    cache = Cache(mounted("ro") / "c")
    objects = cache.objects(store)
    assert objects.read(first, ONE).cached_bytes == 10
    for ref in others:
        read = objects.read(ref, ONE)
        assert (read.cached_bytes, bytes(read.data[0])) == (0, store.get(ref.key)[10:20])
    status = cache.status()
    assert (status.read_only, status.entries, status.bytes) == (True, 1, MEGABYTE)
    objects.close()


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_disk_that_dies(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    """When the disk gives I/O errors from now on, all bytes come from the store, with a warning."""
    place = mounted("rw")
    store = filled(6, 3 * MEGABYTE)
    events, cache = Events(), Cache(place / "c", free_min=0)
    refs = refs_of(store)
    cache.warm(Dataset(store, refs[:3]))
    objects = cache.objects(store, recorder=events)
    assert objects.read(refs[0], ONE).cached_bytes == 10
    device = subprocess.run(["findmnt", "-no", "SOURCE", str(place)], capture_output=True, text=True, check=True).stdout
    os.truncate(tmp_path / "image", MEGABYTE)
    subprocess.run(["losetup", "-c", device.strip()], check=True)  # the device ends there now: all else is an I/O error
    for path in (place / "c" / "objects").rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with pytest.warns(RuntimeWarning, match="goes on without"):
        for ref in refs * 2:
            assert bytes(objects.read(ref, ONE).data[0]) == store.get(ref.key)[10:20]
        objects.close()
    assert events.totals()["cache.degraded"] >= 3
