"""Every TFRecord file of the real data gives the outcome of its key; damaged and lying ones hurt nobody.

All are scanned in one process of their own, under a limit of address space.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from stoker.errors import SampleError
from stoker.format import FORMATS
from stoker.format.proto import features
from stoker.format.tfrecord import masked
from stoker.format.values import decode_value
from stoker.testing.format_suite import BytesReader
from support_format import expected, run_limited
from support_typed import tfrecord

MEMORY_BYTES = 256 << 20
SCAN_ALL = """
import hashlib, io, json, pathlib, sys
from stoker.format import FORMATS
from stoker.format.codec import expand
from stoker.format.tfrecord import begins
from stoker.format.values import decode_value
from stoker.index.scan import scan_shard
from stoker.store import Local
# LIMIT HERE
root = pathlib.Path(sys.argv[1])
store = Local(root)
for key in json.loads(sys.argv[2]):
    scanned = scan_shard(store, store.head(key), FORMATS["tfrecord"])
    data = (root / key).read_bytes()
    if scanned.ref.compression:
        out = io.BytesIO()
        try:
            expand([data], scanned.ref.compression, out, bytes_max=1 << 30)
        except ValueError:
            pass
        data = out.getvalue()
    payload, at = hashlib.sha256(), 0
    for _ in scanned.scan.samples:
        length = int.from_bytes(data[at : at + 8], "little")
        payload.update(data[at + 12 : at + 12 + length])
        at += 16 + length
    first = {}
    for place in scanned.scan.samples[0].fields if scanned.scan.samples else ():
        raw = data[place.offset : place.offset + place.length]
        value = decode_value(place.codec, raw) if place.codec else raw
        first[place.name] = value.tolist() if hasattr(value, "tolist") else value
    print(json.dumps({
        "key": key, "samples": len(scanned.scan.samples), "payload": payload.hexdigest(), "end": at,
        "errors": [one.message for one in scanned.scan.errors], "compression": scanned.ref.compression,
        "begins": begins((root / key).read_bytes()[:512]), "first": first,
    }, default=lambda value: value.decode("utf-8", "replace")))
"""


@pytest.fixture(scope="module")
def key(shared_data: Path) -> dict[str, Any]:
    """What the key says of each file."""
    return {
        name.removeprefix("tfrecord/"): value["expect"]
        for name, value in expected(shared_data, "tfrecord").items()
        if "expect" in value
    }


@pytest.fixture(scope="module")
def outcomes(shared_data: Path, key: dict[str, Any]) -> dict[str, Any]:
    """What stoker says of each file."""
    done = run_limited(
        SCAN_ALL, str(shared_data / "tfrecord"), json.dumps(list(key)), memory_bytes=MEMORY_BYTES, seconds=100
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return {one["key"]: one for one in map(json.loads, done.stdout.splitlines())}


def test_records_are_those_of_the_key(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """The good records of every file, byte for byte, and how the file is compressed."""
    compared = 0
    for name, expect in key.items():
        if "good_records" not in expect:
            continue
        one = outcomes[name]
        assert (one["samples"], one["payload"]) == (expect["good_records"], expect["payload_sha256"]), name
        assert one["compression"] == expect["compression"].lower(), name
        assert one["begins"] == (expect["good_records"] > 0), name
        compared += 1
    assert compared >= 28


def test_errors_are_those_of_the_key(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """Damaged files have an error that says where and what; whole ones have none."""
    for name, expect in key.items():
        told = expect.get("error")
        if told is None and "array_record" not in name:
            assert outcomes[name]["errors"] == [], name
            continue
        words = (told or "record 0: length CRC mismatch").partition(" (")[0]  # ArrayRecord is another format
        assert any(words in message for message in outcomes[name]["errors"]), (name, outcomes[name]["errors"])


def test_features_are_those_of_the_key(key: dict[str, Any], outcomes: dict[str, Any]) -> None:
    """Names, kinds, counts and first values of the first record's features."""
    compared = 0
    for name, expect in key.items():
        for feature, (kind, count, value) in expect.get("first_record_features", {}).items():
            found = outcomes[name]["first"]
            if kind is None:
                assert feature not in found, (name, feature)
                continue
            values = found[feature] if isinstance(found[feature], list) else [found[feature]]
            first = values[0] if values else None
            close = math.isclose(first, value) if isinstance(value, float) else first == value
            assert close or len(str(value)) > 20, (name, feature, first, value)
            if name != "crafted/unpacked.tfrecord":  # its key was made by a reader that misses numbers not packed
                assert len(values) == count, (name, feature)
            compared += 1
    assert outcomes["crafted/unpacked.tfrecord"]["first"] == {"u": [5, 7], "v": 2.5}
    assert compared > 100


