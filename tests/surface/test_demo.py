"""`stoker demo` as a person runs it: the last line, the figures, what it leaves behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from stoker.cli.demo_data import divide
from stoker.dataset import open as open_dataset
from support_dataset import jpeg

COMMAND = (sys.executable, "-m", "stoker.cli.main", "demo")
LAST = re.compile(r"stoker demo: (\d+) images/s, data wait (\d+\.\d) %, accuracy (n/a|\d\.\d+)")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """100 photos in two folders, one of them broken, with a text file beside."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(100):
        target = folder / ("cat", "dog")[number % 2] / f"{number:03d}.jpg"
        target.parent.mkdir(exist_ok=True)
        target.write_bytes(jpeg(number, width=120, height=90))
    (folder / "cat" / "broken.jpg").write_bytes(b"<html>404</html>")
    (folder / "notes.txt").write_text("not a photo")
    return folder


def demo(box: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it with a temporary folder and a state folder of its own."""
    environ = {**os.environ, "TMPDIR": str(box), "XDG_STATE_HOME": str(box / "state")}
    return subprocess.run([*COMMAND, *options], env=environ, capture_output=True, text=True, check=False, timeout=150)


def left(box: Path) -> list[str]:
    """What lies in the temporary folder, apart from the run logs."""
    return [path.name for path in box.iterdir() if path.name != "state"]


def test_the_users_own_photos(photos: Path, tmp_path: Path) -> None:
    """Exit 0, the last line as promised, a run log that is there, and nothing else left."""
    done = demo(tmp_path, "--data", str(photos), "--epochs", "2", "--batch", "16")
    assert done.returncode == 0, done.stderr
    match = LAST.fullmatch(done.stdout.splitlines()[-1])
    assert match is not None, done.stdout
    assert match[3] != "n/a"
    (log,) = (tmp_path / "state" / "stoker").glob("*.jsonl")
    assert {json.loads(line)["event"] for line in log.read_text().splitlines()} == {"batch"}
    assert left(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("part", ["dali-cc0", "imagenet-sample", "sign-digits", ""])
def test_real_photo_sets(shared_data: Path, tmp_path: Path, part: str) -> None:
    """Each of the real sets, and all of them together, with whatever lies beside the photos."""
    done = demo(tmp_path, "--data", str(shared_data / "images" / part), "--epochs", "1")
    assert done.returncode == 0, done.stderr
    assert LAST.fullmatch(done.stdout.splitlines()[-1]) is not None
    assert left(tmp_path) == []


def test_without_labels_there_is_no_accuracy(photos: Path, tmp_path: Path) -> None:
    """`--label none`, as JSON."""
    done = demo(tmp_path, "--data", str(photos), "--label", "none", "--epochs", "1", "--batch", "16", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["accuracy"] is None
    assert figures["cache_hit_share"] == 1
    assert figures["batches"] == 6


@pytest.mark.slow
def test_the_default_demo_learns(tmp_path: Path) -> None:
    """At least 0.9 on held-out crops after two epochs, and the data keeps up with training."""
    done = demo(tmp_path, "--epochs", "2")
    assert done.returncode == 0, done.stderr
    match = LAST.fullmatch(done.stdout.splitlines()[-1])
    assert match is not None
    assert float(match[3]) >= 0.9
    assert left(tmp_path) == []


@pytest.mark.slow
def test_labels_that_mean_nothing_cannot_be_learned(tmp_path: Path) -> None:
    """With shuffled labels the accuracy is that of guessing: the demo measures, it does not pretend."""
    done = demo(tmp_path, "--epochs", "2", "--shuffle-labels")
    assert done.returncode == 0, done.stderr
    match = LAST.fullmatch(done.stdout.splitlines()[-1])
    assert match is not None
    assert float(match[3]) <= 0.6


def running(photos: Path, box: Path) -> subprocess.Popen[str]:
    """A demo in the middle of training."""
    environ = {**os.environ, "TMPDIR": str(box), "XDG_STATE_HOME": str(box / "state")}
    process = subprocess.Popen(
        [*COMMAND, "--data", str(photos), "--epochs", "10000", "--batch", "16"],
        env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    until = time.monotonic() + 90
    while not [p for p in (box / "state" / "stoker").glob("*.jsonl") if p.stat().st_size]:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return process


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_demo_stops_all_it_started(photos: Path, tmp_path: Path, number: int, code: int) -> None:
    """Ctrl-C and SIGTERM in the middle of training: gateway and feeder end, the temporary folder goes."""
    process = running(photos, tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    assert any("stoker.loader.feeder" in " ".join(child.cmdline()) for child in children)
    process.send_signal(number)
    _, words = process.communicate(timeout=30)
    assert process.returncode == code, words
    assert "Traceback" not in words
    _, alive = psutil.wait_procs(children, 5)
    assert alive == []
    assert left(tmp_path) == []


def test_a_killed_demo_takes_its_server_along_and_the_next_one_cleans_up(photos: Path, tmp_path: Path) -> None:
    """kill -9: gateway and feeder end by themselves; the temporary folder goes when a demo runs again."""
    process = running(photos, tmp_path)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.communicate()
    _, alive = psutil.wait_procs(children, 10)
    assert alive == []
    assert len(left(tmp_path)) == 1
    assert demo(tmp_path, "--data", str(photos), "--epochs", "1", "--batch", "16").returncode == 0
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--data", "/nowhere/at/all"], 1, "/nowhere/at/all"),
        (["--model", "transformer"], 2, "cnn or none"),
        (["--rate", "5"], 2, "--model none"),
        (["--epochs", "0"], 2, "epochs"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    """A clear error, no traceback, nothing started."""
    done = demo(tmp_path, *options)
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert left(tmp_path) == []


def test_every_fifth_of_a_class_is_held_out(tmp_path: Path) -> None:
    """Classes of fewer than five samples only train."""
    for name, count in (("many", 12), ("few", 4)):
        for number in range(count):
            target = tmp_path / "p" / name / f"{number}.jpg"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(jpeg(number))
    division = divide(open_dataset(tmp_path / "p"))
    assert len(division.held_out) == 2
    assert len(division.train) == 14
    assert not division.train & division.held_out
    assert all(key.startswith("many/") for key in division.held_out)
    assert Path(tempfile.gettempdir()).is_dir()
