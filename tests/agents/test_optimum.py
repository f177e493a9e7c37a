"""Tiny constrained problems whose best policy is known: the methods that should find it do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import ALGORITHMS, CONSTRAINTS, ActorCritic, ActorCriticConfig, Constraint, Sarsa, SarsaConfig
from tests.agents.probes import Bandit, TableTask, shown, trained, trainer_of, two_gates

BANDIT = ActorCriticConfig(
    n_steps=4, epochs=4, minibatches=2, actor_hidden=(8,), critic_hidden=(16, 16), learning_rate=1e-2,
    critic_learning_rate=1e-2, final_learning_rate=0.02, gamma=1.0, entropy_coef=0.0, cost_scale=1.0,
    is_reward_standardised=False, log_std=-1.5,
)  # fmt: skip
GATES = SarsaConfig(
    n_steps=3, hidden=(32,), learning_rate=1e-2, cost_learning_rate=1e-2, gamma=1.0, cost_gamma=1.0, reward_scale=1.0,
    cost_scale=1.0, epsilon=(1.0, 0.02), epsilon_steps=2_500,
)  # fmt: skip


@pytest.mark.parametrize("limit", [0.25, 0.75])
@pytest.mark.parametrize("method", ["unconstrained", "backward_alone", "safeguarded", "lyapunov", "predictive", "pid"])
@pytest.mark.parametrize("algorithm", ["a2c", "ppo"])
def test_bandit(algorithm: str, method: str, limit: float) -> None:
    changes = {"epochs": 1, "minibatches": 1} if algorithm == "a2c" else {}
    constraint = replace(CONSTRAINTS[method], cost_limit_margin=0.0)
    trainer = trained(trainer_of(Bandit(cost_limit=limit), replace(BANDIT, **changes), constraint, 400 if changes else 150, n_envs=20))
    learner = trainer.learner
    step = shown(torch.tensor([[1.0, 0.0]]))
    action, _ = learner.decide(step, torch.zeros(1, 1), torch.full((1, 1, 1), 0.5), True)
    print(algorithm, method, limit, "target", 2 * limit - 1, "got", action.item(), "std", learner.log_std.exp().item(), "price", learner.multiplier.value.item(), "EpCost", trainer.totals.episode_cost.item())


@pytest.mark.parametrize("method", ["unconstrained", "backward_alone", "backward", "safeguarded", "lyapunov", "forward"])
@pytest.mark.parametrize("seed", range(3))
def test_gates(method: str, seed: int) -> None:
    constraint = Constraint("forward") if method == "forward" else CONSTRAINTS[method]
    trainer = trained(trainer_of(TableTask(cmdp=two_gates(), cost_limit=1.0), GATES, constraint, 400, n_envs=10, n_runs=1, seed=seed))
    result = trainer.evaluator(trainer.learner, True)
    print(method, seed, result.gain[0, 0].item(), result.cost[0, 0].item(), trainer.learner._shown.get("cost_q"), trainer.learner._shown.get("backward"))
