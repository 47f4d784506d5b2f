"""What can be set on a DataLoader, and which settings are worth a trial. Pure.

The rules of thumb are those of the system's design document: num_workers = min(16, CPUs // GPUs), prefetch_factor 2 to
4, pinned memory, persistent workers, forkserver. They are where the search begins, not where it ends.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

KNOBS = ("num_workers", "prefetch_factor", "pin_memory", "persistent_workers", "multiprocessing_context")
"""The keyword arguments of a factory that are tried, if it takes them."""
CONTEXTS = ("forkserver", "fork", "spawn")
WORKERS_RULE_MAX = 16
WORKERS_A_CPU_MAX = 8
"""Workers that mostly wait may be many, but each costs memory and, at its start, seconds of CPU."""
PREFETCHES = (2, 4)


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to start a DataLoader."""

    num_workers: int
    prefetch_factor: int = 2
    pin_memory: bool = False
    persistent_workers: bool = True
    multiprocessing_context: str | None = None
    """None: torch's default, or a factory that does not take it."""

    def arguments(self, takes: Collection[str]) -> dict[str, Any]:
        """The keyword arguments of a factory that *takes* some of the knobs. Without workers torch wants None."""
        values: dict[str, Any] = {name: getattr(self, name) for name in KNOBS}
        if self.num_workers == 0 and "num_workers" in takes:
            values.update(prefetch_factor=None, persistent_workers=False, multiprocessing_context=None)
        return {name: values[name] for name in KNOBS if name in takes}

    def line(self, takes: Collection[str]) -> str:
        """The arguments as one types them; what is torch's default without workers is left out."""
        shown = {
            n: v for n, v in self.arguments(takes).items() if not (v is None or (n != "num_workers" and v is False))
        }
        return ", ".join(f"{name}={value!r}" for name, value in shown.items())

    def in_flight(self) -> int:
        """Batches that lie ready or are being made, at most."""
        return max(1, self.num_workers * self.prefetch_factor)

    def cost(self) -> tuple[int, int]:
        """What is cheaper comes first: fewer workers, then fewer batches held."""
        return self.num_workers, self.prefetch_factor


def start_workers(cpus: int, gpus: int) -> int:
    """The rule of thumb: min(16, CPUs // GPUs), at least 1."""
    return max(1, min(WORKERS_RULE_MAX, cpus // gpus))


def worker_ladder(start: int) -> tuple[int, ...]:
    """Numbers of workers to try: none, and powers of two around *start*."""
    return tuple(sorted({0, max(1, start // 4), max(1, start // 2), start, 2 * start, 4 * start}))


def workers_max(cpus: int) -> int:
    """The most workers that a search goes up to, on so many CPUs."""
    return max(WORKERS_RULE_MAX, WORKERS_A_CPU_MAX * cpus)


def first_field(start: int, takes: Collection[str], context: str | None) -> list[Setting]:
    """Numbers of workers × prefetch factors: what decides the rate. The other knobs are at their rules of thumb."""
    workers = worker_ladder(start) if "num_workers" in takes else (start,)
    prefetches = PREFETCHES if "prefetch_factor" in takes else PREFETCHES[:1]
    persistent = "persistent_workers" in takes
    found = []
    for number in workers:
        for prefetch in prefetches if number else prefetches[:1]:
            found.append(Setting(number, prefetch, persistent_workers=persistent, multiprocessing_context=context))
    return found


def variants(winner: Setting, takes: Collection[str], *, cuda: bool) -> list[Setting]:
    """The winner with one of the other knobs turned: how workers start, whether they stay, page-locked memory."""
    if winner.num_workers == 0 and "num_workers" in takes:
        return [replace(winner, pin_memory=True)] if cuda and "pin_memory" in takes else []
    found = []
    if "multiprocessing_context" in takes:
        others = (context for context in CONTEXTS if context != winner.multiprocessing_context)
        found += [replace(winner, multiprocessing_context=context) for context in others]
    if "persistent_workers" in takes:
        found.append(replace(winner, persistent_workers=not winner.persistent_workers))
    if "pin_memory" in takes and cuda:
        found.append(replace(winner, pin_memory=not winner.pin_memory))
    return found


def full_grid(start: int, takes: Collection[str], *, most: int, cuda: bool) -> list[Setting]:
    """Every combination up to *most* workers: what a search without a plan would try. For `bench/tune.py`."""
    found: list[Setting] = []
    field = first_field(start, takes, None)
    top = max(setting.num_workers for setting in field)
    while "num_workers" in takes and 0 < top * 2 <= most:
        field += [replace(setting, num_workers=top * 2) for setting in field if setting.num_workers == top]
        top *= 2
    for setting in field:
        alone = setting.num_workers == 0 and "num_workers" in takes
        for context in CONTEXTS if "multiprocessing_context" in takes and not alone else (None,):
            for persistent in (True, False) if "persistent_workers" in takes and not alone else (False,):
                for pin in (True, False) if "pin_memory" in takes and cuda else (False,):
                    found.append(Setting(setting.num_workers, setting.prefetch_factor, pin, persistent, context))
    return found
