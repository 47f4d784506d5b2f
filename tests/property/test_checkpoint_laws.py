"""Laws of checkpointing: what retention may delete, whatever happens when; what boxes leave of each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from hypothesis.strategies import booleans, data, integers, lists, sampled_from, tuples

from stoker.checkpoint.coverage import Box, minus, uncovered
from stoker.checkpoint.retention import Held, Keep, expired_local, expired_remote, to_upload


class Tiers(RuleBasedStateMachine):
    """A run over a local disk and two remotes: saves, failures, late or lost uploads, rewinds, pins, losses."""

    remotes = 2

    def __init__(self) -> None:
        super().__init__()
        self.keep = Keep(local=2, remote=2, every=50)
        self.number, self.step, self.lineage = 0, 0, 0
        self.local: dict[str, Held] = {}
        self.far: list[dict[str, Held]] = [{} for _ in range(self.remotes)]
        self.ever: dict[str, Held] = {}

    @rule(steps=integers(1, 3), verified=booleans())
    def save(self, steps: int, verified: bool) -> None:
        """A save is committed locally; it is read back now or later."""
        self.step += 10 * steps
        one = Held(f"n{self.number}", self.number, self.step, f"line{self.lineage}", verified)
        self.local[one.attempt] = self.ever[one.attempt] = one
        self.number += 1

    @rule()
    def fail(self) -> None:
        """A save fails: its number is used up, nothing lies anywhere."""
        self.step += 10
        self.number += 1

    @precondition(lambda self: self.local)
    @rule(choice=data())
    def verify(self, choice: object) -> None:
        """A local checkpoint is read back."""
        name = choice.draw(sampled_from(sorted(self.local)))
        self.local[name] = replace(self.local[name], verified=True)

    @precondition(lambda self: self.ever)
    @rule(choice=data())
    def rewind(self, choice: object) -> None:
        """Training goes back: a new lineage begins at an older step."""
        name = choice.draw(sampled_from(sorted(self.ever)))
        self.step, self.lineage = self.ever[name].step, self.lineage + 1

    @precondition(lambda self: self.local)
    @rule(choice=data(), pinned=booleans())
    def pin(self, choice: object, pinned: bool) -> None:
        """A person pins, or unpins."""
        name = choice.draw(sampled_from(sorted(self.local)))
        self.local[name] = replace(self.local[name], pinned=pinned)

    @precondition(lambda self: self.far)
    @rule(choice=data())
    def upload(self, choice: object) -> None:
        """The most urgent upload succeeds; at a remote, complete is verified."""
        remote = choice.draw(integers(0, self.remotes - 1))
        wanted = to_upload(list(self.local.values()), list(self.far[remote].values()), self.keep)
        if self.local:
            newest = max(self.local.values(), key=lambda one: one.number)
            assert newest.attempt in self.far[remote] or wanted[0] == newest.attempt
        if wanted:
            self.far[remote][wanted[0]] = replace(self.local[wanted[0]], verified=True, pinned=False)

    @rule()
    def expire_here(self) -> None:
        """The janitor looks at the local disk; every single deletion is judged by the invariant, spelled out anew."""
        for name in expired_local(list(self.local.values()), [list(far.values()) for far in self.far], self.keep):
            gone = self.local.pop(name)
            newer = [one for one in self.local.values() if one.lineage == gone.lineage and one.number > gone.number]
            assert len(newer) >= self.keep.local and any(one.verified for one in newer)
            assert not gone.pinned
            for far in self.far:
                later = [one for one in far.values() if one.lineage == gone.lineage and one.number > gone.number]
                assert name in far or later
            if self.keep.permanent(gone.step):
                assert all(name in far for far in self.far)

    @precondition(lambda self: self.far)
    @rule(choice=data())
    def expire_there(self, choice: object) -> None:
        """The same at a remote."""
        remote = choice.draw(integers(0, self.remotes - 1))
        for name in expired_remote(list(self.far[remote].values()), self.keep):
            gone = self.far[remote].pop(name)
            newer = [o for o in self.far[remote].values() if o.lineage == gone.lineage and o.number > gone.number]
            assert len(newer) >= self.keep.remote
            assert not self.keep.permanent(gone.step)

    @invariant()
    def the_newest_of_every_lineage_is_somewhere(self) -> None:
        """However it went, the newest committed checkpoint of each lineage exists, and so does every permanent one."""
        everywhere = set(self.local).union(*self.far)
        for line in {one.lineage for one in self.ever.values()}:
            newest = max((one for one in self.ever.values() if one.lineage == line), key=lambda one: one.number)
            assert newest.attempt in everywhere
        assert {one.attempt for one in self.ever.values() if self.keep.permanent(one.step)} <= everywhere


class LocalOnly(Tiers):
    """The same without a remote: then "verified" is said of the local disk."""

    remotes = 0


Tiers.TestCase.settings = LocalOnly.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestTiers = Tiers.TestCase
TestLocalOnly = LocalOnly.TestCase


SIDE = 5
BOXES = tuples(*[tuples(integers(0, SIDE), integers(0, SIDE))] * 3).map(
    lambda pairs: Box(tuple(start for start, _ in pairs), tuple(size for _, size in pairs))
)


def painted(boxes: list[Box]) -> np.ndarray:
    """How often each element of a cube is in one of the boxes."""
    cube = np.zeros((2 * SIDE,) * 3, dtype=int)
    for box in boxes:
        cube[tuple(slice(start, start + size) for start, size in zip(box.offsets, box.sizes, strict=True))] += 1
    return cube


@given(first=BOXES, second=BOXES)
def test_a_box_without_another(first: Box, second: Box) -> None:
    """The parts are apart from each other and are exactly the elements outside."""
    left = painted(minus(first, second)) if first.elements else painted([])
    assert np.array_equal(left, ((painted([first]) > 0) & (painted([second]) == 0)).astype(int))


@given(wanted=BOXES, saved=lists(BOXES, max_size=6))
def test_uncovered_counts_what_no_file_holds(wanted: Box, saved: list[Box]) -> None:
    """The same count as painting every element, also when saved boxes overlap."""
    assert uncovered(wanted, saved) == int(((painted([wanted]) > 0) & (painted(saved) == 0)).sum())


def test_a_scalar_is_covered_by_a_scalar() -> None:
    """No dimensions, one element."""
    assert uncovered(Box((), ()), []) == 1
    assert uncovered(Box((), ()), [Box((), ())]) == 0