def test_pointers_are_told(outcomes: dict[str, Any]) -> None:
    """A clone without Git LFS is no mystery."""
    assert "git lfs pull" in outcomes["dali-lfs-pointers/tfrecord/train"]["errors"][0]


def framed(record: bytes, claim: int | None = None) -> bytes:
    """A record with right checksums, whatever length it claims."""
    length = (len(record) if claim is None else claim).to_bytes(8, "little")
    sums = [masked(google_crc32c.value(data)).to_bytes(4, "little") for data in (length, record)]
    return length + sums[0] + record + sums[1]


@pytest.mark.parametrize("claim", [6, 1 << 20, 1 << 40, 1 << 60, (1 << 64) - 1])
def test_lengths_with_right_checksums_are_not_believed(claim: int) -> None:
    """A valid header that promises more than the file has costs nothing."""
    reader = BytesReader(framed(b"12345") + framed(b"12345", claim))
    scan = FORMATS["tfrecord"].scan(reader, skip_bytes_min=1)
    assert len(scan.samples) == 1
    assert f"truncated: expected {claim} bytes" in scan.errors[0].message


def test_a_record_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record must fit into memory, within the documented limit."""
    monkeypatch.setattr("stoker.format.tfrecord.TFRECORD_BYTES_MAX", 1_000)
    scan = FORMATS["tfrecord"].scan(BytesReader(framed(bytes(1_001))), skip_bytes_min=1)
    assert "1001 bytes, at most 1000 are allowed" in scan.errors[0].message


def test_names_beyond_the_limits_make_no_fields() -> None:
    """A record with a name of a megabyte, or with too many features, is handed over as it is."""
    long_name = b"\x0a" + _size(b"\x0a" + _size(b"\x0a" + _size(bytes([65]) * 2_000) + b"\x12\x00"))
    many = b"".join(b"\x0a" + _size(b"\x0a" + _size(f"{n}".encode()) + b"\x12\x02\x1a\x00") for n in range(70_000))
    for record in (long_name, b"\x0a" + _size(many)):
        assert features(record) == []
        scan = FORMATS["tfrecord"].scan(BytesReader(framed(record)), skip_bytes_min=1)
        assert [place.name for place in scan.samples[0].fields] == ["record"]


@pytest.mark.parametrize("codec", ["tf:seq", "tf:bytes", "tf:int64"])
def test_lists_beyond_the_limit_are_bad_samples(monkeypatch: pytest.MonkeyPatch, codec: str) -> None:
    """Items of two bytes that would take fifty times as much memory each."""
    monkeypatch.setattr("stoker.format.proto.LIST_ITEMS_MAX", 1_000)
    items = {"tf:seq": b"\x0a\x00", "tf:bytes": b"\x0a\x00", "tf:int64": b"\x08\x05"}[codec] * 1_001
    tag = {"tf:seq": b"", "tf:bytes": b"\x0a", "tf:int64": b"\x1a"}[codec]
    with pytest.raises(SampleError, match="more than 1000 items"):
        decode_value(codec, tag + _size(items) if tag else items)


def _size(payload: bytes) -> bytes:
    """The payload behind its length."""
    size, out = len(payload), b""
    while size > 127:
        out += bytes([size & 127 | 128])
        size >>= 7
    return out + bytes([size]) + payload


def test_damaged_files_never_break_a_scan() -> None:
    """Bits turned, bytes cut: the scan ends, raises nothing, places nothing outside."""
    rng = random.Random(21)
    whole = tfrecord({f"key {n}": {"x": n, "y": [1.5, 2.5], "z": bytes(n), "w": [[1], [2, 3]]} for n in range(50)})
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 4))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        data = data[: rng.choice((len(data), rng.randrange(len(data))))]
        scan = FORMATS["tfrecord"].scan(BytesReader(bytes(data)), skip_bytes_min=1)
        assert all(p.offset + p.length <= len(data) for one in scan.samples for p in one.fields)


def test_damaged_messages_with_right_checksums_are_read_or_bad() -> None:
    """Whatever stands in a record whose checksum fits: fields that decode, bad samples, or one raw field."""
    rng = random.Random(22)
    whole = tfrecord({"k": {"x": -5, "y": [1.5, 2.5], "z": [b"a", b"b"], "w": [[1], [2, 3]], "t": b"text"}})[12:-4]
    for _ in range(3_000):
        data = bytearray(whole)
        for _ in range(rng.choice((1, 2, 8))):
            data[rng.randrange(len(data))] = rng.randrange(256)
        shard = framed(bytes(data[: rng.choice((len(data), rng.randrange(len(data))))]))
        for place in FORMATS["tfrecord"].scan(BytesReader(shard), skip_bytes_min=1).samples[0].fields:
            raw = shard[place.offset : place.offset + place.length]
            assert len(raw) == place.length
            try:
                assert not place.codec or decode_value(place.codec, raw) is not None
            except SampleError:
                continue
