"""PPO, backward GAE, target networks and the price of cost (chapter 15)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Multiplier, MultiplierState, backward_lambda_returns, lambda_returns
from bvf_tutorial.agents.multipliers import predicted_multiplier, updated_multiplier
from bvf_tutorial.halfspace import HalfSpace, Status, project, project_box
from tests.strategies import SEED, killed_chains

UNIT = st.floats(0, 1)


def surrogate(ratio: Tensor, advantage: Tensor | float, clip: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)


def numbers(*value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


# The clipped surrogate.


@pytest.mark.claim("prop-clipped-surrogate")
@given(st.floats(0.01, 10), st.floats(-5, 5), st.floats(0.01, 0.99))
def test_clipped_surrogate_is_a_lower_bound(ratio: float, advantage: float, clip: float) -> None:
    got = surrogate(numbers(ratio), advantage, clip).item()
    assert got <= ratio * advantage + 1e-12
    is_cut = (advantage > 0 and ratio > 1 + clip) or (advantage < 0 and ratio < 1 - clip)
    if not is_cut:
        assert got == ratio * advantage
    elif abs(advantage) > 1e-6 and min(abs(ratio - 1 - clip), abs(ratio - 1 + clip)) > 1e-6:
        assert got < ratio * advantage


@pytest.mark.claim("prop-clipped-surrogate")
@given(st.floats(-2, 2), st.floats(-3, 3), st.floats(-5, 5))
def test_clipped_surrogate_starts_as_the_policy_gradient(mean: float, action: float, advantage: float) -> None:
    parameter = numbers(mean).requires_grad_()
    score = -0.5 * (action - parameter) ** 2
    (policy_gradient,) = torch.autograd.grad((score * advantage).sum(), parameter, retain_graph=True)
    loss = surrogate((score - score.detach()).exp(), advantage, 0.2).sum()
    (gradient,) = torch.autograd.grad(loss, parameter)
    assert torch.allclose(gradient, policy_gradient, atol=1e-12)


@pytest.mark.claim("prop-clipped-surrogate")
@pytest.mark.parametrize("most", [10.0, 90.0, 1e4])
@pytest.mark.parametrize("clip", [0.1, 0.2, 0.6])
def test_clipped_surrogate_does_not_bound_the_ratio(clip: float, most: float) -> None:
    """Two samples share a parameter: the objective rises up to theta = z, and the first ratio is M there."""
    z = math.sqrt(2 * math.log(most))
    scale = (1 - math.sqrt(1 - 2 * math.log(1 + clip))) / z
    x, action = numbers(1.0, scale), numbers(z, 1.0)
    theta = torch.linspace(0, z, 2001, dtype=torch.float64)
    ratio = (theta[:, None] * x * action - (theta[:, None] * x) ** 2 / 2).exp()
    objective = surrogate(ratio, 1.0, clip).mean(dim=1)
    assert (objective.diff() > 0).all()  # nothing stops the ascent before theta = z
    assert objective[-1] == pytest.approx(1 + clip, rel=1e-12)  # where every sample is at its largest value
    assert ratio[-1, 0] == pytest.approx(most, rel=1e-12)


# Backward GAE.


@pytest.mark.claim("prop-lambda-contraction")
@given(killed_chains(), UNIT, UNIT, SEED)
def test_lambda_contraction_holds(chain: tb.Chain, gamma: float, lambda_: float, seed: int) -> None:
    kernel, law = tb.time_reversal(chain).transition, tb.stationary_distribution(chain)
    identity, (v, w, cost) = np.eye(chain.n_states), np.random.default_rng(seed).normal(size=(3, chain.n_states))

    def operator(value: np.ndarray) -> np.ndarray:
        return value + np.linalg.solve(identity - gamma * lambda_ * kernel, cost + gamma * kernel @ value - value)

    K = gamma * (1 - lambda_) * kernel @ np.linalg.inv(identity - gamma * lambda_ * kernel)  # noqa: N806
    np.testing.assert_allclose(operator(v) - operator(w), K @ (v - w), atol=1e-8)
    root = np.sqrt(law)
    radius, nu = max(abs(np.linalg.eigvals(kernel))), np.linalg.norm(root[:, None] * kernel / root, 2)
    assert nu <= 1 + 1e-9
    truth = gamma * (1 - lambda_) * radius / (1 - gamma * lambda_ * radius)
    assert max(abs(np.linalg.eigvals(K))) == pytest.approx(truth, abs=1e-6)
    if gamma * lambda_ * nu < 1 - 1e-9:
        bound = gamma * (1 - lambda_) * nu / (1 - gamma * lambda_ * nu)
        assert np.linalg.norm(root[:, None] * K / root, 2) <= bound * (1 + 1e-7) + 1e-9
    fixed = np.linalg.solve(identity - gamma * kernel, cost)
    np.testing.assert_allclose(operator(fixed), fixed, atol=1e-7)


@pytest.mark.claim("prop-lambda-contraction")
def test_lambda_contraction_needs_the_radius_where_the_norm_is_one() -> None:
    """A corridor of three states: the norm is 1, so no contraction, and three rounds are exact."""
    chain = tb.Chain.killed(np.diag([1.0, 1.0], 1), np.eye(3)[0])
    kernel, law = tb.time_reversal(chain).transition, tb.stationary_distribution(chain)
    root = np.sqrt(law)
    assert np.linalg.norm(root[:, None] * kernel / root, 2) == pytest.approx(1)
    K = 0.5 * kernel @ np.linalg.inv(np.eye(3) - 0.5 * kernel)  # noqa: N806
    assert np.abs(np.linalg.matrix_power(K, 2)).max() > 0.2
    np.testing.assert_array_equal(np.linalg.matrix_power(K, 3), 0)


def carried(value: list[Tensor], cost: Tensor, lambda_: float, gamma: float, start: float = 0.0) -> Tensor:
    """Targets of the last of several rollouts; rollout i reads the estimates ``value[i]`` of the states before its own.

    ``start`` is the discount at the stream's first state: 0 where an episode begins, gamma where it is cut open there.
    """
    n, before = len(cost) // len(value), None
    discount = torch.full((len(cost),), gamma).double()
    discount[0] = start
    for i, estimate in enumerate(value):
        part = slice(i * n, (i + 1) * n)
        target = backward_lambda_returns(cost[part], discount[part], estimate[part], lambda_, before)
        before = target[-1]
    return target


def staleness(delta: float, gamma: float, lambda_: float, n: int) -> np.ndarray:
    b = gamma * lambda_
    return delta * gamma * (1 - lambda_) * b ** np.arange(1, n + 1) / ((1 - b) * (1 - b**n))


@pytest.mark.claim("prop-stale-carry")
@given(st.integers(1, 6), st.integers(1, 8), st.floats(0.1, 1), st.floats(0, 0.95), SEED)
def test_stale_carry_holds(n: int, n_rollouts: int, gamma: float, lambda_: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    cost = torch.as_tensor(draw.uniform(0, 3, n * n_rollouts))
    change = torch.as_tensor(draw.uniform(-0.1, 0.1, (n_rollouts, n * n_rollouts)))
    value = list(torch.as_tensor(draw.normal(size=n * n_rollouts)) + change.cumsum(0))
    fresh = carried([value[-1]] * n_rollouts, cost, lambda_, gamma)
    gap = (carried(value, cost, lambda_, gamma) - fresh).abs().numpy()
    assert (gap <= staleness(0.1, gamma, lambda_, n) + 1e-9).all()


@pytest.mark.claim("prop-stale-carry")
@pytest.mark.parametrize(("n", "gamma", "lambda_"), [(1, 1.0, 0.5), (5, 1.0, 0.8), (4, 0.9, 0.7)])
def test_stale_carry_is_attained(n: int, gamma: float, lambda_: float) -> None:
    value = [torch.full((n * 60,), 0.1 * i).double() for i in range(60)]
    cost = torch.zeros(n * 60).double()
    gap = carried([value[-1]] * 60, cost, lambda_, gamma) - carried(value, cost, lambda_, gamma)
    np.testing.assert_allclose(gap, staleness(0.1, gamma, lambda_, n), rtol=1e-6)


@pytest.mark.claim("prop-stale-carry")
def test_stale_carry_needs_a_stream_that_begins_with_an_episode() -> None:
    """A stream that is cut open bootstraps there with the whole weight, gamma, and not with its share of 1 - lambda."""
    value, cost = [torch.zeros(2).double(), torch.full((2,), 0.1).double()], torch.zeros(2).double()
    for start, weight in ((0.5, 0.5), (0.0, 0.0)):
        gap = carried([value[-1]] * 2, cost, 0.875, 0.5, start) - carried(value, cost, 0.875, 0.5, start)
        assert float(gap) == pytest.approx(0.1 * 0.875 * 0.5 * weight)
        assert (float(gap) <= staleness(0.1, 0.5, 0.875, 1).item()) == (start == 0.0)


@pytest.mark.claim("prop-stale-carry")
def test_stale_carry_is_nothing_where_the_episode_began() -> None:
    cost, discount = numbers(1, 2, 0), numbers(1, 0, 1)  # the second state is a start
    old, new = (backward_lambda_returns(cost, discount, numbers(5, 5, 5), 0.5, before=numbers(b)[0]) for b in (7, 70))
    assert old[0] != new[0]
    assert torch.equal(old[1:], new[1:])


@pytest.mark.claim("prop-stale-carry")
def test_carrying_needs_the_backward_direction() -> None:
    """Two streams that agree up to now: equal backward targets, different forward ones."""
    left, right, discount = numbers(1, 2, 0, 0), numbers(1, 2, 0, 9), numbers(1, 1, 1, 0)
    ahead = [lambda_returns(cost, discount, numbers(3, 3, 3, 3), 0.9) for cost in (left, right)]
    behind = [backward_lambda_returns(cost, discount.flip(0), numbers(3, 3, 3, 3), 0.9) for cost in (left, right)]
    assert (ahead[0][:3] != ahead[1][:3]).all()
    assert torch.equal(behind[0][:3], behind[1][:3])


# Target networks and baselines.


@pytest.mark.claim("prop-kappa-step")
@given(st.integers(1, 4), UNIT, st.booleans(), SEED)
def test_kappa_step_holds(n: int, kappa: float, has_box: bool, seed: int) -> None:
    draw = np.random.default_rng(seed)
    new, old, normal = (torch.as_tensor(each) for each in draw.uniform(-1, 1, (3, n)))
    assume(normal.norm() > 0.05)
    slack = torch.as_tensor(draw.uniform(0, 1))
    halfspace, mixed = HalfSpace.around(old, normal, slack), torch.lerp(new, old, kappa)
    point = (project_box(halfspace, mixed, -1.0, 1.0) if has_box else project(halfspace, mixed)).point
    moved, wanted = (point - old).norm(), (new - old).norm()
    assert moved <= (1 - kappa) * wanted + 1e-9
    if not has_box:
        rise = min(slack.item(), (1 - kappa) * (normal @ (new - old)).item())
        assert (normal @ (point - old)).item() == pytest.approx(rise, abs=1e-9)
    # Two Gaussians of one deviation differ by 2 Phi(distance / (2 sigma)) - 1 in total variation.
    sigma = draw.uniform(0.05, 1)
    variation = 2 * torch.special.ndtr(moved / (2 * sigma)) - 1
    assert variation <= (1 - kappa) * wanted / (2 * sigma) + 1e-9


@pytest.mark.claim("prop-kappa-step")
@pytest.mark.parametrize("kappa", [0.0, 0.6, 1.0])
def test_kappa_step_needs_a_feasible_target(kappa: float) -> None:
    """The target is over the limit by 1: whatever kappa is, the mean moves by at least 1 / |g| = 0.2."""
    new, old, normal = numbers(0.3, 0.2), numbers(0.1, 0.2), numbers(3.0, 4.0)
    halfspace = HalfSpace.around(old, normal, numbers(-1.0)[0])
    step = project(halfspace, torch.lerp(new, old, kappa))
    moved = (step.point - old).norm()
    assert step.status == Status.ACTIVE
    assert moved >= 0.2 - 1e-12
    assert moved > (1 - kappa) * (new - old).norm()


@pytest.mark.claim("prop-costliest-baseline")
@given(st.floats(-3, 3), st.integers(1, 6), SEED)
def test_costliest_baseline_is_idle_with_slack(slack: float, n: int, seed: int) -> None:
    assume(slack == 0 or abs(slack) > 1e-9)  # rounding
    cost_q = torch.as_tensor(np.random.default_rng(seed).uniform(0, 5, n))
    admitted = HalfSpace(cost_q, slack + cost_q.max()).feasible_actions()
    assert bool(admitted.all()) == (slack >= 0)
    gradient = cost_q + 0.1
    multiplier = max(-slack, 0.0) / (gradient @ gradient)
    assert bool((multiplier * gradient == 0).all()) == (slack >= 0)


@pytest.mark.claim("prop-costliest-baseline")
@pytest.mark.parametrize("n", [1, 10])
def test_costliest_baseline_admits_every_cost(n: int) -> None:
    """repeated_risk: from the free policy, one step by the costliest action costs n, by the baseline's action d0."""
    cmdp = tb.repeated_risk(n, 0.5)
    now = tb.evaluate(cmdp, tb.least_cost_policy(cmdp))
    costliest = tb.linear_step(now.q, now.cost_q, 0.5 / n + now.cost_q.max(axis=1)).policy
    assert tb.evaluate_policy(cmdp, costliest)[1] == pytest.approx(n)
    relative = tb.lyapunov_step(now, n).policy
    assert tb.evaluate_policy(cmdp, relative)[1] == pytest.approx(0.5)


