"""This file knows how other people's environments, and our tasks, become worlds that a learner trains in."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from ..envs import FromGymnasium, GymnasiumEnv, Task, VectorEnv
from ..envs import make as make_task
from ..envs.adapter import StartCost, name_of
from ..envs.base import TimeLimit
from ..envs.registration import TASKS

__all__ = ["Adapted", "CostLimit", "Problem", "SeveralCosts", "Source"]

Environment = gymnasium.Env[Any, Any] | gymnasium.vector.VectorEnv[Any, Any, Any]
Source = str | Task | Callable[[], Environment]
"""A task of this package (or its name), a Gymnasium id, or a function that makes an environment."""

CostLimit = float | Mapping[str, float] | Sequence[float] | Literal["environment"]
"""``d0``, undiscounted per episode; several by name or position; or the environment's own attribute ``cost_limit``."""


class SeveralCosts(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One cost in place of several: the ``"largest"`` of the relative costs ``c_i / d_i``, or their ``"sum"``.

    The single limit is 1, undiscounted, per episode. Costs are not negative, so at every episode
    ``C_j / d_j <= sum_t max_i c_i / d_i <= sum_t sum_i c_i / d_i``: a policy whose combined expected cost is at most 1
    meets *every* limit in expectation. The converse fails: with M costs a policy that meets all limits may reach M, so
    that the combination is cautious, "largest" never more than "sum". It does not make the methods see M constraints;
    ``SafetyLayer`` can.

    Args:
        env: reports a mapping or a vector of costs as ``info[cost_key]``, or each as its own entry of info. A start may
            report none of them.
        cost_limit: ``d_i > 0``, undiscounted per episode, by name or by position.
        cost_key: where the costs are, and where the combined cost goes; the single ones become
            ``info[f"{cost_key}_{name}"]``.
        combine: "largest" or "sum".

    Raises:
        ValueError: a limit is not positive and finite (a relative cost would be infinite), or ``combine`` is unknown.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        cost_limit: Mapping[str, float] | Sequence[float],
        cost_key: str = "cost",
        combine: Literal["largest", "sum"] = "largest",
    ) -> None:
        super().__init__(env)
        named = cost_limit.items() if isinstance(cost_limit, Mapping) else enumerate(cost_limit)
        self.limits = {str(name): float(limit) for name, limit in named}
        self._is_named, self._key, self._combine = isinstance(cost_limit, Mapping), cost_key, combine
        if combine not in ("largest", "sum"):
            raise ValueError(f"combine is {combine!r}; say 'largest' or 'sum'.")
        for name, limit in self.limits.items():
            if not 0 < limit < np.inf:
                raise ValueError(f"cost_limit[{name!r}] is {limit}; several limits are positive and finite.")
        if not self.limits:
            raise ValueError("cost_limit is empty; give one limit per cost.")

    @property
    def cost_limit(self) -> float:
        """The limit of the combined cost."""
        return 1.0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; its info has the combined cost if it has any cost."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._combined(info, is_start=True)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Move; the info has the combined cost of the state just entered.

        Raises:
            ValueError: a cost is missing, or is negative or not finite.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._combined(info, is_start=False)

    def _combined(self, info: Mapping[str, Any], is_start: bool) -> dict[str, Any]:
        reported = info.get(self._key)
        if isinstance(reported, Mapping):
            found = dict(reported)
        elif self._is_named:
            found = {name: info[name] for name in self.limits if name in info}
        else:
            found = {str(i): each for i, each in enumerate(np.atleast_1d([] if reported is None else reported))}
        if is_start and not found:
            return dict(info)
        if found.keys() != self.limits.keys():
            raise ValueError(f"info has the costs {[*found]}, but cost_limit names {[*self.limits]}.")
        cost = {name: float(found[name]) for name in self.limits}
        for name, each in cost.items():
            if not 0 <= each < np.inf:
                raise ValueError(f"cost {name!r} is {each}; it must be finite and >= 0.")
        relative = [cost[name] / limit for name, limit in self.limits.items()]
        single = {f"{self._key}_{name}": each for name, each in cost.items()}
        return {**info, **single, self._key: max(relative) if self._combine == "largest" else sum(relative)}


