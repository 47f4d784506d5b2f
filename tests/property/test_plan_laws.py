"""Laws of the plan: its changes suffice, more is never worse, and the verdict is the narrowest stage's."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stoker.plan import Demand, Supply, plan

rates = st.none() | st.floats(min_value=1e6, max_value=1e12)
demands = st.builds(
    Demand,
    st.integers(1, 4096), st.floats(min_value=1, max_value=1e9), st.floats(min_value=1e-3, max_value=100),
    st.integers(1, 16), st.integers(1, 100), st.none() | st.floats(min_value=1, max_value=1e9),
)  # fmt: skip
supplies = st.builds(
    Supply,
    st.sampled_from(["store", "lustre", "nvme", "memory"]), st.integers(1, 512), rates, rates, rates, rates,
    st.integers(1, 24), st.none() | st.floats(min_value=0, max_value=1), rates,
    st.just(0) | st.floats(min_value=0, max_value=1e15), st.floats(min_value=1e6, max_value=1e15),
)  # fmt: skip


@given(demands, supplies)
def test_with_all_changes_made_the_plan_is_fed(demand: Demand, supply: Supply) -> None:
    """What the plan asks for is enough, and where it asks for nothing nothing is missing."""
    found = plan(demand, supply)
    assert (found.changes == ()) == (found.verdict == "fed")
    whole = {"cores", "nvme_drives"}
    changed = replace(supply, **{c.argument: int(c.value) if c.argument in whole else c.value for c in found.changes})
    after = plan(demand, changed)
    assert after.supply_samples_per_s >= after.needed_samples_per_s * (1 - 1e-9)


@given(demands, supplies, st.floats(min_value=1, max_value=10))
def test_a_longer_step_is_never_worse(demand: Demand, supply: Supply, factor: float) -> None:
    """Idle share falls, supply stays."""
    before, after = plan(demand, supply), plan(replace(demand, step_s=demand.step_s * factor), supply)
    assert after.idle_share <= before.idle_share + 1e-12
    assert after.supply_samples_per_s == before.supply_samples_per_s


@given(demands, supplies)
def test_the_verdict_is_that_of_the_narrowest_stage(demand: Demand, supply: Supply) -> None:
    """Fed, tight and starved are the two lines; a starved run that idles has less than it takes."""
    found = plan(demand, supply)
    able = found.supply_samples_per_s
    assert able == min(stage.supply_samples_per_s for stage in found.stages)
    assert (found.idle_share > 0) == (able < demand.samples_per_s)
    assert found.idle_share == 0 or found.verdict == "starved"
    assert math.isfinite(found.to_dict()["supply_samples_per_s"] or 0)
