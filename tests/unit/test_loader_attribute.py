"""Waits go to the stage that the missing batch was in, and the parts add up."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stoker.events import STAGES, Stage
from stoker.loader.attribute import Timeline, attribute


def test_a_wait_inside_one_stage_is_all_that_stage() -> None:
    """A trainer that waits while the batch is decoded waits for decoding."""
    assert attribute(1.0, 2.0, [("queue", 0.0, 3.0), ("decode", 0.5, 2.5)]) == {"decode": 1.0}


def test_parallel_stages_share_the_moment() -> None:
    """Two chunks in different stages each take half of the time that they share."""
    parts = attribute(0.0, 2.0, [("decode", 0.0, 2.0), ("store_read", 1.0, 2.0)])
    assert parts == pytest.approx({"decode": 1.5, "store_read": 0.5})


def test_before_the_first_and_after_the_last_interval() -> None:
    """A batch not begun is in the queue, one that is done is being handed over."""
    parts = attribute(0.0, 4.0, [("decode", 1.0, 3.0)])
    assert parts == pytest.approx({"queue": 1.0, "decode": 2.0, "hand_over": 1.0})


def test_a_hole_between_stages_is_other_unless_the_batch_stood_in_line() -> None:
    """`other` is what no stage claims; standing in line claims what nothing else does."""
    work = [("decode", 0.0, 1.0), ("collate", 2.0, 3.0)]
    assert attribute(0.0, 3.0, work)["other"] == pytest.approx(1.0)
    assert attribute(0.0, 3.0, [*work, ("queue", 0.0, 3.0)]) == pytest.approx({"decode": 1, "queue": 1, "collate": 1})


def test_no_wait_has_no_parts() -> None:
    """A wait of nothing is nothing."""
    assert attribute(1.0, 1.0, [("decode", 0.0, 2.0)]) == {}


@given(
    start=st.integers(0, 50),
    length=st.integers(1, 50),
    intervals=st.lists(st.tuples(st.sampled_from(STAGES), st.integers(0, 100), st.integers(0, 30)), max_size=12),
)
def test_parts_add_up_to_the_wait(start: int, length: int, intervals: list[tuple[str, int, int]]) -> None:
    """Whatever the timeline, every second of the wait is charged exactly once."""
    timeline = [(stage, float(begin), float(begin + size)) for stage, begin, size in intervals]
    parts = attribute(float(start), float(start + length), timeline)
    assert sum(parts.values()) == pytest.approx(length)
    assert all(seconds > 0 for seconds in parts.values())


@given(st.lists(st.tuples(st.sampled_from(STAGES), st.floats(0, 1e9), st.floats(0, 1e9)), min_size=1))
def test_a_timeline_crosses_whole(intervals: list[tuple[Stage, float, float]]) -> None:
    """What the trainer takes out is what the feeder put in, to the bit, and the end is known without taking it out."""
    told: Timeline = pickle.loads(pickle.dumps(Timeline.of(intervals)))
    assert told.intervals() == intervals and told.last_s == intervals[-1][2]
