"""Half-spaces and projections: batching, dtypes, gradients, flags, and agreement with solvers that share no code."""

from __future__ import annotations

import re
from collections.abc import Callable
from statistics import NormalDist

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch import Tensor

from bvf_tutorial.halfspace import HalfSpace, Projection, Status, project, project_all, project_box, project_curved
from tests.strategies import SEED

torch.set_num_threads(1)

N_INSTANCES = 2000
GAP = 1e-12  # relative duality gap asked of the interior-point solver


def tensors(*arrays: np.ndarray) -> tuple[Tensor, ...]:
    return tuple(torch.as_tensor(array) for array in arrays)


def quadratic_program(
    point: np.ndarray, constraints: Callable[[cp.Variable], list[cp.Constraint]]
) -> tuple[np.ndarray, float]:
    """Solve many projections as one separable program; also return how far its answer can be from the true one.

    The objective is 1-strongly convex, so a gap of ``GAP`` relative to it bounds the distance by sqrt(2 gap).
    """
    variable = cp.Variable(point.shape)
    problem = cp.Problem(cp.Minimize(0.5 * cp.sum_squares(variable - point)), constraints(variable))
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=GAP, tol_gap_rel=GAP, tol_feas=GAP)
    assert problem.status == cp.OPTIMAL
    return variable.value, float(np.sqrt(2 * GAP * max(1.0, problem.value)))


def sequential_program(
    point: np.ndarray, normal: np.ndarray, offset: np.ndarray, bounds: list[tuple[float, float]] | None = None
) -> np.ndarray | None:
    """Solve one projection by SLSQP; None where it stops without success."""
    found = minimize(
        lambda u: 0.5 * ((u - point) ** 2).sum(), point, jac=lambda u: u - point, bounds=bounds,
        constraints={"type": "ineq", "fun": lambda u: offset - normal @ u, "jac": lambda u: -normal},
        method="SLSQP", options={"ftol": 1e-13, "maxiter": 300},
    )  # fmt: skip
    return found.x if found.success else None


# The record


def test_shapes_that_do_not_fit_are_named() -> None:
    expected = r"give normal \[..., K\] and offset \[...\], one offset per normal\.$"
    with pytest.raises(ValueError, match=r"normal has shape \(5, 3\) and offset \(4,\); " + expected):
        HalfSpace(torch.zeros(5, 3), torch.zeros(4))
    with pytest.raises(ValueError, match=r"normal has shape \(\) and offset \(\)"):
        HalfSpace(torch.tensor(1.0), torch.tensor(1.0))
    expected = r"differ in their last dimension, the number of actions or action coordinates\.$"
    with pytest.raises(ValueError, match=r"\(5, 1\) and a point of shape \(5, 3\) " + expected):
        HalfSpace(torch.zeros(5, 1), torch.zeros(5)).slack(torch.zeros(5, 3))  # would broadcast silently
    for function in (lambda h, u: project(h, u), lambda h, u: project_box(h, u, -1.0, 1.0)):
        with pytest.raises(ValueError, match=r"\(5, 1\) and a point of shape \(5, 3\)"):
            function(HalfSpace(torch.zeros(5, 1), torch.zeros(5)), torch.zeros(5, 3))
    expected = r"give \[..., M, K\], \[..., M\] and \[..., K\]\.$"
    for normal, offset, point in (((2, 3), (3,), (3,)), ((3,), (), (3,)), ((2, 3), (2,), (1,))):
        shapes = f"normal has shape {normal}, offset {offset} and point {point}; "
        with pytest.raises(ValueError, match=re.escape(shapes) + expected):
            project_all(torch.zeros(normal), torch.zeros(offset), torch.zeros(point))
    for size in (0, 7):
        with pytest.raises(ValueError, match=rf"M = {size} constraints; .* Use a quadratic-programming solver\.$"):
            project_all(torch.zeros(size, 3), torch.zeros(size), torch.zeros(3))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_check_names_the_entry(bad: float) -> None:
    good = HalfSpace(torch.ones(2, 3, 4), torch.ones(2, 3))
    assert good.check() is good
    assert HalfSpace.everything(torch.zeros(2, 3, 4)).check().offset.isinf().all()
    normal, offset = torch.ones(2, 3, 4), torch.ones(2, 3)
    normal[1, 2, 0] = bad
    advice = (
        r"offset 1\.0; the normal must be finite and the offset a number or \+inf\. Look at the cost critic's output\.$"
    )
    with pytest.raises(ValueError, match=r"half-space \(1, 2\) has normal .* and " + advice):
        HalfSpace(normal, offset).check()
    offset[0, 1] = bad
    if bad != float("inf"):
        with pytest.raises(ValueError, match=r"half-space \(0, 1\)"):
            HalfSpace(torch.ones(2, 3, 4), offset).check()


