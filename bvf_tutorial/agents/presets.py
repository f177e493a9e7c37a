"""This file knows the presets: every task with every algorithm and safety method, with settings that learn.

A preset is data, never a special case in code: ``<task>-<algorithm>-<method>`` names one cell of the product. Settings
of a task are the same for all of its methods; ``<method>_tuned`` has the gains that the tuning chose (``tuned``).
"""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from .algorithms import ALGORITHMS, Algorithm
from .config import Config, EnvironmentConfig
from .constraints import CONSTRAINTS, Constraint
from .tuned import TUNED, warmed

__all__ = ["ENVIRONMENTS", "PRESETS", "figure_of", "preset"]

_TIMED: Mapping[str, EnvironmentConfig] = {
    "circle": EnvironmentConfig("PointCircle", is_time_aware=True, options={"observation": "scaled"}),
    "gather": EnvironmentConfig("PointGather", is_time_aware=True, options={"observation": "scaled"}),
    "gather_binding": EnvironmentConfig(
        "PointGather", "binding", is_time_aware=True, options={"observation": "scaled"}
    ),
    "cheetah": EnvironmentConfig("SafeCheetah", is_time_aware=True),
}
_CLOCKLESS = "_clockless"
ENVIRONMENTS: Mapping[str, EnvironmentConfig] = MappingProxyType(
    {
        "grid": EnvironmentConfig("GridWorld", options={"is_one_hot": False}),
        "grid_conflict": EnvironmentConfig("GridWorld", "conflict", options={"is_one_hot": False}),
        **_TIMED,
        **{f"{task}{_CLOCKLESS}": replace(each, is_time_aware=False) for task, each in _TIMED.items()},
    }
)
"""The tasks as they are trained here; chapter 12 defines them. Without a clock no value knows the time left."""

_GRIDS = ("grid", "grid_conflict")
_CONTINUOUS = ("a2c", "a2c_tuned", "ppo", "ppo_discounted", "a2c_paper", "ppo_paper")
# Below, a task's first word stands for all of its versions, as an algorithm's stands for its discounted costs.
_HORIZON = {"circle": 65, "gather": 15, "cheetah": 200}
_COST_SCALE = {"circle": 0.1, "gather": 1.0, "cheetah": 0.02}
_FASTER = {"learning_rate": 2e-3, "critic_learning_rate": 2e-3, "final_learning_rate": 0.15, "log_std": -1.5}
# Eight short episodes fill a rollout of Point-Gather; its 24 numbers want wider networks, its apples a wide search.
_WIDER = {
    "n_steps": 128, "minibatches": 8, "actor_hidden": (128, 128), "critic_hidden": (128, 128),
    "final_learning_rate": 0.05,
    "log_std": 0.0,
    "entropy_coef": 0.003,
}  # fmt: skip
_CHANGES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("grid_conflict", "sarsa"): {"reward_scale": 0.2},  # the goal is worth 50 in place of 1000
    ("circle", "ppo"): {**_FASTER, "minibatches": 6},
    ("circle", "a2c_tuned"): {"log_std": -1.5},
    ("gather", "ppo"): _WIDER,
    ("gather", "a2c_tuned"): {**_WIDER, "final_learning_rate": 0.15},
    ("cheetah", "ppo"): {"is_observation_standardised": True, "minibatches": 16},
    ("cheetah", "ppo_paper"): {"is_observation_standardised": True, "minibatches": 16},
    ("cheetah", "a2c"): {"is_observation_standardised": True},
    ("cheetah", "a2c_tuned"): {"is_observation_standardised": True, "minibatches": 16},
    ("cheetah", "a2c_paper"): {"is_observation_standardised": True},
}
_N_ENVS = {("circle", "ppo"): 40}
_N_ENV_STEPS = {"grid": 500_000, "circle": 422_400, "gather": 512_000, "cheetah": 300_000}
_FIGURE = {
    ("grid", "sarsa"): "figure 1",
    ("gather", "a2c"): "figure 2",
    ("cheetah", "a2c"): "figure 2",
    ("circle", "a2c"): "figure 2",
    ("gather", "ppo"): "figure 3",
    ("cheetah", "ppo"): "figure 3",
    ("circle", "ppo"): "figure 3",
}


def figure_of(name: str) -> str:
    """Return the figure of the paper in which a preset's curve stands, or "" for a curve that the paper has not."""
    task, algorithm, method = name.split("-")
    figure = _FIGURE.get((task, algorithm.partition("_")[0]), "")
    if method in ("target", "lyapunov_target"):
        return "appendix J" if figure == "figure 3" else ""
    return figure if method in ("unconstrained", "backward", "lyapunov") else ""


def _on_task(task: str, name: str) -> Algorithm:
    """Return an algorithm's settings on a task: a rollout is one whole episode and its restart, or several."""
    algorithm = ALGORITHMS[name]
    if task in _GRIDS:
        return replace(algorithm, **_CHANGES.get((task, "sarsa"), {}))
    kind = _kind(task)
    own = _CHANGES.get((kind, name.removesuffix("_discounted")), {})
    return replace(algorithm, **{"n_steps": _HORIZON[kind] + 1, "cost_scale": _COST_SCALE[kind], **own})


def _kind(task: str) -> str:
    return task.partition("_")[0]


def _methods(task: str, algorithm: str) -> dict[str, Constraint]:
    """Return the safety methods of a task: as named, as SARSA can start with them, and with tuned gains."""
    kind = task if task in _GRIDS else _kind(algorithm)
    methods = dict(CONSTRAINTS) | {f"{name}_tuned": each for name, each in TUNED[kind].items()}
    if task in _GRIDS:
        methods |= {f"{name}_warm": warmed(each) for name, each in CONSTRAINTS.items() if each.needs_cost}
    return methods


def _algorithms(task: str) -> tuple[str, ...]:
    if task in _GRIDS:
        return ("sarsa", "sarsa_tuned")
    return ("ppo",) if task.endswith(_CLOCKLESS) else _CONTINUOUS


def _presets() -> dict[str, Config]:
    table = {}
    for task, environment in ENVIRONMENTS.items():
        for algorithm in _algorithms(task):
            for method, constraint in _methods(task, algorithm).items():
                name = f"{task}-{algorithm}-{method}"
                # Of the slow learners chapter 14 shows the first half.
                steps = _N_ENV_STEPS[_kind(task)] // (2 if algorithm in ("a2c", "a2c_paper") else 1)
                n_envs = _N_ENVS.get((_kind(task), algorithm.removesuffix("_discounted")), 20)
                table[name] = Config(
                    name, environment, _on_task(task, algorithm), constraint, n_envs=n_envs, n_env_steps=steps,
                    log_every=steps // 40, evaluate_every=steps // 10,
                )  # fmt: skip
    return table


PRESETS: Mapping[str, Config] = MappingProxyType(_presets())
"""Every task x algorithm x safety method by name, ``<task>-<algorithm>-<method>``."""


def preset(name: str, **changes: Any) -> Config:
    """Return a preset, changed where asked.

    Raises:
        KeyError: no such preset; the message names the nearest.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(name, PRESETS, n=3)
        raise KeyError(f"no preset {name!r}; the nearest are {', '.join(near) or 'none'}; `list` shows all.")
    return replace(PRESETS[name], **changes)
