"""The permutation looks random: no bias for tiny sets, no neighbours or serial correlation for large ones."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from stoker.order import build_order, sample_seed
from stoker.order.shuffle import Permutation, derive_key


def test_ten_samples_are_unbiased() -> None:
    """With 10 samples every sample stands at every position equally often (chi²/dof near 1)."""
    keys = 20_000
    counts = np.zeros((10, 10))
    for key in range(keys):
        counts[np.arange(10), Permutation(10, derive_key(7, key)).at(np.arange(10))] += 1
    chi2 = ((counts - keys / 10) ** 2 / (keys / 10)).sum()
    assert chi2 / 81 == pytest.approx(1, abs=0.5)


def test_all_permutations_of_four_are_equally_likely() -> None:
    """All 24 orders of 4 samples come up equally often."""
    keys = 24_000
    seen = Counter(tuple(Permutation(4, derive_key(3, key)).at(np.arange(4)).tolist()) for key in range(keys))
    assert set(seen) == set(permutations(range(4)))
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) / 23 == pytest.approx(1, abs=0.8)


@pytest.mark.parametrize("samples", [30_000, 65_536, 1_281_167])
def test_large_sets_show_no_structure(samples: int) -> None:
    """Over 20 keys: right number of neighbours kept, no serial correlation, displacement uniform."""
    neighbours, correlations = [], []
    for key in range(20):
        values = Permutation(samples, derive_key(11, key)).at(np.arange(samples))
        neighbours.append(int((np.abs(np.diff(values)) == 1).sum()))
        correlations.append(float(np.corrcoef(values[:-1], values[1:])[0, 1]))
        counts = np.histogram2d(np.arange(samples), values, bins=16)[0]
        chi2 = ((counts - samples / 256) ** 2 / (samples / 256)).sum() / 225
        assert chi2 == pytest.approx(1, abs=0.5)
    assert np.mean(neighbours) == pytest.approx(2, abs=4 * np.sqrt(2 / 20))
    assert abs(np.mean(correlations)) < 4 / np.sqrt(samples * 20)
    assert np.std(correlations) * np.sqrt(samples) == pytest.approx(1, abs=0.6)


def test_epochs_and_seeds_are_unrelated() -> None:
    """Two epochs, or two seeds, share about one fixed position."""
    starts = np.array([0, 100_000])
    first = build_order("full", shard_starts=starts, seed=1).at(0, np.arange(100_000))
    for seed, epoch in ((1, 1), (2, 0), (0, 1)):
        other = build_order("full", shard_starts=starts, seed=seed).at(epoch, np.arange(100_000))
        assert int((first == other).sum()) < 12
        assert abs(np.corrcoef(first, other)[0, 1]) < 0.02


def test_augmentation_seeds_differ() -> None:
    """Every (seed, epoch, sample) has its own 64-bit seed whose bits are balanced."""
    seeds = {sample_seed(s, e, i) for s in range(3) for e in range(3) for i in range(1000)}
    assert len(seeds) == 9000
    ones = np.mean([seed.bit_count() for seed in seeds])
    assert ones == pytest.approx(32, abs=0.25)
