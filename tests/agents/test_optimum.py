"""Tiny constrained problems whose best policy is known: the methods that should find it do, and the others fail as told.

Runs are stacked and every one must succeed, so that no seed is chosen.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import CONSTRAINTS, ActorCriticConfig, Evaluation, SarsaConfig, Trainer
from tests.agents.probes import Bandit, TableTask, shown, trained, trainer_of, two_gates

PPO = ActorCriticConfig(
    n_steps=4, epochs=4, minibatches=2, actor_hidden=(8,), critic_hidden=(16, 16), learning_rate=1e-2,
    critic_learning_rate=1e-2, final_learning_rate=0.02, gamma=1.0, entropy_coef=0.0, cost_scale=1.0,
    is_reward_standardised=False, log_std=-1.5,
)  # fmt: skip
A2C = replace(PPO, epochs=1, minibatches=1)
GATES = SarsaConfig(
    n_steps=3, hidden=(32,), learning_rate=1e-2, cost_learning_rate=1e-2, gamma=1.0, cost_gamma=1.0, reward_scale=1.0,
    cost_scale=1.0, epsilon=(1.0, 0.02), epsilon_steps=2_500,
)  # fmt: skip


def of_bandit(algorithm: ActorCriticConfig, method: str, limit: float) -> tuple[Trainer, np.ndarray]:
    """Return the trainer at its end and its deterministic decisions, one a run."""
    constraint = replace(CONSTRAINTS[method], cost_limit_margin=0.0)
    # After 300 updates the layer's three runs stand at .08 from the limit or .12, by the processor; after 600 at .03.
    n_updates = 120 if algorithm is PPO else 600 if constraint.is_projecting else 300
    trainer = trained(
        trainer_of(Bandit(cost_limit=limit), algorithm, constraint, n_updates, n_envs=20, n_runs=3, n_evaluation=500)
    )
    step = shown(torch.tensor([[1.0, 0.0]]), n_runs=3)
    action, _ = trainer.learner.decide(step, torch.zeros(3, 1), torch.full((3, 1, 1), 0.5), True)
    return trainer, action[:, 0, 0].numpy()


METHODS = ("safeguarded", "lyapunov", "pid", "predictive")
CASES = [(name, method, limit) for name in ("a2c", "ppo") for method in METHODS for limit in (0.25, 0.75)]
FAST = {("a2c", "safeguarded", 0.25), ("a2c", "lyapunov", 0.75), ("a2c", "predictive", 0.25)}


@pytest.mark.parametrize(
    ("algorithm", "method", "limit"),
    [each if each in FAST else pytest.param(*each, marks=pytest.mark.slow) for each in CASES],
)
def test_the_bandit_stops_at_the_limit(algorithm: str, method: str, limit: float) -> None:
    """A layer confines the mean, to 2 d0 - 1. A price knows only what sampled episodes cost, d0; then the return is best
    too, 2 d0 - 1, whatever mean and noise, clipped at the box, give it. The limits lie below and above the first cost.
    """
    trainer, action = of_bandit({"a2c": A2C, "ppo": PPO}[algorithm], method, limit)
    if CONSTRAINTS[method].is_projecting:
        np.testing.assert_allclose(action, 2 * limit - 1, atol=0.1)
        return
    result = trainer.evaluator(trainer.learner, False)
    np.testing.assert_allclose(result.cost.mean(dim=1), limit, atol=0.05)
    np.testing.assert_allclose(result.gain.mean(dim=1), 2 * limit - 1, atol=0.1)


@pytest.mark.slow
def test_without_a_method_the_bandit_earns_all_it_can() -> None:
    trainer, action = of_bandit(A2C, "unconstrained", 0.25)
    assert (action > 0.95).all()
    assert (trainer.totals.episode_cost > 0.9).all()


@pytest.mark.slow
def test_the_layer_alone_holds_what_starts_feasible_and_loses_what_does_not() -> None:
    """From a first cost of 1/2 the limit 3/4 is kept. Under 1/4 the first estimates admit no action, the layer lets every
    proposal through, and nothing ever calls back: it ends as if there were no limit.
    """
    _, action = of_bandit(A2C, "backward_alone", 0.75)
    assert ((action > 0.3) & (action < 0.55)).all()
    trainer, action = of_bandit(A2C, "backward_alone", 0.25)
    assert (action > 0.9).any()
    assert (trainer.totals.episode_cost > 0.25).any()


PLANS = {"unconstrained": (3, 2), "backward_alone": (2, 1), "backward": (2, 1), "safeguarded": (2, 1)}


@pytest.mark.parametrize(
    "method",
    ["backward_alone", *(pytest.param(each, marks=pytest.mark.slow) for each in PLANS if each != "backward_alone")],
)
def test_two_gates(method: str) -> None:
    """The backward value leaves the whole limit to the one gate that is worth it."""
    result = of_gates(method)
    assert (result.gain[:, 0].tolist(), result.cost[:, 0].tolist()) == tuple([each] * 5 for each in PLANS[method])


@pytest.mark.slow
def test_two_gates_under_lyapunov_are_within_the_limit() -> None:
    """It shares 1.5 among the decisions, so that what it takes depends on the baseline; never both gates."""
    assert (of_gates("lyapunov").cost <= 1.5).all()


def of_gates(method: str) -> Evaluation:
    """Return the deterministic episodes of five runs."""
    task = TableTask(cmdp=two_gates(), cost_limit=1.5)
    trainer = trained(trainer_of(task, GATES, CONSTRAINTS[method], 300, n_envs=10, n_runs=5))
    return trainer.evaluator(trainer.learner, True)


def test_the_best_plans_are_those_of_the_linear_program() -> None:
    """Deterministic plans by hand; the program may mix, and mixes the second gate alone with both."""
    assert tb.evaluate_policy(two_gates(), tb.optimal_policy(two_gates().with_cost_limit(1.0)).policy) == pytest.approx(
        (2, 1)
    )
    assert tb.optimal_policy(two_gates()).value == pytest.approx(2.5)
