"""Tables: rows as samples, values with their types, nulls as missing fields, few groups decoded, the writer."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import stoker
from stoker.errors import MissingFieldError, SampleError, ShardError, UsageError
from stoker.format import table as table_module
from stoker.format import table_types
from stoker.format.table import TableFile, TableWriter, open_table, owns, scan_table
from stoker.index import Options, build, source_of
from stoker.store import Local, Memory
from support_rows import write_table


def test_names() -> None:
    """Parquet and Arrow files go by several endings, in any case."""
    assert all(map(owns, ("a.parquet", "b/c.PQ", "x.arrow", "y.feather"))) and not owns("a.parquet.txt")


def test_recognised_by_head_and_name(tmp_path: Path) -> None:
    """A table without a telling name is found by its first bytes; one beside images is metadata, not the dataset."""
    write_table(tmp_path / "x.parquet", {"a": {"x": 1}}).rename(tmp_path / "shard-0")
    assert stoker.open(tmp_path).index.format == "table"
    store = Memory()
    store.put("a.jpg", b"\xff\xd8\xff")
    store.put("meta.parquet", b"PAR1")
    assert source_of(store, Options()).format == "files"


@pytest.mark.parametrize("layout", ["parquet", "file", "stream"])
def test_values(tmp_path: Path, layout: str) -> None:
    """Every kind of cell has its value, whatever the file; nulls are None."""
    table = pa.table(
        {
            "i": pa.array([1, None], pa.int16()), "f": pa.array([0.5, 1.5], pa.float32()), "t": ["ä", None],
            "b": pa.array([b"\0\1", b""], pa.binary()), "l": pa.array([[1, 2], []], pa.list_(pa.int32())),
            "n": pa.array([[1, None], None], pa.list_(pa.int32())), "s": pa.array([["a"], ["b", "c"]]),
            "d": pa.array(["x", "y"]).dictionary_encode(), "ts": pa.array([1, 2], pa.timestamp("ns")),
            "k": pa.array([True, False]), "o": pa.array([{"p": 1}, None]),
            "fixed": pa.array([b"ab", b"cd"], pa.binary(2)),
        }
    )  # fmt: skip
    path = tmp_path / f"x.{'parquet' if layout == 'parquet' else 'arrow'}"
    if layout == "parquet":
        pq.write_table(table, path)
    else:
        with (pa.ipc.new_file if layout == "file" else pa.ipc.new_stream)(str(path), table.schema) as writer:
            writer.write_table(table)
    file = open_table(path)
    got = {name: file.read([0, 1], name) for name in table.column_names}
    file.close()
    assert got["i"] == [1, None] and got["i"][0].dtype == np.int16
    assert got["f"][1].dtype == np.float32 and got["k"] == [True, False]
    assert (got["t"], got["b"], got["fixed"]) == (["ä", None], [b"\0\1", b""], [b"ab", b"cd"])
    assert [one.tolist() for one in got["l"]] == [[1, 2], []]
    assert {one.dtype for one in got["l"]} == {np.dtype("int32")}
    assert (got["n"], got["s"], got["d"]) == ([[1, None], None], [["a"], ["b", "c"]], ["x", "y"])
    assert got["ts"] == [np.datetime64(1, "ns"), np.datetime64(2, "ns")]
    assert got["o"] == [{"p": 1}, None]


def test_a_null_is_a_missing_field(tmp_path: Path) -> None:
    """A row whose cell is null lacks the field: left out of the sample, a bad sample to a loader that asks for it."""
    write_table(tmp_path / "x.parquet", {str(n): {"x": n, **({} if n % 2 else {"y": n})} for n in range(8)})
    dataset = stoker.open(tmp_path)
    assert "y" not in dataset[3] and dataset[2]["y"] == 2
    loader = stoker.Loader(dataset, 4, fields={"y": int}, output="numpy", on_bad="skip", on_bad_max=0.6)
    with loader:
        assert sorted(int(one) for batch in loader for one in np.array(batch["y"])) == [0, 2, 4, 6]
        assert {bad.reason for bad in loader.bad} == {MissingFieldError.reason}


def test_few_groups_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only wanted columns of wanted groups are decoded, once while they are kept, and what is kept is bounded."""
    path = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(1000), "b": np.arange(1000)})
    pq.write_table(table, path, row_group_size=100)
    decoded: list[tuple[int, str]] = []
    decode = TableFile._decode

    def noted(self: TableFile, group: int, name: str) -> pa.ChunkedArray:
        decoded.append((group, name))
        return decode(self, group, name)

    monkeypatch.setattr(TableFile, "_decode", noted)
    monkeypatch.setattr(table_module, "DECODED_BYTES_MAX", 2_000)
    file = open_table(path)
    assert file.read([5, 950, 7, 5], "a") == [5, 950, 7, 5]
    assert file.read([99, 901], "a") == [99, 901]
    assert decoded == [(0, "a"), (9, "a")]
    file.read([500], "a")
    file.read([5], "a")
    assert decoded[2:] == [(5, "a"), (0, "a")]
    other = open_table(path)
    other.read([905], "a")  # what is kept is bounded over all files: this pushes out the oldest
    other.close()
    file.read([505, 6], "a")
    assert decoded[4:] == [(9, "a"), (5, "a")]
    file.close()


