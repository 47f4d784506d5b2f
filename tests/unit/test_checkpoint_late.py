"""Remotes that are late or not themselves: lists that lag, answers that are lost, credentials that expire."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.checkpoint import Keep
from stoker.checkpoint.keeper import Keeper, KeeperJob, connect_tier
from stoker.checkpoint.tier import Tier
from stoker.checkpoint.upload import upload
from stoker.cli.servers import Server, moto_server
from stoker.store import Buffer, Memory, ObjectInfo, connect
from stoker.store.wrap import Around
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_checkpoint import complete, same, saved, state, there, through
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


class Lagging(Around):
    """Its list is late: what was put is not listed for the next so many lists, what was deleted still is."""

    def __init__(self, inner: Memory, lag: int) -> None:
        super().__init__(inner)
        self.lag, self.lists = lag, 0
        self.known: dict[str, tuple[ObjectInfo, int]] = {}
        """For each key that was put: since which list it shows, and as what."""
        self.gone: dict[str, int] = {}
        self.puts: Counter[str] = Counter()

    def put(self, key: str, data: Buffer) -> ObjectInfo:
        return self._put(key, super().put(key, data))

    def put_if(self, key: str, data: Buffer, *, version: str | None) -> ObjectInfo:
        return self._put(key, super().put_if(key, data, version=version))

    def _put(self, key: str, info: ObjectInfo) -> ObjectInfo:
        self.puts[key] += 1
        self.known.setdefault(key, (info, self.lists + self.lag))
        return info

    def delete(self, key: str) -> None:
        super().delete(key)
        self.gone[key] = self.lists + self.lag

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self.lists += 1
        for key, (info, since) in sorted(self.known.items()):
            if key.startswith(prefix) and since < self.lists <= self.gone.get(key, self.lists):
                yield info


@pytest.mark.parametrize("lag", [0, 1, 3, 10, 1000])
def test_a_list_that_lags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lag: int) -> None:
    """Whatever the remote's list does not show yet, or shows still: nothing is sent twice, every cycle ends, what must
    stay stays on some tier, and when the list has caught up all is as it would have been without the lag."""
    far = Lagging(Memory("far"), lag)
    monkeypatch.setattr("stoker.checkpoint.keeper.connect", lambda url, **more: far if "far" in url else connect(url))
    near, keep = Tier(connect(str(tmp_path / "ck"))), Keep(local=1, remote=2, every=3)
    with stoker.Checkpointer(tmp_path / "ck", keep=50) as ck:
        for step in range(1, 8):
            saved(ck, step, state(step))
            assert ck._household is not None and ck._household.wait_idle(30)
            report = Keeper(KeeperJob(tmp_path / "ck", ("far",), keep)).cycle()
            assert report.settled or lag
            where = {one.attempt.step for tier in (near, Tier(far.inner)) for one in tier.look() if one.manifest}
            assert {step, *range(3, step + 1, 3)} <= where
    data = [count for key, count in far.puts.items() if "/data/" in key]
    assert set(data) == {1} and len(data) == 7 * 2
    for _ in range(3):
        far.lists += 2000
        report = Keeper(KeeperJob(tmp_path / "ck", ("far",), keep)).cycle()
    assert report.settled and complete(tmp_path / "ck") == [7]
    assert [one.attempt.step for one in Tier(far.inner).look() if one.manifest is not None] == [3, 6, 7]
    assert {key.partition("/")[0] for key in far.known} - {info.key.partition("/")[0] for info in far.inner.list()}


def test_a_marker_that_is_not_listed_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole checkpoint whose files are listed and whose marker is not, older than the newest and on no disk any more,
    looks like an upload that was overtaken. It is not swept."""
    far = Lagging(Memory("far"), 0)
    monkeypatch.setattr("stoker.checkpoint.keeper.connect", lambda url, **more: far if "far" in url else connect(url))
    with stoker.Checkpointer(tmp_path / "ck", keep=50) as ck:
        for step in (1, 2):
            name = saved(ck, step, state(step))
            if step == 1:
                first = name
            Keeper(KeeperJob(tmp_path / "ck", ("far",), Keep(9, 9))).cycle()
    shutil.rmtree(tmp_path / "ck" / first)
    info, _ = far.known[f"{first}/COMMITTED"]
    far.known[f"{first}/COMMITTED"] = (info, 1 << 60)
    report = Keeper(KeeperJob(tmp_path / "ck", ("far",), Keep(9, 9))).cycle()
    assert report.deleted == () and [one.attempt.step for one in Tier(far.inner).look() if one.manifest] == [1, 2]


@pytest.mark.parametrize("path", ["COMMITTED", "data"])
def test_a_put_whose_answer_is_lost(server: Server, proxy: FaultProxy, tmp_path: Path, path: str) -> None:
    """The server has done it, the answer never comes, it is put again: the marker is ours all the same, the copy right,
    and sent again it is as it was."""
    url = fresh_prefix(server)
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state(1))
    local, remote = connect_tier(str(tmp_path / "ck"), None), connect_tier(url, through(proxy, server))
    (one,) = local.look()
    assert one.manifest is not None
    proxy.plan = FaultPlan(seed=1, reset_rate=0.6, paths=path, methods=("PUT",))
    assert upload(local, remote, one.manifest).committed
    assert proxy.counts["reset"] > 0
    proxy.plan = FaultPlan()
    assert there(url, options_for(server)) == [1] and upload(local, remote, one.manifest).sent_bytes == 0
    live = state(-1)
    with stoker.Checkpointer(tmp_path / "new", url, options=options_for(server)) as ck:
        assert ck.resume(live) is not None and same(live, state(1))


def test_credentials_that_expire_under_a_run(server: Server, proxy: FaultProxy, tmp_path: Path) -> None:
    """The server says from now on that the token has expired: training saves on, the status says so, nothing is deleted
    that is not there; with new credentials all is brought up to date."""
    url, options = fresh_prefix(server), through(proxy, server, deadline_s=0.5)

    with stoker.Checkpointer(tmp_path / "ck", url, keep=1, options=options) as ck:
        saved(ck, 1, state(1))
        assert ck.wait(60, remote=True)
        proxy.plan = FaultPlan(unavailable_rate=1.0, refusal=(400, "ExpiredToken"))
        for step in (2, 3):
            saved(ck, step, state(step))
        until(lambda: bool(ck.status().remotes) and ck.status().remotes[0][2] is not None)
        assert "ExpiredToken" in str(ck.status().remotes[0][2])
        assert complete(tmp_path / "ck")[-2:] == [2, 3]
        proxy.plan = FaultPlan()
        saved(ck, 4, state(4))
        assert ck.wait(60, remote=True)
    assert there(url, options_for(server))[-1] == 4
