"""`stoker.Mixture`: several datasets read as one, in exact shares, which may change at a position.

A sample's number counts through the sources, one behind the other; which of them stands where is `order/mixture.py`'s.
A mixture has no epoch of its own, so how long one is must be said: long enough that every sample of each source has
come ("all"), only as long as none comes twice ("first"), or a number of samples.
"""

from __future__ import annotations

import json
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from stoker.dataset.dataset import Dataset, Map, checked_map
from stoker.dataset.mixture_read import MixtureReader
from stoker.dataset.read import SampleReader
from stoker.errors import UsageError
from stoker.events import SILENT, Recorder
from stoker.index import ObjectRef
from stoker.order import MixedOrder, Order, Stretch
from stoker.order.mixture import CYCLE, places_of
from stoker.order.shuffle import SAMPLES_MAX

EpochRule = Literal["first", "all"] | int


class Mixture(Dataset):
    """Samples of several datasets, mixed by weight."""

    def __init__(
        self,
        parts: Mapping[str, tuple[Dataset, float]],
        *,
        epoch: EpochRule = "all",
        weights_from: Mapping[int, Mapping[str, float]] | None = None,
        maps: tuple[Map, ...] = (),
    ) -> None:
        """Mix *parts*: name → (dataset, weight); weights need not add up to 1 and are exact to 1 in 10,000.

        *epoch*: "all" ends an epoch when every source has given each of its samples at least once, "first" before any
        gives one twice, a number says how many samples it has. *weights_from*: position (samples over all ranks since
        the start of training) → weights from there on. UsageError for what cannot be mixed.
        """
        pairs = parts.values() if isinstance(parts, Mapping) else ()
        if not pairs or not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise UsageError(f"a mixture takes {{name: (dataset, weight)}}, found {parts!r:.80}")
        for name, (part, _) in parts.items():
            if not isinstance(part, Dataset) or isinstance(part, Mixture):
                raise UsageError(f"part {name!r} of a mixture must be a dataset, found {type(part).__name__}")
        self.parts = {name: part for name, (part, _) in parts.items()}
        self.maps = maps
        self.cache = None
        self._pairs, self._epoch, self._weights_from = parts, epoch, weights_from or {}
        self._stretches = _stretches({name: weight for name, (_, weight) in parts.items()}, weights_from or {})
        self._sizes = [len(part) for part in self.parts.values()]
        self._offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.array(self._sizes, np.int64))])
        self._epoch_samples = _epoch_samples(epoch, self._sizes, self._stretches[0].places)
        self._reader: SampleReader | None = None
        self._reader_pid = 0
        if not self.fields:
            told = "; ".join(f"{name}: {', '.join(part.fields)}" for name, part in self.parts.items())
            raise UsageError(f"the parts of the mixture have no field in common: {told}")

    def __len__(self) -> int:
        return self._epoch_samples

    def __repr__(self) -> str:
        told = ", ".join(
            f"{name} {count / CYCLE:.2%}" for name, count in zip(self.parts, self._stretches[0].places, strict=True)
        )
        return f"<stoker.Mixture of {told}: {len(self)} samples an epoch>"

    def __getstate__(self) -> dict[str, Any]:
        return {"parts": self._pairs, "epoch": self._epoch, "weights_from": self._weights_from, "maps": self.maps}

    @property
    def samples_of_all(self) -> int:
        """How many samples it takes until each source has given all of its own, at the first weights."""
        return _epoch_samples("all", self._sizes, self._stretches[0].places)

    @property
    def format_name(self) -> str:
        return "mixture"

    @property
    def url(self) -> str:
        return " + ".join(part.url for part in self.parts.values())

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that every part has, in the order of the first."""
        first, *others = self.parts.values()
        return tuple(name for name in first.fields if all(name in other.fields for other in others))

    @property
    def classes(self) -> tuple[str, ...] | None:
        found = {part.classes for part in self.parts.values()}
        return found.pop() if len(found) == 1 else None

    @property
    def remote(self) -> bool:
        return any(part.remote for part in self.parts.values())

    @property
    def shard_starts(self) -> np.ndarray:
        starts = [
            part.shard_starts[:-1] + offset for part, offset in zip(self.parts.values(), self._offsets, strict=False)
        ]
        return np.concatenate([*starts, self._offsets[-1:]])

    def codec(self, field: str) -> str:
        found = {part.codec(field) for part in self.parts.values()}
        return found.pop() if len(found) == 1 else ""

    def key(self, sample: int) -> str:
        part, number = self._part(sample)
        return part.key(number)

    def source_of(self, samples: Any) -> np.ndarray:
        """The number of the source of each of *samples* (a batch's `__index__`), in the order of `parts`: int64 [n]."""
        given = np.asarray(samples)
        outside = given[(given < 0) | (given >= self._offsets[-1])]
        if outside.size:
            raise IndexError(f"sample {outside.flat[0]} of a mixture of {self._offsets[-1]} samples")
        found: np.ndarray = np.searchsorted(self._offsets, given, side="right") - 1
        return found

    def _part(self, sample: int) -> tuple[Dataset, int]:
        if not 0 <= sample < self._offsets[-1]:
            raise IndexError(f"sample {sample} of a mixture of {self._offsets[-1]} samples")
        at = int(np.searchsorted(self._offsets, sample, side="right")) - 1
        return list(self.parts.values())[at], sample - int(self._offsets[at])

    def plan_identity(self) -> str:
        return json.dumps([[name, part.plan_identity(), len(part)] for name, part in self.parts.items()])

    def plan_until(self, position: int) -> str:
        """The weights that decided the positions before *position*: later changes do not make it another plan."""
        told = [[one.start, *one.places] for one in self._stretches if one.start < max(1, position)]
        return json.dumps([len(self), told])

    def make_order(self, orders: Sequence[Order], seed: int) -> MixedOrder:
        """The order of the mixture over those of its parts."""
        return MixedOrder(orders, self._stretches, epoch_samples=len(self), seed=seed)

    def counts(self, order: MixedOrder, first: int, stop: int) -> dict[str, int]:
        """How many samples of each source stand at the positions [first, stop) since the start of training: exact."""
        return dict(zip(self.parts, order.counts(first, stop).tolist(), strict=True))

    def map(self, function: Map) -> Mixture:
        maps = (*self.maps, checked_map(function))
        return Mixture(self._pairs, epoch=self._epoch, weights_from=self._weights_from, maps=maps)

    def reweighted(self, position: int, weights: Mapping[str, float]) -> Mixture:
        """The same mixture with other *weights* from *position* on: a run that stands before it goes on with it."""
        return Mixture(
            self._pairs, epoch=self._epoch, weights_from={**self._weights_from, position: weights}, maps=self.maps
        )

    def objects(self, samples: np.ndarray | None = None) -> Iterator[ObjectRef]:
        raise UsageError("a mixture has no objects of its own", "warm the cache of each of its parts")

    def reader(self, fields: tuple[str, ...] | None = None, recorder: Recorder = SILENT) -> SampleReader:
        readers = [part.reader(fields, recorder) for part in self.parts.values()]
        return MixtureReader(list(self.parts.values()), readers, self._offsets)

    def __getitem__(self, sample: int) -> dict[str, Any]:
        """Sample by number: the sources' samples one behind the other, whatever their weights."""
        part, number = self._part(operator.index(sample))
        return self.mapped({**part[number], "__index__": operator.index(sample)})


def _stretches(weights: Mapping[str, float], later: Mapping[int, Mapping[str, float]]) -> tuple[Stretch, ...]:
    found = [Stretch(0, places_of(weights))]
    if not isinstance(later, Mapping) or not all(isinstance(given, Mapping) for given in later.values()):
        raise UsageError(f"weights_from maps positions to weights, as {{1000: {{'a': 1}}}}, found {later!r:.80}")
    for position in later:
        if type(position) is not int or not 1 <= position <= SAMPLES_MAX:
            raise UsageError(f"weights change at a position from 1 on, found {position!r:.80}")
    for position, given in sorted(later.items()):
        if set(given) != set(weights):
            raise UsageError(f"weights from {position} on are of {sorted(given)}, the mixture has {sorted(weights)}")
        found.append(Stretch(position, places_of({name: given[name] for name in weights})))
    return tuple(found)


def _epoch_samples(rule: EpochRule, sizes: Sequence[int], places: Sequence[int]) -> int:
    needed = [size * CYCLE / count for size, count in zip(sizes, places, strict=True) if count]
    if rule == "first":
        found = math.floor(min(needed))
    elif rule == "all":
        found = math.ceil(max(needed))
    elif type(rule) is int and 1 <= rule <= SAMPLES_MAX:
        found = rule
    else:
        raise UsageError(f"epoch is 'all', 'first' or a number of samples up to 2^62, found {rule!r:.80}")
    if found < 1:
        raise UsageError(f"an epoch of this mixture has no sample: its parts have {list(sizes)}")
    return found
