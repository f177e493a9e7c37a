"""From the trajectory constraint to a state-wise one: length bias, the clock, the start, and discounting (chapter 6)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import paths
from tests.strategies import SEED, continuing_chains, costs, killed_chains, layered_chains

PAIR = np.array([[0.9, 0.1], [0.1, 0.9]])
PAIR_COST = np.array([1.0, 0.0])


def averaged(chain: tb.Chain, cost: np.ndarray, gamma: float = 1.0) -> float:
    """The right side of Proposition 3.3 as the package computes it: E_eta[Vb + V - d]."""
    return float(tb.stationary_distribution(chain) @ tb.state_wise_cost(chain, cost, gamma))


def moments(chain: tb.Chain, cost: np.ndarray) -> tuple[float, float, float]:
    """E[L], E[C], E[LC] by the first-step equation G = d + d P l + P V + P G, without the package."""
    system, step = np.eye(chain.n_states) - chain.transition, chain.transition
    length, value = np.linalg.solve(system, np.ones(chain.n_states)), np.linalg.solve(system, cost)
    product = np.linalg.solve(system, cost + cost * (step @ length) + step @ value)
    return float(chain.initial @ length), float(chain.initial @ value), float(chain.initial @ product)


def fork(linger: float) -> tb.Chain:
    """fork3 with another probability of lingering in the free state."""
    return tb.Chain.killed(np.array([[0, 0.5, 0.5], [0, 0, 0], [0, 0, linger]]), np.array([1.0, 0, 0]))


def cycles(chain: tb.Chain, start: int) -> tb.Chain:
    """The episodes between two visits of an ergodic chain to ``start``: entering it ends the episode."""
    kernel = np.array(chain.transition)
    entering = kernel[:, start].copy()
    kernel[:, start] = 0.0
    return tb.Chain(kernel, entering, np.eye(chain.n_states)[start])


def unrolled(kernels: list[np.ndarray], start: np.ndarray) -> tb.Chain:
    """The chain on (x, t) of a process whose kernel depends on time; every episode has len(kernels) + 1 states."""
    size, layers = len(start), len(kernels) + 1
    transition = np.zeros((layers * size, layers * size))
    for t, kernel in enumerate(kernels):
        transition[t * size : (t + 1) * size, (t + 1) * size : (t + 2) * size] = kernel
    return tb.Chain.killed(transition, np.r_[start, np.zeros(size * len(kernels))])


@st.composite
def inhomogeneous(draw: st.DrawFn) -> tuple[list[np.ndarray], np.ndarray, np.ndarray]:
    """Draw kernels P_1..P_T, a start law and costs d_t(x), [T + 1, S]; all positive, so that every layer is visited."""
    size, horizon = draw(st.integers(1, 4)), draw(st.integers(0, 6))
    generator = np.random.default_rng(draw(SEED))
    kernels = [generator.dirichlet(np.ones(size), size) for _ in range(horizon)]
    return kernels, generator.dirichlet(np.ones(size)), generator.uniform(0, 5, (horizon + 1, size))


# --- Length bias: E_eta[Vb + V - d] = E[LC] / E[L] ---------------------------------------------------------------------


@pytest.mark.claim("prop-length-bias")
@settings(max_examples=50)
@given(st.data())
def test_weighing_states_is_weighing_episodes_holds(data: st.DataObject) -> None:
    """sum_x m f (Vb + V - d) = E[F C] for any signal f, by enumerating every episode."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost, signal = data.draw(costs(chain.n_states)), data.draw(costs(chain.n_states)) - 1.0
    truth = sum(
        p * signal[path].sum() * cost[path].sum()
        for p, path in paths(chain.transition, chain.termination, chain.initial)
    )
    weighed = (tb.expected_visits(chain) * signal) @ tb.state_wise_cost(chain, cost)
    assert weighed == pytest.approx(truth, rel=1e-10, abs=1e-10)
    assert chain.initial @ tb.product_moment(chain, signal, cost) == pytest.approx(truth, rel=1e-10, abs=1e-10)


@pytest.mark.claim("prop-length-bias")
@settings(max_examples=50)
@given(st.data())
def test_length_bias_with_loops_holds(data: st.DataObject) -> None:
    """The same with cycles and any start law, against the first-step equation for E[LC]."""
    chain = data.draw(killed_chains(sparse_too=False))
    cost = data.draw(costs(chain.n_states))
    length, expected, product = moments(chain, cost)
    assert averaged(chain, cost) == pytest.approx(product / length, rel=1e-8, abs=1e-10)
    covariance = product - length * expected
    assert averaged(chain, cost) == pytest.approx(expected + covariance / length, rel=1e-8, abs=1e-9)


@pytest.mark.claim("prop-length-bias")
@settings(max_examples=50)
@given(st.data())
def test_product_moment_from_every_state_holds(data: st.DataObject) -> None:
    """(I - P)^{-1}(f V_g + g V_f - f g) = E[F G | x_0 = x], started at each state in turn, by enumeration."""
    chain = data.draw(layered_chains())
    first, second = data.draw(costs(chain.n_states)), data.draw(costs(chain.n_states))
    found = tb.product_moment(chain, first, second)
    for x in range(chain.n_states):
        start = np.eye(chain.n_states)[x]
        truth = sum(
            p * first[path].sum() * second[path].sum() for p, path in paths(chain.transition, chain.termination, start)
        )
        assert found[x] == pytest.approx(truth, rel=1e-10, abs=1e-12)


