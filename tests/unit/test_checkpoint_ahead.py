"""The writing process begins while the state is still being copied: what it writes is what was copied all the same."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

import stoker
from stoker.checkpoint.tensors import Staging
from stoker.errors import CheckpointError
from support_checkpoint import complete, same, saved, seen
from support_store import until

Copied = Callable[[int], None]
MIB = 1 << 20


def state_of(fill: float) -> dict[str, torch.Tensor]:
    """Five tensors of 20 MiB, so that several chunks lie before the last one's end."""
    return {f"w{number}": torch.full((5 * MIB,), fill + number) for number in range(5)}


def between(monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> None:
    """Have *act* run once 60 MiB of a save are copied and told of."""
    fill = Staging.fill

    def held(self: Staging, planner: Any, guarded: Any, copied: Copied) -> None:
        def told(nbytes: int) -> None:
            copied(nbytes)
            if nbytes > 60 * MIB and not done:
                done.append(nbytes)
                act()

        done: list[int] = []
        fill(self, planner, guarded, told)

    monkeypatch.setattr(Staging, "fill", held)


def back(folder: Path) -> dict[str, torch.Tensor]:
    """What a resume gives."""
    fresh = state_of(-1)
    with stoker.Checkpointer(folder) as ck:
        assert ck.resume(fresh) is not None
    return fresh


def test_it_writes_beside_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data is in the file before the last tensor is copied, and none of it is what the memory held before."""
    with stoker.Checkpointer(tmp_path, keep=9) as ck:
        saved(ck, 1, state_of(100))  # the memory holds this now

        def data_is_there() -> None:
            def written() -> bool:
                files = tmp_path.glob("step-00000002.*/data/*")
                return any(file.read_bytes()[4096 : 32 * MIB].strip(b"\0") for file in files)

            until(written)

        between(monkeypatch, data_is_there)
        saved(ck, 2, state_of(200))
    assert complete(tmp_path) == [1, 2] and same(back(tmp_path), state_of(200))


def test_a_copy_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller gets the error, the begun folder goes, and the next save works."""

    def fail() -> None:
        raise MemoryError("as a tensor that cannot be read")

    with stoker.Checkpointer(tmp_path) as ck:
        with monkeypatch.context() as patch:
            between(patch, fail)
            with pytest.raises(MemoryError, match="cannot be read"):
                ck.save(1, state_of(100))
        assert not list(tmp_path.glob("step-*"))
        saved(ck, 2, state_of(200))
    assert complete(tmp_path) == [2] and same(back(tmp_path), state_of(200))


def test_the_writer_dies_beside_the_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one writes the whole."""
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, state_of(100))
        pid = ck._saver.writer_pid()
        assert pid is not None

        def kill() -> None:
            os.kill(pid, signal.SIGKILL)
            until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)

        between(monkeypatch, kill)
        saved(ck, 2, state_of(200))
        assert ck._saver.writers_lost == 1
    assert 2 in complete(tmp_path) and same(back(tmp_path), state_of(200))


def test_a_disk_that_refuses_before_all_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writing process gives up early, is told the rest nevertheless, and serves the next save."""
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, state_of(100))
        pid = ck._saver.writer_pid()
        assert pid is not None
        unbound = resource.prlimit(pid, resource.RLIMIT_FSIZE, (MIB, resource.RLIM_INFINITY))
        begun = list[Path]()

        def gave_up() -> None:
            until(lambda: len(list(tmp_path.glob("step-*"))) == 1)
            begun.extend(tmp_path.iterdir())

        with monkeypatch.context() as patch:
            between(patch, gave_up)
            save = ck.save(2, state_of(200))
            assert not save.wait(60) and save.state == "failed"
            assert "File too large" in str(save.error) and begun
        resource.prlimit(pid, resource.RLIMIT_FSIZE, unbound)
        saved(ck, 3, state_of(300))
        assert ck._saver.writer_pid() == pid
    assert complete(tmp_path) == [1, 3] and same(back(tmp_path), state_of(300))


def test_closing_in_the_middle_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a signal handler does that does not exit: the copy ends in peace, the save is told as failed, nobody waits."""
    fill = Staging.fill
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, {"x": torch.ones(MIB), "y": torch.ones(MIB)})

        def closing(self: Staging, planner: Any, guarded: Any, copied: Copied) -> None:
            fill(self, planner, guarded, lambda nbytes: (ck.close(5), copied(nbytes))[1])

        monkeypatch.setattr(Staging, "fill", closing)
        save = ck.save(2, {"x": torch.zeros(MIB), "y": torch.zeros(MIB)})
        assert not save.wait(10) and save.state == "failed" and "closed" in str(save.error)
    assert complete(tmp_path) == [1] and len(seen(tmp_path)) == 1


def test_resuming_inside_a_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From another thread or a signal handler, it would take the save's memory away: refused."""
    fill = Staging.fill
    with stoker.Checkpointer(tmp_path) as ck:
        saved(ck, 1, {"x": torch.ones(MIB)})

        def resuming(self: Staging, planner: Any, guarded: Any, copied: Copied) -> None:
            with pytest.raises(CheckpointError, match="inside `save`"):
                ck.resume({"x": torch.ones(MIB)})
            fill(self, planner, guarded, copied)

        with monkeypatch.context() as patch:
            patch.setattr(Staging, "fill", resuming)
            saved(ck, 2, {"x": torch.zeros(MIB)})
        assert ck.resume({"x": torch.ones(MIB)}) is not None
