"""`verify`: look at everything, find all that is wrong, write nothing into the dataset.

One pass over the shards gives what their structure tells (cut, checksums, hashes), and which fields samples lack. What
lies beside the data is compared with it (digests of shards that stoker wrote, its index). Deep, every field of every
whole sample is read and decoded; the places for that come from this pass, not from an index that may be damaged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stoker.cache import Cache
from stoker.dataset import Dataset, SampleReader
from stoker.dataset.open import split_urls
from stoker.decode import Decoder, default_for, quiet_pillow
from stoker.errors import MissingExtraError, SampleError, ShardError, StokerError, UsageError
from stoker.flow import Progress, no_progress, parallel_map
from stoker.format import ROW_SHARDS, Finding, Findings, SampleEntry, is_image
from stoker.index import (
    Index,
    build,
    check_published,
    objects_named,
    options_of,
    plain_findings,
    source_of,
)
from stoker.index.build import CHECK_FINDINGS_PER_CODE_MAX
from stoker.index.source import Shard, Source
from stoker.machine import cpus
from stoker.store import HasPaths, Local, Store, StoreOptions, check_there, connect, innermost
from stoker.store.atomic import scratch

READ_SAMPLES = 16
KINDS_MAX = 10_000
"""Different sets of fields that are told apart when it is looked for samples that lack one."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What a verification gave."""

    url: str
    format: str
    samples: int
    """Whole ones."""
    findings: tuple[Finding, ...]
    """Worst first."""
    damaged: frozenset[str] = frozenset()
    """Keys of the shards that have errors."""
    bad: frozenset[tuple[str, str]] = frozenset()
    """(shard, key) of whole samples with a field that could not be read or decoded; only a deep look finds them."""

    @property
    def errors(self) -> int:
        """How often something was found that makes the data unfit for use as it is."""
        return sum(finding.count for finding in self.findings if finding.severity == "error")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        counts = Counter[str]()
        for finding in self.findings:
            counts[finding.severity] += finding.count
        return {
            "url": self.url, "format": self.format, "samples": self.samples,
            "counts": {severity: counts[severity] for severity in ("error", "warning", "notice")},
            "findings": plain_findings(self.findings),
        }  # fmt: skip


def verify(
    url: str | Path | Sequence[str],
    *,
    deep: bool = False,
    format: str | None = None,  # noqa: A002  # the word of the house
    label: str | None = None,
    manifest: str | Path | None = None,
    cache: str | Path | None = None,
    workers: int | None = None,
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
) -> Verified:
    """All that is wrong with the dataset at *url*. *deep* also decodes every field by its default decoder; for that,
    remote shards of rows (HDF5, tables) go through a *cache*.

    Raises for what makes it no dataset at all (nothing there, two formats, no access); damage is a finding.
    """
    root, shards = split_urls(url)
    store = connect(root, options=options)
    check_there(store)
    findings = Findings(CHECK_FINDINGS_PER_CODE_MAX)
    asked = options_of(
        store, format=format, label=label, manifest=None if manifest is None else str(manifest), damaged="keep"
    )
    infos = objects_named(store, shards, workers=workers)
    source = _Watched(source_of(store, asked, infos=infos, workers=workers, progress=progress), findings)
    if shards is None:
        for finding in check_published(store, workers=workers, progress=progress):
            source.take(finding.where, finding)
    for finding in source.inner.findings:
        findings.take(finding)
    bottom = innermost(store)
    if shards is None and isinstance(bottom, Local):
        for key in bottom.strays():
            findings.add("outside-link", "warning", key, "a link that leads out of the folder or nowhere: not followed")
    bad: frozenset[tuple[str, str]] = frozenset()
    if deep:
        if source.format in ROW_SHARDS and cache is None and not isinstance(innermost(store), HasPaths):
            raise UsageError(
                f"{store.url}: {source.format} is read by a library, from a file", "name a folder: --cache FOLDER"
            )
        quiet_pillow()
        with scratch("verify") as folder:
            try:
                build(source, Local(folder), "index", damaged="keep")
            except ShardError:
                if source.samples:
                    raise
            else:
                dataset = Dataset(store, Index(folder / "index"), cache=None if cache is None else Cache(cache))
                bad = _decode_all(dataset, findings, workers or cpus(), progress)
    else:
        for shard in source.shards():
            for _ in shard.samples:
                pass
    source.judge()
    damaged = source.damaged | {shard for shard, _ in bad}
    return Verified(store.url, source.format, source.samples, findings.all(), frozenset(damaged), bad)


