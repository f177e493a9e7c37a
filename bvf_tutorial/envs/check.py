"""This file knows what an environment must do before a learner may trust it, and says what is wrong.

``check_cmdp_env`` plays random actions, writes everything down and reads the record: costs, seeds, episodes, worlds
that share their noise. It collects every problem before it raises, since an environment seldom has one alone.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector.utils import concatenate, create_empty_array, iterate

from .adapter import MISSING_START_COST, FromGymnasium, autoreset_problem, declared_limit, missing_cost, name_of
from .base import EnvironmentFault, TimeStep, VectorEnv

__all__ = ["CMDPReport", "InvalidEnvironmentError", "check_cmdp_env"]

Array = npt.NDArray[Any]
Environment = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any] | VectorEnv | FromGymnasium


class InvalidEnvironmentError(ValueError):
    """An environment that no safe learner can trust.

    Attributes:
        problem: every problem found, each with key, step and what to do.
    """

    def __init__(self, name: str, problem: tuple[str, ...]) -> None:
        self.problem = problem
        count = "1 problem" if len(problem) == 1 else f"{len(problem)} problems"
        super().__init__("\n".join([f"{name}: {count}.", *(f"{i}. {each}" for i, each in enumerate(problem, 1))]))


@dataclass(frozen=True)
class CMDPReport:
    """What random play showed.

    Attributes:
        n_episodes: finished episodes.
        mean_length: their decisions.
        mean_return: their undiscounted sum of rewards.
        mean_cost: their undiscounted sum of costs, start included.
        cost_limit: the environment's own limit; NaN if it has none.
        note: what is legal but looks unintended.
    """

    n_episodes: int
    mean_length: float
    mean_return: float
    mean_cost: float
    cost_limit: float
    note: tuple[str, ...] = ()


def check_cmdp_env(env: Environment, n_steps: int = 1000, seed: int = 0) -> CMDPReport:
    """Play random actions and return what they showed, or raise with a list of everything that is wrong.

    An error is a cost, observation or reward that is missing, misshapen, not finite or out of range; a seed that does
    not determine the trajectory; an autoreset other than next-step; no end of an episode within ``n_steps``, or one
    later than the horizon. A note of the report is what can be meant but seldom is: worlds of a batch that start alike
    or share their noise, costs only at an episode's end, both flags set at once.

    Args:
        env: a Gymnasium environment or vector environment, a ``VectorEnv`` or a ``FromGymnasium``. It is reset.
        n_steps: steps to play; more than an episode has. The play is repeated once.
        seed: of environment and actions.

    Raises:
        InvalidEnvironmentError: naming key, step, world and remedy of every problem.
        TypeError: it is none of these environments.
    """
    player = _player(env)
    _check_description(env, player)
    problem, note, statistic = player.found, _Findings(), (0, math.nan, math.nan, math.nan)
    record = _play(player, n_steps, seed)
    if len(record.cost):
        _check_values(record, problem)
    if not player.is_stopped:
        player.found = _Findings()
        again = _play(player, n_steps, seed)
        if len(again.cost):
            _check_seed(record, again, problem)
        statistic = _check_episodes(record, _horizon(env), problem, note)
    if not (problem.text or player.is_stopped) and player.n_worlds > 1:
        short = min(n_steps, 200)
        alike, other = (_play(player, short, seed, change) for change in (0, 1))
        if not player.is_stopped:
            _check_worlds(alike, other, note)
    problem.add_new(player.found)
    if problem.text:
        raise InvalidEnvironmentError(player.name, problem.lines())
    return CMDPReport(*statistic, player.cost_limit, note.lines())


class _Findings:
    """What was found, the first of each kind in words and the others as a number."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self._count: dict[str, int] = {}

    def add(self, kind: str, text: str, count: int = 1) -> None:
        self.text.setdefault(kind, text)
        self._count[kind] = self._count.get(kind, 0) + count

    def add_new(self, other: "_Findings") -> None:
        """Add the kinds that are not here yet: a repeated play repeats what is wrong with the first."""
        for kind, text in other.text.items():
            if kind not in self.text:
                self.add(kind, text, other._count[kind])

    def where(self, kind: str, is_bad: Any, text: Callable[[int, int], str]) -> None:
        """Add the first True of ``is_bad`` [T + 1, W]; ``text`` takes its step and world."""
        if is_bad.any():
            step, world = (int(i) for i in np.argwhere(is_bad)[0])
            self.add(kind, f"{kind}, step {step}, world {world}: {text(step, world)}", int(is_bad.sum()))

    def lines(self) -> tuple[str, ...]:
        more = {kind: f" (and {self._count[kind] - 1} more)" if self._count[kind] > 1 else "" for kind in self.text}
        return tuple(text + more[kind] for kind, text in self.text.items())


