"""What was observed of a loop: running totals, and the report made of them. Pure: times come in as numbers.

An iteration is a wait (the time in `next()`) and the step that follows it (until the loop asks again). Three kinds are
kept apart, because a mean over all of them hides each: the run's first wait and the iterations of its warm-up (workers
start, compilers compile, prefetched batches come free), the seams between epochs, and the steady rest, which alone is
held against the thresholds: a wait of more than 0.1 s, and wait/step above 1.0, the design's two.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from heapq import heappush, heapreplace
from typing import Literal

from stoker.observe.sketch import Sketch
from stoker.units import format_duration

Phase = Literal["start", "warmup", "seam", "steady"]

WAIT_S_MAX = 0.1
"""A longer wait is slow: the design's "< 0.1 s is normal"."""
RATIO_MAX = 1.0
"""wait/step above this: the data is slower than the step it feeds (the design's fourth stall signal)."""
ITERATIONS_MIN = 20
"""Steady iterations below which nothing is flagged: a handful says nothing about a run."""
WORST_KEPT = 10
SHARE_WARNED = 0.1
"""Share of time spent waiting above which it is told although no wait was slow (TraceML warns at 10 %, too)."""


@dataclass(frozen=True, slots=True)
class Spread:
    """How a duration was distributed; seconds, quantiles within 1 %."""

    count: int
    total_s: float
    p50_s: float
    p99_s: float
    max_s: float

    @staticmethod
    def of(sketch: Sketch) -> Spread:
        """The spread of what a sketch has counted."""
        return Spread(sketch.count, sketch.total_s, sketch.quantile(0.5), sketch.quantile(0.99), sketch.max_s)


@dataclass(frozen=True, slots=True)
class Slow:
    """One of the longest waits."""

    epoch: int
    step: int
    """Number of the iteration in its epoch, from 0."""
    wait_s: float


@dataclass(frozen=True, slots=True)
class ObserveReport:
    """How long a loop waited for its data."""

    name: str
    epochs: int
    """Passes that gave at least one item."""
    iterations: int
    first_wait_s: float
    """Wait for the run's first item: processes start, imports, first reads."""
    warmup_iterations: int
    """Iterations kept apart at the run's beginning, the first among them."""
    warmup_s: float
    """Their waits and steps together."""
    seams: int
    """Changes from one epoch to the next."""
    seam_wait_s: float
    """Waits at them: an epoch's last `next()`, and `iter()` and the first `next()` of the following one."""
    seam_wait_s_max: float
    wait: Spread
    """The steady waits. p99 far above p50: now and then a sample is slow, or a worker late."""
    step: Spread
    """The steps after the warm-up."""
    slow_waits: int
    """Steady waits longer than `wait_s_max`."""
    starved: int
    """Steady iterations whose wait was longer than `ratio_max` × their step."""
    worst: tuple[Slow, ...]
    """The longest steady waits, the longest first."""
    wait_s_max: float = WAIT_S_MAX
    ratio_max: float = RATIO_MAX

    @property
    def wall_s(self) -> float:
        """Time after the warm-up: steady waits, seams and steps."""
        return self.wait.total_s + self.seam_wait_s + self.step.total_s

    @property
    def wait_share(self) -> float:
        """Share of `wall_s` spent in `next()`, seams included, 0 to 1. Near 0 the data keeps up."""
        return (self.wait.total_s + self.seam_wait_s) / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def wait_per_step(self) -> float:
        """Steady wait over step. Above 1.0 the loop waits longer than it works."""
        return self.wait.total_s / self.step.total_s if self.step.total_s > 0 else 0.0

    @property
    def flags(self) -> tuple[str, ...]:
        """What passed a threshold, in words; empty when all is well or too little was seen."""
        if self.wait.count < ITERATIONS_MIN:
            return ()
        found = []
        if self.slow_waits:
            found.append(
                f"{self.slow_waits:,} of {self.wait.count:,} waits were longer than {format_duration(self.wait_s_max)}"
            )
        if self.wait_per_step > self.ratio_max:
            found.append(f"wait/step is {self.wait_per_step:.2f}, more than {self.ratio_max:g}: the data is the brake")
        elif self.wait_share > SHARE_WARNED:
            found.append(f"{self.wait_share:.0%} of the time is spent waiting for data")
        return tuple(found)

    def to_dict(self) -> dict[str, object]:
        """For JSON: the fields, and what is made of them."""
        made = {name: getattr(self, name) for name in ("wall_s", "wait_share", "wait_per_step", "flags")}
        return {**asdict(self), **made}

    def to_json(self) -> str:
        """One JSON object in one line."""
        return json.dumps(self.to_dict(), separators=(",", ":"))

    def __str__(self) -> str:
        seconds = format_duration
        lines = [
            f"observed {self.name}: {self.iterations:,} iterations, {self.epochs:,} epoch(s)",
            f"first item after {seconds(self.first_wait_s)}; "
            f"{self.warmup_iterations:,} iterations of warm-up, {seconds(self.warmup_s)}, are not counted below",
        ]
        for label, spread in (("wait", self.wait), ("step", self.step)):
            lines.append(
                f"{label}  p50 {seconds(spread.p50_s)}, p99 {seconds(spread.p99_s)}, longest {seconds(spread.max_s)}"
            )
        lines.append(f"waited {self.wait_share:.1%} of {seconds(self.wall_s)}")
        if self.seams:
            lines[-1] += (
                f"; {self.seams:,} seam(s) between epochs took {seconds(self.seam_wait_s)} of it, "
                f"the longest {seconds(self.seam_wait_s_max)}"
            )
        lines += [f"! {flag}" for flag in self.flags]
        if self.flags and self.slow_waits:
            shown = ", ".join(f"epoch {w.epoch} step {w.step} ({seconds(w.wait_s)})" for w in self.worst[:3])
            lines.append(f"  the longest: {shown}")
        if self.wait.count < ITERATIONS_MIN:
            lines.append(f"too little was seen for a verdict: {self.wait.count} steady iterations of {ITERATIONS_MIN}")
        return "\n".join(lines)


