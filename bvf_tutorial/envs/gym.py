"""This file knows how a task is made from its name, and how it looks to Gymnasium: as one environment or as a vector.

``make("PointGather", n_envs=8)`` gives the torch environment. ``gymnasium.make("bvf/PointGather-v0")`` and
``gymnasium.make_vec(..., num_envs=8)`` give the same worlds behind Gymnasium's interface, NumPy in and out, with the
cost of the state just entered as ``info["cost"]`` at every reset and step.
"""

import difflib
import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, SupportsFloat, get_args, get_origin, get_type_hints

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from .base import Task, TimeStep, VectorEnv
from .registration import TASKS, task_class
from .render import painter

__all__ = ["GymnasiumEnv", "GymnasiumVectorEnv", "make"]

Observation = npt.NDArray[np.float32]
_WORLD_OPTIONS = ("device", "time_limit", "is_time_aware", "first_world")
_NO_MODE = "render() without a render_mode draws nothing; make the environment with render_mode='rgb_array'."


def make(
    task: str | Task,
    n_envs: int = 1,
    n_runs: int = 1,
    preset: str = "paper",
    device: str | torch.device = "cpu",
    **changes: Any,
) -> VectorEnv:
    """Return the torch environment of a task: ``n_runs`` runs of ``n_envs`` worlds.

    Args:
        task: its name ("GridWorld", "PointCircle", "PointGather", "SafeCheetah", ...), or a task that is already made.
        n_envs: ``B``, worlds per run.
        n_runs: ``R``.
        preset: named arguments of the task; "paper" is the published one.
        device: where the worlds live.
        changes: ``time_limit``, ``is_time_aware`` and ``first_world`` of ``VectorEnv``, and fields of the task
            (``horizon``, ``cost_limit``, ...).

    Raises:
        ValueError: no such task or preset; the message says which is nearest.
        TypeError: no such argument, or one of another type; the message lists those that exist.
    """
    worlds = {"device": device, **{key: changes.pop(key) for key in _WORLD_OPTIONS if key in changes}}
    if isinstance(task, str):
        task = _task(task, preset, changes)
    elif changes or preset != "paper":
        given = ", ".join([*changes, *(["preset"] if preset != "paper" else [])])
        raise TypeError(f"{task.name} is already made, so it takes no {given}; say them where you make it.")
    return VectorEnv(task, n_envs, n_runs, **worlds)


def _task(name: str, preset: str, changes: Mapping[str, Any]) -> Task:
    if name not in TASKS:
        raise ValueError(f"No task is called {name!r}{_nearest(name, TASKS)} The tasks are {', '.join(TASKS)}.")
    chosen: type[Task] = task_class(name)
    own = [each.name for each in fields(chosen) if each.init and not each.name.startswith("_")]
    valid = [*own, "preset", *_WORLD_OPTIONS]
    hints = get_type_hints(chosen)
    for key, value in changes.items():
        if key not in own:
            raise TypeError(f"{name} has no argument {key!r}{_nearest(key, valid)} It takes {', '.join(valid)}.")
        if wanted := _misfit(value, hints[key]):
            raise TypeError(f"{name}: {key} is {value!r}; it must be {wanted}.")
    return chosen.preset(preset, **changes)


def _misfit(value: Any, hint: Any) -> str:
    """Return in words what a type hint wants if a value is something else; "" if it fits, or if the task checks it."""
    if hint is bool:
        return "" if isinstance(value, bool | np.bool_) else "true or false"
    if get_origin(hint) is tuple:
        kind = get_args(hint)[0]
        return "" if isinstance(value, tuple) and all(isinstance(each, kind) for each in value) else f"{kind.__name__}s"
    kinds = {int: (numbers.Integral, "an integer"), float: (numbers.Real, "a number")}
    if hint not in kinds:
        return ""
    kind, wanted = kinds[hint]
    is_number = isinstance(value, kind) and not isinstance(value, bool | np.bool_) and not math.isnan(value)
    return "" if is_number else wanted


def _nearest(word: str, valid: Mapping[str, Any] | Sequence[str]) -> str:
    match = difflib.get_close_matches(word, list(valid), n=1)
    return f"; did you mean {match[0]!r}?" if match else "."


