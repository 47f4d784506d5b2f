"""Checkpoints: what a save takes from training, and when it is durable, side by side in one run. Prints one JSON line.

A state of STOKER_BENCH_BYTES (default 512MB) in 16 MB tensors is saved STOKER_BENCH_ROUNDS times (default 7, the first not
counted) by each contender in turn, in STOKER_BENCH_FOLDER (default: the current one, for /tmp may be memory). Limits: a warm
copy into memory that was touched before ("memcpy"), and writing the same bytes around the page cache with fsync ("direct").
All contenders end with fsync. Then a step that is mostly Python runs with no save, and while saves of each kind run.
Medians. Targets: blocked ≤ 1.3 × memcpy, ≤ 1/5 × torch.save, ≤ 1 × async_save; durable ≤ 1.5 × direct; step ≤ 1.3 ×.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

import stoker
from stoker.units import parse_bytes

ROUNDS = int(os.environ.get("STOKER_BENCH_ROUNDS", "7"))
PHASE_S = 2.0
"""Seconds of training without saves, then with each kind of saves, in turn."""
PHASES = 6
Spent = tuple[float, float]
"""Seconds until the call returned, and until the bytes were durable."""


def timed(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


class Limits:
    """What no save can beat: the copy, and the disk."""

    def __init__(self, state: dict[str, torch.Tensor], folder: Path) -> None:
        self.state, self.file = state, folder / "direct"
        self.copies = {name: torch.zeros_like(one) for name, one in state.items()}
        self.nbytes = sum(one.nbytes for one in state.values())
        self.memory = mmap.mmap(-1, self.nbytes)
        np.frombuffer(self.memory, np.uint8)[:] = 1

    def memcpy(self) -> Spent:
        """Into buffers that were used before."""
        spent = timed(lambda: [self.copies[name].copy_(one) for name, one in self.state.items()])
        return spent, spent

    def direct(self) -> Spent:
        """Around the page cache, with fsync."""

        def write() -> None:
            descriptor = os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_DIRECT)
            os.posix_fallocate(descriptor, 0, self.nbytes)
            view, piece = memoryview(self.memory), 16 << 20
            for at in range(0, self.nbytes, piece):
                os.pwrite(descriptor, view[at : at + piece], at)
            os.fsync(descriptor)
            os.close(descriptor)

        spent = timed(write)
        self.file.unlink()
        return spent, spent


class Stock:
    """torch's ways."""

    def __init__(self, state: dict[str, torch.Tensor], folder: Path) -> None:
        self.state, self.folder = state, folder
        options = StagingOptions(
            use_pinned_memory=False, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=False
        )
        self.stager = DefaultStager(options)

    def torch_save(self) -> Spent:
        """`torch.save` and fsync."""

        def write() -> None:
            with (self.folder / "file.pt").open("wb") as file:
                torch.save(self.state, file)
                file.flush()
                os.fsync(file.fileno())

        spent = timed(write)
        (self.folder / "file.pt").unlink()
        return spent, spent

    def dcp_save(self) -> Spent:
        """`dcp.save`."""
        spent = timed(lambda: dcp.save(self.state, storage_writer=FileSystemWriter(str(self.folder / "dcp"))))
        shutil.rmtree(self.folder / "dcp")
        return spent, spent

    def background(self, **options: Any) -> Spent:
        """`dcp.async_save`."""
        start = time.perf_counter()
        future: Any = dcp.async_save(self.state, storage_writer=FileSystemWriter(str(self.folder / "dcp")), **options)
        blocked = time.perf_counter() - start
        getattr(future, "upload_completion", future).result()
        total = time.perf_counter() - start
        shutil.rmtree(self.folder / "dcp")
        return blocked, total


def ours(checkpointer: stoker.Checkpointer, state: dict[str, torch.Tensor]) -> Spent:
    """stoker, with checksums, markers and the fsync of folders."""
    save = checkpointer.save(0, {"state": state})
    assert save.wait(), save.error
    assert save.durable_s is not None
    house = checkpointer._household
    assert house is not None and house.wait_idle(60)  # reading back must not slow the next contender
    return save.blocked_s, save.durable_s


def step() -> int:
    """A training step as far as the interpreter is concerned: mostly Python, some small tensors."""
    table: dict[int, int] = {}
    for number in range(12_000):
        table[number % 97] = table.get(number % 97, 0) + number
    weights = torch.ones(128, 128)
    for _ in range(5):
        weights = torch.tanh(weights @ weights)
    return len(table)


