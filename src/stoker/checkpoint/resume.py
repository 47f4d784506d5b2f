"""Which checkpoint to go on from: the newest that is complete, right, and has all that is wanted, on whatever tier it
lies.

The ranks go through the candidates together, newest first. For each: every disk's leader makes sure that the files are
there and right (a missing or damaged one is fetched from a remote), every rank checks that its tensors are covered, and
only when all agree does the first live tensor change. What is passed over is said, with the reason: nothing is silently
older than it could be. When a tier cannot be looked at and no other has a candidate, that is an error, not a fresh
start.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker import machine
from stoker.checkpoint import disk
from stoker.checkpoint.manifest import FileEntry, Manifest, Marker
from stoker.checkpoint.names import COMMITTED, DAMAGED, MANIFEST, NODE, OWNER, VERIFIED, Attempt
from stoker.checkpoint.peers import Peers, Place
from stoker.checkpoint.tier import Seen, Tier
from stoker.errors import CheckpointError, StokerError
from stoker.flow import parallel_map

_log = logging.getLogger("stoker.checkpoint")
VERIFY_S_MAX = 7200.0
"""Seconds that one candidate may take to fetch and verify on the slowest node."""


@dataclass(frozen=True, slots=True)
class Found:
    """What lies on all tiers."""

    manifests: tuple[Manifest, ...]
    """Every complete checkpoint, newest first."""
    troubles: tuple[str, ...]
    """Tiers that could not be looked at."""
    passed_over: tuple[str, ...]
    """Committed ones that are not complete, with the reason."""
    number_max: int
    """The highest number of any attempt, whole or not."""


def look(tiers: Sequence[Tier]) -> Found:
    """Look at all tiers."""
    manifests: dict[Attempt, Manifest] = {}
    troubles, passed = [], []
    numbers = [-1]
    for tier in tiers:
        try:
            seen = tier.look()
        except StokerError as error:
            troubles.append(error.message)
            continue
        numbers += [one.attempt.number for one in seen]
        for one in seen:
            if one.manifest is not None:
                manifests[one.attempt] = one.manifest
            elif one.committed:
                passed.append(str(one.fault))
    newest_first = tuple(manifests[attempt] for attempt in sorted(manifests, reverse=True))
    return Found(newest_first, tuple(troubles), tuple(passed), max(numbers))


def ensure_local(local: Tier, remotes: Sequence[Tier], manifest: Manifest) -> Path:
    """The folder with all of a checkpoint's files, right: verified where they lie, else fetched. CheckpointError."""
    name = manifest.attempt
    seen = {one.name: one for one in local.look()}.get(name)
    bad, reasons, damaged = _bad_files(local, seen, manifest)
    assert local.root is not None
    if not bad and seen is not None and seen.manifest is not None and NODE not in seen.sizes:
        if VERIFIED not in seen.sizes:
            _mark_quietly(local, name, VERIFIED, Marker.of(name, manifest.to_json()).to_json())
        return local.root / name
    for remote in remotes:
        try:
            if not any(one.name == name and one.manifest is not None for one in remote.look()):
                continue
            if remote.root is not None:  # a shared file system: read there, nothing to fetch
                faults = list(remote.faults(manifest))
                if not faults:
                    return remote.root / name
                reasons += [fault.words for fault in faults]
                continue
            fetch(remote, local, manifest, bad)
            return local.root / name
        except (StokerError, OSError) as error:
            reasons.append(getattr(error, "message", str(error)))
    if damaged:
        _mark_quietly(local, name, DAMAGED, "; ".join(reasons).encode())
    raise CheckpointError(f"{name}: " + ("; ".join(reasons) or "its files are on no tier"))


def _bad_files(local: Tier, seen: Seen | None, manifest: Manifest) -> tuple[list[FileEntry], list[str], bool]:
    """The files that are not here or not right, why, and whether some are proven to be damaged."""
    if seen is None:
        return list(manifest.files), [], False
    damaged = False
    here = [entry for entry in manifest.files if seen.sizes.get(entry.name) == entry.size]
    bad = [entry for entry in manifest.files if entry not in here]
    reasons = [f"{local.url}/{seen.name}: {seen.fault}"] if seen.fault else []
    for entry in here:
        for fault in local.faults(replace(manifest, files=(entry,))):
            bad.append(entry)
            reasons.append(fault.words)
            damaged |= fault.differs
    return bad, reasons, damaged


def _mark_quietly(local: Tier, name: str, mark: str, data: bytes) -> None:
    try:
        local.mark(name, mark, data)
    except OSError as error:
        _log.debug("stoker: %s cannot be marked: %s", name, error)  # a read-only mount serves as well


def fetch(remote: Tier, local: Tier, manifest: Manifest, wanted: Sequence[FileEntry]) -> None:
    """Bring files of a checkpoint from a remote into the local tier, each compared; the marker last, like a save."""
    assert local.root is not None
    folder = local.root / manifest.attempt
    disk.make_root(local.root)
    disk.check_room(local.root, sum(entry.size for entry in wanted))
    disk.make_folder(folder)
    owner = folder / f"{OWNER}.fetch"
    disk.write_named(owner, machine.owner_token().encode())  # nobody sweeps it meanwhile
    try:
        _fetch(remote, local, folder, manifest, wanted)
    except (StokerError, OSError):
        with contextlib.suppress(OSError):
            disk.remove(owner)  # the janitor may have it: what is there must not keep a full disk full
        raise


