"""This file knows what a training is, as data: its environment, algorithm, safety method and sizes; and the presets."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from ..envs import VectorEnv, make
from ..envs.base import TimeLimit
from .algorithms import ALGORITHMS, Algorithm, make_learner
from .constraints import CONSTRAINTS, Constraint
from .evaluate import EVALUATION_WORLD, Evaluator
from .learner import Setting
from .train import Trainer

__all__ = ["ENVIRONMENTS", "PRESETS", "Config", "EnvironmentConfig", "figure_of", "make_trainer", "preset"]


@dataclass(frozen=True)
class EnvironmentConfig:
    """A task of this package and how it is played.

    Attributes:
        name: the task (GridWorld, PointCircle, PointGather, SafeCheetah, ...).
        preset: its named arguments; "paper" is the published task.
        time_limit: what the horizon means: "terminate" ends the sum there, "truncate" cuts the episode.
        is_time_aware: append t / T to the observation.
        options: further arguments of the task by name, e.g. cost_limit (undiscounted cost per episode).
    """

    name: str = "PointCircle"
    preset: str = "paper"
    time_limit: TimeLimit = "terminate"
    is_time_aware: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)

    def make(self, n_envs: int, n_runs: int, device: str = "cpu", first_world: int = 0) -> VectorEnv:
        """Return the vector environment.

        Raises:
            ValueError: no such task, preset or option; the message lists them.
        """
        env = make(self.name, n_envs, n_runs, self.preset, device, **self.options)
        return VectorEnv(env.task, n_envs, n_runs, device, self.time_limit, self.is_time_aware, first_world)


@dataclass(frozen=True)
class Config:
    """A training of R runs, complete: the same configuration gives the same numbers on one device.

    Attributes:
        name: what tables and folders call it.
        environment: the task.
        algorithm: SARSA, or the actor-critic that is A2C and PPO.
        constraint: the safety method.
        seed: of the first run; run r has ``seed + r``.
        n_runs: R, runs that train as one.
        n_envs: B, worlds per run.
        n_env_steps: environment steps per run, restarts included.
        log_every: environment steps per run between two rows of metrics.
        evaluate_every: environment steps per run between two evaluations; 0 for none.
        n_evaluation_episodes: at least so many per run, sampled and deterministic each.
        device: "cpu" or "cuda".
    """

    name: str = "circle-ppo-unconstrained"
    environment: EnvironmentConfig = field(default_factory=EnvironmentConfig)
    algorithm: Algorithm = field(default_factory=lambda: ALGORITHMS["ppo"])
    constraint: Constraint = field(default_factory=Constraint)
    seed: int = 0
    n_runs: int = 1
    n_envs: int = 20
    n_env_steps: int = 100_000
    log_every: int = 5_000
    evaluate_every: int = 20_000
    n_evaluation_episodes: int = 10
    device: str = "cpu"

    def __post_init__(self) -> None:
        for key in ("n_runs", "n_envs", "n_env_steps", "log_every", "n_evaluation_episodes"):
            if getattr(self, key) < 1:
                raise ValueError(f"{key} is {getattr(self, key)}; it is at least 1.")
        for key in ("seed", "evaluate_every"):
            if getattr(self, key) < 0:
                raise ValueError(f"{key} is {getattr(self, key)}; it is at least 0.")


def make_trainer(config: Config) -> Trainer:
    """Return the trainer of a configuration, at its start."""
    env = config.environment.make(config.n_envs, config.n_runs, config.device)
    setting = Setting.of(env, config.seed)
    learner = make_learner(config.algorithm, config.constraint, setting)
    judge = config.environment.make(config.n_evaluation_episodes, config.n_runs, config.device, EVALUATION_WORLD)
    evaluator = Evaluator(judge, setting.seeds, config.n_evaluation_episodes)
    return Trainer(env, learner, config.seed, config.n_env_steps, evaluator, config.log_every, config.evaluate_every)


ENVIRONMENTS: Mapping[str, EnvironmentConfig] = MappingProxyType(
    {
        "grid": EnvironmentConfig("GridWorld", options={"is_one_hot": False}),
        "circle": EnvironmentConfig("PointCircle", is_time_aware=True, options={"observation": "scaled"}),
        "gather": EnvironmentConfig("PointGather", is_time_aware=True, options={"observation": "scaled"}),
        "gather_binding": EnvironmentConfig(
            "PointGather", "binding", is_time_aware=True, options={"observation": "scaled"}
        ),
        "cheetah": EnvironmentConfig("SafeCheetah", is_time_aware=True),
    }
)
"""The tasks as they are trained here; chapter 12 defines them."""

_HORIZON = {"circle": 65, "gather": 15, "gather_binding": 15, "cheetah": 200}
_COST_SCALE = {"circle": 0.1, "gather": 1.0, "gather_binding": 1.0, "cheetah": 0.02}
_FASTER = {"learning_rate": 2e-3, "critic_learning_rate": 2e-3, "final_learning_rate": 0.15, "log_std": -1.5}
# Eight short episodes fill a rollout of Point-Gather, whose 24 sensors want wider networks.
_WIDER = {
    "n_steps": 128, "minibatches": 8, "actor_hidden": (128, 128), "critic_hidden": (128, 128),
    "final_learning_rate": 0.05,
}  # fmt: skip
_CHANGES: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("circle", "ppo"): {**_FASTER, "minibatches": 6},
    ("gather", "ppo"): _WIDER,
    ("gather_binding", "ppo"): _WIDER,
    ("cheetah", "ppo"): {"is_observation_standardised": True, "minibatches": 16},
    ("cheetah", "ppo_paper"): {"is_observation_standardised": True, "minibatches": 16},
    ("cheetah", "a2c"): {"is_observation_standardised": True},
    ("cheetah", "a2c_paper"): {"is_observation_standardised": True},
}
_N_ENVS = {("circle", "ppo"): 40}
_N_ENV_STEPS = {
    "grid": 500_000,
    "circle": 422_400,
    "gather": 512_000,
    "gather_binding": 512_000,
    "cheetah": 300_000,
}
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
    figure = _FIGURE.get((task, algorithm.removesuffix("_paper")), "")
    if method == "target":
        return "appendix J" if figure == "figure 3" else ""
    return figure if method in ("unconstrained", "backward", "lyapunov") else ""


def _tuned(task: str, name: str) -> Algorithm:
    """Return an algorithm's settings on a task: a rollout is one whole episode and its restart."""
    algorithm = ALGORITHMS[name]
    if task == "grid":
        return algorithm
    changes = {"n_steps": _HORIZON[task] + 1, "cost_scale": _COST_SCALE[task], **_CHANGES.get((task, name), {})}
    return replace(algorithm, **changes)


