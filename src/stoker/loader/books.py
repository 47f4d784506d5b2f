"""Where the time of each `next()` went, for the report and the run log.

The trainer only says what happened; the sums are made when somebody has time for them, or asks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import asdict
from typing import NamedTuple

from stoker.events import RunLog, Stage
from stoker.loader.attribute import attribute
from stoker.loader.batch import Bad, Delivered
from stoker.loader.lanes import Lane, Lanes
from stoker.loader.report import LoaderReport, Tally


class Entry(NamedTuple):
    """One `next()` that returned a batch; times in seconds of CLOCK_MONOTONIC."""

    lane: Lane
    told: Delivered
    began_s: float
    ended_s: float
    copied_s: float | None
    """When a copy that it had to make began."""


class Books:
    """A loader's accounts."""

    def __init__(self, lanes: Lanes, log: RunLog | None, rank: int) -> None:
        self._lanes = lanes
        self._log = log
        self._rank = rank
        self._tally = Tally()
        self._entries: deque[Entry] = deque()

    @property
    def logs(self) -> bool:
        """Whether there is a run log."""
        return self._log is not None

    def note(self, entry: Entry) -> None:
        """A batch was returned."""
        self._entries.append(entry)

    def skipped(self, bad: tuple[Bad, ...]) -> None:
        """Samples of a batch that nobody got."""
        self._tally.skipped(bad)

    def settle(self) -> None:
        """Put every entry into the sums."""
        while self._entries:
            self._account(self._entries.popleft())

    def _account(self, entry: Entry) -> None:
        lanes, told, began, ended = self._lanes, entry.told, entry.began_s, entry.ended_s
        entry.lane.feeder.counts = told.counts
        starting = None if self._tally.batches else lanes.start_interval()
        if entry.copied_s is None and starting is None and told.timeline.last_s <= began:
            parts: dict[Stage, float] = {"hand_over": ended - began}  # it lay ready
        else:
            intervals = told.timeline.intervals()
            if entry.copied_s is not None:
                intervals.append(("copy", entry.copied_s, ended))
            if starting is not None:
                intervals.append(("start", *starting))
            parts = attribute(began, ended, intervals)
        self._tally.waited(began, ended, parts)
        self._tally.got(told.rows, told.bad, lanes.counts() if len(lanes) > 1 else told.counts)
        lanes.waited(ended - began)
        decisions = lanes.decisions()
        if self._log is None:
            return
        self._log.write(
            "batch", epoch=told.epoch, step=told.step, rows=told.rows, rank=self._rank, began_s=began,
            wait_s=ended - began, stages={k: round(v, 6) for k, v in parts.items()}, bad=[b.key for b in told.bad],
            counts=told.counts,
        )  # fmt: skip
        for one in decisions:
            self._log.write("control", rank=self._rank, reason=one.reason, **asdict(one.setting))

    def mixed(self, epoch: int, counts: Mapping[str, int]) -> None:
        """An epoch of a mixture is over: how many samples of each part it had."""
        self.settle()
        if self._log is not None:
            self._log.write("mixture", epoch=epoch, counts=counts)

    def report(self) -> LoaderReport:
        """The sums so far."""
        self.settle()
        return self._tally.report()

    def bad(self) -> list[Bad]:
        """The samples that could not be used."""
        self.settle()
        return list(self._tally.bad)

    def close(self) -> None:
        """Write what is left."""
        self.settle()
        if self._log is not None:
            self._log.close()
            self._log = None
