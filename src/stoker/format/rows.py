"""Formats whose samples are rows that a library reads from a file, not bytes at known places."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol


class RowFile(Protocol):
    """One open shard. Safe in threads; opened anew in every process."""

    def read(self, rows: Sequence[int], field: str) -> list[object]:
        """The values of *field* in these rows, in their order. SampleError names a row that cannot be read."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


ROW_FORMATS: dict[str, Callable[[Path], RowFile]] = {}
"""Name of the format → how its shards are opened. MissingExtraError where the library is not installed."""
