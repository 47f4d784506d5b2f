"""Laws of order: ranks share an epoch, stops and resumes change nothing, canonical nodes keep their parts."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoker.errors import UsageError
from stoker.order import Mode, Order, Split, Window, build_order
from stoker.order.shuffle import Permutation

LAW = settings(deadline=None, derandomize=True)
SEEDS = st.integers(0, 2**64 - 1)
MODES = st.one_of(st.sampled_from(["full", "none"]), st.builds(Window, st.integers(1, 9)))
SHARDS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def starts_of(sizes: list[int]) -> np.ndarray:
    """Shard starts of shards with these sizes."""
    return np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)


def run_on(order: Order, split: Split, start: int, steps: int) -> list[int]:
    """Samples of *steps* global batches from *start*, step by step and rank by rank."""
    taken: list[int] = []
    for number in range(steps):
        for rank in range(split.world_size):
            here = Split(split.samples, split.batch_size, rank, split.world_size, split.canonical_nodes, split.tail)
            taken += order.at(0, here.step(start, number)[0]).tolist()
    return taken


@LAW
@given(samples=st.integers(0, 3000), key=SEEDS)
def test_a_small_permutation_is_a_bijection(samples: int, key: int) -> None:
    """Every sample of a small set stands at exactly one position."""
    assert sorted(Permutation(samples, key).at(np.arange(samples)).tolist()) == list(range(samples))


@settings(LAW, max_examples=25)
@given(samples=st.integers(65_530, 140_000), key=SEEDS)
def test_a_feistel_permutation_is_a_bijection(samples: int, key: int) -> None:
    """Every sample of a large set stands at exactly one position, also around the switch at 65,536."""
    assert np.array_equal(np.sort(Permutation(samples, key).at(np.arange(samples))), np.arange(samples))


@LAW
@given(
    samples=st.integers(2**40, 2**62), key=SEEDS, positions=st.sets(st.integers(0, 2**40 - 1), min_size=2, max_size=50)
)
def test_a_huge_permutation_stays_inside_and_repeats_nothing(samples: int, key: int, positions: set[int]) -> None:
    """Up to 2^62 samples the values are inside and distinct."""
    values = Permutation(samples, key).at(np.array(sorted(positions)))
    assert len(set(values.tolist())) == len(positions)
    assert 0 <= values.min() <= values.max() < samples


@LAW
@given(sizes=SHARDS, mode=MODES, seed=SEEDS, epoch=st.integers(0, 5), nodes=st.integers(1, 7))
def test_an_epoch_visits_every_sample_once(sizes: list[int], mode: Mode, seed: int, epoch: int, nodes: int) -> None:
    """In every mode and for every number of canonical nodes an epoch is a permutation of the samples."""
    order = build_order(mode, shard_starts=starts_of(sizes), seed=seed, canonical_nodes=nodes)
    visited = order.at(epoch, np.arange(order.samples))
    assert np.array_equal(np.sort(visited), np.arange(sum(sizes)))


@LAW
@given(sizes=SHARDS, mode=MODES, seed=SEEDS, positions=st.data())
def test_an_order_answers_any_positions_alike(
    sizes: list[int], mode: Mode, seed: int, positions: st.DataObject
) -> None:
    """Asked for some positions, in any arrangement and after a pickle, an order gives what it gives for all."""
    order = build_order(mode, shard_starts=starts_of(sizes), seed=seed)
    whole = order.at(3, np.arange(order.samples))
    if order.samples:
        asked = np.array(positions.draw(st.lists(st.integers(0, order.samples - 1), max_size=20)), np.int64)
        again = pickle.loads(pickle.dumps(order))
        assert np.array_equal(order.at(3, asked), whole[asked])
        assert np.array_equal(again.at(3, asked), whole[asked])


@LAW
@given(
    samples=st.integers(1, 600), batch=st.integers(1, 9), world=st.integers(1, 9), tail=st.sampled_from(["drop", "pad"])
)
def test_ranks_share_an_epoch(samples: int, batch: int, world: int, tail: str) -> None:
    """Together the ranks take every position once: up to the dropped rest, or filled up with masked repeats."""
    ranks = [Split(samples, batch, rank, world, tail=tail) for rank in range(world)]
    assert len({rank.steps() for rank in ranks}) == 1
    taken, real = [], []
    for number in range(ranks[0].steps()):
        for rank in ranks:
            positions, mask = rank.step(0, number)
            assert positions.shape == (batch,) and (mask is None) == (tail == "drop")
            taken += positions.tolist()
            real += positions.tolist() if mask is None else positions[mask].tolist()
    whole = samples if tail == "pad" else samples - samples % (batch * world)
    assert real == list(range(whole))
    assert set(taken) <= set(range(samples))
    assert len(taken) == ranks[0].steps() * batch * world


RUNS = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 8), st.integers(0, 6)), min_size=1, max_size=8)


@LAW
@given(sizes=SHARDS, mode=MODES, seed=SEEDS, runs=RUNS)
def test_stops_and_resumes_change_nothing(
    sizes: list[int], mode: Mode, seed: int, runs: list[tuple[int, int, int]]
) -> None:
    """Any sequence of stops and resumes on any world sizes and batch sizes equals the uninterrupted sequence."""
    order = build_order(mode, shard_starts=starts_of(sizes), seed=seed)
    whole = order.at(0, np.arange(order.samples)).tolist()
    position, taken = 0, []
    for world, batch, steps in runs:
        split = Split(order.samples, batch, 0, world)
        steps = min(steps, split.steps(position))
        taken += run_on(order, split, position, steps)
        position = split.consumed_after(position, steps)
    assert taken == whole[:position]
    last = Split(order.samples, 3, 0, 2)
    taken += run_on(order, last, position, last.steps(position))
    assert taken == whole[: len(taken)] and order.samples - len(taken) < last.global_batch


@LAW
@given(
    sizes=SHARDS, mode=MODES, seed=SEEDS, nodes=st.integers(1, 4),
    runs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=6),
)  # fmt: skip
def test_canonical_nodes_are_taken_evenly(
    sizes: list[int], mode: Mode, seed: int, nodes: int, runs: list[tuple[int, int, int]]
) -> None:
    """After p samples, on any world sizes, exactly the first p / K of each of the K parts have been taken."""
    order = build_order(mode, shard_starts=starts_of(sizes), seed=seed, canonical_nodes=nodes)
    total = order.samples
    parts = [total * k // nodes for k in range(nodes + 1)]
    position, taken = 0, []
    for world, batch, steps in runs:
        split = Split(total, batch * nodes, 0, world, nodes)
        steps = min(steps, split.steps(position))
        taken += run_on(order, split, position, steps)
        position = split.consumed_after(position, steps)
        for part in range(nodes):
            places = np.arange(position // nodes) * nodes + part
            mine = {sample for sample in taken if parts[part] <= sample < parts[part + 1]}
            assert mine == set(order.at(0, places).tolist()) and len(mine) == position // nodes


@LAW
@given(nodes=st.integers(1, 6), local=st.integers(1, 4), batch=st.integers(1, 5), epoch=st.integers(0, 3))
def test_a_node_keeps_its_part(nodes: int, local: int, batch: int, epoch: int) -> None:
    """When the world is the canonical one, a node's ranks take samples of its own part in every epoch."""
    samples = nodes * local * batch * 3 + 1
    order = build_order("full", shard_starts=np.array([0, samples]), seed=1, canonical_nodes=nodes)
    for rank in range(nodes * local):
        split = Split(samples, batch, rank, nodes * local, nodes)
        node = rank // local
        for number in range(split.steps()):
            seen = order.at(epoch, split.step(0, number)[0])
            assert samples * node // nodes <= seen.min() and seen.max() < samples * (node + 1) // nodes


