"""Retrying, Limited and Metered, each alone."""

from __future__ import annotations

import pickle
import socket
import threading
from pathlib import Path

import pytest

from stoker.errors import ChangedError, NotFoundError, StoreError, UsageError
from stoker.events import Events
from stoker.store import ByteRange, Local, Memory, StoreOptions, connect, innermost
from stoker.store.limit import Limited
from stoker.store.meter import Metered
from stoker.store.retry import BACKOFF_S_MAX, UNREACHABLE_S_MAX, Retrying, backoff_s
from stoker.store.transient import UNREACHABLE, TransientError
from support_store import Counting, FakeClock, Flaky


def filled(count: int = 5) -> Memory:
    """A store with objects "0", "1", …"""
    store = Memory()
    for number in range(count):
        store.put(str(number), b"object %d" % number)
    return store


def test_retrying_goes_on_until_it_works() -> None:
    """Transient failures are tried again, waited for ever longer, and counted by reason."""
    clock, events = FakeClock(), Events()
    store = Retrying(Flaky(filled(), ["503", "reset", "503"]), deadline_s=60, clock=clock, recorder=events, seed=1)
    assert store.get("1") == b"object 1"
    assert len(clock.slept) == 3 and all(s < backoff_s(n, 1.0) for n, s in enumerate(clock.slept, 1))
    assert events.totals() == {"store.retries": 3, "store.retries.503": 2, "store.retries.reset": 1}


def test_retrying_gives_up_at_its_deadline() -> None:
    """The error after the deadline names the key and the number of attempts, and no time beyond it was spent."""
    clock = FakeClock()
    store = Retrying(Flaky(filled(), ["503"] * 10_000), deadline_s=30, clock=clock, seed=2)
    with pytest.raises(StoreError, match=r"'1'.*gave up after \d+ attempts in 30 s") as caught:
        store.get("1")
    assert not isinstance(caught.value, TransientError) and isinstance(caught.value.__cause__, TransientError)
    assert clock.now <= 1030


def unreachable(count: int) -> list[str | None]:
    """That many refused connections."""
    return [UNREACHABLE] * count


def test_a_server_that_never_answered_is_given_up_early() -> None:
    """A wrong address costs seconds, not the whole deadline."""
    for call in (lambda s: s.get("1"), lambda s: s.put("x", b"y")):
        clock = FakeClock()
        store = Retrying(Flaky(filled(), unreachable(10_000)), deadline_s=300, clock=clock, seed=3)
        with pytest.raises(StoreError, match=r"gave up after \d+ attempts in 10 s.*\n.*check the address"):
            call(store)
        assert clock.now <= 1010


@pytest.mark.parametrize("before", [[None], ["503"]])
def test_a_server_that_was_there_is_waited_for(before: list[str | None]) -> None:
    """A restart of a server that has answered once, be it by an error, is an outage: the whole deadline counts."""
    clock = FakeClock()
    store = Retrying(Flaky(filled(), [*before, *unreachable(60)]), deadline_s=3000, clock=clock, seed=3)
    assert store.get("1") == store.get("1") == b"object 1"
    assert sum(clock.slept) > UNREACHABLE_S_MAX


def test_long_retrying_is_said_once_an_outage(caplog: pytest.LogCaptureFixture) -> None:
    """After 5 s of retrying one line says so, with the reason; the next outage gets its own."""
    clock = FakeClock()
    store = Retrying(Flaky(filled(), [*["503"] * 40, None, *["503"] * 40]), deadline_s=3000, clock=clock, seed=3)
    for _ in range(2):
        store.get("1")
    told = [record.getMessage() for record in caplog.records if record.name == "stoker.store"]
    assert len(told) == 2 and all("503" in line and "at most 3000 s" in line for line in told)