# The price of cost.


def excesses(alpha: float, beta: float, start: float, price: Callable[[float], float], n: int) -> np.ndarray:
    """Play e' = e + (alpha - beta l) / (1 + l)."""
    found = [start]
    for _ in range(n):
        multiplier = price(found[-1])
        found.append(
            found[-1] - beta if math.isinf(multiplier) else found[-1] + (alpha - beta * multiplier) / (1 + multiplier)
        )
    return np.array(found)


def library_price(gains: Multiplier) -> Callable[[float], float]:
    """The package's rule, with memory; limit 0 and scale 1, so that the cost is the excess."""
    state, yes = MultiplierState.started(gains, 1, torch.device("cpu")), torch.tensor([True])

    def price(excess: float) -> float:
        nonlocal state
        state = updated_multiplier(gains, state, numbers(excess), yes, 0.0, 1.0)
        return state.value.item()

    return price


@pytest.mark.claim("prop-bang-bang")
@given(st.floats(0.01, 1), st.floats(0.01, 1), st.floats(-3, 3))
def test_bang_bang_holds(alpha: float, beta: float, start: float) -> None:
    found = excesses(alpha, beta, start, library_price(Multiplier("recovery")), 1000)
    inside = (found > -beta - 1e-9) & (found <= alpha + 1e-9)
    first = int(inside.argmax())
    assert inside[first:].all()
    share = (found[first:-1] > 0).mean()
    # The bounded left side of the proof: n ((1 - p) alpha - p beta) is at most alpha + beta.
    assert abs(share - alpha / (alpha + beta)) <= 1 / (len(found) - 1 - first) + 1e-9


