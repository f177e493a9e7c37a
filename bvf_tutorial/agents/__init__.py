"""Agents: SARSA, A2C and PPO with every safety method, trained as stacked runs. Needs torch (extra ``deep``).

Read the files in this order: ``returns`` (what critics regress on), ``multipliers`` and ``constraints`` (the safety
methods), ``estimators`` (stacked networks), ``rollout`` (what is collected), ``learner``, ``sarsa``, ``actor_critic``,
``algorithms`` (by name), ``evaluate``, ``train``, ``config``, ``presets``. Then what keeps a training on disk:
``plain``, ``storage``, ``metrics``, ``runs``, ``replay``, ``sweeps``.
"""

from .actor_critic import ActorCritic, ActorCriticConfig
from .algorithms import ALGORITHMS, make_learner
from .config import Config, EnvironmentConfig, make_trainer
from .constraints import CONSTRAINTS, STATE_RULES, Constraint, Situation, StateRule
from .estimators import Moments, Stack
from .evaluate import EVALUATION_WORLD, Evaluation, Evaluator
from .learner import Learner, Setting
from .multipliers import MULTIPLIER_RULES, Multiplier, MultiplierState
from .presets import ENVIRONMENTS, PRESETS, figure_of, preset
from .returns import backward_lambda_returns, gae, lambda_returns, n_step_returns
from .rollout import EpisodeTotals, Rollout
from .sarsa import Sarsa, SarsaConfig
from .train import Row, Trainer

__all__ = [
    "ALGORITHMS",
    "CONSTRAINTS",
    "ENVIRONMENTS",
    "EVALUATION_WORLD",
    "MULTIPLIER_RULES",
    "PRESETS",
    "STATE_RULES",
    "ActorCritic",
    "ActorCriticConfig",
    "Config",
    "Constraint",
    "EnvironmentConfig",
    "EpisodeTotals",
    "Evaluation",
    "Evaluator",
    "Learner",
    "Moments",
    "Multiplier",
    "MultiplierState",
    "Rollout",
    "Row",
    "Sarsa",
    "SarsaConfig",
    "Setting",
    "Situation",
    "Stack",
    "StateRule",
    "Trainer",
    "backward_lambda_returns",
    "figure_of",
    "gae",
    "lambda_returns",
    "make_learner",
    "make_trainer",
    "n_step_returns",
    "preset",
]
