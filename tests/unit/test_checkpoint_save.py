"""Saving and resuming in one process: what goes in comes out bit by bit, and training is never changed by a save."""

from __future__ import annotations

import json
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import torch.distributed.checkpoint as dcp

import stoker
from stoker.checkpoint import disk
from stoker.checkpoint.tier import Tier
from stoker.errors import CheckpointError, UsageError
from stoker.store import connect
from support_checkpoint import complete, everything, model, pair, same, saved, seen, train
from support_store import until


class Position:
    """A loader as far as a checkpoint knows it."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def test_a_run_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """Model, optimizer, scheduler and loader after a resume, and after more steps, are those of the unbroken run."""
    network, optimizer = pair()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 9])
    train(network, optimizer, 3)
    scheduler.step()
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        state = {"model": network, "optimizer": optimizer, "scheduler": scheduler}
        saved(ck, 3, state, loader=Position(96), metrics={"loss": 0.25})
    train(network, optimizer, 4, seed=8)
    other, stepper = pair(seed=1)
    plan = torch.optim.lr_scheduler.MultiStepLR(stepper, [100])
    loader = Position(0)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        found = ck.resume({"model": other, "optimizer": stepper, "scheduler": plan}, loader=loader)
    assert found is not None
    assert (found.step, loader.at, dict(found.metrics), found.loader) == (3, 96, {"loss": 0.25}, {"at": 96})
    assert plan.state_dict() == scheduler.state_dict()
    train(other, stepper, 4, seed=8)
    assert same(everything(network, optimizer), everything(other, stepper))


def test_a_plain_state_with_all_kinds_of_things(tmp_path: Path) -> None:
    """Every dtype, scalars, empty and strided tensors, nested lists, dicts with any keys, big and small numbers."""
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
             torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128, torch.float8_e4m3fn,
             torch.float8_e5m2, torch.uint16, torch.uint32, torch.uint64]  # fmt: skip
    tensors = {str(kind): torch.randn(3, 5).mul(50).abs().to(torch.float32).to(kind) for kind in kinds}
    state: dict[str, Any] = {
        "tensors": tensors,
        "shapes": [torch.tensor(3.5), torch.empty(0, 4), torch.arange(24).view(4, 6).t(), torch.arange(9)[::2]],
        "mixed": {"deep": [{"t": torch.ones(2), "n": 1}, "text"], "none": None, "flag": True},
        "values": {1: "int key", (2, 3): "tuple key", "big": 1 << 70, "tiny": 5e-324, "bytes": b"\0\xff"},
        "step": 12,
        "parameter": torch.nn.Parameter(torch.ones(3)),
    }
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state)
        fresh: dict[str, Any] = {
            "tensors": {name: torch.zeros_like(one) for name, one in tensors.items()},
            "shapes": [], "mixed": {}, "values": {}, "step": 0, "parameter": torch.zeros(3),
        }  # fmt: skip
        live = fresh["tensors"]["torch.float32"]
        assert ck.resume(fresh) is not None
    assert fresh["tensors"]["torch.float32"] is live
    assert same(fresh["tensors"], tensors) and same(fresh["shapes"], state["shapes"])
    for name in ("mixed", "values", "step"):
        assert same(fresh[name], state[name]), name
    assert torch.equal(fresh["parameter"], state["parameter"].detach())


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_the_folder_is_one_of_torchs_own(tmp_path: Path) -> None:
    """Plain torch.distributed.checkpoint.load reads it."""
    network, optimizer = pair()
    train(network, optimizer, 2)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 2, {"model": network, "optimizer": optimizer, "note": {"epoch": 4}})
    target = {"model": {name: torch.zeros_like(one) for name, one in network.state_dict().items()}, "note": None}
    dcp.load(target, checkpoint_id=str(tmp_path / "ck" / name))
    assert same(target["model"], network.state_dict())
    assert target["note"] == {"epoch": 4}


def test_a_save_before_the_first_step_changes_nothing(tmp_path: Path) -> None:
    """torch makes up optimizer states by a step of its own; a run that was saved before it began trains as if it was
    not, and what is resumed from has no state either."""
    for kind in (torch.optim.AdamW, torch.optim.Adagrad, torch.optim.SGD):
        more = {"momentum": 0.9, "weight_decay": 0.1} if kind is torch.optim.SGD else {}
        runs = []
        for save in (True, False):
            network = model()
            optimizer = kind(network.parameters(), lr=0.1, **more)
            if save:
                with stoker.Checkpointer(tmp_path / kind.__name__) as ck:
                    saved(ck, 0, {"model": network, "optimizer": optimizer})
            train(network, optimizer, 3)
            runs.append(everything(network, optimizer))
        assert same(*runs)
        network = model(seed=5)
        optimizer = kind(network.parameters(), lr=0.7, **more)
        train(network, optimizer, 2)
        with stoker.Checkpointer(tmp_path / kind.__name__) as ck:
            assert ck.resume({"model": network, "optimizer": optimizer}) is not None
        train(network, optimizer, 3)
        assert same(everything(network, optimizer), runs[1])


def test_what_changes_right_after_a_save_is_not_in_it(tmp_path: Path) -> None:
    """Tensors, lists, dicts and random states are taken by value while `save` runs."""
    state = {"w": torch.zeros(1000), "list": [1, 2], "dict": {"a": [0]}, "rng": torch.get_rng_state()}
    before = state["rng"].clone()
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        for number in range(5):
            state["w"].fill_(number)
            save = ck.save(number, state)
            state["w"].fill_(-1)
            state["list"].append(99)
            state["dict"]["a"][0] = number + 1
            state["rng"].zero_()
            assert save.wait(30)
            fresh = {"w": torch.zeros(1000), "list": [], "dict": {}, "rng": torch.zeros_like(before)}
            assert ck.resume(fresh, step=number) is not None
            assert torch.equal(fresh["w"], torch.full((1000,), float(number)))
            assert fresh["list"] == [1, 2] + [99] * number and fresh["dict"] == {"a": [number]}
            assert torch.equal(fresh["rng"], before)
            state["rng"].copy_(before)


def test_the_detector_sees_aliasing(tmp_path: Path) -> None:
    """Were the copy put off, as by a stager that only remembers the tensors, the test above would fail: here it is."""
    state = {"w": torch.zeros(1000)}
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 0, state)
        fill, put_off = ck._planning.staging.fill, []
        ck._planning.staging.fill = lambda planner, guarded, copied: put_off.append(planner)
        state["w"].fill_(1)
        planner = ck._planning.staging
        state["w"].fill_(2)
        save = ck.save(1, state)
        state["w"].fill_(3)
        assert save.wait(30) and planner is ck._planning.staging
        fill(put_off[0], frozenset(), lambda nbytes: None)
        fresh = {"w": torch.zeros(1000)}
        assert ck.resume(fresh, step=1) is not None
        assert fresh["w"][0] == 0  # not 2: the old content of the staging memory was written


def test_state_that_grows_is_planned_anew(tmp_path: Path) -> None:
    """Optimizer states that appear with the first step, new parameters, other shapes: each save is whole."""
    network, optimizer = pair()
    with stoker.Checkpointer(tmp_path / "ck", keep=9) as ck:
        saved(ck, 0, {"model": network, "optimizer": optimizer})
        train(network, optimizer, 1)
        saved(ck, 1, {"model": network, "optimizer": optimizer})
        state: dict[str, Any] = {"t": torch.ones(4, 4)}
        for step in range(2, 6):
            state[f"new{step}"] = torch.full((step, 3), float(step))
            saved(ck, step, state)
            fresh = {name: torch.zeros_like(one) for name, one in state.items()}
            assert ck.resume(fresh) is not None and same(fresh, state)


def test_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state over many data files comes back, and each file is in the manifest."""
    monkeypatch.setattr("stoker.checkpoint.layout.FILE_BYTES", 100_000)
    monkeypatch.setattr("stoker.checkpoint.layout.lay_out.__defaults__", (100_000,))
    state = {f"w{n}": torch.randn(n * 997 + 1) for n in range(40)}
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, state)
        assert len(list((tmp_path / "ck" / name / "data").glob("__0_*.distcp"))) > 10
        fresh = {name: torch.zeros_like(one) for name, one in state.items()}
        assert ck.resume(fresh) is not None and same(fresh, state)


