"""What a feeder thread does to a chunk: raw bytes → decoded values → transformed values → rows of the slot.

Each stage runs over the whole chunk before the next begins, so that the times noted for a stage are true intervals. A
sample that cannot be used is handled here (skipped, replaced, or raised); everything else that goes wrong ends the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from stoker.clock import SYSTEM
from stoker.dataset import Located, RawSamples, SampleReader
from stoker.decode import takes_pixels
from stoker.errors import MissingFieldError, SampleError
from stoker.loader.arrays import Shape, as_array, fits
from stoker.loader.batch import UNSET, Bad, Batch, Chunk
from stoker.loader.job import Job, Sample
from stoker.loader.padding import row_of
from stoker.loader.values import REPLACE_TRIES, Decoding, Values, transformed
from stoker.order import BucketedOrder, sample_seed


class Workshop:
    """The work on chunks, shared by all threads of a feeder: it keeps no state but the reader."""

    def __init__(self, job: Job, reader: SampleReader) -> None:
        self._job = job
        self._reader = reader
        self._decoding = Decoding(job.dataset, job.fields, job.natural)
        plain = job.transform is None and not job.dataset.maps
        self.names: frozenset[str] | None = None
        """The fields that the transform gives, once the first sample has shown them."""
        names = tuple(name for name, _ in job.fields)
        gatherer = reader.gatherer(names) if plain and job.padding is None else None
        self.gatherer = gatherer if gatherer is not None and as_stored(job, gatherer.shapes) else None
        """What copies this job's fields straight from mapped shards, where nothing is to be decoded."""
        self._direct = {name for name, decoder in job.fields if plain and decoder.shape is not None}

    def read(self, batch: Batch, chunk: Chunk) -> RawSamples | Located:
        """The raw values of a chunk's samples, or where they lie in memory, noting where they came from."""
        begin = SYSTEM.monotonic()
        if self.gatherer is not None:
            located = self.gatherer.locate(batch.samples[chunk.first : chunk.stop])
            if located is not None:
                return located
            batch.gathered = False
        raw = self._reader.read(batch.samples[chunk.first : chunk.stop].tolist())
        batch.spent("cache_miss" if raw.missed else "store_read", begin, SYSTEM.monotonic())
        return raw

    def fill(self, batch: Batch, chunk: Chunk, raw: RawSamples | Located, seat: np.ndarray) -> None:
        """Decode, transform and store the chunk's rows; *seat* (int64 [1]) says which sample the thread is at."""
        begin = SYSTEM.monotonic()
        if not isinstance(raw, RawSamples):
            seat[0] = batch.samples[chunk.first] + 1
            raw.fill({name: batch.arrays[name][chunk.first : chunk.stop] for name, _ in self._job.fields})
            batch.spent("store_read", begin, SYSTEM.monotonic())
            return
        decoded = [self._decode(batch, chunk, row, raw, seat) for row in range(chunk.first, chunk.stop)]
        decoded_s = SYSTEM.monotonic()
        batch.spent("decode", begin, decoded_s)
        if self._job.transform is not None:
            decoded = [self._transform(batch, row, values, seat) for row, values in enumerate(decoded, chunk.first)]
            batch.spent("transform", decoded_s, SYSTEM.monotonic())
        for row, values in enumerate(decoded, chunk.first):
            if values is not None:
                seat[0] = batch.samples[row] + 1
                self._keep(batch, row, values)

    def probe(self, samples: list[int], epoch: int) -> Iterator[tuple[int, Values | SampleError]]:
        """The values of a few samples, or why they are bad, to learn the shapes that decoders and transform give."""
        raw = self._reader.read(samples)
        for at, sample in enumerate(samples):
            try:
                values = self._values(raw, at, sample, epoch, {})
                yield sample, self._apply(raw.keys[at], sample, epoch, values) if self._job.transform else values
            except SampleError as error:
                yield sample, error

    def _decode(self, batch: Batch, chunk: Chunk, row: int, raw: RawSamples, seat: np.ndarray) -> Values | None:
        """Decoded values of a row, or None where the sample is skipped. Fixed-shape fields are in the slot already."""
        sample, at = int(batch.samples[row]), row - chunk.first
        outs = {name: batch.arrays[name][row, ...] for name in self._direct}
        seat[0] = sample + 1
        try:
            return self._values(raw, at, sample, batch.epoch, outs)
        except SampleError as error:
            return self._bad(batch, row, error, outs, transformed=False)

    def _values(self, raw: RawSamples, at: int, sample: int, epoch: int, outs: Mapping[str, np.ndarray]) -> Values:
        return self._decoding.values(raw, at, sample, sample_seed(self._job.seed, epoch, sample), outs)

    def _bad(
        self, batch: Batch, row: int, error: SampleError, outs: Mapping[str, np.ndarray], *, transformed: bool
    ) -> Values | None:
        """Deal with the sample of *row* as the policy says; *transformed*: what is given back must be, too."""
        sample, action = int(batch.samples[row]), self._job.bad.action
        key = self._job.dataset.key(sample)
        where = f"sample {sample}, key {key!r}, epoch {batch.epoch}: {error.message}"
        if action == "raise":
            raise type(error)(
                where, error.hint or "Loader(on_bad='skip' or 'replace') goes on without such samples"
            ) from error
        substitute, values = None, None
        if action == "replace":
            substitute, values = self._substitute(batch, row, sample, outs, transformed=transformed)
        first = batch.bad.get(row)  # a substitute may turn out bad in a later stage: what it stood for is told
        batch.bad[row] = (
            Bad(sample, key, error.reason, where, substitute)
            if first is None
            else replace(first, replaced_by=substitute)
        )
        return values

    def _substitute(
        self, batch: Batch, row: int, sample: int, outs: Mapping[str, np.ndarray], *, transformed: bool
    ) -> tuple[int, Values]:
        """Another sample in place of a bad one, as far along as that was: the same on every machine and resume."""
        for attempt in range(1, REPLACE_TRIES + 1):
            other = self._decoding.substitute(self._job.seed, batch.epoch, sample, attempt)
            if isinstance(self._job.order, BucketedOrder):
                other = self._job.order.alike(sample, other)  # a longer one would burst the budget of tokens
            raw = self._reader.read([other])
            try:
                values = self._values(raw, 0, other, batch.epoch, outs)
                if transformed:
                    values = self._apply(raw.keys[0], other, batch.epoch, values)
                if transformed or self._job.transform is None:
                    self._fitting(batch, values)
            except SampleError:
                continue
            batch.samples[row] = other
            return other, values
        raise SampleError(f"sample {sample} is bad and so were {REPLACE_TRIES} substitutes drawn for it")

    def _transform(self, batch: Batch, row: int, values: Values | None, seat: np.ndarray) -> Values | None:
        if values is None:
            return None
        seat[0] = batch.samples[row] + 1
        try:
            sample = int(batch.samples[row])
            return self._apply(self._job.dataset.key(sample), sample, batch.epoch, values)
        except SampleError as error:
            return self._bad(batch, row, error, {}, transformed=True)

    def _apply(self, key: str, sample: int, epoch: int, values: Values) -> Sample:
        assert self._job.transform is not None
        draw = sample_seed(self._job.seed, epoch, sample)
        kept = transformed(self._job.transform, values, key=key, sample=sample, draw=draw)
        self._check_names(kept)
        return kept

    def _keep(self, batch: Batch, row: int, values: Values) -> None:
        try:
            self._store(batch, row, values)
        except SampleError as error:
            substitute = self._bad(batch, row, error, {}, transformed=self._job.transform is not None)
            if substitute is not None:
                self._store(batch, row, substitute)

    def _check_names(self, given: Values) -> None:
        """Every sample of a run has the same fields: a slot's row must not keep what another sample left there."""
        if self.names is None or given.keys() == self.names:
            return
        missing, extra = sorted(self.names - given.keys()), sorted(given.keys() - self.names)
        if missing:
            raise MissingFieldError(f"the transform gave no field {missing[0]!r}, which the first samples had")
        raise SampleError(
            f"the transform gave a field {extra[0]!r} that the first samples did not have",
            "give every sample the same fields; None is a value",
        )

    def _store(self, batch: Batch, row: int, values: Values) -> None:
        """Put what is not in the slot yet there, or aside where it does not fit; nothing where any of it is bad."""
        for name, given in self._fitting(batch, values).items():
            if given is not None:
                batch.arrays[name][row] = given
            else:
                batch.loose.setdefault(name, [UNSET] * len(batch.samples))[row] = values[name]

    def _fitting(self, batch: Batch, values: Values) -> dict[str, np.ndarray | None]:
        """The values as rows of the slot, None for those that do not fit. SampleError for what has no place at all."""
        padded = self._job.padding.values if self._job.padding is not None else ()
        found: dict[str, np.ndarray | None] = {}
        for name, value in values.items():
            array = batch.arrays.get(name)
            given = as_array(value) if array is not None else None
            if array is not None and name in padded:
                given = row_of(name, value, array)
            fit = array is not None and given is not None and fits(name, given, array.shape[1:], array.dtype)
            found[name] = given if fit else None
        return found


def as_stored(job: Job, shapes: Mapping[str, Shape]) -> bool:
    """Whether the fields come out of their decoders as they were stored."""
    for name, decoder in job.fields:
        if takes_pixels(decoder) and not job.natural:
            return False
        if decoder.shape is not None and (decoder.shape, str(decoder.dtype)) != shapes[name]:
            return False
    return True