@pytest.mark.claim("prop-bang-bang")
def test_bang_bang_needs_a_switch() -> None:
    """With a price that rests, the share over the limit is not alpha / (alpha + beta): the excess tends to 0."""
    found = excesses(0.3, 0.3, 0.5, library_price(Multiplier("pid", proportional=4.0, integral=0.5)), 300)
    assert abs(found[-1]) < 1e-6


def loop_matrix(gain: float, proportional: float, integral: float) -> np.ndarray:
    return np.array([[1 - gain * (proportional + integral), -gain], [integral, 1.0]])


@pytest.mark.claim("prop-price-loop")
@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0, 30), st.floats(0, 30))
def test_price_loop_is_stable_where_said(alpha: float, beta: float, proportional: float, integral: float) -> None:
    gain = beta**2 / (alpha + beta)
    radius = max(abs(np.linalg.eigvals(loop_matrix(gain, proportional, integral))))
    size = gain * (2 * proportional + integral)
    assume(abs(size - 4) > 1e-3 and min(proportional, integral) > 1e-2)
    assert (radius < 1) == (size < 4)


@pytest.mark.claim("prop-price-loop")
@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0.1, 20), st.floats(0.1, 3))
def test_price_loop_linearises_the_packages_rule(
    alpha: float, beta: float, proportional: float, integral: float
) -> None:
    """One step of the model with the package's PID from a small deviation, against the matrix."""
    rest, gain, e, j = alpha / beta, beta**2 / (alpha + beta), 1e-6, 2e-6
    gains = Multiplier("pid", proportional=proportional, integral=integral, most=1e6)
    memory = MultiplierState(numbers(0.0), numbers(rest + j), numbers(0.0))
    new = updated_multiplier(gains, memory, numbers(e), torch.tensor([True]), 0.0, 1.0)
    price = new.value.item()
    after = np.array([e + (alpha - beta * price) / (1 + price), new.integral.item() - rest])
    np.testing.assert_allclose(after, loop_matrix(gain, proportional, integral) @ [e, j], atol=1e-8)


