"""Where the time of a run went: totals kept by the trainer's side, and the report made of them.

`wait` is time in `next()`. The first batch of a run waits for processes to start and is told apart; the share is of the
time after it, seams between epochs included.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from stoker.events import STAGES, Stage
from stoker.loader.attribute import add
from stoker.loader.batch import Bad
from stoker.units import format_bytes, format_duration

BAD_KEPT_MAX = 10_000
"""Bad samples listed one by one; beyond that they are only counted."""

STAGE_HELP: Mapping[Stage, str] = {
    "start": "starting the feeder and its imports",
    "queue": "not begun: no free slot or thread",
    "cache_miss": "fetching what the cache did not hold",
    "store_read": "reading from the store or the cache's disk",
    "decode": "decoding and resizing",
    "transform": "the user's transform",
    "collate": "batch_transform and closing the batch",
    "order_wait": "done, but an earlier batch was not",
    "hand_over": "done, on its way to the training process",
    "copy": "copying in the training process or to the GPU",
    "other": "none of these",
}


@dataclass(frozen=True, slots=True)
class LoaderReport:
    """Where every second of waiting went. Times in seconds of the training process."""

    batches: int
    samples: int
    first_wait_s: float
    """Wait for the run's first batch: process start, imports, first reads. High: make the loader earlier, before the
    model."""
    wall_s: float
    """Wall time after the first batch."""
    wait_s: float
    """Time in `next()` after the first batch; near 0 the data keeps up, near `wall_s` it is the bottleneck."""
    wait_by_stage_s: Mapping[Stage, float]
    """`wait_s` by the stage that the missing batch was in; adds up to it."""
    counts: Mapping[str, float]
    """The feeder's counts: bytes read, requests, retries, cache hits."""
    bad: Mapping[str, int]
    """Samples that could not be used, by reason."""

    @property
    def wait_share(self) -> float:
        """Share of the wall time after the first batch that was spent waiting, 0 to 1."""
        return self.wait_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples a second of wall time after the first batch."""
        return self.samples / self.wall_s if self.wall_s > 0 else 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return {
            "batches": self.batches, "samples": self.samples, "first_wait_s": self.first_wait_s, "wall_s": self.wall_s,
            "wait_s": self.wait_s, "wait_share": self.wait_share, "samples_per_s": self.samples_per_s,
            "wait_by_stage_s": dict(self.wait_by_stage_s), "counts": dict(self.counts), "bad": dict(self.bad),
        }  # fmt: skip

    def __str__(self) -> str:
        lines = [
            f"{self.batches} batches, {self.samples} samples in {format_duration(self.wall_s)} after the first batch: "
            f"{self.samples_per_s:.0f} samples/s",
            f"first batch after {format_duration(self.first_wait_s)}",
            f"waited {format_duration(self.wait_s)}, {self.wait_share:.1%} of the time",
        ]
        for stage in STAGES:
            seconds = self.wait_by_stage_s.get(stage, 0.0)
            if seconds > 0.0005:
                lines.append(f"  {stage:<11}{format_duration(seconds):>10}  {STAGE_HELP[stage]}")
        store, cache = self.counts.get("read.store_bytes", 0), self.counts.get("read.cache_bytes", 0)
        lines.append(f"read {format_bytes(store)} from the store, {format_bytes(cache)} from the cache")
        mapped = self.counts.get("read.mapped_bytes", 0)
        if mapped:
            lines.append(f"copied {format_bytes(mapped)} from mapped shards")
        retries = {name: n for name, n in self.counts.items() if name.startswith("store.retries") and n}
        if retries:
            told = [
                f"{n:.0f} × {name.removeprefix('store.retries').strip('.:') or 'in all'}" for name, n in retries.items()
            ]
            lines.append("retried " + ", ".join(sorted(told)))
        if self.bad:
            lines.append("bad samples: " + ", ".join(f"{n} {reason}" for reason, n in sorted(self.bad.items())))
        return "\n".join(lines)


@dataclass(slots=True)
class Tally:
    """The running totals behind a report."""

    batches: int = 0
    samples: int = 0
    first_wait_s: float = 0.0
    first_s: float | None = None
    last_s: float = 0.0
    wait_s: float = 0.0
    stages: dict[Stage, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    bad: list[Bad] = field(default_factory=list)

    def waited(self, began_s: float, ended_s: float, parts: Mapping[Stage, float]) -> None:
        """One `next()` took from *began_s* to *ended_s*."""
        self.last_s = ended_s
        if self.first_s is None:
            self.first_s, self.first_wait_s = ended_s, ended_s - began_s
            return
        self.wait_s += ended_s - began_s
        add(self.stages, parts)

    def got(self, rows: int, bad: tuple[Bad, ...], counts: Mapping[str, float]) -> None:
        """One batch came; the run's first is not counted in the rate, as its time is not."""
        self.batches += 1
        self.samples += rows if self.batches > 1 else 0
        self.counts = counts
        if bad:
            self.skipped(bad)

    def skipped(self, bad: tuple[Bad, ...]) -> None:
        """Samples that could not be used."""
        self.reasons.update(one.reason for one in bad)
        self.bad.extend(bad[: BAD_KEPT_MAX - len(self.bad)])

    def report(self) -> LoaderReport:
        """The totals so far as a value."""
        wall = self.last_s - self.first_s if self.first_s is not None else 0.0
        return LoaderReport(
            self.batches,
            self.samples,
            self.first_wait_s,
            wall,
            self.wait_s,
            dict(self.stages),
            dict(self.counts),
            dict(self.reasons),
        )
