"""The deciding parts of checkpointing: names, manifests, layout, retention, intervals. No disk, no torch."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import re
import zipfile
from pathlib import Path

import pytest

from stoker.checkpoint import Keep
from stoker.checkpoint.archive import ALIGN_BYTES, shell
from stoker.checkpoint.interval import best_interval
from stoker.checkpoint.layout import lay_out
from stoker.checkpoint.manifest import (
    MANIFEST_BYTES_MAX,
    FileEntry,
    Manifest,
    Marker,
    checked,
    entries_from_json,
    entries_to_json,
)
from stoker.checkpoint.names import Attempt
from stoker.checkpoint.retention import Held, expired_local, expired_remote, to_upload
from stoker.errors import CheckpointError, UsageError

ENTRY = FileEntry("data/__0_0.distcp", 4096, 17, 0)


def manifest(**changes: object) -> Manifest:
    """A small one."""
    plain = Manifest(
        "step-00000005.a000003-abcdef", 5, 3, "run", "line", None, 1, 12.5, "2.13", (ENTRY,), {"loss": 0.5}
    )
    return dataclasses.replace(plain, **changes)


def held(number: int, *, lineage: str = "a", verified: bool = True, **more: bool) -> Held:
    """A checkpoint whose step is ten times its number."""
    return Held(f"n{number}", number, number * 10, lineage, verified, **more)


# --- names ---


def test_a_name_tells_step_and_age() -> None:
    """Names parse back; the attempt number decides the order, not the step."""
    old, new = Attempt.new(2000, 4), Attempt.new(1000, 5)
    assert Attempt.parse(old.name) == old and Attempt.parse(new.name) == new
    assert sorted([new, old]) == [old, new]
    assert Attempt.new(7, 0).name != Attempt.new(7, 0).name


@pytest.mark.parametrize(
    "name", ["step-5", "step-00000005", "step-00000005.a000003-ABCDEF", "../step-00000005.a1-x", ""]
)
def test_other_names_are_no_attempts(name: str) -> None:
    """Whatever else lies in the folder is left alone."""
    assert Attempt.parse(name) is None


@pytest.mark.parametrize("step", [-1, 1.5, True, "7", 10**18])
def test_a_step_is_a_count(step: object) -> None:
    """Anything else is wrong usage."""
    with pytest.raises(UsageError, match="whole number"):
        Attempt.new(step, 0)


# --- manifests ---


def test_a_manifest_survives_json() -> None:
    """What is written is what is read."""
    assert Manifest.from_json(manifest().to_json(), "x") == manifest()
    assert entries_from_json(entries_to_json([ENTRY]), "x") == [ENTRY]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"[]", "expected a JSON object"),
        (b"{}", "version None"),
        (b"[" * 100_000, "not JSON"),
        (b'{"version": 1}', "not a manifest"),
        (b" " * (MANIFEST_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_is_no_manifest_is_refused(data: bytes, words: str) -> None:
    """By a CheckpointError, never by a traceback."""
    with pytest.raises(CheckpointError, match=words):
        Manifest.from_json(data, "x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": -1}, "expected a count"),
        ({"step": 6}, "does not fit"),
        ({"world_size": "2"}, "expected a count"),
        ({"files": [{"name": "../x", "size": 1, "crc32c": 1, "rank": 0}]}, "no usable file name"),
        ({"files": [{"name": "/etc/passwd", "size": 1, "crc32c": 1, "rank": 0}]}, "no usable file name"),
        ({"files": [{"name": "a", "size": 2**64, "crc32c": 1, "rank": 0}]}, "expected a count"),
        ({"files": [{"name": "a", "size": 1, "crc32c": 1, "rank": 0}] * 2}, "listed twice"),
        ({"files": {"a": 1}}, "must be a list"),
        ({"metrics": {"loss": "NaN"}}, "finite number"),
        ({"created_s": math.inf}, "finite number"),
        ({"metrics": []}, "not a manifest"),
    ],
)
def test_a_manifest_that_lies_is_refused(changes: dict[str, object], words: str) -> None:
    """Each field is checked before anything is used."""
    table = json.loads(manifest().to_json())
    with pytest.raises(CheckpointError, match=words):
        Manifest.from_json(json.dumps({**table, **changes}).encode(), "x")


def test_a_marker_fits_one_manifest() -> None:
    """Another manifest, another folder, a torn marker: none passes."""
    data = manifest().to_json()
    marker = Marker.of(manifest().attempt, data).to_json()
    assert checked(manifest().attempt, marker, data, "x") == manifest()
    for name, mark, document in (
        (manifest().attempt, marker, manifest(metrics={}).to_json()),
        ("step-00000006.a000003-abcdef", marker, data),
        (manifest().attempt, marker[:-10], data),
        (manifest().attempt, b"", data),
        ("step-00000006.a000003-abcdef", Marker.of("step-00000006.a000003-abcdef", data).to_json(), data),
    ):
        with pytest.raises(CheckpointError):
            checked(name, mark, document, "x")


# --- archives and their places ---


@pytest.mark.parametrize("count", [0, 1, 64, 5000])
def test_an_archive_is_a_zip_file(count: int) -> None:
    """Python's own reader finds the records; the data is aligned. (Its CRC is 0: that record is not read.)"""
    one = shell(b"described", count)
    assert len(one.head) % ALIGN_BYTES == 0 and one.nbytes == len(one.head) + count + len(one.tail)
    with zipfile.ZipFile(io.BytesIO(one.head + b"\7" * count + one.tail)) as found:
        assert found.namelist() == [f"archive/{name}" for name in ("data.pkl", "byteorder", "version", "data/0")]
        assert found.read("archive/data.pkl") == b"described"
        info = found.getinfo("archive/data/0")
        assert info.file_size == count and info.header_offset < len(one.head)


