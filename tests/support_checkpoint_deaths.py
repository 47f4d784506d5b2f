"""Jobs of several ranks (gloo) whose processes are forked, so that one takes a second: `… TASK BOX SEED POINTS`.

Each task prints one JSON line. "deaths": a rank dies by kill -9 just before the Nth change to its disk of a save that
all ranks are in (rank 0: description, manifest and marker; the leader of another disk: the same for its part), then
another job goes on; POINTS 0: every N, else just before and just after the marker and a seeded choice. "worlds":
sharded state over 4, 2, 3 and 8 ranks whose clocks differ by days. "dying": the disk of one rank gives I/O errors from
some moment on.
"""

from __future__ import annotations

import faulthandler
import functools
import importlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

import stoker
from stoker import clock
from stoker.checkpoint import checkpointer, disk, load, tensors
from stoker.checkpoint.keeper import KeeperJob
from stoker.checkpoint.names import COMMITTED
from support_checkpoint import complete, same, saved, seen, whole

JOB_S_MAX = 400.0
PEERS_S = 60.0
"""Generous: a machine whose cores others take must not look like a rank that is gone."""
importlib.import_module("torch._dynamo")  # fully_shard does; before the fork it is done once
IMPORTED_BEFORE_THE_FORK = (load, tensors)
Work = Callable[[int, Path], Any]
checkpointer.KeeperJob = functools.partial(KeeperJob, retry_s=0.3)  # a node that waits for another's part looks sooner


