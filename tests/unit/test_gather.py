"""Copying samples straight out of mapped shards: the same values as the ordinary reader gives, or left to it."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.dataset import Dataset, Gatherer, tokens
from stoker.dataset.copying import copy_rows
from stoker.dataset.shard_maps import CHECK_EVERY_S
from stoker.dataset.token_plan import WindowPlan
from stoker.errors import ChangedError
from stoker.events import Events
from support_rows import arrays_bytes, documents
from support_tokens import COUNTS, WRITERS


def rows_folder(folder: Path, shards: int = 3, rows: int = 20) -> Path:
    """Shards of three fields, one of them big-endian where its name says so."""
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(5)
    for shard in range(shards):
        samples = {
            f"{shard}-{row}": {
                "tokens": random.integers(0, 9_999, 2_048, dtype=np.int32),
                "label": np.int64(100 * shard + row),
                "flags": random.integers(0, 2, 5).astype(bool),
            }
            for row in range(rows)
        }
        (folder / f"{shard}.arrays.bin").write_bytes(arrays_bytes(samples))
    return folder


def gatherer(dataset: Dataset, *names: str, recorder: Any = None) -> Gatherer | None:
    """The gatherer of a fresh reader."""
    reader = dataset.reader(names) if recorder is None else dataset.reader(names, recorder)
    return reader.gatherer(names)


def gathered(found: Gatherer, samples: list[int]) -> dict[str, np.ndarray]:
    """The fields of *samples* by the gatherer."""
    located = found.locate(np.array(samples))
    assert located is not None
    outs = {name: np.zeros((len(samples), *shape), dtype) for name, (shape, dtype) in found.shapes.items()}
    located.fill(outs)
    return outs


def assert_same(outs: dict[str, np.ndarray], dataset: Dataset, samples: list[int]) -> None:
    for row, sample in enumerate(samples):
        expected = dataset[sample]
        for name, values in outs.items():
            assert np.array_equal(values[row], expected[name]), (sample, name)


@given(
    nbytes=st.sampled_from([1, 5, 64, 96, 512, 4096, 6000]),
    places=st.lists(st.integers(0, 30), min_size=0, max_size=40),
    step=st.sampled_from([1, 8, 64, 96, 4096]),
)
def test_rows_are_copied_from_anywhere(nbytes: int, places: list[int], step: int) -> None:
    """Whatever the rows' lengths and distances, each row of the target is the bytes at its address."""
    memory = np.random.default_rng(1).integers(0, 256, 31 * 4096 + 6000).astype(np.uint8)
    out = np.zeros((len(places), nbytes), np.uint8)
    copy_rows(memory.ctypes.data + step * np.array(places, np.int64), out)
    for row, place in enumerate(places):
        assert np.array_equal(out[row], memory[place * step : place * step + nbytes])


def test_rows_of_arrays(tmp_path: Path) -> None:
    """Samples of several shards, in any order and twice, all fields or some, as the ordinary reader gives them."""
    dataset = stoker.open(rows_folder(tmp_path))
    samples = [59, 0, 20, 19, 41, 41, 7]
    for names in (("tokens", "label", "flags"), ("label",), ("tokens",)):
        found = gatherer(dataset, *names)
        assert found is not None and set(found.shapes) == set(names)
        assert_same(gathered(found, samples), dataset, samples)


@pytest.mark.parametrize("kind", ["npy", "bytes", "mds ndarray", "mds ndarray:int32", "mds bytes"])
@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("windows", ["concat", "per_document"])
def test_windows(tmp_path: Path, kind: str, eos: int | None, windows: Any) -> None:
    """Windows over documents with and without heads, over shards, with end tokens, however they are cut."""
    told = WRITERS[kind](tmp_path, documents(11, COUNTS))
    dataset = tokens(stoker.open(tmp_path), **told, length=64, eos=eos, windows=windows)
    found = gatherer(dataset, "tokens", "document")
    assert found is not None
    samples = [*range(min(20, len(dataset))), len(dataset) - 1, len(dataset) // 2]
    assert_same(gathered(found, samples), dataset, samples)


def test_windows_of_another_width(tmp_path: Path) -> None:
    """Documents of uint16 in rows of one length give windows of int32 that run over the borders of the rows."""
    found = documents(2, [128] * 20, "uint16")
    samples = {f"{number}": {"tokens": document} for number, document in enumerate(found)}
    (tmp_path / "x.arrays.bin").write_bytes(arrays_bytes(samples))
    dataset = tokens(stoker.open(tmp_path), length=100)
    made = gatherer(dataset, "tokens")
    assert made is not None
    assert_same(gathered(made, [24, 0, 3, 1]), dataset, [24, 0, 3, 1])


@given(data=st.data())
def test_the_cut_of_many_windows_is_that_of_each(data: st.DataObject) -> None:
    """All windows at once are cut into the same pieces as one by one, documents without tokens among them."""
    elements = np.array(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=30)), np.int64)
    length, eos = data.draw(st.integers(1, 17)), data.draw(st.booleans())
    kind: Any = data.draw(st.sampled_from(["concat", "per_document"]))
    plan = WindowPlan(elements, length=length, eos=eos, windows=kind)
    if not plan.windows:
        return
    windows = data.draw(st.lists(st.integers(0, plan.windows - 1), min_size=1, max_size=8))
    rows, *rest = plan.cut(np.array(windows))
    found = list(zip(rows.tolist(), *(one.tolist() for one in rest), strict=True))
    expected = [
        (row, one.document, one.start, one.stop) for row, window in enumerate(windows) for one in plan.pieces(window)
    ]
    assert found == expected


