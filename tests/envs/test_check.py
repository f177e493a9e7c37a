"""The checker: silent on what is right, and every kind of wrong found by name, however many at once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from torch import Tensor

from bvf_tutorial.envs import (
    CMDPReport,
    FromGymnasium,
    InvalidEnvironmentError,
    State,
    ToSixTuple,
    VectorEnv,
    check_cmdp_env,
    make,
)
from bvf_tutorial.envs.registration import TASKS, environment_id
from tests.envs.toys import Counter, CounterEnv

torch.set_num_threads(1)


@pytest.mark.parametrize("name", sorted(TASKS))
@pytest.mark.parametrize("kind", ["single", "vector", "torch", "adapted"])
def test_our_tasks_pass_in_silence(name: str, kind: str) -> None:
    env: Any = {
        "single": lambda: gymnasium.make(environment_id(name), horizon=9),
        "vector": lambda: gymnasium.make_vec(environment_id(name), 3, horizon=9),
        "torch": lambda: make(name, 2, 2, horizon=9),
        "adapted": lambda: FromGymnasium(
            gymnasium.make_vec(environment_id(name), 2, vectorization_mode="sync", horizon=9)
        ),
    }[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        report = check_cmdp_env(env, n_steps=60)
    assert report.note == () and report.cost_limit == make(name).cost_limit
    assert report.n_episodes >= 6 and 1 <= report.mean_length <= 9


@pytest.mark.parametrize(
    "env",
    [
        CounterEnv(3, cost_limit=2.0),
        SyncVectorEnv([lambda: CounterEnv(3, cost_limit=2.0)] * 2),
        FromGymnasium(SyncVectorEnv([lambda: CounterEnv(3)] * 2), cost_limit=2.0),
        VectorEnv(Counter(3, state_cost=0.75), n_envs=2),
    ],
    ids=lambda env: type(env).__name__,
)
def test_the_report_counts_right(env: Any) -> None:
    """Episodes of 3 decisions and 4 states, cost 3, return 1 + 2 + 3, a restart in every fourth step."""
    n = 2 if hasattr(env, "num_envs") or hasattr(env, "n_envs") else 1
    assert check_cmdp_env(env, n_steps=11) == CMDPReport(3 * n, 3.0, 6.0, 3.0, 2.0, ())


def problems(env: Any, n_steps: int = 40) -> tuple[str, ...]:
    with pytest.raises(InvalidEnvironmentError) as caught:
        check_cmdp_env(env, n_steps)
    assert str(caught.value).count("\n") == len(caught.value.problem)
    return caught.value.problem


def alone(**options: Any) -> CounterEnv:
    return CounterEnv(12, **options)


def batch(**options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([lambda: CounterEnv(12), lambda: CounterEnv(12, **options)])


BROKEN: list[tuple[dict[str, Any], str]] = [
    (
        {"reports": lambda t: t > 0},
        r"info\['cost'\] at a start, step 0, world W: it is missing at .* start_cost=0.0 .*\(and 3 more\)",
    ),
    (
        {"reports": lambda t: t != 7},
        r"info\['cost'\] of a step, step 7, world W: it is missing; put the cost .*\(and 2 more\)",
    ),
    (
        {"cost": lambda t: -1.0 if t == 7 else 0.0},
        r"info\['cost'\], step 7, world W: it is -1; a cost is finite and >= 0",
    ),
    ({"cost": lambda t: np.nan if t == 7 else 0.0}, r"info\['cost'\], step 7, world W: it is nan"),
    ({"observe": lambda t: np.nan if t == 7 else t}, r"observation, step 7, world W: it has NaN or infinite entries"),
]


@pytest.mark.parametrize(("options", "message"), BROKEN)
@pytest.mark.parametrize(("kind", "world"), [(alone, "0"), (batch, "1")])
def test_wrong_values_are_found(options: dict[str, Any], message: str, kind: Callable[..., Any], world: str) -> None:
    (problem,) = problems(kind(**options))
    assert re.match(message.replace("W", world), problem), problem


def test_every_problem_is_listed() -> None:
    """Five mistakes in one environment, each with its key, its first step and how often it came again."""
    env = CounterEnv(
        12, reports=lambda t: t not in (0, 5), cost=lambda t: -2.0 if t == 3 else 1, observe=lambda t: -1.0 if t == 4 else t,
        cost_limit=-3.0,
    )  # fmt: skip
    found = problems(env)
    starts = [re.split(r",|:", each)[0] for each in found]
    assert starts == [
        "cost_limit",
        "info['cost']",
        "observation",
        "info['cost'] at a start",
        "info['cost'] of a step",
        "info['cost']",
    ]
    assert "it was int and is float" in found[1] and "Report float(cost)" in found[1]
    assert "step 4: ndarray, shape (1,), type float32, values -1 to -1 is not in Box" in found[2]
    with pytest.raises(ValueError, match=r"^CounterEnv: 6 problems.\n1\. cost_limit: it is -3.0; .*\n2\. "):
        check_cmdp_env(env)


@pytest.mark.parametrize(
    ("cost", "words"),
    [(lambda t: [1.0, 2.0], "it is [1.0, 2.0]; report one number"), (lambda t: "high", "it is 'high'")],
)
def test_a_misshapen_cost_is_found(cost: Callable[[int], Any], words: str) -> None:
    (problem,) = problems(alone(cost=cost))
    assert problem.startswith(f"info['cost'], step 0: {words}")
    (problem,) = problems(SyncVectorEnv([lambda: alone(cost=cost)] * 2))
    assert problem.startswith("info['cost'], step 0: it has shape") and "one number per world" in problem


def test_a_fault_of_ours_is_one_problem() -> None:
    (problem,) = problems(VectorEnv(Counter(20, broken=(("cost", 10, -1.0),)), n_envs=2))
    assert problem == "Counter, run 0, world 0, step 10: cost is -1.0; it must be finite and >= 0."
    env = FromGymnasium(SyncVectorEnv([lambda: alone(reports=lambda t: t > 0)] * 2), cost_limit=1.0)
    (problem,) = problems(env)
    assert "info['cost'] is missing at an episode's start" in problem


class Random(CounterEnv):
    """Shows a random number from a generator of choice."""

    generator: ClassVar[Any] = None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed, options=options)
        return self._shown(), {"cost": 0.0}

    def step(self, action: Any) -> Any:
        return self._shown(), *super().step(action)[1:]

    def _shown(self) -> Any:
        return np.array([(self.generator or self.np_random).random()], np.float32)


def test_a_seed_that_decides_nothing_is_found() -> None:
    class Unseeded(Random):
        generator = np.random.default_rng()

    (problem,) = problems(Unseeded(12))
    assert problem.startswith("seed, step 0, world 0: the same seed and actions gave another observation; draw")

    class Remembering(CounterEnv):
        """Pays more in every life."""

        life = 0

        def reset(self, **arguments: Any) -> Any:
            self.life += 1
            return super().reset(**arguments)

        def _seen(self) -> Any:
            return super()._seen()[0], {"cost": float(self.life)}

    (problem,) = problems(Remembering(12))
    assert "seed, step 0, world 0: the same seed and actions gave another cost" in problem


def test_worlds_that_share_their_noise_are_noted() -> None:
    """Legal, since a start may be fixed, and seldom meant."""

    class Shared(Random):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=None if seed is None else 2 + seed // 1000, options=options)

    class Seeded(SyncVectorEnv):
        def reset(self, *, seed: Any = None, options: Any = None) -> Any:
            return super().reset(seed=None if seed is None else [1000 * seed] * self.num_envs, options=options)

    note = check_cmdp_env(Seeded([lambda: Shared(12)] * 3), 40).note
    assert [re.split("[,:]", each)[0] for each in note] == ["observation", "observation"]
    assert "worlds 0 and 1 start alike although starts are random" in note[0]
    assert "worlds 0 and 1 are alike at every step under the same actions" in note[1]
    assert check_cmdp_env(SyncVectorEnv([lambda: Random(12)] * 3), 40).note == ()
    assert check_cmdp_env(SyncVectorEnv([lambda: CounterEnv(12)] * 3), 40).note == ()  # a fixed start and no noise


def test_shared_noise_after_a_fixed_start_is_noted() -> None:
    @dataclass(frozen=True)
    class Coin(Counter):
        is_shared: bool = False

        @property
        def move_noise(self) -> int:
            return 1

        def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
            state, reward, terminated = super().move(state, action, noise)
            push = noise[:1].expand(len(noise), 1) if self.is_shared else noise
            return {"t": state["t"] + push[:, 0]}, reward, terminated

    (note,) = check_cmdp_env(VectorEnv(Coin(is_shared=True), 3), 40).note
    assert "worlds 0 and 1 are alike at every step" in note
    assert check_cmdp_env(VectorEnv(Coin(), 3), 40).note == ()


def test_the_end_of_episodes() -> None:
    (problem,) = problems(CounterEnv(100), n_steps=40)
    assert problem.startswith(
        "horizon: no episode ended within 40 steps. The limit is on an episode's cost: say a larger"
    )
    (problem,) = problems(VectorEnv(Counter(100)), n_steps=40)
    assert "within 40 steps; the horizon is 100" in problem

    class Late(CounterEnv):
        spec = gymnasium.envs.registration.EnvSpec("late-v0", entry_point="x:y", max_episode_steps=5)

    (problem,) = problems(Late(12))
    assert problem == "horizon: an episode has 12 decisions, the horizon is 5; end it there."
    (note,) = check_cmdp_env(alone(end="both"), 40).note
    assert note.startswith(
        "flags, step 12, world 0: terminated and truncated are both set; terminated counts. (and 2 more)"
    )
    assert check_cmdp_env(alone(end="truncated"), 40).note == ()


def test_a_sum_reported_at_the_end_is_noted() -> None:
    (note,) = check_cmdp_env(alone(cost=lambda t: 9.0 * (t == 12)), 40).note
    assert note.startswith(
        "info['cost'] is positive only at an episode's end (3 episodes). If that is the episode's sum"
    )
    assert check_cmdp_env(alone(cost=lambda t: 0.0), 40).note == ()


def test_vectors_of_the_wrong_form() -> None:
    found = problems(SyncVectorEnv([CounterEnv] * 2, autoreset_mode=AutoresetMode.SAME_STEP))
    assert found[0].startswith(
        "autoreset: its autoreset is 'SameStep', which hides an episode's last state; make it with"
    )

    class Paying(SyncVectorEnv):
        """Repeats the last reward at a restart."""

        def step(self, actions: Any) -> Any:
            observation, _, *rest = super().step(actions)
            return observation, np.ones(self.num_envs), *rest

    (problem,) = problems(Paying([CounterEnv] * 2))
    assert problem.startswith("reward at a restart, step 4, world 0: it is 1; no move led to this state")

    class Column(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            observation, reward, *rest = super().step(actions)
            return observation, reward[:, None], *rest

    (problem,) = problems(Column([CounterEnv] * 2))
    assert problem == "reward, step 1: it has shape (2, 1), expected (2,), one for each world."
    found = problems(SyncVectorEnv([lambda: CounterEnv(cost_limit=1.0), lambda: CounterEnv(cost_limit=2.0)]))
    assert "its worlds have the cost limits [1.0, 2.0]; make them equal" in found[0]


def test_steps_and_resets_of_the_wrong_form() -> None:
    (problem,) = problems(ToSixTuple(CounterEnv()))
    assert (
        problem
        == "step, step 1: step() returned six values; wrap the environment in FromSixTuple (FromSixTupleVector)."
    )

    class Old(CounterEnv):
        def reset(self, **arguments: Any) -> Any:
            return super().reset(**arguments)[0]

    (problem,) = problems(Old())
    assert problem == "reset, step 0: reset() must return (observation, info), info a dict; it returned ndarray."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_space": spaces.Box(-np.inf, np.inf, (1,))}, "action_space: .* is unbounded"),
        ({"action_space": spaces.MultiBinary(2)}, "action_space: .* is unknown to the learners"),
        ({"observation_space": spaces.Sequence(spaces.Discrete(2))}, "observation_space: .* does not flatten"),
    ],
)
def test_spaces(options: dict[str, Any], message: str) -> None:
    (problem,) = problems(CounterEnv(**options))
    assert re.match(message, problem)


def test_flattened_observations_are_checked_too() -> None:
    space = spaces.Dict({"t": spaces.Box(0, 99, (1,)), "kind": spaces.Discrete(2)})
    good: Any = lambda t: {"t": np.array([t], np.float32), "kind": t % 2}  # noqa: E731
    bad: Any = lambda t: {"t": np.array([t], np.float32), "kind": 0 if t < 2 else 5}  # noqa: E731
    for n in (1, 2):
        envs = [CounterEnv(observation_space=space, observe=good), CounterEnv(observation_space=space, observe=bad)]
        right, wrong = (one if n == 1 else SyncVectorEnv([lambda one=one: one]) for one in envs)
        assert check_cmdp_env(right, 20).n_episodes == 5
        assert any("observation, step 2: dict is not in Dict" in each for each in problems(wrong))


def test_an_observation_of_another_shape_ends_the_play() -> None:
    class Growing(CounterEnv):
        def _seen(self) -> Any:
            return np.zeros(1 + (self.t > 4), np.float32), {"cost": 0.0}

    (problem,) = problems(Growing(12))
    assert problem.startswith("observation, step 5: ndarray, shape (2,), type float32, values 0 to 0 is not in Box")


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeError, match=r"int is no environment that can be checked; give a gymnasium.Env"):
        check_cmdp_env(3)  # type: ignore[arg-type]


class Later(CounterEnv):
    """Gets one reset wrong, the ``bad``-th: its cost has two entries."""

    def __init__(self, bad: int, **options: Any) -> None:
        super().__init__(**options)
        self.n_left = bad

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = super().reset(**options)
        self.n_left -= 1
        return observation, info if self.n_left else {**info, "cost": [0.0, 0.0]}


@pytest.mark.parametrize("bad", range(1, 13))
def test_what_only_a_repeated_play_meets_is_found(bad: int) -> None:
    """Twenty steps of three decisions each are six resets, and are played twice."""
    with pytest.raises(InvalidEnvironmentError, match=r"info\['cost'\], step \d+: it is \[0.0, 0.0\]"):
        check_cmdp_env(Later(bad), 20)


class Worlds(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Two worlds whose cost has an entry too many in one play, the ``bad``-th."""

    metadata: ClassVar[dict[str, Any]] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    num_envs = 2
    single_observation_space = spaces.Box(0.0, 9.0, (1,), np.float32)
    single_action_space = spaces.Discrete(2)
    observation_space = batch_space(single_observation_space, 2)
    action_space = batch_space(single_action_space, 2)

    def __init__(self, bad: int) -> None:
        self.n_left = bad

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        return np.full((2, 1), self.t % 4, np.float32), {"cost": np.zeros(2 + (self.n_left == 0))}

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        self.t, self.n_left = 0, self.n_left - 1
        return self._seen()

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        self.t += 1
        observation, info = self._seen()
        return observation, np.zeros(2), np.full(2, self.t % 4 == 3), np.zeros(2, bool), info


@pytest.mark.parametrize("bad", range(1, 5))
def test_what_only_one_of_the_four_plays_of_a_vector_meets_is_found(bad: int) -> None:
    check_cmdp_env(Worlds(0), 20)
    with pytest.raises(InvalidEnvironmentError, match=r"info\['cost'\], step 0: it has shape \(3,\)"):
        check_cmdp_env(Worlds(bad), 20)
