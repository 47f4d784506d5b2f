"""Shards of arrays: places that an index can hold, damage told, limits, a writer that dies whole."""

from __future__ import annotations

import io
import json
import random
import struct
from pathlib import Path

import google_crc32c
import numpy as np
import pytest

import stoker
from stoker.errors import SampleError, ShardError, UsageError
from stoker.format.arrays import END, MAGIC, Arrays, ArraysWriter, decode_np
from stoker.format.base import ShardScan
from stoker.format.values import decode_value
from stoker.testing.format_suite import BrokenFile, BytesReader
from support_rows import arrays_bytes

SAMPLES = {
    f"folder/{n}": {"image": np.full((4, 4, 3), n, np.uint8), "y": n, "w": np.float32(n / 2)} for n in range(20)
}  # fmt: skip


def scan(data: bytes) -> ShardScan:
    return Arrays().scan(BytesReader(data), skip_bytes_min=1 << 16)


def test_what_is_written_is_found() -> None:
    """Keys, places and values come back; nothing is told; the writer's places are those of the scan."""
    data = arrays_bytes(SAMPLES)
    found = scan(data)
    assert found.findings == ()
    writer = ArraysWriter(io.BytesIO())
    for entry, (key, values) in zip(found.samples, SAMPLES.items(), strict=True):
        assert (entry.key, entry.fields) == (key, writer.add(key, values))
        for place in entry.fields:
            value = decode_value(place.codec, data[place.offset : place.offset + place.length])
            assert np.array_equal(value, values[place.name])
            assert value.dtype == np.asarray(values[place.name]).dtype
    assert arrays_bytes(SAMPLES) == data


def test_rows_begin_at_a_page() -> None:
    """Whatever the columns' names take; a head without blanks, as shards had at first, is read all the same."""
    for name in ("x", "a_name_as_long_as_that"):
        values = {name: np.arange(6, dtype=np.int16)}
        found = scan(arrays_bytes({"one": values})).samples[0].fields[0]
        assert found.offset == 4096
    bare = forged([["x", "<i2", [6]]], ["one"], bytes(12))
    assert scan(bare).samples[0].fields[0].offset == 16 + len('[["x", "<i2", [6]]]') and not scan(bare).findings


def test_values_are_views() -> None:
    """Decoding copies nothing."""
    data = np.arange(12, dtype="<f4").tobytes()
    value = decode_np("<f4:3,4", data)
    assert isinstance(value, np.ndarray) and value.shape == (3, 4)
    assert np.shares_memory(value, np.frombuffer(data, "u1"))


@pytest.mark.parametrize("codec", ["<f4:", "<f4:3,5", "<f8:3,4"])
def test_wrong_lengths(codec: str) -> None:
    """Bytes that are no such array are a bad sample."""
    with pytest.raises(SampleError, match="expected"):
        decode_np(codec, bytes(48))


@pytest.mark.parametrize(
    "codec", ["|O:3", "O:", "<f4:-1", "<f4:3,", "f4:1", "<V8:1", "<U1:1", "<f4:1:2", "datetime64:1"]
)
def test_wrong_codecs(codec: str) -> None:
    """A codec that no writer makes is an error, never an object array."""
    with pytest.raises(ShardError, match="unknown codec"):
        decode_np(codec, bytes(8))


def test_cuts_and_junk() -> None:
    """A cut anywhere is an error and keeps whole rows in place; junk behind the end is a warning."""
    data = arrays_bytes(SAMPLES)
    row = scan(data).samples
    for cut in range(len(data)):
        found = scan(data[:cut])
        assert found.errors, cut
        assert all(place.offset + place.length <= cut for one in found.samples for place in one.fields)
    assert [one.fields for one in scan(data[:-5]).samples[:20]] == [one.fields for one in row]
    behind = scan(data + b"junk" * 100)
    assert [finding.severity for finding in behind.findings] == ["warning"] and list(behind.samples) == list(row)
    assert [finding.severity for finding in scan(arrays_bytes({})).findings] == ["warning"]
    assert scan(b"").errors


