"""Samples by number, decoded: what a worker process does. Knows neither workers nor torch.

A sample's augmentation is a function of (seed, epoch, sample), and so is the substitute of a bad one: both are those of
`stoker.Loader`, whichever process makes the sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from stoker.dataset import Dataset, RawSamples, SampleReader
from stoker.decode import prepare, quiet_pillow
from stoker.errors import SampleError
from stoker.events import HERE
from stoker.loader.plan import plan_fields
from stoker.loader.values import REPLACE_TRIES, Decoding, transformed
from stoker.order import sample_seed
from stoker.torch.number import Number

Sample = dict[str, Any]
Transform = Callable[[Sample], Sample]
OnBad = Literal["raise", "replace"]


class Samples:
    """The samples of a dataset as dicts of decoded values, read many at a time."""

    def __init__(
        self, dataset: Dataset, fields: Mapping[str, object] | None, transform: Transform | None, on_bad: OnBad
    ) -> None:
        self.dataset = dataset
        self._decoding = Decoding(dataset, plan_fields(dataset, fields), fields is None)
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
            prepare([decoder for _, decoder in self._decoding.fields])
            names = None if self.dataset.maps else tuple(name for name, _ in self._decoding.fields)
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
            other = self._decoding.substitute(number.seed, number.epoch, int(number), attempt)
            try:
                return self._made(self._open().read([other]), 0, other, number)
            except SampleError:
                continue
        raise SampleError(f"{where}; and so were {REPLACE_TRIES} substitutes drawn for it")

    def _made(self, raw: RawSamples, at: int, sample: int, number: Number) -> Sample:
        """The sample at place *at* of what was read, decoded and transformed."""
        draw, key = sample_seed(number.seed, number.epoch, sample), raw.keys[at]
        values = self._decoding.values(raw, at, sample, draw, {})
        if self._transform is not None:
            values = transformed(self._transform, values, key=key, sample=sample, draw=draw)
        mask = {} if number.mask is None else {"__mask__": number.mask}
        return {**values, "__key__": key, "__index__": sample, **mask}
