"""Conversion between formats: samples, keys, order and values are kept; what cannot be held is said before a write."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.check import verify
from stoker.convert import convert
from stoker.convert.same import same
from stoker.errors import ShardError, UsageError
from stoker.format.hdf5 import Hdf5Writer
from stoker.format.table import TableWriter
from stoker.pack import pack
from support_dataset import jpeg, own_index_folder, write_shards
from support_rows import arrays_bytes, npy, write_hdf5, write_table
from support_typed import write_mds

FORMATS = ("webdataset", "mds", "tfrecord", "hdf5", "table", "arrays")


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))


def samples(count: int = 23, *, seed: int = 1) -> dict[str, dict[str, Any]]:
    """Samples of fields that every format holds."""
    rng = np.random.default_rng(seed)
    return {
        f"key {number:03d}": {"cls": number % 5, "npy": rng.random((2, 3)).astype(np.float32)}
        for number in range(count)
    }


def contents(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Keys and values of a dataset, decoded as the loader decodes them."""
    dataset = stoker.open(folder)
    found = []
    for number in range(len(dataset)):
        sample = dataset[number]
        key = sample.pop("__key__")
        del sample["__index__"]
        if isinstance(sample.get("npy"), bytes):
            sample["npy"] = stoker.npy.decode(sample["npy"], None, 0)
        if isinstance(sample.get("cls"), bytes):
            sample["cls"] = int(sample["cls"])
        found.append((key, sample))
    return found


def equal(found: list[tuple[str, dict[str, Any]]], wanted: Mapping[str, Mapping[str, Any]]) -> bool:
    """Same keys in the same order, same fields, same values."""
    return [key for key, _ in found] == list(wanted) and all(
        values.keys() == wanted[key].keys() and all(same(wanted[key][name], values[name]) for name in values)
        for key, values in found
    )


@pytest.fixture(scope="module")
def everywhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The samples in every format, one folder each, from an MDS dataset."""
    root = tmp_path_factory.mktemp("everywhere")
    source = write_table_dataset(root / "start", samples())
    for name in FORMATS:
        convert(source, root / name, format=name, shard_size=200)
    return root


def write_table_dataset(folder: Path, given: dict[str, dict[str, Any]]) -> Path:
    """One Parquet file of them."""
    folder.mkdir()
    write_table(folder / "rows.parquet", given)
    return folder


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(FORMATS, 2)))
def test_every_pair_of_formats_keeps_all(everywhere: Path, tmp_path: Path, source: str, target: str) -> None:
    """Samples, keys, order and values survive every road from one format to another."""
    decode = ("npy", "cls") if source == "webdataset" else ()
    report = convert(everywhere / source, tmp_path / "out", format=target, shard_size=300, decode=decode)
    assert (report.format, report.samples) == (target, 23)
    assert report.shards == report.shards_made > 1
    assert equal(contents(tmp_path / "out"), samples())


@pytest.mark.parametrize("name", FORMATS)
def test_shards_alone_say_the_same(everywhere: Path, tmp_path: Path, name: str) -> None:
    """Without our index the shards are a dataset of that format, with the same keys and values."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for path in (everywhere / name).iterdir():
        if path.is_file():
            (bare / path.name).write_bytes(path.read_bytes())
    assert stoker.open(bare).index.format == name
    assert equal(contents(bare), samples())


def test_packed_photos_keep_columns_and_classes(tmp_path: Path) -> None:
    """Metadata columns and class names go on into the new index; pictures stay the same bytes."""
    for number in range(8):
        path = tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(number))
    pack(tmp_path / "photos", tmp_path / "shards")
    before = stoker.open(tmp_path / "shards")
    for source in ("shards", "photos"):
        convert(tmp_path / source, tmp_path / f"{source}-mds", format="mds")
        after = stoker.open(tmp_path / f"{source}-mds")
        assert after.classes == ("cat", "dog")
        wanted = {one["jpg"]: one["label"] for one in (before[at] for at in range(8))}
        assert {one["jpg"]: one["label"] for one in (after[at] for at in range(8))} == wanted
    assert [after[at]["cls"] for at in range(8)] == [0] * 4 + [1] * 4


