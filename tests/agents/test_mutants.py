"""Wrong versions of the agents that must be caught: each is planted, and the claim that should notice has to fail.

Most are defects of the released code of the paper, or of Algorithm 1 as printed; the rest are easy to write.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from bvf_tutorial.agents import STATE_RULES, ActorCritic, EpisodeTotals, Learner, Rollout, Sarsa, Setting, StateRule
from bvf_tutorial.agents import actor_critic as actor_critic_file
from bvf_tutorial.agents import constraints as constraints_file
from bvf_tutorial.agents import learner as learner_file
from bvf_tutorial.agents.constraints import backward_allowance
from bvf_tutorial.agents.multipliers import MULTIPLIER_RULES
from bvf_tutorial.agents.returns import backward_lambda_returns
from bvf_tutorial.envs.noise import WorldNoise
from bvf_tutorial.halfspace import HalfSpace, Projection
from tests.agents import (
    test_actor_critic,
    test_exactness,
    test_fixed_policy,
    test_returns,
    test_rollout,
    test_safety_methods,
    test_sarsa,
)

Patch = pytest.MonkeyPatch
Plant = Callable[[Patch], None]
Claim = Callable[[], None]


def shifted_returns(patch: Patch) -> None:
    """The previous value read one place early, with wrap-around at the start."""

    def shifted(cost: Tensor, discount: Tensor, previous: Tensor, lambda_: Any, before: Tensor | None = None) -> Tensor:
        return backward_lambda_returns(cost, discount, previous.roll(1, 0), lambda_, before)

    patch.setattr(test_returns, "backward_lambda_returns", shifted)


def unreversed_returns(patch: Patch) -> None:
    patch.setattr(test_returns, "backward_lambda_returns", learner_file.lambda_returns)


def late_costs(patch: Patch) -> None:
    """The cost of the state that a move enters, in place of the one it leaves."""
    patch.setattr(Rollout, "cost_to_go", lambda self, gamma: self.cost[1:])


def cuts_that_terminate(patch: Patch) -> None:
    patch.setattr(Rollout, "discount", lambda self, gamma: gamma * (self.is_move & ~self.is_last[1:]))


def cuts_that_leak(patch: Patch) -> None:
    """The return of what comes after a cut flows into what came before it."""
    patch.setattr(Rollout, "mix", lambda self, lambda_: lambda_ * torch.ones_like(self.reward[1:]))


def past_beyond_the_start(patch: Patch) -> None:
    patch.setattr(Rollout, "backward_discount", lambda self, gamma: gamma * torch.ones_like(self.reward[1:]))


def totals_without_the_start(patch: Patch) -> None:
    """The start's own cost is not counted."""
    started = EpisodeTotals.started.__func__  # type: ignore[attr-defined]

    def without(cls: type[EpisodeTotals], first: Any) -> EpisodeTotals:
        return replace(started(cls, first), so_far=started(cls, first).so_far * torch.tensor([1.0, 0, 1]).view(3, 1, 1))

    patch.setattr(EpisodeTotals, "started", classmethod(without))


def rule(name: str, allowance: Callable[[Any], Tensor]) -> Plant:
    return lambda patch: patch.setitem(STATE_RULES, name, replace(STATE_RULES[name], allowance=allowance))


def reversed_recovery(patch: Patch) -> None:
    """Recovers while within the limit."""
    recover = MULTIPLIER_RULES["recovery"]
    patch.setitem(
        MULTIPLIER_RULES, "recovery", lambda gains, state, excess, scale: recover(gains, state, -excess, scale)
    )


def tanh_correction(patch: Patch) -> None:
    """The multiplier times the gradient squashed to the action bound: not a projection."""

    def squashed(halfspace: HalfSpace, proposal: Tensor, min_gradient: float) -> Projection:
        step = constraints_file.project_box(halfspace, proposal, -torch.inf, torch.inf)
        return replace(step, point=(proposal - torch.tanh(step.multiplier[..., None] * halfspace.normal)).clamp(-1, 1))

    patch.setattr(test_safety_methods, "corrected_mean", squashed)


