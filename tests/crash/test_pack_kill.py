"""kill -9 of a pack at any moment: the next run makes what is missing, ends with the same bytes and leaves no trace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from stoker.cli.servers import Server, juicefs_gateway
from stoker.store import Store, StoreOptions, connect
from support_pack import make_photos, tree

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
SHARDS = 12
START_S_MAX = 60.0


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos whose packing takes a second or so, because they are encoded anew."""
    return make_photos(tmp_path_factory.mktemp("source"), count=96, side=300)


def start(source: Path, target: str, scratch: Path, environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """The real command, in a process of its own."""
    scratch.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "stoker.cli.main", "pack", str(source), target]
    command += ["--shards", str(SHARDS), "--transcode", "jpeg:90", "--seed", "3", "--workers", "2"]
    return subprocess.Popen(
        command, env={**os.environ, "TMPDIR": str(scratch), **environment}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for a run that must end well; its output."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def wait_for_work(process: subprocess.Popen[str], store: Store, what: str = "") -> None:
    """Until the job is written down, or its first `part-`: from then on there is something to break."""
    until = time.monotonic() + START_S_MAX
    while process.poll() is None and not any(True for _ in store.list(f"_stoker/{what}")):
        assert time.monotonic() < until, "the pack never began"
        time.sleep(0.002)


def work_s(process: subprocess.Popen[str], store: Store) -> float:
    """Seconds that an unbroken run works."""
    wait_for_work(process, store)
    begun = time.monotonic()
    finish(process)
    return time.monotonic() - begun


def kill(process: subprocess.Popen[str], number: int = signal.SIGKILL) -> None:
    """Send a signal and wait for the end."""
    process.send_signal(number)
    process.communicate(timeout=60)


def contents(store: Store) -> dict[str, bytes]:
    """Every object of a target."""
    return {info.key: store.get(info.key) for info in store.list()}


def test_a_killed_pack_goes_on_in_a_folder(photos: Path, tmp_path: Path) -> None:
    """Killed at seeded points, once or twice in a row, a local pack ends like an unbroken one."""
    whole, scratch = tmp_path / "whole", tmp_path / "scratch"
    duration_s = work_s(start(photos, str(whole), scratch, {}), connect(whole))
    moments = random.Random(20)
    went_on = 0
    for point in range(POINTS):
        target = tmp_path / f"point{point}"
        for _ in range(1 + point % 2):
            process = start(photos, str(target), scratch, {})
            wait_for_work(process, connect(target), "part-" if point % 2 else "")
            time.sleep(0 if point % 2 else moments.uniform(0, duration_s))
            kill(process)
        went_on += "went on" in finish(start(photos, str(target), scratch, {}))
        assert tree(target) == tree(whole)
        assert list(scratch.iterdir()) == []
        finish(start(photos, str(target), scratch, {}))
    assert went_on >= POINTS // 3


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> object:
    """A real S3 server with a bucket."""
    with juicefs_gateway(tmp_path_factory.mktemp("s3")) as running:
        running.make_bucket("packs")
        yield running


def test_a_killed_pack_goes_on_in_a_bucket(photos: Path, tmp_path: Path, server: Server) -> None:
    """The same against a real S3 server: same objects, and no upload left open there."""
    options = StoreOptions(endpoint=server.endpoint, access_key=server.access_key, secret_key=server.secret_key)
    environment, scratch = server.environment(), tmp_path / "scratch"
    whole = connect("s3://packs/whole", options=options)
    duration_s = work_s(start(photos, "s3://packs/whole", scratch, environment), whole)
    moments = random.Random(21)
    for point in range(max(2, POINTS // 2)):
        url = f"s3://packs/point{point}"
        process = start(photos, url, scratch, environment)
        wait_for_work(process, connect(url, options=options))
        time.sleep(moments.uniform(0, duration_s))
        kill(process)
        finish(start(photos, url, scratch, environment))
        assert contents(connect(url, options=options)) == contents(whole)
        assert list(scratch.iterdir()) == []
    assert server.open_uploads("packs") == []


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_pack_says_so_and_goes_on(photos: Path, tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM end with their exit codes, within seconds, and the next run goes on."""
    target, scratch = tmp_path / "out", tmp_path / "scratch"
    process = start(photos, str(target), scratch, {})
    wait_for_work(process, connect(target))
    kill(process, number)
    assert process.returncode == code
    assert not (target / "_stoker/manifest.json").exists()
    finish(start(photos, str(target), scratch, {}))
    assert (target / "_stoker/manifest.json").exists() and list(scratch.iterdir()) == []
