"""HDF5 shards: which rows are samples, what a row's value is, reading few chunks, processes and threads, the writer."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

import stoker
from stoker.cache import Cache
from stoker.dataset import Dataset
from stoker.errors import MissingExtraError, StoreError, UsageError
from stoker.format import guard
from stoker.format import hdf5 as hdf5_module
from stoker.format.hdf5 import CHUNK_BYTES, Hdf5Writer, open_hdf5, owns, scan_hdf5, spans
from stoker.format.hdf5_guard import runs_of
from stoker.index import Index, Options, build, source_of
from stoker.store import Local, Memory
from support_rows import write_hdf5


def test_names() -> None:
    """HDF5 files go by several endings, in any case."""
    assert all(map(owns, ("a.h5", "b/c.HDF5", "x.h5ad"))) and not any(map(owns, ("a.h", "h5", "a.h5.gz")))


def test_the_most_common_length_makes_the_samples() -> None:
    """Datasets of the commonest first dimension are the fields, of equally common the longest; the rest is told."""
    runs, left = runs_of({"a": 5, "g/b": 5, "c": 7, "d": 9})
    assert [(run.group, run.rows, dict(run.fields)) for run in runs] == [("", 5, {"a": "a", "g/b": "g/b"})]
    assert left == ["c", "d"]
    assert runs_of({"a": 5, "b": 7})[0][0].rows == 7
    assert runs_of({}) == ([], [])


def test_numbered_groups_are_runs() -> None:
    """Groups that differ in their number only follow each other, by number, with the fields that each has."""
    rows = {"data/demo_10/x": 3, "data/demo_2/x": 4, "data/demo_2/obs/y": 4, "data/demo_2/len": 1, "mask/train": 9}
    runs, left = runs_of(rows)
    assert [(run.group, run.rows, tuple(run.fields)) for run in runs] == [
        ("data/demo_2", 4, ("x", "obs/y")), ("data/demo_10", 3, ("x",)),
    ]  # fmt: skip
    assert left == ["data/demo_2/len", "mask/train"]


def test_groups_with_nothing_in_common_are_no_runs() -> None:
    """Layers of a model, or one numbered group alone, are parts of a path."""
    assert [run.group for run in runs_of({"g1/a": 3, "g2/b": 3})[0]] == [""]
    assert [run.group for run in runs_of({"g1/a": 3, "h/a": 3})[0]] == [""]


@pytest.mark.parametrize(
    ("rows", "chunk", "most", "expected"),
    [
        ([], 4, 9, []), ([3], 4, 9, [(0, 1)]), ([0, 1, 2, 3], 1, 9, [(0, 4)]), ([0, 3, 4], 4, 9, [(0, 3)]),
        ([0, 9], 4, 99, [(0, 1), (1, 2)]), ([0, 1, 2, 3], 1, 2, [(0, 2), (2, 4)]),
        ([0, 3, 9, 11], 4, 2, [(0, 1), (1, 2), (2, 3), (3, 4)]),
    ],
)  # fmt: skip
def test_spans(rows: list[int], chunk: int, most: int, expected: list[tuple[int, int]]) -> None:
    """Rows of one chunk, or next to each other, are one read; no read is longer than allowed."""
    assert spans(np.array(rows, np.int64), chunk, most) == expected


def test_values(tmp_path: Path) -> None:
    """Every kind of row has its value: numbers with their type, texts, bytes, lists, records, native byte order."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["number"] = np.array([1, 2], "f2")
        file["big"] = np.arange(6, dtype=">i4").reshape(2, 3)
        file["text"] = ["ä", "b"]
        file["fixed"] = np.array([b"ab", b"\xff"], "S4")
        file["truth"] = np.array([True, False])
        file["record"] = np.array([(1, 2.5), (3, 4.5)], [("a", "i4"), ("b", "f8")])
        file["opaque"] = np.array([np.void(b"\0\1"), np.void(b"\2\3")])
        for name, kind, given in (
            ("bytes", "u1", [b"abc", b""]), ("ragged", "i8", [[1, 2, 3], []]),
        ):  # fmt: skip
            dataset = file.create_dataset(name, (2,), h5py.vlen_dtype(np.dtype(kind)))
            for at, one in enumerate(given):
                dataset[at] = np.frombuffer(one, "u1") if isinstance(one, bytes) else np.array(one, kind)
        file["texts"] = np.array([["a", "b"], ["c", "d"]], h5py.string_dtype())
    file = open_hdf5(path)
    got = {name: file.read([1, 0], name) for name in file._names}
    file.close()
    assert got["number"] == [2, 1] and got["number"][0].dtype == np.float16
    assert got["big"][0].tolist() == [3, 4, 5] and got["big"][0].dtype == np.dtype("=i4")
    assert (got["text"], got["fixed"]) == (["b", "ä"], [b"\xff", "ab"])
    assert [bool(one) for one in got["truth"]] == [False, True]
    assert got["record"][0]["b"] == 4.5
    assert (got["opaque"], got["bytes"]) == ([b"\2\3", b"\0\1"], [b"", b"abc"])
    assert [one.tolist() for one in got["ragged"]] == [[], [1, 2, 3]]
    assert got["texts"] == [["c", "d"], ["a", "b"]]


