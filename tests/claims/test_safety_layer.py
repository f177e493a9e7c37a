"""The safety layer: projections that are exact, shortcuts that are not, and what a critic can know (chapter 10)."""

from __future__ import annotations

import itertools
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize, nnls

from bvf_tutorial.halfspace import HalfSpace, Status, project, project_all, project_box, project_curved
from tests.strategies import SEED

torch.set_num_threads(1)

NORMAL, POINT = np.array([3.0, 4.0]), np.array([0.5, -0.2])


def tensor(value: object) -> torch.Tensor:
    return torch.as_tensor(np.asarray(value, dtype=np.float64))


def half(point: object, normal: object, slack: object) -> HalfSpace:
    return HalfSpace.around(tensor(point), tensor(normal), tensor(slack))


def nearest(point: np.ndarray, normal: np.ndarray, offset: np.ndarray, bounds: object = None) -> np.ndarray:
    """Solve for the projection by sequential quadratic programming; its objective is already quadratic."""
    found = minimize(
        lambda u: 0.5 * ((u - point) ** 2).sum(), point, jac=lambda u: u - point, bounds=bounds,
        constraints={"type": "ineq", "fun": lambda u: np.atleast_1d(offset - normal @ u), "jac": lambda u: -np.atleast_2d(normal)},
        method="SLSQP", options={"ftol": 1e-13, "maxiter": 300},
    )  # fmt: skip
    # Mode 8: no descent left at machine precision.
    assert found.success or found.status == 8, found.message
    return found.x


def expectation(function: object, mean: np.ndarray, std: np.ndarray, order: int) -> float:
    """Integrate over N(mean, diag std^2) by Gauss-Hermite quadrature, exact for polynomials up to degree 2 order - 1."""
    node, weight = np.polynomial.hermite_e.hermegauss(order)
    weight = weight / weight.sum()
    total = 0.0
    for index in itertools.product(range(order), repeat=mean.size):
        total += np.prod(weight[list(index)]) * function(mean + std * node[list(index)])
    return total


# Proposition 4.1


@pytest.mark.claim("prop-projection")
@given(SEED, st.integers(1, 5))
def test_closed_form_holds(seed: int, n_actions: int) -> None:
    """The printed formula, the package and a solver agree for a gradient that is not zero."""
    generator = np.random.default_rng(seed)
    normal, point = generator.normal(size=(2, n_actions))
    slack = generator.normal()
    multiplier = max(0.0, -slack) / (normal @ normal)
    result = project(half(point, normal, slack), tensor(point))
    np.testing.assert_allclose(result.point.numpy(), point - multiplier * normal, rtol=1e-10, atol=1e-10)
    expected = nearest(point, normal, normal @ point + slack)
    np.testing.assert_allclose(result.point.numpy(), expected, atol=1e-6 * (1 + np.abs(expected).max()))


@pytest.mark.claim("prop-projection")
def test_closed_form_of_the_golden_instance_holds() -> None:
    result = project(half(POINT, NORMAL, -1.0), tensor(POINT))
    assert float(result.multiplier) == pytest.approx(0.04, abs=1e-9)
    np.testing.assert_allclose(result.point.numpy(), [0.38, -0.36], atol=1e-9)
    assert Status(int(result.status)) is Status.ACTIVE
    touching = project(HalfSpace(tensor(NORMAL), tensor(1.0)), tensor([1.0, -0.5]))  # slack 0, exactly
    assert Status(int(touching.status)) is Status.INACTIVE and float(touching.multiplier) == 0


@pytest.mark.claim("prop-projection")
def test_closed_form_needs_a_gradient() -> None:
    """At g = 0 the printed formula is 0/0; the set is everything or nothing, and which one is said."""
    zero = np.zeros(2)
    with np.errstate(invalid="ignore", divide="ignore"):
        assert not np.isfinite(POINT - np.maximum(np.float64(1.0), 0) / (zero @ zero) * zero).any()
    for slack, status in ((1.0, Status.INACTIVE), (0.0, Status.INACTIVE), (-1.0, Status.ZERO_GRADIENT)):
        result = project(half(POINT, zero, slack), tensor(POINT))
        assert Status(int(result.status)) is status
        assert bool(result.is_feasible) == (slack >= 0)
        assert torch.equal(result.point, tensor(POINT))


