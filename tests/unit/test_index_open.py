"""Opening: the index beside the data, or one built once per node; stale ones noticed; datasets never written to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stoker.errors import AccessError, ChangedError, NotFoundError, ShardError, StoreError
from stoker.index import Options, build, check_objects, open_index, source_of
from stoker.store import Local, Memory
from support_format import fill, photos, shard


def listing(store: Local) -> list[tuple[str, int, str | None]]:
    return [(info.key, info.size, info.version) for info in store.list()]


def written_at(index_folder: Path) -> int:
    return (index_folder / "manifest.json").stat().st_mtime_ns


@pytest.fixture
def store(tmp_path: Path) -> Local:
    """A dataset of three shards."""
    store = Local(tmp_path / "data")
    fill(store)
    return store


def test_builds_once_and_writes_nothing_into_the_dataset(store: Local, tmp_path: Path) -> None:
    """The second open finds the index of the first; the dataset stays as it was."""
    before = listing(store)
    first = open_index(store, place=tmp_path / "place")
    stamp = written_at(first.folder)
    second = open_index(store, place=tmp_path / "place")
    assert (len(first), first.folder, written_at(second.folder)) == (15, second.folder, stamp)
    assert listing(store) == before


def test_keeps_indexes_in_the_users_cache(store: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a place the index goes to $XDG_CACHE_HOME, else to ~/.cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert open_index(store).folder.parent == tmp_path / "xdg" / "stoker" / "index"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_index(store).folder.parent == tmp_path / "home" / ".cache" / "stoker" / "index"


@pytest.mark.parametrize("change", ["more", "fewer", "longer", "rewritten"])
def test_a_changed_listing_is_indexed_again(store: Local, tmp_path: Path, change: str) -> None:
    """A shard that came, went, grew or was written anew makes the old index stale."""
    old = open_index(store, place=tmp_path / "place")
    stamp = written_at(old.folder)
    if change == "more":
        store.put("shard_00009.tar", shard(photos(90, 2)))
    elif change == "fewer":
        store.delete("shard_00000.tar")
    elif change == "longer":
        store.put("shard_00000.tar", shard(photos(0, 30)))
    else:
        path = store.path("shard_00000.tar")
        os.utime(path, ns=(1, 1))
    index = open_index(store, place=tmp_path / "place")
    assert len(index) == {"more": 17, "fewer": 10, "longer": 40, "rewritten": 15}[change]
    assert written_at(index.folder) != stamp


def test_the_index_beside_the_data_wins(store: Local, tmp_path: Path) -> None:
    """A published index is used as it is, local or remote, and nothing is built."""
    remote = Memory()
    fill(remote)
    for one in (store, remote):
        build(source_of(one, Options()), one)
        index = open_index(one, place=tmp_path / "place")
        assert len(index) == 15
    assert index.folder.parent == tmp_path / "place" / "fetched"
    assert [path.name for path in (tmp_path / "place").iterdir()] == ["fetched"]
    assert open_index(store).folder == store.root / "_stoker"


def test_a_damaged_published_index_is_an_error(store: Local, tmp_path: Path) -> None:
    """It is not silently replaced by one of ours."""
    store.put("_stoker/manifest.json", b"{}")
    with pytest.raises(ShardError, match="damaged manifest"):
        open_index(store, place=tmp_path / "place")


def test_a_damaged_index_of_ours_is_built_again(store: Local, tmp_path: Path) -> None:
    """What this node keeps for itself it can make again."""
    index = open_index(store, place=tmp_path / "place")
    for name in ("manifest.json", "index.arrow"):
        (index.folder / name).write_bytes(b"{}")
        assert len(open_index(store, place=tmp_path / "place")) == 15


def test_other_options_are_another_index(tmp_path: Path) -> None:
    """Label rules and formats that differ do not share an index, and a published one answers only its own question."""
    store = Local(tmp_path / "photos")
    for name in ("a/x_1.jpg", "a/y_2.jpg"):
        store.put(name, b"photo")
    place = tmp_path / "place"
    assert open_index(store, place=place).classes == ("a",)
    assert open_index(store, place=place, label="prefix:_").classes == ("x", "y")
    assert open_index(store, place=place, label="none").classes is None
    build(source_of(store, Options(label="prefix:_")), store, extra={"label": "prefix:_"})
    assert open_index(store, place=place).folder == store.root / "_stoker"
    assert open_index(store, place=place, label="prefix:_").folder == store.root / "_stoker"
    assert open_index(store, place=place, label="parent").classes == ("a",)


def test_named_shards_in_their_order(store: Local, tmp_path: Path) -> None:
    """Keys and patterns choose the shards, in the order given; a name that nothing bears is not found."""
    place = tmp_path / "place"
    index = open_index(store, place=place, shards=["shard_00002.tar", "shard_00000.tar"])
    assert [index.shard(n).name for n in (0, 1)] == ["shard_00002.tar", "shard_00000.tar"]
    assert len(open_index(store, place=place, shards=["shard_0000[12].tar"])) == 10
    assert len(open_index(store, place=place, shards=["*.tar", "shard_00001.tar"])) == 15
    for missing in ("nothing-*.tar", "nothing.tar"):
        with pytest.raises(NotFoundError, match="nothing"):
            open_index(store, place=place, shards=["shard_00000.tar", missing])


def test_check_all_looks_at_every_object(store: Local, tmp_path: Path) -> None:
    """A shard that changed after a published index was written is an error naming both values; untouched ones pass."""
    build(source_of(store, Options()), store)
    index = open_index(store, check="all")
    check_objects(store, index, workers=2)
    path = store.path("shard_00001.tar")
    size = path.stat().st_size
    os.utime(path, ns=(5, 5))
    with pytest.raises(ChangedError, match=r"shard_00001\.tar: version 5-\d+, indexed with \d+-\d+"):
        open_index(store, check="all")
    path.write_bytes(b"short")
    with pytest.raises(ChangedError, match=f"shard_00001.tar: 5 bytes, indexed with {size}"):
        open_index(store, check="all")
    assert len(open_index(store)) == 15
    path.unlink()
    with pytest.raises(NotFoundError):
        open_index(store, check="all")


OPEN = """
import sys
from pathlib import Path
from stoker.index import open_index
from stoker.store import Local
index = open_index(Local(sys.argv[1]), place=Path(sys.argv[2]), progress=lambda *call: print("scanned"))
print(len(index), (index.folder / "manifest.json").stat().st_ino)
"""


def test_many_processes_build_once(store: Local, tmp_path: Path) -> None:
    """Of several processes that open at once, one builds and the others wait for it."""
    command = [sys.executable, "-c", OPEN, str(store.root), str(tmp_path / "place")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    outputs = [process.communicate(timeout=100)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum(lines.count("scanned") for lines in outputs) == 3
    assert len({lines[-1] for lines in outputs}) == 1


KILLED = """
import os, signal, sys
from pathlib import Path
from stoker.index import open_index
from stoker.store import Local
def die(done, total, count_bytes):
    os.kill(os.getpid(), signal.SIGKILL)
