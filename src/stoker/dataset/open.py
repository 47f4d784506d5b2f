"""`stoker.open`: from a URL to a dataset. It reads the index and nothing else; it never writes into somebody's
dataset."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from stoker.cache import Cache
from stoker.dataset.dataset import Dataset
from stoker.errors import UsageError
from stoker.events import HERE, Recorder
from stoker.flow import Progress, no_progress
from stoker.format import OWNS
from stoker.index import open_index
from stoker.store import StoreOptions, connect, expand, parse


def is_relative(url: str) -> bool:
    """Whether it is a path from the working folder on."""
    return "://" not in url and not url.startswith(("/", "~"))


def _is_folder(url: str) -> bool:
    """Whether it is a folder of this machine: other programs call one x.parquet, too."""
    place = parse(url)
    return place.scheme == "file" and Path(place.path).is_dir()


def split_urls(url: str | Path | Sequence[str]) -> tuple[str, list[str] | None]:
    """The store's URL, and the shards' keys in it when single objects were named (brace patterns are expanded)."""
    named = [url] if isinstance(url, str | Path) else list(url) if isinstance(url, Iterable) else [url]
    if not all(isinstance(one, str | Path) for one in named):
        raise UsageError(f"open takes a URL, a path, or a list of shards, found {url!r:.80}")
    given = [str(one) for one in named]
    if not given:
        raise UsageError("no URL was given to open", "pass a folder, a bucket URL, a brace pattern or a list of shards")
    expanded = [one for pattern in given for one in expand(pattern)]
    if len(expanded) == 1 and (not any(owns(expanded[0]) for owns in OWNS.values()) or _is_folder(expanded[0])):
        return expanded[0], None
    if len({is_relative(one) for one in expanded}) > 1:
        raise UsageError(f"the {len(expanded)} URLs have no folder in common, as {expanded[0]} and {expanded[-1]}")
    root = (
        posixpath.commonpath([posixpath.dirname(one) for one in expanded])
        if len(expanded) > 1
        else posixpath.dirname(expanded[0])
    )
    if not root and all(is_relative(one) for one in expanded):  # all lie in or below the working folder
        return ".", expanded
    if "://" in expanded[0] and "://" not in root:  # commonpath folds the two slashes of the scheme
        root = root.replace(":/", "://", 1)
    if not expanded[0].startswith(root) or root in ("", "s3:", "file:"):
        raise UsageError(f"the {len(expanded)} URLs have no folder in common, as {expanded[0]} and {expanded[-1]}")
    return root, [one[len(root) :].lstrip("/") for one in expanded]


def open(  # noqa: A001  # the public name is `stoker.open`, like `gzip.open`
    url: str | Path | Sequence[str],
    *,
    cache: Cache | str | Path | None = None,
    format: str | None = None,  # noqa: A002  # the command line's word for it
    label: str | None = None,
    manifest: str | Path | None = None,
    check: Literal["touch", "all"] = "touch",
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
    recorder: Recorder = HERE,
) -> Dataset:
    """The dataset at *url*: a folder or bucket (packed shards, foreign shards, raw files), a brace pattern, or shards.

    *label* is a rule for raw files (`parent`, `prefix:_`, `regex:…`, `none`), *manifest* a CSV, JSONL or Parquet table
    of paths and metadata for them. *check* "all" looks at every object now instead of when it is first touched, and
    reads the index and what stoker packed to compare digests. The index of a dataset that has none is built once per
    node: into the cache, else into $XDG_CACHE_HOME/stoker/index.

    Raises NotFoundError, AccessError (the store), ShardError (a damaged shard or index), UsageError.
    """
    for name, value, kind in (("cache", cache, Cache | str | Path), ("options", options, StoreOptions)):
        if value is not None and not isinstance(value, kind):
            raise UsageError(
                f"{name} is a {getattr(kind, '__name__', 'stoker.Cache or its folder')}, found {value!r:.80}"
            )
    if check not in ("touch", "all"):
        raise UsageError(f"check is 'touch' or 'all', found {check!r:.80}")
    root, shards = split_urls(url)
    store = connect(root, recorder=recorder, options=options)
    kept = Cache(cache) if isinstance(cache, str | Path) else cache
    index = open_index(
        store,
        place=kept.index_folder() if kept is not None else None,
        shards=shards,
        format=format,
        label=label,
        manifest=str(manifest) if manifest is not None else None,
        check=check,
        progress=progress,
    )
    return Dataset(store, index, cache=kept)
