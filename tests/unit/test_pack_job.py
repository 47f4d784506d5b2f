"""Packing real files: what comes out, what bad sources get, and going on after a stop."""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.decode import Image
from stoker.errors import ChangedError, NotFoundError, SampleError, ShardError, StoreError, UsageError
from stoker.index import Index
from stoker.pack import pack
from stoker.store import Local, digest_of
from support_decode import encode, photo
from support_pack import by_source, make_photos, packed, tree


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of photos that no test changes."""
    return make_photos(tmp_path_factory.mktemp("source"))


def fields_of(source: Path) -> dict[str, dict[str, bytes]]:
    """What a pack of make_photos must hold: by source path, each field's bytes, `cls` added."""
    expected = {}
    for path in source.rglob("*.jpg"):
        fields = {"jpg": path.read_bytes(), "cls": path.parent.name[-1].encode()}
        if path.with_suffix(".txt").exists():
            fields["txt"] = path.with_suffix(".txt").read_bytes()
        expected[str(path.relative_to(source))] = fields
    return expected


def test_every_file_is_in_the_pack(photos: Path, tmp_path: Path) -> None:
    """All fields of all samples come out byte for byte, with labels, sizes and the source path in the index."""
    report = pack(photos, tmp_path / "out", shard_size=20_000)
    samples = packed(tmp_path / "out")
    found = by_source(samples)
    assert {source: sample.fields for source, sample in found.items()} == fields_of(photos)
    index = Index.load(Local(tmp_path / "out"))
    assert index.classes == ("class_0", "class_1", "class_2")
    for source, sample in found.items():
        number = int(source[-7:-4])
        assert sample.columns == {
            "source": source, "width": 24 + number, "height": 24, "label": source[:7], "cls": int(source[6]),
        }  # fmt: skip
        assert sample.key == source[:-4]
    assert report.samples == len(samples) == 24 and report.shards > 2 and report.skipped == 0
    names = sorted(path.name for path in (tmp_path / "out").glob("shard_*"))
    assert names == [f"shard_{n:05d}.tar" for n in range(report.shards)]
    assert not list((tmp_path / "out/_stoker").glob("p*"))


def test_the_index_knows_every_shard(photos: Path, tmp_path: Path) -> None:
    """Size and digest of each shard are in the index; versions are not, so that a copy of the pack is as good."""
    pack(photos, tmp_path / "out", shards=3)
    index = Index.load(Local(tmp_path / "out"))
    for number in range(3):
        entry = index.shard(number)
        data = (tmp_path / "out" / entry.name).read_bytes()
        assert (entry.size, entry.digest, entry.version) == (len(data), digest_of(data), None)


def test_shards_are_shuffled_by_seed_and_the_same_for_any_workers(photos: Path, tmp_path: Path) -> None:
    """One seed gives the same bytes with 1 and 5 workers, another seed another order."""
    for name, seed, workers in (("a", 1, 1), ("b", 1, 5), ("c", 2, 2)):
        pack(photos, tmp_path / name, shard_size=9_000, seed=seed, workers=workers)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")
    first, other = packed(tmp_path / "a"), packed(tmp_path / "c")
    assert [s.key for s in first] != [s.key for s in other]
    assert [s.key for s in first] != sorted(s.key for s in first)


def test_keys_have_no_dots_and_are_unique(tmp_path: Path) -> None:
    """Dots become underscores, collisions are numbered, pictures of one name keep their extension: each is told."""
    source = tmp_path / "in"
    for name in ("d/a.b.jpg", "d/a_b.jpg", "d/two.jpg", "d/two.png", "e.x/one.jpg"):
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(photo(8, 9, len(name)), "PNG" if name.endswith("png") else "JPEG"))
    report = pack(source, tmp_path / "out", shards=1)
    keys = {source: sample.key for source, sample in by_source(packed(tmp_path / "out")).items()}
    assert keys["d/two.jpg"] == "d/two_jpg" and keys["d/two.png"] == "d/two_png" and keys["e.x/one.jpg"] == "e_x/one"
    assert {keys["d/a.b.jpg"], keys["d/a_b.jpg"]} == {"d/a_b", "d/a_b_1"}
    assert sorted(f.where for f in report.findings if f.code == "shared-key") == sorted(
        ["d/a_b", "d/two.jpg", "d/two.png"]
    )


