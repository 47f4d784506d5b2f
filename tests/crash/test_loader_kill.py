"""kill -9 of a training process, and of its feeder, at seeded random points: the next run goes on, nothing stays."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import stoker
from stoker.cli.servers import Server, moto_server
from stoker.store import StoreOptions, connect
from support_dataset import feeders, write_shards

SUPPORT = Path(__file__).resolve().parents[1] / "support_train.py"
POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
SAMPLES = 240
GONE_S_MAX = 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 samples in four shards."""
    return write_shards(tmp_path_factory.mktemp("data"), SAMPLES, shards=4)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    """An S3 server that holds the shards in s3://bucket/data."""
    with moto_server() as running:
        running.make_bucket("bucket")
        options = StoreOptions(endpoint=running.endpoint, access_key=running.access_key, secret_key=running.secret_key)
        store = connect("s3://bucket/data", options=options)
        for path in folder.glob("*.tar"):
            store.put(path.name, path.read_bytes())
        yield running


Training = tuple[subprocess.Popen[str], psutil.Process]


def start(url: Path | str, box: Path, *options: str, environ: dict[str, str] | None = None) -> Training:
    """A training process that has begun, and its feeder."""
    command = [sys.executable, str(SUPPORT), str(url), str(box / "log"), str(box / "state"), *options]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **(environ or {})},
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    feeder = feeder_of(process)
    process.stdin.write("go\n")
    process.stdin.flush()
    return process, feeder


def feeder_of(process: subprocess.Popen[str]) -> psutil.Process:
    """The feeder, which runs already; psutil may overlook a child, as the boot time it computes with jitters."""
    until = time.monotonic() + 20
    while True:
        for child in feeders(process.pid):
            return child
        assert time.monotonic() < until, "no feeder"
        time.sleep(0.05)


def batches(box: Path) -> list[list[int]]:
    """What was trained on, whole lines only: the last may be cut by the kill."""
    path = box / "log"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_for(batches_min: int, box: Path, process: subprocess.Popen[str]) -> None:
    """Until so many batches are logged, or the process ended."""
    until = time.monotonic() + 60
    while len(batches(box)) < batches_min and process.poll() is None:
        assert time.monotonic() < until, "the training process hangs"
        time.sleep(0.001)


def check_exact(folder: Path, box: Path) -> None:
    """All batches together are the uninterrupted epoch; one may stand there twice: logged, but not saved."""
    with stoker.Loader(stoker.open(folder), 4, fields={"cls": int}, seed=11) as loader:
        whole = [batch["__index__"].tolist() for batch in loader]
    seen = batches(box)
    assert [b for i, b in enumerate(seen) if i == 0 or b != seen[i - 1]] == whole


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_trainer_resumes_exactly(folder: Path, tmp_path: Path, point: int) -> None:
    """Two kills at random points, then a run to the end: every sample once; feeders follow their trainers."""
    draw, shm = random.Random(point), set(os.listdir("/dev/shm"))
    for _ in range(2):
        process, feeder = start(folder, tmp_path)
        wait_for(len(batches(tmp_path)) + draw.randrange(0, 25), tmp_path, process)
        process.kill()
        process.communicate()
        psutil.wait_procs([feeder], GONE_S_MAX)
        assert not feeder.is_running()
    last, _ = start(folder, tmp_path)
    _, words = last.communicate(timeout=60)
    assert last.returncode == 0, words
    check_exact(folder, tmp_path)
    assert set(os.listdir("/dev/shm")) == shm


@pytest.mark.parametrize("point", range(POINTS))
def test_a_trainer_killed_while_its_cache_fills_leaves_nothing_behind(
    folder: Path, server: Server, tmp_path: Path, point: int
) -> None:
    """From S3 through a cache, killed twice: exact order, whole entries only, no temporaries, no open uploads."""
    draw, cache = random.Random(2000 + point), tmp_path / "cache"
    for _ in range(2):
        process, feeder = start("s3://bucket/data", tmp_path, "--cache", str(cache), environ=server.environment())
        wait_for(len(batches(tmp_path)) + draw.randrange(0, 12), tmp_path, process)
        process.kill()
        process.communicate()
        psutil.wait_procs([feeder], GONE_S_MAX)
        assert not feeder.is_running()
    last, _ = start("s3://bucket/data", tmp_path, "--cache", str(cache), environ=server.environment())
    _, words = last.communicate(timeout=60)
    assert last.returncode == 0, words
    check_exact(folder, tmp_path)
    assert list((cache / "tmp").iterdir()) == []
    shards = {path.read_bytes() for path in folder.glob("*.tar")}
    assert {entry.read_bytes() for entry in (cache / "objects").glob("*/*")} <= shards
    assert server.open_uploads("bucket") == []


@pytest.mark.parametrize("point", range(POINTS))
def test_a_killed_feeder_ends_the_run_with_words(folder: Path, tmp_path: Path, point: int) -> None:
    """The trainer ends by itself, says which signal, leaves a state that the next run goes on from."""
    draw = random.Random(1000 + point)
    process, feeder = start(folder, tmp_path)
    wait_for(draw.randrange(0, 40), tmp_path, process)
    feeder.send_signal(signal.SIGKILL)
    _, words = process.communicate(timeout=60)
    if process.returncode == 0:  # the last batches were delivered before the kill
        assert len(batches(tmp_path)) == SAMPLES // 4
        return
    assert "FeederError" in words
    assert "SIGKILL" in words
    last, _ = start(folder, tmp_path)
    last.communicate(timeout=60)
    assert last.returncode == 0
    check_exact(folder, tmp_path)
