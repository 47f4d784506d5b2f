"""What a pack remembers beside the shards while it runs, so that it can be killed on any line and go on.

    _stoker/packing.json       the job: its options and its source; written first, deleted last
    _stoker/part-00000.json    a shard is in place: its object, its samples, what was left out; written after the shard
    _stoker/manifest.json      the index is whole (`stoker.index`): the pack is done, the other files may go

A part is believed only if its shard lies there with the size that it names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from stoker.errors import NotFoundError, ShardError, UsageError
from stoker.format import STOKER_FOLDER, FieldPlace, Finding, SampleEntry
from stoker.index import Manifest, ObjectRef
from stoker.index.build import JOB_KEY, MANIFEST_KEY
from stoker.store import Store

PART_PREFIX = f"{STOKER_FOLDER}/part-"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One shard that is in place."""

    shard: ObjectRef | None
    """None when no sample was left for it: then there is no such object."""
    samples: tuple[SampleEntry, ...]
    findings: tuple[Finding, ...]
    """The samples that were left out, and why."""

    def to_json(self) -> bytes:
        """The same bytes for the same part."""
        samples = [
            [sample.key, [_plain(place) for place in sample.fields], dict(sample.columns)] for sample in self.samples
        ]
        shard = None if self.shard is None else asdict(self.shard)
        return json.dumps(
            {"version": VERSION, "shard": shard, "samples": samples, "findings": [asdict(f) for f in self.findings]},
            separators=(",", ":"),
        ).encode()

    @classmethod
    def from_json(cls, data: bytes) -> Part:
        """ValueError, TypeError, KeyError or LookupError when the bytes are no part."""
        read = json.loads(data)
        if read["version"] != VERSION:
            raise ValueError(f"version {read['version']!r}")
        samples = tuple(
            SampleEntry(key, tuple(FieldPlace(*place) for place in places), columns)
            for key, places, columns in read["samples"]
        )
        shard = None if read["shard"] is None else ObjectRef(**read["shard"])
        return cls(shard, samples, tuple(Finding(**finding) for finding in read["findings"]))


def _plain(place: FieldPlace) -> list[Any]:
    """The place without its object, which is the shard; codec and row only where a format has them."""
    more = [place.codec, place.row] if place.codec or place.row >= 0 else []
    return [place.name, place.offset, place.length, *more]


class Journal:
    """The journal of one job in its target."""

    def __init__(self, store: Store, job: Mapping[str, Any]) -> None:
        self._store = store
        self._job = dict(job)
        self._sizes: dict[str, int] = {}

    def open(self) -> Manifest | None:
        """Begin the job, or go on with it; gives the manifest when it is finished already.

        UsageError when the target holds another job, or something else.
        """
        self._sizes = {info.key: info.size for info in self._store.list()}
        if MANIFEST_KEY in self._sizes:
            manifest = Manifest.from_json(self._store.get(MANIFEST_KEY), f"{self._store.url}/{MANIFEST_KEY}")
            self._compare(manifest.extra.get("pack"), "finished")
            return manifest
        if JOB_KEY in self._sizes:
            self._compare(self._read_job(), "begun")
        elif self._sizes:
            raise UsageError(
                f"{self._store.url} is not empty: {len(self._sizes)} objects, as {next(iter(self._sizes))}",
                "pack into a new folder or prefix",
            )
        else:
            self._store.put(JOB_KEY, json.dumps(self._job, indent=1).encode())
        return None

    def _read_job(self) -> object:
        try:
            return json.loads(self._store.get(JOB_KEY))
        except ValueError as error:
            raise ShardError(
                f"{self._store.url}/{JOB_KEY}: damaged: {error}", "delete the target and pack again"
            ) from error

    def _compare(self, found: object, state: str) -> None:
        if found == self._job:
            return
        if not isinstance(found, dict):
            raise UsageError(f"{self._store.url} holds a dataset that no pack made", "pack into a new folder or prefix")
        names = [name for name in {**self._job, **found} if found.get(name) != self._job.get(name)]
        told = "; ".join(f"{name}: there {found.get(name)!r}, here {self._job.get(name)!r}" for name in names)
        raise UsageError(
            f"{self._store.url}: a pack with other options or another source was {state} there ({told})",
            "use the same options and an unchanged source, or pack into a new folder or prefix",
        )

    def part(self, number: int) -> Part | None:
        """The part of shard *number*, if it and its shard are in place."""
        key = self._part_key(number)
        if key not in self._sizes:
            return None
        try:
            part = Part.from_json(self._store.get(key))
        except (NotFoundError, ValueError, TypeError, LookupError):
            return None
        in_place = part.shard is None or self._sizes.get(part.shard.key) == part.shard.size
        return part if in_place else None

    def keep(self, number: int, part: Part) -> None:
        """Write down that a shard is in place."""
        self._store.put(self._part_key(number), part.to_json())

    def close(self) -> None:
        """The manifest is in place: delete the journal, its first file last."""
        keys = [info.key for info in self._store.list(PART_PREFIX)]
        for key in (*keys, JOB_KEY):
            self._store.delete(key)

    def _part_key(self, number: int) -> str:
        return f"{PART_PREFIX}{number:05d}.json"
