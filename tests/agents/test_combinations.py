"""Every task x algorithm x safety method x limit trains without a number that is not one."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from bvf_tutorial.agents import CONSTRAINTS, PRESETS, ActorCriticConfig, make_trainer

LIMITS = {  # of the same task: nothing may cost, the published limit or one that binds, and one that never binds
    "grid": (0.0, 20.0, 1e4),
    "grid_conflict": (0.0, 20.0, 1e4),
    "circle": (0.0, 10.0, 1e4),
    "gather": (0.0, 0.4, 1e4),
    "gather_binding": (0.0, 0.4, 1e4),
    "cheetah": (0.0, 50.0, 1e4),
}
GRID = [
    (task, algorithm, method)
    for task in LIMITS
    for algorithm in (("sarsa",) if task.startswith("grid") else ("a2c", "ppo"))
    for method in CONSTRAINTS
]
FAST = {
    ("grid", "sarsa", "safeguarded"),
    ("grid", "sarsa", "predictive"),
    ("circle", "a2c", "backward"),
    ("circle", "ppo", "target"),
    ("gather", "ppo", "lyapunov"),
    ("gather_binding", "ppo", "backward_weight"),
    ("cheetah", "a2c", "safeguarded"),
}


def check_training(task: str, algorithm: str, method: str, limit: float, n_updates: int) -> None:
    base = PRESETS[f"{task}-{algorithm}-{method}"]
    small = {"n_steps": 8, "actor_hidden": (16, 16), "critic_hidden": (16, 16), "minibatches": 1, "epochs": 2}
    if isinstance(base.algorithm, ActorCriticConfig):
        if algorithm == "a2c":
            small["epochs"] = 1
        one = replace(base.algorithm, **small)
    else:
        one = replace(base.algorithm, hidden=(16,), epsilon_steps=100)
    options = {**base.environment.options, "cost_limit": limit, "horizon": 13}  # episodes end in every rollout or two
    config = replace(
        base, environment=replace(base.environment, options=options), algorithm=one, n_envs=3, n_runs=2,
        n_env_steps=n_updates * 3 * one.n_steps, log_every=10**9, evaluate_every=1, n_evaluation_episodes=2,
    )  # fmt: skip
    trainer = make_trainer(config)
    assert trainer.env.cost_limit == limit
    rows = []
    while not trainer.is_finished:
        rows += trainer.advance()
    assert trainer.done == config.n_env_steps
    for name, value in trainer.learner.network.state_dict().items():
        assert torch.isfinite(value).all(), name
    assert not torch.isnan(trainer.learner.multiplier.value).any()
    assert (trainer.learner.multiplier.value >= 0).all()
    assert len(rows) == 2
    for row in rows:
        for key in ("EpRet", "EpCost", "EpLen", "ViolationRate", "SampledEpRet", "GreedyEpCost"):
            assert math.isfinite(row[key]), key
    if limit > 1e3:  # a limit that never binds costs nothing; the fixed price of a penalty does not look at it
        assert all(row["ViolationRate"] == 0 for row in rows)
        if method not in ("penalty", "unconstrained"):
            assert (trainer.learner.multiplier.value == 0).all()


@pytest.mark.parametrize(("task", "algorithm", "method"), sorted(FAST))
def test_some_combinations_train_without_nan(task: str, algorithm: str, method: str) -> None:
    check_training(task, algorithm, method, LIMITS[task][1], 8)


@pytest.mark.parametrize("method", ["backward", "pid", "backward_weight"])
def test_a_limit_of_0_and_one_that_never_binds_on_the_smallest_task(method: str) -> None:
    for limit in (0.0, 1e4):
        check_training("gather", "a2c", method, limit, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("task", "algorithm", "method"), GRID)
def test_every_combination_trains_without_nan(task: str, algorithm: str, method: str) -> None:
    """100 updates each, limits of 0, binding and slack."""
    for limit in LIMITS[task]:
        check_training(task, algorithm, method, limit, 100)
