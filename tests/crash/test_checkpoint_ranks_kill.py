"""Death of one rank while all of a job save: what is called complete is, and another job goes on from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

POINTS = int(os.environ.get("STOKER_CRASH_POINTS", "5"))
TESTS = Path(__file__).resolve().parents[1]
EXHAUSTIVE = 50
"""So many points mean all."""


@pytest.mark.slow
@pytest.mark.timeout(1800)  # every operation: 46 deaths, two jobs each
def test_a_rank_dies_at_any_operation_of_a_commit(tmp_path: Path) -> None:
    """kill -9 of the coordinator just before and just after its marker, and at a seeded choice of its other operations
    (every one in `make crash`), on a shared disk and with a disk each; of the leader of the other disk, too. The other
    rank ends in good order and never says committed without a marker; all ranks of the next job resume from one step,
    to the bit; nothing is left behind."""
    points = 0 if POINTS >= EXHAUSTIVE else POINTS
    command = [sys.executable, str(TESTS / "support_checkpoint_deaths.py"), "deaths", str(tmp_path), "7", str(points)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    tried = json.loads(done.stdout.splitlines()[-1])
    assert set(tried) == {"shared, rank 0", "apart, rank 0", "apart, rank 1"}
    for died, total in tried.values():
        assert total >= 13 and died == total if points == 0 else died >= 1


@pytest.mark.timeout(600)
@pytest.mark.skipif(POINTS < EXHAUSTIVE, reason="torch hangs here until it is given up: only in `make crash`")
def test_background_saves_of_torch_that_overlap(tmp_path: Path) -> None:
    """Saves by torch's background process that are begun before the last one ended get another's description, an error,
    or no answer at all. (What stoker does: tests/unit, test_saves_that_overlap.)"""
    command = [sys.executable, str(TESTS / "support_checkpoint_stock.py"), "overlapping", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert len(told) == 6 and any(one != "right" for one in told), told
