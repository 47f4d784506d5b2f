"""The bytes that a loader may use are decided before it takes any, and shared among ranks and feeders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker import machine
from stoker.loader.job import Work
from stoker.loader.layout import PAGE_BYTES
from stoker.loader.plan import RAM_SHARE, plan_work, slots_within
from stoker.loader.ranks import Ranks
from stoker.loader.slab import SLOTS_MIN
from support_dataset import feeders, write_shards


@given(
    slot_bytes=st.integers(4096, 1 << 30), ram_bytes=st.integers(1, 1 << 40), feeder_count=st.integers(1, 32),
    pinned=st.booleans(), adapt=st.booleans(),
)  # fmt: skip
def test_slots_never_pass_the_budget(
    slot_bytes: int, ram_bytes: int, feeder_count: int, pinned: bool, adapt: bool
) -> None:
    """All feeders' slots, also those that they may come to, take half of it at most; fewer than four make no loader."""
    work = Work(4, 0, 8, ram_bytes, 4, adapt, pinned)
    slots, most = slots_within(work, slot_bytes, feeder_count)
    assert SLOTS_MIN <= slots <= most
    assert most == SLOTS_MIN or most * slot_bytes * feeder_count <= ram_bytes / 2


@given(slot_bytes=st.integers(4096, 1 << 30), ram_bytes=st.integers(1, 1 << 40))
def test_page_locked_slots_stay_as_many(slot_bytes: int, ram_bytes: int) -> None:
    """What is page-locked is so from the start: none is locked while a GPU computes, which would hold it up."""
    slots, most = slots_within(Work(4, 0, 8, ram_bytes, 4, adapt=True, pinned=True), slot_bytes, 1)
    assert slots == most


def test_the_ranks_of_a_node_share_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks take together what one would: a quarter of what is free."""
    monkeypatch.setattr(machine, "memory_bytes_free", lambda: 64 << 30)
    data = stoker.open(write_shards(tmp_path, 8))
    alone, eighth = (plan_work(data, None, Ranks(0, n, n), pinned=False).ram_bytes for n in (1, 8))
    assert alone == (64 << 30) * RAM_SHARE
    assert eighth * 8 == alone


def wide(sample: dict[str, Any]) -> dict[str, Any]:
    """A field of 10,000 bytes."""
    return {**sample, "wide": np.full(10_000, sample["cls"], np.uint8)}


def test_a_running_loader_stays_within_its_budget(tmp_path: Path) -> None:
    """The feeder's slab takes half of what was allowed at most, where it would take more if it might."""
    data = stoker.open(write_shards(tmp_path, 400))
    sizes = []
    for allowed in (4 << 20, 64 << 20):
        budget = stoker.Budget(cpus=2, ram_bytes=allowed)
        with stoker.Loader(data, 20, fields={"cls": int}, transform=wide, output="numpy", budget=budget) as loader:
            for batch in loader:
                assert batch["wide"].shape == (20, 10_000)
            del batch
            (feeder,) = feeders()
            maps = Path(f"/proc/{feeder.pid}/maps").read_text().splitlines()
        spans = [[int(edge, 16) for edge in line.split()[0].split("-")] for line in maps if "/memfd:" in line]
        sizes.append(max(stop - start for start, stop in spans))
        assert sizes[-1] <= allowed / 2 + PAGE_BYTES
    assert sizes[0] < sizes[1]
