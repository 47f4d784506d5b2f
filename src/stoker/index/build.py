"""Building the index of a dataset that has none: list, recognise the format, scan in parallel, write; manifest last."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from stoker.errors import ShardError, UsageError
from stoker.flow import Progress, no_progress
from stoker.format import FORMATS, OWNS, ROW_SHARDS, STOKER_FOLDER, Finding, Findings
from stoker.format.codec import MAGIC_BYTES, detect
from stoker.format.files import FileDataset, ManifestRow, gather
from stoker.format.mds_index import INDEX_NAME
from stoker.format.names import is_hidden, is_image, split_file
from stoker.format.tar import BLOCK, is_header
from stoker.format.tfrecord import begins
from stoker.index.entry import ObjectRef
from stoker.index.layout import MANIFEST_FILE, Manifest
from stoker.index.scan import scan_shards
from stoker.index.source import Shard, Source
from stoker.index.source_mds import mds_source
from stoker.index.source_rows import RowShards
from stoker.index.write import IndexWriter
from stoker.machine import cpus
from stoker.store.base import ByteRange, ObjectInfo, Store
from stoker.store.local import Local
from stoker.store.wrap import innermost

Damaged = Literal["refuse", "keep"]
JOB_KEY = f"{STOKER_FOLDER}/packing.json"
"""Lies in a target as long as shards are being made there."""
MANIFEST_KEY = f"{STOKER_FOLDER}/{MANIFEST_FILE}"
FORMAT_NAMES = (*OWNS, "files")
CHECK_FINDINGS_PER_CODE_MAX = 1_000
"""Findings of one code that a check tells word for word; the rest is counted."""
PROBES_MAX = 4
"""Objects whose heads are read to recognise a format that no name tells."""


@dataclass(frozen=True, slots=True)
class Options:
    """What decides which samples a dataset has, beside its objects."""

    format: str | None = None
    """One of FORMAT_NAMES, or None: recognised."""
    label: str | None = None
    """Label rule for raw files."""
    manifest: Mapping[str, ManifestRow] | None = None
    """Path → row: the samples of raw files and their metadata."""
    damaged: Damaged = "refuse"
    """What to do with shards that have errors: refuse them all, or keep what is whole of them."""
    manifest_digest: str = ""
    """BLAKE3 of the manifest's bytes."""

    def __post_init__(self) -> None:
        if self.format not in (None, *FORMAT_NAMES):
            raise UsageError(f"unknown format {self.format!r}", f"known are {', '.join(FORMAT_NAMES)}")


@dataclass(frozen=True, slots=True)
class _Tars:
    """Shards of a format that keeps many samples in one object."""

    store: Store
    format: str
    infos: Sequence[ObjectInfo]
    findings: tuple[Finding, ...]
    workers: int
    scratch: Path | None
    progress: Progress
    columns: Mapping[str, type] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return FORMATS[self.format].parts

    def shards(self) -> Iterator[Shard]:
        scans = scan_shards(
            self.store, self.infos, FORMATS[self.format],
            workers=self.workers, scratch=self.scratch, progress=self.progress,
        )  # fmt: skip
        for scanned in scans:
            yield Shard(scanned.ref, scanned.scan.samples, scanned.scan.findings)


@dataclass(frozen=True, slots=True)
class _Files:
    """Raw files: a folder is a shard, a field an object."""

    dataset: FileDataset
    infos: Mapping[str, ObjectInfo]
    progress: Progress
    format: str = "files"
    parts: tuple[str, ...] = ("object",)

    @property
    def columns(self) -> Mapping[str, type]:
        return self.dataset.columns

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.dataset.classes

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.dataset.findings

    def shards(self) -> Iterator[Shard]:
        done_bytes = 0
        for done, folder in enumerate(self.dataset.folders, 1):
            samples = list(self.dataset.samples(folder))
            used = dict.fromkeys(place.object for sample in samples for place in sample.fields)
            objects = {key: _object(self.infos[key]) for key in used}
            size = sum(ref.size for ref in objects.values())
            done_bytes += size
            self.progress(done, len(self.dataset.folders), done_bytes)
            yield Shard(ObjectRef(folder, size, None, expanded_size=size), samples, objects=objects)


def _object(info: ObjectInfo) -> ObjectRef:
    return ObjectRef(info.key, info.size, info.version, expanded_size=info.size)


def list_data(store: Store) -> list[ObjectInfo]:
    """Every object of the dataset that is not stoker's own. ShardError where a pack or convert is not finished."""
    listed = list(store.list())
    own = {info.key for info in listed if info.key.split("/", 1)[0] == STOKER_FOLDER}
    if JOB_KEY in own and MANIFEST_KEY not in own:
        raise ShardError(f"{store.url}: a pack or convert was begun here and is not finished", "run the same again")
    return [info for info in listed if info.key not in own]


