"""This file knows what every learner shares: its environment's spaces, its memory of costs, and how it is saved."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import torch
from gymnasium import spaces
from torch import Tensor, nn

from ..envs.base import TimeStep
from .constraints import Constraint, Situation
from .multipliers import MultiplierState, updated_multiplier
from .returns import backward_lambda_returns, lambda_returns
from .rollout import EpisodeTotals, Rollout, by_run

__all__ = ["Decision", "Learner", "Setting", "calibration", "error_of", "spread"]

Decision = dict[str, Tensor]
"""What a policy did and knew at one step, every tensor [R, B, ...]; ``action`` is what the environment gets."""


@dataclass(frozen=True)
class Setting:
    """What a learner must know of its environment.

    Attributes:
        observation_space: of one world.
        action_space: of one world.
        cost_limit: ``d0``, undiscounted, per episode.
        seeds: one per run.
        n_envs: ``B``, worlds per run.
        device: where everything lives.
    """

    observation_space: spaces.Box
    action_space: spaces.Box | spaces.Discrete
    cost_limit: float
    seeds: tuple[int, ...]
    n_envs: int
    device: torch.device

    @classmethod
    def of(cls, env: Any, seed: int) -> Self:
        """Return the setting of a ``VectorEnv`` or ``FromGymnasium``; run r has the seed ``seed + r``."""
        seeds = tuple(seed + run for run in range(env.n_runs))
        return cls(env.observation_space, env.action_space, env.cost_limit, seeds, env.n_envs, env.device)

    @property
    def n_runs(self) -> int:
        """``R``."""
        return len(self.seeds)


class Learner(ABC):
    """A policy with its critics for R runs; ``decide`` changes nothing, ``update`` learns from one rollout.

    Attributes:
        n_steps: ``T``, decisions per world between two updates.
        n_noise: uniform numbers per world and decision that ``decide`` wants.
        network: all networks.
        optimiser: of all networks.
        multiplier: memory of the multiplier rule.
    """

    n_steps: int
    n_noise: int
    network: nn.ModuleDict
    optimiser: torch.optim.Optimizer

    def __init__(self, constraint: Constraint, setting: Setting, cost_gamma: float) -> None:
        self.constraint, self.setting, self._cost_gamma = constraint, setting, cost_gamma
        n_runs, device = setting.n_runs, setting.device
        self.limit = constraint.limit(setting.cost_limit)
        self.multiplier = MultiplierState.started(constraint.multiplier, n_runs, device)
        self.start_slack = torch.full((n_runs,), self.limit, device=device)
        self.n_decisions = torch.ones(n_runs, device=device)
        self.n_env_steps = 0
        self._carry = self._realised = torch.zeros(n_runs, setting.n_envs, device=device)

    @abstractmethod
    def decide(
        self, step: TimeStep, past: Tensor, noise: Tensor, is_deterministic: bool = False
    ) -> tuple[Tensor, Decision]:
        """Return the action for the environment and all that is worth keeping of the decision; changes nothing.

        Args:
            step: what the worlds show.
            past: [R, B], the episode's realised cost so far, this state's included.
            noise: [R, B, n_noise] uniform numbers in (0, 1).
            is_deterministic: take the mean or greedy action.
        """

    @abstractmethod
    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout; return diagnostics, each [R].

        Args:
            rollout: of ``n_steps`` decisions that this learner made since its last update.
            progress: share of the training that is done, in [0, 1].
        """

    @property
    def cost_unit(self) -> float:
        """The limit, or 1 where the limit is 0, in whose units gains measure cost."""
        return self.setting.cost_limit or 1.0

    @property
    def is_acting(self) -> bool:
        """Whether the safety method acts; it does not during its warm-up."""
        return self.n_env_steps >= self.constraint.warm_up

    def begin(self, step: TimeStep) -> None:
        """Take note of the first states of the stream."""
        self._carry = self._realised = step.cost

    def note_episodes(self, totals: EpisodeTotals, n_env_steps: int) -> None:
        """Take note of finished episodes: the multiplier, and what is left of the limit at the start.

        Args:
            totals: the runs' episode totals.
            n_env_steps: environment steps per run so far.
        """
        self.n_env_steps = n_env_steps
        has_data = totals.recent[0] > 0
        self.start_slack = torch.where(has_data, self.limit - totals.episode_cost, self.start_slack)
        self.n_decisions = (totals.n_states - 1).clamp(min=1)
        if self.is_acting:
            self.multiplier = updated_multiplier(
                self.constraint.multiplier, self.multiplier, totals.episode_cost, totals.is_new, self.limit,
                self.cost_unit,
            )  # fmt: skip

    def allowance(self, cost: Tensor, backward_value: Tensor, baseline_cost: Tensor) -> Tensor:
        """Return the state-wise rule's ``b(x)``, [R, N]; ``+inf`` during the warm-up. Arguments [R, N]."""
        if not self.is_acting:
            return torch.full_like(cost, torch.inf)
        situation = Situation(
            cost, backward_value, baseline_cost, self.start_slack[:, None], self.n_decisions[:, None], self.limit
        )
        return self.constraint.rule.allowance(situation)

    def set_rates(self, initial: Sequence[float], final: float, progress: float) -> None:
        """Set every group's learning rate to ``initial (1 - (1 - final) progress)``, a line from 1 to ``final``."""
        for group, rate in zip(self.optimiser.param_groups, initial, strict=True):
            group["lr"] = rate * (1 - (1 - final) * min(1.0, progress))

    def past_targets(self, rollout: Rollout, value: Tensor, lambda_: float, is_streamed: bool) -> tuple[Tensor, Tensor]:
        """Return the backward critic's targets at the states 1..T and the realised discounted costs so far there.

        Args:
            rollout: the next stretch of the stream.
            value: ``Vb`` at all its states, [T + 1, R, B], units of cost.
            lambda_: mix of the lambda-return.
            is_streamed: carry the returns over from the last rollout, exactly; otherwise bootstrap at the rollout's
                first state as Algorithm 1 does.
        """
        cost, discount = rollout.cost[1:], rollout.backward_discount(self._cost_gamma)
        # At a start too the critic's value, though it is known to be d(x): the value of a state that is also visited
        # later is a mean over all its visits, and to replace it at the first ones only would pull the mean down.
        previous = value[:-1]
        before = self._carry if is_streamed else previous[0]
        target = backward_lambda_returns(cost, discount, previous, lambda_, before)
        realised = backward_lambda_returns(cost, discount, previous, 1.0, self._realised)
        self._carry, self._realised = target[-1], realised[-1]
        return target, realised

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on, as plain tensors, numbers and containers of them."""
        return {
            # Copies: torch hands out the live tensors, which the next update writes into.
            "network": copy.deepcopy(self.network.state_dict()),
            "optimiser": copy.deepcopy(self.optimiser.state_dict()),
            "multiplier": {field.name: getattr(self.multiplier, field.name) for field in fields(MultiplierState)},
            "memory": {"carry": self._carry, "realised": self._realised, **self._memory()},
            "start_slack": self.start_slack,
            "n_decisions": self.n_decisions,
            "n_env_steps": self.n_env_steps,
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken."""
        self.network.load_state_dict(saved["network"])
        # A copy: torch takes the tensors themselves, and two learners of one saved state would share their moments.
        self.optimiser.load_state_dict(copy.deepcopy(saved["optimiser"]))
        self.multiplier = MultiplierState(**saved["multiplier"])
        self._carry, self._realised = saved["memory"]["carry"], saved["memory"]["realised"]
        self.start_slack, self.n_decisions = saved["start_slack"], saved["n_decisions"]
        self.n_env_steps = int(saved["n_env_steps"])
        self._restore(saved["memory"])

    def _memory(self) -> dict[str, Tensor]:
        """Return the learner's own memory beyond its networks."""
        return {}

    def _restore(self, memory: Mapping[str, Tensor]) -> None:  # noqa: B027  # not every learner has more to restore
        """Take back what ``_memory`` returned."""


