"""The search: rounds of trials by successive halving over what decides the rate, then the other knobs one by one.

Why in two parts. Workers and prefetching decide the rate, and a few short looks tell most of them apart. How workers
start, whether they stay between epochs, and page-locked memory change starts, seams and copies, hardly the steady rate:
they need no trial with every number of workers, only with the best one. A full grid has several times as many trials.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from stoker import machine
from stoker.errors import StokerError, UsageError
from stoker.tune.halving import rounds, survivors
from stoker.tune.report import TuneReport
from stoker.tune.settings import KNOBS, Setting, first_field, start_workers, variants, workers_max
from stoker.tune.trial import Order, Target, Trial
from stoker.tune.verdict import HEADROOM, SLACK, Ground, advice, best_trials, choose_rate, choose_rest, rate_reasons
from stoker.tune.watch import Bounds, probe, run_trial, shm_free
from stoker.units import format_bytes, format_duration

SHM_SHARE = 0.9
RAM_SHARE = 0.8
"""Share of the free memory that the loaders of all GPUs of the node may take together."""
CONFIRM_S_MAX = 15.0
CONFIRM_STEPS = 20


@dataclass(frozen=True, slots=True)
class Limits:
    """What a tuning may take."""

    seconds: float = 4.0
    """How long the last round measures a setting; earlier ones half and a quarter of it."""
    quiet_s: float = 60.0
    """A trial that tells nothing for so long has hung."""
    budget_s: float = 900.0
    """After that no new trial begins."""
    ram_bytes: int | None = None
    """Memory of one trial; default: 80 % of what is free, divided by the GPUs."""
    gpus: int = 1
    """Training processes of this node: each gets its share of CPUs and memory."""
    cpus: int | None = None
    """CPUs of the node; default: those that this process may use."""


Say = Callable[[str], None]


class Search:
    """One tuning under way: what is known, and how the next trial is run."""

    def __init__(self, target: Target, step_s: float | None, limits: Limits, say: Say) -> None:
        self._target, self._limits, self._say = target, limits, say
        ram = limits.ram_bytes or int(machine.memory_bytes_free() * RAM_SHARE / limits.gpus)
        self._bounds = Bounds(limits.quiet_s, ram)
        self._until_s = time.monotonic() + limits.budget_s
        takes, cuda = probe(target, self._bounds)
        if not takes and not target.extra:
            raise UsageError(
                f"{target.factory} takes none of {', '.join(KNOBS)}: there is nothing to tune",
                "give it keyword arguments of these names and pass them to DataLoader",
            )
        cpus = limits.cpus or machine.cpus()
        share = max(1, cpus // limits.gpus)
        enough = math.inf if step_s is None else HEADROOM / step_s
        self.ground = Ground(share, start_workers(cpus, limits.gpus), enough, cuda, takes)
        self.trials: list[Trial] = []
        self.complete = True

    def run(self, setting: Setting, seconds: float, *, again: bool = False, step_s: float = 0.0) -> Trial | None:
        """One trial; None when the time is over. What cannot fit is not tried, and said."""
        if time.monotonic() > self._until_s:
            self.complete = False
            return None
        trial = self._unfit(setting)
        if trial is None:
            trial = run_trial(self._order(setting, seconds, again, step_s), setting, self._bounds)
        self.trials.append(trial)
        what = setting.line(self.ground.takes) or "as it is"
        found = f"{trial.rate:.3g} batches/s" if trial.status == "ok" else f"{trial.status}: {trial.message}"
        self._say(f"{what}: {found} ({format_duration(trial.wall_s)})")
        return trial

    def beside(self, target: Target) -> Trial:
        """A loader without knobs, on the same share of the CPUs."""
        order = Order(target, {}, 1, 1, self._limits.seconds, again=False, cpus=self._cpus())
        trial = run_trial(order, None, self._bounds)
        self._say(f"stoker.Loader: {trial.rate:.3g} batches/s ({format_duration(trial.wall_s)})")
        return trial

    def _order(self, setting: Setting, seconds: float, again: bool, step_s: float) -> Order:
        arguments = setting.arguments(self.ground.takes)
        workers = setting.num_workers if "num_workers" in self.ground.takes else self.ground.start
        return Order(
            self._target, arguments, workers, setting.prefetch_factor, seconds, again=again, step_s=step_s,
            cpus=self._cpus(),
        )  # fmt: skip

    def _cpus(self) -> tuple[int, ...]:
        """The share of one of the node's training processes; all of them where it is alone."""
        if self._limits.gpus == 1 or not hasattr(os, "sched_getaffinity"):
            return ()
        return tuple(sorted(os.sched_getaffinity(0))[: self.ground.cpus])

    def _unfit(self, setting: Setting) -> Trial | None:
        size = max((trial.batch_bytes for trial in self.trials), default=0)
        held = size * setting.in_flight() if setting.num_workers else 0
        for free, share, name in ((shm_free(), SHM_SHARE, "/dev/shm"), (self._bounds.ram_bytes, 1.0, "the memory")):
            if held > free * share:
                message = f"its batches under way, {format_bytes(held)}, do not fit {name}, {format_bytes(free)} free"
                return Trial(setting, "skipped", message)
        return None

    # --- the rate ---

    def first(self) -> Setting:
        """The setting where the search begins, once a trial of it has worked. StokerError where none does."""
        takes = self.ground.takes
        contexts = ("fork", "forkserver") if "multiprocessing_context" in takes else (None,)
        begin = self._limits.seconds / 4
        persistent = "persistent_workers" in takes
        tried = [Setting(self.ground.start, persistent_workers=persistent, multiprocessing_context=c) for c in contexts]
        tried += [Setting(0, persistent_workers=persistent)] if "num_workers" in takes else []
        for setting in tried:
            trial = self.run(setting, begin)
            if trial is not None and trial.status == "ok":
                return setting
            if len(self.trials) > 1 and trial is not None and trial.message == self.trials[-2].message:
                break  # it is not the setting
            if trial is not None and trial.status == "empty":
                raise StokerError(f"{trial.message}, with {setting.line(takes)}", "is its dataset empty?")
        if not self.trials:
            raise StokerError(
                f"the time for tuning, {format_duration(self._limits.budget_s)}, was over before the first trial",
                "--budget gives more",
            )
        last = self.trials[-1]
        raise StokerError(
            f"{self._target.factory} works with no setting; with {last.setting.line(takes) if last.setting else ''}: "
            f"{last.status}: {last.message}"
        )

    def rate(self, begin: Setting) -> Setting | None:
        """Rounds over workers × prefetching, and upwards as long as more workers help; the winner."""
        field = first_field(self.ground.start, self.ground.takes, begin.multiprocessing_context)
        if begin.num_workers == 0 and "num_workers" in self.ground.takes:  # workers do not work here at all
            field = [begin]
        plan = rounds(len(field), seconds=self._limits.seconds)
        for number, stage in enumerate(plan):
            last = number == len(plan) - 1
            for setting in field:
                if number or setting not in best_trials(self.trials):
                    self.run(setting, stage.seconds, again=last)
            if number == 0:
                field += self._upwards(field, stage.seconds)
            if not last:
                field = self._left(field, plan[number + 1].candidates)
        return self._sure()

    def _sure(self) -> Setting | None:
        """The best of all that was tried, once it was measured for the full time: a short look may have flattered."""
        while True:
            known = best_trials(self.trials)
            winner = choose_rate(self.trials, list(known), self.ground)
            if winner is None or known[winner].seconds >= self._limits.seconds:
                return winner
            if self.run(winner, self._limits.seconds, again=True) is None:
                return winner

    def _left(self, field: list[Setting], keep: int) -> list[Setting]:
        known = best_trials(self.trials)
        return survivors(
            field, keep, rate=lambda one: known[one].rate if one in known else 0.0, cost=Setting.cost,
            enough=self.ground.enough,
        )  # fmt: skip

    def _upwards(self, field: list[Setting], seconds: float) -> list[Setting]:
        """Twice as many workers, while the most so far are the best by more than 3 % and not enough."""
        added: list[Setting] = []
        while True:
            known = best_trials(self.trials)
            top = max((one.num_workers for one in known), default=0)
            most = [t for s, t in known.items() if s.num_workers == top]
            rest = [t.rate for s, t in known.items() if s.num_workers < top]
            best = max(most, key=lambda t: t.rate, default=None)
            if best is None or best.setting is None or not rest or best.rate >= self.ground.enough:
                return added
            if best.rate <= max(rest) * (1 + SLACK) or not 0 < top * 2 <= workers_max(self.ground.cpus):
                return added
            setting = replace(best.setting, num_workers=top * 2)
            trial = self.run(setting, seconds)
            if trial is None or trial.status != "ok":
                return added
            added.append(setting)

    # --- the rest ---

    def others(self, winner: Setting) -> None:
        """The winner's variants."""
        for setting in variants(winner, self.ground.takes, cuda=self.ground.cuda):
            self.run(setting, self._limits.seconds / 2, again=True)

    def confirm(self, chosen: Setting, step_s: float | None) -> Trial | None:
        """A trial of the choice as a whole: with the training step's time, or where it was not tried as it is."""
        here = chosen if self.ground.cuda else replace(chosen, pin_memory=False)
        if step_s is not None:
            seconds = min(CONFIRM_S_MAX, max(self._limits.seconds, CONFIRM_STEPS * step_s))
            return self.run(here, seconds, step_s=step_s)
        return None if here in best_trials(self.trials) else self.run(here, self._limits.seconds / 2)