@pytest.mark.claim("prop-length-bias")
def test_length_bias_golden_holds() -> None:
    """chain4: E[LC] = 47.2674897119 = 11486/243 and E[LC]/E[L] = 9.8170940171."""
    chain = tb.chain4()
    product = chain.initial @ tb.product_moment(chain, np.ones(4), tb.CHAIN4_COST)
    assert product == pytest.approx(47.2674897119, abs=1e-9)
    assert moments(chain, tb.CHAIN4_COST) == pytest.approx((4.8148148148148, 7.1111111111111, product), rel=1e-12)
    assert product / tb.expected_length(chain) == pytest.approx(9.8170940171, abs=1e-9)


@pytest.mark.claim("prop-length-bias")
@settings(max_examples=50)
@given(continuing_chains(max_states=6), st.data())
def test_length_bias_of_cycles_without_resets_holds(chain: tb.Chain, data: st.DataObject) -> None:
    """An ergodic chain cut at its visits to x0: E_eta[since the last + until the next visit] = E[LC] eta(x0) (Kac)."""
    start, cost = data.draw(st.integers(0, chain.n_states - 1)), data.draw(costs(chain.n_states))
    episode, law = cycles(chain, start), tb.stationary_distribution(chain)
    length, _, product = moments(episode, cost)
    assert length == pytest.approx(1 / law[start], rel=1e-8)
    # Forward and backward value from the ergodic chain and its reversal, stopped before they return to x0.
    is_other = np.arange(chain.n_states) != start
    back = tb.time_reversal(chain).transition.copy()
    back[start] = 0.0
    ahead = np.linalg.solve(np.eye(chain.n_states) - chain.transition * is_other, cost)
    behind = np.linalg.solve(np.eye(chain.n_states) - back, cost)
    assert law @ (behind + ahead - cost) == pytest.approx(product / length, rel=1e-7, abs=1e-9)
    np.testing.assert_allclose(tb.state_wise_cost(episode, cost), behind + ahead - cost, rtol=1e-7, atol=1e-9)


# --- When does the average bound E[C]? -------------------------------------------------------------------------------


@pytest.mark.claim("prop-covariance-sign")
@settings(max_examples=50)
@given(st.data())
def test_average_bounds_the_cost_iff_the_covariance_is_nonnegative_holds(data: st.DataObject) -> None:
    chain = data.draw(killed_chains(max_states=5))
    cost = data.draw(costs(chain.n_states))
    length, expected, product = moments(chain, cost)
    covariance = product - length * expected
    gap, tolerance = averaged(chain, cost) - expected, 1e-8 * (1 + product)
    assert (gap > tolerance) <= (covariance > 0)
    assert (covariance > tolerance * length) <= (gap > 0)
    assert (covariance < -tolerance * length) <= (gap < 0)


@pytest.mark.claim("prop-covariance-sign")
@settings(max_examples=50)
@given(inhomogeneous())
def test_fixed_length_gives_equality_holds(process: tuple[list[np.ndarray], np.ndarray, np.ndarray]) -> None:
    kernels, start, cost = process
    chain = unrolled(kernels, start)
    assert averaged(chain, cost.ravel()) == pytest.approx(
        chain.initial @ tb.forward_value(chain, cost.ravel()), rel=1e-10
    )


@pytest.mark.claim("prop-covariance-sign")
@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.floats(0.01, 1), st.floats(0, 10), st.floats(0, 10))
def test_two_states_with_one_start_holds(share: list[float], end: float, here: float, there: float) -> None:
    """Two states, a fixed start: Cov(L, C) >= 0 always, and one state likewise."""
    kernel = (1 - end) * np.array([[share[0], (1 - share[0]) * share[1]], [share[2], (1 - share[2]) * share[3]]])
    chain = tb.Chain.killed(kernel, np.array([1.0, 0.0]))
    cost = np.array([here, there])
    length, expected, product = moments(chain, cost)
    assert product - length * expected >= -1e-9 * (1 + product)
    if chain.visited.all():
        assert averaged(chain, cost) >= expected * (1 - 1e-9)


@pytest.mark.claim("prop-covariance-sign")
@settings(max_examples=50)
@given(st.lists(st.floats(0, 1), min_size=4, max_size=4), st.floats(0, 10), st.floats(0, 10), st.floats(0, 10))
def test_three_states_without_cycles_holds(share: list[float], a: float, b: float, c: float) -> None:
    """Bounded lengths need four states: with three, 0 -> 1 -> 2 and 0 -> 2, the covariance is never negative."""
    kernel = np.zeros((3, 3))
    kernel[0, 1], kernel[0, 2] = share[0], (1 - share[0]) * share[1]
    kernel[1, 2] = share[2]
    chain = tb.Chain.killed(kernel, np.array([1.0, 0, 0]))
    length, expected, product = moments(chain, np.array([a, b, c]))
    assert product - length * expected >= -1e-9