class Adapted(gymnasium.Wrapper[Any, Any, Any, Any]):
    """One environment as a learner sees it: observations flat, the end of an episode an end, the time in sight.

    A cost limit speaks of an episode's sum, which ends where a time limit ends the episode. With
    ``time_limit="terminate"`` that is what the learner is told, and a continuous-action learner sees the share of the
    horizon that is used as a last coordinate, without which the state would not be Markov.

    Args:
        env: the environment.
        horizon: decisions after which an episode ends; 0 is ``env.spec.max_episode_steps``, and no horizon of its own
            without one (then there is no clock to show).
        time_limit: "terminate", or "truncate": a time limit's cut stays one, and values go on beyond it.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], horizon: int = 0, time_limit: TimeLimit = "terminate") -> None:
        super().__init__(env)
        if horizon < 0 or time_limit not in ("terminate", "truncate"):
            raise ValueError(f"horizon is {horizon} and time_limit {time_limit!r}; say 'terminate' or 'truncate'.")
        own, self._time_limit, self._clock = env.action_space, time_limit, 0
        self.horizon = horizon or _horizon_of(env)
        if isinstance(own, spaces.Discrete):
            self.action_space = spaces.Discrete(int(own.n))
        self._is_time_aware = self.horizon > 0 and time_limit == "terminate" and not isinstance(own, spaces.Discrete)
        flat = spaces.flatten_space(env.observation_space)
        if not isinstance(flat, spaces.Box):
            raise ValueError(f"observations in {env.observation_space} do not flatten to numbers of a fixed count.")
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        if self._is_time_aware:
            low, high = np.append(low, np.float32(0)), np.append(high, np.float32(1))
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._clock = 0
        observation, info = self.env.reset(seed=seed, options=options)
        return self._seen(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Move; ``action`` is flat, or counts from 0."""
        own: Any = self.env.action_space
        if isinstance(own, spaces.Discrete):
            action = int(action) + int(own.start)
        else:
            action = np.asarray(action, dtype=own.dtype).reshape(own.shape)
        observation, reward, terminated, truncated, info = self.env.step(action)
        self._clock += 1
        is_cut = bool(truncated) or 0 < self.horizon <= self._clock
        is_over = bool(terminated) or (is_cut and self._time_limit == "terminate")
        return self._seen(observation), reward, is_over, is_cut and not is_over, info

    def _seen(self, observation: Any) -> npt.NDArray[np.float32]:
        flat = np.asarray(spaces.flatten(self.env.observation_space, observation), dtype=np.float32)
        return np.append(flat, np.float32(self._clock / self.horizon)) if self._is_time_aware else flat


