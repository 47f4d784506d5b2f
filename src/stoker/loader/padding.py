"""Fields of differing length as one array [batch, longest], filled up with a value, and their lengths beside it.

They lie in the slot: a batch of a bucket never has more elements than the budget of tokens, however long its samples
are, so the room is known before the first batch. What has more all the same (after a transform that lengthens) is an
array of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stoker.errors import SampleError, UsageError
from stoker.loader.arrays import Shape, as_array, fits

LENGTH = "{}_length"


@dataclass(frozen=True, slots=True)
class Padding:
    """Which fields are padded, with what, and how far."""

    values: Mapping[str, float]
    """Field → what fills it up."""
    tokens: int
    """Positions that a batch has in all, its padding included."""
    bounds: tuple[int, ...]
    """Lengths that a batch may have; empty: as long as its longest sample."""

    def places(self, seen: Sequence[Mapping[str, Shape | None]], rows: int) -> dict[str, Shape]:
        """The padded fields and their lengths, as rows of a slot of *rows*, by what the first samples look like.

        UsageError for a field that is not there, has no length, or cannot hold what it is to be filled up with.
        """
        found: dict[str, Shape] = {}
        for name, value in self.values.items():
            shapes = [one.get(name) for one in seen]
            if name not in seen[0]:
                raise UsageError(f"pad names field {name!r}, the samples have {', '.join(sorted(seen[0]))}")
            if LENGTH.format(name) in seen[0]:
                raise UsageError(f"pad gives a field {LENGTH.format(name)!r}, which the samples have already")
            known = [shape for shape in shapes if shape is not None and shape[0]]
            if len(known) < len(shapes) or len({shape[0][1:] for shape in known}) > 1:
                found_there = ", ".join(dict.fromkeys(map(_said, shapes)))
                raise UsageError(
                    f"pad: field {name!r} is no array whose first axis alone differs in length; the first samples "
                    f"have {found_there}",
                    "let a transform make it an array of numbers, as np.asarray(ids, np.int32)",
                )
            dtype = np.result_type(*(shape[1] for shape in known))
            if not _can_stand(value, dtype):
                raise UsageError(f"pad: {value!r:.80} cannot stand in field {name!r}, which holds {dtype}")
            found[name] = ((-(-self.tokens // rows), *known[0][0][1:]), str(dtype))
            found[LENGTH.format(name)] = ((), "int64")
        return found

    def fill(self, name: str, rows: Sequence[np.ndarray], room: np.ndarray) -> np.ndarray:
        """The field's *rows* as one array, in *room* (the field's part of a slot) where it has room enough."""
        longest = max(map(len, rows))
        longest = next((bound for bound in self.bounds if bound >= longest), longest)
        shape = (len(rows), longest, *room.shape[2:])
        size = math.prod(shape)
        out = room.reshape(-1)[:size].reshape(shape) if size <= room.size else np.empty(shape, room.dtype)
        for row, one in enumerate(rows):
            out[row, : len(one)] = one
            out[row, len(one) :] = self.values[name]
        return out


def _said(shape: Shape | None) -> str:
    return "what is no array of numbers" if shape is None else f"{shape[1]} of shape {list(shape[0])}"


def _can_stand(value: float, dtype: np.dtype) -> bool:
    """Whether *value* means the same in an array of *dtype*: rounded as any number there is, never cut or infinite."""
    try:
        with np.errstate(all="ignore"):
            kept = np.array(value).astype(dtype)
        return bool(math.isfinite(value) == np.isfinite(kept)) if dtype.kind in "fc" else bool(kept == value)
    except OverflowError:
        return False


def row_of(name: str, value: object, room: np.ndarray) -> np.ndarray:
    """A sample's value as an array to pad. SampleError for one of another kind than the first samples had."""
    given = as_array(value)
    if given is not None and given.ndim and fits(name, given[:0], (0, *room.shape[2:]), room.dtype):
        return given
    found = type(value).__name__ if given is None else f"{given.dtype} of shape {given.shape}"
    wanted = ", ".join(["length", *map(str, room.shape[2:])])
    raise SampleError(f"field {name!r}: expected {room.dtype} of shape [{wanted}] to pad, found {found}")
