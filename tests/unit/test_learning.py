"""Sampling and estimators: exact laws of the sampler, returns by definition, learners against exact values."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse, stats

from bvf_tutorial import tabular as tb
from tests.oracles import hand_lambda, hand_n_step
from tests.strategies import SEED, cmdps, policies

COST = tb.CHAIN4_COST
MODEL = tb.chain_cmdp(tb.chain4(), COST)
ONE = np.ones((4, 1))


def draw(n_episodes: int, seed: int = 0) -> tb.Episodes:
    return tb.sample_episodes(MODEL, ONE, n_episodes, np.random.default_rng(seed))


def test_sampler_follows_the_model() -> None:
    """Chi-square of every (state, action) row: successors and ends, against the exact probabilities."""
    cmdp = tb.random_cmdp(np.random.default_rng(0), 6, 3)
    policy = tb.uniform_policy(cmdp)
    episodes = tb.sample_episodes(cmdp, policy, 40_000, np.random.default_rng(1))
    following = np.hstack([episodes.state[:, 1:], np.full((episodes.n_episodes, 1), -1)])
    p_values = []
    for x in range(6):
        for a in range(3):
            here = (episodes.state == x) & (episodes.action == a)
            expected = np.r_[cmdp.transition[x, a], cmdp.termination[x, a]]
            seen = np.bincount(np.where(following[here] < 0, 6, following[here]), minlength=7)
            assert seen[expected == 0].sum() == 0
            live = expected > 0
            p_values.append(stats.chisquare(seen[live], seen.sum() * expected[live]).pvalue)
    assert min(p_values) > 1e-3 / len(p_values)
    actions = np.bincount(episodes.action[episodes.is_recorded], minlength=3)
    assert stats.chisquare(actions).pvalue > 1e-3


def test_same_seed_same_episodes_and_zero_probabilities_are_never_drawn() -> None:
    first, second, third = draw(50), draw(50), draw(50, seed=1)
    assert np.array_equal(first.state, second.state)
    assert not np.array_equal(first.state, third.state)
    sure = tb.sample_episodes(tb.coin_flip(), [[1.0, 0.0], [0.0, 1.0]], 1000, np.random.default_rng(0))
    assert set(map(tuple, sure.action)) == {(0, 1)}


def test_drawing_leaves_a_sparse_model_with_stored_zeros_as_it_was() -> None:
    kernel = sparse.csr_array((np.array([0.0, 1.0, 1.0]), np.array([0, 1, 1]), np.array([0, 2, 3])), shape=(2, 2))
    model = tb.CMDP.continuing(kernel, np.zeros((2, 1)), np.array([0.0, 1.0]), np.array([1.0, 0.0]), 5.0)
    episodes = tb.sample_episodes(model, ONE[:2], 3, np.random.default_rng(0), horizon=2)
    assert (episodes.state == [0, 1, 1]).all()
    for name in ("data", "indices", "indptr"):
        assert np.array_equal(getattr(model.transition, name), getattr(kernel, name)), name


def test_horizon_and_time_limits() -> None:
    """Three decisions make four states; a truncation leaves the end unknown, a termination does not."""
    walk = tb.chain_cmdp(tb.two_state(), [0.0, 1.0])
    ended = tb.sample_episodes(walk, np.ones((2, 1)), 5, np.random.default_rng(0), horizon=3)
    assert ended.length.tolist() == [4] * 5
    assert ended.is_end_known.all()
    cut = tb.sample_episodes(walk, np.ones((2, 1)), 5, np.random.default_rng(0), horizon=3, time_limit="truncate")
    assert not cut.is_end_known.any()
    assert np.array_equal(cut.state, ended.state)
    both = tb.sample_episodes(MODEL, ONE, 200, np.random.default_rng(0), horizon=2, time_limit="truncate")
    assert (both.is_end_known | (both.length == 3)).all()
    assert 0 < both.is_end_known.sum() < 200


def test_reversing_is_an_involution_that_swaps_the_ends() -> None:
    episodes = tb.sample_episodes(MODEL, ONE, 20, np.random.default_rng(0), horizon=2, time_limit="truncate")
    back = tb.reversed_episodes(episodes)
    assert np.array_equal(back.is_start_known, episodes.is_end_known)
    for i in range(20):
        length = episodes.length[i]
        assert back.state[i, :length].tolist() == episodes.state[i, :length][::-1].tolist()
    again = tb.reversed_episodes(back)
    assert np.array_equal(again.state, episodes.state)
    assert np.array_equal(again.action, episodes.action)
    totals = [COST[row[row >= 0]].sum() for row in episodes.state]
    np.testing.assert_allclose(tb.episode_sum(episodes, COST), totals)


@given(st.integers(1, 9), st.floats(0, 1), st.floats(0, 1), st.integers(1, 12), SEED)
def test_returns_by_definition(length: int, gamma: float, lambda_: float, n_steps: int, seed: int) -> None:
    cost, value = np.random.default_rng(seed).normal(size=(2, length))
    following, discount = np.r_[value[1:], 0.0], np.r_[np.full(length - 1, gamma), 0.0]
    by_lambda = tb.lambda_returns(cost, following, discount, lambda_)
    np.testing.assert_allclose(by_lambda, hand_lambda(list(cost), list(value), gamma, lambda_), atol=1e-10)
    by_steps = tb.n_step_returns(cost, following, discount, n_steps)
    np.testing.assert_allclose(by_steps, hand_n_step(list(cost), list(value), gamma, n_steps), atol=1e-10)
    np.testing.assert_allclose(
        tb.n_step_returns(cost, following, discount, 1), tb.lambda_returns(cost, following, discount, 0), atol=1e-14
    )
    batched = tb.lambda_returns(
        np.stack([cost] * 3, 1), np.stack([following] * 3, 1), np.stack([discount] * 3, 1), lambda_
    )
    np.testing.assert_allclose(batched[:, 2], by_lambda, atol=1e-14)


def test_two_episodes_in_one_record() -> None:
    """The first truncated, the second terminated (hand-computed): no value leaks across the boundary in either direction."""
    cost, gamma = np.array([1.0, 2.0, 4.0, 8.0]), 0.5
    following = np.array([10.0, 20.0, 30.0, 0.0])  # v after each step; 20 is the truncated state's own value
    discount, mix = np.array([gamma, gamma, gamma, 0.0]), np.array([0.5, 0.0, 0.5, 0.5])
    forward = tb.lambda_returns(cost, following, discount, mix)
    np.testing.assert_allclose(forward, [1 + 0.5 * (5 + 0.5 * 12), 2 + 0.5 * 20, 4 + 0.5 * (15 + 0.5 * 8), 8])
    previous = np.array([0.0, 10.0, 0.0, 30.0])
    back_discount = np.array([0.0, gamma, 0.0, gamma])
    backward = tb.backward_lambda_returns(cost, previous, back_discount, 0.5)
    np.testing.assert_allclose(backward, [1, 2 + 0.5 * (5 + 0.5 * 1), 4, 8 + 0.5 * (15 + 0.5 * 4)])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_monte_carlo_against_exact_values(direction: str) -> None:
    exact = (tb.forward_value if direction == "forward" else tb.backward_value)(tb.chain4(), COST)
    estimate = tb.monte_carlo(draw(20_000), COST, direction)
    assert (np.abs(estimate.value - exact) <= 5 * estimate.standard_error).all()
    visits = tb.expected_visits(tb.chain4())
    np.testing.assert_allclose(estimate.count / 20_000, visits, rtol=0.05)


def test_standard_errors_know_that_visits_in_one_episode_are_correlated() -> None:
    """The spread of 300 repetitions against the mean of the reported errors; naive per-visit errors are too small."""
    runs = [tb.monte_carlo(draw(200, seed), COST, "forward") for seed in range(300)]
    spread = np.std([run.value for run in runs], axis=0, ddof=1)
    claimed = np.mean([run.standard_error for run in runs], axis=0)
    np.testing.assert_allclose(claimed, spread, rtol=0.2)
    unseen = tb.monte_carlo(draw(1), np.ones(4), "forward")
    assert np.isnan(unseen.value[unseen.count == 0]).all()


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_lstd_of_every_lambda_is_the_same_answer_for_tables(direction: str, gamma: float) -> None:
    exact = (tb.forward_value if direction == "forward" else tb.backward_value)(tb.chain4(), COST, gamma)
    episodes = draw(20_000)
    carlo = tb.monte_carlo(episodes, COST, direction, gamma)
    for lambda_ in (0.0, 0.5, 1.0):
        value = tb.lstd(episodes, COST, direction, gamma, lambda_).value
        assert (np.abs(value - exact) <= 5 * carlo.standard_error + 1e-12).all()
    # lambda = 1 is Monte Carlo, to rounding.
    np.testing.assert_allclose(tb.lstd(episodes, COST, direction, gamma, 1.0).value, carlo.value, rtol=1e-9)


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(
    "target", [{"lambda_": 0.0}, {"lambda_": 0.7}, {"lambda_": 1.0}, {"n_steps": 1}, {"n_steps": 3}]
)
def test_td_reaches_the_value(direction: str, target: dict[str, float]) -> None:
    """Every target has the same fixed point. The tolerance is the spread over 20 independent runs."""
    exact = (tb.forward_value if direction == "forward" else tb.backward_value)(tb.chain4(), COST)
    step = tb.harmonic_step_size(0.7, 100.0)
    episodes = draw(12_000)
    runs = [
        tb.td(episodes.chosen(slice(k, None, 20)), COST, direction, step_size=step, **target).value  # type: ignore[arg-type]
        for k in range(20)
    ]
    error = np.std(runs, axis=0, ddof=1) / np.sqrt(20)
    assert (np.abs(np.mean(runs, axis=0) - exact) <= 5 * error + 1e-9).all()


def test_td_with_one_step_targets_equal_n_step_one() -> None:
    episodes = draw(100)
    first = tb.td(episodes, COST, "backward", lambda_=0.0).history
    second = tb.td(episodes, COST, "backward", n_steps=1).history
    np.testing.assert_allclose(first, second, atol=1e-13)
    assert first.shape == (101, 4)
    table = tb.td(episodes, COST, "backward", features=np.eye(4)).history
    np.testing.assert_allclose(table, first, atol=1e-13)
    warm = tb.td(episodes, COST, "backward", initial_weight=np.ones(4), batch_size=7)
    assert warm.history.shape == (16, 4)
    assert warm.history[0].tolist() == [1.0] * 4


def cut_at_coins(episodes: tb.Episodes, generator: np.random.Generator) -> tb.Episodes:
    """Cut whole episodes between states where a coin says so; neighbours share the state at the cut.

    Coins, not clocks: at a fixed time the law of the past given the state is not the pooled one, and bootstrapping there
    is biased (prop-sampling-bias). The first and the last state are cut as often as the others, for the same reason.
    """
    rows, starts, ends = [], [], []
    for row, length in zip(episodes.state, episodes.length, strict=True):
        edges = [0, *np.flatnonzero(generator.random(length) < 0.4), length - 1]
        for k, (first, last) in enumerate(pairwise(edges)):
            rows.append(row[first : last + 1])
            starts.append(k == 0)
            ends.append(k == len(edges) - 2)
    length = np.array([len(row) for row in rows])
    state = np.full((len(rows), length.max()), -1)
    for i, row in enumerate(rows):
        state[i, : len(row)] = row
    return tb.Episodes(state, state, length, np.array(starts), np.array(ends))


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("target", [{"lambda_": 0.0}, {"lambda_": 0.9}, {"n_steps": 3}])
def test_cut_episodes_bootstrap_at_the_cut(direction: str, target: dict[str, float]) -> None:
    """Started at the truth, a learner stays there in expectation, however the record was cut."""
    exact = (tb.forward_value if direction == "forward" else tb.backward_value)(tb.chain4(), COST)
    # No drift term may hide behind noise: the same learner that takes each cut for an end is seen to drift.
    cut = cut_at_coins(draw(20_000, 3), np.random.default_rng(4))
    closed = tb.Episodes(
        cut.state, cut.action, cut.length, np.ones_like(cut.is_start_known), np.ones_like(cut.is_end_known)
    )
    outcome = {}
    for name, batch in (("cut", cut), ("closed", closed)):
        drift = np.array(
            [
                tb.td(
                    part, COST, direction, initial_weight=exact, step_size=1.0, batch_size=part.n_episodes, **target
                ).value  # type: ignore[arg-type]
                - exact
                for part in (batch.chosen(np.arange(k, batch.n_episodes, 20)) for k in range(20))
            ]
        )
        outcome[name] = np.abs(drift.mean(axis=0)) / (drift.std(axis=0, ddof=1) / np.sqrt(20) + 1e-12)
    assert (outcome["cut"] <= 5).all()
    assert outcome["closed"].max() > 20


def test_streaming_backward_td() -> None:
    """One pass, one update a step, many streams: near the truth, within the spread of independent runs."""
    exact = tb.backward_value(tb.chain4(), COST)
    for lambda_ in (0.0, 0.9):
        runs = [
            tb.streaming_backward_td(draw(3000, seed), COST, lambda_=lambda_, step_size=0.02, n_streams=4)
            for seed in range(10)
        ]
        error = np.std(runs, axis=0, ddof=1) / np.sqrt(10)
        assert (np.abs(np.mean(runs, axis=0) - exact) <= 5 * error + 1e-9).all()


def test_streams_are_laid_end_to_end() -> None:
    """With a frozen value of zero and lambda 1, the last target of each episode is its cost: no leak between episodes."""
    episodes = draw(7)
    value = tb.streaming_backward_td(episodes, COST, lambda_=1.0, step_size=0.0, n_streams=3)
    assert not value.any()
    single = tb.streaming_backward_td(episodes.chosen(slice(0, 1)), COST, lambda_=1.0, step_size=1.0)
    path = episodes.state[0, : episodes.length[0]]
    running = np.cumsum(COST[path])
    for x in set(path.tolist()):
        assert single[x] == pytest.approx(running[np.flatnonzero(path == x)[-1]])


@pytest.mark.field("no-cost")
def test_zero_costs_are_worth_zero() -> None:
    """Reward 1 and cost 0 everywhere: every cost estimator says 0."""
    episodes, free = draw(100), np.zeros(4)
    for direction in ("forward", "backward"):
        assert not np.nan_to_num(tb.monte_carlo(episodes, free, direction).value).any()
        assert not tb.td(episodes, free, direction).value.any()
        assert not tb.lstd(episodes, free, direction).value.any()


@given(st.data())
def test_sampled_occupancy(data: st.DataObject) -> None:
    """Average visits per episode against the occupancy measure, at six standard errors, on random models."""
    cmdp = data.draw(cmdps(max_states=4))
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    episodes = tb.sample_episodes(cmdp, policy, 500, np.random.default_rng(data.draw(SEED)))
    for x in range(cmdp.n_states):
        count = (episodes.state == x).sum(axis=1)
        exact = tb.occupancy_measure(cmdp, policy).sum(axis=1)[x]
        # A state too rare to be seen has no sample variance: use at least Poisson's, and allow three stray visits.
        assert abs(count.mean() - exact) <= 6 * np.sqrt(max(count.var(), exact) / 500) + 3 / 500
