"""What torch.distributed.checkpoint does in jobs of ranks when something goes wrong, and stoker in the same place.

`support_checkpoint_stock.py TASK BOX`; ranks are forked. Each task prints one JSON line.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import wait as wait_for_all
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import stoker
from support_checkpoint import complete, saved
from support_checkpoint_deaths import job, result

GROUP_S = 3.0
"""How long the ranks of a group wait for each other; torch's own default is 30 minutes."""


def state(value: float) -> dict[str, Any]:
    """One tensor in two halves, a rank each."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"w": distribute_tensor(torch.full((1000,), value), mesh, [Shard(0)])}


def told(live: dict[str, Any]) -> list[float]:
    """The values of the whole tensor, each once."""
    return sorted(set(live["w"].full_tensor().tolist()))


@contextlib.contextmanager
def failing_files(here: bool) -> Iterator[None]:
    """While this holds, no data file can be written by this rank."""
    whole = FileSystem.create_stream

    @contextlib.contextmanager
    def broken(self: FileSystem, path: Any, mode: str) -> Iterator[Any]:
        if here and "w" in mode and str(path).endswith(".distcp"):
            raise OSError("planned")
        with whole(self, path, mode) as stream:
            yield stream

    FileSystem.create_stream = broken
    try:
        yield
    finally:
        FileSystem.create_stream = whole


_ANY = BaseException  # torch's CheckpointException is no Exception


def outcome(work: Callable[[], object]) -> str:
    """ "ok", or what was raised."""
    try:
        work()
    except _ANY as error:
        return type(error).__name__
    return "ok"


def two(box: Path) -> object:
    """A rank that fails over an older checkpoint; a rank that is stopped; metadata of each rank for itself."""

    def work(rank: int, box: Path) -> Any:
        found: dict[str, Any] = {}
        path = str(box / "stock")
        dcp.save(state(1.0), checkpoint_id=path)
        with failing_files(rank == 1):
            found["save over"] = outcome(lambda: dcp.save(state(2.0), checkpoint_id=path))
        live = state(0.0)
        found["load over"] = outcome(lambda: dcp.load(live, checkpoint_id=path))
        found["mixed"] = told(live)

        dcp.save(state(1.0), checkpoint_id=str(box / "local"), use_collectives=False)
        dist.barrier()

        third, fourth, pids = state(3.0), state(4.0), [0, 0]
        dist.all_gather_object(pids, os.getpid())
        group = dist.new_group(backend="gloo", timeout=timedelta(seconds=GROUP_S))
        dist.barrier()
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        began_s = time.monotonic()
        found["stopped"] = outcome(lambda: dcp.save(third, checkpoint_id=str(box / "stop"), process_group=group))
        found["stopped_s"] = time.monotonic() - began_s
        os.kill(pids[1], signal.SIGCONT)
        found["afterwards"] = outcome(lambda: dcp.save(fourth, checkpoint_id=str(box / "after"), process_group=group))
        return found

    ends = job(box, 2, work)
    return {**result(box), **job_of_stoker(box), "ends": ends}


def job_of_stoker(box: Path) -> dict[str, Any]:
    """The same harm to stoker's saves."""

    def work(rank: int, box: Path) -> Any:
        found: dict[str, Any] = {}
        pids: list[Any] = [0, 0]
        dist.all_gather_object(pids, os.getpid())
        with stoker.Checkpointer(box / "ck", keep=9) as ck:
            saved(ck, 1, state(1.0))
            writer = ck._saver.writer_pid()
            assert writer is not None
            before = resource.prlimit(writer, resource.RLIMIT_FSIZE)
            if rank == 1:
                resource.prlimit(writer, resource.RLIMIT_FSIZE, (0, before[1]))
            over = ck.save(1, state(2.0))
            over.wait(200)
            resource.prlimit(writer, resource.RLIMIT_FSIZE, before)
            live = state(0.0)
            found["ours over"] = [over.state, ck.resume(live) is not None, told(live)]
        third, fourth = state(3.0), state(4.0)
        with stoker.Checkpointer(box / "ck", keep=9, timeout_s=GROUP_S) as ck:
            dist.barrier()
            if rank == 1:
                os.kill(os.getpid(), signal.SIGSTOP)
            began_s = time.monotonic()
            stopped = ck.save(3, third)
            stopped.wait(200)
            found["ours stopped"] = [stopped.state, time.monotonic() - began_s]
            os.kill(pids[1], signal.SIGCONT)
            dist.barrier()
            saved(ck, 4, fourth)
        found["ours complete"] = complete(box / "ck")
        return found

    assert job(box, 2, work) == [0, 0]
    return dict(result(box))


def begun(box: Path, number: int) -> Any:
    """A save of torch's by its background process."""
    return dcp.async_save(
        {f"w{number}": torch.full((1000,), float(number))}, checkpoint_id=str(box / f"process{number}"),
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )  # fmt: skip


def overlapping(box: Path) -> object:
    """Saves of torch's by its background process that are begun before the last one ended: whose description of what
    was saved each of them got."""

    def work(rank: int, box: Path) -> Any:
        futures = {number: begun(box, number) for number in range(6)}
        wait_for_all(futures.values(), timeout=10)
        found = []
        for number, future in futures.items():
            got: list[str] = []
            what = outcome(lambda got=got, future=future: got.extend(future.result(timeout=0).state_dict_metadata))
            found.append("right" if got == [f"w{number}"] else f"{what} {got}")
        for child in multiprocessing.active_children():
            child.kill()  # several may have been started, and one that waits for its peers spins for ever
        return found

    assert job(box, 1, work) == [0]
    return result(box)


def one(box: Path) -> object:
    """A job of one rank: what two saved each for itself; a background process that is killed."""

    def work(rank: int, box: Path) -> Any:
        found: dict[str, Any] = {}
        live = {"w": torch.full((1000,), -1.0)}
        reader = FileSystemReader(str(box / "local"))
        found["each for itself"] = outcome(lambda: dcp.load(live, storage_reader=reader))
        found["loaded"] = sorted(set(live["w"].tolist()))

        found["first"] = outcome(begun(box, 0).result)
        for child in multiprocessing.active_children():
            child.kill()
            child.join()
        found["killed"] = [outcome(begun(box, number).result) for number in (1, 2, 3)]
        with stoker.Checkpointer(box / "ck1") as ck:
            saved(ck, 0, {"w": torch.ones(9)})
            writer = ck._saver.writer_pid()
            assert writer is not None
            os.kill(writer, signal.SIGKILL)
            for step in (1, 2):
                saved(ck, step, {"w": torch.ones(9)})
        found["ours killed"] = complete(box / "ck1")
        return found

    assert job(box, 1, work) == [0]
    return result(box)


def main() -> None:
    """Run a task."""
    warnings.simplefilter("ignore")
    print(json.dumps({"two": two, "one": one, "overlapping": overlapping}[sys.argv[1]](Path(sys.argv[2]))))


if __name__ == "__main__":
    main()
