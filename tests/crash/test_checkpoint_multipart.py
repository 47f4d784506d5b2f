"""Death within a file that goes up in parts: no checkpoint is there, the next push completes it, gc clears up."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import stoker
from stoker.cli.servers import Server, moto_server
from stoker.store import objects
from stoker.testing.fault_proxy import FaultPlan, FaultProxy
from support_checkpoint import same, saved, there
from support_store import fresh_prefix, options_for, until

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
PUSH = """
import sys
from stoker.cli.main import main
from stoker.store import objects
objects.ONE_PUT_BYTES_MAX, objects._PART_BYTES_MIN = map(int, sys.argv[1:3])
sys.exit(main(["checkpoint", *sys.argv[3:]]))
"""
SMALL = (4 << 20, 5 << 20)
"""Files above 4 MiB in parts of 5 MiB, the smallest that S3 takes; else it takes 512 MB and parts of 64 MiB."""
REAL = (objects.ONE_PUT_BYTES_MAX, objects._PART_BYTES_MIN)


@pytest.fixture
def server() -> Iterator[Server]:
    """An S3 server."""
    with moto_server() as running:
        yield running


def checkpoint(server: Server, endpoint: str, sizes: tuple[int, int], *words: object) -> subprocess.Popen[str]:
    """`stoker checkpoint WORDS` with these limits of sizes."""
    environment = {**os.environ, **server.environment(), "AWS_ENDPOINT_URL": endpoint}
    command = [sys.executable, "-c", PUSH, *map(str, sizes), *map(str, words)]
    return subprocess.Popen(command, text=True, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def ended(process: subprocess.Popen[str]) -> str:
    """What it printed, when all went well."""
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


@pytest.mark.timeout(600)  # 600 MB through a proxy into a server's memory, twice
@pytest.mark.parametrize(
    ("sizes", "megabytes", "parts"),
    [(SMALL, 21, 0), (SMALL, 21, 2), (SMALL, 21, 4), *([(REAL, 600, 3), (REAL, 600, 8)] if POINTS >= 50 else [])],
)
def test_a_push_that_is_killed_between_parts(
    server: Server, tmp_path: Path, sizes: tuple[int, int], megabytes: int, parts: int
) -> None:
    """kill -9 after so many parts of one large tensor's file arrived: the server holds pieces and no checkpoint. The
    next push makes it complete and right, and `gc` aborts the pieces that the dead one left."""
    pytest.importorskip("boto3", reason="gc looks for pieces by boto3")
    url = fresh_prefix(server)
    bucket = url.removeprefix("s3://").partition("/")[0]
    state = {"w": torch.arange(megabytes * 1_000_000 // 4, dtype=torch.int32), "b": torch.ones(3)}
    with stoker.Checkpointer(tmp_path / "ck") as ck:
        saved(ck, 1, state)
    with FaultProxy("127.0.0.1", server.port, FaultPlan(latency_s=0.3)) as proxy:
        push = checkpoint(server, proxy.endpoint, sizes, "push", tmp_path / "ck", url)
        until(lambda: bool(server.open_uploads(bucket)) or push.poll() is not None, seconds=120)
        begun = proxy.counts["requests"]
        until(lambda: proxy.counts["requests"] >= begun + parts or push.poll() is not None, seconds=120)
        push.send_signal(signal.SIGKILL)
        push.communicate()
        assert push.returncode == -signal.SIGKILL
    assert len(server.open_uploads(bucket)) == 1 and there(url, options_for(server)) == []
    assert "sent, verified" in ended(checkpoint(server, server.endpoint, sizes, "push", tmp_path / "ck", url))
    assert there(url, options_for(server)) == [1] and len(server.open_uploads(bucket)) == 1
    assert "1 unfinished uploads" in ended(checkpoint(server, server.endpoint, sizes, "gc", url, "--older-than", "0s"))
    assert server.open_uploads(bucket) == []
    fresh = {"w": torch.zeros_like(state["w"]), "b": torch.zeros(3)}
    with stoker.Checkpointer(tmp_path / "new", url, options=options_for(server)) as ck:
        found = ck.resume(fresh)
    assert found is not None and same(fresh, state)
