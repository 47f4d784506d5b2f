"""Successive halving: many settings for a short time, the better third for longer, the best for long. Pure.

A trial's measured rate wavers less the longer it runs, and most settings are so far from the best that a short look
shows it (Jamieson and Talwalkar, 2016). What is left at the end has been measured for as long as a full search would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

Candidate = TypeVar("Candidate")

SHRINK = 3
"""One in three goes on to the next round."""
GROW = 2
"""… which measures for twice as long."""
FINALISTS = 2
"""The last round begins with no more than so many."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of the search."""

    candidates: int
    """How many take part."""
    seconds: float
    """How long each is measured."""


def rounds(candidates: int, *, seconds: float) -> tuple[Round, ...]:
    """The rounds for so many candidates; the last one measures for *seconds*."""
    if candidates < 1:
        return ()
    counts = [candidates]
    while counts[-1] > FINALISTS:
        counts.append(max(1, math.ceil(counts[-1] / SHRINK)))
    return tuple(Round(count, seconds / GROW ** (len(counts) - 1 - at)) for at, count in enumerate(counts))


def survivors(
    candidates: Iterable[Candidate],
    keep: int,
    *,
    rate: Callable[[Candidate], float],
    cost: Callable[[Candidate], object],
    enough: float = math.inf,
) -> list[Candidate]:
    """The *keep* best, best first: by rate, as far as it is not more than *enough*; of equals the cheapest.

    A candidate whose rate is 0 has failed and never survives.
    """
    able = [candidate for candidate in candidates if rate(candidate) > 0]
    return sorted(able, key=lambda one: (-min(rate(one), enough), cost(one)))[:keep]


def cheapest_of_the_best(
    candidates: Iterable[Candidate],
    *,
    rate: Callable[[Candidate], float],
    cost: Callable[[Candidate], object],
    enough: float = math.inf,
    slack: float = 0.03,
) -> Candidate | None:
    """The cheapest candidate whose rate is *enough*, or else within *slack* of the best; None when all have failed.

    3 % is where one more worker is not worth what it takes from the training process.
    """
    able = [candidate for candidate in candidates if rate(candidate) > 0]
    if not able:
        return None
    line = min(enough, max(map(rate, able)) * (1 - slack))
    return min((one for one in able if rate(one) >= line), key=lambda one: (cost(one), -rate(one)))
