"""Tokens: windows over documents out of every format, exact, resumable, with all that is left over counted."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.dataset import TokenDataset, tokens
from stoker.dataset.token_plan import Layout, WindowPlan
from stoker.errors import SampleError, UsageError
from support_rows import arrays_bytes, documents, npy, write_hdf5, write_tar
from support_tokens import COUNTS, WRITERS, as_bytes, as_npy, as_table


def reference(found: Sequence[np.ndarray], length: int, eos: int | None) -> list[tuple[np.ndarray, np.ndarray]]:
    """What concat must give, made the simple way."""
    ended = [document if eos is None else np.append(document, eos) for document in found if len(document)]
    stream = np.concatenate(ended)
    owner = np.repeat(np.arange(len(ended)), [len(one) for one in ended])
    windows = []
    for start in range(0, len(stream) - length + 1, length):
        part = owner[start : start + length]
        windows.append((stream[start : start + length], np.unique(part, return_inverse=True)[1]))
    return windows


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("eos", [None, 2])
def test_windows_of_every_format(tmp_path: Path, kind: str, eos: int | None) -> None:
    """Documents follow each other over shard borders, whatever holds them, and the rest is counted."""
    found = documents(1, COUNTS)
    told = WRITERS[kind](tmp_path, found)
    windows = tokens(stoker.open(tmp_path), **told, length=64, eos=eos)
    expected = reference(found, 64, eos)
    assert len(windows) == len(expected)
    total = sum(COUNTS) + (0 if eos is None else sum(count > 0 for count in COUNTS))
    assert windows.dropped_tokens == total - 64 * len(windows)
    for number in [*range(12), len(windows) - 3, len(windows) - 1]:
        sample = windows[number]
        assert np.array_equal(sample["tokens"], expected[number][0]), number
        assert np.array_equal(sample["document"], expected[number][1]), number
        assert (sample["tokens"].dtype, sample["document"].dtype) == (np.int32, np.int32)


def test_windows_of_arrays_of_one_shape(tmp_path: Path) -> None:
    """Shards of fixed rows, as most pre-tokenised sets are, in arrays and in a two-dimensional HDF5 dataset."""
    found = documents(2, [128] * 20, "uint16")
    samples = {f"{number}": {"tokens": document} for number, document in enumerate(found)}
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.arrays.bin").write_bytes(arrays_bytes(samples))
    (tmp_path / "h").mkdir()
    write_hdf5(tmp_path / "h" / "x.h5", samples)
    for kind in "ah":
        windows = tokens(stoker.open(tmp_path / kind), length=100)
        assert (len(windows), windows.dropped_tokens) == (25, 60)
        assert np.array_equal(np.concatenate([windows[n]["tokens"] for n in range(25)]), np.concatenate(found)[:2500])


def test_per_document(tmp_path: Path) -> None:
    """Each document is cut for itself; what a window does not fill is dropped and counted."""
    found = documents(3, COUNTS)
    as_table(tmp_path, found)
    windows = tokens(stoker.open(tmp_path), length=64, windows="per_document")
    expected = [document[at : at + 64] for document in found for at in range(0, len(document) - 63, 64)]
    assert [windows[number]["tokens"].tolist() for number in range(len(windows))] == [one.tolist() for one in expected]
    assert windows.dropped_tokens == sum(count % 64 for count in COUNTS)
    assert not windows[5]["document"].any()


def test_a_loader_reads_windows_and_resumes(tmp_path: Path) -> None:
    """Batches are [B, L] arrays; every window comes once; after a resume exactly the rest comes."""
    found = documents(4, COUNTS)
    as_bytes(tmp_path, found)
    windows = tokens(stoker.open(tmp_path), dtype="int32", length=512)
    with stoker.Loader(windows, 8, seed=7, output="numpy") as loader:
        batches, states = [], []
        for batch in loader:
            batches.append({name: np.array(batch[name]) for name in ("__index__", "tokens", "document")})
            states.append(loader.state_dict())
    seen = np.concatenate([batch["__index__"] for batch in batches])
    assert len(np.unique(seen)) == len(seen) == len(windows) // 8 * 8
    for batch in batches:
        assert batch["tokens"].shape == batch["document"].shape == (8, 512)
        for row, number in enumerate(batch["__index__"].tolist()):
            assert np.array_equal(batch["tokens"][row], windows[number]["tokens"])
    with stoker.Loader(windows, 8, seed=7, output="numpy") as loader:
        loader.load_state_dict(states[4])
        rest = np.concatenate([np.array(batch["__index__"]) for batch in loader])
    assert rest.tolist() == seen[5 * 8 :].tolist()


def test_other_windows_are_another_plan(tmp_path: Path) -> None:
    """A state belongs to the length, the end token and the way of cutting that it was taken with."""
    as_table(tmp_path, documents(5, COUNTS))
    dataset = stoker.open(tmp_path)
    plans = {
        tokens(dataset, length=64).plan_identity(), tokens(dataset, length=32).plan_identity(),
        tokens(dataset, length=64, eos=0).plan_identity(), dataset.plan_identity(),
        tokens(dataset, length=64, windows="per_document").plan_identity(),
    }  # fmt: skip
    assert len(plans) == 5


def test_travels_and_maps(tmp_path: Path) -> None:
    """A token dataset can be pickled, and a map sees its windows."""
    as_npy(tmp_path, documents(6, COUNTS))
    windows = tokens(stoker.open(tmp_path), "npy", length=64).map(lambda sample: {"first": sample["tokens"][0]})
    again = TokenDataset(windows.documents, windows.column)
    again = pickle.loads(pickle.dumps(again))
    assert windows[3]["first"] == again[3]["tokens"][0]


def test_objects_of_windows(tmp_path: Path) -> None:
    """A cache is told the shards that the windows need, in order of first use."""
    as_bytes(tmp_path, documents(7, COUNTS))
    windows = tokens(stoker.open(tmp_path), dtype="int32", length=64)
    assert [ref.key for ref in windows.objects(np.array([len(windows) - 1, 0]))] == ["1.tar", "0.tar"]
    assert [ref.key for ref in windows.objects()] == ["0.tar", "1.tar"]
    assert windows.shard_starts.tolist() == [0, -(-306 // 64), len(windows)]


def test_unsigned_tokens_become_what_embeddings_take(tmp_path: Path) -> None:
    """uint16 comes as int32, uint32 as int64, big-endian as native."""
    for name, dtype, made in (("a", "uint16", "int32"), ("b", "uint32", "int64"), ("c", ">i4", "int32")):
        (tmp_path / name).mkdir()
        found = documents(8, [200, 100], dtype)
        write_tar(tmp_path / name / "x.tar", {str(n): {"npy": npy(one)} for n, one in enumerate(found)})
        windows = tokens(stoker.open(tmp_path / name), "npy", length=300)
        assert windows[0]["tokens"].dtype == np.dtype(made)
        assert np.array_equal(windows[0]["tokens"], np.concatenate(found))


def test_a_document_that_lies_is_a_bad_sample(tmp_path: Path) -> None:
    """A head that says another length than the bytes is an error of the windows over it, not of all."""
    found = documents(9, [500, 500, 500])
    samples = {str(n): {"npy": npy(one)} for n, one in enumerate(found)}
    samples["1"]["npy"] = npy(found[1].astype("float32"))
    write_tar(tmp_path / "x.tar", samples)
    windows = tokens(stoker.open(tmp_path), "npy", length=500)
    assert np.array_equal(windows[2]["tokens"], found[2])
    with pytest.raises(SampleError, match=r"document 1 \(key '1'\).*float32"):
        windows[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"column": "nothing"}, "has a column 'nothing'"), ({"column": "txt"}, "of which numbers"),
        ({"column": "npy", "length": 10**9}, "make no window"), ({"column": "npy", "length": 0}, "at least 1"),
        ({"column": "npy", "dtype": "int64"}, "holds int32"), ({"column": "txt", "dtype": "int32"}, "no whole number"),
        ({"column": "txt", "dtype": "float32"}, "whole numbers"), ({"column": "npy", "eos": 2**40}, "does not fit"),
        ({"column": "npy", "windows": "other"}, "must be"),
    ],
)  # fmt: skip
def test_wrong_questions(tmp_path: Path, arguments: dict[str, object], message: str) -> None:
    """What cannot be windows of tokens is an error that says why."""
    write_tar(tmp_path / "x.tar", {"a": {"npy": npy(np.arange(100, dtype=np.int32)), "txt": b"abcde"}})
    with pytest.raises(UsageError, match=message):
        tokens(stoker.open(tmp_path), **{"length": 10, **arguments})


@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=30),
    length=st.integers(1, 50),
    eos=st.booleans(),
    way=st.sampled_from(["concat", "per_document"]),
)
def test_windows_take_every_token_once(counts: list[int], length: int, eos: bool, way: str) -> None:
    """Windows and what is dropped are all tokens; no piece is taken twice; every window is full."""
    plan = WindowPlan(np.array(counts, np.int64), length=length, eos=eos, windows=way)
    held = [count + (eos and count > 0) for count in counts]
    assert plan.windows * length + plan.dropped_tokens == sum(held)
    taken = set()
    for window in range(plan.windows):
        pieces = plan.pieces(window)
        assert sum(piece.stop - piece.start for piece in pieces) == length
        for piece in pieces:
            assert 0 <= piece.start < piece.stop <= held[piece.document]
            new = {(piece.document, at) for at in range(piece.start, piece.stop)}
            assert not taken & new
            taken |= new


@given(st.lists(st.integers(1, 2**40), max_size=50), st.sampled_from(["int8", "uint16", "int32", "int64"]))
def test_lengths_of_mds_arrays(counts: list[int], dtype: str) -> None:
    """The number of elements follows from the bytes alone, whatever the width of the sizes."""
    layout = Layout("mds", np.dtype(dtype))
    lengths = [layout.head(count) + count * layout.dtype.itemsize for count in counts]
    assert layout.elements(np.array(lengths, np.int64)).tolist() == counts


@pytest.mark.parametrize(
    "told", [{"length": 2.0}, {"length": "2"}, {"length": True}, {"eos": 1.5}, {"eos": True}, {"dtype": "tokens"}]
)
def test_what_is_no_number_is_no_length(tmp_path: Path, told: dict[str, object]) -> None:
    """A length or end token that is not whole, and a type that NumPy has not, are wrong usage by name."""
    as_table(tmp_path, documents(1, COUNTS))
    with pytest.raises(UsageError, match=next(iter(told))):
        tokens(stoker.open(tmp_path), **{"length": 2, **told})


def test_what_has_no_documents_is_said(tmp_path: Path) -> None:
    """A mixture, windows themselves and what is no dataset have no documents; windows have no lengths to sort."""
    write_tar(tmp_path / "0.tar", {f"{n}": {"npy": npy(np.arange(9, dtype=np.int32))} for n in range(9)})
    data = stoker.open(tmp_path)
    windows = tokens(data, "npy", length=4)
    for wrong in (stoker.Mixture({"a": (data, 1)}), windows, None, str(tmp_path)):
        with pytest.raises(UsageError, match=r"(?s)tokens takes a dataset of documents, found .*hint: .*of each part"):
            tokens(wrong, "npy", length=4)  # type: ignore[arg-type]  # that is the question
    with pytest.raises(UsageError, match="windows of tokens have one length"):
        stoker.Loader(windows, stoker.Buckets("npy", bounds=(8,), tokens=64))
