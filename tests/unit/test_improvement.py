"""Steps of safe policy improvement: the state-wise offsets, the brakes' promises, the history, and what is refused."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from tests.strategies import SEED, cmdps


def instance(seed: int, horizon: int = 4) -> tb.CMDP:
    generator = np.random.default_rng(seed)
    cmdp = tb.random_layered_cmdp(generator, horizon, width=3)
    return tb.with_binding_limit(cmdp, generator.choice([0.2, 0.4, 0.7]))


def assert_safe_and_monotone(cmdp: tb.CMDP, brake: str, horizon: float, n_iterations: int) -> int:
    """Run a braked iteration; every policy must be feasible, every value non-decreasing at every state."""
    step = functools.partial(tb.safeguarded_step, brake=brake, horizon=horizon)
    previous = np.full(cmdp.n_states, -np.inf)
    run = tb.improvements(cmdp, tb.cautious_policy(cmdp, 0.05), step)
    for _ in range(n_iterations + 1):
        evaluation, solution = next(run)
        assert evaluation.expected_cost <= cmdp.cost_limit + 1e-9, brake
        assert (evaluation.value >= previous - 1e-9).all(), brake
        assert solution.count(tb.StateStatus.EMPTY) == 0
        previous = evaluation.value
    return n_iterations


@pytest.mark.parametrize("brake", tb.BRAKES)
@given(SEED)
@settings(max_examples=12)
def test_a_braked_step_is_safe_and_monotone(brake: str, seed: int) -> None:
    assert_safe_and_monotone(instance(seed), brake, 4, 8)


@pytest.mark.parametrize("brake", ["mixture", "line_search", "lyapunov", "best"])
@given(cmdps())
@settings(max_examples=8)
def test_a_braked_step_is_safe_with_random_lengths(brake: str, cmdp: tb.CMDP) -> None:
    """Episodes without a fixed length: the decision bound takes the place of T."""
    assert_safe_and_monotone(cmdp, brake, tb.decision_bound(cmdp), 6)


@pytest.mark.slow
def test_thirty_thousand_braked_steps() -> None:
    """No infeasible iterate and no decrease in at least 30,000 steps on random layered CMDPs, seeds in order from 0."""
    steps = seed = 0
    while steps < 30_000:
        cmdp = instance(seed, horizon=2 + seed % 4)
        for brake in tb.BRAKES:
            steps += assert_safe_and_monotone(cmdp, brake, 2 + seed % 4, 20)
        seed += 1


@given(cmdps(), SEED)
@settings(max_examples=40)
def test_evaluation_agrees_with_the_value_functions(cmdp: tb.CMDP, seed: int) -> None:
    policy = np.random.default_rng(seed).dirichlet(np.ones(cmdp.n_actions), size=cmdp.n_states)
    evaluation, chain = tb.evaluate(cmdp, policy), tb.policy_chain(cmdp, policy)
    expected = tb.state_wise_cost(chain, cmdp.cost, unreachable="nan")
    np.testing.assert_allclose(evaluation.state_wise_cost, expected, rtol=1e-9)
    assert (evaluation.expected_return, evaluation.expected_cost) == pytest.approx(tb.evaluate_policy(cmdp, policy))
    assert evaluation.slack == pytest.approx(cmdp.cost_limit - evaluation.expected_cost)
    np.testing.assert_allclose((policy * evaluation.cost_q).sum(axis=1), evaluation.cost_value, rtol=1e-9, atol=1e-12)
    assert (tb.safeguarded_offset(evaluation) >= evaluation.cost_value).all()
    # The printed limit on <pi, Q_D> and the state-wise constraint are one statement.
    is_met = evaluation.cost_value <= tb.backward_offset(evaluation) + 1e-9
    assert is_met.all() == (np.nanmax(expected) <= cmdp.cost_limit + 1e-9)


def test_states_without_a_past_are_not_limited_as_printed() -> None:
    """The support hole: at a state the policy never visits the printed limit is undefined, the safeguarded one is V_D."""
    cmdp = tb.coin_flip()
    evaluation = tb.evaluate(cmdp, [[0.0, 1.0], [0.5, 0.5]])
    assert np.isnan(evaluation.backward[1]) and evaluation.visits[1] == 0
    assert tb.backward_offset(evaluation)[1] == np.inf
    assert tb.safeguarded_offset(evaluation)[1] == evaluation.cost_value[1] == 1.0


@given(st.floats(0, 5), st.floats(0.1, 5), st.integers(1, 60))
def test_radii_are_ordered_and_keep_their_promise(slack: float, span: float, horizon: int) -> None:
    sharp, linear, paper = (tb.trust_radius(slack, span, horizon, bound) for bound in ("sharp", "linear", "paper"))
    assert 0 <= paper <= linear + 1e-15 and linear <= sharp + 1e-15 and sharp <= 1
    assert tb.coupling_bound(sharp, span, horizon) <= slack * (1 + 1e-12) or sharp == 1
    if 1e-300 < sharp < 1:
        assert tb.coupling_bound(min(1.0, sharp * (1 + 1e-9)), span, horizon) > slack * (1 - 1e-12)


def test_radius_golden() -> None:
    """Slack 1/2, span 1: the values of chapter 7's table."""
    expected = {1: (0.25, 0.5), 2: (0.0625, 0.1771243445), 5: (0.01, 0.0349169446), 10: (0.0025, 0.0093482398)}
    for horizon, (paper, sharp) in expected.items():
        assert tb.trust_radius(0.5, 1.0, horizon, "paper") == pytest.approx(paper, rel=1e-12)
        assert tb.trust_radius(0.5, 1.0, horizon) == pytest.approx(sharp, abs=1e-10)
    assert tb.trust_radius(0.5, 1.0, 200, "paper") == pytest.approx(6.25e-6, rel=1e-12)
    assert tb.trust_radius(0.5, 1.0, 200) == pytest.approx(2.49168e-5, rel=1e-5)
    assert tb.trust_radius(0.5, 1.0, 200, "linear") == pytest.approx(1 / 40200, rel=1e-12)
    assert tb.trust_radius(7.0, 1.0, 3) == 1.0 and tb.trust_radius(0.0, 1.0, 3) == 0.0


