"""The thread in the feeder that measures, asks `control` what to change, and changes it. What it changes, it tells.

The trainer's waiting is known from what it says when it gives slots back. Where it says nothing (a long step, an
evaluation) it wants nothing, and nothing is changed.
"""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable

import psutil

from stoker.clock import SYSTEM
from stoker.loader.control import BUSY_SHARE, Control, Decision, Limits, Setting, Window
from stoker.loader.crew import CrewTimes
from stoker.loader.engine import Engine, EngineState
from stoker.machine import run_delay_s

WINDOW_S_MIN = 0.5
WINDOW_S_MAX = 10.0
"""A longer silence of the trainer is no measurement."""
BATCHES_MIN = 4
"""Batches that a window holds at least: fewer say little about a rate."""
TICK_S = 0.25
LATE_SAMPLES = 9
LATE_SLEEP_S = 0.001


class Governor:
    """Watches one engine. Made and started by the feeder."""

    def __init__(
        self,
        engine: Engine,
        setting: Setting,
        limits: Limits,
        deepen: Callable[[int], None],
        tell: Callable[[Decision], None],
    ) -> None:
        """*deepen* makes that many slots, if it can; *tell* passes a decision on to the trainer."""
        self._engine = engine
        self._control = Control(setting, limits)
        self._deepen = deepen
        self._tell = tell
        self._told: tuple[float, float] | None = None
        self._stopped = threading.Event()

    def start(self) -> None:
        """From now on."""
        threading.Thread(target=self._run, daemon=True, name="govern").start()

    def stop(self) -> None:
        """Change nothing any more."""
        self._stopped.set()

    def heard(self, waited_s: float, at_s: float) -> None:
        """The trainer waited *waited_s* in all, as of its time *at_s*."""
        self._told = waited_s, at_s

    def _run(self) -> None:
        last = self._look()
        while not self._stopped.wait(TICK_S):
            now = self._look()
            seconds = now.at_s - last.at_s
            if seconds > WINDOW_S_MAX or now.told is None or last.told is None:
                last = now
                continue
            known_s = now.told[1] - last.told[1]
            if seconds < WINDOW_S_MIN or known_s < seconds / 2 or now.state.batches - last.state.batches < BATCHES_MIN:
                continue
            decision = self._control.step(self._window(last, now, known_s))
            if decision is not None and not self._stopped.is_set():
                self._apply(decision)
            last = self._look()

    def _apply(self, decision: Decision) -> None:
        wanted = decision.setting
        self._engine.set(threads=wanted.threads, readers=wanted.readers)
        self._deepen(wanted.slots)
        self._tell(decision)

    def _look(self) -> _Look:
        return _Look(SYSTEM.monotonic(), self._engine.state(), self._told, _cpu_s(), psutil.cpu_times().idle)

    def _window(self, last: _Look, now: _Look, known_s: float) -> Window:
        assert now.told is not None and last.told is not None
        seconds = now.at_s - last.at_s
        busy, starved, blocked = _shares(last.state.decoding, now.state.decoding)
        return Window(
            seconds=seconds,
            samples=now.state.samples - last.state.samples,
            wait_share=min(1.0, (now.told[0] - last.told[0]) / known_s),
            decode_busy=busy,
            decode_starved=starved,
            decode_blocked=blocked,
            read_busy=_shares(last.state.reading, now.state.reading)[0],
            cpus_used=(now.cpu_s - last.cpu_s) / seconds,
            cpus_idle=(now.idle_s - last.idle_s) / seconds,
            gil_late_s=self._lateness() if busy > BUSY_SHARE else 0.0,
        )

    def _lateness(self) -> float:
        """How late this thread gets the interpreter after a short sleep, its wait for a CPU not counted: median, s."""
        late = []
        for _ in range(LATE_SAMPLES):
            asked, queued_s = SYSTEM.monotonic(), run_delay_s()
            self._stopped.wait(LATE_SLEEP_S)
            late.append(SYSTEM.monotonic() - asked - LATE_SLEEP_S - (run_delay_s() - queued_s))
        return statistics.median(late)


class _Look:
    """Everything as it stood at one moment."""

    def __init__(
        self, at_s: float, state: EngineState, told: tuple[float, float] | None, cpu_s: float, idle_s: float
    ) -> None:
        self.at_s = at_s
        self.state = state
        self.told = told
        self.cpu_s = cpu_s
        self.idle_s = idle_s


def _cpu_s() -> float:
    used = psutil.Process().cpu_times()
    return used.user + used.system


def _shares(last: CrewTimes, now: CrewTimes) -> tuple[float, float, float]:
    """Busy, starved, blocked shares of the threads' time between two looks; zeros where there was none."""
    parts = (now.busy_s - last.busy_s, now.starved_s - last.starved_s, now.blocked_s - last.blocked_s)
    whole = sum(parts)
    return (parts[0] / whole, parts[1] / whole, parts[2] / whole) if whole > 0 else (0.0, 0.0, 0.0)
