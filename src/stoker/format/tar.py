"""The structure of a tar file: its members and where their bytes lie, read by ranges and believed in nothing.

Surprising: tar has no table of contents and no total checksum, only an end mark of NULs, so a hole of NULs over a
header looks like a clean end to every usual reader. Here what follows the end mark is looked at: padding is fine;
another archive (`cat a.tar b.tar`) or junk is a warning; a member's header behind a hole is an error: samples are lost.
A file that ends without any end mark is an error too: it cannot be told from one that was cut between two members.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from stoker.errors import ShardError
from stoker.format.base import Findings, RangeReader
from stoker.format.limits import (
    NAME_BYTES_MAX,
    READ_BYTES_MAX,
    TAR_BEHIND_BYTES_MAX,
    TAR_EXTENSION_BYTES_MAX,
    TAR_EXTENSIONS_IN_A_ROW_MAX,
    TAR_MEMBERS_MAX,
)
from stoker.format.window import Window

BLOCK = 512
RECORD = 20 * BLOCK
_ZERO = bytes(BLOCK)
_REGULAR = frozenset(b"0\x007")
_WITHOUT_DATA = frozenset(b"123456")
_EXTENSIONS = frozenset(b"xXgLK")
_PAX_RECORD = re.compile(rb"([1-9][0-9]{0,9}) ([^=\n]+)=")
_REFETCH = "fetch or make the shard again"


@dataclass(frozen=True, slots=True)
class Member:
    """One regular file of a tar."""

    name: str
    offset: int
    """First byte of its content."""
    size: int


def _checksum_holds(block: bytes) -> bool:
    """Whether the header's checksum fits, by the standard's unsigned sum or the signed one of old Suns."""
    text = block[148:156].strip(b" \0")
    if not text.isdigit():
        return False
    try:
        stored = int(text, 8)
    except ValueError:
        return False
    rest = (block[:148] + block[156:]).translate(None, b"\0")  # three quarters of a header are NULs
    unsigned = 256 + sum(rest)
    return stored == unsigned or stored == unsigned - 256 * sum(byte > 127 for byte in rest)


def is_header(block: bytes) -> bool:
    """Whether these 512 bytes are the header of a member."""
    return len(block) == BLOCK and block != _ZERO and _checksum_holds(block)


def _number(field: bytes, where: str) -> int:
    """A size: octal digits, or base 256 when the top bit is set. ShardError when it is neither, or negative."""
    if field[0] & 0x80:
        if field[0] & 0x40:
            raise ShardError(f"{where}: corrupt header, its size is negative (base 256)", _REFETCH)
        return int.from_bytes(bytes([field[0] & 0x3F]) + field[1:], "big")
    text = field.split(b"\0", 1)[0].strip(b" ")
    if text.isdigit() or not text:
        try:
            return int(text or b"0", 8)
        except ValueError:
            pass
    raise ShardError(f"{where}: corrupt header, expected an octal size, found {field!r}", _REFETCH)


def _text(name: bytes) -> str:
    """A name as text; what is no UTF-8 is written as \\xNN: a name in a tar is a label, never a path to open."""
    return name.decode("utf-8", "backslashreplace")


def _header_name(block: bytes) -> bytes:
    name = block[:100].split(b"\0", 1)[0]
    if block[257:263] == b"ustar\0" and block[345]:
        return block[345:500].split(b"\0", 1)[0] + b"/" + name
    return name


def _pax_records(data: bytes, where: str) -> dict[str, bytes]:
    """The records of a pax header: "LENGTH KEYWORD=VALUE\\n", the length counting the whole record."""
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data) and data[at]:
        match = _PAX_RECORD.match(data, at)
        stop = at + int(match[1]) if match else 0
        if match is None or not match.end() < stop <= len(data) or data[stop - 1] != 0x0A:
            raise ShardError(f"{where}: corrupt pax header at its byte {at}: {data[at : at + 40]!r}", _REFETCH)
        records[_text(match[2])] = data[match.end() : stop - 1]
        at = stop
    return records


@dataclass(slots=True)
class _Extensions:
    """What extension headers said about the member to come."""

    pax: dict[str, bytes]
    name: bytes | None = None
    count: int = 0

    def take(self, kind: int, data: bytes, where: str, world: dict[str, bytes]) -> None:
        self.count += 1
        if self.count > TAR_EXTENSIONS_IN_A_ROW_MAX:
            raise ShardError(f"{where}: more than {TAR_EXTENSIONS_IN_A_ROW_MAX} extension headers for one member")
        if kind == ord("L"):
            self.name = data.split(b"\0", 1)[0]
        elif kind == ord("g"):
            world.update(_pax_records(data, where))
        elif kind != ord("K"):
            self.pax.update(_pax_records(data, where))


class TarScan:
    """Walks over the members of one tar. Damage is a ShardError from the iterator; what it gave before is whole."""

    def __init__(self, reader: RangeReader, findings: Findings, *, skip_bytes_min: int) -> None:
        self._reader = reader
        self._findings = findings
        self._window = Window(reader, skip_bytes_min)
        self._world: dict[str, bytes] = {}

    def __iter__(self) -> Iterator[Member]:
        offset = members = 0
        extensions = _Extensions({})
        while True:
            block = self._window.get(offset, BLOCK)
            where = f"{self._reader.key}@{offset}"
            if len(block) < BLOCK or block == _ZERO:
                self._end(offset, block, members, extensions.count > 0)
                return
            if not _checksum_holds(block):
                raise self._no_header(block, offset)
            kind = block[156]
            size = self._size(block, extensions, where)
            start = offset + BLOCK
            if kind in _EXTENSIONS:
                extensions.take(kind, self._extension(start, size, where), where, self._world)
                offset = start + -(-size // BLOCK) * BLOCK
                continue
            self._refuse_sparse(kind, extensions, where)
            name = self._name(block, extensions, where)
            members += 1
            if members > TAR_MEMBERS_MAX:
                raise ShardError(f"{where}: more than {TAR_MEMBERS_MAX} members in one shard", "cut it into several")
            if kind in _WITHOUT_DATA or (kind == 0 and name.endswith("/")):
                self._passed_over(kind, name, where)
                size = 0
            self._must_fit(start, size, name, where)
            if kind in _REGULAR and not name.endswith("/"):
                yield Member(name, start, size)
            elif kind not in _WITHOUT_DATA:
                self._passed_over(kind, name, where)
            offset = start + -(-size // BLOCK) * BLOCK
            extensions = _Extensions({})

    def _size(self, block: bytes, extensions: _Extensions, where: str) -> int:
        stated = None if block[156] in _EXTENSIONS else extensions.pax.get("size", self._world.get("size"))
        if stated is None:
            return _number(block[124:136], where)
        if not stated.isdigit() or len(stated) > 20:
            raise ShardError(f"{where}: corrupt pax header, expected a size, found {stated[:40]!r}", _REFETCH)
        return int(stated)

    def _name(self, block: bytes, extensions: _Extensions, where: str) -> str:
        raw = extensions.pax.get("path") or extensions.name or self._world.get("path") or _header_name(block)
        if len(raw) > NAME_BYTES_MAX:
            raise ShardError(f"{where}: a name of {len(raw)} bytes, at most {NAME_BYTES_MAX} are allowed")
        return _text(raw)

    def _extension(self, start: int, size: int, where: str) -> bytes:
        if size > TAR_EXTENSION_BYTES_MAX:
            raise ShardError(
                f"{where}: an extension header of {size} bytes, at most {TAR_EXTENSION_BYTES_MAX} are allowed"
            )
        self._must_fit(start, size, "extension header", where)
        return self._window.get(start, size)

    def _must_fit(self, start: int, size: int, name: str, where: str) -> None:
        if start + size > self._reader.size:
            raise ShardError(
                f"{where}: shard is cut: {name} needs {size} bytes from byte {start} on, "
                f"found {max(0, self._reader.size - start)}",
                _REFETCH,
            )

    def _refuse_sparse(self, kind: int, extensions: _Extensions, where: str) -> None:
        pax = extensions.pax
        if kind == ord("S") or (pax and any(keyword.startswith("GNU.sparse") for keyword in pax)):
            raise ShardError(f"{where}: a sparse member, whose bytes do not lie in one piece", "pack without --sparse")

    def _passed_over(self, kind: int, name: str, where: str) -> None:
        """Directories need no word; anything else that is no regular file holds no sample, and says so."""
        if kind in b"12":
            self._findings.add("link-member", "warning", where, f"{name} is a link to another member: not read")
        elif kind not in (ord("5"), 0):
            self._findings.add("special-member", "notice", where, f"{name} is no regular file (type {chr(kind)!r})")

    def _no_header(self, block: bytes, offset: int) -> ShardError:
        where = f"{self._reader.key}@{offset}"
        if offset:
            return ShardError(f"{where}: expected the header of a member, its checksum does not fit", _REFETCH)
        return ShardError(f"{where}: not a tar: expected a header, found {bytes(block[:24])!r}", _hint(block))

    def _end(self, offset: int, block: bytes, members: int, pending: bool) -> None:
        """Reading stops here: is it the true end?"""
        size = self._reader.size
        where = f"{self._reader.key}@{offset}"
        if size == 0:
            raise ShardError(f"{where}: not a tar: the object is empty", _REFETCH)
        if block != _ZERO:
            if offset == 0:
                raise self._no_header(block, 0)
            expected = "a member after its extension header" if pending else "the end mark (a block of NULs)"
            raise ShardError(f"{where}: shard is cut: expected {expected}, found the end of the object", _REFETCH)
        behind, next_header = self._behind(offset)
        if behind is not None:
            self._judge_rest(offset, behind, next_header)
        elif size - offset > TAR_BEHIND_BYTES_MAX or (members == 0 and size > RECORD):
            raise ShardError(f"{where}: {size - offset} bytes of NULs to the end, as a lost write leaves", _REFETCH)
        elif members == 0:
            self._findings.add("empty-shard", "warning", self._reader.key, "a tar without members")

    def _behind(self, offset: int) -> tuple[int | None, int | None]:
        """Of what follows the end mark at *offset*: the first block that is not NUL, and the first that is a header."""
        first = None
        stop = min(self._reader.size, offset + TAR_BEHIND_BYTES_MAX)
        while offset < stop:
            data = self._window.get(offset, min(READ_BYTES_MAX, stop - offset))
            if data.count(0) < len(data):
                for at in range(0, len(data), BLOCK):
                    block = data[at : at + BLOCK]
                    if first is None and block.count(0) < len(block):
                        first = offset + at
                    if is_header(block):
                        return first, offset + at
            offset += len(data)
        return first, None

    def _judge_rest(self, end: int, behind: int, next_header: int | None) -> None:
        where = f"{self._reader.key}@{behind}"
        joined = next_header == behind and (behind % RECORD == 0 or behind - end == 2 * BLOCK)
        if next_header is None:
            left = self._reader.size - behind
            self._findings.add("trailing-junk", "warning", where, f"{left} bytes that are no tar follow the end mark")
        elif joined:
            self._findings.add(
                "second-archive", "warning", where,
                "another archive follows the end mark (`cat a.tar b.tar`): only the first one is read; split them",
            )  # fmt: skip
        else:
            raise ShardError(
                f"{self._reader.key}@{end}: a hole: {behind - end} bytes of NULs look like the end mark, but data "
                f"follow and a member's header at byte {next_header}: samples are lost",
                _REFETCH,
            )


def _hint(block: bytes) -> str:
    if bytes(block).startswith(b"version https://git-lfs"):
        return "it is a Git-LFS pointer: run `git lfs pull` where it was cloned"
    return "name the format if it is not webdataset"


_HEAD = b"\0".join((b"0000644", b"0000000", b"0000000", b""))
_TAIL = (b"0" + bytes(100) + b"ustar\x00" + b"00").ljust(356, b"\0")


def header(name: str, size: int) -> bytes:
    """The header of a regular member: ustar, preceded by a pax header only when the name or size needs one."""
    raw = name.encode("utf-8")
    if len(raw) > 100 or not name.isascii() or size >= 8**11:
        return tarfile.TarInfo.tobuf(_info(name, size), tarfile.PAX_FORMAT, "utf-8", "strict")
    front = raw.ljust(100, b"\0") + _HEAD + b"%011o\x00%011o\x00" % (size, 0)
    return front + b"%06o\0 " % (256 + sum(front) + _TAIL_SUM) + _TAIL


_TAIL_SUM = sum(_TAIL)


def _info(name: str, size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size = size
    return info


def padding(size: int, *, unit: int = BLOCK) -> bytes:
    """The NULs that fill up to the next whole unit."""
    return bytes(-size % unit)
