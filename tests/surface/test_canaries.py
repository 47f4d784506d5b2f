"""A test run fails when a hostile file was obeyed, whatever the tests say."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parent.parent / "conftest.py"


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_run_that_woke_a_canary_fails(workers: list[str], tmp_path: Path) -> None:
    """It passes without; fails when a test made it; the next one names what was left and runs nothing."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(CONFTEST, folder)
    environ = {**os.environ, "STOKER_TEST_CANARIES": f"{tmp_path}/evil*"}

    def run(body: str) -> subprocess.CompletedProcess[str]:
        (folder / "test_one.py").write_text(f"from pathlib import Path\ndef test_one():\n    {body}\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, folder]
        return subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert run("pass").returncode == 0
    woken = run(f"Path({str(tmp_path / 'evil1')!r}).mkdir()")
    assert woken.returncode == 1 and "1 passed" in woken.stdout
    assert f"FAILED: a reader obeyed a hostile file: {tmp_path}/evil1" in woken.stdout
    again = run("pass")
    assert again.returncode == 1 and "1 passed" not in again.stdout
    assert f"in an earlier run: {tmp_path}/evil1" in again.stdout + again.stderr
