"""MDS: shards, index.json, encodings, hashes, compression."""

from __future__ import annotations

import io
import json
import pickle
import random
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import stoker
from stoker.errors import MissingExtraError, SampleError, ShardError, UsageError
from stoker.format import FORMATS
from stoker.format.mds import Columns, MDSWriter
from stoker.format.mds_index import compressed, hasher
from stoker.format.mds_values import decode, encode, encoding_for, parse
from stoker.index import open_index
from stoker.store import Memory
from stoker.testing.format_suite import BrokenFile, BytesReader
from support_typed import MDS_ENCODINGS, indexed, mds_value, same, write_mds

SAMPLES: list[dict[str, Any]] = [
    {"image": random.Random(n).randbytes(200 + n), "label": n, "text": f"sämple {n}"} for n in range(50)
]
COMPRESSIONS = ("", "zstd", "gz", "bz2", "br", "snappy")


def change_index(folder: Path, **changes: Any) -> None:
    """Change what index.json says of its first shard."""
    path = folder / "index.json"
    read = json.loads(path.read_bytes())
    read["shards"][0] |= changes
    path.write_text(json.dumps(read))


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_dataset_opens(tmp_path: Path, compression: str) -> None:
    """Written and opened again: samples, keys, order, values and types are the same, in every compression."""
    write_mds(tmp_path / "data", SAMPLES, shards=3, compression=compression, hashes=["sha1", "xxh64"])
    dataset = stoker.open(tmp_path / "data", cache=tmp_path / "cache")
    assert (len(dataset), dataset.index.format, set(dataset.fields)) == (50, "mds", {"image", "label", "text"})
    for n, values in enumerate(SAMPLES):
        found = dataset[n]
        assert found.pop("__key__") == f"key {n}"
        assert found.pop("__index__") == n
        assert {name: bytes(x) if isinstance(x, memoryview) else x for name, x in found.items()} == values


def test_keys_are_rows_without_a_column(tmp_path: Path) -> None:
    """Without `__key__` a sample's key is its row in the shard."""
    index = indexed(write_mds(tmp_path / "data", SAMPLES, shards=2, keys=False))
    assert [index.key(n) for n in (0, 24, 25, 49)] == ["00000000", "00000024", "00000000", "00000024"]
    assert set(index.fields) == {"image", "label", "text"}


def test_the_uncompressed_file_is_preferred(tmp_path: Path) -> None:
    """A shard that lies there both ways is read where it needs no expanding; without it the other serves."""
    plain = write_mds(tmp_path / "plain", SAMPLES)
    both = write_mds(tmp_path / "both", SAMPLES, compression="zstd")
    (both / "shard.00000.mds").write_bytes((plain / "shard.00000.mds").read_bytes())
    assert next(indexed(both).objects()).key == "shard.00000.mds"
    (both / "shard.00000.mds").unlink()
    only = next(indexed(both).objects())
    assert (only.key, only.compression) == ("shard.00000.mds.zstd", "zstd")


def test_a_shard_that_index_json_forgets_is_told(tmp_path: Path) -> None:
    """It is not part of the dataset, and nobody should wonder."""
    folder = write_mds(tmp_path / "data", SAMPLES, shards=2)
    (folder / "shard.00002.mds").write_bytes((folder / "shard.00001.mds").read_bytes())
    index = indexed(folder)
    assert len(index) == 50
    assert [one["code"] for one in index.manifest.extra["findings"]] == ["unlisted-shard"]


def test_index_in_a_subfolder(tmp_path: Path) -> None:
    """The only index.json of a store counts wherever it lies; of two the caller must say which."""
    write_mds(tmp_path / "data" / "train", SAMPLES)
    assert len(indexed(tmp_path / "data")) == 50
    write_mds(tmp_path / "data" / "val", SAMPLES)
    with pytest.raises(UsageError, match="2 datasets, each with its index"):
        indexed(tmp_path / "data")


def test_shards_without_index_describe_themselves(tmp_path: Path) -> None:
    """Shards named one by one are read by their own descriptions; a folder of shards needs index.json."""
    folder = write_mds(tmp_path / "data", SAMPLES, shards=2)
    (folder / "index.json").unlink()
    dataset = stoker.open(f"{folder}/shard.{{00000..00001}}.mds")
    assert (len(dataset), dataset[49]["text"]) == (50, "sämple 49")
    with pytest.raises(ShardError, match="MDS shards, but no index"):
        stoker.open(folder)


