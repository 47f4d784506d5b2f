"""Whether a dataset is still what its index says: the index's own files by their digests, its objects by size, version
and, where the packer wrote one down, digest. All of it is read for that, so it happens only when asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stoker.errors import ChangedError, NotFoundError, ShardError, StoreError
from stoker.flow import Progress, no_progress, parallel_map
from stoker.format import STOKER_FOLDER, Finding
from stoker.index.entry import ObjectRef
from stoker.index.fetch import default_place
from stoker.index.read import Index
from stoker.machine import cpus
from stoker.store.base import ByteRange, Store
from stoker.store.digest import BLOCK_BYTES, TreeDigest
from stoker.store.ranges import split


def check_index(index: Index) -> None:
    """ShardError unless the files of the index are, byte for byte, those that its manifest names."""
    for name, record in index.manifest.files.items():
        digest = TreeDigest()
        with (index.folder / name).open("rb") as file:
            while piece := file.read(BLOCK_BYTES):
                digest.update(piece)
        if digest.hexdigest() != record.digest:
            raise ShardError(
                f"{index.folder / name}: damaged: digest {digest.hexdigest()}, the manifest says {record.digest}",
                f"copy the dataset again, or delete {index.folder} and index it again",
            )


def check_objects(store: Store, index: Index, *, workers: int | None = None, progress: Progress = no_progress) -> None:
    """Look at every object now. ChangedError for the first that is not as it was indexed, NotFoundError if gone."""
    for _, error in _looked_at(store, index, workers, progress):
        if error is not None:
            raise error


def check_published(
    store: Store, *, place: Path | None = None, workers: int | None = None, progress: Progress = no_progress
) -> Iterator[Finding]:
    """What is wrong with the index that lies beside the data, or with the data by that index; nothing without one."""
    try:
        index = Index.load(store, place=place or default_place())
    except NotFoundError:
        return
    except ShardError as error:
        yield Finding("damaged-index", "error", STOKER_FOLDER, error.message)
        return
    try:
        check_index(index)
        for ref, fault in _looked_at(store, index, workers, progress):
            if fault is not None:
                yield Finding("not-as-indexed", "error", ref.key, fault.message)
    except ShardError as error:
        yield Finding("damaged-index", "error", STOKER_FOLDER, error.message)


def _looked_at(
    store: Store, index: Index, workers: int | None, progress: Progress
) -> Iterator[tuple[ObjectRef, StoreError | None]]:
    """Every object, and what is wrong with it."""
    done_bytes = 0
    looked_at = parallel_map(lambda ref: (ref, _fault(store, ref)), index.objects(), workers=workers or 4 * cpus())
    for done, (ref, fault) in enumerate(looked_at, 1):
        done_bytes += ref.size
        progress(done, 0, done_bytes)
        yield ref, fault


def _fault(store: Store, ref: ObjectRef) -> StoreError | None:
    """How the object differs from what was indexed."""
    try:
        found = store.head(ref.key)
    except NotFoundError as error:
        return error
    differs = ""
    if found.size != ref.size:
        differs = f"{found.size} bytes, indexed with {ref.size}"
    elif ref.version is not None and found.version is not None and found.version != ref.version:
        differs = f"version {found.version}, indexed with {ref.version}"
    elif ref.digest is not None:
        digest = TreeDigest()
        for piece in split(ByteRange(0, ref.size), length_bytes_max=BLOCK_BYTES):
            digest.update(store.get_ranges(ref.key, [piece], version=found.version)[0])
        if digest.hexdigest() != ref.digest:
            differs = f"digest {digest.hexdigest()}, packed with {ref.digest}"
    if not differs:
        return None
    return ChangedError(f"{store.url}: {ref.key}: {differs}", "copy the dataset again, or index it again")
