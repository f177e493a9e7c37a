"""The contract: what every task owes, registered today or tomorrow. A new line of the table is tested without a word here."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from bvf_tutorial.envs import EnvironmentFault, GymnasiumEnv, GymnasiumVectorEnv, VectorEnv, make
from bvf_tutorial.envs.registration import TASKS
from tests.envs.toys import Counter, assert_equal, of_worlds, play, random_actions, stacked

torch.set_num_threads(1)

NAMES = sorted(TASKS)
# Everyone else starts at random. The tests hold both sides of the table.
HAVE_ONE_START = {"GridWorld", "PointCircle"}
NEED_NO_ENGINE = sorted(name for name, home in TASKS.items() if not home.startswith("locomotion"))
every_task = pytest.mark.parametrize("name", NAMES)
BOTH_LIMITS = pytest.mark.parametrize("time_limit", ["terminate", "truncate"])


def short(name: str, n_envs: int = 3, n_runs: int = 1, horizon: int = 7, **changes: Any) -> VectorEnv:
    """Return a task whose episodes end often."""
    return make(name, n_envs, n_runs, horizon=horizon, **changes)


@every_task
@pytest.mark.parametrize("is_time_aware", [False, True])
def test_spaces_and_types(name: str, is_time_aware: bool) -> None:
    env = short(name, 3, 2, is_time_aware=is_time_aware)
    step = play(env, random_actions(env, 17))
    assert env.cost_limit >= 0 and isinstance(env.action_space, spaces.Box | spaces.Discrete)
    if isinstance(env.action_space, spaces.Box):
        assert env.action_space.is_bounded() and env.action_space.dtype == np.float32
    assert step.observation.shape == (18, 2, 3, *env.observation_space.shape)
    for each in (step.observation, step.reward, step.cost):
        assert each.dtype == torch.float32 and each.isfinite().all()
    for each in (step.reward, step.cost, step.terminated, step.truncated, step.is_first, step.is_last):
        assert each.shape == (18, 2, 3)
    for each in (step.terminated, step.truncated, step.is_first):
        assert each.dtype == torch.bool
    assert all(env.observation_space.contains(one) for one in step.observation.flatten(0, 2).numpy())
    assert (step.cost >= 0).all() and not (step.terminated & step.truncated).any()


@every_task
def test_the_time_is_seen_when_asked_for(name: str) -> None:
    """The share of the horizon that is used, last in the observation; nothing else changes."""
    action = random_actions(short(name), 20)
    blind, aware = play(short(name), action), play(short(name, is_time_aware=True), action)
    assert torch.equal(aware.observation[..., :-1], blind.observation)
    age, expected = torch.zeros(1, 3), []
    for is_first in blind.is_first:
        age = torch.where(is_first, 0.0, age + 1)
        expected.append(age / 7)
    torch.testing.assert_close(aware.observation[..., -1], torch.stack(expected), rtol=0, atol=1e-7)


@every_task
def test_the_seed_is_the_trajectory(name: str) -> None:
    env = short(name)
    action = random_actions(env, 20)
    first = play(env, action, 11)
    assert_equal(play(env, action, 11), first)  # the same object, after another life
    assert_equal(play(short(name), action, 11), first)
    # Who has a random start or layout, or noise in its moves, lives another life from another seed.
    others = [play(env, action, seed) for seed in range(20, 26)]
    is_random = any(not torch.equal(first.observation, other.observation) for other in others)
    assert is_random == (name != "PointCircle")


@pytest.mark.field("eighty-starts")
@every_task
def test_eighty_starts_of_ten_seeds(name: str) -> None:
    """Seeds 0-9 with 8 worlds each: no start twice. (With seed + world, 17 would be left.)"""
    envs = [make(name, 8) for _ in range(10)]
    seen = np.concatenate([env.reset(seed).observation[0].numpy() for seed, env in enumerate(envs)])
    state = np.concatenate([torch.cat([x.reshape(8, -1) for x in env._state.values()], 1).numpy() for env in envs])
    if name in HAVE_ONE_START:
        assert len(np.unique(seen, axis=0)) == 1
        return
    assert len(np.unique(state, axis=0)) == 80
    if name == "PointGather":  # two arenas look alike to a robot that sees no item
        seen = seen[seen[:, 9:].any(axis=1)]
        assert len(seen) > 70
    assert len(np.unique(seen, axis=0)) == len(seen)


@pytest.mark.field("own-noise")
@every_task
def test_worlds_share_no_noise(name: str) -> None:
    """Not one number in common, over runs, worlds and steps, for starts and moves."""
    env = short(name, 4, 3)
    env.reset(0)
    moves = env._noise.moves(0, 8, max(4, env.task.move_noise)).transpose(0, 1).flatten(1)
    starts = torch.stack([env._noise.start(step, max(4, env.task.start_noise)) for step in range(8)], dim=1).flatten(1)
    number = torch.cat([moves, starts], dim=1).numpy()
    # 2**32 values: a few of thousands of numbers meet by chance, whole rows never.
    expected_twins = number.size**2 / 2 / 2**32
    assert number.size - len(np.unique(number)) <= 5 + 5 * expected_twins
    for column in number.T:
        assert len(np.unique(column)) == 12


@every_task
def test_restarts_take_a_step_and_ignore_its_action(name: str) -> None:
    env, twin = short(name), short(name)
    action = random_actions(env, 30)
    step = play(env, action)
    assert step.is_first[0].all() and step.is_last.any()
    assert torch.equal(step.is_first[1:], step.is_last[:-1])
    assert not (step.is_first & step.is_last).any()
    assert (step.reward[step.is_first] == 0).all()
    other = random_actions(env, 30, seed=1)
    is_restart = step.is_last[:-1].view(30, 1, 3, *[1] * (action.ndim - 3))
    assert_equal(play(twin, torch.where(is_restart, other, action)), step)


@every_task
def test_an_episode_of_t_decisions_has_t_plus_one_states_and_their_costs(name: str) -> None:
    """The costs handed out between two starts are the costs of the states in between, each once."""
    env = short(name, 4)
    total, count = torch.zeros(2, 1, 4, dtype=torch.float64), torch.zeros(1, 4)
    step, finished = env.reset(3), 0
    for action in random_actions(env, 40):
        own = env.task.cost(env._state).view(1, 4).to(torch.float64)
        total = torch.where(step.is_first, 0.0, total) + torch.stack([step.cost.to(torch.float64), own])
        count = torch.where(step.is_first, 0, count) + 1
        assert torch.equal(total[0], total[1])
        is_full = step.is_last & (count == 8)
        assert (is_full | ~step.is_last | (step.terminated & (count < 8))).all()
        finished += int(step.is_last.sum())
        step = env.step(action)
    assert finished >= 4 * 4


@every_task
def test_costs_occur(name: str) -> None:
    """A constraint that nothing violates would be tested by nothing."""
    env = make(name, 4, 2)
    assert play(env, random_actions(env, 120)).cost.sum() > 0


@every_task
@BOTH_LIMITS
def test_the_horizon_terminates_or_truncates(name: str, time_limit: str) -> None:
    step = play(env := short(name, time_limit=time_limit), random_actions(env, 30))
    other = play(
        short(name, time_limit="terminate" if time_limit == "truncate" else "truncate"), random_actions(env, 30)
    )
    age = torch.zeros(1, 3)
    for t in range(31):
        age = torch.where(step.is_first[t], 0, age + 1)
        is_over = age == 7
        assert (step.is_last[t] | ~is_over).all()
        if time_limit == "terminate":
            assert step.terminated[t][is_over].all() and not step.truncated[t].any()
        else:
            assert torch.equal(step.truncated[t], is_over & ~step.terminated[t])
            assert not other.truncated[t].any() and torch.equal(other.terminated[t], step.is_last[t])
    assert torch.equal(step.observation, other.observation) and torch.equal(step.cost, other.cost)


@pytest.mark.field("batch-of-one")
@every_task
def test_alone_in_a_batch_of_one_and_in_a_batch_of_many(name: str) -> None:
    """Bitwise, over several episodes: Gymnasium's single environment, its vector of one, and a world of four."""
    seeds, options = [7, 0, 123456789012, 7], {"horizon": 6}
    batch = make(name, 4, **options)
    action = random_actions(batch, 25)
    action[:, :, 3] = action[:, :, 0]
    together = play(batch, action, seeds)
    many = GymnasiumVectorEnv(name, 4, **options)
    observation, info = many.reset(seed=seeds)
    np.testing.assert_array_equal(observation, together.observation[0, 0].numpy())
    np.testing.assert_array_equal(info["cost"], together.cost[0, 0].numpy())
    for world, seed in enumerate(seeds):
        single, one = GymnasiumEnv(name, **options), GymnasiumVectorEnv(name, 1, **options)
        seen = [(*single.reset(seed=seed), 0.0, False, False)]
        seen_one = [(*one.reset(seed=seed), [0.0], [False], [False])]
        for a in action[:, 0, world].numpy():
            if seen[-1][3] or seen[-1][4]:
                seen.append((*single.reset(), 0.0, False, False))
            else:
                observation, reward, terminated, truncated, info = single.step(a)
                seen.append((observation, info, reward, terminated, truncated))
            observation, reward, terminated, truncated, info = one.step(a[None])
            seen_one.append((observation, info, reward, terminated, truncated))
        for t, ((x, info, *rest), (x1, info1, *rest1)) in enumerate(zip(seen, seen_one, strict=True)):
            own = together.observation[t, 0, world].numpy()
            assert np.array_equal(x, own) and np.array_equal(x1[0], own), t
            assert info["cost"] == info1["cost"][0] == together.cost[t, 0, world], t
            expected = [float(each[t, 0, world]) for each in (together.reward, together.terminated, together.truncated)]
            assert rest == [each[0] for each in rest1] == expected, t
    assert_equal(of_worlds(together, slice(None), slice(0, 1)), of_worlds(together, slice(None), slice(3, 4)))


