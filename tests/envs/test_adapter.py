"""Other people's environments: what joins, what is refused, and in which words; 6-tuple steps there and back."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from bvf_tutorial.envs import (
    EnvironmentFault,
    FromGymnasium,
    FromSixTuple,
    FromSixTupleVector,
    GymnasiumEnv,
    GymnasiumVectorEnv,
    ToSixTuple,
    ToSixTupleVector,
    make,
)
from bvf_tutorial.envs.registration import environment_id
from tests.envs.toys import Counter, CounterEnv, SixTupleEnv, assert_equal, play, random_actions

torch.set_num_threads(1)


def vector(n: int = 2, of: Callable[[], gymnasium.Env[Any, Any]] = CounterEnv, **options: Any) -> SyncVectorEnv:
    return SyncVectorEnv([of] * n, **options)


def still(n_steps: int, n: int = 2) -> torch.Tensor:
    return torch.zeros(n_steps, 1, n, 1)


@pytest.mark.parametrize("name", ["GridWorld", "PointGather", "SafeHopper"])
@pytest.mark.parametrize("time_limit", ["terminate", "truncate"])
def test_our_own_tasks_come_back_unchanged(name: str, time_limit: str) -> None:
    """Task -> Gymnasium -> adapter is the identity, bitwise, over restarts."""
    options: dict[str, Any] = {"horizon": 6, "time_limit": time_limit}
    env = make(name, 3, **options)
    action = random_actions(env, 30)
    through = FromGymnasium(GymnasiumVectorEnv(name, 3, **options))
    assert_equal(play(through, action, 4), play(env, action, 4))
    assert through.observation_space == env.observation_space and through.action_space == env.action_space
    assert (through.cost_limit, through.cost_limit_source) == (env.cost_limit, "environment")
    sync = FromGymnasium(gymnasium.make_vec(environment_id(name), 3, vectorization_mode="sync", **options))
    assert_equal(play(sync, action, [4, 5, 6]), play(make(name, 3, **options), action, [4, 5, 6]))


@pytest.mark.field("seven-steps")
def test_three_step_episodes_and_seven_steps() -> None:
    """The true transitions exactly; an episode costs 3, not 4, and the restart's step begins the next one."""
    step = play(FromGymnasium(vector(), cost_limit=2.0), still(7))
    assert step.observation.shape == (8, 1, 2, 1)
    for world in range(2):
        flat = {key: getattr(step, key)[:, 0, world].flatten().tolist() for key in ("observation", "reward", "cost")}
        assert flat == {"observation": [0, 1, 2, 3] * 2, "reward": [0, 1, 2, 3] * 2, "cost": [0, 1, 1, 1] * 2}
    assert step.is_first[:, 0, 0].tolist() == [True, False, False, False] * 2
    assert step.terminated[:, 0, 0].tolist() == [False, False, False, True] * 2
    assert not step.truncated.any()


@pytest.mark.parametrize(
    ("end", "key"), [("terminated", "terminated"), ("truncated", "truncated"), ("both", "terminated")]
)
def test_both_kinds_of_end_stay_apart(end: str, key: str) -> None:
    """A cut shows the last state, t = 3, to bootstrap from; where both flags are set, the episode has ended for good."""
    step = play(FromGymnasium(vector(of=lambda: CounterEnv(end=end)), cost_limit=2.0), still(7))
    other = {"terminated": "truncated", "truncated": "terminated"}[key]
    assert getattr(step, key)[3].all() and not getattr(step, other).any()
    assert (step.observation[3] == 3).all() and (step.observation[4] == 0).all()


