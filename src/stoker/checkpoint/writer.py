"""Writes one rank's part of an attempt to the local disk: data files, small files, then the rank's own manifest.

Runs in the background process in mode "async", in the caller's in tests. A folder that cannot be finished is removed
again at once: partial checkpoints must not keep a full disk full.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stoker.checkpoint import disk
from stoker.checkpoint.layout import ImageFile
from stoker.checkpoint.manifest import FileEntry, Manifest, Marker, entries_to_json
from stoker.checkpoint.names import COMMITTED, MANIFEST, METADATA, NODE, OWNER, manifest_of_rank
from stoker.errors import CheckpointError

SMALL_BYTES_FREE = 1 << 20
"""Room that must be left for manifests and markers."""


@dataclass(frozen=True, slots=True)
class WriteJob:
    """What one rank has to write."""

    folder: Path
    """The attempt's; its parent exists."""
    rank: int
    files: tuple[ImageFile, ...]
    small: Mapping[str, bytes]
    """Further files by name."""
    owner: str
    """Token of the training process: as long as it lives, nobody sweeps the folder."""


def write_rank(job: WriteJob, image: memoryview, ready: disk.Ready = lambda nbytes: None) -> tuple[FileEntry, ...]:
    """Write a rank's files from the staging memory; durable when this returns. CheckpointError, with nothing left
    behind.

    *image* is page-aligned and holds the content of `job.files`, as far as *ready* says.
    """
    try:
        return _write_rank(job, image, ready)
    except OSError as error:
        discard(job.folder)
        raise CheckpointError(f"{job.folder}: {error.strerror or error}") from error
    except CheckpointError:
        discard(job.folder)
        raise


def _write_rank(job: WriteJob, image: memoryview, ready: disk.Ready) -> tuple[FileEntry, ...]:
    wanted = sum(file.nbytes for file in job.files) + sum(map(len, job.small.values())) + SMALL_BYTES_FREE
    disk.check_room(job.folder.parent, wanted)
    disk.make_folder(job.folder)
    disk.write_named(job.folder / f"{OWNER}.{job.rank}", job.owner.encode())
    names = [*(file.name for file in job.files), *job.small]
    folders = sorted({job.folder / name.rpartition("/")[0] for name in names if "/" in name})
    for folder in folders:
        disk.make_folder(folder)
    entries = []
    for file in job.files:
        piece = image[file.image_offset : file.image_offset + file.nbytes]
        crc = disk.write_large(job.folder / file.name, piece, ready, file.image_offset)
        entries.append(FileEntry(file.name, file.nbytes, crc, job.rank))
    for name, data in job.small.items():
        entries.append(FileEntry(name, len(data), disk.write_small(job.folder / name, data), job.rank))
    for folder in folders:
        disk.sync_folder(folder)
    disk.write_named(job.folder / manifest_of_rank(job.rank), entries_to_json(entries))
    return tuple(entries)


def commit(folder: Path, manifest: Manifest, description: bytes | None, ranks: Sequence[int] | None) -> None:
    """Write torch's description (None: it lies elsewhere), the manifest, and last the marker: then it is one.

    *ranks*: those whose files lie on this disk, where it does not hold all.
    """
    try:
        if ranks is not None:
            disk.write_named(folder / NODE, json.dumps(list(ranks)).encode())
        if description is not None:
            disk.write_small(folder / METADATA, description)
        data = manifest.to_json()
        disk.write_named(folder / MANIFEST, data)
        disk.write_named(folder / COMMITTED, Marker.of(manifest.attempt, data).to_json())
    except OSError as error:
        discard(folder)
        raise CheckpointError(f"{folder}: {error.strerror or error}") from error


def discard(folder: Path) -> bool:
    """Remove an attempt that failed, as far as the disk lets us; whether nothing is left of it."""
    with contextlib.suppress(OSError):
        if folder.exists():
            disk.remove_attempt(folder, COMMITTED)
        return True
    return False