@pytest.mark.claim("prop-price-loop")
@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0.01, 3.99))
def test_price_loop_circles_without_the_proportional_term(alpha: float, beta: float, size: float) -> None:
    gain = beta**2 / (alpha + beta)
    modulus = abs(np.linalg.eigvals(loop_matrix(gain, 0.0, size / gain)))
    np.testing.assert_allclose(modulus, 1.0, atol=1e-9)


@pytest.mark.claim("prop-price-loop")
@pytest.mark.parametrize(("proportional", "is_settling"), [(4.0, True), (10.0, True), (16.0, False), (0.0, False)])
def test_price_loop_settles_or_does_not(proportional: float, is_settling: bool) -> None:
    gains = Multiplier("pid", proportional=proportional, integral=0.5, most=1e6)
    found = excesses(0.3, 0.3, 0.01, library_price(gains), 2000)
    gain = 0.3**2 / 0.6
    assert is_settling == (proportional > 0 and gain * (2 * proportional + 0.5) < 4)
    assert (np.abs(found[-50:]).max() < 1e-6) == is_settling


@pytest.mark.claim("prop-price-loop")
@given(st.floats(0.05, 1), st.floats(0.05, 1), st.floats(0.1, 50), st.floats(-1e-3, 1e-3))
def test_prediction_divides_the_gain(alpha: float, beta: float, prediction: float, deviation: float) -> None:
    """l = l0 + k x with x = (alpha - beta l) / (1 + l), by bisection, against -G / (1 + k G) times the deviation."""
    gain, rest = beta**2 / (alpha + beta), alpha / beta
    gains = Multiplier("pid", prediction=prediction, most=1e6)
    low, high = -beta, alpha
    for _ in range(100):
        x = (low + high) / 2
        price = predicted_multiplier(gains, numbers(rest + deviation), numbers(x), 1.0).item()
        low, high = (x, high) if x < (alpha - beta * price) / (1 + price) else (low, x)
    assert x == pytest.approx(-gain / (1 + prediction * gain) * deviation, abs=5 * deviation**2 + 1e-9)
