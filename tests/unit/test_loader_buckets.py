"""Batches of like length by a budget of tokens: equal steps on all ranks, every sample once, resumable on any ranks."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import stoker
from stoker.errors import UsageError
from stoker.loader.job import Start
from stoker.loader.padding import Padding
from stoker.loader.steps import POSITIONS_AT_ONCE, Steps
from stoker.order import BucketedOrder, Split
from support_dataset import write_shards
from support_rows import npy, write_tar

LENGTHS = [3, 9, 30, 5, 12, 28, 7, 31, 16, 2] * 12


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """120 documents of 2 to 31 tokens."""
    place = tmp_path_factory.mktemp("data")
    rows = {f"{n:04d}": {"npy": npy(np.full(length, n, np.int32))} for n, length in enumerate(LENGTHS)}
    write_tar(place / "0.tar", dict(list(rows.items())[:70]))
    write_tar(place / "1.tar", dict(list(rows.items())[70:]))
    return stoker.open(place)


def make(dataset: stoker.Dataset, **options: Any) -> stoker.Loader:
    """Buckets up to 8, 16 and 32 tokens, 64 tokens a batch."""
    buckets = stoker.Buckets("npy", bounds=(8, 16, 32), tokens=64)
    return stoker.Loader(dataset, buckets, seed=options.pop("seed", 3), output="numpy", **options)


@given(
    lengths=st.lists(st.integers(0, 100), min_size=1, max_size=400),
    seed=st.integers(0, 2**32),
    epoch=st.integers(0, 3),
    tokens=st.integers(100, 900),
)
def test_an_epoch_of_batches(lengths: list[int], seed: int, epoch: int, tokens: int) -> None:
    """No sample twice, all of one bucket in a batch, as many batches in every epoch, the rest counted."""
    bounds = (10, 40, 100)
    sizes = tuple(tokens // bound for bound in bounds)
    found = np.array(lengths)
    try:
        order = BucketedOrder(found, bounds, sizes, seed=seed, mode="full")
    except UsageError:
        assert all(int(((found > low) & (found <= high)).sum()) < size
                   for low, high, size in zip((-1, *bounds), bounds, sizes, strict=False))  # fmt: skip
        return
    batches = order.batches(epoch, np.arange(order.samples))
    seen = np.concatenate(batches)
    assert len(np.unique(seen)) == len(seen) == len(lengths) - order.dropped
    for batch in batches:
        buckets = set(np.searchsorted(bounds, found[batch], side="left").tolist())
        assert len(buckets) == 1 and len(batch) == sizes[buckets.pop()]
    some = np.random.default_rng(seed).permutation(order.samples)[:5]
    for number, batch in zip(some.tolist(), order.batches(epoch, some), strict=True):
        assert np.array_equal(batch, batches[number])


def test_a_loader_makes_batches_of_like_length(dataset: stoker.Dataset) -> None:
    """Lengths are known from the index; a batch holds as many samples as its bucket allows, each with its value."""
    sizes = {8: 8, 16: 4, 32: 2}
    with make(dataset) as loader:
        for _ in range(2):
            count = 0
            for batch in loader:
                count += 1
                samples = batch["__index__"].tolist()
                bound = min(bound for bound in sizes if max(LENGTHS[n] for n in samples) <= bound)
                assert len(samples) == sizes[bound] == len(batch["npy"])
                for sample, value in zip(samples, batch["npy"], strict=True):
                    assert value.tolist() == [sample] * LENGTHS[sample]
                assert batch["__key__"] == [f"{n:04d}" for n in samples]
            assert count == len(loader)


def test_ranks_share_the_batches_and_resume_on_others(dataset: stoker.Dataset) -> None:
    """Two ranks, stopped, then three, then one: the batches are those of one rank, in turn."""
    with make(dataset) as one:
        straight = [batch["__index__"].tolist() for batch in one]
    found: list[list[int]] = []
    state: dict[str, Any] | None = None
    for world, steps in ((2, 4), (3, 2), (1, None)):
        loaders = [make(dataset, rank=rank, world_size=world) for rank in range(world)]
        if state is not None:
            for loader in loaders:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        taken = 0
        while steps is None or taken < steps:
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                break
            found += [batch["__index__"].tolist() for batch in batches if batch is not None]
            taken += 1
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    assert found == straight


def test_lengths_from_elsewhere(dataset: stoker.Dataset, tmp_path: Path) -> None:
    """Numbers that the caller knows, and the bytes of a text, do as well."""
    buckets = stoker.Buckets(np.array(LENGTHS), bounds=(8, 32), tokens=64)
    with stoker.Loader(dataset, buckets, output="numpy") as loader:
        assert len(next(iter(loader))["__index__"]) in (8, 2)
    texts = stoker.open(write_shards(tmp_path / "t", 40, member=lambda i: {"txt": b"x" * (1 + i % 20)}))
    with stoker.Loader(texts, stoker.Buckets("txt", bounds=(10, 20), tokens=40), fields={"txt": str}) as loader:
        for batch in loader:
            assert len({len(text) <= 10 for text in batch["txt"]}) == 1


def test_as_they_lie(dataset: stoker.Dataset) -> None:
    """Without a shuffle buckets come one after the other, and their samples in order."""
    with make(dataset, shuffle=False) as loader:
        seen = [sample for batch in loader for sample in batch["__index__"].tolist()]
    assert seen == sorted(seen, key=lambda sample: ((LENGTHS[sample] > 8) + (LENGTHS[sample] > 16), sample))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bounds": (8, 8)}, "rising whole numbers"),
        ({"bounds": ()}, "rising whole numbers"),
        ({"bounds": (8, 16), "tokens": 64}, "sample 7 has length 31, the last bucket takes up to 16"),
        ({"tokens": 31}, "holds no sample of the longest bucket"),
        ({"lengths": "nothing"}, "no column or field 'nothing'|has a column or field 'nothing'"),
        ({"lengths": np.ones(3, int)}, "lengths must be 120 whole numbers"),
        ({"tokens": 32_000}, "no bucket fills a batch"),
        ({"bounds": (8, 10**30)}, "rising whole numbers from 1 to"),
        ({"bounds": np.array([8.0, 32.0])}, "rising whole numbers from 1 to"),
        ({"tokens": 64.0}, "tokens is a whole number from 1 to .*, found 64.0"),
        ({"tokens": 10**30}, "tokens is a whole number"),
        ({"lengths": -np.array(LENGTHS)}, "sample 7 has -31"),
        ({"lengths": np.array(LENGTHS, np.uint64) + np.uint64(2**63)}, "sample 9 has 9223372036854775810"),
        ({"lengths": [[1], [2, 3]]}, "lengths are whole numbers, one a sample"),
        ({"pad_to_bound": True}, "pad_to_bound is True or False .* with pad=None"),
        ({"pad_to_bound": "yes", "pad": {"npy": 0}}, "pad_to_bound is True or False .* found 'yes'"),
    ],
)
def test_what_makes_no_batches_is_said(dataset: stoker.Dataset, change: dict[str, Any], message: str) -> None:
    """Bounds, budgets and lengths that do not fit each other or the data are errors before anything runs."""
    with pytest.raises(UsageError, match=message):
        stoker.Loader(dataset, stoker.Buckets(**{"lengths": "npy", "bounds": (8, 32), "tokens": 64, **change}))


@pytest.mark.parametrize("option", [{"tail": "pad"}, {"canonical_nodes": 2}, {"shuffle": stoker.Window(2)}])
def test_what_does_not_go_with_buckets(dataset: stoker.Dataset, option: dict[str, Any]) -> None:
    """Padding an epoch, canonical nodes and windows of shards are refused by name."""
    with pytest.raises(UsageError, match="buckets take"):
        make(dataset, **option)


def padded(dataset: stoker.Dataset, **options: Any) -> stoker.Loader:
    """The same batches, padded with -1."""
    transform, loader = options.pop("transform", None), {"fields": {"npy": stoker.npy}, "output": "numpy", "seed": 3}
    for name in ("on_bad", "on_bad_max", "batch_transform"):
        if name in options:
            loader[name] = options.pop(name)
    buckets = stoker.Buckets("npy", **{"bounds": (8, 16, 32), "tokens": 64, "pad": {"npy": -1}, **options})
    return stoker.Loader(dataset, buckets, transform=transform, **loader)


@pytest.mark.parametrize("to_bound", [False, True])
def test_padded_batches(dataset: stoker.Dataset, to_bound: bool) -> None:
    """One array [batch, longest or bound], filled up, with the lengths; the samples are those of the unpadded run."""
    with make(dataset) as plain, padded(dataset, pad_to_bound=to_bound) as loader:
        for expected, batch in zip(plain, loader, strict=True):
            assert batch["__index__"].tolist() == expected["__index__"].tolist()
            lengths = [len(value) for value in expected["npy"]]
            width = min(bound for bound in (8, 16, 32) if bound >= max(lengths)) if to_bound else max(lengths)
            assert batch["npy_length"].tolist() == lengths and batch["npy_length"].dtype == np.int64
            assert batch["npy"].shape == (len(lengths), width) and batch["npy"].dtype == np.int32
            for row, value in zip(batch["npy"], expected["npy"], strict=True):
                assert row.tolist() == value.tolist() + [-1] * (width - len(value))


def test_padded_batches_lie_in_the_slot(dataset: stoker.Dataset) -> None:
    """They are not sent: the room is known from the budget, and kept batches keep their bytes."""
    buckets = stoker.Buckets("npy", bounds=(8, 16, 32), tokens=64, pad={"npy": 0})
    with stoker.Loader(dataset, buckets, fields={"npy": stoker.npy}, seed=3) as loader, make(dataset) as plain:
        batches = iter(loader)
        first = next(batches)
        assert first["npy"].dtype == torch.int32
        assert 0 < first["npy"].data_ptr() - first["__index__"].data_ptr() < 4096
        with pytest.warns(UserWarning, match="are kept while new ones are drawn"):
            kept = [first, *batches]
        for expected, batch in zip(plain, kept, strict=True):
            assert [row[:n].tolist() for row, n in zip(batch["npy"], batch["npy_length"], strict=True)] == [
                value.tolist() for value in expected["npy"]
            ]


def frames(sample: dict[str, Any]) -> dict[str, Any]:
    """Sound: two numbers for each token; and labels a token longer than it."""
    tokens = sample["npy"].astype(np.float32)
    return {"sound": np.stack([tokens, -tokens], 1), "npy": np.append(sample["npy"], 7)}


def test_several_fields_with_axes_behind_the_length(dataset: stoker.Dataset) -> None:
    """Each has its own fill and lengths; what a transform made longer than the budget foresaw comes all the same."""
    seen = set()
    with padded(dataset, transform=frames, pad={"sound": float("nan"), "npy": -100}) as loader:
        for batch in loader:
            rows, widest = len(batch["npy"]), int(batch["sound_length"].max())
            assert batch["sound"].shape == (rows, widest, 2) and batch["npy"].shape == (rows, widest + 1)
            assert (batch["npy_length"] == batch["sound_length"] + 1).all()
            for row, sample in enumerate(batch["__index__"].tolist()):
                length = LENGTHS[sample]
                assert batch["sound"][row, :length].tolist() == [[sample, -sample]] * length
                assert np.isnan(batch["sound"][row, length:]).all()
                assert batch["npy"][row].tolist() == [sample] * length + [7] + [-100] * (widest - length)
            seen.add(batch["npy"].size > 64)
    assert seen == {False, True}


def test_padding_with_samples_left_out(dataset: stoker.Dataset) -> None:
    """A batch with a sample less is padded to the longest that is left, and a batch_transform sees padded arrays."""

    def spoil(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] % 5 == 2:
            raise stoker.SampleError("the longest of all")
        return sample

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        batch["npy"][batch["npy"] >= 0] += 1
        return {"filled": (batch["npy"] == -1).sum(1)}

    with padded(dataset, transform=spoil, on_bad="skip", on_bad_max=1.0, batch_transform=count) as loader:
        for batch in loader:
            samples = batch["__index__"].tolist()
            assert not any(sample % 5 == 2 for sample in samples)
            lengths = [LENGTHS[sample] for sample in samples]
            assert batch["npy"].shape == (len(samples), max(lengths)) and batch["npy_length"].tolist() == lengths
            assert batch["filled"].tolist() == [max(lengths) - length for length in lengths]
            assert batch["npy"][:, 0].tolist() == [sample + 1 for sample in samples]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pad": {"nothing": 0}}, "pad names field 'nothing', the samples have npy"),
        ({"pad": {"npy": 0.5}}, "0.5 cannot stand in field 'npy', which holds int32"),
        ({"pad": {"npy": 2**40}}, "cannot stand in field 'npy'"),
        ({"pad": {"npy": 10**400}}, "cannot stand in field 'npy'"),
        ({"pad": {"npy": float("nan")}}, "nan cannot stand in field 'npy'"),
        ({"pad": {"npy": 1e300}, "transform": lambda s: {"npy": s["npy"].astype(np.float32)}}, "which holds float32"),
        ({"transform": lambda s: {"npy": s["npy"].tolist()}}, "the first samples have what is no array of numbers"),
        ({"pad": "npy"}, "pad maps fields to numbers"),
        ({"transform": lambda s: {"npy": len(s["npy"])}}, "field 'npy' is no array whose first axis alone"),
        ({"transform": lambda s: {**s, "npy_length": 1}}, "'npy_length', which the samples have already"),
    ],
)
def test_what_cannot_be_padded_is_said(dataset: stoker.Dataset, options: dict[str, Any], message: str) -> None:
    """Fields that are not there, have no length, or cannot hold the fill: before the first batch."""
    with pytest.raises(UsageError, match=message), padded(dataset, **options) as loader:
        next(iter(loader))


def test_a_row_of_another_kind_names_its_sample(dataset: stoker.Dataset) -> None:
    """A later sample that is no array of that kind ends the run with its number and key."""

    def odd(sample: dict[str, Any]) -> dict[str, Any]:
        return {"npy": sample["npy"].reshape(1, -1) if sample["__index__"] == 70 else sample["npy"]}

    with pytest.raises(
        stoker.SampleError, match=r"sample 70, key '0070', epoch \d: field 'npy': expected int32 of shape"
    ):
        with padded(dataset, transform=odd) as loader:
            for _ in range(3):
                for _ in loader:
                    pass


@pytest.mark.parametrize(
    ("value", "dtype"), [(0.1, "float32"), (-11.5129, "float16"), (float("-inf"), "float32"), (7, "complex64")]
)
def test_what_fills_up_is_rounded_like_any_number(value: float, dtype: str) -> None:
    """A number of which the field's dtype has only the nearest: silence of a log-mel is no power of two."""
    padding = Padding({"sound": value}, 64, ())
    places = padding.places([{"sound": ((5, 2), dtype)}], 4)
    room = np.zeros((4, *places["sound"][0]), dtype)
    filled = padding.fill("sound", [np.ones((1, 2), dtype), np.ones((3, 2), dtype)], room)
    assert filled[0, 1:].tolist() == np.full((2, 2), value).astype(dtype).tolist()