@every_task
def test_a_world_does_not_see_how_many_there_are(name: str) -> None:
    big = short(name, 9)
    action = random_actions(big, 20)
    together = play(big, action, 5)
    assert_equal(play(short(name, 2), action[:, :, :2], 5), of_worlds(together, slice(None), slice(2)))


@every_task
def test_a_run_is_its_seed_alone(name: str) -> None:
    env = short(name, 2, 4)
    action = random_actions(env, 20)
    together = play(env, action, 5)
    for run in range(4):
        alone = play(short(name, 2), action[:, run : run + 1], 5 + run)
        assert_equal(alone, of_worlds(together, slice(run, run + 1), slice(None)))
    listed = play(env, action, [5, 6, 7, 8])
    assert_equal(listed, together)


@every_task
def test_resuming_is_exact(name: str) -> None:
    """Split in the middle of an episode, through a file that holds plain values, into a fresh environment."""
    env = short(name, 3, 2)
    action = random_actions(env, 30)
    through = play(env, action, 1)
    for split in (10, 15):
        env.reset(1)
        for one in action[:split]:
            env.step(one)
        file = io.BytesIO()
        torch.save(env.state_dict(), file)
        file.seek(0)
        fresh = short(name, 3, 2)
        fresh.load_state_dict(torch.load(file, weights_only=True))
        rest = stacked([fresh.step(one) for one in action[split:]])
        assert_equal(rest, stacked([step_at(through, t) for t in range(split + 1, 31)]))
    with pytest.raises(ValueError, match="6 worlds"):
        short(name, 4).load_state_dict(env.state_dict())


