"""What users do at the edges: places that are one, arguments that mean nothing, states of unusual models."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.errors import CheckpointError, UsageError
from support_checkpoint import complete, same, saved


@pytest.mark.parametrize("name", ["link", "ck/../ck", "file"])
def test_one_folder_under_two_names_is_one(tmp_path: Path, name: str) -> None:
    """A copy in the same folder protects nothing, whatever the folder is called."""
    (tmp_path / "ck").mkdir()
    (tmp_path / "link").symlink_to("ck")
    remote = (tmp_path / "ck").as_uri() if name == "file" else f"{tmp_path}/{name}"
    with pytest.raises(UsageError, match="local and as remote"):
        stoker.Checkpointer(tmp_path / "ck", remote)
    with pytest.raises(UsageError, match="another remote"):
        stoker.Checkpointer(tmp_path / "other", [tmp_path / "ck", remote])


@pytest.mark.parametrize(
    "arguments",
    [
        {"bytes_per_s_max": 0},
        {"bytes_per_s_max": "1MB"},
        {"timeout_s": float("nan")},
        {"timeout_s": -1},
        {"failures_max": 0},
        {"remote": [None]},
    ],
)
def test_arguments_that_mean_nothing(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Are refused at once, not when the first upload divides by them."""
    with pytest.raises(UsageError):
        stoker.Checkpointer(tmp_path / "ck", **arguments)


def test_a_local_place_that_is_no_folder(tmp_path: Path) -> None:
    """Is told when the Checkpointer is made, not by the first save."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match="no folder"):
        stoker.Checkpointer(tmp_path / "file")
    with pytest.raises(CheckpointError, match="cannot be made"):
        stoker.Checkpointer(tmp_path / "file" / "below")
    with pytest.raises(UsageError, match="folders or URLs"):
        stoker.Checkpointer(None)


class Partly(torch.nn.Module):
    """Has a layer that no loss reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Only one of both."""
        found: torch.Tensor = self.used(x)
        return found


def stepped(seed: int, steps: int = 2) -> tuple[Partly, torch.optim.Optimizer]:
    """A model and its optimizer after some steps."""
    torch.manual_seed(seed)
    network = Partly()
    optimizer = torch.optim.AdamW(network.parameters())
    for _ in range(steps):
        optimizer.zero_grad()
        network(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    return network, optimizer


def test_parameters_without_a_gradient_have_no_state(tmp_path: Path) -> None:
    """A layer that was never used does not stand in the way of resuming, and gets no made-up state."""
    network, optimizer = stepped(1)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network, "optimizer": optimizer})
        other, fresh = stepped(2, steps=0)
        assert ck.resume({"model": other, "optimizer": fresh}) is not None
    assert len(fresh.state) == len(optimizer.state) == 2
    for one, two in zip(network.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
        assert optimizer.state[one].keys() == fresh.state[two].keys()
        assert all(torch.equal(value, fresh.state[two][key]) for key, value in optimizer.state[one].items())


def test_a_refused_resume_leaves_the_optimizer_alone(tmp_path: Path) -> None:
    """An optimizer without a state still has none, and gradients stay, when no checkpoint fits."""
    network, _ = stepped(1)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network})
        other, fresh = stepped(2, steps=0)
        other(torch.randn(4, 3)).sum().backward()
        with pytest.raises(CheckpointError, match="wanted, but not in the checkpoint"):
            ck.resume({"model": other, "optimizer": fresh})
    assert not fresh.state and other.used.weight.grad is not None


@pytest.mark.parametrize("part", ["scheduler", "number"])
def test_a_part_that_was_not_saved(tmp_path: Path, part: str) -> None:
    """Is missed before the model changes; strict=False leaves it as it is."""
    network, optimizer = stepped(1)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network})
        other, _ = stepped(2)
        before = other.used.weight.detach().clone()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        state: dict[str, Any] = {"model": other, part: scheduler if part == "scheduler" else 5}
        with pytest.raises(CheckpointError, match=f"{part}: wanted, but not in the checkpoint"):
            ck.resume(state)
        assert torch.equal(other.used.weight, before)
        assert ck.resume(state, strict=False) is not None
    assert torch.equal(other.used.weight, network.used.weight) and state[part] in (scheduler, 5)


def test_another_number_of_groups(tmp_path: Path) -> None:
    """Is refused before anything changes, with strict=False too: settings would have no group to go to."""
    network, optimizer = stepped(1)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network, "optimizer": optimizer})
        other, _ = stepped(2)
        before = other.used.weight.detach().clone()
        groups = [{"params": list(other.used.parameters())}, {"params": list(other.unused.parameters())}]
        with pytest.raises(CheckpointError, match="saved with 1 groups of parameters, wanted with 2"):
            ck.resume({"model": other, "optimizer": torch.optim.AdamW(groups)}, strict=False)
    assert torch.equal(other.used.weight, before)


def test_a_model_without_memory(tmp_path: Path) -> None:
    """On the meta device is told before loading."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": torch.nn.Linear(3, 2)})
        with pytest.raises(CheckpointError, match="meta device"):
            ck.resume({"model": torch.nn.Linear(3, 2, device="meta")})


