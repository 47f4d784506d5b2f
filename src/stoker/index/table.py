"""A manifest of raw files: a CSV, JSON-lines or Parquet table of a path column and metadata columns.

The path column is called `path`, `file_name` or `file`. Values may be whole numbers, numbers, texts and truth values.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from stoker.errors import ShardError, UsageError
from stoker.format.files import ManifestRow
from stoker.format.names import printable

TABLE_BYTES_MAX = 4 << 30
"""A whole manifest: it is read into memory."""
TABLE_ROW_BYTES_MAX = 16 << 20
"""One row of a CSV or JSON-lines manifest."""
PATH_COLUMNS = ("path", "file_name", "file")
TYPES: tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...] = (
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_null, pa.string()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_dictionary, pa.string()),
)


def _csv(data: bytes) -> pa.Table:
    options = pa.csv.ReadOptions(use_threads=False, block_size=TABLE_ROW_BYTES_MAX)  # threads lose the row's number
    return pa.csv.read_csv(io.BytesIO(data), options, pa.csv.ParseOptions(newlines_in_values=True))


def _json(data: bytes) -> pa.Table:
    return pa.json.read_json(io.BytesIO(data), pa.json.ReadOptions(block_size=TABLE_ROW_BYTES_MAX))


def _parquet(data: bytes) -> pa.Table:
    return pa.parquet.read_table(io.BytesIO(data), page_checksum_verification=True)


READERS: Mapping[str, Callable[[bytes], pa.Table]] = {
    ".csv": _csv,
    ".jsonl": _json,
    ".ndjson": _json,
    ".parquet": _parquet,
}


def read_table(data: bytes, name: str) -> dict[str, ManifestRow]:
    """From path to row, in the order of the table. Errors name the row or column."""
    suffix = next((suffix for suffix in READERS if name.lower().endswith(suffix)), None)
    if suffix is None:
        raise UsageError(f"{name}: a manifest's name ends in {', '.join(READERS)}")
    if len(data) > TABLE_BYTES_MAX:
        raise ShardError(f"{name}: a manifest of {len(data)} bytes, at most {TABLE_BYTES_MAX} are allowed")
    try:
        return _rows(_plain(READERS[suffix](data), name), name)  # texts are decoded as they are looked at
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ShardError(f"{name}: cannot be read as {suffix[1:]}: {error}") from error


def _plain(table: pa.Table, name: str) -> pa.Table:
    """The same table with columns of the four plain types only."""
    if len(set(table.column_names)) < len(table.column_names):
        raise ShardError(f"{name}: two columns have one name among {table.column_names}")
    arrays = []
    for column in table.schema:
        plain = next((plain for holds, plain in TYPES if holds(column.type)), None)
        try:
            if plain is None:
                raise pa.ArrowTypeError(f"values of type {column.type}")
            arrays.append(table.column(column.name).cast(plain))
        except pa.ArrowException as error:
            raise ShardError(
                f"{name}: column {column.name!r}: {error}", "whole numbers, numbers, texts and truth values can be kept"
            ) from error
    return pa.table(arrays, names=table.column_names)


def _rows(table: pa.Table, name: str) -> dict[str, ManifestRow]:
    column = next((column for column in PATH_COLUMNS if column in table.column_names), None)
    if column is None:
        raise ShardError(f"{name}: no column {' or '.join(PATH_COLUMNS)}, found {', '.join(table.column_names)}")
    rows: dict[str, ManifestRow] = {}
    number = 0
    for batch in table.to_batches():
        for values in batch.to_pylist():
            number += 1
            path: Any = values.pop(column)
            if not isinstance(path, str) or not path:
                raise ShardError(f"{name}: row {number}: no path, found {path!r}")
            path = path.removeprefix("./")
            if path in rows:
                raise ShardError(f"{name}: row {number}: {printable(path)!r} stands in row {rows[path].number} already")
            rows[path] = ManifestRow(number, values)
    if not rows:
        raise ShardError(f"{name}: a manifest without rows")
    return rows