def step_at(step: Any, t: int) -> Any:
    return type(step)(
        step.observation[t], step.reward[t], step.cost[t], step.terminated[t], step.truncated[t], step.is_first[t]
    )


@every_task
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_bad_actions_are_named(name: str, value: float) -> None:
    env = short(name, 3, 2)
    env.reset(0)
    action = random_actions(env, 3)
    env.step(action[0])
    if isinstance(env.action_space, spaces.Discrete):
        action[1, 1, 2] = int(env.action_space.n) if value > 0 else -1
    else:
        action[1, 1, 2, 0] = value
    with pytest.raises(EnvironmentFault, match=rf"{name}, run 1, world 2, step 2: action is"):
        env.step(action[1])


@every_task
def test_misshapen_actions_are_refused(name: str) -> None:
    env = short(name)
    with pytest.raises(RuntimeError, match=r"call reset\(\)"):
        env.step(random_actions(env, 1)[0])
    env.reset(0)
    with pytest.raises(ValueError, match=re.escape(f"{name}: action has shape (3")):
        env.step(random_actions(env, 1)[0, 0])
    if isinstance(env.action_space, spaces.Discrete):
        with pytest.raises(ValueError, match="expected integers"):
            env.step(torch.zeros(1, 3))


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"GridWorld"}))
def test_actions_outside_the_box_are_clipped(name: str) -> None:
    env = short(name)
    action = random_actions(env, 10) * 100
    low, high = (torch.as_tensor(each) for each in (env.action_space.low, env.action_space.high))
    assert ((action > high) | (action < low)).any()
    assert_equal(play(env, action), play(short(name), action.clamp(low, high)))