def test_around_has_the_slack_it_was_given() -> None:
    point, normal = torch.randn(7, 3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    slack = torch.randn(7, dtype=torch.float64)
    halfspace = HalfSpace.around(point, normal, slack)
    assert halfspace.normal.shape == (7, 3)
    torch.testing.assert_close(halfspace.slack(point), slack)
    torch.testing.assert_close(
        HalfSpace.around(point, normal, 0.0).slack(point + normal), -normal.square().sum().expand(7)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_everything_contains_every_point_and_passes_gradients(dtype: torch.dtype) -> None:
    point = (1e6 * torch.randn(5, 3)).to(dtype).requires_grad_()
    halfspace = HalfSpace.everything(point.detach())
    many = project_all(halfspace.normal[:, None].expand(5, 2, 3), halfspace.offset[:, None].expand(5, 2), point)
    for result in (project(halfspace, point), project_curved(halfspace, point, 2.0), many):
        assert result.point.dtype == dtype
        assert result.counts() == {"INACTIVE": 5, "ACTIVE": 0, "ZERO_GRADIENT": 0, "INFEASIBLE": 0}
        assert torch.equal(result.point, point)
        (gradient,) = torch.autograd.grad(result.point.sum(), point)
        assert torch.equal(gradient, torch.ones(5, 3, dtype=dtype))
    boxed = project_box(halfspace, point, -1.0, 1.0)
    assert torch.equal(boxed.point, point.clamp(-1, 1))
    assert boxed.is_feasible.all()
    assert halfspace.tightened(torch.ones(5, 3, dtype=dtype), 0.95).offset.isinf().all()
    assert halfspace.feasible_actions().all()
    single = HalfSpace.everything(torch.ones(4, 1, dtype=dtype))  # one action, and a batch of that width
    assert single.normal.shape == (4, 1) and single.offset.shape == (4,) and single.normal.dtype == dtype
    assert (single.slack(point[:4, :1].detach()) == torch.inf).all()


@pytest.mark.parametrize("batch", [(), (5,), (2, 4)])
@pytest.mark.parametrize("probability", [0.05, 0.5, 0.9])
def test_a_mean_at_the_tightened_boundary_meets_the_limit_that_often(
    batch: tuple[int, ...], probability: float
) -> None:
    """``normal . u`` is Gaussian in one dimension, so the probability has a closed form."""
    generator = torch.Generator().manual_seed(0)
    normal, mean, std = torch.randn(3, *batch, 3, generator=generator, dtype=torch.float64)
    halfspace = HalfSpace(normal, torch.randn(batch, generator=generator, dtype=torch.float64))
    tight = halfspace.tightened(std.abs(), probability)
    assert tight.normal.shape == (*batch, 3) and tight.offset.shape == batch
    edge = mean + (tight.slack(mean) / normal.square().sum(-1))[..., None] * normal
    center, spread = (normal * edge).sum(-1), (normal * std).square().sum(-1).sqrt()
    for at, limit, width in zip(*(x.flatten().tolist() for x in (center, halfspace.offset, spread)), strict=True):
        assert NormalDist(at, width).cdf(limit) == pytest.approx(probability, rel=1e-9)


def test_probability_outside_zero_one_is_refused() -> None:
    for probability in (0.0, 1.0, 1.5, float("nan")):
        with pytest.raises(ValueError, match="probability is"):
            HalfSpace(torch.ones(2), torch.tensor(1.0)).tightened(torch.ones(2), probability)


@given(SEED)
def test_greedy_action_is_the_best_of_the_feasible_ones(seed: int) -> None:
    generator = np.random.default_rng(seed)
    cost, score, offset = generator.normal(size=(20, 4)), generator.normal(size=(20, 4)), generator.normal(size=20)
    action, is_feasible = HalfSpace(*tensors(cost, offset)).greedy_action(torch.as_tensor(score))
    for i in range(20):
        allowed = [k for k in range(4) if cost[i, k] <= offset[i]]
        assert bool(is_feasible[i]) == bool(allowed)
        assert int(action[i]) == (max(allowed, key=lambda k: score[i, k]) if allowed else int(np.argmin(cost[i])))
        alone = HalfSpace(torch.as_tensor(cost[i]), torch.tensor(offset[i])).greedy_action(torch.as_tensor(score[i]))
        assert (int(alone[0]), bool(alone[1])) == (int(action[i]), bool(is_feasible[i]))
    shape = (5, 4)  # a batch of two dimensions
    grid = HalfSpace(*tensors(cost.reshape(*shape, 4), offset.reshape(shape)))
    again, is_allowed = grid.greedy_action(torch.as_tensor(score.reshape(*shape, 4)))
    assert torch.equal(again, action.reshape(shape)) and torch.equal(is_allowed, is_feasible.reshape(shape))


def test_an_action_that_costs_exactly_the_limit_is_feasible() -> None:
    halfspace = HalfSpace(torch.tensor([1.0, 2.0, 3.0]), torch.tensor(2.0))
    assert halfspace.feasible_actions().tolist() == [True, True, False]
    assert halfspace.greedy_action(torch.tensor([0.0, 1.0, 2.0]))[0] == 1


# Against solvers


def test_project_agrees_with_solvers() -> None:
    generator = np.random.default_rng(0)
    normal, point = generator.normal(size=(2, N_INSTANCES, 4))
    offset = generator.normal(size=N_INSTANCES)
    result = project(HalfSpace(*tensors(normal, offset)), torch.as_tensor(point))
    assert min(result.counts()[name] for name in ("INACTIVE", "ACTIVE")) > N_INSTANCES / 4
    expected, error = quadratic_program(point, lambda u: [cp.sum(cp.multiply(u, normal), axis=1) <= offset])
    np.testing.assert_allclose(result.point.numpy(), expected, atol=error)
    found = [sequential_program(point[i], normal[i], offset[i]) for i in range(N_INSTANCES)]
    close = [np.abs(u - v).max() < 1e-9 for u, v in zip(found, result.point.numpy(), strict=True) if u is not None]
    assert len(close) > 0.9 * N_INSTANCES and all(close)


def box_instances(seed: int, size: int, n_actions: int) -> tuple[np.ndarray, ...]:
    """Random ones with zero normals, points outside the box, some infinite bounds and boxes of width zero."""
    generator = np.random.default_rng(seed)
    normal, point = generator.normal(size=(size, n_actions)), 2 * generator.normal(size=(size, n_actions))
    normal[generator.random((size, n_actions)) < 0.2] = 0.0
    low, high = -generator.exponential(size=(size, n_actions)), generator.exponential(size=(size, n_actions))
    low[generator.random((size, n_actions)) < 0.1] = -np.inf
    high[generator.random((size, n_actions)) < 0.1] = np.inf
    narrow = generator.random((size, n_actions)) < 0.1
    low[narrow] = high[narrow] = generator.normal(size=narrow.sum())
    return normal, generator.normal(size=size), point, low, high


def least_cost(normal: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    cheapest = np.where(normal == 0, 0.0, np.where(normal > 0, low, high))
    return (normal * cheapest).sum(-1)


def test_project_box_agrees_with_solvers() -> None:
    normal, offset, point, low, high = box_instances(1, N_INSTANCES, 4)
    result = project_box(HalfSpace(*tensors(normal, offset)), *tensors(point, low, high))
    ok = result.is_feasible.numpy()
    assert np.array_equal(ok, least_cost(normal, low, high) <= offset)
    assert min(result.counts()[name] for name in ("INACTIVE", "ACTIVE", "INFEASIBLE")) > N_INSTANCES / 20
    finite_low, finite_high = np.maximum(low, -1e3)[ok], np.minimum(high, 1e3)[ok]
    expected, error = quadratic_program(
        point[ok],
        lambda u: [cp.sum(cp.multiply(u, normal[ok]), axis=1) <= offset[ok], u >= finite_low, u <= finite_high],
    )
    np.testing.assert_allclose(result.point.numpy()[ok], expected, atol=error)
    compared = 0
    for i in np.flatnonzero(ok):
        found = sequential_program(point[i], normal[i], offset[i], list(zip(low[i], high[i], strict=True)))
        if found is not None:
            compared += 1
            np.testing.assert_allclose(result.point[i].numpy(), found, atol=1e-9)
    assert compared > 0.8 * ok.sum()


def test_an_infeasible_box_returns_its_cheapest_point() -> None:
    normal, offset, point, low, high = box_instances(2, N_INSTANCES, 3)
    halfspace = HalfSpace(*tensors(normal, offset))
    result = project_box(halfspace, *tensors(point, low, high))
    stuck = (result.status == Status.INFEASIBLE).numpy()
    assert stuck.sum() > 20
    reached = (normal * result.point.numpy()).sum(-1)[stuck]
    np.testing.assert_allclose(reached, least_cost(normal, low, high)[stuck], atol=1e-12)
    again = torch.clamp(torch.as_tensor(point) - result.multiplier[:, None] * halfspace.normal, *tensors(low, high))
    torch.testing.assert_close(again[stuck], result.point[stuck])  # the multiplier leads there
    # It is the smallest that does: with it the last coordinate arrives that can move.
    can_move = (normal != 0) & (low < high)
    cheapest = np.where(normal > 0, low, high)
    way = np.where(can_move, point - cheapest, 0.0) / np.where(can_move, normal, 1.0)
    arrival = np.maximum(way, 0.0).max(-1)
    assert (stuck & ~(low < high).all(-1)).any()
    np.testing.assert_allclose(result.multiplier.numpy()[stuck], arrival[stuck], rtol=1e-12)


def test_a_limit_at_the_cost_of_the_cheapest_corner_is_met_there() -> None:
    """In numbers that float64 adds without rounding: equality is feasible, the next number below is not."""
    normal, point = torch.tensor([1.0, 2.0, 0.0], dtype=torch.float64), torch.tensor([0.0, 0.0, 0.5]).double()
    least = torch.tensor(-3.0, dtype=torch.float64)
    met = project_box(HalfSpace(normal, least), point, -1.0, 1.0)
    assert met.counts()["ACTIVE"] == 1 and met.point.tolist() == [-1.0, -1.0, 0.5] and met.multiplier == 1
    below = project_box(HalfSpace(normal, least.nextafter(least - 1)), point, -1.0, 1.0)
    assert below.counts()["INFEASIBLE"] == 1 and torch.equal(below.point, met.point) and below.multiplier == 1


@pytest.mark.parametrize("n_constraints", [1, 2, 3, 6])
def test_project_all_agrees_with_solvers(n_constraints: int) -> None:
    generator = np.random.default_rng(n_constraints)
    size = N_INSTANCES // 2
    normal, point = generator.normal(size=(size, n_constraints, 4)), 2 * generator.normal(size=(size, 4))
    offset = generator.normal(size=(size, n_constraints)) - 0.3
    result = project_all(*tensors(normal, offset, point))
    ok = result.is_feasible.numpy()
    violation = cp.Variable(size, nonneg=True)  # the least violation says which instances are feasible at all
    free = cp.Variable((size, 4))
    rows = [cp.sum(cp.multiply(free, normal[:, m]), axis=1) <= offset[:, m] + violation for m in range(n_constraints)]
    cp.Problem(cp.Minimize(cp.sum(violation)), rows).solve(solver=cp.CLARABEL, tol_gap_abs=GAP, tol_gap_rel=GAP)
    assert np.array_equal(ok, violation.value < 1e-6)
    expected, error = quadratic_program(
        point[ok],
        lambda u: [cp.sum(cp.multiply(u, normal[ok, m]), axis=1) <= offset[ok, m] for m in range(n_constraints)],
    )
    np.testing.assert_allclose(result.point.numpy()[ok], expected, atol=error)
    compared = [
        (i, found)
        for i in np.flatnonzero(ok)
        if (found := sequential_program(point[i], normal[i], offset[i])) is not None
    ]
    assert len(compared) > 0.8 * ok.sum()
    for i, found in compared:
        np.testing.assert_allclose(result.point[i].numpy(), found, atol=1e-8)
    assert torch.equal(result.point[~ok], torch.as_tensor(point)[~ok])


def test_project_all_with_dependent_opposed_and_missing_constraints() -> None:
    point = torch.tensor([2.0, 1.0], dtype=torch.float64)
    one = torch.tensor([1.0, 0.0], dtype=torch.float64)
    cases: list[tuple[list[list[float]], list[float], list[float], Status]] = [
        ([[1, 0], [1, 0]], [1, 1], [1, 1], Status.ACTIVE),  # twice the same
        ([[1, 0], [2, 0]], [1, 1], [0.5, 1], Status.ACTIVE),  # parallel
        ([[1, 0], [-1, 0]], [1, -1], [1, 1], Status.ACTIVE),  # a line
        ([[1, 0], [-1, 0]], [0, -1], [2, 1], Status.INFEASIBLE),
        ([[1, 0], [-1, 0], [0, 1]], [1, -1, 0], [1, 0], Status.ACTIVE),
        ([[1, 0], [0, 1], [1, 1]], [0, 0, 0], [0, 0], Status.ACTIVE),  # three through one corner
        ([[1, 0], [0, 0]], [1, 0], [1, 1], Status.ACTIVE),  # 0 <= 0 is no constraint
        ([[1, 0], [0, 0]], [1, -1], [2, 1], Status.ZERO_GRADIENT),
        ([[1, 0], [1, 1]], [1, np.inf], [1, 1], Status.ACTIVE),
        ([[1, 0], [1, 1]], [3, 3], [2, 1], Status.INACTIVE),
    ]
    for normal, offset, expected, status in cases:
        result = project_all(
            torch.tensor(normal, dtype=torch.float64), torch.tensor(offset, dtype=torch.float64), point
        )
        np.testing.assert_allclose(result.point.numpy(), expected, atol=1e-12)
        assert Status(int(result.status)) is status
        assert (result.multiplier >= -1e-12).all()
    single = project_all(one[None], torch.tensor([1.0], dtype=torch.float64), point)
    assert torch.equal(single.point, project(HalfSpace(one, torch.tensor(1.0, dtype=torch.float64)), point).point)


@given(SEED)
def test_multipliers_of_many_constraints_are_the_move_in_the_units_of_the_normals(seed: int) -> None:
    """``u = point - sum of lambda_m normal_m``, none of them where a constraint holds with slack."""
    generator = np.random.default_rng(seed)
    length = 10 ** generator.uniform(-2, 2, (20, 3, 1))
    normal, offset, point = tensors(
        length * generator.normal(size=(20, 3, 4)), length[..., 0] * generator.normal(size=(20, 3)),
        generator.normal(size=(20, 4)),
    )  # fmt: skip
    result = project_all(normal, offset, point)
    moved = point - (result.multiplier[..., None] * normal).sum(-2)
    torch.testing.assert_close(moved, result.point, rtol=1e-9, atol=1e-9)
    slack = (offset - (normal * result.point[..., None, :]).sum(-1)) / torch.as_tensor(length[..., 0])
    assert (result.multiplier[(slack > 1e-6) | ~result.is_feasible[:, None]] == 0).all()
    assert torch.equal((result.multiplier > 0).any(-1), result.status == Status.ACTIVE)


@given(SEED, st.integers(0, 2))
def test_a_constraint_that_is_none_changes_nothing(seed: int, place: int) -> None:
    """No limit, or ``0 <= 1``, among two others; four half-spaces of a plane, of which some leave no point."""
    generator = np.random.default_rng(seed)
    normal, offset, point = generator.normal(size=(20, 4, 2)), generator.normal(size=(20, 4)), np.zeros((20, 2))
    without = project_all(*tensors(normal, offset, point))
    for extra, limit in (([1.0, -2.0], np.inf), ([0.0, 0.0], 1.0), ([0.0, 0.0], 0.0)):
        more = np.insert(normal, place, extra, axis=1), np.insert(offset, place, limit, axis=1)
        result = project_all(*tensors(*more, point))
        assert torch.equal(result.status, without.status)
        torch.testing.assert_close(result.point, without.point, rtol=1e-6, atol=1e-6)  # as sharp as the angles
        assert (result.multiplier[:, place] == 0).all()


def test_gaps_are_judged_beside_the_distances_of_their_own_entry() -> None:
    """``x <= b`` and ``x >= b + gap`` from 2: touching below the root of the precision, not above, in any unit."""
    normal = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    for unit in (1e-12, 1.0, 1e12):
        for gap, status in ((0.0, Status.ACTIVE), (1e-10, Status.ACTIVE), (1e-6, Status.INFEASIBLE)):
            offset = unit * torch.tensor([1.0, -1.0 - gap, torch.inf], dtype=torch.float64)
            point = unit * torch.tensor([2.0, 1.0], dtype=torch.float64)
            assert Status(int(project_all(normal, offset, point).status)) is status
            # Beside an entry of quite another size, in one batch.
            far = [torch.stack([x, 1e9 * x]) for x in (offset, point)]
            assert project_all(normal.expand(2, 3, 2), *far).status.tolist() == [status, status]


@given(SEED)
def test_project_all_ignores_order_and_repetition(seed: int) -> None:
    generator = np.random.default_rng(seed)
    normal, offset, point = tensors(
        generator.normal(size=(8, 3, 3)), generator.normal(size=(8, 3)), generator.normal(size=(8, 3))
    )
    once = project_all(normal, offset, point)
    order = torch.as_tensor(generator.permutation([0, 1, 2, 0, 1]))
    again = project_all(normal[:, order], offset[:, order], point)
    assert torch.equal(once.status, again.status)
    # Two of three normals may nearly agree; the answer is then as sharp as their angle.
    torch.testing.assert_close(once.point, again.point, rtol=1e-6, atol=1e-6)


# Laws


@given(SEED)
def test_optimality_conditions_of_the_box(seed: int) -> None:
    """u = clip(point - lambda g), lambda >= 0, lambda (g . u - b) = 0: sufficient for a convex program."""
    normal, offset, point, low, high = box_instances(seed, 50, 3)
    halfspace = HalfSpace(*tensors(normal, offset))
    result = project_box(halfspace, *tensors(point, low, high))
    slack, scale = halfspace.slack(result.point), 1 + torch.as_tensor(np.abs(normal * point).sum(-1) + np.abs(offset))
    ok = result.is_feasible
    assert (result.multiplier >= 0).all()
    assert (slack[ok] >= -1e-11 * scale[ok]).all()
    is_moved = result.status == Status.ACTIVE
    assert (slack[is_moved].abs() <= 1e-11 * scale[is_moved]).all()
    assert (result.multiplier[result.status == Status.INACTIVE] == 0).all()
    again = torch.clamp(torch.as_tensor(point) - result.multiplier[:, None] * halfspace.normal, *tensors(low, high))
    torch.testing.assert_close(again, result.point, rtol=1e-9, atol=1e-9)
    assert (result.point >= torch.as_tensor(low)).all() and (result.point <= torch.as_tensor(high)).all()


@given(SEED)
def test_projections_are_idempotent_and_nonexpansive(seed: int) -> None:
    normal, offset, first, low, high = box_instances(seed, 50, 3)
    second = first + np.random.default_rng(seed).normal(size=first.shape)
    halfspace, bounds = HalfSpace(*tensors(normal, offset)), tensors(low, high)
    for function in (lambda u: project(halfspace, u), lambda u: project_box(halfspace, u, *bounds)):
        one, two = function(torch.as_tensor(first)), function(torch.as_tensor(second))
        ok = one.is_feasible & two.is_feasible
        apart = torch.linalg.vector_norm(one.point - two.point, dim=-1)
        assert (apart <= torch.as_tensor(np.linalg.norm(first - second, axis=1)) + 1e-9)[ok].all()
        torch.testing.assert_close(function(one.point).point[ok], one.point[ok], rtol=1e-9, atol=1e-9)


def test_the_box_is_kept_to_the_last_bit() -> None:
    """With the offset that a coordinate reaches its bound for, rounding could carry it across."""
    generator = torch.Generator().manual_seed(0)
    normal, point = torch.randn(2, 5000, 3, generator=generator)
    low, high = -torch.rand(5000, 3, generator=generator) - 0.1, torch.rand(5000, 3, generator=generator) + 0.1
    inside = torch.clamp(point, low, high)
    arrival = ((inside - torch.where(normal > 0, low, high)) / normal).amin(-1, keepdim=True)
    offset = (normal * torch.clamp(inside - arrival * normal, low, high)).sum(-1)
    result = project_box(HalfSpace(normal, offset), inside, low, high)
    assert result.counts()["ACTIVE"] > 1000  # the others start at a bound
    assert (result.point >= low).all() and (result.point <= high).all()


def test_a_wide_box_is_no_box() -> None:
    normal, offset, point, _, _ = box_instances(3, 100, 3)
    halfspace, center = HalfSpace(*tensors(normal, offset)), torch.as_tensor(point)
    for bound in (1e4, float("inf")):
        boxed, free = project_box(halfspace, center, -bound, bound), project(halfspace, center)
        keep = free.point.abs().amax(-1) < 1e4
        torch.testing.assert_close(boxed.point[keep], free.point[keep], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(boxed.multiplier[keep], free.multiplier[keep], rtol=1e-9, atol=1e-9)


# Flags


@pytest.mark.field("zero-gradient")
def test_zero_gradient_is_flagged_and_nothing_moves() -> None:
    normal = torch.tensor([[0.0, 0.0], [0.0, 0.0], [3e-4, 4e-4], [3e-2, 4e-2], [1e-30, 0.0], [3.0, 4.0]])
    offset = torch.tensor([-1.0, 0.0, -1.0, -1.0, -1.0, -1.0])
    point = torch.full((6, 2), 0.3)
    # A length of exactly ``min_norm`` counts as zero.
    for min_norm, expected in ((0.0, [2, 0, 1, 1, 2, 1]), (1e-3, [2, 0, 2, 1, 2, 1]), (5.0, [2, 0, 2, 2, 2, 2])):
        for result in (
            project(HalfSpace(normal, offset), point, min_norm),
            project_box(HalfSpace(normal, offset), point, -1e9, 1e9, min_norm),
            project_curved(HalfSpace(normal, offset), point, 0.0, min_norm),
        ):
            assert result.status.tolist() == expected
            still = result.status != Status.ACTIVE
            assert torch.equal(result.point[still], point[still])
            assert (result.multiplier[still] == 0).all()
            assert torch.isfinite(result.point).all()


def test_curved_step_keeps_the_true_cost_or_says_that_it_cannot() -> None:
    generator = np.random.default_rng(0)
    normal, slack = torch.as_tensor(generator.normal(size=(500, 3))), torch.as_tensor(generator.normal(size=500))
    point = torch.as_tensor(generator.normal(size=(500, 3)))
    halfspace, smoothness = HalfSpace.around(point, normal, slack), 1.5
    result = project_curved(halfspace, point, smoothness)
    step = result.point - point
    worst = -slack + (normal * step).sum(-1) + smoothness / 2 * step.square().sum(-1)  # cost over the limit, at most
    reachable = -slack <= normal.square().sum(-1) / (2 * smoothness)
    assert torch.equal(result.is_feasible, reachable)
    assert (worst[reachable] <= 1e-12).all() and (worst[~reachable] > 0).all()
    deepest = -slack - normal.square().sum(-1) / (2 * smoothness)
    torch.testing.assert_close(worst[~reachable], deepest[~reachable])
    flat = project_curved(halfspace, point, 0.0)
    assert torch.equal(flat.point, project(halfspace, point).point) and torch.equal(
        flat.status, project(halfspace, point).status
    )
    nearly = project_curved(halfspace, point, torch.full((500,), 1e-12, dtype=torch.float64))
    torch.testing.assert_close(nearly.point, flat.point, rtol=1e-9, atol=1e-9)
    # A number has the digits of the point, not those of the default dtype.
    number, tensor = (project_curved(halfspace, point, x) for x in (2.3, torch.tensor(2.3, dtype=torch.float64)))
    assert torch.equal(number.multiplier, tensor.multiplier) and number.counts()["INFEASIBLE"] > 0


def test_curved_step_at_the_edge_has_finite_gradients() -> None:
    normal = torch.tensor([3.0, 4.0], dtype=torch.float64, requires_grad=True)
    point = torch.zeros(2, dtype=torch.float64)
    result = project_curved(
        HalfSpace(normal, torch.tensor(-6.25, dtype=torch.float64)), point, 2.0
    )  # -eps = |g|^2 / 2L
    assert result.counts()["ACTIVE"] == 1 and float(result.multiplier.detach()) == 0.5
    assert torch.isfinite(torch.autograd.grad(result.point.sum(), normal)[0]).all()


# Gradients


def functions(normal: Tensor, offset: Tensor, point: Tensor) -> list[Projection]:
    """Return every projection at these inputs, with three constraints made of one by rotating its coordinates."""
    halfspace = HalfSpace(normal, offset)
    several = torch.stack([normal, normal.roll(1, -1), normal.roll(2, -1)], -2)
    return [
        project(halfspace, point),
        project_box(halfspace, point, -1.0, 0.8),
        project_curved(halfspace, point, 0.3),
        project_all(several, torch.stack([offset, offset + 0.3, offset - 0.1], -1), point),
    ]


@pytest.mark.parametrize("index", range(4))
def test_gradcheck(index: int) -> None:
    """Away from kinks; the box and its bounds included."""
    generator = torch.Generator().manual_seed(0)
    normal, point = torch.randn(2, 12, 3, generator=generator, dtype=torch.float64)
    offset = torch.randn(12, generator=generator, dtype=torch.float64)
    inputs = [x.clone().requires_grad_() for x in (normal, offset, point)]
    counts = functions(*inputs)[index].counts()
    assert counts["ACTIVE"] >= 3 and counts["INACTIVE"] >= 1
    assert torch.autograd.gradcheck(lambda *x: functions(*x)[index].point, inputs)
    assert torch.autograd.gradcheck(lambda *x: functions(*x)[index].multiplier, inputs)


def test_gradcheck_of_bounds_and_of_the_margin() -> None:
    generator = torch.Generator().manual_seed(1)
    normal, point, low, high = torch.randn(4, 20, 3, generator=generator, dtype=torch.float64)
    offset = torch.randn(20, generator=generator, dtype=torch.float64)
    low, high = (-low.abs() - 0.1).requires_grad_(), (high.abs() + 0.1).requires_grad_()
    halfspace = HalfSpace(normal, offset)
    assert min(project_box(halfspace, point, low, high).counts()[name] for name in ("ACTIVE", "INFEASIBLE")) > 0
    assert torch.autograd.gradcheck(lambda a, b: project_box(halfspace, point, a, b).point, (low, high))
    std = torch.rand(20, 3, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s: project(halfspace.tightened(s, 0.9), point).point, (std,))


def test_gradcheck_at_a_zero_component_of_the_normal() -> None:
    """The coordinate does not move, but its derivative is -lambda, and lambda depends on it: as without a box."""
    generator = torch.Generator().manual_seed(2)
    normal, point = torch.randn(2, 20, 3, generator=generator, dtype=torch.float64)
    normal[:, 0] = 0.0
    offset = torch.randn(20, generator=generator, dtype=torch.float64)
    stuck = project_box(HalfSpace(normal, offset), point, -1.0, 0.8).status == Status.INFEASIBLE
    normal, point, offset = normal[~stuck].requires_grad_(), point[~stuck], offset[~stuck]
    counts = project_box(HalfSpace(normal, offset), point, -1.0, 0.8).counts()
    assert counts["ACTIVE"] >= 5
    for index in range(4):
        assert torch.autograd.gradcheck(lambda x, i=index: functions(x, offset, point)[i].point, (normal,))


@given(SEED, st.integers(0, 3))
def test_gradients_are_finite_differences(seed: int, index: int) -> None:
    """Where the status and a small neighbourhood are smooth, the two one-sided differences agree with autograd."""
    generator = torch.Generator().manual_seed(seed % 2**31)
    normal, point = torch.randn(2, 1, 3, generator=generator, dtype=torch.float64)
    offset = torch.randn(1, generator=generator, dtype=torch.float64)
    direction = torch.randn(3, generator=generator, dtype=torch.float64)
    weight = torch.randn(3, generator=generator, dtype=torch.float64)
    moving = point.clone().requires_grad_()
    value = (functions(normal, offset, moving)[index].point * weight).sum()
    slope = float((torch.autograd.grad(value, moving)[0] * direction).sum())
    step, value = 1e-6, float(value.detach())
    left, right = (
        float((functions(normal, offset, point + s * direction)[index].point * weight).sum()) for s in (-step, step)
    )
    one, other = (value - left) / step, (right - value) / step
    if abs(one - other) < 1e-3 * (1 + abs(one)):  # no kink between
        assert slope == pytest.approx((one + other) / 2, abs=1e-3 * (1 + abs(one)))
    else:
        assert min(one, other) - 1e-3 * (1 + abs(one)) <= slope <= max(one, other) + 1e-3 * (1 + abs(one))


def test_gradients_stay_finite_where_nothing_can_be_done() -> None:
    inf = float("inf")
    normal = torch.tensor(
        [[0.0, 0.0], [0.0, 0.0], [1.0, 1.0], [0.0, 1.0], [1e-30, 0.0], [1.0, 2.0]], requires_grad=True
    )
    offset = torch.tensor([-1.0, inf, -9.0, -0.5, -1.0, inf], requires_grad=True)
    point = torch.tensor([[0.3, 0.4]] * 6, requires_grad=True)
    halfspace = HalfSpace(normal, offset)
    several = project_all(torch.stack([normal, -normal], -2), torch.stack([offset, offset], -1), point)
    results = [project(halfspace, point), project_curved(halfspace, point, 2.0), several]
    for result in [*results, project_box(halfspace, point, -1.0, 1.0), project_box(halfspace, point, -inf, 1.0)]:
        for gradient in torch.autograd.grad(result.point.sum(), (normal, offset, point), retain_graph=True):
            assert torch.isfinite(gradient).all()


# Batches, dtypes, devices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("batch", "point_batch"), [((), ()), ((5,), ()), ((), (5,)), ((2, 1), (1, 3)), ((0,), (0,)), ((2, 0), (1, 1))]
)
@pytest.mark.parametrize("n_actions", [1, 3])
def test_batches_broadcast(
    dtype: torch.dtype, batch: tuple[int, ...], point_batch: tuple[int, ...], n_actions: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(*batch, n_actions, generator=generator, dtype=dtype)
    offset = torch.randn(batch, generator=generator, dtype=dtype) - 0.5
    point = torch.randn(*point_batch, n_actions, generator=generator, dtype=dtype)
    shape = torch.broadcast_shapes(batch, point_batch)
    together = functions(normal, offset, point)
    for index, result in enumerate(together):
        assert result.point.shape == (*shape, n_actions) and result.point.dtype == dtype
        assert result.status.shape == shape == result.is_feasible.shape
        assert result.multiplier.shape == (*shape, *((3,) if index == 3 else ()))
        assert sum(result.counts().values()) == result.status.numel()
        flat_normal, flat_point = (
            normal.expand(*shape, -1).reshape(-1, n_actions),
            point.expand(*shape, -1).reshape(-1, n_actions),
        )
        for k, row in enumerate(offset.expand(shape).reshape(-1)):
            alone = functions(flat_normal[k], row, flat_point[k])[index]
            torch.testing.assert_close(alone.point, result.point.reshape(-1, n_actions)[k])
            assert alone.status == result.status.reshape(-1)[k]


def test_float32_is_as_good_as_its_digits() -> None:
    normal, offset, point, low, high = tensors(*box_instances(4, N_INSTANCES, 4))
    fine = project_box(HalfSpace(normal, offset), point, low, high)
    coarse = project_box(HalfSpace(normal.float(), offset.float()), point.float(), low.float(), high.float())
    same = fine.status == coarse.status
    assert (~same).sum() <= 1  # only a tie within rounding may fall on the other side
    # The free normal's norm divides the rounding error of the slack.
    norm = normal.abs().where(normal != 0, torch.inf).amin(-1, keepdim=True)
    assert ((fine.point - coarse.point).abs() <= 1e-5 * (1 + point.abs().amax(-1, keepdim=True)) * (1 + 1 / norm))[
        same
    ].all()


def test_nothing_waits_for_the_device() -> None:
    """Meta tensors have no data: reading a value on the host, as .item() or a Python `if` does, raises there."""
    with torch.device("meta"):
        normal, offset, point, std = torch.empty(7, 3), torch.empty(7), torch.empty(7, 3), torch.empty(7, 3)
    for result in functions(normal, offset, point):
        assert result.point.shape == (7, 3) and result.point.is_meta and result.is_feasible.is_meta
    halfspace = HalfSpace.around(point, normal, offset).tightened(std, 0.9)
    assert all(x.is_meta for x in (*halfspace.greedy_action(point), HalfSpace.everything(point).slack(point)))
    with pytest.raises((NotImplementedError, RuntimeError)):
        project(halfspace, point).counts()
