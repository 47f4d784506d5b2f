"""Tables with generated schemas: what stoker writes pyarrow reads, and the other way round; values and types equal."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stoker.format.table import open_table, scan_table
from support_rows import write_table

NUMBERS = ["bool", "int8", "uint8", "int16", "uint32", "int64", "uint64", "float16", "float32", "float64"]
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NAME = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(lambda name: name != "__key__")
NAMES = st.lists(NAME, min_size=1, max_size=4, unique=True)


def same(found: Any, wanted: Any) -> bool:
    """Equal in type, shape and value."""
    if isinstance(wanted, bytes | str):
        return type(found) is type(wanted) and found == wanted
    array, other = np.asarray(found), np.asarray(wanted)
    return (
        array.dtype == other.dtype
        and array.shape == other.shape
        and np.array_equal(array, other, equal_nan=other.dtype.kind == "f")
    )


@st.composite
def shards(draw: st.DrawFn) -> dict[str, dict[str, Any]]:
    """Samples alike; any but the first may lack fields."""
    columns = {}
    for name in draw(NAMES):
        dtype = draw(st.sampled_from(NUMBERS))
        flat = st.integers(0, 6).map(lambda side: (side,))
        deep = hnp.array_shapes(min_dims=2, max_dims=3, max_side=3)
        kinds = [
            hnp.from_dtype(np.dtype(dtype)),
            TEXTS,
            st.binary(max_size=20),
            st.integers(-(2**63), 2**63 - 1),
            st.floats(),
            hnp.arrays(dtype, flat),
            hnp.arrays(dtype, draw(deep)),
        ]
        columns[name] = draw(st.sampled_from(kinds))
    keys = draw(st.lists(TEXTS, min_size=1, max_size=6, unique=True))
    samples = {key: {name: draw(values) for name, values in columns.items()} for key in keys}
    for key in keys[1:]:
        for name in draw(st.sets(st.sampled_from(sorted(columns)))):
            del samples[key][name]
    return samples


@given(shards(), st.sampled_from(["x.parquet", "x.arrow"]))
@settings(max_examples=80)
def test_written_here(samples: dict[str, dict[str, Any]], name: str) -> None:
    """stoker and pyarrow read what stoker wrote: keys, order, values, types, and what is missing."""
    with tempfile.TemporaryDirectory() as folder:
        path = write_table(Path(folder) / name, samples)
        scan = scan_table(path, name)
        assert not scan.findings
        assert [one.key for one in scan.samples] == list(samples)
        table = pq.read_table(path) if name == "x.parquet" else pa.ipc.open_file(str(path)).read_all()
        file = open_table(path)
        for field in next(iter(samples.values())):
            theirs = table.column(field)
            for row, (value, sample) in enumerate(
                zip(file.read(range(len(samples)), field), samples.values(), strict=True)
            ):
                if field not in sample:
                    assert value is None and not theirs[row].is_valid
                    continue
                assert same(value, sample[field]), field
                if isinstance(sample[field], bytes | str):
                    assert theirs[row].as_py() == sample[field]
        file.close()


@given(
    st.lists(st.one_of(st.none(), st.lists(st.integers(0, 60_000), max_size=5)), min_size=1, max_size=30),
    st.integers(1, 8),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    st.sampled_from(["uint16", "int32", "float32", "int64"]),
)
@settings(max_examples=60)
def test_written_by_pyarrow(lists: list[list[int] | None], group: int, wanted: list[int], dtype: str) -> None:
    """stoker reads what pyarrow wrote, whatever the row groups, any rows in any order."""
    rows = [row % len(lists) for row in wanted]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        kind = pa.list_(pa.from_numpy_dtype(dtype))
        pq.write_table(pa.table({"x": pa.array(lists, kind)}), path, row_group_size=group)
        file = open_table(path)
        for row, value in zip(rows, file.read(rows, "x"), strict=True):
            held = lists[row]
            assert (value is None) if held is None else same(value, np.array(held, dtype))
        assert file.lengths("x").tolist() == [len(one or []) for one in lists]
        file.close()
