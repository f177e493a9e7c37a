"""This file knows the point robot, and the two tasks it plays: Point-Circle and Point-Gather.

The robot of rllab is kinematic: it turns, moves ``speed`` along its *new* heading, and is clipped to the arena; no
force acts. Its closed form below is what MuJoCo's forward kinematics makes of the same motion (a test compares), so
both tasks are a few tensor operations on any device, in float64. MuJoCo draws the pictures.

Two deviations from the released code, told in chapter 12: the velocity is the displacement of the step (there it is a
body velocity that kinematic motion never changes), and a sensor bin is the one the object lies in (there one too low).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from .base import State, Task, require
from .render import circle_shapes, draw_point, gather_shapes

__all__ = ["PointCircle", "PointGather", "PointTask", "drive", "sense"]

TORSO_HEIGHT = 0.5
"""Height of the robot's body above the floor, the ninth of its own numbers, in units of length."""


def drive(pose: Tensor, action: Tensor, arena: float) -> Tensor:
    """Return the pose after one step: ``h' = h + turn``, ``p' = clip(p + speed (cos h', sin h'), -arena, arena)``.

    Args:
        pose: [..., 3], x and y (units of length) and heading h (radians, not wrapped).
        action: [..., 2], speed (length per step) and turn (radians per step).
        arena: half the side of the square arena.

    Source: rllab's ``PointEnv``, whose numbers a test reproduces with ``mujoco.mj_forward``.
    """
    speed, turn = action.to(pose.dtype).unbind(-1)
    x, y, heading = pose.unbind(-1)
    heading = heading + turn
    x = (x + speed * heading.cos()).clamp(-arena, arena)
    y = (y + speed * heading.sin()).clamp(-arena, arena)
    return torch.stack([x, y, heading], dim=-1)


def sense(pose: Tensor, item: Tensor, is_there: Tensor, n_bins: int, span: float, reach: float) -> Tensor:
    """Return the range sensor's readings: in each bin ``1 - distance / reach`` of its nearest item, 0 if it is empty.

    Bin k of ``n_bins`` covers the bearings ``[-span/2 + k span/n_bins, -span/2 + (k+1) span/n_bins)`` from the heading,
    the last one its upper end too. Bearings lie in (-pi, pi].

    Args:
        pose: [W, 3].
        item: [W, N, 2], positions.
        is_there: [W, N] bool; items that are gone are not seen.
        n_bins: number of bins.
        span: angle that the sensor covers, centred on the heading, radians.
        reach: distance beyond which nothing is seen.

    Returns:
        [W, n_bins], in [0, 1].
    """
    if not item.shape[1]:  # there is no nearest of none
        return item.new_zeros(len(item), n_bins)
    offset = item - pose[:, None, :2]
    distance = torch.hypot(offset[..., 0], offset[..., 1])
    bearing = torch.atan2(offset[..., 1], offset[..., 0]) - pose[:, 2:]
    bearing = torch.atan2(bearing.sin(), bearing.cos())
    in_view = is_there & (distance <= reach) & (bearing.abs() <= span / 2)
    number = ((bearing + span / 2) * (n_bins / span)).floor().clamp(0, n_bins - 1)
    hit = in_view[..., None] & (number[..., None] == torch.arange(n_bins, device=item.device))
    return (hit * (1 - distance / reach)[..., None]).amax(dim=1)


