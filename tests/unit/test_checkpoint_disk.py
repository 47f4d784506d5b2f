"""Real disks that are full, read-only or dying: loop devices, so these tests need root."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.checkpoint import admin
from stoker.errors import CheckpointError, StokerError
from support_checkpoint import complete, same, saved, seen
from support_disk import MEGABYTE, small_disk
from support_store import until


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """A disk of 40 MB."""
    with small_disk(tmp_path, 40) as mount:
        yield mount


def state(value: float) -> dict[str, Any]:
    """8 MB."""
    return {"w": torch.full((2 * MEGABYTE,), value)}


def free(place: Path) -> int:
    """Bytes left."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize


def fill(place: Path, left: int) -> Path:
    """Others take all but *left* bytes."""
    others = place / "others"
    with others.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free(place) - left)
    return others


def test_a_full_disk_is_seen_before_it_is_full(
    mounted: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The save is skipped with a warning, nothing half-written takes the last room; with room again saving goes on."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck", keep=1) as ck:
        saved(ck, 1, state(1))
        until(lambda: complete(place / "ck") == [1])
        others = fill(place, 5 * MEGABYTE)
        before = free(place)
        save = ck.save(2, state(2))
        assert save.state == "skipped" and "has no room" in str(save.error)
        assert "checkpoint of step 2 skipped" in caplog.text
        assert abs(free(place) - before) < MEGABYTE and len(seen(place / "ck")) == 1
        others.unlink()
        saved(ck, 3, state(3))
    fresh = state(0)
    with stoker.Checkpointer(place / "ck") as ck:
        found = ck.resume(fresh)
    assert found is not None and found.step == 3 and same(fresh, state(3))


def test_a_first_save_onto_a_full_disk(mounted: Callable[[str], Path]) -> None:
    """Found by the writer, before a byte is written: the save fails, says both numbers, and leaves nothing."""
    place = mounted("rw")
    fill(place, 5 * MEGABYTE)
    with stoker.Checkpointer(place / "ck") as ck:
        save = ck.save(1, state(1))
        assert not save.wait(30)
        assert "needs" in str(save.error) and "left" in str(save.error)
        assert seen(place / "ck") == []


