"""Models, policies, time augmentation, values with actions, and the exact optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bvf_tutorial import tabular as tb
from tests.strategies import SEED, cmdps, policies


@given(st.data())
def test_policy_chain_sparse_and_dense(data: st.DataObject) -> None:
    cmdp = data.draw(cmdps())
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    thin = tb.CMDP(sparse.csr_array(cmdp.kernel), cmdp.reward, cmdp.cost, cmdp.initial, 1.0, cmdp.termination)
    chain, lean = tb.policy_chain(cmdp, policy), tb.policy_chain(thin, policy)
    by_hand = sum(policy[:, a, None] * cmdp.transition[:, a] for a in range(cmdp.n_actions))
    np.testing.assert_allclose(chain.transition, by_hand, atol=1e-15)
    np.testing.assert_allclose(lean.transition.toarray(), by_hand, atol=1e-15)
    value = tb.forward_value(chain, cmdp.cost)
    averaged = (policy * tb.q_value(cmdp, cmdp.cost, value)).sum(axis=1)
    np.testing.assert_allclose(averaged, value, rtol=1e-9)
    np.testing.assert_allclose(tb.q_value(thin, cmdp.cost, value), tb.q_value(cmdp, cmdp.cost, value), rtol=1e-12)
    gain = tb.forward_value(chain, tb.policy_reward(cmdp, policy), 0.9)
    averaged = (policy * tb.q_value(cmdp, cmdp.reward, gain, 0.9)).sum(axis=1)
    np.testing.assert_allclose(averaged, gain, rtol=1e-9)


@given(st.data())
def test_backward_q_value_averages_to_the_backward_value(data: st.DataObject) -> None:
    cmdp = data.draw(cmdps())
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    chain = tb.policy_chain(cmdp, policy)
    if not chain.visited.all():
        return
    arrival = tb.backward_kernel(cmdp, policy).sum(axis=1)
    table = tb.backward_q_value(cmdp, policy)
    first = cmdp.initial / tb.expected_visits(chain)
    average = np.nansum(arrival * table, axis=1) + first * cmdp.cost
    np.testing.assert_allclose(average, tb.backward_value(chain, cmdp.cost), rtol=1e-9, atol=1e-12)
    thin = tb.CMDP(sparse.csr_array(cmdp.kernel), cmdp.reward, cmdp.cost, cmdp.initial, 1.0, cmdp.termination)
    np.testing.assert_allclose(tb.backward_q_value(thin, policy), table, rtol=1e-8, atol=1e-10)


@given(st.data())
def test_time_augmentation_is_the_finite_horizon(data: st.DataObject) -> None:
    """Values of the augmented chain, layer by layer, are the recursions over time; rewards count horizon decisions."""
    cmdp = data.draw(cmdps(max_states=4))
    policy, horizon = data.draw(policies(cmdp.n_states, cmdp.n_actions)), data.draw(st.integers(0, 5))
    timed = tb.time_augmented(cmdp, horizon)
    chain = tb.policy_chain(timed, np.tile(policy, (horizon + 1, 1)))
    exact = tb.finite_horizon_value(tb.policy_chain(cmdp, policy), cmdp.cost, horizon)
    layers = (horizon + 1, cmdp.n_states)
    np.testing.assert_allclose(
        tb.forward_value(chain, timed.cost).reshape(layers), exact.forward, rtol=1e-10, atol=1e-12
    )
    backward = tb.backward_value(chain, timed.cost, unreachable="nan").reshape(layers)
    np.testing.assert_allclose(backward, exact.backward, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(tb.expected_visits(chain).reshape(layers), exact.law, rtol=1e-10, atol=1e-15)
    value, cost = tb.evaluate_policy(timed, np.tile(policy, (horizon + 1, 1)))
    one_step = tb.policy_reward(cmdp, policy)
    assert value == pytest.approx(sum(law @ one_step for law in exact.law[:horizon]), rel=1e-9, abs=1e-12)
    assert cost == pytest.approx(cmdp.initial @ exact.forward[0], rel=1e-9, abs=1e-12)


def test_constant_costs_have_their_right_units() -> None:
    """Cost 1 a step for 200 steps: 201 cost-bearing states, each counted once."""
    chain = tb.Chain.continuing(np.eye(1))
    exact = tb.finite_horizon_value(chain, [1.0], 200)
    assert exact.forward[0, 0] == 201
    np.testing.assert_allclose(exact.backward[:, 0], np.arange(1, 202))


@settings(max_examples=30)
@given(SEED)
def test_layered_optimum_by_dual_search(seed: int) -> None:
    """Strong duality, by another algorithm: min over the price of the best penalised return, by dynamic programming."""
    problem = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed), horizon=3, width=3))
    optimum = tb.optimal_policy(problem)

    def dual(price: float) -> float:
        value = np.zeros(problem.n_states)
        for _ in range(4):  # an episode has at most four states
            value = tb.q_value(problem, problem.reward - price * problem.cost[:, None], value).max(axis=1)
        return float(problem.initial @ value + price * problem.cost_limit)

    grid = [dual(optimum.multiplier + shift) for shift in (-0.1, 0.0, 0.1) if optimum.multiplier + shift >= 0]
    assert min(grid) >= optimum.value - 1e-7
    assert dual(optimum.multiplier) == pytest.approx(optimum.value, abs=1e-6)


def test_infeasible_problems_say_so_and_return_the_least_cost() -> None:
    problem = tb.random_cmdp(np.random.default_rng(0))
    least, unconstrained = tb.cost_range(problem)
    assert 0 < least < unconstrained
    answer = tb.optimal_policy(problem.with_cost_limit(0.9 * least))
    assert (answer.status, answer.is_feasible, answer.multiplier) == ("infeasible", False, np.inf)
    assert answer.cost == pytest.approx(least, rel=1e-6)
    frontier = tb.pareto_frontier(problem, [0.5 * least, 0.9 * least, unconstrained])
    assert np.isnan(frontier.value).tolist() == [True, True, False]
    assert np.isinf(frontier.multiplier).tolist() == [True, True, False]
    loose = tb.optimal_policy(problem.with_cost_limit(2 * unconstrained))
    assert loose.multiplier == pytest.approx(0.0, abs=1e-9)


def test_unbounded_problems_are_errors() -> None:
    """A policy that earns for ever has no optimum: HiGHS's status becomes words."""
    transition = np.zeros((1, 2, 1))
    transition[0, 0, 0] = 1.0
    problem = tb.CMDP.episodic(transition, [[1.0, 0.0]], [0.0], [1.0], 1.0)
    with pytest.raises(tb.SolveError, match="earns reward for ever"):
        tb.optimal_policy(problem)