def test_rows_of_several_shards_meet_in_none(tmp_path: Path) -> None:
    """Keys that are row numbers come twice: then a new shard begins, and both samples are there."""
    rows = [{"cls": at} for at in range(6)]
    write_mds(tmp_path / "mds", rows, shards=2, keys=False)
    report = convert(tmp_path / "mds", tmp_path / "tar", format="webdataset")
    assert report.shards == 2
    found = contents(tmp_path / "tar")
    assert [sample["cls"] for _, sample in found] == list(range(6))
    assert [key for key, _ in found] == [f"{at % 3:08d}" for at in range(6)]


def test_ragged_rows_go_into_hdf5(tmp_path: Path) -> None:
    """Arrays of differing lengths, an empty one among them, become rows of variable length."""
    given = {f"k{at}": {"tokens": np.arange(at, dtype=np.int32), "text": f"té{at}"} for at in range(5)}
    source = write_table_dataset(tmp_path / "table", given)
    convert(source, tmp_path / "h5", format="hdf5")
    assert equal(contents(tmp_path / "h5"), given)


@pytest.mark.parametrize(
    ("target", "value", "told"),
    [
        ("webdataset", 1.5, "float64"),
        ("tfrecord", np.zeros((2, 2, 2), np.int64), "dimensions"),
        ("tfrecord", np.array([0.1]), "lose digits"),
        ("tfrecord", np.array([7]), "come back"),
        ("mds", np.bool_(True), "bool"),
        ("arrays", "text", "numbers"),
        ("arrays", np.arange(9), "those of the samples before"),
    ],
)
def test_what_cannot_be_held_is_said_before_a_write(tmp_path: Path, target: str, value: Any, told: str) -> None:
    """The error names sample, field and format, and the target does not even exist."""
    before = {"a": {"x": np.arange(3)}} if told.startswith("those") else {}
    source = write_table_dataset(tmp_path / "in", {**before, "b": {"x": value}})
    with pytest.raises(UsageError, match=told) as caught:
        convert(source, tmp_path / "out", format=target)
    assert f"(b): {target} cannot hold it" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_text_with_nul_is_too_much_for_hdf5(tmp_path: Path) -> None:
    """It comes after a thousand texts without, and still before anything is written."""
    given = {f"{at}": {"text": "fine"} for at in range(1_000)} | {"bad": {"text": "a\0b"}}
    source = write_table_dataset(tmp_path / "in", given)
    with pytest.raises(UsageError, match="NUL"):
        convert(source, tmp_path / "out", format="hdf5")
    assert not (tmp_path / "out").exists()


def test_optional_fields_go_where_they_can(tmp_path: Path) -> None:
    """A table takes samples that lack a field, the first of a shard too, and shards in which none has it."""
    write_shards(tmp_path / "tar", 9, member=lambda at: {"cls": b"1", **({"txt": b"t"} if at % 3 == 1 else {})})
    for size in ("1MB", 3):
        convert(tmp_path / "tar", tmp_path / f"table-{size}", format="table", shard_size=size)
        found = [sorted(sample) for _, sample in contents(tmp_path / f"table-{size}")]
        assert found == [["cls"], ["cls", "txt"], ["cls"]] * 3


def test_tables_keep_what_tables_hold(tmp_path: Path) -> None:
    """Lists of captions of any length, nested lists, structs, times and decimals, with nulls in the first row too."""
    columns = {
        "captions": [["x" * at, "y"][: at % 3] for at in range(300)],
        "nested": [[[1], [2, at]] if at % 2 else [[]] for at in range(300)],
        "person": [{"age": at, "names": ["é", None]} if at else None for at in range(300)],
        "when": pa.array([None, *range(299)], pa.timestamp("us")),
        "day": [None, *[date(2026, 1, 1 + at % 28) for at in range(299)]],
        "price": [Decimal(f"1.{at}") for at in range(300)],
        "holes": [[1, None] if at % 2 else [None] for at in range(300)],
    }
    source = tmp_path / "in"
    source.mkdir()
    pq.write_table(pa.table(columns), source / "0.parquet")
    convert(source, tmp_path / "out", format="table", shard_size=3_000)
    before, after = stoker.open(source), stoker.open(tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) > 1
    for at in range(300):
        assert same(before[at], after[at]), at


