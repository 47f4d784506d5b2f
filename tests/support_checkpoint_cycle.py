"""Saves, uploads and expires once in a child that ends itself at operation N: `support_checkpoint_cycle.py BOX SEED
POINTS`.

BOX/start holds the tiers before. For each point the tiers are copied, a child is forked, and just before its Nth change
to a disk (or to the remote) it dies: by kill -9 ("kill"), by a kill -9 after which all that was not fsynced is gone
("power"), or of which each name and each file survived or not, or in part, as a coin says ("reordered"); or from then
on all operations fail with EIO ("eio"), those that need room with ENOSPC ("full"), those that open something with
EMFILE ("descriptors"), and the child goes on as it likes. What must hold then is checked here; one JSON line tells how
many points there were. POINTS 0: all of them.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stoker.checkpoint.keeper as keeper_module
from stoker.checkpoint import Keep, disk
from stoker.checkpoint.keeper import Keeper, KeeperJob
from stoker.checkpoint.layout import ImageFile
from stoker.checkpoint.manifest import FileEntry, Manifest
from stoker.checkpoint.names import METADATA, Attempt
from stoker.checkpoint.tier import Tier
from stoker.checkpoint.writer import WriteJob, commit, write_rank
from stoker.errors import StokerError
from stoker.machine import owner_token
from stoker.store import StoreOptions, connect
from stoker.store.wrap import Around, Call, Result

KEEP = Keep(local=1, remote=2)
FAILING = {
    "eio": (errno.EIO, None),
    "full": (errno.ENOSPC, {"mkdir", "create", "write"}),
    "descriptors": (errno.EMFILE, {"create", "sync_folder"}),
}
"""What lasting failures do: the error, and the operations that get it (None: all, the remote's too)."""
DONE = 7
"""Exit code of a child that got to the end."""
connect_store = connect


class Watched(Around):
    """Tells `disk.watch` of each call that changes a store."""

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        if call.operation in ("put", "put_if", "delete"):
            disk.watch(f"remote {call.operation}", Path(call.key))
        return work()


def connect_watched(url: str, *, options: StoreOptions | None = None) -> Any:
    """The remote's changes are operations, too."""
    return Watched(connect_store(url, options=options)) if str(url).endswith("far") else connect_store(url)


def save(local: Path, number: int) -> None:
    """What the writing process and rank 0 do for one checkpoint, with content that tells its number."""
    attempt = Attempt(number, number, f"{number:06x}")
    image = memoryview(bytes([number]) * 12288)
    files = (ImageFile("data/__0_0.distcp", 0, 8192), ImageFile("data/__0_1.distcp", 8192, 4096))
    job = WriteJob(
        local / attempt.name, 0, files, {"loader.json": b'{"at": %d}' % number, "rank/00000.pt": b"own"}, owner_token()
    )
    entries = write_rank(job, image)
    description = b"description %d" % number
    entry = FileEntry(METADATA, len(description), disk.crc32c(description), 0)
    manifest = Manifest(attempt.name, number, number, "run", "line", None, 1, 1.0, "0", (*entries, entry))
    commit(job.folder, manifest, description, None)


def cycle(local: Path, number: int) -> None:
    """A save and all that the keeper does after it."""
    save(local, number)
    (local.parent / "committed").touch()
    Keeper(job_of(local, number)).cycle()


def job_of(local: Path, first: int) -> KeeperJob:
    """A run that begins with attempt number *first*."""
    return KeeperJob(local, (str(local.parent / "far"),), KEEP, first)


def begin(near: Path) -> None:
    """Three checkpoints, uploaded and expired."""
    disk.make_root(near)
    for number in (1, 2, 3):
        save(near, number)
        Keeper(job_of(near, 0)).cycle()


class Disk:
    """What of a folder would survive a power loss: contents as of the last fsync, names as of the last fsync of the
    folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.names = {folder: set(os.listdir(folder)) for folder in (root, *(p for p in root.rglob("*") if p.is_dir()))}
        self.contents = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        self.pending: tuple[str, Path] | None = None

    def note(self, operation: str, path: Path) -> None:
        """The operation before this one is done now."""
        done, where = self.pending or ("", Path())
        if done == "sync" and where.exists():
            self.contents[where] = where.read_bytes()
        if done == "rename" and where.exists():
            self.contents[where] = self.contents.pop(where.with_name(f"{where.name}.{os.getpid()}.new"), b"")
        if done == "sync_folder" and where.exists():
            self.names[where] = set(os.listdir(where))
        self.pending = (operation, path)

    def restore(self, folder: Path, target: Path, coin: random.Random | None = None) -> None:
        """Lay out what survives: what is durable, and with a *coin* some of what is not yet."""
        target.mkdir()
        names = self.names.get(folder, set())
        if coin is not None:
            now = set(os.listdir(folder)) if folder.is_dir() else set()
            names = (names & now) | {name for name in sorted(names ^ now) if coin.random() < 0.5}
        for name in sorted(names):
            path = folder / name
            if path in self.names or path.is_dir():
                self.restore(path, target / name, coin)
            else:
                (target / name).write_bytes(self._content(path, coin))

    def _content(self, path: Path, coin: random.Random | None) -> bytes:
        durable = self.contents.get(path, b"")
        if coin is None or not path.is_file():
            return durable
        now = path.read_bytes()
        return now if now == durable else coin.choice([durable, now, now[: len(now) // 2]])


def child(local: Path, number: int, at: int, how: str) -> None:
    """Run the cycle until operation *at*."""
    count, model = 0, Disk(local)

    def watch(operation: str, path: Path) -> None:
        nonlocal count
        model.note(operation, path)
        count += 1
        if how in FAILING:
            number_of_error, failing = FAILING[how]
            if count >= at and (failing is None or operation in failing):
                if operation.startswith("remote"):
                    raise StokerError("planned")
                raise OSError(number_of_error, "planned")
        elif count == at:
            if how != "kill":
                coin = random.Random(at) if how == "reordered" else None
                model.restore(local, local.parent / "survived", coin)
            os.kill(os.getpid(), signal.SIGKILL)

    disk.watch = watch
    keeper_module.connect = connect_watched
    try:
        cycle(local, number)
    except (StokerError, OSError):
        assert how in FAILING
    (local.parent / "operations").write_text(str(count))
    os._exit(DONE)


def attempt_at(box: Path, at: int, how: str) -> bool:
    """One point; whether the child died there (else it came to the end before)."""
    place = box / "point"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(box / "start", place)
    pid = os.fork()
    if pid == 0:
        child(place / "near", 4, at, how)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or os.waitstatus_to_exitcode(status) == DONE, (at, how, status)
    if (place / "survived").exists():
        shutil.rmtree(place / "near")
        (place / "survived").rename(place / "near")
    check(place, f"{how} at {at}")
    return os.WIFSIGNALED(status)


def check(place: Path, where: str) -> None:
    """What must hold after any end, and after the next run."""
    near, far = (Tier(connect_store(str(place / name))) for name in ("near", "far"))
    newest = -1
    for tier in (near, far):
        for seen in tier.look():
            if seen.manifest is not None:
                assert list(tier.faults(seen.manifest)) == [], f"{where}: {seen.name} is called complete and is not"
                newest = max(newest, seen.attempt.number)
    committed = (place / "committed").exists()
    assert newest == 4 or (newest == 3 and not committed), f"{where}: newest is {newest}, committed: {committed}"
    report = Keeper(job_of(place / "near", 5)).cycle()
    assert report.settled and not report.damaged, f"{where}: {report}"
    left = [seen for seen in near.look() if seen.attempt.number != newest]
    assert left == [], f"{where}: left behind: {[seen.name for seen in left]}"
    there = [seen.attempt.number for seen in far.look() if seen.manifest is not None]
    assert there == [newest - 1, newest], f"{where}: at the remote: {there}"
    assert len(far.look()) == 2, f"{where}: left behind at the remote"


def main() -> None:
    """All points of all ways to end."""
    box, seed, points = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    before = os.fork()
    if before == 0:  # an earlier run, whose process is gone
        begin(box / "start" / "near")
        os._exit(0)
    assert os.waitpid(before, 0)[1] == 0
    rng, done = random.Random(seed), {}
    for how in ("kill", "power", "reordered", *FAILING):
        attempt_at(box, 1 << 30, how)
        total = int((box / "point" / "operations").read_text())
        every = range(1, total + 1)
        chosen = every if points == 0 else sorted(rng.sample(every, min(points, total)))
        died = [attempt_at(box, at, how) for at in chosen]
        assert all(died) or how in FAILING
        done[how] = [len(died), total]
    print(json.dumps(done))


if __name__ == "__main__":
    main()
