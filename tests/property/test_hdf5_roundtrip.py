"""HDF5 with generated schemas: stoker writes and h5py reads; h5py writes and stoker reads; values and types equal."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.format.hdf5 import open_hdf5, scan_hdf5
from support_rows import write_hdf5

NUMBERS = ["bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64", "complex64"]
NAME = st.from_regex(r"\A[a-zäß_][a-z0-9 ._äß-]{0,8}(/[a-z0-9äß]{1,5})?\Z").filter(lambda name: name != "__key__")
NAMES = st.lists(NAME, min_size=1, max_size=4, unique_by=lambda name: name.split("/")[0])
TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


def same(found: Any, given_value: Any) -> bool:
    """Equal in type, shape and every bit pattern that compares."""
    if isinstance(given_value, bytes | str):
        return type(found) is type(given_value) and found == given_value
    array, wanted = np.asarray(found), np.asarray(given_value)
    return (
        array.dtype == wanted.dtype
        and array.shape == wanted.shape
        and np.array_equal(array, wanted, equal_nan=wanted.dtype.kind in "fc")
    )


@st.composite
def column(draw: st.DrawFn) -> tuple[str, Any]:
    """A kind of field, and the strategy of its values."""
    kind = draw(st.sampled_from(["number", "array", "ragged", "text", "bytes", "int", "float"]))
    dtype = draw(st.sampled_from(NUMBERS))
    if kind == "number":
        return kind, hnp.from_dtype(np.dtype(dtype))
    if kind == "array":
        return kind, hnp.arrays(dtype, draw(hnp.array_shapes(max_dims=3, max_side=4)))
    if kind == "ragged":
        return kind, hnp.arrays(dtype, st.integers(0, 6).map(lambda side: (side,)))
    return kind, {
        "text": TEXTS,
        "bytes": st.binary(max_size=20),
        "int": st.integers(-(2**63), 2**63 - 1),
        "float": st.floats(),
    }[kind]


@st.composite
def shards(draw: st.DrawFn) -> tuple[dict[str, dict[str, Any]], frozenset[str]]:
    """Samples alike, and which fields are ragged."""
    columns = {name: draw(column()) for name in draw(NAMES)}
    keys = draw(st.lists(TEXTS, min_size=1, max_size=6, unique=True))
    samples = {key: {name: draw(values) for name, (_, values) in columns.items()} for key in keys}
    return samples, frozenset(name for name, (kind, _) in columns.items() if kind == "ragged")


def read_by_h5py(path: Path, name: str) -> list[Any]:
    with h5py.File(path, "r") as file:
        dataset = file[name]
        text = h5py.check_string_dtype(dataset.dtype) is not None
        return list(dataset.asstr()[:] if text else dataset[:])


@given(shards(), st.sampled_from([None, "gzip", "lzf"]))
@settings(max_examples=60)
def test_written_here(shard: tuple[Mapping[str, Mapping[str, Any]], frozenset[str]], compression: str | None) -> None:
    """h5py and stoker read what stoker wrote: keys, order, values, types."""
    samples, ragged = shard
    with tempfile.TemporaryDirectory() as folder:
        path = write_hdf5(Path(folder) / "x.h5", samples, compression=compression, ragged=ragged)
        scan = scan_hdf5(path, "x.h5")
        assert not scan.findings
        assert [one.key for one in scan.samples] == list(samples)
        file = open_hdf5(path)
        for name in next(iter(samples.values())):
            ours, theirs = file.read(range(len(samples)), name), read_by_h5py(path, name)
            for value, other, sample in zip(ours, theirs, samples.values(), strict=True):
                assert same(value, sample[name]), (name, value)
                other = other.tobytes() if isinstance(sample[name], bytes) else other
                assert same(other, sample[name]), (name, other)
        file.close()


SHAPES = st.tuples(st.just(5), st.integers(1, 4), st.integers(1, 3))
ARRAYS = hnp.arrays(st.sampled_from([*NUMBERS, ">i4", ">f8", "S3"]), SHAPES)


@given(
    st.dictionaries(st.sampled_from(["a", "b/c", "b/d", "e"]), ARRAYS, min_size=1),
    st.sampled_from([None, (1, 1, 1), (2, 1, 2), (5, 4, 3)]),
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
)
@settings(max_examples=60)
def test_written_by_h5py(arrays: dict[str, Any], chunks: tuple[int, ...] | None, rows: list[int]) -> None:
    """stoker reads what h5py wrote, in any chunks, any rows in any order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.h5"
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                fits = chunks is not None and all(a <= b for a, b in zip(chunks, array.shape, strict=True))
                file.create_dataset(
                    name, data=array, chunks=chunks if fits else None, compression="gzip" if fits else None
                )
        opened = open_hdf5(path)
        for name, array in arrays.items():
            for row, value in zip(rows, opened.read(rows, name), strict=True):
                if array.dtype.kind == "S":
                    assert _texts(value) == array[row].tolist()
                else:
                    assert same(value, array[row].astype(array.dtype.newbyteorder("="))), name
        opened.close()


def _texts(value: Any) -> Any:
    """Texts as the bytes that they were."""
    if isinstance(value, list):
        return [_texts(one) for one in value]
    return value.encode() if isinstance(value, str) else value
