"""This file knows the gains of the safety methods beyond their printed form, and how they were chosen.

With continuous actions every method had four candidates on Point-Circle with PPO, and four with A2C, on seeds that no
figure reports; ``results/tuning.csv`` has them, and a test compares this file with it. These gains serve all such
tasks: prices there have no unit, and costs are measured in limits. On the grid worlds all methods have one price. One
above the limit's exact multiplier makes the priced optimum feasible (chapter 7), and a test compares them on some
layouts; of the prices that are high enough, 5 was chosen by hand on layouts 0 to 9 (the penalty with 1, 5 and 20).
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
_PPO: Mapping[str, Mapping[str, Any]] = {
    "backward_weight": _CAREFUL,
    "predictive": _CAREFUL,
    "forward_weight": _CAREFUL,
    "pid": {"margin": 0.25},
    "backward": {"margin": 0.25},
    "recovery": {"margin": 0.25},
    "lagrangian": {"margin": 0.25, "initial": 5.0, "rate": 1.0},
    "penalty": {"fixed": 2.0},
    "safeguarded": {"margin": 0.25, "recovery": 3.0},
    "lyapunov": {"margin": 0.25},
}
_A2C: Mapping[str, Mapping[str, Any]] = {
    "backward_weight": {"margin": 0.25, "initial": 3.0, "integral": 0.1, "prediction": 0.0},
    "predictive": {"margin": 0.25},
    "forward_weight": {"margin": 0.25, "prediction": 0.0},
    "pid": {"margin": 0.25},
    "backward": {"margin": 0.25},
    "recovery": {"margin": 0.25, "recovery": 3.0},
    "lagrangian": {"margin": 0.25, "rate": 1.0},
    "penalty": {"fixed": 4.0},
    "safeguarded": {"margin": 0.25},
    "lyapunov": {"margin": 0.25},
}
_GRID_METHODS = ("backward", "safeguarded", "lyapunov", "recovery", "penalty")
_GRID_PRICE = {"grid": 5.0, "grid_conflict": 2.0}


def _grid(price: float) -> Mapping[str, Constraint]:
    return {name: warmed(CONSTRAINTS[name], price, 100_000) for name in _GRID_METHODS}


TUNED: Mapping[str, Mapping[str, Constraint]] = MappingProxyType(
    {
        **{
            algorithm: {name: tuned(CONSTRAINTS[name], **gains) for name, gains in table.items()}
            for algorithm, table in (("ppo", _PPO), ("a2c", _A2C))
        },
        **{task: _grid(price) for task, price in _GRID_PRICE.items()},
    }
)
"""Safety methods with the chosen gains, by algorithm with continuous actions or else by task, and by method."""