open_index(Local(sys.argv[1]), place=Path(sys.argv[2]), progress=die)
"""


def test_a_killed_builder_leaves_nothing_in_the_way(store: Local, tmp_path: Path) -> None:
    """After kill -9 in the middle of a build the next open builds, and no temporary file is left."""
    place = tmp_path / "place"
    command = [sys.executable, "-c", KILLED, str(store.root), str(place)]
    assert subprocess.run(command, timeout=100, check=False).returncode == -9
    assert [path.suffix for path in place.iterdir()] == [".lock"]
    assert len(open_index(store, place=place)) == 15
    assert sorted(path.name for path in place.rglob("*") if path.is_file() and path.suffix != ".lock") == [
        "index.arrow",
        "manifest.json",
        "shards.arrow",
    ]


def test_a_place_that_cannot_be_written(store: Local, tmp_path: Path) -> None:
    """The error says where and what to do; the dataset is not blamed."""
    (tmp_path / "file").write_text("no folder")
    with pytest.raises((AccessError, StoreError), match="cannot keep"):
        open_index(store, place=tmp_path / "file" / "place")


def test_a_read_only_place_still_serves_what_it_holds(store: Local, tmp_path: Path) -> None:
    """An index that is there already needs no lock and no write."""
    place = tmp_path / "place"
    index = open_index(store, place=place)
    for lock in place.glob("*.lock"):
        lock.unlink()
    assert len(open_index(store, place=place)) == len(index)
    assert not list(place.glob("*.lock"))