def test_room_that_others_take_meanwhile(mounted: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fills up between the look and the write, ENOSPC ends the save; what it wrote is removed at once."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck") as ck:
        saved(ck, 1, state(1))
    before = free(place)
    fill(place, 4 * MEGABYTE)
    code = (
        "import os, sys; from pathlib import Path; from stoker.checkpoint import disk, writer;"
        "from stoker.checkpoint.layout import ImageFile; import mmap;"
        "disk.free_bytes = lambda path: 1 << 40;"
        "image = mmap.mmap(-1, 8 << 20);"
        f"job = writer.WriteJob(Path({str(place / 'ck/step-00000002.a000009-abcdef')!r}), 0,"
        "(ImageFile('data/__0_0.distcp', 0, 8 << 20),), {}, 'x');"
        "writer.write_rank(job, memoryview(image))"
    )
    done = subprocess.run([os.sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode != 0 and "No space left on device" in done.stderr
    assert complete(place / "ck") == [1] and len(seen(place / "ck")) == 1
    (place / "others").unlink()
    assert abs(free(place) - before) < MEGABYTE


def test_waiting_for_room(mounted: Callable[[str], Path]) -> None:
    """With on_full="wait" a save waits until somebody makes room; with "raise" it says so at once."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck", keep=1, on_full="raise") as ck:
        saved(ck, 1, state(1))
        others = fill(place, 5 * MEGABYTE)
        with pytest.raises(CheckpointError, match="has no room"):
            ck.save(2, state(2))
    with stoker.Checkpointer(place / "ck", keep=1, on_full="wait") as ck:
        fresh = state(0)
        assert ck.resume(fresh) is not None
        remover = subprocess.Popen(["/bin/sh", "-c", f"sleep 1; rm '{others}'"])
        saved(ck, 3, state(3))
        assert remover.wait() == 0
    assert complete(place / "ck")[-1] == 3


def test_a_read_only_mount_can_be_resumed_from(mounted: Callable[[str], Path]) -> None:
    """Resuming writes nothing that it needs; saving there fails with the reason."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck") as ck:
        saved(ck, 1, state(1))
    place = mounted("ro")
    fresh = state(0)
    with stoker.Checkpointer(place / "ck") as ck:
        found = ck.resume(fresh)
        assert found is not None and found.step == 1 and same(fresh, state(1))
        save = ck.save(2, state(2))
        assert not save.wait(30) and "Read-only file system" in str(save.error)


def test_a_disk_that_dies(mounted: Callable[[str], Path], tmp_path: Path) -> None:
    """When the disk gives I/O errors from now on: saves fail and say so, training goes on; resuming takes the copy of
    another tier instead of half a state."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck", tmp_path / "far", keep=1) as ck:
        name = saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
        ck._household.wait_idle(30)
        device = subprocess.run(
            ["findmnt", "-no", "SOURCE", str(place)], capture_output=True, text=True, check=True
        ).stdout
        os.truncate(tmp_path / "image", MEGABYTE)
        subprocess.run(["losetup", "-c", device.strip()], check=True)  # the device ends there now: all else is an error
        with (place / "ck" / name / "data/__0_0.distcp").open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        fresh = state(0)
        found = ck.resume(fresh)
        assert found is not None and found.step == 1 and same(fresh, state(1))
        assert found.folder == tmp_path / "far" / name
        save = ck.save(2, state(2))
        assert not save.wait(60) and save.error is not None


def test_a_scrub_of_a_read_only_disk(mounted: Callable[[str], Path]) -> None:
    """Tells of all checkpoints there, though none can be marked."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck") as ck:
        names = [saved(ck, step, state(step)) for step in (1, 2)]
        assert ck._household is not None and ck._household.wait_idle(30)
    for name in names:
        (place / "ck" / name / "VERIFIED").unlink(missing_ok=True)
    data = place / "ck" / names[0] / "data/__0_0.distcp"
    data.write_bytes(b"x" + data.read_bytes()[1:])
    place, told = mounted("ro"), dict[str, list[str]]()
    assert admin.scrub(admin.tier_of(str(place / "ck")), told.__setitem__) == 1
    assert told[names[1]] == [] and "CRC32C" in told[names[0]][0] and "cannot be marked" in told[names[0]][1]


def test_a_pull_onto_a_full_disk(
    mounted: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was fetched before the disk was full is nobody's, so that the janitor may sweep it, and a later pull may
    go on with it."""
    place = mounted("rw")
    with stoker.Checkpointer(tmp_path / "far") as ck:
        name = saved(ck, 1, {**state(1), "more": torch.ones(9)}, per_rank={"rng": 1})
    far, near = admin.tier_of(str(tmp_path / "far")), admin.tier_of(str(place / "ck"), make=True)
    others = fill(place, 10 * MEGABYTE)

    def others_come(path: Path, wanted: int) -> None:
        """There is room, and then there is not."""
        with others.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, others.stat().st_size + free(place) - MEGABYTE)

    with monkeypatch.context() as patch, pytest.raises(StokerError, match="No space left"):
        patch.setattr("stoker.checkpoint.resume.disk.check_room", others_come)
        admin.pull(far, near, None)
    (left,) = near.look()
    assert not left.committed and not near.owner_lives(left)
    others.unlink()
    assert admin.pull(far, near, None) == place / "ck" / name and admin.verify(near, near.find(name)) == []


def test_closing_beside_a_disk_that_hangs(mounted: Callable[[str], Path]) -> None:
    """A disk that answers nothing (frozen here, a lost server elsewhere) keeps its processes from dying even by
    SIGKILL; the run ends all the same, and what it had saved is whole."""
    place = mounted("rw")
    with stoker.Checkpointer(place / "ck") as ck:
        saved(ck, 1, state(1))
        assert ck._household is not None and ck._household.wait_idle(30)
        subprocess.run(["fsfreeze", "-f", str(place)], check=True)
        try:
            save = ck.save(2, state(2))
            assert not save.wait(1) and ck.status().writing
            began_s = time.monotonic()
            ck.close(2)
            assert time.monotonic() - began_s < 30
        finally:
            subprocess.run(["fsfreeze", "-u", str(place)], check=True)
        assert not save.wait(30) and "closed" in str(save.error)
    assert complete(place / "ck") == [1]
