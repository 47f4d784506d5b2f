"""Laws of successive halving: the best is found, the time is bounded, equals go to the cheapest."""

from __future__ import annotations

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from stoker.tune.halving import FINALISTS, cheapest_of_the_best, rounds, survivors

rates = st.lists(st.floats(min_value=0.001, max_value=1e6), min_size=1, max_size=200)


@given(st.integers(1, 5000), st.floats(min_value=0.01, max_value=100))
def test_rounds_shrink_while_they_get_longer(candidates: int, seconds: float) -> None:
    """All take part in the first, at most two in the last, which measures for the full time."""
    found = rounds(candidates, seconds=seconds)
    assert found[0].candidates == candidates
    assert found[-1].candidates <= FINALISTS or candidates <= FINALISTS
    assert found[-1].seconds == seconds
    assert all(a.candidates > b.candidates and a.seconds < b.seconds for a, b in pairwise(found))


@given(st.integers(9, 5000), st.floats(min_value=0.01, max_value=100))
def test_halving_measures_for_a_fraction_of_the_full_time(candidates: int, seconds: float) -> None:
    """From nine candidates on, two thirds at most of what measuring each for the full time takes; of many less."""
    spent = sum(stage.candidates * stage.seconds for stage in rounds(candidates, seconds=seconds))
    assert spent < candidates * seconds * (0.66 if candidates < 30 else 0.35 if candidates < 100 else 0.18)


@given(rates)
def test_the_best_survives_all_rounds(values: list[float]) -> None:
    """With rates that do not waver, what is left at the end is the fastest."""
    field = list(range(len(values)))
    plan = rounds(len(field), seconds=1.0)
    for stage in plan[1:]:
        field = survivors(field, stage.candidates, rate=values.__getitem__, cost=lambda one: one)
        assert len(field) == stage.candidates
    assert max(values) == max(values[one] for one in field)


@given(rates, st.floats(min_value=0.001, max_value=1e6))
def test_the_choice_is_the_cheapest_that_is_enough(values: list[float], enough: float) -> None:
    """Enough, or within 3 % of the best; and nothing cheaper is."""
    options: dict[str, object] = {"rate": values.__getitem__, "cost": lambda one: one}
    chosen = cheapest_of_the_best(range(len(values)), **options, enough=enough)
    assert chosen is not None
    line = min(enough, 0.97 * max(values))
    assert values[chosen] >= line
    assert all(value < line for value in values[:chosen])


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0]), max_size=20))
def test_what_failed_is_never_left(values: list[float]) -> None:
    """A rate of 0 is a failure."""
    left = survivors(range(len(values)), 5, rate=values.__getitem__, cost=lambda one: one, enough=math.inf)
    assert all(values[one] > 0 for one in left)
    chosen = cheapest_of_the_best(range(len(values)), rate=values.__getitem__, cost=lambda one: one)
    assert (chosen is None) == (not any(values))
