"""The structure of an HDF5 file: which datasets hold rows of samples, and what about the file is refused, by name.

Links and storage that lead outside the file are never followed: not opened to see where they go, not filled in. A size
that a dataset declares is compared with the size of the file before anyone allocates it.

Rows: the datasets that share the most common first dimension (of equally common ones the largest) are the fields of
samples, named by their path. When groups stand side by side whose names differ in their digits only and that have a
dataset in common (`data/demo_0`, `data/demo_1`), each is a run of rows of its own, with its own length, in the order of
the numbers, and fields are named by the path below it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from stoker.errors import ShardError
from stoker.format.base import Severity
from stoker.format.limits import (
    CHUNK_BYTES_MAX,
    DECLARED_FREE_BYTES,
    DECLARED_RATIO_MAX,
    HDF5_DEPTH_MAX,
    HDF5_OBJECTS_MAX,
    ROW_BYTES_MAX,
    ROW_FIELDS_MAX,
    ROWS_FREE,
    ROWS_PER_BYTE_MAX,
)

FAILURES = (OSError, RuntimeError, ValueError, LookupError, TypeError, ArithmeticError, MemoryError)
"""What h5py raises for files that are damaged."""
_PLUGINS = "hdf5plugin"


@dataclass(frozen=True, slots=True)
class Run:
    """Rows that follow each other, and the datasets that hold their fields."""

    group: str
    """Path of the group below which the fields are named; "" = the file."""
    rows: int
    fields: Mapping[str, str]
    """Field → path of its dataset."""


@dataclass(slots=True)
class _Walk:
    """What a walk through the file has found so far."""

    file_bytes: int
    rows: dict[str, int] = field(default_factory=dict)
    """Usable dataset → its first dimension."""
    findings: list[tuple[str, Severity, str, str]] = field(default_factory=list)
    """(code, severity, path inside the file, message)."""
    seen: set[Any] = field(default_factory=set)

    def note(self, code: str, severity: Severity, place: str, message: str) -> None:
        self.findings.append((code, severity, place, message))


def prepare() -> Any:
    """The h5py module, and the compression plugins where they are installed. ImportError without h5py."""
    module = importlib.import_module("h5py")
    if importlib.util.find_spec(_PLUGINS) is not None:
        importlib.import_module(_PLUGINS)
    return module


def look(path: Path) -> dict[str, Any]:
    """{"runs": [[group, rows, {field: dataset}]], "findings": [[code, severity, place, message]]}."""
    h5py = prepare()
    walk = _Walk(path.stat().st_size)
    with open_file(h5py, path) as file:
        with contextlib.suppress(*FAILURES):  # a root that leads back to itself is found out one turn later then
            root = h5py.h5o.get_info(file.id)
            walk.seen.add((root.fileno, root.addr))
        _group(h5py, file, "", walk, 0)
    runs, left = runs_of(walk.rows)
    for name in left:
        walk.note("other-rows", "notice", name, f"{walk.rows[name]} rows, not those of the samples: passed over")
    if any(len(run.fields) > ROW_FIELDS_MAX for run in runs):
        raise ShardError(f"more than {ROW_FIELDS_MAX} datasets of as many rows")
    return {"runs": [[run.group, run.rows, dict(run.fields)] for run in runs], "findings": walk.findings}


def open_file(h5py: Any, path: Path) -> Any:
    """The file, open for reading. One without a name, as /proc shows it, goes through Python: HDF5 resolves names."""
    if path.is_relative_to("/proc"):
        return h5py.File(_Nameless(path), "r")
    return h5py.File(path, "r")


class _Nameless(io.RawIOBase):
    """What h5py needs of a Python file; closes itself when nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._at = 0

    def readinto(self, buffer: Any) -> int:
        count = os.preadv(self._descriptor, [buffer], self._at)
        self._at += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at}.get(whence)
        self._at = offset + (os.fstat(self._descriptor).st_size if base is None else base)
        return self._at

    def tell(self) -> int:
        return self._at

    def close(self) -> None:
        if not self.closed:
            os.close(self._descriptor)
        super().close()


def _group(h5py: Any, group: Any, path: str, walk: _Walk, depth: int) -> None:
    try:
        names = list(group)
    except FAILURES as error:
        walk.note("damaged-group", "error", path or "/", f"its links cannot be listed: {error}")
        return
    for name in names:
        if isinstance(name, bytes):
            walk.note("name-not-text", "warning", path or "/", f"holds {name!r}, whose name is no UTF-8: passed over")
            continue
        _link(h5py, group, name, f"{path}/{name}" if path else name, walk, depth)


def _link(h5py: Any, group: Any, name: str, path: str, walk: _Walk, depth: int) -> None:
    """Follow one link of a group if it leads to an object inside this file, for the first time."""
    try:
        kind = group.id.links.get_info(name.encode("utf-8", "surrogateescape")).type
        if kind == h5py.h5l.TYPE_EXTERNAL:
            target, inner = group.id.links.get_val(name.encode("utf-8", "surrogateescape"))
            walk.note("external-link", "error", path, f"leads outside, to {target!r} {inner!r}: refused, not followed")
            return
        if kind != h5py.h5l.TYPE_HARD:
            walk.note("soft-link", "notice", path, "a link by name: not followed")
            return
        info = h5py.h5o.get_info(group.id, name.encode("utf-8", "surrogateescape"))
        address = (info.fileno, info.addr)
        if address in walk.seen:
            walk.note("second-link", "notice", path, "an object that has another name already: passed over")
            return
        walk.seen.add(address)
        if len(walk.seen) > HDF5_OBJECTS_MAX or depth > HDF5_DEPTH_MAX:
            raise ShardError(f"more than {HDF5_OBJECTS_MAX} objects, or deeper than {HDF5_DEPTH_MAX} groups")
        if info.type == h5py.h5o.TYPE_GROUP:
            _group(h5py, group[name], path, walk, depth + 1)
        elif info.type == h5py.h5o.TYPE_DATASET:
            _dataset(h5py, group[name], path, walk)
    except ShardError:
        raise
    except FAILURES as error:
        walk.note("damaged-object", "error", path, f"cannot be opened: {error}")


