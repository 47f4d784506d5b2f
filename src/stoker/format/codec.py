"""Compression of whole shards: which codec a stream is in (by content, where it can tell), expand it, make it.

Surprising: the usual readers take a cut stream for its end and stop after the first member. Here every member or frame
is read, every checksum verified, and a stream that ends inside one is an error.
"""

from __future__ import annotations

import bz2
import importlib
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, BinaryIO, Protocol

import zstandard

from stoker.errors import MissingExtraError, ShardError, UsageError
from stoker.format.limits import EXPAND_PIECE_BYTES, EXPAND_WINDOW_BYTES_MAX, SNAPPY_BYTES_MAX

MAGIC = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}
MAGIC_BYTES = 10
"""Bytes of a stream's head that `detect` wants to see."""
COMPRESSIONS = tuple(MAGIC)
"""What `detect` can tell. zlib, br and snappy have no magic number: a format must say that a shard is in one."""
_ZSTD_SKIPPABLE = tuple(bytes([0x50 + low, 0x2A, 0x4D, 0x18]) for low in range(16))
_PADDING = {"gzip": b"\0", "xz": b"\0"}
_STEP_BYTES = 64 << 10
_ZSTD_PIECE_BYTES = 512
"""One block of zstd takes 4 bytes and gives up to 128 KiB: so much input gives at most 16 MiB, and costs no speed."""
_ZSTD_WRITE_BYTES = 64 << 10
_FAILURES = (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, zstandard.ZstdError)


def detect(head: bytes) -> str:
    """The compression of a stream that begins with *head*: "" or one of COMPRESSIONS."""
    if head[:4] in _ZSTD_SKIPPABLE:
        return "zstd"
    if head.startswith(MAGIC["bz2"]):  # "BZh", the level, then the magic of the first block or of the end
        return "bz2" if head[3:4].isdigit() and head[4:10] in (b"1AY&SY", b"\x17rE8P\x90") else ""
    return next((name for name, magic in MAGIC.items() if head.startswith(magic)), "")


class Compressor(Protocol):
    """What zlib and zstandard give alike."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _Member(Protocol):
    """One member, frame or stream of a compressed object."""

    @property
    def ended(self) -> bool: ...

    @property
    def unused(self) -> bytes:
        """Input behind the end of this member."""
        ...

    def pieces(self, data: bytes) -> Iterator[bytes]:
        """What *data* expands to, in pieces of bounded size; stops at the end of the member."""
        ...


class _Deflate:
    """gzip (wbits 31) and zlib (wbits 15)."""

    def __init__(self, wbits: int) -> None:
        self._inner = zlib.decompressobj(wbits=wbits)

    @property
    def ended(self) -> bool:
        return self._inner.eof

    @property
    def unused(self) -> bytes:
        return self._inner.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        while data and not self._inner.eof:
            yield self._inner.decompress(data, EXPAND_PIECE_BYTES)
            data = self._inner.unconsumed_tail


class _Zstd:
    """python-zstandard puts no bound on the output of one call, so its input comes in small pieces."""

    def __init__(self) -> None:
        decompressor = zstandard.ZstdDecompressor(max_window_size=EXPAND_WINDOW_BYTES_MAX)
        self._inner = decompressor.decompressobj(write_size=_ZSTD_WRITE_BYTES)
        self._unused = b""

    @property
    def ended(self) -> bool:
        return self._inner.eof

    @property
    def unused(self) -> bytes:
        return self._unused

    def pieces(self, data: bytes) -> Iterator[bytes]:
        at = 0
        while at < len(data) and not self._inner.eof:
            yield self._inner.decompress(data[at : at + _ZSTD_PIECE_BYTES])
            at += _ZSTD_PIECE_BYTES
        self._unused = self._inner.unused_data + data[at:]


class _Bounded:
    """bz2 and xz: the standard library's decompressors, which keep back the input that did not fit."""

    def __init__(self, inner: bz2.BZ2Decompressor | lzma.LZMADecompressor) -> None:
        self._inner = inner

    @property
    def ended(self) -> bool:
        return self._inner.eof

    @property
    def unused(self) -> bytes:
        return self._inner.unused_data

    def pieces(self, data: bytes) -> Iterator[bytes]:
        yield self._inner.decompress(data, EXPAND_PIECE_BYTES)
        while not self._inner.eof and not self._inner.needs_input:
            yield self._inner.decompress(b"", EXPAND_PIECE_BYTES)


class _Brotli:
    """Takes what follows its stream for damage of it."""

    unused = b""

    def __init__(self) -> None:
        self._inner = _library("brotli", "br").Decompressor()

    @property
    def ended(self) -> bool:
        return bool(self._inner.is_finished())

    def pieces(self, data: bytes) -> Iterator[bytes]:
        try:
            piece = self._inner.process(data, output_buffer_limit=EXPAND_PIECE_BYTES)
            while piece or not (self.ended or self._inner.can_accept_more_data()):
                yield piece
                piece = b"" if self.ended else self._inner.process(b"", output_buffer_limit=EXPAND_PIECE_BYTES)
        except _library("brotli", "br").error as error:
            raise ValueError(error) from error


