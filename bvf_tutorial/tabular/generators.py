"""This file knows how to draw random CMDPs: dense or layered, episodic or continuing, with a limit that binds."""

import numpy as np

from .cmdp import CMDP
from .errors import InvalidModelError
from .optimum import cost_range

__all__ = ["random_cmdp", "random_layered_cmdp", "with_binding_limit"]


def random_cmdp(
    generator: np.random.Generator, n_states: int = 10, n_actions: int = 3, branching: int = 3, termination: float = 0.1
) -> CMDP:
    """Return a random CMDP (a Garnet).

    Each (state, action) leads to ``branching`` states with Dirichlet(1) probabilities.

    Args:
        generator: source of randomness.
        n_states: ``S``.
        n_actions: ``A``.
        branching: successors per (state, action), at most ``S``.
        termination: mean probability of ending per step, drawn per (state, action) uniformly in [0, 2 termination]; 0
            makes it continuing.

    Returns:
        Rewards uniform in [0, 1], costs uniform in [0, 1] with about a third set to zero, start uniform on state 0;
        ``cost_limit`` 1.
    """
    if not (1 <= branching <= n_states and 0 <= termination <= 0.5):
        raise InvalidModelError(
            f"branching {branching}, termination {termination}: need 1 <= branching <= S and 0 <= termination <= 1/2."
        )
    end = generator.uniform(0, 2 * termination, (n_states, n_actions))
    transition = np.zeros((n_states, n_actions, n_states))
    for x in range(n_states):
        for a in range(n_actions):
            successor = generator.choice(n_states, branching, replace=False)
            transition[x, a, successor] = generator.dirichlet(np.ones(branching)) * (1 - end[x, a])
    reward = generator.uniform(0, 1, (n_states, n_actions))
    cost = generator.uniform(0, 1, n_states) * (generator.uniform(size=n_states) > 1 / 3)
    return CMDP(transition, reward, cost, np.eye(1, n_states).ravel(), 1.0, end)


def random_layered_cmdp(
    generator: np.random.Generator, horizon: int = 5, width: int = 4, n_actions: int = 3, branching: int = 3
) -> CMDP:
    """Return a random finite-horizon CMDP: a start state, then ``horizon`` layers of ``width`` states.

    An episode visits each layer once.

    Every policy is proper and every value has a closed form by recursion over layers, which makes these good
    problems to study. Costs uniform in [0, 1], a third zero; rewards uniform in [0, 1], none in the last
    layer; ``cost_limit`` 1.
    """
    if not (1 <= branching <= width and horizon >= 1):
        raise InvalidModelError(
            f"branching {branching}, horizon {horizon}: need 1 <= branching <= width and horizon >= 1."
        )
    n_states = 1 + horizon * width
    transition = np.zeros((n_states, n_actions, n_states))
    layer = np.r_[0, 1 + np.repeat(np.arange(horizon), width)]
    for x in range(n_states - width):
        first = 1 + layer[x] * width
        for a in range(n_actions):
            successor = first + generator.choice(width, branching, replace=False)
            transition[x, a, successor] = generator.dirichlet(np.ones(branching))
    reward = generator.uniform(0, 1, (n_states, n_actions)) * (layer < horizon)[:, None]
    cost = generator.uniform(0, 1, n_states) * (generator.uniform(size=n_states) > 1 / 3)
    return CMDP.episodic(transition, reward, cost, np.eye(1, n_states).ravel(), 1.0)


def with_binding_limit(cmdp: CMDP, fraction: float = 0.4, gamma: float = 1.0) -> CMDP:
    """Return the problem with a limit ``fraction`` of the way from least to unconstrained cost (see ``cost_range``)."""
    least, unconstrained = cost_range(cmdp, gamma)
    # Where the best policy is also the cheapest, rounding may order the two the other way round.
    return cmdp.with_cost_limit(least + fraction * max(unconstrained - least, 0.0))