def test_worlds_end_at_different_times() -> None:
    env = FromGymnasium(SyncVectorEnv([lambda: CounterEnv(2), lambda: CounterEnv(4)]), cost_limit=1.0)
    step = play(env, still(9))
    assert step.observation[:, 0, 0, 0].tolist() == [0, 1, 2, 0, 1, 2, 0, 1, 2, 0]
    assert step.observation[:, 0, 1, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert torch.equal(step.is_first[1:], step.is_last[:-1])


# --- costs ------------------------------------------------------------------------------------------------------------


def broken(**options: Any) -> FromGymnasium:
    """Return an adapted batch of three in which only the last world is broken."""
    worlds = [CounterEnv, CounterEnv, lambda: CounterEnv(20, **options)]
    return FromGymnasium(SyncVectorEnv([*worlds]), cost_limit=1.0)


@pytest.mark.field("nan-observation", "bad-cost")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"reports": lambda t: t != 10},
            r"world 2, step 10: info['cost'] is missing; put the cost of the state just entered",
        ),
        (
            {"reports": lambda t: t != 0},
            r"world 2, step 0: info['cost'] is missing at an episode's start; .* start_cost=0.0",
        ),
        (
            {"cost": lambda t: -1.0 if t == 10 else 0.0},
            r"world 2, step 10: info['cost'] is -1.0; it must be finite and >= 0",
        ),
        ({"cost": lambda t: np.nan if t == 10 else 0.0}, r"world 2, step 10: info['cost'] is nan"),
        ({"cost": lambda t: np.inf if t == 0 else 0.0}, r"world 2, step 0: info['cost'] is inf"),
        ({"observe": lambda t: np.nan if t == 10 else t}, r"world 2, step 10: observation is [nan]; it must be finite"),
        ({"observe": lambda t: np.inf if t == 10 else t}, r"world 2, step 10: observation is [inf]"),
    ],
)
def test_faults_are_named(options: dict[str, Any], message: str) -> None:
    pattern = re.escape(f"SyncVectorEnv, run 0, {message}").replace(r"\.\*", ".*")
    with pytest.raises(EnvironmentFault, match=pattern):
        play(broken(**options), still(12, 3))


@pytest.mark.parametrize("cost", [lambda t: [1.0, 2.0], lambda t: "much", lambda t: np.ones((1,))])
def test_a_misshapen_cost_is_named(cost: Callable[[int], Any]) -> None:
    env = FromGymnasium(vector(of=lambda: CounterEnv(cost=cost)), cost_limit=1.0)
    with pytest.raises(EnvironmentFault, match=r"step 0: info\['cost'\] has shape .* one number per world"):
        env.reset(0)


@pytest.mark.field("bad-cost")
def test_a_missing_cost_names_a_key_that_looks_like_it() -> None:
    class Other(CounterEnv):
        def _seen(self) -> Any:
            return super()._seen()[0], {"costs": 1.0, "lives": 3}

    with pytest.raises(EnvironmentFault, match=r"It has 'costs'; .*cost_key='costs'"):
        play(FromGymnasium(vector(of=Other), cost_limit=1.0, start_cost=0.0), still(1))
    assert (play(FromGymnasium(vector(of=Other), cost_limit=1.0, cost_key="costs"), still(5)).cost == 1).all()
    # No cost in any world and step, which the default of others turns into 0.
    with pytest.raises(EnvironmentFault, match="world 0, step 1: info"):
        play(FromGymnasium(vector(of=lambda: CounterEnv(reports=lambda t: False)), 1.0, start_cost=0.0), still(1))


def test_starts_that_report_no_cost() -> None:
    """The usual case: an explicit start_cost stands in, at resets and at restarts, and never for a step."""
    env = vector(of=lambda: CounterEnv(reports=lambda t: t > 0))
    step = play(FromGymnasium(env, cost_limit=1.0, start_cost=0.25), still(7))
    assert step.cost[:, 0, 0].tolist() == [0.25, 1, 1, 1] * 2
    reported = play(FromGymnasium(vector(of=lambda: CounterEnv(cost=lambda t: 2.0)), 1.0, start_cost=0.25), still(7))
    assert (reported.cost == 2).all()
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="start_cost is"):
            FromGymnasium(env, cost_limit=1.0, start_cost=bad)


# --- the limit --------------------------------------------------------------------------------------------------------


