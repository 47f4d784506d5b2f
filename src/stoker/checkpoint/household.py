"""The trainer's line to the keeper: pokes it after each commit, keeps its latest report, starts it again.

It is never given up: without a keeper nothing is uploaded and the local disk fills, for as long as a run may last. One
that dies again and again is started after growing pauses, and every checkpoint that is saved meanwhile says so.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable

from stoker.checkpoint.helper import Helper
from stoker.checkpoint.keeper import KeeperJob, RemoteReport, Report
from stoker.errors import CheckpointError

RESTART_S = 2.0
"""Seconds between two tries to start a keeper where the system has no process or descriptors left."""
_log = logging.getLogger("stoker.checkpoint")
DEATHS_MAX = 5
"""Keepers that die one after the other without a report and are replaced at once; from then on with pauses."""
PAUSE_S_MAX = 600.0


def pause_s(died: int) -> float:
    """Seconds until the next keeper, when so many died one after the other without a report."""
    late = died - DEATHS_MAX
    return min(PAUSE_S_MAX, RESTART_S * 2.0 ** min(late, 30)) if late >= 0 else 0.0


class Household:
    """A supervised keeper."""

    def __init__(self, job: KeeperJob, on_report: Callable[[Report], None]) -> None:
        self._job, self._on_report = job, on_report
        self._changed = threading.Condition()
        self._closing = False
        self.report: Report | None = None
        """The latest, None before the first."""
        self.trouble: str | None = None
        """Why the last cycle could not be finished, or nobody does any; None when it was."""
        self._down = False
        self.deaths = 0
        self._asked = self._sent = self._answered = 0
        self._keeper = self._start()
        self._thread = threading.Thread(target=self._listen, daemon=True, name="stoker-checkpoint-keeper")
        self._thread.start()

    @property
    def pid(self) -> int:
        """The keeper's process id."""
        return self._keeper.pid

    def poke(self) -> None:
        """Something changed: look again. A keeper that is dead is started again by the listening thread."""
        with self._changed:
            self._asked += 1
            self._send()

    def saved(self) -> None:
        """There is a new checkpoint: look; and if there is nobody to look, say so each time."""
        if self._down:
            _log.error("stoker: no uploads and no clean-up: %s; another is tried after a pause", self.trouble)
        self.poke()

    def _send(self) -> None:
        """Send the latest question unless one is unanswered: a keeper in a long upload must not fill the socket."""
        if self._sent <= self._answered < self._asked:
            self._sent = self._asked
            with contextlib.suppress(EOFError):
                self._keeper.tell(("look", self._sent))

    def remotes(self) -> tuple[tuple[str, str | None, str | None], ...]:
        """For each remote: URL, newest checkpoint that is complete and verified there, what is wrong."""
        empty = tuple(RemoteReport(url, None, (), None) for url in self._job.remotes)
        told = self.report.remotes if self.report is not None else empty
        return tuple((one.url, one.newest, one.trouble or self.trouble) for one in told)

    def wait_idle(self, seconds: float) -> bool:
        """Wait until the keeper has looked at all that it was told of."""
        with self._changed:
            return self._changed.wait_for(lambda: self._closing or self._answered >= self._asked, seconds)

    def wait_for(self, settled: Callable[[Report], bool], seconds: float | None) -> bool:
        """Wait for a report of which *settled* is true."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or (self.report is not None and settled(self.report)), seconds
            ) and (self.report is not None and settled(self.report))

    def close(self) -> None:
        """End the keeper; what it was at is taken up by the next one."""
        with self._changed:
            self._closing = True
            self._keeper.close()
            self._changed.notify_all()
        self._thread.join(5)

    def _start(self) -> Helper:
        keeper = Helper("keep")
        with contextlib.suppress(EOFError):  # dead already: the listening thread will see it
            keeper.tell(("begin", self._job))
            if self._asked:
                self._sent = self._asked
                keeper.tell(("look", self._sent))
        return keeper

    def _listen(self) -> None:
        died = 0
        while not self._closing:
            try:
                heard = self._keeper.hear(0.5)
            except EOFError:
                died += 1
                if self._closing or not self._again(died):
                    return
                continue
            except ValueError:  # the socket was closed meanwhile
                return
            if heard is not None and heard[0] != "ready":
                died = 0
                self._take(*heard[1])

    def _again(self, died: int) -> bool:
        """Start a new keeper, after a pause if they die one after the other; false when this is closed before."""
        with self._changed:
            if self._closing:
                return False
            self.deaths += 1
            self.trouble = self._keeper.last_words()
            self._keeper.close()
            pause = pause_s(died)
            if pause:
                self._down = True
                _log.error(
                    "stoker: %s, %d times in a row: no uploads and no clean-up; tried again in %.0f s",
                    self.trouble, died, pause,
                )  # fmt: skip
                self._changed.wait_for(lambda: self._closing, pause)
            else:
                _log.warning("stoker: %s; started again", self.trouble)
            return self._started_again()

    def _started_again(self) -> bool:
        """Start a keeper, as soon as the system lets us; false when this is closed before."""
        while not self._closing:
            try:
                self._keeper = self._start()
            except CheckpointError as error:
                self.trouble = error.message
                _log.warning("stoker: %s; tried again in %.0f s", error.message, RESTART_S)
                self._changed.wait(RESTART_S)
            else:
                return True
        return False

    def _take(self, asked: int, value: object) -> None:
        with self._changed:
            self._answered = asked
            self._send()
            self._down = False
            if isinstance(value, Report):
                self.report, self.trouble = value, None
            else:
                if self.trouble != str(value):
                    _log.warning("stoker: checkpoints cannot be looked after: %s; tried again", value)
                self.trouble = str(value)
            self._changed.notify_all()
        if isinstance(value, Report):
            for line in value.damaged:
                _log.error("stoker: checkpoint damaged: %s", line)
            self._on_report(value)
