"""WebDataset: tar shards whose members `key.field` make samples.

The key is the path up to the first dot of the base name; fields of one key are joined over the whole shard even when
not adjacent; of a field that comes twice the first counts. A leading "./" (`tar cf x ./`) stays part of the key, as
in the webdataset library. Members without extension and dot files are passed over and counted. A name is a label:
nothing is ever written under it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import BinaryIO

from stoker.errors import ShardError, UsageError
from stoker.format.base import FieldPlace, Finding, Findings, RangeReader, SampleEntry, ShardScan
from stoker.format.codec import Compressor, compressor, detect
from stoker.format.limits import FIELD_NAME_BYTES_MAX, NAME_BYTES_MAX
from stoker.format.names import is_confined, is_hidden, printable, split_member
from stoker.format.tar import BLOCK, RECORD, Member, TarScan, header, padding

SUFFIXES = (
    ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.zstd", ".tzst", ".tar.bz2", ".tbz2", ".tbz", ".tar.xz", ".txz",
)  # fmt: skip
"""Names that claim to be a shard. Whether and how one is compressed is decided by its content."""
COMPRESSION_BY_SUFFIX = {".tar": "", ".tar.gz": "gzip", ".tgz": "gzip", ".tar.zst": "zstd", ".tzst": "zstd"}
"""What can be written, by the name of the shard."""


class WebDataset:
    """The format of one tar shard (of its expanded bytes, when it is compressed as a whole)."""

    name = "webdataset"
    parts: tuple[str, ...] = ()

    def owns(self, key: str) -> bool:
        return key.lower().endswith(SUFFIXES)

    def compression(self, head: bytes) -> str:
        return detect(head)

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        findings = Findings()
        samples: dict[str, dict[str, FieldPlace]] = {}
        try:
            for member in TarScan(reader, findings, skip_bytes_min=skip_bytes_min):
                _take(member, samples, findings, reader.key)
        except ShardError as error:
            findings.take(damage(error, reader.key))
        entries = [SampleEntry(key, tuple(fields.values())) for key, fields in samples.items()]
        return ShardScan(entries, findings.all())


def damage(error: ShardError, key: str) -> Finding:
    """The finding that stands for an error of reading the shard *key*."""
    place, message = key, error.message.removeprefix(f"{key}: ")
    if message.startswith(f"{key}@"):
        offset, _, message = message[len(key) + 1 :].partition(": ")
        place = f"{key}@{offset}"
    return Finding("damaged-shard", "error", place, message if error.hint is None else f"{message}; {error.hint}")


def _take(member: Member, samples: dict[str, dict[str, FieldPlace]], findings: Findings, shard: str) -> None:
    """Put one member where it belongs."""
    name = member.name
    where = f"{shard}@{member.offset}"
    if is_hidden(name):
        findings.add("hidden-member", "notice", where, f"{printable(name)} is passed over: a hidden file")
        return
    key, field = split_member(name)
    if not field:
        findings.add("no-extension", "notice", where, f"{printable(name)} is passed over: no extension")
        return
    if len(field.encode()) > FIELD_NAME_BYTES_MAX:
        raise ShardError(
            f"{where}: a field name of {len(field)} characters, at most {FIELD_NAME_BYTES_MAX} are allowed"
        )
    if not is_confined(name):
        findings.add(
            "escaping-name", "warning", where, f"{printable(name)} leaves its folder: readable, never to be unpacked"
        )
    fields = samples.setdefault(key, {})
    if field in fields:
        findings.add("duplicate-field", "warning", where, f"{printable(name)} comes twice: the first one counts")
    else:
        fields[field] = FieldPlace(field, member.offset, member.size)


def compression_of(shard: str) -> str:
    """The compression to write a shard of that name with: "", "gzip" or "zstd"."""
    for suffix in sorted(COMPRESSION_BY_SUFFIX, key=len, reverse=True):
        if shard.endswith(suffix):
            return COMPRESSION_BY_SUFFIX[suffix]
    raise UsageError(f"cannot write a shard named {shard}", f"names end in {', '.join(COMPRESSION_BY_SUFFIX)}")


_PLAIN_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*(?:/[A-Za-z0-9][A-Za-z0-9_-]*)*")
_PLAIN_FIELDS = frozenset(("jpg", "jpeg", "png", "webp", "cls", "txt", "json", "npy"))
"""Nearly all keys and fields are such, and with them nothing is wrong that `check_name` looks for."""


class WebDatasetWriter:
    """Writes one shard to a binary file: the same bytes for the same samples, on every machine and day."""

    def __init__(self, out: BinaryIO, *, compression: str = "") -> None:
        self._out = out
        self._compressor: Compressor | None = compressor(compression) if compression else None
        self._offset = 0
        self._stored = 0
        self._alive = True

    def add(self, key: str, fields: Mapping[str, bytes]) -> tuple[FieldPlace, ...]:
        """Append a sample. UsageError for a key or field that would be read back as another."""
        if not self._alive:
            raise UsageError("this shard is closed, or a write to it failed", "begin the shard again")
        plain = len(key) <= 255 and _PLAIN_KEY.fullmatch(key) is not None
        for field in fields:
            if not plain or field not in _PLAIN_FIELDS:
                check_name(key, field)
        self._alive = False
        places = tuple(self._member(key, field, data) for field, data in fields.items())
        self._alive = True
        return places

    def close(self) -> int:
        """Write the end mark; gives the bytes that the file has got. The file stays open."""
        if self._alive:
            self._alive = False
            end = 2 * BLOCK
            self._write(bytes(end) + padding(self._offset + end, unit=RECORD))
            if self._compressor is not None:
                self._store(self._compressor.flush())
        return self._stored

    def _member(self, key: str, field: str, data: bytes) -> FieldPlace:
        self._write(header(f"{key}.{field}", len(data)))
        place = FieldPlace(field, self._offset, len(data))
        self._write(data)
        self._write(padding(len(data)))
        return place

    def _write(self, data: bytes) -> None:
        self._offset += len(data)
        self._store(data if self._compressor is None else self._compressor.compress(data))

    def _store(self, data: bytes) -> None:
        self._stored += len(data)
        self._out.write(data)


def check_name(key: str, field: str) -> None:
    """UsageError unless a member of that key and field is read back as the same."""
    name = f"{key}.{field}"
    readable = split_member(name) == (key, field) and key and field and not is_hidden(name) and is_confined(name)
    text = name.isascii() or not any("\ud800" <= char <= "\udfff" for char in name)
    if not readable or not text or "\0" in name or len(name.encode()) > NAME_BYTES_MAX:
        raise UsageError(
            f"key {printable(key)!r} with field {printable(field)!r} cannot be a member of a shard",
            "keys have no dot in their last part, are relative, not hidden; fields are lower-case",
        )
