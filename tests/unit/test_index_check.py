"""Looking at everything: packed shards by their digests, the files of the index by theirs."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

import stoker
from stoker.cli.main import main
from stoker.errors import ChangedError, ShardError
from stoker.index import Index, check_index, check_objects, check_published
from stoker.pack import pack
from stoker.store import Local
from support_pack import make_photos


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A pack of three shards."""
    pack(make_photos(tmp_path / "in", count=9), tmp_path / "out", shards=3)
    return tmp_path / "out"


def flip(path: Path, at: int) -> None:
    """Change one byte of a file."""
    raw = bytearray(path.read_bytes())
    raw[at] ^= 0x40
    path.write_bytes(raw)


def check(folder: Path) -> int:
    """The exit code of `stoker index --check`."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        return main(["index", str(folder), "--check"])
    finally:
        signal.signal(signal.SIGTERM, handler)


def test_a_copy_of_a_pack_is_as_good(packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Other times and inodes are no change: digests decide, and progress tells every object."""
    shutil.copytree(packed, tmp_path / "copy", copy_function=shutil.copyfile)
    assert len(stoker.open(tmp_path / "copy", check="all")) == 9
    told: list[int] = []
    store = Local(tmp_path / "copy")
    check_objects(store, Index.load(store), progress=lambda done, total, count_bytes: told.append(done))
    assert told == [1, 2, 3] and check(tmp_path / "copy") == 0


def test_a_shard_of_equal_size_with_other_bytes_is_found(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """check="all" names the shard and both digests, and so does the command, for whatever replaced it."""
    flip(packed / "shard_00001.tar", 700)
    assert len(stoker.open(packed)) == 9
    with pytest.raises(ChangedError, match=r"shard_00001\.tar: digest [0-9a-f]{64}, packed with [0-9a-f]{64}"):
        stoker.open(packed, check="all")
    assert check(packed) == 1
    assert "error  not-as-indexed  shard_00001.tar" in capsys.readouterr().out
    (packed / "shard_00002.tar").unlink()
    codes = [(finding.code, finding.where) for finding in check_published(Local(packed))]
    assert codes == [("not-as-indexed", "shard_00001.tar"), ("not-as-indexed", "shard_00002.tar")]


@pytest.mark.parametrize("name", ["index.arrow", "shards.arrow"])
def test_a_flipped_byte_in_the_index_is_found(packed: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every file of the index is compared with the manifest's digest when all is checked."""
    path = packed / "_stoker" / name
    whole = path.read_bytes()
    for at in (len(whole) // 3, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole)
        flip(path, at)
        with pytest.raises(ShardError, match=name):
            stoker.open(packed, check="all")
        assert check(packed) == 1 and "damaged-index" in capsys.readouterr().out
    path.write_bytes(whole)
    check_index(Index.load(Local(packed)))


def test_without_an_index_there_is_nothing_to_compare(tmp_path: Path) -> None:
    """A folder that nobody indexed has no findings of this kind."""
    make_photos(tmp_path / "in", count=3)
    assert list(check_published(Local(tmp_path / "in"))) == []
