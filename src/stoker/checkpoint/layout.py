"""Where each tensor of a rank lies in its data files: decided once, for as long as names, shapes and types stay.

The staging memory is the files' content, byte for byte: archives one after the other, each at a multiple of 64 bytes,
cut into files of about 512 MB (what a store takes in one request; a larger tensor gets a file of its own), each padded
to whole disk blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stoker.checkpoint.archive import ALIGN_BYTES, Shell
from stoker.checkpoint.disk import BLOCK_BYTES
from stoker.checkpoint.names import data_file

FILE_BYTES = 500 * 10**6


@dataclass(frozen=True, slots=True)
class Placed:
    """One archive in the image."""

    file: str
    file_offset: int
    """Of the archive in its file."""
    image_offset: int
    """Of the archive in the staging memory."""
    nbytes: int
    data_offset: int
    """Of the tensor's bytes in the staging memory."""


@dataclass(frozen=True, slots=True)
class ImageFile:
    """One file's piece of the staging memory."""

    name: str
    image_offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Layout:
    """A rank's files."""

    files: tuple[ImageFile, ...]
    placed: tuple[Placed, ...]
    """In the order of the shells."""

    @property
    def nbytes(self) -> int:
        """Bytes of staging memory."""
        return self.files[-1].image_offset + self.files[-1].nbytes if self.files else 0


def lay_out(rank: int, shells: Sequence[Shell], file_bytes: int = FILE_BYTES) -> Layout:
    """The files that hold *shells* in that order."""
    files: list[ImageFile] = []
    placed: list[Placed] = []
    start = used = 0
    for one in shells:
        if used and used + one.nbytes > file_bytes:
            files.append(_file(rank, len(files), start, used))
            start, used = start + files[-1].nbytes, 0
        at = start + used
        placed.append(Placed(data_file(rank, len(files)), used, at, one.nbytes, at + len(one.head)))
        used = _up(used + one.nbytes, ALIGN_BYTES)
    if used:
        files.append(_file(rank, len(files), start, used))
    return Layout(tuple(files), tuple(placed))


def _file(rank: int, number: int, start: int, used: int) -> ImageFile:
    return ImageFile(data_file(rank, number), start, _up(used, BLOCK_BYTES))


def _up(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
