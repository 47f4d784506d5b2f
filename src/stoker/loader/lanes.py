"""The feeders of one loader, in the trainer: nearly always one, more when the user's Python holds the GIL.

Several feeders share the plan step by step in turn, and the trainer takes its batches from them in the same turn: the
order stays what it is. A loader that widens goes on from the very batch that it stands at, once the new feeders are
ready; what the first had made ahead is made again.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from stoker.clock import SYSTEM
from stoker.errors import FeederError
from stoker.loader.batch import Delivered, Failed
from stoker.loader.control import Decision
from stoker.loader.handout import HandOut
from stoker.loader.job import Job, Start
from stoker.loader.process import FeederProcess
from stoker.loader.slab import Slab


class Lane:
    """One feeder and what was handed out of its slots."""

    def __init__(self, job: Job, hand_out: Callable[[Slab], HandOut]) -> None:
        self.feeder = FeederProcess(job)
        self._hand_out = hand_out
        self._handed: HandOut | None = None
        self._rest: list[Delivered] = []
        """Batches that came together with the last one, the next one last."""

    @property
    def handed(self) -> HandOut:
        """There from the first batch on."""
        assert self._handed is not None
        return self._handed

    def receive(self, generation: int) -> Delivered | Failed:
        """The next batch of *generation*; slots of dropped ones go straight back."""
        since_s = SYSTEM.monotonic()
        while (told := self.look(generation)) is None:
            self.feeder.wait(since_s)
        return told

    def look(self, generation: int) -> Delivered | Failed | None:
        """The same if it is there."""
        self.feeder.check_owner()  # what came together lies in memory that the parent gives back
        if self._rest and self._rest[-1].generation == generation:
            return self._rest.pop()
        if self._rest:
            self._rest = []
            self.handed.leave()
        slots = self._handed.freed() if self._handed is not None else []
        while True:
            if slots:
                self.feeder.free(slots)
            told = self.feeder.take()
            if told is None:
                return None
            if self._handed is None and self.feeder.slab is not None:
                self._handed = self._hand_out(self.feeder.slab)
            if told.generation == generation or (isinstance(told, Failed) and told.generation < 0):
                if isinstance(told, Failed):
                    return told
                self._rest = told.apart()[::-1]
                return self._rest.pop()
            slots = [told.slot] if isinstance(told, Delivered) else []


class Lanes:
    """All feeders of a loader."""

    def __init__(self, job: Job, hand_out: Callable[[Slab], HandOut], feeders: int) -> None:
        self._job = job
        self._hand_out = hand_out
        self._lanes = [Lane(job, hand_out) for _ in range(feeders)]
        self._coming: list[Lane] = []
        self._may_grow = True
        self._turn = 0

    def __len__(self) -> int:
        return len(self._lanes)

    def start(self, start: Start) -> None:
        """Begin at *start*, dropping what was under way."""
        self.check_owner()
        for turn, lane in enumerate(self._lanes):
            lane.feeder.start(Start(start.generation, start.epoch, start.position, len(self._lanes), turn))
        self._turn = 0

    def receive(self, generation: int) -> tuple[Lane, Delivered | Failed]:
        """The plan's next batch, and whose it is."""
        lane = self._lanes[self._turn]
        told = lane.receive(generation)
        self._turn = (self._turn + 1) % len(self._lanes)
        return lane, told

    def look(self, generation: int) -> tuple[Lane, Delivered | Failed | None]:
        """The same if it is there."""
        lane = self._lanes[self._turn]
        told = lane.look(generation)
        if told is not None:
            self._turn = (self._turn + 1) % len(self._lanes)
        return lane, told

    def check_owner(self) -> None:
        """FeederError in a forked child."""
        self._lanes[0].feeder.check_owner()

    def waited(self, seconds: float) -> None:
        """The trainer spent so much more time waiting."""
        for lane in self._lanes:
            lane.feeder.waited_s += seconds

    def decisions(self) -> list[Decision]:
        """What the feeders' control changed since the last call. More feeders, where wanted, are on their way now."""
        found: list[Decision] = []
        for lane in self._lanes:
            found += lane.feeder.decisions
            lane.feeder.decisions.clear()
        wanted = max((one.setting.feeders for one in found), default=0) if self._may_grow else 0
        while len(self._lanes) + len(self._coming) < wanted:
            self._coming.append(Lane(self._job, self._hand_out))
        return found

    def widen(self) -> bool:
        """Whether there are more lanes from now on; then the plan must be started anew."""
        if not self._coming:
            return False
        try:
            if not all(lane.feeder.look() for lane in self._coming):
                return False
        except FeederError as error:  # it was to help; what runs runs on
            warnings.warn(
                f"another feeder cannot start, training goes on without: {error}", RuntimeWarning, stacklevel=4
            )
            self._may_grow = False
            for lane in self._coming:
                lane.feeder.close()
            self._coming = []
            return False
        self._lanes += self._coming
        self._coming = []
        return True

    def start_interval(self) -> tuple[float, float] | None:
        """From when to when the first feeder was starting; None while it is."""
        feeder = self._lanes[0].feeder
        return None if feeder.ready_s is None else (feeder.started_s, feeder.ready_s)

    def close(self) -> None:
        """End all feeders; batches in use stay valid."""
        for lane in (*self._lanes, *self._coming):
            lane.feeder.close()

    def counts(self) -> dict[str, float]:
        """The feeders' counts, added up."""
        total: dict[str, float] = {}
        for lane in self._lanes:
            for name, value in lane.feeder.counts.items():
                total[name] = total.get(name, 0.0) + value
        return total