def test_turned_bytes() -> None:
    """Bytes turned over in head and tail are noticed; a scan never raises and places nothing outside."""
    data = arrays_bytes(SAMPLES)
    rows = scan(data).samples
    start, stop = rows[0].fields[0].offset, rows[-1].fields[-1].offset + rows[-1].fields[-1].length
    rng = random.Random(1)
    for at in [*range(start), *range(stop, len(data))]:
        damaged = bytearray(data)
        damaged[at] ^= 1 << rng.randrange(8)
        found = scan(bytes(damaged))
        assert found.errors, at
        assert all(0 <= p.offset <= p.offset + p.length <= len(data) for one in found.samples for p in one.fields)


def forged(head: object, keys: object = (), rows: bytes = b"") -> bytes:
    """A shard with whatever in it, checksums right."""
    parts = [json.dumps(part).encode() for part in (head, list(keys) if isinstance(keys, tuple) else keys)]
    crcs = [google_crc32c.value(part) for part in parts]
    return (
        struct.pack("<8sII", MAGIC, len(parts[0]), crcs[0]) + parts[0] + rows + parts[1]
        + struct.pack("<QI8s", len(parts[1]), crcs[1], END)
    )  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        forged(3),
        forged([3]),
        forged([["x", "|O", [1]]]),
        forged([["x", "<f4", [-1]]]),
        forged([["x", "<f4", [1 << 40, 1 << 40]]]),
        forged([["", "<f4", [1]]]),
        forged([["x" * 2000, "<f4", [1]]]),
        forged([["x", "<f4", [1.5]]]),
        forged([["x", "<f4", 3]]),
        forged([["x", "<f4", [1]]], ("a", "b"), bytes(4)),
        forged([["x", "<f4", [1]]], {"a": 1}, bytes(4)),
        forged([["x", "<f4", [1]]], (1,), bytes(4)),
        struct.pack("<8sII", MAGIC, 0xFFFFFFFF, 0),
        MAGIC + b"\xff" * 30 + END,
    ],
)
def test_heads_and_tails_that_lie(data: bytes) -> None:
    """What a shard declares is compared with what it is, before anything of that size is made."""
    found = scan(data)
    assert found.errors
    assert len(found.samples) * 4 <= len(data)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"x": b"bytes"}, "found a bytes"), ({"x": "text"}, "found a str"), ({"x": None}, "NoneType of object"),
        ({"x": np.array(["a"])}, "<U1"), ({"": 1}, "no field name"), ({"x": np.longdouble(1)}, "float128|longdouble"),
        ({"x": [[1], [1, 2]]}, "found a list"),
    ],
)  # fmt: skip
def test_what_cannot_be_held(values: dict[str, object], message: str) -> None:
    """What is no array of numbers is an error that names the field; the shard goes on without it."""
    out = io.BytesIO()
    writer = ArraysWriter(out)
    with pytest.raises(UsageError, match=message):
        writer.add("k", values)
    writer.add("k", {"x": 1})
    with pytest.raises(UsageError, match="the samples before it are x: <i8"):
        writer.add("l", {"x": 1.5})
    writer.close()
    assert [one.key for one in scan(out.getvalue()).samples] == ["k"]
    with pytest.raises(UsageError, match="closed"):
        writer.add("k", {"x": 1})


def test_a_writer_dies_of_its_first_error() -> None:
    """After a failed write nothing more can be added."""
    writer = ArraysWriter(BrokenFile(room=1_000))
    with pytest.raises(OSError, match="No space left"):
        for n in range(1_000):
            writer.add(str(n), {"x": np.zeros(100)})
    with pytest.raises(UsageError):
        writer.add("more", {"x": np.zeros(100)})


def test_a_loader_over_arrays(tmp_path: Path) -> None:
    """Shards are recognised by name; batches are stacked arrays of the stored type."""
    for number in range(3):
        (tmp_path / f"{number}.arrays.bin").write_bytes(arrays_bytes(SAMPLES))
    dataset = stoker.open(tmp_path)
    assert (dataset.index.format, len(dataset), dataset[25]["__key__"]) == ("arrays", 60, "folder/5")
    with stoker.Loader(dataset, 10, output="numpy") as loader:
        for batch in loader:
            assert batch["image"].shape == (10, 4, 4, 3) and batch["w"].dtype == np.float32
            assert (batch["image"][:, 0, 0, 0] == batch["y"]).all()
