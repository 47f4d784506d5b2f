"""kill -9 at any line of the cache's code: what is served afterwards is right, and what was left is swept.

A child warms and reads a cache and counts the lines of the room that it executes; at a seeded one it kills itself. The
points that begin and end an admission are rare among the lines, so half of the kills aim at the named functions.
STOKER_CRASH_POINTS sets how many points are tried (default 5; `make crash` tries many).
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from stoker.cache import Cache
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, Local
from support_store import Dataset, random_bytes, refs_of

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
AIMS = ["", "publish", "reserve", "_open", "_sweep", "temporary", "_fill", "_write", "end_session", "close"]

_CHILD = """
import json, os, signal, sys, threading, time
job = json.loads(sys.argv[1])
from stoker.cache import Cache, prefetch
from stoker.index.entry import ObjectRef
from stoker.store import ByteRange, Local
lines, lock = 0, threading.Lock()

def trace(frame, event, argument):
    global lines
    code = frame.f_code
    if "/stoker/cache/" not in code.co_filename and "/stoker/store/atomic" not in code.co_filename:
        return None
    if event == "line" and (not job["aim"] or code.co_name == job["aim"]):
        with lock:
            lines += 1
            if lines == job["kill_at"]:
                os.kill(os.getpid(), signal.SIGKILL)
    return trace

class Dataset:
    store = Local(job["source"])
    def objects(self):
        return refs
refs = [ObjectRef(*ref) for ref in job["refs"]]
print("ready", flush=True)
if job["ahead"]:
    sys.stdin.readline()
threading.settrace(trace)
sys.settrace(trace)
cache = Cache(job["cache"])
objects = cache.objects(Dataset.store)
if job["ahead"]:
    prefetch(((objects, ref) for ref in refs), [objects])
    for ref in reversed(refs):
        last = ByteRange(max(0, ref.size - 10), ref.size)
        assert bytes(objects.read(ref, [last]).data[0]) == Dataset.store.get_ranges(ref.key, [last])[0], ref
    while missing := [ref for ref in refs if not cache.contains(Dataset.store, ref)]:
        for ref in missing:  # what a dead process had in hand comes in by the next read of it
            objects.read(ref, [ByteRange(0, min(10, ref.size))])
        time.sleep(0.01)
else:
    for ref in refs[:4]:
        objects.read(ref, [ByteRange(0, min(10, ref.size))])
    cache.warm(Dataset(), workers=2)
for ref in refs:
    objects.read(ref, [ByteRange(0, min(10, ref.size))])
