"""Which values are arrays that can lie in a slot, and whether one fits the place that another was measured for."""

from __future__ import annotations

import numpy as np

from stoker.errors import SampleError

Shape = tuple[tuple[int, ...], str]
"""Shape and dtype."""

_NUMERIC = "biufc"


def as_array(value: object) -> np.ndarray | None:
    """Numbers, NumPy arrays and torch tensors as an array in this machine's byte order; None for all else.

    Strings, bytes, lists, dicts, dates and objects are none; nor are tensors that NumPy cannot show (bfloat16, sparse).
    """
    if isinstance(value, str | bytes | dict | list | tuple | None):
        return None
    detach = getattr(value, "detach", None)  # a tensor that is part of a graph is shown without it
    try:
        given = np.asarray(detach() if callable(detach) else value)
    except (TypeError, ValueError, RuntimeError):
        return None
    if given.dtype.kind not in _NUMERIC:
        return None
    return given if given.dtype.isnative else given.astype(given.dtype.newbyteorder("="))


def shape_of(value: object) -> Shape | None:
    """Shape and dtype of a value that can lie in a slot, else None."""
    given = as_array(value)
    return None if given is None else (given.shape, str(given.dtype))


def fits(name: str, given: np.ndarray, shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether *given* has that shape. SampleError when its dtype would lose something in a place of *dtype*."""
    if not np.can_cast(given.dtype, dtype, "safe"):
        raise SampleError(
            f"field {name!r}: {given.dtype} where the first samples had {dtype}, which cannot hold it",
            "give every sample the same dtype",
        )
    return given.shape == shape
