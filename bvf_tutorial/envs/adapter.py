"""This file knows how other people's environments join: any Gymnasium vector environment that reports costs.

An environment joins by reporting ``info["cost"]``, the cost of the state just entered, at every reset and step. Nothing
is guessed: a cost that is missing, negative or not finite is an error that names environment, world, step and key.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import iterate
from torch import Tensor

from .base import EnvironmentFault, TimeStep

__all__ = ["FromGymnasium", "StartCost"]

StartCost = float | Literal["reported"]
"""The cost of a start whose info has none; "reported" makes a missing one an error."""

Array = npt.NDArray[Any]
MISSING_START_COST = (
    "is missing at an episode's start; put the cost of the first state into the info of reset(), or say start_cost=0.0 "
    "if a start costs nothing."
)


class FromGymnasium:
    """A Gymnasium vector environment as a ``VectorEnv`` of one run: same ``reset``, ``step``, ``TimeStep`` and spaces.

    Observations are flattened to one Box, Box actions are clipped, ``Discrete`` actions count from 0. Episodes are the
    environment's; ``terminated`` wins where both flags are set, and a restart's reward is 0. In Gymnasium's "sync"
    and "async" vectors an integer seed is spread over the worlds so that two seeds share none; their own rule, world b
    gets ``seed + b``, makes seeds 0 and 1 share all worlds but one.

    Args:
        env: the environment; its autoreset is next-step.
        cost_limit: ``d0``, undiscounted expected cost per episode; "environment" reads its attribute ``cost_limit``.
        start_cost: the cost of a start whose info reports none, which is usual; "reported" makes that an error.
        cost_key: the key of the cost in info.
        may_override: whether ``cost_limit`` may differ from the environment's own.
        device: where the tensors live.

    Raises:
        ValueError: the environment's autoreset, spaces or limit do not fit; the message says what to do.
    """

    n_runs = 1
    """A foreign environment plays one run."""

    def __init__(
        self,
        env: gymnasium.vector.VectorEnv[Any, Any, Any],
        cost_limit: float | Literal["environment"] = "environment",
        start_cost: StartCost = "reported",
        cost_key: str = "cost",
        may_override: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        self.name = name_of(env)
        if not isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(
                f"{self.name} is no gymnasium.vector.VectorEnv; wrap one environment as SyncVectorEnv([lambda: env])."
            )
        _require_next_step(self.name, env)
        self.env, self.n_envs, self.device = env, env.num_envs, torch.device(device)
        self.observation_space = _flat_observation(self.name, env.single_observation_space)
        self.action_space = _flat_action(self.name, env.single_action_space)
        self.cost_limit, self.cost_limit_source = _limit(self.name, declared_limit(env), cost_limit, may_override)
        self._start_cost, self._key = checked_start(start_cost), cost_key
        self._step = -1

    def reset(self, seed: int | Sequence[int] | None = None) -> TimeStep:
        """Start a new episode in every world.

        Args:
            seed: an integer; or one for each world, handed on unchanged; or None, which leaves it to the environment.

        Raises:
            EnvironmentFault: an observation or cost is missing, not finite, or negative.
        """
        observation, info = self.env.reset(seed=self._spread(seed))
        self._step = 0
        none = np.zeros(self.n_envs, dtype=np.bool_)
        return self._show(observation, np.zeros(self.n_envs), none, none, ~none, info)

    def step(self, action: Tensor) -> TimeStep:
        """Move every world once; worlds whose episode has ended start the next one and ignore their action.

        Args:
            action: [1, B, K], clipped to the box, or [1, B] integers.

        Raises:
            EnvironmentFault: an action, observation, reward or cost is missing, not finite, or negative.
        """
        if self._step < 0:
            raise RuntimeError(f"{self.name}: call reset() before step().")
        chosen, is_first = self._checked(action), self._is_last
        self._step += 1
        observation, reward, terminated, truncated, info = self.env.step(chosen)
        for key in ("final_obs", "final_info"):
            if key in info:
                self._blame(0, f"info has {key!r}, so it restarts in the same step, not in the next; {_MAKE_NEXT_STEP}")
        reward = np.where(is_first, 0.0, np.asarray(reward, dtype=np.float64))
        return self._show(observation, reward, np.asarray(terminated), np.asarray(truncated), is_first, info)

    def check(self) -> None:
        """Do nothing: every fault has been raised already."""

    def render(self, world: int = 0) -> npt.NDArray[np.uint8]:
        """Return the environment's picture of one world; make it with ``render_mode="rgb_array"``."""
        frames = self.env.render()
        if frames is None:
            raise ValueError(f"{self.name} draws nothing; make it with render_mode='rgb_array'.")
        return np.asarray(frames[world], dtype=np.uint8)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _spread(self, seed: int | Sequence[int] | None) -> Any:
        if not isinstance(seed, int | np.integer):
            return None if seed is None else [int(each) for each in seed]
        if isinstance(self.env.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            return [int(each) for each in np.random.SeedSequence(int(seed)).generate_state(self.n_envs, np.uint32)]
        return int(seed)

    def _show(
        self,
        observation: Any,
        reward: Array,
        terminated: Array,
        truncated: Array,
        is_first: Array,
        info: dict[str, Any],
    ) -> TimeStep:
        flat = self._flat(observation)
        cost = self._cost(info, is_first)
        self._require("observation", flat, np.isfinite(flat).all(axis=1), "finite")
        self._require("reward", reward, np.isfinite(reward), "finite")
        self._require(f"info[{self._key!r}]", cost, np.isfinite(cost) & (cost >= 0), "finite and >= 0")
        self._is_last = terminated | truncated
        return TimeStep(
            self._tensor(flat),
            self._tensor(reward.astype(np.float32)),
            self._tensor(cost.astype(np.float32)),
            self._tensor(terminated.copy()),
            self._tensor(truncated & ~terminated),
            self._tensor(is_first.copy()),
        )

    def _tensor(self, value: Array) -> Tensor:
        return torch.from_numpy(value).to(self.device)[None]

    def _flat(self, observation: Any) -> npt.NDArray[np.float32]:
        space, expected = self.env.single_observation_space, (self.n_envs, *self.observation_space.shape)
        try:
            with np.errstate(over="ignore"):  # an infinity is an error of its own
                if isinstance(space, spaces.Box):
                    return np.array(observation, dtype=np.float32).reshape(expected)
                worlds = iterate(self.env.observation_space, observation)
                each = [np.asarray(spaces.flatten(space, one)) for one in worlds]
                return np.stack(each).astype(np.float32).reshape(expected)
        except (IndexError, KeyError, TypeError, ValueError) as error:
            self._blame(0, f"observation does not fit into {space} ({error}); one world of the batch breaks its space.")

    def _cost(self, info: dict[str, Any], is_first: Array) -> npt.NDArray[np.float64]:
        key = self._key
        value = np.asarray(info.get(key, np.zeros(self.n_envs)))
        is_there = np.full(self.n_envs, key in info) & np.asarray(info.get(f"_{key}", True), dtype=np.bool_)
        missing = ~is_there if self._start_cost == "reported" else ~is_there & ~is_first
        if missing.any():
            world = int(missing.argmax())
            self._blame(world, f"info[{key!r}] " + (MISSING_START_COST if is_first[world] else missing_cost(key, info)))
        if value.shape != (self.n_envs,) or value.dtype.kind not in "biuf":
            self._blame(
                0, f"info[{key!r}] has shape {value.shape} and type {value.dtype}; report one number per world."
            )
        start = 0.0 if self._start_cost == "reported" else float(self._start_cost)
        return np.where(is_there, value.astype(np.float64), start)

    def _checked(self, action: Tensor) -> Array:
        space, array = self.action_space, np.asarray(torch.as_tensor(action).numpy(force=True))
        expected = (1, self.n_envs, *(space.shape or ()))
        if array.shape != expected:
            raise ValueError(f"{self.name}: action has shape {array.shape}, expected {expected}.")
        array, own = array[0], self.env.single_action_space
        if isinstance(space, spaces.Discrete):
            if array.dtype.kind not in "iu":
                raise ValueError(f"{self.name}: action has dtype {array.dtype}, expected integers.")
            self._require("action", array, (array >= 0) & (array < space.n), f"in 0..{space.n - 1}", 1)
            return np.asarray(array, dtype=np.int64) + int(getattr(own, "start", 0))
        self._require("action", array, np.isfinite(array).all(axis=1), "finite", 1)
        clipped = np.clip(array, space.low, space.high).reshape(self.n_envs, *(own.shape or ()))
        return np.asarray(clipped, dtype=own.dtype)

    def _require(self, key: str, value: Array, is_good: Any, wanted: str, ahead: int = 0) -> None:
        if not is_good.all():
            world = int((~is_good).argmax())
            self._blame(world, f"{key} is {value[world].tolist()}; it must be {wanted}.", ahead)

    def _blame(self, world: int, text: str, ahead: int = 0) -> NoReturn:
        raise EnvironmentFault(f"{self.name}, run 0, world {world}, step {self._step + ahead}: {text}")


def missing_cost(key: str, info: Mapping[str, Any]) -> str:
    """Return what to say about a step whose info lacks the cost, with a key that looks like it."""
    known = [each for each in info if not each.startswith("_") and each != key]
    close = difflib.get_close_matches(key, known, n=1) or [each for each in known if key in each]
    hint = f" It has {close[0]!r}; if that is the cost of one state, say cost_key={close[0]!r}." if close else ""
    return f"is missing; put the cost of the state just entered into the info of step().{hint}"


def declared_limit(env: Any) -> float:
    """Return the attribute ``cost_limit`` of an environment, of what it wraps, or of its worlds; NaN if there is none.

    Raises:
        ValueError: its worlds have different limits.
    """
    layer = env
    while layer is not None:
        own = getattr(layer, "cost_limit", None)
        if own is not None:
            return float(own)
        inner = getattr(layer, "env", None)
        if inner is None and isinstance(layer, SyncVectorEnv | AsyncVectorEnv):
            # Asked first, since a missing attribute ends the processes of an AsyncVectorEnv.
            if not all(layer.call("has_wrapper_attr", "cost_limit")):
                return math.nan
            declared = layer.get_attr("cost_limit")
            if None in declared:
                return math.nan
            limits = sorted({float(each) for each in declared})
            if len(limits) > 1:
                raise ValueError(f"{name_of(env)}: its worlds have the cost limits {limits}; make them equal.")
            return limits[0]
        layer = inner
    return math.nan


_MAKE_NEXT_STEP = (
    "make it with autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP "
    "(gymnasium.make_vec takes it in vector_kwargs, SyncVectorEnv and AsyncVectorEnv as an argument)."
)


def autoreset_problem(env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> str:
    """Return what is wrong with a vector environment's autoreset and what to do; empty if it is next-step."""
    mode = env.metadata.get("autoreset_mode")
    if mode in (AutoresetMode.NEXT_STEP, AutoresetMode.NEXT_STEP.value):
        return ""
    if mode is None:
        return (
            "metadata['autoreset_mode'] is missing, so nobody knows in which step an episode restarts; if it is the "
            "step after the end, set it to gymnasium.vector.AutoresetMode.NEXT_STEP."
        )
    return f"its autoreset is {getattr(mode, 'value', mode)!r}, which hides an episode's last state; {_MAKE_NEXT_STEP}"


def _require_next_step(name: str, env: gymnasium.vector.VectorEnv[Any, Any, Any]) -> None:
    problem = autoreset_problem(env)
    if problem:
        raise ValueError(f"{name}: {problem}")


def _limit(name: str, own: float, asked: float | Literal["environment"], may_override: bool) -> tuple[float, str]:
    """Return the limit that holds, and where it came from."""
    if asked == "environment":
        if math.isnan(own):
            raise ValueError(f"{name} has no attribute cost_limit; say cost_limit=..., undiscounted, per episode.")
        limit, source = own, "environment"
    elif math.isnan(own) or own == asked:
        limit, source = float(asked), "argument" if math.isnan(own) else "environment"
    elif may_override:
        limit, source = float(asked), f"argument, in place of the environment's {own:g}"
    else:
        raise ValueError(
            f"{name} has cost_limit {own:g}, but you say {asked:g}; leave yours out, or say may_override=True."
        )
    if not 0 <= limit < math.inf:
        raise ValueError(f"{name}: cost_limit is {limit}; it must be finite and >= 0.")
    return limit, source


def checked_start(start_cost: StartCost) -> StartCost:
    """Return the cost of a start if it can be one, or raise."""
    if start_cost != "reported" and not 0 <= start_cost < math.inf:
        raise ValueError(f"start_cost is {start_cost}; it must be finite and >= 0, or 'reported'.")
    return start_cost


def _flat_observation(name: str, space: spaces.Space[Any]) -> spaces.Box:
    flat = spaces.flatten_space(space) if space.is_np_flattenable else space
    if not isinstance(flat, spaces.Box):
        raise ValueError(
            f"{name}: observations in {space} do not flatten to numbers of a fixed count; wrap the environment with "
            "gymnasium.wrappers.TransformObservation."
        )
    return spaces.Box(flat.low.astype(np.float32), flat.high.astype(np.float32), dtype=np.float32)


def _flat_action(name: str, space: spaces.Space[Any]) -> spaces.Box | spaces.Discrete:
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if not isinstance(space, spaces.Box) or space.dtype is None or space.dtype.kind != "f":
        raise ValueError(f"{name}: actions in {space}; only Discrete and Box of floating-point numbers are known.")
    if not space.is_bounded():
        raise ValueError(
            f"{name}: the action box {space} is unbounded, and a policy is scaled to the box; give it bounds, in the "
            "environment or with gymnasium.wrappers.TransformAction."
        )
    return spaces.Box(space.low.ravel().astype(np.float32), space.high.ravel().astype(np.float32), dtype=np.float32)


def name_of(env: Any) -> str:
    """Return an environment's Gymnasium id, or the name of its class."""
    spec = getattr(env, "spec", None)
    return spec.id if spec is not None else type(getattr(env, "unwrapped", env)).__name__
