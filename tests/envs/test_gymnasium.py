"""The tasks behind Gymnasium's interface: its own checker, making by id in every way, costs in info, pictures."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import bvf_tutorial.envs
from bvf_tutorial.envs import EnvironmentFault, GymnasiumEnv, GymnasiumVectorEnv, PointGather, VectorEnv, make, register
from bvf_tutorial.envs.registration import TASKS, environment_id
from tests.envs.toys import Counter

torch.set_num_threads(1)

every_task = pytest.mark.parametrize("name", sorted(TASKS))
SOME = pytest.mark.parametrize("name", ["GridWorld", "PointGather", "SafeCheetah"])


@contextmanager
def no_warnings(name: str) -> Iterator[None]:
    """Turn every warning into an error, but those that Gymnasium gives its own robots too: their velocity has no bound."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name.startswith("Safe"):
            warnings.filterwarnings("ignore", r".*A Box observation space (mini|maxi)mum value is -?infinity")
        yield


@every_task
def test_gymnasiums_checker_is_content(name: str) -> None:
    """Both render modes and closing twice included, with warnings as errors."""
    with no_warnings(name):
        env = gymnasium.make(environment_id(name))
        check_env(env.unwrapped)
        env.close()


@every_task
def test_ids_make_single_and_vector_environments(name: str) -> None:
    with no_warnings(name):
        single = gymnasium.make(environment_id(name), horizon=3)
        many = gymnasium.make_vec(environment_id(name), num_envs=3, horizon=3)
    assert type(single.unwrapped) is GymnasiumEnv and type(many) is GymnasiumVectorEnv
    assert many.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert single.metadata["render_fps"] == many.metadata["render_fps"] == single.unwrapped.task.frames_per_second
    assert single.unwrapped.task.name == many.task.name == name
    assert single.unwrapped.cost_limit == many.cost_limit == many.task.cost_limit
    assert many.observation_space.shape == (3, *single.observation_space.shape)
    assert many.action_space == gymnasium.vector.utils.batch_space(single.action_space, 3)


@pytest.mark.field("five-and-six")
@every_task
def test_every_reset_and_step_reports_its_cost(name: str) -> None:
    """One number where there is one world; an array with Gymnasium's mask where there are several."""
    single, many = (
        gymnasium.make(environment_id(name), horizon=3),
        gymnasium.make_vec(environment_id(name), 3, horizon=3),
    )
    observation, info = single.reset(seed=1)
    assert info.keys() == {"cost"} and type(info["cost"]) is float
    assert observation in single.observation_space and observation.dtype == np.float32
    single.action_space.seed(0), many.action_space.seed(0)
    observation, reward, terminated, truncated, info = single.step(single.action_space.sample())
    assert [type(each) for each in (reward, terminated, truncated, info["cost"])] == [float, bool, bool, float]
    assert observation in single.observation_space and info.keys() == {"cost"}
    observation, info = many.reset(seed=1)
    for _ in range(6):
        assert info.keys() == {"cost", "_cost"} and info["_cost"].all()
        assert info["cost"].shape == info["_cost"].shape == (3,)
        assert (info["cost"].dtype, info["_cost"].dtype) == (np.float64, np.bool_)
        assert observation in many.observation_space
        observation, reward, terminated, truncated, info = many.step(many.action_space.sample())
        assert [each.dtype for each in (reward, terminated, truncated)] == [np.float64, np.bool_, np.bool_]
        assert reward.shape == terminated.shape == truncated.shape == (3,)


@SOME
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_gymnasiums_own_vectors_give_the_same_trajectories(name: str, mode: str) -> None:
    """A list of seeds means the same everywhere; three restarts."""
    options: dict[str, Any] = {"horizon": 4, "time_limit": "truncate"}
    ours = gymnasium.make_vec(environment_id(name), 2, **options)
    theirs = gymnasium.make_vec(environment_id(name), 2, vectorization_mode=mode, **options)
    ours.action_space.seed(3)
    seen = [ours.reset(seed=[8, 3]), theirs.reset(seed=[8, 3])]
    for t in range(16):
        for one, two in zip(*seen, strict=True):
            for a, b in zip(one.values(), two.values(), strict=True) if isinstance(one, dict) else [(one, two)]:
                assert a.dtype == b.dtype, t
                np.testing.assert_array_equal(a, b, err_msg=f"step {t}")
        action = ours.action_space.sample()
        seen = [ours.step(action), theirs.step(action)]
    assert theirs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    theirs.close()