class GymnasiumEnv(gymnasium.Env[Observation, Any]):
    """One world of a task, for everything that speaks Gymnasium.

    The trajectory is that of ``VectorEnv`` with one world and the same seed: ``reset`` after an episode's end takes the
    place of the vector environment's restart. A ``reset`` without a seed goes on with the noise.

    Args:
        task: name or task, as in ``make``.
        render_mode: "rgb_array", or None for no pictures.
        render_size: (height, width) of a picture, pixels.
        options: ``preset``, ``device``, ``time_limit``, ``is_time_aware`` and fields of the task.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # Gymnasium's own type

    def __init__(
        self,
        task: str | Task,
        render_mode: str | None = None,
        render_size: tuple[int, int] = (480, 480),
        **options: Any,
    ) -> None:
        self.worlds = make(task, **_without_counts(options))
        self.observation_space: spaces.Space[Any] = self.worlds.observation_space
        self.action_space: spaces.Space[Any] = self.worlds.action_space
        self.render_mode, self._size = _known_mode(render_mode), render_size
        self.metadata = {**type(self).metadata, "render_fps": self.worlds.task.frames_per_second}
        self._is_over = True

    @property
    def task(self) -> Task:
        """The task; once seeded, with whatever is drawn from the seed."""
        return self.worlds.task

    @property
    def cost_limit(self) -> float:
        """The limit ``d0`` of the undiscounted expected cost per episode."""
        return self.worlds.cost_limit

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode; ``info["cost"]`` is the cost of its first state."""
        super().reset(seed=seed)
        _refuse(options)
        start = self.worlds.reset(_seed_of(self, seed))
        self._is_over = False
        return _copy(start.observation)[0], {"cost": float(start.cost)}

    def step(self, action: Any) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Move; ``info["cost"]`` is the cost of the state just entered.

        Raises:
            ResetNeeded: there is no episode, or it has ended.
            EnvironmentFault: the action is not finite, or does not exist.
        """
        if self._is_over:
            state = "the episode has ended" if self.worlds.seed else "there is no episode yet"
            raise ResetNeeded(f"{self.task.name}: {state}; call reset() before step().")
        step = self.worlds.step(_tensor(action, self.worlds, ())[None, None])
        self.worlds.check()
        self._is_over = bool(step.is_last)
        info = {"cost": float(step.cost)}
        return _copy(step.observation)[0], float(step.reward), bool(step.terminated), bool(step.truncated), info

    def render(self) -> Any:
        """Return a picture [height, width, 3] of the world, or None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn(_NO_MODE)
            return None
        _check_can_render(self.worlds)
        return self.worlds.render(0, self._size)

    def close(self) -> None:
        """Release threads, device memory and what draws; later use makes them anew."""
        _release(self.worlds)


