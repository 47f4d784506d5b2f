"""Commands whose output goes nowhere, and numbers that are slips of the hand: one line, no traceback."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import UsageError
from stoker.tune import Limits, Target, tune
from stoker.units import parse_bytes, parse_duration, parse_rate
from support_dataset import write_shards

PLAN = ["plan", "--batch", "1", "--sample-bytes", "1KB", "--step-time", "1s"]


def stoker(words: list[str], where: Path | None = None, *, redirected: str = "") -> subprocess.CompletedProcess[str]:
    """The command in a shell of its own."""
    line = f'"$0" -m stoker.cli.main "$@" {redirected}'
    return subprocess.run(["sh", "-c", line, sys.executable, *words], capture_output=True, text=True, cwd=where)


@pytest.mark.parametrize("words", [PLAN, [*PLAN, "--json"], ["formats"], ["--help"], ["plan", "--help"], ["--version"]])
def test_a_full_disk_under_the_output(words: list[str]) -> None:
    """`stoker … > /dev/full` says so in one line and fails: who pipes it on must not take half an answer for one."""
    done = stoker(words, redirected="> /dev/full")
    assert done.returncode == 1
    assert done.stderr.startswith("stoker: error: [Errno 28] No space left on device")
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


def test_a_reader_that_leaves_and_no_output_at_all() -> None:
    """`| head -1` and `>&-` are no errors."""
    assert stoker(["formats"], redirected="| head -1").stderr == ""
    assert stoker(PLAN, redirected=">&-").returncode == 0


def test_a_plot_that_cannot_be_written_is_said_before_the_trials(tmp_path: Path) -> None:
    """A quarter of an hour of trials must not end in a traceback."""
    done = stoker(["tune", "some:loader", "--plot", str(tmp_path / "none" / "x.svg")])
    assert done.returncode == 2 and "none/x.svg cannot be written" in done.stderr


def test_a_plot_that_fails_costs_no_result(tmp_path: Path) -> None:
    """What was found is printed all the same."""
    data = write_shards(tmp_path / "data", 24)
    (tmp_path / "x.svg").symlink_to("/dev/full")
    words = ["tune", str(data), "--seconds", "0.1", "--budget", "10s", "--batch", "4", "--image-size", "16", "--json"]
    done = stoker([*words, "--plot", "x.svg"], tmp_path)
    assert done.returncode == 1 and "No space left" in done.stderr and "Traceback" not in done.stderr
    assert json.loads(done.stdout)["chosen"]


def test_no_time_for_a_trial() -> None:
    """A budget that is over before the first trial, or none at all, is told as such."""
    with pytest.raises(UsageError, match=r"budget_s \(--budget\) must be above 0, found 0"):
        tune(Target("collections:Counter"), limits=Limits(budget_s=0))
    done = stoker(["tune", "support_tune_paced:paced", "--budget", "0.001ms"], Path(__file__).parent.parent)
    assert done.returncode == 1 and "was over before the first trial\nhint: --budget gives more" in done.stderr


@pytest.mark.parametrize("parse", [parse_bytes, parse_duration, parse_rate])
def test_numbers_beyond_all_sense(parse: object) -> None:
    """Four hundred nines are no size, duration or rate, and the message does not repeat them all."""
    with pytest.raises(UsageError, match="not a ") as caught:
        parse("9" * 400)  # type: ignore[operator]  # one of several parsers
    assert len(str(caught.value)) < 250
