"""The digest of an object: BLAKE3 over the concatenated BLAKE3 digests of its 8 MiB blocks.

Never an ETag: servers make those as they like. With the block digests kept, a range can be verified and a copy resumed
without the rest. An object of no bytes has no blocks: its digest is that of the empty string.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from blake3 import blake3

from stoker.store.base import Buffer

BLOCK_BYTES = 8 << 20


class TreeDigest:
    """The digest of bytes that come in pieces of any length."""

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._open = blake3()
        self._open_bytes = 0

    def update(self, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view:
            piece = view[: BLOCK_BYTES - self._open_bytes]
            self._open.update(piece)
            self._open_bytes += len(piece)
            view = view[len(piece) :]
            if self._open_bytes == BLOCK_BYTES:
                self._blocks.append(self._open.digest())
                self._open, self._open_bytes = blake3(), 0

    def passing(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        """The pieces unchanged, each counted in as it passes."""
        for piece in pieces:
            self.update(piece)
            yield piece

    def blocks(self) -> list[bytes]:
        """The 32-byte digest of each block so far, a last shorter one included."""
        return [*self._blocks, self._open.digest()] if self._open_bytes else list(self._blocks)

    def hexdigest(self) -> str:
        """64 hex digits for all bytes so far; more may follow."""
        return digest_of_blocks(self.blocks())


def digest_of_blocks(blocks: list[bytes]) -> str:
    """The digest of an object from those of its blocks."""
    return str(blake3(b"".join(blocks)).hexdigest())


def digest_of(data: Buffer) -> str:
    """The digest of bytes that are all here."""
    whole = TreeDigest()
    whole.update(data)
    return whole.hexdigest()
