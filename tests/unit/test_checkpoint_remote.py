"""Copies at remotes that are slow, throttling, down, corrupting or refusing: training never waits, nothing is lost."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import stoker
from stoker.checkpoint import Keep
from stoker.checkpoint.keeper import Keeper, KeeperJob, connect_tier
from stoker.checkpoint.tier import Tier
from stoker.checkpoint.upload import upload
from stoker.cli.servers import Server, juicefs_gateway, moto_server
from stoker.errors import CheckpointError
from stoker.store import ByteRange, Memory, ObjectInfo, StoreOptions, connect
from stoker.store.wrap import Around
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_checkpoint import complete, same, saved, seen, state, there, through
from support_store import fresh_prefix, options_for, until


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server."""
    with moto_server() as running:
        yield running


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    """Stands before it and does no harm yet."""
    with FaultProxy("127.0.0.1", server.port) as running:
        yield running


def resumed(
    local: Path, url: str | list[str] | None, options: StoreOptions | None
) -> tuple[int | None, dict[str, Any]]:
    """What a fresh run gets."""
    live = state(-1.0)
    with stoker.Checkpointer(local, url, options=options) as ck:
        found = ck.resume(live)
    return None if found is None else found.step, live


def test_a_lost_disk_is_made_good_from_s3(server: Server, tmp_path: Path) -> None:
    """Saved, uploaded, verified; on a new disk the newest comes back and is a local checkpoint again."""
    url, options = fresh_prefix(server), options_for(server)
    with stoker.Checkpointer(tmp_path / "ck", url, keep={"local": 1, "remote": 2}, options=options) as ck:
        for step in (1, 2, 3):
            saved(ck, step, state(step))
            assert ck.wait(60, remote=True)
        status = ck.status()
        assert status.pending_uploads == 0 and status.protected_age_s is not None
        assert status.remotes[0][1:] == (status.committed, None)
    assert there(url, options) == [2, 3] and complete(tmp_path / "ck") == [3]
    shutil.rmtree(tmp_path / "ck")
    step, live = resumed(tmp_path / "ck", url, options)
    assert step == 3 and same(live, state(3))
    assert complete(tmp_path / "ck") == [3]


def test_a_damaged_local_file_is_fetched(server: Server, tmp_path: Path) -> None:
    """Only what is damaged is brought from the remote; the checkpoint is whole again."""
    url, options = fresh_prefix(server), options_for(server)
    with stoker.Checkpointer(tmp_path / "ck", url, options=options) as ck:
        name = saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
    path = tmp_path / "ck" / name / "data/__0_0.distcp"
    untouched = tmp_path / "ck" / name / "data/__0_objects.distcp"
    before = untouched.stat().st_mtime_ns
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    step, live = resumed(tmp_path / "ck", url, options)
    assert step == 1 and same(live, state(1)) and untouched.stat().st_mtime_ns == before
    assert list(Tier(connect(str(tmp_path / "ck"))).faults(seen(tmp_path / "ck")[0].manifest)) == []


