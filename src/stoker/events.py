"""How a stage reports on itself: counts that add up and spans that say when. Other rooms know this file, not who reads it.

A Recorder is cheap enough for the hot path: a count is one addition under a lock that is free nearly always, a span one
append to a bounded deque. When nobody drains it the oldest spans fall out and are counted as lost.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

Stage = Literal[
    "start", "queue", "cache_miss", "store_read", "decode", "transform", "collate", "order_wait", "hand_over", "copy", "other"
]
STAGES: tuple[Stage, ...] = (
    "start", "queue", "cache_miss", "store_read", "decode", "transform", "collate", "order_wait", "hand_over", "copy", "other",
)  # fmt: skip
"""Where a missing batch can be, upstream first. `other` is what no stage claims: more than 2 % there is a fault of ours."""

SPANS_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Span:
    """One stage busy from start to stop, in seconds of CLOCK_MONOTONIC."""

    name: str
    start_s: float
    stop_s: float
    detail: Mapping[str, object] | None = None


class Recorder(Protocol):
    """What a stage needs to report on itself."""

    def count(self, name: str, by: float = 1) -> None: ...

    def span(self, name: str, start_s: float, stop_s: float, **detail: object) -> None: ...


class Events:
    """The Recorder of a process: totals since the start, and spans until somebody drains them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: Counter[str] = Counter()
        self._spans: deque[Span] = deque(maxlen=SPANS_MAX)

    def count(self, name: str, by: float = 1) -> None:
        with self._lock:
            self._totals[name] += by  # type: ignore[assignment]  # typeshed: Counter counts in int only

    def span(self, name: str, start_s: float, stop_s: float, **detail: object) -> None:
        if len(self._spans) == SPANS_MAX:
            self.count("events.spans_lost")
        self._spans.append(Span(name, start_s, stop_s, detail or None))

    def totals(self) -> dict[str, float]:
        """Every count so far, by name."""
        with self._lock:
            return dict(self._totals)

    def drain(self) -> list[Span]:
        """The spans since the last call, oldest first."""
        spans = []
        while self._spans:
            spans.append(self._spans.popleft())
        return spans


class Silent:
    """The Recorder of a stage that nobody watches."""

    def count(self, name: str, by: float = 1) -> None:
        """Drop it."""

    def span(self, name: str, start_s: float, stop_s: float, **detail: object) -> None:
        """Drop it."""


SILENT: Recorder = Silent()
