"""From trials to a choice, its reasons, and what would help where no setting feeds the step. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from stoker.tune.halving import cheapest_of_the_best
from stoker.tune.settings import Setting
from stoker.tune.trial import Trial
from stoker.units import format_bytes, format_duration

HEADROOM = 1.2
"""Supply is to be 1.2 × what the step takes: the design's rule."""
SLACK = 0.03
BUSY = 0.85
"""CPU time over CPU time to be had from which the CPUs are the limit."""
WORKER_MARGIN = 1.1
WAVER = 0.1


@dataclass(frozen=True, slots=True)
class Ground:
    """What the trials ran on and for."""

    cpus: int
    """CPUs that one of the training processes may use."""
    start: int
    """num_workers by the rule of thumb."""
    enough: float
    """Batches a second that feed the step with 20 % to spare; infinite where no step time was given."""
    cuda: bool
    takes: tuple[str, ...]


def best_trials(trials: Sequence[Trial]) -> dict[Setting, Trial]:
    """For every setting that worked to the end, its longest trial. One that failed once is out."""
    found: dict[Setting, Trial] = {}
    failed = {trial.setting for trial in trials if trial.status != "ok"}
    for trial in trials:
        if trial.setting is None or trial.setting in failed or trial.wait_share is not None:
            continue
        known = found.get(trial.setting)
        if known is None or (trial.seconds, trial.again_s is not None) >= (known.seconds, known.again_s is not None):
            found[trial.setting] = trial
    return found


def choose_rate(trials: Sequence[Trial], settings: Sequence[Setting], ground: Ground) -> Setting | None:
    """The cheapest of *settings* that feeds the step, else the cheapest within 3 % of the fastest."""
    known = best_trials(trials)
    return cheapest_of_the_best(
        [one for one in settings if one in known],
        rate=lambda one: known[one].rate, cost=Setting.cost, enough=ground.enough, slack=SLACK,
    )  # fmt: skip


def choose_rest(winner: Setting, trials: Sequence[Trial], ground: Ground) -> tuple[Setting, list[str]]:
    """The winner with the other knobs where they are best, and why."""
    known, reasons, chosen = best_trials(trials), [], winner
    base = known[winner]
    if "multiprocessing_context" in ground.takes and winner.num_workers:
        chosen, why = _context(chosen, winner, known)
        reasons.append(why)
    if "persistent_workers" in ground.takes and winner.num_workers:
        other = known.get(replace(winner, persistent_workers=not winner.persistent_workers))
        chosen, why = _persistent(chosen, base, other)
        reasons.append(why)
    if "pin_memory" in ground.takes:
        other = known.get(replace(winner, pin_memory=not winner.pin_memory))
        chosen, why = _pinned(chosen, base, other, ground)
        reasons.append(why)
    return chosen, reasons


def _context(chosen: Setting, winner: Setting, known: dict[Setting, Trial]) -> tuple[Setting, str]:
    tried = {s.multiprocessing_context: t for s, t in known.items() if _same_but_context(s, winner)}
    if not tried:
        return chosen, "multiprocessing_context: torch's default; none could be compared"
    base = known[winner]
    over = {name: _over_epoch(trial, base) for name, trial in tried.items()}
    best, safe = max(over.values()), tried.get("forkserver")
    told = ", ".join(
        f"{name} {_seam(trial) or f'{trial.rate:.3g} batches/s'}" for name, trial in sorted(tried.items(), key=str)
    )
    if safe is not None and over["forkserver"] >= best * (1 - SLACK):
        why = f"multiprocessing_context='forkserver': as fast as any ({told}), and it copies no locks or threads"
        return replace(chosen, multiprocessing_context="forkserver"), why
    name = max(over, key=lambda one: over[one])
    why = f"multiprocessing_context={name!r}: over an epoch it is the fastest ({told})"
    if safe is None:
        why += "; forkserver failed"
    return replace(chosen, multiprocessing_context=name), why


def _over_epoch(trial: Trial, base: Trial) -> float:
    """Batches a second over an epoch and its seam, at the steady rate of *base*: within 10 % the two waver alike."""
    comparable = trial.again_s is not None and base.again_s is not None
    if comparable and abs(trial.rate / base.rate - 1) < WAVER:
        return replace(trial, rate=base.rate).epoch_rate
    return trial.epoch_rate


def _same_but_context(setting: Setting, winner: Setting) -> bool:
    return replace(setting, multiprocessing_context=winner.multiprocessing_context) == winner


def _seam(trial: Trial) -> str:
    return "" if trial.again_s is None else f"{format_duration(trial.again_s)} to the next epoch"


