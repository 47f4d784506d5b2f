"""Reading an index: places, names, columns, objects; in other processes; and nothing believed that cannot be."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from stoker.errors import ChangedError, NotFoundError, ShardError
from stoker.format import FieldPlace, SampleEntry
from stoker.index import Index, IndexWriter, ObjectRef, Place, ShardEntry
from stoker.store import Local, Memory
from support_format import entries, small_index

SIZE = 10_000_000


def images(folder: Path) -> Index:
    """Samples with image fields of several kinds."""
    kinds = [("jpg", "cls"), ("png", "cls"), ("jpeg", "jpg"), ("txt",), ("image", "jpg"), ("webp", "png")]
    samples = [
        SampleEntry(f"k{n}", tuple(FieldPlace(name, 100 * n + at, 1) for at, name in enumerate(names)))
        for n, names in enumerate(kinds)
    ]
    with IndexWriter(Local(folder), "i", format="webdataset") as writer:
        writer.add_shard(ObjectRef("s.tar", SIZE, None, expanded_size=SIZE), samples)
        writer.commit()
    return Index(folder / "i")


def test_says_what_the_dataset_is(tmp_path: Path) -> None:
    """Counts, names and shards are those that were written."""
    index = small_index(tmp_path)
    assert (len(index), index.format, index.fields, index.columns) == (
        15,
        "webdataset",
        ("jpg", "cls"),
        ("label", "number"),
    )
    assert index.classes == ("l0", "l1", "l2")
    assert list(index.shard_starts) == [0, 5, 10, 15]
    assert index.shard_starts.dtype == np.int64
    assert index.shard(1) == ShardEntry("shard_00001.tar", SIZE, 5, "version 1", None)
    assert [index.shard_of(n) for n in (0, 4, 5, 14)] == [0, 0, 1, 2]
    assert len(index.plan_identity()) == 64


def test_place_is_the_bytes_of_a_field(tmp_path: Path) -> None:
    """Object, start and stop of each sample's field; None where the sample lacks it."""
    index = small_index(tmp_path)
    ref = ObjectRef("shard_00001.tar", SIZE, "version 1", None, "", SIZE)
    assert index.place(7, "cls") == Place(ref, 77, 80)
    assert index.place(6, "cls") is None
    assert index.place(7, "no such field") is None
    assert index.key(7) == "sample-7"
    assert index.field_names(7) == ("jpg", "cls")
    assert index.field_names(6) == ("jpg",)


@pytest.mark.parametrize(
    ("field", "starts"),
    [
        ("image", [0, 100, 201, None, 400, 501]),
        ("jpg", [0, None, 201, None, 401, None]),
        ("png;jpg", [0, 100, 201, None, 401, 501]),
        ("webp; png ;txt", [None, 100, None, 300, None, 500]),
        ("txt;image", [0, 100, 201, 300, 400, 501]),
        ("JPG", [None] * 6),
    ],
)
def test_alternatives(tmp_path: Path, field: str, starts: list[int | None]) -> None:
    """`image` finds whichever image field there is, a list of names the first that there is."""
    index = images(tmp_path)
    assert [place and place.start for place in (index.place(n, field) for n in range(6))] == starts


def test_columns(tmp_path: Path) -> None:
    """Values of metadata by sample and whole, with their types; an unknown column is a KeyError."""
    index = small_index(tmp_path)
    assert [index.value(4, "label"), index.value(4, "number")] == ["l1", 4]
    assert index.column("number").to_pylist() == list(range(15))
    assert index.column("label").to_pylist()[:4] == ["l0", "l1", "l2", "l0"]
    for ask in (lambda: index.value(0, "x"), lambda: index.column("x")):
        with pytest.raises(KeyError):
            ask()


@pytest.mark.parametrize("sample", [-1, 15, 65_536, 1 << 40])
def test_samples_outside_are_index_errors(tmp_path: Path, sample: int) -> None:
    """There is no counting from the end here, and no wrong batch."""
    index = small_index(tmp_path)
    for ask in (index.key, index.field_names, lambda n: index.place(n, "jpg"), lambda n: index.value(n, "label")):
        with pytest.raises(IndexError, match=f"sample {sample} of a dataset with 15"):
            ask(sample)
    with pytest.raises(IndexError):
        index.shard(3)


