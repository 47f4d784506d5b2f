"""What tests of checkpoints share: small models, states that are compared bit by bit, a real trainer to kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from stoker.checkpoint import Checkpointer
from stoker.checkpoint.tier import Seen, Tier
from stoker.cli.servers import Server
from stoker.store import StoreOptions, connect
from stoker.testing.fault_proxy import FaultProxy
from support_store import options_for


def model(seed: int = 0, *, width: int = 24) -> torch.nn.Module:
    """A small network with a buffer."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(width, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    )


def pair(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A network and its AdamW."""
    network = model(seed)
    return network, torch.optim.AdamW(network.parameters(), lr=1e-2)


def train(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int, *, seed: int = 7) -> None:
    """Steps on seeded batches."""
    source = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(8, 24, generator=source)).square().mean().backward()
        optimizer.step()


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every leaf of nested state with its path."""
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from leaves(one, f"{path}/{key!r}")
    elif isinstance(value, list | tuple):
        for number, one in enumerate(value):
            yield from leaves(one, f"{path}[{number}]")
    else:
        yield path, value


def same(first: Any, second: Any) -> bool:
    """Whether two nested states are equal, bit by bit."""
    one, other = dict(leaves(first)), dict(leaves(second))
    if one.keys() != other.keys():
        return False
    return all(_same(value, other[path]) for path, value in one.items())


def _same(first: Any, second: Any) -> bool:
    if not isinstance(first, torch.Tensor):
        return bool(first == second)
    if not isinstance(second, torch.Tensor) or first.dtype != second.dtype or first.shape != second.shape:
        return False
    return torch.equal(_bits(first), _bits(second))


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def everything(network: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """A copy of all that a run would have to restore."""
    state = {"model": network.state_dict(), "optimizer": optimizer.state_dict()}
    return _copied(state)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(one) for one in value)
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def saved(checkpointer: Checkpointer, step: int, state: Mapping[str, Any], **more: Any) -> str:
    """Save and wait until it is committed; the checkpoint's name."""
    save = checkpointer.save(step, state, **more)
    assert save.wait(200), save.error
    assert save.name is not None
    return save.name


def seen(place: Path | str) -> list[Seen]:
    """Every attempt on a tier."""
    return Tier(connect(str(place))).look()


def complete(place: Path | str) -> list[int]:
    """The steps of the complete checkpoints on a tier, oldest first."""
    return [one.attempt.step for one in seen(place) if one.manifest is not None]


def through(proxy: FaultProxy, server: Server, deadline_s: float = 20.0) -> StoreOptions:
    """Options that lead through the proxy."""
    return options_for(server, endpoint=proxy.endpoint, deadline_s=deadline_s)


def state(step: float) -> dict[str, Any]:
    """Some tensors, and a value."""
    return {"w": torch.full((20_000,), float(step)), "b": torch.full((3,), -float(step)), "n": step}


def there(url: str, options: StoreOptions) -> list[int]:
    """The complete steps at a remote."""
    return [one.attempt.step for one in Tier(connect(url, options=options)).look() if one.manifest is not None]


def told_by(script: str, task: str, box: Path) -> Any:
    """What *task* of one of this folder's scripts, whose ranks are its children, told in its last line."""
    command = [sys.executable, str(Path(__file__).with_name(script)), task, str(box)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def whole(value: Any) -> Any:
    """Nested state with every tensor gathered, as lists of numbers."""
    if isinstance(value, Mapping):
        return {str(key): whole(one) for key, one in value.items()}
    if isinstance(value, DTensor):
        return whole(value.full_tensor())
    return value.detach().double().tolist() if isinstance(value, torch.Tensor) else value
