"""Discrete actions in closed form: hulls, balls, elimination, the entropy dual with its signs, exploration (chapter 9)."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize

from bvf_tutorial import tabular as tb
from bvf_tutorial.tabular import StateStatus
from tests.strategies import SEED

SCORE, COST, TAU = np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 3.0]), 0.5


def problem(seed: int, n_actions: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray, float]:
    """One state: scores, costs and a limit; with ``ties`` small integers."""
    generator = np.random.default_rng(seed)
    if ties:
        q, d = generator.integers(0, 4, size=(2, n_actions)).astype(float)
        return q, d, float(generator.integers(0, 4))
    q, d = generator.normal(size=(2, n_actions))
    return q, d, float(generator.uniform(d.min() - 0.1, d.max() + 0.1))


def hull_value(q: np.ndarray, d: np.ndarray, b: float) -> float:
    """Return the best score at cost at most ``b`` over actions and segments between two actions."""
    value = [q[a] for a in range(len(q)) if d[a] <= b]
    for i, j in combinations(range(len(q)), 2):
        if (d[i] - b) * (d[j] - b) < 0:
            value.append(q[i] + (b - d[i]) / (d[j] - d[i]) * (q[j] - q[i]))
    return max(value, default=-np.inf)


def one(solution: tb.StateWise) -> tuple[np.ndarray, float, int]:
    return solution.policy[0], float(solution.multiplier[0]), int(solution.status[0])


# At most two actions mix


@pytest.mark.claim("prop-two-actions")
@given(SEED, st.integers(1, 7), st.booleans())
def test_two_actions_suffice_holds(seed: int, n_actions: int, ties: bool) -> None:
    """The upper hull at b is the optimum; two actions at most, one on each side of the limit, which is then met."""
    q, d, b = problem(seed, n_actions, ties)
    policy, _, status = one(tb.linear_step([q], [d], [b]))
    used = np.flatnonzero(policy)
    assert (status == StateStatus.EMPTY) == (d.min() > b)
    if status != StateStatus.EMPTY:
        assert policy @ q == pytest.approx(hull_value(q, d, b), abs=1e-12)
        assert len(used) <= 2
        if len(used) == 2:
            assert d[used].min() < b < d[used].max() and policy @ d == pytest.approx(b, abs=1e-12)


@pytest.mark.claim("prop-two-actions")
def test_m_constraints_mix_at_most_m_plus_one_holds() -> None:
    """Vertices found by the dual simplex method: up to m + 1 actions, and each number does occur."""
    generator = np.random.default_rng(0)
    for m in (1, 2, 3):
        seen = set()
        for _ in range(200):
            q, row = generator.normal(size=6), generator.normal(size=(m, 6))
            result = linprog(-q, row, generator.normal(size=m), np.ones((1, 6)), [1.0], method="highs-ds")
            if result.status == 0:
                seen.add(int((result.x > 1e-9).sum()))
        assert seen == set(range(1, m + 2))


@pytest.mark.claim("prop-two-actions")
def test_two_actions_needs_a_single_constraint() -> None:
    """Q = (0, 1, 1), p1 <= .3, p2 <= .3: the only optimum is (.4, .3, .3)."""
    result = linprog([0, -1, -1], [[0, 1, 0], [0, 0, 1]], [0.3, 0.3], np.ones((1, 3)), [1.0], method="highs-ds")
    np.testing.assert_allclose(result.x, [0.4, 0.3, 0.3], atol=1e-12)
    for unused in range(3):  # no pair reaches .6
        bounds = [(0, 0) if action == unused else (0, 1) for action in range(3)]
        pair = linprog([0, -1, -1], [[0, 1, 0], [0, 0, 1]], [0.3, 0.3], np.ones((1, 3)), [1.0], bounds=bounds)
        assert (pair.status == 2) == (unused == 0)  # without action 0 the limits leave mass over
        assert unused == 0 or pair.fun == pytest.approx(-0.3, abs=1e-12)


@pytest.mark.claim("prop-two-actions")
def test_two_actions_of_the_golden_instance_holds() -> None:
    """Q = (1, 1.5, 3), Q_D = (0, 1, 3), b = 1: the middle action lies under the hull."""
    policy, price, status = one(tb.linear_step([[1, 1.5, 3]], [COST], [1.0]))
    np.testing.assert_allclose(policy, [2 / 3, 0, 1 / 3], atol=1e-15)
    assert price == pytest.approx(2 / 3, abs=1e-15) and status == StateStatus.ACTIVE
    assert policy @ [1, 1.5, 3] == pytest.approx(5 / 3, abs=1e-15)


# Inside a ball


def ball_program(q: np.ndarray, d: np.ndarray, b: float, center: np.ndarray, radius: float) -> float:
    """Return the best value with |p - center|_1 <= 2 radius, by HiGHS; -inf if there is none."""
    n = len(q)
    eye, zero = np.eye(n), np.zeros(n)
    rows = np.vstack([np.r_[d, zero], np.c_[eye, -eye], np.c_[-eye, -eye], np.r_[zero, np.ones(n)]])
    right = np.r_[b, center, -center, 2 * radius]
    result = linprog(np.r_[-q, zero], rows, right, np.r_[np.ones(n), zero][None], [1.0], method="highs")
    return -float(result.fun) if result.status == 0 else -np.inf


@pytest.mark.claim("prop-ball-step")
@given(SEED, st.integers(2, 5), st.booleans(), st.sampled_from([0.0, 1.0, 0.05, 0.3, 0.7]))
def test_ball_step_holds(seed: int, n_actions: int, ties: bool, radius: float) -> None:
    q, d, b = problem(seed, n_actions, ties)
    center = np.random.default_rng(seed).dirichlet(np.full(n_actions, 0.7))
    policy, price, status = one(tb.ball_step([q], [d], [b], [center], radius))
    assert 0.5 * np.abs(policy - center).sum() <= radius + 1e-12
    expected = ball_program(q, d, b, center, radius)
    least = -ball_program(-d, d, 1e6, center, radius)
    if 1e-9 < least - b < 1e-6:
        return  # HiGHS decides feasibility to 1e-7
    assert (status == StateStatus.EMPTY) == (expected == -np.inf) == (least > b + 1e-9)
    if status != StateStatus.EMPTY:
        assert policy @ q == pytest.approx(expected, abs=1e-6)
        assert policy @ d <= b + 1e-12
        # The certificate: nothing in the ball beats it at its price.
        bound = ball_program(q - price * d, d, 1e6, center, radius) + price * b
        assert policy @ q == pytest.approx(bound, abs=1e-6 * (1 + price))


@pytest.mark.claim("prop-ball-step")
def test_ball_step_needs_adjacent_responses() -> None:
    """Q = (0, 2, 3), Q_D = (0, 1, 3), b = 1.5: mixing the cheapest with the dearest reaches 1.5, the neighbours 2.25."""
    q = np.array([0.0, 2.0, 3.0])
    policy, price, _ = one(tb.linear_step([q], [COST], [1.5]))
    np.testing.assert_allclose(policy, [0, 0.75, 0.25], atol=1e-15)
    assert policy @ q == pytest.approx(2.25) and price == pytest.approx(0.5)
    far = np.array([0.5, 0, 0.5])
    assert far @ COST == 1.5 and far @ q == 1.5


@pytest.mark.claim("prop-ball-step")
@given(SEED, st.integers(2, 6))
def test_the_cost_of_the_response_falls_with_the_price_holds(seed: int, n_actions: int) -> None:
    q, d, _ = problem(seed, n_actions)
    center = np.random.default_rng(seed).dirichlet(np.ones(n_actions))
    price = np.linspace(0, 5, 30)[:, None]
    many = np.ones_like(price)
    response = tb.ball_step(q - price * d, many * d, np.full(30, np.inf), many * center, 0.4)
    assert (response.multiplier == 0).all() and (np.diff(response.policy @ d) <= 1e-12).all()


# Elimination


@pytest.mark.claim("prop-elimination")
@given(SEED, st.integers(1, 7), st.booleans())
def test_elimination_holds(seed: int, n_actions: int, ties: bool) -> None:
    """Best single action; EMPTY exactly when the linear program is; loses at most lambda (b - Q_D(cheaper))."""
    q, d, b = problem(seed, n_actions, ties)
    choice, _, status = one(tb.elimination_step([q], [d], [b]))
    mixed, price, linear_status = one(tb.linear_step([q], [d], [b]))
    assert (status == StateStatus.EMPTY) == (linear_status == StateStatus.EMPTY)
    if status == StateStatus.EMPTY:
        assert d[choice.argmax()] == d.min()
        return
    assert choice @ q == max(q[a] for a in range(n_actions) if d[a] <= b)
    loss = mixed @ q - choice @ q
    cheaper = d[np.flatnonzero(mixed)].min()
    assert -1e-12 <= loss <= price * (b - cheaper) + 1e-12


@pytest.mark.claim("prop-elimination")
def test_elimination_needs_deterministic_policies() -> None:
    """Q = (1, 1.5, 3), b = 1: 3/2 against 5/3. With two actions everything can be lost."""
    choice, _, _ = one(tb.elimination_step([[1, 1.5, 3]], [COST], [1.0]))
    np.testing.assert_array_equal(choice, [0, 1, 0])
    kept, _, _ = one(tb.elimination_step([[0.0, 1.0]], [[0.0, 1.001]], [1.0]))
    mixed, _, _ = one(tb.linear_step([[0.0, 1.0]], [[0.0, 1.001]], [1.0]))
    assert kept @ [0, 1] == 0 and mixed @ [0, 1] > 0.998


# The entropy bonus: correct signs, and the printed ones as mutants


def softmax(v: np.ndarray) -> np.ndarray:
    weight = np.exp(v - v.max())
    return weight / weight.sum()


def log_sum_exp(v: np.ndarray) -> float:
    return float(v.max() + np.log(np.exp(v - v.max()).sum()))


def entropy(p: np.ndarray) -> float:
    return float(-(p[p > 0] * np.log(p[p > 0])).sum())


def dual(price: float, q: np.ndarray, d: np.ndarray, b: float, tau: float) -> float:
    return tau * log_sum_exp((q - price * d) / tau) + price * b


def printed_policy(price: float, q: np.ndarray, d: np.ndarray, tau: float) -> np.ndarray:
    return softmax(-(q + price * d) / tau)


def printed_dual(price: float, q: np.ndarray, d: np.ndarray, b: float, tau: float) -> float:
    return -tau * log_sum_exp(-(q + price * d) / tau) + price * b


def printed_primal(p: np.ndarray, q: np.ndarray, tau: float) -> float:
    return float(p @ q - tau * entropy(p))


def bisect(function: Callable[[float], float], low: float, high: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) * function(low) > 0 else (low, middle)
    return (low + high) / 2


@pytest.mark.claim("prop-entropy-dual")
def test_entropy_of_the_golden_instance_holds_as_corrected() -> None:
    """lambda = (4 + ln 2) / 6, the policy, the objective; the same by SLSQP; gap zero."""
    policy, price, status = one(tb.entropy_step([SCORE], [COST], [1.0], TAU))
    assert status == StateStatus.ACTIVE
    assert price == pytest.approx((4 + np.log(2)) / 6, abs=1e-14) == pytest.approx(0.7821911968, abs=1e-10)
    assert np.exp(-price) == pytest.approx(0.4574026532, abs=1e-10)
    np.testing.assert_allclose(policy, [0.3283082977, 0.5075375535, 0.1641541488], atol=1e-10)
    objective = policy @ SCORE + TAU * entropy(policy)
    assert objective == pytest.approx(2.3390922869, abs=1e-10)
    assert abs(dual(price, SCORE, COST, 1.0, TAU) - objective) < 2e-15
    assert policy @ SCORE == pytest.approx(1.836, abs=5e-4)
    assert policy @ COST == pytest.approx(1, abs=1e-14)
    found = minimize(
        lambda p: -(p @ SCORE) + TAU * p @ np.log(p),
        np.full(3, 1 / 3),
        jac=lambda p: -SCORE + TAU * (np.log(p) + 1),
        bounds=[(1e-9, 1)] * 3,
        constraints=[{"type": "ineq", "fun": lambda p: 1 - p @ COST}, {"type": "eq", "fun": lambda p: p.sum() - 1}],
        method="SLSQP",
        options={"ftol": 1e-15},
    )
    assert -found.fun == pytest.approx(objective, abs=1e-9)


@pytest.mark.claim("prop-entropy-dual")
@given(SEED, st.integers(1, 6), st.sampled_from([0.05, 0.5, 5.0]))
def test_entropy_dual_holds_as_corrected(seed: int, n_actions: int, tau: float) -> None:
    """Every case; the multiplier by bisection of E_lambda[Q_D] = b; strong duality."""
    q, d, b = problem(seed, n_actions)
    policy, price, status = one(tb.entropy_step([q], [d], [b], tau))
    if d.min() > b:
        assert status == StateStatus.EMPTY and np.isinf(price)
        return
    if softmax(q / tau) @ d <= b:
        assert status == StateStatus.FREE and price == 0
        np.testing.assert_allclose(policy, softmax(q / tau), atol=1e-14)
    else:
        assert status == StateStatus.ACTIVE
        root = bisect(lambda x: softmax((q - x * d) / tau) @ d - b, 0.0, 1e4)
        if root < 5e3:
            assert price == pytest.approx(root, rel=1e-6, abs=1e-9)
        np.testing.assert_allclose(policy, softmax((q - price * d) / tau), atol=1e-12)
    value = policy @ q + tau * entropy(policy)
    assert value == pytest.approx(dual(price, q, d, b, tau), abs=1e-9 * (1 + price))
    for other in (0.5 * price, 1.5 * price, price + 0.1):
        assert dual(other, q, d, b, tau) >= value - 1e-9 * (1 + other)


@pytest.mark.claim("prop-entropy-dual")
def test_entropy_at_the_least_cost_holds() -> None:
    """b = min Q_D: multiplier infinite, a softmax among the cheapest actions; it is the limit of b from above."""
    policy, price, status = one(tb.entropy_step([[1.0, 2, 3]], [[0.0, 0, 3]], [0.0], TAU))
    assert np.isinf(price) and status == StateStatus.ACTIVE
    np.testing.assert_allclose(policy, np.r_[softmax(np.array([2.0, 4.0])), 0], atol=1e-15)
    near = one(tb.entropy_step([[1.0, 2, 3]], [[0.0, 0, 3]], [1e-9], TAU))[0]
    np.testing.assert_allclose(near, policy, atol=1e-9)


@pytest.mark.claim("prop-entropy-dual")
def test_entropy_dual_needs_the_corrected_signs() -> None:
    """Appendix D as printed, on the golden instance: policy, primal and dual all go the other way."""
    golden = one(tb.entropy_step([SCORE], [COST], [1.0], TAU))[0]
    # Policy. Its own equation b = E[Q_D] has its root at a negative lambda, so lambda = 0.
    assert printed_policy(0.0, SCORE, COST, TAU) @ COST < 1
    printed = printed_policy(0.0, SCORE, COST, TAU)
    np.testing.assert_allclose(printed, [0.8668133322, 0.1173104278, 0.0158762400], atol=1e-10)
    assert printed @ SCORE == pytest.approx(1.149, abs=5e-4) and golden @ SCORE == pytest.approx(1.836, abs=5e-4)
    # Primal. Q + tau log pi rewards certainty: a vertex is best, and a feasible interior point is not.
    vertices = [np.array(v) for v in ([1.0, 0, 0], [0, 1.0, 0], [2 / 3, 0, 1 / 3])]
    assert [printed_primal(v, SCORE, TAU) for v in vertices] == pytest.approx([1, 2, 1.3484095826], abs=1e-9)
    assert printed_primal(golden, SCORE, TAU) < 2
    # Dual. Its slope is E[Q_D] + b > 0: no maximum over lambda >= 0, and no stationary point.
    for price in (0.0, 1.0, 10.0):
        slope = (
            printed_dual(price + 1e-6, SCORE, COST, 1.0, TAU) - printed_dual(price - 1e-6, SCORE, COST, 1.0, TAU)
        ) / 2e-6
        assert slope == pytest.approx(printed_policy(price, SCORE, COST, TAU) @ COST + 1, abs=1e-6)
        assert slope > 1


@pytest.mark.claim("prop-entropy-dual")
@given(SEED, st.integers(1, 6))
def test_low_temperature_holds(seed: int, n_actions: int) -> None:
    """The entropy step loses between 0 and tau log A against the linear program."""
    q, d, b = problem(seed, n_actions)
    linear, _, status = one(tb.linear_step([q], [d], [b]))
    for tau in (1.0, 0.1, 0.001):
        policy, _, entropy_status = one(tb.entropy_step([q], [d], [b], tau))
        assert (entropy_status == StateStatus.EMPTY) == (status == StateStatus.EMPTY)
        if status != StateStatus.EMPTY:
            assert -1e-9 <= linear @ q - policy @ q <= tau * np.log(n_actions) + 1e-9


# One root


def equation(z: float, q: np.ndarray, d: np.ndarray, b: float, tau: float) -> float:
    return float(((b - d) * np.exp(q / tau) * z ** (d / tau)).sum())


def equation_slope(z: float, q: np.ndarray, d: np.ndarray, b: float, tau: float) -> float:
    return float(((b - d) * np.exp(q / tau) * (d / tau) * z ** (d / tau - 1)).sum())


@pytest.mark.claim("prop-one-root")
@given(SEED, st.integers(2, 6), st.sampled_from([0.2, 1.0, 4.0]), st.floats(0.02, 0.98))
def test_one_root_holds(seed: int, n_actions: int, tau: float, share: float) -> None:
    """One sign change on a fine grid of lambda; the root is in (0, 1] iff the plain softmax costs at least b."""
    q, d, _ = problem(seed, n_actions)
    b = d.min() + share * np.ptp(d)
    # Divided by z^(b / tau), in logarithms of the largest term: same sign as f, no overflow.
    price = np.r_[-np.geomspace(1e4, 1e-8, 600), 0, np.geomspace(1e-8, 1e4, 600)]
    exponent = (q - price[:, None] * (d - b)) / tau
    sign = np.sign(((b - d) * np.exp(exponent - exponent.max(axis=1, keepdims=True))).sum(axis=1))
    assert sign[0] == -1 and sign[-1] == 1 and (np.diff(sign) >= 0).all()
    free = softmax(q / tau) @ d
    if abs(free - b) > 1e-9:
        assert (sign[600] < 0) == (free > b)  # f(1) < 0: the root has lambda > 0, that is z < 1


@pytest.mark.claim("prop-one-root")
def test_roots_of_the_golden_instance_holds_as_corrected() -> None:
    """z = .4574026532 for b = 1; for b = 2.9 the root is 1.3031780577, outside the printed [0, 1]."""
    for b, root in ((1.0, 0.4574026532), (2.9, 1.3031780577)):
        assert bisect(lambda z, b=b: equation(z, SCORE, COST, b, TAU), 1e-3, 5.0) == pytest.approx(root, abs=1e-10)
    policy, price, status = one(tb.entropy_step([SCORE], [COST], [2.9], TAU))
    assert price == 0 and status == StateStatus.FREE
    np.testing.assert_allclose(policy, softmax(SCORE / TAU), atol=1e-15)
    # Clipping is needed: the policy at the root spends the whole limit where the softmax needs less, and is worse.
    eager = softmax((SCORE + np.log(1.3031780577) * COST) / TAU)
    assert eager @ COST == pytest.approx(2.9, abs=1e-8)
    assert eager @ SCORE + TAU * entropy(eager) < policy @ SCORE + TAU * entropy(policy) - 1e-3


@pytest.mark.claim("prop-one-root")
def test_one_root_needs_a_limit_between_the_costs() -> None:
    """b above every cost or below: all coefficients have one sign, no root."""
    z = np.geomspace(1e-6, 1e6, 200)
    assert all(equation(x, SCORE, COST, 3.1, TAU) > 0 for x in z)
    assert all(equation(x, SCORE, COST, -0.1, TAU) < 0 for x in z)


@pytest.mark.claim("prop-one-root")
def test_newton_needs_the_price_instead_of_z() -> None:
    """Q_D = (1, 2, 4), b = 2: from .3 to .0974, .0487, ..., 1.7e-19, halving; Newton in lambda with a bracket does not."""
    d, z, path = COST + 1, 0.3, []
    assert equation(0.0, SCORE, d, 2.0, TAU) == 0
    for _ in range(60):
        z -= equation(z, SCORE, d, 2.0, TAU) / equation_slope(z, SCORE, d, 2.0, TAU)
        path.append(z)
    assert path[:2] == pytest.approx([0.0974, 0.0487], abs=5e-5)
    assert path[-1] == pytest.approx(1.7e-19, rel=0.05)
    assert path[40] / path[39] == pytest.approx(0.5, rel=1e-6)  # a root of multiplicity min Q_D / tau = 2
    price = one(tb.entropy_step([SCORE], [d], [2.0], TAU))[1]
    assert np.exp(-price) == pytest.approx(0.4574026532, abs=1e-10)


# A bracket for the multiplier


def bracket(q: np.ndarray, d: np.ndarray, b: float, tau: float) -> float:
    weight, least = np.exp(q / tau), d.min()
    high = d > b
    excess = ((d - b) * weight)[high].sum()
    ratio = excess / ((b - least) * weight[d == least].sum())
    return float(tau / (d[high].min() - least) * max(0.0, np.log(ratio)))


@pytest.mark.claim("prop-multiplier-bracket")
def test_multiplier_bracket_holds() -> None:
    """300 instances and a thousand more, tied least costs among them."""
    generator, n_seen = np.random.default_rng(0), 0
    for _ in range(1300):
        n_actions, tau = int(generator.integers(2, 7)), float(generator.choice([0.2, 0.5, 2.0]))
        q, d = generator.normal(size=(2, n_actions))
        if generator.random() < 0.3:
            d = np.round(d)
        free = softmax(q / tau) @ d
        if free - d.min() < 1e-3:
            continue
        b = float(generator.uniform(d.min() + 1e-4, free))
        n_seen += 1
        price, bound = one(tb.entropy_step([q], [d], [b], tau))[1], bracket(q, d, b, tau)
        assert price <= bound * (1 + 1e-10)
        assert tb.multiplier_bracket(q[None], d[None], np.array([b]), tau)[0] == pytest.approx(bound, rel=1e-10)
        if len(np.unique(d)) == 2:
            assert price == pytest.approx(bound, rel=1e-8)  # two costs: the bound is the multiplier
    assert n_seen > 1000


@pytest.mark.claim("prop-multiplier-bracket")
def test_multiplier_bracket_needs_the_least_cost_above_the_limit() -> None:
    """With the largest cost in place of the least one above b the bound is too small."""
    for q, d, b in ((SCORE, np.array([0.0, 1.2, 3.0]), 1.0), (np.array([0.0, 2, 2]), np.array([0.0, 1.0, 30.0]), 0.5)):
        weight = np.exp(q / TAU)
        price = one(tb.entropy_step([q], [d], [b], TAU))[1]
        ratio = ((d - b) * weight)[d > b].sum() / (b * weight[0])
        assert TAU / d.max() * np.log(ratio) < price <= TAU / d[d > b].min() * np.log(ratio)


# Exploration on top


@pytest.mark.claim("prop-exploration-leak")
@given(SEED, st.sampled_from([0.01, 0.1, 0.5]))
def test_exploration_leak_holds(seed: int, epsilon: float) -> None:
    """Mixing in the uniform policy adds at most D sum_{t=1}^T (1 - (1 - epsilon)^t)."""
    horizon = 5
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), horizon)
    policy = np.random.default_rng(seed + 1).dirichlet(np.full(cmdp.n_actions, 0.3), cmdp.n_states)
    noisy = (1 - epsilon) * policy + epsilon * tb.uniform_policy(cmdp)
    added = tb.evaluate_policy(cmdp, noisy)[1] - tb.evaluate_policy(cmdp, policy)[1]
    bound = sum(1 - (1 - epsilon) ** t for t in range(1, horizon + 1)) * cmdp.cost.max()
    assert added <= bound + 1e-12
    assert tb.coupling_bound(epsilon, cmdp.cost.max(), horizon) == pytest.approx(bound, rel=1e-12)


def leak(epsilon: float, cost_span: float, horizon: int) -> float:
    """Exact cost of a greedy policy of cost zero whose first exploration falls into a pit for good."""
    safe, total = 1.0, 0.0
    for _ in range(horizon):
        safe *= 1 - epsilon
        total += cost_span * (1 - safe)
    return total


@pytest.mark.claim("prop-exploration-leak")
def test_exploration_leak_is_attained_holds() -> None:
    """epsilon = .01, D = 10, T = 200: 1142.6, over a limit of 0; as a chain and by the formula."""
    pit = tb.Chain(np.array([[0.99, 0.01], [0, 1]]), np.zeros(2), np.array([1.0, 0]))
    exact = tb.finite_horizon_value(pit, np.array([0.0, 10.0]), 200).forward[0, 0]
    assert exact == pytest.approx(leak(0.01, 10, 200), rel=1e-12) == pytest.approx(1142.6, abs=0.05)
    assert tb.coupling_bound(0.01, 10, 200) == pytest.approx(exact, rel=1e-12)
    # The tempting count, epsilon T explorations of one cost each, is 57 times too small.
    assert exact / (0.01 * 200 * 10) == pytest.approx(57.1, abs=0.05)


@pytest.mark.claim("prop-exploration-leak")
@given(SEED, st.floats(0.01, 0.5))
def test_exploration_inside_the_limit_holds_as_corrected(seed: int, epsilon: float) -> None:
    """Step under (b - epsilon mean Q_D) / (1 - epsilon), then explore: the limit holds, and no such policy is better."""
    q, d, b = problem(seed, 4)
    floor = np.full(4, epsilon / 4)
    inner, _, status = one(tb.linear_step([q], [d], [(b - floor @ d) / (1 - epsilon)]))
    result = linprog(-q, d[None], [b], np.ones((1, 4)), [1.0], bounds=[(epsilon / 4, 1)] * 4, method="highs")
    if abs(floor @ d + (1 - epsilon) * d.min() - b) < 1e-6:
        return  # HiGHS decides feasibility to 1e-7
    assert (status == StateStatus.EMPTY) == (result.status != 0)
    if status != StateStatus.EMPTY:
        policy = floor + (1 - epsilon) * inner
        assert policy @ d <= b + 1e-12
        assert policy @ q == pytest.approx(-result.fun, abs=1e-6)
