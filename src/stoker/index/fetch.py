"""Bringing an index to a folder of this node: where it lies already, or fetched once and verified.

A fetched index lies under the digest of its manifest, so that a newer one takes another folder and a process that still
maps the older one is not disturbed.
"""

from __future__ import annotations

import os
from pathlib import Path

from blake3 import blake3

from stoker.errors import ShardError
from stoker.index.layout import MANIFEST_BYTES_MAX, MANIFEST_FILE, FileRecord, Manifest
from stoker.store import HasPaths, innermost
from stoker.store.atomic import whole_file
from stoker.store.base import ByteRange, Store
from stoker.store.digest import BLOCK_BYTES, TreeDigest


def default_place() -> Path:
    """Where a node keeps the indexes of datasets that have none: `$XDG_CACHE_HOME/stoker/index`."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path("~/.cache").expanduser()) / "stoker" / "index"


def local_folder(store: Store, prefix: str, place: Path) -> Path:
    """The folder that holds the index under *prefix* of *store*. NotFoundError when there is none."""
    inner = innermost(store)
    if isinstance(inner, HasPaths):
        store.head(f"{prefix}/{MANIFEST_FILE}")
        return inner.path(f"{prefix}/{MANIFEST_FILE}").parent
    key = f"{prefix}/{MANIFEST_FILE}"
    found = store.head(key)
    if found.size > MANIFEST_BYTES_MAX:
        raise ShardError(
            f"{store.url}: {key}: a manifest of {found.size} bytes, at most {MANIFEST_BYTES_MAX} are allowed"
        )
    data = store.get(key, version=found.version)
    manifest = Manifest.from_json(data, f"{store.url}: {key}")
    folder = place / "fetched" / str(blake3(data).hexdigest())[:32]
    if not (folder / MANIFEST_FILE).exists():
        for name, record in manifest.files.items():
            _fetch(store, f"{prefix}/{name}", record, folder / name)
        with whole_file(folder / MANIFEST_FILE) as file:
            file.write(data)
    return folder


def _fetch(store: Store, key: str, record: FileRecord, target: Path) -> None:
    digest = TreeDigest()
    with whole_file(target) as file:
        for start in range(0, record.size, BLOCK_BYTES):
            piece = store.get_ranges(key, [ByteRange(start, min(start + BLOCK_BYTES, record.size))])[0]
            digest.update(piece)
            file.write(piece)
        if digest.hexdigest() != record.digest:
            raise ShardError(
                f"{store.url}: {key}: digest {digest.hexdigest()}, the manifest says {record.digest}",
                "the index is being written, or damaged: try again, or index again",
            )