@pytest.mark.claim("prop-projection")
def test_correction_needs_an_unpadded_denominator() -> None:
    """With 1e-8 added to ||g||^2, as released, 99% of the violation stays at ||g|| = 1e-5; the package removes it."""
    normal, slack = 1e-5 * NORMAL / 5, -1.0
    padded = POINT + slack / (normal @ normal + 1e-8) * normal
    left = -(slack - normal @ (padded - POINT))
    assert left == pytest.approx(1e-8 / (1e-10 + 1e-8), abs=1e-9)
    assert left > 0.99
    halfspace = half(POINT, normal, slack)
    assert abs(float(halfspace.slack(project(halfspace, tensor(POINT)).point))) < 1e-9


# Bounds on actions

BOX_POINT, BOX_NORMAL, BOX_SLACK = np.array([0.9, 0.9]), np.array([-1.0, 0.5]), -0.5


def violation(point: np.ndarray) -> float:
    return float(BOX_NORMAL @ (point - BOX_POINT) - BOX_SLACK)


@pytest.mark.claim("prop-clipping")
def test_clipping_after_projection_needs_no_bound_in_the_way() -> None:
    projected = project(half(BOX_POINT, BOX_NORMAL, BOX_SLACK), tensor(BOX_POINT)).point.numpy()
    np.testing.assert_allclose(projected, [1.3, 0.7], atol=1e-9)
    clipped = np.clip(projected, -1, 1)
    np.testing.assert_allclose(clipped, [1, 0.7], atol=1e-9)
    assert violation(clipped) == pytest.approx(0.3, abs=1e-9)


@pytest.mark.claim("prop-clipping")
def test_squashed_correction_needs_a_small_correction() -> None:
    """The released correction tanh(lambda g) times the bound falls short even where the box is not in the way."""
    multiplier = -BOX_SLACK / (BOX_NORMAL @ BOX_NORMAL)
    assert violation(BOX_POINT - np.tanh(multiplier * BOX_NORMAL)) == pytest.approx(0.0213633776, abs=1e-9)


@pytest.mark.claim("prop-clipping")
@given(SEED)
def test_clipping_breaks_the_constraint_exactly_by_what_it_cuts_holds(seed: int) -> None:
    """From inside the box, the violation after clipping is sum_i |g_i| |cut_i|: positive whenever anything is cut."""
    generator = np.random.default_rng(seed)
    normal, point = generator.normal(size=3), generator.uniform(-1, 1, size=3)
    slack = -generator.exponential()
    projected = project(half(point, normal, slack), tensor(point)).point.numpy()
    clipped = np.clip(projected, -1, 1)
    over = normal @ (clipped - point) - slack
    assert over == pytest.approx(np.abs(normal) @ np.abs(clipped - projected), abs=1e-9 * (1 + np.abs(projected).max()))


@pytest.mark.claim("prop-box-projection")
def test_box_projection_of_the_golden_instance_holds() -> None:
    result = project_box(half(BOX_POINT, BOX_NORMAL, BOX_SLACK), tensor(BOX_POINT), -1.0, 1.0)
    np.testing.assert_allclose(result.point.numpy(), [1, 0.1], atol=1e-9)
    assert violation(result.point.numpy()) == pytest.approx(0, abs=1e-9)
    assert float(result.multiplier) == pytest.approx(1.6, abs=1e-9)