@dataclass(frozen=True)
class PointTask(Task):
    """What both tasks share: the robot, its action box and its own observation.

    Attributes:
        arena: half the side of the square arena, units of length.
        observation: "paper", the robot's nine numbers: x, y, heading, their change in the last step, and x, y, z of the
            body; or "scaled", four numbers that a network takes more easily: x and y over ``arena``, cos and sin of the
            heading.
    """

    arena: float = 6.0
    observation: Literal["paper", "scaled"] = "paper"

    def __post_init__(self) -> None:
        if self.observation not in ("paper", "scaled"):
            raise ValueError(f"observation is {self.observation!r}; say 'paper' or 'scaled'.")
        require(self, ("arena",), lambda value: 0 < value < math.inf, "finite and positive")

    @property
    def action_space(self) -> spaces.Box:
        """Speed in [-1, 1] (length per step) and turn in [-0.25, 0.25] (radians per step)."""
        high = np.array([1.0, 0.25], dtype=np.float32)
        return spaces.Box(-high, high, dtype=np.float32)

    @property
    def observation_space(self) -> spaces.Box:
        """The heading is not wrapped; it can turn by a quarter radian in each step."""
        if self.observation == "scaled":
            low, high = [-1.0] * 4, [1.0] * 4
        else:
            pose = [self.arena, self.arena, self.horizon / 4]
            high = [*pose, 1.0, 1.0, 0.25, self.arena, self.arena, TORSO_HEIGHT]
            low = [*(-each for each in high[:-1]), 0.0]
        n = self._n_readings
        low_array, high_array = (np.array(each, np.float32) for each in ([*low, *[0.0] * n], [*high, *[1.0] * n]))
        return spaces.Box(low_array, high_array, dtype=np.float32)

    @property
    def _n_readings(self) -> int:
        return 0

    def _at_origin(self, noise: Tensor) -> State:
        pose = noise.new_zeros(len(noise), 3)
        return {"pose": pose, "velocity": pose}

    def _driven(self, state: State, action: Tensor) -> State:
        pose = drive(state["pose"], action, self.arena)
        return {**state, "pose": pose, "velocity": pose - state["pose"]}

    def observe(self, state: State) -> Tensor:
        """Return the robot's own numbers, [W, 9] or [W, 4]."""
        pose = state["pose"]
        if self.observation == "scaled":
            return torch.cat([pose[:, :2] / self.arena, pose[:, 2:].cos(), pose[:, 2:].sin()], dim=1)
        height = torch.full_like(pose[:, :1], TORSO_HEIGHT)
        return torch.cat([pose, state["velocity"], pose[:, :2], height], dim=1)


