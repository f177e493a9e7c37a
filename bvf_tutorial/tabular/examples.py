"""This file knows the small named chains and problems that the book argues with.

Each is the smallest that shows its point.
"""

import numpy as np
from scipy import sparse

from .arrays import FloatArray
from .chain import Chain
from .cmdp import CMDP
from .errors import InvalidModelError

__all__ = [
    "CHAIN4_COST",
    "FORK3_COST",
    "chain4",
    "coin_flip",
    "cyclic3",
    "fork3",
    "grid_walk",
    "two_state",
    "wait_or_go",
]

CHAIN4_COST: FloatArray = np.array([1.0, 0.0, 2.0, 3.0])
"""Cost ``d`` of the reference chain ``chain4``."""
FORK3_COST: FloatArray = np.array([0.0, 1.0, 0.0])
"""Cost ``d`` of ``fork3``."""


def chain4() -> Chain:
    """Return the four-state reference chain of chapters 3 to 5: starts at 0, ends from 1 and from 3, ``E[L] = 130/27``.

    State 0 is never revisited; 1, 2 and 3 are, so the episode's length and the order of states are random.
    """
    transition = [[0, 0.5, 0.5, 0], [0, 0.25, 0.25, 0.25], [0, 0.5, 0, 0.5], [0, 0, 0.2, 0.3]]
    return Chain.killed(np.array(transition), np.array([1.0, 0, 0, 0]))


def fork3() -> Chain:
    """Return the smallest deterministic-start chain in which long episodes are the cheap ones, so that Cov(L, C) < 0.

    State 0 goes to 1 (cost 1, the episode ends) or to 2 (cost 0, lingers with probability 1/2), each with probability
    1/2.
    """
    return Chain.killed(np.array([[0, 0.5, 0.5], [0, 0, 0], [0, 0, 0.5]]), np.array([1.0, 0, 0]))


def cyclic3() -> Chain:
    """Return the three-state drift ``0 -> 1 -> 2 -> 0`` that waits with probability 1/2 at 0 and 1.

    As irreversible as a chain can be.
    """
    return Chain.continuing(np.array([[0.5, 0.5, 0], [0, 0.5, 0.5], [1.0, 0, 0]]))


def two_state(stay_good: float = 0.9, leave_bad: float = 0.5) -> Chain:
    """Return a continuing chain on {0 good, 1 bad}; with the defaults its stationary law is (5/6, 1/6)."""
    return Chain.continuing(np.array([[stay_good, 1 - stay_good], [leave_bad, 1 - leave_bad]]))


def coin_flip() -> CMDP:
    """Return the one-decision problem whose optimum is randomised.

    Action 0 earns 1 and then costs 1, action 1 does neither; limit 1/2.

    State 0 decides; state 1 carries the cost of action 0. Best deterministic return 0, optimum 1/2.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 1] = 1.0
    return CMDP.episodic(
        transition, np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([0.0, 1.0]), np.array([1.0, 0.0]), 0.5
    )


def wait_or_go() -> CMDP:
    """Return the continuing problem whose finite-horizon optimum needs the clock.

    Meant for ``time_augmented(wait_or_go(), 2)``.

    State 0: action 0 (go) earns 1 and moves to state 1 for good, where every step costs 1; action 1 waits. Limit 1.
    With two decisions, "wait, then go" earns 1 at cost 1. The best stationary policy goes with probability ``p``,
    ``3 p - p^2 = 1``, and earns only ``1 - p = (sqrt(5) - 1) / 2``, the inverse of the golden ratio.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 1] = transition[0, 1, 0] = 1.0
    transition[1, :, 1] = 1.0
    return CMDP.continuing(
        transition, np.array([[1.0, 0.0], [0.0, 0.0]]), np.array([0.0, 1.0]), np.array([1.0, 0.0]), 1.0
    )


def grid_walk(side: int, hazard: float = 1e-3, drift: float = 0.05) -> Chain:
    """Return a sparse random walk on a ``side`` x ``side`` grid from the last corner, drifting towards the first.

    Each step goes up or left with probability ``1/4 + drift/2``, down or right with ``1/4 - drift/2``; walls block; the
    episode ends with probability ``hazard``. A thousand a side makes a million states.
    """
    if side < 2 or not 0 < hazard < 1 or not -0.5 <= drift <= 0.5:
        raise InvalidModelError(
            f"side {side}, hazard {hazard}, drift {drift}: need side >= 2, 0 < hazard < 1 and |drift| <= 1/2."
        )
    row, column = np.divmod(np.arange(side * side), side)
    target, probability = [], []
    for down, right in ((-1, 0), (0, -1), (1, 0), (0, 1)):
        target.append(np.clip(row + down, 0, side - 1) * side + np.clip(column + right, 0, side - 1))
        probability.append(np.full(side * side, (0.25 - (down + right) * drift / 2) * (1 - hazard)))
    source = np.tile(np.arange(side * side, dtype=np.int32), 4)
    entry = (np.concatenate(probability), (source, np.concatenate(target).astype(np.int32)))
    transition = sparse.csr_array(entry, shape=(side * side, side * side))
    start = np.zeros(side * side)
    start[-1] = 1.0
    return Chain(transition, np.full(side * side, hazard), start)