@dataclass(frozen=True, eq=False)
class _Record:
    """Everything seen, [T + 1, W]; observations [T + 1, W, O]. A cost that was not reported is NaN."""

    observation: Array
    reward: Array
    cost: Array
    is_reported: Array
    terminated: Array
    truncated: Array
    is_first: Array


class _Stopped(Exception):  # noqa: N818  # it ends a play and never leaves this file
    """The play cannot go on."""


class _Player(ABC):
    """Resets and steps one kind of environment and returns rows of the record; notes what has the wrong form."""

    def __init__(self, env: Any, name: str, n_worlds: int, space: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.env, self.name, self.n_worlds = env, name, n_worlds
        self.observation_space, self.single_action = space, deepcopy(action)
        self.cost_limit = math.nan
        self.found, self.is_stopped = _Findings(), False
        self.step_number = 0
        self.is_last = np.zeros(n_worlds, dtype=np.bool_)

    def reset(self, seed: int) -> _Record:
        """Start."""
        self.step_number, self.is_last = 0, np.ones(self.n_worlds, dtype=np.bool_)
        return self._finished(self._reset(seed))

    def step(self, action: list[Any]) -> _Record:
        """Move each world by its action."""
        self.step_number += 1
        return self._finished(self._step(action))

    def _finished(self, row: _Record) -> _Record:
        self.is_last = row.terminated | row.truncated
        return row

    @abstractmethod
    def _reset(self, seed: int) -> _Record: ...

    @abstractmethod
    def _step(self, action: list[Any]) -> _Record: ...

    def stop(self, kind: str, text: str) -> _Stopped:
        """Note what makes further play impossible."""
        self.found.add(kind, f"{kind}, step {self.step_number}: {text}")
        return _Stopped()

    def unpacked(self, result: Any, n: int, name: str) -> Any:
        """Return the values of ``reset`` or ``step``, if there are as many as Gymnasium wants and info is a dict."""
        if isinstance(result, tuple) and len(result) == 6 and n == 5:
            raise self.stop(
                "step", "step() returned six values; wrap the environment in FromSixTuple (FromSixTupleVector)."
            )
        if not isinstance(result, tuple) or len(result) != n or not isinstance(result[-1], dict):
            wanted = "(observation, info)" if n == 2 else "(observation, reward, terminated, truncated, info)"
            raise self.stop(name, f"{name}() must return {wanted}, info a dict; it returned {type(result).__name__}.")
        return result

    def observed(self, observation: Any, space: spaces.Space[Any]) -> None:
        """Note an observation outside its space; the record finds those that are not finite."""
        array = observation if isinstance(observation, np.ndarray) else None
        is_finite = array is None or array.dtype.kind != "f" or bool(np.isfinite(array).all())
        is_shaped = array is not None and array.shape == space.shape
        if space.contains(observation) or (is_shaped and not is_finite):
            return
        form = "" if array is None else f", shape {array.shape}, type {array.dtype}"
        given = "" if array is None or not array.size else f", values {array.min():g} to {array.max():g}"
        text = f"{type(observation).__name__}{form}{given} is not in {space}; widen the space, clip or cast."
        self.found.add("observation outside its space", f"observation, step {self.step_number}: {text}")
        if not is_shaped:
            raise _Stopped


class _Single(_Player):
    """A Gymnasium environment, restarted by hand."""

    kind = ""

    def _reset(self, seed: int | None) -> _Record:
        observation, info = self.unpacked(self.env.reset(seed=seed), 2, "reset")
        return self._row(observation, 0.0, False, False, info, True)

    def _step(self, action: list[Any]) -> _Record:
        if self.is_last[0]:
            return self._reset(None)
        observation, reward, terminated, truncated, info = self.unpacked(self.env.step(action[0]), 5, "step")
        return self._row(observation, reward, terminated, truncated, info, False)

    def _row(
        self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any, is_first: bool
    ) -> _Record:
        self.observed(observation, self.observation_space)
        value = np.asarray(info.get("cost", np.nan))
        if value.shape != () or value.dtype.kind not in "biuf":
            raise self.stop("info['cost']", f"it is {info['cost']!r}; report one number, float(cost).")
        if "cost" in info:
            kind = "float" if value.dtype.kind == "f" else "int"
            self.kind = self.kind or kind
            if kind != self.kind:
                self.found.add(
                    "type of cost",
                    f"info['cost'], step {self.step_number}: it was {self.kind} and is {kind}; Gymnasium's vectors "
                    "keep the type of the first and cut off the rest. Report float(cost).",
                )
        flat = np.ravel(np.asarray(spaces.flatten(self.observation_space, observation)))
        return _row(flat[None], [reward], [value], ["cost" in info], [terminated], [truncated], [is_first])


class _Vector(_Player):
    """A Gymnasium vector environment."""

    def _reset(self, seed: int) -> _Record:
        observation, info = self.unpacked(self.env.reset(seed=seed), 2, "reset")
        none = np.zeros(self.n_worlds, dtype=np.bool_)
        return self._row(observation, np.zeros(self.n_worlds), none, none, info)

    def _step(self, action: list[Any]) -> _Record:
        empty: Any = create_empty_array(self.single_action, self.n_worlds)
        batch = concatenate(self.single_action, action, empty)
        return self._row(*self.unpacked(self.env.step(batch), 5, "step"))

    def _row(self, observation: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> _Record:
        self.observed(observation, self.env.observation_space)
        n = self.n_worlds
        for key, value in {"reward": reward, "terminated": terminated, "truncated": truncated}.items():
            if np.shape(value) != (n,):
                raise self.stop(key, f"it has shape {np.shape(value)}, expected {(n,)}, one for each world.")
        value = np.asarray(info.get("cost", np.full(n, np.nan)))
        if value.shape != (n,) or value.dtype.kind not in "biuf":
            raise self.stop(
                "info['cost']", f"it has shape {value.shape} and type {value.dtype}; report one number per world."
            )
        is_reported = np.full(n, "cost" in info) & np.asarray(info.get("_cost", True), dtype=np.bool_)
        worlds = iterate(self.env.observation_space, observation)
        single = self.observation_space
        flat = np.stack([np.ravel(np.asarray(spaces.flatten(single, one))) for one in worlds])
        return _row(
            flat, reward, np.where(is_reported, value, np.nan), is_reported, terminated, truncated, self.is_last
        )


class _Torch(_Player):
    """One of our own environments, whatever it wraps; its worlds are those of all runs."""

    def _reset(self, seed: int) -> _Record:
        return self._row(self.env.reset(seed))

    def _step(self, action: list[Any]) -> _Record:
        shape = (self.env.n_runs, self.env.n_envs, *(self.single_action.shape or ()))
        return self._row(self.env.step(torch.as_tensor(np.array(action).reshape(shape))))

    def _row(self, step: TimeStep) -> _Record:
        self.env.check()
        flat = {each.name: getattr(step, each.name).flatten(0, 1).numpy(force=True).copy() for each in fields(step)}
        for observation in flat["observation"]:
            self.observed(observation, self.observation_space)
        return _Record(**flat, is_reported=np.ones(self.n_worlds, dtype=np.bool_))


def _row(observation: Any, reward: Any, cost: Any, is_reported: Any, *flag: Any) -> _Record:
    numbers = (np.array(each, dtype=np.float64) for each in (observation, reward, cost))
    return _Record(*numbers, *(np.array(each, dtype=np.bool_) for each in (is_reported, *flag)))


def _player(env: Any) -> _Player:
    if isinstance(env, VectorEnv | FromGymnasium):
        name = env.name if isinstance(env, FromGymnasium) else env.task.name
        return _Torch(env, name, env.n_runs * env.n_envs, env.observation_space, env.action_space)
    if isinstance(env, gymnasium.vector.VectorEnv):
        return _Vector(env, name_of(env), env.num_envs, env.single_observation_space, env.single_action_space)
    if isinstance(env, gymnasium.Env):
        return _Single(env, name_of(env), 1, env.observation_space, env.action_space)
    raise TypeError(
        f"{type(env).__name__} is no environment that can be checked; give a gymnasium.Env, a "
        "gymnasium.vector.VectorEnv, a VectorEnv or a FromGymnasium."
    )


def _check_description(env: Any, player: _Player) -> None:
    """Find what is wrong before the first step: autoreset, limit, spaces."""
    found = player.found
    if isinstance(env, gymnasium.vector.VectorEnv):
        problem = autoreset_problem(env)
        if problem:
            found.add("autoreset", f"autoreset: {problem}")
    try:
        player.cost_limit = declared_limit(env)
    except ValueError as error:
        found.add("cost_limit", f"cost_limit: {error}")
    if not (math.isnan(player.cost_limit) or 0 <= player.cost_limit < math.inf):
        found.add("cost_limit", f"cost_limit: it is {player.cost_limit}; it must be finite and >= 0.")
    if not player.observation_space.is_np_flattenable:
        text = f"{player.observation_space} does not flatten to numbers of a fixed count; transform the observation."
        found.add("observation_space", f"observation_space: {text}")
        player.is_stopped = True
    action = player.single_action
    if isinstance(action, spaces.Box) and not action.is_bounded():
        found.add("action_space", f"action_space: {action} is unbounded, and a policy is scaled to it; give it bounds.")
    elif not isinstance(action, spaces.Box | spaces.Discrete):
        found.add("action_space", f"action_space: {action} is unknown to the learners; use Box or Discrete.")


def _play(player: _Player, n_steps: int, seed: int, change: int = -1) -> _Record:
    """Play random actions and return the record; with ``change >= 0`` all worlds act alike, on a seed so much later."""
    player.single_action.seed(seed)
    rows: list[_Record] = []
    try:
        if not player.is_stopped:
            rows.append(player.reset(seed + max(change, 0)))
        while rows and len(rows) <= n_steps:
            if change >= 0:
                action = [player.single_action.sample()] * player.n_worlds
            else:
                action = [player.single_action.sample() for _ in range(player.n_worlds)]
            rows.append(player.step(action))
    except EnvironmentFault as fault:
        player.found.add("fault", str(fault))
        player.is_stopped = True
    except _Stopped:
        player.is_stopped = True
    names = [each.name for each in fields(_Record)]
    return _Record(*(np.stack([getattr(row, name) for row in rows]) if rows else np.empty(0) for name in names))


def _check_values(record: _Record, problem: _Findings) -> None:
    """Find numbers that are missing, not finite or out of range."""
    cost, key, missing = record.cost, "info['cost']", ~record.is_reported
    problem.where(f"{key} at a start", missing & record.is_first, lambda t, w: f"it {MISSING_START_COST}")
    problem.where(f"{key} of a step", missing & ~record.is_first, lambda t, w: f"it {missing_cost('cost', {})}")
    remedy = "a cost is finite and >= 0. Report it for the state just entered, and gains in the reward."
    bad = record.is_reported & ~(np.isfinite(cost) & (cost >= 0))
    problem.where(key, bad, lambda t, w: f"it is {cost[t, w]:g}; {remedy}")
    problem.where(
        "observation",
        ~np.isfinite(record.observation).all(axis=2),
        lambda t, w: "it has NaN or infinite entries; end the episode before the simulation diverges.",
    )
    problem.where(
        "reward", ~np.isfinite(record.reward), lambda t, w: f"it is {record.reward[t, w]:g}; it must be finite."
    )
    problem.where(
        "reward at a restart",
        record.is_first & (record.reward != 0),
        lambda t, w: f"it is {record.reward[t, w]:g}; no move led to this state, so it must be 0.",
    )


def _check_seed(record: _Record, again: _Record, problem: _Findings) -> None:
    """Find the first difference between two plays with the same seed and actions."""
    for name in ("observation", "reward", "cost", "terminated", "truncated"):
        one, two = getattr(record, name), getattr(again, name)
        length = min(len(one), len(two))
        is_other = (one[:length] != two[:length]) & ~((one[:length] != one[:length]) & (two[:length] != two[:length]))
        is_other = is_other.any(axis=2) if is_other.ndim == 3 else is_other
        if is_other.any() or len(one) != len(two):
            step, world = np.argwhere(is_other)[0] if is_other.any() else (length, 0)
            problem.add(
                "seed",
                f"seed, step {step}, world {world}: the same seed and actions gave another {name}; draw every random "
                "number from a generator that reset(seed=...) seeds (Gymnasium's is self.np_random).",
            )
            return


def _check_episodes(
    record: _Record, horizon: float, problem: _Findings, note: _Findings
) -> tuple[int, float, float, float]:
    """Add up the finished episodes; return their number, and the means of length, return and cost."""
    is_last = record.terminated | record.truncated
    total, length = np.zeros((2, is_last.shape[1])), np.zeros(is_last.shape[1])
    finished, n_at_end = [], 0
    for t, (reward, cost) in enumerate(zip(record.reward, record.cost, strict=True)):
        total = np.where(record.is_first[t], 0.0, total) + np.stack([reward, cost])
        length = np.where(record.is_first[t], 0, length + 1)
        for world in np.flatnonzero(is_last[t]):
            finished.append((length[world], *total[:, world]))
            n_at_end += int(total[1, world] == cost[world] > 0)
    both = record.terminated & record.truncated
    note.where("flags", both, lambda t, w: "terminated and truncated are both set; terminated counts.")
    if not finished:
        known = f"; the horizon is {horizon:g}" if horizon < math.inf else ""
        problem.add(
            "horizon",
            f"horizon: no episode ended within {len(is_last) - 1} steps{known}. The limit is on an episode's cost: "
            "say a larger n_steps, or end episodes with gymnasium.wrappers.TimeLimit.",
        )
        return 0, math.nan, math.nan, math.nan
    mean = np.mean(finished, axis=0)
    longest = max(each[0] for each in finished)
    if longest > horizon:
        problem.add(
            "horizon", f"horizon: an episode has {longest:g} decisions, the horizon is {horizon:g}; end it there."
        )
    n_costly = sum(each[2] > 0 for each in finished)
    if n_costly > 1 and n_at_end == n_costly:
        note.add(
            "end",
            f"info['cost'] is positive only at an episode's end ({n_costly} episodes). If that is the episode's sum, "
            "report the cost of each state when it is entered.",
        )
    return len(finished), float(mean[0]), float(mean[1]), float(mean[2])


def _check_worlds(record: _Record, other: _Record, note: _Findings) -> None:
    """Find worlds that start alike or live alike under the same actions, although another seed gives another life."""
    start, life = record.observation[:1], np.concatenate([record.observation, record.cost[..., None]], axis=2)
    n = min(len(record.cost), len(other.cost))
    is_start_random = not np.array_equal(start, other.observation[:1], equal_nan=True)
    is_random = not np.array_equal(record.observation[:n], other.observation[:n], equal_nan=True)
    pair = _twins(start) if is_start_random else ()
    if pair:
        note.add(
            "start",
            f"observation, step 0: worlds {pair[0]} and {pair[1]} start alike although starts are random; give each "
            "world a generator of its own.",
        )
    pair = _twins(life) if is_random else ()
    if pair:
        note.add(
            "noise",
            f"observation: worlds {pair[0]} and {pair[1]} are alike at every step under the same actions although "
            "another seed changes them; they may share one noise stream, so give each world a generator of its own.",
        )


def _twins(value: Array) -> tuple[int, ...]:
    """Return the first two worlds whose values [T, W, O] are the same, if any."""
    seen: dict[bytes, int] = {}
    for world in range(value.shape[1]):
        key = np.ascontiguousarray(value[:, world]).tobytes()
        if key in seen:
            return seen[key], world
        seen[key] = world
    return ()


def _horizon(env: Any) -> float:
    """Return the horizon that an environment declares; infinity if none."""
    for layer in (env, getattr(env, "unwrapped", env), getattr(env, "env", env)):
        spec, task = getattr(layer, "spec", None), getattr(layer, "task", None)
        known = getattr(task, "horizon", None) or getattr(spec, "max_episode_steps", None)
        if known is not None:
            return float(known)
    return math.inf
