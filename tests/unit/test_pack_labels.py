"""One truth about a sample: what is stored and what the index says are never two things."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.decode.text import Number
from stoker.pack import pack
from support_decode import encode, photo
from support_pack import by_source, make_photos, packed

PICTURE = encode(photo(8, 9, 1), "JPEG")


def stored_in_tars(folder: Path, field: str) -> dict[str, bytes]:
    """What any reader of tars finds: key → bytes of a field."""
    found = {}
    for shard in sorted(folder.glob("*.tar")):
        with tarfile.open(shard) as archive:
            for member in archive:
                key, _, name = member.name.partition(".")
                content = archive.extractfile(member)
                if name == field and content is not None:
                    found[key] = content.read()
    return found


def agree(folder: Path) -> None:
    """Every sample: a column whose field is stored says the same as what is stored, or nothing."""
    dataset = stoker.open(folder)
    for sample in packed(folder):
        for name, value in sample.columns.items():
            if name in sample.fields and value is not None:
                said = sample.fields[name].decode()
                assert (value if isinstance(value, str) else float(value)) == (
                    said if isinstance(value, str) else float(said)
                )
    stored = stored_in_tars(folder, "cls")
    for number in range(len(dataset)):
        given = dataset[number]
        if given["__key__"] in stored:
            raw, value = stored[given["__key__"]], given["cls"]
            assert value == (Number("int").decode(raw, None, 0) if isinstance(value, int) else raw)
        else:
            assert "cls" not in given


def test_a_class_beside_an_image_is_its_class(tmp_path: Path) -> None:
    """A .cls file wins over the label rule in the shard, the column, dataset and loader; mixing both is told."""
    source = make_photos(tmp_path / "in", count=6)
    (source / "class_0/photo_000.cls").write_text("7\n")
    report = pack(source, tmp_path / "out", shards=1)
    agree(tmp_path / "out")
    own = by_source(packed(tmp_path / "out"))["class_0/photo_000.jpg"]
    assert (own.fields["cls"], own.columns["cls"], own.columns["label"]) == (b"7\n", 7, None)
    other = by_source(packed(tmp_path / "out"))["class_2/photo_005.jpg"]
    assert (other.fields["cls"], other.columns["cls"], other.columns["label"]) == (b"2", 2, "class_2")
    assert [f.where for f in report.findings if f.code == "own-class"] == ["class_0/photo_000.jpg"]
    with stoker.Loader(stoker.open(tmp_path / "out"), 6, fields={"cls": int}, output="numpy") as loader:
        batch = next(iter(loader))
    assert dict(zip(batch["__key__"], batch["cls"].tolist(), strict=True))["class_0/photo_000"] == 7


def test_raw_folders_follow_the_same_rule(tmp_path: Path) -> None:
    """Opened directly, the file beside the image is given, not the folder's number, and the index has no other."""
    source = make_photos(tmp_path / "in", count=6)
    (source / "class_0/photo_000.cls").write_text("7\n")
    dataset = stoker.open(source)
    number = [dataset.index.key(n) for n in range(6)].index("class_0/photo_000")
    assert bytes(dataset[number]["cls"]) == b"7\n" and dataset.index.value(number, "cls") is None
    assert dataset[5]["cls"] == 2
    assert [f["code"] for f in dataset.index.manifest.extra["findings"]] == ["own-class"]
    with stoker.Loader(dataset, 6, fields={"cls": int}, shuffle="none", output="numpy") as loader:
        assert next(iter(loader))["cls"][number] == 7


def test_when_all_have_their_own_there_are_no_labels(tmp_path: Path) -> None:
    """Where every image has its class beside it, folder names are no classes, and nothing needs a warning."""
    source = make_photos(tmp_path / "in", count=4, classes=2)
    for number, path in enumerate(sorted(source.rglob("*.jpg"))):
        path.with_suffix(".cls").write_text(str(10 * number))
    report = pack(source, tmp_path / "out", shards=1)
    agree(tmp_path / "out")
    dataset = stoker.open(tmp_path / "out")
    assert dataset.classes is None and sorted(dataset.index.column("cls").to_pylist()) == [0, 10, 20, 30]
    assert report.findings == ()


def test_a_class_that_is_no_number_leaves_the_column_empty(tmp_path: Path) -> None:
    """Text, numbers beyond 64 bits and undecodable bytes are given as they are stored; the column says nothing."""
    source = make_photos(tmp_path / "in", count=3)
    for number, text in enumerate((b"cat", b"99999999999999999999", b"\xff")):
        (source / f"class_{number}/photo_00{number}.cls").write_bytes(text)
    pack(source, tmp_path / "out", shards=1)
    for sample in packed(tmp_path / "out"):
        assert sample.columns["cls"] is None
    dataset = stoker.open(tmp_path / "out")
    assert {bytes(dataset[n]["cls"]) for n in range(3)} == {b"cat", b"99999999999999999999", b"\xff"}


