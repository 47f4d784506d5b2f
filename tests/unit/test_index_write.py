"""Writing an index: same input same bytes, whole or not at all, limits, and parts that join to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from stoker.errors import ShardError, StoreError, UsageError
from stoker.format import FieldPlace, SampleEntry
from stoker.index import Index, IndexWriter, ObjectRef, merge
from stoker.index import write as write_module
from stoker.index.layout import BATCH
from stoker.store import Local, Memory
from stoker.store.wrap import Around, Call, Result
from support_format import entries, small_index

COLUMNS = {"label": str, "number": int}


class Recorded(Around):
    """Remembers what was asked of the store; fails at a put of *broken*."""

    def __init__(self, inner: Memory, broken: str = "") -> None:
        super().__init__(inner)
        self.calls: list[tuple[str, str]] = []
        self._broken = broken

    def around(self, call: Call, work: Callable[[], Result]) -> Result:
        self.calls.append((call.operation, call.key))
        if call.operation == "put" and call.key == self._broken:
            raise StoreError("the store is full")
        return work()


def ref(name: str, size: int = 10_000_000) -> ObjectRef:
    return ObjectRef(name, size, None, expanded_size=size)


def files_of(store: Memory) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def write(store: Memory | Recorded, *, shards: int = 2, count: int = 4) -> None:
    with IndexWriter(store, format="webdataset", columns=COLUMNS) as writer:
        for number in range(shards):
            writer.add_shard(ref(f"s{number}.tar"), entries(number * count, count))
        writer.commit(classes=("l0",), extra={"note": "ü"})


def test_same_samples_same_bytes() -> None:
    """Two writings of one dataset give identical files."""
    first, second = Memory(), Memory()
    write(first)
    write(second)
    assert files_of(first) == files_of(second)
    assert set(files_of(first)) == {"_stoker/manifest.json", "_stoker/index.arrow", "_stoker/shards.arrow"}


def test_the_manifest_comes_last_and_the_old_one_goes_first() -> None:
    """Between the first and the last write there is no manifest, so that nobody reads half an index."""
    store = Recorded(Memory())
    write(store)
    assert store.calls == [
        ("delete", "_stoker/manifest.json"),
        ("put", "_stoker/shards.arrow"),
        ("put", "_stoker/index.arrow"),
        ("put", "_stoker/manifest.json"),
    ]


def test_nothing_appears_before_commit() -> None:
    """A writer that fails before the end leaves the store as it was."""
    store = Memory()
    store.put("shard.tar", b"data")

    def failing() -> Iterator[SampleEntry]:
        yield from entries(0, 3)
        raise ShardError("damaged")

    with pytest.raises(ShardError, match="damaged"), IndexWriter(store, format="webdataset", columns=COLUMNS) as writer:
        writer.add_shard(ref("shard.tar"), failing())
    assert files_of(store) == {"shard.tar": b"data"}


def test_a_failed_put_leaves_no_manifest() -> None:
    """When the store fails in the middle, what is there is no index."""
    inner = Memory()
    with pytest.raises(StoreError, match="full"):
        write(Recorded(inner, broken="_stoker/index.arrow"))
    assert "_stoker/manifest.json" not in files_of(inner)


def test_batches_are_exact(tmp_path: Path) -> None:
    """Every batch but the last holds 65,536 samples, wherever shards end."""
    with IndexWriter(Local(tmp_path), "i", format="webdataset") as writer:
        for number in range(7):
            empty = (SampleEntry(f"{number}/{n}", ()) for n in range(20_000))
            assert writer.add_shard(ref(f"s{number}.tar"), empty) == 20_000
        writer.commit()
    reader = pa.ipc.open_file(pa.memory_map(str(tmp_path / "i" / "index.arrow")))
    assert [reader.get_batch(n).num_rows for n in range(reader.num_record_batches)] == [
        BATCH,
        BATCH,
        140_000 - 2 * BATCH,
    ]
    index = Index(tmp_path / "i")
    assert [index.key(n) for n in (0, 65_535, 65_536, 139_999)] == ["0/0", "3/5535", "3/5536", "6/19999"]


def test_an_index_without_samples(tmp_path: Path) -> None:
    """No shards, or only empty ones, are an index of 0 samples."""
    with IndexWriter(Local(tmp_path), "i", format="webdataset") as writer:
        writer.add_shard(ref("empty.tar"), [])
        writer.commit()
    index = Index(tmp_path / "i")
    assert (len(index), index.fields, list(index.shard_starts)) == (0, (), [0, 0])
    with pytest.raises(IndexError):
        index.key(0)


def test_keeps_codec_row_and_object(tmp_path: Path) -> None:
    """The parts that a format needs come back, each sample with its own."""
    places = [
        (FieldPlace("a", 0, 5, "npy", 3, "x/1"), FieldPlace("b", 0, 9, "", -1, "x/2")),
        (FieldPlace("a", 1, 4, "json", 7, "x/1"),),
    ]
    objects = {name: ObjectRef(name, 9, f"v {name}", expanded_size=9) for name in ("x/1", "x/2")}
    with IndexWriter(Local(tmp_path), "i", format="files", parts=("codec", "row", "object")) as writer:
        samples = [SampleEntry(f"k{n}", fields) for n, fields in enumerate(places)]
        writer.add_shard(ref("x", 18), samples, objects=objects)
        writer.commit()
    index = Index(tmp_path / "i")
    found = index.place(1, "a")
    assert found is not None
    assert (found.object, found.start, found.stop, found.codec, found.row) == (objects["x/1"], 1, 5, "json", 7)
    assert [one.fields for one in index.entries(0, 2)] == places
    assert [one.key for one in index.objects()] == ["x/1", "x/2"]


@pytest.mark.parametrize(
    "place", [FieldPlace("a", 0, 1, codec="npy"), FieldPlace("a", 0, 1, row=2), FieldPlace("a", 0, 1, object="o")]
)
def test_refuses_parts_that_were_not_declared(place: FieldPlace) -> None:
    """What the index would lose silently is wrong usage."""
    with pytest.raises(UsageError, match="not declared"), IndexWriter(Memory(), format="webdataset") as writer:
        writer.add_shard(ref("s.tar"), [SampleEntry("k", (place,))])


def test_refuses_columns_that_were_not_declared() -> None:
    """A sample with an unknown column is wrong usage that names it."""
    with pytest.raises(UsageError, match=r"undeclared columns \['size'\]"), IndexWriter(Memory(), format="x") as writer:
        writer.add_shard(ref("s.tar"), [SampleEntry("k", (), {"size": 3})])


@pytest.mark.parametrize(("kind", "value"), [(int, "x"), (int, 1 << 70), (bool, 3), (float, "1.5")])
def test_a_value_of_another_type_is_an_error(kind: type, value: object) -> None:
    """The error names the column."""
    with (
        pytest.raises(ShardError, match="column 'c'"),
        IndexWriter(Memory(), format="x", columns={"c": kind}) as writer,
    ):
        writer.add_shard(ref("s.tar"), [SampleEntry("k", (), {"c": value})])
        writer.commit()


def test_limits_field_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """More names than 16 bits can number are an error with a hint about dots in keys."""
    monkeypatch.setattr(write_module, "FIELD_NAMES_MAX", 3)
    samples = [SampleEntry(f"k{n}", (FieldPlace(f"{n}.jpg", 0, 1),)) for n in range(4)]
    with pytest.raises(ShardError, match=r"more than 3 different field names") as caught:
        with IndexWriter(Memory(), format="webdataset") as writer:
            writer.add_shard(ref("s.tar"), samples)
    assert "dots in the keys" in str(caught.value.hint)


def test_limits_the_bytes_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that would overflow Arrow's offsets are an error."""
    monkeypatch.setattr(write_module, "KEY_BYTES_PER_BATCH_MAX", 400)
    with pytest.raises(ShardError, match="keys of"), IndexWriter(Memory(), format="webdataset") as writer:
        writer.add_shard(ref("s.tar"), [SampleEntry("k" * 60, ()), SampleEntry("m" * 60, ())])
        writer.commit()