def test_arguments_reach_the_task_and_its_worlds() -> None:
    env = gymnasium.make("bvf/PointGather-v0", preset="binding", horizon=9, is_time_aware=True, time_limit="truncate")
    task = env.unwrapped.task
    assert isinstance(task, PointGather) and (task.horizon, task.cost_limit) == (9, 0.4)
    assert env.observation_space.shape == (30,)
    assert env.unwrapped.worlds.time_limit == "truncate"
    assert gymnasium.make("bvf/PointGather-v0", cost_limit=2.5).unwrapped.cost_limit == 2.5
    assert gymnasium.make_vec("bvf/PointGather-v0", 2, preset="binding", cost_limit=2.5).cost_limit == 2.5


@pytest.mark.field("misspelt")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"costlimit": 1.0},
            r"PointGather has no argument 'costlimit'; did you mean 'cost_limit'\? It takes horizon, .*preset",
        ),
        ({"presets": "binding"}, "did you mean 'preset'"),
        ({"time_aware": True}, "did you mean 'is_time_aware'"),
        ({"_place_on": {}}, "has no argument '_place_on'"),
        ({"n_envs": 4}, "takes no n_envs; say num_envs"),
        ({"preset": "bindings"}, "no preset 'bindings'; choose one of paper, binding"),
        ({"time_limit": "cut"}, "time_limit is 'cut'"),
        ({"render_mode": "ansi"}, "render_mode is 'ansi'"),
    ],
)
@pytest.mark.parametrize("is_vector", [False, True])
@pytest.mark.filterwarnings("ignore:.*not in the possible render_modes")
def test_unknown_arguments_name_the_nearest(arguments: dict[str, Any], message: str, is_vector: bool) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        (gymnasium.make_vec if is_vector else gymnasium.make)("bvf/PointGather-v0", **arguments)


def test_torch_environments_by_name() -> None:
    env = make("PointGather", n_envs=3, n_runs=2, preset="binding", horizon=4, is_time_aware=True)
    assert type(env) is VectorEnv and env.reset(0).observation.shape == (2, 3, 30)
    assert (env.task.horizon, env.cost_limit) == (4, 0.4)
    assert make(Counter(horizon=2), 2).task.horizon == 2
    with pytest.raises(ValueError, match=r"No task is called 'PointCirle'; did you mean 'PointCircle'.*SafeSwimmer"):
        make("PointCirle")
    with pytest.raises(TypeError, match="did you mean 'horizon'"):
        make("GridWorld", horison=3)
    with pytest.raises(TypeError, match="Counter is already made, so it takes no horizon, preset"):
        make(Counter(), horizon=3, preset="other")


def test_every_registered_task_is_where_the_table_says() -> None:
    for name in TASKS:
        task = make(name).task
        assert task.name == name
        assert getattr(bvf_tutorial.envs, type(task).__name__) is type(task)
    assert set(bvf_tutorial.envs.__all__) <= {*dir(bvf_tutorial.envs), *bvf_tutorial.envs._HOME}


def test_registering_twice_is_silent() -> None:
    before = dict(gymnasium.registry)
    with no_warnings("any"):
        register()
    assert gymnasium.registry == before


def test_a_spec_makes_the_same_environment_again() -> None:
    env = gymnasium.make("bvf/PointGather-v0", preset="binding", horizon=4)
    spec = gymnasium.envs.registration.EnvSpec.from_json(env.spec.to_json())
    again = gymnasium.make(spec)
    assert again.unwrapped.task == env.unwrapped.task
    np.testing.assert_array_equal(again.reset(seed=3)[0], env.reset(seed=3)[0])


