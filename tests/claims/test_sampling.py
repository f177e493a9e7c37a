"""Forward samples for backward statistics: when Proposition 3.1 holds, its limit, and its bias (chapter 5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.strategies import continuing_chains, costs

CHAIN = tb.two_state()
COST = np.array([0.0, 1.0])


def window_by_paths(chain: tb.Chain, first: np.ndarray, cost: np.ndarray, window: int) -> np.ndarray:
    """E[sum of the last window + 1 costs | final state] over all forward paths that start from ``first``."""
    states = range(chain.n_states)
    paths = [((x,), first[x]) for x in states]
    for _ in range(window):
        paths = [((*path, y), p * chain.transition[path[-1], y]) for path, p in paths for y in states]
    total, mass = np.zeros(chain.n_states), np.zeros(chain.n_states)
    for path, p in paths:
        total[path[-1]] += p * sum(cost[x] for x in path)
        mass[path[-1]] += p
    return total / mass


def window_backward(chain: tb.Chain, cost: np.ndarray, window: int) -> np.ndarray:
    """E of the same sum over the backward chain: window + 1 applications of the operator to zero."""
    back, value = tb.time_reversal(chain), np.zeros(chain.n_states)
    for _ in range(window + 1):
        value = tb.bellman_operator(back, cost, value)
    return value


@pytest.mark.claim("prop-sampling")
@given(st.data())
def test_finite_window_from_stationarity(data: st.DataObject) -> None:
    chain = data.draw(continuing_chains(max_states=3))
    cost, window = data.draw(costs(chain.n_states)), data.draw(st.integers(0, 4))
    law = tb.stationary_distribution(chain)
    expected = window_by_paths(chain, law, cost, window)
    np.testing.assert_allclose(window_backward(chain, cost, window), expected, rtol=1e-9, atol=1e-11)


def test_finite_window_golden() -> None:
    np.testing.assert_allclose(window_backward(CHAIN, COST, 3), [0.396, 2.02], rtol=1e-13)


def test_needs_stationarity() -> None:
    """From a fixed start the two sides differ: the hypothesis x_{t-K} ~ eta is not decoration."""
    from_start = window_by_paths(CHAIN, np.array([1.0, 0.0]), COST, 3)
    assert np.abs(from_start - window_backward(CHAIN, COST, 3)).min() > 0.05


@pytest.mark.claim("prop-sampling-limit")
@given(continuing_chains(max_states=5), st.data())
def test_limit_of_the_window_is_an_offset_from_the_average(chain: tb.Chain, data: st.DataObject) -> None:
    """sum_{k<K} P_back^k d - K eta.d -> (I - P_back + 1 eta)^{-1}(d - eta.d 1), for aperiodic chains; the sum itself diverges."""
    lazy = tb.Chain.continuing(0.5 * chain.transition + 0.5 * np.eye(chain.n_states))
    cost = data.draw(costs(chain.n_states))
    law, back = tb.stationary_distribution(lazy), tb.time_reversal(lazy).transition
    offset = np.linalg.solve(np.eye(lazy.n_states) - back + np.outer(np.ones(lazy.n_states), law), cost - law @ cost)
    power, total = back, cost
    for _ in range(11):  # S_{2n} = S_n + P^n S_n, up to 2048 terms
        power, total = power @ power, total + power @ total
    np.testing.assert_allclose(total - 2048 * law @ cost, offset, rtol=1e-6, atol=1e-6)


def exact_window(time: int, window: int) -> np.ndarray:
    """The truth at time t for episodes that start in state 0: time-indexed Bayes, by paths from the law at t - K."""
    first = np.array([1.0, 0.0]) @ np.linalg.matrix_power(CHAIN.transition, time - window)
    return window_by_paths(CHAIN, first, COST, window)


def bias_formula(chain: tb.Chain, cost: np.ndarray, time: int, window: int) -> np.ndarray:
    law = tb.stationary_distribution(chain)
    power = np.linalg.matrix_power
    start = np.eye(chain.n_states)[0]
    now = start @ power(chain.transition, time)
    bias = np.zeros(chain.n_states)
    for k in range(window + 1):
        then = start @ power(chain.transition, time - k)
        bias += ((then * cost) @ power(chain.transition, k)) / now - ((law * cost) @ power(chain.transition, k)) / law
    return bias


@pytest.mark.claim("prop-sampling-bias")
def test_bias_of_short_episodes() -> None:
    """The printed numbers: exact time-indexed value, backward-chain value, and their difference, at t = K = 5 and t = 10, K = 3."""
    exact = exact_window(5, 5)
    np.testing.assert_allclose(exact, [0.4560260586, 2.0766246363], atol=1e-10)
    np.testing.assert_allclose(window_backward(CHAIN, COST, 5), [0.72336, 2.3832], rtol=1e-12)
    np.testing.assert_allclose(exact - window_backward(CHAIN, COST, 5), [-0.2673339414, -0.3065753637], atol=1e-10)
    np.testing.assert_allclose(bias_formula(CHAIN, COST, 5, 5), [-0.2673339414, -0.3065753637], atol=1e-10)
    np.testing.assert_allclose(bias_formula(CHAIN, COST, 10, 3), [-0.0003818519, -0.0005812342], atol=1e-10)
    np.testing.assert_allclose(tb.finite_horizon_value(CHAIN_FROM_0, COST, 5).backward[5], exact, rtol=1e-12)


CHAIN_FROM_0 = tb.Chain(CHAIN.transition, CHAIN.termination, np.array([1.0, 0.0]))


def test_bias_vanishes_for_a_fixed_window_only() -> None:
    law = tb.stationary_distribution(CHAIN)
    fixed = [np.abs(bias_formula(CHAIN, COST, t, 3)).max() for t in (10, 20, 30)]
    rate = (fixed[2] / fixed[1]) ** (1 / 10)
    assert rate == pytest.approx(0.4, rel=1e-3)  # the chain's second eigenvalue
    whole = bias_formula(CHAIN, COST, 80, 80)
    limit = (np.array([1.0, 0.0]) - law) @ np.linalg.solve(
        np.eye(2) - CHAIN.transition + np.outer(np.ones(2), law), COST
    )
    np.testing.assert_allclose(whole, [limit, limit], atol=1e-9)
    assert limit == pytest.approx(-0.2777777778, abs=1e-10)
