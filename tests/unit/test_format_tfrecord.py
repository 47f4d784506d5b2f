"""TFRecord: framing, compression, Examples and SequenceExamples without TensorFlow."""

from __future__ import annotations

import gzip
import io
import random
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

import stoker
from stoker.errors import SampleError, ShardError, UsageError
from stoker.format import FORMATS
from stoker.format.proto import ProtoError, decode_feature, encode, features, message
from stoker.format.tfrecord import TFRecordWriter, begins, masked
from stoker.format.values import decode_value
from stoker.testing.format_suite import BytesReader
from support_typed import indexed, same, tfrecord

VALUES: dict[str, Any] = {
    "image": b"\xff\xd8" * 500,
    "label": 7,
    "negative": -1,
    "weight": 0.25,
    "ids": np.array([0, -(2**63), 2**63 - 1, 127, 128]),
    "floats": np.array([1.5, np.nan, -np.inf], np.float32),
    "names": [b"one", b"", b"three"],
    "none": np.array([], np.int64),
    "empty": b"",
}
SEQUENCE: dict[str, Any] = {
    "label": 3,
    "fixed": np.arange(12).reshape(4, 3),
    "column": np.array([[1.5], [2.5]], np.float32),
    "ragged": [np.array([1, 2]), np.array([], np.int64), np.array([3])],
    "words": [[b"a"], [b"b", b"c"], []],
}


def read_back(record: bytes) -> dict[str, Any]:
    """All values of a record."""
    found = {}
    for one in features(record):
        raw = record[one.offset : one.offset + one.length]
        found[one.name] = decode_value(f"tf:{one.codec}", raw) if one.codec else raw
    return found


def opened(folder: Path, data: bytes, name: str = "x.tfrecord") -> stoker.Dataset:
    """A dataset of one file."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return stoker.open(folder)


def framed(*records: bytes) -> bytes:
    """A file of these records."""
    out = b""
    for record in records:
        length = len(record).to_bytes(8, "little")
        sums = [masked(google_crc32c.value(data)).to_bytes(4, "little") for data in (length, record)]
        out += length + sums[0] + record + sums[1]
    return out


@pytest.mark.parametrize("values", [VALUES, SEQUENCE], ids=["Example", "SequenceExample"])
def test_values_come_back(values: dict[str, Any]) -> None:
    """Bytes, numbers, fixed and ragged lists, steps: what is written is read, with type and shape."""
    found = read_back(encode(values))
    assert found.keys() == values.keys()
    assert {name for name in values if not same(found[name], values[name])} == set()


@pytest.mark.parametrize("compression", ["", "gzip", "zlib"])
def test_a_dataset_opens(tmp_path: Path, compression: str) -> None:
    """Samples, keys, order and values, plain and compressed as a whole, without and with a cache."""
    samples = {f"key {n}": {**VALUES, "number": n} for n in range(20)}
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.tfrecord").write_bytes(tfrecord(samples, compression=compression))
    for dataset in (stoker.open(tmp_path / "data"), stoker.open(tmp_path / "data", cache=tmp_path / "cache")):
        assert (len(dataset), dataset.index.format) == (20, "tfrecord")
        assert next(dataset.index.objects()).compression == compression
        for n, (key, values) in enumerate(samples.items()):
            found = dataset[n]
            assert (found.pop("__key__"), found.pop("__index__")) == (key, n)
            assert bytes(found.pop("image")) == values["image"]
            assert all(same(bytes(x) if isinstance(x, memoryview) else x, values[name]) for name, x in found.items())


def test_records_that_are_no_examples(tmp_path: Path) -> None:
    """Any other record has one field, `record`; keys are rows."""
    records = [b"", b"a", b"\xff" * 300, b"plain text", b"\x0a\x00", encode({"x": 1})]
    dataset = opened(tmp_path / "data", framed(*records))
    found = [dataset[n] for n in range(6)]
    assert [bytes(one["record"]) for one in found[:5]] == records[:5]
    assert [one["__key__"] for one in found] == [f"{n:08d}" for n in range(6)]
    assert found[5]["x"] == 1 and "record" not in found[5]


@pytest.mark.parametrize(
    ("name", "owned"),
    [
        ("a/x.tfrecord", True), ("x.tfrecord.gz", True), ("x.TFRecords", True),
        ("data_tfrecord-00000-of-00012.gz", True), ("train-00000-of-01024", True), ("x.tfe-tfrecord", True),
        ("x.tfrecord-00000-of-00002", True), ("x.tfrec", True),
        ("adult.recordio.gz", True), ("data_tfrecord_eval.gz", True), ("x.tfrecord.idx", False), ("tfrecords", False),
        ("imagenet_tfrecords", False), ("d.array_record-00000-of-00002", False), ("x-00000-of-00002.parquet", False),
        ("notes.txt", False),
    ],
)  # fmt: skip
def test_names(name: str, owned: bool) -> None:
    """The usual names of TFRecords are known; side files and folders of that name are not taken for them."""
    assert FORMATS["tfrecord"].owns(name) is owned


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_content_tells_what_no_name_does(tmp_path: Path, pack: Any) -> None:
    """A valid first record is recognised, compressed or not; a gzip of something else is not."""
    samples = {f"key {n}": {"x": n} for n in range(20)}
    data = pack(tfrecord(samples))
    assert begins(data[:512]) and len(opened(tmp_path / "data", data, "part0")) == 20
    assert not begins(gzip.compress(bytes(1000))) and not begins(b"\x78\x9cno") and not begins(b"")


def test_side_files_are_passed_over(tmp_path: Path) -> None:
    """An .idx of another loader is no shard; it is counted."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.tfrecord.idx").write_text("0 100\n")
    dataset = opened(tmp_path / "data", tfrecord({"k": {"x": 1}}))
    assert len(dataset) == 1
    assert [one["code"] for one in dataset.index.manifest.extra["findings"]] == ["not-a-shard"]


