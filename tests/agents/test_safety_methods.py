"""Allowances, half-spaces and multiplier rules on hand values and on the cases that broke other people's code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bvf_tutorial.agents import CONSTRAINTS, MULTIPLIER_RULES, STATE_RULES, Constraint, Multiplier, MultiplierState
from bvf_tutorial.agents.constraints import Situation, admitted, chosen_action, corrected_mean, slack_weight
from bvf_tutorial.agents.multipliers import cost_share, predicted_multiplier, updated_multiplier
from bvf_tutorial.halfspace import HalfSpace, Status
from tests.strategies import SEED

CPU = torch.device("cpu")


def tensor(*value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


SITUATION = Situation(
    cost=tensor(1, 0, 3),
    backward_value=tensor(4, 9, 3),
    baseline_cost=tensor(2, 1, 5),
    start_slack=tensor(6, 6, -6),
    n_decisions=tensor(3, 3, 3),
    limit=8.0,
)


@pytest.mark.parametrize(
    ("rule", "allowance"),
    [
        ("none", [np.inf] * 3),
        ("backward", [5, -1, 8]),  # 8 + 1 - 4, 8 + 0 - 9, 8 + 3 - 3
        ("safeguarded", [5, 1, 8]),  # not less than the baseline's 2, 1, 5
        ("lyapunov", [4, 3, 3]),  # the baseline's 2, 1, 5 and a third of the slack at the start
        ("forward", [8, 8, 8]),
    ],
)
def test_allowances_by_hand(rule: str, allowance: list[float]) -> None:
    assert STATE_RULES[rule].allowance(SITUATION).tolist() == allowance


@pytest.mark.parametrize("rule", STATE_RULES)
def test_a_rule_says_what_it_reads(rule: str) -> None:
    """What is not declared as needed must not change the allowance; what is declared must."""
    one = STATE_RULES[rule]
    for key, is_declared in (("backward_value", one.needs_backward), ("baseline_cost", one.is_relative)):
        spoilt = replace(SITUATION, **{key: getattr(SITUATION, key) + 100})
        is_same = torch.equal(one.allowance(SITUATION), one.allowance(spoilt))
        assert is_same != is_declared, key


def test_a_start_state_has_the_whole_limit_and_a_spent_limit_leaves_none() -> None:
    """Vb = d at a start, so b = d0; what lies between counts the present cost exactly once."""
    start = replace(SITUATION, backward_value=SITUATION.cost)
    assert STATE_RULES["backward"].allowance(start).tolist() == [8, 8, 8]
    # Walking over costs 1, 0, 3: the allowance falls by what was paid before, never by the present cost.
    walk = replace(SITUATION, backward_value=tensor(1, 1, 4))
    assert STATE_RULES["backward"].allowance(walk).tolist() == [8, 7, 7]


# -- discrete actions ---------------------------------------------------------------------------------------------------


@pytest.mark.field("mask")
def test_the_mask_is_a_comparison() -> None:
    """Scores below any penalty: only action 0 is admitted; a product with (Q + 1000) would choose the other."""
    score, cost = tensor(-1500, -1200), tensor(0, 5)
    action, is_empty = chosen_action(HalfSpace(cost, tensor(1)[0]), score, -cost)
    assert action.item() == 0
    assert not is_empty


@pytest.mark.field("empty-set")
@pytest.mark.parametrize(("fallback", "expected"), [(torch.inf, 2), (0.0, 1)])
def test_a_limit_below_every_cost_is_counted_and_falls_back(fallback: float, expected: int) -> None:
    score, cost = tensor(1, 9, 2), tensor(5, 6, 4)
    second = torch.lerp(score, -cost, cost_share(tensor(fallback)))
    action, is_empty = chosen_action(HalfSpace(cost, tensor(3)[0]), score, second)
    assert action.item() == expected
    assert is_empty


def test_equality_is_admitted() -> None:
    action, is_empty = chosen_action(HalfSpace(tensor(3, 2), tensor(3)[0]), tensor(9, 1), tensor(0, 0))
    assert (action.item(), is_empty.item()) == (0, False)


# -- continuous actions -------------------------------------------------------------------------------------------------


def test_the_target_layer_in_closed_form() -> None:
    """mu_pi = (1, 0), baseline 0, g = (1, 1), slack .2, kappa .25: multiplier .275, mean (.475, -.275)."""
    anchor, mean = tensor(0, 0)[None], tensor(1, 0)[None]
    halfspace = admitted(tensor(1.2), tensor(1.0), tensor(1, 1)[None], anchor)
    step = corrected_mean(halfspace, torch.lerp(mean, anchor, 0.25), 0.0)
    np.testing.assert_allclose(step.multiplier, [0.275], rtol=1e-12)
    np.testing.assert_allclose(step.point, [[0.475, -0.275]], rtol=1e-12)


def test_the_layer_on_hand_values_and_in_the_box() -> None:
    free = corrected_mean(
        admitted(tensor(0), tensor(1), tensor(3, 4)[None], tensor(0.5, -0.2)[None]), tensor(0.5, -0.2)[None], 0.0
    )
    np.testing.assert_allclose(free.point, [[0.38, -0.36]], rtol=1e-12)
    corner = tensor(0.9, 0.9)[None]
    boxed = corrected_mean(admitted(tensor(-0.5), tensor(0), tensor(-1, 0.5)[None], corner), corner, 0.0)
    np.testing.assert_allclose(boxed.point, [[1.0, 0.1]], rtol=1e-12)  # clipping afterwards would give (1, .7)


@pytest.mark.field("zero-gradient")
def test_zero_gradients_and_empty_sets_leave_the_proposal_and_say_so() -> None:
    """g = 0 with slack +1 and -1 in one batch, and a half-space that the box does not meet: never NaN, never a corner."""
    point = tensor(0.25, -0.5).expand(4, 2)
    gradient = torch.stack([tensor(0, 0), tensor(0, 0), tensor(1, 0), tensor(1e-4, 0)])
    step = corrected_mean(admitted(tensor(1, -1, -9, -1), tensor(0, 0, 0, 0), gradient, point), point, 1e-3)
    assert step.status.tolist() == [Status.INACTIVE, Status.ZERO_GRADIENT, Status.INFEASIBLE, Status.ZERO_GRADIENT]
    assert torch.equal(step.point, point)


@given(SEED)
def test_an_infinite_allowance_changes_nothing_and_has_clean_gradients(seed: int) -> None:
    """The warm-up: offsets are infinite, and training goes through the layer all the same."""
    generator = torch.Generator().manual_seed(seed)
    mean = (2 * torch.rand(5, 3, generator=generator) - 1).requires_grad_()
    gradient, cost = torch.randn(5, 3, generator=generator), torch.randn(5, generator=generator)
    halfspace = admitted(torch.full((5,), torch.inf), cost, gradient, mean.detach())
    step = corrected_mean(halfspace, mean, 1e-3)
    assert torch.equal(step.point, mean)
    step.point.square().sum().backward()
    assert torch.equal(mean.grad, 2 * mean.detach())


def test_the_weight_has_mean_one_over_the_samples_that_count() -> None:
    allowance, cost = torch.tensor([[5.0, 1, 3, 99]]), torch.tensor([[1.0, 4, 3, 0]])
    counts = torch.tensor([[1.0, 1, 1, 0]])
    weight = slack_weight(allowance, cost, 2.0, counts)
    share = 1 / (1 + np.exp(np.array([4.0, -3, 0]) / 2))
    np.testing.assert_allclose(weight[0, :3], share / share.mean(), rtol=1e-5)
    assert (weight[0, :3].mean() - 1).abs() < 1e-6
    assert weight[0, 1] > weight[0, 2] > weight[0, 0]  # less slack, more weight
    assert torch.isfinite(slack_weight(torch.full((1, 4), torch.inf), cost, 2.0, counts)).all()


# -- multipliers --------------------------------------------------------------------------------------------------------


def path(gains: Multiplier, episode_cost: list[float], limit: float, scale: float = 1.0) -> list[float]:
    """Return the prices after each of these updates."""
    state, value = MultiplierState.started(gains, 1, CPU), []
    for cost in episode_cost:
        state = updated_multiplier(gains, state, torch.tensor([cost]), torch.tensor([True]), limit, scale)
        value.append(state.value.item())
    return value


@pytest.mark.field("multiplier")
@pytest.mark.parametrize("rule", [each for each in MULTIPLIER_RULES if each != "fixed"])
def test_cost_0_under_limit_25_for_100_updates_is_price_0(rule: str) -> None:
    assert path(Multiplier(rule), [0.0] * 100, 25.0, 25.0) == [0.0] * 100


@pytest.mark.field("zero-limit")
@pytest.mark.parametrize("rule", MULTIPLIER_RULES)
def test_limit_0_and_cost_0_is_a_finite_price(rule: str) -> None:
    price = path(Multiplier(rule, fixed=0.5), [0.0] * 10, 0.0)
    assert price == [0.5 * (rule == "fixed")] * 10


@pytest.mark.field("multiplier")
def test_lagrangian_steps_are_proportional_to_the_violation() -> None:
    small, large = (path(Multiplier("lagrangian", rate=1e-3), [25 + excess], 25.0)[0] for excess in (1.0, 100.0))
    assert small == pytest.approx(1e-3)
    assert large / small == pytest.approx(100, rel=1e-5)


@given(st.lists(st.floats(0, 60), min_size=1, max_size=30), st.floats(0, 40), st.floats(0.5, 50))
def test_pid_against_a_plain_loop(cost: list[float], limit: float, scale: float) -> None:
    gains = Multiplier("pid", proportional=2.0, integral=0.3, derivative=0.7, most=5.0)
    integral, previous, expected = 0.0, 0.0, []
    for each in cost:
        error = (each - limit) / scale
        integral = min(max(integral + 0.3 * error, 0.0), 5.0)
        growth = max(error - previous, 0.0)
        expected.append(min(max(2.0 * error + integral + 0.7 * growth, 0.0), 5.0))
        previous = error
    np.testing.assert_allclose(path(gains, cost, limit, scale), expected, rtol=2e-4, atol=2e-4)


@given(st.lists(st.floats(0, 60), min_size=1, max_size=30), st.floats(0, 40))
def test_lagrangian_against_a_plain_loop(cost: list[float], limit: float) -> None:
    price, expected = 0.0, []
    for each in cost:
        price = min(max(price + 0.1 * (each - limit), 0.0), 7.0)
        expected.append(price)
    np.testing.assert_allclose(
        path(Multiplier("lagrangian", rate=0.1, most=7.0), cost, limit), expected, rtol=1e-4, atol=1e-4
    )


def test_recovery_jumps_between_nothing_and_everything() -> None:
    assert path(Multiplier("recovery"), [5, 6, 5, 4], 5.0) == [0, np.inf, 0, 0]  # at the limit is within it
    assert path(Multiplier("recovery", recovery=3.0), [6.0], 5.0) == [3.0]


@pytest.mark.parametrize(("rule", "first"), [("pid", 3.0), ("lagrangian", 3.0), ("fixed", 0.0), ("recovery", 0.0)])
def test_a_price_may_start_high(rule: str, first: float) -> None:
    """A rule with an integral starts from it; the price falls while episodes cost less than the limit."""
    gains = Multiplier(rule, initial=3.0, rate=0.5, proportional=0.0, integral=0.5)
    assert MultiplierState.started(gains, 1, CPU).value.item() == first
    if first:
        assert path(gains, [1.0, 1.0, 3.0], 2.0) == [2.5, 2.0, 2.5]
    with pytest.raises(ValueError, match="initial is -1"):
        replace(gains, initial=-1.0)


def test_a_run_without_news_keeps_its_memory() -> None:
    gains = Multiplier("pid")
    state = MultiplierState.started(gains, 2, CPU)
    news = torch.tensor([True, False])
    for _ in range(3):
        state = updated_multiplier(gains, state, torch.tensor([9.0, 9.0]), news, 1.0, 1.0)
    assert state.value[0] > 0
    assert [getattr(state, key)[1].item() for key in ("value", "integral", "excess")] == [0, 0, 0]


def test_an_infinite_price_descends_the_cost_alone_without_nan() -> None:
    price = torch.tensor([0.0, 1.0, 3.0, torch.inf])
    np.testing.assert_allclose(cost_share(price), [0, 0.5, 0.75, 1])
    advantage, cost = torch.full((4,), 7.0), torch.full((4,), 2.0)
    mixed = torch.lerp(advantage, -cost, cost_share(price))
    np.testing.assert_allclose(mixed, [7, (7 - 2) / 2, (7 - 6) / 4, -2])


def test_prediction_within_an_update() -> None:
    gains, price = Multiplier("pid", prediction=2.0, most=20.0), torch.tensor([3.0, 3.0, 3.0])
    got = predicted_multiplier(gains, price, torch.tensor([5.0, -50.0, 500.0]), 10.0)
    assert got.tolist() == [4.0, 0.0, 20.0]


# -- methods ------------------------------------------------------------------------------------------------------------


def test_named_methods_need_what_they_say() -> None:
    """A method without a state-wise rule or price has no cost critic, and a backward critic is no one else's."""
    assert not CONSTRAINTS["unconstrained"].needs_cost
    with_backward = {name for name, each in CONSTRAINTS.items() if each.needs_backward}
    assert with_backward == {"backward", "backward_alone", "safeguarded", "target", "backward_weight"}
    with_baseline = {name for name, each in CONSTRAINTS.items() if each.needs_baseline}
    assert with_baseline == {"safeguarded", "lyapunov", "target", "lyapunov_target"}
    assert not replace(CONSTRAINTS["backward"], is_past_known=True).needs_backward
    assert CONSTRAINTS["predictive"].limit(40.0) == 30.0


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"state_rule": "backwards"}, "state_rule is 'backwards'; choose one of none, backward"),
        ({"use": "clip"}, "use is 'clip'"),
        ({"cost_limit_margin": 1.0}, "cost_limit_margin is 1.0"),
        ({"target_mix": -0.1}, "target_mix is -0.1"),
        ({"warm_up": -1}, "warm_up is -1"),
        ({"min_gradient": float("nan")}, "min_gradient is nan"),
        ({"baseline_period": 0}, "baseline_period is 0"),
        ({"weight_width": 0.0}, "weight_width 0.0"),
        (
            {"state_rule": "backward", "use": "weight", "multiplier": Multiplier("recovery")},
            "no weight changes an infinite",
        ),
    ],
)
def test_constraints_refuse_bad_values(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named.replace("(", r"\(")):
        Constraint(**wrong)


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"rule": "dual"}, "rule is 'dual'"), ({"rate": -1.0}, "rate is -1.0"), ({"most": float("nan")}, "most is nan")],
)
def test_multipliers_refuse_bad_values(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Multiplier(**wrong)
