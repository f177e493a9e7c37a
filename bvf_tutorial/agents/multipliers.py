"""This file knows multiplier rules: what a unit of cost weighs against a unit of reward, once per update and run.

A rule reads the undiscounted cost of finished episodes, never a critic, and has a small memory. The price ``l`` enters
as ``(A_R - l A_D) / (1 + l)``, so that ``l = inf`` descends the cost alone: Algorithm 1's safeguard is a multiplier
that jumps between 0 and infinity.

To add a rule, write one function and add one line to ``MULTIPLIER_RULES``.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

__all__ = [
    "MULTIPLIER_RULES",
    "Multiplier",
    "MultiplierState",
    "cost_share",
    "fixed_multiplier",
    "lagrangian_multiplier",
    "pid_multiplier",
    "predicted_multiplier",
    "recovery_multiplier",
    "updated_multiplier",
]


@dataclass(frozen=True)
class Multiplier:
    """A multiplier rule and its gains; the default is none.

    Attributes:
        rule: a name of ``MULTIPLIER_RULES``: how the price of cost follows the episodes. SARSA prices in reward per
            cost; PPO and A2C standardise both advantages first, so that their price has no unit.
        fixed: the constant price of "fixed".
        recovery: the price of "recovery" while over the limit; inf descends the cost alone, as the paper does.
        rate: step size of "lagrangian", per limit of cost over the limit.
        proportional: gain of "pid" on the excess, in units of the limit.
        integral: gain on its sum.
        derivative: gain on its growth.
        prediction: gain on the change of episode cost that an update's importance ratios predict; 0 for none.
        most: largest price of "lagrangian" and "pid", and of every rule while ``prediction`` is positive.
        initial: first price of "lagrangian", first sum of "pid". From 0 the price must first see the limit broken; from
            a high price the policy starts careful, and the price falls while episodes cost less than the limit.
    """

    rule: str = "none"
    fixed: float = 1.0
    recovery: float = torch.inf
    rate: float = 0.1
    proportional: float = 4.0
    integral: float = 0.05
    derivative: float = 0.0
    prediction: float = 0.0
    most: float = 20.0
    initial: float = 0.0

    def __post_init__(self) -> None:
        if self.rule not in MULTIPLIER_RULES:
            raise ValueError(f"multiplier.rule is {self.rule!r}; choose one of {', '.join(MULTIPLIER_RULES)}.")
        for key, value in asdict(self).items():
            if key != "rule" and not value >= 0:
                raise ValueError(f"multiplier.{key} is {value}; it must be >= 0.")


@dataclass(frozen=True, eq=False)
class MultiplierState:
    """The memory of a multiplier rule, one entry per run, [R].

    Attributes:
        value: the price of cost, ``>= 0``, may be inf.
        integral: the summed excess of "pid".
        excess: the last excess.
    """

    value: Tensor
    integral: Tensor
    excess: Tensor

    @classmethod
    def started(cls, gains: Multiplier, n_runs: int, device: torch.device) -> "MultiplierState":
        """Return the memory before any episode."""
        none = torch.zeros(n_runs, device=device)
        first = none + (gains.initial if gains.rule in ("lagrangian", "pid") else 0.0)
        return cls(first, first, none)


def cost_share(multiplier: Tensor) -> Tensor:
    """Return ``w = l / (1 + l)``: ``(1 - w) A_R - w A_D`` is ``(A_R - l A_D) / (1 + l)``, also at ``l = inf``."""
    return 1 - 1 / (1 + multiplier)


def fixed_multiplier(gains: Multiplier, state: MultiplierState, excess: Tensor, scale: float) -> MultiplierState:
    """Return the constant price ``gains.fixed``: a penalty, the ablation without any feedback."""
    return replace(state, value=torch.full_like(excess, gains.fixed))


def recovery_multiplier(gains: Multiplier, state: MultiplierState, excess: Tensor, scale: float) -> MultiplierState:
    """Return ``gains.recovery`` while episodes cost more than the limit, otherwise 0: Algorithm 1's safeguard."""
    return replace(state, value=torch.where(excess > 0, gains.recovery, 0.0))


def lagrangian_multiplier(gains: Multiplier, state: MultiplierState, excess: Tensor, scale: float) -> MultiplierState:
    """Return ``l <- clip(l + rate * excess / scale, 0, most)``: gradient ascent of the dual."""
    return replace(state, value=(state.value + gains.rate * (excess / scale)).clamp(0.0, gains.most))


def pid_multiplier(gains: Multiplier, state: MultiplierState, excess: Tensor, scale: float) -> MultiplierState:
    """Return ``l = clip(k_P e + I + k_D (e - e')^+, 0, most)``, ``I <- clip(I + k_I e, 0, most)``, e = excess / scale.

    Source: Stooke, Achiam and Abbeel (2020), "Responsive safety in reinforcement learning by PID Lagrangian methods".
    """
    error = excess / scale
    integral = (state.integral + gains.integral * error).clamp(0.0, gains.most)
    growth = (error - state.excess / scale).clamp(min=0.0)
    value = gains.proportional * error + integral + gains.derivative * growth
    return replace(state, value=value.clamp(0.0, gains.most), integral=integral)


def predicted_multiplier(gains: Multiplier, value: Tensor, change: Tensor, scale: float) -> Tensor:
    """Return the price within an update: ``clip(l + k (predicted change of episode cost) / scale, 0, most)``, [R]."""
    return (value + gains.prediction * change / scale).clamp(0.0, gains.most)


MultiplierRule = Callable[[Multiplier, MultiplierState, Tensor, float], MultiplierState]

MULTIPLIER_RULES: dict[str, MultiplierRule] = {
    "none": lambda gains, state, excess, scale: state,
    "fixed": fixed_multiplier,
    "recovery": recovery_multiplier,
    "lagrangian": lagrangian_multiplier,
    "pid": pid_multiplier,
}
"""Multiplier rules by name."""


def updated_multiplier(
    gains: Multiplier, state: MultiplierState, episode_cost: Tensor, has_data: Tensor, limit: float, scale: float
) -> MultiplierState:
    """Return the memory after an update; a run without newly finished episodes keeps its own.

    Args:
        gains: the rule.
        state: its memory.
        episode_cost: mean undiscounted cost of the recent episodes, [R].
        has_data: whether that is news, [R].
        limit: what the method aims at.
        scale: cost that counts as an excess of 1 in "lagrangian" and "pid".
    """
    excess = episode_cost - limit
    new = MULTIPLIER_RULES[gains.rule](gains, state, excess, scale)
    return MultiplierState(
        torch.where(has_data, new.value, state.value),
        torch.where(has_data, new.integral, state.integral),
        torch.where(has_data, excess, state.excess),
    )
