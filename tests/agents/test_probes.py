"""Every learner under every safety method finds the values of problems in which actions change nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bvf_tutorial.agents import ALGORITHMS, CONSTRAINTS, ActorCritic, Learner, Sarsa
from bvf_tutorial.agents.algorithms import Algorithm
from tests.agents.probes import (
    ZOO,
    ZOO_BACKWARD_VALUE,
    ZOO_COST_VALUE,
    ZOO_GAMMA,
    ZOO_VALUE,
    TableTask,
    shown,
    trainer_of,
    zoo,
)

_SMALL = {"actor_hidden": (16,), "critic_hidden": (32, 32), "gamma": ZOO_GAMMA, "cost_gamma": ZOO_GAMMA, "n_steps": 4}
_STEADY = {"is_reward_standardised": False, "entropy_coef": 0.0, "final_learning_rate": 0.02, "max_gradient_norm": 10.0}
LEARNERS: dict[str, Algorithm] = {
    "sarsa": replace(
        ALGORITHMS["sarsa"], hidden=(32,), gamma=ZOO_GAMMA, cost_gamma=ZOO_GAMMA, n_steps=4, learning_rate=1e-2,
        cost_learning_rate=1e-2, reward_scale=1.0, cost_scale=0.2, epsilon=(1.0, 0.1), epsilon_steps=20_000,
        final_learning_rate=0.02,
    ),
    "a2c": replace(ALGORITHMS["a2c"], **_SMALL, **_STEADY, critic_learning_rate=2e-2, cost_scale=0.2),
    "ppo": replace(ALGORITHMS["ppo"], **{**_SMALL, **_STEADY, "n_steps": 8}, critic_learning_rate=2e-2, cost_scale=0.2, epochs=3, minibatches=2),
}  # fmt: skip


def estimates(learner: Learner) -> dict[str, np.ndarray]:
    """Return what the learner's critics say of the states of the zoo, the cost for several actions, units of the task."""
    step = shown(torch.eye(10)[:9])
    if isinstance(learner, Sarsa):
        found = {key: value[0, :9] for key, value in learner._shown.items()}
        return {key: (value[:, :1] if key == "backward" else value).detach().numpy() for key, value in found.items()}
    assert isinstance(learner, ActorCritic)
    found = {"q": learner.network["value"](step.observation)[0]}
    if "cost_value" in learner.network:
        found["cost_q"] = learner.network["cost_value"](step.observation)[0] / learner.config.cost_scale
    if "cost_q" in learner.network:
        action = [torch.full((1, 9, 1), each) for each in (-0.5, 0.0, 0.5)]
        found["cost_q"] = torch.stack([learner.cost_q(step.observation, each)[0][0] for each in action], dim=1)
    if "backward" in learner.network:
        found["backward"] = learner.backward_value(step.observation)[0][:, None]
    return {key: value.detach().numpy() for key, value in found.items()}


N_UPDATES = {"sarsa": 300, "a2c": 300, "ppo": 120}
FAST = ("unconstrained", "safeguarded", "backward_weight")
METHODS = [each if each in FAST else pytest.param(each, marks=pytest.mark.slow) for each in CONSTRAINTS]


@pytest.mark.parametrize("constraint", METHODS)
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_every_learner_under_every_method_finds_the_values(algorithm: str, constraint: str) -> None:
    """Constant reward; cost only; two steps; what is seen decides; cut at the horizon, where value goes on.

    Everything but the order of the chains is certain, so the tolerance is that of the fit, under a hundredth of the
    largest value, 9; the chains come in random order, so all rates fall.
    """
    task = TableTask(cmdp=zoo(), horizon=3, cost_limit=4.0, is_discrete=algorithm == "sarsa")
    n_updates = N_UPDATES[algorithm]
    trainer = trainer_of(
        task, LEARNERS[algorithm], CONSTRAINTS[constraint], n_updates, n_envs=12, time_limit="truncate"
    )
    for _ in range(n_updates):
        trainer.advance()
    found, method = estimates(trainer.learner), CONSTRAINTS[constraint]
    truth = {"q": ZOO_VALUE}
    if method.needs_cost:
        truth["cost_q"] = ZOO_COST_VALUE
    if method.needs_backward:
        truth["backward"] = ZOO_BACKWARD_VALUE
    assert found.keys() == truth.keys()
    for key, value in truth.items():
        off = np.abs(found[key][: len(value)] - value[:, None]).max(axis=1)
        assert off.max() < 0.06, f"{key}: off by {off.round(3).tolist()} at the states of {ZOO}"
