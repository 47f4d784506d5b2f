"""The control's decisions: pure, bounded, and good on stages whose best setting is known."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.loader.control import FED_WAIT_SHARE, Control, Limits, Setting, Window

LIMITS = Limits(threads=128, readers=256, slots=64, feeders=8, cpus=8)
QUIET = Window(
    seconds=0.5, samples=100, wait_share=0.5, decode_busy=1, decode_starved=0, decode_blocked=0, read_busy=0,
    cpus_used=1, cpus_idle=6, gil_late_s=0,
)  # fmt: skip


@dataclass
class Plant:
    """A feeder whose stages take known times: reading and decoding sleep, the CPU part of decoding does not."""

    demand: float
    """Samples a second that the trainer takes at most."""
    read_s: float = 0.0
    sleep_s: float = 0.0
    cpu_s: float = 0.0
    cpus: int = 8
    held: bool = False
    """The CPU part holds the GIL."""

    def supply(self, now: Setting) -> float:
        """Samples a second that the stages could make."""
        decode = self.sleep_s + self.cpu_s or 1e-9
        cpus = now.feeders if self.held else self.cpus
        parts = [now.threads * now.feeders / decode, cpus / self.cpu_s if self.cpu_s else 1e9]
        if self.read_s and now.readers:
            parts.append(now.readers / self.read_s)
        return min(parts)

    def window(self, now: Setting) -> Window:
        """What would be measured."""
        supply = self.supply(now)
        rate = min(supply, self.demand)
        threads = now.threads * now.feeders
        in_use = rate * (self.sleep_s + self.cpu_s) / threads
        reading = rate * self.read_s / now.readers if now.readers else 0.0
        computing = threads / (self.sleep_s + self.cpu_s or 1e-9) > supply * 1.001 and rate == supply and reading < 0.99
        busy = 1.0 if computing else in_use
        fed = supply > self.demand
        return replace(
            QUIET, samples=int(rate * 50), seconds=50, wait_share=0.0 if fed else 1 - rate / self.demand,
            decode_busy=busy, decode_starved=0.0 if fed else 1 - busy, decode_blocked=1 - in_use if fed else 0.0,
            read_busy=reading, cpus_used=rate * self.cpu_s, cpus_idle=self.cpus - rate * self.cpu_s,
            gil_late_s=0.004 if self.held and busy > 0.8 else 0.0,
        )  # fmt: skip


def run(plant: Plant, start: Setting, windows: int = 80, limits: Limits = LIMITS) -> Setting:
    """The setting after so many windows."""
    control = Control(start, limits)
    for _ in range(windows):
        control.step(plant.window(control.setting))
    return control.setting


@pytest.mark.parametrize(
    ("plant", "start"),
    [
        (Plant(demand=1e9, sleep_s=0.02), Setting(1, 0, 8)),
        (Plant(demand=900, sleep_s=0.02), Setting(1, 0, 8)),
        (Plant(demand=2_000, read_s=0.05, sleep_s=0.001), Setting(4, 1, 8)),
        (Plant(demand=2_000, read_s=0.05, sleep_s=0.01), Setting(1, 1, 8)),
        (Plant(demand=1e9, cpu_s=0.004, sleep_s=0.016), Setting(1, 0, 8)),
        (Plant(demand=1e9, cpu_s=0.01), Setting(1, 0, 8)),
    ],
)
def test_it_comes_near_the_best_from_bad_starts(plant: Plant, start: Setting) -> None:
    """Within 80 windows (40 s at most) the rate is within 5 % of the best setting's, or of what the trainer takes."""
    best = min(plant.demand, plant.supply(Setting(LIMITS.threads, LIMITS.readers, 64)))
    found = run(plant, start)
    assert min(plant.demand, plant.supply(found)) >= 0.95 * best


def test_it_stops_growing_when_the_trainer_is_fed() -> None:
    """What feeds is enough: no thread more than twice what the demand needs."""
    found = run(Plant(demand=400, sleep_s=0.02), Setting(1, 0, 8))
    assert 8 <= found.threads <= 16
    fed = Control(Setting(4, 16, 8), LIMITS)
    assert [fed.step(replace(QUIET, wait_share=0.0, decode_busy=1.0)) for _ in range(20)] == [None] * 20


def test_a_held_gil_asks_for_feeders_and_not_for_threads() -> None:
    """Threads that wait for each other are no use; another process is."""
    control = Control(Setting(2, 0, 8), LIMITS)
    decision = control.step(Plant(demand=1e9, cpu_s=0.01, held=True).window(control.setting))
    assert decision is not None
    assert (decision.setting.feeders, decision.setting.threads) == (2, 2)
    assert "GIL" in decision.reason


def test_more_threads_than_cpus_become_fewer() -> None:
    """Threads that only compute are brought down to the CPUs, where the rate does not suffer."""
    assert run(Plant(demand=1e9, cpu_s=0.01), Setting(128, 0, 8)).threads <= 8


def test_a_busy_host_gets_a_thread_back() -> None:
    """Fed, and no CPU idle: one thread fewer, as long as the trainer stays fed."""
    control = Control(Setting(8, 0, 8), LIMITS)
    crowded = replace(QUIET, wait_share=0.0, decode_busy=0.5, decode_blocked=0.5, cpus_idle=0.0)
    first = control.step(crowded)
    assert first is not None and first.setting.threads == 7
    hungry = replace(crowded, wait_share=0.2)
    answers = [control.step(hungry) for _ in range(3)]
    assert answers[-1] is not None and answers[-1].setting.threads == 8


def test_what_does_not_pay_is_taken_back_and_left_alone() -> None:
    """A failed trial returns to the setting before, and is not repeated for some windows."""
    control = Control(Setting(2, 0, 8), LIMITS)
    changes = [control.step(QUIET) for _ in range(80)]
    made = [(at, one.setting.threads) for at, one in enumerate(changes) if one is not None]
    assert [threads for _, threads in made[:5]] == [4, 2, 4, 2, 4]
    assert made[4][0] - made[3][0] > made[2][0] - made[1][0] >= 8


SHARES = st.floats(0, 1)


@given(
    windows=st.lists(
        st.builds(
            Window, seconds=st.floats(0.5, 10), samples=st.integers(0, 10_000), wait_share=SHARES, decode_busy=SHARES,
            decode_starved=SHARES, decode_blocked=SHARES, read_busy=SHARES, cpus_used=st.floats(0, 16),
            cpus_idle=st.floats(0, 16), gil_late_s=st.floats(0, 0.01),
        ),
        max_size=60,
    ),
    start=st.builds(Setting, st.integers(1, 128), st.integers(0, 256), st.integers(4, 64)),
)  # fmt: skip
def test_it_never_leaves_its_limits(windows: list[Window], start: Setting) -> None:
    """Whatever is measured: settings stay in their limits, readers are neither invented nor lost, fed means no more."""
    control = Control(start, LIMITS)
    for window in windows:
        before = control.setting
        decision = control.step(window)
        now = decision.setting if decision is not None else control.setting
        assert 1 <= now.threads <= LIMITS.threads and now.slots <= LIMITS.slots and now.feeders <= LIMITS.feeders
        assert (now.readers > 0) == (start.readers > 0) and now.readers <= LIMITS.readers
        if decision is not None and not decision.reason.startswith("taken back") and window.wait_share < FED_WAIT_SHARE:
            assert now.threads < before.threads