@pytest.mark.claim("prop-covariance-sign")
@settings(max_examples=50)
@given(st.data())
def test_shortest_and_longest_episode_bound_the_average_holds(data: st.DataObject) -> None:
    """L_min E[C] <= E[L] E_eta[Vb + V - d] <= L_max E[C]; the left side is attained by fork3."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    possible = [len(path) for _, path in paths(chain.transition, chain.termination, chain.initial)]
    length, expected, _ = moments(chain, cost)
    assert min(possible) * expected <= length * averaged(chain, cost) + 1e-9
    assert length * averaged(chain, cost) <= max(possible) * expected + 1e-9
    assert 2.5 * averaged(tb.fork3(), tb.FORK3_COST) == pytest.approx(2 * 0.5, rel=1e-12)


@pytest.mark.claim("prop-covariance-sign")
def test_bound_needs_expensive_episodes_to_be_long() -> None:
    """Proposition 3.3, episodes: the smallest counterexample with a fixed start, three states: 0.4 < 0.5."""
    chain, cost = tb.fork3(), tb.FORK3_COST
    assert moments(chain, cost) == pytest.approx((2.5, 0.5, 1.0), rel=1e-13)
    np.testing.assert_allclose(tb.stationary_distribution(chain), [0.4, 0.2, 0.4], rtol=1e-13)
    np.testing.assert_allclose(tb.forward_value(chain, cost), [0.5, 1, 0], atol=1e-13)
    np.testing.assert_allclose(tb.backward_value(chain, cost), [0, 1, 0], atol=1e-13)
    assert averaged(chain, cost) == pytest.approx(0.4, rel=1e-13)
    length, expected, product = moments(chain, cost)
    assert product - length * expected == pytest.approx(-0.25, rel=1e-12)
    assert averaged(chain, cost) < chain.initial @ tb.forward_value(chain, cost) - 0.09


@pytest.mark.claim("prop-covariance-sign")
def test_bound_needs_covariance_even_for_bounded_lengths() -> None:
    """x0 -> a (cost 1), end; x0 -> b -> b', end: at most three states an episode, the same numbers."""
    kernel = np.zeros((4, 4))
    kernel[0, 1] = kernel[0, 2] = 0.5
    kernel[2, 3] = 1.0
    chain, cost = tb.Chain.killed(kernel, np.eye(4)[0]), np.array([0.0, 1, 0, 0])
    assert moments(chain, cost) == pytest.approx((2.5, 0.5, 1.0), rel=1e-13)
    assert averaged(chain, cost) == pytest.approx(0.4, rel=1e-13)


@pytest.mark.claim("prop-covariance-sign")
def test_bound_needs_covariance_and_fails_without_limit() -> None:
    """Lingering with probability .999: E[C] = .5 and the average .0019940180 = 1 / 501.5."""
    chain = fork(0.999)
    assert averaged(chain, tb.FORK3_COST) == pytest.approx(0.0019940180, abs=1e-10)
    assert averaged(chain, tb.FORK3_COST) == pytest.approx(1 / 501.5, rel=1e-10)
    assert averaged(chain, tb.FORK3_COST) / 0.5 == pytest.approx(0.004, abs=2e-5)
    for linger in (0.0, 0.3, 0.9, 0.9999):
        assert averaged(fork(linger), tb.FORK3_COST) == pytest.approx(1 / (1.5 + 0.5 / (1 - linger)), rel=1e-9)


@pytest.mark.claim("prop-covariance-sign")
def test_two_states_need_a_fixed_start() -> None:
    """Start at random in x0 (cost 1, ends) or x1 (free, lingers): E[C] = 1/2, average 1/3."""
    chain = tb.Chain.killed(np.array([[0, 0], [0, 0.5]]), np.array([0.5, 0.5]))
    assert averaged(chain, np.array([1.0, 0.0])) == pytest.approx(0.3333333333, abs=1e-10)
    assert chain.initial @ tb.forward_value(chain, [1.0, 0.0]) == pytest.approx(0.5, rel=1e-13)


# --- The printed proposition: an ergodic chain, a horizon T, a backward value stopped at x0 ------------------------------


def literal(chain: tb.Chain, cost: np.ndarray, start: int, horizon: int) -> tuple[float, float]:
    """Left and right side of inequality (8) as printed, for an ergodic chain."""
    law = tb.stationary_distribution(chain)
    forward = tb.finite_horizon_value(chain, cost, horizon).forward[0]
    back = tb.time_reversal(chain).transition.copy()
    back[start] = 0.0
    backward = np.linalg.solve(np.eye(chain.n_states) - back, cost)
    return float(forward[start]), float(law @ (backward + forward - cost))


@pytest.mark.claim("prop-literal-reading")
def test_literal_reading_needs_a_stationary_start() -> None:
    """Two states, (8) reads 1.9 <= 1.5, 4.84464 <= 3.5, 52.9999999996 <= 51."""
    chain = tb.Chain.continuing(PAIR)
    printed = {1: (1.9, 1.5), 5: (4.84464, 3.5), 100: (52.9999999996, 51.0)}
    for horizon, sides in printed.items():
        assert literal(chain, PAIR_COST, 0, horizon) == pytest.approx(sides, abs=1e-10)
        by_powers = sum(np.linalg.matrix_power(PAIR, t)[0] @ PAIR_COST for t in range(horizon + 1))
        assert by_powers == pytest.approx(sides[0], abs=1e-10)
        assert sides[0] > sides[1]