def test_files_are_chosen_by_pattern(photos: Path, tmp_path: Path) -> None:
    """include and exclude work on the path below the source."""
    pack(photos, tmp_path / "out", shards=1, include=["class_0/*", "class_1/*"], exclude=["*_000.*", "*.txt"])
    found = by_source(packed(tmp_path / "out"))
    assert set(found) == {s for s in fields_of(photos) if s[6] in "01" and "_000" not in s}
    assert all("txt" not in sample.fields for sample in found.values())
    with pytest.raises(ShardError, match="no samples found among 0 files"):
        pack(photos, tmp_path / "none", include=["*.xyz"])


def test_labels_come_from_rules_and_manifests(photos: Path, tmp_path: Path) -> None:
    """A rule, none, or a table with columns of its own decide labels and columns."""
    pack(photos, tmp_path / "rule", shards=1, label=r"regex:photo_(\d)")
    assert {sample.columns["label"] for sample in packed(tmp_path / "rule")} == {"0"}
    pack(photos, tmp_path / "none", shards=1, label="none")
    assert all("cls" not in s.fields and "label" not in s.columns for s in packed(tmp_path / "none"))
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        csv.writer(file).writerows(
            [["path", "label", "score"], ["class_0/photo_000.jpg", "cat", 7], ["class_1/photo_001.jpg", "ant", 9]]
        )
    pack(photos, tmp_path / "table", shards=1, manifest=table)
    rows = {
        s.columns["source"]: (s.columns["label"], s.columns["cls"], s.columns["score"])
        for s in packed(tmp_path / "table")
    }
    assert rows == {"class_0/photo_000.jpg": ("cat", 1, 7), "class_1/photo_001.jpg": ("ant", 0, 9)}


def test_pictures_are_shrunk_and_encoded_anew(tmp_path: Path) -> None:
    """resize_short never enlarges, keeps the kind of file, turns pictures upright; transcode makes JPEGs of all."""
    source = tmp_path / "in"
    source.mkdir()
    exif = __import__("PIL.Image").Image.Exif()
    exif[0x0112] = 6
    (source / "big.jpg").write_bytes(encode(photo(60, 120, 1), "JPEG", exif=exif))
    (source / "small.jpg").write_bytes(encode(photo(20, 25, 2), "JPEG"))
    (source / "flat.png").write_bytes(encode(photo(80, 40, 3), "PNG"))
    pack(source, tmp_path / "resized", shards=1, resize_short=30)
    found = by_source(packed(tmp_path / "resized"))
    assert found["small.jpg"].fields["jpg"] == (source / "small.jpg").read_bytes()
    shapes = {name: Image().decode(next(iter(s.fields.values())), None, 0).shape for name, s in found.items()}
    assert shapes == {"big.jpg": (60, 30, 3), "small.jpg": (20, 25, 3), "flat.png": (60, 30, 3)}
    assert {name: list(s.fields) for name, s in found.items()} == {
        "big.jpg": ["jpg"],
        "small.jpg": ["jpg"],
        "flat.png": ["png"],
    }
    pack(source, tmp_path / "coded", shards=1, resize_short=30, transcode="jpeg:80")
    for name, sample in by_source(packed(tmp_path / "coded")).items():
        assert list(sample.fields) == ["jpg"] and sample.fields["jpg"][:2] == b"\xff\xd8"
        assert (sample.columns["height"], sample.columns["width"]) == shapes[name][:2]