@dataclass(frozen=True, eq=False)
class Problem:
    """An environment and what is asked of it: what ``train`` and ``evaluate`` make worlds from.

    Attributes:
        source: a task of this package or its name, a Gymnasium id, or a function that makes an environment. A function
            that makes a Gymnasium *vector* environment is used as it is, without ``horizon`` and ``time_limit``.
        cost_limit: ``d0``, undiscounted per episode; several by name or position are combined by ``SeveralCosts``.
        start_cost: the cost of a start whose info reports none; "reported" makes that an error.
        cost_key: the key of the cost in info.
        combine: how several costs become one.
        horizon: decisions per episode; 0 is the environment's own, see ``Adapted``.
        time_limit: what the horizon means, see ``Adapted``.
        device: where tensors live.
    """

    source: Source
    cost_limit: CostLimit = "environment"
    start_cost: StartCost = "reported"
    cost_key: str = "cost"
    combine: Literal["largest", "sum"] = "largest"
    horizon: int = 0
    time_limit: TimeLimit = "terminate"
    device: str = "cpu"

    def __post_init__(self) -> None:
        if isinstance(self.source, str | Task):
            return
        if isinstance(self.source, gymnasium.Env | gymnasium.vector.VectorEnv) or not callable(self.source):
            raise TypeError(
                f"{type(self.source).__name__} is one environment, and training and evaluation need several that share "
                "nothing; give a function that makes it, such as lambda: MyEnvironment()."
            )

    def make_env(self) -> gymnasium.Env[Any, Any]:
        """Return one Gymnasium environment as the learner sees it: its observations are what a ``Policy`` takes.

        Raises:
            TypeError: the function makes vector environments.
        """
        if self._is_task:
            worlds = self.make(1)
            time_limit, is_time_aware = worlds.time_limit, worlds.is_time_aware
            return GymnasiumEnv(worlds.task, time_limit=time_limit, is_time_aware=is_time_aware, device=self.device)
        env = self._made()
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError("The function makes vector environments, and they are used as they are; call it yourself.")
        return self._adapted(env)

    def make(self, n_envs: int, n_runs: int = 1, first_world: int = 0) -> VectorEnv | Any:
        """Return ``n_runs`` runs of ``n_envs`` worlds: a ``VectorEnv``, or a ``FromGymnasium``, which has one run.

        Raises:
            ValueError: the environment does not fit, or several runs are asked of a foreign one.
        """
        if self._is_task:
            return self._task_worlds(n_envs, n_runs, first_world)
        if n_runs != 1:
            raise ValueError(f"n_runs is {n_runs}; a foreign environment has one run, so train once per seed.")
        is_declared = self._has_several or self.cost_limit == "environment"
        limit: float | Literal["environment"] = "environment" if is_declared else float(self.cost_limit)  # type: ignore[arg-type]
        env = self._made()
        name = name_of(env)  # errors name it, and not the vector environment around it
        if not isinstance(env, gymnasium.vector.VectorEnv):
            first = [self._adapted(env)]  # the first world is there already
            env = gymnasium.vector.SyncVectorEnv(
                [lambda: first.pop() if first else self._adapted(self._made())] * n_envs,
                autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP,
            )
        elif self._has_several:
            raise ValueError("Several costs of a vector environment are not combined; wrap its worlds in SeveralCosts.")
        worlds = FromGymnasium(env, limit, self.start_cost, self.cost_key, may_override=True, device=self.device)
        worlds.name = name
        return worlds

    @property
    def _is_task(self) -> bool:
        return isinstance(self.source, Task) or (isinstance(self.source, str) and self.source in TASKS)

    @property
    def _has_several(self) -> bool:
        return isinstance(self.cost_limit, Mapping) or np.ndim(self.cost_limit) > 0

    def _task_worlds(self, n_envs: int, n_runs: int, first_world: int) -> VectorEnv:
        if self._has_several:
            raise ValueError("A task of this package has one cost; give one cost_limit.")
        task: Task = make_task(self.source).task  # type: ignore[arg-type]  # a name or a task, as _is_task says
        if self.cost_limit != "environment":
            task = replace(task, cost_limit=float(self.cost_limit))  # type: ignore[arg-type]
        task = replace(task, horizon=self.horizon) if self.horizon else task
        is_time_aware = self.time_limit == "terminate" and isinstance(task.action_space, spaces.Box)
        return VectorEnv(task, n_envs, n_runs, self.device, self.time_limit, is_time_aware, first_world)

    def _made(self) -> Environment:
        source = self.source
        env: Environment = gymnasium.make(source) if isinstance(source, str) else source()  # type: ignore[operator]
        return env

    def _adapted(self, env: Any) -> gymnasium.Env[Any, Any]:
        if not isinstance(env, gymnasium.Env):
            raise TypeError(f"The function returned a {type(env).__name__}; it must make a gymnasium.Env.")
        if self._has_several:
            env = SeveralCosts(env, self.cost_limit, self.cost_key, self.combine)  # type: ignore[arg-type]
        return Adapted(env, self.horizon, self.time_limit)


def _horizon_of(env: gymnasium.Env[Any, Any]) -> int:
    """Return an environment's own time limit in decisions, or 0."""
    return int(env.spec.max_episode_steps or 0) if env.spec is not None else 0
