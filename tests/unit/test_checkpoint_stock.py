"""What torch.distributed.checkpoint (2.13) does in silence, each beside what stoker does in the same place.

A test here that fails on its first half means that torch has mended it: then the second half is what matters.
"""

from __future__ import annotations

import os
import pickle
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemWriter
from torch.distributed.checkpoint.planner import SavePlan, WriteItemType
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_state_dict

import stoker
from stoker.checkpoint import disk
from stoker.checkpoint.tensors import flat, global_plan
from stoker.errors import CheckpointError
from support_checkpoint import complete, everything, model, same, saved, seen, told_by, train
from support_disk import MEGABYTE, small_disk
from support_store import until

TESTS = Path(__file__).resolve().parents[1]

pytestmark = [
    pytest.mark.filterwarnings("ignore:torch.distributed is"),
    pytest.mark.filterwarnings("ignore:Detected an existing checkpoint"),
    pytest.mark.filterwarnings("ignore:.*single process"),
]


def state(value: float) -> dict[str, Any]:
    """Two tensors of the same size."""
    return {"a": torch.full((5000,), value), "b": torch.full((5000,), value)}


def resume(place: Path, live: dict[str, Any], **more: Any) -> int | None:
    """stoker's step, or None when it refuses."""
    with stoker.Checkpointer(place) as ck:
        try:
            found = ck.resume(live, **more)
        except CheckpointError:
            return None
    return None if found is None else found.step


def flip(path: Path, at: int) -> None:
    """One bit."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)


def zero(path: Path, at: int) -> None:
    """A page of zeros, as of a block that was never written."""
    raw = bytearray(path.read_bytes())
    raw[at : at + 4096] = bytes(len(raw[at : at + 4096]))
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", [flip, zero])
def test_a_damaged_file(tmp_path: Path, damage: Callable[[Path, int], None]) -> None:
    """A flipped bit, a page of zeros: torch loads it; stoker does not."""
    dcp.save(state(1.0), checkpoint_id=str(tmp_path / "stock"))
    torch.save(state(1.0), tmp_path / "file.pt")
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, state(1.0))
    for path in (tmp_path / "stock/__0_0.distcp", tmp_path / "file.pt", tmp_path / f"ck/{name}/data/__0_0.distcp"):
        damage(path, path.stat().st_size // 3)
    stock = state(0.0)
    dcp.load(stock, checkpoint_id=str(tmp_path / "stock"))
    assert not same(stock, state(1.0)) and not same(torch.load(tmp_path / "file.pt"), state(1.0))
    live = state(0.0)
    assert resume(tmp_path / "ck", live) is None and same(live, state(0.0))


def test_a_save_that_died_over_an_older_one(tmp_path: Path) -> None:
    """torch mixes two steps into one state; stoker never writes over anything, so step 1 is still there, whole."""
    stock = str(tmp_path / "stock")
    writer = {"thread_count": 2, "single_file_per_rank": True}
    dcp.save(state(1.0), storage_writer=FileSystemWriter(stock, **writer))
    shutil.copytree(stock, tmp_path / "first")
    dcp.save(state(2.0), storage_writer=FileSystemWriter(stock, **writer))
    shutil.copy(tmp_path / "first/__0_1.distcp", Path(stock) / "__0_1.distcp")  # as if it died before this file
    live = state(0.0)
    dcp.load(live, checkpoint_id=stock)
    assert {float(live["a"][0]), float(live["b"][0])} == {1.0, 2.0}
    with stoker.Checkpointer(tmp_path / "ck", keep=5) as ck:
        first = saved(ck, 1, state(1.0))
        second = saved(ck, 1, state(2.0))
        assert first != second
    (tmp_path / "ck" / second / "data/__0_0.distcp").unlink()
    live = state(0.0)
    assert resume(tmp_path / "ck", live) == 1 and same(live, state(1.0))


def test_a_writer_thread_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's save returns as if all was well and publishes; the file is missing at load. stoker's save fails."""
    whole = FileSystem.create_stream

    @contextmanager
    def broken(self: FileSystem, path: Any, mode: str) -> Iterator[Any]:
        if threading.current_thread() is not threading.main_thread() and str(path).endswith(".distcp"):
            raise OSError("planned")
        with whole(self, path, mode) as stream:
            yield stream

    monkeypatch.setattr(FileSystem, "create_stream", broken)
    monkeypatch.setattr(threading, "excepthook", lambda arguments: None)
    many = {f"w{n}": torch.ones(200_000) for n in range(8)}
    for _ in range(20):  # until the thread, and not the caller, happens to take a file
        dcp.save(
            many, storage_writer=FileSystemWriter(str(tmp_path / "stock"), thread_count=4, single_file_per_rank=False)
        )
        if len(list((tmp_path / "stock").glob("*.distcp"))) < 8:
            break
        shutil.rmtree(tmp_path / "stock")
    assert (tmp_path / "stock/.metadata").exists() and len(list((tmp_path / "stock").glob("*.distcp"))) < 8
    monkeypatch.undo()
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, many)
        folder = tmp_path / "ck"
        folder.rename(tmp_path / "away")
        folder.write_text("in the way")
        save = ck.save(2, many)
        assert not save.wait(30) and save.error is not None and ck.status().failures == 1
        folder.unlink()
        (tmp_path / "away").rename(folder)