def test_mds_keeps_its_encodings(tmp_path: Path) -> None:
    """Pictures, pickles, numbers of any length and JSON that is a bare flag are written in the columns they had."""
    encodings = {"photo": "jpeg", "p": "pkl", "big": "str_int", "flag": "json", "f": "str_float", "nd": "ndarray:int16"}
    given = [
        {
            "photo": jpeg(at),
            "p": b"x",
            "big": 10 ** (30 * at),
            "flag": True,
            "f": 0.5,
            "nd": np.arange(at + 1, dtype="i2"),
        }
        for at in range(4)
    ]
    convert(write_mds(tmp_path / "in", given, columns=encodings), tmp_path / "out", format="mds", rename=["nd=n"])
    record = json.loads((tmp_path / "out" / "index.json").read_text())["shards"][0]
    found = dict(zip(record["column_names"], record["column_encodings"], strict=True))
    wanted = {"n" if name == "nd" else name: encoding for name, encoding in encodings.items()}
    assert found == {"__key__": "str", **wanted}
    again = stoker.open(tmp_path / "out")
    assert [again[at]["big"] for at in range(4)] == [one["big"] for one in given]


@pytest.mark.parametrize("name", ["out.parquet", "out.tar", "x.tar.gz", "all.mds"])
def test_a_folder_called_like_a_shard_is_a_folder(tmp_path: Path, name: str) -> None:
    """A conversion makes a folder, whatever its name; other programs call folders x.parquet as well."""
    convert(write_table_dataset(tmp_path / "in", samples(5)), tmp_path / name, format="table")
    for url in (tmp_path / name, f"file://{tmp_path}/{name}", f"{tmp_path}/{name}/"):
        assert len(stoker.open(url)) == 5
    assert verify(tmp_path / name, deep=True).findings == ()


def test_decoded_pictures_become_arrays_in_a_tar(tmp_path: Path) -> None:
    """An array called `image` would be read as a picture file: the hint names the renaming that keeps it."""
    given = {f"{at}": {"image": np.full((4, 4, 3), at, np.uint8)} for at in range(3)}
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.arrays.bin").write_bytes(arrays_bytes(given))
    with pytest.raises(UsageError, match="array of uint8") as caught:
        convert(tmp_path / "in", tmp_path / "out", format="webdataset")
    assert caught.value.hint is not None and caught.value.hint.startswith("--rename image=npy")
    convert(tmp_path / "in", tmp_path / "out", format="webdataset", rename=["image=npy"])
    assert equal(contents(tmp_path / "out"), {key: {"npy": one["image"]} for key, one in given.items()})


def test_a_column_has_one_type(tmp_path: Path) -> None:
    """Values of two types in one field are no table, said before anything is written."""
    source = write_mds(tmp_path / "in", [{"x": ["a"]}, {"x": [1.5]}], columns={"x": "json"})
    with pytest.raises(UsageError, match="field 'x' is list<item: double>, before it was list<item: string>"):
        convert(source, tmp_path / "out", format="table")
    assert not (tmp_path / "out").exists()


def test_fields_can_be_left_out_renamed_and_decoded(tmp_path: Path) -> None:
    """Three switches for what does not fit by itself."""
    write_shards(tmp_path / "tar", 6, member=lambda at: {"npy": npy(np.arange(at + 2)), "txt": b"t", "raw": b"r"})
    convert(
        tmp_path / "tar", tmp_path / "out", format="hdf5",
        fields=("npy", "txt"), rename=("npy=tokens",), decode=("npy", "txt"),
    )  # fmt: skip
    found = contents(tmp_path / "out")
    assert all(sample["txt"] == "t" and sample.keys() == {"tokens", "txt"} for _, sample in found)
    assert [sample["tokens"].tolist() for _, sample in found] == [list(range(at + 2)) for at in range(6)]
    with pytest.raises(UsageError, match="no field 'nope'"):
        convert(tmp_path / "tar", tmp_path / "x", format="mds", fields=("nope",))
    with pytest.raises(UsageError, match="two fields"):
        convert(tmp_path / "tar", tmp_path / "x", format="mds", rename=("npy=txt",))


