"""One rank of a gloo job that saves and resumes: `torchrun support_checkpoint_ranks.py TASK BOX [more]`.

Each task prints what rank 0 knows at its end as one JSON line. BOX/<rank>.pid tells the ranks' process ids.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed._composable.fsdp import fully_shard
from torch.distributed.device_mesh import init_device_mesh

import stoker
from stoker.checkpoint.tensors import Staging
from stoker.errors import StokerError
from support_checkpoint import whole

logging.basicConfig(format="%(message)s")
BOX = Path(sys.argv[2])


def network(seed: int) -> torch.nn.Module:
    """Uneven on purpose: no dimension is a multiple of 2, 3 and 4."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(13, 37), torch.nn.Tanh(), torch.nn.Linear(37, 5))


def sharded(seed: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """FSDP2 over all ranks."""
    made = network(seed)
    fully_shard(made, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return made, torch.optim.AdamW(made.parameters(), lr=1e-2)


def train(made: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps on the same batch at every rank."""
    source = torch.Generator().manual_seed(3)
    for _ in range(steps):
        optimizer.zero_grad()
        made(torch.randn(6, 13, generator=source)).square().mean().backward()
        optimizer.step()


def told(made: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """All that a run must restore."""
    states = {str(n): whole(optimizer.state[p]) for n, p in made.named_parameters()}
    return {"model": whole(made.state_dict()), "optimizer": states}


def fsdp(ck: stoker.Checkpointer) -> object:
    """Resume if there is something; tell the state; train 3 steps; save."""
    made, optimizer = sharded(seed=0)
    state = {"model": made, "optimizer": optimizer, "note": {"world": dist.get_world_size()}}
    found = ck.resume(state)
    before = told(made, optimizer) if found is not None else None
    train(made, optimizer, 3)
    step = 3 + (found.step if found is not None else 0)
    save = ck.save(step, state, per_rank={"rank": dist.get_rank()})
    assert save.wait(60), save.error
    own = None if found is None else found.per_rank
    return {"resumed": before, "saved": told(made, optimizer), "step": step, "note": state["note"], "own": own}


def leaves(ck: stoker.Checkpointer) -> object:
    """Values that differ between ranks under one name: what is saved is one rank's, whole; `per_rank` keeps each."""
    rank = dist.get_rank()
    state = {"w": torch.ones(3), "extra": {"position": rank, "rng": rank}, "list": [rank, [rank]]}
    save = ck.save(1, state, per_rank={"rng": rank})
    assert save.wait(60), save.error
    fresh: dict[str, Any] = {"w": torch.zeros(3), "extra": {}, "list": []}
    found = ck.resume(fresh)
    assert found is not None
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, (fresh["extra"], fresh["list"], found.per_rank))
    return gathered


def trouble(ck: stoker.Checkpointer) -> object:
    """Save, while the test does harm to a rank or its processes, until three saves after the harm have been tried."""
    (BOX / f"{dist.get_rank()}.writer").write_text(str(ck._saver.writer_pid()))
    state = {"w": torch.full((100_000,), float(dist.get_rank()))}
    outcomes = []
    for step in range(1, 40):
        save = ck.save(step, state)
        save.wait(60)
        outcomes.append(save.state)
        (BOX / f"{dist.get_rank()}.new").write_text(str(step))
        (BOX / f"{dist.get_rank()}.new").replace(BOX / f"{dist.get_rank()}.step")
        over = BOX / "over"  # rank 0 decides, one step ahead: a rank that went on alone would wait for one that is gone
        if over.exists() and step >= int(over.read_text()):
            break
        if (
            dist.get_rank() == 0
            and not over.exists()
            and (BOX / "harm").exists()
            and outcomes[-3:] == ["committed"] * 3
        ):
            (BOX / "over.new").write_text(str(step + 1))
            (BOX / "over.new").replace(over)
        time.sleep(0.05)
    return outcomes


def steps(ck: stoker.Checkpointer) -> object:
    """Ranks that are at different steps."""
    save = ck.save(5 + dist.get_rank(), {"w": torch.ones(3)})
    second = ck.save(9, {"w": torch.ones(3)})
    assert second.wait(60), second.error
    return [save.state, str(save.error)]


class Broken(torch.nn.Module):
    """Its state cannot be had at one rank."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError("no state at this rank")


def alone(ck: stoker.Checkpointer) -> object:
    """One rank's part fails in its copy, then before it, the value that only rank 0 pickles, and all is well again."""
    rank, outcomes = dist.get_rank(), []
    for step in range(1, 5):
        state: dict[str, Any] = {"w": torch.full((100_000,), float(step)), "n": 0}
        spoiled = Staging.fill
        if step == 1 and rank == 1:
            Staging.fill = Broken.state_dict  # type: ignore[method-assign]  # as memory that cannot be read
        if step == 2 and rank == 0:
            state["n"] = object()
        if step == 3 and rank == 1:
            state["w"] = Broken()
        began = time.monotonic()
        try:
            save = ck.save(step, state)
            save.wait(60)
            outcomes.append((save.state, str(save.error)))
        except (StokerError, MemoryError) as error:
            outcomes.append(("raised", str(error)))
            if step != 3:
                assert ck._saver.wait_free(60)
        outcomes[-1] = (*outcomes[-1], time.monotonic() - began)
        Staging.fill = spoiled  # type: ignore[method-assign]  # a copy that fails
        dist.barrier()
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, outcomes)
    return gathered


def main() -> None:
    """Run a task."""
    dist.init_process_group("gloo")
    (BOX / f"{dist.get_rank()}.pid").write_text(str(os.getpid()))
    local = BOX / "ck"
    if "--apart" in sys.argv:  # as on nodes with a disk each
        local = BOX / f"node{dist.get_rank() * 2 // dist.get_world_size()}"
    remote = str(BOX / "far") if "--remote" in sys.argv else None
    tasks = {"fsdp": fsdp, "leaves": leaves, "trouble": trouble, "steps": steps, "alone": alone}
    with stoker.Checkpointer(local, remote, keep=5, timeout_s=float(os.environ.get("PEERS_S", "20"))) as ck:
        result = tasks[sys.argv[1]](ck)
        if remote is not None:
            until = time.monotonic() + 60
            while ck._household is not None and not ck.wait(1, remote=True):
                assert time.monotonic() < until
    if dist.get_rank() == 0:
        print(json.dumps(result), flush=True)
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort a process that tears itself down: "terminate called without …"


main()
