"""What a learner sees: T + 1 states, totals of episodes however the stream is cut, realised costs so far."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial.agents import EpisodeTotals, Rollout
from bvf_tutorial.agents.rollout import by_run
from bvf_tutorial.envs import TimeStep, VectorEnv
from tests.envs.toys import Counter, random_actions
from tests.strategies import SEED


def stream(env: VectorEnv, n_steps: int, seed: int = 0) -> list[TimeStep]:
    return [env.reset(seed), *(env.step(action) for action in random_actions(env, n_steps, seed))]


def rollouts(step: list[TimeStep], length: list[int]) -> list[Rollout]:
    """Cut a stream into stretches that share their boundary states."""
    result, first = [], 0
    for n in length:
        result.append(Rollout.of(step[first : first + n + 1], [{"t": step[i].cost} for i in range(n)], {}))
        first += n
    assert first == len(step) - 1
    return result


@pytest.mark.field("seven-steps")
def test_three_step_episodes_over_seven_vector_steps() -> None:
    """States 0 1 2 3 | 0 1 2 3: each once, the start's and the last one's cost counted; 4 a whole episode, not 3 or 5."""
    step = stream(VectorEnv(Counter(horizon=3, state_cost=1.0), 1), 7)
    (rollout,) = rollouts(step, [7])
    assert rollout.n_steps == 7
    assert rollout.observation.shape == (8, 1, 1, 1)
    assert rollout.observation[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.reward[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    assert rollout.is_first[:, 0, 0].tolist() == [True, False, False, False] * 2
    assert rollout.is_move[:, 0, 0].tolist() == [True, True, True, False, True, True, True]
    totals = EpisodeTotals.started(step[0]).after(rollout, 2.0, window=2)
    assert totals.recent[:, 0].tolist() == [2, 6, 4, 4, 1]  # episodes, return 1 + 2 + 3, cost, states, violations
    assert totals.is_new.tolist() == [True]


def test_a_start_that_costs_and_a_limit_that_is_met_exactly() -> None:
    """Cost 1 at the start only: the episode costs exactly the limit 1, which is no violation."""
    task = Counter(horizon=3, state_cost=0.0, broken=(("cost", 0, 1.0),))
    step = stream(VectorEnv(task, 1), 7)
    totals = EpisodeTotals.started(step[0]).after(rollouts(step, [7])[0], 1.0, window=1)
    assert totals.episode_cost.item() == 1.0
    assert totals.recent[4].item() == 0.0
    assert totals.so_far[1].item() == 1.0
    again = EpisodeTotals.started(step[0]).after(rollouts(step, [7])[0], 0.99, window=1)
    assert again.recent[4].item() == 1.0


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(1, 6), st.integers(1, 4), SEED)
def test_totals_over_rollouts_of_any_length_equal_a_plain_loop(
    length: list[int], window: int, horizon: int, seed: int
) -> None:
    """Two runs of three worlds that end at different times, whole numbers, so that sums are exact."""
    draw, n_steps = np.random.default_rng(seed), sum(length)
    shape = (n_steps + 1, 2, 3)
    is_last = draw.random(shape) < 0.4
    is_first = np.concatenate([np.ones((1, 2, 3), bool), is_last[:-1]])
    is_last &= ~is_first
    is_first = np.concatenate([np.ones((1, 2, 3), bool), is_last[:-1]])
    is_cut = draw.random(shape) < 0.5
    reward, cost = draw.integers(-3, 4, shape) * ~is_first, draw.integers(0, 3, shape)
    step = [
        TimeStep(
            torch.zeros(2, 3, 1),
            *(torch.as_tensor(each[t], dtype=torch.float32) for each in (reward, cost)),
            torch.as_tensor(is_last[t] & ~is_cut[t]),
            torch.as_tensor(is_last[t] & is_cut[t]),
            torch.as_tensor(is_first[t]),
        )
        for t in range(n_steps + 1)
    ]
    totals = EpisodeTotals.started(step[0])
    running = np.stack([np.zeros((2, 3)), cost[0], np.ones((2, 3))])
    pending: list[list[tuple[float, ...]]] = [[], []]
    recent = np.zeros((5, 2))
    t = 0
    for rollout in rollouts(step, length):
        totals = totals.after(rollout, float(horizon), window)
        for _ in range(rollout.n_steps):
            t += 1
            for r in range(2):
                for b in range(3):
                    entry = np.array([reward[t, r, b], cost[t, r, b], 1.0])
                    running[:, r, b] = entry if is_first[t, r, b] else running[:, r, b] + entry
                    if is_last[t, r, b]:
                        pending[r].append((*running[:, r, b], float(running[1, r, b] > horizon)))
        for r in range(2):
            assert totals.is_new[r].item() == (len(pending[r]) >= window)
            if len(pending[r]) >= window:
                recent[:, r] = len(pending[r]), *np.mean(pending[r], axis=0)
                pending[r] = []
        np.testing.assert_array_equal(totals.so_far, running)
        np.testing.assert_allclose(totals.recent, recent, rtol=1e-6)
    assert (totals.n_states >= 1).all()


@pytest.mark.field("zero-limit")
def test_no_finished_episode_is_no_data() -> None:
    step = stream(VectorEnv(Counter(horizon=50), 2), 7)
    totals = EpisodeTotals.started(step[0]).after(rollouts(step, [7])[0], 1.0, window=1)
    assert torch.isfinite(totals.recent).all()
    assert totals.recent[0].tolist() == [0.0]
    assert not totals.is_new.any()


def test_by_run_puts_a_run_before_time() -> None:
    """[T, R, B] to [R, T * B], time first within a run: the first T * B of T + 1 steps are the states 0..T-1."""
    value = torch.arange(4 * 2 * 3).view(4, 2, 3)
    assert torch.equal(by_run(value)[1], torch.cat([value[t, 1] for t in range(4)]))
    assert torch.equal(by_run(value)[:, : 3 * 3], by_run(value[:3]))


@pytest.mark.parametrize("time_limit", ["terminate", "truncate"])
def test_the_record_of_a_time_limit(time_limit: str) -> None:
    step = stream(VectorEnv(Counter(horizon=2), 1, time_limit=time_limit), 5)
    (rollout,) = rollouts(step, [5])
    ended = [False, False, True, False, False, True]
    assert rollout.is_last[:, 0, 0].tolist() == ended
    assert rollout.terminated.any().item() == (time_limit == "terminate")
    # discount: 0 before a termination and at the ignored action; mix: 0 before a cut and there.
    free = [1.0, float(time_limit == "truncate"), 0.0, 1.0, float(time_limit == "truncate")]
    assert rollout.discount(1.0)[:, 0, 0].tolist() == free
    assert rollout.mix(1.0)[:, 0, 0].tolist() == [1.0, float(time_limit == "terminate"), 0.0, 1.0, free[0] - free[1]]
    assert rollout.cost_to_go(0.5)[:, 0, 0].tolist() == [
        1,
        1.0 + 0.5 * (time_limit == "terminate"),
        1,
        1,
        1.0 + 0.5 * (time_limit == "terminate"),
    ]
    assert rollout.backward_discount(1.0)[:, 0, 0].tolist() == [1, 1, 0, 1, 1]
