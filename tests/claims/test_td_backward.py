"""TD for the backward value: one matrix for both directions, causal returns, short episodes, on-policy (chapter 5)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import hand_stream
from tests.strategies import SEED, killed_chains

FEATURES = np.array([[1.0, 0], [1, 1], [1, 2], [1, 3]])


@pytest.mark.claim("prop-transposed-lstd")
@given(st.data())
def test_one_matrix_serves_both_directions(data: st.DataObject) -> None:
    """A_back = Phi^T D (I - N) Phi = (Phi^T D (I - P) Phi)^T = A_fwd^T."""
    chain = data.draw(killed_chains())
    gamma = data.draw(st.sampled_from([1.0, 0.9]))
    phi = np.random.default_rng(data.draw(SEED)).normal(size=(chain.n_states, 3))
    law, back = np.diag(tb.stationary_distribution(chain)), tb.time_reversal(chain).transition
    identity = np.eye(chain.n_states)
    forward = phi.T @ law @ (identity - gamma * chain.transition) @ phi
    backward = phi.T @ law @ (identity - gamma * back) @ phi
    np.testing.assert_allclose(backward, forward.T, atol=1e-9)


@given(SEED)
def test_transposed_in_every_sample(seed: int) -> None:
    """On whole episodes the sampled matrices are transposes of each other, not only in expectation."""
    cost = tb.CHAIN4_COST
    model = tb.chain_cmdp(tb.chain4(), cost)
    episodes = tb.sample_episodes(model, np.ones((4, 1)), 50, np.random.default_rng(seed))
    for gamma, lambda_ in ((1.0, 0.0), (0.9, 0.0), (1.0, 0.7), (0.9, 1.0)):
        forward = tb.lstd(episodes, cost, "forward", gamma, lambda_, FEATURES)
        backward = tb.lstd(episodes, cost, "backward", gamma, lambda_, FEATURES)
        np.testing.assert_allclose(backward.matrix, forward.matrix.T, atol=1e-11)
        assert np.allclose(backward.vector, forward.vector, atol=1e-12) == (lambda_ == 0)


def test_lstd_golden() -> None:
    """chain4 with affine features: matrix, vector and both solutions."""
    chain = tb.chain4()
    law = tb.stationary_distribution(chain)
    matrix = FEATURES.T @ np.diag(law) @ (np.eye(4) - chain.transition) @ FEATURES
    vector = FEATURES.T @ (law * tb.CHAIN4_COST)
    np.testing.assert_allclose(matrix, [[0.2076923077, 0], [0.4769230769, 1.2269230769]], atol=1e-10)
    np.testing.assert_allclose(vector, [1.4769230769, 3.3461538462], atol=1e-10)
    backward, forward = [0.8484848485, 2.7272727273], [7.1111111111, -0.0369209335]
    np.testing.assert_allclose(np.linalg.solve(matrix.T, vector), backward, atol=1e-9)
    np.testing.assert_allclose(np.linalg.solve(matrix, vector), forward, atol=1e-9)
    model = tb.chain_cmdp(chain, tb.CHAIN4_COST)
    episodes = tb.sample_episodes(model, np.ones((4, 1)), 100_000, np.random.default_rng(0))
    for direction, weight in (("backward", backward), ("forward", forward)):
        learned = tb.lstd(episodes, tb.CHAIN4_COST, direction, features=FEATURES).weight
        # Twenty independent parts give the standard error of the whole.
        parts = [
            tb.lstd(episodes.chosen(slice(k, None, 20)), tb.CHAIN4_COST, direction, features=FEATURES).weight
            for k in range(20)
        ]
        assert (np.abs(learned - weight) < 5 * np.std(parts, axis=0, ddof=1) / np.sqrt(20) + 1e-12).all()


GAE_COST, GAE_VALUE = [1.0, 0, 2, 3, 0, 5], [0.5, 0.7, 2, 3, 1, 4]


@pytest.mark.claim("prop-causal-lambda")
@given(st.data())
def test_backward_lambda_returns(data: st.DataObject) -> None:
    """Flip of the forward ones = streamed one by one = weighted n-step sums by definition."""
    length, gamma = data.draw(st.integers(1, 8)), data.draw(st.floats(0, 1))
    lambda_ = data.draw(st.floats(0, 1))
    generator = np.random.default_rng(data.draw(SEED))
    cost, value = generator.normal(size=(2, length))
    discount = np.r_[0.0, np.full(length - 1, gamma)]
    whole = tb.backward_lambda_returns(cost, np.r_[0.0, value[:-1]], discount, lambda_)
    memory, streamed = tb.BackwardMemory.empty(1), []
    for t in range(length):
        target, memory = tb.stream_backward_return(memory, cost[[t]], value[[t]], np.array([t == 0]), gamma, lambda_)
        streamed.append(target[0])
    np.testing.assert_allclose(streamed, whole, atol=1e-12)
    by_hand = hand_stream(list(range(length)), cost, value, gamma, lambda_)
    np.testing.assert_allclose(whole, by_hand, atol=1e-10)


def test_backward_lambda_returns_golden() -> None:
    """gamma = .9, lambda = .8: targets and, cutting the trace at t = 3, the second segment."""
    previous = [0.0, *GAE_VALUE[:-1]]
    discount = [0.0] + [0.9] * 5
    target = tb.backward_lambda_returns(GAE_COST, previous, discount, 0.8)
    np.testing.assert_allclose(target, [1, 0.81, 2.7092, 5.310624, 4.36364928, 8.3218274816], rtol=1e-12)
    advantage = target - GAE_VALUE
    np.testing.assert_allclose(advantage, [0.5, 0.11, 0.7092, 2.310624, 3.36364928, 4.3218274816], rtol=1e-11)
    cut = tb.backward_lambda_returns(GAE_COST[3:], previous[3:], discount[3:], [0.0, 0.8, 0.8])
    np.testing.assert_allclose(cut, [4.8, 3.996, 8.05712], rtol=1e-12)
    chain = tb.time_reversal(tb.chain4())
    mapped = tb.lambda_operator(chain, tb.CHAIN4_COST, [1, 2, 3, 4], 0.9, 0.8)
    np.testing.assert_allclose(mapped, [1, 2.265765718019638, 4.345487016064068, 6.796978764021365], rtol=1e-12)


def pooled(horizon: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Exact pooled targets of episodes of two_state cut at ``horizon``: MC past, MC future, visits, E[C]."""
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    value = tb.finite_horizon_value(tb.Chain(chain.transition, chain.termination, np.array([1.0, 0])), cost, horizon)
    visits = value.law.sum(axis=0)
    past = (value.law * np.nan_to_num(value.backward)).sum(axis=0) / visits
    future = (value.law * value.forward).sum(axis=0) / visits
    return past, future, visits, float(value.forward[0, 0])