def warmed(constraint: Constraint) -> Constraint:
    """Return a method that SARSA can start from scratch with on the grid world: it acts after the exploration.

    Until then the policy is near uniform and the state-wise set empty almost everywhere; and where it is empty, cost
    then has a finite price in place of an infinite one, which would make the agent avoid the goal (chapter 13).
    """
    gains = replace(constraint.multiplier, recovery=5.0, fixed=5.0)
    return replace(constraint, warm_up=200_000, fallback_multiplier=5.0, multiplier=gains)


def _presets() -> dict[str, Config]:
    table = {}
    for task, environment in ENVIRONMENTS.items():
        for algorithm in ("sarsa",) if task == "grid" else ("a2c", "ppo", "a2c_paper", "ppo_paper"):
            methods = dict(CONSTRAINTS)
            if task == "grid":
                methods |= {f"{name}_warm": warmed(each) for name, each in CONSTRAINTS.items() if each.needs_cost}
            for method, constraint in methods.items():
                name = f"{task}-{algorithm}-{method}"
                steps = _N_ENV_STEPS[task] // (2 if algorithm.startswith("a2c") else 1)
                table[name] = Config(
                    name, environment, _tuned(task, algorithm), constraint, n_envs=_N_ENVS.get((task, algorithm), 20),
                    n_env_steps=steps, log_every=steps // 40, evaluate_every=steps // 10,
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
