"""The labelled statements of chapter 14, A2C with a safety layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Trainer, backward_lambda_returns, make_trainer, preset
from bvf_tutorial.agents.constraints import corrected_mean
from bvf_tutorial.agents.train import Row
from bvf_tutorial.halfspace import HalfSpace, Status, project_box
from tests.strategies import SEED

torch.set_num_threads(1)
UNIT = st.floats(0.0, 1.0)


# ---------------------------------------------------------------------------------------------- streamed targets


@pytest.mark.claim("prop-carry")
@given(st.integers(2, 40), UNIT, SEED)
def test_cuts_that_look_at_the_past_do_not_change_streamed_targets(n_steps: int, gamma: float, seed: int) -> None:
    """The next cut is chosen from what the stretch before showed, its last target included."""
    draw = np.random.default_rng(seed)
    cost, value, mix = (torch.as_tensor(draw.random(n_steps)) for _ in range(3))
    discount = gamma * torch.as_tensor(draw.random(n_steps) < 0.8).double()
    whole = backward_lambda_returns(cost, discount, value, mix)
    target, start, n_stretches = whole[:0], 0, 0
    while start < n_steps:
        seen = int(10 * (target[-1] + cost[:start].sum())) if start else 0
        stop = min(n_steps, start + 1 + seen % 7)
        part = slice(start, stop)
        before = {"before": target[-1]} if start else {}
        target = torch.cat(
            [target, backward_lambda_returns(cost[part], discount[part], value[part], mix[part], **before)]
        )
        start, n_stretches = stop, n_stretches + 1
    assert torch.equal(target, whole)
    assert n_stretches > 1 or n_steps <= 7


@pytest.mark.claim("prop-carry")
@given(st.integers(1, 30), st.integers(1, 3), SEED)
def test_at_lambda_one_streamed_targets_are_the_costs_so_far(n_steps: int, n_worlds: int, seed: int) -> None:
    """Whatever the critic says: it is asked for values that are absurd."""
    draw = np.random.default_rng(seed)
    cost = torch.as_tensor(draw.integers(0, 5, (n_steps, n_worlds)).astype(float))
    is_first = torch.as_tensor(draw.random((n_steps, n_worlds)) < 0.3)
    is_first[0] = True
    absurd = torch.as_tensor(1e6 * draw.normal(size=(n_steps, n_worlds)))
    target = backward_lambda_returns(cost, (~is_first).double(), absurd, 1.0)
    running = torch.zeros(n_worlds, dtype=torch.float64)
    for t in range(n_steps):
        running = cost[t] + torch.where(is_first[t], 0.0, running)
        assert torch.equal(target[t], running)


@pytest.mark.claim("prop-carry")
def test_the_mean_streamed_target_is_the_backward_value() -> None:
    """chain4, 20,000 episodes as one stream, cut every 7 entries: means within 4.5 standard errors of the exact value."""
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    draw = np.random.default_rng(0)
    target_sum, square, count = np.zeros(4), np.zeros(4), np.zeros(4)
    step_law = np.concatenate([chain.transition, chain.termination[:, None]], axis=1).cumsum(axis=1)
    state, first = [], []
    for _ in range(20_000):
        here = int(np.searchsorted(chain.initial.cumsum(), draw.random(), side="right"))
        is_first = True
        while here < 4:
            state.append(here)
            first.append(is_first)
            is_first, here = False, int(np.searchsorted(step_law[here], draw.random(), side="right"))
    path, signal = np.array(state), torch.as_tensor(cost[state])
    link, before = torch.as_tensor(~np.array(first)).double(), signal[0]
    pieces = []
    for start in range(0, len(path), 7):
        part = slice(start, start + 7)
        pieces.append(backward_lambda_returns(signal[part], link[part], signal[part], 1.0, before))
        before = pieces[-1][-1]
    target = torch.cat(pieces).numpy()
    np.add.at(target_sum, path, target)
    np.add.at(square, path, target**2)
    np.add.at(count, path, 1.0)
    mean = target_sum / count
    # Visits of one episode are dependent: an episode's visits to a state count as one observation for the error.
    n_episodes = np.array([len(set(np.cumsum(first)[path == x])) for x in range(4)])
    error = np.sqrt((square / count - mean**2) / n_episodes)
    assert (np.abs(mean - tb.backward_value(chain, cost)) <= 4.5 * error + 1e-12).all()


def aligned_fixed_point(q: float, n: int) -> float:
    """Value that aligned segments of n steps learn of one state that survives with probability q, by iteration."""
    n_times = int(60 / -np.log(q)) + n
    t = torch.arange(n_times)
    weight = (1 - q) * torch.as_tensor(q, dtype=torch.float64) ** t
    one, mix = torch.ones(n_times, dtype=torch.float64), (t % n != 0).double()
    value = 0.0
    for _ in range(3000):
        new = float((weight * backward_lambda_returns(one, (t > 0).double(), value * one, mix)).sum())
        if abs(new - value) < 1e-13:
            break
        value = new
    return value


@pytest.mark.claim("prop-carry")
@pytest.mark.parametrize("q", [0.3, 0.5, 0.9])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_aligned_segments_learn_too_little(q: float, n: int) -> None:
    closed = (1 - q) / (1 - q**n) ** 2 * sum((j + 1) * q**j for j in range(n))
    assert aligned_fixed_point(q, n) == pytest.approx(closed, rel=1e-9)
    assert closed == pytest.approx(1 / (1 - q)) if n == 1 else closed < 0.999 / (1 - q)


@pytest.mark.claim("prop-carry")
def test_aligned_segments_may_also_learn_too_much() -> None:
    """chain4, exactly: segments of two steps that begin at even clocks lead above the truth at all states but the first.

    The mean target of a visit at an even clock > 0 is d + E[v(previous)], at an odd one d + E[target(previous)]; the law
    of (state, clock) and of its predecessor is pushed forward until nothing is left.
    """
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    truth, value = tb.backward_value(chain, cost), np.zeros(4)
    for _ in range(60):
        law, gathered = chain.initial, chain.initial * cost
        visits, total = law.copy(), gathered.copy()
        for t in range(1, 400):
            before = gathered if t % 2 else law * value
            law, before = law @ chain.transition, before @ chain.transition
            gathered = before + law * cost
            visits, total = visits + law, total + gathered
        value = total / visits
    assert value[0] == pytest.approx(truth[0], abs=1e-12)
    assert (value[1:] > truth[1:] + 0.5).all()


@pytest.mark.claim("prop-carry")
@pytest.mark.parametrize("n_steps", [7, 66])
def test_the_learner_streams(n_steps: int) -> None:
    """Targets at lambda 1 are the worlds' own counters though segments are shorter than episodes; restarted ones are not."""
    config = preset("circle-a2c-backward_alone", n_runs=2, n_envs=3)
    algorithm = replace(config.algorithm, n_steps=n_steps, backward_lambda=1.0)
    is_different = False
    for is_streamed in (True, False):
        trainer = make_trainer(replace(config, algorithm=replace(algorithm, is_streamed=is_streamed)))
        learner = trainer.learner
        for _ in range(140 // n_steps + 2):
            rollout = trainer.collect()
            past = rollout.all_of("past")
            target, realised = learner.past_targets(rollout, rollout.all_of("backward"), 1.0, is_streamed)
            assert torch.equal(realised, past[1:])
            if is_streamed:
                assert torch.equal(target, past[1:])
            else:
                is_different |= not torch.allclose(target, past[1:], atol=1e-2)
    assert is_different


# ---------------------------------------------------------------------------------------------- one epoch of PPO


@pytest.mark.claim("prop-one-epoch")
@given(st.integers(1, 8), st.floats(1e-3, 0.9), SEED)
def test_the_clipped_surrogate_has_the_policy_gradient_at_ratio_one(n_samples: int, clip: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    advantage = torch.randn(n_samples, generator=draw, dtype=torch.float64)
    action = torch.randn(n_samples, generator=draw, dtype=torch.float64)
    parameter = torch.randn(2, generator=draw, dtype=torch.float64).requires_grad_()

    def log_probability(parameter: Tensor) -> Tensor:
        return -0.5 * ((action - parameter[0]) * torch.exp(-parameter[1])) ** 2 - parameter[1]

    ratio = torch.exp(log_probability(parameter) - log_probability(parameter).detach())
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()
    score = (log_probability(parameter) * advantage).mean()
    got, want = (torch.autograd.grad(each, parameter)[0] for each in (surrogate, score))
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-14)


def trained(name: str, n_updates: int = 3, limit: float = 0.0, **changes: object) -> tuple[Trainer, list[Row]]:
    """Return a small trainer after some updates, and its metrics; a limit other than 0 overrides the learner's."""
    config = preset(name, n_runs=2, n_env_steps=10**6, log_every=1, evaluate_every=0)
    trainer = make_trainer(replace(config, algorithm=replace(config.algorithm, **changes)))
    trainer.learner.limit = limit or trainer.learner.limit
    return trainer, [row for _ in range(n_updates) for row in trainer.advance()]


def policy(trainer: Trainer) -> list[Tensor]:
    network = trainer.learner.network
    return [*network["actor"].parameters(), network.get_parameter("log_std")]


@pytest.mark.claim("prop-one-epoch")
def test_one_pass_does_not_notice_the_clip_and_two_passes_do() -> None:
    one, wide = (policy(trained("circle-a2c-backward_alone", clip=clip)[0]) for clip in (0.2, 1e9))
    assert all(torch.equal(left, right) for left, right in zip(one, wide, strict=True))
    one, wide = (policy(trained("circle-a2c-backward_alone", clip=clip, epochs=4)[0]) for clip in (0.02, 1e9))
    assert not all(torch.equal(left, right) for left, right in zip(one, wide, strict=True))


@pytest.mark.claim("prop-one-epoch")
def test_the_stored_half_space_gives_ratio_one_and_a_new_estimate_does_not() -> None:
    """The divergence is measured before the step, so that one pass must read 0, up to the rounding of float32."""
    trainer, rows = trained("gather_binding-a2c-backward_alone", n_updates=40)
    assert all(abs(row["Divergence"]) < 1e-6 for row in rows)
    for run in range(2):
        assert np.mean([row["CorrectedShare"] for row in rows[run::2]]) > 0.01
    # The critics of after the update, or another present cost, give other means: the ratio is no longer 1.
    learner, rollout = trainer.learner, trainer.collect()
    learner.update(rollout, 0.0)
    anchor, stored = rollout.decision["anchor"], HalfSpace(rollout.decision["normal"], rollout.decision["offset"])
    feature = rollout.decision["feature"]
    again = []
    for t in range(len(feature)):
        value, gradient = learner.cost_q(feature[t], anchor[t])
        allowance = learner.allowance(rollout.cost[t], learner.backward_value(feature[t]), value)
        again.append(corrected_mean(HalfSpace.around(anchor[t], gradient, allowance - value), anchor[t], 1e-3).point)
    acted = corrected_mean(stored, anchor, 1e-3).point
    assert (torch.stack(again) - acted).abs().max() > 1e-3
    late = trainer.collect()
    late.decision["offset"].add_(late.cost[1:] - late.cost[:-1])
    assert learner.update(late, 0.0)["Divergence"].abs().max() > 1e-6


# ---------------------------------------------------------------------------------------------- gradient through it


@pytest.mark.claim("prop-layer-gradient")
@given(st.integers(1, 4), SEED)
def test_the_score_through_the_layer_has_no_part_along_the_normal(n_actions: int, seed: int) -> None:
    """Random half-spaces; each case of the statement is checked where it occurs."""
    draw, shape = torch.Generator().manual_seed(seed), (512, n_actions)
    proposal, action = 1.8 * torch.rand(2, *shape, generator=draw, dtype=torch.float64) - 0.9
    normal = torch.randn(shape, generator=draw, dtype=torch.float64)
    halfspace = HalfSpace.around(proposal, normal, 2 * torch.randn(512, generator=draw, dtype=torch.float64))
    std = 0.1 + torch.rand(n_actions, generator=draw, dtype=torch.float64)
    halfspace = HalfSpace(halfspace.normal.detach(), halfspace.offset.detach())
    point = proposal.clone().requires_grad_()
    step = corrected_mean(halfspace, point, 0.0)
    score = -0.5 * (((action - step.point) / std) ** 2).sum()
    (gradient,) = torch.autograd.grad(score, point)
    direct = ((action - step.point) / std**2).detach()
    is_plain = (step.status == Status.INACTIVE) | (step.status == Status.INFEASIBLE)
    torch.testing.assert_close(gradient[is_plain], direct[is_plain])
    assert torch.equal(step.point[is_plain], proposal[is_plain])
    is_inside = (step.status == Status.ACTIVE) & (step.point.abs() < 1 - 1e-9).all(dim=1)
    unit = normal / normal.norm(dim=1, keepdim=True)
    tangent = direct - (direct * unit).sum(dim=1, keepdim=True) * unit
    torch.testing.assert_close(gradient[is_inside], tangent[is_inside], rtol=1e-9, atol=1e-9)
    assert is_plain.any()
    assert is_inside.any()


@pytest.mark.claim("prop-layer-gradient")
def test_a_layer_that_is_empty_everywhere_is_no_layer() -> None:
    """Bit for bit the unconstrained policy, though two more networks train beside it; a layer that acts differs."""
    free = policy(trained("circle-a2c-unconstrained", n_updates=6)[0])
    empty, rows = trained("circle-a2c-backward_alone", n_updates=6, limit=-1e6)
    assert len(rows) == 12
    assert {row["EmptyShare"] for row in rows} == {1.0}
    assert all(torch.equal(left, right) for left, right in zip(free, policy(empty), strict=True))
    acting, _ = trained("circle-a2c-backward_alone", n_updates=6)
    assert not all(torch.equal(left, right) for left, right in zip(free, policy(acting), strict=True))


# ---------------------------------------------------------------------------------------------- out of reach


@pytest.mark.claim("prop-out-of-reach")
@given(st.integers(1, 5), SEED)
def test_the_layer_is_empty_beyond_its_reach(n_actions: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    mean = 2 * torch.rand(200, n_actions, generator=draw, dtype=torch.float64) - 1
    normal = torch.randn(200, n_actions, generator=draw, dtype=torch.float64)
    slack = -2 * n_actions * torch.rand(200, generator=draw, dtype=torch.float64)
    reach = (normal.abs() * (1 + normal.sign() * mean)).sum(dim=1)
    status = project_box(HalfSpace.around(mean, normal, slack), mean, -1.0, 1.0).status
    is_clear = (slack + reach).abs() > 1e-9
    assert torch.equal((status == Status.INFEASIBLE)[is_clear], (-slack > reach)[is_clear])
    assert (-slack > reach)[is_clear].any()
    assert (-slack < reach)[is_clear].any()
    assert (reach <= 2 * normal.abs().sum(dim=1) + 1e-12).all()


@pytest.mark.claim("prop-out-of-reach")
@given(st.integers(1, 5), SEED)
def test_slacks_beyond_the_mean_reach_leave_some_state_empty(n_actions: int, seed: int) -> None:
    """Slacks scatter around a mean just beyond the mean reach: some state of positive weight is empty, always."""
    draw = torch.Generator().manual_seed(seed)
    mean = 2 * torch.rand(6, n_actions, generator=draw, dtype=torch.float64) - 1
    normal = torch.randn(6, n_actions, generator=draw, dtype=torch.float64)
    law = torch.rand(6, generator=draw, dtype=torch.float64)
    law = law / law.sum()
    cheapest = (normal * (-normal.sign() - mean)).sum(dim=1)  # least change of the cost over the box's corners
    slack = cheapest + torch.randn(6, generator=draw, dtype=torch.float64)
    slack = slack + law @ (cheapest - slack) - 1e-6
    assert law @ slack < law @ cheapest
    status = project_box(HalfSpace.around(mean, normal, slack), mean, -1.0, 1.0).status
    assert (status == Status.INFEASIBLE).any()


def clocked_problem(seed: int) -> tuple[float, list[np.ndarray], list[np.ndarray], list[np.ndarray]]:
    """Return J_D, the laws of x_t, what past and future less the present cost come to, and what one decision saves.

    A random CMDP and policy, five decisions, by dynamic programming on both sides.
    """
    draw = np.random.default_rng(seed)
    n_states, n_actions, horizon = 4, 3, 5
    kernel = draw.dirichlet(np.full(n_states, 0.5), (n_states, n_actions))
    policy = draw.dirichlet(np.ones(n_actions), n_states)
    cost = draw.exponential(size=n_states)
    chain = np.einsum("sa,sat->st", policy, kernel)
    law, gathered = [draw.dirichlet(np.ones(n_states))], []
    gathered.append(law[0] * cost)
    for _ in range(horizon):
        gathered.append((gathered[-1] @ chain) + (law[-1] @ chain) * cost)
        law.append(law[-1] @ chain)
    value, total, saving = cost, [], []
    for t in range(horizon, -1, -1):
        if t < horizon:
            cost_q = cost[:, None] + kernel @ value
            value = (policy * cost_q).sum(axis=1)
            saving.insert(0, value - cost_q.min(axis=1))
        total.insert(0, gathered[t] / law[t] + value - cost)
    return float(law[0] @ value), law, total, saving


@pytest.mark.claim("prop-out-of-reach")
@given(SEED, st.floats(0.0, 1.0))
def test_no_action_is_admitted_somewhere_if_the_excess_is_larger_than_the_mean_saving(seed: int, share: float) -> None:
    expected, law, total, saving = clocked_problem(seed)
    for t in range(len(saving)):
        assert law[t] @ total[t] == pytest.approx(expected, rel=1e-10)
        limit = share * (expected - law[t] @ saving[t]) - 1e-9  # J - d0 > mean saving
        is_empty = total[t] - saving[t] > limit
        assert law[t][is_empty].sum() > 0


@pytest.mark.claim("prop-out-of-reach")
def test_below_the_reach_no_state_need_be_empty() -> None:
    """The converse bound is attained in this sense: some problem over its limit has an admitted action everywhere."""
    is_found = False
    for seed in range(20):
        expected, _, total, saving = clocked_problem(seed)
        limit = max(float((total[t] - saving[t]).max()) for t in range(len(saving)))
        is_found |= limit < expected
    assert is_found
