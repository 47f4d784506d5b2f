"""A tensor as `torch.save` stores it, with a hole where the bytes go.

A checkpoint's data file is a row of such archives, so that plain `torch.distributed.checkpoint.load` reads it. An
archive is a ZIP file of stored records: the pickle that describes the tensor, the byte order, the format's version, the
data. Only the data changes from save to save; all else is made once and stands in the staging memory around the hole,
so that saving is copying. The ZIP's own CRC-32 of the data is left 0, which torch does not look at; our CRC32C covers
every byte of the file. Sizes from 4 GiB on take the ZIP64 form. Source: PKWARE APPNOTE 6.3.10, 4.3.
"""

from __future__ import annotations

import pickle
import struct
import sys
import zlib
from dataclasses import dataclass

ALIGN_BYTES = 64
PICKLE_PROTOCOL = 2
"""`torch.save`'s; its restricted reader knows no newer one."""
PICKLE_BLOCK_BYTES = 256
_LIMIT = 0xFFFFFFFF
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_END = struct.Struct("<4sHHHHIIH")
_END64 = struct.Struct("<4sQHHIIQQQQ")
_FIND64 = struct.Struct("<4sIQI")
_DATE_1980 = 0x21
_PAD_ID = 0x4246


@dataclass(frozen=True, slots=True)
class Shell:
    """What stands before and behind the data of one archive."""

    head: bytes
    """A multiple of ALIGN_BYTES long, so that the data is aligned where the archive is."""
    data_bytes: int
    tail: bytes

    @property
    def nbytes(self) -> int:
        """Length of the whole archive."""
        return len(self.head) + self.data_bytes + len(self.tail)


def shell(description: bytes, data_bytes: int | None) -> Shell:
    """The archive of a pickled *description* with so many bytes of data; None: of a value without any."""
    records: list[tuple[str, bytes]] = [
        ("data.pkl", description), ("byteorder", sys.byteorder.encode()), ("version", b"3\n"),
    ]  # fmt: skip
    head, central = bytearray(), bytearray()
    for name, content in records:
        central += _central(name, zlib.crc32(content), len(content), len(head))
        head += _local(name, zlib.crc32(content), len(content), len(head)) + content
    count = len(records)
    if data_bytes is not None:
        central += _central("data/0", 0, data_bytes, len(head))
        head += _local("data/0", 0, data_bytes, len(head))
        count += 1
    return Shell(
        bytes(head), data_bytes or 0, bytes(central) + _end(count, len(central), len(head) + (data_bytes or 0))
    )


def _name(name: str) -> bytes:
    return b"archive/" + name.encode()


def _local(name: str, crc: int, size: int, at: int) -> bytes:
    """A record's header, padded by an extra field so that its content is aligned."""
    large = struct.pack("<HHQQ", 1, 16, size, size) if size >= _LIMIT else b""
    stored = min(size, _LIMIT)
    fixed = at + _LOCAL.size + len(_name(name)) + len(large) + 4
    padding = -fixed % ALIGN_BYTES
    extra = large + struct.pack("<HH", _PAD_ID, padding) + b"Z" * padding
    header = _LOCAL.pack(
        b"PK\3\4", 45 if large else 0, 0, 0, 0, _DATE_1980, crc, stored, stored, len(_name(name)), len(extra)
    )
    return header + _name(name) + extra


def _central(name: str, crc: int, size: int, at: int) -> bytes:
    """A record's line in the directory."""
    large = struct.pack("<HHQQ", 1, 16, size, size) if size >= _LIMIT else b""
    version, stored = (45 if large else 0), min(size, _LIMIT)
    header = _CENTRAL.pack(
        b"PK\1\2", version, version, 0, 0, 0, _DATE_1980, crc, stored, stored, len(_name(name)), len(large),
        0, 0, 0, 0, at,
    )  # fmt: skip
    return header + _name(name) + large


def _end(count: int, directory_bytes: int, directory_at: int) -> bytes:
    """The directory's end, with its ZIP64 form where the directory lies beyond 4 GiB."""
    large = b""
    if directory_at >= _LIMIT:
        end64 = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, directory_bytes, directory_at)
        large = end64 + _FIND64.pack(b"PK\6\7", 0, directory_at + directory_bytes, 1)
    return large + _END.pack(b"PK\5\6", 0, 0, count, count, directory_bytes, min(directory_at, _LIMIT), 0)


def is_plain(value: object) -> bool:
    """Whether a value consists of what every reader of pickles knows: numbers, text, None, lists, tuples and dicts."""
    if value is None or type(value) in (bool, int, float, str):
        return True
    if type(value) in (list, tuple):
        return all(map(is_plain, value))  # type: ignore[call-overload]  # its type was just compared
    return type(value) is dict and all(is_plain(key) and is_plain(one) for key, one in value.items())


def plain_archive(value: object) -> bytes:
    """A plain value as `torch.save` stores it; padded, so that a number that grows by a digit does not move what
    follows."""
    description = pickle.dumps(value, protocol=PICKLE_PROTOCOL)
    one = shell(description + b"\0" * (-len(description) % PICKLE_BLOCK_BYTES), None)  # readers stop at a pickle's end
    return one.head + one.tail