def test_history_counts() -> None:
    """One state, stay or quit (limit 4): down to .15, then over the limit, then an empty program. See chapter 7."""
    cmdp = tb.CMDP.episodic(np.array([[[0.9], [0.0]]]), np.array([[1.0, 0.0]]), np.array([1.0]), np.array([1.0]), 4.0)
    run = tb.policy_iteration(cmdp, [[0.8, 0.2]], tb.spi_step, 5)
    np.testing.assert_allclose(run.value, [2.8571428571, 0.1515151515, 10, 10], atol=1e-9)
    np.testing.assert_allclose(run.cost, [3.5714285714, 1.1363636364, 10, 10], atol=1e-9)
    np.testing.assert_allclose(run.worst_state, [6.1428571429, 1.2727272727, 19, 19], atol=1e-9)
    assert (run.n_infeasible, run.n_decreases, run.is_settled) == (2, 1, True)
    np.testing.assert_array_equal(run.n_empty, [0, 0, 0, 1])
    np.testing.assert_allclose(run.slack, 4 - run.cost)
    np.testing.assert_array_equal(run.policy, [[1.0, 0.0]])
    shorter = tb.policy_iteration(cmdp, [[0.8, 0.2]], tb.spi_step, 1)
    assert not shorter.is_settled and len(shorter.value) == 2


def test_a_run_resumes_where_it_stopped() -> None:
    """State in, state out: ten steps are four steps and six more."""
    cmdp = instance(0)
    step = functools.partial(tb.safeguarded_step, brake="mixture", horizon=4)
    start = tb.cautious_policy(cmdp, 0.05)
    whole = tb.policy_iteration(cmdp, start, step, 10)
    part = tb.policy_iteration(cmdp, start, step, 4)
    rest = tb.policy_iteration(cmdp, part.policy, step, 6)
    np.testing.assert_array_equal(whole.value, np.r_[part.value, rest.value[1:]])


def test_choosers_and_fallbacks() -> None:
    cmdp = instance(1)
    evaluation = tb.evaluate(cmdp, tb.uniform_policy(cmdp))
    tight = tb.evaluate(cmdp.with_cost_limit(0.0), tb.uniform_policy(cmdp))
    keep, least = tb.spi_step(tight), tb.spi_step(tight, fallback="least_cost")
    empty = keep.status == tb.StateStatus.EMPTY
    assert empty[0] and (keep.policy[empty] == tight.policy[empty]).all()
    np.testing.assert_array_equal(least.policy[empty], tb.greedy_policy(-tight.cost_q)[empty])
    soft = tb.spi_step(evaluation, choose=functools.partial(tb.entropy_step, temperature=0.1))
    hard = tb.spi_step(evaluation, choose=tb.elimination_step)
    assert (soft.policy > 0).any(axis=1).all() and set(np.unique(hard.policy)) <= {0.0, 1.0 / 3, 1.0}
    ball = tb.spi_step(evaluation, radius=0.01)
    assert 0.5 * np.abs(ball.policy - evaluation.policy).sum(axis=1).max() <= 0.01 + 1e-12


def test_bad_input_is_named() -> None:
    cmdp = tb.coin_flip()
    over = tb.evaluate(cmdp, [[1.0, 0.0], [0.5, 0.5]])
    for step in (functools.partial(tb.safeguarded_step, brake="mixture"), tb.lyapunov_step):
        with pytest.raises(tb.InvalidModelError, match=r"costs 1, over the limit 0\.5.*cautious_policy"):
            step(over, horizon=1)
    fine = tb.evaluate(cmdp, tb.least_cost_policy(cmdp))
    with pytest.raises(tb.InvalidModelError, match="brake is 'hope'; use one of ball, mixture"):
        tb.safeguarded_step(fine, "hope", 1)
    with pytest.raises(tb.InvalidModelError, match="horizon is inf"):
        tb.lyapunov_step(fine, np.inf)
    with pytest.raises(tb.InvalidModelError, match="fallback is 'luck'"):
        tb.spi_step(fine, fallback="luck")
    with pytest.raises(tb.InvalidModelError, match="radius below 1"):
        tb.spi_step(fine, choose=tb.elimination_step, radius=0.5)
    with pytest.raises(tb.InvalidModelError, match="bound is 'best'"):
        tb.trust_radius(1.0, 1.0, 3, "best")
    with pytest.raises(tb.InvalidModelError, match="slack -1"):
        tb.trust_radius(-1.0, 1.0, 3)


def test_a_step_on_the_grid_with_its_clock() -> None:
    """28,944 sparse states, T = 200: from the loitering least-cost policy to the goal, under the limit all the way."""
    cmdp = GridWorld.random(0).to_cmdp(time_augmented_states=True)
    run = tb.policy_iteration(
        cmdp, tb.cautious_policy(cmdp), functools.partial(tb.safeguarded_step, brake="lyapunov", horizon=200), 4
    )
    assert run.n_infeasible == run.n_decreases == 0
    assert run.value[0] < 0 < 900 < run.value[-1]