def test_a_background_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """torch keeps it in a future that nobody need look at; stoker logs it and tells of it in `status()`."""
    (tmp_path / "file").write_text("no folder")
    future: Any = dcp.async_save(state(1.0), checkpoint_id=str(tmp_path / "file" / "ck"))
    with pytest.raises(BaseException, match="CheckpointException"):  # CheckpointException is no Exception
        future.result()
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        (tmp_path / "ck").rename(tmp_path / "away")
        (tmp_path / "ck").write_text("no folder")
        ck.save(1, state(1.0)).wait(30)
        assert ck.status().failures == 1
    assert "Not a directory" in caplog.text


def test_elements_that_no_file_holds(tmp_path: Path) -> None:
    """torch loads what there is and leaves the rest of the tensor as it was; stoker refuses."""
    dcp.save(state(1.0), checkpoint_id=str(tmp_path / "stock"))
    path = tmp_path / "stock/.metadata"
    metadata = pickle.loads(path.read_bytes())
    (chunk,) = metadata.state_dict_metadata["a"].chunks
    metadata.state_dict_metadata["a"].chunks = [replace(chunk, sizes=torch.Size([2000]))]
    path.write_bytes(pickle.dumps(metadata))
    live = state(-1.0)
    dcp.load(live, checkpoint_id=str(tmp_path / "stock"))
    assert int((live["a"] == -1).sum()) == 3000
    # stoker's half, with every sum forged to fit: tests/hostile, test_uncovered_elements_are_found


def test_a_pickle_in_the_description(tmp_path: Path) -> None:
    """torch runs it at load; stoker compares first, and then knows only what a description consists of."""

    class Bomb:
        """Makes a folder when unpickled."""

        def __reduce__(self) -> Any:
            return os.mkdir, (str(tmp_path / "proof"),)

    dcp.save(state(1.0), checkpoint_id=str(tmp_path / "stock"))
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, state(1.0))
    (tmp_path / "ck" / name / ".metadata").write_bytes(pickle.dumps(Bomb()))
    assert resume(tmp_path / "ck", state(0.0)) is None and not (tmp_path / "proof").exists()
    (tmp_path / "stock/.metadata").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(BaseException, match="CheckpointException"):
        dcp.load(state(0.0), checkpoint_id=str(tmp_path / "stock"))
    assert (tmp_path / "proof").exists()


def test_values_that_differ_between_ranks(tmp_path: Path) -> None:
    """torch takes each leaf from whichever rank it likes, so that a position and its random state come from two ranks;
    stoker takes all of one rank's."""
    offers: list[SavePlan] = []
    for rank in range(2):
        planner = DefaultSavePlanner()
        planner.set_up_planner({"extra": dict.fromkeys("abcd", rank)}, None, rank == 0)
        offers.append(planner.create_local_plan())
    stock, _ = DefaultSavePlanner().create_global_plan(offers)
    assert all(any(one.type == WriteItemType.BYTE_IO for one in plan.items) for plan in stock)
    planner = flat({"extra": dict.fromkeys("abcd", 0)}, True)
    ours = global_plan(planner, offers)
    assert len(ours[0].items) == 4 and not ours[1].items


