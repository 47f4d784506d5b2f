"""Small datasets of every kind that holds rows, arrays or token documents."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stoker.format import WebDatasetWriter
from stoker.format.arrays import ArraysWriter
from stoker.format.hdf5 import Hdf5Writer
from stoker.format.table import TableWriter

Values = dict[str, Any]


def write_hdf5(path: Path, samples: dict[str, Values], **options: Any) -> Path:
    """A shard of rows; gives its path."""
    writer = Hdf5Writer(path, **options)
    for key, values in samples.items():
        writer.add(key, values)
    assert writer.close() == path.stat().st_size
    return path


def write_table(path: Path, samples: dict[str, Values], **options: Any) -> Path:
    """A table; gives its path."""
    writer = TableWriter(path, **options)
    for key, values in samples.items():
        writer.add(key, values)
    assert writer.close() == path.stat().st_size
    return path


def arrays_bytes(samples: dict[str, Values]) -> bytes:
    """A shard of arrays."""
    out = io.BytesIO()
    writer = ArraysWriter(out)
    for key, values in samples.items():
        writer.add(key, values)
    assert writer.close() == len(out.getvalue())
    return out.getvalue()


def documents(seed: int, counts: Sequence[int], dtype: str = "int32") -> list[np.ndarray]:
    """Token documents of those lengths."""
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 30_000, count).astype(dtype) for count in counts]


def npy(array: np.ndarray) -> bytes:
    """The array as `numpy.save` writes it."""
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def write_tar(path: Path, fields: dict[str, dict[str, bytes]]) -> None:
    """A tar shard."""
    with path.open("wb") as out:
        writer = WebDatasetWriter(out)
        for key, values in fields.items():
            writer.add(key, values)
        writer.close()


__all__ = ["arrays_bytes", "documents", "npy", "write_hdf5", "write_table", "write_tar"]
