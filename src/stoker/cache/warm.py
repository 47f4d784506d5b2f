"""Filling the cache ahead of use, in order of first use, so that training can begin before all is there."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from dataclasses import dataclass
from typing import Protocol

from stoker.cache.admit import Admitter, Flight, Outcome, admit
from stoker.cache.home import Home
from stoker.cache.objects import PIECES_AT_ONCE, Line
from stoker.cache.policy import entry_name
from stoker.clock import SYSTEM, Clock
from stoker.events import Recorder
from stoker.flow import Progress, parallel_map
from stoker.index.entry import ObjectRef
from stoker.store.base import HasPaths, Store
from stoker.store.wrap import innermost

WORKERS_LOCAL, WORKERS_REMOTE = 4, 16
"""Objects brought in side by side: of files, more threads only get in the way; of a server, they hide latency."""
ELSEWHERE_S_MAX = 0.25
"""Longest pause between two looks at an object that another process brings in."""


class Shards(Protocol):
    """What can be warmed: a dataset."""

    @property
    def store(self) -> Store: ...

    def objects(self) -> Iterable[ObjectRef]:
        """Every object once, in order of first use."""
        ...


@dataclass(frozen=True, slots=True)
class WarmReport:
    """What became of a dataset's objects."""

    objects: int
    bytes: int
    """Bytes of all objects, as they lie in the cache."""
    admitted_objects: int
    admitted_bytes: int
    """What this call brought in; the rest was there, or was brought by another process meanwhile."""
    refused_objects: int
    refused_bytes: int
    """What had no room: it will be streamed."""
    refused_reason: str
    """Why the last of these was refused: the limit, or the disk; "" when all came in."""
    seconds: float


def warm(
    home: Home, dataset: Shards, *, workers: int | None, progress: Progress, recorder: Recorder, clock: Clock = SYSTEM
) -> WarmReport:
    """Bring every object in that has room. The first failure of the store or the disk ends it."""
    usual = WORKERS_LOCAL if isinstance(innermost(dataset.store), HasPaths) else WORKERS_REMOTE
    at_once = workers or usual
    by = Admitter(home, dataset.store, recorder, lambda: False, Line(at_once * PIECES_AT_ONCE))
    wanted = dataset.objects()
    total = len(wanted) if isinstance(wanted, Sized) else 0
    start_s = clock.monotonic()
    count: dict[Outcome, int] = {}
    size: dict[Outcome, int] = {}

    def one(ref: ObjectRef) -> tuple[Outcome, int]:
        return _until_settled(by, ref, clock), ref.expanded_size if ref.compression else ref.size

    for done, (outcome, length) in enumerate(parallel_map(one, wanted, workers=at_once), 1):
        count[outcome] = count.get(outcome, 0) + 1
        size[outcome] = size.get(outcome, 0) + length
        progress(done, total, sum(size.values()))
    return WarmReport(
        objects=sum(count.values()),
        bytes=sum(size.values()),
        admitted_objects=count.get("admitted", 0),
        admitted_bytes=size.get("admitted", 0),
        refused_objects=count.get("refused", 0),
        refused_bytes=size.get("refused", 0),
        refused_reason=home.refusal if count.get("refused") else "",
        seconds=clock.monotonic() - start_s,
    )


def _until_settled(by: Admitter, ref: ObjectRef, clock: Clock) -> Outcome:
    """Admit the object; when another process has it in hand, wait for what comes of that."""
    name = entry_name(by.store.url, ref)
    pause_s = 0.01
    while True:
        outcome = admit(by, name, ref, Flight())
        if outcome != "elsewhere":
            return outcome
        clock.sleep(pause_s)
        pause_s = min(2 * pause_s, ELSEWHERE_S_MAX)
