"""The state-wise problem: its closed forms against programs and enumerations that share no code with them."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from itertools import combinations, pairwise

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import linprog, minimize
from scipy.special import logsumexp, softmax

from bvf_tutorial import tabular as tb
from bvf_tutorial.tabular import StateStatus
from tests.strategies import SEED

Problem = tuple[np.ndarray, np.ndarray, np.ndarray]
ROUNDING = 1e-13
N_BALLS = 1000


def continuous(generator: np.random.Generator, size: int, n_actions: int) -> Problem:
    return (*generator.normal(size=(2, size, n_actions)), generator.normal(size=size))


def integers(generator: np.random.Generator, size: int, n_actions: int) -> Problem:
    """Many ties: equal scores, equal costs, equal actions, limits exactly at a cost, constant costs."""
    q, d = generator.integers(-2, 3, size=(2, size, n_actions)).astype(float)
    d[: size // 8] = d[: size // 8, :1]
    return q, d, generator.integers(-2, 3, size=size).astype(float)


def rescaled(generator: np.random.Generator, size: int, n_actions: int) -> Problem:
    q, d, b = continuous(generator, size, n_actions)
    score, cost = 10 ** generator.uniform(-8, 8, size=(2, size))
    return q * score[:, None], d * cost[:, None], b * cost


def uneven(generator: np.random.Generator, size: int, n_actions: int) -> Problem:
    """Every entry has its own magnitude, sixteen orders apart."""
    q, d, b = continuous(generator, size, n_actions)
    score, cost = 10 ** generator.uniform(-8, 8, size=(2, size, n_actions))
    return q * score, d * cost, b * cost[:, 0]


def nearly_tied_score(generator: np.random.Generator, size: int, n_actions: int) -> Problem:
    _, d, b = continuous(generator, size, n_actions)
    return 1.5 + 2.2e-16 * generator.integers(0, 4, size=(size, n_actions)), d, b


FAMILIES = [continuous, integers, rescaled, uneven, nearly_tied_score]


def by_enumeration(q: np.ndarray, d: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the best value over single actions and over pairs that meet the limit exactly; -inf where none does."""
    best = np.where(d <= b[:, None], q, -np.inf).max(axis=1)
    for i, j in combinations(range(q.shape[1]), 2):
        for cheap, dear in ((i, j), (j, i)):
            fits = (d[:, cheap] <= b) & (d[:, dear] > b)
            share = np.where(fits, b - d[:, cheap], 0.0) / np.where(fits, d[:, dear] - d[:, cheap], 1.0)
            best = np.maximum(best, np.where(fits, q[:, cheap] + share * (q[:, dear] - q[:, cheap]), -np.inf))
    return best