@pytest.mark.field("three-horizons")
@every_task
@BOTH_LIMITS
@pytest.mark.parametrize("horizon", [1, 7, 30])
def test_three_horizons(name: str, time_limit: str, horizon: int) -> None:
    env = short(name, 2, horizon=horizon, time_limit=time_limit)
    step = play(env, random_actions(env, 2 * horizon + 3))
    last = step.is_last.flatten(1).numpy()
    assert last[: horizon + 1].any(axis=0).all()
    if horizon == 1:
        np.testing.assert_array_equal(last[:, 0], np.arange(6) % 2 == 1)


@pytest.mark.parametrize("name", NEED_NO_ENGINE)
def test_no_step_waits_for_the_device(name: str) -> None:
    """On the device "meta" nothing has a value, so whoever asks for one (``.item()``, ``if tensor``) raises."""
    env = make(name, 4, 2, device="meta", horizon=3)
    step = env.reset(0)
    for action in random_actions(env, 8):
        step = env.step(action.to("meta"))
    assert step.observation.device.type == "meta" and step.cost.shape == (2, 4)


@every_task
def test_moving_changes_no_input(name: str) -> None:
    env = short(name, 4)
    env.reset(0)
    before, task = env._state, env.task
    kept = {key: value.clone() for key, value in before.items()}
    noise = torch.rand(4, task.move_noise, dtype=torch.float64)
    action = env._checked(random_actions(env, 1)[0])
    inputs, copies = (noise, action), (noise.clone(), action.clone())
    once, twice = task.move(before, action, noise), task.move(before, action, noise)
    task.observe(before), task.cost(before), task.observe(once[0]), task.cost(once[0])
    assert all(torch.equal(before[key], value) for key, value in kept.items())
    assert all(torch.equal(one, copy) for one, copy in zip(inputs, copies, strict=True))
    assert once[0].keys() == twice[0].keys() == before.keys()
    assert all(torch.equal(value, twice[0][key]) for key, value in once[0].items())
    start = torch.rand(4, task.start_noise, dtype=torch.float64)
    copy = start.clone()
    task.start(start, torch.arange(4))
    assert torch.equal(start, copy)


@every_task
def test_a_pause_changes_nothing(name: str) -> None:
    """Closing releases threads and the like; whoever goes on, goes on exactly."""
    action = random_actions(short(name), 12)
    env = short(name)
    steps = [env.reset(2)]
    for t, one in enumerate(action):
        if t == 5:
            env.close()
        steps.append(env.step(one))
    assert_equal(stacked(steps), play(short(name), action, 2))


@every_task
def test_a_reset_without_a_seed_goes_on_with_the_noise(name: str) -> None:
    env, twin = make(name), make(name)
    first, second, third = (env.reset(seed).observation for seed in (4, None, None))
    assert torch.equal(twin.reset(4).observation, first)
    assert torch.equal(twin.reset().observation, second)
    if name not in HAVE_ONE_START:
        assert len(np.unique(torch.cat([first, second, third]).flatten(0, 1).numpy(), axis=0)) == 3


def test_an_unseeded_environment_can_be_repeated() -> None:
    env, twin = make("PointGather"), make("PointGather")
    start = env.reset().observation
    assert not torch.equal(twin.reset().observation, start)
    assert torch.equal(twin.reset(env.seed).observation, start)


# --- cases from the field, on tasks whose every number is known -------------------------------------------------------