@dataclass
class _Watched:
    """A source that remembers what passes."""

    inner: Source
    found: Findings
    samples: int = 0
    kinds: dict[frozenset[str], tuple[int, str]] = field(default_factory=dict)
    """Set of fields → samples that have just these, and where the first of them is."""
    damaged: set[str] = field(default_factory=set)

    @property
    def format(self) -> str:
        return self.inner.format

    @property
    def columns(self) -> Mapping[str, type]:
        return self.inner.columns

    @property
    def parts(self) -> tuple[str, ...]:
        return self.inner.parts

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.inner.classes

    @property
    def findings(self) -> tuple[Finding, ...]:
        return ()

    def take(self, shard: str, finding: Finding) -> None:
        """Note what is wrong with a shard."""
        self.found.take(finding)
        if finding.severity == "error":
            self.damaged.add(shard)

    def shards(self) -> Iterator[Shard]:
        for shard in self.inner.shards():
            for finding in shard.findings:
                self.take(shard.ref.key, finding)
            yield Shard(shard.ref, self._counted(shard.ref.key, shard.samples), (), shard.objects)

    def _counted(self, shard: str, samples: Iterable[SampleEntry]) -> Iterator[SampleEntry]:
        for sample in samples:
            self.samples += 1
            names = frozenset("image" if is_image(place.name) else place.name for place in sample.fields)
            count, where = self.kinds.get(names, (0, f"{shard}:{sample.key}"))
            if count or len(self.kinds) < KINDS_MAX:
                self.kinds[names] = count + 1, where
            yield sample

    def judge(self) -> None:
        """Findings about the whole: samples that lack a field which others have, or no samples at all."""
        if not self.samples:
            self.found.add("no-samples", "error", "", "the dataset has no samples")
        every = frozenset[str]().union(*self.kinds)
        for name in sorted(every):
            lacking = [(count, where) for names, (count, where) in self.kinds.items() if name not in names]
            if lacking:
                count = sum(count for count, _ in lacking)
                message = f"no field {name!r}, which {self.samples - count:,} other samples have"
                self.found.take(Finding("missing-field", "warning", lacking[0][1], message, count))


def _decode_all(dataset: Dataset, findings: Findings, workers: int, progress: Progress) -> frozenset[tuple[str, str]]:
    """Read and decode everything; the samples that cannot be."""
    reader = dataset.reader(dataset.index.fields)
    bad: set[tuple[str, str]] = set()
    starts = range(0, len(dataset), READ_SAMPLES)
    found = parallel_map(lambda start: _faults(dataset, reader, start), starts, workers=workers)
    for start, faults in zip(starts, found, strict=True):
        for number, name, code, message in faults:
            shard, key = dataset.index.shard_object(dataset.index.shard_of(number)).key, dataset.index.key(number)
            bad.add((shard, key))
            place = dataset.index.place(number, name) if name else None
            where = f"{shard}:{key}" if place is None or dataset.index.format != "files" else place.object.key
            findings.add(code, "error", where, f"field {name!r}: {message}" if name else message)
        progress(start, len(dataset), 0)
    return frozenset(bad)


def _faults(dataset: Dataset, reader: SampleReader, start: int) -> list[tuple[int, str, str, str]]:
    """(sample, field, code, message) of all that is wrong in a run of samples."""
    stop = min(start + READ_SAMPLES, len(dataset))
    try:
        samples = reader.read(range(start, stop)).values
    except (UsageError, MissingExtraError):
        raise
    except (StokerError, OSError):  # one of them: which, is found out one by one
        samples = []
    decoders = {name: default_for(name, dataset.index.codec(name)) for name in dataset.index.fields}
    faults = []
    for number in range(start, stop):
        try:
            values = samples[number - start] if samples else reader.read([number]).values[0]
        except (StokerError, OSError) as error:
            faults.append((number, "", "unreadable", _line(error)))
            continue
        for name, value in values.items():
            fault = _fault(decoders[name], value)
            if fault is not None:
                faults.append((number, name, "undecodable", fault))
    return faults


def _fault(decoder: Decoder, value: Any) -> str | None:
    """Why a field's value is none; None when it is one."""
    try:
        if isinstance(value, SampleError):
            raise value
        if isinstance(value, bytes | memoryview):
            decoder.decode(value, None, 0)
    except SampleError as error:
        return error.message
    return None


def _line(error: Exception) -> str:
    return error.message if isinstance(error, StokerError) else str(error)


def open_whole(
    url: str | Path | Sequence[str],
    folder: Path,
    *,
    format: str | None,  # noqa: A002  # the word of the house
    cache: str | Path | None,
    options: StoreOptions | None,
) -> tuple[Store, Dataset]:
    """The dataset of the whole samples at *url*, those of damaged shards among them, by an index built in *folder*."""
    root, shards = split_urls(url)
    store = connect(root, options=options)
    asked = options_of(store, format=format, label=None, manifest=None, damaged="keep")
    source = source_of(store, asked, infos=objects_named(store, shards))
    build(source, Local(folder), "index", damaged="keep")
    return store, Dataset(store, Index(folder / "index"), cache=None if cache is None else Cache(cache))