def recognise(store: Store, infos: Sequence[ObjectInfo]) -> str:
    """The format, by the names and, when these tell nothing, by the heads of a few objects."""
    visible = [info for info in infos if not is_hidden(info.key)]
    image = next((info.key for info in visible if is_image(split_file(info.key)[1])), None)
    shards: dict[str, str] = {}
    for name, owns in OWNS.items():
        found = next((info.key for info in visible if owns(info.key)), None)
        if found is not None and (name != "table" or image is None):  # a table beside images is about them
            shards[name] = found
    if len(shards) > 1 or (shards and image is not None):
        named = {f"shards (as {key})": name for name, key in shards.items()}
        if image is not None:
            named[f"images (as {image})"] = "files"
        raise UsageError(
            f"{store.url}: both {' and '.join(named)}: a dataset is one or the other",
            "name the format: "
            + ", ".join(f"{name} takes the {what.partition(' (')[0]}" for what, name in named.items()),
        )
    if shards:
        return next(iter(shards))
    if image is not None:
        return "files"
    if any(info.key == INDEX_NAME for info in visible):
        return "mds"  # without shards that its name would tell: what is wrong, its source says
    by_head = _by_heads(store, visible)
    if by_head is None:
        bottom = innermost(store)
        stray = next(bottom.strays(), None) if isinstance(bottom, Local) else None
        raise ShardError(
            f"{store.url}: no data found: neither shards nor images among {len(infos)} objects",
            "check the URL, or name the format" if stray is None
            else f"links out of the folder are not followed, as {stray!r}: open the folder with the data",
        )  # fmt: skip
    return by_head


def _by_heads(store: Store, infos: Sequence[ObjectInfo]) -> str | None:
    for info in [info for info in infos if info.size >= MAGIC_BYTES][:PROBES_MAX]:
        head = store.get_ranges(info.key, [ByteRange(0, min(BLOCK, info.size))], version=info.version)[0]
        if begins(head):
            return "tfrecord"
        if is_header(head) or detect(head[:MAGIC_BYTES]):
            return "webdataset"
        for name, kind in ROW_SHARDS.items():
            if head.startswith(kind.heads):
                return name
    return None


def source_of(
    store: Store,
    options: Options,
    *,
    infos: Sequence[ObjectInfo] | None = None,
    listed: Sequence[ObjectInfo] | None = None,
    workers: int | None = None,
    scratch: Path | None = None,
    progress: Progress = no_progress,
) -> Source:
    """What there is to index. *infos*: the objects to take, all of them; None: those of the listing that are data.

    *listed*: the listing, when the caller has it already.
    """
    if listed is None:
        listed = list_data(store) if infos is None else infos
    kind = options.format or ("files" if options.manifest is not None else recognise(store, listed))
    if kind == "files":
        dataset = gather(listed, label=options.label, manifest=options.manifest)
        return _Files(dataset, {info.key: info for info in listed}, progress)
    if options.manifest is not None:
        raise UsageError(f"{store.url}: a manifest goes with raw files, this is {kind}")
    workers = workers or 4 * cpus()
    if kind == "mds" and infos is None:
        return mds_source(store, listed, workers=workers, scratch=scratch, progress=progress)
    findings = Findings()
    shards = list(listed)
    if infos is None:
        shards = [info for info in listed if not is_hidden(info.key)]
        named = [info for info in shards if OWNS[kind](info.key)]
        strangers = [info.key for info in shards if not OWNS[kind](info.key)] if named else []
        for key in strangers:
            findings.add("not-a-shard", "notice", key, "passed over: its name is no shard's")
        shards = named or shards
    make = RowShards if kind in ROW_SHARDS else _Tars
    return make(store, kind, shards, findings.all(), workers, scratch, progress)


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check of a whole dataset gave."""

    samples: int
    findings: tuple[Finding, ...]
    """Worst first."""


def check_dataset(source: Source) -> Checked:
    """Scan everything, write nothing: what there is to say about the dataset."""
    findings = Findings(CHECK_FINDINGS_PER_CODE_MAX)
    samples = 0
    for finding in source.findings:
        findings.take(finding)
    for shard in source.shards():
        samples += sum(1 for _ in shard.samples)
        for finding in shard.findings:
            findings.take(finding)
    if not samples:
        findings.add("no-samples", "error", "", "the dataset has no samples")
    return Checked(samples, findings.all())


def build(
    source: Source,
    target: Store,
    prefix: str = STOKER_FOLDER,
    *,
    damaged: Damaged = "refuse",
    scratch: Path | None = None,
    extra: Mapping[str, Any] | None = None,
) -> Manifest:
    """Write the index of *source* into *target*, whole or not at all. ShardError names the damaged shards."""
    findings = Findings()
    for finding in source.findings:
        findings.take(finding)
    with IndexWriter(
        target, prefix, format=source.format, columns=source.columns, parts=source.parts, scratch=scratch
    ) as writer:
        samples = 0
        for shard in source.shards():
            for finding in shard.findings:
                findings.take(finding)
            samples += writer.add_shard(shard.ref, shard.samples, objects=shard.objects)
        found = findings.all()
        _refuse(found, damaged, samples)
        return writer.commit(classes=source.classes, extra={**(extra or {}), "findings": plain_findings(found)})


def _refuse(findings: tuple[Finding, ...], damaged: Damaged, samples: int) -> None:
    errors = [finding for finding in findings if finding.severity == "error"]
    if errors and damaged == "refuse":
        more = sum(finding.count for finding in errors) - 1
        raise ShardError(
            f"{errors[0].where}: {errors[0].message}" + (f" (and {more} more errors)" if more else ""),
            "`stoker index URL --check` lists all that is wrong",
        )
    if not samples:
        passed = ", ".join(f"{finding.where}: {finding.message}" for finding in findings[:3])
        raise ShardError(f"the dataset has no samples{f': {passed}' if passed else ''}", "check the URL and the format")


def plain_findings(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    """Findings as JSON can hold them."""
    return [asdict(finding) for finding in findings]
