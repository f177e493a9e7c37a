"""This file knows environments in which every value and the best policy are known, one reason for trouble in each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from bvf_tutorial.agents import Constraint, Evaluator, Learner, Rollout, Setting, Trainer, make_learner
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.envs import State, Task, TimeStep, VectorEnv
from bvf_tutorial.envs.base import TimeLimit
from bvf_tutorial.tabular import CMDP

torch.set_num_threads(1)


@dataclass(frozen=True)
class TableTask(Task):
    """A finite CMDP, observed one-hot; a state of cost 0 stands for the end, so that state ``S`` is every last one.

    With a box for actions, coordinate ``a`` in [-1, 1] takes action 1 with probability (a + 1) / 2.
    """

    name: ClassVar[str] = "Table"

    horizon: int = 1000
    cost_limit: float = 1.0
    cmdp: CMDP = field(kw_only=True)
    is_discrete: bool = True

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (self.cmdp.n_states + 1,), np.float32)

    @property
    def action_space(self) -> spaces.Box | spaces.Discrete:
        return spaces.Discrete(self.cmdp.n_actions) if self.is_discrete else spaces.Box(-1.0, 1.0, (1,), np.float32)

    @property
    def start_noise(self) -> int:
        return 1

    @property
    def move_noise(self) -> int:
        return 2

    def start(self, noise: Tensor, world: Tensor) -> State:
        bounds = torch.as_tensor(np.cumsum(self.cmdp.initial)[:-1])
        return {"state": torch.searchsorted(bounds, noise[:, 0].contiguous(), right=True)}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        here = state["state"].clamp(max=self.cmdp.n_states - 1)  # the end never moves: its action is ignored
        if not self.is_discrete:
            action = (noise[:, 1] < (action[:, 0].to(torch.float64) + 1) / 2).to(torch.int64)
        bounds = torch.as_tensor(np.cumsum(self.cmdp.transition, axis=2))[here, action]
        following = (noise[:, :1] >= bounds).sum(dim=1)
        return {"state": following}, torch.tensor(self.cmdp.reward)[here, action], following == self.cmdp.n_states

    def observe(self, state: State) -> Tensor:
        return torch.nn.functional.one_hot(state["state"], self.cmdp.n_states + 1)

    def cost(self, state: State) -> Tensor:
        return torch.as_tensor(np.append(self.cmdp.cost, 0.0))[state["state"]]


@dataclass(frozen=True)
class Bandit(Task):
    """One decision ``a`` in [-1, 1]: reward ``a``, then a state of cost ``(a + 1) / 2`` that ends the episode.

    Under the limit d0 in (0, 1) the best mean is ``2 d0 - 1``.
    """

    name: ClassVar[str] = "Bandit"

    horizon: int = 1
    cost_limit: float = 0.5

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 1.0, (2,), np.float32)

    @property
    def action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (1,), np.float32)

    def start(self, noise: Tensor, world: Tensor) -> State:
        zero = torch.zeros(len(noise), dtype=torch.float64)
        return {"is_over": zero.bool(), "cost": zero}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        reward = action[:, 0].to(torch.float64)
        is_over = torch.ones_like(state["is_over"])
        return {"is_over": is_over, "cost": (reward + 1) / 2}, reward, is_over

    def observe(self, state: State) -> Tensor:
        return torch.stack([~state["is_over"], state["is_over"]], dim=1)

    def cost(self, state: State) -> Tensor:
        return state["cost"]


# The zoo: unconnected little problems in one CMDP; an episode visits one of them, chosen by chance. Actions change
# nothing, so that every learner under every safety method must find the same values.
ZOO = {
    "constant": [0],  # reward 1, then the end
    "cost only": [1, 2],  # cost 2, then cost 3, then the end
    "two steps": [3, 4],  # reward 0, then 1
    "seen plus": [5],  # what is observed decides: reward +1 ...
    "seen minus": [6],  # ... or -1
    "endless": [7, 8],  # reward 1 for ever and cost 5, 1, 1, ...; only the time limit cuts it
}
ZOO_GAMMA = 0.8
FOREVER = 1 / (1 - ZOO_GAMMA)
"""A unit of cost in every state for ever. An episode that enters the endless chain pays it first, as if the chain had no
start either: the backward value is then the same number at every visit, so that nothing in the zoo is noisy."""


def zoo() -> CMDP:
    """Return the problems of ``ZOO`` as one CMDP with two actions that do the same."""
    transition, reward, cost = np.zeros((9, 9)), np.zeros(9), np.zeros(9)
    transition[1, 2] = transition[3, 4] = transition[7, 8] = transition[8, 8] = 1.0
    reward[[0, 4, 5, 7, 8]], reward[6] = 1.0, -1.0
    cost[[1, 2, 7, 8]] = 2.0, 3.0, FOREVER, 1.0
    initial = np.zeros(9)
    initial[[0, 1, 3, 5, 6, 7]] = 1 / 6
    double = np.repeat(transition[:, None], 2, axis=1)
    return CMDP.episodic(double, np.repeat(reward[:, None], 2, axis=1), cost, initial, 4.0)


ZOO_VALUE = np.array([1, 0, 0, ZOO_GAMMA, 1, 1, -1, FOREVER, FOREVER])
ZOO_COST_VALUE = np.array([0, 2 + ZOO_GAMMA * 3, 3, 0, 0, 0, 0, FOREVER + ZOO_GAMMA * FOREVER, FOREVER])
ZOO_BACKWARD_VALUE = np.array([0, 2, 3 + ZOO_GAMMA * 2, 0, 0, 0, 0, FOREVER, 1 + ZOO_GAMMA * FOREVER])


def two_gates() -> CMDP:
    """Return two decisions, each free or at cost 1: rewards 1, then 2. Limit 1.5 pays for one: the second is worth it.

    States: first gate, second gate after nothing, second gate after paying, and the bill for the second gate. Returns
    and costs of the four plans are (0, 0), (1, 1), (2, 1), (3, 2).
    """
    transition, reward = np.zeros((4, 2, 4)), np.zeros((4, 2))
    transition[0, 0, 1] = transition[0, 1, 2] = transition[1, 1, 3] = transition[2, 1, 3] = 1.0
    reward[0, 1], reward[1, 1], reward[2, 1] = 1.0, 2.0, 2.0
    return CMDP.episodic(transition, reward, np.array([0.0, 0.0, 1.0, 1.0]), np.array([1.0, 0, 0, 0]), 1.5)


def trainer_of(
    task: Task,
    algorithm: Algorithm,
    constraint: Constraint,
    n_updates: int,
    n_envs: int = 4,
    n_runs: int = 1,
    seed: int = 0,
    make: Callable[[Algorithm, Constraint, Setting], Learner] = make_learner,
    time_limit: TimeLimit = "terminate",
    n_evaluation: int = 3,
    **options: Any,
) -> Trainer:
    """Return a trainer of ``n_updates`` updates on a task, evaluated in worlds of its own."""
    env = VectorEnv(task, n_envs, n_runs, time_limit=time_limit)
    learner = make(algorithm, constraint, Setting.of(env, seed))
    judge = VectorEnv(task, n_evaluation, n_runs, time_limit=time_limit, first_world=1_000_000)
    evaluator = Evaluator(judge, learner.setting.seeds, n_evaluation)
    return Trainer(env, learner, seed, n_updates * learner.n_steps * n_envs, evaluator, **options)


def trained(trainer: Trainer) -> Trainer:
    """Return the trainer at its end."""
    while not trainer.is_finished:
        trainer.advance()
    return trainer


def shown(observation: Tensor, n_runs: int = 1) -> TimeStep:
    """Return a step in the middle of an episode that shows these observations [N, O] to every run, cost 0."""
    value = observation.to(torch.float32).expand(n_runs, *observation.shape)
    zero = torch.zeros(value.shape[:2])
    return TimeStep(value, zero, zero, zero.bool(), zero.bool(), zero.bool())


def record(**given: Any) -> Rollout:
    """Return a rollout of one world from lists over its T + 1 states; what is not given is 0 or false."""
    n_states = len(next(iter(given.values())))
    of = {}
    for each in ("observation", "reward", "cost", "terminated", "truncated", "is_first"):
        kind = torch.float32 if each in ("observation", "reward", "cost") else torch.bool
        of[each] = torch.tensor(given.get(each, [0] * n_states), dtype=kind).view(n_states, 1, 1)
    return Rollout(**of, decision={}, last={})


def flat(value: Any, where: str = "") -> dict[str, Tensor]:
    """Return every number of a nested state as tensors by path, to compare two states bit by bit."""
    if isinstance(value, dict):
        return {key: leaf for name in value for key, leaf in flat(value[name], f"{where}/{name}").items()}
    if isinstance(value, list | tuple):
        return {key: leaf for i, one in enumerate(value) for key, leaf in flat(one, f"{where}/{i}").items()}
    return {where: torch.as_tensor(value)} if isinstance(value, Tensor | int | float) else {}


def differing(one: Any, two: Any) -> list[str]:
    """Return the paths at which two nested states are not bitwise equal (NaN equals NaN)."""
    a, b = flat(one), flat(two)
    assert a.keys() == b.keys()
    return [key for key in a if not torch.equal(torch.nan_to_num(a[key]), torch.nan_to_num(b[key]))]