@pytest.mark.claim("prop-literal-reading")
@settings(max_examples=50)
@given(continuing_chains(max_states=5), st.data())
def test_literal_gap_holds(chain: tb.Chain, data: st.DataObject) -> None:
    """RHS = T eta.d + E_eta[Vb] always; LHS - RHS -> h(x0) + eta.d - E_eta[Vb], the offset of chapter 4, if aperiodic."""
    lazy = tb.Chain.continuing(0.5 * chain.transition + 0.5 * np.eye(chain.n_states))
    cost, horizon = data.draw(costs(lazy.n_states)), 1000
    law, size = tb.stationary_distribution(lazy), lazy.n_states
    rate = law @ cost
    offset = np.linalg.solve(np.eye(size) - lazy.transition + np.outer(np.ones(size), law), cost - rate)
    left, right = literal(lazy, cost, 0, horizon)
    behind = right - horizon * rate
    assert left - right == pytest.approx(offset[0] + rate - behind, rel=1e-6, abs=1e-6)
    assert literal(lazy, cost, 0, 7)[1] == pytest.approx(7 * rate + behind, rel=1e-8, abs=1e-8)


@pytest.mark.claim("prop-literal-reading")
def test_literal_gap_without_limit_holds() -> None:
    """The pair's gap tends to 2, and to 1 / (4 epsilon) - 1/2 if it changes state with probability epsilon."""
    left, right = literal(tb.Chain.continuing(PAIR), PAIR_COST, 0, 2000)
    assert left - right == pytest.approx(2.0, abs=1e-9)
    sticky = tb.Chain.continuing(np.array([[0.999, 0.001], [0.001, 0.999]]))
    left, right = literal(sticky, PAIR_COST, 0, 20_000)
    assert left - right == pytest.approx(249.5, abs=1e-6)


@pytest.mark.claim("prop-literal-reading")
def test_both_steps_of_the_printed_proof_need_a_stationary_start() -> None:
    """Step (i), the future from eta: 1.9 > 1 at t = 0, T = 1. Step (ii), the past: 1.9 > E_eta[Vb] = 1 at t = 1."""
    chain = tb.Chain.continuing(PAIR)
    law = tb.stationary_distribution(chain)
    future = tb.finite_horizon_value(chain, PAIR_COST, 1).forward[0]
    assert (future[0], law @ future) == pytest.approx((1.9, 1.0), abs=1e-12)
    left, right = literal(chain, PAIR_COST, 0, 1)
    assert right - (law @ future - law @ PAIR_COST) == pytest.approx(1.0, abs=1e-12)  # E_eta[Vb]
    assert left == pytest.approx(1.9, abs=1e-12)
    # The path identity itself is right, conditional on x_0: P(x_1 | x_0) = Pback(x_0 | x_1) eta(x_1) / eta(x_0).
    np.testing.assert_allclose(tb.time_reversal(chain).transition.T * law / law[:, None], PAIR, rtol=1e-12)


@pytest.mark.claim("prop-literal-reading")
def test_a_fixed_length_past_needs_a_stationary_start() -> None:
    """Both sums of T + 1 terms: RHS = (2T + 1) eta.d = .3 < 1.1 with d = 1_{x0}, eta(x0) = .1, T = 1."""
    chain, cost = tb.Chain.continuing(np.array([[0.1, 0.9], [0.1, 0.9]])), np.array([1.0, 0.0])
    law = tb.stationary_distribution(chain)
    assert law[0] == pytest.approx(0.1, rel=1e-13)
    back = tb.time_reversal(chain)
    both = tb.bellman_operator(back, cost, cost) + tb.bellman_operator(chain, cost, cost) - cost
    assert law @ both == pytest.approx(0.3, rel=1e-12)
    assert tb.bellman_operator(chain, cost, cost)[0] == pytest.approx(1.1, rel=1e-12)


@pytest.mark.claim("prop-literal-reading")
@settings(max_examples=50)
@given(continuing_chains(max_states=6), st.data())
def test_literal_reading_holds_as_corrected(chain: tb.Chain, data: st.DataObject) -> None:
    """If x_0 ~ eta, the left side is (T + 1) eta.d and (8) holds, for either length of the past."""
    cost, horizon = data.draw(costs(chain.n_states)), data.draw(st.integers(0, 8))
    law = tb.stationary_distribution(chain)
    left = law @ tb.finite_horizon_value(chain, cost, horizon).forward[0]
    assert left == pytest.approx((horizon + 1) * law @ cost, rel=1e-9, abs=1e-12)
    for start in range(chain.n_states):
        assert left <= literal(chain, cost, start, horizon)[1] + 1e-9
    assert left <= (2 * horizon + 1) * law @ cost + 1e-9


# --- With the clock, and on other sets that every episode passes once -----------------------------------------------------


@pytest.mark.claim("prop-clock-exact")
@settings(max_examples=50)
@given(inhomogeneous())
def test_every_layer_of_the_clock_holds(process: tuple[list[np.ndarray], np.ndarray, np.ndarray]) -> None:
    """E[U_t + V_t - d_t] = E[C] for each t, kernels and costs that change with time included."""
    kernels, start, cost = process
    law, expected, laws = start, start @ cost[0], [start]
    for kernel, bill in zip(kernels, cost[1:], strict=True):
        law = law @ kernel
        laws.append(law)
        expected += law @ bill
    whole = tb.state_wise_cost(unrolled(kernels, start), cost.ravel()).reshape(cost.shape)
    for t, weight in enumerate(laws):
        assert weight @ whole[t] == pytest.approx(expected, rel=1e-10)
    assert whole.max() >= expected * (1 - 1e-12)