def test_objects_come_once_in_order_of_first_use(tmp_path: Path) -> None:
    """All of them in shard order, or those that the given samples need, in the order in which they are needed."""
    index = small_index(tmp_path, shards=5)
    assert [one.key for one in index.objects()] == [f"shard_{n:05d}.tar" for n in range(5)]
    wanted = np.array([12, 3, 14, 24, 0, 13], np.int64)
    assert [one.key for one in index.objects(wanted)] == ["shard_00002.tar", "shard_00000.tar", "shard_00004.tar"]
    assert list(index.objects(np.zeros(0, np.int64))) == []


def test_objects_of_raw_files(tmp_path: Path) -> None:
    """Where fields are objects, the samples' files come in the order of their use."""
    refs = {f"f/{n}.jpg": ObjectRef(f"f/{n}.jpg", 9, f"v{n}", expanded_size=9) for n in range(4)}
    samples = [SampleEntry(f"f/{n}", (FieldPlace("jpg", 0, 9, object=f"f/{n}.jpg"),)) for n in range(4)]
    with IndexWriter(Local(tmp_path), "i", format="files", parts=("object",)) as writer:
        writer.add_shard(ObjectRef("f", 36, None), samples, objects=refs)
        writer.commit()
    index = Index(tmp_path / "i")
    assert list(index.objects()) == list(refs.values())
    assert [one.key for one in index.objects(np.array([3, 1, 3], np.int64))] == ["f/3.jpg", "f/1.jpg"]
    place = index.place(2, "jpg")
    assert place is not None
    assert place.object == refs["f/2.jpg"]


def test_many_shards_and_batches_agree(tmp_path: Path) -> None:
    """Over several batches every sample's shard, key and place are right."""
    with IndexWriter(Local(tmp_path), "i", format="webdataset", columns={"label": str, "number": int}) as writer:
        for shard in range(50):
            ref = ObjectRef(f"{shard}.tar", SIZE, None, expanded_size=SIZE)
            writer.add_shard(ref, entries(shard * 3_000, 3_000 if shard % 7 else 0))
        writer.commit()
    index = Index(tmp_path / "i")
    rng = np.random.default_rng(3)
    for sample in rng.integers(0, len(index), 500).tolist():
        number = index.value(sample, "number")
        place = index.place(sample, "jpg")
        assert place is not None
        assert (index.key(sample), place.start, place.object.key) == (
            f"sample-{number}",
            10 * number,
            f"{number // 3_000}.tar",
        )


def test_threads_share_an_index(tmp_path: Path) -> None:
    """Many threads that touch batches for the first time at once get the same answers."""
    with IndexWriter(Local(tmp_path), "i", format="webdataset", columns={"label": str, "number": int}) as writer:
        writer.add_shard(ObjectRef("s.tar", SIZE, None, expanded_size=SIZE), entries(0, 200_000))
        writer.commit()
    index = Index(tmp_path / "i")
    samples = np.random.default_rng(5).integers(0, 200_000, (8, 400)).tolist()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda part: [index.key(n) for n in part], samples))
    assert found == [[f"sample-{n}" for n in part] for part in samples]