class GymnasiumVectorEnv(gymnasium.vector.VectorEnv[Observation, Any, npt.NDArray[Any]]):
    """B worlds of a task, for everything that speaks Gymnasium's vector interface, with next-step autoreset.

    ``info["cost"]`` is an array, [B] float64, with Gymnasium's mask ``info["_cost"]``. An integer seed gives world b
    the noise (seed, b), as ``VectorEnv`` does, so that seeds 0 and 1 share no world. (Gymnasium's "sync" and "async"
    vectors seed world b with ``seed + b`` instead.) A list of B seeds gives each world the trajectory it has alone.

    Args:
        task: name or task, as in ``make``.
        num_envs: ``B``.
        render_mode: "rgb_array", or None for no pictures.
        render_size: (height, width) of a picture, pixels.
        options: ``preset``, ``device``, ``time_limit``, ``is_time_aware`` and fields of the task.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012  # Gymnasium's own type
        "render_modes": ["rgb_array"],
        "render_fps": 10,
        "autoreset_mode": AutoresetMode.NEXT_STEP,
    }

    def __init__(
        self,
        task: str | Task,
        num_envs: int = 1,
        render_mode: str | None = None,
        render_size: tuple[int, int] = (480, 480),
        **options: Any,
    ) -> None:
        self.worlds = make(task, num_envs, **_without_counts(options))
        self.num_envs = num_envs
        self.single_observation_space = self.worlds.observation_space
        self.single_action_space = self.worlds.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.render_mode, self._size = _known_mode(render_mode), render_size
        self.metadata = {**type(self).metadata, "render_fps": self.worlds.task.frames_per_second}

    @property
    def task(self) -> Task:
        """The task; once seeded, with whatever is drawn from the seed."""
        return self.worlds.task

    @property
    def cost_limit(self) -> float:
        """The limit ``d0`` of the undiscounted expected cost per episode."""
        return self.worlds.cost_limit

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Start an episode in every world.

        Raises:
            ValueError: ``options`` holds anything; a reset of some worlds only (``reset_mask``) is not offered, since
                each world restarts by itself.
        """
        _refuse(options)
        if seed is None or isinstance(seed, int):
            super().reset(seed=seed)
        start = self.worlds.reset(_seed_of(self, seed))
        return _copy(start.observation), self._info(start)

    def step(
        self, actions: Any
    ) -> tuple[Observation, npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any], dict[str, Any]]:
        """Move every world, or restart it where its episode has ended.

        Raises:
            ResetNeeded: there is no episode yet.
            EnvironmentFault: an action is not finite, or does not exist.
        """
        if not self.worlds.seed:
            raise ResetNeeded(f"{self.task.name}: there is no episode yet; call reset() before step().")
        step = self.worlds.step(_tensor(actions, self.worlds, (self.num_envs,))[None])
        self.worlds.check()
        reward = _copy(step.reward).astype(np.float64)
        return _copy(step.observation), reward, _copy(step.terminated), _copy(step.truncated), self._info(step)

    def render(self) -> Any:
        """Return a tuple of B pictures [height, width, 3], or None without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn(_NO_MODE)
            return None
        _check_can_render(self.worlds)
        return tuple(self.worlds.render(world, self._size) for world in range(self.num_envs))

    def close_extras(self, **kwargs: Any) -> None:
        """Release threads, device memory and what draws; later use makes them anew."""
        if hasattr(self, "worlds"):  # Gymnasium before 1.4 also closes what could not be made
            _release(self.worlds)

    def _info(self, step: TimeStep) -> dict[str, Any]:
        return {"cost": _copy(step.cost).astype(np.float64), "_cost": np.ones(self.num_envs, dtype=np.bool_)}


def _copy(value: Tensor) -> npt.NDArray[Any]:
    """Return a run's worlds as an array of their own: what a caller writes into it reaches no state."""
    return np.array(value[0].numpy(force=True))


def _tensor(action: Any, worlds: VectorEnv, lead: tuple[int, ...]) -> Tensor:
    """Return the action as a tensor, [*lead, *shape of one action], in the space's own type."""
    space, array = worlds.action_space, np.asarray(action)
    expected = (*lead, *(space.shape or ()))
    if array.shape != expected:
        raise ValueError(f"{worlds.task.name}: action has shape {array.shape}, expected {expected}.")
    if isinstance(space, spaces.Discrete):
        if array.dtype.kind not in "iu":
            raise ValueError(f"{worlds.task.name}: action has dtype {array.dtype}, expected integers.")
        return torch.from_numpy(array.astype(np.int64))
    with np.errstate(over="ignore"):  # an infinity is an error of its own
        return torch.from_numpy(array.astype(np.float32))


def _seed_of(env: GymnasiumEnv | GymnasiumVectorEnv, seed: int | Sequence[int] | None) -> int | Sequence[int] | None:
    """Return the seed; at a first reset without one, Gymnasium's own ``np_random_seed``, so that it can be repeated."""
    if seed is not None or env.worlds.seed:
        return seed
    own = env.np_random_seed
    return own if own is not None and own >= 0 else int(env.np_random.integers(2**32))


def _without_counts(options: dict[str, Any]) -> dict[str, Any]:
    for key in ("n_envs", "n_runs"):
        if key in options:
            raise TypeError(f"A Gymnasium environment takes no {key}; say num_envs to make_vec, or use envs.make.")
    return options


def _refuse(options: dict[str, Any] | None) -> None:
    if not options:
        return
    if "reset_mask" in options:
        raise ValueError(
            "options['reset_mask']: worlds restart by themselves (next-step autoreset), so reset all or none."
        )
    raise ValueError(f"options has {', '.join(map(repr, options))}; reset() knows no options, so leave them out.")


def _known_mode(mode: str | None) -> str | None:
    if mode not in (None, "rgb_array"):
        raise ValueError(f"render_mode is {mode!r}; say 'rgb_array', or None for no pictures.")
    return mode


def _check_can_render(worlds: VectorEnv) -> None:
    if not worlds.seed:
        raise ResetNeeded(f"{worlds.task.name}: there is nothing to draw yet; call reset() before render().")


def _release(worlds: VectorEnv) -> None:
    worlds.close()
    # Painters are shared; whoever still needs one gets a new one with its next picture.
    painter.cache_clear()
