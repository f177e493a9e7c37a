"""The sampled grid world against the exact model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridTask, GridWorld, VectorEnv


def play(env: VectorEnv, n_steps: int, seed: int) -> tuple[np.ndarray, ...]:
    """Play uniformly random actions; return cell, action, reward, cost, is_first, is_last, each [T + 1, W]."""
    generator = torch.Generator().manual_seed(seed)
    step = env.reset(seed)
    rows = []
    for _ in range(n_steps):
        action = torch.randint(4, (env.n_runs, env.n_envs), generator=generator)
        rows.append((step.observation[..., 0], action, step.reward, step.cost, step.is_first, step.is_last))
        step = env.step(action)
    return tuple(torch.stack(column).flatten(1).numpy() for column in zip(*rows, strict=True))


def test_transitions_agree_with_the_exact_model() -> None:
    """Chi-square per state and action, start cell and rewards included; Bonferroni over all of them."""
    grid = GridWorld.random(2)
    env = VectorEnv(GridTask(layout=(grid,), is_one_hot=False), n_envs=4000)
    cell, action, reward, cost, is_first, is_last = play(env, 200, seed=0)
    model = grid.to_cmdp()
    cell = cell.astype(int)
    assert (cell[is_first] == grid.start_state).all()
    np.testing.assert_array_equal(cost, model.cost[cell])
    moved = ~is_last[:-1]
    here, there, chosen, paid = cell[:-1][moved], cell[1:][moved], action[:-1][moved], reward[1:][moved]
    np.testing.assert_array_equal(paid, np.where(there == grid.goal_state, 1000.0, -1.0))
    p_values = []
    for state in range(144):
        for a in range(4):
            seen = np.bincount(there[(here == state) & (chosen == a)], minlength=144)
            law = model.transition[state, a]
            live = law > 0
            assert not seen[~live].any()
            if seen.sum() > 400 and live.sum() > 1:
                p_values.append(stats.chisquare(seen[live], seen.sum() * law[live]).pvalue)
    assert len(p_values) > 250
    assert min(p_values) > 1e-3 / len(p_values)
    assert stats.kstest(p_values, "uniform").pvalue > 1e-3


@pytest.mark.parametrize("time_limit", ["terminate", "truncate"])
def test_whole_episodes_agree_with_the_clocked_model(time_limit: str) -> None:
    """Mean length, cost and return of random play against the exact finite-horizon values; the limit is 200 decisions."""
    env = VectorEnv(GridTask(is_one_hot=False, slip=0.3), n_envs=3000, time_limit=time_limit)
    _, _, reward, cost, is_first, is_last = play(env, 201, seed=1)
    grid = env.task.grid_of(0)
    assert grid.slip == 0.3
    model = grid.to_cmdp()
    first = np.cumsum(is_first, axis=0) == 1  # each world's first episode
    exact = tb.finite_horizon_value(tb.policy_chain(model, tb.uniform_policy(model)), model.cost, 200)
    for sample, value in (
        ((cost * first).sum(axis=0), exact.forward[0, grid.start_state]),
        (first.sum(axis=0), exact.law.sum()),
    ):
        assert abs(sample.mean() - value) < 5 * sample.std() / np.sqrt(len(sample))
    assert first.sum(axis=0).max() == 201
    assert is_last[200][first[200]].all()
    returns = (reward * first).sum(axis=0)
    at_goal = (is_last & first & (reward == 1000)).any(axis=0)
    np.testing.assert_array_equal(returns, 1000.0 * at_goal - (first.sum(axis=0) - 1 - at_goal))


def test_one_layout_per_run() -> None:
    env = VectorEnv(GridTask(), n_envs=3, n_runs=4)
    env.reset(10)
    for run in range(4):
        expected = GridWorld.random(10 + run)
        for world in range(3):
            np.testing.assert_array_equal(env.task.grid_of(3 * run + world).pit, expected.pit)
    env.reset(11)
    np.testing.assert_array_equal(env.task.grid_of(0).pit, GridWorld.random(11).pit)
    fixed = VectorEnv(GridTask(layout=(GridWorld.random(5), GridWorld.random(6))), n_envs=3)
    for seed in (0, 1):
        fixed.reset(seed)
        assert [fixed.task.grid_of(i).goal for i in range(3)] == [GridWorld.random(s).goal for s in (5, 6, 5)]


def test_observations_name_the_cell() -> None:
    one_hot, index = (VectorEnv(GridTask(is_one_hot=flag), n_envs=50) for flag in (True, False))
    for step in (one_hot.reset(3), one_hot.step(torch.zeros(1, 50, dtype=torch.int64))):
        assert torch.equal(step.observation.sum(-1), torch.ones(1, 50))
    index.reset(3)
    other = index.step(torch.zeros(1, 50, dtype=torch.int64))
    assert torch.equal(step.observation.argmax(-1), other.observation[..., 0].long())


def test_no_slip_is_deterministic() -> None:
    env = VectorEnv(GridTask(slip=0.0, is_one_hot=False), n_envs=2000)
    env.reset(0)
    for action, cell in ((0, 131), (3, 130), (2, 142), (1, 143), (1, 143)):
        step = env.step(torch.full((1, 2000), action))
        assert (step.observation == cell).all()


def test_bad_input() -> None:
    with pytest.raises(ValueError, match="sizes"):
        GridTask(layout=(GridWorld.random(0), GridWorld.random(0, size=5)))
    env = VectorEnv(GridTask(), n_envs=2)
    env.reset(0)
    for action, match in (
        (torch.tensor([[0, 4]]), "world 1, step 1: action is 4"),
        (torch.tensor([[-1, 0]]), "world 0, step 1: action is -1"),
        (torch.tensor([[0.0, 1.0]]), "dtype"),
        (torch.tensor([0, 1]), "shape"),
    ):
        with pytest.raises(ValueError, match=match):
            env.step(action)
    env.step(torch.tensor([[0, 1]]))  # nothing was lost
