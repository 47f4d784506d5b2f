"""Whether samples lie in the order of their labels: how often neighbours have the same one. Pure.

In a well shuffled dataset of n samples, n_c of class c, two neighbours share their class with probability
Σ n_c (n_c − 1) / (n (n − 1)) (drawing two without putting back). In one that is ordered by label nearly all do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import pairwise

SIGMAS = 5.0
"""So many standard errors above the expectation, and it is no chance any more."""
MARGIN_MIN = 0.02
"""A smaller excess than this share of all neighbours does no harm."""


@dataclass(frozen=True, slots=True)
class ShuffleQuality:
    """How the labels lie."""

    pairs: int
    """Neighbours looked at."""
    equal_share: float
    """Share of neighbours with equal labels."""
    expected_share: float
    """The same for a shuffled dataset."""
    verdict: str
    """"shuffled", "partly ordered", "ordered by label", or "one label"."""


def shuffle_quality(blocks: Sequence[Sequence[Hashable]]) -> ShuffleQuality | None:
    """What runs of consecutive samples' labels say; None when there are no neighbours."""
    counts = Counter(label for block in blocks for label in block)
    total = sum(counts.values())
    pairs = sum(max(0, len(block) - 1) for block in blocks)
    if not pairs:
        return None
    equal = sum(a == b for block in blocks for a, b in pairwise(block)) / pairs
    expected = sum(count * (count - 1) for count in counts.values()) / (total * (total - 1))
    return ShuffleQuality(pairs, equal, expected, _verdict(equal, expected, pairs, len(counts)))


def _verdict(equal: float, expected: float, pairs: int, classes: int) -> str:
    if classes == 1:
        return "one label"
    error = math.sqrt(expected * (1 - expected) / pairs)
    if equal <= expected + max(SIGMAS * error, MARGIN_MIN):
        return "shuffled"
    return "ordered by label" if equal > expected + (1 - expected) / 2 else "partly ordered"
