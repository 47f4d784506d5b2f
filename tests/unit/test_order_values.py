"""Orders, splits and positions as values: golden numbers, an independent reference, and what bad input gets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stoker.errors import UsageError
from stoker.order import Position, Split, Window, build_order, plan_hash, sample_seed
from stoker.order.shuffle import Permutation, derive_key

GOLDEN = Path(__file__).parent.parent / "surface" / "golden_order.json"
MASK = 2**64 - 1
PLAN = "0123456789abcdef" * 2


def golden() -> dict[str, Any]:
    """The frozen values: changing one breaks the resume of every run in the world."""
    return json.loads(GOLDEN.read_text())


def compute() -> dict[str, Any]:
    """The values that golden_order.json freezes, as this code gives them."""
    starts = np.array([0, 7, 7, 20, 33, 50])
    orders = {
        "full": build_order("full", shard_starts=starts, seed=42),
        "none": build_order("none", shard_starts=starts, seed=42),
        "window": build_order(Window(2), shard_starts=starts, seed=42),
        "full_k3": build_order("full", shard_starts=starts, seed=42, canonical_nodes=3),
    }
    large = build_order("full", shard_starts=np.array([0, 10**12]), seed=2**64 - 1)
    return {
        "small": {
            name: [order.at(epoch, np.arange(50)).tolist() for epoch in (0, 1)] for name, order in orders.items()
        },
        "large": large.at(9, np.array([0, 1, 2, 10**11, 10**12 - 1])).tolist(),
        "key": derive_key(1, 2, "order", 0),
        "sample_seed": sample_seed(42, 3, 10**9),
        "plan": plan_hash(
            format_name="webdataset",
            shards=[("a.tar", 10, 2), ("b/é.tar", 5, 1)],
            seed=42,
            mode=Window(4),
            canonical_nodes=2,
        ),
    }


def test_golden_values_stand() -> None:
    """Orders, keys and plan hashes are those of the first release."""
    assert compute() == golden()


def reference_feistel(samples: int, key: int, position: int) -> int:
    """The large permutation again, in plain integers from its description."""
    bits = (samples - 1).bit_length()
    left_bits, right_bits = bits // 2, bits - bits // 2
    keys = [derive_key(key, "round", number) for number in range(8)]
    while True:
        left, right = position >> right_bits, position & ((1 << right_bits) - 1)
        for number, round_key in enumerate(keys):
            value = ((right if number % 2 == 0 else left) + round_key) & MASK
            value = (value * 0xBF58476D1CE4E5B9) & MASK
            value = ((value ^ value >> 32) * 0x94D049BB133111EB) & MASK
            if number % 2 == 0:
                left ^= value >> (64 - left_bits)
            else:
                right ^= value >> (64 - right_bits)
        position = left << right_bits | right
        if position < samples:
            return position


@pytest.mark.parametrize("samples", [65_536, 65_537, 100_003, 2**40 + 1, 2**62])
def test_arrays_and_plain_integers_agree(samples: int) -> None:
    """The vectorised network gives what arithmetic on Python integers gives."""
    positions = np.unique(np.linspace(0, samples - 1, 50).astype(np.int64).clip(0, samples - 1))
    expected = [reference_feistel(samples, 99, int(p)) for p in positions]
    assert Permutation(samples, 99).at(positions).tolist() == expected


def test_pieces_do_not_show() -> None:
    """A block longer than one piece gives the same as its parts."""
    whole = Permutation(10**9, 5).at(np.arange(150_000))
    parts = [Permutation(10**9, 5).at(np.arange(a, a + 50_000)) for a in (0, 50_000, 100_000)]
    assert np.array_equal(whole, np.concatenate(parts))


def test_positions_follow_the_formula() -> None:
    """Resumed at p, rank r of W takes at step s the positions [p + (s·W + r)·b, +b)."""
    split = Split(1000, 4, 2, 3)
    positions, mask = split.step(24, 5)
    assert positions.tolist() == list(range(24 + (5 * 3 + 2) * 4, 24 + (5 * 3 + 2) * 4 + 4))
    assert mask is None
    assert split.steps(24) == (1000 - 24) // 12
    assert split.consumed_after(24, 6) == 96
    assert split.consumed_after(990, 6) == 1000


def test_padding_repeats_the_beginning() -> None:
    """The last batch of tail "pad" is filled from the epoch's beginning, marked False."""
    positions, mask = Split(10, 4, 1, 2, tail="pad").step(0, 1)
    assert positions.tolist() == [2, 3, 4, 5]
    assert mask is not None and mask.tolist() == [False] * 4
    positions, mask = Split(10, 4, 0, 2, tail="pad").step(0, 1)
    assert positions.tolist() == [8, 9, 0, 1]
    assert mask is not None and mask.tolist() == [True, True, False, False]