def test_discounted_optimum_of_a_continuing_model() -> None:
    problem = tb.wait_or_go().with_cost_limit(0.0)
    assert tb.optimal_policy(problem, 0.9).value == pytest.approx(0.0, abs=1e-9)
    free = tb.optimal_policy(problem.with_cost_limit(100.0), 0.9)
    assert (free.value, free.cost) == pytest.approx((1.0, 9.0))


@settings(max_examples=20)
@given(cmdps())
def test_solutions_are_rechecked(cmdp: tb.CMDP) -> None:
    answer = tb.optimal_policy(cmdp)
    assert answer.residual < 1e-6
    assert answer.cost <= cmdp.cost_limit + 1e-6
    assert (answer.value, answer.cost) == tb.evaluate_policy(cmdp, answer.policy)


def test_generators() -> None:
    for seed in range(5):
        cmdp = tb.random_cmdp(np.random.default_rng(seed), termination=0.0)
        assert not cmdp.termination.any()
        layered = tb.random_layered_cmdp(np.random.default_rng(seed))
        chain = tb.policy_chain(layered, tb.uniform_policy(layered))
        assert tb.expected_length(chain) == pytest.approx(6.0)
    bound = tb.with_binding_limit(tb.random_cmdp(np.random.default_rng(1)), 0.5)
    assert tb.optimal_policy(bound).cost == pytest.approx(bound.cost_limit, rel=1e-6)
    assert tb.greedy_policy([[1.0, 3.0], [2.0, 2.0]]).tolist() == [[0, 1], [1, 0]]
