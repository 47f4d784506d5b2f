"""Building an index: formats recognised, damage refused or kept, order and bounds, findings told."""

from __future__ import annotations

from pathlib import Path

import pytest

from stoker.errors import ShardError, StoreError, UsageError
from stoker.format import FORMATS
from stoker.index import Index, Options, build, check_dataset, source_of
from stoker.index import scan as scan_module
from stoker.index.build import list_data, recognise
from stoker.index.scan import scan_shard
from stoker.store import Local, Memory
from stoker.store.base import ByteRange
from support_format import fill, photos, shard


def built(store: Memory | Local, tmp_path: Path, **options: object) -> Index:
    chosen = Options(**options)
    build(source_of(store, chosen, workers=2), Local(tmp_path), "built", damaged=chosen.damaged)
    return Index(tmp_path / "built")


def codes(index: Index) -> list[tuple[str, str]]:
    return [(one["code"], one["where"]) for one in index.manifest.extra["findings"]]


def test_indexes_shards_in_order(tmp_path: Path) -> None:
    """Every sample of every shard, in the order of the shards' names; places lead to the bytes."""
    store = Memory()
    fill(store, shards=7, count=4)
    index = built(store, tmp_path)
    assert [index.key(n) for n in range(28)] == [f"{n:06d}" for n in range(28)]
    assert [index.shard(n).name for n in range(7)] == [f"shard_{n:05d}.tar" for n in range(7)]
    wanted = photos(0, 28)
    for sample in range(28):
        for field in ("jpg", "cls"):
            place = index.place(sample, field)
            assert place is not None
            data = store.get_ranges(
                place.object.key, [ByteRange(place.start, place.stop)], version=place.object.version
            )
            assert data[0] == wanted[index.key(sample)][field]


@pytest.mark.parametrize("compression", ["gzip", "zstd"])
def test_indexes_compressed_shards(tmp_path: Path, compression: str) -> None:
    """Offsets count in the expanded bytes; stored and expanded sizes are both kept."""
    store = Memory()
    plain = shard(photos(0, 9))
    store.put("misnamed.tar", shard(photos(0, 9), compression=compression))
    index = built(store, tmp_path)
    place = index.place(3, "jpg")
    assert place is not None
    assert (place.object.compression, place.object.expanded_size) == (compression, len(plain))
    assert place.object.size == store.head("misnamed.tar").size < len(plain)
    assert plain[place.start : place.stop] == photos(3, 1)["000003"]["jpg"]


def test_recognises_by_names() -> None:
    """Names of shards or of images tell the format; stoker's own folder and hidden files tell nothing."""
    store = Memory()
    store.put("_stoker/cache.tar", b"x")
    store.put(".hidden/a.png", b"x")
    store.put("a/README", b"x")
    with pytest.raises(ShardError, match="neither shards nor images among 2 objects"):
        recognise(store, list_data(store))
    store.put("a/b.JPEG", b"x")
    assert recognise(store, list_data(store)) == "files"
    store.put("a/c.tgz", b"x")
    with pytest.raises(UsageError, match=r"both shards \(as a/c.tgz\) and images \(as a/b.JPEG\)"):
        recognise(store, list_data(store))
    store.delete("a/b.JPEG")
    assert recognise(store, list_data(store)) == "webdataset"


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_recognises_by_content(tmp_path: Path, compression: str) -> None:
    """Objects without a telling name are shards if their heads are."""
    store = Memory()
    store.put("part-0001", shard(photos(0, 3), compression=compression))
    assert len(built(store, tmp_path)) == 3


def test_a_named_format_settles_a_mixture(tmp_path: Path) -> None:
    """Told the format, the build takes what belongs to it and counts the rest."""
    store = Memory()
    fill(store, shards=1)
    store.put("cat.jpg", b"photo")
    shards = built(store, tmp_path, format="webdataset")
    assert (len(shards), codes(shards)) == (5, [("not-a-shard", "cat.jpg")])
    files = built(store, tmp_path, format="files")
    assert (len(files), codes(files)) == (1, [("not-an-image", "shard_00000.tar")])


def test_refuses_unknown_formats_and_misplaced_manifests() -> None:
    """Wrong usage is said before anything is read."""
    with pytest.raises(UsageError, match="unknown format 'zip'"):
        Options(format="zip")
    with pytest.raises(UsageError, match="a manifest goes with raw files"):
        source_of(Memory(), Options(format="webdataset", manifest={}))


def damage(store: Memory) -> None:
    fill(store)
    store.put("shard_00001.tar", store.get("shard_00001.tar")[:3000])