def fields(**given: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A transform that sets fields."""
    return lambda sample: {**sample, **given}


@pytest.mark.parametrize(
    ("given", "columns"),
    [
        ({"cls": 1}, {"cls": 1, "label": "class_1"}), ({"cls": np.int64(2)}, {"cls": 2, "label": "class_2"}),
        ({"cls": b" 1\n"}, {"cls": 1, "label": "class_1"}), ({"cls": 40}, {"cls": 40, "label": None}),
        ({"cls": None}, {"cls": None, "label": None}), ({"cls": "x"}, {"cls": None, "label": None}),
        ({"label": "mine"}, {"label": "mine", "cls": 0}), ({"width": 5, "height": "6"}, {"width": 5, "height": 6}),
        ({"width": "wide"}, {"width": None, "height": 24}), ({"source": "elsewhere"}, {"source": "elsewhere"}),
        ({"cls": True, "label": b"\xff"}, {"cls": 1, "label": None}), ({"source": "x" * 5000}, {"source": None}),
    ],
)  # fmt: skip
def test_columns_follow_what_a_transform_stores(
    tmp_path: Path, given: dict[str, Any], columns: dict[str, object]
) -> None:
    """A field that a transform sets is what its column says, whatever it is called; the label follows the class."""
    source = make_photos(tmp_path / "in", count=3)
    pack(source, tmp_path / "all", shards=1, transform=fields(**given))
    agree(tmp_path / "all")
    (sample,) = [s for s in packed(tmp_path / "all") if s.key == "class_0/photo_000"]
    assert {name: sample.columns[name] for name in columns} == columns


def test_a_manifest_does_not_hide_what_is_stored(tmp_path: Path) -> None:
    """Columns of a table whose names are files beside an image say what the files say; others stay as given."""
    source = make_photos(tmp_path / "in", count=3)
    (source / "class_0/photo_000.score").write_text("0.5")
    (source / "class_0/photo_000.cls").write_text("3")
    table = tmp_path / "table.csv"
    with table.open("w", newline="") as file:
        rows: list[list[object]] = [["path", "score", "cls", "note"], ["class_0/photo_000.jpg", 0.25, 9, "n"]]
        csv.writer(file).writerows([*rows, ["class_1/photo_001.jpg", 0.75, 8, "m"]])
    raw = stoker.open(source, manifest=table)
    assert raw.index.column("score").to_pylist() == [None, 0.75] and bytes(raw[0]["score"]) == b"0.5"
    report = pack(source, tmp_path / "out", shards=1, manifest=table)
    found = by_source(packed(tmp_path / "out"))
    assert (
        found["class_0/photo_000.jpg"].columns | {"score": 0.5, "cls": 3, "note": "n"}
        == found["class_0/photo_000.jpg"].columns
    )
    assert found["class_1/photo_001.jpg"].columns["cls"] == 8 and found["class_1/photo_001.jpg"].fields["cls"] == b"8"
    assert {f.code: f.message for f in report.findings}["not-in-manifest"].startswith("passed over: neither in the")
    assert "own-class" in {f.code for f in report.findings}


def test_text_columns_of_a_manifest_stay(tmp_path: Path) -> None:
    """A `cls` column of texts is metadata that no rule touches."""
    source = make_photos(tmp_path / "in", count=3)
    table = tmp_path / "table.csv"
    table.write_text("file,cls,label\nclass_0/photo_000.jpg,a,x\nclass_1/photo_001.jpg,b,y\n")
    pack(source, tmp_path / "out", shards=1, manifest=table)
    found = {s.columns["source"]: (s.columns["cls"], s.columns["label"]) for s in packed(tmp_path / "out")}
    assert found == {"class_0/photo_000.jpg": ("a", "x"), "class_1/photo_001.jpg": ("b", "y")}


def test_other_readers_see_the_same(tmp_path: Path) -> None:
    """The bytes of the shard that decide are those that a plain tar reader finds."""
    pictures = tmp_path / "in" / "a"
    pictures.mkdir(parents=True)
    (pictures / "1.jpg").write_bytes(PICTURE)
    (pictures / "1.cls").write_bytes(b"12")
    pack(tmp_path / "in", tmp_path / "out", shards=1)
    (shard,) = (tmp_path / "out").glob("*.tar")
    with tarfile.open(fileobj=io.BytesIO(shard.read_bytes())) as archive:
        content = archive.extractfile("a/1.cls")
        assert content is not None and int(content.read()) == stoker.open(tmp_path / "out")[0]["cls"] == 12