def test_shards_of_another_kind_are_left_to_the_reader(tmp_path: Path) -> None:
    """A dataset whose shards hold arrays of differing dtype still gives every value."""
    rows_folder(tmp_path, shards=1)
    wider = {f"w{row}": {"tokens": np.arange(2_048) + row, "label": np.int64(row), "flags": np.ones(5, bool)}
             for row in range(4)}  # fmt: skip
    (tmp_path / "z.arrays.bin").write_bytes(arrays_bytes(wider))
    dataset = stoker.open(tmp_path)
    found = gatherer(dataset, "tokens")
    assert found is not None
    assert found.locate(np.array([1, 2])) is not None
    assert found.locate(np.array([1, 22])) is None


def test_what_needs_decoding_is_not_gathered(tmp_path: Path) -> None:
    """Fields that no dataset of rows has, and formats that are none, have no gatherer."""
    dataset = stoker.open(rows_folder(tmp_path / "rows"))
    assert gatherer(dataset, "tokens", "nothing") is None
    (tmp_path / "tar").mkdir()
    told = WRITERS["npy"](tmp_path / "tar", documents(1, [64] * 8))
    assert gatherer(stoker.open(tmp_path / "tar"), str(told["column"])) is None


def test_a_file_cut_short_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mapped shard that shrinks is named at the next look, before the missing part is touched."""
    dataset = stoker.open(rows_folder(tmp_path))
    found = gatherer(dataset, "label")
    assert found is not None
    gathered(found, [0, 30])
    monkeypatch.setattr("stoker.dataset.shard_maps.CHECK_EVERY_S", -CHECK_EVERY_S)
    os.truncate(tmp_path / "1.arrays.bin", 100_000)
    with pytest.raises(ChangedError, match=r"1\.arrays\.bin.*found 100000"):
        found.locate(np.array([0]))


@contextmanager
def few_files(count: int) -> Iterator[None]:
    """This process may have only so many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    """Mappings are let go of when there are too many, and what is being copied stays mapped."""
    dataset = stoker.open(rows_folder(tmp_path, shards=40, rows=2))
    found = gatherer(dataset, "label")
    assert found is not None
    with few_files(512 + 2 * 16):
        early = found.locate(np.array([0, 79]))
        for first in range(0, 80, 2):
            assert gathered(found, [first])["label"][0] == dataset[first]["label"]
        outs = {"label": np.zeros(2, np.int64)}
        assert early is not None
        early.fill(outs)
    assert outs["label"].tolist() == [dataset[0]["label"], dataset[79]["label"]]


def test_through_the_cache(tmp_path: Path) -> None:
    """What the cache does not hold is left to the reader; warmed, it is copied out of the cache's files."""
    rows_folder(tmp_path / "data")
    cache = stoker.Cache(tmp_path / "cache", limit="1GB")
    dataset = stoker.open(tmp_path / "data", cache=cache)
    recorder = Events()
    found = gatherer(dataset, "tokens", "label", recorder=recorder)
    assert found is not None
    assert found.locate(np.array([0, 30])) is None
    cache.warm(dataset)
    assert_same(gathered(found, [0, 30]), dataset, [0, 30])
    assert recorder.totals()["read.mapped_bytes"] == 2 * (2_048 * 4 + 8 + 5)
    for shard in range(3):
        (tmp_path / "data" / f"{shard}.arrays.bin").unlink()
    assert gathered(found, [59])["label"].tolist() == [219]


def test_a_loader_gives_what_the_dataset_holds(tmp_path: Path) -> None:
    """Batches that are copied have values, keys and numbers like any other, over the seam of two epochs."""
    dataset = stoker.open(rows_folder(tmp_path))
    with stoker.Loader(dataset, 8, seed=3, output="numpy") as loader:
        for _ in range(2):
            batches = list(loader)
            assert len(batches) == 7
            for batch in batches:
                samples = batch["__index__"].tolist()
                assert_same({name: batch[name] for name in ("tokens", "label", "flags")}, dataset, samples)
                assert batch["__key__"] == [dataset[sample]["__key__"] for sample in samples]
        assert loader.report().counts["read.mapped_bytes"] > 0
