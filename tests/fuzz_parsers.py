"""What `fuzz.py` feeds: for every parser its corpus, how an input reaches it, and what it may answer.

A parser may give a result or raise a StokerError (a scan only what is missing on this machine: damage is a finding).
Everything else is a fault. Corpora are small files of our own writers, and real ones where they are here.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import random
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

import stoker
from stoker.decode import default_for
from stoker.errors import MissingExtraError, SampleError, ShardError, StokerError
from stoker.format import FORMATS, ROW_SHARDS, Findings, WebDatasetWriter
from stoker.format.base import FieldPlace
from stoker.format.codec import expand
from stoker.format.mds_index import compressed, read_index
from stoker.format.proto import decode_feature, encode, features
from stoker.format.tar import BLOCK
from stoker.format.values import decode_value
from stoker.index import Index, IndexWriter, ObjectRef
from stoker.index.table import read_table
from stoker.store import Memory
from stoker.testing.format_suite import BytesReader
from support_dataset import jpeg
from support_rows import arrays_bytes, npy, write_hdf5, write_table
from support_typed import MDS_ENCODINGS, mds_value, tfrecord, write_mds

FILE_BYTES_MAX = 128 << 10
FILES_MAX = 60
EXPANDED_BYTES_MAX = 64 << 20
SAMPLES_LOOKED_AT = 32

Corpus = list[bytes]


class FaultError(Exception):
    """A parser broke a promise that no exception of its own tells of."""


@dataclass(frozen=True)
class Parser:
    """One thing that reads bytes from outside."""

    corpus: Callable[[], Corpus]
    read: Callable[[bytes], object]
    folders: tuple[str, ...] = ()
    """Folders of the real data whose files join the corpus."""
    suffixes: tuple[str, ...] = ()
    fix: Callable[[bytearray], None] = lambda data: None
    """Makes checksums right again after a mutation, so that what lies behind them is reached."""
    limit_s: float = 10.0


def real(folder: Path | None, parser: Parser) -> Corpus:
    """Small files of the real data."""
    found: Corpus = []
    for name in parser.folders if folder is not None else ():
        for path in sorted((folder / name).rglob("*")):
            if path.is_file() and path.name.endswith(parser.suffixes) and path.stat().st_size <= FILE_BYTES_MAX:
                found.append(path.read_bytes())
    return found[:: max(1, len(found) // FILES_MAX)]


def scan(name: str) -> Callable[[bytes], object]:
    """A scan, its promises, and the values of some samples."""

    def read(data: bytes) -> object:
        try:
            scanned = FORMATS[name].scan(BytesReader(data), skip_bytes_min=4096)
        except StokerError as error:
            raise FaultError(f"a scan raised {error!r}") from error
        for sample in scanned.samples[:SAMPLES_LOOKED_AT]:
            for place in sample.fields:
                _value(place, data)
        if scanned.errors:
            raise ShardError(scanned.errors[0].message)
        return None

    return read


def _value(place: FieldPlace, data: bytes) -> None:
    if not 0 <= place.offset <= place.offset + place.length <= len(data):
        raise FaultError(f"{place} lies outside {len(data)} bytes")
    if place.codec:
        with contextlib.suppress(SampleError):
            decode_value(place.codec, data[place.offset : place.offset + place.length])


def rows(name: str, suffix: str) -> Callable[[bytes], object]:
    """A shard of rows, looked at and read."""

    def read(data: bytes) -> object:
        with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
            path = Path(folder) / f"x{suffix}"
            path.write_bytes(data)
            scanned = ROW_SHARDS[name].scan(path, "shard")
            if not len(scanned.samples):
                raise ShardError(scanned.errors[0].message if scanned.errors else "no samples")
            file = ROW_SHARDS[name].open(path)
            for row in sorted({0, len(scanned.samples) - 1}):
                for place in scanned.samples[row].fields[:SAMPLES_LOOKED_AT]:
                    with contextlib.suppress(SampleError):
                        file.read([row], place.name)
            file.close()
        return None

    return read


def decoder(field: str) -> Callable[[bytes], object]:
    """The default decoder of a field."""
    return lambda data: default_for(field).decode(data, None, 0)


def codec(compression: str) -> Callable[[bytes], object]:
    """Expansion of a whole stream, under a limit that its output must keep."""

    def read(data: bytes) -> object:
        out = io.BytesIO()
        expand(iter([data]), compression, out, bytes_max=EXPANDED_BYTES_MAX)
        if out.tell() > EXPANDED_BYTES_MAX:
            raise FaultError(f"{out.tell()} bytes came out, {EXPANDED_BYTES_MAX} were allowed")
        return None

    return read


def packed(make: Callable[[bytes], bytes]) -> Callable[[], Corpus]:
    """Streams of something that compresses well, and of something that does not."""
    return lambda: [make(bytes(100_000)), make(random.Random(0).randbytes(5_000)), make(b"") or b"\0"]


def tars() -> Corpus:
    """A tar with long names, and one with many members."""
    found = []
    for keys in (["a", "b/c", "d" * 200, "é" * 60], [f"{at:04d}" for at in range(30)]):
        out = io.BytesIO()
        writer = WebDatasetWriter(out)
        for key in keys:
            writer.add(key, {"txt": b"text", "cls": b"3", "bin": bytes(700)})
        writer.close()
        found.append(out.getvalue())
    return found


def fix_tar(data: bytearray) -> None:
    """Right checksums for whatever looks like a header."""
    for at in range(0, len(data) - BLOCK + 1, BLOCK):
        if data[at + 257 : at + 262] == b"ustar":
            data[at + 148 : at + 156] = b" " * 8
            data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + BLOCK])


def mds_shards() -> Corpus:
    """Shards with every encoding."""
    chance, found = random.Random(1), []
    for encodings in (MDS_ENCODINGS, ("int", "float32"), ("bytes",)):
        columns = {f"c{at}": encoding for at, encoding in enumerate(encodings)}
        samples = [{name: mds_value(chance, encoding) for name, encoding in columns.items()} for _ in range(4)]
        with tempfile.TemporaryDirectory() as folder:
            write_mds(Path(folder) / "x", samples, columns=columns)
            data = (Path(folder) / "x" / "shard.00000.mds").read_bytes()
        found.append(data if len(data) <= FILE_BYTES_MAX else data[:FILE_BYTES_MAX])
    return found


def mds_indexes() -> Corpus:
    """An index.json."""
    with tempfile.TemporaryDirectory() as folder:
        write_mds(Path(folder) / "x", [{"a": 1, "b": b"x"}] * 9, shards=3, compression="zstd", hashes=("sha1", "xxh64"))
        return [(Path(folder) / "x" / "index.json").read_bytes()]


EXAMPLE = {
    "i": 3, "f": np.float32([1.5, 2]), "b": b"bytes", "many": np.arange(-3, 60), "bl": [b"a", b"", b"ccc"],
    "steps": np.arange(12).reshape(3, 4),
}  # fmt: skip


def records() -> Corpus:
    """Files of Examples."""
    return [tfrecord({f"k{at}": EXAMPLE for at in range(5)}), tfrecord({"00000000": {"x": 1}}, keys=False)]


def read_example(data: bytes) -> object:
    """The features of a record, and their values."""
    for feature in features(data):
        if not 0 <= feature.offset <= feature.offset + feature.length <= len(data):
            raise FaultError(f"{feature} lies outside {len(data)} bytes")
        if feature.codec:
            with contextlib.suppress(SampleError):
                decode_feature(feature.codec.partition(":")[2], data[feature.offset : feature.offset + feature.length])
    return None


def rows_of(suffix: str) -> Callable[[], Corpus]:
    """Files of rows by our writers."""

    def make() -> Corpus:
        samples = {
            f"k{at}": {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "t": f"text {at}", "b": bytes(at), "n": at}
            for at in range(20)
        }
        with tempfile.TemporaryDirectory() as folder:
            write = write_hdf5 if suffix == ".h5" else write_table
            return [write(Path(folder) / f"x{suffix}", samples).read_bytes()]

    return make


def images() -> Corpus:
    """A picture in each of the common formats."""
    picture = Image.open(io.BytesIO(jpeg(5)))
    found = [jpeg(1), jpeg(2, width=300, height=200)]
    for kind, mode in (("PNG", "RGB"), ("PNG", "P"), ("PNG", "I;16"), ("WEBP", "RGB"), ("GIF", "P"), ("BMP", "RGB"),
                       ("TIFF", "RGB"), ("PPM", "RGB"), ("JPEG", "CMYK"), ("JPEG", "L"), ("TGA", "RGB")):  # fmt: skip
        out = io.BytesIO()
        (picture.convert("I").convert("I;16") if mode == "I;16" else picture.convert(mode)).save(out, kind)
        found.append(out.getvalue())
    out = io.BytesIO()
    picture.save(out, "JPEG", progressive=True)
    return [*found, out.getvalue()]


INDEX_FILES = ("index.arrow", "shards.arrow", "manifest.json")


TENSOR = (
    b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nq\x02"
    b"X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04K\x04tq\x05QK\x00K\x02K\x02\x86q\x06K\x02K\x01\x86q\x07\x89"
    b"ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b."
)
"""The pickle of torch.save for a float32 tensor [2, 2]."""


def tensors() -> Corpus:
    """A tensor as torch.save writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        members = {"data.pkl": TENSOR, "byteorder": b"little", "data/0": np.arange(4, dtype="<f4").tobytes()}
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return [out.getvalue()]


