"""Inside one batch: samples are worked on by several threads, and one slow sample holds up none but itself."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import stoker
from stoker.loader.schedule import CHUNK_ROWS
from support_dataset import write_shards

ROWS = 32


class WaitsForTheOthers:
    """Sample 0 is ready only when all samples of its batch but those of its own chunk are: the slowest there can be."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self.changed: Any = None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.calls, self.changed = state["calls"], threading.Condition()

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        number = sample["__index__"]
        with self.changed:
            learning = number == 0 and not self.calls[0]  # the first call is alone: it shows the fields' shapes
            others = set(range(CHUNK_ROWS, ROWS))
            if number == 0 and not learning and not self.changed.wait_for(lambda: others <= self.calls.keys(), 15):
                raise TimeoutError(f"only {sorted(self.calls)} were done")
            self.calls[number] += 1
            self.changed.notify_all()
        return {**sample, "thread": threading.get_ident()}


def test_one_slow_sample_holds_up_no_other_of_its_batch(tmp_path: Path) -> None:
    """The first sample waits for the rest of its batch: a worker that makes whole batches would wait for ever."""
    data = stoker.open(write_shards(tmp_path, 2 * ROWS))
    budget = stoker.Budget(cpus=4, adapt=False)
    with stoker.Loader(
        data, ROWS, fields={"cls": int}, shuffle="none", transform=WaitsForTheOthers(), budget=budget, output="numpy"
    ) as loader:
        first, second = loader
    assert first["__index__"].tolist() == list(range(ROWS))  # order is restored
    assert len(set(first["thread"].tolist())) > 1
    assert second["cls"].tolist() == [number % 10 for number in range(ROWS, 2 * ROWS)]
