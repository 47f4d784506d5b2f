"""What there is to pack: a folder, a bucket or archives, as samples whose fields are files that can be read."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from stoker.errors import ShardError, UsageError
from stoker.format import STOKER_FOLDER, Finding, Findings, SampleEntry
from stoker.format.files import FileDataset, gather
from stoker.format.names import printable
from stoker.index import options_of
from stoker.pack.archive import Archives, is_archive, open_archives
from stoker.pack.cut import clean_key, unique_key
from stoker.store import HasPaths, ObjectInfo, Store, StoreOptions, check_there, connect, expand, innermost


class Readable(Protocol):
    """What packing needs of a source."""

    @property
    def url(self) -> str: ...

    def get(self, key: str, *, version: str | None = None) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Selection:
    """Which files of the source are taken, and what is said about them."""

    label: str | None = None
    """Label rule."""
    manifest: str | None = None
    """Table of paths and metadata."""
    include: tuple[str, ...] = ()
    """Patterns, as `*.jpg` or `train/*`, of which a path must match one, if there are any."""
    exclude: tuple[str, ...] = ()
    """Patterns of which a path must match none."""

    def takes(self, key: str) -> bool:
        """Whether a file is wanted."""
        included = not self.include or any(fnmatch.fnmatchcase(key, pattern) for pattern in self.include)
        return included and not any(fnmatch.fnmatchcase(key, pattern) for pattern in self.exclude)


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sample that is to be packed."""

    entry: SampleEntry
    key: str
    """The key that it gets."""


@dataclass(frozen=True, slots=True)
class Source:
    """Samples and how to read them."""

    files: Readable
    dataset: FileDataset
    infos: Mapping[str, ObjectInfo]
    samples: Sequence[Wanted]
    findings: tuple[Finding, ...]
    identity: str
    """Digest over name, size and version of every file taken: another one is another pack."""
    remote: bool
    """Whether a read is a round trip, so that several should be under way at once."""

    @property
    def is_folder(self) -> bool:
        """Whether its files lie on this machine as they are: neither in archives nor in a remote store."""
        return not self.remote and not isinstance(self.files, Archives)

    @property
    def columns(self) -> dict[str, type]:
        """The metadata columns of a pack and their types; `cls` too when any sample has such a file."""
        columns = {"source": str, "width": int, "height": int, **self.dataset.columns}
        if any(place.name == "cls" for sample in self.samples for place in sample.entry.fields):
            columns.setdefault("cls", int)
        return columns

    def read(self, key: str) -> bytes:
        """A file's bytes; an error if it is no longer the one that was listed."""
        return self.files.get(key, version=self.infos[key].version)


@contextlib.contextmanager
def open_source(
    url: str, selection: Selection, *, options: StoreOptions | None, scratch: Path | None
) -> Iterator[Source]:
    """The source at *url*, open inside the block."""
    findings = Findings()
    with contextlib.ExitStack() as stack:
        urls = expand(url)
        if all(is_archive(one) for one in urls) and not (len(urls) == 1 and _is_folder(url)):
            places = [
                (connect(one.rpartition("/")[0] or _root(one), options=options), one.rpartition("/")[2]) for one in urls
            ]
            archives = open_archives(places, findings, stack, scratch=scratch)
            yield _gathered(archives, archives.list(), places[0][0], selection, findings, remote=False)
        elif len(urls) == 1:
            store = connect(url, options=options)
            check_there(store)
            listing = (info for info in store.list() if info.key.split("/", 1)[0] != STOKER_FOLDER)
            remote = not isinstance(innermost(store), HasPaths)
            yield _gathered(store, listing, store, selection, findings, remote=remote)
        else:
            raise UsageError(
                f"{url}: a pattern of several URLs must name archives", "name their common folder, use --include"
            )


def _is_folder(url: str) -> bool:
    return "://" not in url and Path(url).expanduser().is_dir()


def _root(url: str) -> str:
    return "/" if url.startswith("/") else "."


def _gathered(
    files: Readable,
    listing: Iterator[ObjectInfo],
    store: Store,
    selection: Selection,
    findings: Findings,
    *,
    remote: bool,
) -> Source:
    infos = [info for info in listing if selection.takes(info.key)]
    options = options_of(store, format="files", label=selection.label, manifest=selection.manifest, damaged="refuse")
    dataset = gather(infos, label=selection.label, manifest=options.manifest)
    for finding in dataset.findings:
        findings.take(finding)
    samples = _named([sample for folder in dataset.folders for sample in dataset.samples(folder)], findings)
    if not samples:
        raise ShardError(
            f"{files.url}: no samples found among {len(infos)} files",
            "samples are images, or the files that --manifest names; look at --include and --exclude",
        )
    used = dict.fromkeys(place.object for sample in samples for place in sample.entry.fields)
    by_key = {info.key: info for info in infos if info.key in used}
    return Source(files, dataset, by_key, samples, findings.all(), _identity(by_key, options.manifest_digest), remote)


def _named(entries: Sequence[SampleEntry], findings: Findings) -> list[Wanted]:
    """The samples with the keys that they get; two files that would share one are told."""
    taken: set[str] = set()
    named = []
    for entry in entries:
        clean = clean_key(entry.key)
        key = unique_key(clean, taken)
        if key != clean or any(place.object == entry.key for place in entry.fields):
            message = f"its key becomes {printable(key)}: another file would have the key {printable(clean)} too"
            if key == clean:
                message = f"its key becomes {printable(key)}: another picture has the same name with another extension"
            findings.add("shared-key", "notice", printable(entry.key), message)
        named.append(Wanted(entry, key))
    return named


def _identity(infos: Mapping[str, ObjectInfo], manifest_digest: str) -> str:
    digest = hashlib.blake2b(manifest_digest.encode(), digest_size=16)
    for info in infos.values():
        key = info.key.encode("utf-8", "surrogateescape")
        digest.update(b"%d:%s %d %s\n" % (len(key), key, info.size, (info.version or "").encode()))
    return digest.hexdigest()