def test_nothing_there_is_a_fresh_start(tmp_path: Path) -> None:
    """No folder, an empty one, and one with foreign things give None."""
    with stoker.Checkpointer(tmp_path / "a" / "b") as ck:
        assert ck.resume({"x": torch.ones(1)}) is None
    (tmp_path / "c" / "step-5").mkdir(parents=True)
    (tmp_path / "c" / "notes.txt").write_text("mine")
    with stoker.Checkpointer(tmp_path / "c") as ck:
        assert ck.resume() is None
    assert (tmp_path / "c" / "notes.txt").exists() and (tmp_path / "c" / "step-5").exists()


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "a state is a dict"),
        ({"x": object()}, "cannot be loaded without running foreign code"),
        ({"opt": {"state": {0: torch.ones(1)}}}, "the key 0, which is no text"),
        ({"x": torch.ones(2).to_sparse()}, "dense"),
    ],
)
def test_what_could_not_be_resumed_is_not_saved(tmp_path: Path, state: dict[str, Any], words: str) -> None:
    """The error comes with the save, not with the resume weeks later."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        with pytest.raises(UsageError, match=words):
            ck.save(1, state)
        saved(ck, 2, {"x": torch.ones(1)})
    assert complete(tmp_path / "ck") == [2]


def test_an_optimizer_without_its_model(tmp_path: Path) -> None:
    """Is told so, with what to write instead."""
    network, optimizer = pair()
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        with pytest.raises(UsageError, match="belong to no model"):
            ck.save(1, {"optimizer": optimizer, "model": network.state_dict()})


def test_arguments_are_checked(tmp_path: Path) -> None:
    """By name, with what is allowed."""
    for arguments in ({"mode": "fast"}, {"on_full": "drop"}, {"keep": 0}):
        with pytest.raises(UsageError):
            stoker.Checkpointer(tmp_path, **arguments)
    with pytest.raises(UsageError, match="local must be a folder"):
        stoker.Checkpointer("s3://bucket/x")
    with stoker.Checkpointer(tmp_path) as ck:
        with pytest.raises(UsageError, match="whole number"):
            ck.save(-1, {"x": torch.ones(1)})


def test_sync_mode_returns_when_it_is_durable(tmp_path: Path) -> None:
    """The simple guarantee: after `save` the checkpoint is there, or an error was raised."""
    with stoker.Checkpointer(tmp_path / "ck", mode="sync") as ck:
        save = ck.save(4, {"x": torch.ones(10)})
        assert save.state == "committed" and complete(tmp_path / "ck") == [4]
        (tmp_path / "ck").rename(tmp_path / "gone")
        (tmp_path / "ck").write_text("in the way")
        with pytest.raises(CheckpointError):
            ck.save(5, {"x": torch.ones(10)})


def test_per_rank_values_come_back(tmp_path: Path) -> None:
    """What differs between ranks is kept beside the state that they share."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"x": torch.ones(1)}, per_rank={"rng": torch.arange(5), "n": 3})
        found = ck.resume({"x": torch.zeros(1)})
    assert found is not None and same(found.per_rank, {"rng": torch.arange(5), "n": 3})