def _fetch(remote: Tier, local: Tier, folder: Path, manifest: Manifest, wanted: Sequence[FileEntry]) -> None:
    for mark in (COMMITTED, VERIFIED, DAMAGED, NODE):
        if (folder / mark).exists():
            disk.remove(folder / mark)
    for entry in wanted:
        for parent in reversed(Path(entry.name).parents[:-1]):
            disk.make_folder(folder / parent)

    def one(entry: FileEntry) -> None:
        data = remote.store.get(f"{manifest.attempt}/{entry.name}")
        if len(data) != entry.size or disk.crc32c(data) != entry.crc32c:
            raise CheckpointError(f"{remote.url}/{manifest.attempt}/{entry.name}: is not what was saved")
        disk.write_small(folder / entry.name, data)

    for _ in parallel_map(one, wanted, workers=4):
        pass
    for entry in wanted:
        disk.sync_folder((folder / entry.name).parent)
    data = manifest.to_json()
    disk.write_named(folder / MANIFEST, data)
    disk.write_named(folder / COMMITTED, Marker.of(manifest.attempt, data).to_json())
    local.mark_verified(manifest)


Check = Callable[[Path, Manifest], list[str]]
"""Opens a verified checkpoint and says why it cannot be loaded here; an empty list when it can."""


def choose(
    peers: Peers, place: Place, local: Tier, remotes: Sequence[Tier], *, step: int | None, check: Check,
    topic: str,
) -> tuple[Path, Manifest] | None:  # fmt: skip
    """The checkpoint to load and the folder to load it from, agreed on by all ranks. None when there is none at all.

    CheckpointError when there are some but none can be used, or a tier does not answer and the others have none.
    """
    found = look([local, *remotes]) if place.leader == peers.rank else Found((), (), (), -1)
    told = peers.gather(f"{topic}/found", found, VERIFY_S_MAX)
    every = peers.spread(f"{topic}/candidates", _merged(told), VERIFY_S_MAX)
    for line in (*every.troubles, *every.passed_over):
        _log.warning("stoker: resume: %s", line)
    candidates = [one for one in every.manifests if step is None or one.step == step]
    refused = []
    for candidate in candidates:
        folder, reason = _try(peers, place, local, remotes, candidate, check, f"{topic}/{candidate.attempt}")
        if folder is not None:
            return folder, candidate
        _log.warning("stoker: resume: %s is passed over: %s", candidate.attempt, reason)
        refused.append(f"{candidate.attempt}: {reason}")
    reasons = [*refused, *every.troubles, *every.passed_over]
    if step is not None and not candidates:
        raise CheckpointError(
            f"{local.url}: there is no complete checkpoint of step {step}", "see `stoker checkpoint ls`"
        )
    if reasons:
        raise CheckpointError(
            "no checkpoint can be used, though there is at least one, or a tier does not answer:\n  "
            + "\n  ".join(reasons),
            "nothing was changed; to start afresh, use another folder",
        )
    return None


def _merged(told: Sequence[Found]) -> Found:
    """What all leaders found."""
    manifests = {Attempt.parse(one.attempt): one for found in told for one in found.manifests}
    ordered = sorted(((key, one) for key, one in manifests.items() if key is not None), key=lambda pair: pair[0])
    return Found(
        tuple(one for _, one in reversed(ordered)),
        tuple(sorted({line for found in told for line in found.troubles})),
        tuple(sorted({line for found in told for line in found.passed_over})),
        max((found.number_max for found in told), default=-1),
    )


def _try(
    peers: Peers, place: Place, local: Tier, remotes: Sequence[Tier], candidate: Manifest, check: Check,
    topic: str,
) -> tuple[Path | None, str]:  # fmt: skip
    """The folder to load a candidate from, or why it cannot be loaded; the same verdict on every rank."""
    vote: tuple[str, object] = ("ok", None)
    if place.leader == peers.rank:
        try:
            vote = ("ok", (place.ranks, ensure_local(local, remotes, candidate)))
        except CheckpointError as error:
            vote = ("failed", error.message)
    votes = peers.gather(f"{topic}/files", vote, VERIFY_S_MAX)
    verdict = peers.spread(f"{topic}/files", votes, VERIFY_S_MAX)
    reason = next((str(value) for kind, value in verdict if kind == "failed"), None)
    if reason is not None:
        return None, reason
    folder = next(value[1] for _, value in verdict if value is not None and peers.rank in value[0])
    try:
        faults = check(folder, candidate)
    except CheckpointError as error:
        faults = [error.message]
    checks = peers.gather(f"{topic}/check", faults, VERIFY_S_MAX)
    everybodys = peers.spread(f"{topic}/check", sorted({line for lines in checks for line in lines}), VERIFY_S_MAX)
    return (None, "; ".join(everybodys)) if everybodys else (folder, "")


@contextlib.contextmanager
def untouched(state: Mapping[str, Any]) -> Iterator[None]:
    """Optimizers without a state, and gradients, are as they were when the block fails: to learn what an optimizer's
    state consists of, torch makes one up in the optimizer itself."""
    fresh = [one for one in state.values() if hasattr(one, "register_step_pre_hook") and not one.state]
    stepped = [one for optimizer in fresh for group in optimizer.param_groups for one in group["params"]]
    gradients = [(one, one.grad) for one in stepped if one.grad is not None]
    chosen = False
    try:
        yield
        chosen = True
    finally:
        if not chosen:
            for optimizer in fresh:
                optimizer.state.clear()
            for parameter, gradient in gradients:
                parameter.grad = gradient
