"""The robots with a speed limit: Gymnasium's own environments, plus a cost."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor

from bvf_tutorial.envs.base import EnvironmentFault, State, VectorEnv
from bvf_tutorial.envs.locomotion import Locomotion, SafeAnt, SafeCheetah, SafeHopper, SafeSwimmer, SafeWalker2d

GYMNASIUM: dict[type[Locomotion], tuple[str, dict[str, Any]]] = {
    SafeCheetah: ("HalfCheetah-v5", {}),
    SafeHopper: ("Hopper-v5", {}),
    SafeWalker2d: ("Walker2d-v5", {}),
    SafeAnt: ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0}),
    SafeSwimmer: ("Swimmer-v5", {}),
}
ROBOTS = list(GYMNASIUM)


def first_state(task: Locomotion, n_worlds: int = 1, seed: int = 0) -> State:
    noise = torch.rand(n_worlds, task.start_noise, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return task.start(noise, torch.arange(n_worlds))


def no_noise(n_worlds: int = 1) -> Tensor:
    return torch.empty(n_worlds, 0, dtype=torch.float64)


def gymnasium_env(task: type[Locomotion], tmp_path: Any, monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Any:
    """Return Gymnasium's environment; loading its cheetah writes a log file into the working directory."""
    monkeypatch.chdir(tmp_path)
    name, arguments = GYMNASIUM[task]
    return gymnasium.make(name, **{**arguments, **changes}).unwrapped