def test_retention_keeps_what_was_asked_for(tmp_path: Path) -> None:
    """The newest, the permanents, and nothing before a newer one was read back."""
    with stoker.Checkpointer(tmp_path / "ck", keep={"local": 2, "every": 4}) as ck:
        for step in range(1, 10):
            saved(ck, step, {"x": torch.full((4,), float(step))})
        until(lambda: complete(tmp_path / "ck") == [4, 8, 9])
        assert ck.status().committed == seen(tmp_path / "ck")[-1].name
    for one in seen(tmp_path / "ck"):
        assert "VERIFIED" in one.sizes or one.attempt.step in (4, 8)


def test_a_rewind_begins_a_new_lineage(tmp_path: Path) -> None:
    """After going back to step 2, the next resume takes the new branch, though the old one has higher steps."""
    with stoker.Checkpointer(tmp_path / "ck", keep=10) as ck:
        for step in (1, 2, 3, 4):
            saved(ck, step, {"x": torch.full((4,), float(step))})
    state = {"x": torch.zeros(4)}
    with stoker.Checkpointer(tmp_path / "ck", keep=10) as ck:
        found = ck.resume(state, step=2)
        assert found is not None and found.step == 2
        saved(ck, 3, {"x": torch.full((4,), 33.0)})
    with stoker.Checkpointer(tmp_path / "ck", keep=10) as ck:
        found = ck.resume(state)
        assert found is not None and found.step == 3 and state["x"][0] == 33
        saved(ck, 4, state)
    newest = [one.manifest for one in seen(tmp_path / "ck") if one.manifest is not None]
    assert newest[-1].lineage == newest[-2].lineage != newest[0].lineage == newest[3].lineage
    assert newest[-2].parent == newest[1].attempt and len({one.run for one in newest}) == 1


