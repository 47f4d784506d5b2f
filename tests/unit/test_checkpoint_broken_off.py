"""Saves that are broken off: by Ctrl-C at any point, by states that cannot be copied, in processes that were forked."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.masked import masked_tensor
from torch.testing._internal.two_tensor import TwoTensor

import stoker
from stoker.checkpoint import household, tensors
from stoker.checkpoint.helper import Helper
from stoker.checkpoint.household import pause_s
from stoker.checkpoint.saver import Save
from stoker.checkpoint.tier import Tier
from stoker.errors import CheckpointError, UsageError
from stoker.store import ObjectInfo, connect
from support_checkpoint import complete, same, saved, seen
from support_store import until

MIB = 1 << 20

TURNS = os.environ.get("STOKER_CTRL_C_POINTS", "25")
INTERRUPTED = """
import dis, random, sys
from pathlib import Path
import torch
import stoker

OURS = ("checkpointer.py", "saver.py", "planning.py", "tensors.py", "kinds.py", "helper.py", "wire.py", "values.py")
opcode = 0
def interrupted(at, work):
    '''Do *work*, and raise KeyboardInterrupt at the point number *at* of those where a signal's handler may run, which
    is after calls, at the begin of functions and in loops; where that was, if it came out.'''
    global opcode
    opcode = 0
    def tracer():
        before = None
        def trace(frame, event, argument):
            global opcode
            nonlocal before
            if event == "opcode":
                if before in ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD"):
                    opcode += 1
                    if opcode == at:
                        raise KeyboardInterrupt(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                before = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            return trace
        return trace
    def enter(frame, event, argument):
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        frame.f_trace_opcodes = True
        return tracer()
    sys.settrace(enter)
    try:
        work()
    except KeyboardInterrupt as error:
        return str(error)
    finally:
        sys.settrace(None)
    return ""

folder, turns = Path(sys.argv[1]), int(sys.argv[2])
rng = random.Random(5)
with stoker.Checkpointer(folder, on_full="wait", keep=10_000) as ck:
    state = {"x": torch.ones(5 << 20), "y": torch.ones(9), "n": 1}  # 20 MiB: told of once in mid-copy
    assert ck.save(0, state).wait(30)
    interrupted(1 << 60, lambda: ck.save(1, state))
    assert ck.wait(30)
    every, came = opcode, 0
    for step in range(2, 2 + 2 * turns, 2):
        where = interrupted(rng.randrange(1, every), lambda: ck.save(step, state))
        came += bool(where)
        assert ck._saver.wait_free(30), where  # what was handed over ends, what was not holds nobody
        state["x"].fill_(step + 1)
        save = ck.save(step + 1, state)
        assert save.wait(30), (where, save.error)
        left = [one.name for one in folder.glob("step-*") if not (one / "COMMITTED").exists()]
        assert not left, (where, left)
        fresh = {"x": torch.zeros(5 << 20), "y": torch.zeros(9), "n": 0}
        if step % 20 == 0:
            assert ck.resume(fresh).step == step + 1 and torch.equal(fresh["x"], state["x"]), where
    print(every, came, ck._saver.writers_lost)
"""


def test_ctrl_c_anywhere_in_a_save(tmp_path: Path) -> None:
    """Wherever Python looks for signals: the save happens or leaves nothing, and the next one works."""
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path), TURNS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    every, came, writers_lost = map(int, done.stdout.split())
    assert every > 150 and came > 0.6 * int(TURNS) and writers_lost == 0


def masked() -> torch.Tensor:
    """A tensor with a mask."""
    made: torch.Tensor = masked_tensor(torch.ones(3), torch.tensor([True, False, True]))
    return made


@pytest.mark.filterwarnings("ignore:The PyTorch API of", "ignore:Sparse CSR tensor support", "ignore:.*prototype")
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TwoTensor(torch.ones(3, 3), torch.zeros(3, 3)), "TwoTensor keeps more"),
        (masked, "MaskedTensor keeps more"),
        (lambda: torch.ones(3, 3).to_sparse(), "sparse_coo"),
        (lambda: torch.ones(3, 3).to_sparse_csr(), "sparse_csr"),
        (lambda: torch.ones(3, 3).to_mkldnn(), "mkldnn"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
        (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "nested"),
        (lambda: torch.ones(3, 3, device="meta"), "meta"),
    ],
)
def test_what_would_not_come_back_is_refused(tmp_path: Path, make: Callable[[], torch.Tensor], words: str) -> None:
    """At every save, also under a name that held a dense tensor of that shape before; and the next save works."""
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, {"x": torch.ones(3, 3)})
        with pytest.raises(UsageError, match=words):
            ck.save(2, {"x": make()})
        saved(ck, 3, {"x": torch.ones(3, 3)})
        with pytest.raises(UsageError, match=words):
            ck.save(4, {"x": make(), "more": torch.ones(1)})
        saved(ck, 5, {"x": torch.ones(3, 3)})
    assert complete(tmp_path)[-1] == 5


def test_a_hook_that_fails_after_the_copy(tmp_path: Path) -> None:
    """All was copied and the writing process is at work: it is taken back nevertheless, and the next save is itself."""

    class Wrapper:
        """Has a state, but takes no hook."""

        def state_dict(self) -> dict[str, Any]:
            return {"lr": 1}

        def register_step_pre_hook(self, hook: object) -> None:
            raise RuntimeError("no hooks here")

    with stoker.Checkpointer(tmp_path) as ck:
        with pytest.raises(RuntimeError, match="no hooks"):
            ck.save(1, {"x": torch.ones(5 * MIB), "optimizer": Wrapper()})
        assert not list(tmp_path.glob("step-*"))
        saved(ck, 2, {"x": torch.full((5 * MIB,), 2.0)})
        assert ck._saver.writers_lost == 0
        fresh = {"x": torch.zeros(5 * MIB)}
        assert ck.resume(fresh) is not None and float(fresh["x"].min()) == 2


def memfd_bytes(*pids: int) -> int:
    """Memory behind all staging memory that these processes map or hold open."""
    found: dict[int, int] = {}
    for pid in pids:
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        mapped = [Path(f"/proc/{pid}/map_files", line.split()[0]) for line in maps if "memfd:stoker-checkpoint" in line]
        opened = [one for one in Path(f"/proc/{pid}/fd").iterdir() if "memfd:stoker-checkpoint" in link_of(one)]
        for one in (*mapped, *opened):
            told = one.stat()
            found[told.st_ino] = told.st_blocks * 512
    return sum(found.values())


def link_of(path: Path) -> str:
    """Where a link leads; nowhere if it is gone."""
    try:
        return str(path.readlink())
    except FileNotFoundError:
        return ""


def test_a_state_of_more_than_half_the_memory_may_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old staging memory is free before the new one is made, though the writing process maps it still."""
    with stoker.Checkpointer(tmp_path) as ck:
        pid = ck._saver.writer_pid()
        assert pid is not None
        monkeypatch.setattr(tensors, "memory_bytes_free", lambda: 60 * MIB - memfd_bytes(os.getpid(), pid))
        state = {"x": torch.ones(10 * MIB)}
        saved(ck, 1, state)
        assert memfd_bytes(os.getpid(), pid) >= 40 * MIB
        for step in range(2, 6):
            state[f"y{step}"] = torch.ones(step)
            saved(ck, step, state)
        with pytest.raises(CheckpointError, match="is free to this process"):
            ck.save(6, {"x": torch.ones(16 * MIB)})
        saved(ck, 7, state)
        fresh = {name: torch.zeros_like(one) for name, one in state.items()}
        assert ck.resume(fresh) is not None and same(fresh, state)


def test_staging_memory_that_cannot_be_made_leaks_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even a descriptor, which would hold the memory for good."""
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, {"x": torch.ones(9)})
        before = len(os.listdir("/proc/self/fd"))
        with monkeypatch.context() as patch:
            patch.setattr(tensors.mmap, "MAP_SHARED", 0)  # no such mapping: the system refuses it
            for step in range(2, 5):
                with pytest.raises(CheckpointError, match="no memory to copy the state to"):
                    ck.save(step, {"x": torch.ones(MIB)})
        assert len(os.listdir("/proc/self/fd")) < before  # without that of the plan before
        saved(ck, 9, {"x": torch.ones(MIB)})


def test_resuming_beside_a_save(tmp_path: Path) -> None:
    """The save under way keeps its memory until it has landed, even when its writing process is killed meanwhile and
    what is resumed is of another shape."""
    with stoker.Checkpointer(tmp_path, keep=9) as ck:
        saved(ck, 1, {"y": torch.full((2 * MIB + 7,), 5.0)})
        saved(ck, 2, {"x": torch.full((2 * MIB,), 2.0)})
        pid = ck._saver.writer_pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        save = ck.save(3, {"x": torch.full((2 * MIB,), 3.0)})
        killer = threading.Timer(1, os.kill, (pid, signal.SIGKILL))
        killer.start()
        other = {"y": torch.zeros(2 * MIB + 7)}
        assert ck.resume(other, step=1) is not None and float(other["y"][0]) == 5
        killer.join()
        assert save.wait(30)
        fresh = {"x": torch.zeros(2 * MIB)}
        assert ck.resume(fresh, step=3) is not None and float(fresh["x"].min()) == 3


def told_in_a_child(work: Callable[[], object]) -> str:
    """What a forked child says: its answer, or what it raised. It may take 20 seconds."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            said = repr(work())
        except CheckpointError as error:
            said = error.message
        os.write(theirs, said.encode())
        os._exit(0)
    os.close(theirs)
    ended = threading.Timer(20, os.kill, (child, signal.SIGKILL))
    ended.start()
    with os.fdopen(ours, "rb") as answers:
        said = answers.read().decode()
    ended.cancel()
    os.waitpid(child, 0)
    return said or "nothing within 20 s"


def test_a_forked_child_waits_for_nothing(tmp_path: Path) -> None:
    """What it would wait for happens in its parent: each call raises or returns at once, and harms nobody."""
    state = {"x": torch.ones(MIB)}  # not made in a child, where torch's threads are missing
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far", keep=9) as ck:
        saved(ck, 1, state)
        assert ck.wait(30, remote=True)
        pid = ck._saver.writer_pid()
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        save = ck.save(2, {"x": torch.full((MIB,), 2.0)})
        for work in (save.wait, ck.wait, lambda: ck.wait(3, remote=True)):
            assert "was forked" in told_in_a_child(work)
        assert "another process" in told_in_a_child(lambda: ck.save(3, state))
        assert "was forked" in told_in_a_child(lambda: ck.resume(state))
        assert told_in_a_child(ck.close) == "None"
        assert told_in_a_child(lambda: ck.status().writing) == "True"
        os.kill(pid, signal.SIGCONT)
        assert save.wait(30) and ck.wait(30, remote=True)
        assert "was forked" in told_in_a_child(lambda: ck.wait(remote=True)) and told_in_a_child(save.wait) == "True"
        fresh = {"x": torch.zeros(MIB)}
        assert ck.resume(fresh) is not None and float(fresh["x"].max()) == 2


def test_threads_that_save_at_once(tmp_path: Path) -> None:
    """All but one of the calls at the same time are refused; what was saved is whole."""
    outcomes: list[str] = []
    start = threading.Barrier(4)
    with stoker.Checkpointer(tmp_path, keep=100, on_full="wait") as ck:
        saved(ck, 0, {"x": torch.zeros(MIB)})

        def work(first: int) -> None:
            start.wait()
            for step in range(first, 40, 4):
                try:
                    ck.save(step, {"x": torch.full((MIB,), float(step))})
                    outcomes.append("saved")
                except CheckpointError as error:
                    outcomes.append(error.message)

        threads = [threading.Thread(target=work, args=(first,)) for first in range(1, 5)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert ck._saver.wait_free(30)
        assert set(outcomes) <= {"saved", "`save` or `resume` was called inside `save`, or by two threads at once"}
        steps = complete(tmp_path)
        assert outcomes.count("saved") + 1 == len(steps) == len(seen(tmp_path)) > 1
        for step in steps[1:4]:
            fresh = {"x": torch.zeros(MIB)}
            assert ck.resume(fresh, step=step) is not None and torch.equal(fresh["x"], torch.full((MIB,), float(step)))


def test_a_waiter_that_was_interrupted_holds_up_no_other() -> None:
    """Ctrl-C may end one between opening the gate and passing it on: the others look for themselves."""
    save = Save(1, "x")
    others = [threading.Thread(target=save.wait, daemon=True) for _ in range(3)]
    for one in others:
        one.start()
    save.state = "committed"  # decided, and the gate stays closed
    for one in others:
        one.join(10)
        assert not one.is_alive()


def test_pauses_between_keepers() -> None:
    """The first ones are replaced at once, the later ones after pauses that grow up to ten minutes; never none."""
    pauses = [pause_s(died) for died in range(1, 2000)]
    assert pauses[:8] == [0, 0, 0, 0, 2, 4, 8, 16] and pauses[-1] == max(pauses) == 600


def test_a_keeper_that_dies_again_and_again_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not given up: every save says that nobody looks after the tiers, `status` does, and when a keeper lives
    again, what is missing is brought up to date."""
    monkeypatch.setattr(household, "RESTART_S", 0.05)
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far", keep=2) as ck:
        saved(ck, 1, {"x": torch.ones(9)})
        assert ck.wait(30, remote=True) and ck._household is not None
        house = ck._household
        with monkeypatch.context() as patch:
            patch.setattr(Helper, "__init__", dead_keeper)
            os.kill(house.pid, signal.SIGKILL)
            until(lambda: house.deaths > household.DEATHS_MAX + 1)
            for step in (2, 3):
                caplog.clear()
                saved(ck, step, {"x": torch.ones(9)})
                assert "no uploads and no clean-up" in caplog.text
            ((_, newest, trouble),) = ck.status().remotes
            assert newest is not None and trouble is not None and "ended with code" in trouble
        saved(ck, 4, {"x": torch.ones(9)})
        assert ck.wait(30, remote=True)
        assert complete(tmp_path / "far")[-1] == 4 and ck.status().remotes[0][2] is None


started = Helper.__init__


def dead_keeper(self: Helper, role: str) -> None:
    """Starts a helper; a keeper is killed at once, as by a system that is out of memory."""
    started(self, role)
    if role == "keep":
        os.kill(self.pid, signal.SIGKILL)


def test_listing_while_others_delete(tmp_path: Path) -> None:
    """Folders that vanish while their turn comes are no error of the tier: it is looked at again."""
    with stoker.Checkpointer(tmp_path, keep=9) as ck:
        names = [saved(ck, step, {"x": torch.ones(9)}) for step in range(5)]
    tier = Tier(connect(str(tmp_path)))
    listed = tier.store.list

    def deleting(prefix: str) -> Iterator[ObjectInfo]:
        for info in listed(prefix):
            yield info
            if (doomed := tmp_path / names[3]).exists():
                shutil.rmtree(doomed)

    tier.store.list = deleting  # type: ignore[method-assign]  # somebody deletes beside it
    assert [one.name for one in tier.look()] == [*names[:3], names[4]]


def test_what_cannot_be_loaded_into_is_found_first(tmp_path: Path) -> None:
    """An expanded tensor: no other tensor of the state has changed when it is refused."""
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, {"a": torch.ones(5), "x": torch.ones(1).expand(4), "z": torch.ones(5)})
        fresh = {"a": torch.zeros(5), "x": torch.zeros(1).expand(4), "z": torch.zeros(5)}
        with pytest.raises(CheckpointError, match="x: several of its elements share one place"):
            ck.resume(fresh)
        assert not fresh["a"].any() and not fresh["z"].any()
        assert ck.resume({"a": torch.zeros(5), "x": torch.zeros(4), "z": torch.zeros(5)}) is not None
