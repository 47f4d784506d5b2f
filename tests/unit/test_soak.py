"""Nothing grows: over 50 epochs of one loader, and over 100 loaders that were started and left in four ways.

What is compared is late against early, in the same run: allocators take a while until they reuse what they have.
"""

from __future__ import annotations

import contextlib
import gc
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pytest

import stoker
from stoker.decode import Npy
from support_dataset import feeders, write_shards
from support_rows import npy

pytestmark = pytest.mark.slow

SIDE = 256
"""A sample is 64 KiB, so that a batch which is lost in each epoch, or with each loader, is seen beside the noise."""
BATCH = 8
SAMPLES = 40
GROWTH_MAX_BYTES = 4 << 20
"""What the median of the late looks may lie above that of the early ones: 8 batches, of hundreds that were made."""
FIELDS: dict[str, object] = {"npy": Npy((SIDE, SIDE), "uint8"), "cls": int}


@dataclass(frozen=True, slots=True)
class Look:
    """What a process, and all processes together, hold at one moment."""

    rss_bytes: int
    pss_bytes: int
    """Its share of memory that lies in no file: in libraries' pages it changes with what else the machine runs."""
    fds: int
    threads: int
    shared_maps: int
    """Mappings of anonymous memory files and of /dev/shm."""
    children: int
    shm: tuple[str, ...]
    """Names in /dev/shm."""


def look(process: psutil.Process) -> Look:
    """At *process*, now."""
    gc.collect()
    rollup = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    pss = sum(1024 * int(line.split()[1]) for line in rollup if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return Look(
        process.memory_info().rss, pss, process.num_fds(), process.num_threads(),
        maps.count("/memfd:") + maps.count("/dev/shm/"), len(process.children()), tuple(sorted(os.listdir("/dev/shm"))),
    )  # fmt: skip


def assert_flat(looks: list[Look], what: str) -> None:
    """The last third holds no more than the second: memory within the margin, all else exactly."""
    third = len(looks) // 3
    early, late = looks[third : 2 * third], looks[-third:]
    for name in ("rss_bytes", "pss_bytes"):
        before, after = (median(getattr(one, name) for one in some) for some in (early, late))
        assert after - before < GROWTH_MAX_BYTES, f"{what}: {name} grew from {before:,} to {after:,}"
    for name in ("fds", "threads", "shared_maps", "children"):
        before, after = (max(getattr(one, name) for one in some) for some in (early, late))
        assert after <= before, f"{what}: {name} grew from {before} to {after}"
    new = set(late[-1].shm) - set(early[0].shm)
    assert not {name for name in new if "stoker" in name}, f"{what}: {new} in /dev/shm"


def test_a_leak_is_seen() -> None:
    """A batch more with each look, or one descriptor, is growth; what comes and goes is none."""
    base = Look(100 << 20, 90 << 20, 20, 4, 6, 1, ())
    batch = BATCH * SIDE * SIDE
    assert_flat([replace(base, rss_bytes=base.rss_bytes + (i % 3) * batch, fds=20 + i % 2) for i in range(25)], "noise")
    for leak in (
        [replace(base, rss_bytes=base.rss_bytes + i * batch * 2) for i in range(25)],
        [replace(base, pss_bytes=base.pss_bytes + i * batch * 2) for i in range(25)],
        [replace(base, fds=base.fds + i // 10) for i in range(25)],
        [replace(base, shm=("stoker-left",) if i > 12 else ()) for i in range(25)],
    ):
        with pytest.raises(AssertionError, match="leak"):
            assert_flat(leak, "leak")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """40 arrays of 64 KiB with labels."""

    def member(number: int) -> dict[str, bytes]:
        return {"npy": npy(np.full((SIDE, SIDE), number, np.uint8)), "cls": str(number).encode()}

    return stoker.open(write_shards(tmp_path_factory.mktemp("data"), SAMPLES, member=member))


def make(dataset: stoker.Dataset) -> stoker.Loader:
    """A loader whose threads and slots stay as they begin: what grows on purpose would be no leak."""
    budget = stoker.Budget(cpus=2, adapt=False)
    return stoker.Loader(dataset, BATCH, fields=FIELDS, output="numpy", budget=budget)


def test_fifty_epochs_of_one_loader(dataset: stoker.Dataset) -> None:
    """Trainer and feeder hold after 50 epochs what they held after 20; every third epoch is left early."""
    ours, theirs = [], []
    with make(dataset) as loader:
        (feeder,) = feeders()
        for epoch in range(50):
            for step, batch in enumerate(loader):
                assert batch["npy"].shape == (BATCH, SIDE, SIDE)
                assert (batch["npy"][:, 0, 0] == batch["cls"]).all()
                if epoch % 3 == 0 and step == 2:
                    break
            del batch
            ours.append(look(psutil.Process()))
            theirs.append(look(feeder))
    assert_flat(ours, "the trainer")
    assert_flat(theirs, "the feeder")


def closed(loader: stoker.Loader) -> None:
    """An epoch, and the block's end."""
    with loader:
        assert sum(len(batch["cls"]) for batch in loader) == SAMPLES


def broken_off(loader: stoker.Loader) -> None:
    """A loop left by `break`, then closed."""
    for batch in loader:
        assert len(batch["cls"]) == BATCH
        break
    loader.close()


def left_by_an_exception(loader: stoker.Loader) -> None:
    """An exception inside the loop, with a batch in hand."""
    with contextlib.suppress(LookupError), loader:
        for batch in loader:
            raise LookupError(f"as a training step may, with {len(batch['cls'])} samples in hand")


def dropped(loader: stoker.Loader) -> None:
    """Neither closed nor finished: the last reference goes."""
    batches: Iterator[Any] = iter(loader)
    assert len(next(batches)["cls"]) == BATCH


LEAVE: tuple[Callable[[stoker.Loader], None], ...] = (closed, broken_off, left_by_an_exception, dropped)


@pytest.mark.timeout(600)  # 100 interpreters are started
def test_a_hundred_loaders(dataset: stoker.Dataset) -> None:
    """Four at a time, each left in its own way: memory, descriptors, threads, mappings and children stay the same."""
    looks = []
    gc.collect()  # a loader that another test left in a cycle of references
    psutil.wait_procs(feeders(), timeout=60)
    for _ in range(100 // len(LEAVE)):
        loaders = [make(dataset) for _ in LEAVE]  # four at once: their feeders' imports overlap
        running = feeders()
        assert len(running) == len(LEAVE)
        for leave in LEAVE:
            leave(loaders.pop())
        gc.collect()
        _, alive = psutil.wait_procs(running, timeout=60)
        assert not alive
        looks.append(look(psutil.Process()))
    assert_flat(looks, "a hundred loaders")
    assert not feeders()


def test_kept_batches_take_no_descriptors(dataset: stoker.Dataset) -> None:
    """However many batches a loop keeps, memory is handed over by no file of their own."""
    with make(dataset) as loader:
        kept = [next(iter(loader))]
        before = psutil.Process().num_fds()
        with warnings.catch_warnings(action="ignore"):  # that later ones are copies is told by a test of its own
            for _ in range(4):
                kept += list(loader)
        assert len(kept) == 21
        assert psutil.Process().num_fds() <= before
        assert [int(batch["npy"].max()) for batch in kept] == [int(batch["cls"].max()) for batch in kept]