def test_a_pickled_index_is_where_it_lies(tmp_path: Path) -> None:
    """A pickle is small, and another process maps the same files."""
    index = small_index(tmp_path)
    data = pickle.dumps(index)
    assert len(data) < 600
    script = (
        "import pickle, sys; index = pickle.load(sys.stdin.buffer); "
        "print(len(index), index.key(7), index.place(7, 'cls').start)"
    )
    done = subprocess.run([sys.executable, "-c", script], input=data, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode() == "15 sample-7 77\n"


def test_a_pickled_index_notices_that_it_was_replaced(tmp_path: Path) -> None:
    """An index that was written anew meanwhile is not mixed up with the old one."""
    data = pickle.dumps(small_index(tmp_path))
    small_index(tmp_path, shards=4)
    with pytest.raises(ChangedError, match="written anew"):
        len(pickle.loads(data))


def test_no_index_is_not_found(tmp_path: Path) -> None:
    """A store without a manifest has no index, local or not."""
    for store in (Local(tmp_path), Memory()):
        with pytest.raises(NotFoundError):
            Index.load(store, place=tmp_path / "place")
    with pytest.raises(NotFoundError, match="no index here"):
        Index(tmp_path)


def test_a_remote_index_is_fetched_once(tmp_path: Path) -> None:
    """From a store without paths the files come here, verified, and are found here the next time."""
    index = small_index(tmp_path)
    store = Memory()
    for name in ("manifest.json", "index.arrow", "shards.arrow"):
        store.put(f"_stoker/{name}", (index.folder / name).read_bytes())
    fetched = Index.load(store, place=tmp_path / "place")
    assert list(fetched.entries(0, 15)) == list(index.entries(0, 15))
    for name in ("index.arrow", "shards.arrow"):
        store.delete(f"_stoker/{name}")
    assert Index.load(store, place=tmp_path / "place").folder == fetched.folder


def test_a_remote_index_is_verified(tmp_path: Path) -> None:
    """A file that is not the manifest's is refused, and nothing of it stays as an index."""
    index = small_index(tmp_path)
    store = Memory()
    for name in ("manifest.json", "index.arrow", "shards.arrow"):
        data = bytearray((index.folder / name).read_bytes())
        if name == "index.arrow":
            data[len(data) // 2] ^= 1
        store.put(f"_stoker/{name}", data)
    with pytest.raises(ShardError, match=r"index\.arrow: digest .*, the manifest says"):
        Index.load(store, place=tmp_path / "place")
    assert not list((tmp_path / "place").rglob("manifest.json"))


def rewrite(index: Index, **changes: object) -> None:
    path = index.folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "index version 2, this stoker reads version 1"),
        ({"samples": -1}, "damaged manifest"),
        ({"samples": "15"}, "damaged manifest"),
        ({"samples": 14}, "has 15 rows .* expected 14 rows"),
        ({"samples": 70_000}, "found 1 batches of samples"),
        ({"shards": 2}, "found .* 3 shards"),
        ({"fields": {"jpg": 15}}, "a name numbered 1"),
        ({"fields": [1]}, "damaged manifest"),
        ({"files": {}}, "unexpected files"),
        ({"files": {"../evil": {"size": 1, "digest": ""}}}, "unexpected files"),
        (
            {"files": {"index.arrow": {"size": 5, "digest": ""}, "shards.arrow": {"size": 5, "digest": ""}}},
            "the manifest says 5",
        ),
        ({"columns": {"label": "str"}}, "batch 0 has"),
        ({"columns": {"label": "int", "number": "int"}}, "batch 0 has"),
        ({"surprise": 1}, "damaged manifest"),
    ],
)
def test_a_manifest_that_does_not_fit_is_an_error(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    """Nothing that the manifest says is believed before it is compared."""
    index = small_index(tmp_path)
    rewrite(index, **changes)
    with pytest.raises(ShardError, match=words):
        Index(index.folder).place(0, "jpg")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b"\xff", b'{"version": 1}', b"[" * 100_000])
def test_bytes_that_are_no_manifest(tmp_path: Path, data: bytes) -> None:
    """Whatever lies there instead of a manifest is a clear error."""
    index = small_index(tmp_path)
    (index.folder / "manifest.json").write_bytes(data)
    with pytest.raises(ShardError, match=r"damaged manifest|index version"):
        Index(index.folder)


def test_a_missing_or_cut_file_is_an_error(tmp_path: Path) -> None:
    """Files must be there in the size that the manifest names."""
    index = small_index(tmp_path)
    path = index.folder / "index.arrow"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ShardError, match=r"bytes, the manifest says"):
        Index(index.folder)
    path.unlink()
    with pytest.raises(ShardError, match="missing"):
        Index(index.folder)


def test_a_place_outside_its_object_is_an_error(tmp_path: Path) -> None:
    """A range that leaves the shard is refused before anybody reads it."""
    with IndexWriter(Local(tmp_path), "i", format="webdataset") as writer:
        samples = [
            SampleEntry(f"k{n}", (FieldPlace("jpg", *place),)) for n, place in enumerate([(90, 11), (-1, 5), (5, -1)])
        ]
        writer.add_shard(ObjectRef("s.tar", 100, None, expanded_size=100), samples)
        writer.commit()
    for sample in range(3):
        with pytest.raises(ShardError, match=f"sample {sample}: jpg lies at bytes"):
            Index(tmp_path / "i").place(sample, "jpg")
