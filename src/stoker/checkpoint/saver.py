"""A save after the copy: written by the background process, agreed on by all ranks, committed. A thread a rank.

The thread only waits: for the writing process, then for the other ranks. A writing process that died is started again
and the save is resubmitted, since what it needs lies in this process's memory. No failure is lost: it is on the save
itself, in `status()`, in the run log, and a warning says it; after several in a row the next `save` raises.

Ctrl-C may raise at any point of the training thread's part. So that part takes no lock that it could leave closed; a
save changes hands in one step, and whatever stops it before that takes it back.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from stoker.checkpoint.disk import CHUNK_BYTES
from stoker.checkpoint.helper import Helper
from stoker.checkpoint.manifest import FileEntry, Manifest
from stoker.checkpoint.names import Attempt
from stoker.checkpoint.peers import Peers, Place, failure_of
from stoker.checkpoint.writer import WriteJob, discard
from stoker.clock import SYSTEM, Clock
from stoker.errors import CheckpointError, StokerError, reason_of

_log = logging.getLogger("stoker.checkpoint")
WRITE_S_MAX = 3600.0
"""Seconds after which a disk that does not finish a write counts as lost."""
TOLD_MAX = 64
"""How often the writing process is told of copied bytes at most: a full socket would hold up training."""
LOOK_S = 1.0
"""Seconds after which whoever waits for a save looks for himself: Ctrl-C may end a waiter that had the gate open."""
WRITER_TRIES = 3
"""How often one save is given to a new writing process when the last one died over it."""
SaveState = Literal["writing", "committed", "failed", "skipped"]


def _closed_gate() -> threading.Lock:
    gate = threading.Lock()
    gate.acquire()
    return gate


class UndecidedError(CheckpointError):
    """This rank does not know what was decided: its files must stay, since rank 0 may have committed them."""


@dataclass
class Save:
    """One call of `Checkpointer.save`: what has become of it."""

    step: int
    name: str | None
    """Name of the checkpoint's folder; None when the save was skipped at once."""
    blocked_s: float = 0.0
    """Seconds that the call took from training."""
    durable_s: float | None = None
    """Seconds from the call until the checkpoint was complete on the local disk."""
    state: SaveState = "writing"
    error: StokerError | None = None
    _gate: threading.Lock = field(default_factory=_closed_gate, repr=False, compare=False)
    """Closed until it is decided. No Event: a signal handler that waits as well, and came while its own thread was
    inside the Event, would wait for that thread, which is itself."""
    _pid: int = field(default_factory=os.getpid, repr=False, compare=False)

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is decided; whether it is committed locally. A signal handler may call it, too. CheckpointError
        in a forked child, which would never hear."""
        until_s = None if seconds is None else SYSTEM.monotonic() + max(0.0, seconds)
        while self.state == "writing":
            if os.getpid() != self._pid:
                raise CheckpointError(
                    f"step {self.step}: process {self._pid} saves it, of which this one, {os.getpid()}, was forked",
                    "wait there; a forked child never hears how it ends",
                )
            left_s = LOOK_S if until_s is None else min(LOOK_S, until_s - SYSTEM.monotonic())
            if self._gate.acquire(timeout=max(0.0, left_s)):
                self._gate.release()
            elif until_s is not None and SYSTEM.monotonic() >= until_s:
                break
        return self.state == "committed"

    def end(self, state: SaveState, error: StokerError | None = None) -> None:
        """Decide it."""
        self.error = error
        self.state = state
        self._gate.release()


Image = tuple[int, int, int]
"""Identity, descriptor and length of staging memory."""


@dataclass(frozen=True)
class Staged:
    """A save whose state lies in staging memory."""

    save: Save
    attempt: Attempt
    job: WriteJob
    objects: Any
    """Where this rank's values that are no tensors lie in their file."""
    image: Image
    began_s: float
    settle: Callable[[], None]
    metrics: Mapping[str, float]
    refused: str | None = None
    """Why this rank has nothing to save: the others shall hear it at once, not wait for its files."""
    claim: threading.Lock = field(default_factory=threading.Lock)
    """Who closes it decides what becomes of the save: the thread that takes it home, or whoever takes it back."""


Copied = Callable[[int], None]
"""Says how many bytes of the staging memory have their content."""
Finish = Callable[[Staged, list[Any]], Manifest]
"""At rank 0: commit what all ranks have written; given every rank's ("written", entries, objects)."""
Copy = Callable[[Staged, Manifest], None]
"""At the leader of another node's disk: the same, for its files."""


