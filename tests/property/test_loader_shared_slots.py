"""Laws of batches that share a slot: wherever a run stops, on however many ranks, it goes on with the next sample."""

from __future__ import annotations

import random
import warnings
from typing import Any, Literal

import numpy as np
import pytest

import stoker
from stoker.loader.plan import Shuffle, plan_order
from support_rows import arrays_bytes

SAMPLES = 997
ROW = 700
"""Numbers of a sample: 187 batches of eight share a slot."""
LEGS = 4


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> stoker.Dataset:
    """Rows that say who they are."""
    folder = tmp_path_factory.mktemp("rows")
    for shard in range(4):
        numbers = range(shard * SAMPLES // 4, (shard + 1) * SAMPLES // 4)
        rows = {f"{n:04d}": {"tokens": np.full(ROW, n, np.int32)} for n in numbers}
        (folder / f"{shard}.arrays.bin").write_bytes(arrays_bytes(rows))
    return stoker.open(folder)


class Run:
    """A run that is stopped and resumed, and what it should have drawn."""

    def __init__(self, dataset: stoker.Dataset, draw: random.Random) -> None:
        self.dataset, self.draw = dataset, draw
        self.seed, self.tail = draw.randrange(2**32), draw.choice(("drop", "pad"))
        self.shuffle: Shuffle = draw.choice(("full", "none", stoker.Window(2)))
        self.order = plan_order(dataset, self.shuffle, seed=self.seed, canonical_nodes=1)
        self.epoch = self.consumed = 0
        self.state: dict[str, Any] | None = None
        self.kept: list[tuple[np.ndarray, np.ndarray]] = []
        """Batches that the loop holds on to, and what they held at first."""

    def leg(self) -> None:
        """Some steps on some ranks with some batch size, from where the last leg stopped."""
        draw = self.draw
        world, size = draw.choice((1, 1, 2, 3)), draw.choice((1, 3, 8, 17))
        budget = draw.choice((None, None, stoker.Budget(feeders=2), stoker.Budget(ram_bytes=16 << 20)))
        tail: Literal["drop", "pad"] = "pad" if self.tail == "pad" else "drop"
        loaders = [
            stoker.Loader(
                self.dataset, size, seed=self.seed, shuffle=self.shuffle, tail=tail, rank=rank, world_size=world,
                output="numpy", budget=budget,
            )
            for rank in range(world)
        ]  # fmt: skip
        try:
            for loader in loaders:
                if self.state is not None:
                    loader.load_state_dict(self.state)
            if loaders[0].epoch > self.epoch:  # stopped behind an epoch's last step
                assert SAMPLES - self.consumed < (world * size if tail == "drop" else 1)
                self.epoch, self.consumed = self.epoch + 1, 0
            iterators = [iter(loader) for loader in loaders]
            for _ in range(draw.randrange(1, 60)):
                batches = [next(iterator, None) for iterator in iterators]
                if any(batch is None for batch in batches):
                    assert not any(batches) and SAMPLES - self.consumed < (world * size if tail == "drop" else 1)
                    self.epoch, self.consumed = self.epoch + 1, 0
                    iterators = [iter(loader) for loader in loaders]
                    continue
                self.check(batches, world * size)
            self.state = loaders[0].state_dict()
            assert all(loader.state_dict() == self.state for loader in loaders)
        finally:
            for loader in loaders:
                loader.close()
        assert all(np.array_equal(held, was) for held, was in self.kept)

    def check(self, batches: list[Any], expected: int) -> None:
        """One step over all ranks: the next samples of the plan, each with its own row."""
        drawn: list[int] = []
        for batch in batches:
            numbers = batch["__index__"]
            assert (batch["tokens"] == numbers[:, None]).all() and batch["tokens"].shape == (len(numbers), ROW)
            assert list(batch["__key__"]) == [f"{number:04d}" for number in numbers.tolist()]
            drawn += numbers[batch["__mask__"]].tolist() if "__mask__" in batch else numbers.tolist()
        places = np.arange(self.consumed, self.consumed + len(drawn))
        assert drawn == self.order.at(self.epoch, places).tolist()
        self.consumed += len(drawn)
        assert len(drawn) == expected or (self.tail == "pad" and self.consumed == SAMPLES)
        if self.draw.random() < 0.1:
            held = batches[-1]["tokens"]
            self.kept = [*self.kept[-1:], (held, held.copy())]


@pytest.mark.parametrize("seed", [2, 3, 11])
def test_a_run_goes_on_where_it_stopped(dataset: stoker.Dataset, seed: int) -> None:
    """In the middle of a slot, on another world size and batch size, with batches kept meanwhile: all samples, once."""
    run = Run(dataset, random.Random(seed))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the one about kept batches: two of them leave slots enough
        for _ in range(LEGS):
            run.leg()
    assert run.epoch or run.consumed
