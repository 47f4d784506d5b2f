"""Whether a value that was stored and read back is still the same. Pure.

Numbers and arrays may change their element type as long as every element stays equal (TFRecord knows int64 and float32
only). Text may come back as its UTF-8, which is how TFRecord and WebDataset keep it. Everything else must be equal.
"""

from __future__ import annotations

import numpy as np

Number = bool | int | float | complex | np.generic


def same(before: object, after: object) -> bool:
    """Whether *after* says what *before* said."""
    if isinstance(before, str) and isinstance(after, bytes):
        return before.encode("utf-8", "surrogatepass") == after
    if isinstance(before, np.ndarray) or isinstance(after, np.ndarray):
        return _same_arrays(before, after)
    if isinstance(before, list | tuple):
        return isinstance(after, list | tuple) and len(before) == len(after) and all(map(same, before, after))
    if isinstance(before, dict) and isinstance(after, dict):
        return before.keys() == after.keys() and all(same(before[name], after[name]) for name in before)
    if isinstance(before, Number):
        return isinstance(after, Number) and _same_arrays(before, after)
    return type(before) is type(after) and before == after


def _same_arrays(before: object, after: object) -> bool:
    try:
        one, other = np.asarray(before), np.asarray(after)
    except ValueError:  # lists of differing lengths
        return False
    if one.shape != other.shape or (one.dtype.kind in "biufc") != (other.dtype.kind in "biufc"):
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind in "fc" and other.dtype.kind in "fc"))


def said(value: object) -> str:
    """The kind of a value, for messages."""
    if isinstance(value, np.ndarray):
        return f"array of {value.dtype} {value.shape}"
    return type(value).__name__


def size_of(value: object) -> int:
    """About how many bytes a value takes when it is stored."""
    if isinstance(value, bytes | str):
        return len(value)
    if isinstance(value, np.ndarray | np.generic):
        return int(value.nbytes)
    if isinstance(value, list | tuple):
        return sum(size_of(one) for one in value)
    return len(repr(value)) if isinstance(value, dict) else 8