@pytest.mark.claim("prop-truncated-episodes")
def test_pooling_truncated_episodes() -> None:
    """T = 3: Monte Carlo pools to exactly E[C]; time-unaware TD(0) to 1.846 E[C], with two identities that stay exact."""
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    past, future, visits, total = pooled(3)
    assert total == pytest.approx(0.396, rel=1e-12)
    np.testing.assert_allclose(past, [0.0527192009, 1.3787878788], atol=1e-10)
    law = visits / visits.sum()
    assert law @ (past + future - cost) == pytest.approx(total, rel=1e-12)
    value = tb.finite_horizon_value(tb.Chain(chain.transition, chain.termination, np.array([1.0, 0])), cost, 3)
    last, before = value.law[3], value.law[:3].sum(axis=0)
    # The chain that pooled TD(0) solves: a hazard eta_T(x) / m(x) replaces the clock.
    markovised = tb.Chain(before[:, None] * chain.transition / visits[:, None], last / visits, np.array([1.0, 0]))
    backward, forward = tb.backward_value(markovised, cost), tb.forward_value(markovised, cost)
    np.testing.assert_allclose(backward, [0.172173913, 1.6069565217], atol=1e-9)
    assert law @ (backward + forward - cost) == pytest.approx(0.7311020870, abs=1e-10)
    assert last @ backward == pytest.approx(total, rel=1e-12)
    assert forward[0] == pytest.approx(total, rel=1e-12)


def test_truncated_learners_converge_to_the_two_answers() -> None:
    """Sampled LSTD and Monte Carlo on cut episodes land on the pooled values above, not on each other."""
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    model = tb.chain_cmdp(tb.Chain(chain.transition, chain.termination, np.array([1.0, 0])), cost)
    episodes = tb.sample_episodes(model, np.ones((2, 1)), 200_000, np.random.default_rng(0), horizon=3)
    past = pooled(3)[0]
    carlo = tb.monte_carlo(episodes, cost, "backward")
    assert (np.abs(carlo.value - past) < 5 * carlo.standard_error).all()
    solved = tb.lstd(episodes, cost, "backward").value
    parts = [tb.lstd(episodes.chosen(slice(k, None, 20)), cost, "backward").value for k in range(20)]
    error = np.std(parts, axis=0, ddof=1) / np.sqrt(20)
    assert (np.abs(solved - [0.172173913, 1.6069565217]) < 5 * error).all()
    assert (np.abs(solved - past) > 20 * error).all()


@pytest.mark.claim("prop-on-policy")
def test_reweighted_predecessors_change_the_answer() -> None:
    """y1 (d = 1, share .2) and y2 (d = 0, .8) lead to x: Vb(x) = .2; equal weights on stored transitions give .5; forward is unmoved."""
    cost = np.array([1.0, 0.0, 0.0])
    states = np.array([[0, 2]] * 2 + [[1, 2]] * 8)
    episodes = tb.Episodes(states, np.zeros_like(states), np.full(10, 2), np.ones(10, bool), np.ones(10, bool))
    replayed = episodes.chosen(np.array([0, 1] * 4 + list(range(2, 10))))  # uniform over distinct stored transitions
    assert tb.lstd(episodes, cost, "backward").value[2] == pytest.approx(0.2)
    assert tb.lstd(replayed, cost, "backward").value[2] == pytest.approx(0.5)
    np.testing.assert_allclose(tb.lstd(replayed, cost, "forward").value, tb.lstd(episodes, cost, "forward").value)
    # The exact value needs the episode law, not only the transitions: 0.2 is a property of how often y1 is visited.
    chain = tb.Chain.killed(np.array([[0, 0, 1.0], [0, 0, 1.0], [0, 0, 0]]), np.array([0.2, 0.8, 0]))
    assert tb.backward_value(chain, cost)[2] == pytest.approx(0.2)


