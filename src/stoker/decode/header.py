"""What an image's first bytes say: size, EXIF orientation, and whether the fast JPEG decoder may try. Decodes nothing.

The pixel limit is checked against these numbers before any decoder sees the bytes, because decoders allocate by them: a
WebP decoder takes its canvas when it is opened. Other formats are opened by Pillow, which stops at the header.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass

import numpy as np

from stoker.errors import SampleError

PNG_MAGIC = b"\x89PNG\r\n\x1a\n"
_SOF_FAST = {0xC0, 0xC1, 0xC2}  # baseline, extended, progressive: what libjpeg-turbo decodes to 8 bits
_SOF_PROGRESSIVE = 0xC2
SCANS_MAX = 500
"""Scans of a progressive JPEG: each goes over the whole picture, so a small file could take hours. Usual are ten."""
_SOF = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}  # DHT, JPG and DAC share the range but start no frame
_ALONE = {0x01, *range(0xD0, 0xD9)}  # markers without a length
_PAIR, _SCAN = np.dtype("<u2"), 0xDAFF  # FF DA: native on nearly every machine, where it is twice as quick
_ORIENTATION = 0x0112
_INFLATE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Header:
    """An image as its header describes it, before orientation."""

    height: int
    width: int
    orientation: int = 1
    """EXIF orientation 1 … 8."""
    fast_jpeg: bool = False
    """A JPEG of 8 bits with 1 or 3 components; everything else is for Pillow."""


def read_header(raw: bytes | memoryview) -> Header | None:
    """The header of a JPEG, PNG or WebP; None for everything else, and for what only looks like one."""
    start = bytes(raw[:32])
    if start.startswith(b"\xff\xd8\xff"):
        return _jpeg(raw)
    if start.startswith(PNG_MAGIC) and start[12:16] == b"IHDR" and len(start) >= 24:
        width, height = struct.unpack_from(">II", start, 16)
        return Header(height, width)
    if start.startswith(b"RIFF") and start[8:12] == b"WEBP" and len(start) >= 30:
        return _webp(start)
    return None


def exif_orientation(exif: bytes | memoryview) -> int:
    """Orientation 1 … 8 of an EXIF block, with or without its "Exif" mark; 1 where it is missing or invalid."""
    tiff = exif[6:] if bytes(exif[:6]) == b"Exif\0\0" else exif
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(bytes(tiff[:4]))
    if order is None or len(tiff) < 8:
        return 1
    (directory,) = struct.unpack_from(order + "I", tiff, 4)
    if directory + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, directory)
    for at in range(directory + 2, min(directory + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        if tag == _ORIENTATION:
            (value,) = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, at + 8)
            return int(value) if 1 <= value <= 8 else 1
    return 1


def _jpeg(raw: bytes | memoryview) -> Header | None:
    """Walk the markers up to the frame header."""
    at, orientation, end = 2, 1, len(raw)
    while at + 4 <= end and raw[at] == 0xFF:
        marker = raw[at + 1]
        if marker == 0xFF or marker in _ALONE:
            at += 1 if marker == 0xFF else 2
            continue
        length = raw[at + 2] << 8 | raw[at + 3]
        if length < 2:
            return None
        if marker in _SOF:
            if at + 10 > end:
                return None
            bits, height, width, components = struct.unpack_from(">BHHB", raw, at + 4)
            if marker == _SOF_PROGRESSIVE:
                _check_scans(raw)
            fast = marker in _SOF_FAST and bits == 8 and components in (1, 3) and height > 0 and width > 0
            return Header(height, width, orientation, fast)
        if marker == 0xE1 and bytes(raw[at + 4 : at + 10]) == b"Exif\0\0":
            orientation = exif_orientation(raw[at + 4 : at + 2 + length])
        at += 2 + length
    return None


def _check_scans(raw: bytes | memoryview) -> None:
    """SampleError for a progressive JPEG of more than SCANS_MAX scans. Within a scan no byte FF is followed by DA.

    As pairs of bytes, from either start: `bytes.count` takes seven times as long, two hundredths of the decoding.
    """
    pairs = (np.frombuffer(raw, _PAIR, (len(raw) - at) // 2, at) for at in (0, 1))
    scans = sum(int(np.count_nonzero(found == _SCAN)) for found in pairs)
    if scans > SCANS_MAX:
        raise SampleError(f"image: a progressive JPEG of {scans} scans, allowed are {SCANS_MAX}")


def _webp(start: bytes) -> Header | None:
    """Size of a lossy, lossless or extended WebP from its first 30 bytes."""
    kind = start[12:16]
    if kind == b"VP8X":
        width, height = (1 + int.from_bytes(start[at : at + 3], "little") for at in (24, 27))
    elif kind == b"VP8L":
        bits = int.from_bytes(start[21:25], "little")
        width, height = 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    elif kind == b"VP8 ":
        width, height = (side & 0x3FFF for side in struct.unpack_from("<HH", start, 26))
    else:
        return None
    return Header(height, width)


def check_png_sums(raw: bytes | memoryview) -> None:
    """SampleError unless every chunk's CRC and the pixel data's Adler sum are right: Pillow looks at neither.

    Costs one more inflation of the pixel data, in 64 KiB of memory. Says nothing about chunks that are cut off.
    """
    at, inflate = len(PNG_MAGIC), zlib.decompressobj()
    view = memoryview(raw)
    while at + 12 <= len(view):
        length, kind = struct.unpack_from(">I4s", view, at)
        stop = at + 8 + length
        if stop + 4 > len(view):
            return
        if zlib.crc32(view[at + 4 : stop]) != int.from_bytes(view[stop : stop + 4], "big"):
            raise SampleError(f"PNG: wrong checksum of the {kind!r} chunk at byte {at}")
        if kind == b"IDAT":
            _inflate(inflate, view[at + 8 : stop], at)
        at = stop + 4


def _inflate(inflate: zlib._Decompress, data: memoryview, at: int) -> None:
    """Run pixel data through zlib for its checksum, keeping nothing."""
    rest: bytes | memoryview = data
    try:
        while rest and not inflate.eof:
            inflate.decompress(rest, _INFLATE_BYTES)
            rest = inflate.unconsumed_tail
    except zlib.error as error:
        raise SampleError(f"PNG: broken pixel data in the IDAT chunk at byte {at}: {error}") from None
