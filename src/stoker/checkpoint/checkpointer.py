"""`Checkpointer`: save without stopping training, resume from the newest checkpoint that is whole and right.

A `save` takes from training what copying the state takes; the rest happens in background processes that were started
before the first step. What is called committed is complete and durable; what is called verified was read back. The
position of the data loader is saved with the weights, in the same commit.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from stoker.checkpoint import disk
from stoker.checkpoint.household import Household
from stoker.checkpoint.keeper import KeeperJob, Report, connect_tier
from stoker.checkpoint.lineage import Lineage
from stoker.checkpoint.manifest import FileEntry, Manifest
from stoker.checkpoint.names import LOADER, METADATA, objects_file, own_of_rank
from stoker.checkpoint.peers import find_peers, find_place
from stoker.checkpoint.planning import Planning, load_part, torch_part
from stoker.checkpoint.resume import choose, untouched
from stoker.checkpoint.retention import Keep
from stoker.checkpoint.saver import WRITE_S_MAX, Save, Saver, Staged, entries_of
from stoker.checkpoint.values import (
    HasState,
    Resumed,
    Status,
    choice,
    finite,
    json_of,
    not_forked,
    own_of,
    places,
    positive,
    put_back,
    take_turn,
)  # fmt: skip
from stoker.checkpoint.writer import SMALL_BYTES_FREE, WriteJob, commit
from stoker.clock import SYSTEM
from stoker.errors import CheckpointError
from stoker.events import RunLog
from stoker.machine import owner_token
from stoker.store import StoreOptions
from stoker.units import format_bytes

_log = logging.getLogger("stoker.checkpoint")
PEERS_S = 60.0
"""Seconds that another rank may take to answer, beyond what its part of the work may take."""
ROOM_S = 0.2
"""Seconds between two looks at a full disk with on_full="wait"."""
CLOSE_S_MAX = 600.0
"""Seconds that `close` waits by default until the last save is on every tier."""
IDLE_S_MAX = 60.0
"""Seconds that `close` leaves the keeper to finish what it is at; the next run takes up the rest."""
Mode = Literal["async", "sync"]
OnFull = Literal["skip", "wait", "raise"]


class Checkpointer:
    """Saves and resumes training state over several tiers. In a job of several ranks, all make one, with the same
    arguments, after `init_process_group`, and call its methods together.

    *local*: a folder on a fast disk (with mode="sync": any folder, such as one on Lustre). *remote*: a URL, or several,
    nearest first: `s3://…`, `/lustre/…`; where every checkpoint is copied in the background. *keep*: how many to keep
    on each tier, or {"local": 2, "remote": 5, "every": 5000}; multiples of `every` are kept for ever. *mode* "sync":
    `save` returns when the checkpoint is durable. *on_full*: what `save` does while the last one is still being
    written, or the disk is full: "skip" this one with a warning, "wait" for room, or "raise". *failures_max*: failed
    saves in a row after which `save` raises. *bytes_per_s_max* bounds the traffic to each remote.
    """

    def __init__(
        self,
        local: str | Path,
        remote: str | Path | Sequence[str | Path] | None = None,
        keep: int | Mapping[str, int] | Keep = 3,
        *,
        mode: Mode = "async",
        on_full: OnFull = "skip",
        failures_max: int = 3,
        bytes_per_s_max: float | None = None,
        options: StoreOptions | None = None,
        timeout_s: float = PEERS_S,
    ) -> None:
        choice("mode", mode, "async", "sync")
        choice("on_full", on_full, "skip", "wait", "raise")
        positive("failures_max", failures_max)
        positive("timeout_s", timeout_s)
        positive("bytes_per_s_max", bytes_per_s_max)
        keep = Keep.of(keep)
        self._mode, self._on_full, self._failures_max, self._timeout_s = mode, on_full, failures_max, timeout_s
        self.root, urls = places(local, remote)
        self._local = connect_tier(str(self.root), None)
        self._remotes = [connect_tier(url, options, bytes_per_s_max) for url in urls]
        self._log = RunLog.from_environment()
        self._peers = find_peers()
        self._place = find_place(self._peers, self.root)
        self._description: tuple[Any, Any, bytes] | None = None
        self._last: Save | None = None
        self._handed_over: Save | None = None
        self._turns: dict[object, None] = {}
        self._closed, self._pid = False, os.getpid()
        self._owner = owner_token()
        self._committed: str | None = None
        self._protected_s: float | None = None
        self._rounds = 0
        self._line = Lineage(self._peers, self._place, [self._local, *self._remotes])
        first = self._line.first_number
        patience_s = timeout_s + (WRITE_S_MAX if on_full == "wait" else 0.0)
        self._planning = Planning(self._peers, first, self._cannot, timeout_s=timeout_s, patience_s=patience_s)
        self._saver = Saver(
            self._peers.another(), self._place, finish=self._finish, copy=self._copy, timeout_s=timeout_s
        )
        self._saver.on_end = self._ended
        job = KeeperJob(
            self.root, tuple(urls), keep, first, self._peers.rank == 0, options,
            bytes_per_s_max,
        )  # fmt: skip
        self._household = Household(job, self._reported) if self._place.leader == self._peers.rank else None

    # --- saving ---

    def save(
        self, step: int, state: Mapping[str, Any], *, loader: HasState | None = None,
        metrics: Mapping[str, float] | None = None, per_rank: object = None,
    ) -> Save:  # fmt: skip
        """Save *state* as of now: models, optimizers, schedulers, dicts of tensors and values.

        Returns when the state was copied (mode "async"); what becomes of it is told by the returned value. *loader*'s
        position belongs to the same commit. *per_rank* is for what differs between ranks, such as random states.
        UsageError for what could not be resumed; CheckpointError when too many saves failed in a row.
        """
        began_s, turn = SYSTEM.monotonic(), object()
        try:
            take_turn(self._turns, turn)
            save = self._save(step, state, loader, metrics, per_rank, began_s)
        finally:
            self._turns.pop(turn, None)
        if self._mode == "sync":
            save.wait()
            save.blocked_s = SYSTEM.monotonic() - began_s
            if save.error is not None:
                raise save.error
        return save

    def _save(
        self, step: int, state: Mapping[str, Any], loader: HasState | None, metrics: Mapping[str, float] | None,
        per_rank: object, began_s: float,
    ) -> Save:  # fmt: skip
        """Agree, copy, hand over."""
        self._check_failures()
        self._planning.turn()
        tensors = torch_part()
        planner = tensors.flat(tensors.plain_state(state), self._peers.rank == 0)
        rank, small, kept = self._peers.rank, {}, finite(metrics)
        if loader is not None and rank == 0:
            small[LOADER] = json_of(loader)
        if per_rank is not None:
            small[own_of_rank(rank)] = load_part().own_bytes(per_rank)
        attempt, renew, skipped = self._planning.agree(step, planner)
        if attempt is None:
            return self._skip(step, skipped, began_s)
        save, folder = Save(step, attempt.name), self.root / attempt.name
        nothing = WriteJob(folder, rank, (), {}, self._owner)
        staged = Staged(save, attempt, nothing, [], (-1, -1, 0), began_s, lambda: None, kept)
        with contextlib.ExitStack() as undo:
            undo.push(lambda kind, error, trace: self._saver.refuse(staged, error))
            if renew:
                self._planning.renew(planner)
            staged = self._described(staged, planner, small)
            self._saver.take(staged, functools.partial(self._planning.fill, planner, state))
        self._last = self._handed_over = save  # not before: a signal handler that waits would wait for this very call
        return save

    def _described(self, staged: Staged, planner: Any, small: dict[str, bytes]) -> Staged:
        """The same with all that is to be written of it."""
        tensors, plan, staging = torch_part(), self._planning.plan, self._planning.staging
        objects, index = tensors.objects_of(plan, planner)
        small |= {objects_file(self._peers.rank): objects} if objects else {}
        job = replace(staged.job, files=plan.layout.files, small=small)
        image = (staging.serial, staging.descriptor, staging.nbytes)
        return replace(staged, job=job, objects=index, image=image, settle=staging.settle)

    def _check_failures(self) -> None:
        self._saver.check_alive()
        last = self._last
        if self._saver.failures >= self._failures_max and last is not None and last.error is not None:
            raise CheckpointError(
                f"{self._saver.failures} checkpoints in a row could not be saved; the last: {last.error.message}",
                last.error.hint or "raise failures_max to train on without",
            )

    def _cannot(self, nbytes: int) -> str | None:
        """Why this rank cannot save now, after waiting if that is what `on_full` says."""
        waits = self._on_full == "wait"
        if not self._saver.wait_free(None if waits else 0):
            return "the last checkpoint is still being written"
        while not disk.has_room(self.root, nbytes + SMALL_BYTES_FREE):
            if not waits:
                return f"{self.root}: the disk has no room for a checkpoint of {format_bytes(nbytes)}"
            self._poke()
            SYSTEM.sleep(ROOM_S)
        return None

    def _skip(self, step: int, reason: str, began_s: float) -> Save:
        if self._on_full == "raise":
            raise CheckpointError(f"step {step}: not saved: {reason}")
        _log.warning("stoker: checkpoint of step %d skipped: %s", step, reason)
        save = self._last = Save(step, None, SYSTEM.monotonic() - began_s)
        save.end("skipped", CheckpointError(f"step {step}: skipped: {reason}"))
        self._note("checkpoint_skipped", step=step, reason=reason)
        return save

    def before_optimizer_step(self) -> None:
        """Wait until the last `save` has copied all that the optimizer is about to change. Optimizers that were saved
        call it by themselves; call it before you change saved tensors in another way. On a CPU there is nothing to wait
        for."""
        self._planning.guard()

    # --- in the saving thread ---

    def _finish(self, staged: Staged, votes: list[Any]) -> Manifest:
        """Commit what all ranks have written."""
        tensors = torch_part()
        objects = [(rank, *place) for rank, vote in enumerate(votes) for place in vote[2]]
        known, plan = self._description, self._planning.plan
        if known is None or known[0] is not plan or known[1] != objects:
            known = self._description = (plan, objects, tensors.metadata_bytes(plan, objects))
        data = known[2]
        entry = FileEntry(METADATA, len(data), disk.crc32c(data), 0)
        manifest = Manifest(
            attempt=staged.attempt.name, step=staged.attempt.step, number=staged.attempt.number, run=self._line.run,
            lineage=self._line.name, parent=self._line.parent, world_size=self._peers.world_size,
            created_s=SYSTEM.wall(), torch=tensors.torch_version(), files=(*entries_of(votes), entry),
            metrics=staged.metrics,
        )  # fmt: skip
        commit(staged.job.folder, manifest, data, None if self._place.shared else self._place.ranks)
        return manifest

    def _copy(self, staged: Staged, manifest: Manifest) -> None:
        """At another node: commit this node's part; torch's description lies with rank 0 and at the remotes."""
        commit(staged.job.folder, manifest, None, self._place.ranks)

    def _ended(self, staged: Staged, manifest: Manifest | None) -> None:
        """A save is decided."""
        save = staged.save
        if manifest is None:
            self._note("checkpoint_failed", step=save.step, name=save.name, reason=str(save.error))
            return
        self._committed = self._line.parent = manifest.attempt
        self._note(
            "checkpoint_committed", step=save.step, name=save.name, blocked_s=round(save.blocked_s, 6),
            durable_s=round(save.durable_s or 0.0, 6), bytes=manifest.nbytes,
        )  # fmt: skip
        if self._household is not None:
            self._household.saved()

    def _poke(self) -> None:
        """Let the keeper look."""
        if self._household is not None:
            self._household.poke()

    def _reported(self, report: Report) -> None:
        """The keeper has done a cycle."""
        if report.remotes and report.settled:
            self._protected_s = SYSTEM.monotonic()
        if report.uploaded or report.deleted or report.damaged:
            self._note(
                "checkpoint_kept", uploaded=report.uploaded, sent_bytes=report.sent_bytes, deleted=report.deleted,
                damaged=report.damaged,
            )  # fmt: skip

    def _note(self, event: str, **fields: object) -> None:
        if self._log is not None:
            self._log.write(event, rank=self._peers.rank, **fields)

    # --- resuming ---

    def resume(
        self, state: Mapping[str, Any] | None = None, *, loader: HasState | None = None, step: int | None = None,
        strict: bool = True,
    ) -> Resumed | None:  # fmt: skip
        """Load the newest checkpoint that is complete, verified and covers *state*, in place; None when there is none.

        Every byte is compared before the first live tensor changes; a candidate that is damaged, or does not fit, is
        passed over with a warning. *step* goes back to an older one: what is saved after that is a new lineage. Without
        *state* nothing is loaded: the folder is told. *strict*: names in the state and in the checkpoint must be the
        same. CheckpointError when checkpoints exist, or may exist on a tier that does not answer, and none can be used.
        """
        part = load_part() if state is not None else None
        kept: dict[str, Any] = {}

        def check(folder: Path, manifest: Manifest) -> list[str]:
            if part is None or state is None:
                return []
            kept["opened"] = part.Opened.of(folder, manifest)
            kept["target"] = part.target_of(state, kept["opened"])
            return list(part.problems(state, kept["target"], kept["opened"], strict=strict))

        not_forked(self._pid)
        self._rounds += 1
        with untouched(state) if state is not None else contextlib.nullcontext():
            chosen = choose(
                self._peers, self._place, self._local, self._remotes, step=step, check=check,
                topic=f"resume/{self._rounds}",
            )  # fmt: skip
        if chosen is None:
            self._poke()
            return None
        folder, manifest = chosen
        reading = self._local.reading(manifest.attempt) if folder.parent == self.root else contextlib.nullcontext()
        turn = object()
        with reading, contextlib.ExitStack() as undo:
            undo.callback(self._turns.pop, turn, None)
            take_turn(self._turns, turn)
            self._saver.wait_free(None)  # the plan and its memory may be made anew below
            position = put_back(loader, folder, manifest)  # first, since it may refuse, and nothing has changed yet
            if part is not None and state is not None:
                part.load(state, kept["target"], kept["opened"])
                tensors = torch_part()
                self._planning.prepare(tensors.flat(tensors.plain_state(state), self._peers.rank == 0))
            own = own_of(self._peers.rank, self._peers.world_size, folder, manifest)
        self._line.follow(manifest, rewound=step is not None)
        self._poke()
        self._note("checkpoint_resumed", step=manifest.step, name=manifest.attempt, folder=str(folder))
        return Resumed(manifest.step, manifest.attempt, folder, manifest.metrics, position, own, manifest.world_size)

    # --- the end of things ---

    def wait(self, seconds: float | None = None, *, remote: bool = False) -> bool:
        """Wait until the last save is durable: on the local disk, and with *remote* on every remote too. For SIGTERM
        and pre-emption: `wait(20)`. False when the time is over, or the save failed or was skipped (the one under way
        is waited for all the same). Only the rank that keeps house (the lowest of a disk's) can wait for remotes;
        others wait for the local disk."""
        deadline_s = None if seconds is None else SYSTEM.monotonic() + seconds
        last, under_way = self._last, self._handed_over
        if under_way is not None and under_way is not last:  # the last was skipped; the one before shall still land
            under_way.wait(seconds)
        if last is not None and not last.wait(seconds):
            return False
        return not remote or self._everywhere(None if deadline_s is None else deadline_s - SYSTEM.monotonic())

    def _everywhere(self, seconds: float | None) -> bool:
        """Wait until the newest committed checkpoint is on every remote, as far as this rank can know."""
        name = self._committed
        not_forked(self._pid)
        if name is None or self._household is None or not self._remotes:
            return True
        return self._household.wait_for(
            lambda report: report.newest == name and all(one.newest == name for one in report.remotes), seconds
        )

    def status(self) -> Status:
        """Where saving stands."""
        house = self._household
        report = house.report if house is not None else None
        return Status(
            committed=self._committed,
            writing=self._saver.busy,
            failures=self._saver.failures,
            last=self._last,
            remotes=house.remotes() if house is not None else (),
            pending_uploads=sum(len(one.pending) for one in report.remotes) if report is not None else 0,
            protected_age_s=None if self._protected_s is None else SYSTEM.monotonic() - self._protected_s,
        )

    def close(self, seconds: float = CLOSE_S_MAX) -> None:
        """Wait until the last save is durable everywhere, at most *seconds*, then end the background processes."""
        if self._closed or os.getpid() != self._pid:  # a forked child ends; what it sees belongs to its parent
            return
        self._closed = True
        until_s = SYSTEM.monotonic() + seconds
        if not self._saver.wait_free(seconds) or not self._everywhere(until_s - SYSTEM.monotonic()):
            _log.warning("stoker: closed before the last checkpoint was on every tier; the next run goes on with that")
        self._saver.close()
        if self._household is not None:
            self._household.wait_idle(min(seconds, IDLE_S_MAX))
            self._household.close()
        self._planning.close()
        if self._log is not None:
            self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(CLOSE_S_MAX if kind is None else IDLE_S_MAX)
