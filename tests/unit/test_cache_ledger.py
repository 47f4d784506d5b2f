"""The ledger: sums that hold under many writers, and a file that can be lost."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from stoker.cache.ledger import Ledger, Totals


def fill(ledger: Ledger, count: int = 3) -> None:
    """Admit objects "n0", "n1", … of 10 bytes."""
    for number in range(count):
        assert ledger.reserve("me", f"n{number}", 10, lambda held, promised: "") == ""
        ledger.publish(f"n{number}", 10, url="u", key=f"k{number}", digest=f"d{number}")


def test_sums_follow_what_comes_and_goes(tmp_path: Path) -> None:
    """Promises count as used until they are kept or taken back; entries add up; strangers change nothing."""
    ledger = Ledger(tmp_path / "l")
    seen: list[tuple[int, int]] = []
    fill(ledger)
    ledger.publish("n0", 10, url="u", key="k0", digest="other")
    assert ledger.totals() == Totals(30, 3, 0, 0) and ledger.digest("n0") == "d0" and ledger.digest("x") is None
    assert ledger.reserve("me", "a", 7, lambda *used: seen.append(used) or "") == ""
    assert ledger.reserve("me", "b", 7, lambda *used: f"{used} used") == "(30, 7) used"
    assert seen == [(30, 0)] and ledger.reserved_bytes() == 7
    ledger.release("a")
    ledger.release("never")
    ledger.forget("n1")
    ledger.forget("never")
    assert ledger.totals() == Totals(20, 2, 0, 0) and ledger.reserved_bytes() == 0
    ledger.close()


def test_sessions_end(tmp_path: Path) -> None:
    """Ending a session drops its leases and promises, enters what had arrived, and leaves the others'."""
    ledger = Ledger(tmp_path / "l")
    fill(ledger)
    ledger.note_reads("me", ["n0", "n1", "n0"], hits=5, misses=2)
    ledger.note_reads("you", ["n0"], hits=1, misses=0)
    ledger.reserve("me", "p", 5, lambda held, promised: "")
    ledger.reserve("you", "q", 6, lambda held, promised: "")
    assert ledger.leases() == {"me": 2, "you": 1} and ledger.sessions() == {"me", "you"}
    ledger.reserve("me", "arrived", 8, lambda held, promised: "")
    ledger.end_session("me", {"arrived": 9}.get)
    assert ledger.leases() == {"you": 1} and ledger.reserved_bytes() == 6
    assert ledger.totals() == Totals(39, 4, 6, 2)
    ledger.close()


def test_a_failed_change_leaves_no_half(tmp_path: Path) -> None:
    """When the decision raises, nothing was promised and the ledger goes on working."""
    ledger = Ledger(tmp_path / "l")

    def broken(held: int, promised: int) -> str:
        raise OSError("statvfs failed")

    with pytest.raises(OSError, match="statvfs"):
        ledger.reserve("me", "a", 1, broken)
    fill(ledger, 1)
    assert ledger.reserved_bytes() == 0 and ledger.totals().entries == 1
    ledger.close()


def test_many_writers_never_pass_the_limit(tmp_path: Path) -> None:
    """Eight connections that promise at once never promise more than the limit, and no one is locked out."""
    granted: list[int] = []

    def work(number: int) -> None:
        ledger = Ledger(tmp_path / "l")
        for turn in range(25):
            name = f"{number}-{turn}"
            if not ledger.reserve("s", name, 10, lambda *used: "full" if sum(used) + 10 > 1000 else ""):
                ledger.publish(name, 10, url="", key="", digest=None)
                granted.append(10)
        ledger.close()

    Ledger(tmp_path / "l").close()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger = Ledger(tmp_path / "l")
    assert sum(granted) == 1000 == ledger.totals().bytes
    ledger.close()


def test_a_ledger_of_another_version_is_refused(tmp_path: Path) -> None:
    """A ledger that a later stoker wrote is not read as if it were ours."""
    db = sqlite3.connect(tmp_path / "l")
    db.execute("PRAGMA user_version = 99")
    db.close()
    with pytest.raises(sqlite3.DatabaseError, match="version 99"):
        Ledger(tmp_path / "l")
