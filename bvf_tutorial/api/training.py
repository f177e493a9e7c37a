"""This file knows how to train and evaluate in one call each, on an environment of one's own."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import spaces

from ..agents import (
    ALGORITHMS,
    CONSTRAINTS,
    EVALUATION_WORLD,
    ActorCriticConfig,
    Constraint,
    Evaluation,
    Evaluator,
    Row,
    SarsaConfig,
    Setting,
    Trainer,
    make_learner,
)
from ..envs import FromGymnasium, VectorEnv
from .policy import Policy
from .problem import CostLimit, Problem, Source

__all__ = ["Result", "evaluate", "train"]

_LONGEST_ROLLOUT = 256
"""Decisions; the longest whole episode that a named algorithm collects between two updates."""


@dataclass(frozen=True, eq=False)
class Result:
    """What a training came to.

    Attributes:
        policy: of the first run; ``policy_of`` has the others.
        metrics: rows by field name (Step, Seed, EpRet, EpCost, ...), one per run and log point; NaN is "no data".
        problem: what it was trained on.
    """

    policy: Policy
    metrics: list[Row]
    problem: Problem = field(repr=False)

    def policy_of(self, run: int) -> Policy:
        """Return the policy of one of the runs."""
        return Policy(self.policy.learner, self.policy.algorithm, self.policy.constraint, run)

    def evaluate(self, n_episodes: int = 100, is_deterministic: bool = False) -> Evaluation:
        """Return what at least ``n_episodes`` new episodes of each run come to, sampled as in training by default."""
        return evaluate(self.policy, self.problem, n_episodes, is_deterministic)

    def save(self, path: str | Path) -> None:
        """Write the policy to a file for ``load``; the training itself cannot be resumed from it."""
        self.policy.save(path)


def evaluate(
    policy: Policy, env: Source | Problem, n_episodes: int = 100, is_deterministic: bool = False
) -> Evaluation:
    """Return gain, cost and length of at least ``n_episodes`` whole episodes of each run, each [R, N].

    The worlds are numbered away from those of the training (foreign environments: their seeds are), so that both share
    no noise.

    Args:
        policy: trained, or loaded.
        env: as in ``train``; a ``Problem`` says more.
        n_episodes: at least so many per run; every world plays equally many.
        is_deterministic: take the mean or greedy action.

    Raises:
        ValueError: the environment's observations or actions are not the policy's. Bounds of observations may differ,
            save for SARSA, whose observations they count.
    """
    setting = policy.learner.setting
    problem = env if isinstance(env, Problem) else Problem(env, setting.cost_limit)
    worlds = problem.make(min(n_episodes, 20), setting.n_runs, EVALUATION_WORLD)
    is_counted = isinstance(policy.algorithm, SarsaConfig)
    try:
        for key, is_whole in (("observation_space", is_counted), ("action_space", True)):
            ours, theirs = getattr(setting, key), getattr(worlds, key)
            if ours.shape != theirs.shape or (is_whole and ours != theirs):
                raise ValueError(f"the environment's {key} is {theirs}, but the policy was trained on {ours}.")
        return _judge(worlds, setting, n_episodes)(policy.learner, is_deterministic)
    finally:
        worlds.close()


def train(
    env: Source | Problem,
    algorithm: str | SarsaConfig | ActorCriticConfig = "ppo",
    constraint: str | Constraint = "backward_weight",
    cost_limit: CostLimit = "environment",
    n_env_steps: int = 100_000,
    n_envs: int = 20,
    n_runs: int = 1,
    seed: int = 0,
    log_every: int = 5_000,
    evaluate_every: int = 0,
    report: Callable[[list[Row]], object] = lambda rows: None,
    **options: Any,
) -> Result:
    """Train a policy, and return it with its metrics.

    A *name* is fitted to the environment: costs are scaled by the limit, observations standardised, a rollout is one
    episode where the horizon is known. A *record* (``ActorCriticConfig(...)``, ``Constraint(...)``) is taken as it is.

    Args:
        env: a task or its name, a Gymnasium id, or a function that makes an environment; or a ``Problem``.
        algorithm: "ppo" or "a2c" for bounded boxes of actions, "sarsa" for discrete actions and finitely many
            observations; see ``agents.ALGORITHMS``.
        constraint: the safety method, see ``agents.CONSTRAINTS``.
        cost_limit: ``d0``, undiscounted expected cost per episode. A mapping or sequence of limits combines several
            costs into one, cautiously; ``SeveralCosts`` says what that guarantees.
        n_env_steps: environment steps per run, restarts included.
        n_envs: worlds per run.
        n_runs: runs that train as one; 1 for a foreign environment.
        seed: of the first run; run r has ``seed + r``.
        log_every: environment steps per run between two rows of metrics.
        evaluate_every: environment steps per run between two evaluations in separate worlds; 0 for none.
        report: called with the rows of each log point, for a progress bar.
        options: further fields of ``Problem``: ``start_cost``, ``horizon``, ``time_limit``, ...

    Raises:
        ValueError: an unknown name, or an environment that does not fit the algorithm; the message says what to do.
        EnvironmentFault: a cost, observation or reward is missing or unsound, naming world and step.
    """
    problem = env if isinstance(env, Problem) else Problem(env, cost_limit, **options)
    if isinstance(env, Problem) and (options or cost_limit != "environment"):
        raise TypeError("A Problem says everything about the environment; change it with dataclasses.replace.")
    worlds = problem.make(n_envs, n_runs)
    setting = Setting.of(worlds, seed)
    _check_actions(setting)
    chosen = _algorithm(algorithm, problem, worlds, n_env_steps)
    method = _constraint(constraint)
    learner = make_learner(chosen, method, setting)
    judging = problem.make(min(n_envs, 10), n_runs, EVALUATION_WORLD)
    trainer = Trainer(worlds, learner, seed, n_env_steps, _judge(judging, setting, 10), log_every, evaluate_every)
    metrics: list[Row] = []
    with closing(worlds), closing(judging):
        while not trainer.is_finished:
            rows = trainer.advance()
            metrics += rows
            if rows:
                report(rows)
    return Result(Policy(learner, chosen, method), metrics, problem)


def _judge(worlds: Any, setting: Setting, n_episodes: int) -> Evaluator:
    """Return an evaluator whose worlds share no noise with the training's, whichever kind they are."""
    is_ours = isinstance(worlds, VectorEnv)  # numbered apart; a foreign environment is seeded apart
    seeds = setting.seeds if is_ours else tuple(seed + EVALUATION_WORLD for seed in setting.seeds)
    return Evaluator(worlds, seeds, n_episodes)