def test_an_archive_beyond_4_gib_takes_the_long_form() -> None:
    """The directory tells the true size and place, by ZIP64."""
    count = 5 << 30
    one = shell(b"described", count)

    class Hole(io.RawIOBase):
        """The archive with a hole in place of the data."""

        def __init__(self) -> None:
            self.at = 0

        def seekable(self) -> bool:
            return True

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = offset + (0, self.at, one.nbytes)[whence]
            return self.at

        def tell(self) -> int:
            return self.at

        def read(self, size: int = -1) -> bytes:
            size = min(size if size >= 0 else one.nbytes, one.nbytes - self.at)
            begin, self.at = self.at, self.at + size
            behind = begin - len(one.head) - count
            return one.tail[behind : behind + size] if behind >= 0 else one.head[begin : begin + size]

    with zipfile.ZipFile(Hole()) as found:
        assert found.getinfo("archive/data/0").file_size == count
        assert found.read("archive/version") == b"3\n"


def test_a_layout_cuts_files_and_leaves_nothing_out() -> None:
    """Archives follow each other, aligned, in files of about the size asked for; a larger one has a file of its own."""
    shells = [shell(b"x", size) for size in (100, 9000, 0, 50_000, 10, 10)]
    layout = lay_out(3, shells, file_bytes=20_000)
    assert [file.name for file in layout.files] == [f"data/__3_{n}.distcp" for n in range(3)]
    assert all(file.nbytes % 4096 == 0 and file.image_offset % 4096 == 0 for file in layout.files)
    starts = {file.name: file for file in layout.files}
    end = 0
    for one, placed in zip(shells, layout.placed, strict=True):
        file = starts[placed.file]
        assert placed.nbytes == one.nbytes and placed.image_offset >= end and placed.image_offset % 64 == 0
        assert placed.image_offset == file.image_offset + placed.file_offset
        assert placed.file_offset + placed.nbytes <= file.nbytes
        assert placed.data_offset == placed.image_offset + len(one.head)
        end = placed.image_offset + placed.nbytes
    assert layout.nbytes == sum(file.nbytes for file in layout.files) >= end
    assert lay_out(0, []).nbytes == 0


# --- retention ---


def test_keep_takes_counts_and_tiers() -> None:
    """A number for all, or one a tier, with permanents."""
    assert Keep.of(2) == Keep(local=2, remote=2)
    assert Keep.of({"local": 1, "remote": 5, "every": 100}) == Keep(1, 5, 100)
    assert Keep.of(Keep(4, 4)) == Keep(4, 4)


@pytest.mark.parametrize(
    "value", [0, -1, True, "3", 1.5, {"nvme": 2}, {"local": 0}, {"local": "2"}, {"every": -1}, None]
)
def test_keep_refuses_what_it_does_not_know(value: object) -> None:
    """At least one is always kept; typing errors are found."""
    with pytest.raises(UsageError, match="keep"):
        Keep.of(value)


def test_without_a_remote_only_a_verified_newer_one_lets_go() -> None:
    """Newer ones that nobody has read back protect nothing."""
    keep = Keep(local=1)
    assert expired_local([held(1), held(2, verified=False)], [], keep) == []
    assert expired_local([held(1), held(2)], [], keep) == ["n1"]
    assert expired_local([held(1), held(2), held(3)], [], keep) == ["n1", "n2"]