@LAW
@given(samples=st.integers(1, 200), world=st.integers(1, 4), batch=st.integers(1, 4), nodes=st.integers(1, 4))
def test_padding_with_canonical_nodes_loses_nothing(samples: int, world: int, batch: int, nodes: int) -> None:
    """With tail "pad" and K nodes the unmasked positions are every position once."""
    ranks = [Split(samples, batch * nodes, rank, world, nodes, "pad") for rank in range(world)]
    steps = [rank.step(0, number) for number in range(ranks[0].steps()) for rank in ranks]
    assert sorted(p for positions, mask in steps for p in positions[mask].tolist()) == list(range(samples))


@LAW
@given(sizes=st.lists(st.integers(1, 20), min_size=1, max_size=40), width=st.integers(1, 8), seed=SEEDS)
def test_a_window_bounds_the_shards_in_use(sizes: list[int], width: int, seed: int) -> None:
    """Each window's stretch of the sequence comes from that window's shards and no others."""
    starts = starts_of(sizes)
    order = build_order(Window(width), shard_starts=starts, seed=seed)
    shards = np.searchsorted(starts, order.at(0, np.arange(order.samples)), side="right") - 1
    seen, begin = set(), 0
    while begin < len(shards):
        group = set(shards[begin : begin + 1].tolist())
        stop = begin
        while sum(sizes[s] for s in group) > stop - begin or (len(group) < width and stop < len(shards)):
            group.add(int(shards[stop]))
            stop += 1
        assert len(group) <= width and not group & seen
        seen |= group
        begin = stop
    assert seen == set(range(len(sizes)))


def test_a_position_inside_a_part_is_refused() -> None:
    """With K nodes a position that K does not divide cannot have come from a step."""
    with pytest.raises(UsageError, match="multiple"):
        Split(100, 4, 0, 1, 4).steps(6)