@pytest.mark.claim("prop-clock-exact")
@settings(max_examples=50)
@given(inhomogeneous(), SEED)
def test_any_weights_that_count_each_episode_once_holds(
    process: tuple[list[np.ndarray], np.ndarray, np.ndarray], seed: int
) -> None:
    """Weights w(t) >= 0 with sum 1 (random layers included): sum_x m w (Vb + V - d) = E[C]."""
    kernels, start, cost = process
    chain, weight = unrolled(kernels, start), np.random.default_rng(seed).dirichlet(np.ones(len(cost)))
    once = np.repeat(weight, len(start))
    weighed = (tb.expected_visits(chain) * once) @ tb.state_wise_cost(chain, cost.ravel())
    assert weighed == pytest.approx(chain.initial @ tb.forward_value(chain, cost.ravel()), rel=1e-10)


@pytest.mark.claim("prop-clock-exact")
@settings(max_examples=50)
@given(st.data())
def test_the_clock_needs_episodes_that_reach_the_time(data: st.DataObject) -> None:
    """Otherwise a layer sees E[C 1{L > t}], by enumeration: fork3 at t = 2 sees 0, not 0.5."""
    chain, horizon = data.draw(layered_chains()), 4
    cost = data.draw(costs(chain.n_states))
    value = tb.finite_horizon_value(chain, cost, horizon)
    seen = np.nansum(value.law * (value.backward + value.forward - cost), axis=1)
    for t in range(horizon + 1):
        truth = sum(
            p * cost[path].sum()
            for p, path in paths(chain.transition, chain.termination, chain.initial)
            if len(path) > t
        )
        assert seen[t] == pytest.approx(truth, rel=1e-10, abs=1e-12)
    forked = tb.finite_horizon_value(tb.fork3(), tb.FORK3_COST, 2)
    assert np.nansum(forked.law[2] * (forked.backward[2] + forked.forward[2] - tb.FORK3_COST)) == 0.0


# --- The constraint at the start, and at the costs ------------------------------------------------------------------------


@pytest.mark.claim("prop-start-suffices")
@settings(max_examples=50)
@given(st.data())
def test_the_start_bounds_the_cost_holds(data: st.DataObject) -> None:
    """mu0.(Vb + V - d) >= E[C], so some start has it; for one start it is E[C] + Vb(x0) - d(x0) = E[n C] / E[n]."""
    chain = data.draw(killed_chains())
    cost = data.draw(costs(chain.n_states))
    _, expected, _ = moments(chain, cost)
    whole = tb.state_wise_cost(chain, cost)
    assert chain.initial @ whole >= expected * (1 - 1e-9)
    assert whole[chain.initial > 0].max() >= expected * (1 - 1e-9)
    discounted = chain.initial @ np.linalg.solve(np.eye(chain.n_states) - 0.9 * chain.transition, cost)
    assert chain.initial @ tb.state_wise_cost(chain, cost, 0.9) >= discounted * (1 - 1e-9)
    if chain.initial.max() == 1.0:
        start = int(chain.initial.argmax())
        assert whole[start] - expected == pytest.approx(
            tb.backward_value(chain, cost)[start] - cost[start], rel=1e-8, abs=1e-8
        )
        count = np.eye(chain.n_states)[start]
        seen = chain.initial @ tb.product_moment(chain, count, cost) / tb.expected_visits(chain)[start]
        assert whole[start] == pytest.approx(seen, rel=1e-8)


@pytest.mark.claim("prop-start-suffices")
@settings(max_examples=50)
@given(st.data())
def test_a_free_past_at_the_start_gives_equality_holds(data: st.DataObject) -> None:
    """If the start is never revisited, the constraint there is the trajectory constraint, no more."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    _, expected, _ = moments(chain, cost)
    assert tb.state_wise_cost(chain, cost)[0] == pytest.approx(expected, rel=1e-11, abs=1e-12)
    assert tb.slack(chain, cost, expected)[0] == pytest.approx(0.0, abs=1e-10)


@pytest.mark.claim("prop-start-suffices")
def test_the_bound_needs_the_start() -> None:
    """Slack elsewhere proves nothing: fork3 under the limit .45 has slack .45 in state 2 and violates the limit."""
    room = tb.slack(tb.fork3(), tb.FORK3_COST, 0.45)
    np.testing.assert_allclose(room, [-0.05, -0.55, 0.45], atol=1e-13)
    assert moments(tb.fork3(), tb.FORK3_COST)[1] > 0.45


@pytest.mark.claim("prop-start-suffices")
def test_the_converse_needs_more_than_a_feasible_policy() -> None:
    """A disaster of cost M with probability q: E[C] = q M meets the limit, the disaster's state sees M."""
    for q, cost in ((0.5, 2.0), (1e-3, 1e3), (1e-6, 1e6)):
        chain = tb.Chain.killed(np.array([[0.0, q], [0.0, 0.0]]), np.array([1.0, 0.0]))
        np.testing.assert_allclose(tb.slack(chain, [0.0, cost], 1.0), [0.0, 1.0 - cost], rtol=1e-9, atol=1e-9)


