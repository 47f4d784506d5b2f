"""What a checkpoint consists of, as values and as JSON: the one document that everything else is checked against.

`MANIFEST.json` names every file with its length and CRC32C; `COMMITTED` holds the BLAKE3 digest of the manifest's bytes
and the checkpoint's own name. So a marker that was forged, copied from elsewhere or torn does not fit, and a file of
another step, even of the same length, does not either. Everything read here may be hostile: limits and types are
checked before anything is used.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from blake3 import blake3

from stoker.checkpoint.names import Attempt
from stoker.errors import CheckpointError

VERSION = 1
MANIFEST_BYTES_MAX = 64 << 20
MARKER_BYTES_MAX = 4096
FILES_MAX = 1_000_000
NAME_CHARACTERS_MAX = 200


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file of a checkpoint."""

    name: str
    """Relative to the checkpoint's folder, separated by "/"."""
    size: int
    crc32c: int
    rank: int
    """The rank that wrote it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """All that is known about a checkpoint without reading its data."""

    attempt: str
    step: int
    number: int
    run: str
    """Identity of the training run, kept over restarts."""
    lineage: str
    """Changes when training goes back to an older checkpoint: steps of two lineages are not comparable."""
    parent: str | None
    """The checkpoint that training went on from."""
    world_size: int
    created_s: float
    """Seconds since the Unix epoch, by the coordinator's clock: for people, never for order."""
    torch: str
    files: tuple[FileEntry, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files)

    def to_json(self) -> bytes:
        """The bytes of `MANIFEST.json`."""
        return json.dumps({"version": VERSION, **asdict(self)}, indent=1, sort_keys=True).encode() + b"\n"

    @staticmethod
    def from_json(data: bytes, where: str) -> Manifest:
        """The manifest of those bytes, or CheckpointError saying what is wrong with them."""
        table = _object(data, where, MANIFEST_BYTES_MAX)
        if table.get("version") != VERSION:
            raise CheckpointError(f"{where}: version {table.get('version')!r}, expected {VERSION}")
        try:
            manifest = Manifest(
                attempt=_text(table["attempt"]), step=_count(table["step"]), number=_count(table["number"]),
                run=_text(table["run"]), lineage=_text(table["lineage"]),
                parent=None if table["parent"] is None else _text(table["parent"]),
                world_size=_count(table["world_size"]), created_s=_number(table["created_s"]),
                torch=_text(table["torch"]), files=tuple(_entry(row) for row in _rows(table["files"])),
                metrics={_text(name): _number(value) for name, value in table["metrics"].items()},
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CheckpointError(f"{where}: not a manifest: {type(error).__name__}: {error}") from None
        manifest._check(where)
        return manifest

    def _check(self, where: str) -> None:
        found = Attempt.parse(self.attempt)
        if found is None or (found.step, found.number) != (self.step, self.number):
            raise CheckpointError(f"{where}: the name {self.attempt!r} does not fit step {self.step}, {self.number}")
        names = [entry.name for entry in self.files]
        if len(set(names)) != len(names):
            raise CheckpointError(f"{where}: a file is listed twice")
        for entry in self.files:
            parts = entry.name.split("/")
            if len(entry.name) > NAME_CHARACTERS_MAX or any(part in ("", ".", "..") for part in parts):
                raise CheckpointError(f"{where}: {entry.name!r} is no usable file name")


@dataclass(frozen=True, slots=True)
class Marker:
    """What `COMMITTED` and `VERIFIED` hold."""

    attempt: str
    manifest_blake3: str

    @staticmethod
    def of(attempt: str, manifest: bytes) -> Marker:
        """The marker that fits a manifest's bytes."""
        return Marker(attempt, str(blake3(manifest).hexdigest()))

    def to_json(self) -> bytes:
        """The bytes of the marker."""
        return json.dumps({"version": VERSION, **asdict(self)}, sort_keys=True).encode() + b"\n"

    @staticmethod
    def from_json(data: bytes, where: str) -> Marker:
        """The marker of those bytes, or CheckpointError."""
        table = _object(data, where, MARKER_BYTES_MAX)
        try:
            return Marker(_text(table["attempt"]), _text(table["manifest_blake3"]))
        except (KeyError, TypeError) as error:
            raise CheckpointError(f"{where}: not a marker: {type(error).__name__}: {error}") from None


def checked(attempt: str, marker: bytes, manifest: bytes, where: str) -> Manifest:
    """The manifest, if the marker fits it and both belong to the folder called *attempt*; else CheckpointError."""
    promised, found = Marker.from_json(marker, f"{where}/COMMITTED"), Marker.of(attempt, manifest)
    if promised != found:
        raise CheckpointError(
            f"{where}: COMMITTED belongs to {promised.attempt} with manifest {promised.manifest_blake3[:16]}…, "
            f"found {found.attempt} with {found.manifest_blake3[:16]}…"
        )
    read = Manifest.from_json(manifest, f"{where}/MANIFEST.json")
    if read.attempt != attempt:
        raise CheckpointError(f"{where}: the manifest belongs to {read.attempt}")
    return read


def entries_to_json(entries: Sequence[FileEntry]) -> bytes:
    """The bytes of one rank's part of the manifest."""
    return json.dumps({"version": VERSION, "files": [asdict(entry) for entry in entries]}, sort_keys=True).encode()


def entries_from_json(data: bytes, where: str) -> list[FileEntry]:
    """The entries of one rank's part, or CheckpointError."""
    table = _object(data, where, MANIFEST_BYTES_MAX)
    try:
        return [_entry(row) for row in _rows(table["files"])]
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{where}: not a rank's manifest: {type(error).__name__}: {error}") from None


def _object(data: bytes, where: str, bytes_max: int) -> dict[str, Any]:
    if len(data) > bytes_max:
        raise CheckpointError(f"{where}: {len(data)} bytes, at most {bytes_max} are allowed")
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{where}: not JSON: {error}") from None
    if not isinstance(table, dict):
        raise CheckpointError(f"{where}: expected a JSON object, found {type(table).__name__}")
    return table


def _rows(value: object) -> list[Any]:
    if not isinstance(value, list) or len(value) > FILES_MAX:
        raise TypeError(f"files must be a list of at most {FILES_MAX}")
    return value


def _entry(row: Any) -> FileEntry:
    return FileEntry(_text(row["name"]), _count(row["size"]), _count(row["crc32c"]), _count(row["rank"]))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {value!r:.80}")
    return value


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise TypeError(f"expected a count, found {value!r:.80}")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"expected a finite number, found {value!r:.80}")
    return float(value)