@pytest.mark.field("one-limit")
def test_there_is_one_limit_and_one_source() -> None:
    """Limit 20 in the environment and 25 from the caller: an error, or recorded when it is meant."""
    own = vector(of=lambda: CounterEnv(cost_limit=20.0))
    env = FromGymnasium(own)
    assert (env.cost_limit, env.cost_limit_source) == (20.0, "environment")
    assert FromGymnasium(own, cost_limit=20).cost_limit_source == "environment"
    with pytest.raises(
        ValueError, match="has cost_limit 20, but you say 25; leave yours out, or say may_override=True"
    ):
        FromGymnasium(own, cost_limit=25)
    env = FromGymnasium(own, cost_limit=25, may_override=True)
    assert (env.cost_limit, env.cost_limit_source) == (25.0, "argument, in place of the environment's 20")
    bare = FromGymnasium(vector(), cost_limit=25)
    assert (bare.cost_limit, bare.cost_limit_source) == (25.0, "argument")
    with pytest.raises(ValueError, match="has no attribute cost_limit; say cost_limit="):
        FromGymnasium(vector())
    with pytest.raises(ValueError, match=re.escape("different") + r"|the cost limits \[20.0, 25.0\]; make them equal"):
        FromGymnasium(SyncVectorEnv([lambda: CounterEnv(cost_limit=20.0), lambda: CounterEnv(cost_limit=25.0)]))
    for bad in (-1.0, np.nan, np.inf):
        with pytest.raises(ValueError, match="must be finite and >= 0"):
            FromGymnasium(vector(), cost_limit=bad)


def test_the_limit_is_found_behind_wrappers_and_in_other_processes() -> None:
    wrapped = gymnasium.wrappers.vector.RecordEpisodeStatistics(vector(of=lambda: CounterEnv(cost_limit=20.0)))
    assert FromGymnasium(wrapped).cost_limit == 20.0
    assert FromGymnasium(GymnasiumVectorEnv("PointGather", 2, preset="binding")).cost_limit == 0.4
    other = AsyncVectorEnv([lambda: CounterEnv(cost_limit=20.0)] * 2)
    env = FromGymnasium(other)
    assert env.cost_limit == 20.0 and play(env, still(7)).cost.sum() == 12
    env.close()
    bare = FromGymnasium(AsyncVectorEnv([CounterEnv] * 2), cost_limit=3.0)  # asking did not end its processes
    assert bare.cost_limit == 3.0 and play(bare, still(7)).cost.sum() == 12
    bare.close()


# --- what does not fit ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_other_autoresets_are_refused(mode: AutoresetMode) -> None:
    with pytest.raises(ValueError, match=rf"autoreset is '{mode.value}'.* make it with autoreset_mode=.*NEXT_STEP"):
        FromGymnasium(vector(autoreset_mode=mode), cost_limit=1.0)


def test_an_unknown_autoreset_is_refused_and_a_wrong_claim_found() -> None:
    env = vector()
    del env.metadata["autoreset_mode"]
    with pytest.raises(ValueError, match=r"metadata\['autoreset_mode'\] is missing"):
        FromGymnasium(env, cost_limit=1.0)
    liar = vector(autoreset_mode=AutoresetMode.SAME_STEP)
    liar.metadata["autoreset_mode"] = AutoresetMode.NEXT_STEP
    with pytest.raises(EnvironmentFault, match="step 3: info has 'final_obs', so it restarts in the same step"):
        play(FromGymnasium(liar, cost_limit=1.0), still(5))


def test_a_restart_earns_nothing() -> None:
    """Some environments repeat a reward there; no move led to a start."""

    class Paying(SyncVectorEnv):
        def step(self, actions: Any) -> Any:
            observation, reward, *rest = super().step(actions)
            return observation, reward + 5, *rest

    step = play(FromGymnasium(Paying([CounterEnv] * 2), cost_limit=1.0), still(7))
    assert step.reward[:, 0, 0].tolist() == [0, 6, 7, 8] * 2