def pooled_td_ratio(chain: tb.Chain, cost: np.ndarray, horizon: int) -> float:
    """Sum of the pooled TD(0) values over the pooled law, relative to E[C], for episodes cut at ``horizon``."""
    value = tb.finite_horizon_value(chain, cost, horizon)
    visits, last, before = value.law.sum(axis=0), value.law[horizon], value.law[:horizon].sum(axis=0)
    seen = visits > 0
    transition = (before[:, None] * chain.transition)[np.ix_(seen, seen)] / visits[seen, None]
    end = 1 - transition.sum(axis=1)
    assert end == pytest.approx(last[seen] / visits[seen], abs=1e-12)
    pooled_chain = tb.Chain(transition, np.maximum(end, 0), chain.initial[seen])
    total = tb.state_wise_cost(pooled_chain, cost[seen])
    return float(visits[seen] / visits.sum() @ total / (chain.initial @ value.forward[0]))


def test_pooled_td_is_neither_an_upper_bound_nor_bounded_by_two() -> None:
    """One state: (2T+1)/(T+1). Four states (x0 -> a|b, a -> c, b -> b|c, c -> c): below one, though usually well above."""
    one = tb.Chain(np.ones((1, 1)), np.zeros(1), np.ones(1))
    for horizon in (1, 5, 200):
        assert pooled_td_ratio(one, np.ones(1), horizon) == pytest.approx((2 * horizon + 1) / (horizon + 1))
    four = np.array([[0, 0.5, 0.5, 0], [0, 0, 0, 1], [0, 0, 0.5, 0.5], [0, 0, 0, 1.0]])
    chain = tb.Chain(four, np.zeros(4), np.eye(4)[0])
    assert pooled_td_ratio(chain, np.eye(4)[1], 3) == pytest.approx(0.4821428571 / 0.5, abs=1e-9)
    generator = np.random.default_rng(0)
    ratios = [
        pooled_td_ratio(
            tb.Chain(generator.dirichlet(np.full(4, 0.3), 4), np.zeros(4), np.eye(4)[0]), generator.uniform(size=4), 20
        )
        for _ in range(200)
    ]
    assert 1.5 < np.median(ratios) < 2.2


@given(killed_chains(), SEED)
def test_backward_td_is_stable_on_policy(chain: tb.Chain, seed: int) -> None:
    """The symmetric part of D (I - N) is a sum of squares: half the traffic of differences plus the mass at starts and ends."""
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain)
    v = np.random.default_rng(seed).normal(size=chain.n_states)
    energy = v @ (law * (v - back.transition @ v))
    gap = (v[:, None] - v[None, :]) ** 2
    squares = 0.5 * (law[:, None] * back.transition * gap).sum()
    squares += 0.5 * (v**2 * law * (back.termination + chain.termination)).sum()
    assert energy == pytest.approx(squares, rel=1e-7, abs=1e-11)
    assert energy > 0


@given(killed_chains(), SEED, st.sampled_from([0.5, 0.9, 0.99]))
def test_discounted_error_bound(chain: tb.Chain, seed: int, gamma: float) -> None:
    """||V_w - V|| <= (1 - gamma^2)^(-1/2) ||(I - Pi) V|| in the law's norm, for the TD(0) fixed point with features."""
    generator = np.random.default_rng(seed)
    cost, phi = generator.uniform(size=chain.n_states), generator.normal(size=(chain.n_states, 2))
    law, back = np.diag(tb.stationary_distribution(chain)), tb.time_reversal(chain).transition
    exact = tb.backward_value(chain, cost, gamma)
    root = np.sqrt(law)
    projected = phi @ np.linalg.lstsq(root @ phi, root @ exact, rcond=None)[0]
    matrix = phi.T @ law @ (np.eye(chain.n_states) - gamma * back) @ phi
    weight = np.linalg.lstsq(matrix, phi.T @ law @ cost, rcond=None)[0]
    error, best = root @ (phi @ weight - exact), root @ (projected - exact)
    assert np.linalg.norm(error) <= np.linalg.norm(best) / np.sqrt(1 - gamma**2) + 1e-6


def test_needs_on_policy_state_weights() -> None:
    """phi = (1, 2), backward kernel 1 -> 2 -> 2, gamma .99: the wrong state weights make A negative, so TD diverges."""
    phi, back, gamma = np.array([[1.0], [2.0]]), np.array([[0.0, 1.0], [0.0, 1.0]]), 0.99
    for weight, expected in (((0.5, 0.5), -0.47), ((0.1, 0.9), -0.062), ((0.0, 1.0), 0.04)):
        matrix = phi.T @ np.diag(weight) @ (np.eye(2) - gamma * back) @ phi
        assert matrix[0, 0] == pytest.approx(expected)
