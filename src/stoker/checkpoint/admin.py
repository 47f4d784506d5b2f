"""What people do to checkpoints by hand: list, verify, scrub, push, pull, pin, clean up. One function for each.

All of it works beside a running training: nothing here deletes a committed checkpoint, and half-written ones only when
their writer is dead, or a newer one is complete.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stoker.checkpoint import disk
from stoker.checkpoint.keeper import connect_tier
from stoker.checkpoint.manifest import Manifest
from stoker.checkpoint.names import DAMAGED, PINNED, VERIFIED
from stoker.checkpoint.pieces import Piece, abort, open_pieces
from stoker.checkpoint.resume import ensure_local
from stoker.checkpoint.retention import Keep, to_upload
from stoker.checkpoint.tier import Fault, Seen, Tier
from stoker.checkpoint.upload import upload
from stoker.errors import CheckpointError, MissingExtraError, StoreError, UsageError, reason_of
from stoker.store import StoreOptions
from stoker.units import parse_rate

PIECES_AGE_S_MIN = 86_400.0
"""Younger pieces may belong to an upload that still runs."""


@dataclass(frozen=True, slots=True)
class Row:
    """A checkpoint, or what is left of one, on one tier."""

    url: str
    name: str
    step: int
    number: int
    state: str
    """"verified", "complete", "damaged", "incomplete" (has a marker, but files are missing) or "partial" (has none)."""
    pinned: bool
    size: int
    lineage: str | None
    created_s: float | None
    fault: str | None


def rows(tiers: Sequence[Tier]) -> list[Row]:
    """All attempts on all tiers, newest first."""
    found = [_row(tier, seen) for tier in tiers for seen in tier.look()]
    return sorted(found, key=lambda row: (-row.number, [tier.url for tier in tiers].index(row.url)))


def _row(tier: Tier, seen: Seen) -> Row:
    whole = seen.manifest
    if whole is not None:
        state = "verified" if VERIFIED in seen.sizes or tier.root is None else "complete"
    elif DAMAGED in seen.sizes:
        state = "damaged"
    else:
        state = "incomplete" if seen.committed else "partial"
    return Row(
        tier.url, seen.name, seen.attempt.step, seen.attempt.number, state, PINNED in seen.sizes,
        sum(seen.sizes.values()), whole.lineage if whole else None, whole.created_s if whole else None, seen.fault,
    )  # fmt: skip


def tier_of(url: str, rate: str | None = None, *, make: bool = False, options: StoreOptions | None = None) -> Tier:
    """The tier at a URL or path; UsageError when it is a folder that is not there, unless it may be made."""
    tier = connect_tier(url, options, parse_rate(rate) if rate is not None else None)
    if make and tier.root is not None:
        disk.make_root(tier.root)
    if tier.root is not None and not tier.root.is_dir():
        raise UsageError(f"{tier.root}: there is no such folder", "check the path")
    return tier


def chosen(tier: Tier, name: str | None) -> Seen:
    """The checkpoint of that name or step; None: the newest complete one."""
    if name is not None:
        return tier.find(name)
    whole = [seen for seen in tier.look() if seen.manifest is not None]
    if not whole:
        raise CheckpointError(f"{tier.url}: there is no complete checkpoint", "see `stoker checkpoint ls`")
    return whole[-1]


def complete_manifest(tier: Tier, seen: Seen) -> Manifest:
    """The manifest of a complete one, else CheckpointError with what is missing."""
    if seen.manifest is None:
        raise CheckpointError(seen.fault or f"{tier.url}/{seen.name}: is not complete")
    return seen.manifest


def verify(tier: Tier, seen: Seen) -> list[str]:
    """All that is wrong with one checkpoint; reads every byte, changes nothing."""
    if seen.manifest is None and DAMAGED not in seen.sizes:
        return [seen.fault or "is not complete"]
    if seen.manifest is None:
        return [f"{tier.url}/{seen.name}: marked as damaged: {tier.store.get(f'{seen.name}/{DAMAGED}').decode()[:500]}"]
    return [fault.words for fault in _faults(tier, seen, seen.manifest)]


def _faults(tier: Tier, seen: Seen, manifest: Manifest) -> list[Fault]:
    """What is wrong with the files that lie on this tier; another node may hold others."""
    here = tuple(entry for entry in manifest.files if entry.name in seen.sizes)
    return list(tier.faults(replace(manifest, files=here)))


def scrub(tier: Tier, told: Callable[[str, list[str]], None]) -> int:
    """Read every committed checkpoint of a tier back and mark what was found; how many are not right. One that is
    marked as damaged was told before."""
    damaged = 0
    for seen in tier.look():
        if seen.manifest is None:
            if seen.committed and DAMAGED not in seen.sizes:  # a file is gone or cut short
                told(seen.name, [seen.fault or "is not complete"])
                damaged += 1
            continue
        faults = _faults(tier, seen, seen.manifest)
        words = [fault.words for fault in faults]
        try:
            if any(fault.differs for fault in faults):  # what could not be read may be right
                tier.mark(seen.name, DAMAGED, "; ".join(words).encode())
            elif not faults and VERIFIED not in seen.sizes and tier.root is not None:
                tier.mark_verified(seen.manifest)
        except (OSError, StoreError) as error:  # read-only, full: what is right is right all the same
            words += [f"{tier.url}/{seen.name}: cannot be marked as damaged: {reason_of(error)}"] if faults else []
        told(seen.name, words)
        damaged += bool(faults)
    return damaged


def push(local: Tier, remote: Tier, name: str | None, keep: Keep) -> list[tuple[str, int]]:
    """Upload one checkpoint, or all that the remote must get; names and bytes sent."""
    whole = {seen.name: seen for seen in local.look() if seen.manifest is not None}
    if name is not None:
        wanted = [chosen(local, name).name]
    else:
        held = local.held(list(whole.values()), complete_is_verified=False)
        wanted = to_upload(held, remote.held(remote.look(), complete_is_verified=True), keep)
    sent = []
    for one in wanted:
        manifest = complete_manifest(local, whole.get(one) or local.find(one))
        sent.append((one, upload(local, remote, manifest).sent_bytes))
    return sent


def pull(remote: Tier, local: Tier, name: str | None) -> Path:
    """Bring one checkpoint, by default the newest complete, to a local tier, verified; its folder."""
    seen = chosen(remote, name)
    return ensure_local(local, [_fetched(remote)], complete_manifest(remote, seen))


def _fetched(remote: Tier) -> Tier:
    """The same remote, from which files are copied even when it is a folder."""
    plain = Tier(remote.store)
    plain.root = None
    return plain


def pin(tier: Tier, seen: Seen, *, pinned: bool) -> None:
    """Keep a checkpoint for ever on that tier, or no longer. CheckpointError for one that is not complete: it would be
    kept for nothing, or swept all the same."""
    if pinned:
        complete_manifest(tier, seen)
        tier.mark(seen.name, PINNED, b"")
    elif PINNED in seen.sizes:
        tier.unmark(seen.name, PINNED)


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What a clean-up found."""

    partial: tuple[str, ...]
    """Half-written checkpoints whose writer is dead, or that a newer one has overtaken."""
    pieces: tuple[Piece, ...]
    """Uploads in parts that were never finished: they cost money and no list shows them."""
    pieces_unknown: str | None
    """Why pieces could not be looked for."""


