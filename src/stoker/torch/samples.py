"""Samples by number, decoded: what a worker process does. Knows neither workers nor torch.

A sample's augmentation is a function of (seed, epoch, sample), and so is the substitute of a bad one: both are those of
`stoker.Loader`, whichever process makes the sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from stoker.dataset import Dataset, RawSamples, SampleReader
from stoker.dataset.read import MISSING
from stoker.decode import prepare, quiet_pillow, resolve
from stoker.errors import MissingFieldError, SampleError
from stoker.events import HERE
from stoker.loader.plan import plan_fields
from stoker.loader.work import REPLACE_TRIES, value_of
from stoker.order import sample_seed
from stoker.torch.number import Number

Sample = dict[str, Any]
Transform = Callable[[Sample], Sample]
OnBad = Literal["raise", "replace"]

_BYTES = resolve(bytes)


class Samples:
    """The samples of a dataset as dicts of decoded values, read many at a time."""

    def __init__(
        self, dataset: Dataset, fields: Mapping[str, object] | None, transform: Transform | None, on_bad: OnBad
    ) -> None:
        self.dataset = dataset
        self._fields = plan_fields(dataset, fields)
        self._natural = fields is None
        self._transform = transform
        self._on_bad = on_bad
        self._reader: SampleReader | None = None
        self._pid = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reader": None, "_pid": 0}

    def get(self, numbers: Sequence[Number]) -> list[Sample]:
        """The samples of *numbers*, in order, read in one go."""
        raw = self._open().read([int(number) for number in numbers])
        return [self._one(raw, at, number) for at, number in enumerate(numbers)]

    def _open(self) -> SampleReader:
        """This process's own reader: a forked child must not use its parent's files and clients."""
        if self._reader is None or self._pid != os.getpid():
            quiet_pillow()
            prepare([decoder for _, decoder in self._fields])
            names = None if self.dataset.maps else tuple(name for name, _ in self._fields)
            self._reader, self._pid = self.dataset.reader(names, HERE), os.getpid()
        return self._reader

    def _one(self, raw: RawSamples, at: int, number: Number) -> Sample:
        try:
            return self._made(raw, at, int(number), number)
        except SampleError as error:
            where = f"sample {int(number)}, key {raw.keys[at]!r}, epoch {number.epoch}: {error.message}"
            if self._on_bad == "raise":
                hint = error.hint or "MapDataset(on_bad='replace') goes on without such samples"
                raise type(error)(where, hint) from error
        for attempt in range(1, REPLACE_TRIES + 1):
            seed = (number.seed + attempt) % 2**64
            other = sample_seed(seed, number.epoch, int(number)) % len(self.dataset)
            try:
                return self._made(self._open().read([other]), 0, other, number)
            except SampleError:
                continue
        raise SampleError(f"{where}; and so were {REPLACE_TRIES} substitutes drawn for it")

    def _made(self, raw: RawSamples, at: int, sample: int, number: Number) -> Sample:
        """The sample at place *at* of what was read, decoded and transformed."""
        draw = sample_seed(number.seed, number.epoch, sample)
        named: Sample = {"__key__": raw.keys[at], "__index__": sample}
        source = raw.sample(at)
        if self.dataset.maps:
            source = self.dataset.mapped({**source, **named, "__seed__": draw})
        values: Sample = {}
        for name, decoder in self._fields:
            value = value_of(source, name) if self.dataset.maps else source.get(name, MISSING)
            if value is MISSING:
                raise MissingFieldError(
                    f"the sample has no field {name!r}, but {', '.join(raw.names(at)) or 'nothing'}"
                )
            if isinstance(value, SampleError):
                raise value
            if isinstance(value, str) and not (self._natural and decoder == _BYTES):
                value = value.encode()
            if isinstance(value, bytes | memoryview):
                value = decoder.decode(value, None, draw)
            values[name] = value
        if self._transform is not None:
            values = self._transform({**values, **named, "__seed__": draw})
            if not isinstance(values, dict):
                raise TypeError(f"the transform must return a dict of named fields, found {type(values).__name__}")
            values = {name: value for name, value in values.items() if not str(name).startswith("__")}
        mask = {} if number.mask is None else {"__mask__": number.mask}
        return {**values, **named, **mask}