def test_a_skipped_save_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """While the last one is still being written the next is skipped, waited for, or refused, as asked."""
    state = {"x": torch.ones(1000)}
    with stoker.Checkpointer(tmp_path / "skip") as ck:
        saved(ck, 0, state)
        writer = ck._saver.writer_pid()
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        first = ck.save(1, state)
        second = ck.save(2, state)
        os.kill(writer, signal.SIGCONT)
        assert second.state == "skipped" and "still being written" in str(second.error)
        assert "checkpoint of step 2 skipped" in caplog.text
        assert first.wait(30) and complete(tmp_path / "skip")[-1] == 1
    with stoker.Checkpointer(tmp_path / "raise", on_full="raise") as ck:
        saved(ck, 0, state)
        writer = ck._saver.writer_pid()
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        first = ck.save(1, state)
        with pytest.raises(CheckpointError, match="still being written"):
            ck.save(2, state)
        os.kill(writer, signal.SIGCONT)
        assert first.wait(30)
    with stoker.Checkpointer(tmp_path / "wait", on_full="wait", keep=50) as ck:
        saves = [ck.save(step, {"x": torch.full((1000,), float(step))}) for step in range(20)]
        assert all(save.wait(30) for save in saves)
        for step in range(20):
            fresh = {"x": torch.zeros(1000)}
            assert ck.resume(fresh, step=step) is not None and fresh["x"][7] == step


def test_a_killed_writer_is_replaced(tmp_path: Path) -> None:
    """Killed before and during a save, the writing process is started again and the save is written all the same."""
    state = {"x": torch.randn(500_000)}
    with stoker.Checkpointer(tmp_path / "ck", keep=50) as ck:
        for step in range(4):
            writer = ck._saver.writer_pid()
            assert writer is not None
            os.kill(writer, signal.SIGSTOP if step % 2 else signal.SIGKILL)
            save = ck.save(step, state)
            os.kill(writer, signal.SIGKILL) if step % 2 else None
            assert save.wait(30), save.error
        assert ck._saver.writers_lost == 4 and ck.status().failures == 0
        fresh = {"x": torch.zeros(500_000)}
        assert ck.resume(fresh) is not None and same(fresh, state)


def test_a_killed_keeper_is_replaced(tmp_path: Path) -> None:
    """Uploads and clean-up go on."""
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far", keep=1) as ck:
        saved(ck, 1, {"x": torch.ones(5)})
        assert ck.wait(30, remote=True) and ck._household is not None
        os.kill(ck._household.pid, signal.SIGKILL)
        until(lambda: ck._household is not None and ck._household.deaths == 1)
        saved(ck, 2, {"x": torch.ones(5)})
        assert ck.wait(30, remote=True)
        until(lambda: complete(tmp_path / "far") == complete(tmp_path / "ck") == [2])


