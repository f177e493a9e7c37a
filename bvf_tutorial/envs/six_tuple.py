"""This file knows the 6-tuple step of Safety-Gymnasium and how it becomes Gymnasium's 5-tuple, and back.

There ``step`` returns ``(observation, reward, cost, terminated, truncated, info)``; here the cost of the state just
entered is ``info["cost"]``. A 6-tuple has no place for the cost of an episode's first state.
"""

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from .adapter import Array, StartCost, checked_start, missing_cost, name_of
from .base import EnvironmentFault

__all__ = ["FromSixTuple", "FromSixTupleVector", "ToSixTuple", "ToSixTupleVector"]

if TYPE_CHECKING:
    VectorWrapper = gymnasium.vector.VectorWrapper[Any, Any, Any, Any, Any]
else:  # generic since Gymnasium 1.4
    VectorWrapper = gymnasium.vector.VectorWrapper


class FromSixTuple(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A 6-tuple environment with Gymnasium's 5-tuple: the cost moves into ``info["cost"]``.

    For Safety-Gymnasium, wrap each environment with this and put them into Gymnasium's ``SyncVectorEnv``; its own
    vector environments restart in the same step, which hides an episode's last state.

    Args:
        env: an environment whose ``step`` returns six values.
        start_cost: the cost of a start whose info reports none, which is usual; "reported" adds nothing.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], start_cost: StartCost = "reported") -> None:
        super().__init__(env)
        self._start_cost, self._step = checked_start(start_cost), 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._step = 0
        return observation, info if self._start_cost == "reported" else {"cost": float(self._start_cost), **info}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Move; the cost is in info.

        Raises:
            EnvironmentFault: the step has not six values, or info has another cost than the step.
        """
        self._step += 1
        observation, reward, cost, terminated, truncated, info = _six(self, self._step, self.env.step(action))
        if info.get("cost", cost) != cost:
            raise EnvironmentFault(
                f"{name_of(self)}, step {self._step}: the step's cost is {cost}, info['cost'] {info['cost']}; keep one."
            )
        return observation, reward, terminated, truncated, {**info, "cost": float(cost)}


class ToSixTuple(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that reports ``info["cost"]``, with the step of Safety-Gymnasium: the cost leaves info."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; info keeps the cost of its first state, for which a 6-tuple has no other place."""
        self._step = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, float, bool, bool, dict[str, Any]]:  # type: ignore[override]
        """Move; return (observation, reward, cost, terminated, truncated, info).

        Raises:
            EnvironmentFault: info has no cost.
        """
        self._step += 1
        observation, reward, terminated, truncated, info = self.env.step(action)
        if "cost" not in info:
            raise EnvironmentFault(f"{name_of(self)}, step {self._step}: info['cost'] {missing_cost('cost', info)}")
        rest = {key: value for key, value in info.items() if key != "cost"}
        return observation, reward, float(info["cost"]), terminated, truncated, rest


class FromSixTupleVector(VectorWrapper):
    """A 6-tuple vector environment with Gymnasium's 5-tuple: the costs move into info, with their mask.

    Args:
        env: a vector environment whose ``step`` returns six values.
        start_cost: the cost of a start whose info reports none; "reported" adds nothing.
    """

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any], start_cost: StartCost = "reported") -> None:
        super().__init__(env)
        self._start_cost, self._step = checked_start(start_cost), 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every world."""
        observation, info = self.env.reset(seed=seed, options=options)
        self._step = 0
        if self._start_cost == "reported" or "cost" in info:
            return observation, info
        return observation, {**info, **_reported(np.full(self.num_envs, float(self._start_cost)))}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Move every world; the costs are in info.

        Raises:
            EnvironmentFault: the step has not six values, or not one cost per world, or info has other costs.
        """
        self._step += 1
        observation, reward, cost, terminated, truncated, info = _six(self, self._step, self.env.step(actions))
        array = np.array(cost, dtype=np.float64)
        if array.shape != (self.num_envs,):
            raise EnvironmentFault(
                f"{name_of(self)}, step {self._step}: cost has shape {array.shape}, expected {(self.num_envs,)}."
            )
        if not np.array_equal(info.get("cost", array), array):
            raise EnvironmentFault(
                f"{name_of(self)}, step {self._step}: the step's cost and info['cost'] differ; keep one."
            )
        return observation, reward, terminated, truncated, {**info, **_reported(array)}


class ToSixTupleVector(VectorWrapper):
    """A vector environment that reports ``info["cost"]``, with the step of Safety-Gymnasium: the costs leave info."""

    def __init__(self, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self._step = 0

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode in every world; info keeps the costs of the first states."""
        self._step = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Array, Any, Any, dict[str, Any]]:  # type: ignore[override]
        """Move every world; return (observation, reward, cost, terminated, truncated, info).

        Raises:
            EnvironmentFault: info lacks the cost of a world; report it at restarts too.
        """
        self._step += 1
        observation, reward, terminated, truncated, info = self.env.step(actions)
        is_there = np.full(self.num_envs, "cost" in info) & np.asarray(info.get("_cost", True), dtype=np.bool_)
        if not is_there.all():
            raise EnvironmentFault(
                f"{name_of(self)}, world {int((~is_there).argmax())}, step {self._step}: info['cost'] "
                f"{missing_cost('cost', info)} If the world has just restarted, its reset() must report a cost too."
            )
        rest = {key: value for key, value in info.items() if key not in ("cost", "_cost")}
        return observation, reward, np.array(info["cost"], dtype=np.float64), terminated, truncated, rest


def _reported(cost: Array) -> dict[str, Array]:
    return {"cost": cost, "_cost": np.ones(len(cost), dtype=np.bool_)}


def _six(env: Any, step: int, result: Any) -> tuple[Any, ...]:
    if len(result) != 6:
        raise EnvironmentFault(
            f"{name_of(env)}, step {step}: step() returned {len(result)} values, expected six (observation, reward, "
            "cost, terminated, truncated, info); with five, and the cost in info, it needs no converter."
        )
    return tuple(result)