def _persistent(chosen: Setting, base: Trial, other: Trial | None) -> tuple[Setting, str]:
    assert base.setting is not None
    stays, goes = (base, other) if base.setting.persistent_workers else (other, base)
    if stays is None or goes is None:
        value = base.setting.persistent_workers
        return chosen, f"persistent_workers={value}: the other failed or was not tried"
    if _over_epoch(goes, base) > _over_epoch(stays, base) * (1 + SLACK):
        return replace(chosen, persistent_workers=False), (
            f"persistent_workers=False: {goes.epoch_rate:.3g} batches/s over an epoch, {stays.epoch_rate:.3g} with them"
        )
    parts = [text for text in (_seam(stays), _seam(goes)) if text]
    told = f": {parts[0]}, without them {parts[1]}" if len(parts) == 2 else ": workers start once, not every epoch"
    return replace(chosen, persistent_workers=True), f"persistent_workers=True{told}"


def _pinned(chosen: Setting, base: Trial, other: Trial | None, ground: Ground) -> tuple[Setting, str]:
    if not ground.cuda:
        return replace(chosen, pin_memory=True), (
            "pin_memory=True: by rule, copies to the GPU are about twice as fast; not measured, there is no GPU here"
        )
    assert base.setting is not None
    pinned, pageable = (base, other) if base.setting.pin_memory else (other, base)
    if pinned is None or pageable is None:
        return chosen, f"pin_memory={chosen.pin_memory}: the other failed or was not tried"
    better = pinned.rate >= pageable.rate
    told = f"{pinned.rate:.3g} batches/s on the GPU with it, {pageable.rate:.3g} without"
    return replace(chosen, pin_memory=better), f"pin_memory={better}: {told}"


def rate_reasons(winner: Setting, trials: Sequence[Trial], ground: Ground) -> list[str]:
    """Why so many workers, and so much prefetching."""
    known = best_trials(trials)
    base, found = known[winner], []
    if "num_workers" in ground.takes:
        more = [t for s, t in known.items() if s.num_workers > winner.num_workers]
        fewer = [t for s, t in known.items() if s.num_workers < winner.num_workers]
        why = f"num_workers={winner.num_workers}: {base.rate:.3g} batches/s"
        if base.rate >= ground.enough:
            why += f", the fewest that give the {ground.enough:.3g} that the step needs with 20 % to spare"
        elif more:
            why += f"; with more it is at most {max(t.rate for t in more):.3g}"
        if fewer:
            nearest = max(fewer, key=lambda t: (t.setting.num_workers if t.setting else 0, t.rate))
            assert nearest.setting is not None
            why += f"; with {nearest.setting.num_workers} it is {nearest.rate:.3g}"
        found.append(f"{why} (rule of thumb: {ground.start})")
    if "prefetch_factor" in ground.takes and winner.num_workers:
        others = [
            t
            for s, t in known.items()
            if s.num_workers == winner.num_workers and s.prefetch_factor != winner.prefetch_factor
        ]
        why = f"prefetch_factor={winner.prefetch_factor}: holds {winner.in_flight()} batches"
        if base.batch_bytes:
            why += f", {format_bytes(winner.in_flight() * base.batch_bytes)}"
        if others and others[0].setting is not None:
            why += f"; {others[0].setting.prefetch_factor} gives {others[0].rate:.3g} batches/s"
        found.append(why)
    return found


def advice(winner: Trial, trials: Sequence[Trial], ground: Ground, step_s: float) -> list[str]:
    """What would feed the step, where *winner*, the best, does not: more CPUs, more workers, or faster reading."""
    need, found = ground.enough, []
    assert winner.setting is not None
    factor = need / winner.rate
    used = winner.cpu_s * winner.rate / ground.cpus
    workers = max(1, winner.setting.num_workers)
    if used >= BUSY:
        cores = math.ceil(winner.cpu_s * need)
        found.append(
            f"the CPUs are the limit ({used:.0%} of {ground.cpus} busy): {cores} CPUs for each GPU would feed it, or "
            f"samples that cost {1 / factor:.0%} of the CPU time (smaller pictures: `stoker pack --resize-short`)"
        )
    else:
        largest = max((s.num_workers for s in best_trials(trials)), default=0)
        if winner.setting.num_workers >= largest and winner.setting.num_workers:
            per_batch = workers / winner.rate
            number = math.ceil(WORKER_MARGIN * per_batch * need / HEADROOM)
            found.append(
                f"the rate still grows with the workers: about {number} would feed it, if CPUs, memory and storage let "
                f"them (a batch takes a worker {format_duration(per_batch)})"
            )
        else:
            cpu = f" while {1 - used:.0%} of {ground.cpus} CPUs are idle" if winner.cpu_s else ""
            found.append(
                f"more workers do not help{cpu}: what they wait for must be {factor:.1f} × as fast (storage: a local "
                "cache or larger shards; or a lock that they share)"
            )
    found.append(
        f"as it is, it feeds a step of {format_duration(HEADROOM / winner.rate)}, not {format_duration(step_s)}"
    )
    return found
