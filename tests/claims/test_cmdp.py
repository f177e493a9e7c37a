"""Penalties, occupancy measures, randomisation, time, the frontier, discounted limits (chapters 1 and 2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.strategies import SEED, cmdps, policies


@pytest.mark.claim("prop-penalty-gap")
def test_no_fixed_penalty_finds_the_randomised_optimum() -> None:
    """coin_flip: below price 1 the penalised optimum is over the limit, above it earns nothing; only the tie contains 1/2."""
    problem = tb.coin_flip()
    optimum = tb.optimal_policy(problem)
    assert (optimum.value, optimum.cost) == pytest.approx((0.5, 0.5))
    for price, expected in ((0.0, (1.0, 1.0)), (0.9, (1.0, 1.0)), (1.1, (0.0, 0.0)), (5.0, (0.0, 0.0))):
        gain = problem.reward - price * (problem.kernel @ problem.cost).reshape(2, 2)
        assert tb.evaluate_policy(problem, tb.greedy_policy(gain)) == pytest.approx(expected)
    assert optimum.multiplier == pytest.approx(1.0)


@pytest.mark.claim("prop-occupancy-lp")
@given(st.data())
def test_policies_are_occupancy_measures(data: st.DataObject) -> None:
    """Flow balance, linear return and cost, recovery of the policy where it acts; and no policy beats the program."""
    cmdp = data.draw(cmdps())
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    gamma = data.draw(st.sampled_from([1.0, 0.9]))
    occupancy = tb.occupancy_measure(cmdp, policy, gamma)
    arrivals = gamma * (occupancy.ravel() @ cmdp.kernel)
    np.testing.assert_allclose(occupancy.sum(axis=1), cmdp.initial + arrivals, rtol=1e-9, atol=1e-12)
    value, cost = tb.evaluate_policy(cmdp, policy, gamma)
    assert (occupancy * cmdp.reward).sum() == pytest.approx(value, rel=1e-10)
    assert occupancy.sum(axis=1) @ cmdp.cost == pytest.approx(cost, rel=1e-10, abs=1e-12)
    visited = occupancy.sum(axis=1) > 0
    np.testing.assert_allclose(tb.policy_from_occupancy(occupancy)[visited], policy[visited], atol=1e-12)
    optimum = tb.optimal_policy(cmdp.with_cost_limit(cost), gamma)
    assert optimum.is_feasible
    assert optimum.value >= value - 1e-7 * (1 + abs(value))


@settings(max_examples=30)  # each evaluates every deterministic policy
@given(cmdps(max_states=4))
def test_program_against_every_deterministic_mixture(cmdp: tb.CMDP) -> None:
    """The optimum is the best point, at the limit, of the convex hull of all deterministic policies: brute force."""
    choices = np.stack(np.meshgrid(*[range(cmdp.n_actions)] * cmdp.n_states), -1).reshape(-1, cmdp.n_states)
    points = np.array([tb.evaluate_policy(cmdp, np.eye(cmdp.n_actions)[choice]) for choice in choices])
    value, cost = points.T
    within = cost <= cmdp.cost_limit + 1e-7  # HiGHS's own tolerance: the least-cost policy may sit on the limit
    cheap, dear = points[within], points[~within]
    best = value[within].max(initial=-np.inf)
    for v, c in dear:
        share = (cmdp.cost_limit - cheap[:, 1]) / (c - cheap[:, 1])
        best = max(best, float((cheap[:, 0] + share * (v - cheap[:, 0])).max(initial=-np.inf)))
    assert tb.optimal_policy(cmdp).value == pytest.approx(best, rel=1e-6, abs=1e-8)


@pytest.mark.claim("prop-one-randomised-state")
@given(cmdps())
def test_one_constraint_one_randomised_state(cmdp: tb.CMDP) -> None:
    optimum = tb.optimal_policy(cmdp)
    acting = optimum.occupancy.sum(axis=1) > 1e-9
    used = (optimum.policy > 1e-7).sum(axis=1)[acting]
    assert (used - 1).sum() <= 1


@pytest.mark.claim("prop-time-matters")
def test_the_clock_earns_more_than_any_stationary_policy() -> None:
    """wait_or_go with two decisions and limit 1: 1 with the clock, (sqrt 5 - 1) / 2 without."""
    problem = tb.wait_or_go()
    timed = tb.time_augmented(problem, 2)
    optimum = tb.optimal_policy(timed)
    assert (optimum.value, optimum.cost) == pytest.approx((1.0, 1.0))
    outcome = []
    for go in np.linspace(0, 1, 100_001)[[0, 1, 38_196, 38_197, 50_000, 100_000]]:
        stationary = np.tile([[go, 1 - go], [1.0, 0.0]], (3, 1))
        outcome.append(tb.evaluate_policy(timed, stationary))
        assert outcome[-1] == pytest.approx((2 * go - go**2, 3 * go - go**2))
    golden = (np.sqrt(5) - 1) / 2
    best_go = 1 - golden
    assert tb.evaluate_policy(timed, np.tile([[best_go, golden], [1, 0]], (3, 1))) == pytest.approx((golden, 1.0))
    assert outcome[2][1] < 1 < outcome[3][1]  # the limit is met exactly at go = 1 - golden


@pytest.mark.claim("prop-frontier-concave")
@settings(max_examples=40)  # each solves a dozen programs
@given(cmdps())
def test_frontier_is_concave_with_the_multiplier_as_slope(cmdp: tb.CMDP) -> None:
    least, unconstrained = tb.cost_range(cmdp)
    limits = np.linspace(least, unconstrained * 1.1 + 0.1, 9)
    frontier = tb.pareto_frontier(cmdp, limits[1:])
    gain = np.diff(frontier.value)
    scale = 1e-6 * (1 + np.abs(frontier.value).max())
    assert (gain >= -scale).all()
    assert (np.diff(gain) <= scale).all()
    # Weak form of "slope = multiplier", true at kinks too: the tangent at each limit lies above the whole frontier.
    for limit, value, price in zip(frontier.cost_limit, frontier.value, frontier.multiplier, strict=True):
        assert (frontier.value <= value + price * (frontier.cost_limit - limit) + 10 * scale).all()
    below = tb.optimal_policy(cmdp.with_cost_limit(max(0.0, least - 0.05 * (1 + least))))
    assert least == pytest.approx(0) or (below.status, below.multiplier) == ("infeasible", np.inf)


@pytest.mark.claim("prop-discounted-limit")
@given(SEED, st.sampled_from([0.9, 0.99]), st.integers(1, 300))
def test_discounting_loosens_the_limit(seed: int, gamma: float, length: int) -> None:
    """Cost in the last of L states is counted gamma^(L-1); spread evenly, the limit is loosened by L (1-gamma) / (1-gamma^L)."""
    transition = np.diag(np.ones(length - 1), 1)
    chain = tb.Chain.killed(transition, np.eye(length)[0])
    last, even = np.eye(length)[-1], np.ones(length)
    assert tb.forward_value(chain, last, gamma)[0] == pytest.approx(gamma ** (length - 1))
    assert tb.forward_value(chain, last)[0] == pytest.approx(1.0)
    ratio = tb.forward_value(chain, even)[0] / tb.forward_value(chain, even, gamma)[0]
    assert ratio == pytest.approx(length * (1 - gamma) / (1 - gamma**length))
    cost = np.random.default_rng(seed).uniform(0, 1, length)
    discounted, whole = tb.forward_value(chain, cost, gamma)[0], tb.forward_value(chain, cost)[0]
    assert discounted <= whole * (1 + 1e-12)
    assert whole <= discounted * gamma ** -(length - 1) * (1 + 1e-9)


def test_discounted_limit_golden() -> None:
    """Cost 1 in each of 200 states: 200 undiscounted, 86.6 at gamma = .99; a constant cost for ever is worth 100."""
    chain = tb.Chain.killed(np.diag(np.ones(199), 1), np.eye(200)[0])
    assert tb.forward_value(chain, np.ones(200))[0] == pytest.approx(200)
    assert tb.forward_value(chain, np.ones(200), 0.99)[0] == pytest.approx(86.6020325142, abs=1e-9)
    assert tb.forward_value(tb.Chain.continuing(np.eye(1)), [1.0], 0.99)[0] == pytest.approx(100)