def run(code: str) -> str:
    root = Path(bvf_tutorial.envs.__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 0, done.stderr
    assert not done.stderr, done.stderr
    return done.stdout


def test_the_module_can_stand_in_the_id_and_registering_loads_no_torch() -> None:
    code = (
        "import gymnasium, sys\n"
        "print(gymnasium.spec('CartPole-v1').namespace, 'bvf/PointCircle-v0' in gymnasium.registry)\n"
        "import bvf_tutorial.envs\n"
        "print([name for name in ('torch', 'mujoco', 'imageio') if name in sys.modules])\n"
    )
    assert run(code).splitlines() == ["None False", "[]"]
    code = "import gymnasium\nprint(gymnasium.make('bvf_tutorial.envs:bvf/PointCircle-v0').reset(seed=0)[1])"
    assert run(code).strip() == "{'cost': 0.0}"


def test_an_own_task_joins_by_one_call() -> None:
    gymnasium.register(
        "bvf-test/Counter-v0",
        entry_point="bvf_tutorial.envs.gym:GymnasiumEnv",
        vector_entry_point="bvf_tutorial.envs.gym:GymnasiumVectorEnv",
        kwargs={"task": Counter(horizon=2)},
    )
    try:
        single, many = gymnasium.make("bvf-test/Counter-v0"), gymnasium.make_vec("bvf-test/Counter-v0", num_envs=2)
        assert single.reset(seed=0)[1] == {"cost": 1.0}
        many.reset(seed=0)
        seen = [many.step(np.zeros((2, 1)))[0][0, 0] for _ in range(4)]
        assert seen == [1, 2, 0, 1]
    finally:
        del gymnasium.registry["bvf-test/Counter-v0"]


def test_order_of_calls() -> None:
    """Before the first and after the last state of an episode, a step is an error; Gymnasium leaves the latter open."""
    env = GymnasiumEnv(Counter(horizon=2))
    with pytest.raises(ResetNeeded, match="Counter: there is no episode yet"):
        env.step(np.zeros(1))
    env.reset(seed=0)
    env.step(np.zeros(1))
    assert env.step(np.zeros(1))[2]
    with pytest.raises(ResetNeeded, match="Counter: the episode has ended"):
        env.step(np.zeros(1))
    assert env.reset()[0] == [0]
    many = GymnasiumVectorEnv(Counter(horizon=2), 2)
    with pytest.raises(ResetNeeded, match="no episode yet"):
        many.step(np.zeros((2, 1)))


def test_a_reset_in_the_middle_of_an_episode() -> None:
    env = GymnasiumEnv("PointGather", horizon=5)
    first, _ = env.reset(seed=2)
    env.step(np.array([1.0, 0.2]))
    second, _ = env.reset()
    assert not np.array_equal(first, second)
    assert [env.step(np.zeros(2))[2] for _ in range(5)] == [False] * 4 + [True]
    np.testing.assert_array_equal(env.reset(seed=2)[0], first)


@pytest.mark.parametrize("kind", [GymnasiumEnv, GymnasiumVectorEnv])
def test_an_unseeded_first_reset_can_be_repeated(kind: Any) -> None:
    env = kind("PointGather")
    start, _ = env.reset()
    other, _ = kind("PointGather").reset()
    assert not np.array_equal(start, other)
    np.testing.assert_array_equal(kind("PointGather").reset(seed=env.np_random_seed)[0], start)
    # A generator that the user planted decides as well.
    starts = []
    for _ in range(2):
        planted = kind("PointGather")
        planted.np_random = np.random.default_rng(5)
        starts.append(planted.reset()[0])
    np.testing.assert_array_equal(*starts)


def test_what_is_returned_is_the_callers_own() -> None:
    """Writing into an observation reaches neither the state nor the next observation."""
    env, twin = GymnasiumVectorEnv(Counter(), 2), GymnasiumVectorEnv(Counter(), 2)
    for one in (env, twin):
        observation, info = one.reset(seed=0)
        if one is env:
            observation += 100
            info["cost"] += 100
    for _ in range(3):
        first, second = env.step(np.zeros((2, 1))), twin.step(np.zeros((2, 1)))
        np.testing.assert_array_equal(first[0], second[0])
        for each in (*first[:4], first[4]["cost"]):
            each[...] = 1


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (np.zeros(3), r"PointCircle: action has shape \(3,\), expected \(2,\)"),
        (0.0, r"action has shape \(\), expected \(2,\)"),
        (np.array([np.nan, 0.0]), r"PointCircle, run 0, world 0, step 1: action is \[nan, 0.0\]; it must be finite"),
        (np.array([0.0, np.inf]), "action is"),
        ([1e300, 0.0], "action is"),
    ],
)
def test_bad_actions(action: Any, message: str) -> None:
    env = GymnasiumEnv("PointCircle")
    env.reset(seed=0)
    with pytest.raises(ValueError, match=message), no_warnings("any"):
        env.step(action)


