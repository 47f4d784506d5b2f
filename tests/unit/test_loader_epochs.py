"""Epochs, order, resume, ranks: what a Loader promises about which sample comes when."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import stoker
from stoker.errors import UsageError
from support_dataset import jpeg, write_shards
from support_store import until
from support_transforms import doubles

SAMPLES = 50


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """50 samples in three shards."""
    return stoker.open(write_shards(tmp_path_factory.mktemp("data"), SAMPLES))


@pytest.fixture
def loader(dataset: stoker.Dataset) -> Iterator[stoker.Loader]:
    """Batches of 8 of a shuffled epoch: 6 steps, 2 samples dropped."""
    with stoker.Loader(dataset, 8, fields={"cls": int}, seed=3) as made:
        yield made


def numbers(batches: object) -> list[int]:
    """Sample numbers of batches, in order."""
    return [int(i) for batch in batches for i in batch["__index__"]]


def test_an_epoch_visits_samples_once_in_a_shuffled_order(loader: stoker.Loader) -> None:
    """len() steps, each sample at most once, not as they lie, and values belong to their sample."""
    seen = []
    for batch in loader:
        assert batch["cls"].tolist() == [int(i) % 10 for i in batch["__index__"]]
        assert batch["__key__"] == [f"{int(i):06d}" for i in batch["__index__"]]
        seen += numbers([batch])
    assert len(loader) == 6
    assert len(seen) == len(set(seen)) == 48
    assert seen != sorted(seen)


def test_epochs_differ_and_repeat_by_seed(dataset: stoker.Dataset, loader: stoker.Loader) -> None:
    """Two epochs have two orders; another loader with the same seed has the same two."""
    first, second = numbers(loader), numbers(loader)
    assert loader.epoch == 2
    assert first != second
    with stoker.Loader(dataset, 8, fields={"cls": int}, seed=3) as again:
        assert [numbers(again), numbers(again)] == [first, second]
    with stoker.Loader(dataset, 8, fields={"cls": int}, seed=4) as other:
        assert numbers(other) != first


def test_no_shuffle_is_as_they_lie(dataset: stoker.Dataset) -> None:
    """shuffle='none' gives 0, 1, 2, …"""
    with stoker.Loader(dataset, 8, fields={"cls": int}, shuffle="none") as loader:
        assert numbers(loader) == list(range(48))


def test_break_and_a_new_iter_is_the_next_epoch(loader: stoker.Loader) -> None:
    """What was prefetched of the broken epoch is not seen again."""
    whole = [numbers(loader), numbers(loader)]
    loader.set_epoch(0)
    for batch in loader:
        assert numbers([batch]) == whole[0][:8]
        break
    assert numbers(loader) == whole[1]


def test_set_epoch_runs_that_epoch(loader: stoker.Loader) -> None:
    """The torch idiom works."""
    whole = [numbers(loader), numbers(loader)]
    loader.set_epoch(1)
    assert numbers(loader) == whole[1]


@pytest.mark.parametrize("taken", [0, 1, 3, 6])
def test_resume_goes_on_where_next_returned(dataset: stoker.Dataset, loader: stoker.Loader, taken: int) -> None:
    """The state counts what was returned, never what was prefetched; another loader goes on from there."""
    whole = numbers(loader) + numbers(loader)
    loader.set_epoch(0)
    iterator = iter(loader)
    seen = [i for _ in range(taken) for i in numbers([next(iterator)])]
    state = loader.state_dict()
    with stoker.Loader(dataset, 8, fields={"cls": int}, seed=3) as resumed:
        resumed.load_state_dict(state)
        seen += numbers(resumed)
        seen += numbers(resumed) if len(seen) < len(whole) else []
    assert seen == whole


def test_resume_on_other_ranks_and_batch_sizes(dataset: stoker.Dataset) -> None:
    """One rank of 8, then two of 4, then four of 1: together the uninterrupted sequence."""
    with stoker.Loader(dataset, 1, fields={"cls": int}, seed=9) as reference:
        whole = numbers(reference)
    state, seen = None, []
    for world, size, steps in [(1, 8, 2), (2, 4, 2), (4, 1, 4)]:
        loaders = [
            stoker.Loader(dataset, size, fields={"cls": int}, seed=9, rank=r, world_size=world) for r in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(steps):
            seen += [i for iterator in iterators for i in numbers([next(iterator)])]
        states = [loader.state_dict() for loader in loaders]
        assert all(one == states[0] for one in states)
        state = states[0]
        for loader in loaders:
            loader.close()
    assert seen == whole[: len(seen)] == whole[:48]


def test_pad_gives_the_rest_with_a_mask(dataset: stoker.Dataset) -> None:
    """tail='pad' visits every sample; repeats are masked."""
    with stoker.Loader(dataset, 8, fields={"cls": int}, seed=3, tail="pad") as loader:
        batches = [(b["__index__"].tolist(), b["__mask__"].tolist()) for b in loader]
    real = [i for indexes, mask in batches for i, m in zip(indexes, mask, strict=True) if m]
    assert sorted(real) == list(range(SAMPLES))
    assert [len(indexes) for indexes, _ in batches] == [8] * 7


def test_loading_while_an_iterator_lives_raises(loader: stoker.Loader) -> None:
    """The position would change under it."""
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(UsageError, match="iterator lives"):
        loader.load_state_dict(loader.state_dict())
    del iterator
    loader.load_state_dict(loader.state_dict())


def test_a_state_of_other_data_is_refused(dataset: stoker.Dataset, loader: stoker.Loader, tmp_path: Path) -> None:
    """Another seed or other shards mean other samples at a position."""
    with (
        stoker.Loader(dataset, 8, fields={"cls": int}, seed=4) as other,
        pytest.raises(UsageError, match="another plan"),
    ):
        other.load_state_dict(loader.state_dict())
    more = stoker.open(write_shards(tmp_path / "more", SAMPLES + 1))
    with stoker.Loader(more, 8, fields={"cls": int}, seed=3) as other, pytest.raises(UsageError, match="another plan"):
        other.load_state_dict(loader.state_dict())


def test_a_mirror_resumes(loader: stoker.Loader, tmp_path: Path) -> None:
    """The same shards elsewhere have the same plan."""
    mirror = stoker.open(write_shards(tmp_path / "mirror", SAMPLES))
    with stoker.Loader(mirror, 8, fields={"cls": int}, seed=3) as other:
        other.load_state_dict(loader.state_dict())


def test_an_epoch_of_no_steps_says_what_would_fit(dataset: stoker.Dataset) -> None:
    """A batch larger than the dataset is an error with a number that works."""
    with pytest.raises(UsageError, match=r"0 steps.*\n.*batch_size=50"):
        stoker.Loader(dataset, 51, fields={"cls": int})


def test_tuples_and_numpy(dataset: stoker.Dataset) -> None:
    """layout='tuple' follows the order of fields; output='numpy' needs no torch."""
    with stoker.Loader(dataset, 4, fields={"cls": int, "txt": str}, layout="tuple", output="numpy") as loader:
        labels, texts = next(iter(loader))
    assert isinstance(labels, np.ndarray)
    assert [int(text.split()[1]) % 10 for text in texts] == labels.tolist()


def test_images_lie_in_one_tensor(dataset: stoker.Dataset) -> None:
    """uint8 [B, H, W, 3], the same at every run; whole images too where all have one size."""
    crop = stoker.image.RandomResizedCrop(24, flip=True)
    with stoker.Loader(dataset, 8, fields={"image": crop, "jpg": stoker.image.Image()}, seed=1) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (8, 24, 24, 3)
    assert batch["image"].dtype == torch.uint8
    assert batch["jpg"].shape == (8, 32, 40, 3)
    with stoker.Loader(dataset, 4, fields={"image": crop}, seed=1, budget=stoker.Budget(cpus=3)) as other:
        iterator = iter(other)
        halves = torch.cat([next(iterator)["image"], next(iterator)["image"]])
    assert torch.equal(halves, batch["image"])


def test_values_of_differing_shape_come_as_lists(tmp_path: Path) -> None:
    """Whole images of two sizes are a list of tensors, in order."""

    def member(i: int) -> dict[str, bytes]:
        return {"jpg": jpeg(i, width=40 + i % 2), "cls": str(i).encode()}

    varied = stoker.open(write_shards(tmp_path / "varied", 12, member=member))
    with stoker.Loader(varied, 4, fields={"jpg": stoker.image.Image()}, shuffle="none") as loader:
        batch = next(iter(loader))
    assert [tuple(one.shape) for one in batch["jpg"]] == [(32, 40, 3), (32, 41, 3)] * 2


def test_default_fields_decode_by_name(dataset: stoker.Dataset) -> None:
    """Without `fields`, every field is decoded by its extension."""
    with stoker.Loader(dataset, 4, shuffle="none") as loader:
        batch = next(iter(loader))
    assert batch["cls"].tolist() == [0, 1, 2, 3]
    assert batch["txt"] == [f"sample {i}" for i in range(4)]
    assert batch["jpg"][0].shape == (32, 40, 3)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"fields": {"wav": bytes}}, "no sample .*'wav'.*jpg"),
        ({"fields": {}}, "fields is empty"),
        ({"output": "jax"}, "output must be one of"),
        ({"on_bad": "ignore"}, "on_bad must be one of"),
        ({"shuffle": "shards"}, "shuffle must be"),
        ({"rank": 1}, "go together"),
        ({"device": "cpu", "output": "numpy"}, "needs output='torch'"),
        ({"fields": {"cls": "int"}}, "int"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_starts(
    dataset: stoker.Dataset, arguments: dict[str, object], words: str
) -> None:
    """The message names the argument and what was found."""
    with pytest.raises(UsageError, match=words):
        stoker.Loader(dataset, 4, **arguments)


def test_a_device_gets_copies(dataset: stoker.Dataset) -> None:
    """device='cpu' runs the same steps as a GPU: batches do not lie in the slab, and slots come back at once."""
    with stoker.Loader(dataset, 4, fields={"cls": int}, device="cpu", shuffle="none") as loader:
        kept = list(loader)
    assert [b["cls"].tolist() for b in kept] == [[i % 10 for i in range(f, f + 4)] for f in range(0, 48, 4)]


def test_the_first_batches_are_made_before_they_are_asked_for(dataset: stoker.Dataset, tmp_path: Path) -> None:
    """A loader begins when it is made, and one that is sent elsewhere right away begins there instead."""
    note = tmp_path / "seen"

    def seen(sample: dict[str, object]) -> dict[str, object]:
        with note.open("a") as out:
            out.write(f"{sample['__index__']}\n")
        return {"cls": sample["cls"]}

    with stoker.Loader(dataset, 4, fields={"cls": int}, transform=seen, output="numpy") as loader:
        until(note.exists)
        first = next(iter(loader))["__index__"].tolist()
    assert {int(line) for line in note.read_text().split()} >= set(first)
    with stoker.Loader(dataset, 4, fields={"cls": int}, output="numpy") as loader:
        loader.set_epoch(5)
        later = next(iter(loader))["__index__"].tolist()
    with stoker.Loader(dataset, 4, fields={"cls": int}, output="numpy") as loader:
        for _ in range(5):
            for _ in loader:
                pass
        assert next(iter(loader))["__index__"].tolist() == later


def test_a_state_beyond_the_epoch(dataset: stoker.Dataset) -> None:
    """A position that no epoch has is refused, and nothing changes."""
    with stoker.Loader(dataset, 4, fields={"cls": int}) as loader:
        state = loader.state_dict()
        with pytest.raises(UsageError, match="positions, the state stands at 1000000000000"):
            loader.load_state_dict({**state, "consumed": 10**12})
        assert loader.state_dict() == state


def test_a_tuple_of_what_a_transform_took_away(dataset: stoker.Dataset) -> None:
    """The missing field is named, and what there is."""
    with (
        stoker.Loader(dataset, 4, fields={"cls": int}, transform=doubles, layout="tuple") as loader,
        pytest.raises(UsageError, match=r"no cls; it has .*twice"),
    ):
        next(iter(loader))
