"""An MDS dataset as a source of shards: index.json says which there are; what it says of each is compared with it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from stoker.errors import MissingExtraError, ShardError, UsageError
from stoker.flow import Progress, parallel_map
from stoker.format import Finding, Findings, RangeReader, ShardScan
from stoker.format.limits import MDS_INDEX_BYTES_MAX
from stoker.format.mds import MDS, scan_mds
from stoker.format.mds_index import INDEX_NAME, Hasher, MDSShard, hasher, read_index
from stoker.index.scan import CHUNK_BYTES, SKIP_BYTES_MIN_LOCAL, FileReader, Scanned, scan_shard
from stoker.index.source import Shard
from stoker.machine import scratch_folder
from stoker.store.base import ObjectInfo, Store


@dataclass(frozen=True, slots=True)
class MDSSource:
    """The shards that index.json names and the store has."""

    store: Store
    named: Sequence[tuple[MDSShard, ObjectInfo, str]]
    """What index.json says, the object that is taken, and how that is compressed."""
    findings: tuple[Finding, ...]
    """What index.json and the listing alone tell."""
    workers: int
    scratch: Path | None
    progress: Progress
    format: str = "mds"
    parts: tuple[str, ...] = MDS.parts
    columns: Mapping[str, type] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None

    def shards(self) -> Iterator[Shard]:
        """Every shard in the order of index.json."""
        done_bytes = 0
        for done, scanned in enumerate(parallel_map(self._scan, self.named, workers=self.workers), 1):
            done_bytes += scanned.ref.size
            self.progress(done, len(self.named), done_bytes)
            yield Shard(scanned.ref, scanned.scan.samples, scanned.scan.findings)

    def _scan(self, named: tuple[MDSShard, ObjectInfo, str]) -> Scanned:
        shard, info, compressed = named
        kind = _Described(shard, self.scratch)
        return scan_shard(self.store, info, kind, scratch=self.scratch, compressed=compressed)


class _Described(MDS):
    """The format of one shard, of which index.json has told something already."""

    def __init__(self, shard: MDSShard, scratch: Path | None) -> None:
        self._shard = shard
        self._scratch = scratch

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        if not self._shard.hashes:
            return self._scan(reader, skip_bytes_min, ())
        if skip_bytes_min <= SKIP_BYTES_MIN_LOCAL:
            return self._scan(reader, skip_bytes_min, self._verify(reader, None))
        with tempfile.TemporaryFile(dir=self._scratch or scratch_folder()) as file:  # so that it is fetched once
            findings = self._verify(reader, file)
            return self._scan(FileReader(reader.key, file, reader.size), SKIP_BYTES_MIN_LOCAL, findings)

    def _scan(self, reader: RangeReader, skip_bytes_min: int, more: tuple[Finding, ...]) -> ShardScan:
        shard, found = self._shard, Findings()
        if reader.size != shard.raw_bytes:
            message = f"index.json says {shard.raw_bytes} bytes, the shard has {reader.size}"
            found.add("shard-size", "error", reader.key, message)
        scan = scan_mds(reader, skip_bytes_min=skip_bytes_min, columns=shard.columns, samples=shard.samples)
        return ShardScan(scan.samples, (*more, *found.all(), *scan.findings))

    def _verify(self, reader: RangeReader, copy: BinaryIO | None) -> tuple[Finding, ...]:
        """Read all of the shard and compare its hashes, writing it to *copy* on the way."""
        findings = Findings()
        hashers = self._hashers(reader.key, findings)
        for start in range(0, reader.size, CHUNK_BYTES):
            piece = reader.read(start, min(start + CHUNK_BYTES, reader.size))
            for one in hashers.values():
                one.update(piece)
            if copy is not None:
                copy.write(piece)
        for name, one in hashers.items():
            if one.hexdigest() != self._shard.hashes[name].lower():
                message = f"{name} {one.hexdigest()}, index.json says {self._shard.hashes[name]}"
                findings.add("wrong-hash", "error", reader.key, message)
        return findings.all()

    def _hashers(self, key: str, findings: Findings) -> dict[str, Hasher]:
        hashers = {}
        for name in self._shard.hashes:
            try:
                hashers[name] = hasher(name)
            except (UsageError, MissingExtraError) as error:
                message = f"not compared: {error.message}" + (f"; {error.hint}" if error.hint else "")
                findings.add("unchecked-hash", "warning", key, message)
        return hashers


def find_index(store: Store, listed: Sequence[ObjectInfo]) -> ObjectInfo:
    """The index.json of the dataset: at its root, else the only one there is. ShardError when there is none."""
    found = sorted((info for info in listed if info.key.rpartition("/")[2] == INDEX_NAME), key=lambda info: info.key)
    root = [info for info in found if info.key == INDEX_NAME]
    if root or len(found) == 1:
        return (root or found)[0]
    if found:
        names = ", ".join(info.key for info in found[:5])
        raise UsageError(f"{store.url}: {len(found)} datasets, each with its {INDEX_NAME}: {names}", "open one of them")
    raise ShardError(
        f"{store.url}: MDS shards, but no {INDEX_NAME} that says which belong to the dataset",
        f"bring {INDEX_NAME}, or name the shards (a brace pattern) to read them by what they say of themselves",
    )


def mds_source(
    store: Store, listed: Sequence[ObjectInfo], *, workers: int, scratch: Path | None, progress: Progress
) -> MDSSource:
    """The dataset that index.json describes. Of a shard kept both ways the uncompressed file is taken."""
    info = find_index(store, listed)
    if info.size > MDS_INDEX_BYTES_MAX:
        raise ShardError(f"{store.url}: {info.key}: {info.size} bytes, at most {MDS_INDEX_BYTES_MAX} are allowed")
    findings = Findings()
    shards = read_index(store.get(info.key, version=info.version), f"{store.url}: {info.key}", findings)
    folder, objects = info.key[: -len(INDEX_NAME)], {info.key: info for info in listed}
    named = []
    for shard in shards:
        raw, packed = objects.get(folder + shard.raw), objects.get(folder + shard.packed)
        if shard.packed and packed is not None and (raw is None or raw == packed):
            named.append((shard, packed, shard.compression))
        elif raw is not None:
            named.append((shard, raw, ""))
        else:
            message = f"{INDEX_NAME} names it, the store does not have it ({shard.samples} samples)"
            findings.add("missing-shard", "error", folder + (shard.packed or shard.raw), message)
    known = {folder + name for shard in shards for name in (shard.raw, shard.packed)}
    for key in sorted(key for key in objects if MDS().owns(key) and key not in known):
        findings.add("unlisted-shard", "warning", key, f"passed over: {INDEX_NAME} does not name it")
    return MDSSource(store, named, findings.all(), workers, scratch, progress)