def fix_zip(data: bytearray) -> None:
    """Right checksums in the directory of a zip, where its members are found."""
    at = data.find(b"PK\x01\x02")
    while at >= 0 and at + 46 <= len(data):
        size, start = (int.from_bytes(data[at + place : at + place + 4], "little") for place in (24, 42))
        begin = (
            start + 30 + sum(int.from_bytes(data[start + place : start + place + 2], "little") for place in (26, 28))
        )
        data[at + 16 : at + 20] = zlib.crc32(data[begin : begin + size]).to_bytes(4, "little")
        at = data.find(b"PK\x01\x02", at + 46)


def index_files() -> Corpus:
    """The files of an index, one after the other behind their lengths."""
    store = Memory("fuzz")
    with IndexWriter(store, format="webdataset", columns={"cls": int, "label": str}) as writer:
        samples = [
            stoker.format.SampleEntry(
                f"k{at}", (FieldPlace("jpg", at * 100, 90), FieldPlace("txt", at, 3)), {"cls": at}
            )
            for at in range(20)
        ]
        writer.add_shard(ObjectRef("a.tar", 5_000, None, expanded_size=5_000), samples)
        writer.commit(classes=["a", "b"])
    files = [store.get(f"_stoker/{name}") for name in INDEX_FILES]
    return [bytes([at]) + files[at] for at in range(3)]