def clipped_correction(patch: Patch) -> None:
    """Projected without the box, then clipped to it."""

    def clipped(halfspace: HalfSpace, proposal: Tensor, min_gradient: float) -> Projection:
        step = constraints_file.project_box(halfspace, proposal, -torch.inf, torch.inf)
        return replace(step, point=step.point.clamp(-1, 1))

    patch.setattr(test_safety_methods, "corrected_mean", clipped)


def masked_by_product(patch: Patch) -> None:
    def chosen(halfspace: HalfSpace, score: Tensor, fallback_score: Tensor) -> tuple[Tensor, Tensor]:
        mask = halfspace.feasible_actions()
        return ((score + 1000) * mask).argmax(dim=-1), ~mask.any(dim=-1)

    patch.setattr(test_safety_methods, "chosen_action", chosen)


def dearest_baseline(patch: Patch) -> None:
    """Lyapunov relative to the dearest action of the state."""
    decide = Sarsa.decide

    def wrong(self: Sarsa, *args: Any, **named: Any) -> Any:
        self._baseline = self._shown["cost_q"].argmax(dim=2)
        return decide(self, *args, **named)

    patch.setattr(Sarsa, "decide", wrong)


def one_coin(patch: Patch) -> None:
    """All worlds explore when the first one does."""
    decide = Sarsa.decide

    def wrong(self: Sarsa, step: Any, past: Tensor, noise: Tensor, is_deterministic: bool = False) -> Any:
        coin = noise[:, :1, :1].expand_as(noise[..., :1])
        return decide(self, step, past, torch.cat([coin, noise[..., 1:]], dim=-1), is_deterministic)

    patch.setattr(Sarsa, "decide", wrong)


def one_stream(patch: Patch) -> None:
    """All worlds of a run draw the same numbers."""
    seeded = WorldNoise.seeded.__func__  # type: ignore[attr-defined]
    patch.setattr(
        WorldNoise, "seeded", classmethod(lambda cls, seed, index, device: seeded(cls, seed, [0] * len(seed), device))
    )


def overwritten_seed(patch: Patch) -> None:
    made = Setting.of.__func__  # type: ignore[attr-defined]
    patch.setattr(Setting, "of", classmethod(lambda cls, env, seed: made(cls, env, 0)))
    patch.setattr(test_exactness.Trainer, "__init__", _with_seed_0(test_exactness.Trainer.__init__))


def _with_seed_0(init: Callable[..., None]) -> Callable[..., None]:
    return lambda self, env, learner, seed, *rest, **named: init(self, env, learner, 0, *rest, **named)


def ratio_per_dimension(patch: Patch) -> None:
    log_probability = ActorCritic._log_probability

    def wrong(self: ActorCritic, mean: Tensor, action: Tensor) -> Tensor:
        return log_probability(self, mean, action) / mean.shape[-1]

    patch.setattr(ActorCritic, "_log_probability", wrong)


def with_replacement(patch: Patch) -> None:
    def wrong(self: ActorCritic, n_samples: int, epoch: int) -> Tensor:
        return (self._shuffle.start(epoch, n_samples, 3) * n_samples).to(torch.int64)

    patch.setattr(ActorCritic, "_permutation", wrong)


def other_layer_in_the_loss(patch: Patch) -> None:
    """The loss projects with half a unit of cost less than the layer that acted."""
    made = actor_critic_file.HalfSpace
    patch.setattr(actor_critic_file, "HalfSpace", lambda normal, offset: made(normal, offset - 0.5))


def idle_optimiser(patch: Patch) -> None:
    """The trap of an optimiser that neither moves nor complains."""
    patch.setattr(torch.optim.Adam, "step", lambda self: None)


def known_starts(patch: Patch) -> None:
    """A rollout that begins at a start bootstraps from its known cost: right for that visit, wrong for the mean."""
    past_targets = Learner.past_targets

    def wrong(self: Learner, rollout: Rollout, value: Tensor, lambda_: float, is_streamed: bool) -> Any:
        first = torch.where(rollout.is_first[0], rollout.cost[0], value[0])
        return past_targets(self, rollout, torch.cat([first[None], value[1:]]), lambda_, is_streamed)

    patch.setattr(Learner, "past_targets", wrong)


