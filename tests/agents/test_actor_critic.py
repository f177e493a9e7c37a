"""What PPO and A2C compute: the ratio, the minibatches, the gradient, the cost's slope in the action."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from bvf_tutorial.agents import CONSTRAINTS, ActorCritic, ActorCriticConfig, Constraint, Learner, Setting, Trainer
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.agents.estimators import mean_by_run
from bvf_tutorial.envs import PointCircle
from tests.agents.probes import Bandit, shown, trained, trainer_of

SMALL = ActorCriticConfig(n_steps=12, actor_hidden=(16, 16), critic_hidden=(16, 16))


def trainer(config: ActorCriticConfig, method: str, n_updates: int = 1, n_runs: int = 2) -> Trainer:
    return trainer_of(PointCircle(horizon=5, cost_limit=1.0), config, CONSTRAINTS[method], n_updates, 3, n_runs)


def learner_of(one: Trainer) -> ActorCritic:
    assert isinstance(one.learner, ActorCritic)
    return one.learner


def test_the_ratio_is_that_of_whole_actions() -> None:
    """Differences of log-probabilities are those of a normal law over all coordinates together."""
    learner = learner_of(trainer(SMALL, "unconstrained"))
    with torch.no_grad():
        learner.log_std.copy_(torch.tensor([[[-1.0, 0.5]], [[0.0, -2.0]]]))
    mean, action = (torch.randn(2, 7, 2, generator=torch.Generator().manual_seed(i)) for i in (0, 1))
    law = torch.distributions.Normal(mean, learner.log_std.exp())
    other = torch.distributions.Normal(torch.zeros_like(mean), learner.log_std.exp())
    truth = law.log_prob(action).sum(dim=-1) - other.log_prob(action).sum(dim=-1)
    got = learner._log_probability(mean, action) - learner._log_probability(torch.zeros_like(mean), action)
    torch.testing.assert_close(got, truth, rtol=1e-5, atol=1e-4)


def test_minibatches_are_without_replacement_and_the_runs_own() -> None:
    learner = learner_of(trainer(SMALL, "unconstrained"))
    order = [learner._permutation(37, epoch) for epoch in range(3)]
    for each in order:
        assert torch.equal(each.sort(dim=1).values, torch.arange(37).expand(2, 37))
    assert not torch.equal(order[0][0], order[0][1])
    assert not torch.equal(order[0], order[1])


@pytest.mark.parametrize("method", ["unconstrained", "safeguarded", "predictive", "backward_weight"])
def test_at_ratio_1_the_gradient_is_that_of_a2c(method: str) -> None:
    """The actor's first gradient is that of -E[A log pi], whatever the clip; hence A2C is one epoch of one minibatch."""
    config = replace(SMALL, epochs=1, minibatches=1, entropy_coef=0.0, max_gradient_norm=1e9, learning_rate=0.0)
    one = trainer(replace(config, critic_learning_rate=0.0), method)
    learner, rollout = learner_of(one), one.collect()
    data, _ = learner._prepared(rollout)
    divergence = learner._descend(data)
    clipped = [p.grad.clone() for p in (*learner.network["actor"].parameters(), learner.log_std)]
    assert (divergence.abs() < 1e-6).all()
    learner.optimiser.zero_grad(set_to_none=True)
    score = learner._log_probability(learner._policy_mean(data), data["action"])
    advantage = learner._advantage(data, torch.ones_like(score))
    (-mean_by_run(advantage * score, data["weight"])).sum().backward()
    for by_ratio, parameter in zip(clipped, (*learner.network["actor"].parameters(), learner.log_std), strict=True):
        assert by_ratio.abs().max() > 0
        torch.testing.assert_close(by_ratio, parameter.grad, rtol=1e-4, atol=1e-6)


def test_the_advantage_of_the_ignored_action_counts_nowhere() -> None:
    """The decision at an episode's last state is never executed: weight 0."""
    one = trainer(SMALL, "unconstrained")
    rollout = one.collect()
    data, _ = learner_of(one)._prepared(rollout)
    assert (~rollout.is_move).sum() > 0
    assert torch.equal(data["weight"].sum(dim=1), rollout.is_move.sum(dim=(0, 2)).float())


def check_slope(cls: type[ActorCritic]) -> None:
    """Require the cost critic's value and slope at a bandit's mean 0, the truth being (1 + u) / 2, of four runs."""
    config = replace(
        SMALL, n_steps=4, epochs=4, minibatches=2, learning_rate=0.0, critic_learning_rate=1e-2, cost_scale=1.0,
        log_std=-0.7, gamma=1.0, final_learning_rate=0.1, max_gradient_norm=10.0,
    )  # fmt: skip

    def make(algorithm: Algorithm, constraint: Constraint, setting: Setting) -> Learner:
        assert isinstance(algorithm, ActorCriticConfig)
        return cls(algorithm, constraint, setting)

    one = trainer_of(Bandit(), config, CONSTRAINTS["backward_alone"], 40, n_envs=40, n_runs=4, make=make)
    feature = shown(torch.tensor([[1.0, 0.0]]), n_runs=4).observation
    value, gradient = learner_of(trained(one)).cost_q(feature, torch.zeros(4, 1, 1))
    np.testing.assert_allclose(value, 0.5, atol=0.05)
    np.testing.assert_allclose(gradient, 0.5, atol=0.1)


class AtTheMean(ActorCritic):
    """Regresses Q_D at the policy's mean, as Algorithm 1 is printed: the slope in the action is then not identified."""

    def _descend(self, data: dict[str, Tensor]) -> Tensor:  # type: ignore[override]
        return super()._descend({**data, "action": self._policy_mean(data).detach()})


def test_the_cost_critic_knows_the_slope_in_the_action() -> None:
    check_slope(ActorCritic)
    with pytest.raises(AssertionError):
        check_slope(AtTheMean)


def test_the_layer_that_acts_is_the_layer_that_learns() -> None:
    """Before any step the mean that the loss sees is the mean that acted, half-space, mix and all."""
    one = trainer(SMALL, "target", 3)
    for _ in range(2):
        one.advance()
    rollout = one.collect()
    learner = learner_of(one)
    data, _ = learner._prepared(rollout)
    score = learner._log_probability(learner._policy_mean(data), data["action"])
    np.testing.assert_allclose(score.detach(), data["log_probability"], atol=1e-3)
    assert (rollout.decision["correction"] > 0).any()  # some means were corrected, or this says little
