"""The janitor and uploader of a local tier: looks, uploads, verifies, expires, sweeps. One a node; nobody else deletes.

Each cycle begins with what lies on the tiers, not with what the last one knew, so it can be killed anywhere and run
again by anybody (`stoker checkpoint push` is one cycle). The order is fixed: upload, then verify, then delete.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field, replace
from pathlib import Path

from stoker.checkpoint.names import DAMAGED, VERIFIED
from stoker.checkpoint.retention import Keep, expired_local, expired_remote, to_upload
from stoker.checkpoint.tier import Seen, Tier
from stoker.checkpoint.upload import LocalDamageError, upload
from stoker.errors import CheckpointError, StokerError
from stoker.store import StoreOptions, connect
from stoker.store.limit import Limited

REMOTE_DEADLINE_S = 60.0
"""Seconds of retrying one call at a remote before the cycle is given up and tried again later."""
RETRY_S = 15.0


@dataclass(frozen=True, slots=True)
class KeeperJob:
    """What a keeper looks after."""

    local: Path
    remotes: tuple[str, ...] = ()
    keep: Keep = field(default_factory=Keep)
    first_number: int = 0
    """Attempts below this number are from before this run: half-written ones of dead processes are swept."""
    janitor: bool = True
    """Whether it also deletes at the remotes; one keeper of a run does."""
    options: StoreOptions | None = None
    bytes_per_s_max: float | None = None
    retry_s: float = RETRY_S


@dataclass(frozen=True, slots=True)
class RemoteReport:
    """How far one remote is."""

    url: str
    newest: str | None
    """The newest checkpoint that is complete and verified there."""
    pending: tuple[str, ...]
    """Local checkpoints that it still must get."""
    trouble: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """What a cycle found and did."""

    newest: str | None
    remotes: tuple[RemoteReport, ...]
    uploaded: tuple[str, ...]
    sent_bytes: int
    deleted: tuple[str, ...]
    damaged: tuple[str, ...]
    """One line for each checkpoint whose bytes were found wrong."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do until the next checkpoint."""
        return all(not remote.pending and remote.trouble is None for remote in self.remotes)


def connect_tier(url: str, options: StoreOptions | None, bytes_per_s_max: float | None = None) -> Tier:
    """The tier at *url*, with a bound on its bandwidth when asked for."""
    chosen = options or StoreOptions(deadline_s=REMOTE_DEADLINE_S)
    store = connect(url, options=chosen)
    if bytes_per_s_max is not None:
        store = Limited(store, requests_max=chosen.requests_max, bytes_per_s_max=bytes_per_s_max)
    return Tier(store)