def by_lbfgs(seed: int, steps: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A layer and its LBFGS, which steps by a closure only, after some steps."""
    torch.manual_seed(seed)
    network = torch.nn.Linear(3, 2)
    optimizer = torch.optim.LBFGS(network.parameters(), lr=0.1, max_iter=3)
    lbfgs_steps(network, optimizer, steps)
    return network, optimizer


def lbfgs_steps(network: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """The same batch again and again."""
    batch = torch.arange(15.0).view(5, 3) / 10

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss: torch.Tensor = (network(batch) - 1).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize(("before", "after"), [(0, 0), (0, 2), (2, 0), (3, 1)])
def test_an_optimizer_that_steps_by_a_closure(tmp_path: Path, before: int, after: int) -> None:
    """LBFGS, whose state torch cannot make up and whose lists grow: saved before or after its first steps, loaded into
    one that is as young or as old, training goes on to the bit."""
    network, optimizer = by_lbfgs(1, before)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network, "optimizer": optimizer})
        other, fresh = by_lbfgs(2, after)
        assert ck.resume({"model": other, "optimizer": fresh}) is not None
    lbfgs_steps(network, optimizer, 2)
    lbfgs_steps(other, fresh, 2)
    assert same(network.state_dict(), other.state_dict()) and same(optimizer.state_dict(), fresh.state_dict())


def test_an_optimizer_by_closure_that_was_not_saved(tmp_path: Path) -> None:
    """Is missed like any other part; strict=False leaves it as it is."""
    network, optimizer = by_lbfgs(1, 1)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": network})
        with pytest.raises(CheckpointError, match="optimizer: wanted, but not in the checkpoint"):
            ck.resume({"model": network, "optimizer": optimizer})
        before = optimizer.state_dict()
        assert ck.resume({"model": network, "optimizer": optimizer}, strict=False) is not None
    assert same(optimizer.state_dict(), before)


class Extra(torch.nn.Linear):
    """Keeps something of its own, with tensors."""

    own: Any = None

    def get_extra_state(self) -> Any:
        """torch's hook for what is no parameter."""
        return {"scales": torch.arange(3.0), "n": 1}

    def set_extra_state(self, state: Any) -> None:
        """The same, back."""
        self.own = state


def test_a_model_with_tensors_in_its_extra_state(tmp_path: Path) -> None:
    """Is saved and resumed like any other."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": Extra(3, 2)})
        saved(ck, 2, {"model": Extra(3, 2)})
        other = Extra(3, 2)
        assert ck.resume({"model": other}) is not None
    assert other.own["n"] == 1 and torch.equal(other.own["scales"], torch.arange(3.0))


def test_waiting_after_a_skipped_save(tmp_path: Path) -> None:
    """As upon SIGTERM: the save that is on its way lands before the process ends, though the last call was skipped."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 0, {"x": torch.ones(9)})
        writer = ck._saver.writer_pid()
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        first = ck.save(1, {"x": torch.ones(9)})
        assert ck.save(2, {"x": torch.ones(9)}).state == "skipped" and first.state == "writing"
        os.kill(writer, signal.SIGCONT)
        assert not ck.wait(20) and first.state == "committed"


INTERRUPTED = """
import itertools, random, sys, threading
from pathlib import Path
import torch
import stoker
from stoker.checkpoint.saver import Save

OURS = ("threading.py", "checkpointer.py", "saver.py", "planning.py", "household.py")  # where somebody may hold a lock
opcode = 0
def interrupted(at, handler, work):
    '''Do *work*; at its opcode number *at* the *handler* runs on top of it, as a signal's would.'''
    global opcode
    opcode = 0
    def trace(frame, event, argument):
        global opcode
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            opcode += 1
            if opcode == at:
                handler()
        return trace
    sys.settrace(trace)
    try:
        return work()
    finally:
        sys.settrace(None)

for at in itertools.count(1):  # every opcode of a wait that has to wait
    save = Save(1, "x")
    timer = threading.Timer(0.02, save.end, ["committed"])
    timer.start()
    assert interrupted(at, lambda: save.wait(0.001), lambda: save.wait(30))
    timer.join()
    if opcode < at:
        break
print(at)
rng = random.Random(3)
with stoker.Checkpointer(Path(sys.argv[1]) / "ck", on_full="wait", keep=2) as ck:
    state = {"x": torch.ones(9)}
    ck.save(0, state).wait()
    interrupted(1 << 60, None, lambda: ck.save(1, state))
    every = opcode
    for step in range(2, 22):  # a choice of the opcodes of a save
        handler = lambda: (ck.wait(0.002), ck.status())
        save = interrupted(rng.randrange(1, every), handler, lambda: ck.save(step, state))
        assert save.wait(30) and ck.wait(30), save.error
    print(every)
"""


def test_waiting_in_a_signal_handler(tmp_path: Path) -> None:
    """Whatever the training thread is at when the signal comes, inside `wait` or `save`, at every single opcode: `wait`
    in the handler returns in time, and what was interrupted goes on."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    of_wait, of_save = map(int, done.stdout.split())
    assert of_wait > 20 and of_save > 300


def test_a_hundred_saves_at_random_moments(tmp_path: Path) -> None:
    """Waited for or skipped, as it comes: each save has a name and a fate of its own, and each that is committed holds
    what there was when it was called, though later ones were called while it was being written."""
    rng, state = random.Random(8), {"x": torch.zeros(50_000)}
    for on_full in ("skip", "wait"):
        saves = []
        with stoker.Checkpointer(tmp_path / on_full, on_full=on_full, keep=200) as ck:
            for step in range(50):
                state["x"].fill_(step)
                saves.append(ck.save(step, state))
                state["x"].fill_(-1)
                under_way = [save for save in saves if save.state == "writing"]
                if under_way and rng.random() < 0.3:
                    under_way[0].wait(rng.choice([0.001, 0.01, 30]))
        committed = [save.step for save in saves if save.state == "committed"]
        assert {save.state for save in saves} <= {"committed", "skipped"} and complete(tmp_path / on_full) == committed
        assert len({save.name for save in saves if save.name}) == len(committed) >= (50 if on_full == "wait" else 5)
        with stoker.Checkpointer(tmp_path / on_full, keep=200) as ck:
            for step in rng.sample(committed, min(8, len(committed))):
                fresh = {"x": torch.zeros(50_000)}
                assert ck.resume(fresh, step=step) is not None and torch.equal(fresh["x"], torch.full((50_000,), step))


def test_a_folder_that_is_removed_under_a_run(tmp_path: Path) -> None:
    """Fails saves, which are counted, instead of training."""
    with stoker.Checkpointer(tmp_path / "ck", failures_max=2) as ck:
        saved(ck, 1, {"x": torch.ones(9)})
        assert ck._household is not None and ck._household.wait_idle(20)
        shutil.rmtree(tmp_path / "ck")
        for step in (2, 3):
            save = ck.save(step, {"x": torch.ones(9)})
            assert not save.wait(20) and "No such file" in str(save.error)
        with pytest.raises(CheckpointError, match="2 checkpoints in a row"):
            ck.save(4, {"x": torch.ones(9)})


def test_saving_where_nothing_can_be_saved(tmp_path: Path) -> None:
    """After `close`, and in a forked child, whose copy would go into its parent's memory."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"x": torch.ones(9)})
        child = os.fork()
        if child == 0:
            try:
                ck.save(2, {"x": torch.zeros(9)})
            except CheckpointError as error:
                os._exit(7 if "another process" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        saved(ck, 3, {"x": torch.ones(9)})
    with pytest.raises(CheckpointError, match="was closed"):
        ck.save(4, {"x": torch.ones(9)})
    assert complete(tmp_path / "ck") == [1, 3]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.empty(3, device="meta"), "memory of their own"),
        (torch.nn.LazyLinear(3), "memory of their own"),
        ({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, "have one name"),
        (lambda: None, "foreign code"),
    ],
)
def test_what_cannot_be_saved_is_wrong_usage(tmp_path: Path, value: Any, words: str) -> None:
    """And told as such, whatever torch raises for it; the next save goes on."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        with pytest.raises(UsageError, match=words):
            ck.save(1, {"x": value})
        saved(ck, 2, {"x": torch.ones(1)})


class Fixed:
    """A loader with a state of any kind."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.loaded: Any = None

    def state_dict(self) -> Any:
        """Whatever it was given."""
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember what came back."""
        self.loaded = state


@pytest.mark.parametrize("state", [[1], {3: 4}, {"a": [{1: 2}]}, {"a": {1, 2}}])
def test_a_position_that_json_would_change(tmp_path: Path, state: Any) -> None:
    """Is refused by `save`: it would not come back, or come back as another one."""
    with stoker.Checkpointer(tmp_path / "ck") as ck, pytest.raises(UsageError, match="no JSON"):
        ck.save(1, {"x": torch.ones(1)}, loader=Fixed(state))


def test_a_checkpoint_without_a_position(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Says that the loader stays where it is."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"x": torch.ones(1)})
        loader = Fixed({"at": 1})
        assert ck.resume({"x": torch.zeros(1)}, loader=loader) is not None
    assert loader.loaded is None and "saved without a data loader" in caplog.text
