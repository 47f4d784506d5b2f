"""Laws of `stoker.torch`'s samplers: whatever is stopped and resumed, on whatever ranks, is one epoch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stoker.torch import BatchSampler


@given(
    samples=st.integers(1, 300),
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 5),
    legs=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=4),
)
def test_any_stops_and_resumes_are_the_uninterrupted_epoch(
    samples: int, seed: int, epoch: int, legs: list[tuple[int, int, int]]
) -> None:
    """Each leg on its own number of ranks and batch size: over steps and ranks the samples are those of one rank."""
    alone = BatchSampler(samples, 1, seed=seed)
    alone.set_epoch(epoch)
    whole = [int(batch[0]) for batch in alone]
    state, found = alone.state_after(0), list[int]()
    for world, size, steps in legs:
        if world * size > samples or state["epoch"] != epoch:
            continue
        ranks = [BatchSampler(samples, size, seed=seed, ranks=(rank, world)) for rank in range(world)]
        for sampler in ranks:
            sampler.load_state_dict(state)
        if ranks[0].epoch != epoch:
            break
        drawn = [list(sampler) for sampler in ranks]
        assert len({len(batches) for batches in drawn}) == 1
        taken = min(steps, len(drawn[0]))
        found += [int(number) for step in range(taken) for batches in drawn for number in batches[step]]
        state = ranks[-1].state_after(taken)
        assert all(sampler.state_after(taken) == state for sampler in ranks)
    assert found == whole[: len(found)]
