"""The sketch behind `stoker.observe` against all durations kept."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stoker.observe.sketch import ERROR, Sketch

durations = st.lists(st.floats(min_value=2e-7, max_value=1e5), min_size=1, max_size=400)


@given(durations, st.floats(min_value=0, max_value=1))
def test_quantiles_are_right_within_a_per_cent(values: list[float], share: float) -> None:
    """The sketch's quantile is within 1 % of the exact one, count, sum and maximum are exact."""
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    exact = sorted(values)[max(1, int(np.ceil(share * len(values)))) - 1]
    assert abs(sketch.quantile(share) - exact) <= exact * ERROR * 1.0001
    assert sketch.count == len(values)
    assert sketch.max_s == max(values)
    assert np.isclose(sketch.total_s, sum(values))


@given(st.lists(st.floats(min_value=0, max_value=1e300), max_size=200))
def test_memory_is_bounded(values: list[float]) -> None:
    """Nothing, the impossibly short and the impossibly long are counted too, in at most 1,500 buckets."""
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    assert sketch.buckets <= 1_500
    assert sketch.count == len(values)
    assert 0 <= sketch.quantile(0.5) <= max(values, default=0)