def test_a_single_environment_is_refused() -> None:
    with pytest.raises(TypeError, match=r"CounterEnv is no gymnasium.vector.VectorEnv; wrap one environment as Sync"):
        FromGymnasium(CounterEnv(), cost_limit=1.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"action_space": spaces.MultiDiscrete([2, 3])}, "only Discrete and Box"),
        ({"action_space": spaces.Box(0, 9, (2,), np.int64)}, "only Discrete and Box"),
        ({"action_space": spaces.Box(-np.inf, np.inf, (2,))}, "is unbounded, and a policy is scaled to the box"),
        ({"observation_space": spaces.Sequence(spaces.Discrete(3))}, "do not flatten"),
    ],
)
def test_spaces_that_no_learner_knows_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"SyncVectorEnv: .*{message}"):
        FromGymnasium(vector(of=lambda: CounterEnv(**options)), cost_limit=1.0)


def test_observations_are_flattened() -> None:
    """A dictionary of an image of bytes and a number of classes; Gymnasium's own order, float32."""
    space = spaces.Dict({"image": spaces.Box(0, 255, (2, 2), np.uint8), "kind": spaces.Discrete(3)})
    seen: Any = lambda t: {"image": np.full((2, 2), 10 * t, np.uint8), "kind": t % 3}  # noqa: E731
    env = FromGymnasium(vector(of=lambda: CounterEnv(observation_space=space, observe=seen)), cost_limit=1.0)
    assert env.observation_space == spaces.Box(
        np.zeros(7, np.float32), np.array([255] * 4 + [1] * 3, np.float32), dtype=np.float32
    )
    step = play(env, still(2))
    assert step.observation[2, 0, 1].tolist() == [20, 20, 20, 20, 0, 0, 1]
    table = spaces.Box(-9, 9, (2, 3), np.float64)
    env = FromGymnasium(
        vector(of=lambda: CounterEnv(observation_space=table, observe=lambda t: np.full((2, 3), float(t)))), 1.0
    )
    assert play(env, still(1)).observation[1].tolist() == [[[1.0] * 6] * 2]


@pytest.mark.parametrize(
    ("space", "seen"),
    [
        (spaces.Dict({"kind": spaces.Discrete(2)}), lambda t: {"kind": 0 if t < 4 else 5}),
        (spaces.Box(0, 9, (2,), np.float32), lambda t: np.zeros(2 if t < 4 else 3)),
    ],
)
def test_observations_that_break_their_space_are_named(space: Any, seen: Any) -> None:
    class Bare(gymnasium.vector.VectorEnv[Any, Any, Any]):
        """A batch of one that checks nothing."""

        num_envs, metadata = 1, {"autoreset_mode": AutoresetMode.NEXT_STEP}
        single_observation_space, single_action_space = space, spaces.Discrete(2)
        observation_space = gymnasium.vector.utils.batch_space(space, 1)

        def reset(self, **arguments: Any) -> Any:
            self.t = 0
            return self._seen(), {"cost": np.zeros(1)}

        def _seen(self) -> Any:
            one = seen(self.t)
            return {"kind": np.array([one["kind"]])} if isinstance(one, dict) else one[None]

        def step(self, actions: Any) -> Any:
            self.t += 1
            no = np.zeros(1, np.bool_)
            return self._seen(), np.zeros(1), no, no, {"cost": np.zeros(1)}

    with pytest.raises(EnvironmentFault, match="Bare, run 0, world 0, step 4: observation does not fit into"):
        play(FromGymnasium(Bare(), cost_limit=1.0), torch.zeros(6, 1, 1, dtype=torch.int64))


def test_observations_in_a_reused_buffer_are_copied() -> None:
    step = play(FromGymnasium(vector(copy=False), cost_limit=1.0), still(7))
    assert step.observation[:, 0, 0, 0].tolist() == [0, 1, 2, 3] * 2