def test_a_save_before_the_first_step(tmp_path: Path) -> None:
    """torch's get_state_dict takes a step to make up optimizer states, which changes what training does next; a save of
    stoker's does not."""

    def trained(save: Any) -> dict[str, Any]:
        network = model()
        optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5)
        save(network, optimizer)
        train(network, optimizer, 2)
        return everything(network, optimizer)

    def ours(network: Any, optimizer: Any) -> None:
        with stoker.Checkpointer(tmp_path / "ck") as ck:
            saved(ck, 0, {"model": network, "optimizer": optimizer})

    untouched = trained(lambda network, optimizer: None)
    assert not same(trained(get_state_dict), untouched)
    assert same(trained(ours), untouched)


def test_dicts_whose_keys_are_no_text(tmp_path: Path) -> None:
    """torch turns a scheduler's milestones {30: 1} into {"30": 1}, which never come; stoker keeps them."""
    network = model()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [30, 60])
    dcp.save({"scheduler": scheduler.state_dict()}, checkpoint_id=str(tmp_path / "stock"))
    target: dict[str, Any] = {"scheduler": {**scheduler.state_dict(), "milestones": {"30": 0, "60": 0}}}
    dcp.load(target, checkpoint_id=str(tmp_path / "stock"))
    assert target["scheduler"]["milestones"] == {"30": 1, "60": 1}
    other = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5])
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"scheduler": scheduler})
        assert ck.resume({"scheduler": other}) is not None
    assert other.milestones == scheduler.milestones


def test_saves_that_overlap(tmp_path: Path) -> None:
    """torch leaves it to the caller that two background saves do not share a path; stoker's have names of their own,
    also of one step, and one is on its way at a time."""
    big = {f"w{n}": torch.full((300_000,), 1.0) for n in range(6)}
    later = {f"w{n}": torch.full((300_000,), 2.0) for n in range(6)}
    with stoker.Checkpointer(tmp_path / "ck", on_full="wait", keep=5) as ck:
        saves = [ck.save(1, big), ck.save(1, later)]
        assert all(save.wait(60) for save in saves) and saves[0].name != saves[1].name
        live = {name: torch.zeros_like(one) for name, one in big.items()}
        assert ck.resume(live) is not None and same(live, later)


def test_a_death_in_mid_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch wrote before it was killed stays for ever; what stoker wrote is removed by the next run."""

    def die(*arguments: Any, **more: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def killed(work: Callable[[], object]) -> None:
        pid = os.fork()
        if pid == 0:
            work()
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL

    def ours() -> None:
        with stoker.Checkpointer(tmp_path / "ck") as ck:
            saved(ck, 1, state(1.0))
            disk.watch = lambda operation, path: path.name == "COMMITTED" and die()
            ck.save(2, state(2.0)).wait(30)

    monkeypatch.setattr(FileSystemWriter, "finish", die)
    stock = tmp_path / "stock"
    killed(lambda: dcp.save(state(1.0), checkpoint_id=str(stock)))
    monkeypatch.undo()
    with pytest.raises(BaseException, match="CheckpointException"):
        dcp.load(state(0.0), checkpoint_id=str(stock))
    dcp.save(state(2.0), checkpoint_id=str(tmp_path / "next"))
    assert list(stock.glob("*.distcp"))
    killed(ours)
    assert len(seen(tmp_path / "ck")) == 2
    live = state(0.0)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        found = ck.resume(live)
        assert found is not None and found.step == 1 and same(live, state(1.0))
        until(lambda: len(seen(tmp_path / "ck")) == 1)


def test_a_load_that_fails_half_way(tmp_path: Path) -> None:
    """torch has changed live tensors before it comes to the file that is cut; stoker has looked at all files before."""
    many = {f"w{n}": torch.full((1000,), 1.0) for n in range(8)}
    writer = FileSystemWriter(str(tmp_path / "stock"), single_file_per_rank=False)
    dcp.save(many, storage_writer=writer)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, many)
    for path in (max((tmp_path / "stock").glob("*.distcp")), tmp_path / "ck" / name / "data/__0_0.distcp"):
        os.truncate(path, path.stat().st_size // 2)
    live = {name: torch.zeros(1000) for name in many}
    with pytest.raises(BaseException, match="CheckpointException"):
        dcp.load(live, checkpoint_id=str(tmp_path / "stock"))
    assert 0 < sum(float(one[0]) for one in live.values()) < 8
    live = {name: torch.zeros(1000) for name in many}
    assert resume(tmp_path / "ck", live) is None and not any(one.any() for one in live.values())


def test_what_changes_before_a_background_copy_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's asynchronous staging saves what tensors and lists have become when its thread gets there, unless one
    waits for it; stoker what they were when `save` was called."""
    go, whole = threading.Event(), DefaultStager._stage

    def late(self: DefaultStager, *arguments: Any, **more: Any) -> Any:
        assert go.wait(30)
        return whole(self, *arguments, **more)

    monkeypatch.setattr(DefaultStager, "_stage", late)
    stager = DefaultStager(StagingOptions(False, False, True, False))
    values: dict[str, Any] = {"list": [1, 2], "w": torch.ones(3)}
    live: dict[str, Any] = {"list": [0, 0], "w": torch.zeros(3)}
    begun: Any = dcp.async_save(values, checkpoint_id=str(tmp_path / "stock"), async_stager=stager)
    values["list"][0], values["w"][0] = 99, 99
    go.set()
    begun.upload_completion.result()
    stager.close()
    dcp.load(live, checkpoint_id=str(tmp_path / "stock"))
    assert live["list"] == [99, 2] and live["w"][0] == 99
    values = {"list": [1, 2], "w": torch.ones(3)}
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        save = ck.save(1, values)
        values["list"][0], values["w"][0] = 99, 99
        assert save.wait(30) and ck.resume(live) is not None
    assert live["list"] == [1, 2] and live["w"][0] == 1


