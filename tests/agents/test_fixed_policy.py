"""Critics of a policy that never changes, against the exact values of ``tabular``: confidence statements, no tolerances.

Runs are independent, so the spread over runs is the error of their mean; Student's law says how large it may be, here
with probability 1 - 1e-6 for each number.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Constraint, Learner, Sarsa, SarsaConfig, Setting, Trainer
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.agents.learner import Decision
from bvf_tutorial.agents.returns import lambda_returns
from bvf_tutorial.envs import TimeStep
from tests.agents.probes import TableTask, trainer_of

BACKWARD = Constraint("backward")


def model(name: str) -> tuple[tb.CMDP, np.ndarray]:
    """Return a CMDP and a policy: every state, the start too, is visited early and late in episodes."""
    if name == "chain4":
        return tb.chain_cmdp(tb.chain4(), tb.CHAIN4_COST), np.ones((4, 1))
    cmdp = tb.random_cmdp(np.random.default_rng(2), 5, 2, termination=0.25)
    return cmdp, np.random.default_rng(3).dirichlet(np.ones(2), 5)


class FixedPolicy(Sarsa):
    """SARSA's critics under a given policy [S, A]; the state that stands for the end takes action 0."""

    policy: np.ndarray

    def decide(
        self, step: TimeStep, past: Tensor, noise: Tensor, is_deterministic: bool = False
    ) -> tuple[Tensor, Decision]:
        code = self._code(step.observation)
        bounds = torch.tensor(np.vstack([self.policy, np.eye(self.policy.shape[1])[0]])).cumsum(1)[:, :-1]
        action = (noise[..., :1] >= bounds[code]).sum(dim=-1)
        return action, {"code": code, "action": action, "greedy": action}


def fixed(name: str, config: SarsaConfig, n_updates: int, n_runs: int, n_envs: int) -> Trainer:
    cmdp, policy = model(name)

    def make(algorithm: Algorithm, constraint: Constraint, setting: Setting) -> Learner:
        assert isinstance(algorithm, SarsaConfig)
        learner = FixedPolicy(algorithm, constraint, setting)
        learner.policy = policy
        return learner

    return trainer_of(TableTask(cmdp=cmdp, horizon=10**6), config, BACKWARD, n_updates, n_envs, n_runs, make=make)


def exact_backward(name: str, gamma: float) -> np.ndarray:
    """Return the backward values, and last that of the free state after the end: the discounted mean whole cost."""
    cmdp, policy = model(name)
    chain = tb.policy_chain(cmdp, policy)
    value, visits = tb.backward_value(chain, cmdp.cost, gamma), tb.expected_visits(chain)
    return np.append(value, gamma * (visits * chain.termination) @ value)