class Tally:
    """The running totals behind a report: a few hundred numbers, however long the run."""

    def __init__(self, name: str, *, warmup: int, wait_s_max: float, ratio_max: float) -> None:
        self.name = name
        self._warmup = warmup
        self._wait_s_max = wait_s_max
        self._ratio_max = ratio_max
        self.epochs = 0
        self.iterations = 0
        self._first_wait_s = 0.0
        self._warmup_count = 0
        self._warmup_s = 0.0
        self._seams = 0
        self._seam_s = 0.0
        self._seam_s_max = 0.0
        self._closing_s = 0.0
        self._wait = Sketch()
        self._step = Sketch()
        self._slow = 0
        self._starved = 0
        self._worst: list[tuple[float, int, int]] = []

    def anew(self) -> Tally:
        """One with the same name and thresholds that has seen nothing."""
        return Tally(self.name, warmup=self._warmup, wait_s_max=self._wait_s_max, ratio_max=self._ratio_max)

    def waited(self, epoch: int, step: int, wait_s: float) -> Phase:
        """Item *step* of *epoch* came after *wait_s*; which kind of wait it was."""
        self.iterations += 1
        if self.iterations == 1:
            self._first_wait_s, self._warmup_count, self._warmup_s = wait_s, 1, wait_s
            return "start"
        if self.iterations <= self._warmup:
            self._warmup_count += 1
            self._warmup_s += wait_s
            self._closing_s = 0.0
            return "warmup"
        if step == 0:
            self._seams += 1
            whole = wait_s + self._closing_s
            self._seam_s += whole
            self._seam_s_max = max(self._seam_s_max, whole)
            self._closing_s = 0.0
            return "seam"
        self._wait.add(wait_s)
        if wait_s > self._wait_s_max:
            self._slow += 1
        worst = self._worst
        if len(worst) < WORST_KEPT:
            heappush(worst, (wait_s, epoch, step))
        elif wait_s > worst[0][0]:
            heapreplace(worst, (wait_s, epoch, step))
        return "steady"

    def stepped(self, phase: Phase, wait_s: float, step_s: float) -> None:
        """The step after a wait of *phase* took *step_s*."""
        if phase == "steady":
            self._step.add(step_s)
            if wait_s > self._ratio_max * step_s:
                self._starved += 1
        elif phase == "seam":
            self._step.add(step_s)
        else:
            self._warmup_s += step_s

    def ended(self, wait_s: float) -> None:
        """An epoch's last `next()` found nothing more after *wait_s*: half of the seam, if another epoch follows."""
        self._closing_s = wait_s

    def report(self) -> ObserveReport:
        """The totals so far as a value."""
        worst = tuple(Slow(epoch, step, wait) for wait, epoch, step in sorted(self._worst, reverse=True))
        return ObserveReport(
            self.name, self.epochs, self.iterations, self._first_wait_s, self._warmup_count, self._warmup_s,
            self._seams, self._seam_s, self._seam_s_max, Spread.of(self._wait), Spread.of(self._step), self._slow,
            self._starved, worst, self._wait_s_max, self._ratio_max,
        )  # fmt: skip
