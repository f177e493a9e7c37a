"""This file knows how a task becomes a batch of worlds: clock, noise, autoreset, checks.

A ``Task`` is mathematics: pure functions of a state, an action and uniform numbers. A ``VectorEnv`` is the one thing
that changes: it runs R independent runs of B worlds each, ends and restarts their episodes, and hands out ``TimeStep``
records.

An episode of ``T`` decisions shows T + 1 states, each with its own cost, the start's and the last one's included.
Restarts follow Gymnasium's *next-step* rule: the step after an episode's last state ignores its action and returns the
next episode's start, with reward 0. So the stream contains every state once, and a sum of costs between two starts is
the episode's cost.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from .noise import MOVE, NoiseStream, WorldNoise

__all__ = ["EnvironmentFault", "State", "Task", "TimeLimit", "TimeStep", "VectorEnv", "require"]

State = dict[str, Tensor]
"""The state of W worlds, every tensor [W, ...]."""

TimeLimit = Literal["terminate", "truncate"]
"""What the horizon means; see ``VectorEnv``."""


class EnvironmentFault(ValueError):  # noqa: N818  # a fault of an environment; not our error
    """An environment got or gave a value that no learner may see; the message names environment, world, step, key."""


def require(record: Any, keys: Sequence[str], is_good: Callable[[float], bool], wanted: str, prefix: str = "") -> None:
    """Raise an error that names the first field of a record that is not as wanted; of a tuple, every entry.

    Args:
        record: a task, or settings of an algorithm.
        keys: names of fields that hold numbers or tuples of them.
        is_good: asked about each number.
        wanted: what is wanted, in words.
        prefix: stands before the field's name.

    Raises:
        ValueError: the message has the field, its value and what is wanted.
    """
    for key in keys:
        value = getattr(record, key)
        if not all(map(is_good, value if isinstance(value, tuple) else (value,))):
            raise ValueError(f"{prefix}{key} is {value}; it must be {wanted}.")


@dataclass(frozen=True)
class Task(ABC):
    """A task as pure functions, batched over W worlds; subclass it, or wrap any Gymnasium vector environment instead.

    ``move`` and ``start`` never change their inputs, draw nothing (uniform numbers in (0, 1) are arguments) and never
    ask a tensor for its value, so that they run unchanged on a GPU.

    Attributes:
        horizon: ``T``, decisions after which an episode ends.
        cost_limit: ``d0``, undiscounted expected cost per episode.
    """

    name: ClassVar[str]
    """The task's name, as errors and tables print it."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    """Named sets of arguments; "paper" is the published task."""
    can_be_unsound: ClassVar[bool] = True
    """Whether an observation, reward or cost could ever be unsound (not finite, a cost < 0); then each is checked."""
    frames_per_second: ClassVar[int] = 10
    """Speed of a video in which one frame is one step."""

    horizon: int
    cost_limit: float

    @classmethod
    def preset(cls, name: str = "paper", **changes: Any) -> Self:
        """Return the task with a preset's arguments, changed where asked.

        Raises:
            ValueError: no such preset; the message lists them.
        """
        if name not in cls.presets:
            raise ValueError(f"{cls.name} has no preset {name!r}; choose one of {', '.join(cls.presets)}.")
        return cls(**{**cls.presets[name], **changes})

    @property
    @abstractmethod
    def observation_space(self) -> spaces.Box:
        """What ``observe`` returns for one world."""

    @property
    @abstractmethod
    def action_space(self) -> spaces.Box | spaces.Discrete:
        """What ``move`` accepts for one world; a box's bounds are finite, and ``VectorEnv`` clips to them."""

    @property
    def start_noise(self) -> int:
        """Uniform numbers per world that ``start`` wants."""
        return 0

    @property
    def move_noise(self) -> int:
        """Uniform numbers per world that ``move`` wants."""
        return 0

    def seeded(self, seed: Sequence[int]) -> "Task":
        """Return the task with whatever is drawn once per run (a layout), for worlds of these run seeds, [W]."""
        return self

    @abstractmethod
    def start(self, noise: Tensor, world: Tensor) -> State:
        """Return the first states of N episodes.

        Args:
            noise: [N, start_noise] uniform numbers in (0, 1), float64.
            world: [N] positions of their worlds.
        """

    @abstractmethod
    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """Return the next state, the reward [W] of the move, and whether the next state ends the episode, [W] bool.

        Args:
            state: of W worlds.
            action: [W, K] within the box, or [W] int64.
            noise: [W, move_noise] uniform numbers in (0, 1), float64.
        """

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Return what the agent sees, [W, O]."""

    @abstractmethod
    def cost(self, state: State) -> Tensor:
        """Return ``d(x) >= 0`` of this state, [W], the start's too."""

    def check(self) -> None:  # noqa: B027  # most tasks have nothing to tell
        """Raise if an earlier result is wrong for a reason that it does not show; may wait for the device."""

    def close(self) -> None:  # noqa: B027  # most tasks hold nothing
        """Release what the task holds outside its values (threads, device memory); it may be used again."""

    def draw(self, state: State, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Return a picture [height, width, 3] of the one world in ``state``; ``size`` is (height, width)."""
        raise NotImplementedError(f"{self.name} has no picture; override draw(state, size).")


@dataclass(frozen=True, eq=False)
class TimeStep:
    """What R x B worlds show at one step. Every tensor is [R, B], ``observation`` [R, B, O].

    Attributes:
        observation: float32.
        reward: of the move into this state, float32; 0 at a start.
        cost: ``d(x)`` of this state, float32.
        terminated: whether the episode ended here for good (no value beyond).
        truncated: whether it was cut here (bootstrap from this observation).
        is_first: whether this is an episode's start.
    """

    observation: Tensor
    reward: Tensor
    cost: Tensor
    terminated: Tensor
    truncated: Tensor
    is_first: Tensor

    @property
    def is_last(self) -> Tensor:
        """Whether the episode ends at this state, for either reason."""
        return self.terminated | self.truncated


class VectorEnv:
    """R runs of B worlds each of one task.

    On one device equal seeds give equal trajectories in any batch: world b of a run is a function of the run's seed, b
    and its actions. Another device gives the same noise, and the same trajectory as far as its arithmetic rounds alike;
    MuJoCo's two engines do not. Nothing in ``step`` waits for a GPU; there, faults are recorded and ``check`` raises
    them.

    Args:
        task: the task.
        n_envs: ``B``, worlds per run.
        n_runs: ``R``.
        device: where the worlds live.
        time_limit: what the horizon means. "terminate" (the paper's): the sum ends at T. "truncate": the episode is cut
            there and values go on.
        is_time_aware: append t / T, the share of the horizon that is used, to the observation. Without it and with
            "terminate" the state is not Markov.
        first_world: number of each run's first world. Worlds with other numbers have other noise in the same task
            (layout), so that an evaluation shares no number with a training.
    """

    def __init__(
        self,
        task: Task,
        n_envs: int = 1,
        n_runs: int = 1,
        device: str | torch.device = "cpu",
        time_limit: TimeLimit = "terminate",
        is_time_aware: bool = False,
        first_world: int = 0,
    ) -> None:
        if n_envs < 1 or n_runs < 1:
            raise ValueError(f"n_envs is {n_envs} and n_runs is {n_runs}; both are at least 1.")
        if time_limit not in ("terminate", "truncate"):
            raise ValueError(f"time_limit is {time_limit!r}; say 'terminate' or 'truncate'.")
        if task.horizon < 1 or not task.cost_limit >= 0:
            raise ValueError(f"{task.name}: horizon {task.horizon} must be >= 1, cost_limit {task.cost_limit} >= 0.")
        self.task, self.n_envs, self.n_runs, self.device = task, n_envs, n_runs, torch.device(device)
        self.time_limit, self.is_time_aware, self._first_world = time_limit, is_time_aware, first_world
        self.seed: tuple[int, ...] = ()
        self._world = torch.arange(n_runs * n_envs, device=self.device)
        self._no_noise = torch.empty(n_runs * n_envs, 0, dtype=torch.float64, device=self.device)
        self._never = torch.zeros_like(self._world, dtype=torch.bool)
        self._is_host = self.device.type == "cpu"
        self._bound: dict[torch.dtype, tuple[Tensor, Tensor]] = {}

    @cached_property
    def observation_space(self) -> spaces.Box:
        """The space of one world's observation."""
        space = self.task.observation_space
        if not self.is_time_aware:
            return space
        low, high = np.append(space.low, np.float32(0)), np.append(space.high, np.float32(1))
        return spaces.Box(low, high, dtype=np.float32)

    @cached_property
    def action_space(self) -> spaces.Box | spaces.Discrete:
        """The space of one world's action; one object, so that its ``seed`` holds."""
        return self.task.action_space

    @property
    def state(self) -> State:
        """The present state of all worlds, every tensor [W, ...]; read it, do not write into it."""
        if not self.seed:
            raise RuntimeError(f"{self.task.name}: there is no state before reset().")
        return dict(self._state)

    @property
    def cost_limit(self) -> float:
        """The limit ``d0`` of the undiscounted expected cost per episode."""
        return self.task.cost_limit

    def reset(self, seed: int | Sequence[int] | None = None) -> TimeStep:
        """Start a new episode in every world.

        Args:
            seed: an integer ``s`` seeds run r with ``s + r``; R integers seed the runs; R * B integers seed each world
                as if it were alone. None goes on with the present noise, or at first draws a seed from the system.
        """
        if seed is not None or not self.seed:
            self._seed(seed)
        self._world_step += 1
        self._state = self._started()
        self._clock = torch.zeros_like(self._world)
        ended = torch.zeros_like(self._world, dtype=torch.bool)
        return self._show(torch.zeros(len(self._world), device=self.device), ended, ~ended)

    def step(self, action: Tensor) -> TimeStep:
        """Move every world once; worlds whose episode has ended start the next one and ignore their action.

        Args:
            action: [R, B, K], clipped to the box, or [R, B] integers.

        Raises:
            EnvironmentFault: an action, observation, reward or cost is not finite, a cost is negative, or a discrete
                action does not exist (on a GPU: raised by the next ``check``).
        """
        if not self.seed:
            raise RuntimeError(f"{self.task.name}: call reset() before step().")
        action = self._checked(action)
        self._world_step += 1
        state, reward, terminated = self.task.move(self._state, action, self._moves.at(self._world_step))
        restart = self._is_last
        clock = self._clock + 1
        # On the CPU a look costs less than the work it saves; elsewhere it would wait for the device.
        if not self._is_host or restart.any():
            state = self._restarted(state, restart)
            reward, clock = reward.masked_fill(restart, 0.0), clock.masked_fill(restart, 0)
            terminated = terminated & ~restart
        self._state, self._clock = state, clock
        return self._show(reward, terminated, restart)

    def check(self) -> None:
        """Raise the first fault that a device other than the CPU recorded; waits for the device.

        Raises:
            EnvironmentFault: naming the environment, run, world and step.
        """
        self.task.check()
        if self.device.type in ("cpu", "meta") or not self.seed or bool((self._fault < 0).all()):
            return
        world = int(torch.where(self._fault < 0, torch.iinfo(torch.int64).max, self._fault).argmin())
        raise EnvironmentFault(
            f"{self._where(world, int(self._fault[world]))}: an action, observation, reward or cost is not finite, a "
            "cost is negative or an action does not exist; run the same seed on the CPU for the value."
        )

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on, as plain tensors, integers and lists of them."""
        if not self.seed:
            raise RuntimeError(f"{self.task.name}: nothing to save before reset().")
        self.check()
        return {
            "seed": list(self.seed),
            "index": self._noise.index.tolist(),
            "step": self._world_step,
            "clock": self._clock.clone(),
            "is_last": self._is_last.clone(),
            "state": {key: value.clone() for key, value in self._state.items()},
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken.

        Raises:
            ValueError: it belongs to another number of worlds.
        """
        if len(saved["seed"]) != len(self._world):
            raise ValueError(f"The saved state has {len(saved['seed'])} worlds, this environment {len(self._world)}.")
        self._plant(saved["seed"], saved["index"])
        self._world_step = int(saved["step"])
        self._clock, self._is_last = saved["clock"].to(self.device), saved["is_last"].to(self.device)
        self._state = {key: value.to(self.device) for key, value in saved["state"].items()}

    def close(self) -> None:
        """Release what the task holds (threads, device memory)."""
        self.task.close()

    def render(self, world: int = 0, size: tuple[int, int] = (480, 480)) -> npt.NDArray[np.uint8]:
        """Return a picture [height, width, 3] of one world (counted over runs and worlds), once there is a state."""
        return self.task.draw({key: value[world : world + 1] for key, value in self.state.items()}, size)

    def _seed(self, seed: int | Sequence[int] | None) -> None:
        n_worlds = len(self._world)
        if seed is None:
            seed = int(np.random.SeedSequence().generate_state(1, np.uint32)[0])
        seeds = [seed + run for run in range(self.n_runs)] if isinstance(seed, int | np.integer) else list(seed)
        if len(seeds) == self.n_runs:
            index = range(self._first_world, self._first_world + self.n_envs)
            self._plant([each for each in seeds for _ in index], list(index) * self.n_runs)
        elif len(seeds) == n_worlds:
            self._plant(seeds, [self._first_world] * n_worlds)
        else:
            raise ValueError(f"{len(seeds)} seeds for {self.n_runs} runs of {self.n_envs} worlds; give 1, R or R * B.")

    def _plant(self, seed: Sequence[int], index: Sequence[int]) -> None:
        seeds = tuple(int(each) for each in seed)
        if min(seeds) < 0:
            raise ValueError(f"seed {min(seeds)} is negative; seeds are integers >= 0.")
        self.seed = seeds
        self.task = self.task.seeded(self.seed)
        self._noise = WorldNoise.seeded(self.seed, index, self.device)
        self._fault = torch.full_like(self._world, -1)
        self._world_step = -1
        self._moves = NoiseStream(self._noise, self.task.move_noise, MOVE)

    def _started(self) -> State:
        return self.task.start(self._noise.start(self._world_step, self.task.start_noise), self._world)

    def _restarted(self, state: State, restart: Tensor) -> State:
        """Return ``state`` with new starts where asked; a function of the mask, whichever way it is computed."""
        if self._is_host:
            chosen = restart.nonzero().squeeze(1)
            n = self.task.start_noise  # choosing worlds costs as much as the rest, and not every start is random
            noise = self._noise.of(chosen).start(self._world_step, n) if n else self._no_noise[: len(chosen)]
            start = self.task.start(noise, chosen)
            return {key: value.index_copy(0, chosen, start[key].to(value.dtype)) for key, value in state.items()}
        start = self._started()
        fresh: State = {}
        for key, value in state.items():
            mask = restart.view([-1] + [1] * (value.ndim - 1))
            fresh[key] = torch.where(mask, start[key].to(value.dtype), value)
        return fresh

    def _show(self, reward: Tensor, terminated: Tensor, is_first: Tensor) -> TimeStep:
        is_over = self._clock >= self.task.horizon
        self._is_last = terminated | is_over
        if self.time_limit == "terminate":
            terminated, truncated = self._is_last, self._never
        else:
            truncated = is_over & ~terminated
        observation, cost = self.task.observe(self._state), self.task.cost(self._state)
        if self.is_time_aware:
            observation = torch.cat(
                [observation, (self._clock / self.task.horizon).to(observation.dtype)[:, None]], dim=1
            )
        if self.task.can_be_unsound:
            self._inspect(observation, reward, cost)
        shape = (self.n_runs, self.n_envs)
        return TimeStep(
            observation.to(torch.float32).view(*shape, -1),
            reward.to(torch.float32).view(shape),
            cost.to(torch.float32).view(shape),
            terminated.view(shape),
            truncated.view(shape),
            is_first.view(shape),
        )

    def _checked(self, action: Tensor) -> Tensor:
        """Return the action flat, [W] or [W, K], clipped to the box."""
        space, action = self.action_space, torch.as_tensor(action, device=self.device)
        expected = (self.n_runs, self.n_envs, *(space.shape or ()))
        if action.shape != expected:
            raise ValueError(f"{self.task.name}: action has shape {tuple(action.shape)}, expected {expected}.")
        action = action.flatten(0, 1)
        if isinstance(space, spaces.Discrete):
            if action.is_floating_point() or action.dtype == torch.bool:
                raise ValueError(f"{self.task.name}: action has dtype {action.dtype}, expected integers.")
            action = action.to(torch.int64)
            if not self._is_host:
                self._record((action < 0) | (action >= int(space.n)))
                return action.clamp(0, int(space.n) - 1)
            least, most = action.aminmax()
            if int(least) < 0 or int(most) >= space.n:
                self._blame("action", action, (action >= 0) & (action < int(space.n)), f"in 0..{space.n - 1}", 1)
            return action
        if not action.is_floating_point():
            action = action.to(torch.float32)  # bounds of the action's own type would be cut to whole numbers
        if not self._is_host:
            self._record(~action.isfinite().all(dim=1))
        elif not math.isfinite(float(action.sum())):
            self._blame("action", action, action.isfinite(), "finite", 1)
        if action.dtype not in self._bound:
            self._bound[action.dtype] = (
                torch.as_tensor(space.low, dtype=action.dtype, device=self.device),
                torch.as_tensor(space.high, dtype=action.dtype, device=self.device),
            )
        low, high = self._bound[action.dtype]
        return torch.clamp(action, low, high)

    def _inspect(self, observation: Tensor, reward: Tensor, cost: Tensor) -> None:
        if not self._is_host:
            is_sound = observation.isfinite().all(dim=1) & reward.isfinite() & cost.isfinite() & (cost >= 0)
            self._record(~is_sound)
        # One sum finds a NaN or an infinity anywhere; who caused it is asked only then.
        elif not math.isfinite(float(observation.sum() + reward.sum() + cost.sum())) or float(cost.min()) < 0:
            self._blame("observation", observation, observation.isfinite(), "finite")
            self._blame("reward", reward, reward.isfinite(), "finite")
            self._blame("cost", cost, cost.isfinite() & (cost >= 0), "finite and >= 0")

    def _record(self, is_bad: Tensor) -> None:
        self._fault = torch.where(is_bad & (self._fault < 0), self._world_step, self._fault)

    def _blame(self, key: str, value: Tensor, is_good: Tensor, wanted: str, ahead: int = 0) -> None:
        bad = (~is_good).flatten(1).any(dim=1) if is_good.ndim > 1 else ~is_good
        if bad.any():
            world = int(bad.nonzero()[0])
            where = self._where(world, self._world_step + ahead)
            raise EnvironmentFault(f"{where}: {key} is {value[world].tolist()}; it must be {wanted}.")

    def _where(self, world: int, step: int) -> str:
        run, env = divmod(world, self.n_envs)
        return f"{self.task.name}, run {run}, world {env}, step {step}"