@pytest.mark.parametrize(
    "name", ["md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "xxh32", "xxh64", "xxh3_128"]
)
def test_a_flipped_bit_is_found_by_any_hash(tmp_path: Path, name: str) -> None:
    """The error names both values; kept on request, the samples are all there."""
    folder = write_mds(tmp_path / "data", SAMPLES, hashes=[name])
    path = folder / "shard.00000.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    digest = hasher(name)
    digest.update(bytes(data))
    with pytest.raises(ShardError, match=f"{name} {digest.hexdigest()}, index.json says"):
        indexed(folder)
    assert len(indexed(folder, damaged="keep")) == 50


def test_hashes_of_a_remote_shard_are_compared_too(tmp_path: Path) -> None:
    """A store without paths: the shard is fetched once, its hash compared, its samples found."""
    folder = write_mds(tmp_path / "data", SAMPLES, hashes=["sha1"])
    store = Memory()
    for path in folder.iterdir():
        store.put(path.name, path.read_bytes())
    assert len(open_index(store, place=tmp_path / "index")) == 50
    store.put("shard.00000.mds", (folder / "shard.00000.mds").read_bytes()[:-1] + b"?")
    with pytest.raises(ShardError, match="sha1"):
        open_index(store, place=tmp_path / "index")


def test_a_hash_that_cannot_be_compared_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash that nobody knows, or whose package is missing, is said, not silently passed over."""
    folder = write_mds(tmp_path / "data", SAMPLES, hashes=["xxh64"])
    raw = json.loads((folder / "index.json").read_bytes())["shards"][0]["raw_data"]
    raw["hashes"]["crc99"] = "00"
    change_index(folder, raw_data=raw)
    monkeypatch.setitem(sys.modules, "xxhash", None)
    findings = indexed(folder).manifest.extra["findings"]
    assert [(one["code"], one["severity"]) for one in findings] == [("unchecked-hash", "warning")] * 2
    assert "stoker[mds]" in findings[1]["message"] or "stoker[mds]" in findings[0]["message"]


@pytest.mark.parametrize(("compression", "package"), [("br", "brotli"), ("snappy", "cramjam")])
def test_a_missing_package_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compression: str, package: str
) -> None:
    """Reading and writing br and snappy without the extra `mds` says so."""
    folder = write_mds(tmp_path / "data", SAMPLES, compression=compression)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"stoker\[mds\]"):
        indexed(folder)
    with pytest.raises(MissingExtraError, match=r"stoker\[mds\]"):
        compressed(b"", compression)


def test_a_shard_may_differ_from_index_json_in_nothing(tmp_path: Path) -> None:
    """Number of samples, bytes and columns are compared, and both values told."""
    columns = {"column_names": ["__key__", "image", "label", "other"]}
    for change, words in (({"samples": 49}, "says 49 samples, the shard has 50"), (columns, "the shard has columns")):
        folder = write_mds(tmp_path / str(len(words)), SAMPLES)
        change_index(folder, **change)
        with pytest.raises(ShardError, match=words):
            indexed(folder)
    folder = write_mds(tmp_path / "bytes", SAMPLES)
    change_index(folder, raw_data={"basename": "shard.00000.mds", "bytes": 5, "hashes": {}})
    with pytest.raises(ShardError, match="says 5 bytes"):
        indexed(folder)


@pytest.mark.parametrize("encoding", MDS_ENCODINGS)
def test_values_come_back(encoding: str) -> None:
    """What an encoding writes it reads: the same value, element type and shape."""
    rng = random.Random(encoding)
    for _ in range(20):
        value = mds_value(rng, encoding)
        data = encode(encoding, value, "field")
        assert same(decode(encoding, data), value)
        assert parse(encoding).size in (None, len(data))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "F", "P"])
def test_raw_pixels_become_an_array(mode: str) -> None:
    """Column type `pil`: the array is the one that NumPy makes of the picture."""
    image = Image.fromarray(np.random.default_rng(3).integers(0, 256, (5, 11, 3), np.uint8)).convert(mode)
    head = np.array([11, 5, len(mode)], "<u4").tobytes() + mode.encode()
    assert np.array_equal(decode("pil", head + image.tobytes()), np.asarray(image))
    with pytest.raises(SampleError, match="need"):
        decode("pil", head + image.tobytes()[:-1])


def test_lists_of_pictures() -> None:
    """Each picture of a list is handed over as its bytes."""
    pictures = [b"\xff\xd8 one", b"", b"\xff\xd8 three"]
    for encoding in ("list[jpeg]", "list[png]", "jpeg_array", "jpegarray"):
        data = encode(encoding, pictures, "field")
        assert decode(encoding, data) == pictures
        for damaged in (data[:-1], data + b"?", data[:5], b"\xff" * len(data)):
            with pytest.raises(SampleError):
                decode(encoding, damaged)


def test_pickles_are_never_loaded() -> None:
    """They stay bytes, whatever they would do."""
    assert decode("pkl", b"cos\nsystem\n(S'false'\ntR.") == b"cos\nsystem\n(S'false'\ntR."


def test_a_pickle_is_loaded_for_who_names_the_loader(tmp_path: Path) -> None:
    """A column `pkl` gives its bytes; `pickle.loads`, named as the field's decoder, gives what they mean."""
    samples = [{"p": pickle.dumps((n, "text"))} for n in range(4)]
    dataset = stoker.open(write_mds(tmp_path / "data", samples, columns={"p": "pkl"}))
    assert dataset[1]["p"] == samples[1]["p"]
    with stoker.Loader(dataset, 4, shuffle="none", fields={"p": pickle.loads}) as loader:
        assert next(iter(loader))["p"] == [(n, "text") for n in range(4)]


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("str", b"\xff"), ("int", b"1"), ("uint8", b""), ("str_int", b"1x"), ("str_int", b"1" * 5000),
        ("str_float", b"zero"), ("str_decimal", b"--"), ("json", b"{"), ("json", b"[" * 100_000), ("ndarray", b""),
        ("ndarray", b"\x07\x04\x01\x00"), ("ndarray", b"\x08\xff"), ("ndarray:uint8", b"\x0b" + b"\xff" * 16),
        ("ndarray:uint8", b"\x43" + b"\xff" * 128), ("ndarray:uint8", b"\x0b" + bytes(8) + b"\xff" * 8),
        ("ndarray:float32:3,4", b"1234"), ("pil", b"short"), ("pil", b"\1\0\0\0\1\0\0\0\3\0\0\0XYZ."),
        ("list[jpeg]", b"\0\0\0\0\xff\xff\xff\xff"), ("list[pil]", b"\0\0\0\0\1\0\0\0\1\0\0\0x"),
    ],
)  # fmt: skip
def test_bad_bytes_are_bad_samples(encoding: str, data: bytes) -> None:
    """Bytes that are not what the encoding says give a SampleError that names it."""
    with pytest.raises(SampleError, match="expected"):
        decode(encoding, data)


