"""`convert`: the samples of a dataset in their order, with their keys and values, into another format.

The order of work is what makes a kill harmless: a survey of all samples first, which writes nothing; then the journal
of the job; every shard whole, and after it its part; what the format itself wants (index.json); the index, whose
manifest commits; the end of the journal. As long as the journal is there and the manifest is not, nothing opens as a
dataset. The next run of the same job does what is missing.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stoker.convert.source import Source, renames
from stoker.convert.survey import ELSEWHERE, Survey
from stoker.convert.target import Shape, ShardFile, Target, settled, target_of
from stoker.dataset import SampleReader
from stoker.dataset import open as open_dataset
from stoker.dataset.open import split_urls
from stoker.errors import UsageError
from stoker.flow import Progress, no_progress, parallel_map
from stoker.format import SampleEntry
from stoker.format.mds import Columns, description
from stoker.format.mds_index import INDEX_NAME, index_json
from stoker.index import IndexWriter, Manifest, ObjectRef
from stoker.machine import cpus
from stoker.pack.journal import Journal, Part
from stoker.store import HasPaths, Store, StoreOptions, TreeDigest, connect, innermost
from stoker.store.atomic import fsync_folder, make_folders, named, scratch, sweep, temporary_name
from stoker.units import parse_bytes

SHARD_BYTES = 256 * 10**6
MDS_BYTES_MAX = 2 * 10**9
"""Of values; the whole shard is addressed with 32 bits, and held in memory while it is made."""
WORKERS_MAX = 4
"""Shards in the making at a time: MDS holds each in memory, a remote store too while it is sent."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion made."""

    url: str
    format: str
    samples: int
    shards: int
    shard_bytes: int
    shards_made: int
    """Shards that this run wrote: fewer when it went on with an earlier one, 0 when all was done before."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return asdict(self)


def convert(
    src: str | Path | Sequence[str],
    dst: str | Path,
    *,
    format: str,  # noqa: A002  # the word of the house
    shard_size: str | int = SHARD_BYTES,
    fields: Sequence[str] = (),
    rename: Sequence[str] = (),
    decode: Sequence[str] = (),
    source_format: str | None = None,
    label: str | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
) -> ConvertReport:
    """Write the dataset at *src* to *dst* as shards of *format*, with their index: same order, keys and values.

    *fields* are taken (none: all), *rename* is "old=new" each, *decode* names fields that become values by their
    extension first (`.npy` an array, `.txt` a text). UsageError before anything is written when the format cannot hold
    a value, or *dst* holds something else. Killed and called again with the same arguments, it does what is missing.
    Remote shards of rows (HDF5, tables) are read through a *cache*. *progress* is told samples,
    those of the survey and those that are written.
    """
    target_of(format)
    source = Source(
        open_dataset(src, format=source_format, label=label, cache=cache, options=options),
        tuple(fields), renames(rename), frozenset(decode),
    )  # fmt: skip
    store = connect(dst, options=options)
    if split_urls(src)[1] is None and f"{store.url.rstrip('/')}/".startswith(f"{source.dataset.url.rstrip('/')}/"):
        raise UsageError(f"the target {store.url} lies inside the source", "convert into a folder beside it")
    return write(source, store, format=format, shard_bytes=parse_bytes(shard_size), workers=workers, progress=progress)


def write(
    source: Source,
    store: Store,
    *,
    format: str,  # noqa: A002  # the word of the house
    shard_bytes: int = SHARD_BYTES,
    workers: int | None = None,
    progress: Progress = no_progress,
    advice: str = ELSEWHERE,
) -> ConvertReport:
    """Write the samples of *source* into *store*: what `convert` does, of a dataset that is open.

    *advice* is the hint of the error that the format cannot hold a value.
    """
    target = target_of(format)
    if shard_bytes < 1:
        raise UsageError(f"shards of {shard_bytes} bytes hold nothing", "choose larger shards (--shard-size)")
    if format == "mds" and shard_bytes > MDS_BYTES_MAX:
        raise UsageError(
            f"MDS shards of {shard_bytes} bytes: at most {MDS_BYTES_MAX} are written", "choose smaller ones"
        )
    described = {
        "convert": source.identity(), "format": format, "shard_bytes": shard_bytes, "fields": list(source.fields),
        "rename": dict(source.rename), "decode": sorted(source.decode),
    }  # fmt: skip
    journal = Journal(store, described)
    if next(iter(store.list()), None) is not None:  # refuse what is not ours before the long look
        finished = journal.open()
        if finished is not None:
            journal.close()
            return _report(store, finished, 0)
    with _folder(store, make=False) as folder:
        survey = Survey(
            target, shard_bytes=shard_bytes, scratch=folder, encodings=source.encodings(), advice=advice
        )  # fmt: skip
        for number, sample in enumerate(source.read(source.reader(), 0, len(source)), 1):
            survey.add(sample.key, sample.values)
            progress(number, 2 * len(source), 0)
        shape = survey.finish()
    journal.open()
    with _folder(store, make=True) as folder:
        run = _Run(source, target, store, shape, survey.bounds, folder, journal, progress, source.reader())
        manifest = run.finish(described, workers or min(WORKERS_MAX, cpus()))
    return _report(store, manifest, len(run.made))


def _report(store: Store, manifest: Manifest, made: int) -> ConvertReport:
    return ConvertReport(store.url, manifest.format, manifest.samples, manifest.shards, manifest.shard_bytes, made)


@contextlib.contextmanager
def _folder(store: Store, *, make: bool) -> Iterator[Path]:
    """Where shards grow: the target itself where it is a folder and may be made, else one of ours for scratch.

    What killed processes left there is removed.
    """
    bottom = innermost(store)
    if make and isinstance(bottom, HasPaths):
        folder = bottom.path("shard").parent
        make_folders(folder)
        sweep(folder)
        yield folder
        return
    with scratch("convert") as folder:
        yield folder


@dataclass(frozen=True)
class _Run:
    """The second pass."""

    source: Source
    target: Target
    store: Store
    shape: Shape
    bounds: Sequence[int]
    folder: Path
    journal: Journal
    progress: Progress

    reader: SampleReader
    made: list[int] = field(default_factory=list)
    """Numbers of the shards that this run built."""
    done: list[int] = field(default_factory=list)
    """Samples of each shard that is in place."""

    def finish(self, described: dict[str, Any], workers: int) -> Manifest:
        """All shards in order, the index, the end of the journal."""
        records = []
        columns = self.source.columns
        with IndexWriter(self.store, format=self.target.name, columns=columns, parts=self.target.parts) as index:
            for part in parallel_map(self._part, range(len(self.bounds) - 1), workers=workers):
                assert part.shard is not None
                index.add_shard(part.shard, part.samples)
                if self.shape.columns is not None:
                    records.append(_mds_record(part, self.shape.columns))
            if records:
                self.store.put(INDEX_NAME, index_json(records))
            manifest = index.commit(
                classes=self.source.dataset.classes, extra={"pack": described, "skipped": 0, "findings": []}
            )
        self.journal.close()
        return manifest

    def _part(self, number: int) -> Part:
        part = self.journal.part(number)
        if part is None:
            part = self._build(number)
            self.journal.keep(number, part)
            self.made.append(number)
        self.done.append(len(part.samples))
        self.progress(len(self.source) + sum(self.done), 2 * len(self.source), 0)
        return part

    def _build(self, number: int) -> Part:
        """Write one shard, whole or not at all."""
        key = f"shard_{number:05d}{self.target.suffix}"
        path = self.folder / f"{temporary_name()}{self.target.suffix}"
        try:
            shard = ShardFile(self.target, path, self.shape, where=f"{self.store.url}/{key}")
            try:
                entries = [
                    SampleEntry(sample.key, shard.add(sample.key, sample.values), sample.columns)
                    for sample in self.source.read(self.reader, self.bounds[number], self.bounds[number + 1])
                ]
                size = shard.close()
            finally:
                shard.abandon()
            samples = tuple(
                SampleEntry(entry.key, settled(shard.writer, entry.fields), entry.columns) for entry in entries
            )
            with named(f"{self.store.url}/{key}"):
                digest = _publish(path, size, self.store, key)
        finally:
            path.unlink(missing_ok=True)
        return Part(ObjectRef(key, size, None, digest, "", size), samples, ())


def _publish(path: Path, size: int, store: Store, key: str) -> str:
    """Give the finished file its place; its digest."""
    digest = TreeDigest()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            digest.update(view)
            bottom = innermost(store)
            if isinstance(bottom, HasPaths):
                path.replace(bottom.path(key))
                fsync_folder(path.parent)
            else:
                store.put(key, view)
    return digest.hexdigest()


def _mds_record(part: Part, columns: Columns) -> dict[str, Any]:
    """What index.json says of a shard."""
    assert part.shard is not None
    raw = {"basename": part.shard.key, "bytes": part.shard.size, "hashes": {}}
    return description(columns) | {"raw_data": raw, "samples": len(part.samples), "zip_data": None}