class Saver:
    """Takes staged saves one at a time."""

    def __init__(
        self, peers: Peers, place: Place, *, finish: Finish, copy: Copy, timeout_s: float, clock: Clock = SYSTEM
    ) -> None:
        self._peers, self._place, self._finish, self._copy = peers, place, finish, copy
        self._timeout_s, self._clock = timeout_s, clock
        self._writer: Helper | None = Helper("write")
        self._image: int | None = None
        self._begun: WriteJob | None = None  # what the writing process has begun with, ahead of its save
        self._inbox: queue.SimpleQueue[Staged | None] = queue.SimpleQueue()
        self._current: Save | None = None  # not the staged one, which holds staging memory
        self._closing = False
        self._left: list[Path] = []  # failed attempts that could not be removed: tried again at the next save
        self.failures = 0
        """Saves that failed since the last one that did not."""
        self.writers_lost = 0
        self.on_end: Callable[[Staged, Manifest | None], None] = lambda staged, manifest: None
        self._thread = threading.Thread(target=self._run, daemon=True, name="stoker-checkpoint")
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether staging memory is in use."""
        return self._current is not None and self._current.state == "writing"

    def check_alive(self) -> None:
        """CheckpointError where nothing can be saved any more: a forked child would write into its parent's memory."""
        if self._closing or not self._thread.is_alive():
            raise CheckpointError(
                "this Checkpointer was closed, or made by another process, or its saving thread has ended",
                "make one in the process that saves; a thread's last words are on stderr",
            )

    def wait_free(self, seconds: float | None) -> bool:
        """Wait until staging memory is free; where nothing is saved any more, there is nothing to wait for."""
        if self._current is not None and self._thread.is_alive():
            self._current.wait(seconds)
        return not self.busy or not self._thread.is_alive()

    def take(self, staged: Staged, fill: Callable[[Copied], None]) -> None:
        """Have *fill* copy the state, while the writing process begins with what is there already; then take the save
        over: the staging memory is in use from now on. Whatever this raises, the caller calls `refuse`."""
        fill(self._begin(staged))
        staged.save.blocked_s = self._clock.monotonic() - staged.began_s
        self._current = staged.save
        self._inbox.put(staged)
        if self._closing:  # meanwhile, by a signal handler or another thread
            self.refuse(staged, CheckpointError("the Checkpointer was closed"))

    def refuse(self, staged: Staged, error: BaseException | None) -> None:
        """Upon an error take a save back, unless it changed hands already; other ranks hear at once that this one's
        part is missing."""
        if error is None or not staged.claim.acquire(blocking=False):
            return
        reason = f"step {staged.save.step}: the state could not be copied: {type(error).__name__}: {error}"
        if self._peers.world_size == 1 or self._closing:
            staged.save.end("failed", CheckpointError(reason))
            self._give_up(staged.job)
            return
        try:
            self._give_up(staged.job)
        finally:
            self._inbox.put(replace(staged, refused=reason, claim=threading.Lock()))
            self._current = staged.save

    def _begin(self, staged: Staged) -> Copied:
        """Let the writing process begin. One that is dead is noticed later, by who needs it."""
        if self._begun is not None:  # the last call's, which was interrupted even while it took that back
            self._give_up(self._begun)
        job, nbytes, told, writer = staged.job, staged.image[2], 0, self._writer
        if writer is not None:
            self._begun = job  # before it is told: an interruption between the two must not leave it to itself
            try:
                self._tell(writer, job, staged.image, staged=0)
            except EOFError:
                self._begun = None

        def copied(count: int) -> None:
            nonlocal told
            if self._begun is job and writer is not None and count - told >= max(CHUNK_BYTES, nbytes // TOLD_MAX):
                told = count
                with contextlib.suppress(EOFError):
                    writer.tell(("staged", count))

        return copied

    def _give_up(self, job: WriteJob) -> None:
        """What was begun ahead will not be saved."""
        self._left.append(job.folder)  # first: whatever interrupts this, the next save removes it
        if self._begun is not None:
            self._drop()
        self._clear()

    def _clear(self) -> None:
        """Remove failed attempts, as far as the disk lets us."""
        self._left = [folder for folder in self._left if not discard(folder)]

    def writer_pid(self) -> int | None:
        """Process id of the writing process."""
        return self._writer.pid if self._writer is not None else None

    def close(self) -> None:
        """End the thread and the writing process; a save under way is given up."""
        self._closing = True
        self._inbox.put(None)
        if self._writer is not None:
            self._writer.close()
        self._thread.join(5)

    def _run(self) -> None:
        while self._serve(self._inbox.get()):
            pass  # holds no save, and so no staging memory, while it waits for the next

    def _serve(self, staged: Staged | None) -> bool:
        """Bring one save home; false when this is closed."""
        if staged is None:
            return False
        if staged.claim.acquire(blocking=False):
            try:
                self._bring_home(staged)
            finally:  # a fault of ours ends this thread, but leaves nobody waiting
                if staged.save.state == "writing":
                    staged.save.end("failed", CheckpointError(f"step {staged.save.step}: the saving thread ended"))
        return True

    def _bring_home(self, staged: Staged) -> None:
        """Write, vote, commit; whatever happens, the save is decided at the end."""
        self._clear()
        vote = self._written(staged)
        wrote_s = self._clock.monotonic() - staged.began_s
        try:
            manifest = self._decide(staged, vote, wait_s=self._timeout_s + 10 * wrote_s)
        except StokerError as error:
            self._failed(staged, error)
            return
        staged.save.durable_s = self._clock.monotonic() - staged.began_s
        self.failures = 0
        self.on_end(staged, manifest)
        staged.save.end("committed")

    def _decide(self, staged: Staged, vote: tuple[Any, ...], wait_s: float) -> Manifest:
        """The manifest, once all ranks have written and rank 0 has committed; CheckpointError when one could not."""
        topic = f"save/{staged.attempt.name}"
        verdict: tuple[str, Any]
        try:
            votes = self._peers.gather(topic, vote, wait_s)
            if self._peers.rank == 0:
                reason = failure_of(votes)
                if reason is not None:
                    raise CheckpointError(reason)
                verdict = ("committed", self._finish(staged, votes))
            else:
                verdict = ("", None)
        except (StokerError, OSError) as error:
            verdict = ("failed", error.message if isinstance(error, StokerError) else reason_of(error))
        try:
            decided, value = self._peers.spread(topic, verdict, 10 * wait_s)
        except CheckpointError as error:
            raise UndecidedError(error.message) from error
        if decided != "committed":
            raise CheckpointError(f"step {staged.save.step}: not saved: {value}")
        if self._place.leader == self._peers.rank != 0:
            try:
                self._copy(staged, value)
            except CheckpointError as error:
                raise UndecidedError(error.message) from error
        return value  # type: ignore[no-any-return]  # rank 0 spread a Manifest

    def _failed(self, staged: Staged, error: StokerError) -> None:
        if not isinstance(error, UndecidedError):
            self._left.append(staged.job.folder)
            self._clear()
        self.failures += 1
        _log.warning("stoker: %s", error)
        self.on_end(staged, None)
        staged.save.end("failed", error)

    # --- the writing process ---

    def _written(self, staged: Staged) -> tuple[Any, ...]:
        """This rank's vote: ("written", entries, objects) or ("failed", reason)."""
        if staged.refused is not None:
            return "failed", staged.refused
        staged.settle()
        for _ in range(WRITER_TRIES):
            try:
                entries = self._ask(staged)
            except EOFError:
                if self._closing or self._writer is None:
                    return "failed", "the Checkpointer was closed"
                _log.warning("stoker: %s; started again", self._writer.last_words())
                self.writers_lost += 1
                self._drop()
            except CheckpointError as error:
                return "failed", error.message
            else:
                return "written", entries, staged.objects
        return "failed", f"the writing process died {WRITER_TRIES} times over this save"

    def _ask(self, staged: Staged) -> tuple[FileEntry, ...]:
        if self._closing:
            raise EOFError
        writer = self._writer = self._writer or Helper("write")
        if self._begun is staged.job:
            self._begun = None
            writer.tell(("staged", staged.image[2]))
        else:
            self._tell(writer, staged.job, staged.image, staged=staged.image[2])
        deadline_s = self._clock.monotonic() + WRITE_S_MAX
        while (left_s := deadline_s - self._clock.monotonic()) > 0:
            heard = writer.hear(left_s)
            if heard is None:
                continue
            kind, value = heard
            if kind == "written":
                return value  # type: ignore[no-any-return]  # the wire carries our own entries
            if kind == "failed":
                raise value
        self._drop()
        raise CheckpointError(f"{staged.job.folder}: the disk did not finish writing within {WRITE_S_MAX:.0f} s")

    def _tell(self, writer: Helper, job: WriteJob, image: Image, *, staged: int) -> None:
        """Have *writer* begin with *job*, of whose image so many bytes are copied."""
        identity, descriptor, nbytes = image
        if nbytes and self._image != identity:
            writer.tell(("image", nbytes), (descriptor,))
            self._image = identity
        writer.tell(("write", (job, staged)))

    def _drop(self) -> None:
        """End a writing process that is of no use; the next question starts another, if the system lets us."""
        if self._writer is not None:
            self._writer.close()
        self._image, self._begun, self._writer = None, None, None


def entries_of(votes: list[Any]) -> tuple[FileEntry, ...]:
    """All ranks' files."""
    return tuple(entry for vote in votes for entry in vote[1])
