"""A short run of the fuzzer, and the inputs that it once found."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOUND = sorted((ROOT / "tests" / "hostile" / "found").glob("*.bin"))


def fuzz(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """The fuzzer as `make fuzz` starts it."""
    return subprocess.run(
        [sys.executable, ROOT / "tests" / "fuzz.py", *arguments],
        env={**os.environ, **environ}, capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_short_run_finds_nothing(tmp_path: Path) -> None:
    """Every parser gets some inputs, and gives a result or an error of ours for each."""
    done = fuzz(FUZZ_S=os.environ.get("FUZZ_S", "5"), FUZZ_FOUND=str(tmp_path / "found"))
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].endswith(" 0 faults")
    assert all(int(line.split()[1].replace(",", "")) > 0 for line in lines[:-1])


def test_a_fault_is_found_and_saved(tmp_path: Path) -> None:
    """A parser that hangs, one that takes all memory, one that dies, one that raises: each is counted."""
    plant = tmp_path / "fuzz_parsers.py"
    plant.write_text((ROOT / "tests" / "fuzz_parsers.py").read_text() + PLANTED)
    (tmp_path / "fuzz.py").write_text((ROOT / "tests" / "fuzz.py").read_text())
    done = subprocess.run(
        [sys.executable, tmp_path / "fuzz.py"], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests"), "FUZZ_S": "1.6", "FUZZ_FOUND": str(tmp_path / "found")},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    saved = {path.name.partition("-")[0] for path in (tmp_path / "found").iterdir()}
    assert saved == {"hangs", "eats", "dies", "raises"}
    assert "did not end in time" in done.stdout and "died of -11" in done.stdout and "MemoryError" in done.stdout


PLANTED = """
import ctypes, time
corpus = lambda: [b"x"]
PARSERS = {
    "hangs": Parser(corpus, lambda data: time.sleep(60), limit_s=0.3),
    "eats": Parser(corpus, lambda data: bytearray(8 << 30)),
    "dies": Parser(corpus, lambda data: ctypes.string_at(0)),
    "raises": Parser(corpus, lambda data: {}["no"]),
}
"""


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_what_was_found_once_is_refused(path: Path) -> None:
    """An input that killed a parser, or got past its errors, gets a result or an error of ours."""
    done = fuzz("replay", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in ("ok", "refused")