@pytest.mark.claim("prop-cost-weighted")
@settings(max_examples=50)
@given(st.data())
def test_average_at_the_costs_bounds_the_expectation_holds(data: st.DataObject) -> None:
    """sum m d (Vb + V - d) = E[C^2] >= E[C]^2: averaged over costs instead of steps, (8) holds for every chain."""
    chain = data.draw(killed_chains())
    cost = data.draw(costs(chain.n_states))
    _, expected, _ = moments(chain, cost)
    weight = tb.expected_visits(chain) * cost
    value = np.linalg.solve(np.eye(chain.n_states) - chain.transition, cost)
    square = chain.initial @ np.linalg.solve(
        np.eye(chain.n_states) - chain.transition, cost**2 + 2 * cost * (chain.transition @ value)
    )
    assert weight @ tb.state_wise_cost(chain, cost) == pytest.approx(square, rel=1e-8, abs=1e-9)
    assert square >= expected**2 * (1 - 1e-9)
    if expected > 0:
        assert tb.state_wise_cost(chain, cost)[cost > 0].max() >= expected * (1 - 1e-9)


@pytest.mark.claim("prop-cost-weighted")
def test_average_at_the_costs_golden_holds() -> None:
    """fork3: 1 >= .5, where the average over steps is .4; chain4: E[C^2] / E[C] = 80.8148148148 / 7.1111111111."""
    for chain, cost, truth in ((tb.fork3(), tb.FORK3_COST, 1.0), (tb.chain4(), tb.CHAIN4_COST, 11.3645833333)):
        weight = tb.expected_visits(chain) * cost
        assert weight @ tb.state_wise_cost(chain, cost) / weight.sum() == pytest.approx(truth, abs=1e-9)
        assert chain.initial @ tb.product_moment(chain, cost, cost) / weight.sum() == pytest.approx(truth, abs=1e-9)


@pytest.mark.claim("prop-cost-weighted")
@pytest.mark.parametrize(("rule", "branches"), [(np.sqrt, (3, 1.0, 2, 2.0)), (np.square, (5, 1.0, 2, 2.0))])
def test_the_bound_needs_weights_proportional_to_the_cost(
    rule: np.ufunc, branches: tuple[int, float, int, float]
) -> None:
    """Two lines, 3 or 5 states of cost 1 or 2 states of cost 2: weights sqrt(d) and d^2 fall below E[C], d does not."""
    first, low, second, high = branches
    kernel = np.eye(first + second, k=1)
    kernel[first - 1, first] = 0.0
    start = np.zeros(first + second)
    start[[0, first]] = 0.5
    chain, cost = tb.Chain.killed(kernel, start), np.r_[np.full(first, low), np.full(second, high)]
    expected, whole = 0.5 * (first * low + second * high), tb.state_wise_cost(chain, cost)
    assert np.average(whole, weights=0.5 * rule(cost)) < expected - 0.01
    assert np.average(whole, weights=0.5 * cost) >= expected


# --- Renewal reward --------------------------------------------------------------------------------------------------


@pytest.mark.claim("prop-renewal-reward")
@settings(max_examples=50)
@given(st.data())
def test_renewal_reward_holds(data: st.DataObject) -> None:
    """E[C] = E[L] eta.d, with eta from the restarted process's own balance equation; the time average tends to eta.d."""
    chain = data.draw(killed_chains(max_states=6))
    cost = data.draw(costs(chain.n_states))
    length, expected, _ = moments(chain, cost)
    kernel = chain.transition + np.outer(chain.termination, chain.initial)
    balance = np.vstack([kernel.T - np.eye(chain.n_states), np.ones(chain.n_states)])
    law = np.linalg.lstsq(balance, np.eye(chain.n_states + 1)[-1], rcond=None)[0]
    assert length * (law @ cost) == pytest.approx(expected, rel=1e-7, abs=1e-9)
    assert tb.expected_length(chain) * (tb.stationary_distribution(chain) @ cost) == pytest.approx(expected, rel=1e-8)
    # The time average misses eta.d by (mu0 - mu_K).h / K: |mean_K - eta.d| <= 2 max|h| / K, periodic or not.
    offset = np.linalg.solve(
        np.eye(chain.n_states) - kernel + np.outer(np.ones(chain.n_states), law), cost - law @ cost
    )
    now, total = chain.initial, 0.0
    for _ in range(400):
        total, now = total + now @ cost, now @ kernel
    assert abs(total / 400 - law @ cost) <= 2 * np.abs(offset).max() / 400 + 1e-9


@pytest.mark.claim("prop-renewal-reward")
def test_a_limit_per_step_needs_the_length() -> None:
    """Lingering lowers eta.d to any value while E[C] stays 1/2: a limit on the average per step is another problem."""
    rate = [float(tb.stationary_distribution(fork(p)) @ tb.FORK3_COST) for p in (0.0, 0.5, 0.999)]
    assert rate == pytest.approx([0.25, 0.2, 1 / 1003], rel=1e-9)
    for p in (0.0, 0.5, 0.999):
        assert fork(p).initial @ tb.forward_value(fork(p), tb.FORK3_COST) == pytest.approx(0.5, rel=1e-12)