def test_a_full_disk(tmp_path: Path) -> None:
    """What torch could not finish keeps the disk full: the next save, which would fit, fails as well. stoker's fits."""
    big = {"w": torch.ones(4 * MEGABYTE)}
    small = {"w": torch.ones(MEGABYTE)}
    with small_disk(tmp_path, 20) as mount:
        place = mount("rw")
        found = os.statvfs(place)
        with (place / "others").open("wb") as others:
            os.posix_fallocate(others.fileno(), 0, found.f_bavail * found.f_frsize - 10 * MEGABYTE)
        for what, folder in ((big, "stock1"), (small, "stock2")):
            with pytest.raises(BaseException, match="CheckpointException"):
                dcp.save(what, checkpoint_id=str(place / folder))
        shutil.rmtree(place / "stock1")
        shutil.rmtree(place / "stock2")
        with stoker.Checkpointer(place / "ck") as ck:
            assert not ck.save(1, big).wait(30)
            saved(ck, 2, small)
        assert complete(place / "ck") == [2] and len(seen(place / "ck")) == 1


def of_ranks(task: str, box: Path) -> Any:
    """What a task of support_checkpoint_stock.py told."""
    return told_by("support_checkpoint_stock.py", task, box)


def test_ranks_that_fail_or_stop(tmp_path: Path) -> None:
    """A rank that fails while an older checkpoint is saved over: torch loads half of one step and half of the other;
    stoker has the older one. A stopped rank: torch waits as long as the group does, and its group is broken for good;
    stoker gives that save up, and the next one works. Files of two ranks, each described for itself, loaded by one:
    torch leaves half the tensor as it was and says nothing. A background process that is killed: no save of torch's
    works any more; stoker's next one does."""
    two, one = of_ranks("two", tmp_path), of_ranks("one", tmp_path)
    assert two["save over"] == "CheckpointException" and two["load over"] == "ok" and two["mixed"] == [1.0, 2.0]
    assert two["ours over"] == ["failed", True, [1.0]]
    assert two["stopped"] == "RuntimeError" and two["stopped_s"] >= 3 and two["afterwards"] == "RuntimeError"
    assert two["ours stopped"][0] == "skipped" and two["ours complete"] == [1, 4]
    assert one["each for itself"] == "ok" and one["loaded"] == [-1.0, 1.0]
    assert one["first"] == "ok" and one["killed"] == ["BrokenPipeError"] * 3 and one["ours killed"] == [0, 1, 2]
