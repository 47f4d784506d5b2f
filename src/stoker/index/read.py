"""The read side of an index: sample number → shard, object, byte range. Mapped, and shared by every process of a node.

Opening reads the manifest and the footers of the Arrow files; a batch of 65,536 samples is checked and viewed when it
is first touched. There is no Python list of samples anywhere. What crosses a process border is where the files lie.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from blake3 import blake3

from stoker.errors import ChangedError, NotFoundError, ShardError, StoreError
from stoker.format import IMAGE_FIELDS, STOKER_FOLDER, FieldPlace, SampleEntry
from stoker.index.entry import ObjectRef, Place, ShardEntry
from stoker.index.fetch import default_place, local_folder
from stoker.index.layout import (
    BATCH,
    BATCH_SHIFT,
    INDEX_FILE,
    MANIFEST_BYTES_MAX,
    MANIFEST_FILE,
    OBJECTS_FILE,
    SHARDS_FILE,
    Manifest,
)
from stoker.index.views import ObjectTable, SampleView, open_arrow
from stoker.store.base import Store

_MASK = BATCH - 1
VIEWS_MAX = 4_096
"""Viewed batches held at once (about 2 kB each beside the mapped pages)."""


class _Mapped:
    """The open files of an index."""

    def __init__(self, folder: Path, manifest: Manifest) -> None:
        self.manifest = manifest
        self.index = open_arrow(folder, INDEX_FILE, manifest)
        self.shards = ObjectTable(open_arrow(folder, SHARDS_FILE, manifest), folder / SHARDS_FILE)
        self.objects = None
        if OBJECTS_FILE in manifest.files:
            self.objects = ObjectTable(open_arrow(folder, OBJECTS_FILE, manifest), folder / OBJECTS_FILE)
        self.starts = np.append(self.shards.numbers("start"), manifest.samples)
        batches = -(-manifest.samples // BATCH)
        if self.index.num_record_batches != batches or len(self.shards) != manifest.shards:
            raise ShardError(
                f"{folder}: manifest names {manifest.samples} samples in {manifest.shards} shards, found "
                f"{self.index.num_record_batches} batches of samples (expected {batches}) and {len(self.shards)} shards"
            )
        if self.starts[0] != 0 or np.any(np.diff(self.starts) < 0):
            raise ShardError(f"{folder / SHARDS_FILE}: the shards' first samples are not in order")
        self.starts_view = self.starts.data
        self.views: dict[int, SampleView] = {}
        self.field_numbers: dict[str, tuple[int, ...]] = {}


class Index:
    """For every sample of a dataset: its shard, and where each field's bytes lie in it."""

    def __init__(self, folder: Path, *, identity: str | None = None) -> None:
        """Open the index whose files are in *folder*. *identity*: BLAKE3 of the manifest that must be there."""
        self._folder = folder
        self._identity = identity
        self._lock = threading.Lock()
        self._files: _Mapped | None = None
        self._open()

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self._folder, "identity": self._identity}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._folder, self._identity = state["folder"], state["identity"]
        self._lock = threading.Lock()
        self._files = None

    def __len__(self) -> int:
        return self.manifest.samples

    def __repr__(self) -> str:
        return f"<stoker.Index {self._folder}: {len(self)} samples in {self.manifest.shards} shards, {self.format}>"

    @classmethod
    def load(cls, store: Store, prefix: str = STOKER_FOLDER, *, place: Path | None = None) -> Index:
        """The index that lies in *store*: mapped where it lies if the store has files, else fetched once into *place*.

        NotFoundError when there is none, ShardError when it is damaged or of a newer version.
        """
        return cls(local_folder(store, prefix, place or default_place()))

    @property
    def folder(self) -> Path:
        """Where the files of the index lie."""
        return self._folder

    @property
    def manifest(self) -> Manifest:
        return self._open().manifest

    @property
    def format(self) -> str:
        return self.manifest.format

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of fields that any sample has, most common first."""
        counts = self.manifest.fields
        return tuple(sorted(counts, key=lambda name: (-counts[name], name)))

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the metadata columns."""
        return tuple(self.manifest.columns)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The sorted labels that `cls` counts in."""
        return self.manifest.classes

    @property
    def shard_starts(self) -> np.ndarray:
        """int64 [shards + 1]: the first sample of each shard, and the number of samples."""
        return self._open().starts

    @property
    def objects_are_shards(self) -> bool:
        """Whether a shard is one object; raw files are many in one folder, which is their shard."""
        return self._open().objects is None

    def plan_identity(self) -> str:
        """BLAKE3 of format and ordered (relative shard name, size, samples): what a resumed run must find again."""
        return self.manifest.plan

    def shard_of(self, sample: int) -> int:
        """The number of the shard that holds *sample*."""
        return bisect_right(self._open().starts_view, sample) - 1

    def shard(self, number: int) -> ShardEntry:
        """One shard, as the unit of order and cache."""
        files = self._open()
        ref = self._number_checked(files.shards, number)
        samples = int(files.starts[number + 1] - files.starts[number])
        return ShardEntry(ref.key, ref.size, samples, ref.version, ref.digest)

    def shard_object(self, number: int) -> ObjectRef:
        """The object of one shard (for raw files the folder, which is no object)."""
        return self._number_checked(self._open().shards, number)

    def key(self, sample: int) -> str:
        """The key of a sample, unique in its shard."""
        return self._view(sample).key(sample & _MASK)

    def place(self, sample: int, field: str) -> Place | None:
        """Where a field's bytes lie; None when the sample has no such field.

        "image" finds whichever image field the sample has; "jpg;png;webp" the first of these that it has.
        """
        files = self._open()
        view = self._view(sample)
        numbers = files.field_numbers.get(field)
        if numbers is None:
            numbers = self._resolve(field)
        at = view.find(sample & _MASK, numbers)
        if at < 0:
            return None
        ref = self._object(files, view, sample, at)
        start = view.offsets[at]
        stop = start + view.lengths[at]
        if not 0 <= start <= stop <= ref.expanded_size:
            raise ShardError(
                f"{self._folder}: sample {sample}: {field} lies at bytes {start} to {stop} of {ref.key}, "
                f"which has {ref.expanded_size}"
            )
        codec = "" if view.codecs is None else files.manifest.codecs[view.codecs[at]]
        return Place(ref, start, stop, codec, -1 if view.rows is None else view.rows[at])

    def codec(self, field: str) -> str:
        """How the field's bytes are coded, as the first sample has them; "" where they are just bytes."""
        place = self.place(0, field) if len(self) else None
        return "" if place is None else place.codec

    def field_lengths(self, field: str) -> tuple[np.ndarray, tuple[str, ...]]:
        """int64 [samples]: stored bytes of *field*, 0 where a sample lacks it; and the codecs that it comes in."""
        numbers = self._resolve(field)
        found = np.zeros(len(self), np.int64)
        codecs: set[int] = set()
        for start in range(0, len(self), BATCH):
            lengths, used = self._view(start).field_lengths(numbers)
            found[start : start + len(lengths)] = lengths
            codecs |= used
        return found, tuple(self.manifest.codecs[number] for number in sorted(codecs)) or ("",)

    def field_starts(self, field: str, first: int, stop: int) -> np.ndarray:
        """int64 [stop - first]: where *field* of the samples from *first* on begins in its object; -1 where lacking."""
        numbers = self._resolve(field)
        found = np.full(stop - first, -1, np.int64)
        for start in range(first & ~_MASK, stop, BATCH):
            starts = self._view(start).field_starts(numbers)
            low, high = max(first, start), min(stop, start + BATCH)
            found[low - first : high - first] = starts[low - start : high - start]
        return found

    def field_names(self, sample: int) -> tuple[str, ...]:
        """The fields that a sample has, as they lie."""
        names = tuple(self._open().manifest.fields)
        return tuple(names[number] for number in self._view(sample).field_numbers(sample & _MASK))

    def value(self, sample: int, column: str) -> Any:
        """A sample's value in a metadata column; None where it has none. KeyError for an unknown column."""
        if column not in self.manifest.columns:
            raise KeyError(column)
        return self._view(sample).column(column)[sample & _MASK].as_py()

    def column(self, name: str) -> pa.ChunkedArray:
        """A whole metadata column. KeyError for an unknown one."""
        if name not in self.manifest.columns:
            raise KeyError(name)
        chunks = [self._view(start).column(name) for start in range(0, len(self), BATCH)]
        return pa.chunked_array(chunks, self._open().index.schema.field("columns").type.field(name).type)

    def objects(self, samples: np.ndarray | None = None) -> Iterator[ObjectRef]:
        """Every object once: in shard order, or those that *samples* (int64) need in order of first use."""
        files = self._open()
        table = files.objects or files.shards
        if samples is None:
            yield from (table.ref(number) for number in range(len(table)))
            return
        seen = np.zeros(len(table), bool)
        for start in range(0, len(samples), BATCH):
            numbers = self._object_numbers(files, samples[start : start + BATCH])
            fresh, first = np.unique(numbers, return_index=True)
            wanted = np.sort(first[~seen[fresh]])
            seen[fresh] = True
            yield from (table.ref(int(number)) for number in numbers[wanted])

    def entries(self, start: int, stop: int) -> Iterator[SampleEntry]:
        """The samples [start, stop) as a scan would give them."""
        for sample in range(start, stop):
            files, view, row = self._open(), self._view(sample), sample & _MASK
            names = tuple(files.manifest.fields)
            places = []
            for at in view.places(row):
                codec = "" if view.codecs is None else files.manifest.codecs[view.codecs[at]]
                number = -1 if view.rows is None else view.rows[at]
                owner = "" if files.objects is None else self._object(files, view, sample, at).key
                places.append(
                    FieldPlace(names[view.names[at]], view.offsets[at], view.lengths[at], codec, number, owner)
                )
            columns = {name: view.column(name)[row].as_py() for name in files.manifest.columns}
            yield SampleEntry(view.key(row), tuple(places), columns)

    def _open(self) -> _Mapped:
        files = self._files
        if files is None:
            with self._lock:
                if self._files is None:
                    self._files = self._map()
                files = self._files
        return files

    def _map(self) -> _Mapped:
        path = self._folder / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                data = file.read(MANIFEST_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(f"{path}: no index here", "index the dataset: `stoker index URL`") from None
        except OSError as error:
            raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
        if len(data) > MANIFEST_BYTES_MAX:
            raise ShardError(f"{path}: a manifest of more than {MANIFEST_BYTES_MAX} bytes")
        identity = blake3(data).hexdigest()
        if self._identity not in (None, identity):
            raise ChangedError(
                f"{path}: the index was written anew: its manifest was {self._identity}, found {identity}",
                "open the dataset again",
            )
        self._identity = identity
        return _Mapped(self._folder, Manifest.from_json(data, str(path)))

    def _view(self, sample: int) -> SampleView:
        files = self._open()
        view = files.views.get(sample >> BATCH_SHIFT)
        return view if view is not None and 0 <= sample < files.manifest.samples else self._new_view(files, sample)

    def _new_view(self, files: _Mapped, sample: int) -> SampleView:
        if not 0 <= sample < files.manifest.samples:
            raise IndexError(f"sample {sample} of a dataset with {files.manifest.samples} samples")
        batch = sample >> BATCH_SHIFT
        with self._lock:
            if len(files.views) >= VIEWS_MAX:
                files.views.clear()
            rows = min(BATCH, files.manifest.samples - (batch << BATCH_SHIFT))
            return files.views.setdefault(batch, SampleView(files.index, batch, rows, files.manifest, self._folder))

    def _object(self, files: _Mapped, view: SampleView, sample: int, at: int) -> ObjectRef:
        if files.objects is None or view.objects is None:
            return files.shards.ref(bisect_right(files.starts_view, sample) - 1)
        return files.objects.ref(view.objects[at])

    def _object_numbers(self, files: _Mapped, samples: np.ndarray) -> np.ndarray:
        """The objects that samples need, in order, possibly several times."""
        if files.objects is None:
            return np.searchsorted(files.starts, samples, side="right") - 1
        numbers = [
            view.objects[at]
            for sample in samples.tolist()
            if (view := self._view(sample)).objects is not None
            for at in view.places(sample & _MASK)
        ]
        return np.array(numbers, np.int64)

    def _resolve(self, field: str) -> tuple[int, ...]:
        """The numbers of the names that a request stands for, in order of preference."""
        files = self._open()
        number = {name: at for at, name in enumerate(files.manifest.fields)}
        names = [field]  # a name may hold blanks and semicolons itself
        for part in field.split(";"):
            names += (part, part.strip(), *(IMAGE_FIELDS if part.strip() == "image" else ()))
        found = tuple(dict.fromkeys(number[name] for name in names if name in number))
        files.field_numbers[field] = found
        return found

    def _number_checked(self, table: ObjectTable, number: int) -> ObjectRef:
        if not 0 <= number < len(table):
            raise IndexError(f"shard {number} of a dataset with {len(table)} shards")
        return table.ref(number)
