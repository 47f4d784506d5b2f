"""Reading a little here and a little there of one object, in few reads."""

from __future__ import annotations

from stoker.format.base import RangeReader
from stoker.format.limits import READ_BYTES_MAX

FIRST_BYTES_MIN = 4_096
"""Bytes of the first read after a jump, at least."""


class Window:
    """The bytes around the place of reading, in few reads: small after a jump, doubling while reading goes on."""

    def __init__(self, reader: RangeReader, skip_bytes_min: int) -> None:
        self._reader = reader
        self._skip_bytes_min = skip_bytes_min
        self._bytes_first = min(max(FIRST_BYTES_MIN, skip_bytes_min // 16), READ_BYTES_MAX)
        self._bytes_next = self._bytes_first
        self._start = 0
        self._data = b""

    def get(self, offset: int, length: int) -> bytes:
        """*length* bytes at *offset*, fewer at the end of the object."""
        at = offset - self._start
        if at < 0 or at + length > len(self._data):
            self._fetch(offset, length)
            at = 0
        return self._data[at : at + length]

    def _fetch(self, offset: int, length: int) -> None:
        gap = offset - self._start - len(self._data)
        if self._data:
            jump = gap >= self._skip_bytes_min or offset < self._start
            self._bytes_next = self._bytes_first if jump else min(2 * self._bytes_next, READ_BYTES_MAX)
        stop = min(offset + max(length, self._bytes_next), self._reader.size)
        self._data = self._reader.read(offset, stop) if stop > offset else b""
        self._start = offset
