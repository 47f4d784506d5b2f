"""What the formats are good for, in one table: `stoker formats` prints it, docs/formats.md holds it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compared:
    """One format as a person chooses it."""

    name: str
    """As --format takes it."""
    files: str
    read: str
    """How a sample is read."""
    random_access: str
    compression: str
    written_by: str
    """Which commands of stoker write it."""
    best_for: str


_EXPANDED = "yes; a compressed {} is expanded into the cache first"

COMPARISON = (
    Compared(
        "webdataset", "`.tar`, also compressed as a whole", "byte ranges from the index", _EXPANDED.format("shard"),
        "per file, or gzip, zstd, bz2, xz as a whole", "pack, convert", "images, audio, anything in files",
    ),
    Compared(
        "mds", "`index.json`, `.mds`", "byte ranges from the index", _EXPANDED.format("shard"),
        "br, bz2, gz, snappy, zstd as a whole", "convert",
        "what is used with mosaicml-streaming: typed columns, tokens",
    ),
    Compared(
        "tfrecord", "`.tfrecord`, `-00000-of-00012`, `.gz`",
        "byte ranges from the index, which takes one read of everything", _EXPANDED.format("file"),
        "gzip, zlib as a whole", "convert", "what is used with TensorFlow; no TensorFlow is needed",
    ),
    Compared(
        "hdf5", "`.h5`, `.hdf5`, `.h5ad`; extra `hdf5`",
        "rows, by the library, from a file of this machine: remote ones through a cache", "yes, by chunks",
        "gzip, lzf, and hdf5plugin's filters, by chunks", "convert", "robot episodes, scientific arrays",
    ),
    Compared(
        "table", "`.parquet`, `.arrow`, `.feather`",
        "rows of a decoded row group, wanted columns only; remote ones through a cache",
        "by row groups: large groups make it slow", "any of Parquet's", "convert",
        "tokens, captions, Hugging Face sets",
    ),
    Compared(
        "arrays", "`.arrays.bin`", "byte ranges from the index, nothing to decode", "yes", "none",
        "pack --predecode, convert", "when decoding is the bottleneck",
    ),
    Compared("files", "raw files", "one object a file", "yes", "per file", "-", "small sets, first looks"),
)  # fmt: skip
"""Every format that stoker reads."""

HEADINGS = ("", "files", "how it is read", "random access", "compression", "written by", "best for")


def cells(one: Compared) -> tuple[str, ...]:
    """The cells of a row, below HEADINGS."""
    return one.name, one.files, one.read, one.random_access, one.compression, one.written_by, one.best_for


def markdown() -> str:
    """The table as it stands in the documentation."""
    lines = ["| " + " | ".join(HEADINGS).strip() + " |", "|" + "---|" * len(HEADINGS)]
    return "\n".join([*lines, *("| " + " | ".join(cells(one)) + " |" for one in COMPARISON)])
