"""This file knows the gains that the tuning chose for each safety method; ``results/tuning.csv`` has all candidates.

Every method had four candidates, on Point-Circle with PPO and on both grid worlds, on seeds that no figure reports. The
gains of Point-Circle serve every task with continuous actions: prices there have no unit, and errors are measured in
limits. A test compares this file with the table.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from .constraints import CONSTRAINTS, Constraint

__all__ = ["TUNED", "tuned", "warmed"]


def warmed(constraint: Constraint, price: float = 5.0, warm_up: int = 200_000) -> Constraint:
    """Return a method that SARSA can start from scratch with on the grid world: it acts after the exploration.

    Until then the policy is near uniform and the state-wise set empty almost everywhere; and where it is empty, cost
    then has a finite price in place of an infinite one, which would make the agent avoid the goal (chapter 13).

    Args:
        constraint: the method.
        price: of a unit of cost, in rewards, wherever the method has none of its own.
        warm_up: environment steps per run before the method acts.
    """
    gains = replace(constraint.multiplier, recovery=price, fixed=price)
    return replace(constraint, warm_up=warm_up, fallback_multiplier=price, multiplier=gains)


def tuned(constraint: Constraint, margin: float = 0.0, **gains: Any) -> Constraint:
    """Return a method with another margin of the limit and other gains of its multiplier."""
    return replace(constraint, cost_limit_margin=margin, multiplier=replace(constraint.multiplier, **gains))


_CAREFUL: Mapping[str, Any] = {"margin": 0.25, "initial": 5.0, "integral": 0.2}
_CONTINUOUS: Mapping[str, Mapping[str, Any]] = {
    "predictive": _CAREFUL,
    "backward_weight": _CAREFUL,
    "forward_weight": _CAREFUL,
    "pid": _CAREFUL,
}
_GRID_PRICE = {"grid": {"penalty": 5.0, "backward": 5.0, "safeguarded": 5.0, "lyapunov": 5.0, "recovery": 5.0}}
_GRID_PRICE["grid_conflict"] = dict.fromkeys(_GRID_PRICE["grid"], 1.0)


def _grid(price: Mapping[str, float]) -> Mapping[str, Constraint]:
    return {name: warmed(CONSTRAINTS[name], each, 100_000) for name, each in price.items()}


TUNED: Mapping[str, Mapping[str, Constraint]] = MappingProxyType(
    {
        "continuous": {name: tuned(CONSTRAINTS[name], **gains) for name, gains in _CONTINUOUS.items()},
        **{task: _grid(price) for task, price in _GRID_PRICE.items()},
    }
)
"""Safety methods with the chosen gains, by kind of task and method."""