def test_refuses_damaged_shards(tmp_path: Path) -> None:
    """One damaged shard stops the build; the error names it, and nothing is written."""
    store = Memory()
    damage(store)
    with pytest.raises(ShardError, match=r"^shard_00001\.tar@\d+: shard is cut"):
        built(store, tmp_path)
    assert not (tmp_path / "built").exists()


def test_keeps_what_is_whole_when_asked(tmp_path: Path) -> None:
    """The samples that are whole are indexed, and the finding stays in the manifest."""
    store = Memory()
    damage(store)
    index = built(store, tmp_path, damaged="keep")
    assert 10 <= len(index) < 15
    assert [code for code, _ in codes(index)] == ["damaged-shard"]


def test_check_writes_nothing_and_tells_all() -> None:
    """A check counts samples and lists findings of every shard, worst first."""
    store = Memory()
    damage(store)
    store.put("shard_00002.tar", store.get("shard_00002.tar") + b"junk")
    before = [info.key for info in store.list()]
    checked = check_dataset(source_of(store, Options(), workers=2))
    assert [one.severity for one in checked.findings] == ["error", "warning"]
    assert 10 <= checked.samples < 15
    assert [info.key for info in store.list()] == before


def test_no_samples_is_an_error(tmp_path: Path) -> None:
    """A dataset without samples is not opened as an empty one."""
    store = Memory()
    store.put("empty.tar", shard({}))
    with pytest.raises(ShardError, match=r"the dataset has no samples: empty\.tar: a tar without members"):
        built(store, tmp_path)
    assert [one.code for one in check_dataset(source_of(store, Options())).findings] == ["no-samples", "empty-shard"]


def test_raw_files_are_objects(tmp_path: Path) -> None:
    """Each field of a raw sample is an object with size and version; folders are the shards."""
    folder = tmp_path / "photos"
    for name in ("cat/1.jpg", "cat/1.txt", "dog/2.JPEG", "dog/2.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    store = Local(folder)
    index = built(store, tmp_path)
    assert (index.format, index.classes, index.columns) == ("files", ("cat", "dog"), ("label", "cls"))
    assert [(index.shard(n).name, index.shard(n).samples, index.shard(n).size) for n in (0, 1)] == [
        ("cat", 1, 18),
        ("dog", 1, 20),
    ]
    assert [index.value(1, name) for name in ("label", "cls")] == ["dog", 1]
    place = index.place(1, "json")
    assert place is not None
    assert (place.object.key, place.start, place.stop) == ("dog/2.json", 0, 10)
    assert place.object.version == store.head("dog/2.json").version
    assert [one.key for one in index.objects()] == ["cat/1.jpg", "cat/1.txt", "dog/2.JPEG", "dog/2.json"]


def test_progress_is_told(tmp_path: Path) -> None:
    """Items done, items in all and bytes done, once a shard."""
    store = Memory()
    fill(store, shards=3)
    calls: list[tuple[int, int, int]] = []
    source = source_of(store, Options(), workers=2, progress=lambda *call: calls.append(call))
    build(source, Local(tmp_path))
    sizes = [info.size for info in store.list()]
    assert calls == [(1, 3, sizes[0]), (2, 3, sum(sizes[:2])), (3, 3, sum(sizes))]


def test_large_fields_are_skipped_over(tmp_path: Path) -> None:
    """Indexing a shard of large members reads its headers, not its data."""
    calls: list[int] = []

    class Counting(Local):
        def get_ranges(self, key: str, ranges: object, *, version: str | None = None) -> list[bytes]:
            data = super().get_ranges(key, ranges, version=version)
            calls.append(sum(map(len, data)))
            return data

    store = Counting(tmp_path)
    store.put("big.tar", shard({f"k{n}": {"bin": bytes(3_000_000)} for n in range(8)}))
    scan_shard(store, store.head("big.tar"), FORMATS["webdataset"])
    assert sum(calls) < 200_000


def test_a_disk_that_is_full_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When an expanded shard does not fit, the error is about the disk, not about the shard."""
    store = Memory()
    store.put("s.tar.gz", shard(photos(0, 9), compression="gzip"))

    def full(*arguments: object, **named: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(scan_module, "expand", full)
    with pytest.raises(StoreError, match=r"s\.tar\.gz: cannot be expanded into .*No space left"):
        scan_shard(store, store.head("s.tar.gz"), FORMATS["webdataset"], scratch=tmp_path)


def test_a_bomb_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard that expands beyond the limit is damaged, not a full disk."""
    monkeypatch.setattr(scan_module, "EXPANDED_BYTES_MAX", 5_000)
    store = Memory()
    store.put("s.tar.gz", shard(photos(0, 50), compression="gzip"))
    scanned = scan_shard(store, store.head("s.tar.gz"), FORMATS["webdataset"])
    assert "more than the limit of 5000 bytes" in scanned.scan.errors[0].message
