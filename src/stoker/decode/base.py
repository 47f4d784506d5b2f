"""The contract of a decoder: the bytes of one field of one sample → a value.

A decoder is a frozen, picklable value, used by many threads at once. What differs from sample to sample comes in as
`draw`; nothing is remembered between calls. The caller adds key and sample number to a SampleError.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Decoder(Protocol):
    """Turns a field's bytes into a value."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of every value, which then goes straight into its slot; None where it differs or is no array."""
        ...

    @property
    def dtype(self) -> np.dtype[Any] | None:
        """The element type of every value, None for what is no array."""
        ...

    def decode(self, raw: bytes | memoryview, out: np.ndarray[Any, Any] | None, draw: int) -> Any:
        """The value of *raw*, or with *out* (C-contiguous, of `shape` and `dtype`) written there and None returned.

        *draw* is the 64-bit seed of (seed, epoch, sample). SampleError when the bytes are not what they should be. The
        value shares no memory with *raw*.
        """
        ...
