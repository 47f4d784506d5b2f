"""`stoker.pack`: raw files → shards with their index, resumable.

The order of writing is what makes a kill harmless: the job first, then every shard and after it its part, then the
index whose manifest commits, then the journal goes. The next run of the same job does what is missing, and its output
is the same byte for byte.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from stoker.errors import ShardError, UsageError
from stoker.flow import Gate, Progress, no_progress, parallel_map
from stoker.format import Finding, Findings
from stoker.index import IndexWriter, Manifest
from stoker.index.build import plain_findings
from stoker.machine import cpus, memory_bytes_free
from stoker.pack.archive import is_archive
from stoker.pack.cut import cut_by_count, cut_by_size, shuffled
from stoker.pack.journal import Journal, Part
from stoker.pack.options import OnBad, Options
from stoker.pack.output import Output, Values, promised_fields
from stoker.pack.shard import Recipe, build_shard
from stoker.pack.source import Selection, Source, Wanted, open_source
from stoker.pack.transform import Encoding, Recode, Transform, load_transform
from stoker.store import HasPaths, Store, StoreOptions, connect, innermost
from stoker.store.atomic import sweep
from stoker.units import parse_bytes

SHARD_BYTES = 256 * 10**6
WORKERS_MAX = 16
READERS_REMOTE = 16
"""Files of a shard that are read at once where a read is a round trip."""


@dataclass(frozen=True, slots=True)
class PackReport:
    """What a pack made."""

    url: str
    shards: int
    samples: int
    shard_bytes: int
    shards_made: int
    """Shards that this run wrote: fewer when it went on with an earlier one, 0 when all was done before."""
    skipped: int
    """Samples that were left out because they could not be packed."""
    findings: tuple[Finding, ...]
    """What was left out or passed over and why, worst first; repetitions are counted."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for `--json`."""
        return {**asdict(self), "findings": plain_findings(self.findings)}


