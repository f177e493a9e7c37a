"""This file knows how the grid world is sampled: one table look-up a step, one layout per run.

``GridWorld`` holds a layout and its exact model; ``GridTask`` plays it. Both come from the same numbers, and a
chi-square test compares the moves sampled here with ``GridWorld.to_cmdp``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from torch import Tensor

from .base import State, Task, require
from .gridworld import GridWorld
from .render import draw_grid

__all__ = ["GridTask"]


@dataclass(frozen=True)
class GridTask(Task):
    """The stochastic grid world of section 6.1, 12 x 12, by default one random layout per run, drawn from its seed.

    Actions up, right, down, left. Reward -1 a step, +1000 in its place on entering the goal, which ends the episode.
    Cost 10 in each pit, a bump into a wall while standing in one included.

    Attributes:
        horizon: ``T``.
        cost_limit: ``d0``.
        size: cells per side.
        pit_probability: the paper's rho.
        slip: probability that a uniformly random action replaces the chosen one.
        must_be_solvable: redraw a layout until some path crosses at most ``cost_limit / 10`` pits.
        n_barriers: draw ``GridWorld.barriers`` with so many columns of pits in place of scattered pits; 0 for none.
        is_one_hot: observe one number per cell, as the paper does; otherwise the cell's index alone.
        layout: layouts to play instead of random ones; world i of the batch plays number i modulo their count. Their
            own slip, rewards and costs hold; horizon and cost_limit are this task's.
    """

    name: ClassVar[str] = "GridWorld"
    can_be_unsound: ClassVar[bool] = False  # every number comes from a table
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "any_layout": {"must_be_solvable": False},
        "conflict": {"n_barriers": 4},
    }

    horizon: int = 200
    cost_limit: float = 20.0
    size: int = 12
    pit_probability: float = 0.3
    slip: float = 0.05
    must_be_solvable: bool = True
    n_barriers: int = 0
    is_one_hot: bool = True
    layout: tuple[GridWorld, ...] = ()
    _played: tuple[GridWorld, ...] = field(default=(), repr=False)
    _of_world: tuple[int, ...] = field(default=(), repr=False)
    _table: dict[torch.device, State] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(self, ("size",), lambda value: value >= 2, "at least 2")
        require(self, ("pit_probability", "slip"), lambda value: 0 <= value <= 1, "in [0, 1]")
        require(self, ("n_barriers",), lambda value: value >= 0, ">= 0")
        if self.layout and any(grid.size != self.layout[0].size for grid in self.layout):
            raise ValueError(f"layouts have sizes {[grid.size for grid in self.layout]}; one task has one size.")

    @property
    def n_cells(self) -> int:
        """Cells of a layout."""
        return (self.layout[0].size if self.layout else self.size) ** 2

    @property
    def observation_space(self) -> spaces.Box:
        """One-hot cells, or one cell index."""
        if self.is_one_hot:
            return spaces.Box(0.0, 1.0, (self.n_cells,), np.float32)
        return spaces.Box(0.0, float(self.n_cells - 1), (1,), np.float32)

    @property
    def action_space(self) -> spaces.Discrete:
        """Up, right, down, left."""
        return spaces.Discrete(4)

    @property
    def move_noise(self) -> int:
        """One number decides whether the agent slips, and where."""
        return 1

    def random_layout(self, seed: int) -> GridWorld:
        """Return the layout of the run with this seed."""
        if self.n_barriers:
            grid = GridWorld.barriers(seed, self.size, self.n_barriers, cost_limit=self.cost_limit)
        else:
            grid = GridWorld.random(seed, self.size, self.pit_probability, self.must_be_solvable, self.cost_limit)
        return replace(grid, slip=self.slip, horizon=self.horizon)

    def seeded(self, seed: Sequence[int]) -> "GridTask":
        """Return the task with each world's layout: given ones in turn, or one per run seed."""
        if self.layout:
            played = tuple(replace(grid, horizon=self.horizon, cost_limit=self.cost_limit) for grid in self.layout)
            of_world = tuple(i % len(played) for i in range(len(seed)))
        else:
            runs = {each: i for i, each in enumerate(dict.fromkeys(seed))}
            played = tuple(self.random_layout(each) for each in runs)
            of_world = tuple(runs[each] for each in seed)
        return replace(self, _played=played, _of_world=of_world, _table={})

    def grid_of(self, world: int) -> GridWorld:
        """Return the layout, with its exact model, that a world of the seeded batch plays."""
        return self._played[self._of_world[world]]

    def _tables(self, device: torch.device) -> State:
        """Return the rules of all layouts as flat tables, index ``layout * n_cells + cell`` (then ``* 4 + action``)."""
        if device not in self._table:
            n, grids = self.n_cells, self._played
            goal = [np.arange(n) == grid.goal_state for grid in grids]
            target = [grid.successor() + i * n for i, grid in enumerate(grids)]
            reward = [
                np.where(goal[i], grid.goal_reward, grid.step_reward)[grid.successor()] for i, grid in enumerate(grids)
            ]
            self._table[device] = {
                "target": torch.as_tensor(np.stack(target)).flatten().to(device),
                "reward": torch.as_tensor(np.stack(reward), dtype=torch.float32).flatten().to(device),
                "cost": torch.as_tensor(
                    np.stack([grid.pit.ravel() * grid.pit_cost for grid in grids]), dtype=torch.float32
                )
                .flatten()
                .to(device),
                "goal": torch.as_tensor(np.stack(goal)).flatten().to(device),
                "cell": torch.arange(n, device=device).repeat(len(grids)),
                "start": torch.tensor(
                    [layout * n + grids[layout].start_state for layout in self._of_world], device=device
                ),  # of each world
                "slip": torch.tensor(
                    [grid.slip for grid in grids], dtype=torch.float64, device=device
                ).repeat_interleave(n),
                "identity": torch.eye(n, device=device),
            }
        return self._table[device]

    def start(self, noise: Tensor, world: Tensor) -> State:
        """Put the agent on its layout's start."""
        table = self._tables(noise.device)
        return {"cell": table["start"].take(world)}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        """Execute the action, or with probability ``slip`` a uniformly random one."""
        table, chance, here = self._tables(noise.device), noise[:, 0], state["cell"]
        slip = table["slip"].take(here)
        # Given chance < slip, chance / slip < 1 is uniform again; without slips the quotient is not used.
        executed = torch.where(chance < slip, (chance / slip * 4).to(torch.int64), action)
        entry = here * 4 + executed
        cell = table["target"].take(entry)
        return {"cell": cell}, table["reward"].take(entry), table["goal"].take(cell)

    def observe(self, state: State) -> Tensor:
        """Return the cell, one-hot [W, n_cells] or as its index [W, 1]."""
        table = self._tables(state["cell"].device)
        cell = table["cell"].take(state["cell"])
        if self.is_one_hot:
            return table["identity"].index_select(0, cell)
        return cell[:, None].to(torch.float32)

    def cost(self, state: State) -> Tensor:
        """Return the cost of the cell, [W]."""
        return self._tables(state["cell"].device)["cost"].take(state["cell"])

    def draw(self, state: State, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
        """Draw layout and agent."""
        layout, cell = divmod(int(state["cell"][0]), self.n_cells)
        grid = self._played[layout]
        return draw_grid(grid.pit, grid.goal, grid.start, divmod(cell, grid.size), size)
