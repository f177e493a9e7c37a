"""This file knows the algorithms by name: which learner a configuration makes, and the presets of each."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from .actor_critic import ActorCritic, ActorCriticConfig
from .constraints import Constraint
from .learner import Learner, Setting
from .sarsa import Sarsa, SarsaConfig

__all__ = ["ALGORITHMS", "Algorithm", "make_learner"]

Algorithm = SarsaConfig | ActorCriticConfig
"""A configuration of a learner."""

# Networks of the paper's appendix H, first weights of the released code, and critics at half the actor's rate.
_PAPER: Mapping[str, Any] = {
    "actor_hidden": (100, 50),
    "critic_hidden": (200, 50),
    "initialisation": "normal",
    "log_std": 0.0,
    "critic_learning_rate": 5e-4,
}

ALGORITHMS: Mapping[str, Algorithm] = MappingProxyType(
    {
        "sarsa": SarsaConfig(),
        "sarsa_tuned": SarsaConfig(cost_learning_rate=2e-3, final_learning_rate=0.1, epsilon=(1.0, 0.1)),
        "a2c": ActorCriticConfig(epochs=1, minibatches=1, learning_rate=3e-3, critic_learning_rate=3e-3),
        "ppo": ActorCriticConfig(),
        "a2c_tuned": ActorCriticConfig(
            epochs=1, minibatches=6, learning_rate=3e-3, critic_learning_rate=3e-3, final_learning_rate=0.15
        ),
        "ppo_discounted": ActorCriticConfig(cost_gamma=0.99),
        "a2c_paper": ActorCriticConfig(epochs=1, minibatches=1, **_PAPER),
        "ppo_paper": ActorCriticConfig(**_PAPER),
    }
)
"""Named algorithms with settings that learn here, and variants of them.

``_paper`` has the paper's networks and first weights; ``a2c_tuned`` goes through its rollout once as well, in several
gradient steps, where shorter rollouts would cut the returns; ``ppo_discounted`` discounts costs as rewards, so that its
values are no longer in the unit of the limit; ``sarsa_tuned`` goes on exploring while its rates fall, and learns costs
faster: a cost value of an action that is rarely tried stays stale otherwise, and the safety methods compare just these.
"""


def make_learner(algorithm: Algorithm, constraint: Constraint, setting: Setting) -> Learner:
    """Return the untrained learner of a configuration.

    Raises:
        ValueError: the environment's spaces do not fit the algorithm.
    """
    if isinstance(algorithm, SarsaConfig):
        return Sarsa(algorithm, constraint, setting)
    return ActorCritic(algorithm, constraint, setting)
