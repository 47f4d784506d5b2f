"""Root files: errors travel, sizes parse, work in parallel is bounded, owners are recognised."""

from __future__ import annotations

import inspect
import json
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker import errors, machine
from stoker.errors import StokerError, UsageError
from stoker.events import HERE, SPANS_MAX, Events, RunLog
from stoker.flow import Gate, parallel_map
from stoker.units import format_bytes, format_duration, parse_bytes
from support_store import until

KINDS = [k for _, k in inspect.getmembers(errors, inspect.isclass) if issubclass(k, StokerError)]


@pytest.mark.parametrize("kind", KINDS)
def test_errors_survive_a_process_border(kind: type[StokerError]) -> None:
    """Message and hint are there after pickling, whatever built-in the class derives from."""
    sent = kind("shard_3.tar: expected 5 bytes, found 4", "run it again")
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is kind
    assert str(got) == str(sent) == "shard_3.tar: expected 5 bytes, found 4\nhint: run it again"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("256MB", 256_000_000),
        ("64MiB", 2**26),
        ("1.5G", 1_500_000_000),
        ("7", 7),
        (" 2 TB ", 2 * 10**12),
        (5, 5),
        ("1kb", 1000),
    ],
)
def test_sizes_parse(text: str | int, count: int) -> None:
    """Decimal and binary units, any case, a number alone."""
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "MB", "1 XB", "-1", "1e9", -1, "1i", "12 M B"])
def test_what_is_no_size_is_refused(text: str | int) -> None:
    """The message repeats what was found."""
    with pytest.raises(UsageError):
        parse_bytes(text)


@given(st.integers(0, 10**18))
def test_printed_sizes_parse_back(count: int) -> None:
    """Within the three digits that are printed."""
    assert abs(parse_bytes(format_bytes(count).replace("kB", "KB")) - count) <= 0.006 * count


def test_durations_print() -> None:
    """From milliseconds to hours."""
    assert [format_duration(s) for s in (0.0032, 12.04, 125, 7320)] == ["3.2 ms", "12.0 s", "2 min 05 s", "2 h 02 min"]


def test_parallel_map_keeps_order_and_bound() -> None:
    """Results come in input order; never more in flight than allowed."""
    lock, now, most = threading.Lock(), 0, 0

    def work(item: int) -> int:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return item * item

    assert list(parallel_map(work, range(100), workers=4)) == [i * i for i in range(100)]
    assert most <= 4


def test_parallel_map_raises_where_the_result_would_stand_and_stops() -> None:
    """Later work that has not begun is dropped; no thread stays."""
    begun = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 5:
            raise ValueError("five")
        return item

    got = []
    with pytest.raises(ValueError, match="five"):
        for result in parallel_map(work, range(10_000), workers=2):
            got.append(result)
    assert got == [0, 1, 2, 3, 4]
    assert len(begun) < 30
    assert not [t for t in threading.enumerate() if t.name.startswith("stoker_") and t.is_alive()]


def test_a_gate_lets_so_many_through() -> None:
    """The bound holds, and can be raised while threads wait."""
    gate, inside, release = Gate(1), threading.Semaphore(0), threading.Event()

    def enter() -> None:
        with gate:
            inside.release()
            release.wait(10)

    threads = [threading.Thread(target=enter) for _ in range(3)]
    for thread in threads:
        thread.start()
    assert inside.acquire(timeout=10)
    assert not inside.acquire(timeout=0.05)
    gate.resize(3)
    assert inside.acquire(timeout=10)
    assert inside.acquire(timeout=10)
    release.set()
    for thread in threads:
        thread.join()


def test_a_gate_starves_nobody() -> None:
    """Who waits longest is next, however busily others come and go."""
    gate, order = Gate(1), list[int]()
    threads = []

    def enter(number: int) -> None:
        with gate:
            order.append(number)

    with gate:
        for number in range(20):
            threads.append(threading.Thread(target=enter, args=(number,)))
            threads[-1].start()
            until(lambda: len(gate._waiting) == len(threads))
    enter(20)  # comes when the gate is open again, and stands behind all who wait
    for thread in threads:
        thread.join()
    assert order == list(range(21))


def test_an_owner_lives_until_it_does_not() -> None:
    """This process lives; one that ended, another boot, and nonsense do not."""
    code = "from stoker.machine import owner_token; print(owner_token())"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    assert machine.owner_lives(machine.owner_token())
    assert not machine.owner_lives(ended)
    assert not machine.owner_lives(f"another-boot/{os.getpid()}/{machine.process_start(os.getpid())}")
    assert not machine.owner_lives("nonsense")


def test_the_machine_has_something() -> None:
    """At least one CPU and some memory; the numbers are this process's share."""
    assert 1 <= machine.cpus() <= (os.cpu_count() or 1)
    assert machine.memory_bytes_free() > 0


def test_counts_add_up_and_spans_are_bounded() -> None:
    """Spans that nobody drains fall out and are counted."""
    events = Events()
    for number in range(SPANS_MAX + 10):
        events.span("read", number, number + 1)
    events.count("bytes", 5)
    events.count("bytes", 7)
    assert events.totals() == {"bytes": 12, "events.spans_lost": 10}
    assert len(events.drain()) == SPANS_MAX
    assert events.drain() == []


def test_a_recorder_reports_to_the_process_it_is_in() -> None:
    """A pickled reference becomes the other process's own."""
    assert pickle.loads(pickle.dumps(Events())) is HERE


def test_a_run_log_that_cannot_be_one_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, or a file in place of one: the variable is told, not a bare errno in the middle of a loader."""
    (tmp_path / "file").write_bytes(b"")
    for path in (tmp_path, tmp_path / "file" / "run.jsonl"):
        monkeypatch.setenv("STOKER_RUN_LOG", str(path))
        with pytest.raises(UsageError, match=f"run log {path}: .*\nhint: STOKER_RUN_LOG names a file"):
            RunLog.from_environment()


_SHORT_OF_SPACE = """
import resource, sys, warnings
from stoker.events import RunLog
warnings.simplefilter("ignore")
log = RunLog(sys.argv[1])
for room in (250, 250, resource.RLIM_INFINITY):  # bytes that the file may have: the second time nothing fits at all
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
    for number in range(5):
        log.write("batch", step=number, room=room)
    log._sink.flush()
log.close()
"""


def test_half_a_line_costs_no_other(tmp_path: Path) -> None:
    """What a full disk cut off stands alone: the lines after it can be read, and the first says how many were lost."""
    subprocess.run([sys.executable, "-c", _SHORT_OF_SPACE, str(tmp_path / "run.jsonl")], check=True)
    whole, broken = [], 0
    for line in (tmp_path / "run.jsonl").read_text().splitlines():
        try:
            whole.append(json.loads(line))
        except json.JSONDecodeError:
            broken += 1
    assert broken == 1
    assert [line["step"] for line in whole if line["room"] == -1] == list(range(5))
    told = [line["lost"] for line in whole if "lost" in line]
    assert told[0] == 15 - len(whole)
