"""The price of cost: best responses, the exact optimum by prices against the linear program, the primal-dual method."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from tests.strategies import SEED, cmdps


@given(cmdps(), st.floats(0, 5))
@settings(max_examples=40)
def test_best_response_beats_every_deterministic_policy(cmdp: tb.CMDP, price: float) -> None:
    """From every state: no single change of action at any state improves it (so no policy does)."""
    policy = tb.best_response(cmdp, price)
    assert set(np.unique(policy)) <= {0.0, 1.0}
    signal = cmdp.reward - price * cmdp.cost[:, None]
    value = tb.forward_value(tb.policy_chain(cmdp, policy), (policy * signal).sum(axis=1))
    assert (tb.q_value(cmdp, signal, value).max(axis=1) <= value + 1e-8 * (1 + np.abs(value))).all()


@given(cmdps(), st.sampled_from([1.0, 0.9]))
@settings(max_examples=60)
def test_prices_find_what_the_linear_program_finds(cmdp: tb.CMDP, gamma: float) -> None:
    by_program, by_prices = tb.optimal_policy(cmdp, gamma), tb.optimum_by_prices(cmdp, gamma)
    assert by_program.status == by_prices.status
    assert by_prices.value == pytest.approx(by_program.value, rel=1e-6, abs=1e-6)
    assert by_prices.cost <= cmdp.cost_limit * (1 + 1e-9) + 1e-9 or by_prices.status == "infeasible"
    assert by_prices.residual <= 1e-9


def test_prices_on_infeasible_and_loose_limits() -> None:
    cmdp = tb.random_layered_cmdp(np.random.default_rng(0))
    least = tb.evaluate_policy(cmdp, tb.least_cost_policy(cmdp))[1]
    below = tb.optimum_by_prices(cmdp.with_cost_limit(0.9 * least))
    assert (below.status, below.multiplier) == ("infeasible", np.inf)
    assert below.cost == pytest.approx(least, rel=1e-12)
    loose = tb.optimum_by_prices(cmdp.with_cost_limit(100.0))
    assert loose.multiplier == 0 and loose.value == pytest.approx(tb.optimal_policy(cmdp.with_cost_limit(100.0)).value)
    with pytest.raises(tb.SolveError, match="did not settle in 0 steps"):
        tb.optimum_by_prices(tb.with_binding_limit(cmdp), max_prices=0)


def test_coin_flip_is_mixed() -> None:
    optimum = tb.optimum_by_prices(tb.coin_flip())
    assert (optimum.value, optimum.cost, optimum.multiplier) == pytest.approx((0.5, 0.5, 1.0), abs=1e-12)
    np.testing.assert_allclose(optimum.policy[0], [0.5, 0.5], atol=1e-12)


@given(cmdps())
@settings(max_examples=30)
def test_a_cautious_policy_is_feasible_and_tries_everything(cmdp: tb.CMDP) -> None:
    policy = tb.cautious_policy(cmdp)
    assert tb.evaluate_policy(cmdp, policy)[1] <= cmdp.cost_limit
    if tb.evaluate_policy(cmdp, tb.least_cost_policy(cmdp))[1] < cmdp.cost_limit:
        assert policy.min() > 0


def test_a_cautious_policy_at_and_below_the_least_cost() -> None:
    """At the least cost there is no room to try anything; below it no policy is feasible, and the error says so."""
    cmdp = tb.random_layered_cmdp(np.random.default_rng(0))
    cheapest = tb.least_cost_policy(cmdp)
    least = tb.evaluate_policy(cmdp, cheapest)[1]
    np.testing.assert_allclose(tb.cautious_policy(cmdp.with_cost_limit(least)), cheapest, atol=1e-12)
    with pytest.raises(tb.InvalidModelError, match=r"over cost_limit .*no policy is feasible"):
        tb.cautious_policy(cmdp.with_cost_limit(0.99 * least))
    with pytest.raises(tb.InvalidModelError, match="share is 2"):
        tb.cautious_policy(cmdp, 2)


@given(SEED)
@settings(max_examples=25)
def test_decision_bound_is_the_horizon_of_a_layered_model(seed: int) -> None:
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), horizon=4)
    assert tb.decision_bound(cmdp) == pytest.approx(4.0, abs=1e-12)
    cyclic = tb.random_cmdp(np.random.default_rng(seed), 5)
    bound = tb.decision_bound(cyclic)
    for policy in np.random.default_rng(seed).dirichlet(np.ones(3), size=(5, 5)):
        assert tb.expected_length(tb.policy_chain(cyclic, policy)) <= bound * (1 + 1e-10)


def test_decision_bound_ignores_last_states() -> None:
    """Where every action ends the episode no decision can change a cost."""
    assert tb.decision_bound(tb.coin_flip()) == 1.0
    assert tb.decision_bound(tb.time_augmented(tb.wait_or_go(), 2)) == 2.0


def test_loops_are_refused_in_words() -> None:
    """Waiting is free and leaving costs: the least-cost policy never ends, and the error says what to do."""
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 0] = transition[0, 1, 1] = 1.0
    waiting = tb.CMDP.episodic(transition, np.zeros((2, 2)), np.array([0.0, 1.0]), np.array([1.0, 0.0]), 1.0)
    with pytest.raises(tb.ImproperPolicyError, match=r"state 0 the episode never ends.*time_augmented"):
        tb.least_cost_policy(waiting)
    with pytest.raises(tb.InvalidModelError, match="multiplier is inf"):
        tb.best_response(tb.coin_flip(), np.inf)
    with pytest.raises(tb.InvalidModelError, match="step_size 0"):
        tb.primal_dual(tb.coin_flip(), 0.0, 3)


def test_the_grid_with_its_clock_in_seconds_not_minutes() -> None:
    """28,944 states: the certified optimum meets the limit, and beats every policy that respects it among some."""
    cmdp = GridWorld.random(3).to_cmdp(time_augmented_states=True)
    optimum = tb.optimum_by_prices(cmdp)
    assert optimum.cost == pytest.approx(20.0, abs=1e-9) and optimum.residual <= 1e-9
    # Weak duality at any other price bounds the optimum from above; at its own price the bound is tight.
    for price in (0.5 * optimum.multiplier, 2 * optimum.multiplier):
        value, cost = tb.evaluate_policy(cmdp, tb.best_response(cmdp, price))
        assert value - price * (cost - 20.0) >= optimum.value - 1e-7
    value, cost = tb.evaluate_policy(cmdp, tb.best_response(cmdp, optimum.multiplier))
    assert value - optimum.multiplier * (cost - 20.0) == pytest.approx(optimum.value, rel=1e-9)


def test_primal_dual_iterates_jump_and_averages_settle() -> None:
    """coin_flip: the reply is all or nothing, never the optimum; the average tends to it, its policy reproduces it."""
    cmdp = tb.coin_flip()
    run = tb.primal_dual(cmdp, 0.1, 1000)
    assert set(np.round(run.cost, 12)) == {0.0, 1.0}
    assert run.average_value[-1] == pytest.approx(0.5, abs=0.02) and run.average_cost[-1] == pytest.approx(
        0.5, abs=0.02
    )
    value, cost = tb.evaluate_policy(cmdp, run.policy)
    assert (value, cost) == pytest.approx((run.average_value[-1], run.average_cost[-1]), abs=1e-12)
    assert np.diff(run.multiplier) == pytest.approx(0.1 * (run.cost[:-1] - 0.5), abs=1e-12)