Begin = Callable[[], Callable[[], bool]]
"""Starts a save; the function that it gives tells whether the save still runs."""


def steps_s(begin: Begin | None) -> list[float]:
    """Seconds of each step of a phase; with *begin*, of those that ran while a save did."""
    times, until, running = [], time.perf_counter() + PHASE_S, None
    while time.perf_counter() < until:
        if begin is not None and (running is None or not running()):
            running = begin()
        spent = timed(step)
        if running is None or running():
            times.append(spent)
    while running is not None and running():
        time.sleep(0.01)
    return times


def begin_ours(checkpointer: stoker.Checkpointer, state: dict[str, torch.Tensor]) -> Callable[[], bool]:
    """Start a save; the function tells whether it still runs."""
    save = checkpointer.save(0, {"state": state})
    return lambda: save.state == "writing"


def begin_stock(stock: Stock) -> Callable[[], bool]:
    """The same by `dcp.async_save` in a thread."""
    shutil.rmtree(stock.folder / "dcp", ignore_errors=True)
    future: Any = dcp.async_save(stock.state, storage_writer=FileSystemWriter(str(stock.folder / "dcp")))
    return lambda: not future.done()


def main() -> None:
    """Interleaved rounds of all."""
    warnings.simplefilter("ignore")
    count = max(1, parse_bytes(os.environ.get("STOKER_BENCH_BYTES", "512MB")) // (16 << 20))
    state = {f"w{number}": torch.randn(4 << 20) for number in range(count)}
    with tempfile.TemporaryDirectory(
        prefix="stoker-bench-", dir=os.environ.get("STOKER_BENCH_FOLDER", str(Path.cwd()))
    ) as box:
        folder = Path(box)
        dist.init_process_group("gloo", init_method=f"file://{folder}/group", rank=0, world_size=1)
        limits, stock = Limits(state, folder), Stock(state, folder)
        process = {"async_checkpointer_type": AsyncCheckpointerType.PROCESS}
        with stoker.Checkpointer(folder / "ck", keep=1) as checkpointer:
            contenders: dict[str, Callable[[], Spent]] = {
                "memcpy": limits.memcpy,
                "direct": limits.direct,
                "torch.save": stock.torch_save,
                "dcp.save": stock.dcp_save,
                "async_save": stock.background,
                "async_save, stager kept": lambda: stock.background(async_stager=stock.stager),
                "async_save, process": lambda: stock.background(**process),
                "stoker": lambda: ours(checkpointer, state),
            }
            spent: dict[str, list[Spent]] = {name: [] for name in contenders}
            for _ in range(ROUNDS):
                for name, work in contenders.items():
                    os.sync()
                    spent[name].append(work())
            blocked = {name: statistics.median(one for one, _ in times[1:]) for name, times in spent.items()}
            durable = {name: statistics.median(one for _, one in times[1:]) for name, times in spent.items()}
            kinds: dict[str, Begin | None] = {
                "alone": None,
                "stoker": lambda: begin_ours(checkpointer, state),
                "async_save": lambda: begin_stock(stock),
            }
            steps: dict[str, list[float]] = {name: [] for name in kinds}
            for _ in range(PHASES):
                for name, begin in kinds.items():
                    steps[name] += steps_s(begin)
            step_s = {name: statistics.median(times) for name, times in steps.items()}
        dist.destroy_process_group()
    report = {
        "bench": "checkpoint",
        "bytes": limits.nbytes,
        "blocked_ms": {name: round(value * 1e3, 1) for name, value in blocked.items()},
        "durable_ms": {name: round(value * 1e3, 1) for name, value in durable.items()},
        "first_blocked_ms": round(spent["stoker"][0][0] * 1e3, 1),
        "blocked / memcpy": round(blocked["stoker"] / blocked["memcpy"], 2),
        "blocked / torch.save": round(blocked["stoker"] / blocked["torch.save"], 3),
        "blocked / async_save": round(blocked["stoker"] / blocked["async_save"], 3),
        "durable / direct": round(durable["stoker"] / durable["direct"], 2),
        "step_ms": {name: round(value * 1e3, 2) for name, value in step_s.items()},
        "step slower by": {name: round(value / step_s["alone"], 2) for name, value in step_s.items()},
        "targets": {"blocked": [1.3, 0.2, 1.0], "durable": 1.5, "step": 1.3},
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
