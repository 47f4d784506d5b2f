"""Quantiles of durations in bounded memory: pure arithmetic, no clock.

Durations are counted in buckets whose edges grow by 2 %, so that a quantile is right within 1 % whatever its size, and
1,500 counters hold a run of any length (the idea is DDSketch's: Masson, Rim, Lee, VLDB 2019). A reservoir of samples
would be as small, but misses the rare long wait, which is the one that is looked for.
"""

from __future__ import annotations

import math

LOW_S = 1e-7
"""Shorter durations count as this long."""
HIGH_S = 1e6
_PER_E = 50.0
"""Buckets for each factor e: their edges grow by e^(1/50) = 1.0202."""
ERROR = math.exp(0.5 / _PER_E) - 1
"""Relative error of a quantile, at most."""


class Sketch:
    """Count, sum, longest and quantiles of what was added, all in seconds."""

    __slots__ = ("_buckets", "count", "max_s", "total_s")

    def __init__(self) -> None:
        self.count = 0
        self.total_s = 0.0
        self.max_s = 0.0
        self._buckets: dict[int, int] = {}

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.count += 1
        self.total_s += seconds
        if seconds > self.max_s:
            self.max_s = seconds
        bucket = int(math.log(min(seconds, HIGH_S) / LOW_S) * _PER_E) if seconds > LOW_S else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1

    def quantile(self, share: float) -> float:
        """The duration that *share* (0 to 1) of all do not exceed, within 1 %; 0 where nothing was added."""
        rank, seen = max(1, math.ceil(share * self.count)), 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= rank:
                return min(self.max_s, LOW_S * math.exp((bucket + 0.5) / _PER_E))
        return 0.0

    @property
    def buckets(self) -> int:
        """Counters in use: at most 1,500."""
        return len(self._buckets)