@pytest.mark.parametrize("robot", ROBOTS)
@pytest.mark.parametrize("include_x_position", [False, True])
def test_against_gymnasium(
    robot: type[Locomotion], include_x_position: bool, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Observation, reward and end of 200 steps, each from the same state.

    To the last bit, because both run MuJoCo's code once Gymnasium's warm start is dropped too; the reward up to the
    order of its sums. Ant's forward reward is taken from its ``x_position``, as the file says.
    """
    env = gymnasium_env(robot, tmp_path, monkeypatch, exclude_current_positions_from_observation=not include_x_position)
    task = robot(include_x_position=include_x_position)
    env.reset(seed=0)
    generator = np.random.default_rng(0)
    state, n_ends = first_state(task), 0
    for step in range(200):
        env.set_state(state["position"][0].numpy(), state["velocity"][0].numpy())
        env.data.qacc_warmstart[:] = 0
        x = float(env.data.qpos[0])
        np.testing.assert_array_equal(task.observe(state)[0].numpy(), env._get_obs())
        action = generator.uniform(task.action_space.low, task.action_space.high)  # float64, as Gymnasium adds it up
        observation, reward, terminated, _, info = env.step(action)
        state, our_reward, our_end = task.move(state, torch.from_numpy(action)[None], no_noise())
        np.testing.assert_array_equal(task.observe(state)[0].numpy(), observation)
        speed = (info["x_position"] - x) / env.dt
        assert float(our_reward) == pytest.approx(reward - info["reward_forward"] + speed, abs=1e-12)
        assert float(state["speed"]) == pytest.approx(speed, abs=1e-12)
        # Ant: MuJoCo's last stage against the position itself, see the file's head.
        assert speed == pytest.approx(info["x_velocity"], abs=0.1 if robot is SafeAnt else 1e-12)
        assert bool(our_end) == terminated
        n_ends += terminated
        if terminated or step % 50 == 49:
            state = first_state(task, seed=step)
    assert (n_ends > 0) == robot.robot.can_fall


@pytest.mark.parametrize("robot", ROBOTS)
def test_same_numbers_as_gymnasium(robot: type[Locomotion], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    env, task = gymnasium_env(robot, tmp_path, monkeypatch), robot()
    assert task.dt == pytest.approx(env.dt, rel=1e-15)
    assert task.observation_space.shape == env.observation_space.shape
    assert task.action_space == env.action_space
    assert task.frames_per_second == env.metadata["render_fps"]
    assert (task.horizon, task.cost_limit, task.speed_limit) == (200, 50.0, 1.0)


@pytest.mark.parametrize("robot", ROBOTS)
def test_first_states_have_gymnasiums_distribution(
    robot: type[Locomotion], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kolmogorov-Smirnov, every coordinate, against 500 of Gymnasium's own resets."""
    from scipy import stats

    env, task, n = gymnasium_env(robot, tmp_path, monkeypatch), robot(), 500
    theirs = []
    for seed in range(n):
        env.reset(seed=seed)
        theirs.append(np.concatenate([env.data.qpos, env.data.qvel]))
    state = first_state(task, n)
    ours = torch.cat([state["position"], state["velocity"]], dim=1).numpy()
    least = min(stats.ks_2samp(ours[:, k], np.stack(theirs)[:, k]).pvalue for k in range(ours.shape[1]))
    assert least > 1e-3 / ours.shape[1]


@pytest.mark.parametrize("robot", [SafeHopper, SafeWalker2d, SafeAnt])
def test_every_end_of_a_healthy_range(robot: type[Locomotion], tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """States on and beside every border, judged by Gymnasium's ``is_healthy``."""
    env, task = gymnasium_env(robot, tmp_path, monkeypatch), robot()
    env.reset(seed=0)
    rest = np.concatenate([task.model.qpos0, np.zeros(task.model.nv)])
    height = robot.robot.height_index
    rest[height] = 0.5 if robot is SafeAnt else 1.25
    borders = {
        height: robot.robot.height,
        height + 1: robot.robot.pitch,
        5: (-100.0, 100.0),
        len(rest) - 1: (-100.0, 100.0),
    }
    seen = set()
    for index, border in borders.items():
        for value in border:
            for near in (np.nextafter(value, -np.inf), value, np.nextafter(value, np.inf)):
                if math.isfinite(near):
                    both = rest.copy()
                    both[index] = near
                    env.data.qpos[:], env.data.qvel[:] = both[: task.model.nq], both[task.model.nq :]
                    is_healthy = bool(task._is_healthy(torch.from_numpy(both)[None]))
                    assert is_healthy == bool(env.is_healthy), (index, near)
                    seen.add(is_healthy)
    assert seen == {True, False}


def test_cost_is_one_beyond_the_limit_in_both_directions() -> None:
    task = SafeCheetah(speed_limit=1.5)
    state = first_state(task, 5)
    assert task.cost(state).tolist() == [0.0] * 5  # no step, no speed
    state = {**state, "speed": torch.tensor([1.5, 1.500001, -1.5, -1.500001, 0.0], dtype=torch.float64)}
    assert task.cost(state).tolist() == [0.0, 1.0, 0.0, 1.0, 0.0]


def test_cost_of_an_episode_counts_its_fast_states() -> None:
    env = VectorEnv(SafeCheetah(horizon=30, include_x_position=True), n_envs=6)
    shown = env.reset(seed=0)
    assert shown.cost.sum() == 0
    fast, generator = 0, torch.Generator().manual_seed(0)
    for _ in range(30):
        x, action = shown.observation[..., 0].double(), 2 * torch.rand(1, 6, 6, generator=generator) - 1
        shown = env.step(action)
        speed = (shown.observation[..., 0].double() - x) / env.task.dt  # type: ignore[attr-defined]
        assert torch.equal(shown.cost, (speed.abs() > 1).float())
        torch.testing.assert_close(shown.reward.double(), speed - 0.1 * action.square().sum(dim=2), atol=1e-5, rtol=0)
        fast += int(shown.cost.sum())
    assert 0 < fast < 180
    assert shown.terminated.all()
    after = env.step(torch.zeros(1, 6, 6))
    assert after.is_first.all() and after.cost.sum() == 0 and after.reward.abs().sum() == 0


def test_the_paper_observes_the_position_too() -> None:
    assert SafeCheetah.preset("paper").observation_space.shape == (18,)
    assert SafeCheetah.preset("gymnasium").observation_space.shape == (17,)
    task = SafeCheetah.preset("paper", speed_limit=2.0)
    assert task.observe(first_state(task)).shape == (1, 18)
    assert (task.speed_limit, task.cost_limit) == (2.0, 50.0)


@pytest.mark.parametrize("key", ["position", "velocity"])
def test_a_world_that_blows_up_is_named(key: str) -> None:
    env = VectorEnv(SafeCheetah(), n_envs=3, n_runs=2)
    env.reset(seed=0)
    env.step(torch.zeros(2, 3, 6))
    saved = env.state_dict()
    saved["state"][key][4, 3] = 1e9
    env.load_state_dict(saved)
    with pytest.raises(EnvironmentFault, match=r"SafeCheetah, run 1, world 1, step 2: observation is \[nan"):
        env.step(torch.zeros(2, 3, 6))


@pytest.mark.parametrize("robot", ROBOTS)
def test_move_changes_nothing_it_was_given(robot: type[Locomotion]) -> None:
    task = robot()
    state, action = first_state(task, 4), torch.full((4, task.action_space.shape[0]), 0.3)
    given = copy.deepcopy((state, action))
    first = task.move(state, action, no_noise(4))
    kept = copy.deepcopy(first)
    task.move(first[0], -action, no_noise(4))
    again = task.move(state, action, no_noise(4))
    for one, other in ((state, given[0]), (first[0], kept[0]), (first[0], again[0])):
        assert all(torch.equal(one[key], other[key]) for key in one)
    assert torch.equal(action, given[1]) and torch.equal(first[1], again[1])


def test_a_run_that_is_resumed_goes_on_exactly() -> None:
    """Split in the middle of an episode, into a new environment with a pool of its own."""
    env = VectorEnv(SafeHopper(), n_envs=5)
    env.reset(seed=3)
    generator = torch.Generator().manual_seed(0)
    action = 2 * torch.rand(120, 1, 5, 3, generator=generator) - 1
    for step in range(60):
        env.step(action[step])
    saved, twin = env.state_dict(), VectorEnv(SafeHopper(n_threads=1), n_envs=5)
    twin.load_state_dict(saved)
    n_ends = 0
    for step in range(60, 120):
        one, other = env.step(action[step]), twin.step(action[step])
        assert torch.equal(one.observation, other.observation) and torch.equal(one.reward, other.reward)
        assert torch.equal(one.is_last, other.is_last)
        n_ends += int(one.terminated.sum())
    assert n_ends > 0


def test_single_and_batch_give_the_same_trajectory() -> None:
    many, one = VectorEnv(SafeHopper(), n_envs=4, n_runs=2), VectorEnv(SafeHopper(), n_envs=1)
    shown, alone = many.reset(seed=[5, 9]), one.reset(seed=9)
    generator = torch.Generator().manual_seed(0)
    for _ in range(80):
        assert torch.equal(shown.observation[1, :1], alone.observation[0])
        assert torch.equal(shown.reward[1, :1], alone.reward[0])
        action = 2 * torch.rand(2, 4, 3, generator=generator) - 1
        shown, alone = many.step(action), one.step(action[1:, :1])


def test_a_task_is_a_value() -> None:
    """Engines are no part of it: equality, hash, copies and pickles ignore them."""
    task = SafeCheetah(speed_limit=2.0)
    state = first_state(task, 3)
    end = task.move(state, torch.ones(3, 6), no_noise(3))[0]
    assert task == SafeCheetah(speed_limit=2.0) != SafeCheetah() and hash(task) == hash(SafeCheetah(speed_limit=2.0))
    assert task.physics(3) is task.physics(3) is not task.physics(4)
    assert repr(task).startswith("SafeCheetah(horizon=200") and "_engines" not in repr(task)
    for other in (copy.deepcopy(task), pickle.loads(pickle.dumps(task)), dataclasses.replace(task)):
        assert other == task
        assert other.physics(3) is not task.physics(3)
        assert torch.equal(other.move(state, torch.ones(3, 6), no_noise(3))[0]["position"], end["position"])


def test_check_and_close_reach_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    task, heard = SafeCheetah(n_threads=2), []
    state = first_state(task, 3)
    end = task.move(state, torch.ones(3, 6), no_noise(3))[0]
    for n_worlds in (3, 4):
        engine = task.physics(n_worlds)
        monkeypatch.setattr(engine, "check", lambda n=n_worlds: heard.append(("check", n)))
        monkeypatch.setattr(engine, "close", lambda n=n_worlds: heard.append(("close", n)))
    task.check()
    task.close()
    assert heard == [("check", 3), ("check", 4), ("close", 3), ("close", 4)]
    assert torch.equal(task.move(state, torch.ones(3, 6), no_noise(3))[0]["position"], end["position"])


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="Locomotion names no robot"):
        Locomotion()
    with pytest.raises(ValueError, match=r"SafeCheetah: speed_limit is -1"):
        SafeCheetah(speed_limit=-1.0)
    with pytest.raises(ValueError, match="backend is 'mjx'"):
        SafeCheetah(backend="mjx")  # type: ignore[arg-type]


def test_a_picture_follows_the_robot() -> None:
    """The robot stays in the middle wherever it is, and the bar says how fast it is."""
    task = SafeCheetah()
    state = first_state(task)
    size = (90, 120)
    slow = task.draw(state, size)
    assert slow.shape == (*size, 3) and slow.dtype == np.uint8
    fast = task.draw({**state, "speed": torch.tensor([3.0])}, size)
    assert (slow[20:] == fast[20:]).all() and (slow[:20] != fast[:20]).any()
