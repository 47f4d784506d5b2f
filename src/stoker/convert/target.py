"""The formats that a dataset can be converted to: how each is written, and read back when the fit is tried.

A writer differs from format to format; what all have here is `add`, `close`, and where the first sample will lie.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from pyarrow import DataType

from stoker.errors import UsageError
from stoker.format import FORMATS, ROW_SHARDS, FieldPlace, WebDatasetWriter
from stoker.format.arrays import SUFFIX as ARRAYS_SUFFIX
from stoker.format.arrays import ArraysWriter
from stoker.format.hdf5 import Hdf5Writer
from stoker.format.mds import Columns, MDSWriter
from stoker.format.table import TableWriter
from stoker.format.tfrecord import TFRecordWriter
from stoker.pack.transform import encode_fields
from stoker.store.atomic import named

BUFFER_BYTES = 1 << 20
Values = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Shape:
    """What a survey of all samples found out, and writers must know before the first one."""

    columns: Columns | None = None
    """MDS: the columns of the whole dataset."""
    ragged: frozenset[str] = field(default_factory=frozenset)
    """HDF5: fields of one dimension whose length differs from sample to sample."""
    types: Mapping[str, DataType] = field(default_factory=dict)
    """Table: the columns of the whole dataset."""


class Writer(Protocol):
    """What the writers of all formats have."""

    def add(self, key: str, values: Any) -> tuple[FieldPlace, ...]: ...

    def close(self) -> int: ...


class FileWriter(Writer, Protocol):
    """A writer that has a file of its own."""

    def abandon(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Target:
    """One format to convert to."""

    name: str
    suffix: str
    stream: Callable[[BinaryIO, Shape], Writer] | None = None
    """Makes a writer to a binary file; None where a library writes the file itself."""
    file: Callable[[Path, Shape], FileWriter] | None = None
    """Makes a writer to a path."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Which parts the places of its fields have."""
        return FORMATS[self.name].parts if self.name in FORMATS else ("row",)

    def stored(self, values: Values) -> Values:
        """The values as its writer takes them: a WebDataset shard holds bytes, and text, numbers and JSON as these."""
        return encode_fields(dict(values)) if self.name == "webdataset" else values


def _mds(out: BinaryIO, shape: Shape) -> Writer:
    columns = shape.columns
    if columns is None:
        return MDSWriter(out)
    told = zip(columns.names[1:], columns.encodings[1:], strict=True)  # the first is the key
    return MDSWriter(out, columns=dict(told))


TARGETS: dict[str, Target] = {
    one.name: one
    for one in (
        Target("webdataset", ".tar", stream=lambda out, _: WebDatasetWriter(out)),
        Target("mds", ".mds", stream=_mds),
        Target("tfrecord", ".tfrecord", stream=lambda out, _: TFRecordWriter(out)),
        Target("arrays", ARRAYS_SUFFIX, stream=lambda out, _: ArraysWriter(out)),
        Target("hdf5", ".h5", file=lambda path, shape: Hdf5Writer(path, ragged=shape.ragged)),
        Target("table", ".parquet", file=lambda path, shape: TableWriter(path, columns=shape.types or None)),
    )
}


def target_of(name: str) -> Target:
    """The format of that name. UsageError for one that is only read."""
    found = TARGETS.get(name)
    if found is None:
        raise UsageError(f"cannot convert to {name!r}", f"formats that are written: {', '.join(TARGETS)}")
    return found


def settled(writer: Writer, places: tuple[FieldPlace, ...]) -> tuple[FieldPlace, ...]:
    """The places in the finished shard: those of MDS count from the first sample, whose place is known at the end."""
    if not isinstance(writer, MDSWriter):
        return places
    return tuple(replace(place, offset=place.offset + writer.start) for place in places)


class ShardFile:
    """One shard in the making, in the file *path*; what the disk refuses is a StoreError that says *where*."""

    def __init__(self, target: Target, path: Path, shape: Shape, *, where: str | None = None) -> None:
        self._target = target
        self._where = where or str(path)
        self._stream: BinaryIO | None = None
        self._file: FileWriter | None = None
        with named(self._where):
            if target.stream is not None:
                self._stream = path.open("wb", buffering=BUFFER_BYTES)
                self.writer: Writer = target.stream(self._stream, shape)
            else:
                assert target.file is not None
                self.writer = self._file = target.file(path, shape)

    def add(self, key: str, values: Values) -> tuple[FieldPlace, ...]:
        """Append a sample; its places are final after `close` only (`settled`)."""
        with named(self._where):
            return self.writer.add(key, self._target.stored(values))

    def close(self) -> int:
        """Write the end; gives the shard's bytes."""
        with named(self._where):
            size = self.writer.close()
            if self._stream is not None:
                self._stream.close()
        return size

    def abandon(self) -> None:
        """Close the file, whatever it holds: a full disk has no say here."""
        if self._file is not None:
            self._file.abandon()
        if self._stream is not None:
            with contextlib.suppress(OSError):
                self._stream.close()


def tried(target: Target, shape: Shape, key: str, values: Values) -> tuple[Writer, tuple[FieldPlace, ...], bytes]:
    """A shard of one sample in memory: its writer, the sample's places, its bytes. Only for formats of streams."""
    assert target.stream is not None
    out = io.BytesIO()
    writer = target.stream(out, shape)
    places = writer.add(key, target.stored(values))
    writer.close()
    return writer, settled(writer, places), out.getvalue()


def library(name: str) -> Callable[[Path], Any]:
    """How a shard of rows is opened."""
    return ROW_SHARDS[name].open
