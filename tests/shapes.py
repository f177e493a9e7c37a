"""This file knows the shape of everything the tabular package takes and returns, and checks it on every call of every test.

The package itself depends on NumPy and SciPy only, so the contracts live here: jaxtyping names the axes (S states, A actions,
T time, K features) and beartype checks them at run time. Names bind within a call: a cost of S entries must give a value of S entries.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from beartype.door import is_bearable
from jaxtyping import Float64, jaxtyped

Vector = Float64[np.ndarray, "S"]
Table = Float64[np.ndarray, "S A"]
Law = Float64[np.ndarray, "S K"]
Pair = tuple[float, float]
Series = Float64[np.ndarray, "T *batch"]

# Function -> contract of its result. Sparse results and records check themselves.
CONTRACTS: dict[str, Any] = {
    "expected_visits": Vector,
    "expected_length": float,
    "stationary_distribution": Vector,
    "forward_value": Vector,
    "backward_value": Vector,
    "bellman_operator": Vector,
    "lambda_operator": Vector,
    "expected_age": Vector,
    "expected_remaining": Vector,
    "state_wise_cost": Vector,
    "slack": Vector,
    "product_moment": Vector,
    "best_response": Table,
    "least_cost_policy": Table,
    "cautious_policy": Table,
    "decision_bound": float,
    "backward_offset": Vector,
    "safeguarded_offset": Vector,
    "lyapunov_offset": Vector,
    "multiplier_bracket": Vector,
    "cost_variance": Vector,
    "state_wise_variance": Vector,
    "cost_distribution": Law,
    "state_wise_distribution": Law,
    "tail_probability": Vector,
    "conditional_value_at_risk": Vector,
    "q_value": Table,
    "backward_q_value": Table,
    "uniform_policy": Table,
    "greedy_policy": Table,
    "policy_reward": Vector,
    "occupancy_measure": Table,
    "policy_from_occupancy": Table,
    "evaluate_policy": Pair,
    "cost_range": Pair,
    "lambda_returns": Series,
    "backward_lambda_returns": Series,
    "n_step_returns": Series,
    "episode_sum": Float64[np.ndarray, "N"],
    "streaming_backward_td": Vector,
}
# Arguments that share an axis with the result, converted to float64 arrays before the check as the package does.
SHARED = {"cost": Vector, "value": Vector}
LIKE_RESULT = {"cost": Series, "next_value": Series, "previous_value": Series, "discount": Series}


def checked(function: Callable[..., Any], result: Any) -> Callable[..., Any]:
    """Return ``function`` with the shape of its result, and of arguments sharing an axis with it, checked."""
    names = inspect.signature(function)
    shared = LIKE_RESULT if result is Series else SHARED if result is Vector else {}
    used = {name: kind for name, kind in shared.items() if name in names.parameters}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        value = function(*args, **kwargs)
        given = names.bind(*args, **kwargs).arguments
        _holds(
            value, result, [(np.asarray(given[name], dtype=np.float64), used[name]) for name in used if name in given]
        )
        return value

    return wrapper


def _holds(value: Any, kind: Any, arguments: list[tuple[np.ndarray, Any]]) -> None:
    with jaxtyped("context"):  # axis names bind over all checks in here
        for array, shape in arguments:
            assert isinstance(array, shape), f"{array.dtype}{array.shape} is not {shape}"
        assert is_bearable(value, kind), f"{np.shape(value)} is not {kind}, or does not share the arguments' axes"


def install() -> None:
    """Replace every contracted function in every loaded module of the package by its checked version."""
    import bvf_tutorial.tabular as tabular

    for name, result in CONTRACTS.items():
        original = getattr(tabular, name)
        replacement = checked(original, result)
        for module_name, module in list(sys.modules.items()):
            if module_name.startswith("bvf_tutorial") and vars(module).get(name) is original:
                setattr(module, name, replacement)