def test_threads_read_side_by_side(tmp_path: Path) -> None:
    """Eight threads on one file get what one gets."""
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"a": np.arange(5000)}), path, row_group_size=64)
    file = open_table(path)
    failures: list[int] = []

    def work(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, 5000, 300).tolist()
        if file.read(rows, "a") != rows:
            failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert not failures


def test_lengths(tmp_path: Path) -> None:
    """Lists count in elements, bytes in bytes, nulls and unknown columns as 0."""
    path = tmp_path / "x.parquet"
    lists = pa.array([[1, 2, 3], None, []], pa.list_(pa.uint16()))
    pq.write_table(pa.table({"l": lists, "b": pa.array([b"", b"abc", None], pa.binary())}), path, row_group_size=2)
    file = open_table(path)
    assert [file.lengths(name).tolist() for name in ("l", "b", "none")] == [[3, 0, 0], [0, 3, 0], [0, 0, 0]]
    file.close()


def test_a_damaged_page_is_a_bad_sample(tmp_path: Path) -> None:
    """A page whose checksum is wrong is an error of the rows of its group; other groups and columns are read."""
    path = tmp_path / "x.parquet"
    table = pa.table({"a": np.arange(2000) * 7919, "b": np.arange(2000)})
    pq.write_table(table, path, row_group_size=1000, write_page_checksum=True, compression="none", use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = data.find((np.arange(100, 104) * 7919).tobytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))
    file = open_table(path)
    with pytest.raises(SampleError, match=r"x\.parquet:a, rows 0 to 999: cannot be read"):
        file.read([3], "a")
    assert file.read([1003], "a") == [1003 * 7919] and file.read([3], "b") == [3]
    file.close()


def test_a_damaged_shard_is_refused(tmp_path: Path) -> None:
    """A cut table stops the building of an index, unless what is whole of the dataset is wanted."""
    write_table(tmp_path / "a.parquet", {"a": {"x": 1}})
    (tmp_path / "b.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(ShardError, match=r"b\.parquet"):
        stoker.open(tmp_path)
    source = source_of(Local(tmp_path), Options(damaged="keep"))
    assert build(source, Memory(), damaged="keep").samples == 1


@pytest.mark.parametrize("name", ["x.parquet", "x.arrow"])
def test_the_same_samples_give_the_same_bytes(tmp_path: Path, name: str) -> None:
    """A shard depends on its samples only."""
    samples = {str(n): {"x": np.arange(n), "t": f"{n}", "b": bytes(n)} for n in range(40)}
    one = write_table(tmp_path / name, samples).read_bytes()
    assert write_table(tmp_path / name, samples).read_bytes() == one
    assert [entry.key for entry in scan_table(tmp_path / name, "x").samples] == list(samples)


def test_many_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard larger than the writer's buffer becomes several row groups with all rows."""
    monkeypatch.setattr(table_module, "GROUP_BYTES", 1 << 14)
    path = write_table(tmp_path / "x.parquet", {str(n): {"x": np.full(500, n, np.int32)} for n in range(100)})
    assert pq.ParquetFile(path).metadata.num_row_groups > 5
    file = open_table(path)
    assert [int(one[0]) for one in file.read(range(100), "x")] == list(range(100))
    file.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": None}, "field 'x'.*NoneType"), ({"x": {"a": object()}}, "dict"), ({"x": [1, "a"]}, "list"),
        ({"x": np.zeros(3, complex)}, "complex128"), ({"x": "\ud800"}, "Unicode"), ({"x": np.zeros((0, 2))}, "float64"),
        ({"x": 2**70}, "this int"), ({"x": ["\ud800"]}, "this list"), ({"x": np.datetime64("NaT", "s")}, "datetime64"),
    ],
)  # fmt: skip
def test_what_cannot_be_held(tmp_path: Path, values: dict[str, object], message: str) -> None:
    """A value that a table cannot hold is an error that names the field; nothing of it is written."""
    writer = TableWriter(tmp_path / "x.parquet")
    with pytest.raises(UsageError, match=message):
        writer.add("k", values)
    writer.add("k", {"x": 1})
    writer.close()
    assert [one.key for one in scan_table(tmp_path / "x.parquet", "x").samples] == ["k"]


def test_a_value_that_would_not_be_read_back_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is larger than a reader takes is refused, whatever kind of value it is."""
    monkeypatch.setattr(table_types, "ROW_BYTES_MAX", 1_000)
    writer = TableWriter(tmp_path / "x.parquet")
    for value in (b"x" * 1_001, "x" * 1_001, np.zeros(126), ["x" * 500] * 3, {"x": "y" * 1_001}):
        with pytest.raises(UsageError, match="at most 1000 are written"):
            writer.add("k", {"x": value})


def test_rows_are_alike(tmp_path: Path) -> None:
    """A new field or another type than the first sample's is refused by name; so are other endings and empty tables."""
    writer = TableWriter(tmp_path / "x.parquet")
    writer.add("a", {"x": np.zeros(3), "y": 1, "z": np.zeros((2, 2))})
    for values in ({"y": 1.5}, {"new": 1}, {"z": np.zeros((2, 3))}):
        with pytest.raises(UsageError, match=r"sample 'b'.*'(y|new|z)'"):
            writer.add("b", values)
    writer.add("b", {"x": np.zeros(5)})
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.add("c", {})
    with pytest.raises(UsageError, match="written as"):
        TableWriter(tmp_path / "x.csv")
    with pytest.raises(UsageError, match="without a row"):
        TableWriter(tmp_path / "y.parquet").close()
