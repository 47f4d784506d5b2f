"""What a trial is told and what it found: frozen values that cross between the tuner and the trial's own process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from stoker.tune.settings import Setting

Status = Literal["ok", "failed", "hung", "crashed", "memory", "shm", "empty", "skipped"]


@dataclass(frozen=True, slots=True)
class Target:
    """What is tuned: a function that makes a loader."""

    factory: str
    """`module:function` or `path/to/file.py:function`."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that every trial passes along."""


@dataclass(frozen=True, slots=True)
class Order:
    """One trial, as its process is told."""

    target: Target
    arguments: Mapping[str, Any]
    workers: int
    """Batches that make a round: each worker's one."""
    prefetch: int
    seconds: float
    """How long to measure."""
    again: bool
    """Whether to measure the seam to another epoch as well."""
    step_s: float = 0.0
    """A training step to wait for after every batch; 0: as fast as the batches come."""
    cpus: tuple[int, ...] = ()
    """CPUs that the trial may use; empty: all."""
    probe: bool = False
    """Only say what the factory takes."""

    def to_json(self) -> str:
        """For the trial's standard input."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Order:
        """The inverse."""
        found = json.loads(text)
        return Order(**{**found, "target": Target(**found["target"]), "cpus": tuple(found["cpus"])})


@dataclass(frozen=True, slots=True)
class Trial:
    """What one trial found."""

    setting: Setting | None
    """None: a loader without knobs, as stoker's own."""
    status: Status
    message: str = ""
    """Why, where the status is not ok."""
    wall_s: float = 0.0
    """What the trial took, its start and end included."""
    seconds: float = 0.0
    """How long it was to measure."""
    rate: float = 0.0
    """Batches a second, in the steady state or, where epochs are short, over whole epochs."""
    first_s: float = 0.0
    """From the factory's call to the first batch."""
    again_s: float | None = None
    """From the end of one epoch to the first batch of the next; None where not measured, or part of the rate."""
    length: int | None = None
    """Batches of an epoch, where the loader says."""
    batch_bytes: int = 0
    batch_samples: int = 0
    cpu_s: float = 0.0
    """CPU time of a batch over the trial's processes. Near CPUs / rate: the CPUs are the limit."""
    ram_bytes: int = 0
    """Proportional memory of the trial's processes at the end, or how much less was free when it was stopped."""
    shm_bytes: int = 0
    """How much less of /dev/shm was free at the least."""
    wait_share: float | None = None
    """With a step to wait for: share of the time spent in `next()`."""

    @property
    def epoch_rate(self) -> float:
        """Batches a second over an epoch and the seam behind it; the rate, where length or seam is not known."""
        if self.rate <= 0 or self.again_s is None or not self.length:
            return self.rate
        return self.length / (self.length / self.rate + max(0.0, self.again_s - 1 / self.rate))