_whole: list[bytes] = []


def read_index_files(data: bytes) -> object:
    """An index of which one file (the first byte says which) is another; its samples."""
    if not _whole:
        _whole.extend(one[1:] for one in index_files())
    with tempfile.TemporaryDirectory(prefix="stoker-fuzz-") as folder:
        for at, name in enumerate(INDEX_FILES):
            (Path(folder) / name).write_bytes(data[1:] if data and data[0] == at else _whole[at])
        index = Index(Path(folder))
        for sample in range(min(len(index), SAMPLES_LOOKED_AT)):
            index.key(sample)
            for name in index.field_names(sample):
                index.place(sample, name)
        index.plan_identity()
    return None


def manifests(suffix: str) -> Parser:
    """Tables of paths and metadata."""
    text = {
        ".csv": b'path,cls,caption\na/b.jpg,1,hello\nc.jpg,2,"x, y"\n',
        ".jsonl": b'{"path": "a.jpg", "cls": 1}\n' * 3,
    }
    return Parser(lambda: [text[suffix]], lambda data: read_table(data, f"x{suffix}"))


PARSERS: dict[str, Parser] = {
    "webdataset": Parser(tars, scan("webdataset"), ("webdataset", "hostile_names"), (".tar",), fix_tar),
    "mds": Parser(mds_shards, scan("mds"), ("mds",), (".mds",)),
    "mds-index": Parser(
        mds_indexes, lambda data: read_index(data, "index.json", Findings()), ("mds",), ("index.json",)
    ),
    "tfrecord": Parser(records, scan("tfrecord"), ("tfrecord",), (".tfrecord", ".tfrecords")),
    "example": Parser(lambda: [encode(EXAMPLE), encode({"x": 1})], read_example),
    "arrays": Parser(
        lambda: [arrays_bytes({f"k{at}": {"a": np.arange(6), "b": np.float32(at)} for at in range(9)})], scan("arrays")
    ),
    "hdf5": Parser(rows_of(".h5"), rows("hdf5", ".h5"), ("hdf5",), (".h5", ".hdf5"), limit_s=60.0),
    "parquet": Parser(rows_of(".parquet"), rows("table", ".parquet"), ("parquet",), (".parquet",), limit_s=60.0),
    "arrow": Parser(rows_of(".arrow"), rows("table", ".arrow"), limit_s=60.0),
    "images": Parser(images, decoder("jpg"), ("images", "hostile_images"), (".jpg", ".png", ".webp", ".gif", ".tif")),
    "npy": Parser(lambda: [npy(np.arange(60).reshape(3, 4, 5)), npy(np.float32([1]))], decoder("npy")),
    "pt": Parser(tensors, lambda data: stoker.pt.decode(data, None, 0), fix=fix_zip),
    "json": Parser(lambda: [b'{"a": [1, 2.5, null, {"b": "\\u00e9"}], "c": true}', b"[[[[]]]]"], decoder("json")),
    "cls": Parser(lambda: [b"17", b"-3 \n", b"9223372036854775807"], decoder("cls")),
    "gzip": Parser(packed(lambda data: gzip.compress(data, mtime=0)), codec("gzip")),
    **{
        name: Parser(packed(lambda data, told=told: compressed(data, told)), codec(name))
        for name, told in {"zstd": "zstd", "bz2": "bz2", "br": "br", "snappy": "snappy"}.items()
    },
    "index": Parser(index_files, read_index_files),
    "csv": manifests(".csv"),
    "jsonl": manifests(".jsonl"),
}  # fmt: skip