class Keeper:
    """Runs cycles; holds nothing between them but clients."""

    def __init__(self, job: KeeperJob) -> None:
        self._job = job
        self._local = connect_tier(str(job.local), None)
        self._remotes = [connect_tier(url, job.options, job.bytes_per_s_max) for url in job.remotes]
        self._uploaded: list[str] = []
        self._deleted: list[str] = []
        self._damaged: list[str] = []
        self._sent_bytes = 0

    def cycle(self) -> Report:
        """Do all there is to do now."""
        self._uploaded, self._deleted, self._damaged, self._sent_bytes = [], [], [], 0
        self._sweep_local()
        troubles = [self._serve(remote) for remote in self._remotes]
        self._verify_newest()
        reports = tuple(self._report(remote, trouble) for remote, trouble in zip(self._remotes, troubles, strict=True))
        if all(report.trouble is None for report in reports):
            self._expire_local()
        whole = self._whole()
        return Report(
            whole[-1].name if whole else None, reports, tuple(self._uploaded), self._sent_bytes,
            tuple(self._deleted), tuple(self._damaged),
        )  # fmt: skip

    def _whole(self) -> list[Seen]:
        return [seen for seen in self._local.look() if seen.manifest is not None]

    def _sweep_local(self) -> None:
        """Remove what dead processes left half-written; what has a marker is never swept."""
        for seen in self._local.look():
            old = seen.attempt.number < self._job.first_number
            if not seen.committed and old and not self._local.owner_lives(seen):
                self._local.delete(seen)
                self._deleted.append(f"{self._local.url}/{seen.name}")

    def _serve(self, remote: Tier) -> str | None:
        """Upload what a remote must get, expire what it may lose; the trouble, if there was any."""
        sent: set[str] = set()  # a list may lag behind what was put: each is sent once a cycle
        try:
            while (seen := self._next_for(remote, sent)) is not None:
                assert seen.manifest is not None
                done = upload(self._local, remote, seen.manifest)
                sent.add(seen.name)
                self._sent_bytes += done.sent_bytes
                if VERIFIED not in seen.sizes:  # the upload has read and compared every local byte
                    self._local.mark_verified(seen.manifest)
                if not done.committed:
                    return "other nodes still have to send their files"
                self._uploaded.append(f"{remote.url}/{seen.name}")
            if self._job.janitor:
                self._tidy(remote)
        except LocalDamageError as error:
            self._mark_damaged(seen, error.message)
            return self._serve(remote)  # with the next; each turn takes one away
        except StokerError as error:
            return error.message
        return None

    def _next_for(self, remote: Tier, sent: Set[str]) -> Seen | None:
        """The most urgent checkpoint that a remote lacks, by what lies there now and what was *sent* just now."""
        whole = self._whole()
        local = self._local.held(whole, complete_is_verified=False)
        wanted = to_upload(local, remote.held(remote.look(), complete_is_verified=True), self._job.keep)
        name = next((one for one in wanted if one not in sent), None)
        return next((seen for seen in whole if seen.name == name), None)

    def _tidy(self, remote: Tier) -> None:
        """Expire at a remote, and sweep uploads that were begun and overtaken."""
        seen = remote.look()
        held = remote.held(seen, complete_is_verified=True)
        gone = set(expired_remote(held, self._job.keep))
        newest = max((one.number for one in held), default=-1)
        local = {one.name for one in self._whole()}
        for one in seen:
            overtaken = not one.committed and one.attempt.number < newest and one.name not in local
            if one.name in gone or (overtaken and not remote.has_marker(one.name)):
                remote.delete(one)
                self._deleted.append(f"{remote.url}/{one.name}")

    def _verify_newest(self) -> None:
        """Read the newest local checkpoint back, unless that was done: older ones may only go once it is right."""
        while whole := self._whole():
            newest = whole[-1]
            assert newest.manifest is not None
            if VERIFIED in newest.sizes:
                return
            here = self._here(newest)
            found = list(self._local.faults(here.manifest)) if here.manifest is not None else []
            damage = [fault.words for fault in found if fault.differs]
            if found and not damage:
                raise CheckpointError("; ".join(fault.words for fault in found))  # it may be readable later
            if not found:
                self._local.mark_verified(newest.manifest)
                return
            self._mark_damaged(newest, "; ".join(damage))

    def _here(self, seen: Seen) -> Seen:
        """The same, without the files of other nodes."""
        assert seen.manifest is not None
        files = tuple(entry for entry in seen.manifest.files if entry.name in seen.sizes)
        return replace(seen, manifest=replace(seen.manifest, files=files))

    def _mark_damaged(self, seen: Seen | None, what: str) -> None:
        assert seen is not None
        self._local.mark(seen.name, DAMAGED, what.encode())
        self._damaged.append(what)

    def _expire_local(self) -> None:
        seen = self._local.look()
        remotes = [remote.held(remote.look(), complete_is_verified=True) for remote in self._remotes]
        local = self._local.held(seen, complete_is_verified=False)
        for name in expired_local(local, remotes, self._job.keep):
            self._local.delete(next(one for one in seen if one.name == name))
            self._deleted.append(f"{self._local.url}/{name}")

    def _report(self, remote: Tier, trouble: str | None) -> RemoteReport:
        if trouble is not None:
            return RemoteReport(remote.url, None, (), trouble)
        try:
            seen = remote.look()
        except StokerError as error:
            return RemoteReport(remote.url, None, (), error.message)
        held = remote.held(seen, complete_is_verified=True)
        wanted = to_upload(self._local.held(self._whole(), complete_is_verified=False), held, self._job.keep)
        newest = max(held, key=lambda one: one.number, default=None)
        # Sent, read back and committed, but the remote's list tells of other files than those: nobody could resume.
        sent = [one.fault for one in seen if one.committed and one.name in wanted]
        return RemoteReport(remote.url, newest.attempt if newest else None, tuple(wanted), sent[-1] if sent else None)