def test_plan_identity_is_names_sizes_counts() -> None:
    """It changes with the format and with a shard's name, size, samples or place, and with nothing else."""

    def plan(
        form: str = "webdataset", shards: tuple[tuple[str, int, int], ...] = (("a", 5, 2), ("b", 5, 3)), v: str = "1"
    ) -> str:
        with IndexWriter(Memory(), format=form, columns=COLUMNS) as writer:
            for name, size, count in shards:
                writer.add_shard(ObjectRef(name, size, v, v * 64, expanded_size=100), entries(0, count))
            return writer.commit(extra={"version": v}).plan

    same = plan()
    assert plan(v="2") == same
    others = [
        plan("files"),
        plan(shards=(("a", 5, 2), ("c", 5, 3))),
        plan(shards=(("a", 5, 2), ("b", 6, 3))),
        plan(shards=(("a", 5, 2), ("b", 5, 4))),
        plan(shards=(("b", 5, 3), ("a", 5, 2))),
        plan(shards=(("a", 5, 2),)),
    ]
    assert len({same, *others}) == 7
    assert same == "0858516a8863fd3367fd8d8fca5be13fa83585f2a5542e011b0dd0ba112686e8"


def test_parts_join_to_the_whole(tmp_path: Path) -> None:
    """One index a shard, joined in order, is byte for byte the index written at once."""
    whole = small_index(tmp_path / "whole", shards=4)
    parts = []
    for number in range(4):
        with IndexWriter(Local(tmp_path), f"part{number}", format="webdataset", columns=COLUMNS) as writer:
            writer.add_shard(whole.shard_object(number), whole.entries(5 * number, 5 * number + 5))
            writer.commit()
        parts.append(Index(tmp_path / f"part{number}"))
    with IndexWriter(Local(tmp_path), "joined", format="webdataset", columns=COLUMNS) as writer:
        merge(parts, writer, classes=("l0", "l1", "l2"))
    for name in ("index.arrow", "shards.arrow", "manifest.json"):
        assert (tmp_path / "joined" / name).read_bytes() == (whole.folder / name).read_bytes()