def clean(tier: Tier, *, age_s: float = PIECES_AGE_S_MIN, dry: bool, options: StoreOptions | None = None) -> Cleaned:
    """Remove what nobody will finish; with *dry* only tell."""
    seen = tier.look()
    newest = max((one.attempt.number for one in seen if one.manifest is not None), default=-1)
    dead = [
        one
        for one in seen
        if not one.committed and not tier.owner_lives(one) and (tier.root is not None or one.attempt.number < newest)
    ]
    unknown = None
    pieces: list[Piece] = []
    try:
        pieces = open_pieces(tier.url, age_s=age_s, options=options)
    except (UsageError, MissingExtraError) as error:
        unknown = error.message
    if not dry:
        for one in dead:
            tier.delete(one)
        abort(tier.url, pieces, options=options)
    return Cleaned(tuple(one.name for one in dead), tuple(pieces), unknown)


def measured(run_log: Path) -> tuple[float, float]:
    """Median seconds that a save blocked, and until it was durable, from a run log's checkpoint lines."""
    blocked, durable = [], []
    try:
        lines = run_log.read_text("utf-8", "replace").splitlines()
    except OSError as error:
        raise UsageError(f"{run_log}: cannot be read: {error.strerror}", "give a file that a run wrote") from None
    for line in lines:
        try:
            found: Any = json.loads(line)
            if isinstance(found, dict) and found.get("event") == "checkpoint_committed":
                both = float(found["blocked_s"]), float(found["durable_s"])
                blocked.append(both[0])
                durable.append(both[1])
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # the last line of a killed run may be half
    if not blocked:
        raise UsageError(
            f"{run_log}: tells of no checkpoint", "run with STOKER_RUN_LOG set, or give --cost and --write"
        )
    return statistics.median(blocked), statistics.median(durable)
