"""From a store to its index: the one beside the data, else one that this node builds once and keeps.

Nothing is ever written into the dataset here. An index of ours is kept under a name made of the URL and the options,
and is stale as soon as the listing (names, sizes, versions) differs from the one it was built from. One process of the
node builds, the others wait for it at a file lock.
"""

from __future__ import annotations

import contextlib
import fcntl
import fnmatch
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from blake3 import blake3

from stoker.errors import AccessError, NotFoundError, ShardError, StoreError
from stoker.flow import Progress, no_progress, parallel_map
from stoker.index.build import Damaged, Options, build, list_data, source_of
from stoker.index.check import check_index, check_objects
from stoker.index.fetch import default_place
from stoker.index.read import Index
from stoker.index.table import read_table
from stoker.machine import cpus
from stoker.store import Local, check_there
from stoker.store.base import ObjectInfo, Store

_GLOB = set("*?[")


def open_index(
    store: Store,
    *,
    place: Path | None = None,
    shards: Sequence[str] | None = None,
    format: str | None = None,  # noqa: A002  # the word of the house
    label: str | None = None,
    manifest: str | None = None,
    damaged: Damaged = "refuse",
    check: Literal["touch", "all"] = "touch",
    workers: int | None = None,
    progress: Progress = no_progress,
) -> Index:
    """The index of the dataset at *store*, built now if there is none.

    *shards*: keys or glob patterns of the objects that make the dataset, in this order; None: all. *manifest*: a file
    of this machine, or a key of the store. *check* "all" looks at every object now, and reads those whose digest is
    known (what stoker packed): ChangedError when one is not as it was indexed. Raises ShardError for damaged shards
    (unless *damaged* is "keep"), index or manifest.
    """
    check_there(store)
    where = place or default_place()
    index = None
    if shards is None and manifest is None:
        index = _published(store, where, format, label)
    if index is None:
        options = options_of(store, format=format, label=label, manifest=manifest, damaged=damaged)
        index = _kept(store, where, options, shards, workers, progress)
    if check == "all":
        check_index(index)
        check_objects(store, index, workers=workers, progress=progress)
    return index


def options_of(
    store: Store,
    *,
    format: str | None,  # noqa: A002  # the word of the house
    label: str | None,
    manifest: str | None,
    damaged: Damaged,
) -> Options:
    """Options with the manifest read: a file of this machine, or a key of the store."""
    if manifest is None:
        return Options(format, label, None, damaged)
    path = Path(manifest).expanduser()
    data = path.read_bytes() if path.is_file() else store.get(manifest)
    return Options(format, label, read_table(data, manifest), damaged, _digest(data))


def _digest(data: bytes) -> str:
    return str(blake3(data).hexdigest())


def _published(store: Store, place: Path, kind: str | None, label: str | None) -> Index | None:
    """The index beside the data, unless it answers another question than the one asked."""
    try:
        index = Index.load(store, place=place)
    except NotFoundError:
        return None
    built_with = index.manifest.extra.get("label")
    if kind not in (None, index.format) or (index.format == "files" and label not in (None, built_with)):
        return None
    return index


def objects_named(store: Store, shards: Sequence[str] | None, *, workers: int | None = None) -> list[ObjectInfo] | None:
    """The objects of keys and glob patterns, in their order. NotFoundError for a name that nothing bears."""
    if shards is None:
        return None
    listing = list_data(store) if any(_GLOB & set(name) for name in shards) else []
    plain = [name for name in shards if not _GLOB & set(name)]
    heads = dict(zip(plain, parallel_map(store.head, plain, workers=workers or 4 * cpus()), strict=True))
    found: dict[str, ObjectInfo] = {}
    for name in shards:
        matches = [heads[name]] if name in heads else [x for x in listing if fnmatch.fnmatchcase(x.key, name)]
        if not matches:
            raise NotFoundError(f"{store.url}: no object is called {name!r}")
        found |= {info.key: info for info in matches}
    return list(found.values())


def _kept(
    store: Store,
    place: Path,
    options: Options,
    shards: Sequence[str] | None,
    workers: int | None,
    progress: Progress,
) -> Index:
    asked = [options.format, options.label, options.damaged, options.manifest_digest]
    identity = json.dumps([store.url, *asked, None if shards is None else list(shards)])
    name = _digest(identity.encode())[:32]
    infos = objects_named(store, shards, workers=workers)
    listed = list_data(store) if infos is None else infos
    listing = listing_digest(listed)
    current = _current(place / name, listing)
    if current is not None:
        return current
    with _only_one(place, name):
        current = _current(place / name, listing)  # another process may have built it while this one waited
        if current is not None:
            return current
        source = source_of(
            store, options, infos=infos, listed=listed, workers=workers, scratch=place, progress=progress
        )
        extra = {"url": store.url, "listing": listing, "label": options.label}
        build(source, Local(place), name, damaged=options.damaged, scratch=place, extra=extra)
        return Index(place / name)


def _current(folder: Path, listing: str) -> Index | None:
    """The index in *folder*, if it is whole and of that listing. A damaged one of ours is simply built again."""
    with contextlib.suppress(NotFoundError, ShardError):
        index = Index(folder)
        if index.manifest.extra.get("listing") == listing:
            return index
    return None


def listing_digest(infos: Sequence[ObjectInfo]) -> str:
    """Changes when any name, size or version does."""
    digest = blake3()
    for info in infos:
        digest.update(repr((info.key, info.size, info.version)).encode("utf-8", "surrogateescape"))
    return str(digest.hexdigest())


@contextlib.contextmanager
def _only_one(place: Path, name: str) -> Iterator[None]:
    """Hold the lock of one index; waits for whoever is building it. The kernel frees it when its holder dies."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except PermissionError as error:
        raise AccessError(
            f"{place}: cannot keep the index of a foreign dataset here: {error}", "set XDG_CACHE_HOME or use a cache"
        ) from error
    except OSError as error:
        raise StoreError(f"{place}: cannot keep an index here: {error}", "set XDG_CACHE_HOME or use a cache") from error
    try:
        yield
    finally:
        os.close(descriptor)
