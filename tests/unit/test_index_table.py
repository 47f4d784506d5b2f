"""Manifests of raw files: three kinds of tables, one meaning; errors name the row or the column."""

from __future__ import annotations

import datetime
import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from stoker.errors import ShardError, UsageError
from stoker.format.files import ManifestRow
from stoker.index import open_index, table
from stoker.index.table import read_table
from stoker.store import Local

WANTED = {
    "a/1.jpg": ManifestRow(1, {"label": "cat", "score": 0.5, "seen": True, "count": 3}),
    "ü 2.jpg": ManifestRow(2, {"label": None, "score": 1.0, "seen": False, "count": None}),
}
CSV = "path,label,score,seen,count\na/1.jpg,cat,0.5,true,3\n./ü 2.jpg,,1.0,false,\n"
JSONL = (
    '{"path": "a/1.jpg", "label": "cat", "score": 0.5, "seen": true, "count": 3}\n'
    '{"path": "ü 2.jpg", "label": null, "score": 1.0, "seen": false, "count": null}\n'
)


def parquet(**columns: object) -> bytes:
    out = io.BytesIO()
    pa.parquet.write_table(pa.table(columns), out)
    return out.getvalue()


def test_csv_and_jsonl_and_parquet_agree() -> None:
    """The three kinds give the same rows, types and numbers."""
    whole = parquet(path=list(WANTED), label=["cat", None], score=[0.5, 1.0], seen=[True, False], count=[3, None])
    assert read_table(JSONL.encode(), "m.jsonl") == WANTED
    assert read_table(whole, "M.PARQUET") == WANTED
    csv = read_table(CSV.encode(), "m.csv")
    assert csv["a/1.jpg"] == WANTED["a/1.jpg"]
    assert csv["ü 2.jpg"].columns == {"label": "", "score": 1.0, "seen": False, "count": None}


@pytest.mark.parametrize("column", ["path", "file_name", "file"])
def test_names_of_the_path_column(column: str) -> None:
    """The path column has one of three names."""
    assert list(read_table(f"id,{column}\n7,x.jpg\n".encode(), "m.csv")) == ["x.jpg"]


@pytest.mark.parametrize(
    ("data", "name", "words"),
    [
        (b"a,b\n1,2\n", "m.csv", "no column path"),
        (b"path\n", "m.csv", "without rows"),
        (b"", "m.csv", "cannot be read as csv"),
        (b"path,a\nx,1\ny,1,2\n", "m.csv", "Row #3"),
        (b"path,a\nx,1\nx,2\n", "m.csv", "row 2: 'x' stands in row 1 already"),
        (b"path,a\nx,1\n,2\n", "m.csv", "row 2: no path"),
        (b"path,a,a\nx,1,2\n", "m.csv", "two columns have one name"),
        (b"path\n\xff\xfe\n", "m.csv", "column 'path'"),
        (b'{"path": "x"}\n{"path": ', "m.jsonl", "cannot be read as jsonl"),
        (b'{"path": 3}\n', "m.jsonl", "row 1: no path, found 3"),
        (b'{"path": "x", "box": [1, 2]}\n', "m.jsonl", "column 'box'"),
        (b'{"path": "x", "box": {"a": 1}}\n', "m.jsonl", "column 'box'"),
        (b"PAR1", "m.parquet", "cannot be read as parquet"),
    ],
)
def test_errors_say_where(data: bytes, name: str, words: str) -> None:
    """Each fault of a table is an error with its place."""
    with pytest.raises(ShardError, match=words):
        read_table(data, name)


def test_refuses_other_kinds_of_values_and_files() -> None:
    """Times are no metadata yet, and a table's kind is told by its name."""
    with pytest.raises(ShardError, match="column 'at': values of type timestamp"):
        read_table(parquet(path=["x"], at=[datetime.datetime(2026, 1, 1)]), "m.parquet")
    with pytest.raises(ShardError, match="column 'big'"):
        read_table(parquet(path=["x"], big=pa.array([1 << 63], pa.uint64())), "m.parquet")
    with pytest.raises(UsageError, match=r"ends in \.csv, \.jsonl"):
        read_table(b"", "m.xlsx")


def test_limits_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table beyond the limit is refused."""
    monkeypatch.setattr(table, "TABLE_BYTES_MAX", 10)
    with pytest.raises(ShardError, match="at most 10 are allowed"):
        read_table(CSV.encode(), "m.csv")


def test_damaged_tables_of_the_real_data(shared_data: Path) -> None:
    """Cut, overwritten and lying Parquet files are errors, good ones say that they have no paths."""
    names = (
        "crafted/trunc.parquet",
        "crafted/footer-len-2G.parquet",
        "crafted/zero-page.parquet",
        "crafted/meta.parquet",
    )
    for name in names:
        path = shared_data / "parquet" / name
        with pytest.raises(ShardError, match=name.rpartition("/")[2]):
            read_table(path.read_bytes(), str(path))


def test_opens_what_a_manifest_names(tmp_path: Path) -> None:
    """A manifest in the dataset or on this machine chooses the samples and gives the labels."""
    folder = tmp_path / "photos"
    folder.mkdir()
    for name in ("1.jpg", "2.jpg", "3.jpg", "3.txt"):
        (folder / name).write_text(name)
    (folder / "train.csv").write_text("path,label,width\n3.jpg,dog,30\n1.jpg,cat,10\n")
    for manifest in ("train.csv", str(folder / "train.csv")):
        index = open_index(Local(folder), place=tmp_path / "place", manifest=manifest)
        assert [index.key(n) for n in range(len(index))] == ["1", "3"]
        assert index.classes == ("cat", "dog")
        assert index.field_names(1) == ("jpg", "txt")
        assert [index.value(1, name) for name in ("label", "cls", "width")] == ["dog", 1, 30]
    (folder / "train.csv").write_text("path,label\n4.jpg,dog\n")
    with pytest.raises(ShardError, match=r"manifest row 1: '4\.jpg'"):
        open_index(Local(folder), place=tmp_path / "place", manifest="train.csv")