def several(sample: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """None of class_0, one of class_1, two of class_2, with fields of every kind."""
    if sample["cls"] == 1:
        yield {**sample, "json": {"n": [1, None]}, "score": 0.5, "words": "ä", "npy": np.arange(3), "gone": None}
    if sample["cls"] == 2:
        yield {"__key__": sample["__key__"], "jpg": sample["jpg"], "cls": 0}
        yield {"__key__": "own.key", "__note__": "not stored", "jpg": sample["jpg"]}


@pytest.mark.parametrize("transform", [several, lambda sample: list(several(sample)) or None])
def test_a_transform_gives_none_one_or_several(photos: Path, tmp_path: Path, transform: Callable[..., Any]) -> None:
    """As a generator or a list; values become files, keys stay unique in a shard, labels follow the new class."""
    report = pack(photos, tmp_path / "out", shards=2, transform=transform)
    samples = packed(tmp_path / "out")
    assert report.samples == len(samples) == 24
    ones = [s for s in samples if s.columns["source"].startswith("class_1")]
    assert len(ones) == 8
    assert {s.fields["json"] for s in ones} == {b'{"n":[1,null]}'} and {s.fields["score"] for s in ones} == {b"0.5"}
    assert all(
        s.fields["words"] == "ä".encode() and s.fields["npy"][:6] == b"\x93NUMPY" and "gone" not in s.fields
        for s in ones
    )
    twos = [s for s in samples if s.columns["source"].startswith("class_2")]
    relabelled = [s for s in twos if "cls" in s.fields]
    assert {(s.fields["cls"], s.columns["cls"], s.columns["label"]) for s in relabelled} == {(b"0", 0, "class_0")}
    bare = [s for s in twos if "cls" not in s.fields]
    assert len(bare) == 8 and {(s.columns["cls"], s.columns["label"]) for s in bare} == {(None, None)}
    for shard in ("shard_00000.tar", "shard_00001.tar"):
        own = [s.key for s in bare if s.shard == shard]
        assert own == ["own_key", *(f"own_key_{n}" for n in range(1, len(own)))]


def test_a_transform_that_is_none_or_leaves_none(photos: Path, tmp_path: Path) -> None:
    """A function that cannot be found is wrong usage, one that leaves nothing an error; more in test_pack_transform."""
    with pytest.raises(ShardError, match="no sample is left"):
        pack(photos, tmp_path / "c", transform=lambda sample: None)
    for name in ("nowhere:f", "json:nothing", "json", "sys:maxsize"):
        with pytest.raises(UsageError, match="transform"):
            pack(photos, tmp_path / "d", transform=name)


def loop(path: Path) -> None:
    """Make a file into a link to itself, which nobody can open, not even root."""
    path.unlink()
    path.symlink_to(path.name)


class Meddle:
    """A transform that does something to the source while the first sample is packed, and names what it hit."""

    def __init__(self, source: Path, meddle: Callable[[Path], None]) -> None:
        self.source, self.meddle, self.hit = source, meddle, ""

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        if not self.hit:
            other = next(
                p
                for p in sorted(self.source.rglob("*.jpg"))
                if str(p.relative_to(self.source))[:-4] != sample["__key__"]
            )
            self.hit = str(other.relative_to(self.source))
            self.meddle(other)
        return sample


@pytest.mark.parametrize(
    ("code", "error", "meddle"),
    [
        ("vanished", NotFoundError, Path.unlink),
        ("changed", ChangedError, lambda path: path.write_bytes(path.read_bytes() + b"x")),
        ("changed", ChangedError, lambda path: os.utime(path, ns=(1, 1))),
        ("unreadable", StoreError, loop),
    ],
)  # fmt: skip
def test_a_source_that_changes_is_named(
    tmp_path: Path, code: str, error: type[Exception], meddle: Callable[[Path], None]
) -> None:
    """A file that vanishes or changes after the listing stops the pack, or is left out and reported."""
    source = make_photos(tmp_path / "in")
    fail = Meddle(source, meddle)
    with pytest.raises(error, match="photo_"):
        pack(source, tmp_path / "fail", transform=fail, workers=1)
    assert not (tmp_path / "fail/_stoker/manifest.json").exists()
    source = make_photos(tmp_path / "again")
    skip = Meddle(source, meddle)
    report = pack(source, tmp_path / "skip", transform=skip, workers=1, on_bad="skip")
    assert report.skipped == 1 and report.samples == 23
    assert [(f.code, f.where) for f in report.findings] == [(code, skip.hit)]


def test_bad_pictures_stop_or_are_skipped(tmp_path: Path) -> None:
    """A file that is no picture, by its header, is a bad sample; with transcoding one that is cut is bad too."""
    source = make_photos(tmp_path / "in", count=6)
    (source / "class_0/page.jpg").write_bytes(b"<html>404</html>")
    with pytest.raises(SampleError, match=r"class_0/page\.jpg: image: cannot be decoded"):
        pack(source, tmp_path / "fail")
    report = pack(source, tmp_path / "skip", on_bad="skip")
    assert (
        report.skipped == 1
        and report.findings[0].where == "class_0/page.jpg"
        and report.findings[0].code == "undecodable"
    )
    cut = source / "class_1/cut.jpg"
    cut.write_bytes((source / "class_1/photo_001.jpg").read_bytes()[:-30])
    assert pack(source, tmp_path / "plain", on_bad="skip").skipped == 1
    assert pack(source, tmp_path / "coded", on_bad="skip", transcode="jpeg:90").skipped == 2


class StopsAt:
    """A transform that stops the pack at sample number *at*."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return sample


def test_a_stopped_pack_goes_on(photos: Path, tmp_path: Path) -> None:
    """After a stop anywhere, only missing shards are made, and the result is that of an unbroken run."""
    pack(photos, tmp_path / "whole", shards=6, transform=StopsAt(1000))
    for at in random.Random(1).sample(range(24), 6):
        out = tmp_path / f"at{at}"
        with pytest.raises(KeyboardInterrupt):
            pack(photos, out, shards=6, workers=1, transform=StopsAt(at))
        there = {path.name for path in out.glob("shard_*")}
        before = {name: (out / name).stat().st_mtime_ns for name in there}
        report = pack(photos, out, shards=6, transform=StopsAt(1000))
        assert report.shards_made == 6 - len(there)
        assert tree(out) == tree(tmp_path / "whole")
        assert before == {name: (out / name).stat().st_mtime_ns for name in there}


def test_a_lost_or_cut_shard_is_made_again(photos: Path, tmp_path: Path) -> None:
    """A part whose shard is missing or of another size is not believed."""
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pack(photos, out, shards=6, workers=1, transform=StopsAt(23))
    (out / "shard_00000.tar").unlink()
    (out / "shard_00001.tar").write_bytes(b"cut")
    (out / "_stoker/part-00002.json").write_bytes(b"{}")
    report = pack(photos, out, shards=6, transform=StopsAt(1000))
    assert report.shards_made == 4
    pack(photos, tmp_path / "whole", shards=6, transform=StopsAt(1000))
    assert tree(out) == tree(tmp_path / "whole")


def test_a_finished_job_is_left_alone(photos: Path, tmp_path: Path) -> None:
    """Called again, the same job does nothing; leftovers of a kill after the commit are swept away."""
    first = pack(photos, tmp_path / "out", shards=2)
    before = tree(tmp_path / "out")
    (tmp_path / "out/_stoker/part-00000.json").write_bytes(b"left behind")
    again = pack(photos, tmp_path / "out", shards=2)
    assert again.shards_made == 0 and (again.samples, again.shards) == (first.samples, first.shards)
    assert tree(tmp_path / "out") == before


@pytest.mark.parametrize("finished", [True, False])
def test_another_job_in_the_same_place_is_refused(photos: Path, tmp_path: Path, finished: bool) -> None:
    """Other options or a changed source are named, whether the first job was finished or not."""
    source = make_photos(tmp_path / "in", count=9)
    if finished:
        pack(source, tmp_path / "out", shards=2)
    else:
        with pytest.raises(SampleError, match="ZeroDivisionError"):
            pack(source, tmp_path / "out", shards=2, transform=lambda sample: 1 / 0)
    before = tree(tmp_path / "out")
    with pytest.raises(UsageError, match="seed: there 0, here 7"):
        pack(source, tmp_path / "out", shards=2, seed=7)
    (source / "class_0/new.jpg").write_bytes((source / "class_0/photo_000.jpg").read_bytes())
    with pytest.raises(UsageError, match="source: there"):
        pack(source, tmp_path / "out", shards=2)
    assert tree(tmp_path / "out") == before


def test_a_foreign_folder_is_refused(photos: Path, tmp_path: Path) -> None:
    """Nothing is written into a folder that holds something else, or that lies in the source."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.txt").write_text("do not touch")
    with pytest.raises(UsageError, match=r"not empty: 1 objects, as thesis\.txt"):
        pack(photos, tmp_path / "mine")
    assert tree(tmp_path / "mine") == {"thesis.txt": b"do not touch"}
    for target in (photos, photos / "shards"):
        with pytest.raises(UsageError, match="lies inside the source"):
            pack(photos, target)


