"""Batches that are only copied share slots: what comes out is the plan all the same, and slots come back."""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import stoker
from stoker.errors import FeederError, StoreError
from stoker.loader.attribute import Timeline
from stoker.loader.batch import ChunkState, Delivered
from stoker.loader.job import Job, Start
from stoker.loader.layout import lay_out
from stoker.loader.plan import TOGETHER_BYTES, steps_together
from stoker.loader.schedule import Schedule
from stoker.loader.slab import Slab
from stoker.order import Split, build_order
from support_dataset import lanes_of
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


def test_nothing_is_lost_before_a_bad_batch(tmp_path: Path) -> None:
    """Every batch before the one that fails arrives, as where each lies alone."""
    for shard in range(2):
        rows = {f"{shard}{n:04d}": {"tokens": np.full(50, n, np.int32)} for n in range(250)}
        (tmp_path / f"{shard}.arrays.bin").write_bytes(arrays_bytes(rows))
    data = stoker.open(tmp_path)
    (tmp_path / "1.arrays.bin").unlink()
    with stoker.Loader(data, 8, shuffle="none") as loader:
        batches = iter(loader)
        assert [int(next(batches)["__index__"][0]) for _ in range(31)] == list(range(0, 248, 8))
        with pytest.raises(StoreError, match=r"1\.arrays\.bin"):
            next(batches)


def copies(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Its arrays, not in the slot."""
    return {name: value.copy() for name, value in batch.items() if isinstance(value, np.ndarray)}


def test_shards_of_differing_shapes(tmp_path: Path) -> None:
    """Values that do not fit their slot go to the batches that they belong to, over epochs and in the right order."""
    for shard, width in enumerate((50, 70, 50)):
        first = 100 * shard
        rows = {f"{n:04d}": {"tokens": np.full(width, n, np.int32)} for n in range(first, first + 100)}
        (tmp_path / f"{shard}.arrays.bin").write_bytes(arrays_bytes(rows))
    data, found = stoker.open(tmp_path), []
    for alone in ({}, {"batch_transform": dict}):
        with stoker.Loader(data, 8, shuffle="none", output="numpy", **alone) as loader:
            batches = [{**batch, **copies(batch)} for _ in range(2) for batch in loader]
            found.append(batches)
        assert all([int(row[0]) for row in batch["tokens"]] == batch["__index__"].tolist() for batch in batches)
    kinds = [[(type(batch["tokens"]), batch["__index__"].tolist()) for batch in batches] for batches in found]
    assert kinds[0] == kinds[1] and len({kind for kind, _ in kinds[0]}) == 2


def test_a_forked_child_gets_none(dataset: stoker.Dataset) -> None:
    """What lies ready in the parent's slot would be overwritten under the child."""
    with stoker.Loader(dataset, 8) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        assert lanes_of(loader)._lanes[0]._rest
        child = os.fork()
        if child == 0:
            try:
                next(batches)
            except FeederError:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        next(batches)


def test_a_batch_that_was_never_handed_out(dataset: stoker.Dataset) -> None:
    """An interrupt between a batch's arrival and its use: the next slot's batches are of that slot all the same."""
    with stoker.Loader(dataset, 8, seed=3) as loader:
        expected = plan(loader)
    with stoker.Loader(dataset, 8, seed=3) as loader:
        batches = iter(loader)
        for _ in range(20):
            next(batches)
        lanes = lanes_of(loader)
        while lanes._lanes[0]._rest[1:]:
            next(batches)
        lanes.receive(loader._generation)  # the last of its slot, and gone
        assert plan(loader, 1) == expected[len(expected) // 2 :]


def schedule_of(gathered: bool) -> Schedule:
    """Of steps of 10 of 10,000 samples, with 8 slots that hold up to 64 of them; begun."""
    order, split = build_order("none", shard_starts=np.array([0, 10_000]), seed=0), Split(10_000, 10, 0, 1)
    work = SimpleNamespace(ram_bytes=1 << 30)
    job = cast(Job, SimpleNamespace(rows=10, order=order, split=split, work=work))
    layout = lay_out(640, {"x": ((), "int32")}, mask=False)
    slab = cast(Slab, SimpleNamespace(slots=8, layout=layout, arrays=lambda slot: layout.views(bytearray(1 << 14))))
    schedule = Schedule(job, slab, gathered=gathered)
    schedule.begin(Start(1, 0, 0))
    return schedule


def test_slots_begin_small() -> None:
    """Twice the steps while all lies in memory, one again after what had to be read."""
    schedule = schedule_of(gathered=True)
    steps, first = [], 0
    for gathered in (True, True, True, False, True, True):
        task = schedule.to_decode()
        assert task is not None
        batch, chunk = task
        batch.gathered = gathered
        assert batch.samples.tolist() == list(range(first, first + 10 * batch.steps))
        first += 10 * batch.steps
        steps.append(batch.steps)
        assert schedule.was_decoded(batch, chunk)
        schedule.was_closed(batch)
        assert schedule.finished() is batch and batch.slot is not None
        schedule.free([batch.slot])
    assert steps == [1, 2, 4, 8, 1, 2]


def test_several_slots_that_fail_at_once() -> None:
    """In whatever order slots of several steps fail, the plan goes on with the first step of the first, one by one."""
    schedule = schedule_of(gathered=True)
    tasks = []
    for _ in range(6):
        task = schedule.to_decode()
        assert task is not None
        tasks.append(task)
        schedule._together = 3
    for batch, chunk in (tasks[3], tasks[4], tasks[2], tasks[5]):  # cancelled: 4 and 5
        schedule.failed(batch, chunk, ValueError("bad"))
    assert schedule.state() == (2, 6)
    for first in range(10 + 30, 10 + 30 + 50, 10):
        task = schedule.to_decode()
        assert task is not None and task[0].samples.tolist() == list(range(first, first + 10))
    schedule.failed(*task, ValueError("bad"))
    assert task[0].failure is not None and schedule.to_decode() is None


def test_a_slot_that_is_being_closed_is_not_given_away() -> None:
    """A thread that makes a filled slot a batch writes into it, though none of its chunks is in hand."""
    for end in ("was_closed", "failed"):
        schedule = schedule_of(gathered=False)
        task = schedule.to_decode()
        assert task is not None
        batch, _ = task
        chunks = batch.chunks
        for one in chunks:
            one.state = ChunkState.DONE
        assert schedule.was_decoded(batch, chunks[-1])
        schedule.begin(Start(2, 0, 0))
        assert schedule.state() == (0, 7)
        if end == "failed":
            schedule.failed(batch, chunks[-1], ValueError("a batch_transform"))
        else:
            schedule.was_closed(batch)
        assert schedule.state() == (0, 8)