@pytest.mark.claim("prop-box-projection")
@given(SEED, st.integers(1, 5))
def test_box_projection_holds(seed: int, n_actions: int) -> None:
    """Piecewise linear and nonincreasing in lambda, a root or nothing, and the solver's point."""
    generator = np.random.default_rng(seed)
    normal, point = generator.normal(size=(2, n_actions))
    low, high = -generator.exponential(size=n_actions), generator.exponential(size=n_actions)
    offset = generator.normal()
    result = project_box(HalfSpace(tensor(normal), tensor(offset)), tensor(point), tensor(low), tensor(high))
    cheapest = linprog(normal, bounds=list(zip(low, high, strict=True))).fun
    assert bool(result.is_feasible) == (cheapest <= offset)
    grid = np.linspace(0, 5, 400)
    cost = np.clip(point - grid[:, None] * normal, low, high) @ normal
    assert (np.diff(cost) <= 1e-12).all()
    if result.is_feasible:
        expected = nearest_in_box(point, normal, offset, low, high)
        np.testing.assert_allclose(result.point.numpy(), expected, atol=1e-9)
    else:
        assert normal @ result.point.numpy() == pytest.approx(cheapest, abs=1e-9)


def nearest_in_box(
    point: np.ndarray, normal: np.ndarray, offset: float, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """Find the root by bisection, to the last digit; knows nothing of breakpoints."""
    path = lambda multiplier: np.clip(point - multiplier * normal, low, high)  # noqa: E731
    if normal @ path(0.0) <= offset:
        return path(0.0)
    left, right = 0.0, 1.0
    while normal @ path(right) > offset and right < 1e12:
        right *= 2
    for _ in range(200):
        middle = (left + right) / 2
        left, right = (middle, right) if normal @ path(middle) > offset else (left, middle)
    return path(right)


# Appendix J


@pytest.mark.claim("prop-target-projection")
def test_target_projection_of_the_golden_instance_holds_as_corrected() -> None:
    mean, target_mean, normal = np.array([1.0, 0.0]), np.zeros(2), np.ones(2)
    result = project(half(target_mean, normal, 0.2), tensor(0.75 * mean + 0.25 * target_mean))
    assert float(result.multiplier) == pytest.approx(0.275, abs=1e-9)
    np.testing.assert_allclose(result.point.numpy(), [0.475, -0.275], atol=1e-9)


@pytest.mark.claim("prop-target-projection")
@given(SEED, st.floats(0, 1))
def test_target_projection_holds_as_corrected(seed: int, kappa: float) -> None:
    """Read with mu_pi - mu_omega in lambda, the printed formula is the projection of the mixed mean, and the minimiser."""
    generator = np.random.default_rng(seed)
    mean, target_mean, normal = generator.normal(size=(3, 3))
    slack = generator.normal()
    multiplier = max(0.0, (1 - kappa) * normal @ (mean - target_mean) - slack) / (normal @ normal)
    printed = (1 - kappa) * mean + kappa * target_mean - multiplier * normal
    mixed = (1 - kappa) * mean + kappa * target_mean
    ours = project(half(target_mean, normal, slack), tensor(mixed)).point.numpy()
    np.testing.assert_allclose(ours, printed, rtol=1e-9, atol=1e-9)
    found = minimize(
        lambda u: (1 - kappa) / 2 * ((u - mean) ** 2).sum() + kappa / 2 * ((u - target_mean) ** 2).sum(), target_mean,
        jac=lambda u: u - mixed,
        constraints={"type": "ineq", "fun": lambda u: slack - normal @ (u - target_mean), "jac": lambda u: -normal},
        method="SLSQP", options={"ftol": 1e-13, "maxiter": 300},
    )  # fmt: skip
    np.testing.assert_allclose(found.x, ours, atol=1e-6 * (1 + np.abs(ours).max()))


@pytest.mark.claim("prop-target-projection")
def test_target_slack_needs_to_be_the_targets() -> None:
    """With the slack at the current mean instead of the target's, the result violates the target's constraint."""
    mean, target_mean, normal, slack = np.array([1.0, 0.0]), np.zeros(2), np.ones(2), 0.2
    at_mean = slack - normal @ (mean - target_mean)
    mixed = tensor(0.75 * mean + 0.25 * target_mean)
    right, wrong = half(target_mean, normal, slack), half(mixed, normal, at_mean)
    assert float(right.slack(project(right, mixed).point)) == pytest.approx(0, abs=1e-9)
    assert float(right.slack(project(wrong, mixed).point)) == pytest.approx(0.25, abs=1e-9)  # needlessly far
    assert float(right.slack(tensor(mean))) == pytest.approx(at_mean, abs=1e-9)


# Several constraints


def largest_multiplier(normal: np.ndarray, offset: np.ndarray, point: np.ndarray) -> np.ndarray:
    """Correct for the constraint of the largest multiplier only."""
    multiplier = np.maximum(normal @ point - offset, 0) / (normal**2).sum(1)
    worst = int(np.argmax(multiplier))
    return point - multiplier[worst] * normal[worst]


@pytest.mark.claim("prop-largest-multiplier")
def test_largest_multiplier_needs_the_others_to_hold() -> None:
    normal, offset, point = np.eye(2), np.zeros(2), np.ones(2)
    one = largest_multiplier(normal, offset, point)
    np.testing.assert_allclose(one, [0, 1], atol=1e-9)
    assert (normal @ one - offset).max() == pytest.approx(1, abs=1e-9)
    np.testing.assert_allclose(
        project_all(tensor(normal), tensor(offset), tensor(point)).point.numpy(), [0, 0], atol=1e-9
    )


@pytest.mark.claim("prop-largest-multiplier")
def test_largest_multiplier_needs_equal_units() -> None:
    """Ten times a constraint is the same constraint, but not to this rule: here one constraint alone suffices."""
    point, offset = np.array([1.0, 0.0]), np.array([0.0, 0.8])
    right = largest_multiplier(np.array([[1.0, 0], [1, 0]]), offset, point)
    wrong = largest_multiplier(np.array([[10.0, 0], [1, 0]]), offset, point)
    np.testing.assert_allclose(right, [0, 0], atol=1e-9)
    np.testing.assert_allclose(wrong, [0.8, 0], atol=1e-9)


@pytest.mark.claim("prop-largest-multiplier")
@given(SEED)
def test_one_projection_is_exact_exactly_if_feasible_holds(seed: int) -> None:
    """And then its constraint has the largest distance."""
    generator = np.random.default_rng(seed)
    normal, offset, point = generator.normal(size=(2, 3)), generator.normal(size=2), generator.normal(size=3)
    exact = project_all(tensor(normal), tensor(offset), tensor(point)).point.numpy()
    alone = [
        project(HalfSpace(tensor(g), tensor(b)), tensor(point)).point.numpy()
        for g, b in zip(normal, offset, strict=True)
    ]
    distance = np.linalg.norm(np.array(alone) - point, axis=1)
    for one, length in zip(alone, distance, strict=True):
        is_feasible = (normal @ one - offset).max() <= 1e-10
        assert is_feasible == (np.abs(one - exact).max() <= 1e-9)
        assert not is_feasible or length == pytest.approx(distance.max(), abs=1e-12)


@pytest.mark.claim("prop-largest-multiplier")
def test_largest_multiplier_needs_the_others_to_hold_on_random_instances() -> None:
    """Of 150 random instances with a feasible optimum about half go wrong: those whose result is not feasible."""
    generator = np.random.default_rng(0)
    normal, offset, point = generator.normal(size=(150, 2, 2)), generator.normal(size=(150, 2)) - 1, np.zeros((150, 2))
    exact = project_all(tensor(normal), tensor(offset), tensor(point))
    assert exact.is_feasible.all()
    wrong = [
        np.abs(largest_multiplier(g, b, u) - v).max() > 1e-9
        for g, b, u, v in zip(normal, offset, point, exact.point.numpy(), strict=True)
    ]
    broken = [(g @ largest_multiplier(g, b, u) - b).max() > 1e-9 for g, b, u in zip(normal, offset, point, strict=True)]
    assert wrong == broken
    assert 0.35 < np.mean(wrong) < 0.75


@pytest.mark.claim("prop-active-set")
@given(SEED, st.integers(1, 4), st.integers(1, 4))
def test_active_set_holds(seed: int, n_constraints: int, n_actions: int) -> None:
    """Against least-distance programming (Lawson and Hanson), which turns the problem into nonnegative least squares."""
    generator = np.random.default_rng(seed)
    point, inside = generator.normal(size=(2, n_actions))
    normal = generator.normal(size=(n_constraints, n_actions))
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    offset = normal @ inside + generator.exponential(size=n_constraints)  # `inside` is strictly feasible
    result = project_all(tensor(normal), tensor(offset), tensor(point))
    matrix, target = np.vstack([-normal.T, normal @ point - offset]), np.eye(n_actions + 1)[-1]
    residual = matrix @ nnls(matrix, target)[0] - target
    expected = point - residual[:-1] / residual[-1]
    assert bool(result.is_feasible)
    # Nearly parallel normals magnify rounding; distances, which they do not, are compared more strictly.
    np.testing.assert_allclose(result.point.numpy(), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        *(np.linalg.norm(u - point) for u in (result.point.numpy(), expected)), rtol=1e-6, atol=1e-6
    )
    assert (normal @ result.point.numpy() <= offset + 1e-7 * (1 + np.abs(result.point.numpy()).max())).all()
    assert (result.multiplier >= -1e-7).all()


@pytest.mark.claim("prop-active-set")
def test_active_set_needs_a_common_point() -> None:
    normal, offset, point = tensor([[1.0, 0], [-1, 0]]), tensor([0.0, -1]), tensor([0.4, 0])
    result = project_all(normal, offset, point)
    assert Status(int(result.status)) is Status.INFEASIBLE
    assert torch.equal(result.point, point)


# Gaussian policies


@pytest.mark.claim("prop-gaussian-projection")
@given(SEED)
def test_distance_of_gaussian_actions_holds_as_corrected(seed: int) -> None:
    """E 1/2 ||(m' + s' o e) - (m + s o e)||^2 = 1/2 (||m' - m||^2 + ||s' - s||^2); for matrices, Frobenius."""
    generator = np.random.default_rng(seed)
    mean, other_mean = generator.normal(size=(2, 3))
    std, other_std = generator.exponential(size=(2, 3))
    exact = 0.5 * (((other_mean - mean) ** 2).sum() + ((other_std - std) ** 2).sum())
    found = expectation(lambda u: 0.5 * (u**2).sum(), other_mean - mean, other_std - std, order=3)
    assert found == pytest.approx(exact, rel=1e-9)
    matrix = generator.normal(size=(3, 3))
    spread = expectation(lambda e: ((matrix @ e) ** 2).sum(), np.zeros(3), np.ones(3), order=3)
    assert spread == pytest.approx((matrix**2).sum(), rel=1e-9)


@pytest.mark.claim("prop-gaussian-projection")
def test_printed_step_needs_one_dimension() -> None:
    """E||e||^2 is n, not 1: the printed step gives .88 for .22 in four dimensions."""
    change = np.array([0.1, 0.2, 0.1, 0.4])
    true = expectation(lambda u: (u**2).sum(), np.zeros(4), change, order=2)
    assert true == pytest.approx(0.22, abs=1e-9)
    noise = expectation(lambda u: (u**2).sum(), np.zeros(4), np.ones(4), order=2)
    assert noise == pytest.approx(4, abs=1e-9)
    assert (change**2).sum() * noise == pytest.approx(0.88, abs=1e-9)


@pytest.mark.claim("prop-gaussian-projection")
def test_independent_projection_needs_one_of_the_two_gradients_to_vanish() -> None:
    """One constraint couples mean and deviation: joint (-.2, -.4); each alone (-1, -.5) corrects by 2 instead of 1."""
    normal, start = np.array([1.0, 2.0]), np.array([0.0, 1.0])
    joint = project(half(start, normal, -1.0), tensor(start)).point.numpy() - start
    np.testing.assert_allclose(joint, [-0.2, -0.4], atol=1e-9)
    alone = np.array([float(project(half([0.0], [g], -1.0), tensor([0.0])).point) for g in normal])
    np.testing.assert_allclose(alone, [-1, -0.5], atol=1e-9)
    assert normal @ joint == pytest.approx(-1, abs=1e-9)
    assert normal @ alone == pytest.approx(-2, abs=1e-9)
    assert (alone**2).sum() > (joint**2).sum()
    bounded = project_box(half([0.0, 0.3], normal, -1.0), tensor([0.0, 0.3]), tensor([-np.inf, 0.0]), np.inf)
    np.testing.assert_allclose(bounded.point.numpy(), [-0.4, 0.0], atol=1e-9)  # a deviation stays >= 0


@pytest.mark.claim("prop-gaussian-projection")
@given(SEED)
def test_deviation_does_not_matter_to_a_linear_cost_holds(seed: int) -> None:
    """d/ds_i E Q(m + s o e) = s_i E d_ii Q: zero for the linearised cost that the layer uses."""
    generator = np.random.default_rng(seed)
    weight, mean = generator.normal(size=(2, 2))
    root, std = generator.normal(size=(2, 2)), generator.uniform(0.2, 1, size=2)
    hessian, cubic = root @ root.T, generator.normal()

    def cost(u: np.ndarray) -> float:
        return weight @ u + 0.5 * u @ hessian @ u + cubic * u[0] ** 3

    def linear(u: np.ndarray) -> float:
        return weight @ u

    step = 1e-5
    for i in range(2):
        shift = step * np.eye(2)[i]
        slope = (expectation(cost, mean, std + shift, 4) - expectation(cost, mean, std - shift, 4)) / (2 * step)
        curvature = hessian[i, i] + (6 * cubic * mean[0] if i == 0 else 0.0)
        assert slope == pytest.approx(std[i] * curvature, abs=1e-6 * (1 + abs(curvature)))
        assert expectation(linear, mean, std + shift, 4) == pytest.approx(weight @ mean, abs=1e-12)
    quadratic = expectation(lambda u: cost(u) - cubic * u[0] ** 3, mean, std, 4)
    at_mean = cost(mean) - cubic * mean[0] ** 3
    assert quadratic == pytest.approx(at_mean + 0.5 * (std**2) @ np.diag(hessian), rel=1e-9, abs=1e-9)
    assert quadratic >= at_mean  # convex: the mean's cost is too low


@pytest.mark.claim("prop-chance-constraint")
def test_chance_constraint_of_the_golden_instance_holds() -> None:
    std, slack = np.array([0.1, 0.2]), 0.5
    halfspace = half(POINT, NORMAL, slack)
    before = 1 - NormalDist().cdf(slack / np.linalg.norm(std * NORMAL))
    assert before == pytest.approx(0.2792046942, abs=1e-9)
    result = project(halfspace.tightened(tensor(std), 0.95), tensor(POINT)).point
    np.testing.assert_allclose(result.numpy(), [0.3913563734, -0.3448581688], atol=1e-9)
    after = 1 - NormalDist().cdf(float(halfspace.slack(result)) / np.linalg.norm(std * NORMAL))
    assert after == pytest.approx(0.05, abs=1e-9)


@pytest.mark.claim("prop-chance-constraint")
@given(SEED, st.floats(0.01, 0.99))
def test_chance_constraint_holds(seed: int, probability: float) -> None:
    """Inside the tightened half-space if and only if the action satisfies the constraint often enough."""
    generator = np.random.default_rng(seed)
    mean, normal = generator.normal(size=(2, 3))
    std, offset = generator.exponential(size=3), generator.normal()
    halfspace = HalfSpace(tensor(normal), tensor(offset))
    spread = np.sqrt((std**2) @ (normal**2))
    truth = NormalDist(normal @ mean, spread).cdf(offset)
    slack = float(halfspace.tightened(tensor(std), probability).slack(tensor(mean)))
    assert (slack >= 0) == (truth >= probability) or abs(truth - probability) < 1e-9
    edge = project(halfspace.tightened(tensor(std), probability), tensor(mean)).point.numpy()
    assert NormalDist(normal @ edge, spread).cdf(offset) >= probability - 1e-9


@pytest.mark.claim("prop-chance-constraint")
def test_chance_constraint_by_sampling_holds() -> None:
    std = tensor([0.1, 0.2])
    halfspace = half(POINT, NORMAL, 0.5)
    mean = project(halfspace.tightened(std, 0.95), tensor(POINT)).point
    noise = torch.randn(200_000, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for center, chance in ((tensor(POINT), 0.2792046942), (mean, 0.05)):
        share = float((halfspace.slack(center + std * noise) < 0).double().mean())
        assert abs(share - chance) < 4.5 * np.sqrt(chance * (1 - chance) / len(noise))


# Curvature


def bowl(smoothness: float) -> tuple[object, np.ndarray]:
    """Return a cost over its limit with gradient (3, 4) and value 1 at the origin, curved by ``smoothness``."""
    return (lambda u: 1 + NORMAL @ u + smoothness / 2 * (u @ u)), np.zeros(2)


@pytest.mark.claim("prop-curvature-safe")
def test_curvature_of_the_golden_instance_holds() -> None:
    """The linear step overshoots by L eps^2 / (2 ||g||^2) = .04, attained; the curvature-safe step leaves nothing."""
    cost, origin = bowl(2.0)
    halfspace = half(origin, NORMAL, -1.0)
    linear = project(halfspace, tensor(origin)).point.numpy()
    assert cost(linear) == pytest.approx(0.04, abs=1e-9)
    safe = project_curved(halfspace, tensor(origin), 2.0)
    assert float(safe.multiplier) == pytest.approx(0.0417424305, abs=1e-9)
    assert cost(safe.point.numpy()) == pytest.approx(0, abs=1e-9)


@pytest.mark.claim("prop-curvature-safe")
@given(SEED)
def test_curvature_bounds_hold(seed: int) -> None:
    """Costs that are not quadratic: sums of sines, whose gradient is Lipschitz with the sum of |a| ||w||^2."""
    generator = np.random.default_rng(seed)
    amplitude, phase, wave = generator.normal(size=4), generator.uniform(0, 6, size=4), generator.normal(size=(4, 3))
    smoothness = np.abs(amplitude) @ (wave**2).sum(1)
    point, slack = generator.normal(size=3), -generator.exponential() * 0.1

    def cost(u: np.ndarray) -> float:
        return amplitude @ (np.sin(wave @ u + phase) - np.sin(wave @ point + phase)) - slack

    normal = (amplitude * np.cos(wave @ point + phase)) @ wave
    halfspace = half(point, normal, slack)
    linear = project(halfspace, tensor(point)).point.numpy()
    assert abs(cost(linear)) <= smoothness * slack**2 / (2 * normal @ normal) * (1 + 1e-9) + 1e-9
    safe = project_curved(halfspace, tensor(point), smoothness)
    assert bool(safe.is_feasible) == (-slack <= normal @ normal / (2 * smoothness))
    bound = 0.0 if safe.is_feasible else -slack - normal @ normal / (2 * smoothness)
    assert cost(safe.point.numpy()) <= bound + 1e-9


@pytest.mark.claim("prop-curvature-safe")
@given(SEED)
def test_curvature_safe_step_is_a_projection_holds(seed: int) -> None:
    """On the ball where the quadratic bound meets the limit; center mu - g/L, radius^2 = ||g||^2/L^2 + 2 eps/L."""
    generator = np.random.default_rng(seed)
    normal, point = generator.normal(size=(2, 3))
    smoothness = generator.exponential() + 0.1
    slack = -generator.uniform(0.01, 0.99) * (normal @ normal) / (2 * smoothness)
    center = point - normal / smoothness
    radius = np.sqrt(normal @ normal / smoothness**2 + 2 * slack / smoothness)
    expected = center + radius * (point - center) / np.linalg.norm(point - center)
    result = project_curved(half(point, normal, slack), tensor(point), smoothness)
    np.testing.assert_allclose(result.point.numpy(), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.claim("prop-curvature-safe")
def test_curvature_safe_step_needs_enough_gradient() -> None:
    """A bowl whose minimum is above the limit cannot be brought below it; the deepest step is returned and flagged."""
    cost, origin = bowl(25.0)  # minimum 1 - 25 / 50 = .5
    result = project_curved(half(origin, NORMAL, -1.0), tensor(origin), 25.0)
    assert Status(int(result.status)) is Status.INFEASIBLE
    assert cost(result.point.numpy()) == pytest.approx(0.5, abs=1e-9)


# What a critic can know


@pytest.mark.claim("prop-identifiability")
def test_gradient_needs_actions_off_the_mean() -> None:
    """At mu(x) = x the critics x, mu and 2x - mu agree; their gradients in the action are 0, 1 and -1."""
    state = torch.linspace(-1, 1, 21, dtype=torch.float64)
    critics = [lambda x, u: x, lambda x, u: u, lambda x, u: 2 * x - u]
    action = state.clone().requires_grad_()
    value = [critic(state, action) + 0 * action for critic in critics]
    assert all(torch.equal(v.detach(), state) for v in value)
    slope = [torch.autograd.grad(v.sum(), action)[0] for v in value]
    assert [float(s[0]) for s in slope] == [0.0, 1.0, -1.0]
    # The projections that follow differ in direction, or do not exist.
    halfspace = [half(state[:, None], s[:, None], -torch.ones(21)) for s in slope]
    moved = [project(h, state[:, None]).point[:, 0] - state for h in halfspace]
    assert [float(m[0]) for m in moved] == pytest.approx([0.0, -1.0, 1.0], abs=1e-9)


@pytest.mark.claim("prop-identifiability")
@given(SEED)
def test_executed_actions_identify_the_gradient_holds(seed: int) -> None:
    """Least squares on (1, u - mu): rank 1 at the mean, full rank where every action coordinate is perturbed."""
    generator = np.random.default_rng(seed)
    gradient, std = generator.normal(size=3), generator.uniform(0.1, 1, size=3)
    noise = std * generator.normal(size=(30, 3))
    design = np.column_stack([np.ones(30), noise])
    assert np.linalg.matrix_rank(np.column_stack([np.ones(30), 0 * noise])) == 1
    found, _, rank, _ = np.linalg.lstsq(design, 2.0 + noise @ gradient, rcond=None)
    assert rank == 4
    np.testing.assert_allclose(found[1:], gradient, atol=1e-9)
    still = noise.copy()
    still[:, 1] = 0.0  # a coordinate that is never perturbed stays unknown
    assert np.linalg.matrix_rank(np.column_stack([np.ones(30), still])) == 3


@pytest.mark.claim("prop-identifiability")
@given(SEED)
def test_regression_on_executed_actions_finds_the_averaged_gradient_holds(seed: int) -> None:
    """For a cubic cost the least-squares slope is E dQ/du over the noise, not the gradient at the mean."""
    generator = np.random.default_rng(seed)
    weight, mean = generator.normal(size=(2, 2))
    std, cubic = generator.uniform(0.2, 1, size=2), generator.normal(size=2)
    hessian = generator.normal(size=(2, 2))

    def cost(u: np.ndarray) -> float:
        return weight @ u + u @ hessian @ u + cubic @ u**3

    slope = [expectation(lambda u, i=i: (u - mean)[i] * cost(u), mean, std, order=4) / std[i] ** 2 for i in range(2)]
    averaged = weight + (hessian + hessian.T) @ mean + 3 * cubic * (mean**2 + std**2)
    np.testing.assert_allclose(slope, averaged, rtol=1e-9, atol=1e-9)
