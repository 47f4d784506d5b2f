"""Fields that are arrays of any file format: what all of them have in common, and NumPy's own (`.npy`).

The header is checked against the bytes before anything is allocated.
"""

from __future__ import annotations

import ast
import math
import struct
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stoker.errors import SampleError, UsageError

HEADER_BYTES_MAX = 10_000
NPY_FAILURES = (ValueError, TypeError, SyntaxError, LookupError, RecursionError, MemoryError, struct.error)
"""What `npy_header` raises for bytes that are no .npy."""


@dataclass(frozen=True)
class ArrayField:
    """An array. With *shape* and *dtype* every sample must have them and goes to its slot."""

    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    kind: ClassVar[str]
    """The field's usual extension, for messages."""

    def __post_init__(self) -> None:
        if (self.shape is None) != (self.dtype is None):
            raise UsageError(f"{self.kind} takes both shape and dtype or none, found {self.shape!r} and {self.dtype!r}")
        if self.dtype is not None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def decode(
        self, raw: bytes | memoryview, out: np.ndarray[Any, Any] | None, draw: int
    ) -> np.ndarray[Any, Any] | None:
        """The array. Pickled objects are refused."""
        array = self._view(raw)
        if self.shape is not None and (array.shape != self.shape or array.dtype != self.dtype):
            raise SampleError(f"{self.kind}: expected {self.dtype} {self.shape}, found {array.dtype} {array.shape}")
        if out is None:
            return array.copy()
        np.copyto(out, array)
        return None

    def _view(self, raw: bytes | memoryview) -> np.ndarray[Any, Any]:
        """The array over *raw* itself. SampleError when the bytes are none."""
        raise NotImplementedError


class Npy(ArrayField):
    """An array as `numpy.save` writes it."""

    kind = "npy"

    def _view(self, raw: bytes | memoryview) -> np.ndarray[Any, Any]:
        try:
            shape, fortran, dtype, start = npy_header(raw)
        except NPY_FAILURES as error:
            raise SampleError(f"npy: {type(error).__name__}: {error}; found {len(raw)} bytes") from None
        if dtype.hasobject:
            raise SampleError(
                f"npy: the array holds pickled objects ({dtype}), which are never loaded; found in the header"
            )
        promised, found = math.prod(shape) * dtype.itemsize, len(raw) - start
        if promised != found:
            raise SampleError(f"npy: the header promises {dtype} {shape} = {promised} bytes, found {found}")
        flat = np.frombuffer(raw, dtype, offset=start) if found else np.empty(0, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")


def npy_header(raw: bytes | memoryview) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, Fortran order, type and where the data begin, of an .npy of version 1, 2 or 3.

    NumPy's own reader falls back on Python's tokenizer for headers of Python 2, with errors of its own kind.
    """
    if bytes(raw[:6]) != b"\x93NUMPY":
        raise ValueError("no .npy magic at the beginning")
    wide = raw[6] > 1
    (length,) = struct.unpack_from("<I" if wide else "<H", raw, 8)
    start = (12 if wide else 10) + length
    if raw[6] > 3 or length > HEADER_BYTES_MAX or start > len(raw):
        raise ValueError(f"version {raw[6]} with a header of {length} bytes, allowed are 3 and {HEADER_BYTES_MAX}")
    fields = ast.literal_eval(str(raw[start - length : start], "utf-8" if raw[6] == 3 else "latin-1").strip())
    shape, fortran = fields["shape"], fields["fortran_order"]
    if type(fortran) is not bool or not isinstance(shape, tuple) or any(type(n) is not int or n < 0 for n in shape):
        raise ValueError(f"shape {shape!r}, fortran_order {fortran!r}")
    dtype = np.lib.format.descr_to_dtype(fields["descr"])
    if dtype.itemsize == 0:
        raise ValueError(f"elements of no bytes: {dtype}")
    return shape, fortran, dtype, start