def job(box: Path, world: int, work: Work) -> list[int]:
    """Run a job in forked processes; how each rank ended. Rank 0's value lies in BOX/result."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(probe.getsockname()[1])}
    (box / "result").unlink(missing_ok=True)
    pids = [os.fork() or _rank(box, rank, world, work) for rank in range(world)]
    ends, until = dict.fromkeys(pids, 0), time.monotonic() + JOB_S_MAX
    left = set(pids)
    while left:
        for pid in sorted(left):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                ends[pid] = os.waitstatus_to_exitcode(status)
                left.discard(pid)
        if left and time.monotonic() > until:
            for pid in left:
                os.kill(pid, signal.SIGABRT)
            raise AssertionError(f"ranks {[pids.index(pid) for pid in left]} did not end within {JOB_S_MAX} s")
        time.sleep(0.01)
    return [ends[pid] for pid in pids]


def _rank(box: Path, rank: int, world: int, work: Work) -> int:
    """One rank; never returns."""
    code = 1
    faulthandler.enable()  # a rank that does not end is asked by SIGABRT what it is at
    try:
        torch.set_num_threads(1)
        dist.init_process_group("gloo", rank=rank, world_size=world)
        value = work(rank, box)
        if rank == 0:
            (box / "result").write_text(json.dumps(value))
        code = 0
    finally:
        if code:
            traceback.print_exc()
        sys.stderr.flush()
        os._exit(code)  # without gloo's own end, which waits for ranks that may be gone


def result(box: Path) -> Any:
    """What rank 0 told."""
    return json.loads((box / "result").read_text())


def state(step: float) -> dict[str, Any]:
    """The same on all ranks."""
    return {"w": torch.full((50_000,), float(step)), "n": step}


# --- deaths ---


def two_saves(apart: bool, victim: int, at: int) -> Work:
    """Save step 1, on every tier; in the save of step 2 the *victim* dies at operation *at* of its own process."""

    def work(rank: int, box: Path) -> Any:
        place, count = box / (f"node{rank}" if apart else "node0"), 0
        with stoker.Checkpointer(place, box / "far", keep=3, timeout_s=PEERS_S) as ck:
            saved(ck, 1, state(1), per_rank={"rank": rank})
            until = time.monotonic() + 200
            while ck._household is not None and not ck.wait(1, remote=True):
                assert time.monotonic() < until
            dist.barrier()
            told: list[str] = []

            def watch(operation: str, path: Path) -> None:
                nonlocal count
                count += 1
                told.append(f"{operation} {path.name}")
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)

            if rank == victim:
                disk.watch = watch
            save = ck.save(2, state(2), per_rank={"rank": rank})
            save.wait(200)
            if rank == victim and at == 0:
                (box / "operations").write_text("\n".join(told))
            (box / f"outcome{rank}").write_text(f"{save.state}: {save.error}")
            ck.close(0)  # the peers may be gone: not to wait for what they were to upload
        return None

    return work


def go_on(apart: bool) -> Work:
    """Another job: resumes, saves step 3, keeps house."""

    def work(rank: int, box: Path) -> Any:
        live = state(0)
        with stoker.Checkpointer(
            box / (f"node{rank}" if apart else "node0"), box / "far", keep=3, timeout_s=PEERS_S
        ) as ck:
            found = ck.resume(live)
            assert found is not None and same(live, state(found.step)) and found.per_rank == {"rank": rank}
            told: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(told, found.step)
            saved(ck, 3, state(3))
            if ck._household is not None:
                assert ck.wait(200, remote=True) and ck._household.wait_idle(200)
            dist.barrier()
        return told

    return work


def check(box: Path, apart: bool, where: str, marked: bool) -> None:
    """What must hold after a death, and after the next job."""
    places = [box / "node0", box / "node1"][: 1 + apart]
    whole = [complete(place) for place in places]
    assert all(1 in steps for steps in whole), f"{where}: {whole}"
    outcomes = [path.read_text() for path in box.glob("outcome*")]
    committed = any(text.startswith("committed") for text in outcomes)
    assert marked or not committed, f"{where}: called committed without a marker: {outcomes}"
    assert (2 in whole[0]) == marked, f"{where}: {whole}, marked: {marked}"
    assert job(box, 2, go_on(apart)) == [0, 0], where
    steps = set(result(box))
    assert len(steps) == 1 and steps <= {1, 2}, f"{where}: resumed from {steps}"
    if not apart:
        assert steps == {2 if marked else 1}, f"{where}: resumed from {steps}"
    for place in places:
        partial = [one.name for one in seen(place) if one.manifest is None]
        assert not partial and complete(place)[-1] == 3, f"{where}: left behind in {place.name}: {partial}"
    assert complete(box / "far")[-1] == 3, where


def deaths(box: Path, seed: str, points: int) -> object:
    """Every place and victim, every operation, or some."""
    rng, done = random.Random(seed), {}
    for apart, victim in ((False, 0), (True, 0), (True, 1)):
        name = f"{'apart' if apart else 'shared'}, rank {victim}"
        place = box / "dry"
        place.mkdir()
        assert job(place, 2, two_saves(apart, victim, 0)) == [0, 0]
        operations = (place / "operations").read_text().split("\n")
        marker = max(n for n, one in enumerate(operations, 1) if one == f"rename {COMMITTED}")
        every = range(1, len(operations) + 1)
        some = {marker, marker + 1} if victim == 0 and not apart else {marker + rng.randrange(2)}
        chosen = every if points == 0 else sorted(some | set(rng.sample(every, min(len(every), points // 5 - 1))))
        shutil.rmtree(place)
        for at in chosen:
            place.mkdir()
            ends = job(place, 2, two_saves(apart, victim, at))
            where = f"{name}, before operation {at}: {operations[at - 1]}"
            assert ends[victim] == -signal.SIGKILL and ends[1 - victim] == 0, f"{where}: {ends}"
            check(place, apart, where, marked=at > marker or victim != 0)
            shutil.rmtree(place)
        done[name] = [len(chosen), len(operations)]
    return done


# --- world sizes and clocks ---


def sharded(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """FSDP2 over all ranks; no dimension is a multiple of 2, 3, 4 or 8."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(torch.nn.Linear(13, 37), torch.nn.Tanh(), torch.nn.Linear(37, 5))
    fully_shard(made, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return made, torch.optim.AdamW(made.parameters(), lr=1e-2)


def train_on(days: float) -> Work:
    """Resume, tell the state, train 3 steps, save; the clocks of the ranks are so many days apart."""

    def work(rank: int, box: Path) -> Any:
        skew_s = days * 86_400 * (rank + 1)
        clock.SYSTEM.wall = lambda: time.time() + skew_s
        made, optimizer = sharded(seed=0)
        with stoker.Checkpointer(box / "ck", keep=9, timeout_s=20) as ck:
            found = ck.resume({"model": made, "optimizer": optimizer})

            def told() -> Any:
                states = {str(n): whole(optimizer.state[p]) for n, p in made.named_parameters() if p in optimizer.state}
                return {"model": whole(made.state_dict()), "optimizer": states}

            before = told() if found is not None else None
            source = torch.Generator().manual_seed(3)
            for _ in range(3):
                optimizer.zero_grad()
                made(torch.randn(6, 13, generator=source)).square().mean().backward()
                optimizer.step()
            step = 3 + (found.step if found is not None else 0)
            saved(ck, step, {"model": made, "optimizer": optimizer})
            return {"resumed": before, "saved": told(), "step": step}

    return work


def worlds(box: Path) -> object:
    """4 → 2 → 3 → 8, each with the state that the one before saved, to the bit, whatever the clocks say."""
    before: Any = None
    for world, days in ((4, 0.0), (2, 30.0), (3, -400.0), (8, 3.0)):
        assert job(box, world, train_on(days)) == [0] * world
        now = result(box)
        assert before is None or now["resumed"] == before["saved"], f"{world} ranks"
        before = now
    return complete(box / "ck")


# --- a disk of one rank ---


def dying(box: Path) -> object:
    """Rank 1's disk (mounted at BOX/disk over the file BOX/image) ends after step 1; then a job with a new one."""
    fresh = box / "new"

    def break_disk() -> None:
        source = ["findmnt", "-no", "SOURCE", str(box / "disk")]
        device = subprocess.run(source, capture_output=True, text=True, check=True).stdout.strip()
        os.truncate(box / "image", 1_000_000)
        subprocess.run(["losetup", "-c", device], check=True)

    def breaks(rank: int, box: Path) -> Any:
        place = box / ("disk/ck" if rank else "node0")
        with stoker.Checkpointer(place, box / "far", keep=3, timeout_s=PEERS_S, failures_max=9) as ck:
            saved(ck, 1, state(1))
            until = time.monotonic() + 200
            while ck._household is not None and not ck.wait(1, remote=True):
                assert time.monotonic() < until
            if rank:
                break_disk()
            dist.barrier()
            outcomes = []
            for step in (2, 3):
                save = ck.save(step, state(step))
                assert not save.wait(200)
                outcomes.append(str(save.error))
            failures = ck.status().failures
            ck.close(0)
        return [outcomes, failures]

    def mended(rank: int, box: Path) -> Any:
        live = state(0)
        with stoker.Checkpointer(fresh if rank else box / "node0", box / "far", keep=3, timeout_s=PEERS_S) as ck:
            found = ck.resume(live)
            assert found is not None and same(live, state(found.step))
            saved(ck, 4, state(4))
            return found.step

    assert job(box, 2, breaks) == [0, 0]
    told = result(box)
    assert job(box, 2, mended) == [0, 0]
    return [*told, result(box), complete(box / "node0"), complete(fresh)]


def main() -> None:
    """Run a task."""
    task, box = sys.argv[1], Path(sys.argv[2])
    if task == "deaths":
        done: object = deaths(box, sys.argv[3], int(sys.argv[4]))
    else:
        done = {"worlds": worlds, "dying": dying}[task](box)
    print(json.dumps(done))


if __name__ == "__main__":
    main()
