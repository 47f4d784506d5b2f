"""Laws of TFRecord: what is written is read, whatever the features are."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stoker.format import FORMATS
from stoker.format.codec import expanded
from stoker.format.values import decode_value
from stoker.testing.format_suite import BytesReader
from support_typed import same, tfrecord

INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32)
LENGTHS = st.integers(2, 20) | st.just(0)  # one is read as a scalar
VALUES = st.one_of(
    st.binary(max_size=300), INT64, FLOAT32, st.lists(st.binary(max_size=20), min_size=2, max_size=5),
    LENGTHS.flatmap(lambda n: arrays.arrays(np.int64, n, elements=INT64)),
    LENGTHS.flatmap(lambda n: arrays.arrays(np.float32, n, elements=FLOAT32)),
    arrays.arrays(np.int64, arrays.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=INT64),
    arrays.arrays(np.float32, arrays.array_shapes(min_dims=2, max_dims=2, max_side=5), elements=FLOAT32),
)  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda name: name != "__key__")
KEYS = st.text(st.characters(codec="utf-8"), max_size=30)
SAMPLES = st.dictionaries(KEYS, st.dictionaries(NAMES, VALUES, min_size=1, max_size=5), max_size=6)


@given(samples=SAMPLES, compression=st.sampled_from(["", "gzip", "zlib"]), skip=st.sampled_from([1, 4096, 1 << 40]))
@settings(max_examples=150)
def test_round_trip(samples: dict[str, dict[str, Any]], compression: str, skip: int) -> None:
    """Keys, order, names, values and types come back, and nothing is complained of."""
    data = tfrecord(samples, compression=compression)
    kind = FORMATS["tfrecord"]
    if compression and samples:
        assert kind.compression(data[:512]) == compression
    if compression:
        data = b"".join(expanded([data], compression))
    scan = kind.scan(BytesReader(data), skip_bytes_min=skip)
    assert [finding.severity for finding in scan.findings] == ([] if samples else ["warning"])
    assert [one.key for one in scan.samples] == list(samples)
    for one, values in zip(scan.samples, samples.values(), strict=True):
        raw = {place.name: (place.codec, data[place.offset : place.offset + place.length]) for place in one.fields}
        found = {name: decode_value(codec, part) if codec else part for name, (codec, part) in raw.items()}
        assert found.keys() == values.keys()
        assert {name: (found[name], values[name]) for name in values if not same(found[name], values[name])} == {}
