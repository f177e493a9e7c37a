"""Chapter 16: what a faster part brings to the whole, and engines that cost a price per call and a price per world."""

from __future__ import annotations

from fractions import Fraction
from math import floor

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

POSITIVE = st.fractions(min_value=Fraction(1, 50), max_value=50, max_denominator=50)
COUNT = st.integers(1, 500)


def pipeline(times: list[Fraction], n_batches: int) -> Fraction:
    """Return when the last of n batches leaves, if every part handles one batch at a time and batches keep their order."""
    free = [Fraction(0)] * len(times)
    leaves = Fraction(0)
    for _ in range(n_batches):
        leaves = Fraction(0)
        for part, time in enumerate(times):
            leaves = free[part] = max(leaves, free[part]) + time
    return leaves


@pytest.mark.claim("prop-amdahl")
@given(st.lists(POSITIVE, min_size=2, max_size=5), POSITIVE, st.fractions(Fraction(1, 20), Fraction(19, 20)))
def test_one_faster_part(times: list[Fraction], factor: Fraction, share: Fraction) -> None:
    """Against times that are added up: below the bound for every factor, and at the stated share of it."""
    total = sum(times)
    f = times[0] / total

    def speedup(s: Fraction) -> Fraction:
        return total / (times[0] / s + sum(times[1:]))

    shares = [each / total for each in times]
    assert speedup(factor) == 1 / (shares[0] / factor + sum(shares[1:]))
    bound = 1 / (1 - f)
    assert speedup(factor) < bound
    assert speedup(share / (1 - share) * f / (1 - f)) == share * bound
    assert speedup(f / (1 - f)) == bound / 2
    assert bound - speedup(Fraction(10**9)) < bound * bound / 10**6


@pytest.mark.claim("prop-amdahl")
@given(st.lists(st.tuples(POSITIVE, POSITIVE), min_size=2, max_size=5))
def test_all_parts_faster(parts: list[tuple[Fraction, Fraction]]) -> None:
    """The new step takes the sum of the new times; it is a harmonic mean, so it lies between the factors."""
    total = sum(time for time, _ in parts)
    found = total / sum(time / factor for time, factor in parts)
    assert found == 1 / sum((time / total) / factor for time, factor in parts)
    assert min(factor for _, factor in parts) <= found <= max(factor for _, factor in parts)


@pytest.mark.claim("prop-amdahl")
@given(st.lists(POSITIVE, min_size=2, max_size=4))
def test_parts_that_overlap(times: list[Fraction]) -> None:
    """A simulated pipeline never beats the slowest part, and comes as near to it as the first filling allows."""
    n, total, slowest = 20, sum(times), max(times)
    took = pipeline(times, n)
    assert n * slowest <= took <= n * slowest + total
    assert n * total / took <= total / slowest <= len(times)


@pytest.mark.claim("prop-latency")
@given(POSITIVE, POSITIVE, COUNT, COUNT)
def test_throughput_and_stacks(a: Fraction, b: Fraction, worlds: int, runs: int) -> None:
    """Within a factor of two of the smaller of two ceilings, half of the limit at a / b, and the gain of a stack."""

    def rate(w: Fraction | int) -> Fraction:
        return w / (a + b * w)

    ceiling = min(worlds / a, 1 / b)
    assert ceiling / 2 <= rate(worlds) < ceiling
    assert rate(worlds) < rate(worlds + 1)
    assert rate(a / b) == 1 / (2 * b)
    gain = sum(a + b for _ in range(runs)) / (a + b * runs)
    assert 1 <= gain < 1 + a / b
    assert gain < (runs + 1) * (a + b) / (a + b * (runs + 1))


@pytest.mark.claim("prop-latency")
@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_crossover(a1: Fraction, b1: Fraction, extra: Fraction, b2: Fraction) -> None:
    """Whole numbers of worlds on either side of the crossover, and none at all for an engine that is no cheaper."""
    a2 = a1 + extra

    def is_faster(worlds: int) -> bool:
        return a2 + b2 * worlds < a1 + b1 * worlds

    if b2 >= b1:
        assert not any(is_faster(worlds) for worlds in (1, 100, 10**9))
        return
    crossover = (a2 - a1) / (b1 - b2)
    assert not is_faster(floor(crossover))
    assert is_faster(floor(crossover) + 1)


@pytest.mark.claim("prop-latency")
@given(POSITIVE, POSITIVE, POSITIVE, st.integers(1, 40))
def test_crossover_against_cores(a2: Fraction, b: Fraction, b2: Fraction, cores: int) -> None:
    """The formula in c, its growth beyond proportion, and the number of cores that no GPU of this kind beats."""
    assume(b2 < b)
    if cores * b2 >= b:
        assert a2 + b2 * 10**9 >= b / cores * 10**9
        return
    crossover = a2 * cores / (b - cores * b2)
    assert a2 + b2 * crossover == b / cores * crossover
    assert crossover >= cores * a2 / (b - b2)
    assert (crossover == cores * a2 / (b - b2)) == (cores == 1)
