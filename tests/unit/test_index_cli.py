"""`stoker index`: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from stoker.cli.main import main
from stoker.index import open_index
from stoker.store import Local
from support_format import fill


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Local:
    """A dataset of three shards; indexes of this test are kept under its own folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    store = Local(tmp_path / "data")
    fill(store)
    return store


def run(*arguments: str | Path) -> int:
    """The exit code of a command line, run in this process."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return main(["index", *map(str, arguments)])
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_builds_and_describes(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """Without options the index is built on this node and described; the dataset stays as it is."""
    assert run(store.root) == 0
    text = capsys.readouterr().out
    for words in ("webdataset", "15", "3 (61.4 kB)", "jpg, cls", str(open_index(store).folder)):
        assert words in text
    assert [info.key for info in store.list()] == [f"shard_{n:05d}.tar" for n in range(3)]


def test_json_is_one_object(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json stdout is one object with the whole truth."""
    assert run(store.root, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {
        "url": store.url,
        "index": str(open_index(store).folder),
        "format": "webdataset",
        "samples": 15,
        "shards": 3,
        "shard_bytes": 61440,
        "fields": {"jpg": 15, "cls": 15},
        "columns": {},
        "classes": None,
        "findings": [],
    }


def test_publish_writes_beside_the_data(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """--publish puts the index into _stoker/, where every open finds it, and may be repeated."""
    for _ in range(2):
        assert run(store.root, "--publish") == 0
        assert "_stoker" in capsys.readouterr().out
        assert open_index(store).folder == store.root / "_stoker"
    names = {info.key for info in store.list("_stoker/")}
    assert names == {"_stoker/manifest.json", "_stoker/index.arrow", "_stoker/shards.arrow"}


def test_check_finds_damage(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """--check exits with 0 on whole shards, with 1 and a line for each finding on damaged ones, and writes nothing."""
    assert run(store.root, "--check") == 0
    assert capsys.readouterr().out == "15 samples; 0 errors, 0 warnings, 0 notices\n"
    store.put("shard_00001.tar", store.get("shard_00001.tar")[:600])
    store.put("README", b"text")
    before = [info.key for info in store.list()]
    assert run(store.root, "--check") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error   damaged-shard  shard_00001.tar@0  shard is cut: 000005.jpg needs 140 bytes")
    assert lines[1].startswith("notice  not-a-shard    README")
    assert lines[2] == "10 samples; 1 errors, 0 warnings, 1 notices"
    assert run(store.root, "--check", "--json") == 1
    told = json.loads(capsys.readouterr().out)
    assert told["counts"] == {"error": 1, "warning": 0, "notice": 1}
    assert told["findings"][0]["where"] == "shard_00001.tar@0"
    assert [info.key for info in store.list()] == before


def test_refuses_damage_and_keeps_it_when_asked(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged shard is exit code 1 with what, where and what to do on stderr; --keep-damaged indexes the rest."""
    store.put("shard_00001.tar", store.get("shard_00001.tar")[:600])
    for option in ((), ("--publish",)):
        assert run(store.root, *option) == 1
        told = capsys.readouterr()
        assert told.out == ""
        assert "shard_00001.tar@0: shard is cut" in told.err
        assert "hint: `stoker index URL --check`" in told.err
    assert not (store.root / "_stoker").exists()
    assert run(store.root, "--keep-damaged", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 10


def test_wrong_usage_is_2(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """Options that exclude each other, unknown formats and labels, a missing URL."""
    for options in (("--publish", "--check"), ("--format", "zip"), ("--format", "files", "--label", "x")):
        assert run(store.root, *options) == 2
        assert "error" in capsys.readouterr().err
    assert run() == 2


def test_nothing_there_is_1(store: Local, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder without data is an error that says so."""
    (tmp_path / "nowhere").mkdir()
    assert run(tmp_path / "nowhere") == 1
    assert "no data found" in capsys.readouterr().err


def test_some_shards_of_a_folder(store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """A brace pattern chooses shards."""
    assert run(f"{store.root}/shard_{{00000..00001}}.tar", "--json") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 10


def test_names_cannot_move_the_cursor(tmp_path: Path, store: Local, capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences and newlines in names are shown, not sent to the terminal."""
    photos = Local(tmp_path / "photos")
    photos.put("a\x1b[31m/1.jpg", b"photo")
    photos.put("a\x1b[31m/b\nc.txt", b"stranger")
    for options in ((), ("--check",)):
        assert run(photos.root, *options) == 0
        text = capsys.readouterr().out
        assert "\x1b" not in text
        assert "a\\x1b[31m/b\\nc.txt" in text
