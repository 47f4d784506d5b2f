"""One place that holds checkpoints, seen through its store: what is there, what is whole, what is right.

Nothing but manifests is remembered from earlier looks: a restart and another machine see the same. "Complete" means
that the marker fits the manifest and every file is there with its length; "right" that every byte was read and its sum
compared.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stoker import machine
from stoker.checkpoint import disk
from stoker.checkpoint.manifest import MANIFEST_BYTES_MAX, FileEntry, Manifest, Marker, checked
from stoker.checkpoint.names import COMMITTED, DAMAGED, MANIFEST, NODE, OWNER, PINNED, READER, VERIFIED, Attempt
from stoker.checkpoint.retention import Held
from stoker.errors import CheckpointError, NotFoundError, StoreError, UsageError
from stoker.flow import parallel_map
from stoker.store import ByteRange, HasPaths, ObjectInfo, Store, innermost

PIECE_BYTES = 8 << 20
PIECES_AT_ONCE = 4
FILES_AT_ONCE = 4
LISTS_MAX = 100
"""How often a folder is listed in which others delete at the same time: each turn finds fewer to trip over."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An attempt as it lies on a tier."""

    attempt: Attempt
    sizes: Mapping[str, int]
    """Every file there, with its length."""
    manifest: Manifest | None
    """None unless it is complete."""
    fault: str | None
    """Why it is not complete; None when it is."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.attempt.name

    @property
    def committed(self) -> bool:
        """Whether there is a marker, fitting or not."""
        return COMMITTED in self.sizes


@dataclass(frozen=True, slots=True)
class Fault:
    """Why a file is not what was saved."""

    words: str
    differs: bool
    """It was read, and its bytes are others: damage. Else it could not be read, which may pass."""


class Tier:
    """The checkpoints below one URL."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._known: dict[str, tuple[Mapping[str, int], Manifest]] = {}
        bottom = innermost(store)
        self.root: Path | None = bottom.path("x").parent if isinstance(bottom, HasPaths) else None

    @property
    def url(self) -> str:
        """Where it lies."""
        return self.store.url

    def look(self) -> list[Seen]:
        """Every attempt there, oldest first."""
        found: dict[Attempt, dict[str, int]] = {}
        for info in self._listed():
            folder, _, rest = info.key.partition("/")
            attempt = Attempt.parse(folder)
            if attempt is not None and rest:
                found.setdefault(attempt, {})[rest] = info.size
        if self.root is not None and self.root.is_dir():  # a folder without a file is one, too
            for path in self.root.glob("step-*"):
                attempt = Attempt.parse(path.name)
                if attempt is not None and path.is_dir():
                    found.setdefault(attempt, {})
        return [self._seen(attempt, found[attempt]) for attempt in sorted(found)]

    def _listed(self) -> list[ObjectInfo]:
        """All files. Where somebody deletes a folder of a disk while it is being listed, it is listed again."""
        for _ in range(LISTS_MAX - 1):
            with contextlib.suppress(NotFoundError):
                return list(self.store.list("step-"))
        return list(self.store.list("step-"))

    def _seen(self, attempt: Attempt, sizes: Mapping[str, int]) -> Seen:
        known = self._known.get(attempt.name)
        if known is not None and known[0] == sizes:
            return Seen(attempt, sizes, known[1], None)
        try:
            manifest = self._manifest(attempt.name, sizes)
        except NotFoundError as error:
            return Seen(attempt, sizes, None, f"gone while looked at: {error.message}")
        except CheckpointError as error:
            return Seen(attempt, sizes, None, error.message)
        except StoreError as error:
            if self.root is None:
                raise  # a remote that does not answer says nothing about a checkpoint
            return Seen(attempt, sizes, None, error.message)
        if self.root is None:  # saves two requests a checkpoint and look; no name is ever used for two checkpoints
            self._known[attempt.name] = (sizes, manifest)
        return Seen(attempt, sizes, manifest, None)

    def _manifest(self, name: str, sizes: Mapping[str, int]) -> Manifest:
        """The manifest of a complete attempt; CheckpointError says what is missing of it."""
        where = f"{self.url}/{name}"
        for needed in (COMMITTED, MANIFEST):
            if needed not in sizes:
                raise CheckpointError(f"{where}: not committed: there is no {needed}")
            if sizes[needed] > MANIFEST_BYTES_MAX:
                raise CheckpointError(f"{where}/{needed}: {sizes[needed]} bytes are too many")
        marker, data = self.store.get(f"{name}/{COMMITTED}"), self.store.get(f"{name}/{MANIFEST}")
        manifest = checked(name, marker, data, where)
        here = self._ranks_here(name, sizes)
        for entry in manifest.files:
            if sizes.get(entry.name) != entry.size and (here is None or entry.rank in here):
                found = "there is no such file" if entry.name not in sizes else f"found {sizes[entry.name]}"
                raise CheckpointError(f"{where}/{entry.name}: expected {entry.size} bytes, {found}")
        if DAMAGED in sizes:
            raise CheckpointError(f"{where}: found damaged before: see {DAMAGED} there")
        return manifest

    def _ranks_here(self, name: str, sizes: Mapping[str, int]) -> frozenset[int] | None:
        """The ranks whose files a node-local disk holds; None: of all ranks."""
        if NODE not in sizes:
            return None
        try:
            return frozenset(int(rank) for rank in json.loads(self.store.get(f"{name}/{NODE}")))
        except (ValueError, TypeError) as error:
            raise CheckpointError(f"{self.url}/{name}/{NODE}: not a list of ranks: {error}") from None

    def has_marker(self, name: str) -> bool:
        """Whether there is a marker, by asking for it: lists of some servers lag behind."""
        try:
            self.store.head(f"{name}/{COMMITTED}")
        except NotFoundError:
            return False
        return True

    def find(self, name: str) -> Seen:
        """The attempt called *name*, or the newest one of the step that *name* is. UsageError when there is none."""
        seen = self.look()
        fitting = [one for one in seen if name in (one.name, str(one.attempt.step))]
        whole = [one for one in fitting if one.manifest is not None]
        if not fitting:
            names = ", ".join(one.name for one in seen[-5:]) or "none"
            raise UsageError(f"{self.url}: no checkpoint {name!r}", f"there are: {names}")
        return (whole or fitting)[-1]

    # --- reading back ---

    def sum_of(self, name: str, entry: FileEntry) -> int:
        """The CRC32C of a file's bytes as they are now."""
        crc, batch = 0, PIECE_BYTES * PIECES_AT_ONCE
        for start in range(0, entry.size, batch):
            stops = range(start, min(entry.size, start + batch), PIECE_BYTES)
            ranges = [ByteRange(at, min(entry.size, at + PIECE_BYTES)) for at in stops]
            for piece in self.store.get_ranges(f"{name}/{entry.name}", ranges):
                crc = disk.crc32c(piece, crc)
        return crc

    def faults(self, manifest: Manifest) -> Iterator[Fault]:
        """Read every byte of a checkpoint; what is wrong with each file that is not what was saved."""

        def fault(entry: FileEntry) -> Fault | None:
            where = f"{self.url}/{manifest.attempt}/{entry.name}"
            try:
                found = self.sum_of(manifest.attempt, entry)
            except (NotFoundError, OSError) as error:
                return Fault(f"{where}: cannot be read: {getattr(error, 'message', error)}", differs=False)
            if found != entry.crc32c:
                return Fault(f"{where}: CRC32C {found:08x}, saved with {entry.crc32c:08x}", differs=True)
            return None

        yield from filter(None, parallel_map(fault, manifest.files, workers=FILES_AT_ONCE))

    # --- marks ---

    def mark(self, name: str, mark: str, data: bytes) -> None:
        """Put a small file into a checkpoint's folder."""
        if self.root is not None:
            disk.write_named(self.root / name / mark, data)
        else:
            self.store.put(f"{name}/{mark}", data)

    def mark_verified(self, manifest: Manifest) -> None:
        """Note that every byte was read back and is right."""
        self.mark(manifest.attempt, VERIFIED, Marker.of(manifest.attempt, manifest.to_json()).to_json())

    def unmark(self, name: str, mark: str) -> None:
        """Take a mark away."""
        if self.root is not None:
            disk.remove(self.root / name / mark)
            disk.sync_folder(self.root / name)
        else:
            self.store.delete(f"{name}/{mark}")

    def held(self, seen: list[Seen], *, complete_is_verified: bool) -> list[Held]:
        """The complete ones as retention sees them."""
        return [
            Held(
                one.name, one.attempt.number, one.attempt.step, one.manifest.lineage,
                verified=complete_is_verified or VERIFIED in one.sizes, pinned=PINNED in one.sizes,
                read_now=self._read_now(one),
            )
            for one in seen
            if one.manifest is not None
        ]  # fmt: skip

    def _read_now(self, seen: Seen) -> bool:
        readers = [mark for mark in seen.sizes if mark.startswith(READER)]
        return self.root is not None and any(self._lives(seen.name, mark) for mark in readers)

    def owner_lives(self, seen: Seen) -> bool:
        """Whether a process of this machine is still writing an attempt."""
        owners = [mark for mark in seen.sizes if mark.startswith(OWNER)]
        return self.root is not None and any(self._lives(seen.name, mark) for mark in owners)

    def _lives(self, name: str, mark: str) -> bool:
        try:
            return machine.owner_lives(self.store.get(f"{name}/{mark}").decode("ascii", "replace"))
        except NotFoundError:
            return False

    @contextlib.contextmanager
    def reading(self, name: str) -> Iterator[None]:
        """Keep the janitor from a local checkpoint inside the block, where the folder can be written."""
        mark = f"{READER}.{uuid.uuid4().hex[:8]}"
        leased = False
        if self.root is not None:
            with contextlib.suppress(OSError):  # a read-only mount has no janitor either
                disk.write_small(self.root / name / mark, machine.owner_token().encode())
                leased = True
        try:
            yield
        finally:
            if leased and self.root is not None:
                with contextlib.suppress(OSError):
                    disk.remove(self.root / name / mark)

    # --- the end of a checkpoint ---

    def delete(self, seen: Seen) -> None:
        """Remove an attempt, its marker first; killed anywhere, what is left is no checkpoint and is swept later."""
        if self.root is not None:
            disk.remove_attempt(self.root / seen.name, COMMITTED)
            return
        if COMMITTED in seen.sizes:
            self.store.delete(f"{seen.name}/{COMMITTED}")
        for name in seen.sizes:
            if name != COMMITTED:
                self.store.delete(f"{seen.name}/{name}")
