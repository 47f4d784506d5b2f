"""Reading samples that are rows of a file which a library must open: from the cache, or where the store has them."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

from stoker.cache import Objects
from stoker.errors import SampleError
from stoker.format.rows import ROW_FORMATS, RowFile
from stoker.index import ObjectRef, Place

OPEN_MAX = 64
"""Shards held open at once: a shuffled epoch comes back to most of them."""


class RowFiles:
    """The open row files of one dataset in this process."""

    def __init__(self, format_name: str, objects: Objects) -> None:
        self._format = format_name
        self._objects = objects
        self._lock = threading.Lock()
        self._open: OrderedDict[ObjectRef, RowFile] = OrderedDict()
        self._pid = os.getpid()

    def read(self, ref: ObjectRef, places: list[tuple[Place, int, str]], values: list[dict[str, Any]]) -> None:
        """Put the rows' values where they belong: *places* are (place, sample, field)."""
        file = self._file(ref)
        by_field: dict[str, list[tuple[int, int]]] = {}
        for place, at, field in places:
            by_field.setdefault(field, []).append((place.row, at))
        for field, wanted in by_field.items():
            rows = [row for row, _ in wanted]
            try:
                found = file.read(rows, field)
            except SampleError:
                found = [self._alone(file, row, field) for row in rows]
            for (_, at), value in zip(wanted, found, strict=True):
                if value is not None:  # the row has no such field
                    values[at][field] = value

    @staticmethod
    def _alone(file: RowFile, row: int, field: str) -> object:
        """One row of several of which some cannot be read; the error stands for the value."""
        try:
            return file.read([row], field)[0]
        except SampleError as error:
            return error

    def _file(self, ref: ObjectRef) -> RowFile:
        with self._lock:
            if self._pid != os.getpid():  # handles of the parent are not ours
                self._open.clear()
                self._pid = os.getpid()
            file = self._open.get(ref)
            if file is None:
                file = self._open[ref] = ROW_FORMATS[self._format](self._objects.file(ref))
            self._open.move_to_end(ref)
            while len(self._open) > OPEN_MAX:
                self._open.popitem(last=False)
            return file
