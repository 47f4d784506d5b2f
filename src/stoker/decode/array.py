"""Fields that are NumPy arrays (`.npy`). The header is checked against the bytes before anything is allocated."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from stoker.errors import SampleError, UsageError

HEADER_BYTES_MAX = 10_000
_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class Npy:
    """An array as `numpy.save` writes it. With *shape* and *dtype* every sample must have them and goes to its slot."""

    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None

    def __post_init__(self) -> None:
        if (self.shape is None) != (self.dtype is None):
            raise UsageError(f"npy takes both shape and dtype or none, found {self.shape!r} and {self.dtype!r}")
        if self.dtype is not None:
            object.__setattr__(self, "dtype", np.dtype(self.dtype))

    def decode(
        self, raw: bytes | memoryview, out: np.ndarray[Any, Any] | None, draw: int
    ) -> np.ndarray[Any, Any] | None:
        """The array. Pickled objects are refused."""
        array = self._view(raw)
        if self.shape is not None and (array.shape != self.shape or array.dtype != self.dtype):
            raise SampleError(f"npy: expected {self.dtype} {self.shape}, found {array.dtype} {array.shape}")
        if out is None:
            return array.copy()
        np.copyto(out, array)
        return None

    def _view(self, raw: bytes | memoryview) -> np.ndarray[Any, Any]:
        """The array over *raw* itself."""
        file = io.BytesIO(raw[: HEADER_BYTES_MAX + 16])
        try:
            version = np.lib.format.read_magic(file)
            if version not in _READERS:
                raise ValueError(f"format version {version}, known are 1.0 and 2.0")
            shape, fortran, dtype = _READERS[version](file, max_header_size=HEADER_BYTES_MAX)
        except (ValueError, EOFError, TypeError, SyntaxError, LookupError, RecursionError, MemoryError) as error:
            raise SampleError(f"npy: {type(error).__name__}: {error}; found {len(raw)} bytes") from None
        if dtype.hasobject:
            raise SampleError(f"npy: the array holds pickled objects ({dtype}), which are never loaded")
        count = 1
        for side in shape:
            count *= side
        if min(shape, default=0) < 0 or count * dtype.itemsize != len(raw) - file.tell():
            promised, found = count * dtype.itemsize, len(raw) - file.tell()
            raise SampleError(f"npy: the header promises {dtype} {shape} = {promised} bytes, found {found}")
        flat = np.frombuffer(raw, dtype, count, file.tell()) if count and dtype.itemsize else np.empty(count, dtype)
        return flat.reshape(shape, order="F" if fortran else "C")