def test_a_closed_port_and_an_unknown_host_are_unreachable() -> None:
    """Real refusals of this machine's network are told from resets, in words that say what is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        for endpoint in (f"http://127.0.0.1:{port}", "http://no-such-host.invalid"):
            events = Events()
            options = StoreOptions(endpoint=endpoint, access_key="a", secret_key="b", deadline_s=0.5)
            with pytest.raises(StoreError, match="nobody answers") as caught:
                next(connect("s3://bucket/x", options=options, recorder=events).list())
            assert "check the address" in str(caught.value)
            assert events.totals().get("store.retries.unreachable", 0) == events.totals().get("store.retries", 0)


def test_backoff_grows_to_its_bound() -> None:
    """Waits double from 0.1 s, stop growing at 10 s, and jitter takes any part of them."""
    assert [backoff_s(n, 1.0) for n in (1, 2, 3)] == [0.1, 0.2, 0.4]
    assert backoff_s(50, 1.0) == BACKOFF_S_MAX and backoff_s(50, 0.0) == 0.0


def test_what_a_server_means_is_not_retried() -> None:
    """A missing object is asked for once."""
    inner = Counting(filled())
    with pytest.raises(NotFoundError):
        Retrying(inner, deadline_s=60, clock=FakeClock()).get("nothing")
    assert inner.calls["get"] == 1


def test_each_range_is_retried_for_itself() -> None:
    """Of many ranges only those that failed are asked for again, and the order is that of the call."""
    inner = Counting(Flaky(filled(), ["reset", None, "503"]))
    store = Retrying(inner, deadline_s=60, clock=FakeClock())
    ranges = [ByteRange(n, n + 1) for n in range(8)]
    assert store.get_ranges("1", ranges) == [b"o", b"b", b"j", b"e", b"c", b"t", b" ", b"1"]
    assert len(inner.ranges) == 10 and {piece for _, piece in inner.ranges} == set(ranges)
    assert store.get_ranges("1", []) == []


def test_a_list_goes_on_where_it_broke() -> None:
    """A list that fails half-way is begun anew and gives each key once."""
    events = Events()
    store = Retrying(Flaky(filled(9), ["reset", "503"]), deadline_s=60, clock=FakeClock(), recorder=events)
    assert [info.key for info in store.list()] == [str(n) for n in range(9)]
    assert events.totals()["store.retries"] == 2


def test_a_list_that_never_works_ends() -> None:
    """A list that fails before any progress gives up at the deadline."""
    store = Retrying(Flaky(filled(9), ["reset"] * 10_000), deadline_s=5, clock=FakeClock())
    with pytest.raises(StoreError, match="gave up"):
        list(store.list())


def test_put_if_whose_answer_was_lost() -> None:
    """When the first attempt wrote and its answer was lost, the second finds its own bytes and succeeds."""
    inner = Flaky(filled(), ["reset"])
    inner.after = True
    store = Retrying(inner, deadline_s=60, clock=FakeClock())
    info = store.put_if("new", b"mine", version=None)
    assert info == innermost(store).head("new")


def test_put_if_that_lost_the_race() -> None:
    """When somebody else's bytes are there, a retried put_if is still a ChangedError."""
    memory = filled()
    store = Retrying(Flaky(memory, ["reset"]), deadline_s=60, clock=FakeClock())
    with pytest.raises(ChangedError):
        store.put_if("1", b"mine", version=None)
    assert memory.get("1") == b"object 1"


def test_limited_bounds_what_is_in_flight() -> None:
    """Never more than the permitted calls are inside the store at once."""
    inside, most, lock = 0, 0, threading.Lock()
    full = threading.Event()

    class Watching(Counting):
        def get(self, key: str, *, version: str | None = None) -> bytes:
            nonlocal inside, most
            with lock:
                inside += 1
                most = max(most, inside)
                if inside == 3:
                    full.set()
            full.wait(10)
            try:
                return super().get(key, version=version)
            finally:
                with lock:
                    inside -= 1

    store = Limited(Watching(filled()), requests_max=3)
    threads = [threading.Thread(target=store.get, args=("1",)) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 3


def test_limited_bounds_the_rate() -> None:
    """Bytes in both directions take the time that the rate allows."""
    clock = FakeClock()
    memory = Memory()
    memory.put("x", bytes(1000))
    store = Limited(memory, requests_max=8, bytes_per_s_max=1000, clock=clock)
    store.get("x")
    store.get_ranges("x", [ByteRange(0, 500), ByteRange(500, 1000)])
    store.put("y", bytes(2000))
    store.head("x")
    assert clock.now == pytest.approx(1004)
    clock.sleep(100)
    before = clock.now
    store.get("x")
    store.head("x")
    assert clock.now - before == pytest.approx(1)


def test_limits_must_be_positive() -> None:
    """A limit of nothing would wait for ever, so it is refused."""
    with pytest.raises(UsageError):
        Limited(Memory(), requests_max=0)
    with pytest.raises(UsageError):
        Limited(Memory(), requests_max=1, bytes_per_s_max=0)


def test_metered_counts_every_attempt() -> None:
    """Requests, errors and bytes of both directions are counted as they happen."""
    events = Events()
    store = Metered(filled(), events)
    store.get("1")
    store.get_ranges("1", [ByteRange(0, 3), ByteRange(4, 5)])
    store.put("w", bytes(7))
    store.head("w")
    assert len(list(store.list())) == 6
    with pytest.raises(NotFoundError):
        store.get("nothing")
    assert events.totals() == {
        "store.requests": 6, "store.read_bytes": 12, "store.written_bytes": 7, "store.errors": 1,
    }  # fmt: skip


def test_wrappers_travel(tmp_path: Path) -> None:
    """A whole stack is pickled, its recorder included, and works on the other side."""
    events = Events()
    stack = Retrying(Limited(Metered(Local(tmp_path), events), requests_max=2), deadline_s=7, recorder=events)
    other = pickle.loads(pickle.dumps(stack))
    other.put("x", b"1")
    assert repr(other) == repr(stack) and other.get("x") == b"1" and other.url == stack.url
