"""From what was read of a sample to its decoded, transformed values: the same in a feeder and a DataLoader's worker.

A value that a format gives as it is (a number, an array) is left alone, but for pixels that a named decoder cuts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.dataset import Dataset, RawSamples
from stoker.dataset.read import MISSING
from stoker.decode import Decoder, resolve, takes_pixels
from stoker.errors import MissingFieldError, SampleError
from stoker.format.rows import resolve as stored_name
from stoker.loader.arrays import as_array, fits
from stoker.loader.job import Transform
from stoker.order import sample_seed

AS_THEY_ARE = resolve(bytes)
REPLACE_TRIES = 16
"""Substitutes tried for a bad sample: with 1 % bad samples the chance that all fail is 10^-32."""

Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Decoding:
    """How the samples of a dataset become values."""

    dataset: Dataset
    fields: tuple[tuple[str, Decoder], ...]
    natural: bool
    """No fields were named: what a format gives as text stays text where no decoder is known for the field."""

    def values(self, raw: RawSamples, at: int, sample: int, draw: int, outs: Mapping[str, np.ndarray]) -> Values:
        """The decoded values of the sample at place *at* of what was read; those with a place in *outs* are put there.

        *draw* is the seed of its augmentation. SampleError when the sample cannot be used.
        """
        source = raw.sample(at)
        if self.dataset.maps:
            source = self.dataset.mapped({**source, "__key__": raw.keys[at], "__index__": sample, "__seed__": draw})
        values: Values = {}
        for name, decoder in self.fields:
            value = value_of(source, name) if self.dataset.maps else source.get(name, MISSING)
            if value is MISSING:
                raise MissingFieldError(
                    f"the sample has no field {name!r}, but {', '.join(raw.names(at)) or 'nothing'}"
                )
            if isinstance(value, SampleError):
                raise value
            out = outs.get(name)
            if isinstance(value, str) and not (self.natural and decoder == AS_THEY_ARE):
                value = value.encode()  # a format's text, or a column's: it may still be a number to the reader
            pixels = isinstance(value, np.ndarray) and not self.natural and takes_pixels(decoder)
            if pixels or isinstance(value, bytes | memoryview):
                value = decoder.decode(value, out, draw)
            elif out is not None:
                _assign(name, out, value)
            if out is None:
                values[name] = value
        return values

    def substitute(self, seed: int, epoch: int, sample: int, attempt: int) -> int:
        """The sample to try in place of a bad one: the same on every machine and resume."""
        return sample_seed((seed + attempt) % 2**64, epoch, sample) % len(self.dataset)


def transformed(transform: Transform, values: Values, *, key: str, sample: int, draw: int) -> Values:
    """What the user's *transform* makes of a sample, without the names that are the loader's own."""
    result = transform({**values, "__key__": key, "__index__": sample, "__seed__": draw})
    if not isinstance(result, dict) or not all(isinstance(name, str) for name in result):
        raise TypeError(
            f"the transform must return a dict of named fields, found {type(result).__name__}: {result!r:.80}"
        )
    return {name: value for name, value in result.items() if not name.startswith("__")}


def value_of(source: Values, name: str) -> Any:
    """The value that *name* means in a sample under its own names: "image" is any picture, "a;b" the first there is.

    A reader that is asked for a name finds it so in the index; where `dataset.map` stands between, whole samples are
    read, under the names that they are stored by. MISSING where there is none.
    """
    found = stored_name(name, tuple(source))
    return MISSING if found is None else source[found]


def _assign(name: str, out: np.ndarray, value: object) -> None:
    """Put a value that needs no decoding where it belongs. SampleError when it is not of the field's shape and kind."""
    given = as_array(value)
    if given is None or not fits(name, given, out.shape, out.dtype):
        found = type(value).__name__ if given is None else f"{given.dtype} of shape {given.shape}"
        raise SampleError(f"field {name!r}: expected {out.dtype} of shape {out.shape}, found {found}")
    out[...] = given