def pack(
    src: str | Path,
    dst: str | Path,
    *,
    format: str | None = None,  # noqa: A002  # the word of the house
    shard_size: str | int | None = None,
    shards: int | None = None,
    label: str | None = None,
    manifest: str | Path | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    resize_short: int | None = None,
    transcode: str | None = None,
    predecode: int | None = None,
    transform: str | Transform | None = None,
    seed: int = 0,
    workers: int | None = None,
    on_bad: OnBad = "fail",
    compress: str = "",
    scratch: str | Path | None = None,
    options: StoreOptions | None = None,
    progress: Progress = no_progress,
) -> PackReport:
    """Pack the raw files at *src* (a folder, a bucket, archives) into shards with an index at *dst*.

    Killed at any moment and called again with the same arguments, it does what is missing and ends with the same bytes.
    Bad samples stop it (`on_bad="fail"`: SampleError or StoreError) or are left out and listed in the report ("skip");
    those on which *transform* fails are bad too. *predecode* stores of every picture a square of so many pixels a side,
    decoded (`image`, uint8 [side, side, 3]), in format "arrays"; the default format is "webdataset" otherwise.
    UsageError when *dst* holds something else, or a pack with other options. *shard_size* defaults to 256 MB; *scratch*
    is a folder for shards on their way to a remote store and for expanded archives (default: the system's); *progress*
    is told samples, not shards.
    """
    name, function = load_transform(transform)
    if shards is None and shard_size is None:
        shard_size = SHARD_BYTES
    asked = Options(
        format or ("webdataset" if predecode is None else "arrays"),
        None if shard_size is None else parse_bytes(shard_size), shards,
        Selection(label, None if manifest is None else str(manifest), tuple(include), tuple(exclude)),
        Recode(resize_short, None if transcode is None else Encoding.parse(transcode), predecode), name, seed, on_bad,
        compress,
    )  # fmt: skip
    target = connect(dst, options=options)
    _check_apart(str(src), target)
    folder = None if scratch is None else Path(scratch)
    with open_source(str(src), asked.selection, options=options, scratch=folder) as source:
        described = asked.describe(source.identity)
        output = Output.of(asked)
        layout = _lay_out(asked, source, output)
        names = promised_fields(one.entry for one in source.samples) if predecode and function is None else None
        journal = Journal(target, described)
        _sweep(target)
        finished = journal.open()
        if finished is not None:
            journal.close()
            return _report(target, finished, shards_made=0)
        threads = workers or _threads(source, target)
        at_once = _shards_at_once(threads, layout, target)
        recipe = Recipe(
            source, source.columns, asked.recode, name, function, on_bad == "skip", output,
            max(threads // at_once, READERS_REMOTE if source.remote else 1), folder,
            _Counter(len(source.samples), progress).add, Gate(1 if asked.plain and source.is_folder else at_once),
        )  # fmt: skip
        if predecode:
            recipe = replace(recipe, output=output.learned(_first_values(recipe, layout), names))
        run = _Run(layout, recipe, journal, target, at_once)
        return _report(target, run.finish(described), shards_made=len(run.made))


def _check_apart(src: str, target: Store) -> None:
    """Refuse a target inside the source: the next run would take the shards for files of the source."""
    if "{" in src or is_archive(src):
        return
    source = connect(src).url.rstrip("/")
    if f"{target.url.rstrip('/')}/".startswith(f"{source}/"):
        raise UsageError(f"the target {target.url} lies inside the source {source}", "pack into a folder beside it")


def _sweep(target: Store) -> None:
    """Remove what killed processes left half-written in a local target."""
    bottom = innermost(target)
    if isinstance(bottom, HasPaths):
        sweep(bottom.path("shard").parent)


def _threads(source: Source, target: Store) -> int:
    """One more than there are CPUs, since each waits for its disk at its end; more where a server is waited for."""
    waiting = source.remote or not isinstance(innermost(target), HasPaths)
    return min(WORKERS_MAX, 4 * cpus() if waiting else cpus() + 1)


def _shards_at_once(threads: int, layout: _Layout, target: Store) -> int:
    """Shards in the making at a time: a remote store holds each in memory while it is sent."""
    at_once = min(threads, layout.shards)
    if not isinstance(innermost(target), HasPaths):
        at_once = min(at_once, memory_bytes_free() // 2 // layout.shard_bytes_max)
    return max(1, at_once)


def _report(target: Store, manifest: Manifest, *, shards_made: int) -> PackReport:
    findings = tuple(Finding(**finding) for finding in manifest.extra["findings"])
    skipped = int(manifest.extra["skipped"])
    return PackReport(
        target.url, manifest.shards, manifest.samples, manifest.shard_bytes, shards_made, skipped, findings
    )


class _Counter:
    """Adds up what many threads report."""

    def __init__(self, samples: int, progress: Progress) -> None:
        self._lock = threading.Lock()
        self._samples, self._progress = samples, progress
        self._done = self._bytes = 0

    def add(self, count_bytes: int) -> None:
        """One sample more."""
        with self._lock:
            self._done += 1
            self._bytes += count_bytes
            self._progress(self._done, self._samples, self._bytes)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Which samples each shard gets."""

    wanted: Sequence[Wanted]
    bounds: Sequence[int]
    suffix: str
    shard_bytes_max: int

    @property
    def shards(self) -> int:
        return len(self.bounds) - 1

    def key(self, number: int) -> str:
        """Name of shard *number*."""
        return f"shard_{number:05d}{self.suffix}"

    def samples(self, number: int) -> Sequence[Wanted]:
        """The samples of shard *number*."""
        return self.wanted[self.bounds[number] : self.bounds[number + 1]]


def _first_values(recipe: Recipe, layout: _Layout) -> Iterator[Values]:
    """The fields of the samples in order, made one by one as they are asked for."""
    for wanted in layout.wanted:
        made = recipe.make(wanted)
        if not isinstance(made, Finding):
            yield from (one.fields for one in made)


def _lay_out(asked: Options, source: Source, output: Output) -> _Layout:
    order = shuffled([wanted.entry.key for wanted in source.samples], asked.seed)
    samples = [source.samples[number] for number in order]
    sizes = [output.size(wanted.entry) for wanted in samples]
    if asked.shards is not None:
        bounds = cut_by_count(sizes, shards=asked.shards)
    else:
        bounds = cut_by_size(sizes, shard_bytes=asked.shard_bytes or SHARD_BYTES)
    largest = max(sum(sizes[start:stop]) for start, stop in pairwise(bounds))
    return _Layout(samples, bounds, output.suffix, largest)


@dataclass(frozen=True)
class _Run:
    """One run of a job: what is missing is made, then the index."""

    layout: _Layout
    recipe: Recipe
    journal: Journal
    target: Store
    at_once: int
    made: list[int] = field(default_factory=list)
    """Numbers of the shards that this run built."""

    def finish(self, described: dict[str, Any]) -> Manifest:
        """All parts in order, the index, the end of the journal."""
        dataset = self.recipe.source.dataset
        findings = Findings()
        for finding in self.recipe.source.findings:
            findings.take(finding)
        skipped = samples = 0
        recipe, output = self.recipe, self.recipe.output
        with IndexWriter(
            self.target, format=output.format, columns=recipe.columns, parts=output.parts, scratch=recipe.scratch
        ) as index:
            for part in parallel_map(self._part, range(self.layout.shards), workers=self.at_once):
                skipped += len(part.findings)
                for finding in part.findings:
                    findings.take(finding)
                if part.shard is not None:
                    samples += index.add_shard(part.shard, part.samples)
            found = findings.all()
            if not samples:
                why = f", {skipped} were left out, as {found[0].where}: {found[0].message}" if skipped else ""
                raise ShardError(f"{self.target.url}: no sample is left to pack{why}")
            extra = {"pack": described, "skipped": skipped, "findings": plain_findings(found)}
            manifest = index.commit(classes=dataset.classes, extra=extra)
        self.journal.close()
        return manifest

    def _part(self, number: int) -> Part:
        part = self.journal.part(number)
        if part is not None:
            for _ in self.layout.samples(number):
                self.recipe.on_sample(0)
            return part
        part = build_shard(self.recipe, self.layout.samples(number), key=self.layout.key(number), target=self.target)
        self.journal.keep(number, part)
        self.made.append(number)
        return part
