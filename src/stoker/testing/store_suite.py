"""The contract of a store as tests: subclass StoreSuite, say how to make one and how to reach around it.

`set_bytes` and `bytes_of` go past the store under test (to the disk, to the server by another client), so that `get`
and `put` are tested against the truth and not against each other.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stoker.errors import ChangedError, NotFoundError, StoreError, UnsupportedError, UsageError
from stoker.store.base import Buffer, ByteRange, Store

ODD_KEYS = ("a.b.c/d e", "ü/漢字.jpg", "100%.txt", "%41", "q?x=1&y=#z", "a+b", "~'()[]{}!*;:@,$", "x" * 200, ".hidden")
BAD_KEYS = ("", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\0b", "x/" * 600 + "x", ".stoker-tmp-1")


class StoreSuite:
    """Tests that every store must pass. Flags say what a store cannot do; it must then refuse, not pretend."""

    conditional_put = True
    """`put_if` works; else it must raise UnsupportedError and leave everything as it was."""
    etag = True
    """Objects have versions."""
    listing = True
    """`list` works; else it must raise UnsupportedError."""
    pickles_content = False
    """A pickled store takes its objects along instead of pointing at them."""

    def make(self, tmp_path: Path) -> Store:
        """An empty store."""
        raise NotImplementedError

    def set_bytes(self, store: Store, key: str, data: bytes) -> None:
        """Put an object into the place, around the store."""
        raise NotImplementedError

    def bytes_of(self, store: Store, key: str) -> bytes | None:
        """An object's bytes, or None, around the store."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        yield self.make(tmp_path)

    def test_get_gives_what_lies_there(self, store: Store) -> None:
        """`get` gives the bytes that somebody else put."""
        self.set_bytes(store, "a/b.bin", bytes(range(256)) * 300)
        assert store.get("a/b.bin") == bytes(range(256)) * 300

    def test_put_leaves_what_was_given(self, store: Store) -> None:
        """`put` writes bytes, bytearrays and memoryviews of any item size as they are."""
        kinds: list[Buffer] = [b"bytes", bytearray(b"array"), memoryview(b"a view of")]
        for number, data in enumerate(kinds):
            info = store.put(f"kind/{number}", data)
            assert (info.key, info.size) == (f"kind/{number}", len(data))
            assert self.bytes_of(store, f"kind/{number}") == bytes(data)
        store.put("kind/words", memoryview(b"12345678").cast("I"))
        assert self.bytes_of(store, "kind/words") == b"12345678"

    def test_put_replaces(self, store: Store) -> None:
        """A second `put` replaces the object and changes its version."""
        before = store.put("k", b"one")
        after = store.put("k", b"other")
        assert self.bytes_of(store, "k") == b"other"
        assert not self.etag or before.version != after.version

    def test_empty_object(self, store: Store) -> None:
        """An object of no bytes is an object."""
        store.put("empty", b"")
        assert self.bytes_of(store, "empty") == b""
        assert store.get("empty") == b"" and store.head("empty").size == 0
        assert store.get_ranges("empty", [ByteRange(0, 0)]) == [b""]

    def test_missing_object(self, store: Store) -> None:
        """What is not there is a NotFoundError that names the URL and the key."""
        for ask in (store.get, store.head, lambda key: store.get_ranges(key, [ByteRange(0, 1)])):
            with pytest.raises(NotFoundError) as caught:
                ask("no/such key")
            assert store.url in str(caught.value) and "no/such key" in str(caught.value)

    def test_ranges_are_exact(self, store: Store) -> None:
        """Ranges come in the order asked, overlapping or empty, each exactly as long as its range."""
        data = bytes(range(256)) * 1000
        self.set_bytes(store, "r", data)
        wanted = [ByteRange(200_000, 256_000), ByteRange(0, 1), ByteRange(7, 7), ByteRange(0, 70_000), ByteRange(5, 6)]
        assert store.get_ranges("r", wanted) == [data[piece.start : piece.stop] for piece in wanted]
        assert store.get_ranges("r", []) == []

    @pytest.mark.parametrize("piece", [ByteRange(5, 11), ByteRange(0, 11), ByteRange(20, 21)])
    def test_a_range_past_the_end_is_an_error(self, store: Store, piece: ByteRange) -> None:
        """A range that the object does not hold whole is refused, never answered short."""
        self.set_bytes(store, "ten", b"0123456789")
        with pytest.raises(StoreError) as caught:
            store.get_ranges("ten", [piece])
        assert "ten" in str(caught.value)

    def test_reads_are_pinned_to_a_version(self, store: Store) -> None:
        """Once the object is another, reads of the old version are ChangedErrors that say so."""
        old = store.put("v", b"first bytes").version
        assert store.get("v", version=old) == b"first bytes"
        assert store.get_ranges("v", [ByteRange(0, 5)], version=old) == [b"first"]
        store.put("v", b"other bytes")
        if not self.etag:
            return
        for ask in (lambda: store.get("v", version=old), lambda: store.get_ranges("v", [ByteRange(0, 5)], version=old)):
            with pytest.raises(ChangedError, match="v"):
                ask()

    def test_versions_agree(self, store: Store) -> None:
        """`put`, `head` and `list` tell the same size and version."""
        info = store.put("same/x", b"12345")
        assert store.head("same/x") == info
        if self.listing:
            assert list(store.list("same/")) == [info]

    def test_list_is_in_byte_order(self, store: Store) -> None:
        """`list` gives every key once, in the order of its UTF-8 bytes, which is not that of a folder walk."""
        keys = ["a", "a-b", "a/b", "a.txt", "a/b/c", "a0", "B", "b/é", "b/z", "b/\U0001f600", "b/\uffee", "z"]
        keys = [key for key in keys if key != "a" and not key.startswith("a/b/")]
        for key in keys:
            self.set_bytes(store, key, key.encode())
        if not self.listing:
            with pytest.raises(UnsupportedError):
                next(iter(store.list()))
            return
        found = list(store.list())
        assert [info.key for info in found] == sorted(keys, key=str.encode)
        assert [info.size for info in found] == [len(key.encode()) for key in sorted(keys, key=str.encode)]

    def test_list_prefix_is_a_plain_string(self, store: Store) -> None:
        """A prefix may end in the middle of a name; what only looks alike is not listed."""
        if not self.listing:
            return
        keys = ["shard", "shards/1", "shards/11", "shards/2", "shards-old/1", "Shard", "t"]
        for key in keys:
            self.set_bytes(store, key, b"x")
        for prefix in (
            "",
            "s",
            "shard",
            "shards",
            "shards/",
            "shards/1",
            "shards/1x",
            "shards-",
            "t",
            "u",
            "no/such",
            "..",
            "/",
        ):
            found = [info.key for info in store.list(prefix)]
            assert found == sorted(key for key in keys if key.startswith(prefix)), prefix

    def test_list_of_nothing(self, store: Store) -> None:
        """An empty store lists nothing."""
        if self.listing:
            assert list(store.list()) == []

    def test_delete(self, store: Store) -> None:
        """`delete` removes the object and does not mind when there is none."""
        self.set_bytes(store, "d/x", b"x")
        store.delete("d/x")
        store.delete("d/x")
        store.delete("d/never")
        assert self.bytes_of(store, "d/x") is None

    def test_copy(self, store: Store) -> None:
        """`copy` makes a second object of the same bytes, replacing what was there."""
        self.set_bytes(store, "from", b"the bytes")
        self.set_bytes(store, "to/it", b"older")
        info = store.copy("from", "to/it")
        assert (info.key, info.size) == ("to/it", 9)
        assert self.bytes_of(store, "to/it") == self.bytes_of(store, "from") == b"the bytes"
        with pytest.raises(NotFoundError):
            store.copy("missing", "to/it")
        assert self.bytes_of(store, "to/it") == b"the bytes"

    @pytest.mark.parametrize("key", ODD_KEYS)
    def test_odd_keys_are_kept(self, store: Store, key: str) -> None:
        """Keys with spaces, signs and other scripts lead to the object that bears that very name."""
        store.put(key, b"mine")
        assert self.bytes_of(store, key) == b"mine" and store.get(key) == b"mine"
        if self.listing:
            assert [info.key for info in store.list()] == [key]

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_keys_cannot_leave_the_store(self, store: Store, key: str) -> None:
        """Absolute, empty, climbing and reserved keys are refused by every method, before anything is sent."""
        for ask in (
            lambda: store.get(key),
            lambda: store.get_ranges(key, [ByteRange(0, 1)]),
            lambda: store.put(key, b"x"),
            lambda: store.put_if(key, b"x", version=None),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.copy(key, "b"),
        ):
            with pytest.raises(UsageError):
                ask()

    def test_put_if_creates_once(self, store: Store) -> None:
        """With version None only the first writer succeeds; a store that cannot promise it writes nothing."""
        if not self.conditional_put:
            self.set_bytes(store, "once", b"here")
            with pytest.raises(UnsupportedError):
                store.put_if("once", b"mine", version=None)
            assert self.bytes_of(store, "once") == b"here"
            assert not self.listing or [info.key for info in store.list()] == ["once"]
            return
        store.put_if("once", b"first", version=None)
        with pytest.raises(ChangedError, match="once"):
            store.put_if("once", b"second", version=None)
        assert self.bytes_of(store, "once") == b"first"

    def test_put_if_replaces_the_known_version_only(self, store: Store) -> None:
        """With a version, only the object that still is that version is replaced."""
        if not self.conditional_put:
            return
        first = store.put("cas", b"1").version
        second = store.put_if("cas", b"22", version=first).version
        with pytest.raises(ChangedError):
            store.put_if("cas", b"333", version=first)
        with pytest.raises((ChangedError, NotFoundError)):
            store.put_if("absent", b"x", version=second)
        assert self.bytes_of(store, "cas") == b"22" and self.bytes_of(store, "absent") is None

    def test_put_if_has_one_winner(self, store: Store) -> None:
        """Of eight writers that race to create an object, exactly one succeeds, and its bytes stand."""
        if not self.conditional_put:
            return
        winners: list[bytes] = []
        start = threading.Barrier(8)

        def write(number: int) -> None:
            data = b"%d" % number * 100
            start.wait()
            try:
                store.put_if("race", data, version=None)
            except ChangedError:
                return
            winners.append(data)

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1 and self.bytes_of(store, "race") == winners[0]

    def test_pickle(self, store: Store) -> None:
        """A pickled store, after use too, leads to the same objects."""
        store.put("p", b"before")
        other = pickle.loads(pickle.dumps(store))
        assert other.url == store.url and other.get("p") == b"before"
        other.put("p", b"after")
        assert store.get("p") == (b"before" if self.pickles_content else b"after")

    def test_many_threads(self, store: Store) -> None:
        """One store serves many threads at once, each its own bytes."""
        faults: list[str] = []

        def work(number: int) -> None:
            data = bytes([number]) * 10_000
            store.put(f"t/{number}", data)
            if store.get_ranges(f"t/{number}", [ByteRange(10, 20), ByteRange(0, 10_000)]) != [data[10:20], data]:
                faults.append(f"thread {number}")

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not faults