def _check_actions(setting: Setting) -> None:
    """Raise, in words, for the one combination of spaces that no algorithm here takes."""
    space = setting.observation_space
    is_finite = bool((space.low == 0).all()) and bool((space.high == 1).all() or space.shape == (1,))
    if isinstance(setting.action_space, spaces.Discrete) and not is_finite:
        raise ValueError(
            f"Actions are {setting.action_space} and observations {space}: PPO and A2C here take boxes of actions, and "
            "SARSA looks its values up at finitely many observations. Make observations finite with "
            "gymnasium.wrappers.DiscretizeObservation (then algorithm='sarsa'), or give the actions as a box (for two "
            "actions a number in [-1, 1] and its sign, by gymnasium.wrappers.TransformAction)."
        )


def _algorithm(
    algorithm: str | SarsaConfig | ActorCriticConfig, problem: Problem, worlds: Any, n_env_steps: int
) -> SarsaConfig | ActorCriticConfig:
    """Return the settings: a record as it is, a named one fitted to the environment."""
    if not isinstance(algorithm, str):
        return algorithm
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm is {algorithm!r}; choose one of {', '.join(ALGORITHMS)}.")
    named, scale = ALGORITHMS[algorithm], 1 / max(1.0, worlds.cost_limit)
    if isinstance(named, SarsaConfig):
        return replace(named, cost_scale=scale, epsilon_steps=n_env_steps // 3)
    horizon = worlds.task.horizon if isinstance(worlds, VectorEnv) else _horizon_of_worlds(worlds)
    is_cut = problem.time_limit == "truncate" or (isinstance(worlds, FromGymnasium) and not horizon)
    return replace(
        named,
        n_steps=min(horizon + 1, _LONGEST_ROLLOUT) if horizon else named.n_steps,
        cost_scale=scale,
        cost_gamma=named.gamma if is_cut else named.cost_gamma,
        is_observation_standardised=True,
    )


def _horizon_of_worlds(worlds: FromGymnasium) -> int:
    first = worlds.env.envs[0] if isinstance(worlds.env, gymnasium.vector.SyncVectorEnv) else worlds.env
    return int(getattr(first, "horizon", 0))


def _constraint(constraint: str | Constraint) -> Constraint:
    """Return the safety method: a record as it is, a named one by its name."""
    if not isinstance(constraint, str):
        return constraint
    if constraint not in CONSTRAINTS:
        raise ValueError(f"constraint is {constraint!r}; choose one of {', '.join(CONSTRAINTS)}.")
    return CONSTRAINTS[constraint]