# --- Discounting in both directions --------------------------------------------------------------------------------------


def mean_weight(gamma: float, length: int) -> float:
    """[(1 + g)/(1 - g) - 2g(1 - g^L)/(L(1 - g)^2)] / L."""
    ends = 2 * gamma * (1 - gamma**length) / (length * (1 - gamma) ** 2)
    return ((1 + gamma) / (1 - gamma) - ends) / length


def line(length: int) -> tb.Chain:
    """L states in a row, then the end."""
    return tb.Chain.killed(np.eye(length, k=1), np.eye(length)[0])


@pytest.mark.claim("prop-two-sided-discount")
@settings(max_examples=50)
@given(st.data(), st.floats(0.05, 0.999))
def test_two_sided_cost_around_now_holds(data: st.DataObject, gamma: float) -> None:
    """Vb_g + V_g - d = E[sum_s g^|s - t| d(x_s) | x_t = x], by enumeration; never above the undiscounted one."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    truth = np.zeros(chain.n_states)
    for p, path in paths(chain.transition, chain.termination, chain.initial):
        for t, x in enumerate(path):
            truth[x] += p * sum(gamma ** abs(s - t) * cost[y] for s, y in enumerate(path))
    two_sided = tb.state_wise_cost(chain, cost, gamma)
    np.testing.assert_allclose(two_sided, truth / tb.expected_visits(chain), rtol=1e-9, atol=1e-12)
    assert (two_sided <= tb.state_wise_cost(chain, cost) + 1e-10).all()


@pytest.mark.claim("prop-two-sided-discount")
@settings(max_examples=50)
@given(inhomogeneous(), st.floats(0.05, 0.999))
def test_fixed_length_weights_holds(process: tuple[list[np.ndarray], np.ndarray, np.ndarray], gamma: float) -> None:
    """Fixed length L: the average is sum_s w_s E[d(x_s)], w_s = (1 + g - g^{s+1} - g^{L-s}) / (L (1 - g)) <= 1."""
    kernels, start, cost = process
    length, law, per_step = len(cost), start, [start @ cost[0]]
    for kernel, bill in zip(kernels, cost[1:], strict=True):
        law = law @ kernel
        per_step.append(law @ bill)
    s = np.arange(length)
    weight = (1 + gamma - gamma ** (s + 1) - gamma ** (length - s)) / (length * (1 - gamma))
    average = averaged(unrolled(kernels, start), cost.ravel(), gamma)
    assert average == pytest.approx(weight @ np.array(per_step), rel=1e-8)
    assert weight.mean() == pytest.approx(mean_weight(gamma, length), rel=1e-6)
    assert average <= sum(per_step) * (1 + 1e-9)
    assert (average < sum(per_step) - 1e-9) or length == 1 or gamma > 0.99 or sum(per_step) < 1e-6


@pytest.mark.claim("prop-two-sided-discount")
def test_mean_weight_golden_holds() -> None:
    """gamma = .99: L = 200, 65, 15; the ends and the middle of a line of 200 states with cost 1 each."""
    for length, truth in ((200, 0.5663199391), (65, 0.8136668280), (15, 0.9518018751)):
        assert mean_weight(0.99, length) == pytest.approx(truth, abs=1e-10)
        assert averaged(line(length), np.ones(length), 0.99) / length == pytest.approx(truth, abs=1e-10)
    weight = tb.state_wise_cost(line(200), np.ones(200), 0.99) / 200
    assert (weight[0], weight[-1]) == pytest.approx((0.4330101626, 0.4330101626), abs=1e-10)
    assert weight.max() == pytest.approx(0.6307978204, abs=1e-10)
    assert weight[99] == pytest.approx(weight.max(), rel=1e-12)


@pytest.mark.claim("prop-two-sided-discount")
def test_limits_of_the_tasks_golden_holds() -> None:
    """What d0 of the paper's tasks allows undiscounted if cost is spread evenly: grid, Cheetah, Circle, Gather."""
    tasks = ((20, 200, 35.3), (50, 200, 88.3), (10, 65, 12.3), (4, 15, 4.2))
    for limit, length, truth in tasks:
        assert limit / mean_weight(0.99, length) == pytest.approx(truth, abs=0.05)


@pytest.mark.claim("prop-two-sided-discount")
def test_bound_needs_no_discount() -> None:
    """Two states, d = (1, 0), g = .9: the average .95 is below E[C] = 1 and below the discounted cost 1."""
    chain, cost = line(2), np.array([1.0, 0.0])
    assert averaged(chain, cost, 0.9) == pytest.approx(0.95, rel=1e-12)
    assert chain.initial @ tb.forward_value(chain, cost, 0.9) == pytest.approx(1.0, rel=1e-12)
    np.testing.assert_allclose(tb.state_wise_cost(chain, cost, 0.9), [1.0, 0.9], rtol=1e-12)


@pytest.mark.claim("prop-two-sided-discount")
@settings(max_examples=50)
@given(continuing_chains(), st.data(), st.floats(0.05, 0.99))
def test_continuing_chain_holds(chain: tb.Chain, data: st.DataObject, gamma: float) -> None:
    """An endless stationary chain: E_eta = (1 + g) / (1 - g) eta.d."""
    cost = data.draw(costs(chain.n_states))
    truth = (1 + gamma) / (1 - gamma) * tb.stationary_distribution(chain) @ cost
    assert averaged(chain, cost, gamma) == pytest.approx(truth, rel=1e-9, abs=1e-12)


