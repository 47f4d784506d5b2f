"""The shortcut to qualified names gives what torch gives, or is not taken."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict

import stoker
from stoker.checkpoint import shortcut
from stoker.checkpoint.tensors import model_state, optimizer_state
from support_checkpoint import model, same, saved, train

OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    torch.optim.AdamW,
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    lambda p: torch.optim.Adagrad(p, lr=torch.tensor(0.1)),
    torch.optim.NAdam,
]


def groups(network: torch.nn.Module) -> list[dict[str, Any]]:
    """Two groups, out of the modules' order."""
    first, second = network[0], network[3]
    return [
        {"params": list(second.parameters()), "lr": 0.01},
        {"params": [*network[1].parameters(), *first.parameters()], "weight_decay": 0.1},
    ]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_the_shortcut_gives_torchs_answer(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """Name for name, tensor for tensor, in every group, before and after more steps."""
    network = model()
    optimizer = make(groups(network))
    train(network, optimizer, 1)
    for _ in range(3):
        expected = dict(get_model_state_dict(network)), dict(get_optimizer_state_dict(network, optimizer))
        found = model_state(network), optimizer_state(network, optimizer)
        assert same(found, expected)
        assert [list(one) for one in found] == [list(one) for one in expected]
        train(network, optimizer, 1)
    assert shortcut.model_state(network) is not None and shortcut.optimizer_state(optimizer) is not None


def test_what_changed_goes_the_long_way() -> None:
    """Another parameter, a new buffer, a new group: torch is asked again, and the answer is right."""
    network = model()
    optimizer = torch.optim.AdamW(groups(network))
    train(network, optimizer, 1)
    model_state(network), optimizer_state(network, optimizer)
    network.register_buffer("extra", torch.ones(3))
    assert shortcut.model_state(network) is None and "extra" in model_state(network)
    fresh = torch.nn.Parameter(torch.zeros_like(network[0].weight))
    network[0].weight = fresh
    assert torch.equal(model_state(network)["0.weight"], torch.zeros_like(fresh))
    optimizer.param_groups[1]["params"][2] = fresh
    assert shortcut.optimizer_state(optimizer) is None


def test_tied_weights_and_hooks_take_the_long_way(tmp_path: Path) -> None:
    """Where torch's answer is not the module's own state under other names, nothing is remembered; saving works."""
    network = torch.nn.Sequential(torch.nn.Linear(24, 24), torch.nn.Linear(24, 24))
    network[1].weight = network[0].weight
    optimizer = torch.optim.AdamW(network.parameters())
    optimizer.register_state_dict_post_hook(lambda optimizer, state: None)
    train(network, optimizer, 1)
    optimizer_state(network, optimizer)
    assert shortcut.optimizer_state(optimizer) is None
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        for step in range(2):
            saved(ck, step, {"model": network, "optimizer": optimizer})
        with torch.no_grad():
            expected = network[0].weight.clone()
            network[0].weight.zero_()
        assert ck.resume({"model": network, "optimizer": optimizer}) is not None
    assert torch.equal(network[1].weight, expected) and network[1].weight is network[0].weight


def test_a_model_that_is_gone_is_forgotten() -> None:
    """What is remembered keeps nothing alive."""
    network = model()
    model_state(network)
    count = len(shortcut._models)
    del network
    gc.collect()
    assert len(shortcut._models) < count
