"""What a pack stores of a sample, by the format of its shards: files in a tar, or bare arrays back to back.

Arrays have one layout over the whole pack: the fields, types and shapes of the first sample that has every field which
the files' names promise. It is looked at before anything is written; a sample of another layout is a bad one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, Protocol, cast

import numpy as np

from stoker.decode import default_for
from stoker.decode.array import ArrayField
from stoker.decode.text import Number
from stoker.errors import SampleError, UsageError
from stoker.format import FORMATS, FieldPlace, SampleEntry, WebDatasetWriter, is_image
from stoker.format.arrays import SUFFIX as ARRAYS_SUFFIX
from stoker.format.arrays import ArraysWriter, Column, columns_of
from stoker.pack.cut import tar_bytes
from stoker.pack.options import SUFFIXES, Options
from stoker.pack.transform import IMAGE, Sample, encode_fields

Values = Mapping[str, Any]
"""Field → what the writer takes: bytes of a file, or an array."""


class Writer(Protocol):
    """What the writers of all formats have."""

    def add(self, key: str, values: Any) -> tuple[FieldPlace, ...]: ...

    def close(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Output:
    """How the shards of one pack are made."""

    format: str
    compression: str
    predecode: int | None
    layout: tuple[Column, ...] | None = None
    """Arrays: what every sample must look like; None before the first was looked at."""

    @classmethod
    def of(cls, asked: Options) -> Output:
        """What the options ask for."""
        return cls(asked.format, asked.compression, asked.recode.predecode)

    @property
    def parts(self) -> tuple[str, ...]:
        """Which parts the places of its fields have."""
        return FORMATS[self.format].parts

    @property
    def suffix(self) -> str:
        """What its shards' names end with."""
        return SUFFIXES[self.compression] if self.format == "webdataset" else ARRAYS_SUFFIX

    def size(self, entry: SampleEntry) -> int:
        """About how many bytes a sample takes, by its files' sizes alone."""
        if self.predecode is None:
            return tar_bytes(place.length for place in entry.fields)
        others = sum(place.length for place in entry.fields if not is_image(place.name))
        return self.predecode * self.predecode * 3 + others

    def writer(self, out: BinaryIO) -> Writer:
        """Writes one shard."""
        return WebDatasetWriter(out, compression=self.compression) if self.format == "webdataset" else ArraysWriter(out)

    @property
    def encode(self) -> Callable[[Sample], dict[str, Any]]:
        """From a sample to what is stored of it. SampleError when that cannot be stored."""
        return encode_fields if self.format == "webdataset" else self._arrays

    def learned(self, samples: Iterable[Values], names: frozenset[str] | None) -> Output:
        """With the layout of the first of *samples* that has just the fields *names* (None: whatever it has).

        UsageError when none has.
        """
        found: Values | None = None
        for found in samples:
            if names is None or found.keys() == names:
                return replace(self, layout=tuple(columns_of(found)))
        if found is not None and names is not None:
            raise UsageError(
                f"no sample has all of {', '.join(sorted(names))}, which arrays must",
                "--exclude some of them",
            )
        return self  # not one sample could be made: the run tells why

    def _arrays(self, sample: Sample) -> dict[str, np.ndarray[Any, Any]]:
        arrays = {
            name: _array(name, value)
            for name, value in sample.items()
            if not name.startswith("__") and value is not None
        }
        if self.layout is None:
            return arrays
        names = [column.name for column in self.layout]
        if arrays.keys() != set(names):
            raise SampleError(f"has the fields {', '.join(arrays)}; the pack holds {', '.join(names)}")
        ordered = {name: arrays[name] for name in names}
        for column in self.layout:
            array = ordered[column.name]
            if (array.dtype.str, array.shape) != (column.dtype, column.shape):
                raise SampleError(
                    f"field {column.name!r}: {array.dtype} {array.shape}; the pack holds "
                    f"{np.dtype(column.dtype)} {column.shape}"
                )
        return ordered


def _array(name: str, value: Any) -> np.ndarray[Any, Any]:
    """A value as an array: bytes are decoded by the field's name."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = default_for(name).decode(bytes(value), None, 0)
    try:
        columns_of({name: value})
    except UsageError as error:
        raise SampleError(error.message, _LEAVE_OUT) from error
    return np.asarray(value)


_LEAVE_OUT = "leave the field out: --exclude '*.EXTENSION', or a transform"


def promised_fields(samples: Iterable[SampleEntry]) -> frozenset[str]:
    """The fields that arrays of these raw samples have: the picture, the class, numbers and arrays beside it.

    UsageError for a field that is no array: text, JSON, and what no decoder is known for.
    """
    names = set()
    for sample in samples:
        names |= {IMAGE if is_image(place.name) else place.name for place in sample.fields}
        if sample.columns.get("cls") is not None:
            names.add("cls")
    for name in sorted(names - {IMAGE}):
        if not isinstance(default_for(name), Number | ArrayField):
            raise UsageError(
                f"--predecode stores numbers and arrays, which a field {name!r} is not", f"--exclude '*.{name}'"
            )
    return frozenset(names)


def stored_size(values: Values) -> int:
    """Bytes of a sample."""
    return sum(len(value) if isinstance(value, bytes) else cast(int, value.nbytes) for value in values.values())