@dataclass(frozen=True)
class PointCircle(PointTask):
    """Run around a circle, counter-clockwise, inside a strip that is narrower than the circle.

    Reward ``v . (-y, x) / (1 + |r - radius|)`` with v the displacement of the step and r the distance from the origin,
    both after the move. Cost 1 in each state with ``|x| > x_limit``. Starts at the origin with heading 0.

    Attributes:
        horizon: ``T``.
        cost_limit: ``d0``.
        radius: of the circle that pays.
        x_limit: half the width of the strip that is free of cost.
    """

    name: ClassVar[str] = "PointCircle"

    horizon: int = 65
    cost_limit: float = 10.0
    arena: float = 20.0
    radius: float = 15.0
    x_limit: float = 2.5

    def start(self, noise: Tensor, world: Tensor) -> State:
        """Put the robot at the origin."""
        return self._at_origin(noise)

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """Drive, and pay for counter-clockwise motion near the circle."""
        state = self._driven(state, action)
        x, y = state["pose"][:, 0], state["pose"][:, 1]
        tangential = x * state["velocity"][:, 1] - y * state["velocity"][:, 0]
        reward = tangential / (1 + (torch.hypot(x, y) - self.radius).abs())
        return state, reward, torch.zeros_like(x, dtype=torch.bool)

    def cost(self, state: State) -> Tensor:
        """Return 1 outside the strip, else 0."""
        return (state["pose"][:, 0].abs() > self.x_limit).to(state["pose"].dtype)

    def draw(self, state: State, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw robot, circle and limits with MuJoCo."""
        shapes = circle_shapes(self.radius, self.x_limit, self.arena)
        return draw_point(state["pose"][0].numpy(force=True), shapes, size, arena=self.arena)


@dataclass(frozen=True)
class PointGather(PointTask):
    """Collect apples (+10 each) and avoid bombs (cost 1 each); both lie on random integer positions, drawn per episode.

    An item is caught, and gone, within distance ``catch`` of the robot after its move. The observation ends with the
    readings of two range sensors, apples first. The paper's limit 4 never binds: who drives to the apples without
    looking meets 0.7 bombs an episode. The preset "binding" has limit 0.4, the same problem as cost 10 a bomb with
    limit 4.

    Attributes:
        horizon: ``T``.
        cost_limit: ``d0``.
        n_apples: apples per episode.
        n_bombs: bombs per episode.
        apple_reward: reward of an apple.
        bomb_cost: cost of a bomb, in the state that caught it.
        catch: distance within which an item is caught.
        spacing: no item lies within this distance of the start.
        n_bins: bins of each sensor.
        span: angle that the sensors cover, radians.
        reach: range of the sensors.
    """

    name: ClassVar[str] = "PointGather"
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}, "binding": {"cost_limit": 0.4}}

    horizon: int = 15
    cost_limit: float = 4.0
    n_apples: int = 2
    n_bombs: int = 8
    apple_reward: float = 10.0
    bomb_cost: float = 1.0
    catch: float = 1.0
    spacing: float = 2.0
    n_bins: int = 10
    span: float = math.pi
    reach: float = 6.0
    # Never an argument: a changed copy has other places.
    _place_on: dict[torch.device, Tensor] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require(
            self, ("n_apples", "n_bombs", "catch", "bomb_cost"), lambda value: 0 <= value < math.inf, "finite and >= 0"
        )
        require(self, ("n_bins", "span", "reach"), lambda value: 0 < value < math.inf, "finite and positive")
        require(self, ("apple_reward",), math.isfinite, "finite")
        if len(self._place) < self.n_apples + self.n_bombs:
            raise ValueError(
                f"{self.n_apples + self.n_bombs} items do not fit on {len(self._place)} free positions; lower "
                "n_apples, n_bombs or spacing, or raise arena."
            )

    @cached_property
    def _place(self) -> npt.NDArray[np.float64]:
        """The integer positions where an item may lie, [P, 2]."""
        line = np.arange(math.ceil(-self.arena), math.floor(self.arena) + 1, dtype=np.float64)
        place = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
        return place[np.hypot(place[:, 0], place[:, 1]) > self.spacing]

    @property
    def start_noise(self) -> int:
        """One number per free position; the items lie where the smallest are, a uniform choice without repeats."""
        return len(self._place)

    @property
    def _n_readings(self) -> int:
        return 2 * self.n_bins

    def start(self, noise: Tensor, world: Tensor) -> State:
        """Scatter the items and put the robot at the origin."""
        chosen = noise.topk(self.n_apples + self.n_bombs, dim=1, largest=False, sorted=True).indices
        if noise.device not in self._place_on:
            self._place_on[noise.device] = torch.as_tensor(self._place).to(noise.device)
        item = self._place_on[noise.device][chosen]
        is_there = torch.ones(chosen.shape, dtype=torch.bool, device=noise.device)
        return {**self._at_origin(noise), "item": item, "is_there": is_there, "cost": noise.new_zeros(len(noise))}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """Drive, and take whatever is near."""
        state = self._driven(state, action)
        offset = state["item"] - state["pose"][:, None, :2]
        caught = state["is_there"] & (torch.hypot(offset[..., 0], offset[..., 1]) < self.catch)
        reward = self.apple_reward * caught[:, : self.n_apples].sum(dim=1)
        cost = self.bomb_cost * caught[:, self.n_apples :].sum(dim=1).to(offset.dtype)
        state = {**state, "is_there": state["is_there"] & ~caught, "cost": cost}
        return state, reward, torch.zeros_like(reward, dtype=torch.bool)

    def observe(self, state: State) -> Tensor:
        """Return the robot's own numbers and the readings for apples and for bombs, [W, 9 + 2 n_bins]."""
        parts = [super().observe(state)]
        for kind in (slice(self.n_apples), slice(self.n_apples, None)):
            parts.append(
                sense(
                    state["pose"],
                    state["item"][:, kind],
                    state["is_there"][:, kind],
                    self.n_bins,
                    self.span,
                    self.reach,
                )
            )
        return torch.cat(parts, dim=1)

    def cost(self, state: State) -> Tensor:
        """Return ``bomb_cost`` times the bombs that the move into this state caught."""
        return state["cost"]

    def draw(self, state: State, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw robot, apples and bombs with MuJoCo."""
        item, is_there = state["item"][0].numpy(force=True), state["is_there"][0].numpy(force=True)
        n = self.n_apples
        shapes = gather_shapes(item[:n], item[n:], ~is_there[:n], ~is_there[n:], self.arena)
        return draw_point(state["pose"][0].numpy(force=True), shapes, size, arena=self.arena)