def _dataset(h5py: Any, dataset: Any, path: str, walk: _Walk) -> None:
    """Take the dataset, or note why not."""
    try:
        dtype = dataset.dtype
    except FAILURES as error:
        walk.note("unsupported-type", "warning", path, f"its type has no counterpart: {error}: passed over")
        return
    plist = dataset.id.get_create_plist()
    if plist.get_external_count():
        outside = plist.get_external(0)[0]
        walk.note("external-storage", "error", path, f"its data lie outside, in {outside!r}: refused, not read")
    elif plist.get_layout() == h5py.h5d.VIRTUAL:
        sources = ", ".join(sorted({repr(source.file_name) for source in dataset.virtual_sources()})[:3])
        walk.note("virtual-source", "error", path, f"a view of data in {sources}: refused, not read")
    elif _has_references(h5py, dtype):
        walk.note("reference", "warning", path, "holds references to other objects: passed over")
    elif not dataset.shape or not dataset.shape[0]:
        walk.note("no-rows", "notice", path, "a single value, or no row: passed over")
    elif (excess := _excess(dataset.shape, dtype.itemsize, dataset.chunks, walk.file_bytes)) is not None:
        walk.note("declared-size", "error", path, f"{excess}: refused, not read")
    elif missing := [code for code in _filters(plist) if not h5py.h5z.filter_avail(code)]:
        walk.note("unknown-filter", "error", path, f"compressed by filter {missing[0]}, which is not installed")
    else:
        walk.rows[path] = dataset.shape[0]


def _filters(plist: Any) -> list[int]:
    return [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]


def _has_references(h5py: Any, dtype: Any) -> bool:
    """Whether a type is, or has inside, a reference."""
    inner = h5py.check_vlen_dtype(dtype)
    if inner is not None and inner not in (str, bytes):
        return _has_references(h5py, inner)
    if dtype.subdtype is not None:
        return _has_references(h5py, dtype.subdtype[0])
    if dtype.names:
        return any(_has_references(h5py, dtype[name]) for name in dtype.names)
    return h5py.check_ref_dtype(dtype) is not None


def _excess(shape: tuple[int, ...], item_bytes: int, chunks: tuple[int, ...] | None, file_bytes: int) -> str | None:
    """What a dataset claims that its file cannot hold, or no reader should."""
    declared = prod(shape) * item_bytes
    row = declared // shape[0] if shape[0] else 0
    if declared > max(DECLARED_FREE_BYTES, DECLARED_RATIO_MAX * file_bytes):
        return f"declares {declared} bytes of {shape}, in a file of {file_bytes}"
    if shape[0] > max(ROWS_FREE, ROWS_PER_BYTE_MAX * file_bytes):
        return f"declares {shape[0]} rows, in a file of {file_bytes} bytes"
    if row > ROW_BYTES_MAX:
        return f"declares {row} bytes a row, at most {ROW_BYTES_MAX} are allowed"
    if chunks is not None and prod(chunks) * item_bytes > CHUNK_BYTES_MAX:
        return f"declares chunks of {prod(chunks) * item_bytes} bytes, at most {CHUNK_BYTES_MAX} are allowed"
    return None


def runs_of(rows: Mapping[str, int]) -> tuple[list[Run], list[str]]:
    """Runs of rows, from dataset → first dimension; and the datasets that are in none."""
    groups = _numbered(rows) or [""]
    runs = []
    for group in groups:
        inside = {path[len(group) + 1 :] if group else path: path for path in rows if _below(path, group)}
        counts = Counter(rows[path] for path in inside.values())
        if counts:
            length = max(counts, key=lambda count: (counts[count], count))
            fields = {name: path for name, path in inside.items() if rows[path] == length}
            runs.append(Run(group, length, fields))
    taken = {path for run in runs for path in run.fields.values()}
    return runs, [path for path in rows if path not in taken]


def _below(path: str, group: str) -> bool:
    return not group or path.startswith(f"{group}/")


def _numbered(paths: Mapping[str, int]) -> list[str]:
    """Groups side by side whose names differ in digits only and that have a dataset in common: the shallowest such."""
    families: dict[tuple[int, str, str], dict[str, set[str]]] = {}
    for path in paths:
        parts = path.split("/")
        for depth, name in enumerate(parts[:-1]):
            if any(character.isdigit() for character in name):
                parent, rest = "/".join(parts[:depth]), "/".join(parts[depth + 1 :])
                members = families.setdefault((depth, parent, re.sub(r"\d+", "#", name)), {})
                members.setdefault("/".join(parts[: depth + 1]), set()).add(rest)
    for _, members in sorted(families.items()):
        if len(members) > 1 and set.intersection(*members.values()):
            return sorted(members, key=_natural)
    return []


def _natural(path: str) -> list[tuple[int, str]]:
    """Sorts demo_2 before demo_10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path)]


def checked_runs(found: Mapping[str, Any]) -> Iterator[Run]:
    """The runs of a look's answer."""
    for group, rows, fields in found["runs"]:
        yield Run(group, rows, fields)