def calibration(rollout: Rollout, gamma: float, cost_value: Tensor) -> dict[str, Tensor]:
    """Return bias and root mean square error of forward cost values where the rest of the episode was seen, each [R].

    Args:
        rollout: T decisions.
        gamma: discount of the cost values.
        cost_value: [T, R, B], estimates at the states 0..T-1.
    """
    discount, none = rollout.discount(1.0), torch.zeros_like(rollout.reward[0])
    ends = (rollout.is_move & rollout.terminated[1:]).to(discount.dtype)
    is_seen = lambda_returns(ends, discount, torch.zeros_like(ends), 1.0, beyond=none)
    realised = lambda_returns(rollout.cost_to_go(gamma), gamma * discount, torch.zeros_like(ends), 1.0, beyond=none)
    return error_of(cost_value - realised, is_seen, "Forward")


def error_of(error: Tensor, weight: Tensor, name: str) -> dict[str, Tensor]:
    """Return the weighted mean and root mean square of an error [T, R, B] as ``<name>Bias`` and ``<name>Error``, [R].

    NaN, which is "no data" in a table of metrics, for a run without weight.
    """
    total = weight.sum(dim=(0, 2))
    bias = (error * weight).sum(dim=(0, 2)) / total
    square = (error.square() * weight).sum(dim=(0, 2)) / total
    return {f"{name}Bias": bias, f"{name}Error": square.sqrt()}


def spread(slack: Tensor) -> dict[str, Tensor]:
    """Return the tenth, fiftieth and ninetieth percentile over a rollout of a slack [T, R, B], each [R]."""
    level = torch.tensor([0.1, 0.5, 0.9], device=slack.device)
    low, middle, high = torch.quantile(by_run(slack.clamp(-1e6, 1e6)), level, dim=1)
    return {"SlackP10": low, "SlackMedian": middle, "SlackP90": high}
