"""`stoker.Buckets`: batches of like length by a budget of tokens, in place of a batch size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from stoker.dataset import Dataset, Mixture, sample_lengths
from stoker.errors import UsageError
from stoker.loader.padding import Padding
from stoker.loader.ranks import Ranks
from stoker.order import BucketedOrder, Mode, Split

NUMBER_MAX = 2**40
"""No length or budget is beyond it."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """Batches whose samples are of like length, each with about as many tokens as any other.

    `stoker.Loader(dataset, stoker.Buckets("tokens", bounds=(128, 512, 2048), tokens=65_536))`: a batch of the bucket up
    to 512 holds 65,536 // 512 = 128 samples. Planned for all ranks at once: all make the same number of steps.
    """

    lengths: str | np.ndarray[Any, Any]
    """A metadata column of numbers; a field, whose length is its elements where it holds numbers, else its bytes; or
    whole numbers [samples]."""
    bounds: tuple[int, ...]
    """The longest sample that each bucket takes, rising. A sample longer than the last is an error."""
    tokens: int
    """Length that a batch of one rank may have in all, every sample counted as its bucket's bound."""
    pad: Mapping[str, float] | None = None
    """Field → value: the field comes as one array [batch, longest], filled up with the value, and `<field>_length`
    (int64 [batch]) says how long each sample is."""
    pad_to_bound: bool = False
    """Pad to the bucket's bound in place of the longest sample: as many shapes as buckets, for compiled models."""

    def __post_init__(self) -> None:
        given = self.bounds if isinstance(self.bounds, tuple | list | np.ndarray) else ()
        bounds = tuple(one for one in map(_whole, given) if one is not None)
        if not bounds or len(bounds) < len(given) or any(one >= other for one, other in pairwise(bounds)):
            raise UsageError(f"bounds are rising whole numbers from 1 to {NUMBER_MAX}, found {self.bounds!r:.200}")
        tokens = _whole(self.tokens)
        if tokens is None:
            raise UsageError(f"tokens is a whole number from 1 to {NUMBER_MAX}, found {self.tokens!r:.200}")
        if tokens < bounds[-1]:
            raise UsageError(f"tokens={tokens} holds no sample of the longest bucket, which takes up to {bounds[-1]}")
        object.__setattr__(self, "bounds", bounds)  # as Python's own numbers: they enter the plan's hash as text
        object.__setattr__(self, "tokens", tokens)
        if self.pad is not None:
            object.__setattr__(self, "pad", _fills(self.pad))
        if type(self.pad_to_bound) is not bool or (self.pad_to_bound and not self.pad):
            raise UsageError(
                f"pad_to_bound is True or False and says how far pad= pads, found {self.pad_to_bound!r} with "
                f"pad={self.pad!r}"
            )

    def padding(self) -> Padding | None:
        """How fields are padded, if any are."""
        if not self.pad:
            return None
        return Padding(self.pad, self.tokens, self.bounds if self.pad_to_bound else ())

    def sizes(self) -> tuple[int, ...]:
        """Samples a batch, by bucket."""
        return tuple(self.tokens // bound for bound in self.bounds)

    def plan(
        self, dataset: Dataset, ranks: Ranks, *, seed: int, mode: Mode, tail: str, canonical_nodes: int
    ) -> tuple[BucketedOrder, Split]:
        """The batches of every epoch and this rank's share of them. UsageError for what does not go with buckets."""
        if isinstance(dataset, Mixture):
            raise UsageError("buckets are made of one dataset, not of a mixture")
        if tail != "drop" or canonical_nodes != 1:
            raise UsageError(f"buckets take tail='drop' and one canonical node, found {tail!r} and {canonical_nodes}")
        lengths = self._lengths(dataset)
        order = BucketedOrder(lengths, self.bounds, self.sizes(), seed=seed, mode=mode)
        split = Split(order.samples, 1, ranks.rank, ranks.world_size)
        if split.steps() == 0:
            raise UsageError(
                f"an epoch would have 0 steps: {order.samples} batches for {ranks.world_size} ranks",
                "use fewer tokens a batch",
            )
        return order, split

    def _lengths(self, dataset: Dataset) -> np.ndarray[Any, np.dtype[np.int64]]:
        found = sample_lengths(dataset, self.lengths) if isinstance(self.lengths, str) else _as_array(self.lengths)
        if found.shape != (len(dataset),) or found.dtype.kind not in "iu":
            raise UsageError(
                f"lengths must be {len(dataset)} whole numbers, one a sample, found {found.dtype} {found.shape}"
            )
        for at in (int(found.argmin()), int(found.argmax())) if len(found) else ():
            if not 0 <= int(found[at]) <= NUMBER_MAX:
                raise UsageError(f"lengths go from 0 to {NUMBER_MAX}, sample {at} has {int(found[at])}")
        return found.astype(np.int64)


def _whole(value: object) -> int | None:
    """A whole number from 1 on, of Python's or of NumPy's; None for all else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        return None
    return int(value) if 1 <= int(value) <= NUMBER_MAX else None


def _as_array(given: object) -> np.ndarray[Any, Any]:
    try:
        return np.asarray(given)
    except ValueError as error:  # lists of differing length
        raise UsageError(f"lengths are whole numbers, one a sample: {error}") from None


def _fills(pad: object) -> dict[str, float]:
    """Field → what fills it up, as a number of Python's."""
    if not isinstance(pad, Mapping) or not all(
        isinstance(name, str) and isinstance(value, int | float | np.integer | np.floating | np.bool)
        for name, value in pad.items()
    ):
        raise UsageError(f"pad maps fields to numbers, as {{'tokens': 0}}, found {pad!r:.200}")
    return {name: value.item() if isinstance(value, np.generic) else value for name, value in pad.items()}