@pytest.mark.field("cut-target")
def test_the_last_observation_is_the_last_states() -> None:
    """Observation t, horizon 5, truncated: the step of the cut shows 5, never the next start's 0."""
    env = VectorEnv(Counter(horizon=5), time_limit="truncate")
    step = play(env, torch.zeros(13, 1, 1, 1))
    np.testing.assert_array_equal(step.observation.flatten(), [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5, 0, 1])
    np.testing.assert_array_equal(step.truncated.flatten().nonzero().flatten(), [5, 11])
    assert not step.terminated.any()


@pytest.mark.field("seven-steps")
def test_three_step_episodes_and_seven_steps() -> None:
    """The true transitions, and a cost of 3 + the start's an episode; the restart's step is nobody's transition."""
    step = play(VectorEnv(Counter(horizon=3)), torch.zeros(7, 1, 1, 1))
    flat = {key: getattr(step, key).flatten().tolist() for key in ("observation", "reward", "terminated", "is_first")}
    assert flat == {
        "observation": [0, 1, 2, 3, 0, 1, 2, 3],
        "reward": [0, 1, 2, 3, 0, 1, 2, 3],
        "terminated": [False, False, False, True] * 2,
        "is_first": [True, False, False, False] * 2,
    }
    assert step.cost.sum() == 8


@pytest.mark.field("nan-observation")
@pytest.mark.parametrize("key", ["observation", "reward", "cost"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_at_step_ten_is_named(key: str, value: float) -> None:
    env = VectorEnv(Counter(horizon=20, broken=((key, 10, value),)), n_envs=2, n_runs=2)
    env.reset(0)
    for _ in range(9):
        env.step(torch.zeros(2, 2, 1))
    with pytest.raises(EnvironmentFault, match=rf"Counter, run 0, world 0, step 10: {key} is .*finite"):
        env.step(torch.zeros(2, 2, 1))


@pytest.mark.field("bad-cost")
@pytest.mark.parametrize("when", [0, 4])
def test_a_negative_cost_is_named(when: int) -> None:
    env = VectorEnv(Counter(broken=(("cost", when, -1.0),)))
    with pytest.raises(EnvironmentFault, match=rf"Counter, run 0, world 0, step {when}: cost is -1.0; it must be"):
        play(env, torch.zeros(5, 1, 1, 1))


@pytest.mark.field("zero-limit")
def test_a_limit_of_zero_on_a_task_without_costs() -> None:
    step = play(VectorEnv(Counter(cost_limit=0.0, state_cost=0.0)), torch.zeros(256, 1, 1, 1))
    assert step.cost.sum() == 0 and step.reward.isfinite().all()


@pytest.mark.parametrize("change", [{"horizon": 0}, {"cost_limit": -1.0}, {"cost_limit": np.nan}])
def test_impossible_tasks_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"horizon .* must be >= 1, cost_limit .* >= 0"):
        VectorEnv(Counter(**change))


@pytest.mark.parametrize("seed", [-1, [1, 2, 3], [4, -4]])
def test_impossible_seeds_are_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match="seed"):
        VectorEnv(Counter(), n_envs=2).reset(seed)


def test_a_refused_seed_changes_nothing() -> None:
    env = short("PointCircle")
    with pytest.raises(ValueError, match="seed -1 is negative"):
        env.reset(-1)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(torch.zeros(1, 3, 2))
    env.reset(3)
    with pytest.raises(ValueError, match="seed -1 is negative"):
        env.reset(-1)
    assert env.state_dict()["seed"] == [3, 3, 3]


def test_there_is_no_picture_before_a_reset() -> None:
    with pytest.raises(RuntimeError, match=r"no state before reset\(\)"):
        short("GridWorld").render()


def test_whole_numbers_are_clipped_to_the_same_box() -> None:
    """The turn's bound is 0.25, which is no whole number."""
    one, other = short("PointCircle"), short("PointCircle")
    for env, kind in ((one, torch.int64), (other, torch.float32)):
        env.reset(0)
        env.step(torch.ones(1, 3, 2, dtype=kind))
    assert torch.equal(one.state["pose"], other.state["pose"])
    assert one.state["pose"][:, 2].tolist() == [0.25] * 3