def test_numbers_of_numpy_do_as_well(dataset: stoker.Dataset) -> None:
    """Bounds that come from quantiles, a budget from a product: the same batches, and the same plan."""
    numpys = stoker.Buckets("npy", bounds=np.array([8, 16, 32]), tokens=np.int64(64), pad={"npy": np.int32(-1)})  # type: ignore[arg-type]  # that is the question
    with padded(dataset) as loader, stoker.Loader(dataset, numpys, fields={"npy": stoker.npy}, seed=3) as same:
        assert [batch["npy"].tolist() for batch in same] == [batch["npy"].tolist() for batch in loader]
        assert same.state_dict() == loader.state_dict()


def test_other_lengths_are_another_plan(dataset: stoker.Dataset) -> None:
    """A state is refused where other samples would stand in the batches, and taken where the buckets are the same."""

    def with_lengths(lengths: list[int]) -> stoker.Loader:
        return stoker.Loader(dataset, stoker.Buckets(np.array(lengths), bounds=(8, 16, 32), tokens=64), output="numpy")

    with with_lengths(LENGTHS) as loader:
        next(iter(loader))
        state = loader.state_dict()
    with with_lengths([length - (length in (12, 30)) for length in LENGTHS]) as same:
        same.load_state_dict(state)
    with with_lengths(LENGTHS[::-1]) as other, pytest.raises(UsageError, match="another plan"):
        other.load_state_dict(state)