@pytest.mark.parametrize(
    "text", ["quantum", "", "int:3", "ndarray:int7", "ndarray:int8:0", "ndarray:int8:-1", "ndarray:a:b:c"]
)
def test_unknown_encodings_are_refused(text: str) -> None:
    """An encoding that nobody knows is an error that lists those that are known."""
    with pytest.raises(ShardError, match="unknown encoding"):
        parse(text)


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("bytes", "text"), ("str", b"bytes"), ("int", 2**63), ("int", 1.0), ("int", True), ("uint8", 256),
        ("float16", 0.1), ("float32", 1e300), ("str_int", 1.0), ("ndarray", np.zeros((0,))), ("ndarray", np.array(1)),
        ("ndarray", np.array(["a"])), ("ndarray:int8", np.zeros(3)), ("ndarray:float64:2", np.zeros(3)),
        ("json", {1, 2}), ("json", b"bytes"), ("uint8", -1), ("float64", 2**63 + 1), ("float32", np.float64(0.1)),
        ("list[jpeg]", ["text"]), ("jpeg", 3),
    ],
)  # fmt: skip
def test_what_an_encoding_cannot_hold_is_refused(encoding: str, value: object) -> None:
    """No digit, shape or type is lost in silence: the error names the field, the type and the format."""
    with pytest.raises(UsageError, match=r"field 'f': mds cannot hold this .* as"):
        encode(encoding, value, "f")


def test_columns_follow_from_the_first_sample() -> None:
    """Each type of value has its encoding; a type that none keeps is refused by name."""
    types = {"bytes": b"", "str": "", "int": 1, "float64": 1.5, "float32": np.float32(1), "str_decimal": Decimal(1)}
    assert {encoding: encoding_for(value) for encoding, value in types.items()} == {name: name for name in types}
    assert (encoding_for(np.zeros(2)), encoding_for([1])) == ("ndarray", "json")
    for value in (True, None, object(), np.array("a"), 1j):
        with pytest.raises(UsageError, match="field 'f': mds cannot hold this"):
            MDSWriter(BrokenFile(0)).add("key", {"f": value})


def test_a_writer_refuses_what_it_could_not_give_back() -> None:
    """Another set of fields, a field called `__key__`, keys that are not kept, an unknown encoding."""
    writer = MDSWriter(BrokenFile(0), columns={"x": "int"})
    for fields in ({}, {"y": 1}, {"x": 1, "y": 1}, {"x": 1, "__key__": "k"}):
        with pytest.raises(UsageError):
            writer.add("key", fields)
    with pytest.raises(UsageError, match="keys are not kept"):
        MDSWriter(BrokenFile(0), keys=False).add("key", {"x": 1})
    with pytest.raises(UsageError, match="called __key__"):
        MDSWriter(BrokenFile(0), columns={"__key__": "str"})
    with pytest.raises(ShardError, match="unknown encoding"):
        MDSWriter(BrokenFile(0), columns={"x": "quantum"})


def test_one_varying_column_costs_one_read() -> None:
    """Where at most one column varies, a shard of large samples is understood from its head."""
    out = io.BytesIO()
    writer = MDSWriter(out, keys=False)
    for n in range(30):
        writer.add(f"{n:08d}", {"image": bytes(100_000), "label": n})
    writer.close()
    reader = BytesReader(out.getvalue())
    scan = FORMATS["mds"].scan(reader, skip_bytes_min=1 << 20)
    assert (len(scan.samples), scan.findings) == (30, ())
    assert reader.reads <= 3 and reader.bytes_read < 1_000
    assert [place.length for place in scan.samples[-1].fields] == [100_000, 8]
    assert len(scan.samples[3:5]) == 2


def test_sizes_are_not_believed() -> None:
    """Column sizes that contradict the encodings are an error."""
    record = {"column_names": ["x"], "column_encodings": ["int"], "column_sizes": [4]}
    with pytest.raises(ShardError, match=r"column sizes \[4\], their encodings have \[8\]"):
        Columns.from_json(record, "here")
