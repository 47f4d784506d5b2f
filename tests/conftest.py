"""Fixtures that every kind of test uses."""

from __future__ import annotations

import glob
import os
import signal
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time: a red run is a fact about the change, not about luck. Deadlines are for quiet machines.
settings.register_profile("stoker", derandomize=True, deadline=None)
settings.load_profile("stoker")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # started in the background: what we start shall know Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


CANARIES = os.environ.get(
    "STOKER_TEST_CANARIES", "/tmp/STOKER_PICKLE_EXECUTED:/tmp/STOKER_MDS_ESCAPE.mds:/tmp/evil*"
).split(":")
"""What hostile files make if a reader obeys them (the test data's INDEX.md). The variable serves our test."""


def _canaries() -> list[str]:
    return [path for pattern in CANARIES for path in glob.glob(pattern)]  # noqa: PTH207  # an absolute pattern


def pytest_sessionstart(session: pytest.Session) -> None:
    """What is there already says nothing about this run: name it, run nothing."""
    if not hasattr(session.config, "workerinput") and (left := _canaries()):
        pytest.exit(f"a reader obeyed a hostile file in an earlier run: {', '.join(left)}; remove it", returncode=1)


PASSED: set[str] = set()
"""Tests that this run has seen pass, without their parameters; with workers, in the process that collects reports."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Remember what passed."""
    if report.when == "call" and report.passed:
        PASSED.add(report.nodeid.split("[")[0])


def pains_not_shown(config: pytest.Config) -> list[str]:
    """Tests that tests/pains.toml names and that did not pass, where all tests were to run; else none."""
    options = config.option
    asked = {Path(str(config.invocation_params.dir), argument).resolve() for argument in config.args}
    table = ROOT / "tests" / "pains.toml"
    partly = options.keyword or options.markexpr or options.deselect or options.collectonly or options.ignore
    if partly or not asked <= {ROOT, ROOT / "tests"} or not table.exists():
        return []
    pains = tomllib.loads(table.read_text())
    return sorted({test for pain in pains.values() for test in pain.get("tests", [])} - PASSED)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Nothing that hostile files ask for has happened, whatever the tests looked at; every pain was shown not to be."""
    if hasattr(session.config, "workerinput"):
        return
    faults = [f"a reader obeyed a hostile file: {made}"] if (made := ", ".join(_canaries())) else []
    if session.exitstatus == pytest.ExitCode.OK and (missing := pains_not_shown(session.config)):
        faults.append(f"tests/pains.toml names tests that did not run and pass: {', '.join(missing)}")
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    for fault in faults:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        if reporter is not None:
            reporter.write_line(f"FAILED: {fault}", red=True)


def shared_data_folder() -> Path | None:
    """The folder of real test data: STOKER_TEST_DATA, else ../shared/data; None where there is none."""
    folder = Path(os.environ.get("STOKER_TEST_DATA", ROOT.parent / "shared" / "data"))
    return folder if folder.is_dir() else None


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real data made by others; its absence skips the test, but fails it in CI."""
    folder = shared_data_folder()
    if folder is None:
        if os.environ.get("CI") == "true":
            pytest.fail("real test data is missing: set STOKER_TEST_DATA to its folder")
        pytest.skip("real test data is not here: set STOKER_TEST_DATA to its folder")
    return folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache_home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Built indexes of tests go to a folder of the run, never to the person's own."""
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("xdg-cache"))