def tune(
    target: Target,
    *,
    step_s: float | None = None,
    limits: Limits | None = None,
    beside: Target | None = None,
    say: Say = lambda line: None,
) -> TuneReport:
    """Find the settings of *target*'s loader that feed a step of *step_s* at the least cost, or the fastest ones.

    Every trial draws real batches in a process of its own. *beside* is a loader without knobs to compare with. *say* is
    told of each trial. Raises UsageError for a factory that cannot be used, StokerError where no setting works.
    """
    allowed = limits or Limits()
    for name, value in (
        ("seconds", allowed.seconds), ("quiet_s (--limit)", allowed.quiet_s), ("gpus", allowed.gpus),
        ("budget_s (--budget)", allowed.budget_s),
    ):  # fmt: skip
        if not value > 0:
            raise UsageError(f"{name} must be above 0, found {value!r}")
    if step_s is not None and not step_s > 0:
        raise UsageError(f"a step takes longer than 0, found {step_s!r}")
    search = Search(target, step_s, allowed, say)
    winner = search.rate(search.first())
    reasons: list[str] = []
    chosen = measured = confirmed = None
    if winner is not None:
        search.others(winner)
        ground = search.ground
        measured = best_trials(search.trials).get(winner)
        if measured is not None:
            chosen, rest = choose_rest(winner, search.trials, ground)
            reasons = [*rate_reasons(winner, search.trials, ground), *rest]
    if chosen is not None and winner is not None:
        confirmed = search.confirm(chosen, step_s)
        if confirmed is not None and confirmed.status != "ok":  # each knob was tried alone: together they do not work
            chosen, reasons = winner, [*reasons, f"the other knobs as first tried: together, {confirmed.message}"]
    compared = search.beside(beside) if beside is not None else None
    told: list[str] = []
    if measured is not None and step_s is not None and measured.rate < search.ground.enough:
        told = advice(measured, search.trials, search.ground, step_s)
    return TuneReport(
        target, search.ground, allowed.gpus, step_s, tuple(search.trials), chosen, measured, tuple(reasons),
        tuple(told), confirmed, compared, search.complete,
    )  # fmt: skip
