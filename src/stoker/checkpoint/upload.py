"""Copies a local checkpoint to a remote tier: file by file, each read back and compared, the marker last.

Takes part in no collective: however slow a remote is, no rank waits for it. Idempotent: a file that is there already
with the right length and sum is skipped, so a killed upload goes on where it was. Where several nodes hold a part each,
every node sends what it has and notes for which ranks it vouches; whoever finds all ranks vouched for commits.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoint.disk import crc32c
from stoker.checkpoint.manifest import FileEntry, Manifest, Marker
from stoker.checkpoint.names import COMMITTED, MANIFEST, verified_of_rank
from stoker.checkpoint.tier import Tier
from stoker.errors import ChangedError, CheckpointError, NotFoundError, UnsupportedError

READ_BYTES_MAX = 600 * 10**6
"""Files up to this size are read, larger ones mapped: an I/O error under a mapping is a signal that ends the process.
"""


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What one upload did."""

    sent_bytes: int
    skipped_bytes: int
    """Were there already, and right."""
    committed: bool
    """False while other nodes still have to send their files."""


class LocalDamageError(CheckpointError):
    """The local bytes are not those that were saved: the copy to upload is bad, not the remote."""


def upload(local: Tier, remote: Tier, manifest: Manifest) -> Uploaded:
    """Bring one complete local checkpoint to *remote*. LocalDamageError; StoreError when the remote refuses it."""
    assert local.root is not None
    folder, name = local.root / manifest.attempt, manifest.attempt
    there = {info.key: info.size for info in remote.store.list(f"{name}/")}
    lags = f"{name}/{COMMITTED}" not in there and remote.has_marker(name)  # then what is not listed may be there, too
    sent = skipped = 0
    here = [entry for entry in manifest.files if (folder / entry.name).exists()]
    for entry in here:
        key = f"{name}/{entry.name}"
        with _bytes_of(folder / entry.name, entry) as data:
            if (there.get(key) == entry.size or lags) and _is_right(remote, name, entry):
                skipped += entry.size
                continue
            remote.store.put(key, data)
        found = remote.sum_of(name, entry)
        if found != entry.crc32c:
            raise CheckpointError(f"{remote.url}/{key}: CRC32C {found:08x} after upload, expected {entry.crc32c:08x}")
        sent += entry.size
    if not _all_vouched(remote, manifest, here):
        return Uploaded(sent, skipped, committed=False)
    document = manifest.to_json()
    remote.store.put(f"{name}/{MANIFEST}", document)
    _commit(remote, f"{name}/{COMMITTED}", Marker.of(name, document).to_json())
    return Uploaded(sent, skipped, committed=True)


def _is_right(remote: Tier, name: str, entry: FileEntry) -> bool:
    """Whether a file lies at the remote with the bytes that were saved."""
    try:
        return remote.sum_of(name, entry) == entry.crc32c
    except NotFoundError:
        return False


@contextlib.contextmanager
def _bytes_of(path: Path, entry: FileEntry) -> Iterator[memoryview]:
    """A local file's bytes, compared with what was saved before anybody gets them."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size != entry.size:
            raise LocalDamageError(f"{path}: expected {entry.size} bytes, found {size}")
        if size == 0:
            yield memoryview(b"")
            return
        try:
            view = memoryview(
                file.read() if size <= READ_BYTES_MAX else mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            )
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    found = crc32c(view)
    if found != entry.crc32c:
        raise LocalDamageError(f"{path}: CRC32C {found:08x}, saved with {entry.crc32c:08x}")
    yield view  # a mapping ends with the last view of it


def _all_vouched(remote: Tier, manifest: Manifest, here: list[FileEntry]) -> bool:
    """Whether every file is at the remote and was read back there, by this node or by another."""
    if len(here) == len(manifest.files):
        return True
    mine = Marker.of(manifest.attempt, manifest.to_json()).to_json()
    missing = {entry.rank for entry in manifest.files} - {entry.rank for entry in here}
    for rank in {entry.rank for entry in here}:
        remote.mark(manifest.attempt, verified_of_rank(rank), mine)
    for rank in missing:
        try:
            if remote.store.get(f"{manifest.attempt}/{verified_of_rank(rank)}") != mine:
                return False
        except NotFoundError:
            return False
    return True


def _commit(remote: Tier, key: str, marker: bytes) -> None:
    """Put the marker, if nobody else did: conditionally where the server can."""
    try:
        remote.store.put_if(key, marker, version=None)
    except UnsupportedError:
        remote.store.put(key, marker)
    except ChangedError:
        if remote.store.get(key) != marker:
            raise CheckpointError(f"{remote.url}/{key}: another marker is there already") from None
