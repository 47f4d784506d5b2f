"""Archives read as folders: .zip and .tar, plain or compressed as a whole. Nothing is written under a member's name.

A local plain archive is read where it lies. A remote or compressed one is first copied or expanded to a temporary file
without a name, so it leaves nothing behind. Members whose names lead out of the archive, links and special files are
passed over and counted; of two members with one name the first counts.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO

from stoker.errors import ChangedError, NotFoundError, SampleError, ShardError, reason_of
from stoker.format import Findings
from stoker.format.codec import MAGIC_BYTES, detect, expand
from stoker.format.limits import EXPANDED_BYTES_MAX, FILE_BYTES_MAX, NAME_BYTES_MAX
from stoker.format.names import is_confined, printable
from stoker.format.tar import TarScan
from stoker.machine import scratch_folder
from stoker.store import HasPaths, ObjectInfo, Store, innermost
from stoker.store.base import ByteRange

SUFFIXES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.zst", ".tzst", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
MEMBERS_MAX = 10_000_000
DEFLATE_RATIO_MAX = 1_032
"""Deflate cannot expand by more (Deutsch, RFC 1951): a zip that promises more lies."""
_PIECE_BYTES = {zipfile.ZIP_STORED: 8 << 20, zipfile.ZIP_DEFLATED: 1 << 20, zipfile.ZIP_LZMA: 4 << 10}
_PIECE_BYTES_BZIP2 = 32
"""zipfile lets lzma and bz2 expand all that they are fed, so they are fed little: bz2 makes 45 MB of 40 bytes."""
_COPY_BYTES = 8 << 20
_SKIP_BYTES_MIN = 64 << 10
_DAMAGE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError, OSError)

Read = Callable[[], bytes]


def is_archive(url: str) -> bool:
    """Whether a URL names an archive rather than a folder."""
    return url.lower().endswith(SUFFIXES)


@dataclass(frozen=True, slots=True)
class Archives:
    """The members of one or more archives as the objects of a store that can only be read."""

    url: str
    infos: Mapping[str, ObjectInfo]
    reads: Mapping[str, Read]

    def list(self) -> Iterator[ObjectInfo]:
        """Every member, in the order of the archives."""
        return iter(self.infos.values())

    def get(self, key: str, *, version: str | None = None) -> bytes:
        """The member's bytes; SampleError if they are damaged, ChangedError if the archive is no longer the same."""
        if key not in self.reads:
            raise NotFoundError(f"{self.url}: no member {printable(key)!r}")
        return self.reads[key]()


class _Reader:
    """An open archive file: the RangeReader that a tar is scanned by, and positioned reads from any thread."""

    def __init__(self, key: str, file: IO[bytes]) -> None:
        self.key = key
        self._file = file
        self._found = os.fstat(file.fileno())
        self.size = self._found.st_size

    def read(self, start: int, stop: int) -> bytes:
        """Exactly the bytes [start, stop); ChangedError when the file was written to since it was opened."""
        data = os.pread(self._file.fileno(), stop - start, start)
        now = os.fstat(self._file.fileno())
        if (now.st_size, now.st_mtime_ns) != (self._found.st_size, self._found.st_mtime_ns):
            raise ChangedError(
                f"{self.key}: the archive changed while it was read: {self.size} bytes, now {now.st_size}"
            )
        if len(data) != stop - start:
            raise ShardError(f"{self.key}@{start}: expected {stop - start} bytes, found {len(data)}")
        return data


def open_archives(
    stores: Sequence[tuple[Store, str]], findings: Findings, stack: contextlib.ExitStack, *, scratch: Path | None
) -> Archives:
    """The archives at (store, key), kept open until *stack* ends. With several, each is a folder of its name."""
    infos: dict[str, ObjectInfo] = {}
    reads: dict[str, Read] = {}
    for store, archive in stores:
        info = store.head(archive)
        file = stack.enter_context(_local_file(store, info, scratch))
        where = f"{store.url}/{archive}"
        folder = "" if len(stores) == 1 else _stem(archive) + "/"
        for name, size, read in _members(where, file, findings):
            key = _member_key(name, where, findings)
            if key is None:
                continue
            if folder + key in infos:
                findings.add(
                    "duplicate-member", "warning", f"{where}:{printable(key)}", "comes twice: the first one counts"
                )
            elif len(infos) == MEMBERS_MAX:
                raise ShardError(f"{where}: more than {MEMBERS_MAX} members", "pack the archives in several runs")
            else:
                infos[folder + key] = ObjectInfo(folder + key, size, info.version)
                reads[folder + key] = read
    ordered = dict(sorted(infos.items(), key=lambda item: item[0].encode("utf-8", "surrogateescape")))
    return Archives(stores[0][0].url, ordered, reads)


