"""`stoker.observe(iterable)`: the same items, and how long the loop waited for each of them.

It stands between a loop and whatever feeds it, and changes nothing: length, attributes and methods are the wrapped
object's. Surprising: an iteration's step is only known when the loop asks for the next item, so the last step before a
`break` is never counted; its wait is.
"""

from __future__ import annotations

import math
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from stoker.clock import SYSTEM, Clock
from stoker.errors import UsageError
from stoker.events import RunLog
from stoker.observe.report import RATIO_MAX, WAIT_S_MAX, ObserveReport, Phase, Tally

Item = TypeVar("Item")

WARMUP = 10
"""Iterations kept apart at a run's beginning, more where a DataLoader has more batches in flight."""


def observe(
    iterable: Iterable[Item],
    *,
    name: str | None = None,
    warmup: int | None = None,
    wait_s_max: float = WAIT_S_MAX,
    ratio_max: float = RATIO_MAX,
    summary: bool = True,
) -> Observed[Item]:
    """*iterable* itself, its waits and steps measured: `for batch in stoker.observe(loader): …`.

    *iterable* is anything that a loop can run over: a DataLoader, a generator, a `stoker.Loader`. *warmup* is how many
    iterations at the run's beginning are kept apart; default: 10, or a DataLoader's num_workers × prefetch_factor if
    that is more, since so many batches come free. Steady waits over *wait_s_max* seconds, and a wait/step over
    *ratio_max*, are flagged. A *summary* goes to stderr at the end: at `close()`, when the object is dropped, or when
    the interpreter ends. With STOKER_RUN_LOG set, every wait is a line of the run log.

    UsageError when *iterable* cannot be iterated over or a threshold is no number from 0 on.
    """
    if not hasattr(iterable, "__iter__") and not hasattr(iterable, "__getitem__"):
        raise UsageError(f"observe takes what a loop can run over, found {type(iterable).__name__}: {iterable!r:.60}")
    for label, value in (("wait_s_max", wait_s_max), ("ratio_max", ratio_max), ("warmup", warmup or 0)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"{label} must be a number from 0 on, found {value!r}")
    if warmup is not None and not math.isfinite(warmup):
        raise UsageError(f"warmup is a number of iterations, found {warmup!r}")
    if warmup is None:
        warmup = max(WARMUP, _in_flight(iterable))
    tally = Tally(name or type(iterable).__name__, warmup=int(warmup), wait_s_max=wait_s_max, ratio_max=ratio_max)
    return Observed(iterable, tally, summary=summary)


def _in_flight(iterable: object) -> int:
    """Batches that a torch DataLoader has under way: they come free at the start."""
    workers, each = getattr(iterable, "num_workers", 0), getattr(iterable, "prefetch_factor", 0)
    return workers * each if isinstance(workers, int) and isinstance(each, int) else 0


class Observed(Generic[Item]):
    """What `observe` gives: iterable as often as the wrapped object is; other attributes are that object's."""

    __slots__ = ("__weakref__", "_clock", "_end", "_log", "_summary", "_tally", "_wrapped")
    _clock: Clock
    _end: weakref.finalize[..., Any]
    _log: RunLog | None
    _summary: bool
    _tally: Tally
    _wrapped: Iterable[Item]

    def __init__(self, wrapped: Iterable[Item], tally: Tally, *, summary: bool = False, clock: Clock = SYSTEM) -> None:
        own = object.__setattr__
        own(self, "_wrapped", wrapped)
        own(self, "_tally", tally)
        own(self, "_clock", clock)
        own(self, "_summary", summary)
        own(self, "_log", RunLog.from_environment())
        own(self, "_end", weakref.finalize(self, _finish, tally, self._log, summary, os.getpid()))

    def __reduce__(self) -> tuple[Callable[..., Observed[Item]], tuple[object, ...]]:
        # A copy, here or in another process, is observed for itself, from nothing on.
        return _again, (self._wrapped, self._tally.anew(), self._summary)

    def __iter__(self) -> Iterator[Item]:
        return _Pass(self._wrapped, self._tally, self._log, self._clock)

    def __len__(self) -> int:
        return len(self._wrapped)  # type: ignore[arg-type]  # raises TypeError for what has no length, as it would

    def __bool__(self) -> bool:
        return bool(self._wrapped)

    def __repr__(self) -> str:
        return f"stoker.observe({self._wrapped!r})"

    def __getattr__(self, name: str) -> Any:
        if name in Observed.__slots__:  # an object that was not made whole, as in copying
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._wrapped, name, value)

    def report(self) -> ObserveReport:
        """What was seen so far. (The wrapped object's own `report`, where it has one, is had from that object.)"""
        return self._tally.report()

    def close(self) -> None:
        """End the observation (summary, run log), and close the wrapped object if it can be."""
        self._end()
        close = getattr(self._wrapped, "close", None)
        if callable(close):
            close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _again(wrapped: Iterable[Item], tally: Tally, summary: bool) -> Observed[Item]:
    return Observed(wrapped, tally, summary=summary)


def _finish(tally: Tally, log: RunLog | None, summary: bool, pid: int) -> None:
    """The last words, once; a forked child that drops its copy says nothing."""
    if pid != os.getpid():
        return
    report = tally.report()
    if log is not None:
        if report.iterations:
            log.write("observed", **report.to_dict())
        log.close()
    if summary and report.iterations:
        print(report, file=sys.stderr, flush=True)


class _Pass(Iterator[Item]):
    """One pass over the wrapped object."""

    def __init__(self, wrapped: Iterable[Item], tally: Tally, log: RunLog | None, clock: Clock) -> None:
        self._tally = tally
        self._log = log
        self._now = clock.monotonic
        self._epoch = 0
        self._step = 0
        self._phase: Phase = "start"
        self._wait_s = 0.0
        self._returned_s: float | None = None
        began = self._now()
        self._inner = iter(wrapped)
        self._opening_s = self._now() - began
        """Time in `iter()`: a DataLoader starts its workers there. Part of the first wait."""

    def __next__(self) -> Item:
        began_s = self._now()
        step_s = None
        if self._returned_s is not None:
            step_s = began_s - self._returned_s
            self._tally.stepped(self._phase, self._wait_s, step_s)
            self._returned_s = None
        try:
            item = next(self._inner)
        except StopIteration:
            if self._step:
                self._tally.ended(self._now() - began_s)
                self._step = 0
            raise
        returned_s = self._now()
        self._wait_s = returned_s - began_s + self._opening_s
        if self._step == 0:
            self._epoch, self._opening_s = self._tally.epochs, 0.0
            self._tally.epochs += 1
        self._phase = self._tally.waited(self._epoch, self._step, self._wait_s)
        if self._log is not None:
            self._log.write(
                "observe", name=self._tally.name, epoch=self._epoch, step=self._step, began_s=began_s,
                wait_s=self._wait_s, phase=self._phase, previous_step_s=step_s,
            )  # fmt: skip
        self._step += 1
        self._returned_s = self._now()
        return item