@pytest.mark.claim("prop-two-sided-discount")
def test_discount_and_missing_clock_golden_holds() -> None:
    """One state, 200 steps of cost 1, g = .99: TD(0) without the clock pools to 132.7793, factor .664."""
    blind = tb.Chain.killed(np.array([[199 / 200]]), np.array([1.0]))  # what TD(0) sees: it ends by a coin toss
    assert averaged(blind, np.ones(1), 0.99) == pytest.approx(2 / (1 - 0.99 * 0.995) - 1, rel=1e-12)
    assert averaged(blind, np.ones(1), 0.99) == pytest.approx(132.7793, abs=5e-5)
    assert averaged(blind, np.ones(1), 0.99) / 200 == pytest.approx(0.664, abs=5e-4)
    assert averaged(blind, np.ones(1)) == pytest.approx(399.0, rel=1e-12)  # the missing clock alone: 2 T - 1


# --- The discounted constraint done right ----------------------------------------------------------------------------------


def inflated(
    kernels: list[np.ndarray], start: np.ndarray, cost: np.ndarray, gamma: float, back: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return per t the law and B_t + V_t - d_t, with V_t = d + g P V_{t+1} and B_t = d + back * (backward kernel) B_{t-1}."""
    law, behind, ahead = [start], [cost[0]], [cost[-1]]
    for kernel, bill in zip(kernels, cost[1:], strict=True):
        law.append(law[-1] @ kernel)
        backward_kernel = (law[-2][:, None] * kernel / law[-1]).T
        behind.append(bill + back * backward_kernel @ behind[-1])
    for kernel, bill in zip(kernels[::-1], cost[-2::-1], strict=True):
        ahead.append(bill + gamma * kernel @ ahead[-1])
    return [(eta, b + v - d) for eta, b, v, d in zip(law, behind, ahead[::-1], cost, strict=True)]


@pytest.mark.claim("prop-inflated-discount")
@settings(max_examples=50)
@given(inhomogeneous(), st.floats(0.3, 1.0))
def test_inflating_the_past_holds_as_corrected(
    process: tuple[list[np.ndarray], np.ndarray, np.ndarray], gamma: float
) -> None:
    """g^t E[B_t + V_t - d] = E[sum_s g^s d(x_s)] at every t, and it is the package's state-wise cost of g^t d."""
    kernels, start, cost = process
    value = inflated(kernels, start, cost, gamma, 1 / gamma)
    law, truth = start, start @ cost[0]
    for s, (kernel, bill) in enumerate(zip(kernels, cost[1:], strict=True), start=1):
        law = law @ kernel
        truth += gamma**s * law @ bill
    power = gamma ** np.arange(len(cost))
    package = tb.state_wise_cost(unrolled(kernels, start), (power[:, None] * cost).ravel()).reshape(cost.shape)
    for t, (eta, whole) in enumerate(value):
        assert power[t] * eta @ whole == pytest.approx(truth, rel=1e-9)
        np.testing.assert_allclose(power[t] * whole, package[t], rtol=1e-8)
        limit = (power[t] * whole).max()
        assert truth <= limit * (1 + 1e-9)  # B + V - d <= limit g^-t at one layer bounds the discounted cost


@pytest.mark.claim("prop-inflated-discount")
def test_the_discounted_bound_needs_inflation() -> None:
    """Two states, d = (1, 0), g = .9: with g backward the last layer sees .9, with 1/g it sees g (1/g) = 1."""
    kernels, start, cost = [np.ones((1, 1))], np.ones(1), np.array([[1.0], [0.0]])
    printed = [0.9**t * (eta @ whole) for t, (eta, whole) in enumerate(inflated(kernels, start, cost, 0.9, 0.9))]
    repaired = [0.9**t * (eta @ whole) for t, (eta, whole) in enumerate(inflated(kernels, start, cost, 0.9, 1 / 0.9))]
    assert printed == pytest.approx([1.0, 0.81], rel=1e-12)
    assert repaired == pytest.approx([1.0, 1.0], rel=1e-12)


@pytest.mark.claim("prop-inflated-discount")
@settings(max_examples=50)
@given(st.data(), st.floats(0.05, 0.999))
def test_discounting_as_ending_holds_as_corrected(data: st.DataObject, gamma: float) -> None:
    """Without a clock: the values of the chain g P, undiscounted, bound the discounted cost at the start, exactly at the end."""
    chain = data.draw(killed_chains(max_states=5))
    cost = data.draw(costs(chain.n_states))
    mortal = tb.Chain.killed(gamma * chain.transition, chain.initial)
    truth = chain.initial @ np.linalg.solve(np.eye(chain.n_states) - gamma * chain.transition, cost)
    ending = tb.expected_visits(mortal) * mortal.termination
    assert ending @ tb.backward_value(mortal, cost) == pytest.approx(truth, rel=1e-8, abs=1e-10)
    assert chain.initial @ tb.state_wise_cost(mortal, cost) >= truth * (1 - 1e-9)
