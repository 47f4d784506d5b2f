"""How a stage reports on itself: counts that add up and spans that say when. Other rooms know this file, not who
reads it.

A Recorder is cheap enough for the hot path: a count is one addition under a lock that is free nearly always, a span one
append to a bounded deque. When nobody drains it the oldest spans fall out and are counted as lost.
"""

from __future__ import annotations

import json
import os
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, get_args

from stoker.clock import SYSTEM
from stoker.errors import UsageError

Stage = Literal[
    "start",
    "queue",
    "cache_miss",
    "store_read",
    "decode",
    "transform",
    "collate",
    "order_wait",
    "hand_over",
    "copy",
    "other",
]
STAGES: tuple[Stage, ...] = get_args(Stage)
"""Where a missing batch can be, upstream first. `other` is what no stage claims: more than 2 % there is a fault of
ours."""

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

    def __reduce__(self) -> tuple[Callable[[], Events], tuple[()]]:
        # A store that reports here goes on reporting, in another process, to that process's own HERE.
        return _here, ()

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


def _here() -> Events:
    return HERE


HERE = Events()
"""The Recorder of whichever process looks: a pickled reference to any Events becomes the other process's HERE."""


class Silent:
    """The Recorder of a stage that nobody watches."""

    def count(self, name: str, by: float = 1) -> None:
        """Drop it."""

    def span(self, name: str, start_s: float, stop_s: float, **detail: object) -> None:
        """Drop it."""


SILENT: Recorder = Silent()


RUN_LOG_VARIABLE = "STOKER_RUN_LOG"
RUN_LOG_VERSION = 1
_FLUSH_EVERY_S = 0.5


class _Sink:
    """What the flusher thread holds of a run log: not the RunLog itself, which must be able to end."""

    def __init__(self, path: Path) -> None:
        self.file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self.lines: deque[dict[str, object]] = deque(maxlen=SPANS_MAX)
        self.lost = 0
        self.path = path
        self.reason = "written in part"
        self.torn = False
        """Whether the last line there is half of one: the next must not be taken for its rest."""
        self.warned = False
        self.closing = threading.Event()

    def run(self) -> None:
        """Write what came, twice a second, until told to end; then the rest."""
        while not self.closing.wait(_FLUSH_EVERY_S):
            self.flush()
        self.flush()
        os.close(self.file)

    def flush(self) -> None:
        """Write all lines that lie ready, in one call."""
        parts = []
        while self.lines:
            line = self.lines.popleft()
            if self.lost:
                line["lost"] = self.lost
            parts.append(json.dumps(line, separators=(",", ":"), default=str) + "\n")
        if not parts:
            return
        torn = self.torn
        data = ("\n" * torn + "".join(parts)).encode()
        try:
            written = os.write(self.file, data)
        except OSError as error:
            written, self.reason = 0, error.strerror or str(error)
        if written:
            self.torn = data[written - 1 : written] != b"\n"
        if written < len(data):  # a full disk: what did not fit is counted, and later lines tell
            self.lost += data[max(written, torn) :].count(b"\n")
            if not self.warned:
                self.warned = True
                warnings.warn(f"run log {self.path}: {self.reason}; lines are lost", RuntimeWarning, stacklevel=2)


class RunLog:
    """A run's record as JSON lines, appended by one flusher thread so that the caller pays for a deque's append only.

    Every line has `event`, `t` (seconds since the Unix epoch) and `v`. When the disk cannot keep up the oldest lines
    fall out and the next one says how many (`lost`). Several processes may append to one file: a flush is one write.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = _Sink(self.path)
        except OSError as error:
            raise UsageError(
                f"run log {self.path}: {error.strerror}", f"{RUN_LOG_VARIABLE} names a file that may be appended to"
            ) from error
        flusher = threading.Thread(target=self._sink.run, daemon=True, name="stoker-run-log")
        flusher.start()
        self._end = weakref.finalize(self, _end_log, self._sink, flusher)

    @staticmethod
    def from_environment() -> RunLog | None:
        """The log that the variable STOKER_RUN_LOG names, if it does."""
        path = os.environ.get(RUN_LOG_VARIABLE)
        return RunLog(path) if path else None

    def write(self, event: str, **fields: object) -> None:
        """Add a line."""
        sink = self._sink
        if len(sink.lines) == SPANS_MAX:
            sink.lost += 1
        sink.lines.append({"event": event, "t": round(SYSTEM.wall(), 6), "v": RUN_LOG_VERSION, **fields})

    def close(self) -> None:
        """Write the rest and end."""
        self._end()


def _end_log(sink: _Sink, flusher: threading.Thread) -> None:
    sink.closing.set()
    flusher.join()
