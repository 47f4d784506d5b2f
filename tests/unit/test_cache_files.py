"""Objects as files of this machine: the store's own, or the cache's entry, of the indexed version and whole."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from stoker.cache import Cache, Streamed
from stoker.errors import ChangedError, NotFoundError, StoreError
from stoker.store import Local, Memory
from support_store import Counting, random_bytes, refs_of


def test_a_local_file_is_itself(tmp_path: Path) -> None:
    """Without a cache a local object's file is given, after the check of size and version."""
    store = Local(tmp_path)
    store.put("a/b", b"abc")
    (ref,) = refs_of(store)
    objects = Streamed(store)
    assert objects.file(ref).read_bytes() == b"abc"
    store.put("a/b", b"abd")
    with pytest.raises(ChangedError, match="version"):
        objects.file(ref)
    with pytest.raises(NotFoundError):
        objects.file(replace(ref, key="none"))


def test_a_remote_object_needs_a_cache() -> None:
    """Without a cache an object of a remote store is no file: the error says what would help."""
    store = Memory("far")
    store.put("a", b"abc")
    with pytest.raises(StoreError, match="use a cache"):
        Streamed(store).file(refs_of(store)[0])


def test_the_cache_brings_it_in_once(tmp_path: Path) -> None:
    """The entry's file holds the object whole; the second time nothing is fetched; reads are hits then."""
    store = Memory("far")
    data = random_bytes(1, 5_000_000)
    store.put("a", data)
    counting = Counting(store)
    cache = Cache(tmp_path / "cache")
    objects = cache.objects(counting)
    (ref,) = refs_of(store)
    path = objects.file(ref)
    assert path.is_relative_to(cache.path) and path.read_bytes() == data
    fetched = counting.read_bytes
    assert objects.file(ref) == path and counting.read_bytes == fetched
    objects.close()
    assert cache.contains(store, ref) and cache.status().leases == 1


def test_no_room_in_the_cache(tmp_path: Path) -> None:
    """What the cache cannot hold is the store's own file, or an error where that has none; nothing waits for ever."""
    local, far = Local(tmp_path / "data"), Memory("far")
    for store in (local, far):
        store.put("a", random_bytes(1, 100_000))
    cache = Cache(tmp_path / "cache", limit=1_000)
    objects = cache.objects(local)
    assert objects.file(refs_of(local)[0]) == tmp_path / "data" / "a"
    objects.close()
    objects = cache.objects(far)
    with pytest.raises(StoreError, match="room"):
        objects.file(refs_of(far)[0])
    objects.close()


def test_a_wrong_digest_is_no_file(tmp_path: Path) -> None:
    """An object that is not what the packer wrote down is refused, every time it is asked for."""
    store = Memory("far")
    store.put("a", b"abc" * 1000)
    (ref,) = refs_of(store)
    objects = Cache(tmp_path / "cache").objects(store)
    for _ in range(2):
        with pytest.raises(StoreError, match="digest"):
            objects.file(replace(ref, digest="0" * 64))
    objects.close()