INTERESTING = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    2**63 - 1,
    2**63,
    2**64 - 1,
    2**60,
)


def mutated(corpus: Corpus, parser: Parser, seed: int) -> bytes:
    """One input: the same for the same corpus and seed."""
    chance = random.Random(seed)
    data = bytearray(chance.choice(corpus))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 4, 16))):
        _mutate(data, corpus, chance)
    if chance.random() < 0.7:
        parser.fix(data)
    return bytes(data)


def _mutate(data: bytearray, corpus: Corpus, chance: random.Random) -> None:
    at = chance.randrange(len(data) + 1)
    size = chance.choice((1, 2, 4, 8, chance.randrange(1, 600)))
    kind = chance.randrange(9)
    if kind <= 1 and at < len(data):
        data[at] ^= 1 << chance.randrange(8)
    elif kind == 2 and at < len(data):
        data[at] = chance.randrange(256)
    elif kind <= 4:
        width = chance.choice((1, 2, 4, 8))
        number = (chance.choice((*INTERESTING, len(data))) + chance.choice((0, 0, 1, -1))) % (1 << 8 * width)
        data[at : at + width] = number.to_bytes(width, chance.choice(("little", "big")))
    elif kind == 5:
        del data[at : at + size]
    elif kind == 6:
        data[at:at] = data[at : at + size] * chance.choice((1, 1, 50))
    elif kind == 7:
        del data[at:]
    else:
        other = chance.choice(corpus)
        start = chance.randrange(len(other) + 1)
        data[at : at + size] = other[start : start + size]


def run_one(parser: Parser, data: bytes) -> str:
    """ "ok" or "refused"; every other exception is the caller's."""
    try:
        parser.read(data)
    except MissingExtraError:
        raise
    except StokerError:
        return "refused"
    return "ok"


def shared() -> Path | None:
    """The folder of real data, when it is here."""
    folder = Path(os.environ.get("STOKER_TEST_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    return folder if folder.is_dir() else None


def corpora(names: tuple[str, ...]) -> Iterator[tuple[str, Corpus]]:
    """The corpus of each parser."""
    for name in names:
        yield name, [data for data in (*PARSERS[name].corpus(), *real(shared(), PARSERS[name])) if data]