def test_discrete_actions() -> None:
    env = GymnasiumEnv("GridWorld")
    for action in (2, np.int64(2), np.uint8(2), np.array(2), torch.tensor(2)):
        env.reset(seed=0)
        env.step(action)
    for action, message in ((4, "step 6: action is 4; it must be in 0..3"), (-1, "action is -1")):
        env.reset(seed=0)
        for _ in range(5):
            env.step(0)
        with pytest.raises(EnvironmentFault, match=message):
            env.step(action)
    for action in (1.0, True, [1]):
        with pytest.raises(ValueError, match="expected"):
            env.step(action)


@pytest.mark.parametrize("kind", [GymnasiumEnv, GymnasiumVectorEnv])
def test_options_of_a_reset_are_refused_in_words(kind: Any) -> None:
    env = kind(Counter())
    env.reset(seed=0, options={})
    with pytest.raises(ValueError, match="options has 'low'"):
        env.reset(options={"low": 3})
    with pytest.raises(ValueError, match="reset all or none"):
        env.reset(options={"reset_mask": np.array([True])})


@SOME
def test_pictures(name: str) -> None:
    env = gymnasium.make(environment_id(name), render_mode="rgb_array", render_size=(144, 192))
    many = gymnasium.make_vec(environment_id(name), 2, render_mode="rgb_array", render_size=(144, 192))
    env.reset(seed=0), many.reset(seed=[0, 1])
    first = env.render()
    assert first.shape == (144, 192, 3) and first.dtype == np.uint8 and first.std() > 5
    frames = many.render()
    assert isinstance(frames, tuple) and len(frames) == 2
    np.testing.assert_array_equal(frames[0], first)
    env.close(), env.close(), many.close()
    np.testing.assert_array_equal(env.unwrapped.render(), first)  # drawn anew


def test_no_picture_without_a_mode_or_a_state() -> None:
    env, many = GymnasiumEnv("GridWorld"), GymnasiumVectorEnv("GridWorld")
    for one in (env, many):
        one.reset(seed=0)
        with pytest.warns(UserWarning, match="render_mode='rgb_array'"):
            assert one.render() is None
    for one in (GymnasiumEnv("GridWorld", "rgb_array"), GymnasiumVectorEnv("GridWorld", 1, "rgb_array")):
        with pytest.raises(ResetNeeded, match="nothing to draw yet"):
            one.render()
    with pytest.raises(NotImplementedError, match="Counter has no picture"):
        (counter := GymnasiumEnv(Counter(), "rgb_array")).reset(seed=0), counter.render()


def test_frames_are_collected() -> None:
    env = gymnasium.make("bvf/GridWorld-v0", render_mode="rgb_array_list")
    env.reset(seed=0)
    env.step(0)
    assert [frame.shape for frame in env.render()] == [(480, 480, 3)] * 2


def test_gymnasiums_wrappers_keep_the_cost() -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(gymnasium.make("bvf/PointCircle-v0", horizon=3))
    env = gymnasium.wrappers.FlattenObservation(gymnasium.wrappers.RescaleAction(env, -1, 1))
    _, info = env.reset(seed=0)
    assert info["cost"] == 0.0
    # Speed 1 along the x axis: x is 1, 2, 3, and costs begin at 2.5.
    infos = [env.step(np.array([1, 0], np.float32))[4] for _ in range(3)]
    assert [info["cost"] for info in infos] == [0.0, 0.0, 1.0]
    assert infos[-1]["episode"]["l"] == 3
