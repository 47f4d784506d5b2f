"""Laws of the WebDataset format: what is written is read, by us and by the standard library; a cut is never silent."""

from __future__ import annotations

import io
import tarfile

from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.format import WebDataset
from stoker.format.codec import COMPRESSIONS, detect, expanded
from stoker.testing.format_suite import BytesReader
from support_format import shard

PART = st.text(st.characters(codec="utf-8", exclude_characters="./\0"), min_size=1, max_size=40).filter(
    lambda text: text.lower() not in ("__macosx", "_stoker")
)
KEYS = st.lists(PART, min_size=1, max_size=4).map("/".join)
FIELDS = st.from_regex(r"[a-z0-9]{1,8}(\.[a-z0-9]{1,4})?", fullmatch=True)
SAMPLES = st.dictionaries(KEYS, st.dictionaries(FIELDS, st.binary(max_size=1500), min_size=1, max_size=3), max_size=8)


@given(samples=SAMPLES, skip_bytes_min=st.sampled_from([1, 512, 65_536, 1 << 40]))
@settings(max_examples=150, deadline=None)
def test_round_trip(samples: dict[str, dict[str, bytes]], skip_bytes_min: int) -> None:
    """A scan of a written shard gives the samples back, and tarfile finds the same members."""
    data = shard(samples)
    scan = WebDataset().scan(BytesReader(data), skip_bytes_min=skip_bytes_min)
    found = {
        one.key: {place.name: data[place.offset : place.offset + place.length] for place in one.fields}
        for one in scan.samples
    }
    assert found == samples
    with tarfile.open(fileobj=io.BytesIO(data)) as file:
        members = {info.name: data[info.offset_data : info.offset_data + info.size] for info in file}
    assert members == {f"{key}.{field}": value for key, fields in samples.items() for field, value in fields.items()}


@given(samples=SAMPLES.filter(len), cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=150, deadline=None)
def test_a_cut_is_never_silent(samples: dict[str, dict[str, bytes]], cut: float) -> None:
    """A shard that ends before its end mark has an error, and what is found is a beginning of what was written."""
    data = shard(samples)
    whole = WebDataset().scan(BytesReader(data), skip_bytes_min=65_536)
    end = max(place.offset + place.length for one in whole.samples for place in one.fields)
    left = data[: int(cut * end)]
    scan = WebDataset().scan(BytesReader(left), skip_bytes_min=65_536)
    assert scan.errors
    assert [one.key for one in scan.samples] == [one.key for one in whole.samples][: len(scan.samples)]
    for one, written in zip(scan.samples, whole.samples, strict=False):
        assert one.fields == written.fields[: len(one.fields)]


@given(data=st.binary(max_size=4096))
@settings(max_examples=200, deadline=None)
def test_any_bytes_are_scanned(data: bytes) -> None:
    """Whatever the bytes are, a scan ends without raising and has something to say about them."""
    assert WebDataset().scan(BytesReader(data), skip_bytes_min=512).findings


@given(samples=SAMPLES, compression=st.sampled_from(["gzip", "zstd"]), step=st.integers(1, 5000))
@settings(max_examples=60, deadline=None)
def test_compressed_round_trip(samples: dict[str, dict[str, bytes]], compression: str, step: int) -> None:
    """A compressed shard is recognised by content and expands to the plain one, fed in any steps."""
    assert compression in COMPRESSIONS
    packed = shard(samples, compression=compression)
    assert detect(packed[:10]) == compression
    pieces = [packed[at : at + step] for at in range(0, len(packed), step)]
    assert b"".join(expanded(pieces, compression)) == shard(samples)