objects.close()
del objects, cache
sys.settrace(None)
print(lines)
"""


def run_child(job: dict[str, object]) -> tuple[int, str]:
    """Exit status and output of a child."""
    done = subprocess.run([sys.executable, "-c", _CHILD, json.dumps(job)], capture_output=True, text=True)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode, done.stdout.split()[-1]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> tuple[Local, list[ObjectRef]]:
    """Small and large objects."""
    store = Local(tmp_path_factory.mktemp("source"))
    for number, size in enumerate((100, 5000, 1_500_000, 9_000_000, 0, 70_000, 1_048_577)):
        store.put(f"o{number}", random_bytes(number, size))
    return store, refs_of(store)


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_anywhere(tmp_path: Path, source: tuple[Local, list[ObjectRef]], point: int) -> None:
    """After one to three kills in a row the cache opens, serves right bytes, can be filled, and holds no leftover."""
    store, refs = source
    chance = random.Random(point)
    aim = AIMS[point % len(AIMS)]
    job: dict[str, object] = {
        "source": str(store.root),
        "cache": str(tmp_path / "c"),
        "refs": [(ref.key, ref.size, ref.version) for ref in refs],
        "aim": aim,
        "kill_at": 0,
        "ahead": False,
    }
    status, lines = run_child({**job, "cache": str(tmp_path / "whole")})
    assert status == 0 and int(lines) > 0
    kills = 0
    for _ in range(chance.randint(1, 3)):
        status, _ = run_child({**job, "kill_at": chance.randint(1, int(lines))})
        kills += status == -signal.SIGKILL
    cache = Cache(tmp_path / "c")
    objects = cache.objects(store)
    assert list((cache.path / "tmp").iterdir()) == []
    assert cache.status().reserved_bytes == 0 and cache.status().leases == 0 and cache.status().readers == 1
    for ref in refs:
        data = objects.read(ref, [ByteRange(0, ref.size)]).data[0]
        assert bytes(data) == store.get(ref.key)
    cache.warm(Dataset(store, refs))
    objects.close()
    for ref in refs:
        assert cache.contains(store, ref)
    found = cache.status()
    assert (found.entries, found.bytes) == (len(refs), sum(ref.size for ref in refs))
    del cache, objects
    until = time.monotonic() + 10
    while list((tmp_path / "c" / "sessions").iterdir()):  # a background thread may let go of the cache a moment later
        assert time.monotonic() < until, f"a session is left after {kills} kills in {aim or 'any line'}"
        time.sleep(0.01)
    left = sorted(str(path.relative_to(tmp_path / "c")) for path in (tmp_path / "c").rglob("*") if path.is_file())
    assert len([name for name in left if name.startswith("objects/")]) == len(refs)
    assert {name for name in left if not name.startswith("objects/")} <= {
        "lock", "ledger.sqlite", "ledger.sqlite-wal", "ledger.sqlite-shm",
    }, f"after {kills} kills in {aim or 'any line'}"  # fmt: skip


def child_of(job: dict[str, object]) -> subprocess.Popen[str]:
    """A child that says when it is ready and waits for a line."""
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", _CHILD, json.dumps(job)]
    return subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


AIMS_AHEAD = ["", "bring_in", "_bring_in", "fetch", "one", "_prefetch", "paced", "_write", "_beside"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Local, list[ObjectRef]]:
    """Objects of several pieces among small ones."""
    store = Local(tmp_path_factory.mktemp("large"))
    for number, size in enumerate((9_000_000, 300, 17_000_000, 1_200_000, 8_388_608, 50_000)):
        store.put(f"o{number}", random_bytes(number, size))
    return store, refs_of(store)


@pytest.mark.parametrize("point", range(POINTS))
def test_killed_beside_another_that_fetches_ahead(
    tmp_path: Path, large: tuple[Local, list[ObjectRef]], point: int
) -> None:
    """Two processes bring the same objects into one cache ahead of their reads, one is killed at work: the other waits
    for nothing that the dead one had in hand, reads right bytes, and has everything in the end, once."""
    store, refs = large
    chance, aim = random.Random(point), AIMS_AHEAD[point % len(AIMS_AHEAD)]
    job: dict[str, object] = {
        "source": str(store.root), "cache": str(tmp_path / "c"), "aim": aim, "kill_at": 0, "ahead": True,
        "refs": [(ref.key, ref.size, ref.version) for ref in refs],
    }  # fmt: skip
    with ExitStack() as ended:
        children = []
        for one in ({**job, "kill_at": chance.randint(1, 20 if aim else 400)}, job):
            children.append(ended.enter_context(child_of(one)))
            ended.callback(children[-1].kill)  # before it is waited for
        for child in children:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
        for child in children:
            assert child.stdin is not None
            child.stdin.write("go\n")
            child.stdin.flush()
        killed, other = [(*child.communicate(timeout=60), child.returncode) for child in children]
    assert killed[2] in (0, -signal.SIGKILL), killed[1]
    assert other[2] == 0, other[1]
    cache = Cache(tmp_path / "c")
    objects = cache.objects(store)
    for ref in refs:
        assert bytes(objects.read(ref, [ByteRange(0, ref.size)]).data[0]) == store.get(ref.key)
    objects.close()
    found = cache.status()
    assert (found.entries, found.bytes, found.reserved_bytes) == (len(refs), sum(ref.size for ref in refs), 0)
    assert list((cache.path / "tmp").iterdir()) == []
