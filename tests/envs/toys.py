"""Small environments whose every number is known, and broken on request: the time is all there is to see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from bvf_tutorial.envs import State, Task, TimeStep, VectorEnv


@dataclass(frozen=True)
class Counter(Task):
    """Observe the time t, pay ``state_cost`` in every state, earn t with every move; ``broken`` maps (key, t) to a value."""

    name: ClassVar[str] = "Counter"

    horizon: int = 5
    cost_limit: float = 2.0
    state_cost: float = 1.0
    broken: tuple[tuple[str, int, float], ...] = ()

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, np.inf, (1,), np.float32)

    @property
    def action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def start(self, noise: Tensor, world: Tensor) -> State:
        return {"t": torch.zeros(len(noise), dtype=torch.float64, device=noise.device)}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        t = state["t"] + 1
        return {"t": t}, self._with("reward", t, t), torch.zeros_like(t, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        return self._with("observation", state["t"], state["t"])[:, None]

    def cost(self, state: State) -> Tensor:
        return self._with("cost", state["t"], torch.full_like(state["t"], self.state_cost))

    def _with(self, key: str, t: Tensor, value: Tensor) -> Tensor:
        for broken_key, when, instead in self.broken:
            if broken_key == key:
                value = torch.where(t == when, instead, value)
        return value


class CounterEnv(gymnasium.Env[Any, Any]):
    """The same with Gymnasium's interface: cost 1 in every state but the start, unless ``cost`` says otherwise."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}

    def __init__(
        self,
        horizon: int = 3,
        end: str = "terminated",
        cost: Callable[[int], Any] = lambda t: float(t > 0),
        reports: Callable[[int], bool] = lambda t: True,
        observe: Callable[[int], float] = float,
        action_space: spaces.Space[Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
        **attribute: Any,
    ) -> None:
        self.horizon, self._end, self._cost, self._reports, self._observe = horizon, end, cost, reports, observe
        self.action_space = spaces.Box(-1.0, 1.0, (1,), np.float32) if action_space is None else action_space
        is_box = observation_space is None
        self.observation_space = spaces.Box(0.0, 1e6, (1,), np.float32) if is_box else observation_space
        self._is_box, self.action = is_box, []
        for key, value in attribute.items():
            setattr(self, key, value)

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        value = self._observe(self.t)
        observation = np.array([value], dtype=np.float32) if self._is_box else value
        return observation, {"cost": self._cost(self.t)} if self._reports(self.t) else {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.action.append(action)
        self.t += 1
        observation, info = self._seen()
        is_over = self.t >= self.horizon
        return (
            observation,
            float(self.t),
            is_over and self._end != "truncated",
            is_over and self._end != "terminated",
            info,
        )


class SixTupleEnv(CounterEnv):
    """A step of six values, as Safety-Gymnasium's: the cost stands on its own, a start reports none."""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        return super().reset(**arguments)[0], {"cost_sum": 0.0}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, info["cost"], terminated, truncated, {"cost_sum": float(self.t)}


def random_actions(env: Any, n_steps: int, seed: int = 0) -> Tensor:
    """Return actions [n_steps, R, B, ...], boxes overstepped by a fifth now and then."""
    generator = torch.Generator().manual_seed(seed)
    space, lead = env.action_space, (n_steps, env.n_runs, env.n_envs)
    if isinstance(space, spaces.Discrete):
        return torch.randint(int(space.n), lead, generator=generator)
    low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
    return low + (high - low) * (1.4 * torch.rand(*lead, *space.shape, generator=generator) - 0.2)


def play(env: VectorEnv, action: Tensor, seed: Any = 0) -> TimeStep:
    """Return what a reset and the actions gave, every tensor [T + 1, R, B, ...]."""
    return stacked([env.reset(seed), *(env.step(one) for one in action)])


def stacked(step: list[TimeStep]) -> TimeStep:
    return TimeStep(*(torch.stack([getattr(one, each.name) for one in step]) for each in fields(TimeStep)))


def assert_equal(one: TimeStep, two: TimeStep) -> None:
    """Bitwise, every field."""
    for each in fields(TimeStep):
        a, b = getattr(one, each.name), getattr(two, each.name)
        assert a.dtype == b.dtype and a.shape == b.shape, each.name
        assert torch.equal(a, b), f"{each.name} differs first at {(a != b).nonzero()[0].tolist()}"


def of_worlds(step: TimeStep, runs: slice, worlds: slice) -> TimeStep:
    """Return the record [T + 1, R, B, ...] of some runs and worlds."""
    return TimeStep(*(getattr(step, each.name)[:, runs, worlds] for each in fields(TimeStep)))
