"""Compression of whole shards: recognised by content, every member read, every checksum verified, memory bounded."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
import zstandard

from stoker.errors import ShardError, StoreError, UsageError
from stoker.format.codec import COMPRESSIONS, MAGIC_BYTES, compressor, detect, expand, expanded

PLAIN = random.Random(7).randbytes(200_000) + b"again and again " * 20_000
MAKE: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
}


def restored(data: bytes, compression: str, *, step: int = 1 << 30) -> bytes:
    out = io.BytesIO()
    chunks = [data[at : at + step] for at in range(0, len(data), step)]
    assert expand(chunks, compression, out, bytes_max=1 << 30) == len(out.getvalue())
    return out.getvalue()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_recognises_by_content(compression: str) -> None:
    """The head of a compressed stream names its codec."""
    assert detect(MAKE[compression](PLAIN)[:MAGIC_BYTES]) == compression
    assert detect(MAKE[compression](b"")[:MAGIC_BYTES]) == compression


@pytest.mark.parametrize("head", [b"", b"\x1f", b"BZh", b"BZhello wor", bytes(10), b"plain text"])
def test_recognises_nothing_in_other_bytes(head: bytes) -> None:
    """What only looks like a beginning is no compression."""
    assert detect(head) == ""


@pytest.mark.parametrize("step", [1 << 30, 4097, 1])
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_expands_in_any_pieces(compression: str, step: int) -> None:
    """Fed whole, in odd pieces or byte by byte, a stream gives what went in."""
    plain = PLAIN if step > 1 else PLAIN[-20_000:]
    assert restored(MAKE[compression](plain), compression, step=step) == plain


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_reads_every_member(compression: str) -> None:
    """Streams put one behind the other give all of their contents, empty ones too."""
    make = MAKE[compression]
    assert restored(make(b"one ") + make(b"") + make(b"two ") + make(PLAIN), compression) == b"one two " + PLAIN


def test_skips_skippable_frames() -> None:
    """zstd's frames of foreign data, before and behind, hold nothing."""
    skip = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"hello"
    assert detect(skip) == "zstd"
    assert restored(skip + MAKE["zstd"](b"data") + skip, "zstd") == b"data"


@pytest.mark.parametrize("compression", ["gzip", "xz"])
def test_passes_over_padding(compression: str) -> None:
    """NULs behind a member, as tape writers leave them, are no damage."""
    assert restored(MAKE[compression](b"data") + bytes(512) + MAKE[compression](b"more"), compression) == b"datamore"


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_every_cut_is_an_error(compression: str) -> None:
    """A stream that ends inside a member is an error, wherever it ends, also by its last byte."""
    data = MAKE[compression](PLAIN[-300:])
    for cut in range(len(data)):
        with pytest.raises(ShardError, match=r"is cut|damaged"):
            restored(data[:cut], compression)
    with pytest.raises(ShardError, match="expected the end of member 2"):
        restored(data + data[: len(data) // 2], compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_wrong_checksum_is_an_error(compression: str) -> None:
    """Bytes turned over in the stored checksum are noticed although the data are whole."""
    data = bytearray(MAKE[compression](PLAIN))
    at = {"gzip": -8, "zstd": -4, "bz2": -3, "xz": -30}[compression]
    data[at] ^= 0xFF
    with pytest.raises(ShardError, match=r"damaged|is cut"):
        restored(bytes(data), compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_junk_behind_the_last_member_is_an_error(compression: str) -> None:
    """What follows and is no member is not passed over in silence."""
    with pytest.raises(ShardError, match=r"in member 2|end of member 2"):
        restored(MAKE[compression](PLAIN) + b"some other bytes", compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_stops_at_the_limit(compression: str) -> None:
    """A bomb is stopped at the limit, in bounded memory."""
    bomb = MAKE[compression](bytes(50_000_000))
    out = io.BytesIO()
    tracemalloc.start()
    with pytest.raises(ShardError, match="more than the limit of 1000000 bytes"):
        expand([bomb], compression, out, bytes_max=1_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(out.getvalue()) <= 1_000_000
    assert peak < 40 << 20


def test_a_window_beyond_the_limit_is_refused() -> None:
    """A zstd frame that asks for a 2 GiB window is an error, not an allocation."""
    parameters = zstandard.ZstdCompressionParameters(window_log=30, enable_ldm=1)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    frame = packer.compress(b"x" * 1000) + packer.flush()
    with pytest.raises(ShardError, match="damaged zstd stream"):
        restored(frame, "zstd")


def test_an_error_of_the_source_passes_through() -> None:
    """When the store fails while a stream is expanded, its own error is what the caller gets."""

    def failing() -> Iterator[bytes]:
        yield MAKE["zstd"](PLAIN)[:1000]
        raise StoreError("the network is gone")

    with pytest.raises(StoreError, match="network is gone"):
        list(expanded(failing(), "zstd"))


def test_an_error_names_the_object() -> None:
    """The message of a damaged stream says which object and about where."""
    with pytest.raises(ShardError, match=r"^photos-7\.tar\.zst: damaged zstd stream near byte 0"):
        list(expanded([b"\x28\xb5\x2f\xfd" + b"\xff" * 100], "zstd", where="photos-7.tar.zst"))


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_compressor_gives_the_same_bytes(compression: str) -> None:
    """What is written depends on the input only, and is read back by others."""

    def packed() -> bytes:
        packer = compressor(compression)
        return packer.compress(PLAIN) + packer.flush()

    assert packed() == packed()
    other = gzip.decompress if compression == "gzip" else zstandard.ZstdDecompressor().decompressobj().decompress
    assert other(packed()) == PLAIN
    assert restored(packed(), compression) == PLAIN


def test_unknown_compressions_are_wrong_usage() -> None:
    """A codec that cannot be read or written is refused by name."""
    with pytest.raises(UsageError, match="lz77"):
        restored(b"", "lz77")
    with pytest.raises(UsageError, match="bz2"):
        compressor("bz2")
