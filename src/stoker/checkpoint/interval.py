"""How often to save: the interval that costs least, from what a save costs and how often machines fail.

Young (1974): sqrt(2 · C · M). Daly (2006), eq. 37, exact to a percent up to C < 2 M:
sqrt(2 C M) · [1 + sqrt(C / 2M) / 3 + C / 18M] - C; M beyond. C is what a save takes from training (blocked time and
slow-down), not how long it is written, since that goes on beside it; but steps since the last *durable* state are lost,
so writing time adds to the loss and bounds the interval from below.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stoker.errors import UsageError


@dataclass(frozen=True, slots=True)
class Interval:
    """The advice, all in seconds of training unless named otherwise."""

    interval_s: float
    """Between the starts of two saves; never shorter than a save is written."""
    young_s: float
    daly_s: float
    saves_per_day: float
    overhead_share: float
    """Share of all time spent on saving."""
    lost_s_per_failure: float
    """Expected work lost by one failure: half an interval and the time until a save is durable."""
    lost_share: float
    """Share of all time lost to failures: lost work and restarts."""


def best_interval(*, cost_s: float, write_s: float, mtbf_s: float, restart_s: float = 0.0) -> Interval:
    """The interval for saves that cost *cost_s*, are durable *write_s* after their start, with a failure of the whole
    job every *mtbf_s* on average, each followed by *restart_s* of starting again."""
    if not (cost_s > 0 and write_s >= 0 and mtbf_s > 0 and restart_s >= 0):
        raise UsageError(f"times must be positive, found cost {cost_s}, write {write_s}, mtbf {mtbf_s}, {restart_s}")
    young = math.sqrt(2 * cost_s * mtbf_s)
    ratio = cost_s / mtbf_s
    daly = mtbf_s if ratio >= 2 else young * (1 + math.sqrt(ratio / 2) / 3 + ratio / 18) - cost_s
    interval = max(daly, write_s, cost_s)
    lost = interval / 2 + write_s
    return Interval(
        interval_s=interval,
        young_s=young,
        daly_s=daly,
        saves_per_day=86_400 / interval,
        overhead_share=cost_s / interval,
        lost_s_per_failure=lost,
        lost_share=min(1.0, (lost + restart_s) / mtbf_s),
    )
