"""Mixtures: exact shares, weights that change at a position, resumable and elastic like one dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stoker
from stoker.dataset import Dataset, tokens
from stoker.errors import UsageError
from stoker.order import MixedOrder, Split, Stretch, build_order
from stoker.order.mixture import CYCLE, places_of
from support_dataset import write_shards
from support_rows import arrays_bytes, documents

SIZES = {"a": 70, "b": 25, "c": 40}
WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Dataset]:
    """Three datasets whose `cls` is the number of their sample, plus a hundred for each that came before."""
    place = tmp_path_factory.mktemp("parts")
    found = {}
    for number, (name, size) in enumerate(SIZES.items()):
        folder = write_shards(place / name, size, member=lambda i, n=number: {"cls": str(100 * n + i).encode()})
        found[name] = stoker.open(folder)
    return found


def mixed(parts: dict[str, Dataset], weights: dict[str, float] = WEIGHTS, **options: Any) -> stoker.Mixture:
    """The three, by weight."""
    return stoker.Mixture({name: (parts[name], weights[name]) for name in weights}, **options)


def order_of(sizes: list[int], stretches: list[Stretch], epoch: int = 1000, seed: int = 3) -> MixedOrder:
    """An order over sources of those sizes."""
    orders = [build_order("full", shard_starts=np.array([0, size]), seed=seed) for size in sizes]
    return MixedOrder(orders, stretches, epoch_samples=epoch, seed=seed)


@settings(max_examples=30)
@given(
    sizes=st.lists(st.integers(30, 900), min_size=1, max_size=4),
    data=st.data(),
    epoch=st.integers(700, 4_000),
    seed=st.integers(0, 2**32),
)
def test_every_source_gives_its_samples_in_turn(sizes: list[int], data: st.DataObject, epoch: int, seed: int) -> None:
    """Over all positions a source's samples come as its own order has them, epoch by epoch, and counts say how many."""
    names = [f"{at}" for at in range(len(sizes))]
    first = {name: data.draw(st.floats(0.1, 5)) for name in names}
    later = {name: data.draw(st.floats(0.1, 5)) for name in names}
    change = data.draw(st.integers(1, 14_000))
    order = order_of(sizes, [Stretch(0, places_of(first)), Stretch(change, places_of(later))], epoch, seed)
    epochs = -(-13_000 // epoch)
    whole = np.concatenate([order.at(number, np.arange(epoch)) for number in range(epochs)])[:13_000]
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    own = [build_order("full", shard_starts=np.array([0, size]), seed=seed) for size in sizes]
    owners = np.searchsorted(offsets, whole, side="right") - 1
    assert np.bincount(owners, minlength=len(sizes)).tolist() == order.counts(0, 13_000).tolist()
    stop = data.draw(st.integers(1, 13_000))
    start = data.draw(st.integers(0, stop))
    assert np.bincount(owners[start:stop], minlength=len(sizes)).tolist() == order.counts(start, stop).tolist()
    for source, size in enumerate(sizes):
        seen = whole[owners == source] - offsets[source]
        expected = [own[source].at(number, np.arange(size)) for number in range(-(-len(seen) // size))]
        assert np.array_equal(seen, np.concatenate([np.zeros(0, np.int64), *expected])[: len(seen)])


def test_counts_are_exact_after_each_cycle() -> None:
    """Shares of a whole cycle are those of the weights to one in ten thousand."""
    order = order_of([10, 20, 30], [Stretch(0, places_of(WEIGHTS))], epoch=10**9)
    for cycles in (1, 3, 50):
        assert order.counts(0, cycles * CYCLE).tolist() == [5_000 * cycles, 3_000 * cycles, 2_000 * cycles]


def test_any_ranks_and_resumes_give_one_sequence() -> None:
    """The global sequence does not depend on world size, batch size or where a run stopped."""
    order = order_of([7, 11], [Stretch(0, (6_000, 4_000)), Stretch(50, (1_000, 9_000))], epoch=96)
    straight = order.at(0, np.arange(96))
    for world, batch in ((1, 4), (2, 3), (4, 2)):
        found = []
        for start, steps in ((0, 4), (4 * world * batch, None)):
            split = [Split(96, batch, rank, world) for rank in range(world)]
            for step in range(steps if steps is not None else split[0].steps(start)):
                found += [order.at(0, one.step(start, step)[0]) for one in split]
        assert np.array_equal(np.concatenate(found), straight)


def test_a_loader_reads_a_mixture(parts: dict[str, Dataset]) -> None:
    """Values, keys and sources belong together; shares are those of the weights; sources go on over the epochs."""
    mixture = mixed(parts, epoch=200)
    with stoker.Loader(mixture, 20, seed=5, fields={"cls": int}, output="numpy") as loader:
        seen = []
        for _ in range(3):
            for batch in loader:
                sources = mixture.source_of(batch["__index__"])
                assert np.array_equal(batch["cls"] // 100, sources)
                assert batch["__key__"] == [f"{int(label) % 100:06d}" for label in batch["cls"]]
                seen.append(batch["cls"].copy())
        counted = mixture.counts(loader._job.order, 0, 600)
    labels = np.concatenate(seen)
    assert {name: int((labels // 100 == at).sum()) for at, name in enumerate(SIZES)} == counted
    assert sum(counted.values()) == 600


def test_it_resumes_and_the_weights_may_change_ahead(parts: dict[str, Dataset]) -> None:
    """A state goes on with weights changed later than where it stands, and is refused with weights changed before."""
    options: dict[str, Any] = {"seed": 5, "fields": {"cls": int}, "output": "numpy"}
    mixture = mixed(parts, epoch=100)
    with stoker.Loader(mixture, 10, **options) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        rest = np.concatenate([batch["__index__"] for batch in batches])
    other = {"a": 0.0, "b": 0.0, "c": 1.0}
    with stoker.Loader(mixture.reweighted(70, other), 5, **options) as loader:
        loader.load_state_dict(state)
        found = np.concatenate([batch["__index__"] for batch in loader])
    assert found[:30].tolist() == rest[:30].tolist()
    assert set(mixture.source_of(found[30:]).tolist()) == {2}
    with (
        stoker.Loader(mixture.reweighted(30, other), 10, **options) as loader,
        pytest.raises(UsageError, match="another plan"),
    ):
        loader.load_state_dict(state)


def test_how_long_an_epoch_is(parts: dict[str, Dataset]) -> None:
    """All: each source once at least; first: none twice; a number: that many."""
    weights = {"a": 1.0, "b": 1.0, "c": 2.0}
    assert len(mixed(parts, weights, epoch="all")) == 4 * 70
    assert len(mixed(parts, weights, epoch="first")) == 80
    assert len(mixed(parts, weights, epoch=33)) == 33


def test_windows_of_tokens_are_mixed(tmp_path: Path) -> None:
    """Sources that are copied from mapped shards stay so in a mixture, and every row is right."""
    made = []
    for name, seed in (("one", 1), ("two", 2)):
        (tmp_path / name).mkdir()
        rows = {f"{n}": {"tokens": row} for n, row in enumerate(documents(seed, [100] * 30))}
        (tmp_path / name / "x.arrays.bin").write_bytes(arrays_bytes(rows))
        made.append(tokens(stoker.open(tmp_path / name), length=50))
    mixture = stoker.Mixture({"one": (made[0], 3), "two": (made[1], 1)})
    assert mixture.reader(("tokens", "document")).gatherer(("tokens", "document")) is not None
    with stoker.Loader(mixture, 8, output="numpy") as loader:
        for batch in loader:
            for row, sample in enumerate(batch["__index__"].tolist()):
                assert np.array_equal(batch["tokens"][row], mixture[sample]["tokens"])
        assert loader.report().counts["read.mapped_bytes"] > 0


def test_maps_of_the_parts_and_of_the_mixture(parts: dict[str, Dataset]) -> None:
    """A part's map sees its own samples, the mixture's map all of them."""
    own = parts["a"].map(lambda sample: {"cls": b"7"})
    mixture = stoker.Mixture({"a": (own, 1), "b": (parts["b"], 1)}).map(lambda sample: {"cls": sample["cls"] + b"0"})
    with stoker.Loader(mixture, 10, fields={"cls": int}) as loader:
        for batch in loader:
            for label, source in zip(batch["cls"].tolist(), mixture.source_of(batch["__index__"]), strict=True):
                assert label == 70 if source == 0 else label % 10 == 0 and label >= 1000
    assert mixture[0]["cls"] == b"70"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weights": {"a": -1.0, "b": 1.0}}, "weights are numbers from 0 on"),
        ({"weights": {"a": 0.0, "b": 0.0}}, "weights are numbers from 0 on"),
        ({"weights": {"a": 1e-9, "b": 1.0}}, "less than 1 in 10000"),
        ({"epoch": 0}, "epoch is 'all', 'first' or a number"),
        ({"weights_from": {0: WEIGHTS}}, "from 1 on"),
        ({"weights_from": {5: {"a": 1.0}}}, "weights from 5 on are of"),
        ({"weights_from": [(5, WEIGHTS)]}, "weights_from maps positions to weights"),
        ({"weights_from": {5: 0.3}}, "weights_from maps positions to weights"),
        ({"weights_from": {5: WEIGHTS, "9": WEIGHTS}}, "from 1 on, found '9'"),
        ({"weights": {"a": "1", "b": 1.0}}, "weights are numbers from 0 on, found {'a': '1'"),
        ({"weights": {"a": None, "b": 1.0}}, "weights are numbers from 0 on"),
        ({"weights": {"a": float("nan"), "b": 1.0}}, "weights are numbers from 0 on"),
        ({"epoch": 10**30}, "a number of samples up to 2"),
    ],
)
def test_what_cannot_be_mixed_is_said(parts: dict[str, Dataset], change: dict[str, Any], message: str) -> None:
    """Weights, epochs and changes that make no sense are errors before anything runs."""
    with pytest.raises(UsageError, match=message):
        mixed(parts, **change)


def test_parts_must_be_datasets_with_something_in_common(parts: dict[str, Dataset], tmp_path: Path) -> None:
    """No dataset, a mixture inside a mixture, and parts without a common field are named."""
    other = stoker.open(write_shards(tmp_path / "x", 5, member=lambda i: {"txt": b"x"}))
    for wrong, message in (
        ([(parts["a"], 1.0)], "a mixture takes"), (None, "a mixture takes"),
        ({"a": (7, 1.0)}, "must be a dataset"), ({}, "a mixture takes"), ({"a": parts["a"]}, "a mixture takes"),
        ({"m": (mixed(parts), 1.0)}, "must be a dataset"),
        ({"a": (parts["a"], 1), "x": (other, 1)}, "no field in common"),
    ):  # fmt: skip
        with pytest.raises(UsageError, match=message):
            stoker.Mixture(wrong)


def test_samples_that_it_does_not_have_come_from_nowhere(parts: dict[str, Dataset]) -> None:
    """Their source is an error, not the last one."""
    mixture = mixed(parts)
    assert mixture.source_of(np.array([[0, 69], [70, 134]])).tolist() == [[0, 0], [1, 2]]
    for wrong in ([0, 135], [-1]):
        with pytest.raises(IndexError, match=f"sample {wrong[-1]} of a mixture of 135 samples"):
            mixture.source_of(wrong)


def test_what_a_cache_cannot_warm_is_said(parts: dict[str, Dataset], tmp_path: Path) -> None:
    """A mixture has several stores, and a URL is no dataset: what to do is told."""
    cache = stoker.Cache(tmp_path / "c")
    for wrong in (mixed(parts), str(tmp_path)):
        with pytest.raises(
            UsageError, match=r"a cache warms a dataset, found .*\n?.*\n?hint: open it first.*warm each"
        ):
            cache.warm(wrong)  # type: ignore[arg-type]  # that is the question