def test_failures_are_never_lost(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each is on its save, in the status and in the log; after three in a row the next save raises."""
    state = {"x": torch.ones(5)}
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 0, state)
        (tmp_path / "ck").rename(tmp_path / "away")
        (tmp_path / "ck").write_text("in the way")
        for step in (1, 2):
            assert not ck.save(step, state).wait(30)
        assert ck.status().failures == 2 and "Not a directory" in str(ck.status().last)
        assert not ck.wait(1)
        (tmp_path / "ck").unlink()
        (tmp_path / "away").rename(tmp_path / "ck")
        saved(ck, 3, state)
        assert ck.status().failures == 0
        (tmp_path / "ck").rename(tmp_path / "away")
        (tmp_path / "ck").write_text("in the way")
        for step in (4, 5, 6):
            assert not ck.save(step, state).wait(30)
        with pytest.raises(CheckpointError, match="3 checkpoints in a row could not be saved"):
            ck.save(7, state)
        (tmp_path / "ck").unlink()
        (tmp_path / "away").rename(tmp_path / "ck")
    assert caplog.text.count("Not a directory") >= 5
    assert complete(tmp_path / "ck") == [0, 3]


def test_the_run_log_tells_of_saves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commits with their times, deletions, resumes."""
    monkeypatch.setenv("STOKER_RUN_LOG", str(tmp_path / "run.jsonl"))
    with stoker.Checkpointer(tmp_path / "ck", keep=1) as ck:
        for step in (1, 2):
            saved(ck, step, {"x": torch.ones(5)})
        ck.resume({"x": torch.ones(5)})
        until(lambda: complete(tmp_path / "ck") == [2])
        until(lambda: ck._household is not None and ck._household.report is not None)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    committed = [line for line in lines if line["event"] == "checkpoint_committed"]
    assert [line["step"] for line in committed] == [1, 2]
    assert all(0 < line["blocked_s"] <= line["durable_s"] and line["bytes"] > 0 for line in committed)
    assert any(line["event"] == "checkpoint_resumed" and line["step"] == 2 for line in lines)


def test_two_hundred_saves_leak_nothing(tmp_path: Path) -> None:
    """Memory, descriptors and threads of the trainer and its processes stay where they were."""
    state = {f"w{n}": torch.randn(10_000) for n in range(8)}

    def use() -> tuple[int, int, int]:
        family = [psutil.Process(), *psutil.Process().children(recursive=True)]
        return (
            sum(one.memory_info().rss for one in family),
            sum(one.num_fds() for one in family),
            sum(one.num_threads() for one in family),
        )

    with stoker.Checkpointer(tmp_path / "ck", keep=1) as ck:
        for step in range(40):
            saved(ck, step, state)
        until(lambda: len(seen(tmp_path / "ck")) == 1)
        memory, descriptors, threads = use()
        for step in range(40, 240):
            saved(ck, step, state)
        until(lambda: len(seen(tmp_path / "ck")) == 1)
        after = use()
    assert after[0] < memory + 40 * 2**20
    assert after[1] <= descriptors + 4 and after[2] <= threads + 2


def test_nothing_is_left_running(tmp_path: Path) -> None:
    """After `close` no process is left; a Checkpointer that was forgotten ends with its garbage, too."""
    before = {one.pid for one in psutil.Process().children()}
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far") as ck:
        saved(ck, 1, {"x": torch.ones(1)})
        assert len({one.pid for one in psutil.Process().children()} - before) == 2
    assert {one.pid for one in psutil.Process().children()} - before == set()


def test_warnings_as_errors_do_not_stop_saving(tmp_path: Path) -> None:
    """Nothing here warns, so `-W error` changes nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with stoker.Checkpointer(tmp_path / "ck") as ck:
            saved(ck, 1, {"x": torch.ones(1)})


def test_a_file_system_without_o_direct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where O_DIRECT is refused, at the opening or at the write, files go through the page cache."""
    data = memoryview(bytearray(os.urandom(disk.BLOCK_BYTES * 5)))  # its address is no multiple of a block: refused
    crc = disk.write_large(tmp_path / "unaligned", data[1 : 1 + 4096])
    assert (tmp_path / "unaligned").read_bytes() == bytes(data[1 : 1 + 4096]) and crc == disk.crc32c(data[1 : 1 + 4096])


def test_resuming_beside_the_keeper(tmp_path: Path) -> None:
    """Both read the newest checkpoint back and mark it, in either order and at once: neither minds the other."""
    with stoker.Checkpointer(tmp_path / "ck", keep=2) as ck:
        for step in range(25):
            saved(ck, step, {"x": torch.full((4,), float(step))})
            fresh = {"x": torch.zeros(4)}
            found = ck.resume(fresh)
            assert found is not None and found.step == step and fresh["x"][0] == step
        assert ck._household is not None and ck._household.deaths == 0 and ck._household.trouble is None


def test_a_save_inside_a_save_is_refused(tmp_path: Path) -> None:
    """As from a signal handler, which would copy into memory that is being written; `wait` is what it may call."""

    class Nested:
        """Saves while it is saved."""

        def state_dict(self) -> dict[str, Any]:
            with pytest.raises(CheckpointError, match="inside `save`"):
                ck.save(2, {"x": torch.ones(1)})
            return {"n": 1}

    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"nested": Nested()})
    assert complete(tmp_path / "ck") == [1]