def test_a_damaged_record_costs_only_itself() -> None:
    """A wrong checksum of data is an error that names the record; those around it are found."""
    data = bytearray(tfrecord({f"key {n}": {"x": bytes(50)} for n in range(10)}))
    data[len(data) // 2 + 30] ^= 4
    scan = FORMATS["tfrecord"].scan(BytesReader(bytes(data)), skip_bytes_min=1)
    assert len(scan.samples) == 9
    assert "record 5: data CRC mismatch" in scan.errors[0].message


def test_a_git_lfs_pointer_is_told() -> None:
    """The hint says what to do."""
    data = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    assert "git lfs pull" in FORMATS["tfrecord"].scan(BytesReader(data), skip_bytes_min=1).errors[0].message


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out += bytes([value & 127 | 128])
        value >>= 7
    return out + bytes([value])


def part(number: int, payload: bytes) -> bytes:
    """A length-delimited field, by hand."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def feature(name: str, value: bytes) -> bytes:
    """An Example of one feature, by hand."""
    return part(1, part(1, part(1, name.encode()) + part(2, value)))


def test_numbers_not_packed_are_read() -> None:
    """Repeated fields one by one, packed, or both, as protobuf allows."""
    single = b"".join(b"\x08" + varint(n) for n in (5, 300))
    assert read_back(feature("u", part(3, single)))["u"].tolist() == [5, 300]
    assert read_back(feature("u", part(3, single + part(1, b"\x07\x08"))))["u"].tolist() == [5, 300, 7, 8]
    floats = b"\x0d" + np.float32(2.5).tobytes()
    assert read_back(feature("v", part(2, floats)))["v"] == 2.5
    assert read_back(feature("v", part(2, floats * 2)))["v"].tolist() == [2.5, 2.5]


def test_unknown_fields_are_skipped() -> None:
    """Fields of other numbers and wire types stand everywhere without harm."""
    strange = (
        varint(15 << 3) + b"\x05" + varint(9 << 3 | 1) + bytes(8) + varint(10 << 3 | 5) + bytes(4) + part(12, b"?")
    )
    value = strange + part(3, strange + part(1, b"\x09") + strange) + strange
    record = strange + part(1, strange + part(1, strange + part(1, b"x") + part(2, value) + strange)) + strange
    assert read_back(record) == {"x": 9}


def test_of_a_name_that_comes_twice_the_last_counts() -> None:
    """So does the last kind of a feature; lists of one kind in pieces are joined."""
    assert read_back(feature("x", part(3, b"\x08\x01")) + feature("x", part(3, b"\x08\x02"))) == {"x": 2}
    assert read_back(feature("x", part(3, b"\x08\x01") + part(1, part(1, b"text")))) == {"x": b"text"}
    joined = read_back(feature("x", part(1, part(1, b"a")) + part(1, part(1, b"b"))))
    assert joined == {"x": [b"a", b"b"]}


def test_a_feature_without_a_value_is_absent(tmp_path: Path) -> None:
    """The sample lacks the field, as TensorFlow's missing values mean."""
    record = feature("missing", b"") + feature("x", part(3, b"\x08\x01"))
    assert read_back(record) == {"x": 1}


@pytest.mark.parametrize(
    "damaged", [b"\x0a", b"\x0a\x05abc", b"\xff" * 11, b"\x0b", b"\x00\x01", b"\x0d\x00", b"\x09\x00", b"\x08"]
)
def test_damaged_messages_are_none(damaged: bytes) -> None:
    """Cut, endless, of wrong types: no message, and a record of such bytes is no Example."""
    with pytest.raises(ProtoError):
        list(message(damaged, 0, len(damaged)))
    assert features(damaged) == []
    for codec in ("int64", "float", "bytes", "seq"):
        with pytest.raises(SampleError):
            decode_feature(codec, damaged)


def test_damaged_lists_are_bad_samples() -> None:
    """Numbers that do not end, floats cut short, another kind than the index says."""
    for value in (part(3, part(1, b"\xff")), part(3, part(1, b"\xff" * 10 + b"\x01")), part(2, b""), part(1, b"")):
        with pytest.raises(SampleError, match="no Feature of int64"):
            decode_feature("int64", value)
    with pytest.raises(SampleError, match="3 bytes of floats"):
        decode_feature("float", part(2, part(1, b"123")))


@pytest.mark.parametrize(
    "value",
    [
        2**63, True, [True], None, {"a": 1}, 0.1, np.float64(0.1), np.array([1e300]), np.array(["a"]), [1, b"a"],
        [object()], np.zeros((2, 2, 2)), np.zeros((0, 2)), [2**70], np.array([2**64 - 1], np.uint64),
        np.array([True]), 1j,
    ],
)  # fmt: skip
def test_what_the_format_cannot_hold_is_refused(value: object) -> None:
    """The error names field, type and format, and nothing is written."""
    out = io.BytesIO()
    with pytest.raises(UsageError, match=r"field 'f': tfrecord cannot hold this"):
        TFRecordWriter(out).add("key", {"fine": 1, "f": value})
    assert out.getvalue() == b""


def test_a_writer_refuses_keys_it_would_lose() -> None:
    """Without a feature for the key, keys must be rows; a field cannot take its name."""
    with pytest.raises(UsageError, match="keys are not kept"):
        TFRecordWriter(io.BytesIO(), keys=False).add("key", {"x": 1})
    with pytest.raises(UsageError, match="called __key__"):
        TFRecordWriter(io.BytesIO()).add("key", {"__key__": b"x"})
    with pytest.raises(UsageError, match="a name has"):
        TFRecordWriter(io.BytesIO()).add("key", {"": b"x"})


def test_a_cut_file_is_refused_and_kept_on_request(tmp_path: Path) -> None:
    """A header cut at the end is an error, not a clean end; what is whole can be kept."""
    data = tfrecord({f"key {n}": {"x": n} for n in range(10)})
    (tmp_path / "data").mkdir()
    (tmp_path / "data/x.tfrecord").write_bytes(data + data[:11])
    with pytest.raises(ShardError, match=r"record 10: truncated: expected a header of 12 bytes, found 11"):
        indexed(tmp_path / "data")
    assert len(indexed(tmp_path / "data", damaged="keep")) == 10


def test_long_lists_of_numbers() -> None:
    """Numbers of every length, as many as a document has tokens."""
    rng = random.Random(5)
    numbers = np.array([rng.choice((-1, 1)) * rng.getrandbits(rng.randrange(64)) for _ in range(5_000)])
    found = read_back(encode({"tokens": numbers}))["tokens"]
    assert same(found, numbers)