class _Snappy:
    """One raw block: it can only be expanded as a whole, so its input is kept until all of it is here."""

    unused = b""

    def __init__(self) -> None:
        self._library = _library("cramjam", "snappy")
        self._data = bytearray()
        self.ended = False

    def pieces(self, data: bytes) -> Iterator[bytes]:
        self._data += data
        yield b""

    def rest(self) -> bytes:
        """What the block expands to. Its length is believed when the format can hold as much in so many bytes."""
        size = at = 0
        for at, byte in enumerate(self._data[:5]):
            size |= (byte & 0x7F) << 7 * at
            if byte < 0x80:
                break
        if not self._data or size > min(SNAPPY_BYTES_MAX, len(self._data) * _SNAPPY_RATIO_MAX):
            raise ValueError(f"{len(self._data)} bytes that claim to be {size}, at most {SNAPPY_BYTES_MAX} are allowed")
        try:
            whole = bytes(self._library.snappy.decompress_raw(bytes(self._data)))
        except self._library.DecompressionError as error:
            raise ValueError(error) from error
        if len(whole) != size:
            raise ValueError(f"{len(whole)} bytes, its head says {size}")
        self.ended = True
        return whole


_SNAPPY_RATIO_MAX = 22
"""A copy of 64 bytes takes 3 (github.com/google/snappy, format_description.txt)."""


def _library(name: str, compression: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtraError(
            f"compression {compression!r} needs the package {name}, which is not installed", "pip install stoker[mds]"
        ) from error


_MEMBERS: dict[str, Callable[[], _Member]] = {
    "gzip": lambda: _Deflate(31),
    "zlib": lambda: _Deflate(15),
    "br": _Brotli,
    "snappy": _Snappy,
    "zstd": _Zstd,
    "bz2": lambda: _Bounded(bz2.BZ2Decompressor()),
    "xz": lambda: _Bounded(lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=2 * EXPAND_WINDOW_BYTES_MAX)),
}


def _steps(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in steps short enough that keeping back the rest of one costs nothing."""
    for chunk in chunks:
        for at in range(0, len(chunk), _STEP_BYTES):
            yield bytes(chunk[at : at + _STEP_BYTES])


def expanded(chunks: Iterable[bytes], compression: str, *, where: str = "stream") -> Iterator[bytes]:
    """The expanded bytes of a compressed stream, in pieces of bounded size (possibly empty ones).

    ShardError when a member is damaged, when the stream ends inside one, or when something else follows the last.
    """
    if compression not in _MEMBERS:
        raise UsageError(f"unknown compression {compression!r}", f"known are {', '.join(_MEMBERS)}")
    member: _Member | None = None
    members = consumed = 0
    for data in _steps(chunks):
        consumed += len(data)
        while data:
            if member is None:
                data = data.lstrip(_PADDING.get(compression, b""))
                if not data:
                    break
                member = _MEMBERS[compression]()
                members += 1
            try:
                yield from member.pieces(data)
            except _FAILURES as error:
                raise _damaged(where, compression, f"near byte {consumed - len(data)}", members, error) from error
            if not member.ended:
                break
            data, member = member.unused, None
    if isinstance(member, _Snappy):
        try:
            yield member.rest()
        except ValueError as error:
            raise _damaged(where, compression, "as a whole", members, error) from error
        return
    if member is not None or members == 0:
        raise ShardError(
            f"{where}: {compression} stream is cut: expected the end of member {members or 1}, "
            f"found the end of the object after {consumed} compressed bytes",
            "fetch or make the object again",
        )


def _damaged(where: str, compression: str, place: str, member: int, error: Exception) -> ShardError:
    return ShardError(
        f"{where}: damaged {compression} stream {place} of the compressed bytes, in member {member}: {error}",
        "fetch or make the object again",
    )


def expand(chunks: Iterable[bytes], compression: str, out: BinaryIO, *, bytes_max: int, where: str = "stream") -> int:
    """Write the expanded bytes of *chunks* to *out*; give their number. ShardError beyond *bytes_max* or if damaged."""
    written = 0
    for piece in expanded(chunks, compression, where=where):
        written += len(piece)
        if written > bytes_max:
            raise ShardError(
                f"{where}: expands to more than the limit of {bytes_max} bytes",
                "raise the limit if the object is honest",
            )
        out.write(piece)
    return written


def compressor(compression: str, *, level: int | None = None) -> Compressor:
    """A compressor whose output depends on its input only: no time, no name, one member."""
    if compression in ("gzip", "zlib"):
        return zlib.compressobj(6 if level is None else level, zlib.DEFLATED, wbits=31 if compression == "gzip" else 15)
    if compression == "zstd":
        return zstandard.ZstdCompressor(3 if level is None else level, write_checksum=True).compressobj()
    raise UsageError(f"cannot write compression {compression!r}", "gzip, zlib and zstd can be written")