@pytest.mark.parametrize("target", FORMATS)
def test_a_field_does_not_take_the_place_of_the_key(tmp_path: Path, target: str) -> None:
    """No renaming makes a field the key or the number, and a size that holds nothing is refused as well."""
    source = write_table_dataset(tmp_path / "in", samples(3))
    for name in ("__key__", "__index__"):
        with pytest.raises(UsageError, match=f"cannot be called {name}"):
            convert(source, tmp_path / "out", format=target, rename=[f"cls={name}"])
    with pytest.raises(UsageError, match="hold nothing"):
        convert(source, tmp_path / "out", format=target, shard_size=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("writer", [Hdf5Writer, TableWriter])
def test_a_writer_of_rows_keeps_the_key_to_itself(tmp_path: Path, writer: Callable[[Path], Any]) -> None:
    """A field of that name is refused, as the writers of streams do."""
    with pytest.raises(UsageError, match="cannot be called __key__"):
        writer(tmp_path / ("x.h5" if writer is Hdf5Writer else "x.parquet")).add("k", {"__key__": "other"})


def test_files_are_only_read(tmp_path: Path) -> None:
    """A format without a writer is a usage error that names those with one."""
    write_shards(tmp_path / "tar", 3)
    with pytest.raises(UsageError, match="webdataset, mds, tfrecord, arrays, hdf5, table"):
        convert(tmp_path / "tar", tmp_path / "out", format="files")


def test_a_target_with_something_else_is_refused(tmp_path: Path) -> None:
    """Neither a stranger's folder nor another conversion is touched; the same one has nothing to do."""
    write_shards(tmp_path / "tar", 6)
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "x.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        convert(tmp_path / "tar", tmp_path / "strange", format="mds")
    convert(tmp_path / "tar", tmp_path / "out", format="mds")
    with pytest.raises(UsageError, match="other options"):
        convert(tmp_path / "tar", tmp_path / "out", format="tfrecord")
    assert convert(tmp_path / "tar", tmp_path / "out", format="mds").shards_made == 0
    with pytest.raises(UsageError, match="inside the source"):
        convert(tmp_path / "tar", tmp_path / "tar" / "out", format="mds")


@pytest.mark.parametrize("target", ["webdataset", "mds", "table"])
def test_a_killed_convert_is_no_dataset_and_goes_on(tmp_path: Path, target: str) -> None:
    """kill -9 after some shards: opening says what is up; the next run ends with the bytes of an undisturbed one."""
    write_shards(tmp_path / "tar", 60, shards=2)
    arguments = ["convert", str(tmp_path / "tar"), "--format", target, "--shard-size", "3kB", "--workers", "1"]
    out = tmp_path / "out"
    child = subprocess.Popen(
        [sys.executable, "-m", "stoker.cli.main", *arguments[:2], str(out), *arguments[2:]],
        env=own_index_folder(tmp_path / "home"), stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while len(list(out.glob("shard_*"))) < 3 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    if not (out / "_stoker" / "manifest.json").exists():
        with pytest.raises(ShardError, match="not finished"):
            stoker.open(out)
    again = convert(tmp_path / "tar", out, format=target, shard_size="3kB")
    assert 0 < again.shards_made < again.shards
    convert(tmp_path / "tar", tmp_path / "whole", format=target, shard_size="3kB")

    def tree(folder: Path) -> dict[str, bytes]:
        return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    assert tree(out) == tree(tmp_path / "whole")


def test_the_command_tells_counts(tmp_path: Path) -> None:
    """Text and JSON say the same; usage that is wrong ends with 2."""
    write_hdf5(tmp_path / "rows.h5", samples())
    command = [sys.executable, "-m", "stoker.cli.main", "convert", str(tmp_path / "rows.h5")]
    environ = own_index_folder(tmp_path / "home")

    def run(*more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*command, *more], env=environ, capture_output=True, text=True, check=False)

    done = run(str(tmp_path / "out"), "--format", "tfrecord", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["format"], told["samples"], told["shards"], told["shards_made"]) == ("tfrecord", 23, 1, 1)
    done = run(str(tmp_path / "out"), "--format", "tfrecord")
    assert done.stdout.splitlines()[-1].startswith(
        f"stoker convert: file://{tmp_path}/out: tfrecord: samples 23, shards 1"
    )
    assert run(str(tmp_path / "x"), "--format", "nope").returncode == 2
