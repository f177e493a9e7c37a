"""This file knows the stochastic grid world of the paper's section 6.1: its layouts, and its exact CMDP.

The agent starts in the bottom-right cell and looks for a goal in the left column. Pits are drawn at random; stepping on
one costs 10. With probability ``slip`` a uniformly random action is executed instead of the chosen one. One deviation
from the paper, an argument: a layout is redrawn until some path to the goal crosses at most ``cost_limit / pit_cost``
pits (``must_be_solvable``; fewer than one layout in a hundred has none). That is a rule about paths, not about expected
cost: slips add pits, so a kept layout can still be infeasible, and ``tabular.optimal_policy`` says so.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from ..tabular.arrays import FloatArray
from ..tabular.cmdp import CMDP, time_augmented
from ..tabular.errors import InvalidModelError

__all__ = ["ACTION_NAMES", "GridWorld"]

ACTION_NAMES = ("up", "right", "down", "left")
"""Names of the actions 0..3."""
_STEP = ((-1, 0), (0, 1), (1, 0), (0, -1))


@dataclass(frozen=True, eq=False)
class GridWorld:
    """One layout of the grid world. State ``row * size + column``, row 0 at the top.

    The goal is a state of its own and ends the episode.

    Attributes:
        pit: [size, size] booleans; never on ``start`` or ``goal``.
        goal: (row, column).
        start: (row, column); bottom-right unless given.
        slip: probability that a uniformly random action replaces the chosen one.
        pit_cost: cost of each visit to a pit (bumping into a wall while on one included).
        goal_reward: reward of the step that enters the goal, in place of ``step_reward``.
        step_reward: reward of every other step.
        horizon: ``T``, decisions after which the episode ends.
        cost_limit: ``d0``, undiscounted expected cost per episode.
    """

    pit: npt.NDArray[np.bool_]
    goal: tuple[int, int]
    start: tuple[int, int] = field(default=(-1, -1))
    slip: float = 0.05
    pit_cost: float = 10.0
    goal_reward: float = 1000.0
    step_reward: float = -1.0
    horizon: int = 200
    cost_limit: float = 20.0

    def __post_init__(self) -> None:
        pit = np.array(self.pit, dtype=bool)
        if pit.ndim != 2 or pit.shape[0] != pit.shape[1] or pit.shape[0] < 2:
            raise InvalidModelError(f"pit has shape {pit.shape}, expected [size, size] with size >= 2.")
        size = pit.shape[0]
        start = (self.start[0] % size, self.start[1] % size)
        for name, cell in (("start", start), ("goal", self.goal)):
            if not (0 <= cell[0] < size and 0 <= cell[1] < size):
                raise InvalidModelError(f"{name} {cell} lies outside the {size} x {size} grid.")
            if pit[cell]:
                raise InvalidModelError(f"{name} {cell} is a pit; move it or clear the pit.")
        if start == self.goal:
            raise InvalidModelError(f"start and goal are both {start}; move one of them.")
        if not 0 <= self.slip <= 1:
            raise InvalidModelError(f"slip is {self.slip}; a probability lies in [0, 1].")
        pit.flags.writeable = False
        object.__setattr__(self, "pit", pit)
        object.__setattr__(self, "start", start)

    @classmethod
    def random(
        cls,
        seed: int,
        size: int = 12,
        pit_probability: float = 0.3,
        must_be_solvable: bool = True,
        cost_limit: float = 20.0,
    ) -> "GridWorld":
        """Draw a layout: goal uniform in the left column, each other cell a pit with ``pit_probability``.

        Same seed, same layout.

        Args:
            seed: seed of the layout.
            size: cells per side.
            pit_probability: the paper's rho.
            must_be_solvable: redraw until ``fewest_pits() <= cost_limit / pit_cost``.
            cost_limit: ``d0``.

        Raises:
            InvalidModelError: none of ten thousand layouts has such a path.
        """
        generator = np.random.default_rng(seed)
        for _ in range(10_000):
            goal = (int(generator.integers(size)), 0)
            pit = generator.random((size, size)) < pit_probability
            pit[goal] = pit[-1, -1] = False
            grid = cls(pit, goal, cost_limit=cost_limit)
            if not must_be_solvable or grid.fewest_pits() * grid.pit_cost <= cost_limit:
                return grid
        raise InvalidModelError(
            f"pit_probability {pit_probability}: none of 10,000 layouts has a path within cost_limit {cost_limit}; "
            "lower the first, raise the second, or say must_be_solvable=False."
        )

    @classmethod
    def barriers(
        cls, seed: int, size: int = 12, n_barriers: int = 4, goal_reward: float = 50.0, cost_limit: float = 20.0
    ) -> "GridWorld":
        """Draw a layout on which return and cost conflict: columns of pits, each with one gap in a random row.

        To cross a column costs a pit, to walk to its gap costs steps, and the goal is worth so few steps that these
        matter. With pits scattered at random, as in the paper, some path of nearly the same length avoids them.

        Args:
            seed: seed of goal, gaps and columns.
            size: cells per side.
            n_barriers: columns of pits; no two are neighbours, and the first and last column of the grid stay free.
            goal_reward: reward of the step that enters the goal.
            cost_limit: ``d0``.

        Raises:
            InvalidModelError: there is no room for so many columns.
        """
        room = size - 2 - (n_barriers - 1)
        if n_barriers < 0 or room < n_barriers:
            raise InvalidModelError(
                f"n_barriers is {n_barriers}; a grid of size {size} has room for {(size - 1) // 2}."
            )
        generator = np.random.default_rng(seed)
        goal = (int(generator.integers(size)), 0)
        # Distinct places in the shrunken grid, then one free column after each.
        column = 1 + np.sort(generator.choice(room, n_barriers, replace=False)) + np.arange(n_barriers)
        pit = np.zeros((size, size), dtype=bool)
        pit[:, column] = True
        pit[generator.integers(size, size=n_barriers), column] = False
        return cls(pit, goal, goal_reward=goal_reward, cost_limit=cost_limit)

    @property
    def size(self) -> int:
        """Cells per side."""
        return int(self.pit.shape[0])

    @property
    def start_state(self) -> int:
        """Index of the start state."""
        return self.start[0] * self.size + self.start[1]

    @property
    def goal_state(self) -> int:
        """Index of the goal state."""
        return self.goal[0] * self.size + self.goal[1]

    def successor(self) -> npt.NDArray[np.int64]:
        """Return where each executed action leads, [size * size, 4]; walls block."""
        row, column = np.divmod(np.arange(self.size**2), self.size)
        cells = [
            np.clip(row + r, 0, self.size - 1) * self.size + np.clip(column + c, 0, self.size - 1) for r, c in _STEP
        ]
        return np.stack(cells, axis=1)

    def fewest_pits(self) -> int:
        """Return the smallest number of pits on any path from the start to the goal."""
        target = self.successor()
        source = np.repeat(np.arange(self.size**2), 4)
        # Entering a cell costs its pit; a small positive weight keeps pit-free steps in the graph.
        tiny = 1.0 / (4 * self.size**2)
        weight = self.pit.ravel()[target.ravel()] + tiny
        moves = source != target.ravel()
        # 32-bit indices: older SciPy refuses others in graph searches.
        move = (source[moves].astype(np.int32), target.ravel()[moves].astype(np.int32))
        graph = sparse.coo_array((weight[moves], move), shape=(self.size**2,) * 2)
        distance = csgraph.dijkstra(graph.tocsr(), indices=self.start_state)
        return int(np.floor(distance[self.goal_state]))

    def to_cmdp(self, time_augmented_states: bool = False) -> CMDP:
        """Return the exact model; ``cost_limit`` is the task's.

        Args:
            time_augmented_states: whether the state includes the clock, so that the horizon is exact:
                ``size**2 * (horizon + 1)`` sparse states, index ``t * size**2 + cell``. Otherwise the episode ends only
                at the goal, which is exact for the chain within an episode; pass ``horizon`` to ``sample_episodes`` or
                ``finite_horizon_value`` for the limit.

        Returns:
            Dense [size**2, 4, size**2] model, or the sparse time-augmented one.
        """
        n_states, successor = self.size**2, self.successor()
        executed = np.zeros((n_states, 4, n_states))
        np.put_along_axis(executed, successor[:, :, None], 1.0, axis=2)
        transition = (1 - self.slip) * executed + self.slip * executed.mean(axis=1, keepdims=True)
        reward: FloatArray = (
            self.step_reward + (self.goal_reward - self.step_reward) * transition[:, :, self.goal_state]
        )
        cost: FloatArray = np.where(self.pit.ravel(), self.pit_cost, 0.0)
        termination = np.zeros((n_states, 4))
        transition[self.goal_state], reward[self.goal_state], termination[self.goal_state] = 0.0, 0.0, 1.0
        initial = np.zeros(n_states)
        initial[self.start_state] = 1.0
        cmdp = CMDP(transition, reward, cost, initial, self.cost_limit, termination)
        return time_augmented(cmdp, self.horizon) if time_augmented_states else cmdp