def gradient_norm_of_all_runs(patch: Patch) -> None:
    from tests.agents import test_stacked

    def wrong(parameters: Any, most: float) -> Tensor:
        norm = torch.nn.utils.clip_grad_norm_(parameters, most)
        return norm.expand(2)

    patch.setattr(test_stacked, "clip_by_run", wrong)


def clipping() -> None:
    from tests.agents import test_stacked

    test_stacked.test_clipping_by_definition()


def allowances(name: str, value: list[float]) -> Claim:
    return lambda: test_safety_methods.test_allowances_by_hand(name, value)


def fixed_point() -> None:
    test_fixed_policy.test_the_exact_backward_value_is_a_fixed_point("random", 0.0, 1.0, True, 1)


ENDS = test_returns.test_a_truncated_and_a_terminated_episode_in_one_rollout
MUTANTS: dict[str, tuple[Plant, Claim]] = {
    "backward returns off by one": (shifted_returns, test_returns.test_values_of_the_backward_gae_example),
    "backward returns read forward": (unreversed_returns, test_returns.test_values_of_the_backward_gae_example),
    "costs one state late": (late_costs, ENDS),
    "a cut terminates": (cuts_that_terminate, ENDS),
    "a cut leaks": (cuts_that_leak, ENDS),
    "the past goes on beyond a start": (past_beyond_the_start, ENDS),
    "the start is free": (totals_without_the_start, test_rollout.test_a_start_that_costs_and_a_limit_that_is_met_exactly),
    "the present cost counted twice": (
        rule("backward", lambda s: s.limit - s.backward_value), allowances("backward", [5, -1, 8])
    ),
    "the baseline's cost forgotten": (rule("safeguarded", backward_allowance), allowances("safeguarded", [5, 1, 8])),
    "the slack not shared": (rule("lyapunov", lambda s: s.baseline_cost + s.start_slack), allowances("lyapunov", [4, 3, 3])),
    "recovery the wrong way round": (
        reversed_recovery, test_safety_methods.test_recovery_jumps_between_nothing_and_everything
    ),
    "a correction through tanh": (tanh_correction, test_safety_methods.test_the_layer_on_hand_values_and_in_the_box),
    "a correction clipped afterwards": (
        clipped_correction, test_safety_methods.test_the_layer_on_hand_values_and_in_the_box
    ),
    "a mask by product": (masked_by_product, test_safety_methods.test_the_mask_is_a_comparison),
    "Lyapunov next to the dearest action": (
        dearest_baseline, test_sarsa.test_lyapunov_is_relative_to_the_baseline_action
    ),
    "one coin for all worlds": (one_coin, test_exactness.test_exploration_is_a_coin_per_world_and_uniform),
    "one noise for all worlds": (one_stream, test_exactness.test_exploration_is_a_coin_per_world_and_uniform),
    "the seed overwritten": (
        overwritten_seed, lambda: test_exactness.test_same_seed_same_numbers_and_other_seed_other_numbers("sarsa")
    ),
    "a ratio per dimension": (ratio_per_dimension, test_actor_critic.test_the_ratio_is_that_of_whole_actions),
    "minibatches with replacement": (
        with_replacement, test_actor_critic.test_minibatches_are_without_replacement_and_the_runs_own
    ),
    "another layer in the loss": (other_layer_in_the_loss, test_actor_critic.test_the_layer_that_acts_is_the_layer_that_learns),
    "an optimiser that does nothing": (
        idle_optimiser, lambda: test_exactness.test_every_parameter_moves_and_stays_finite("sarsa", "unconstrained")
    ),
    "known starts in the backward value": (known_starts, fixed_point),
    "one gradient norm for all runs": (gradient_norm_of_all_runs, clipping),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_killed(name: str, monkeypatch: Patch) -> None:
    """The claim holds (its own test says so), and fails with the defect in place, by an assertion and not by a crash."""
    plant, claim = MUTANTS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        claim()


def test_planting_changes_nothing_by_itself(monkeypatch: Patch) -> None:
    """A rule replaced by itself passes the claim that kills its mutants."""
    rule("backward", STATE_RULES["backward"].allowance)(monkeypatch)
    allowances("backward", [5, -1, 8])()
    assert isinstance(STATE_RULES["backward"], StateRule)
    assert backward_allowance(test_safety_methods.SITUATION).isfinite().all()
