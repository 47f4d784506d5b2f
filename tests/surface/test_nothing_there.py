"""What commands and `stoker.open` say of a path that is not there, or is a file where a folder should be."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import stoker
from stoker.cli.main import main
from stoker.errors import NotFoundError
from stoker.pack import pack


@pytest.fixture(autouse=True)
def handler() -> Iterator[None]:
    """`main` answers SIGTERM; give it back afterwards."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(
    "command", [["pack", "{}", "out"], ["index", "{}"], ["index", "{}", "--check"], ["demo", "--data", "{}"]]
)
def test_a_missing_folder_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """Every command that reads a folder says that there is none, with its path, and exits with 1."""
    monkeypatch.chdir(tmp_path)
    assert main([word.format("nonexist") for word in command]) == 1
    assert f"stoker: error: {tmp_path}/nonexist: there is no such folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("command", [["pack", "{}", "out"], ["index", "{}"], ["demo", "--data", "{}"]])
def test_a_file_is_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    """A single picture is told to be a file, where a folder, shards or an archive were expected."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.jpg").write_bytes(b"x")
    assert main([word.format("one.jpg") for word in command]) == 1
    assert f"{tmp_path}/one.jpg is a file, expected a folder, shards or an archive" in capsys.readouterr().err


def test_from_python_too(tmp_path: Path) -> None:
    """`stoker.open` and `pack` raise NotFoundError for both."""
    (tmp_path / "one.jpg").write_bytes(b"x")
    for name in ("nonexist", "one.jpg"):
        with pytest.raises(NotFoundError, match=name):
            stoker.open(tmp_path / name)
        with pytest.raises(NotFoundError, match=name):
            pack(tmp_path / name, tmp_path / "out")
