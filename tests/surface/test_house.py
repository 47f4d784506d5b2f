"""The house rules can fail: a planted forbidden import, an overlong function, and a stale document are found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the sources with their tools."""
    for name in ("src", "tools", "tests", "pyproject.toml"):
        source = ROOT / name
        target = tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        else:
            shutil.copy(source, target)
    return tmp_path


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """What `make check` runs, over the copy."""
    program = Path(sys.executable).with_name("lint-imports")
    environ = {**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"}
    return subprocess.run([program, "--no-cache"], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def test_the_imports_are_as_drawn(copy: Path) -> None:
    """Every contract is kept."""
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("file", "line", "contract"),
    [
        ("store/local.py", "import stoker.loader", "bytes flow one way"),
        ("order/split.py", "import time", "deciding code touches no clock"),
        ("cache/ledger.py", "import stoker.pack", "bytes flow one way"),
        ("index/read.py", "import torch", "torch only where tensors are made"),
        ("loader/engine.py", "import stoker.testing", "no room imports testing"),
        ("tune/search.py", "import stoker.torch", "no room imports testing"),
        ("plan/formulas.py", "import time", "deciding code touches no clock"),
        ("observe/observe.py", "import torch", "torch only where tensors are made"),
    ],
)
def test_a_forbidden_import_is_found(copy: Path, file: str, line: str, contract: str) -> None:
    """One planted line breaks the contract that it should."""
    path = copy / "src" / "stoker" / file
    path.write_text(path.read_text() + f"\n{line}\n")
    done = lint_imports(copy)
    assert done.returncode != 0
    assert contract in done.stdout
    assert "BROKEN" in done.stdout


def test_a_new_folder_must_be_given_its_place(copy: Path) -> None:
    """`utils` is found."""
    (copy / "src" / "stoker" / "utils").mkdir()
    (copy / "src" / "stoker" / "utils" / "__init__.py").write_text("")
    assert lint_imports(copy).returncode != 0


def sizes(folder: Path) -> subprocess.CompletedProcess[str]:
    """The size report over the copy."""
    return subprocess.run([sys.executable, folder / "tools" / "sizes.py"], capture_output=True, text=True, check=False)


def test_the_sizes_are_within_budget(copy: Path) -> None:
    """As `make check` says."""
    done = sizes(copy)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("def long() -> None:\n" + "    print()\n" * 61, "function too long"),
        ("def bare(x):\n    return x\n", "not annotated"),
        ("x = 1\n" * 401, "file too long"),
        ("def hidden() -> None:\n    from stoker.store import Local\n\n    print(Local)\n", "hidden import"),
    ],
)
def test_a_broken_budget_is_found(copy: Path, text: str, fault: str) -> None:
    """The report names the place and fails."""
    (copy / "src" / "stoker" / "order" / "planted.py").write_text(text)
    done = sizes(copy)
    assert done.returncode == 1
    assert fault in done.stderr
    assert "planted.py" in done.stderr
