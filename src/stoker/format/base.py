"""The contract of a format: what the bytes of one shard mean, found by as few range reads as the format allows.

Rules that hold for every format (FormatSuite checks them):
1. A scan gives what is whole, and findings that say what is not: it never raises for damaged content, so that a salvage
   is possible. Who wants to refuse damage looks for a finding of severity "error" (the index does).
2. No length that the shard declares is believed before it is compared with the size of the object.
3. A shard that was cut anywhere has an error among its findings; junk behind its end has at least a warning.
4. A writer's output depends on its input only: no time, no user, no machine in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from stoker.format.limits import FINDINGS_KEPT_PER_CODE_MAX

Severity = Literal["error", "warning", "notice"]
ColumnValue = int | float | str | bool | None


class RangeReader(Protocol):
    """One object, or the expanded bytes of one, that can be read by ranges."""

    @property
    def key(self) -> str:
        """Names the object in errors and findings."""
        ...

    @property
    def size(self) -> int:
        """Bytes that can be read."""
        ...

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), exactly that many; never asked beyond `size`."""
        ...


@dataclass(frozen=True, slots=True)
class FieldPlace:
    """Where one field of a sample lies in its shard (or, for raw files, which object it is)."""

    name: str
    offset: int
    """First byte, counted in the expanded shard."""
    length: int
    codec: str = ""
    row: int = -1
    object: str = ""
    """Key of the object, for formats whose fields are objects of their own; "" means the shard."""


@dataclass(frozen=True, slots=True)
class SampleEntry:
    """One sample as a scan found it."""

    key: str
    fields: tuple[FieldPlace, ...]
    columns: Mapping[str, ColumnValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person should know about a shard."""

    code: str
    severity: Severity
    where: str
    """The shard's key, with "@offset" or ":member" when one place is meant."""
    message: str
    count: int = 1
    """How often; more than 1 when only the first place of many is named."""


@dataclass(frozen=True, slots=True)
class ShardScan:
    """What a shard holds."""

    samples: Sequence[SampleEntry]
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the shard unfit for use as it is."""
        return tuple(finding for finding in self.findings if finding.severity == "error")


class Findings:
    """Collects findings in bounded memory: the first of each code word for word, the others counted."""

    def __init__(self, kept_per_code_max: int = FINDINGS_KEPT_PER_CODE_MAX) -> None:
        self._kept_max = kept_per_code_max
        self._by_code: dict[str, list[Finding]] = {}

    def add(self, code: str, severity: Severity, where: str, message: str) -> None:
        self.take(Finding(code, severity, where, message))

    def take(self, finding: Finding) -> None:
        kept = self._by_code.setdefault(finding.code, [])
        if len(kept) < self._kept_max:
            kept.append(finding)
        else:
            kept[-1] = replace(kept[-1], count=kept[-1].count + finding.count)

    def all(self) -> tuple[Finding, ...]:
        """Worst first, then in the order of their coming."""
        order: tuple[Severity, ...] = ("error", "warning", "notice")
        every = [finding for kept in self._by_code.values() for finding in kept]
        return tuple(sorted(every, key=lambda finding: order.index(finding.severity)))


class Format(Protocol):
    """A way to keep many samples in one object."""

    @property
    def name(self) -> str: ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Which of "codec", "row", "object" the places of its fields use."""
        ...

    def owns(self, key: str) -> bool:
        """Whether an object of that name claims to be a shard of this format."""
        ...

    def compression(self, head: bytes) -> str:
        """What a shard that begins with *head* is compressed with as a whole; "" when it is not."""
        ...

    def scan(self, reader: RangeReader, *, skip_bytes_min: int) -> ShardScan:
        """All samples of the shard. A gap of at least *skip_bytes_min* between what is needed is skipped, not read."""
        ...


class ShardWriter(Protocol):
    """Writes one shard; dead after its first error."""

    def add(self, key: str, fields: Mapping[str, bytes]) -> tuple[FieldPlace, ...]:
        """Append a sample; gives where each field will lie."""
        ...

    def close(self) -> int:
        """Write the end; gives the bytes of the shard as stored."""
        ...