def linear_program(q: np.ndarray, d: np.ndarray, b: np.ndarray, center: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """Return the best values of many feasible states by one block-diagonal program; |p - center| <= u bounds the ball."""
    size, n_actions = q.shape
    eye, ones = sparse.identity(size * n_actions), np.ones((1, n_actions))
    rows = sparse.block_diag([row[None, :] for row in d])
    total = sparse.kron(sparse.identity(size), ones)
    nothing = sparse.csr_array(rows.shape)
    inequality = sparse.block_array([[rows, nothing], [eye, -eye], [-eye, -eye], [nothing, total]], format="csr")
    right = np.concatenate([b, center.ravel(), -center.ravel(), 2 * radius])
    equality = sparse.block_array([[total, nothing]], format="csr")
    result = linprog(
        np.concatenate([-q.ravel(), np.zeros(q.size)]), inequality, right, equality, np.ones(size), method="highs"
    )
    assert result.status == 0
    policy = result.x[: q.size].reshape(q.shape)
    return (policy * q).sum(axis=1)


def dearest(v: np.ndarray, center: np.ndarray, radius: float) -> float:
    """Return ``max p . v`` over the ball of one state, action by action."""
    order, mass, value = np.argsort(v), radius, float(center @ v)
    for action in order[:-1]:
        moved = min(mass, center[action])
        mass -= moved
        value += moved * (v[order[-1]] - v[action])
    return value


# The linear program


@pytest.mark.parametrize("n_actions", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_linear_step_agrees_with_enumeration(make: Callable[..., Problem], n_actions: int) -> None:
    q, d, b = make(np.random.default_rng(n_actions), 4000, n_actions)
    solution = tb.linear_step(q, d, b)
    ok = d.min(axis=1) <= b
    assert np.array_equal(solution.status == StateStatus.EMPTY, ~ok)
    assert 0.05 < ok.mean() < 0.95 or n_actions > 3
    reached, spent = (solution.policy * q).sum(axis=1), (solution.policy * d).sum(axis=1)
    # A probability near one is known to 1e-16, and that times the largest cost in the mixture is not to be helped.
    magnitude = (solution.policy * np.abs(d)).sum(axis=1) + np.abs(b)
    grain = 1e-15 * np.where(solution.policy > 0, np.abs(d), 0.0).max(axis=1)
    assert (np.abs(reached - by_enumeration(q, d, b))[ok] <= ROUNDING * np.abs(q).max(axis=1)[ok]).all()
    assert ((spent - b)[ok] <= (1e-12 * magnitude + grain)[ok]).all()
    np.testing.assert_array_equal(spent[~ok], d.min(axis=1)[~ok])
    np.testing.assert_allclose(solution.policy.sum(axis=1), 1, atol=1e-15)
    assert (solution.policy >= 0).all() and ((solution.policy > 0).sum(axis=1) <= 2).all()
    assert np.isinf(solution.multiplier[~ok]).all()


def test_linear_step_agrees_with_exact_fractions() -> None:
    """Integer data, no rounding at all in the oracle; a third of the states has its limit exactly at a cost."""
    q, d, b = integers(np.random.default_rng(0), 600, 4)
    solution = tb.linear_step(q, d, b)
    for x in range(600):
        points = [(Fraction(int(d[x, a])), Fraction(int(q[x, a]))) for a in range(4)]
        limit = Fraction(int(b[x]))
        values = [gain for cost, gain in points if cost <= limit]
        for (cheap, low), (dear, high) in ((p, r) for p in points for r in points if p[0] < limit < r[0]):
            values.append(low + (limit - cheap) / (dear - cheap) * (high - low))
        assert (solution.status[x] == StateStatus.EMPTY) == (not values)
        if values:
            assert solution.policy[x] @ q[x] == pytest.approx(float(max(values)), abs=1e-14)


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_the_multiplier_certifies_the_linear_step(make: Callable[..., Problem]) -> None:
    """Weak duality: max_a (Q - lambda Q_D) + lambda b bounds every feasible value, and the solution attains it."""
    q, d, b = make(np.random.default_rng(7), 4000, 5)
    solution = tb.linear_step(q, d, b)
    ok = solution.status != StateStatus.EMPTY
    price = np.where(np.isfinite(solution.multiplier), solution.multiplier, 0.0)
    assert (solution.multiplier >= 0).all() and np.isfinite(solution.multiplier[ok]).all()
    # b is subtracted before the price multiplies, or the bound would drown in lambda b.
    bound = (q - price[:, None] * (d - b[:, None])).max(axis=1)
    scale = (np.abs(q) + price[:, None] * (np.abs(d) + np.abs(b)[:, None])).max(axis=1)
    assert (np.abs(bound - (solution.policy * q).sum(axis=1))[ok] <= ROUNDING * scale[ok]).all()
    assert (price[solution.status == StateStatus.FREE] == 0).all()
    assert (price[solution.status == StateStatus.ACTIVE] > 0).all()


def test_ties_in_the_score_go_to_the_lower_cost() -> None:
    solution = tb.linear_step([[1, 1, 0], [1, 1, 1], [2, 2, 1]], [[2, 1, 0], [1, 1, 1], [3, 2, 0]], [5.0, 5.0, 1.0])
    np.testing.assert_array_equal(solution.policy[0], [0, 1, 0])
    assert solution.policy[1].max() == 1
    np.testing.assert_allclose(solution.policy[2], [0, 0.5, 0.5])  # of the two best, the cheaper is mixed in
    assert solution.multiplier.tolist() == [0, 0, 0.5]


def test_infinite_limits() -> None:
    q, d, _ = continuous(np.random.default_rng(0), 100, 4)
    for step in (tb.linear_step, tb.elimination_step, lambda *problem: tb.entropy_step(*problem, temperature=0.3)):
        free, empty = step(q, d, np.full(100, np.inf)), step(q, d, np.full(100, -np.inf))
        assert free.count(StateStatus.FREE) == 100 and empty.count(StateStatus.EMPTY) == 100
        np.testing.assert_array_equal(empty.policy.argmax(axis=1), d.argmin(axis=1))
        np.testing.assert_array_equal(free.policy.argmax(axis=1), q.argmax(axis=1))


def test_no_state_at_all() -> None:
    nothing = np.zeros((0, 3))
    for step in (tb.linear_step, tb.elimination_step, lambda *problem: tb.entropy_step(*problem, temperature=1.0)):
        assert step(nothing, nothing, np.zeros(0)).policy.shape == (0, 3)


def test_costs_that_differ_by_rounding_do_not_change_the_choice() -> None:
    """A far limit leaves the best action, however close to a tie the costs are; a limit at the common cost, too."""
    generator = np.random.default_rng(0)
    for n_actions in (2, 3, 6):
        q = generator.normal(size=(4000, n_actions)) + generator.choice([0.0, 100.0], size=(4000, 1))
        d = 1.5 + 2.2e-16 * generator.integers(0, 4, size=q.shape)
        for b in (10.0, 1.5):
            solution = tb.linear_step(q, d, np.full(4000, b))
            np.testing.assert_array_equal(solution.policy, np.eye(n_actions)[q.argmax(axis=1)])
    # Prices that overflow (1 / 1e-310) are prices, too.
    for b in (1.0, np.inf):
        np.testing.assert_array_equal(tb.linear_step([[0, 1]], [[0, 1e-310]], [b]).policy, [[0, 1]])
    np.testing.assert_array_equal(tb.linear_step([[0, 1e300]], [[0, 1e-300]], [1.0]).policy, [[0, 1]])


def test_nearly_tied_costs_around_a_limit_that_binds() -> None:
    """Clusters of costs 4e-16 apart: never worse than the exact optimum, over the limit by rounding only."""
    generator = np.random.default_rng(1)
    for n_actions in (2, 3, 5, 8):
        q = 100 + generator.normal(size=(4000, n_actions))
        d = 1.5 + generator.integers(0, 3, size=q.shape) + 4.4e-16 * generator.integers(0, 4, size=q.shape)
        b = generator.choice([1.5, 2.0, 2.5, 3.0, 10.0], size=4000)
        solution, exact = tb.linear_step(q, d, b), by_enumeration(q, d, b)
        ok = np.isfinite(exact)
        assert ((solution.policy * q).sum(axis=1)[ok] >= exact[ok] - 1e-11).all()
        assert (((solution.policy * d).sum(axis=1) - b)[ok] <= 1e-14).all()


@given(SEED, st.floats(0.01, 100), st.floats(0.01, 100), st.floats(-10, 10), st.floats(-10, 10))
def test_units_and_origins_do_not_matter(
    seed: int, score_unit: float, cost_unit: float, gift: float, toll: float
) -> None:
    """Q -> s Q + g, (Q_D, b) -> c (Q_D, b) + t leave the policy alone; the multiplier is in units s / c."""
    q, d, b = continuous(np.random.default_rng(seed), 30, 4)
    plain = tb.linear_step(q, d, b)
    moved = tb.linear_step(score_unit * q + gift, cost_unit * d + toll, cost_unit * b + toll)
    np.testing.assert_allclose(moved.policy, plain.policy, atol=1e-7)
    np.testing.assert_allclose(moved.multiplier, plain.multiplier * score_unit / cost_unit, rtol=1e-6)
    np.testing.assert_array_equal(moved.status, plain.status)


# The ball


def balls(seed: int, size: int, n_actions: int, make: Callable[..., Problem]) -> tuple[np.ndarray, ...]:
    """Random ones with centers on faces and vertices of the simplex, radii 0 and 1 included."""
    generator = np.random.default_rng(seed)
    q, d, b = make(generator, size, n_actions)
    center = generator.dirichlet(np.full(n_actions, 0.5), size)
    center[: size // 4] = np.eye(n_actions)[generator.integers(n_actions, size=size // 4)]
    center[size // 4 : size // 2, 0] = 0
    center /= center.sum(axis=1, keepdims=True)
    radius = generator.choice([0.0, 1.0, 0.5, 0.1, 1e-6], size=size)
    return q, d, b, center, np.where(generator.random(size) < 0.5, generator.random(size), radius)


@pytest.mark.parametrize("make", [continuous, integers], ids=lambda make: make.__name__)
@pytest.mark.parametrize("n_actions", [2, 3, 5])
def test_ball_step_agrees_with_a_linear_program(make: Callable[..., Problem], n_actions: int) -> None:
    q, d, b, center, radius = balls(n_actions, N_BALLS, n_actions, make)
    solution = tb.ball_step(q, d, b, center, radius)
    least = np.array([-dearest(-d[x], center[x], radius[x]) for x in range(N_BALLS)])
    ok = solution.status != StateStatus.EMPTY
    assert np.array_equal(ok, least <= b + 1e-12) and min(ok.sum(), (~ok).sum()) > 150
    expected = linear_program(q[ok], d[ok], b[ok] + 1e-12, center[ok], radius[ok])
    np.testing.assert_allclose((solution.policy * q).sum(axis=1)[ok], expected, atol=2e-6)  # HiGHS: 1e-7 a row
    np.testing.assert_allclose((solution.policy * d).sum(axis=1)[~ok], least[~ok], atol=1e-13)


@pytest.mark.parametrize("make", [continuous, integers, nearly_tied_score], ids=lambda make: make.__name__)
def test_ball_step_is_certified_by_its_multiplier(make: Callable[..., Problem]) -> None:
    """The dual value max_ball p . (Q - lambda Q_D) + lambda b is reached, to rounding."""
    q, d, b, center, radius = balls(3, 2000, 4, make)
    solution = tb.ball_step(q, d, b, center, radius)
    policy, ok = solution.policy, solution.status != StateStatus.EMPTY
    distance = 0.5 * np.abs(policy - center).sum(axis=1)
    assert (policy >= 0).all() and (distance <= radius + 1e-14).all()
    np.testing.assert_allclose(policy.sum(axis=1), 1, atol=1e-14)
    assert (((policy * d).sum(axis=1) - b)[ok] <= 1e-11).all()
    is_active = solution.status == StateStatus.ACTIVE
    np.testing.assert_allclose((policy * d).sum(axis=1)[is_active], b[is_active], atol=1e-11)
    for x in np.flatnonzero(ok):
        price = solution.multiplier[x]
        bound = dearest(q[x] - price * d[x], center[x], radius[x]) + price * b[x]
        assert policy[x] @ q[x] == pytest.approx(bound, abs=1e-12 * (1 + price))


def test_radius_zero_keeps_and_radius_one_forgets_the_center() -> None:
    q, d, b, center, _ = balls(4, 2000, 4, continuous)
    kept, free = tb.ball_step(q, d, b, center, 0.0), tb.ball_step(q, d, b, center, 1.0)
    np.testing.assert_allclose(kept.policy, center, atol=1e-15)
    np.testing.assert_array_equal(kept.status == StateStatus.EMPTY, (center * d).sum(axis=1) > b)
    whole = tb.linear_step(q, d, b)
    np.testing.assert_allclose(free.policy, whole.policy, atol=1e-15)
    np.testing.assert_array_equal(free.multiplier, whole.multiplier)


@given(SEED)
def test_a_larger_ball_is_never_worse(seed: int) -> None:
    q, d, b, center, _ = balls(seed, 60, 4, continuous)
    value = []
    for radius in np.linspace(0, 1, 6):
        solution = tb.ball_step(q, d, b, center, radius)
        reached = np.where(solution.status == StateStatus.EMPTY, -np.inf, (solution.policy * q).sum(axis=1))
        value.append(reached)
    assert all((later >= earlier - 1e-12).all() for earlier, later in pairwise(value))


# Elimination


@pytest.mark.parametrize("make", FAMILIES, ids=lambda make: make.__name__)
def test_elimination_step_agrees_with_a_loop(make: Callable[..., Problem]) -> None:
    q, d, b = make(np.random.default_rng(5), 3000, 4)
    solution = tb.elimination_step(q, d, b)
    assert np.isnan(solution.multiplier).all()
    for x in range(3000):
        allowed = [a for a in range(4) if d[x, a] <= b[x]]
        choice = int(solution.policy[x].argmax())
        assert sorted(solution.policy[x]) == [0, 0, 0, 1]
        if allowed:
            assert q[x, choice] == max(q[x, a] for a in allowed) and choice in allowed
            free = q[x, choice] == q[x].max()
            assert solution.status[x] == (StateStatus.FREE if free else StateStatus.ACTIVE)
        else:
            assert d[x, choice] == d[x].min() and solution.status[x] == StateStatus.EMPTY


# The entropy bonus


def entropy_program(q: np.ndarray, d: np.ndarray, b: np.ndarray, temperature: float) -> tuple[np.ndarray, np.ndarray]:
    """Solve many states as one exponential cone program; return policies and multipliers."""
    policy = cp.Variable(q.shape)
    limit = cp.sum(cp.multiply(policy, d), axis=1) <= b
    gain = cp.sum(cp.multiply(policy, q)) + temperature * cp.sum(cp.entr(policy))
    problem = cp.Problem(cp.Maximize(gain), [limit, cp.sum(policy, axis=1) == 1])
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-9, tol_gap_rel=1e-11, tol_feas=1e-9)
    assert problem.status == cp.OPTIMAL
    return policy.value, limit.dual_value


def inside(generator: np.random.Generator, q: np.ndarray, d: np.ndarray, temperature: float) -> np.ndarray:
    """Return limits strictly between the least cost and the cost of the plain softmax."""
    least, free = d.min(axis=1), (softmax(q / temperature, axis=1) * d).sum(axis=1)
    return least + generator.uniform(0.02, 0.98, size=len(q)) * (free - least)


@pytest.mark.parametrize("temperature", [1.0, 5.0])
def test_entropy_step_agrees_with_a_cone_program(temperature: float) -> None:
    generator = np.random.default_rng(0)  # uniform: probabilities below 1e-20 stall the interior-point solver
    q, d = generator.uniform(-1, 1, size=(2, 1000, 4))
    b = np.maximum(generator.uniform(-1, 1, size=1000), d.min(axis=1) + 0.05)
    solution = tb.entropy_step(q, d, b, temperature)
    assert min(solution.count(StateStatus.FREE), solution.count(StateStatus.ACTIVE)) > 100
    for part in np.split(np.arange(1000), 4):
        expected, price = entropy_program(q[part], d[part], b[part], temperature)
        # The bonus is tau-strongly concave in the 1-norm: a gap of delta leaves sqrt(2 delta / tau) < 1e-4.
        np.testing.assert_allclose(solution.policy[part], expected, atol=1e-4)
        np.testing.assert_allclose(solution.multiplier[part], price, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("temperature", [0.2, 1.0])
def test_entropy_step_agrees_with_sequential_quadratic_programs(temperature: float) -> None:
    generator = np.random.default_rng(8)
    q, d = generator.uniform(-1, 1, size=(2, 200, 4))
    b = inside(generator, q, d, temperature)
    solution = tb.entropy_step(q, d, b, temperature)
    gap = []
    for x in range(200):
        found = minimize(
            lambda p, x=x: temperature * p @ np.log(p) - p @ q[x],
            np.full(4, 0.25),
            jac=lambda p, x=x: temperature * (np.log(p) + 1) - q[x],
            bounds=[(1e-12, 1)] * 4,
            constraints=[
                {"type": "ineq", "fun": lambda p, x=x: b[x] - p @ d[x], "jac": lambda p, x=x: -d[x]},
                {"type": "eq", "fun": lambda p: p.sum() - 1, "jac": lambda p: np.ones(4)},
            ],
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 200},
        )
        if found.success:
            gap.append(np.abs(found.x - solution.policy[x]).max())
    assert len(gap) > 180 and max(gap) < 1e-5


@pytest.mark.parametrize("temperature", [1e-3, 0.1, 1.0, 30.0, 1e3])
@pytest.mark.parametrize("unit", [1e-3, 1.0, 1e3])
def test_entropy_step_satisfies_its_optimality_conditions(temperature: float, unit: float) -> None:
    """Limit met, policy a softmax of the priced score, no duality gap: to rounding of the exponents."""
    generator = np.random.default_rng(1)
    q, d = generator.normal(size=(2, 2000, 5))
    d *= unit
    b = inside(generator, q, d, temperature)
    solution = tb.entropy_step(q, d, b, temperature)
    price, policy, spread = solution.multiplier, solution.policy, np.ptp(d, axis=1)
    room = (softmax(q / temperature, axis=1) * d).sum(axis=1) - d.min(axis=1)
    is_clear = room > 1e-9 * np.abs(d).max(axis=1)  # a limit within 1e-12 of the least or the free cost counts as at it
    assert is_clear.mean() > 0.7 and (solution.status[is_clear] == StateStatus.ACTIVE).all()
    ok = np.isfinite(price)
    assert ok[is_clear].all()
    exponent = 1 + (np.abs(q).max(axis=1) + np.where(ok, price, 0) * spread) / temperature
    residual = np.abs((policy * d).sum(axis=1) - b)
    assert (residual[ok] <= 1e-14 * (exponent * spread + np.abs(d).max(axis=1))[ok]).all()
    logit = (q - np.where(ok, price, 0)[:, None] * d) / temperature
    np.testing.assert_allclose(policy[ok], softmax(logit, axis=1)[ok], rtol=0, atol=1e-9)
    entropy = -(policy * np.log(np.where(policy > 0, policy, 1.0))).sum(axis=1)
    primal = (policy * q).sum(axis=1) + temperature * entropy
    dual = temperature * logsumexp(logit, axis=1) + np.where(ok, price, 0) * b
    assert (np.abs(primal - dual)[ok] <= 1e-14 * (temperature * exponent)[ok] * exponent[ok].clip(max=100)).all()


def test_a_common_offset_of_the_cost_costs_no_digits() -> None:
    generator = np.random.default_rng(2)
    q = 1e3 * generator.normal(size=(2000, 4))
    d = 1e6 + 1e-3 * generator.normal(size=(2000, 4))
    b = inside(generator, q, d, 1e-3)
    solution = tb.entropy_step(q, d, b, 1e-3)
    ok = np.isfinite(solution.multiplier) & (solution.status == StateStatus.ACTIVE)
    missed = np.abs((solution.policy * (d - b[:, None])).sum(axis=1))
    assert ok.sum() > 500 and (missed[ok] <= 1e-9).all()  # b itself is known to 1e-10


def test_status_of_every_case() -> None:
    q, d = np.array([1.0, 2.0, 3.0]), np.array([2.0, 1.0, 1.0])
    free = float(softmax(q / 0.5) @ d)
    offset = np.array([np.inf, free + 0.1, free, 1.05, 1.0, 0.9, -np.inf])
    solution = tb.entropy_step(np.tile(q, (7, 1)), np.tile(d, (7, 1)), offset, 0.5)
    names = [StateStatus(s).name for s in solution.status]
    # E_0[Q_D] is 1.016: above it the limit does not bind.
    assert names == ["FREE", "FREE", "FREE", "FREE", "ACTIVE", "EMPTY", "EMPTY"]
    tight = tb.entropy_step([q], [d], [1.01], 0.5)
    assert tight.status[0] == StateStatus.ACTIVE and 0 < tight.multiplier[0] < np.inf
    assert (solution.multiplier[:4] == 0).all() and np.isinf(solution.multiplier[4:]).all()
    corner = softmax(np.array([-np.inf, 2.0, 3.0]) / 0.5)
    np.testing.assert_allclose(solution.policy[4:], np.tile(corner, (3, 1)), rtol=1e-14)
    constant = tb.entropy_step([q, q], np.ones((2, 3)), [1.0, 0.5], 0.5)
    assert constant.status.tolist() == [StateStatus.FREE, StateStatus.EMPTY]
    np.testing.assert_allclose(constant.policy, np.tile(softmax(q / 0.5), (2, 1)), rtol=1e-14)
    single = tb.entropy_step([[3.0], [3.0]], [[1.0], [1.0]], [2.0, 0.0], 0.5)
    assert single.policy.tolist() == [[1], [1]] and single.status.tolist() == [StateStatus.FREE, StateStatus.EMPTY]


@given(SEED, st.sampled_from([0.05, 0.5, 5.0]))
def test_the_dual_has_the_derivatives_we_use(seed: int, temperature: float) -> None:
    """g' = b - E[Q_D], g'' = Var(Q_D) / tau, by central differences; g' = 0 at the multiplier."""
    generator = np.random.default_rng(seed)
    q, d = generator.normal(size=(2, 20, 4))
    b = inside(generator, q, d, temperature)

    def dual(price: np.ndarray) -> np.ndarray:
        return temperature * logsumexp((q - price[:, None] * d) / temperature, axis=1) + price * b

    price, step = generator.uniform(0, 2, size=20), 1e-4 * min(1.0, temperature)
    weight = softmax((q - price[:, None] * d) / temperature, axis=1)
    mean = (weight * d).sum(axis=1)
    variance = (weight * (d - mean[:, None]) ** 2).sum(axis=1)
    slope = (dual(price + step) - dual(price - step)) / (2 * step)
    curvature = (dual(price + step) - 2 * dual(price) + dual(price - step)) / step**2
    np.testing.assert_allclose(slope, b - mean, atol=1e-6)
    np.testing.assert_allclose(curvature, variance / temperature, atol=2e-5 / temperature**2, rtol=1e-4)
    solution = tb.entropy_step(q, d, b, temperature)
    is_active = (solution.status == StateStatus.ACTIVE) & np.isfinite(solution.multiplier)
    best = dual(np.where(is_active, solution.multiplier, 0.0))
    for elsewhere in (0.9, 1.1):
        other = dual(np.where(is_active, elsewhere * solution.multiplier, 0.0))
        assert (best <= other + 1e-12).all()


def test_the_bracket_holds_the_multiplier() -> None:
    generator = np.random.default_rng(3)
    for temperature in (1e-2, 0.5, 50.0):
        for n_actions in (2, 4, 7):
            q, d = generator.normal(size=(2, 2000, n_actions))
            b = inside(generator, q, d, temperature)
            solution = tb.entropy_step(q, d, b, temperature)
            ok = (solution.status == StateStatus.ACTIVE) & np.isfinite(solution.multiplier)
            bound = tb.multiplier_bracket(q[ok], d[ok], b[ok], temperature)
            assert (solution.multiplier[ok] <= bound * (1 + 1e-9)).all()
            if n_actions == 2:  # one action above and one below: the bound is the multiplier
                np.testing.assert_allclose(bound, solution.multiplier[ok], rtol=1e-7)


def test_a_low_temperature_tends_to_the_linear_program() -> None:
    """Within tau log A of its value: the bonus is between 0 and that."""
    generator = np.random.default_rng(4)
    q, d, b = continuous(generator, 2000, 4)
    linear = tb.linear_step(q, d, b)
    ok = linear.status != StateStatus.EMPTY
    best = (linear.policy * q).sum(axis=1)
    for temperature in (1e-3, 1e-2, 0.1, 1.0):
        value = (tb.entropy_step(q, d, b, temperature).policy * q).sum(axis=1)
        assert (value[ok] <= best[ok] + 1e-9).all()
        assert (value[ok] >= best[ok] - temperature * np.log(4) - 1e-9).all()


# Bad input


def test_bad_input_is_named() -> None:
    good, limit = np.zeros((3, 2)), np.zeros(3)
    steps: list[Callable[..., tb.StateWise]] = [
        tb.linear_step, tb.elimination_step, lambda *problem: tb.entropy_step(*problem, temperature=1.0)
    ]  # fmt: skip
    for step in steps:
        bad = good.copy()
        bad[1, 0] = np.nan
        with pytest.raises(tb.InvalidModelError, match=r"score\[1, 0\] is nan"):
            step(bad, good, limit)
        bad[1, 0] = np.inf
        with pytest.raises(tb.InvalidModelError, match=r"normal\[1, 0\] is inf; use inf in offset for 'no limit'"):
            step(good, bad, limit)
        with pytest.raises(tb.InvalidModelError, match=r"offset\[2\] is nan"):
            step(good, good, np.array([0, 0, np.nan]))
        with pytest.raises(
            tb.InvalidModelError, match=r"\(3, 2\), normal \(3, 2\) and offset \(2,\) must be \[S, A\], "
        ):
            step(good, good, limit[:2])
    for temperature in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(tb.InvalidModelError, match=r"must be positive \(use linear_step for 0\)"):
            tb.entropy_step(good, good, limit, temperature)
    for radius in (-0.1, 1.1, np.nan):
        with pytest.raises(tb.InvalidModelError, match=r"radius must lie in \[0, 1\]"):
            tb.ball_step(good, good, limit, np.full((3, 2), 0.5), radius)
    middle = np.full((3, 2), 0.5)
    with pytest.raises(tb.InvalidModelError, match=r"center \(2, 2\) and radius \(\) must be \(3, 2\)"):
        tb.ball_step(good, good, limit, middle[:2], 0.5)
    with pytest.raises(tb.InvalidModelError, match=r"radius \(2,\) must be .* a number or \(3,\)"):
        tb.ball_step(good, good, limit, middle, np.full(2, 0.5))
    for entry in (np.nan, 0.7, -0.5):
        middle[1, 0] = entry
        with pytest.raises(tb.InvalidModelError, match=r"center row 1 is .*, not a distribution"):
            tb.ball_step(good, good, limit, middle, 0.5)
    with pytest.raises(tb.InvalidModelError, match="with A >= 1"):
        tb.linear_step(np.zeros((3, 0)), np.zeros((3, 0)), limit)