@pytest.mark.parametrize("action", ["skip", "replace"])
def test_rows_that_cannot_be_padded_are_bad_samples(dataset: stoker.Dataset, action: str) -> None:
    """They are left out or replaced as `on_bad` says: by samples of their bucket, so that no batch bursts the budget;
    nothing of a replaced one stays in the batch."""
    with make(dataset) as plain:
        first = set(np.concatenate([batch["__index__"] for _, batch in zip(range(2), plain, strict=False)]).tolist())

    def is_odd(sample: int) -> bool:
        return sample % 7 == 3 and sample not in first  # the first ones show what a row is

    def odd_rows(sample: dict[str, Any]) -> dict[str, Any]:
        number, ids = sample["__index__"], sample["npy"]
        odd = (ids.reshape(1, -1), "text", ids.astype(np.float64), None)[number % 4]
        return {"aside": np.full(2 + is_odd(number), number), "npy": odd if is_odd(number) else ids}

    with padded(dataset, transform=odd_rows, on_bad=action, on_bad_max=1.0) as loader:
        for batch in loader:
            samples = batch["__index__"].tolist()
            assert not any(map(is_odd, samples))
            assert batch["npy"].size <= 64
            for sample, row, length in zip(samples, batch["npy"], batch["npy_length"], strict=True):
                assert row[:length].tolist() == [sample] * LENGTHS[sample] and (row[length:] == -1).all()
            assert [one.tolist() for one in batch["aside"]] == [[sample] * 2 for sample in samples]
        bad = loader.bad
    assert bad and all(is_odd(one.index) and (one.replaced_by is None) == (action == "skip") for one in bad)


