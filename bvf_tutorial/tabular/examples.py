"""This file knows the small named chains and problems that the book argues with.

Each is the smallest that shows its point.
"""

import numpy as np
from scipy import sparse

from .arrays import FloatArray
from .chain import Chain
from .cmdp import CMDP, time_augmented
from .errors import InvalidModelError

__all__ = [
    "CHAIN4_COST",
    "FORK3_COST",
    "chain4",
    "coin_flip",
    "coin_gate",
    "cyclic3",
    "downstream_drift",
    "equal_gates",
    "fork3",
    "grid_walk",
    "late_risk",
    "leave_safety",
    "rare_disaster",
    "repeated_risk",
    "stay_or_quit",
    "two_state",
    "unseen_trap",
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


def stay_or_quit() -> CMDP:
    """Return the smallest problem on which the paper's safe policy iteration fails: one state, limit 4 (chapter 7).

    The state costs 1. Action 0 (stay) earns 1 and survives with probability 0.9; action 1 (quit) ends the episode.
    Staying with probability ``p`` returns ``p / (1 - 0.9 p)`` at cost ``1 / (1 - 0.9 p)``: the optimum is ``p = 5/6``.
    """
    one = np.array([[1.0, 0.0]])
    return CMDP(np.array([[[0.9], [0.0]]]), one, one[0, :1], one[0, :1], 4.0, np.array([[0.1, 1.0]]))


def coin_gate(cost_limit: float = 1.3) -> CMDP:
    """Return the two-decision tree that separates expectation, state-wise and almost-sure constraints (chapter 7).

    A fair coin leads from state 0 to a good state 1 or a bad state 2, which costs 1. At both, action 0 earns 1 and
    leads to state 4, which costs 1; action 1 idles and leads to state 3, which is free. At limit 1.3 the best returns
    under the three constraints are 0.8, 0.65 and 0.5.
    """
    transition = np.zeros((5, 2, 5))
    transition[0, :, 1:3] = 0.5
    transition[1:3, 0, 4] = transition[1:3, 1, 3] = 1.0
    reward = np.zeros((5, 2))
    reward[1:3, 0] = 1.0
    return CMDP.episodic(transition, reward, np.array([0.0, 0, 1, 0, 1]), np.eye(5)[0], cost_limit)


def repeated_risk(n_decisions: int, cost_limit: float) -> CMDP:
    """Return a chain of decisions, each with the whole slack to itself, on which the printed step overshoots.

    Decision ``t`` is state ``3 t``: action 0 earns 1 and leads to ``3 t + 2``, which costs 1; action 1 leads to
    ``3 t + 1``, which is free. Both then go to ``3 (t + 1)``, the next decision or the end.
    """
    n_states = 3 * n_decisions + 1
    decision = np.arange(0, n_states - 1, 3)
    transition, reward, cost = np.zeros((n_states, 2, n_states)), np.zeros((n_states, 2)), np.zeros(n_states)
    transition[decision, 0, decision + 2] = transition[decision, 1, decision + 1] = 1.0
    transition[decision + 1, :, decision + 3] = transition[decision + 2, :, decision + 3] = 1.0
    reward[decision, 0] = cost[decision + 2] = 1.0
    return CMDP.episodic(transition, reward, cost, np.eye(n_states)[0], cost_limit)


def leave_safety(horizon: int, cost_limit: float, cost: float = 1.0) -> CMDP:
    """Return the problem that attains ``coupling_bound``: a safe state, free, and a bad one, absorbing, with a clock.

    In the safe state (index ``2 t`` at time ``t``) action 0 leaves for the bad state (``2 t + 1``), action 1 stays.
    From "always stay", leaving with probability ``sigma`` costs ``D sum_{t=1}^T (1 - (1 - sigma)^t)``.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 1] = transition[0, 1, 0] = transition[1, :, 1] = 1.0
    reward = np.array([[1.0, 0.0], [0.0, 0.0]])
    base = CMDP.continuing(transition, reward, np.array([0.0, cost]), np.array([1.0, 0.0]), cost_limit)
    return time_augmented(base, horizon)


def late_risk(cost_limit: float = 1.0) -> CMDP:
    """Return the counterexample to the paper's Theorem C.1, case II: ``0 -> 1 -> 2 -> {3, 4}``, cost 1 at 1 and at 4.

    Only state 2 decides: action 0 goes to 4, action 1 to 3. Seen from state 2 there is slack left, from state 0 none.
    """
    transition = np.zeros((5, 2, 5))
    transition[0, :, 1] = transition[1, :, 2] = transition[2, 0, 4] = transition[2, 1, 3] = 1.0
    reward = np.zeros((5, 2))
    reward[2, 0] = 1.0
    return CMDP.episodic(transition, reward, np.array([0.0, 1, 0, 0, 1]), np.eye(5)[0], cost_limit)


def unseen_trap(cost: float) -> CMDP:
    """Return the smallest problem with a hole in the support: what the present policy never visits has no past.

    State 0: action 0 enters state 1, action 1 ends. State 1: action 0 earns 1 and leads to state 2, which costs
    ``cost``; action 1 earns 1/2 and ends. Limit 1. From "do not enter, but there take action 1" entering looks free.
    """
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 1] = transition[1, 0, 2] = 1.0
    reward = np.array([[0.0, 0.0], [1.0, 0.5], [0.0, 0.0]])
    return CMDP.episodic(transition, reward, np.array([0.0, 0.0, cost]), np.eye(3)[0], 1.0)


def rare_disaster(probability: float, damage: float) -> CMDP:
    """Return the problem whose state-wise optimum is worth nothing: limit ``probability * damage``, optimum 1.

    State 0: action 0 earns 1 and meets state 1, which costs ``damage``, with the given probability; action 1 ends.
    """
    transition = np.zeros((2, 2, 2))
    transition[0, 0, 1] = probability
    reward = np.array([[1.0, 0.0], [0.0, 0.0]])
    return CMDP.episodic(transition, reward, np.array([0.0, damage]), np.eye(2)[0], probability * damage)


def equal_gates(n_gates: int, prize: float) -> CMDP:
    """Return the problem on which every safeguarded step stalls below the optimum: ``n`` gates that cost the same.

    State 0 leads to a gate ``1..n`` drawn uniformly. At gate ``i`` action 0 earns 1, at gate 1 the prize, and leads to
    state ``n + 1``, which costs 1; action 1 ends. Limit ``1 / n``, one gate's worth: the optimum opens gate 1 alone and
    returns ``prize / n``; state-wise steps from the least-cost policy open all gates by the same ``1 / n``.
    """
    n_states = n_gates + 2
    transition, reward, cost = np.zeros((n_states, 2, n_states)), np.zeros((n_states, 2)), np.zeros(n_states)
    transition[0, :, 1:-1] = 1 / n_gates
    transition[1:-1, 0, -1] = reward[1:-1, 0] = cost[-1] = 1.0
    reward[1, 0] = prize
    return CMDP.episodic(transition, reward, cost, np.eye(n_states)[0], 1 / n_gates)


def downstream_drift() -> CMDP:
    """Return the problem on which the printed step lowers the return *inside* the ball of Theorem 3.1; limit 1.4.

    State 0 leads to state 1 (cost 1) with probability 1/4, else to 2. At 1, action 0 earns 10 and goes on to 2; at 2,
    action 0 earns 1 and leads to state 3, which costs 1; action 1 ends. From probabilities 1/2 at state 1 and 4/5 at
    state 2 every state is within the limit; progress at 2 then pushes 1 over it, and the next step takes it back.
    """
    transition = np.zeros((4, 2, 4))
    transition[0, :, 1:3] = [0.25, 0.75]
    transition[1, 0, 2] = transition[2, 0, 3] = 1.0
    reward = np.array([[0.0, 0.0], [10.0, 0.0], [1.0, 0.0], [0.0, 0.0]])
    return CMDP.episodic(transition, reward, np.array([0.0, 1, 0, 1]), np.eye(4)[0], 1.4)