def deviation(value: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Return how far the mean over runs [R, ...] is off, in half-widths of its confidence interval."""
    error = value.std(axis=0, ddof=1) / np.sqrt(len(value))
    return (value.mean(axis=0) - exact) / (stats.t.isf(5e-7, len(value) - 1) * np.maximum(error, 1e-6))


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize(("lambda_", "gamma"), [(0.0, 1.0), (0.7, 0.9), (1.0, 1.0)])
@pytest.mark.parametrize("name", ["chain4", "random"])
def test_the_exact_backward_value_is_a_fixed_point(
    name: str, lambda_: float, gamma: float, is_streamed: bool, n_steps: int
) -> None:
    """Given the exact value, the mean target at every state is that value: no error that learning could average away."""
    config = SarsaConfig(n_steps=n_steps, hidden=(4,), cost_gamma=gamma)
    trainer = fixed(name, config, 10**6, n_runs=30, n_envs=20)
    exact = exact_backward(name, gamma)
    table, learner = torch.tensor(exact, dtype=torch.float32), trainer.learner
    total, count = torch.zeros(30, len(exact)), torch.zeros(30, len(exact))
    for update in range(240 // n_steps):
        rollout = trainer.collect()
        code = rollout.all_of("code")
        target, _ = learner.past_targets(rollout, table[code], lambda_, is_streamed)
        if update * n_steps >= 60:  # all streams start together; wait until they have lost step
            for t in range(n_steps):
                total.scatter_add_(1, code[t + 1], target[t])
                count.scatter_add_(1, code[t + 1], torch.ones_like(target[t]))
    assert (count > 30).all()
    assert np.abs(deviation((total / count).numpy(), exact)).max() < 1


@pytest.mark.parametrize("gamma", [pytest.param(1.0, marks=pytest.mark.slow), 0.9])
def test_learned_backward_values_and_cost_q_agree_with_the_exact_ones(gamma: float) -> None:
    """Adam with a falling rate, the tables averaged over the second half; the mean of 10 runs is known to 2%."""
    name = "random"
    config = SarsaConfig(
        hidden=(32,), cost_gamma=gamma, cost_learning_rate=1e-2, final_learning_rate=0.1, cost_scale=0.1
    )
    trainer = fixed(name, config, 600, n_runs=10, n_envs=20)
    learner, kept = trainer.learner, []
    assert isinstance(learner, Sarsa)
    for update in range(600):
        trainer.advance()
        if update >= 300:
            kept.append({key: value.clone() for key, value in learner._shown.items()})
    cmdp, policy = model(name)
    backward = torch.stack([each["backward"][..., 0] for each in kept]).mean(dim=0).numpy()
    exact = exact_backward(name, gamma)
    assert (backward.std(axis=0, ddof=1) / np.sqrt(10) < 0.02 * exact.max()).all()
    assert np.abs(deviation(backward, exact)).max() < 1
    cost_q = torch.stack([each["cost_q"] for each in kept]).mean(dim=0).numpy()[:, :-1]
    chain = tb.policy_chain(cmdp, policy)
    exact_q = tb.q_value(cmdp, cmdp.cost, tb.forward_value(chain, cmdp.cost, gamma), gamma)
    assert (cost_q.std(axis=0, ddof=1) / np.sqrt(10) < 0.02 * exact_q.max()).all()
    assert np.abs(deviation(cost_q, exact_q)).max() < 1


def test_realised_costs_so_far_are_those_of_the_episodes() -> None:
    """The realised past of the learner, carried over rollouts, is the running total that the policy is shown."""
    trainer = fixed("random", SarsaConfig(n_steps=3, hidden=(4,), cost_gamma=1.0), 10**6, 2, 5)
    for _ in range(20):
        rollout = trainer.collect()
        value = torch.zeros_like(rollout.cost)
        _, realised = trainer.learner.past_targets(rollout, value, 0.3, True)
        torch.testing.assert_close(realised[-1], trainer._past)


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_the_exact_cost_q_is_a_fixed_point(gamma: float) -> None:
    """Forward n-step targets, bootstrapped from the exact Q of the executed action, have that Q as their mean."""
    cmdp, policy = model("random")
    trainer = fixed("random", SarsaConfig(n_steps=3, hidden=(4,)), 10**6, n_runs=30, n_envs=20)
    chain = tb.policy_chain(cmdp, policy)
    exact = tb.q_value(cmdp, cmdp.cost, tb.forward_value(chain, cmdp.cost, gamma), gamma)
    table = torch.tensor(np.append(exact.ravel(), [0.0, 0.0]), dtype=torch.float32)
    total, count = torch.zeros(30, 12), torch.zeros(30, 12)
    for _ in range(160):
        rollout = trainer.collect()
        entry = rollout.all_of("code") * 2 + rollout.all_of("action")
        signal = (rollout.cost_to_go(gamma), rollout.discount(gamma), table[entry][1:], rollout.mix(1.0))
        target = lambda_returns(*signal)
        for t in range(3):
            total.scatter_add_(1, entry[t], target[t] * rollout.is_move[t])
            count.scatter_add_(1, entry[t], rollout.is_move[t].float())
    assert (count[:, :10] > 30).all()
    assert np.abs(deviation((total / count)[:, :10].numpy(), exact.ravel())).max() < 1
