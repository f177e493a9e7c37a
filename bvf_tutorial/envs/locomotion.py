"""This file knows the running robots with a speed limit: Safe-Cheetah, and Gymnasium's other walkers in the same dress.

Body, reward, end of an episode, observation and first states are those of Gymnasium's v5 environments; the cost is
ours: 1 in every state that was reached faster than ``speed_limit``. The speed of a step is Gymnasium's, the
displacement along x over the time of the step. It belongs to the state that the step led to, so the cost is a function
of the state; a start was reached by no step and costs nothing.

Ant deviates twice. Gymnasium adds contact forces to its observation and a cost of them to its reward; neither engine
gives those cheaply, so both are left out, as Gymnasium does with ``include_cfrc_ext_in_observation=False`` and
``contact_cost_weight=0``. And Gymnasium takes the place of Ant's body from the last stage of MuJoCo's integrator, an
approximation of the new position; here it is the position itself, as for all other robots.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import mujoco
import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from .base import State, Task
from .physics import Backend, Physics, backend_for, choose_physics, load_model
from .render import Camera, painter, with_speed

__all__ = ["Locomotion", "Robot", "SafeAnt", "SafeCheetah", "SafeHopper", "SafeSwimmer", "SafeWalker2d"]


@dataclass(frozen=True)
class Robot:
    """What distinguishes Gymnasium's robots; the numbers are the defaults of its v5 environments.

    Attributes:
        model: name of Gymnasium's model file, without ending.
        frame_skip: physics steps in one step of the environment.
        control_cost: weight of ``|action|^2`` in the reward.
        start_noise: half the width of the uniform noise on the first positions, and the scale of that on velocities.
        is_velocity_normal: whether the first velocities are normal; otherwise uniform.
        n_hidden: how many coordinates the observation leaves out, those of the place in the world.
        velocity_bound: observed velocities are clipped to this.
        healthy_reward: reward of every step that leads to a healthy state.
        height: healthy range of coordinate ``height_index``, in metres.
        height_index: where the height stands among the positions.
        is_height_closed: whether the ends of that range are healthy.
        pitch: healthy range, open, of the coordinate after the height, radians.
        bound: every number of the state after the first two lies strictly within +-bound in a healthy state.
    """

    model: str
    frame_skip: int
    control_cost: float
    start_noise: float
    is_velocity_normal: bool
    n_hidden: int = 1
    velocity_bound: float = math.inf
    healthy_reward: float = 0.0
    height: tuple[float, float] = (-math.inf, math.inf)
    height_index: int = 1
    is_height_closed: bool = False
    pitch: tuple[float, float] = (-math.inf, math.inf)
    bound: float = math.inf

    @property
    def can_fall(self) -> bool:
        """Whether there are unhealthy states, which end the episode."""
        return self.healthy_reward > 0


@dataclass(frozen=True)
class Locomotion(Task):
    """Run forward, not faster than the limit; a subclass names the robot.

    Reward ``speed + healthy_reward * is_healthy - control_cost * |action|^2``, cost 1 if ``|speed| > speed_limit``,
    with ``speed = (x' - x) / dt`` in metres per second. The state has positions [W, nq], velocities [W, nv] and the
    speed [W] of the step that led to it, 0 at a start; float64 on MuJoCo's C code, float32 on Warp.

    The physics engine is made at the first move, one for each number of worlds and device, and is no part of the task's
    value: ``move`` is a function of its arguments.

    Attributes:
        horizon: ``T``.
        cost_limit: ``d0``.
        speed_limit: metres per second.
        include_x_position: whether the observation begins with the coordinates that Gymnasium leaves out.
        backend: "auto", "rollout" or "warp"; see ``physics.choose_physics``.
        n_threads: of the "rollout" engine; 0 means one per core.
    """

    name: ClassVar[str] = "Locomotion"
    robot: ClassVar[Robot]
    """The body and Gymnasium's numbers for it."""
    frames_per_second: ClassVar[int] = 20

    horizon: int = 200
    cost_limit: float = 50.0
    speed_limit: float = 1.0
    include_x_position: bool = False
    backend: Backend = "auto"
    n_threads: int = 0
    _engines: dict[tuple[int, torch.device], Physics] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _rest: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not hasattr(type(self), "robot"):
            raise TypeError(f"{type(self).__name__} names no robot; use SafeCheetah or set `robot` in a subclass.")
        if not self.speed_limit >= 0:
            raise ValueError(f"{self.name}: speed_limit is {self.speed_limit}; it must be >= 0.")
        backend_for("cpu", self.backend)

    @property
    def model(self) -> mujoco.MjModel:
        """The compiled model, one object for all tasks; do not change it."""
        return load_model(self.robot.model)

    @cached_property
    def dt(self) -> float:
        """Seconds of one step."""
        return float(self.model.opt.timestep) * self.robot.frame_skip

    @cached_property
    def action_space(self) -> spaces.Box:
        """The actuators' control ranges."""
        low, high = self.model.actuator_ctrlrange.astype(np.float32).T
        return spaces.Box(low, high, dtype=np.float32)

    @cached_property
    def observation_space(self) -> spaces.Box:
        """Unbounded."""
        n_hidden = 0 if self.include_x_position else self.robot.n_hidden
        return spaces.Box(-np.inf, np.inf, (self.model.nq + self.model.nv - n_hidden,), np.float32)

    @property
    def start_noise(self) -> int:
        """One number per position and velocity."""
        return int(self.model.nq + self.model.nv)

    def start(self, noise: Tensor, world: Tensor) -> State:
        """Put the robot near its rest position, at rest but for noise."""
        robot, n_positions = self.robot, self.model.nq
        if noise.device not in self._rest:  # copied once: a copy to a GPU waits for it
            self._rest[noise.device] = torch.as_tensor(self.model.qpos0).to(noise.device)
        rest = self._rest[noise.device]
        dtype = torch.float32 if backend_for(noise.device, self.backend)[0] == "warp" else torch.float64
        position = rest + robot.start_noise * (2 * noise[:, :n_positions] - 1)
        kick = noise[:, n_positions:]
        kick = torch.special.ndtri(kick) if robot.is_velocity_normal else 2 * kick - 1
        return {
            "position": position.to(dtype),
            "velocity": (robot.start_noise * kick).to(dtype),
            "speed": torch.zeros(len(noise), dtype=dtype, device=noise.device),
        }

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """Apply the action for ``frame_skip`` physics steps."""
        before, robot = state["position"], self.robot
        action = action.to(before.dtype)
        both = torch.cat([before, state["velocity"]], dim=1)
        after = self.physics(len(before), before.device).advance(both, action, robot.frame_skip)
        speed = (after[:, 0] - before[:, 0]) / self.dt
        reward = speed - robot.control_cost * action.square().sum(dim=1)
        if robot.can_fall:
            is_healthy = self._is_healthy(after)
            reward, terminated = reward + robot.healthy_reward * is_healthy, ~is_healthy
        else:
            terminated = torch.zeros_like(speed, dtype=torch.bool)
        n_positions = before.shape[1]
        return (
            {"position": after[:, :n_positions], "velocity": after[:, n_positions:], "speed": speed},
            reward,
            terminated,
        )

    def _is_healthy(self, both: Tensor) -> Tensor:
        robot = self.robot
        height, low, high = both[:, robot.height_index], *robot.height
        if robot.is_height_closed:
            return (height >= low) & (height <= high)
        is_healthy = (height > low) & (height < high)
        pitch = both[:, robot.height_index + 1]
        is_healthy &= (pitch > robot.pitch[0]) & (pitch < robot.pitch[1])
        return is_healthy & (both[:, 2:].abs() < robot.bound).all(dim=1) if robot.bound < math.inf else is_healthy

    def observe(self, state: State) -> Tensor:
        """Return positions without those of the place, and velocities, [W, O]."""
        first = 0 if self.include_x_position else self.robot.n_hidden
        velocity, bound = state["velocity"], self.robot.velocity_bound
        return torch.cat(
            [state["position"][:, first:], velocity.clamp(-bound, bound) if bound < math.inf else velocity], 1
        )

    def cost(self, state: State) -> Tensor:
        """Return 1 where the state was reached faster than the limit, forwards or backwards, else 0."""
        return (state["speed"].abs() > self.speed_limit).to(state["speed"].dtype)

    def physics(self, n_worlds: int, device: str | torch.device = "cpu") -> Physics:
        """Return the engine for this many worlds on this device; made once."""
        key = (n_worlds, torch.device(device))
        if key not in self._engines:
            self._engines[key] = choose_physics(self.model, n_worlds, device, self.backend, self.n_threads)
        return self._engines[key]

    def draw(self, state: State, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw the robot, which stays in the middle, and its speed beside the limit."""
        position = state["position"][0].numpy(force=True)
        if self.robot.n_hidden == 1:
            camera = Camera((float(position[0]), 0.0, 0.7), height=2.5, elevation=-10.0, is_perspective=True)
        else:
            camera = Camera(
                (float(position[0]), float(position[1]), 0.0), height=5.0, elevation=-50.0, is_perspective=True
            )
        picture = painter(self.model, size).paint(position, camera=camera)
        return with_speed(picture, float(state["speed"][0]), max(self.speed_limit, 1e-9))

    def check(self) -> None:
        """Raise what the engines recorded without showing it; see ``Physics.check``."""
        for engine in self._engines.values():
            engine.check()

    def close(self) -> None:
        """End threads and release memory of all engines; the task may be used again."""
        for engine in self._engines.values():
            engine.close()
        self._engines.clear()

    def __getstate__(self) -> dict[str, Any]:
        """Leave the engines out of pickles and copies, which make their own."""
        return {**self.__dict__, "_engines": {}}


class SafeCheetah(Locomotion):
    """Gymnasium's HalfCheetah-v5 with a speed limit. The preset "paper" observes the position too, 18 numbers."""

    name: ClassVar[str] = "SafeCheetah"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {"include_x_position": True}, "gymnasium": {}}
    robot: ClassVar[Robot] = Robot("half_cheetah", 5, control_cost=0.1, start_noise=0.1, is_velocity_normal=True)


class SafeHopper(Locomotion):
    """Gymnasium's Hopper-v5 with a speed limit."""

    name: ClassVar[str] = "SafeHopper"
    robot: ClassVar[Robot] = Robot(
        "hopper", 4, control_cost=1e-3, start_noise=5e-3, is_velocity_normal=False, velocity_bound=10.0,
        healthy_reward=1.0, height=(0.7, math.inf), pitch=(-0.2, 0.2), bound=100.0,
    )  # fmt: skip
    frames_per_second: ClassVar[int] = 125


class SafeWalker2d(Locomotion):
    """Gymnasium's Walker2d-v5 with a speed limit."""

    name: ClassVar[str] = "SafeWalker2d"
    robot: ClassVar[Robot] = Robot(
        "walker2d_v5", 4, control_cost=1e-3, start_noise=5e-3, is_velocity_normal=False, velocity_bound=10.0,
        healthy_reward=1.0, height=(0.8, 2.0), pitch=(-1.0, 1.0),
    )  # fmt: skip
    frames_per_second: ClassVar[int] = 125


class SafeAnt(Locomotion):
    """Gymnasium's Ant-v5 with a speed limit, without forces of contact in observation and reward."""

    name: ClassVar[str] = "SafeAnt"
    robot: ClassVar[Robot] = Robot(
        "ant", 5, control_cost=0.5, start_noise=0.1, is_velocity_normal=True, n_hidden=2,
        healthy_reward=1.0, height=(0.2, 1.0), height_index=2, is_height_closed=True,
    )  # fmt: skip


class SafeSwimmer(Locomotion):
    """Gymnasium's Swimmer-v5 with a speed limit."""

    name: ClassVar[str] = "SafeSwimmer"
    robot: ClassVar[Robot] = Robot(
        "swimmer", 4, control_cost=1e-4, start_noise=0.1, is_velocity_normal=False, n_hidden=2
    )  # fmt: skip
    frames_per_second: ClassVar[int] = 25
