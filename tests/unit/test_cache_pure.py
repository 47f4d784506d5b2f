"""What the cache decides without touching anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from stoker.cache.policy import INODES_MIN, Room, entry_name, refusal
from stoker.index.entry import ObjectRef

REF = ObjectRef("a/b.tar", 1000, '"etag"')
WIDE = Room(limit=None, used=0, disk_free=10**12, free_min=10**9, inodes_free=10**6)


@pytest.mark.parametrize(
    ("room", "need", "reason"),
    [
        (WIDE, 10**11, ""),
        (replace(WIDE, limit=1000, used=400), 600, ""),
        (replace(WIDE, limit=1000, used=400), 601, "limit of 1 kB is reached (400 B used)"),
        (replace(WIDE, limit=0), 0, ""),
        (replace(WIDE, disk_free=10**9 + 5), 5, ""),
        (replace(WIDE, disk_free=10**9 + 5), 6, "disk has 1 GB left"),
        (replace(WIDE, inodes_free=INODES_MIN - 1), 1, "63 inodes left"),
        (replace(WIDE, inodes_free=None), 1, ""),
        (replace(WIDE, inodes_free=0), 1, "0 inodes"),
    ],
)
def test_what_may_come_in(room: Room, need: int, reason: str) -> None:
    """Limit, free bytes and inodes each refuse at their bound and say their numbers."""
    found = refusal(room, need)
    assert reason in found and bool(found) == bool(reason)


def test_names_tell_objects_apart() -> None:
    """Another URL, key, size or version is another entry; the same object is the same entry."""
    others = [
        replace(REF, key="a/c.tar"),
        replace(REF, size=1001),
        replace(REF, version='"other"'),
        replace(REF, version=None),
    ]
    names = {entry_name("s3://x", ref) for ref in [REF, *others]} | {entry_name("s3://y", REF)}
    assert len(names) == 6 and entry_name("s3://x", replace(REF)) in names


def test_a_known_digest_is_the_name() -> None:
    """An object with a digest is the same entry wherever it lies; its expanded form is another."""
    ref = replace(REF, digest="ab" * 32)
    assert entry_name("s3://x", ref) == entry_name("/y", replace(ref, key="z", version=None)) == "ab" * 32
    assert entry_name("s3://x", replace(ref, compression="gzip")) not in ("ab" * 32, entry_name("s3://x", REF))


def test_odd_keys_have_names() -> None:
    """Keys that are not UTF-8, or that look like each other when joined, have names of their own."""
    names = {entry_name("u", replace(REF, key=key)) for key in ("\udcff", "a', 1000", "a", "'a'")}
    assert len(names) == 4 and all(set(name) <= set("0123456789abcdef") for name in names)
