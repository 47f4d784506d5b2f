"""What users of other loaders suffer from is shown not to happen: the table is whole, and its tests exist and ran."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
PAINS = tomllib.loads((TESTS / "pains.toml").read_text())
NUMBERS = [*range(1, 23), *range(63, 70)]
REASONS_MAX = 4


def test_every_pain_has_a_test_or_a_reason() -> None:
    """All numbers, each with what it is and either tests or why it cannot happen, which at most four may say."""
    assert sorted(map(int, PAINS)) == NUMBERS
    for number, pain in PAINS.items():
        assert pain.keys() in ({"pain", "tests"}, {"pain", "never"}), number
        assert len(pain["pain"]) > 10, number
        assert pain.get("tests") or len(pain.get("never", "")) > 40, number
    assert sum("never" in pain for pain in PAINS.values()) <= REASONS_MAX


def test_every_test_of_the_table_exists() -> None:
    """pytest collects each by the name that the table gives."""
    wanted = {test for pain in PAINS.values() for test in pain.get("tests", [])}
    files = sorted({test.split("::")[0] for test in wanted})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", *files]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout
    found = {line.split("[")[0] for line in done.stdout.splitlines() if re.match(r"tests/\S+\.py::", line)}
    assert sorted(wanted - found) == []


@pytest.mark.parametrize("workers", [[], ["-n", "2"]], ids=["alone", "workers"])
def test_a_whole_run_without_one_of_them_fails(workers: list[str], tmp_path: Path) -> None:
    """Skipped or renamed, it is named; a part of the tests is no whole run, and says nothing."""
    folder = tmp_path / "tests"
    folder.mkdir()
    shutil.copy(TESTS / "conftest.py", folder)
    (folder / "pains.toml").write_text('[1]\npain = "x"\ntests = ["tests/test_one.py::test_one"]\n')
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    environ = {**os.environ, "STOKER_TEST_CANARIES": f"{tmp_path}/evil*"}

    def run(body: str, *arguments: str) -> tuple[int, str]:
        (folder / "test_one.py").write_text(f"import pytest\n@pytest.mark.parametrize('n', [1, 2])\n{body}\n")
        (folder / "test_other.py").write_text("def test_other():\n    pass\n")
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *workers, *arguments]
        done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert run("def test_one(n):\n    pass", "tests")[0] == 0
    skipped = "def test_one(n):\n    pytest.skip('not here')"
    status, said = run(skipped, "tests")
    assert status == 1
    assert "FAILED: tests/pains.toml names tests that did not run and pass: tests/test_one.py::test_one" in said
    if not workers:
        assert run("def test_renamed(n):\n    pass", "tests")[0] == 1
        assert run(skipped, "tests/test_other.py")[0] == 0
        assert run(skipped, "tests", "-k", "other")[0] == 0
