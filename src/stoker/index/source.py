"""What an index is built from: shards with their samples, in order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from stoker.format import Finding, SampleEntry
from stoker.index.entry import ObjectRef


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard with its samples, on the way into an index."""

    ref: ObjectRef
    samples: Iterable[SampleEntry]
    findings: tuple[Finding, ...] = ()
    objects: Mapping[str, ObjectRef] | None = None


class Source(Protocol):
    """A dataset about to be indexed."""

    @property
    def format(self) -> str: ...

    @property
    def columns(self) -> Mapping[str, type]: ...

    @property
    def parts(self) -> tuple[str, ...]: ...

    @property
    def classes(self) -> tuple[str, ...] | None: ...

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What the listing alone tells."""
        ...

    def shards(self) -> Iterator[Shard]: ...
