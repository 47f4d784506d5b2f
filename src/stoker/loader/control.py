"""Online control: how many threads, readers, slots and feeders, decided from what was measured. No clock, no thread.

One change at a time, and every change is a trial. What the measurements point at is tried; a change that does not pay
is taken back, and that direction is left alone for a while, longer each time. Nothing grows while the trainer is fed,
so the result is not the fastest setting but the smallest step that feeds. The order of samples never depends on it.

1. Fed (the trainer waits for less than 0.5 % of its time): grow nothing. If the host has no CPU left, one thread fewer,
   for a busy CPU delays the trainer's own kernel launches; taken back if the trainer then waits.
2. Not fed, threads stand still for want of a slot: deeper. Unevenness is what hurts, not the rate.
3. Not fed, decoding threads stand still for want of data and the readers are busy: more readers.
4. Not fed, decoding threads are busy. The GIL is what they wait for: another feeder. CPU time is left in the budget:
   more threads. More threads than CPUs and none of it is left: fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

FED_WAIT_SHARE = 0.005
"""The design's stall target."""
BUSY_SHARE = 0.8
"""Threads that work for more of their time than this are the bottleneck of their stage."""
IDLE_SHARE = 0.1
"""Threads that stand still for more of their time than this have something to wait for."""
CPU_SHARE = 0.9
"""A budget of which more is used has nothing left."""
GAIN_MIN = 0.05
"""What a larger setting must gain in rate to be kept."""
LOSS_MAX = 0.03
"""What a smaller setting may lose."""
GIL_LATE_S = 0.001
"""A thread that asks for 1 ms of sleep and is this late most of the time waits for the interpreter: the switch interval
is 5 ms, a free one is late by 0.1 ms."""
TRIAL_WINDOWS = 2
"""Windows that a trial is measured over, after one that is not counted."""
REST_WINDOWS = 8
"""Windows that a direction rests after a failed trial; doubled each time."""
REST_WINDOWS_MAX = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """What is controlled."""

    threads: int
    readers: int
    slots: int
    feeders: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """What a setting may not pass."""

    threads: int
    readers: int
    slots: int
    feeders: int
    cpus: float
    """CPU budget of all feeders together, in cores."""


@dataclass(frozen=True, slots=True)
class Window:
    """What was measured over a stretch of time. Shares are of the time that the threads were there for."""

    seconds: float
    samples: int
    wait_share: float
    """Of the trainer's time in `next()`: near 0 it is fed, near 1 the loader is all that it waits for."""
    decode_busy: float
    decode_starved: float
    decode_blocked: float
    read_busy: float
    cpus_used: float
    """By this feeder, in cores."""
    cpus_idle: float
    """Of the host, in cores."""
    gil_late_s: float
    """How late a sleeping thread of the feeder gets to run, median."""

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples / self.seconds


@dataclass(frozen=True, slots=True)
class Decision:
    """A change, and why."""

    setting: Setting
    reason: str


@dataclass(slots=True)
class _Trial:
    name: str
    before: Setting
    rate_before: float
    growing: bool
    windows: list[Window] = field(default_factory=list)


class Control:
    """Decides for one feeder. `step` is told each window and may answer with a change, to be made at once."""

    def __init__(self, setting: Setting, limits: Limits) -> None:
        self.setting = setting
        self._limits = limits
        self._trial: _Trial | None = None
        self._resting: dict[str, int] = {}
        self._rests: dict[str, int] = {}

    def step(self, window: Window) -> Decision | None:
        """What to change after *window*; None to leave all as it is."""
        self._resting = {name: left - 1 for name, left in self._resting.items() if left > 1}
        if self._trial is not None:
            return self._judge(self._trial, window)
        for name, setting, reason in self._wishes(window):
            if name not in self._resting and setting != self.setting:
                if name == "feeders":  # processes that come later: this one's part is to ask
                    self._rest(name)
                    return Decision(setting, reason)
                self._trial = _Trial(name, self.setting, window.rate, _total(setting) > _total(self.setting))
                self.setting = setting
                return Decision(setting, reason)
        return None

    def _judge(self, trial: _Trial, window: Window) -> Decision | None:
        """Keep or take back what is on trial, once it was measured."""
        trial.windows.append(window)
        if len(trial.windows) <= TRIAL_WINDOWS:
            return None
        counted = trial.windows[1:]
        rate = sum(one.samples for one in counted) / sum(one.seconds for one in counted)
        wait = sum(one.wait_share * one.seconds for one in counted) / sum(one.seconds for one in counted)
        self._trial = None
        fed = wait < FED_WAIT_SHARE
        enough = 1 + GAIN_MIN if trial.growing else 1 - LOSS_MAX
        if fed or (trial.name != "slower" and rate >= trial.rate_before * enough):
            self._rests.pop(trial.name, None)
            return None
        self._rest(trial.name)
        if trial.name == "deeper":  # memory that is there is kept
            return None
        self.setting = trial.before
        return Decision(trial.before, f"taken back: {trial.rate_before:.0f} samples/s became {rate:.0f}")

    def _rest(self, name: str) -> None:
        """Leave a direction alone for a while."""
        rest = self._rests.get(name, REST_WINDOWS)
        self._resting[name] = rest
        self._rests[name] = min(2 * rest, REST_WINDOWS_MAX)

    def _wishes(self, window: Window) -> list[tuple[str, Setting, str]]:
        """What the window points at, the most likely first: (direction, setting, reason)."""
        now, limits = self.setting, self._limits
        spare = window.cpus_used < CPU_SHARE * limits.cpus
        if window.wait_share < FED_WAIT_SHARE:
            if window.cpus_idle < IDLE_SHARE and now.threads > 1 and window.decode_blocked > IDLE_SHARE:
                return [("slower", replace(now, threads=now.threads - 1), "the trainer is fed and the host is busy")]
            return []
        wishes: list[tuple[str, Setting, str]] = []
        if window.decode_blocked > IDLE_SHARE:
            deeper = replace(now, slots=min(limits.slots, 2 * now.slots))
            wishes.append(("deeper", deeper, "threads wait for slots while the trainer waits for batches"))
        if window.decode_starved > IDLE_SHARE and now.readers and window.read_busy > BUSY_SHARE:
            more = replace(now, readers=min(limits.readers, 2 * now.readers))
            wishes.append(("readers", more, "decoding waits for data and all readers are busy"))
        if window.decode_busy > BUSY_SHARE:
            if window.gil_late_s > GIL_LATE_S:
                wider = replace(now, feeders=min(limits.feeders, now.feeders + 1))
                if spare:
                    wishes.append(("feeders", wider, "threads wait for each other: the transform holds the GIL"))
            elif spare:
                more = replace(now, threads=min(limits.threads, 2 * now.threads))
                wishes.append(("threads", more, "all decoding threads are busy and CPU time is left"))
        if not spare and now.threads > limits.cpus:
            fewer = replace(now, threads=max(1, int(limits.cpus), now.threads // 2))
            wishes.append(("fewer", fewer, "more threads than CPUs, and no CPU time left"))
        return wishes


def _total(setting: Setting) -> int:
    return setting.threads + setting.readers + setting.slots
