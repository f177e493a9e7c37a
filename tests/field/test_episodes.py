"""Ends of episodes, from the environment to the learner's targets: cuts, restarts, several ends in one rollout."""

from __future__ import annotations

import pytest
import torch
from gymnasium.vector import SyncVectorEnv

from bvf_tutorial.agents import EpisodeTotals, Rollout, backward_lambda_returns, lambda_returns
from bvf_tutorial.envs import FromGymnasium, TimeStep, VectorEnv
from tests.envs.toys import Counter, CounterEnv


def rollout_of(env: VectorEnv | FromGymnasium, n_steps: int) -> tuple[TimeStep, Rollout]:
    """Return the first states and a rollout of actions 0."""
    step = [env.reset(0)]
    none = torch.zeros(*step[0].cost.shape, 1)
    step += [env.step(none) for _ in range(n_steps)]
    return step[0], Rollout.of(step, [{} for _ in range(n_steps)], {})


def adapted(horizon: int, end: str) -> FromGymnasium:
    """Return two of Gymnasium's own environments that observe the time and pay 1 for every decision."""
    return FromGymnasium(SyncVectorEnv([lambda: CounterEnv(horizon, end)] * 2), cost_limit=2.0)


@pytest.mark.field("cut-target")
@pytest.mark.parametrize("kind", ["own", "adapted"])
def test_the_environments_own_cut_bootstraps_from_its_last_state(kind: str) -> None:
    """V(observation) = observation and reward t + 1: the move out of 4 earns 5 and goes on with V(5) = 5, not V(0) = 0."""
    env = VectorEnv(Counter(horizon=5), 2, time_limit="truncate") if kind == "own" else adapted(5, "truncated")
    _, rollout = rollout_of(env, 7)
    value = rollout.observation[..., 0]
    assert value[:, 0, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    one_step = lambda_returns(rollout.reward[1:], rollout.discount(1.0), value[1:], rollout.mix(0.0))
    assert one_step[:5, 0, 0].tolist() == [2, 4, 6, 8, 10]
    whole = lambda_returns(rollout.reward[1:], rollout.discount(1.0), value[1:], rollout.mix(1.0))
    assert whole[:5, 0, 0].tolist() == [20, 19, 17, 14, 10]


@pytest.mark.field("seven-steps")
def test_an_episode_of_three_steps_costs_three_to_the_learner() -> None:
    """Seven vector steps show one whole episode and the three decisions of the next."""
    first, rollout = rollout_of(adapted(3, "terminated"), 7)
    assert rollout.observation[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.is_move[:, 0, 0].tolist() == [True, True, True, False, True, True, True]
    totals = EpisodeTotals.started(first).after(rollout, 2.0, window=1)
    n_episodes, gain, cost, n_states, violations = totals.recent[:, 0].tolist()
    assert (n_episodes, gain, cost, n_states - 1, violations) == (4, 6, 3, 3, 1)  # two worlds, two episodes each
    # The carry of the backward direction begins anew, too: 3 at the last state of both episodes, never 4.
    past = backward_lambda_returns(rollout.cost[1:], rollout.backward_discount(1.0), rollout.cost[:-1], 1.0)
    assert past[:, 0, 0].tolist() == [1, 2, 3, 0, 1, 2, 3]
