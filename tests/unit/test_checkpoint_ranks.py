"""Several ranks (gloo): sharded state on any number of ranks, and ranks that die, stop, or are somewhere else."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from support_checkpoint import complete, seen, told_by
from support_dataset import write_shards
from support_disk import small_disk
from support_store import until

TESTS = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


def launch(box: Path, world: int, task: str, *more: str, peers_s: float = 20) -> subprocess.Popen[str]:
    """A job under torchrun."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]
    command += [str(TESTS / "support_checkpoint_ranks.py"), task, str(box), *more]
    environment = {**os.environ, "PEERS_S": str(peers_s), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def result(process: subprocess.Popen[str]) -> Any:
    """What rank 0 told."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err[-4000:]
    return json.loads(out.splitlines()[-1])


def test_sharded_state_on_any_number_of_ranks(tmp_path: Path) -> None:
    """FSDP2, 4 → 2 → 3 ranks: weights and optimizer states are those that were saved, to the bit; per-rank values are
    dropped when the number changes."""
    before = result(launch(tmp_path, 4, "fsdp"))
    assert before["resumed"] is None and before["step"] == 3
    for world in (2, 3):
        after = result(launch(tmp_path, world, "fsdp"))
        assert after["resumed"] == before["saved"] and after["own"] is None
        before = after
    assert after["step"] == 9 and complete(tmp_path / "ck") == [3, 6, 9]
    assert after["note"] == {"world": 4}  # a value in the state is restored like the rest, and saved again


def lines(box: Path, rank: int) -> dict[int, list[int]]:
    """The sample numbers of each step that a rank has logged; of a redone step the last."""
    raw = (box / f"log.{rank}").read_text().split("\n")[:-1]
    return {line["step"]: line["ids"] for line in map(json.loads, raw)}


def test_a_killed_job_goes_on_with_fewer_ranks(tmp_path: Path) -> None:
    """Two ranks are killed in mid-epoch, one goes on: the sample numbers of both, put together, are those of a run that
    nobody killed, each exactly once an epoch."""
    data = write_shards(tmp_path / "data", 96)
    script = [str(TESTS / "support_checkpoint_train.py"), str(data)]
    subprocess.run(
        [sys.executable, *script, str(tmp_path / "whole"), str(tmp_path / "whole.log")], check=True, timeout=150
    )
    whole = json.loads("[" + (tmp_path / "whole.log.0").read_text().strip().replace("\n", ",") + "]")
    expected = [number for line in whole for number in line["ids"]]
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    job = subprocess.Popen([*run, str(tmp_path / "ck"), str(tmp_path / "log"), "--steps", "10"])
    until(lambda: len(complete(tmp_path / "ck")) > 0 or job.poll() is not None, seconds=120)
    children = psutil.Process(job.pid).children(recursive=True) if job.poll() is None else []
    for one in [job, *children]:
        with contextlib.suppress(psutil.NoSuchProcess):  # some end by themselves when their trainer is gone
            one.kill()
    job.wait()
    step = complete(tmp_path / "ck")[-1]
    consumed = [n for s in range(1, step + 1) for rank in (0, 1) for n in lines(tmp_path, rank)[s]]
    for rank in (0, 1):
        (tmp_path / f"log.{rank}").rename(tmp_path / f"two.{rank}")
    subprocess.run([sys.executable, *script, str(tmp_path / "ck"), str(tmp_path / "log")], check=True, timeout=150)
    rest = lines(tmp_path, 0)
    consumed += [number for s in sorted(rest) for number in rest[s]]
    assert consumed == expected and sorted(expected) == sorted(2 * list(range(96)))


def test_disks_that_are_not_shared(tmp_path: Path) -> None:
    """Two ranks with a disk each: each node uploads its part, the remote has it all, and a job of one rank on a new
    disk resumes from there."""
    before = result(launch(tmp_path, 2, "fsdp", "--apart", "--remote"))
    near = [{path.name for path in (tmp_path / f"node{n}").glob("step-*/data/*")} for n in (0, 1)]
    assert near[0] and near[1] and not near[0] & near[1]
    assert complete(tmp_path / "far") == complete(tmp_path / "node0") == complete(tmp_path / "node1") == [3]
    after = result(launch(tmp_path, 2, "fsdp", "--apart", "--remote"))
    assert after["resumed"] == before["saved"]
    for n in (0, 1):
        (tmp_path / f"node{n}").rename(tmp_path / f"lost{n}")
    assert result(launch(tmp_path, 3, "fsdp", "--remote"))["resumed"] == after["saved"]


def test_values_of_one_rank_stay_together(tmp_path: Path) -> None:
    """Where ranks differ in values that are no tensors, rank 0's are saved, all of them, and `per_rank` keeps each."""
    told = result(launch(tmp_path, 2, "leaves"))
    assert told == [[{"position": 0, "rng": 0}, [0, [0]], {"rng": rank}] for rank in (0, 1)]


def test_ranks_at_different_steps(tmp_path: Path) -> None:
    """Nothing is saved, every rank is told; the next save works."""
    state, words = result(launch(tmp_path, 2, "steps"))
    assert state == "skipped" and "different steps: [5, 6]" in words
    assert complete(tmp_path / "ck") == [9]


def pid_of(box: Path, rank: int, what: str) -> int:
    """Process id that a rank wrote down, once it has saved something."""
    until(lambda: (box / f"{rank}.step").exists(), seconds=90)
    return int((box / f"{rank}.{what}").read_text())


def test_a_writer_of_another_rank_is_slow_and_then_killed(tmp_path: Path) -> None:
    """The others wait for the slow one; of the killed one the save is resubmitted; every save is committed."""
    job = launch(tmp_path, 2, "trouble")
    writer = pid_of(tmp_path, 1, "writer")
    until((tmp_path / "0.step").exists, seconds=90)
    os.kill(writer, signal.SIGSTOP)
    reached = (tmp_path / "0.step").read_text()
    time.sleep(1)  # that long the disk of rank 1 takes nothing
    assert int((tmp_path / "0.step").read_text()) <= int(reached) + 1
    os.kill(writer, signal.SIGCONT)
    until(lambda: int((tmp_path / "0.step").read_text()) > int(reached) + 1, seconds=90)
    os.kill(writer, signal.SIGKILL)
    (tmp_path / "harm").touch()
    outcomes = result(job)
    assert set(outcomes) == {"committed"} and len(outcomes) >= 3


def test_a_stopped_rank_fails_a_save_and_comes_back(tmp_path: Path) -> None:
    """SIGSTOP of a rank for longer than peers wait: that save is given up, everyone trains on, and when the rank wakes
    up saves work again: no group is broken for good."""
    job = launch(tmp_path, 2, "trouble", peers_s=1.5)
    victim = pid_of(tmp_path, 1, "pid")
    step = tmp_path / "0.step"
    until(step.exists, seconds=90)
    os.kill(victim, signal.SIGSTOP)
    try:
        reached = int(step.read_text())
        until(lambda: int(step.read_text()) > reached + 2, seconds=90)
    finally:
        os.kill(victim, signal.SIGCONT)
        (tmp_path / "harm").touch()
    outcomes = result(job)
    assert {"failed", "skipped"} & set(outcomes) and outcomes[-3:] == ["committed"] * 3
    assert all(one.manifest is not None for one in seen(tmp_path / "ck"))


def test_a_killed_rank_ends_the_job_and_leaves_whole_checkpoints(tmp_path: Path) -> None:
    """kill -9 of a rank in mid-run: what is complete is right, and the next job goes on and sweeps the rest."""
    job = launch(tmp_path, 2, "trouble", peers_s=2)
    os.kill(pid_of(tmp_path, 1, "pid"), signal.SIGKILL)
    job.communicate(timeout=150)
    assert job.returncode != 0
    done = complete(tmp_path / "ck")
    assert done
    assert result(launch(tmp_path, 3, "steps")) == [
        "skipped",
        "step 5: skipped: the ranks are at different steps: [5, 6, 7]",
    ]
    assert complete(tmp_path / "ck")[-1] == 9
    assert all(one.manifest is not None for one in seen(tmp_path / "ck"))


def forked(task: str, box: Path) -> Any:
    """What a task of forked ranks told."""
    return told_by("support_checkpoint_deaths.py", task, box)


def test_up_to_eight_ranks_whose_clocks_differ(tmp_path: Path) -> None:
    """FSDP2, 4 → 2 → 3 → 8 ranks, clocks days apart, and a year back from one job to the next: each resumes from the
    newest, by number and not by time, to the bit."""
    assert forked("worlds", tmp_path) == [3, 6, 9, 12]
    created_s = [one.manifest.created_s for one in seen(tmp_path / "ck") if one.manifest is not None]
    assert created_s[2] < created_s[0] < created_s[3] < created_s[1]


def test_a_disk_of_one_rank_that_dies(tmp_path: Path) -> None:
    """I/O errors at one of two nodes: every rank's save fails and names that rank, training goes on, no checkpoint is
    called complete; with a new disk both resume from the last one that was, which the remote has."""
    with small_disk(tmp_path, 40) as mount:
        mount("rw")
        outcomes, failures, resumed, first, second = forked("dying", tmp_path)
    assert len(outcomes) == failures == 2 and all("rank 1: " in words for words in outcomes)
    assert resumed == 1 and first == [1, 4] and second[-1] == 4


def test_a_rank_that_cannot_save_holds_up_nobody(tmp_path: Path) -> None:
    """Its copy fails, or a value of its, or its state: the others hear it at once where they had agreed, within the
    deadline where they had not; and the next save of all works."""
    one, two, three, four = zip(*result(launch(tmp_path, 2, "alone", peers_s=5)), strict=True)
    assert [state for state, *_ in one] == ["failed", "raised"] and "no state at this rank" in one[0][1]
    assert [state for state, *_ in two] == ["raised", "failed"] and "foreign code" in two[1][1]
    assert all(spent_s < 4 for _, _, spent_s in (*one, *two))
    assert "committed" not in [state for state, *_ in three]
    assert [state for state, *_ in four] == ["committed"] * 2, four
    assert [attempt.attempt.step for attempt in seen(tmp_path / "ck")] == [4]