def test_rows_repeat_and_come_in_any_order(tmp_path: Path) -> None:
    """Rows are given as asked, repeated ones too; a field that is not there is None for all."""
    path = write_hdf5(tmp_path / "x.h5", {str(n): {"x": n} for n in range(100)}, compression="gzip")
    file = open_hdf5(path)
    rows = [99, 3, 3, 0, 50, 99]
    assert file.read(rows, "x") == rows
    assert file.read([1, 2], "y") == [None, None] and file.read([], "x") == []
    assert file.read([7], "y;x") == [7]
    file.close()


def test_few_chunks_are_read(tmp_path: Path) -> None:
    """One row of a large dataset costs one chunk of about a MiB, not the dataset."""
    path = tmp_path / "x.h5"
    write_hdf5(
        path, {str(n): {"x": np.random.default_rng(n).integers(0, 255, 65_536).astype("u1")} for n in range(256)}
    )
    with h5py.File(path, "r") as opened:
        assert opened["x"].chunks == (CHUNK_BYTES // 65_536, 65_536)
    file = open_hdf5(path)
    file.read([0], "x")
    before = int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
    file.read([200], "x")
    after = int(Path("/proc/self/io").read_text().split("rchar: ")[1].split()[0])
    file.close()
    assert after - before < 3 * CHUNK_BYTES


def test_threads_read_side_by_side(tmp_path: Path) -> None:
    """Eight threads on one file get what one gets."""
    path = write_hdf5(tmp_path / "x.h5", {str(n): {"x": np.full(100, n)} for n in range(500)}, compression="lzf")
    file = open_hdf5(path)
    failures: list[object] = []

    def work(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, 500, 50).tolist()
        for row, value in zip(rows, file.read(rows, "x"), strict=True):
            if not (value == row).all():
                failures.append((seed, row))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    assert not failures


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_open_their_own(tmp_path: Path, method: str) -> None:
    """A dataset that was read already works in a child, however it was started, and in the parent afterwards."""
    write_hdf5(tmp_path / "x.h5", {str(n): {"x": n} for n in range(50)})
    dataset = stoker.open(tmp_path)
    assert dataset[7]["x"] == 7
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(dataset.__getitem__, range(50))[49]["x"] == 49
    assert dataset[8]["x"] == 8


def test_keys(tmp_path: Path) -> None:
    """Keys are those of the dataset `__key__`, which is no field; without it, row numbers."""
    path = write_hdf5(tmp_path / "x.h5", {"first/ä": {"x": 1}, "second": {"x": 2}})
    samples = scan_hdf5(path, "x").samples
    assert [one.key for one in samples] == ["first/ä", "second"]
    assert [place.name for place in samples[1].fields] == ["x"] and samples[1].fields[0].row == 1
    with h5py.File(tmp_path / "y.h5", "w") as file:
        file["x"] = [1, 2, 3]
    assert [one.key for one in scan_hdf5(tmp_path / "y.h5", "y").samples[1:]] == ["00000001", "00000002"]


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    """Of a dataset whose name is not UTF-8 the bytes are told; the others are read."""
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset(b"\xff\xfe", data=np.arange(3))
        file.create_dataset("x", data=np.arange(3))
    scan = scan_hdf5(tmp_path / "x.h5", "x.h5")
    assert len(scan.samples) == 3 and [place.name for place in scan.samples[0].fields] == ["x"]
    assert [(one.code, one.severity) for one in scan.findings] == [("name-not-text", "warning")]
    assert "b'\\xff\\xfe'" in scan.findings[0].message


def test_remote_files_need_a_cache(tmp_path: Path) -> None:
    """A remote file is indexed through a nameless copy, read through a cache, and without one an error says so."""
    store = Memory("far")
    store.put("a.h5", write_hdf5(tmp_path / "a.h5", {str(n): {"x": n} for n in range(9)}).read_bytes())
    build(source_of(store, Options()), Local(tmp_path), "built", scratch=tmp_path)
    index = Index(tmp_path / "built")
    with pytest.raises(StoreError, match="use a cache"):
        Dataset(store, index)[0]
    cached = Dataset(store, index, cache=Cache(tmp_path / "cache"))
    assert [cached[n]["x"] for n in range(9)] == list(range(9))
    assert not [one for one in tmp_path.iterdir() if one.name.startswith("tmp")]


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    """Without h5py the error says which extra to install; a table is read all the same."""
    path = write_hdf5(tmp_path / "a.h5", {"a": {"x": 1}})
    script = (
        "import sys\nsys.modules['h5py'] = None\n"
        "from pathlib import Path\nfrom stoker.format.hdf5 import Hdf5Writer\n"
        "try: Hdf5Writer(Path(sys.argv[1]))\nexcept ImportError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert "pip install 'stoker[hdf5]'" in done.stdout


def test_the_helper_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that looks reports a missing library as such, not as a damaged file."""
    (tmp_path / "h5py").mkdir()
    (tmp_path / "h5py" / "__init__.py").write_text("raise ImportError('no HDF5 here')")
    guard.stop()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    try:
        with pytest.raises(MissingExtraError, match="no HDF5 here"):
            scan_hdf5(tmp_path / "x.h5", "x")
    finally:
        guard.stop()


def test_the_same_samples_give_the_same_bytes(tmp_path: Path) -> None:
    """A shard depends on its samples only, not on when, where or in how many flushes it was written."""
    samples = {str(n): {"x": np.arange(n, n + 5), "t": f"{n}", "b": bytes(n)} for n in range(40)}
    one = write_hdf5(tmp_path / "a.h5", samples).read_bytes()
    os.utime(tmp_path / "a.h5", (1, 1))
    assert write_hdf5(tmp_path / "b.h5", samples).read_bytes() == one


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": None}, "field 'x'.*NoneType"), ({"x": {"a": 1}}, "dict"), ({"x": [[1], [1, 2]]}, "list"),
        ({"x": np.zeros((0, 3))}, r"float64 \(0, 3\)"), ({"x": "a\0b"}, "NUL"), ({"a/../x": 1}, "path"),
        ({"": 1}, "path"), ({"a": 1, "a/b": 1}, "dataset and a group"), ({"x": np.array(["a"])}, "<U1"),
    ],
)  # fmt: skip
def test_what_cannot_be_held(tmp_path: Path, values: dict[str, object], message: str) -> None:
    """A value that HDF5 cannot hold is an error that names the field; nothing of it is written, the writer lives on."""
    writer = Hdf5Writer(tmp_path / "x.h5")
    with pytest.raises(UsageError, match=message):
        writer.add("k", values)
    writer.add("k", {"x": 1})
    writer.close()
    assert [one.key for one in scan_hdf5(tmp_path / "x.h5", "x").samples] == ["k"]


def test_rows_are_alike(tmp_path: Path) -> None:
    """Another shape, type or set of fields than the first sample's is refused by name; so is adding after the end."""
    writer = Hdf5Writer(tmp_path / "x.h5")
    writer.add("a", {"x": np.zeros(3), "y": 1})
    for values in ({"x": np.zeros(4), "y": 1}, {"x": np.zeros(3), "y": 1.5}, {"x": np.zeros(3)}):
        with pytest.raises(UsageError, match=r"sample 'b': field '[xy]' is"):
            writer.add("b", values)
    writer.close()
    with pytest.raises(UsageError, match="closed"):
        writer.add("c", {"x": np.zeros(3), "y": 1})
    with pytest.raises(UsageError, match="gzip or lzf"):
        Hdf5Writer(tmp_path / "y.h5", compression="zstd")


def test_many_flushes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard larger than the writer's buffer has all its rows."""
    monkeypatch.setattr(hdf5_module, "CHUNK_BYTES", 1 << 12)
    path = write_hdf5(
        tmp_path / "x.h5",
        {f"k{n}": {"x": np.full(500, n), "r": np.arange(n % 5), "b": b"z" * n} for n in range(300)},
        ragged=frozenset({"r"}), compression="gzip",
    )  # fmt: skip
    file = open_hdf5(path)
    assert [one[0] for one in file.read(range(300), "x")] == list(range(300))
    assert file.lengths("r").tolist() == [n % 5 for n in range(300)]
    assert file.lengths("b").tolist() == list(range(300))
    assert file.lengths("x").tolist() == [500] * 300
    file.close()


def test_a_loader_over_hdf5(tmp_path: Path) -> None:
    """Rows come as batches of arrays, each sample once an epoch, robot layouts included."""
    with h5py.File(tmp_path / "demo.h5", "w") as file:
        for demo, rows in ((0, 29), (1, 20), (10, 35)):
            file[f"data/demo_{demo}/actions"] = np.full((rows, 7), demo, "f4")
            file[f"data/demo_{demo}/obs/rgb"] = np.zeros((rows, 8, 8, 3), "u1")
    with stoker.Loader(stoker.open(tmp_path), 12, output="numpy") as loader:
        batches = [{name: np.array(batch[name]) for name in ("__index__", "actions", "obs/rgb")} for batch in loader]
    assert len(batches) == 7
    assert batches[0]["obs/rgb"].shape == (12, 8, 8, 3)
    for batch in batches:
        expected = np.array([0, 1, 10])[np.searchsorted([29, 49], batch["__index__"], side="right")]
        assert (batch["actions"] == expected[:, None]).all()
    assert len(np.unique(np.concatenate([batch["__index__"] for batch in batches]))) == 84
