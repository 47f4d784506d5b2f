"""The structure of a Parquet or Arrow file: its columns and how many rows each of its groups has.

A group is what is decoded at once: a row group of Parquet, a record batch of Arrow IPC (files, and streams as Hugging
Face writes them). What the metadata declare is compared with the size of the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from stoker.errors import ShardError
from stoker.format.limits import GROUP_BYTES_MAX, ROW_FIELDS_MAX, ROWS_FREE, ROWS_PER_BYTE_MAX, THRIFT_BYTES_MAX

FAILURES = (
    pa.ArrowException, ShardError, OSError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError,
    MemoryError,
)  # fmt: skip
"""What pyarrow raises for files that are damaged, encrypted or of a kind that it does not know."""
PARQUET, ARROW_FILE = b"PAR1", b"ARROW1"
Kind = str
"""How the file is laid out: "parquet", "file" or "stream"."""


def prepare() -> None:
    """pyarrow is always there."""


def look(path: Path) -> dict[str, Any]:
    """{"kind": str, "groups": [rows], "columns": [name]}. What cannot be used is raised."""
    file_bytes = path.stat().st_size
    kind = kind_of(path)
    if kind == "parquet":
        names, groups = _parquet(path)
    else:
        names, groups = _arrow(path, kind)
    rows = sum(groups)
    if min(groups, default=0) < 0 or rows > max(ROWS_FREE, ROWS_PER_BYTE_MAX * file_bytes):
        raise ShardError(f"declares {rows} rows, in a file of {file_bytes} bytes")
    if len(names) > ROW_FIELDS_MAX:
        raise ShardError(f"{len(names)} columns, at most {ROW_FIELDS_MAX} are read")
    if len(set(names)) < len(names):
        raise ShardError("two columns have the same name")
    return {"kind": kind, "groups": groups, "columns": names}


def kind_of(path: Path) -> Kind:
    """By the first bytes; a stream has none of its own."""
    with path.open("rb") as file:
        head = file.read(len(ARROW_FILE))
    if head == ARROW_FILE:
        return "file"
    return "parquet" if head[:4] in (PARQUET, b"PARE") or path.suffix in (".parquet", ".pq") else "stream"


def open_parquet(path: Path) -> pq.ParquetFile:
    """The open file, with limits on what its metadata may claim. Page checksums are verified where there are any."""
    return pq.ParquetFile(
        path, thrift_string_size_limit=THRIFT_BYTES_MAX, thrift_container_size_limit=THRIFT_BYTES_MAX // 16,
        page_checksum_verification=True,
    )  # fmt: skip


def batches(path: Path, kind: Kind) -> Iterator[pa.RecordBatch]:
    """The record batches of an Arrow file or stream, where they lie if they are not compressed."""
    with pa.memory_map(str(path)) as source:
        if kind == "stream":
            yield from pa.ipc.open_stream(source)
        else:
            reader = pa.ipc.open_file(source)
            yield from (reader.get_batch(number) for number in range(reader.num_record_batches))


def _parquet(path: Path) -> tuple[list[str], list[int]]:
    with open_parquet(path) as file:
        metadata = file.metadata
        groups = []
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            groups.append(group.num_rows)
            widest = max((group.column(at).total_uncompressed_size for at in range(group.num_columns)), default=0)
            if widest > GROUP_BYTES_MAX:
                raise ShardError(
                    f"row group {number}: a column of {widest} bytes, at most {GROUP_BYTES_MAX} are read at once"
                )
        return list(file.schema_arrow.names), groups


def _arrow(path: Path, kind: Kind) -> tuple[list[str], list[int]]:
    """Every batch is read and validated here, so that reading it elsewhere is safe."""
    groups, names, decoded = [], [], 0
    with pa.memory_map(str(path)) as source:
        names = list((pa.ipc.open_stream(source) if kind == "stream" else pa.ipc.open_file(source)).schema.names)
    for number, batch in enumerate(batches(path, kind)):
        batch.validate(full=True)
        decoded = batch.nbytes + (decoded if kind == "stream" else 0)
        if decoded > max(GROUP_BYTES_MAX, 2 * path.stat().st_size):
            raise ShardError(f"batch {number}: {decoded} bytes decoded, at most {GROUP_BYTES_MAX} are held at once")
        groups.append(batch.num_rows)
    return names, groups