def test_actions_are_clipped_reshaped_and_counted_from_zero() -> None:
    table = spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 2.0]]), dtype=np.float64)
    batch = vector(of=lambda: CounterEnv(9, action_space=table))
    env = FromGymnasium(batch, cost_limit=1.0)
    env.reset(0)
    env.step(torch.tensor([[[5.0, -5.0], [0.5, 1.5]]]))
    assert [one.action[0].tolist() for one in batch.envs] == [[[1.0, 0.0]], [[0.5, 1.5]]]
    assert batch.envs[0].action[0].dtype == np.float64
    with pytest.raises(EnvironmentFault, match=r"world 1, step 2: action is \[.*nan.*\]; it must be finite"):
        env.step(torch.tensor([[[0.0, 0.0], [0.0, np.nan]]]))
    with pytest.raises(ValueError, match=re.escape("action has shape (2, 2), expected (1, 2, 2)")):
        env.step(torch.zeros(2, 2))
    batch = vector(of=lambda: CounterEnv(9, action_space=spaces.Discrete(3, start=5)))
    env = FromGymnasium(batch, cost_limit=1.0)
    assert env.action_space == spaces.Discrete(3)
    env.reset(0)
    env.step(torch.tensor([[0, 2]]))
    assert [one.action[0] for one in batch.envs] == [5, 7]
    with pytest.raises(EnvironmentFault, match=r"world 1, step 2: action is 3; it must be in 0..2"):
        env.step(torch.tensor([[0, 3]]))
    with pytest.raises(ValueError, match="expected integers"):
        env.step(torch.zeros(1, 2))


@pytest.mark.field("eighty-starts")
def test_seeds_share_no_world() -> None:
    """Seeds 0-9 with 8 worlds: 80 starts, also where Gymnasium's rule, seed + world, would leave 17."""

    class Random(CounterEnv):
        def _seen(self) -> Any:
            return np.array([self.np_random.random()], np.float32), {"cost": 0.0}

    env = FromGymnasium(vector(8, Random), cost_limit=1.0)
    starts = [env.reset(seed).observation for seed in range(10)]
    assert len(torch.cat(starts).unique()) == 80
    assert torch.equal(env.reset(3).observation, starts[3])
    listed = env.reset(list(range(8))).observation.flatten()
    assert listed[5] == np.float32(np.random.default_rng(5).random())
    assert not torch.equal(env.reset().observation, env.reset().observation)


def test_order_of_calls_and_pictures() -> None:
    env = FromGymnasium(vector(), cost_limit=1.0)
    with pytest.raises(RuntimeError, match=r"call reset\(\) before step"):
        env.step(still(1)[0])
    env.check()
    drawn = FromGymnasium(GymnasiumVectorEnv("GridWorld", 2, render_mode="rgb_array", render_size=(72, 72)))
    drawn.reset(0)
    assert drawn.render(1).shape == (72, 72, 3)
    drawn = FromGymnasium(GymnasiumVectorEnv("GridWorld", 2))
    drawn.reset(0)
    with pytest.warns(UserWarning, match="render_mode"), pytest.raises(ValueError, match="draws nothing"):
        drawn.render()


# --- five values and six ----------------------------------------------------------------------------------------------


def same(one: Any, two: Any) -> None:
    """Compare nested returns exactly."""
    assert type(one) is type(two)
    if isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            same(one[key], two[key])
    elif isinstance(one, tuple):
        assert len(one) == len(two)
        for a, b in zip(one, two, strict=True):
            same(a, b)
    else:
        np.testing.assert_array_equal(one, two)


@pytest.mark.field("five-and-six")
def test_single_environments_there_and_back() -> None:
    """100 steps, both directions."""
    five, six = GymnasiumEnv("PointGather"), SixTupleEnv(7)
    again: Any = FromSixTuple(ToSixTuple(GymnasiumEnv("PointGather")))
    back: Any = ToSixTuple(FromSixTuple(SixTupleEnv(7)))
    for one, two in ((five, again), (six, back)):
        generator = np.random.default_rng(0)
        same(one.reset(seed=1), two.reset(seed=1))
        for _ in range(100):
            action = generator.uniform(-1, 1, one.action_space.shape).astype(np.float32)
            result = one.step(action)
            same(result, two.step(action))
            if result[-3] or result[-2]:
                same(one.reset(), two.reset())


