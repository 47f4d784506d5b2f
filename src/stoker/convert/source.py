"""The samples of a dataset as they are converted: fields with their values, and metadata columns apart."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from blake3 import blake3

from stoker.dataset import Dataset, SampleReader
from stoker.decode import Decoder, default_for
from stoker.errors import SampleError, UsageError
from stoker.format import ColumnValue

READ_SAMPLES = 16
"""Samples read in one call: the ranges of neighbours are merged."""
RESERVED = ("__key__", "__index__")
_KINDS: dict[str, type] = {"int": int, "float": float, "str": str, "bool": bool}


@dataclass(frozen=True, slots=True)
class Converted:
    """One sample on its way."""

    key: str
    values: Mapping[str, Any]
    columns: Mapping[str, ColumnValue]


@dataclass(frozen=True)
class Source:
    """A dataset, which of its fields are taken, what they are called afterwards, which are decoded."""

    dataset: Dataset
    fields: tuple[str, ...] = ()
    """Fields to take; none: all."""
    rename: Mapping[str, str] = field(default_factory=dict)
    decode: frozenset[str] = frozenset()
    """Fields (by the source's names) that are decoded by their extension before they are written."""
    numbers: Sequence[int] | None = None
    """Samples to take, ascending; None: all."""

    def __post_init__(self) -> None:
        known = set(self.dataset.fields)
        unknown = sorted({*self.fields, *self.rename, *self.decode} - known)
        if unknown:
            raise UsageError(
                f"{self.dataset.url} has no field {', '.join(map(repr, unknown))}",
                f"it has {', '.join(self.dataset.fields)}",
            )
        names = [self.rename.get(name, name) for name in self.stored]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise UsageError(f"two fields would be called {', '.join(map(repr, twice))}", "rename them apart")
        taken = sorted({new for old, new in self.rename.items() if new != old} & set(RESERVED))
        if taken:
            raise UsageError(
                f"a field cannot be called {', '.join(taken)}: every sample has that", "choose another name"
            )
        shadowed = sorted({new for old, new in self.rename.items() if new != old} & set(self.dataset.index.columns))
        if shadowed:
            raise UsageError(f"{', '.join(map(repr, shadowed))} is a metadata column already", "choose another name")
        undecoded = sorted(name for name in self.decode if self._decoder(name) == default_for(""))
        if undecoded:
            raise UsageError(f"no decoder goes by the name of field {', '.join(map(repr, undecoded))}")

    def __len__(self) -> int:
        return len(self.dataset) if self.numbers is None else len(self.numbers)

    def _decoder(self, name: str) -> Decoder:
        return default_for(name, self.dataset.index.codec(name))

    @property
    def stored(self) -> tuple[str, ...]:
        """What becomes fields: those that are stored, and the class of a folder, which raw files do not store."""
        fields = self.dataset.index.fields
        every = fields if "cls" in fields or "cls" not in self.dataset.index.columns else (*fields, "cls")
        return every if not self.fields else tuple(name for name in self.fields if name in every)

    @property
    def columns(self) -> Mapping[str, type]:
        """The metadata columns, which the index keeps, and their types."""
        return {name: _KINDS[kind] for name, kind in self.dataset.index.manifest.columns.items()}

    def encodings(self) -> Mapping[str, str]:
        """Of MDS: the encodings of the columns whose values come as they are stored, by the names they will have."""
        found = {}
        if self.dataset.index.format == "mds":
            for name in self.stored:
                codecs = self.dataset.index.field_lengths(name)[1]
                encoding = codecs[0].removeprefix("mds:") or "bytes"
                if len(codecs) == 1 and name not in self.decode and encoding != "pil":  # a pil is read as its pixels
                    found[self.rename.get(name, name)] = encoding
        return found

    def identity(self) -> str:
        """Changes when any object of the dataset does."""
        digest = blake3(self.dataset.plan_identity().encode())
        for ref in self.dataset.objects():
            digest.update(repr((ref.key, ref.size, ref.version or ref.digest)).encode())
        if self.numbers is not None:
            digest.update(repr(list(self.numbers)).encode())
        return str(digest.hexdigest())

    def reader(self) -> SampleReader:
        """Reads what is needed of samples; for many threads."""
        return self.dataset.reader(self.stored)

    def read(self, reader: SampleReader, start: int, stop: int) -> Iterator[Converted]:
        """The samples [start, stop) of those taken. SampleError names one that cannot be read."""
        taken = range(len(self.dataset)) if self.numbers is None else self.numbers
        for first in range(start, stop, READ_SAMPLES):
            numbers = taken[first : min(first + READ_SAMPLES, stop)]
            raw = reader.read(numbers)
            for at, number in enumerate(numbers):
                yield self._converted(number, raw.keys[at], raw.sample(at))

    def _converted(self, number: int, key: str, raw: Mapping[str, Any]) -> Converted:
        where = f"{self.dataset.url}: sample {number} ({key})"
        values = {}
        for name in self.stored:
            if name in raw:
                try:
                    values[self.rename.get(name, name)] = self._value(name, raw[name])
                except SampleError as error:
                    raise SampleError(
                        f"{where}: field {name!r}: {error.message}", "`stoker verify --deep` lists all that is wrong"
                    ) from error
        index = self.dataset.index
        return Converted(key, values, {name: index.value(number, name) for name in index.columns})

    def _value(self, name: str, value: Any) -> Any:
        if isinstance(value, SampleError):
            raise value
        if isinstance(value, memoryview | bytearray):
            value = bytes(value)
        return self._decoder(name).decode(value, None, 0) if name in self.decode and isinstance(value, bytes) else value


def renames(given: Sequence[str]) -> dict[str, str]:
    """ "old=new" texts as a mapping."""
    found = {}
    for text in given:
        old, equal, new = text.partition("=")
        if not equal or not old or not new:
            raise UsageError(f"not a renaming: {text!r}", "write old=new")
        found[old] = new
    return found
