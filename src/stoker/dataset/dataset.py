"""A dataset: store + index + cache behind one face, with random access by sample number.

It is a description: what crosses to the feeder or a worker process is where the bytes lie; files, clients and mappings
are opened on first use in each process. Filling a cache needs `objects()` and `store`, and nothing else.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from stoker.cache import Cache, Objects, Streamed
from stoker.dataset.read import SampleReader
from stoker.errors import SampleError, UsageError
from stoker.events import SILENT, Recorder
from stoker.index import Index, ObjectRef
from stoker.store import HasPaths, Store, innermost

Sample = dict[str, Any]
Map = Callable[[Sample], Sample]


def checked_map(function: Map) -> Map:
    """*function*, if it can be called at all."""
    if not callable(function):
        raise UsageError(f"map takes a function of a sample's dict, found {function!r:.80}")
    return function


class Dataset:
    """Samples by number. `len()` is the global truth; `dataset[i]` gives raw values: bytes a field, values a column."""

    def __init__(self, store: Store, index: Index, *, cache: Cache | None = None, maps: tuple[Map, ...] = ()) -> None:
        self.store = store
        self.index = index
        self.cache = cache
        self.maps = maps
        self._reader: SampleReader | None = None
        self._reader_pid = 0

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<stoker.Dataset {self.url}: {len(self)} samples, {self.index.format}, fields {', '.join(self.fields)}>"

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "index": self.index, "cache": self.cache, "maps": self.maps}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]  # the state is the constructor's arguments

    @property
    def url(self) -> str:
        """Where the dataset lies, without secrets."""
        return self.store.url

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of stored fields that any sample has, the most common first, then metadata columns that no field
        shadows."""
        stored = self.index.fields
        return (*stored, *(name for name in self.index.columns if name not in stored))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Label names in sorted order: `cls` is the position in it. None when the dataset's labels have no names."""
        return self.index.classes

    @property
    def remote(self) -> bool:
        """Whether reading may mean a round trip: then it is worth reading ahead."""
        return not isinstance(innermost(self.store), HasPaths)

    @property
    def shard_starts(self) -> np.ndarray:
        """int64 [shards + 1]: the first sample of each shard, and the number of samples."""
        return self.index.shard_starts

    @property
    def format_name(self) -> str:
        """The format of its shards."""
        return self.index.format

    def codec(self, field: str) -> str:
        """How a field is encoded, where all samples have it in one way and its name does not say it; else empty."""
        return self.index.codec(field)

    def plan_until(self, position: int) -> str:
        """What else decides which samples stand before *position* (samples since the start of training)."""
        return ""

    def key(self, sample: int) -> str:
        """The key of a sample, unique in its shard."""
        return self.index.key(sample)

    def plan_identity(self) -> str:
        """What a resumed run must find again: changes with the samples and their order, not with where they lie."""
        return self.index.plan_identity()

    def map(self, function: Map) -> Dataset:
        """The dataset with *function* applied to each raw sample (a dict with `__key__`, `__index__`) as it is read."""
        return Dataset(self.store, self.index, cache=self.cache, maps=(*self.maps, checked_map(function)))

    def mapped(self, sample: Sample) -> Sample:
        """*sample* after all maps."""
        for function in self.maps:
            sample = function(sample)
            if not isinstance(sample, dict):
                raise UsageError(f"dataset.map({function!r}) must return a dict, not {type(sample).__name__}")
        return sample

    def objects(self, samples: np.ndarray | None = None) -> Iterator[ObjectRef]:
        """Every object of the dataset once, in order of first use by *samples* (int64; default: as they lie)."""
        return self.index.objects(samples)

    def open_objects(self, recorder: Recorder = SILENT) -> Objects:
        """The read side: through the cache where there is one. The caller closes it."""
        if self.cache is None:
            return Streamed(self.store, recorder=recorder)
        return self.cache.objects(self.store, recorder=recorder)

    def reader(self, fields: tuple[str, ...] | None = None, recorder: Recorder = SILENT) -> SampleReader:
        """A reader of raw samples over freshly opened objects."""
        objects = self.open_objects(recorder)
        return SampleReader(self.index, objects, fields=fields, cached=self.cache is not None, recorder=recorder)

    def __getitem__(self, sample: int) -> Sample:
        number = operator.index(sample)
        if number < 0:
            number += len(self)
        if not 0 <= number < len(self):
            raise IndexError(f"sample {sample} of a dataset with {len(self)} samples")
        if self._reader is None or self._reader_pid != os.getpid():  # a forked child opens its own files and clients
            self._reader, self._reader_pid = self.reader(), os.getpid()
        raw = self._reader.read([number])
        for value in raw.sample(0).values():
            if isinstance(value, SampleError):
                raise value
        return self.mapped({"__key__": raw.keys[0], "__index__": number, **raw.sample(0)})