def test_an_outage_costs_nothing(
    server: Server, proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Down for three saves: they stay on the local disk, the status says what is wrong; when it is back the newest goes
    up, and only then may the older ones go."""
    url, options = fresh_prefix(server), through(proxy, server, deadline_s=0.5)
    with stoker.Checkpointer(tmp_path / "ck", url, keep=1, options=options) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
        proxy.plan = FaultPlan(unavailable_rate=1.0)
        for step in (2, 3, 4):
            saved(ck, step, state(step))
        until(lambda: bool(ck.status().remotes) and ck.status().remotes[0][2] is not None)
        assert "SlowDown" in str(ck.status().remotes[0][2])
        assert not ck.wait(0.1, remote=True)
        assert complete(tmp_path / "ck")[-3:] == [2, 3, 4]
        proxy.plan = FaultPlan()
        saved(ck, 5, state(5))
        assert ck.wait(60, remote=True)
        until(lambda: complete(tmp_path / "ck") == [5])
    assert there(url, options_for(server))[-1] == 5


@pytest.mark.parametrize(
    "plan",
    [
        FaultPlan(seed=1, unavailable_rate=0.3),
        FaultPlan(seed=2, reset_rate=0.1),
        FaultPlan(seed=3, truncate_rate=0.2, latency_s=0.01),
    ],
    ids=["throttling", "answers lost", "answers cut"],
)
def test_a_flaky_remote_gets_everything(server: Server, proxy: FaultProxy, tmp_path: Path, plan: FaultPlan) -> None:
    """503s, connections reset after the server did what was asked, bodies cut: all is retried, the copy is right."""
    url = fresh_prefix(server)
    proxy.plan = plan
    with stoker.Checkpointer(tmp_path / "ck", url, options=through(proxy, server)) as ck:
        for step in (1, 2):
            saved(ck, step, state(step))
            assert ck.wait(60, remote=True)
    assert sum(proxy.counts[name] for name in ("unavailable", "reset", "truncate")) > 0
    shutil.rmtree(tmp_path / "ck")
    step, live = resumed(tmp_path / "ck", url, options_for(server))
    assert step == 2 and same(live, state(2))


class Flipping(Around):
    """Gives one byte of every read wrong, while told to."""

    wrong = True

    def get_ranges(self, key: str, ranges: Sequence[ByteRange], *, version: str | None = None) -> list[bytes]:
        found = super().get_ranges(key, ranges, version=version)
        return [bytes([found[0][0] ^ 1]) + found[0][1:], *found[1:]] if self.wrong else found


def test_what_reads_back_wrong_is_never_committed(tmp_path: Path) -> None:
    """A remote that gives other bytes than it was sent has no checkpoint; when it gives them right, it has."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, state(1))
    local, store = connect_tier(str(tmp_path / "ck"), None), Flipping(Memory("far"))
    manifest = local.find(name).manifest
    assert manifest is not None
    for _ in range(2):
        with pytest.raises(CheckpointError, match="after upload, expected"):
            upload(local, Tier(store), manifest)
        assert [one.committed for one in Tier(store).look()] == [False]
    store.wrong = False
    assert upload(local, Tier(store), manifest).committed
    assert [one.committed for one in Tier(store).look()] == [True]


def test_a_slow_remote_is_thinned_not_waited_for(server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Saves ten times as fast as the remote takes them: none waits, the remote gets some, the newest and the permanent
    ones always."""
    url = fresh_prefix(server)
    proxy.plan = FaultPlan(latency_s=0.05)
    keep = {"local": 2, "remote": 50, "every": 5}
    with stoker.Checkpointer(tmp_path / "ck", url, keep=keep, options=through(proxy, server)) as ck:
        for step in range(1, 16):
            saved(ck, step, state(step))
        behind = there(url, options_for(server))
        assert len(behind) < 15
        assert ck.wait(60, remote=True)
    found = there(url, options_for(server))
    assert {5, 10, 15} <= set(found) and len(found) < 15


def test_the_bandwidth_limit_holds(tmp_path: Path) -> None:
    """Bytes sent and read back come no faster than asked for: a lower bound of the time, by the wall clock."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, {"w": torch.randn(500_000)})
    local = connect_tier(str(tmp_path / "ck"), None)
    (one,) = local.look()
    assert one.manifest is not None
    done = threading.Event()
    limited = connect_tier(str(tmp_path / "far"), None, bytes_per_s_max=one.manifest.nbytes / 2)
    worker = threading.Thread(target=lambda: (upload(local, limited, one.manifest), done.set()), daemon=True)
    worker.start()
    assert not done.wait(2.0)  # sending takes 2 s, reading back 2 more; the last bytes are paid for afterwards
    worker.join(120)
    assert done.is_set() and complete(tmp_path / "far") == [1]


def test_an_upload_goes_on_by_file(tmp_path: Path) -> None:
    """What is there and right is skipped; what is missing, shorter or wrong is sent; the marker comes last."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1), per_rank={"x": 1})
    local, store = connect_tier(str(tmp_path / "ck"), None), Memory("far")
    (one,) = local.look()
    manifest = one.manifest
    assert manifest is not None
    remote = Tier(store)
    first = upload(local, remote, manifest)
    assert (first.sent_bytes, first.skipped_bytes) == (manifest.nbytes, 0)
    again = upload(local, remote, manifest)
    assert (again.sent_bytes, again.skipped_bytes) == (0, manifest.nbytes)
    for entry in manifest.files:
        for wrong in (None, b"short", bytes(entry.size)):
            key = f"{one.name}/{entry.name}"
            store.delete(f"{one.name}/COMMITTED")
            if wrong is None:
                store.delete(key)
            else:
                store.put(key, wrong)
            assert upload(local, remote, manifest).sent_bytes == entry.size
            assert [seen.name for seen in remote.look() if seen.manifest is not None] == [one.name]
    store.put(f"{one.name}/COMMITTED", b"somebody else's")
    with pytest.raises(CheckpointError, match="another marker"):
        upload(local, remote, manifest)


class Lying(Around):
    """A remote whose lists tell of one byte less than it holds."""

    lies = True

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for info in super().list(prefix):
            yield replace(info, size=info.size - 1) if self.lies and info.key.endswith(".distcp") else info


def test_a_remote_that_lies_about_sizes(tmp_path: Path) -> None:
    """Nobody could resume from what it lists, so it has no checkpoint, and that is told; nothing local goes for it."""
    with stoker.Checkpointer(tmp_path / "ck", keep=9) as ck:
        names = [saved(ck, step, state(step)) for step in (1, 2)]
    keeper = Keeper(KeeperJob(tmp_path / "ck", (str(tmp_path / "far"),), Keep.of(1)))
    store = Lying(Memory("far"))
    keeper._remotes = [Tier(store)]
    for _ in range(2):
        report = keeper.cycle()
        (remote,) = report.remotes
        assert remote.newest is None and remote.pending and not report.settled
        assert remote.trouble is not None and "expected" in remote.trouble and "found" in remote.trouble
        assert complete(tmp_path / "ck") == [1, 2] and not report.deleted
    store.lies = False
    report = keeper.cycle()
    assert report.settled and report.remotes[0].newest == names[1]


def test_local_damage_is_not_uploaded(tmp_path: Path) -> None:
    """The bytes are compared before they are sent; the copy that was there stays right."""
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        name = saved(ck, 1, state(1))
    path = tmp_path / "ck" / name / "data/__0_0.distcp"
    path.write_bytes(b"x" + path.read_bytes()[1:])
    report = Keeper(KeeperJob(tmp_path / "ck", (str(tmp_path / "far"),))).cycle()
    assert len(report.damaged) == 1 and complete(tmp_path / "far") == []


def test_refused_credentials_are_told(tmp_path: Path) -> None:
    """A wrong secret is no reason to stop: saves go on, the status says "access refused"; with the right one all is
    brought up to date."""
    with juicefs_gateway(tmp_path / "s3") as server:
        url, options = fresh_prefix(server), options_for(server, deadline_s=2.0)
        with stoker.Checkpointer(tmp_path / "ck", options=options) as ck:
            saved(ck, 1, state(1))
        with stoker.Checkpointer(tmp_path / "ck", url, options=replace(options, secret_key="wrong")) as ck:
            saved(ck, 2, state(2))
            until(lambda: bool(ck.status().remotes) and ck.status().remotes[0][2] is not None)
            assert "refused" in str(ck.status().remotes[0][2])
            ck.close(0.5)  # not to wait for that remote
        with stoker.Checkpointer(tmp_path / "ck", url, options=options) as ck:
            saved(ck, 3, state(3))
            assert ck.wait(60, remote=True)
        assert there(url, options)[-1] == 3


def test_two_remotes_are_served_each_for_itself(server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """Lustre-like folder first, then S3: when S3 is down the folder gets all, and the local disk waits for both."""
    url = fresh_prefix(server)
    options = through(proxy, server, deadline_s=0.5)
    with stoker.Checkpointer(tmp_path / "ck", [tmp_path / "lustre", url], keep=1, options=options) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
        proxy.plan = FaultPlan(unavailable_rate=1.0)
        for step in (2, 3):
            saved(ck, step, state(step))
            until(lambda step=step: complete(tmp_path / "lustre")[-1:] == [step])
        assert complete(tmp_path / "ck")[-2:] == [2, 3]
        proxy.plan = FaultPlan()
        saved(ck, 4, state(4))
        assert ck.wait(60, remote=True)
        until(lambda: complete(tmp_path / "ck") == [4])
    shutil.rmtree(tmp_path / "ck")
    step, live = resumed(tmp_path / "ck", [str(tmp_path / "lustre"), url], options_for(server))
    assert step == 4 and same(live, state(4))
    assert complete(tmp_path / "ck") == []  # read where it lies: a shared file system needs no copy


def test_a_start_without_the_remote(
    server: Server, proxy: FaultProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With checkpoints on the local disk the run goes on, loudly; on an empty one that would be a silent new start."""
    url, options = fresh_prefix(server), through(proxy, server, deadline_s=0.5)
    with stoker.Checkpointer(tmp_path / "ck", url, options=options) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
    proxy.plan = FaultPlan(unavailable_rate=1.0)
    live = state(-1)
    with stoker.Checkpointer(tmp_path / "ck", url, options=options) as ck:
        found = ck.resume(live)
        assert found is not None and found.step == 1 and same(live, state(1))
    assert any("SlowDown" in one.message for one in caplog.records if one.levelno >= logging.WARNING)
    with pytest.raises(CheckpointError, match="cannot see which checkpoints exist"):
        stoker.Checkpointer(tmp_path / "empty", url, options=options)


def test_half_uploads_that_were_overtaken_are_swept(server: Server, tmp_path: Path) -> None:
    """What a killed uploader left, and nobody needs any more, goes; at the remote too no marker is ever left alone."""
    url, options = fresh_prefix(server), options_for(server)
    store = connect(url, options=options)
    with stoker.Checkpointer(tmp_path / "ck", url, keep=Keep(1, 1), options=options) as ck:
        name = saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
        store.delete(f"{name}/COMMITTED")
        for step in (2, 3):
            saved(ck, step, state(step))
            assert ck.wait(60, remote=True)
        until(lambda: {info.key.partition("/")[0][:13] for info in store.list()} == {"step-00000003"})