def test_who_stood_first_is_told(dataset: stoker.Dataset) -> None:
    """Where a substitute is bad as well, in a later stage, the list names the sample of the order and who came last."""

    def undecodable(data: bytes) -> np.ndarray:
        ids = np.load(io.BytesIO(data))
        if ids[0] % 2:
            raise stoker.SampleError("odd")
        return ids

    def refused(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["__index__"] % 4:
            raise stoker.SampleError("two too many")
        return sample

    options = {"seed": 3, "output": "numpy", "on_bad": "replace", "on_bad_max": 1.0}
    with stoker.Loader(dataset, 8, fields={"npy": undecodable}, transform=refused, **options) as loader:
        seen = [sample for batch in loader for sample in batch["__index__"].tolist()]
        bad = loader.bad
    with stoker.Loader(dataset, 8, fields={"npy": stoker.npy}, seed=3, output="numpy") as plain:
        order = [sample for batch in plain for sample in batch["__index__"].tolist()]
    told = {one.index: one.replaced_by for one in bad}
    for sample, instead in zip(order, seen, strict=True):
        assert instead % 4 == 0 and told.get(sample, sample) == instead


def test_batches_are_looked_up_a_few_at_a_time(dataset: stoker.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many samples at once as elsewhere: all batches of a large epoch would hold up the seam between two."""
    order = BucketedOrder(np.full(200_000, 5), (8,), (100,), seed=1, mode="full")
    asked: list[int] = []
    batches = order.batches
    monkeypatch.setattr(order, "batches", lambda epoch, numbers: asked.append(len(numbers)) or batches(epoch, numbers))
    steps = Steps(order, Split(order.samples, 1, 0, 1), Start(0, 0, 0))
    for _ in range(2 * order.samples):
        steps.take()
    assert max(asked) == POSITIONS_AT_ONCE // 100
