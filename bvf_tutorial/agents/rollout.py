"""This file knows what a learner sees: a stretch of T + 1 states of R x B worlds, and the episodes that ended in it.

The stream has every state once, an episode's last one included, and the step after it shows the next start. So the
record needs no special case: forward critics learn at the states 0..T-1 and bootstrap at T, the backward critic learns
at 1..T and bootstraps at 0, and the three facts about ends (terminated, truncated, first) become discounts and mixes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..envs.base import TimeStep
from .returns import backward_lambda_returns

__all__ = ["EpisodeTotals", "Rollout", "by_run", "is_violation"]


def by_run(value: Tensor) -> Tensor:
    """Return [T, R, B, ...] as [R, T * B, ...], the shape that stacked networks take."""
    return value.transpose(0, 1).flatten(1, 2)


def is_violation(cost: Tensor, cost_limit: float) -> Tensor:
    """Return whether an episode's undiscounted cost exceeds the limit by more than float32 rounds a sum, [...]."""
    return cost > cost_limit + 1e-5 * (1 + abs(cost_limit))


@dataclass(frozen=True, eq=False)
class Rollout:
    """T decisions of R x B worlds and the T + 1 states around them.

    Attributes:
        observation: [T + 1, R, B, O].
        reward: [T + 1, R, B], of the move *into* the state.
        cost: [T + 1, R, B], ``d(x)`` of the state.
        terminated: [T + 1, R, B], whether the episode ended here for good.
        truncated: [T + 1, R, B], whether it was cut here and its values go on.
        is_first: [T + 1, R, B], whether the state is an episode's start.
        decision: what the policy did and knew at the states 0..T-1, each [T, R, B, ...].
        last: the same at state T, [R, B, ...]; what is bootstrapped from is read here.
    """

    observation: Tensor
    reward: Tensor
    cost: Tensor
    terminated: Tensor
    truncated: Tensor
    is_first: Tensor
    decision: Mapping[str, Tensor]
    last: Mapping[str, Tensor]

    @classmethod
    def of(
        cls, step: Sequence[TimeStep], decision: Sequence[Mapping[str, Tensor]], last: Mapping[str, Tensor]
    ) -> "Rollout":
        """Return the record of T + 1 steps, T decisions and the decision at the last step."""
        shown = {
            name: torch.stack([getattr(each, name) for each in step])
            for name in ("observation", "reward", "cost", "terminated", "truncated", "is_first")
        }
        stacked = {key: torch.stack([each[key] for each in decision]) for key in decision[0]}
        return cls(**shown, decision=stacked, last=last)

    @property
    def n_steps(self) -> int:
        """``T``, decisions per world."""
        return len(self.reward) - 1

    @cached_property
    def is_last(self) -> Tensor:
        """Whether the episode ends at the state, for either reason, [T + 1, R, B]."""
        return self.terminated | self.truncated

    @cached_property
    def is_move(self) -> Tensor:
        """Whether the decision was executed, [T, R, B]; the step after an episode's last state ignores it."""
        return ~self.is_last[:-1]

    def all_of(self, key: str) -> Tensor:
        """Return a decision's entry at all T + 1 states, [T + 1, R, B, ...]."""
        return torch.cat([self.decision[key], self.last[key][None]])

    def discount(self, gamma: float) -> Tensor:
        """Return the forward discount, [T, R, B]: gamma, and 0 at a termination or where no move was made."""
        return gamma * (self.is_move & ~self.terminated[1:])

    def mix(self, lambda_: float) -> Tensor:
        """Return the forward mix, [T, R, B]: lambda, and 0 where an episode is cut and its value goes on."""
        return lambda_ * (self.is_move & ~self.truncated[1:])

    def cost_to_go(self, gamma: float) -> Tensor:
        """Return the signal of the forward cost value, [T, R, B]: ``d(x_t)``, and ``gamma d(x_T)`` before an end.

        A terminal state's cost is known, so that it is part of the signal and no critic learns it.
        """
        return self.cost[:-1] + gamma * self.cost[1:] * (self.is_move & self.terminated[1:])

    def backward_discount(self, gamma: float) -> Tensor:
        """Return the discount of the states 1..T towards the past, [T, R, B]: gamma, and 0 at an episode's start."""
        return gamma * ~self.is_first[1:]


@dataclass(frozen=True, eq=False)
class EpisodeTotals:
    """Running totals of every world's episode, and means over the last finished episodes of every run.

    A run's means are renewed when ``window`` of its episodes have finished since; until then the old ones hold. State
    in, state out: ``after`` returns new totals.

    Attributes:
        so_far: [3, R, B], undiscounted return, cost and number of states of the present episode, this one included.
        gathered: [5, R], sums over the episodes finished since the last renewal: count, return, cost, states and
            violations.
        recent: [5, R], how many episodes the means are over (0 before the first), mean return, cost and states, and the
            share whose cost exceeded the limit.
        is_new: [R], whether the last call renewed the means.
    """

    so_far: Tensor
    gathered: Tensor
    recent: Tensor
    is_new: Tensor

    @classmethod
    def started(cls, first: TimeStep) -> "EpisodeTotals":
        """Return the totals at the first states."""
        none = first.cost.new_zeros(5, len(first.cost))
        so_far = torch.stack([torch.zeros_like(first.cost), first.cost, torch.ones_like(first.cost)])
        return cls(so_far, none, none, none[0] > 0)

    def after(self, rollout: Rollout, cost_limit: float, window: int) -> "EpisodeTotals":
        """Return the totals after a rollout's states 1..T, of which it finished episodes where ``is_last``.

        Args:
            rollout: continues where these totals stand.
            cost_limit: an episode whose cost exceeds it is a violation.
            window: episodes a run must have finished before its means are renewed.
        """
        signal = torch.stack([rollout.reward[1:], rollout.cost[1:], torch.ones_like(rollout.cost[1:])], dim=1)
        discount = (~rollout.is_first[1:])[:, None].to(signal.dtype).expand_as(signal)
        total = backward_lambda_returns(signal, discount, signal, 1.0, before=self.so_far)
        ended = rollout.is_last[1:]
        violation = is_violation(total[:, 1:2], cost_limit).to(total.dtype)
        value = torch.cat([torch.ones_like(total[:, :1]), total, violation], dim=1)
        gathered = self.gathered + (value * ended[:, None]).sum(dim=(0, 3))
        is_new = gathered[0] >= window
        mean = torch.cat([gathered[:1], gathered[1:] / gathered[:1].clamp(min=1)])
        return replace(
            self,
            so_far=total[-1],
            gathered=torch.where(is_new, 0.0, gathered),
            recent=torch.where(is_new, mean, self.recent),
            is_new=is_new,
        )

    @property
    def episode_cost(self) -> Tensor:
        """Mean undiscounted cost of the recent episodes, [R]; 0 while there are none."""
        return self.recent[2]

    @property
    def n_states(self) -> Tensor:
        """Mean number of states of the recent episodes, [R]; 1 while there are none."""
        return self.recent[3].clamp(min=1)
