"""Laws of MDS: what is written is read, whatever the columns are; a cut is never silent."""

from __future__ import annotations

import io
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.format import FORMATS
from stoker.format.mds import MDSWriter
from stoker.format.values import decode_value
from stoker.testing.format_suite import BytesReader
from support_typed import mds_schema, mds_value, same

SEEDS = st.integers(0, 2**32)


def written(seed: int, count: int, *, keys: bool) -> tuple[bytes, list[dict[str, Any]]]:
    """A shard of a generated schema, and its values."""
    rng, out = random.Random(seed), io.BytesIO()
    columns = mds_schema(rng)
    writer = MDSWriter(out, columns=columns, keys=keys)
    samples = [{name: mds_value(rng, encoding) for name, encoding in columns.items()} for _ in range(count)]
    for n, values in enumerate(samples):
        writer.add(f"k/{n} ü" if keys else f"{n:08d}", values)
    assert writer.close() == len(out.getvalue())
    return out.getvalue(), samples


@given(seed=SEEDS, count=st.integers(0, 12), keys=st.booleans(), skip=st.sampled_from([1, 4096, 1 << 40]))
@settings(max_examples=100)
def test_round_trip(seed: int, count: int, keys: bool, skip: int) -> None:
    """Keys, order, values and types come back by any way of reading, and nothing is complained of."""
    data, samples = written(seed, count, keys=keys)
    scan = FORMATS["mds"].scan(BytesReader(data), skip_bytes_min=skip)
    assert [finding.severity for finding in scan.findings] == ([] if count else ["warning"])
    assert [one.key for one in scan.samples] == [f"k/{n} ü" if keys else f"{n:08d}" for n in range(count)]
    for one, values in zip(scan.samples, samples, strict=True):
        raw = {place.name: (place.codec, data[place.offset : place.offset + place.length]) for place in one.fields}
        found = {name: decode_value(codec, part) if codec else part for name, (codec, part) in raw.items()}
        assert found.keys() == values.keys()
        assert all(same(found[name], values[name]) for name in values)


@given(seed=SEEDS, cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=60)
def test_a_cut_is_never_silent(seed: int, cut: float) -> None:
    """A shard cut anywhere is an error, and what is found lies in what is left."""
    data, samples = written(seed, 5, keys=True)
    left = data[: int(cut * len(data))]
    scan = FORMATS["mds"].scan(BytesReader(left), skip_bytes_min=1)
    assert scan.errors and len(scan.samples) < len(samples)
    assert all(place.offset + place.length <= len(left) for one in scan.samples for place in one.fields)