def test_what_was_saved_before_a_skipped_save_is_still_uploaded(tmp_path: Path) -> None:
    """`close` waits for the newest committed checkpoint to be everywhere, also when the last call was skipped; `wait`
    tells that the newest state is not durable."""
    with stoker.Checkpointer(tmp_path / "ck", tmp_path / "far") as ck:
        saved(ck, 0, {"x": torch.ones(9)})
        writer = ck._saver.writer_pid()
        assert writer is not None
        os.kill(writer, signal.SIGSTOP)
        ck.save(1, {"x": torch.ones(9)})
        assert ck.save(2, {"x": torch.ones(9)}).state == "skipped"
        os.kill(writer, signal.SIGCONT)
        assert not ck.wait(20)
    assert complete(tmp_path / "far")[-1] == 1


def test_a_checkpoint_that_is_read_is_not_deleted(tmp_path: Path) -> None:
    """A reader's lease keeps the janitor away as long as the reader lives."""
    tier = Tier(connect(str(tmp_path / "ck")))
    with stoker.Checkpointer(tmp_path / "ck", keep=1) as ck:
        name = saved(ck, 1, {"x": torch.ones(1)})
        with tier.reading(name):
            for step in (2, 3, 4):
                saved(ck, step, {"x": torch.ones(1)})
            until(lambda: complete(tmp_path / "ck") == [1, 4])
        saved(ck, 5, {"x": torch.ones(1)})
        until(lambda: complete(tmp_path / "ck") == [5])
        name = saved(ck, 6, {"x": torch.ones(1)})
        (tmp_path / "ck" / name / "READER.dead").write_text("another boot/1/1")
        saved(ck, 7, {"x": torch.ones(1)})
        until(lambda: complete(tmp_path / "ck") == [7])


def test_a_part_of_a_state(tmp_path: Path) -> None:
    """`strict=False` loads the names that both have; the others stay as they were."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"model": {"a": torch.ones(2), "b": torch.ones(3)}, "unasked": torch.ones(1)})
        live = {"model": {"a": torch.zeros(2), "c": torch.full((4,), 5.0)}}
        with pytest.raises(CheckpointError, match=r"model\.c: wanted, but not in the checkpoint"):
            ck.resume(live)
        found = ck.resume(live, strict=False)
    assert found is not None and torch.equal(live["model"]["a"], torch.ones(2))
    assert torch.equal(live["model"]["c"], torch.full((4,), 5.0))


def test_a_keeper_that_does_not_listen_holds_nobody(tmp_path: Path) -> None:
    """While the keeper is stopped, as in a long upload, no save waits for it; afterwards it catches up."""
    with stoker.Checkpointer(tmp_path / "ck", keep=1) as ck:
        saved(ck, 0, {"x": torch.ones(1)})
        house = ck._household
        assert house is not None and house.wait_idle(30)
        os.kill(house.pid, signal.SIGSTOP)
        for _ in range(3000):
            house.poke()
        saved(ck, 1, {"x": torch.ones(1)})
        os.kill(house.pid, signal.SIGCONT)
        assert house.wait_idle(30)
        assert complete(tmp_path / "ck") == [1] and house.deaths == 0


def test_a_loss_that_is_not_finite_costs_no_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """NaN and infinity are left out of the metrics with a warning; what is no number is wrong usage, before anything is
    written."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(
            ck, 1, {"x": torch.ones(1)}, metrics={"loss": float("nan"), "grad": float("inf"), "lr": torch.tensor(0.5)}
        )
        with pytest.raises(UsageError, match="metric 'loss' is no number"):
            ck.save(2, {"x": torch.ones(1)}, metrics={"loss": "low"})
        found = ck.resume({"x": torch.ones(1)})
    assert found is not None and dict(found.metrics) == {"lr": 0.5} and "metric 'loss' is nan" in caplog.text
    assert len(seen(tmp_path / "ck")) == 1


def test_another_type_is_not_converted_in_silence(tmp_path: Path) -> None:
    """float32 does not become bfloat16 unless that is asked for."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"x": torch.full((3,), 0.5)})
        live = {"x": torch.zeros(3, dtype=torch.bfloat16)}
        with pytest.raises(CheckpointError, match=r"saved as torch\.float32, wanted as torch\.bfloat16"):
            ck.resume(live)
        assert ck.resume(live, strict=False) is not None
        assert torch.equal(live["x"], torch.full((3,), 0.5, dtype=torch.bfloat16))


def test_one_folder_is_not_two_tiers(tmp_path: Path) -> None:
    """The same folder as local and remote is wrong usage."""
    with pytest.raises(UsageError, match="local and as remote"):
        stoker.Checkpointer(tmp_path / "ck", [tmp_path / "far", tmp_path / "ck"])
