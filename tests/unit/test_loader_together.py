"""Batches that are only copied share slots: what comes out is the plan all the same, and slots come back."""

from __future__ import annotations

import copy
import warnings
from typing import Any

import numpy as np
import pytest

import stoker
from stoker.loader.attribute import Timeline
from stoker.loader.batch import Delivered
from stoker.loader.job import Job
from stoker.loader.plan import TOGETHER_BYTES, steps_together
from support_rows import arrays_bytes

SAMPLES = 500


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """Rows that say who they are."""
    folder = tmp_path_factory.mktemp("rows")
    for shard in range(4):
        first = shard * SAMPLES // 4
        rows = {f"{n:04d}": {"tokens": np.full(700, n, np.int32)} for n in range(first, first + SAMPLES // 4)}
        (folder / f"{shard}.arrays.bin").write_bytes(arrays_bytes(rows))
    return stoker.open(folder)


def plan(loader: stoker.Loader, epochs: int = 2) -> list[list[int]]:
    """The samples of each batch, once the batch was found to hold them."""
    found = []
    for _ in range(epochs):
        for batch in loader:
            numbers = batch["__index__"].tolist()
            assert batch["tokens"][:, 0].tolist() == batch["tokens"][:, -1].tolist() == numbers
            assert list(batch["__key__"]) == [f"{number:04d}" for number in numbers]
            found.append(numbers)
    return found


@pytest.mark.parametrize("options", [{}, {"tail": "pad"}, {"rank": 1, "world_size": 2}], ids=str)
def test_they_are_those_that_come_alone(dataset: stoker.Dataset, options: dict[str, Any]) -> None:
    """A batch_transform has every batch alone; two feeders, too."""
    with stoker.Loader(dataset, 8, seed=3, **options) as together:
        expected = plan(together)
        assert job_of(together, 8 * 700 * 4) > 1
    for alone in ({"batch_transform": dict}, {"budget": stoker.Budget(feeders=2)}):
        with stoker.Loader(dataset, 8, seed=3, **options, **alone) as loader:
            assert plan(loader) == expected
    assert len(expected) > 40


def job_of(loader: stoker.Loader, step_bytes: int) -> int:
    """How many of its steps share a slot."""
    job: Job = loader._job
    return steps_together(job, step_bytes)


def test_padding_is_told_apart(dataset: stoker.Dataset) -> None:
    """The mask goes with its batch: the last of an epoch only."""
    with stoker.Loader(dataset, 32, tail="pad") as loader:
        whole = [bool(batch["__mask__"].all()) for batch in loader]
        rows = sum(int(batch["__mask__"].sum()) for batch in loader)
    assert whole == [True] * 15 + [False] and rows == SAMPLES


def test_an_epoch_left_in_the_middle(dataset: stoker.Dataset) -> None:
    """What came together with the last batch is dropped: resumed elsewhere, or begun anew, the plan goes on rightly."""
    with stoker.Loader(dataset, 8, seed=3) as loader:
        expected = plan(loader, 3)
    steps = len(expected) // 3
    with stoker.Loader(dataset, 8, seed=3) as loader:
        for _, batch in zip(range(5), loader, strict=False):
            assert batch["__index__"].tolist() == expected.pop(0)
        state = loader.state_dict()
        assert next(iter(loader))["__index__"].tolist() == expected[steps - 5]  # the next epoch's first
    with stoker.Loader(dataset, 8, seed=3) as resumed:
        resumed.load_state_dict(state)
        assert plan(resumed, 3)[: len(expected)] == expected


def test_a_kept_batch_keeps_its_slot(dataset: stoker.Dataset) -> None:
    """One batch of a slot in use: the others' going must not free it, and nothing is copied for want of slots."""
    with stoker.Loader(dataset, 8, seed=3) as loader, warnings.catch_warnings():
        warnings.simplefilter("error")  # the one about kept batches
        batches = iter(loader)
        next(batches)
        kept = next(batches)
        was = copy.deepcopy({name: kept[name] for name in ("tokens", "__index__")})
        for _ in batches:
            pass
        plan(loader, 10)
        assert all(bool((kept[name] == values).all()) for name, values in was.items())


def test_batches_kept_are_copied_in_the_end(dataset: stoker.Dataset) -> None:
    """A loop that keeps all its batches never waits for a slot."""
    with stoker.Loader(dataset, 1, seed=3, budget=stoker.Budget(ram_bytes=1 << 20)) as loader:
        with pytest.warns(UserWarning, match="are kept"):
            kept = [batch for _ in range(3) for batch in loader]
        assert all(int(batch["tokens"][0, 0]) == int(batch["__index__"][0]) for batch in kept)


def test_how_many_share_a_slot(dataset: stoker.Dataset) -> None:
    """As many as the bytes allow, within the budget, and none where each is seen to by itself."""
    with stoker.Loader(dataset, 8) as loader:
        assert job_of(loader, 1) == TOGETHER_BYTES and job_of(loader, TOGETHER_BYTES + 1) == 1
    with stoker.Loader(dataset, 8, budget=stoker.Budget(ram_bytes=16 << 20)) as loader:
        assert job_of(loader, 1 << 18) == 4
    for options in ({"on_bad": "skip"}, {"batch_transform": dict}):
        with stoker.Loader(dataset, 8, **options) as loader:
            assert job_of(loader, 1) == 1


def test_a_slot_taken_apart() -> None:
    """Rows and steps add up to what was delivered."""
    told = Delivered(1, 0, 6, 2, 24, {}, (), Timeline(b""), {}, 3)
    assert [(one.step, one.first, one.rows, one.steps) for one in told.apart()] == [
        (6, 0, 8, 3),
        (7, 8, 8, 2),
        (8, 16, 8, 1),
    ]
    assert told._replace(steps=1).apart() == [told._replace(steps=1)]