@pytest.mark.field("five-and-six")
def test_vector_environments_there_and_back() -> None:
    five, again = (
        GymnasiumVectorEnv("PointGather", 3),
        FromSixTupleVector(ToSixTupleVector(GymnasiumVectorEnv("PointGather", 3))),
    )
    six: Any = ToSixTupleVector(GymnasiumVectorEnv("PointGather", 3))
    back: Any = ToSixTupleVector(FromSixTupleVector(ToSixTupleVector(GymnasiumVectorEnv("PointGather", 3))))
    for one, two in ((five, again), (six, back)):
        generator = np.random.default_rng(0)
        same(one.reset(seed=1), two.reset(seed=1))
        for _ in range(100):
            action = generator.uniform(-1, 1, one.action_space.shape).astype(np.float32)
            same(one.step(action), two.step(action))
    assert len(six.step(action)) == 6


def test_a_six_tuple_environment_joins() -> None:
    """The way for Safety-Gymnasium: convert each, put them into Gymnasium's vector, adapt."""
    batch = vector(of=lambda: FromSixTuple(SixTupleEnv(), start_cost=0.5))
    step = play(FromGymnasium(batch, cost_limit=1.0), still(7))
    assert step.cost[:, 0, 0].tolist() == [0.5, 1, 1, 1] * 2
    batch = vector(of=lambda: FromSixTuple(SixTupleEnv()))
    assert play(FromGymnasium(batch, 1.0, start_cost=0.0), still(7)).cost[:, 0, 1].tolist() == [0, 1, 1, 1] * 2
    with pytest.raises(EnvironmentFault, match=r"start_cost=0\.0"):
        play(FromGymnasium(batch, cost_limit=1.0), still(7))


def test_a_six_tuple_vector_joins() -> None:
    class NoStart(ToSixTupleVector):
        def reset(self, **arguments: Any) -> Any:
            return super().reset(**arguments)[0], {}

    env = FromSixTupleVector(NoStart(GymnasiumVectorEnv(Counter(horizon=3), 2)), start_cost=0.5)
    step = play(FromGymnasium(env, cost_limit=2.0), still(7))
    assert step.cost[:, 0, 0].tolist() == [0.5, 1, 1, 1, 1, 1, 1, 1]
    with pytest.raises(EnvironmentFault, match="missing at an episode's start"):
        FromGymnasium(FromSixTupleVector(NoStart(GymnasiumVectorEnv(Counter(), 2))), cost_limit=2.0).reset(0)


def test_converters_name_what_does_not_fit() -> None:
    class Twice(SixTupleEnv):
        def step(self, action: Any) -> Any:
            *rest, info = super().step(action)
            return *rest, {**info, "cost": 7.0}

    class Column(ToSixTupleVector):
        def step(self, actions: Any) -> Any:
            observation, reward, cost, *rest = super().step(actions)
            return observation, reward, cost[:, None], *rest

    zero, zeros = np.zeros(1), np.zeros((2, 1))
    cases = [
        (FromSixTuple(CounterEnv()), zero, "CounterEnv, step 1: step() returned 5 values, expected six"),
        (FromSixTuple(Twice()), zero, "Twice, step 1: the step's cost is 1.0, info['cost'] 7.0; keep one"),
        (ToSixTuple(CounterEnv(reports=lambda t: False)), zero, "CounterEnv, step 1: info['cost'] is missing; put"),
        (FromSixTupleVector(vector()), zeros, "SyncVectorEnv, step 1: step() returned 5 values, expected six"),
        (FromSixTupleVector(Column(vector())), zeros, "step 1: cost has shape (2, 1), expected (2,)"),
        (
            ToSixTupleVector(SyncVectorEnv([CounterEnv, lambda: CounterEnv(reports=lambda t: t < 1)])),
            zeros,
            "SyncVectorEnv, world 1, step 1: info['cost'] is missing",
        ),
    ]
    for env, action, message in cases:
        env.reset(seed=0)
        with pytest.raises(EnvironmentFault, match=re.escape(message)):
            env.step(action)