def test_a_position_travels_as_plain_values() -> None:
    """to_dict and from_dict are inverse, through JSON too."""
    position = Position(3, 4096, PLAN)
    assert Position.from_dict(json.loads(json.dumps(position.to_dict()))) == position


GOOD = {"epoch": 0, "consumed": 5, "plan": PLAN, "version": 1}


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1}, {"epoch": True}, {"epoch": "0"}, {"consumed": 1.0}, {"consumed": -5}, {"plan": "zz"},
        {"plan": None}, {"plan": PLAN + "0"}, {"version": 2}, {"version": "1"}, {"extra": 1},
    ],
)  # fmt: skip
def test_a_foreign_position_is_refused(change: dict[str, object]) -> None:
    """Anything that to_dict does not write is an error."""
    with pytest.raises(UsageError):
        Position.from_dict({**GOOD, **change})
    with pytest.raises(UsageError):
        Position.from_dict({name: value for name, value in GOOD.items() if name != next(iter(change))} | {"extra": 0})


def test_the_plan_hash_sees_what_changes_the_order() -> None:
    """Format, shards, seed, mode, nodes and mixture enter the hash, and nothing can be confused with another."""
    base: dict[str, Any] = {
        "format_name": "webdataset", "shards": [("a", 1, 2)], "seed": 1, "mode": "full", "canonical_nodes": 1,
        "mixture": "",
    }  # fmt: skip
    changes: list[dict[str, Any]] = [
        {}, {"format_name": "files"}, {"shards": [("a", 1, 3)]}, {"shards": [("a", 12, 2)]}, {"shards": [("b", 1, 2)]},
        {"shards": [("a", 1, 2), ("b", 1, 2)]}, {"seed": 2}, {"mode": "none"}, {"mode": Window(64)},
        {"mode": Window(65)}, {"canonical_nodes": 2}, {"mixture": "x"},
    ]  # fmt: skip
    hashes = [plan_hash(**{**base, **change}) for change in changes]
    assert len(set(hashes)) == len(changes)


@pytest.mark.parametrize(
    "call",
    [
        lambda: build_order("auto", shard_starts=np.array([0, 5]), seed=1),
        lambda: build_order("full", shard_starts=np.array([1, 5]), seed=1),
        lambda: build_order("full", shard_starts=np.array([0, 5, 4]), seed=1),
        lambda: build_order("full", shard_starts=np.array([], np.int64), seed=1),
        lambda: build_order("full", shard_starts=np.array([0, 5]), seed=-1),
        lambda: build_order("full", shard_starts=np.array([0, 5]), seed=2**64),
        lambda: build_order("full", shard_starts=np.array([0, 5]), seed=1, canonical_nodes=0),
        lambda: build_order("full", shard_starts=np.array([0, 5]), seed=1).at(0, np.array([5])),
        lambda: build_order("full", shard_starts=np.array([0, 5]), seed=1).at(0, np.array([-1])),
        lambda: Window(0),
        lambda: Permutation(2**62 + 1, 0),
        lambda: Split(10, 0, 0, 1),
        lambda: Split(10, 1, 1, 1),
        lambda: Split(10, 1, -1, 1),
        lambda: Split(10, 3, 0, 1, 2),
        lambda: Split(10, 3, 0, 1, 0),
        lambda: Split(10, 3, 0, 1, tail="keep"),
        lambda: Split(10, 3, 0, 1).step(0, 3),
        lambda: Split(10, 3, 0, 1).steps(11),
    ],
)
def test_a_wrong_call_says_so(call: Any) -> None:
    """Arguments outside their range are a UsageError that names what was found."""
    with pytest.raises(UsageError, match=r"\d|auto|row|keep"):
        call()


def test_empty_sets_have_empty_epochs() -> None:
    """No samples, no steps, in every mode."""
    for mode in ("full", "none", Window(4)):
        order = build_order(mode, shard_starts=np.array([0]), seed=1)
        assert order.samples == 0 and len(order.at(0, np.array([], np.int64))) == 0
    assert Split(0, 4, 0, 1).steps() == 0 and Split(0, 4, 0, 1, tail="pad").steps() == 0