def _stem(key: str) -> str:
    base = key.rpartition("/")[2]
    return next(
        base[: -len(suffix)] for suffix in sorted(SUFFIXES, key=len, reverse=True) if base.lower().endswith(suffix)
    )


def _member_key(name: str, where: str, findings: Findings) -> str | None:
    """The member's name as a key, or None where it must be passed over."""
    key = "/".join(part for part in name.split("/") if part not in ("", "."))
    if not is_confined(name) or "\0" in name or not key or len(key.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        findings.add(
            "escaping-name", "warning", f"{where}:{printable(name)[:200]}", "passed over: no usable relative name"
        )
        return None
    return key


def _members(where: str, file: IO[bytes], findings: Findings) -> Iterator[tuple[str, int, Read]]:
    """Name, size and reader of each regular member."""
    reader = _Reader(where, file)
    if reader.read(0, min(4, reader.size))[:2] == b"PK":
        return _zip_members(where, reader, file, findings)
    return _tar_members(reader, findings)


def _tar_members(reader: _Reader, findings: Findings) -> Iterator[tuple[str, int, Read]]:
    for member in TarScan(reader, findings, skip_bytes_min=_SKIP_BYTES_MIN):
        yield member.name, member.size, partial(reader.read, member.offset, member.offset + member.size)


def _zip_members(where: str, reader: _Reader, file: IO[bytes], findings: Findings) -> Iterator[tuple[str, int, Read]]:
    try:
        archive = zipfile.ZipFile(file)
        entries = archive.infolist()
    except _DAMAGE as error:
        raise ShardError(f"{where}: not a readable zip archive: {error}", "fetch or make the archive again") from None
    for entry in entries:
        mode = entry.external_attr >> 16
        if entry.is_dir():
            continue
        if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG):
            findings.add(
                "special-member", "notice", f"{where}:{printable(entry.filename)}", "passed over: no regular file"
            )
            continue
        yield entry.filename, entry.file_size, _zip_read(where, archive, entry, reader)


def _zip_read(where: str, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, reader: _Reader) -> Read:
    def read() -> bytes:
        name = f"{where}:{printable(entry.filename)}"
        if entry.compress_type == zipfile.ZIP_DEFLATED and entry.file_size > DEFLATE_RATIO_MAX * (
            entry.compress_size + 16
        ):
            raise SampleError(f"{name}: {entry.compress_size} bytes cannot expand to the {entry.file_size} promised")
        if entry.file_size > FILE_BYTES_MAX:
            raise SampleError(f"{name}: {entry.file_size} bytes are promised, at most {FILE_BYTES_MAX} are packed")
        piece_bytes = _PIECE_BYTES.get(entry.compress_type, _PIECE_BYTES_BZIP2)
        try:
            with archive.open(entry) as member:  # by pieces: read whole, a member may expand beyond what it promises
                # the stub lacks the attribute that bounds how much is read ahead
                member.MIN_READ_SIZE = min(piece_bytes, zipfile.ZipExtFile.MIN_READ_SIZE)  # type: ignore[attr-defined]
                data = b"".join(iter(partial(member.read, piece_bytes), b""))
        except _DAMAGE as error:
            raise SampleError(f"{name}: cannot be read: {reason_of(error)}") from None
        reader.read(0, 0)  # is the archive still the one that was opened?
        return data

    return read


@contextlib.contextmanager
def _local_file(store: Store, info: ObjectInfo, scratch: Path | None) -> Iterator[IO[bytes]]:
    """The archive as an open plain file: itself, or a copy without a name."""
    bottom = innermost(store)
    head = store.get_ranges(info.key, [ByteRange(0, min(MAGIC_BYTES, info.size))], version=info.version)[0]
    compression = detect(head)
    if isinstance(bottom, HasPaths) and not compression:
        with bottom.path(info.key).open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile(dir=scratch or scratch_folder()) as copy:
        where = f"{store.url}/{info.key}"
        if compression:
            expand(_chunks(store, info), compression, copy, bytes_max=EXPANDED_BYTES_MAX, where=where)
        else:
            for chunk in _chunks(store, info):
                copy.write(chunk)
        copy.flush()
        yield copy


def _chunks(store: Store, info: ObjectInfo) -> Iterator[bytes]:
    for start in range(0, info.size, _COPY_BYTES):
        piece = ByteRange(start, min(start + _COPY_BYTES, info.size))
        yield store.get_ranges(info.key, [piece], version=info.version)[0]
