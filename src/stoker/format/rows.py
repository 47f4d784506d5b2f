"""Formats whose samples are rows that a library reads from a file, not bytes at known places.

A row's place has no bytes: offset and length are 0, `row` counts within the shard. What a row's value is, the library
knows. The formats themselves are registered in `row_formats`; here is what they have in common.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Protocol, overload

import numpy as np

from stoker.errors import StokerError
from stoker.format.base import FieldPlace, Finding, Findings, SampleEntry, ShardScan
from stoker.format.names import IMAGE_FIELDS

KEY_FIELD = "__key__"
"""Name of the column that holds the samples' keys, where there is one."""


class RowFile(Protocol):
    """One open shard. Safe in threads; opened anew in every process."""

    def read(self, rows: Sequence[int], field: str) -> list[object]:
        """The values of *field* in these rows, in their order; None where a row has none.

        SampleError names a row that cannot be read.
        """
        ...

    def lengths(self, field: str) -> np.ndarray:
        """int64 [rows]: the number of elements that each row's *field* has; 0 where it has none."""
        ...

    def close(self) -> None:
        """Let go of the file."""
        ...


class RowSamples(Sequence[SampleEntry]):
    """The samples of a shard of rows, made as they are asked for: a shard may have a hundred million."""

    def __init__(self, runs: Sequence[tuple[int, tuple[str, ...]]], keys: Sequence[str] | None = None) -> None:
        """*runs*: (rows, names of their fields), one after the other. *keys*: of all rows; None: their numbers."""
        self._fields = [tuple(name for name in names if name != KEY_FIELD) for _, names in runs]
        self._ends = list(accumulate(rows for rows, _ in runs))
        self._keys = keys

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, row: int) -> SampleEntry: ...
    @overload
    def __getitem__(self, row: slice) -> Sequence[SampleEntry]: ...
    def __getitem__(self, row: int | slice) -> SampleEntry | Sequence[SampleEntry]:
        if isinstance(row, slice):
            return [self[one] for one in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        row %= len(self)
        fields = self._fields[bisect_right(self._ends, row)]
        key = f"{row:08d}" if self._keys is None else self._keys[row]
        return SampleEntry(key, tuple(FieldPlace(name, 0, 0, row=row) for name in fields))

    def __iter__(self) -> Iterator[SampleEntry]:
        return (self[row] for row in range(len(self)))


def resolve(field: str, names: Sequence[str]) -> str | None:
    """The column that a request means: itself, "a;b" the first there is, "image" also any image's extension."""
    if field in names:
        return field
    for part in field.split(";"):
        wanted = part.strip()
        found: str
        for found in (part, wanted, *(IMAGE_FIELDS if wanted == "image" else ())):
            if found in names:
                return found
    return None


def damaged(error: StokerError, key: str, findings: Findings) -> ShardScan:
    """The scan of a shard that gave no samples but *error*."""
    findings.take(Finding("damaged-shard", "error", key, error.message.removeprefix(f"{key}: ")))
    return ShardScan((), findings.all())


@dataclass(frozen=True, slots=True)
class RowFormat:
    """A format whose samples are rows."""

    name: str
    owns: Callable[[str], bool]
    """Whether an object of that name claims to be a shard of this format."""
    heads: tuple[bytes, ...]
    """What its files begin with."""
    scan: Callable[[Path, str], ShardScan]
    """(file, key) → its samples and findings; never raises for damaged content."""
    open: Callable[[Path], RowFile]


ROW_FORMATS: dict[str, Callable[[Path], RowFile]] = {}
"""Name of the format → how its shards are opened. MissingExtraError where the library is not installed."""
