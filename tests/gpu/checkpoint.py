"""Checkpoints of a GPU's state: saved beside training, resumed to the bit. Part of `checks.py`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

import stoker

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIDE = 4096 if DEVICE == "cuda" else 256
Figures = dict[str, object]


def network() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Layers with buffers that every forward changes."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(SIDE, SIDE), torch.nn.BatchNorm1d(SIDE), torch.nn.Linear(SIDE, SIDE)]
    made = torch.nn.Sequential(*layers).to(DEVICE)
    return made, torch.optim.AdamW(made.parameters(), lr=1e-3)


def train(made: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Steps on the device, without waiting for it."""
    for _ in range(steps):
        optimizer.zero_grad()
        made(torch.randn(64, SIDE, device=DEVICE)).square().mean().backward()
        optimizer.step()


def copies(made: torch.nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All state, as of now, on the host."""
    own = [one for states in optimizer.state.values() for one in states.values()]
    return [one.detach().cpu().clone() for one in (*made.state_dict().values(), *own)]


def saved_state_is_of_one_moment(folder: Path) -> Figures:
    """Training goes on at once after `save`, buffers and weights change while they are copied; what is resumed is the
    state of the call, to the bit."""
    made, optimizer = network()
    with stoker.Checkpointer(folder / "moment", keep=1, on_full="wait") as ck:
        for step in range(5):
            train(made, optimizer, 2)
            expected = copies(made, optimizer)
            save = ck.save(step, {"model": made, "optimizer": optimizer})
            train(made, optimizer, 2)
            assert save.wait(120), str(save.error)
            fresh, other = network()
            assert ck.resume({"model": fresh, "optimizer": other}) is not None
            for one, kept in zip(copies(fresh, other), expected, strict=True):
                assert torch.equal(one, kept), f"step {step}: a tensor is not what it was"
    return {"saves": 5}


def blocking_is_a_copy(folder: Path) -> Figures:
    """Time that `save` takes from the host, against copying the same bytes from the device to page-locked memory."""
    state = {f"w{n}": torch.randn(SIDE, SIDE, device=DEVICE) for n in range(16)}
    host = [torch.empty(SIDE, SIDE, pin_memory=DEVICE == "cuda") for _ in state]
    limit, blocked, durable = [], [], []
    with stoker.Checkpointer(folder / "copy", keep=1) as ck:
        for step in range(6):
            start = time.perf_counter()
            for to, live in zip(host, state.values(), strict=True):
                to.copy_(live, non_blocking=True)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            limit.append(time.perf_counter() - start)
            start = time.perf_counter()
            save = ck.save(step, {"state": state})
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            blocked.append(time.perf_counter() - start)
            assert save.wait(120), str(save.error)
            durable.append(save.durable_s)
    ratio = statistics.median(blocked[1:]) / statistics.median(limit[1:])
    if DEVICE == "cuda":
        assert ratio <= 1.2, f"a save takes {ratio:.2f} times a copy"
    return {"ratio": round(ratio, 2), "durable_s": round(statistics.median(durable[1:]), 3)}


CHECKS: tuple[Callable[[Path], Figures], ...] = (saved_state_is_of_one_moment, blocking_is_a_copy)