@pytest.mark.parametrize("compress", ["gzip", "zstd"])
def test_shards_can_be_compressed(photos: Path, tmp_path: Path, compress: str) -> None:
    """A compressed pack holds the same samples, under names that tell."""
    pack(photos, tmp_path / "out", shards=2, compress=compress)
    assert {s.columns["source"]: s.fields for s in packed(tmp_path / "out")} == fields_of(photos)
    assert (
        sorted(p.name for p in (tmp_path / "out").glob("shard*"))[0]
        == f"shard_00000.tar{'.gz' if compress == 'gzip' else '.zst'}"
    )


def test_progress_tells_every_sample(photos: Path, tmp_path: Path) -> None:
    """The callback sees samples done, samples in all and bytes, and ends at the total."""
    calls: list[tuple[int, int, int]] = []
    pack(photos, tmp_path / "out", shards=3, workers=1, progress=lambda *call: calls.append(call))
    assert [call[0] for call in calls] == list(range(1, 25)) and {call[1] for call in calls} == {24}
    assert calls[-1][2] == sum(len(data) for fields in fields_of(photos).values() for data in fields.values())


@pytest.mark.parametrize(
    "options",
    [
        {"shards": 0}, {"shards": 100}, {"shard_size": "0"}, {"shards": 2, "shard_size": "1MB"}, {"format": "mds"},
        {"seed": -1}, {"resize_short": 0}, {"transcode": "gif"}, {"transcode": "jpeg:0"}, {"transcode": "png:9"},
        {"on_bad": "ignore"}, {"compress": "xz"}, {"label": "guess"},
    ],
)  # fmt: skip
def test_wrong_options_are_usage_errors(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Nothing is written before the options are right."""
    with pytest.raises(UsageError):
        pack(photos, tmp_path / "out", **options)
    assert not list(tmp_path.iterdir())


def command(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the real command."""
    return subprocess.run(
        [sys.executable, "-m", "stoker.cli.main", "pack", *arguments], capture_output=True, text=True, cwd=cwd
    )


def test_the_command_packs_and_reports(photos: Path, tmp_path: Path) -> None:
    """Findings a line each, counts on the last line, JSON on request, exit codes 0, 1 and 2."""
    source = make_photos(tmp_path / "in", count=6)
    (source / "class_0/page.jpg").write_bytes(b"<html>")
    (tmp_path / "mine.py").write_text("def keep(sample):\n    return sample if sample['cls'] == 0 else None\n")
    done = command(str(source), str(tmp_path / "out"), "--on-bad", "skip", "--shards", "2")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[0].startswith("warning  undecodable  class_0/page.jpg: image: cannot be decoded")
    assert done.stdout.splitlines()[-1].startswith(f"stoker pack: file://{tmp_path}/out: samples 6, shards 2, ")
    assert done.stdout.splitlines()[-1].endswith(", 1 skipped")
    again = command(str(source), str(tmp_path / "out"), "--on-bad", "skip", "--shards", "2", "--json")
    assert json.loads(again.stdout)["shards_made"] == 0 and json.loads(again.stdout)["skipped"] == 1
    failed = command(str(source), str(tmp_path / "bad"))
    assert failed.returncode == 1 and "page.jpg" in failed.stderr and "Traceback" not in failed.stderr
    wrong = command(str(source), str(tmp_path / "out"), "--seed", "9")
    assert wrong.returncode == 2 and "seed: there 0, here 9" in wrong.stderr
    kept = command(str(source), str(tmp_path / "kept"), "--on-bad", "skip", "--transform", "mine:keep", cwd=tmp_path)
    assert kept.returncode == 0 and "samples 2," in kept.stdout