def test_what_was_never_uploaded_stays_until_a_newer_one_is() -> None:
    """A slow or dead remote holds the local copies back."""
    local, keep = [held(1), held(2), held(3)], Keep(local=1, remote=1)
    assert expired_local(local, [[]], keep) == []
    assert expired_local(local, [[held(1)]], keep) == ["n1"]
    assert expired_local(local, [[held(2)]], keep) == ["n1", "n2"]
    assert expired_local(local, [[held(3)], []], keep) == []


def test_pins_readers_and_permanents_stay() -> None:
    """A permanent leaves the local disk only when every remote has it."""
    keep = Keep(local=1, remote=1, every=10)
    assert expired_local([held(1, pinned=True), held(2), held(3)], [], Keep(1)) == ["n2"]
    assert expired_local([held(1, read_now=True), held(2)], [], Keep(1)) == []
    assert expired_local([held(1), held(2)], [], keep) == []
    assert expired_local([held(1), held(2)], [[held(2)]], keep) == []
    assert expired_local([held(1), held(2)], [[held(1), held(2)]], keep) == ["n1"]
    assert expired_remote([held(1), held(2), held(3)], keep) == []
    assert expired_remote([held(1), held(2, pinned=True), held(3)], Keep(1, 1)) == ["n1"]


def test_another_lineage_protects_nothing() -> None:
    """After a rewind the abandoned branch's newest stays, and does not count for the new branch."""
    local = [held(1), held(2), held(3, lineage="b")]
    assert expired_local(local, [], Keep(local=1)) == ["n1"]
    assert expired_local(local, [[held(3, lineage="b")]], Keep(local=1)) == []


def test_a_slow_remote_gets_the_newest_and_what_must_stay() -> None:
    """Superseded steps are thinned out, never the newest, pins or permanents."""
    local = [held(1), held(2, pinned=True), held(3), held(4), held(5)]
    assert to_upload(local, [], Keep()) == ["n5", "n2"]
    assert to_upload(local, [held(5)], Keep(every=30)) == ["n3", "n2"]
    assert to_upload(local, [held(5), held(2)], Keep()) == []


# --- how often ---


def test_the_interval_is_youngs_and_dalys() -> None:
    """sqrt(2 C M) to first order; Daly's correction is small while saves are cheap."""
    found = best_interval(cost_s=10, write_s=0, mtbf_s=100_000)
    assert found.young_s == pytest.approx(math.sqrt(2 * 10 * 100_000))
    assert found.interval_s == found.daly_s == pytest.approx(found.young_s, rel=0.02)
    assert found.overhead_share == pytest.approx(10 / found.interval_s)
    assert found.lost_s_per_failure == pytest.approx(found.interval_s / 2)


def test_the_interval_costs_least() -> None:
    """Saving costs C a interval, a failure half an interval: no other interval loses less, to a percent."""

    def lost(interval_s: float) -> float:
        return 5 / interval_s + interval_s / 2 / 20_000

    best = best_interval(cost_s=5, write_s=0, mtbf_s=20_000).interval_s
    assert lost(best) <= 1.01 * min(lost(best * factor / 100) for factor in range(20, 500))


def test_a_save_is_never_begun_before_the_last_is_written() -> None:
    """However cheap the blocking is: writing bounds the interval, and adds to what a failure loses."""
    found = best_interval(cost_s=0.01, write_s=600, mtbf_s=1000)
    assert found.interval_s == 600 and found.lost_s_per_failure == 900
    assert best_interval(cost_s=10, write_s=0, mtbf_s=4).daly_s == 4
    with pytest.raises(UsageError, match="positive"):
        best_interval(cost_s=0, write_s=1, mtbf_s=1)


# --- the page ---


def test_the_page_names_tests_that_are_there() -> None:
    """Each line of "What was tried to break it" names tests by file and function."""
    root = Path(__file__).resolve().parents[2]
    page = (root / "docs/checkpoints.md").read_text()
    file, found = root, 0
    for named in re.findall(r"`((?:tests/|::)[^`]*)`", page[page.index("## What was tried to break it") :]):
        place, _, function = named.partition("::")
        file = root / place if place else file
        assert file.is_file() and re.search(rf"(def |^)({function})\b", file.read_text(), re.MULTILINE), named
        found += 1
    assert found > 50
