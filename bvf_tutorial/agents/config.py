"""This file knows what a training is, as data: its environment, algorithm, safety method and sizes."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..envs import VectorEnv, make
from ..envs.base import TimeLimit
from .algorithms import ALGORITHMS, Algorithm, make_learner
from .constraints import Constraint
from .evaluate import EVALUATION_WORLD, Evaluator
from .learner import Setting
from .train import Trainer

__all__ = ["Config", "EnvironmentConfig", "make_trainer"]


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
            ValueError: no such task, preset or option, or an option of another type; the message lists them.
        """
        played = {"time_limit": self.time_limit, "is_time_aware": self.is_time_aware, "first_world": first_world}
        for key in self.options:
            if key in (*played, "task", "n_envs", "n_runs", "preset", "device"):
                raise ValueError(f"environment.options.{key} is no argument of a task; it has a setting of its own.")
        try:
            return make(self.name, n_envs, n_runs, self.preset, device, **self.options, **played)
        except TypeError as error:
            raise ValueError(f"environment.options: {error}") from error


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
        if not re.fullmatch(r"(cpu|cuda)(:\d+)?", self.device):
            raise ValueError(f"device is {self.device!r}; say 'cpu' or 'cuda'.")


def make_trainer(config: Config) -> Trainer:
    """Return the trainer of a configuration, at its start."""
    env = config.environment.make(config.n_envs, config.n_runs, config.device)
    setting = Setting.of(env, config.seed)
    learner = make_learner(config.algorithm, config.constraint, setting)
    judge = config.environment.make(config.n_evaluation_episodes, config.n_runs, config.device, EVALUATION_WORLD)
    evaluator = Evaluator(judge, setting.seeds, config.n_evaluation_episodes)
    return Trainer(env, learner, config.seed, config.n_env_steps, evaluator, config.log_every, config.evaluate_every)
