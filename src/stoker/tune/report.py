"""What a tuning found, as a value, as text and for JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from stoker.tune.settings import Setting
from stoker.tune.trial import Target, Trial
from stoker.tune.verdict import HEADROOM, Ground, best_trials
from stoker.units import format_bytes, format_duration

WAIT_SHARE_FED = 0.01
HEADINGS = (
    "workers",
    "prefetch",
    "context",
    "persist",
    "pin",
    "batches/s",
    "first",
    "seam",
    "memory",
    "shm",
    "seconds",
)


@dataclass(frozen=True, slots=True)
class TuneReport:
    """The trials, the choice and its reasons."""

    target: Target
    ground: Ground
    gpus: int
    step_s: float | None
    trials: tuple[Trial, ...]
    chosen: Setting | None
    """None: no setting worked."""
    measured: Trial | None
    """The longest trial of the chosen number of workers."""
    reasons: tuple[str, ...]
    advice: tuple[str, ...]
    """What would feed the step, where nothing does."""
    confirmed: Trial | None
    """The chosen setting with the step's time waited after every batch."""
    beside: Trial | None
    """`stoker.Loader` on the same data, where there is one."""
    complete: bool
    """False when the time for tuning was over before the search was."""

    @property
    def feeds(self) -> bool | None:
        """Whether the choice gives the step 1.2 × what it takes; None without a step time."""
        if self.step_s is None:
            return None
        return self.measured is not None and self.measured.rate * self.step_s >= HEADROOM * (1 - 1e-9)

    @property
    def line(self) -> str:
        """What to paste."""
        if self.chosen is None:
            return ""
        name = "DataLoader(…, " if self.target.extra else f"{self.target.factory.rpartition(':')[2]}("
        return f"{name}{self.chosen.line(self.ground.takes)})"

    def to_dict(self) -> dict[str, object]:
        """For JSON."""
        takes = self.ground.takes
        return {
            "factory": self.target.factory,
            "takes": list(takes),
            "cpus": self.ground.cpus,
            "gpus": self.gpus,
            "cuda": self.ground.cuda,
            "step_s": self.step_s,
            "needed_batches_per_s": None if self.step_s is None else self.ground.enough,
            "feeds": self.feeds,
            "chosen": None if self.chosen is None else self.chosen.arguments(takes),
            "line": self.line,
            "reasons": list(self.reasons),
            "advice": list(self.advice),
            "measured": None if self.measured is None else asdict(self.measured),
            "confirmed": None if self.confirmed is None else asdict(self.confirmed),
            "stoker_loader": None if self.beside is None else asdict(self.beside),
            "complete": self.complete,
            "trials": [{**asdict(trial), "epoch_rate": trial.epoch_rate} for trial in self.trials],
        }


def table(trials: Sequence[Trial], chosen: Setting | None = None) -> list[str]:
    """One line a setting, its longest trial; failures with their reason."""
    rows: list[tuple[tuple[str, ...], str]] = [(HEADINGS, "")]
    known = best_trials(trials)
    for trial in sorted(known.values(), key=_place):
        assert trial.setting is not None
        mark = "  ← chosen" if trial.setting == chosen else ""
        rows.append((_cells(trial.setting, trial), mark))
    for trial in trials:
        if trial.status != "ok" and trial.setting is not None:
            first = trial.message.splitlines()[0] if trial.message else ""
            rows.append(((*_knobs(trial.setting), *("-",) * 6), f"  {trial.status}: {first}"))
    widths = [max(len(cells[at]) for cells, _ in rows) for at in range(len(HEADINGS))]
    return ["  ".join(cell.rjust(w) for cell, w in zip(cells, widths, strict=True)) + end for cells, end in rows]


def _place(trial: Trial) -> tuple[object, ...]:
    assert trial.setting is not None
    s = trial.setting
    return (s.num_workers, s.prefetch_factor, s.multiprocessing_context or "", not s.persistent_workers, s.pin_memory)


def _knobs(setting: Setting) -> tuple[str, ...]:
    if setting.num_workers == 0:
        return "0", "-", "-", "-", "yes" if setting.pin_memory else "no"
    return (
        str(setting.num_workers), str(setting.prefetch_factor), setting.multiprocessing_context or "default",
        "yes" if setting.persistent_workers else "no", "yes" if setting.pin_memory else "no",
    )  # fmt: skip


def _cells(setting: Setting, trial: Trial) -> tuple[str, ...]:
    return (
        *_knobs(setting), f"{trial.rate:.3g}", format_duration(trial.first_s),
        "" if trial.again_s is None else format_duration(trial.again_s), format_bytes(trial.ram_bytes),
        format_bytes(max(0, trial.shm_bytes)), f"{trial.seconds:.1f}",
    )  # fmt: skip


def text(report: TuneReport) -> list[str]:
    """What a person reads: the table, the reasons, the verdict, the line to paste last."""
    chosen = report.chosen
    lines = table(report.trials, chosen if chosen is None or report.ground.cuda else replace(chosen, pin_memory=False))
    if report.beside is not None and report.beside.status == "ok":
        beside = report.beside
        lines.append(f"stoker.Loader on the same data: {beside.rate:.3g} batches/s, {format_bytes(beside.ram_bytes)}")
    elif report.beside is not None:
        lines.append(f"stoker.Loader on the same data: {report.beside.status}: {report.beside.message}")
    if not report.complete:
        lines.append("the time for tuning was over before all was tried: --budget gives more")
    if report.chosen is None:
        return [*lines, "no setting worked: see the reasons in the table"]
    lines += [f"- {reason}" for reason in report.reasons]
    if report.measured is not None and report.step_s is not None:
        able, need = report.measured.rate, report.ground.enough
        verdict = "feeds" if report.feeds else "does not feed"
        lines.append(
            f"{verdict} a step of {format_duration(report.step_s)}: {able:.3g} batches/s, needed are {need:.3g} "
            f"(1 / step × {HEADROOM:g})"
        )
    if report.confirmed is not None and report.confirmed.wait_share is not None:
        lines.append(f"with that step after every batch, {report.confirmed.wait_share:.1%} of the time was waiting")
    lines += [f"  {line}" for line in report.advice]
    return [*lines, report.line]
