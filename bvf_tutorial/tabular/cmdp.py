"""This file knows what a finite constrained Markov decision process is, and what a policy makes of it.

A CMDP is ``(X, A, P, r, mu0, d, d0)``: maximise the expected return ``E[sum_t r(x_t, a_t)]`` subject to the expected
cost ``E[sum_t d(x_t)] <= d0``. Costs belong to states and are counted once per visited state, the first and the last
included. Three kinds share one record: *episodic* (some action can end the episode), *continuing* (none can; discount),
and *finite horizon* (an episodic model whose state includes the clock; see ``time_augmented``).
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import ROUNDING, FloatArray, Matrix, as_floats, as_matrix, as_vector, check_distribution, frozen
from .chain import Chain, row_sums
from .errors import InvalidModelError

__all__ = [
    "CMDP",
    "chain_cmdp",
    "check_policy",
    "greedy_policy",
    "policy_chain",
    "policy_reward",
    "time_augmented",
    "uniform_policy",
]


@dataclass(frozen=True, eq=False)
class CMDP:
    """A validated finite CMDP with ``S`` states, ``A`` actions, state costs and one cost limit.

    Attributes:
        transition: [S, A, S] dense, or ``scipy.sparse`` of shape [S * A, S] with row ``x * A + a``:
            ``Pr(x_{t+1} = y, the episode goes on | x_t = x, a_t = a)``.
        reward: ``r``, [S, A], expected reward of taking action ``a`` in ``x``.
        cost: ``d``, [S], non-negative cost of being in ``x``; counted once per visit.
        initial: ``mu0``, [S], law of the first state.
        cost_limit: ``d0 >= 0``, largest allowed expected cost of an episode, undiscounted unless a discount is stated.
        termination: [S, A], probability that the episode ends after ``x, a``. Each transition row plus its termination
            gives 1.

    Raises:
        InvalidModelError: wrong shape, NaN, a negative cost or probability, or a row that does not sum to one; the
            entry is named.
    """

    transition: Matrix
    reward: FloatArray
    cost: FloatArray
    initial: FloatArray
    cost_limit: float
    termination: FloatArray

    def __post_init__(self) -> None:
        reward = as_floats("reward", self.reward)
        if reward.ndim != 2 or not reward.size:
            raise InvalidModelError(
                f"reward has shape {reward.shape}, expected [S, A]; repeat a state reward along the actions."
            )
        n_states, n_actions = reward.shape
        transition = as_matrix("transition", self.transition)
        expected = (n_states * n_actions, n_states) if sparse.issparse(transition) else (n_states, n_actions, n_states)
        if transition.shape != expected:
            raise InvalidModelError(
                f"transition has shape {transition.shape}, expected {expected} for reward of shape {reward.shape}."
            )
        termination = as_vector("termination", self.termination, (n_states, n_actions))
        cost = as_vector("cost", self.cost, (n_states,))
        for name, array in (("termination", termination), ("cost", cost)):
            if (array < 0).any():
                where = tuple(int(i) for i in np.argwhere(array < 0)[0])
                raise InvalidModelError(
                    f"{name}[{', '.join(map(str, where))}] is {array[where]}; it must be >= 0 (a gain belongs in "
                    "reward)."
                )
        limit = as_floats("cost_limit", self.cost_limit)
        if limit.ndim or not 0 <= limit < np.inf:
            raise InvalidModelError(
                f"cost_limit is {self.cost_limit}; it must be a finite number >= 0, in units of cost per episode."
            )
        object.__setattr__(self, "transition", transition)
        object.__setattr__(self, "reward", as_vector("reward", reward, (n_states, n_actions)))
        object.__setattr__(self, "cost", cost)
        object.__setattr__(self, "initial", check_distribution("initial", self.initial, n_states))
        object.__setattr__(self, "cost_limit", float(limit))
        object.__setattr__(self, "termination", termination)
        _check_rows(self)

    @classmethod
    def episodic(
        cls, transition: Matrix, reward: npt.ArrayLike, cost: npt.ArrayLike, initial: npt.ArrayLike, cost_limit: float
    ) -> "CMDP":
        """Build an episodic CMDP whose missing row mass ends the episode (mass below 1e-12 is rounding, not an end)."""
        given, matrix = as_floats("reward", reward), as_matrix("transition", transition)
        n_states = len(np.atleast_1d(given))
        if given.ndim != 2 or matrix.shape not in ((*given.shape, n_states), (given.size, n_states)):
            return cls.continuing(matrix, given, cost, initial, cost_limit)  # which names the shape that does not fit
        missing = 1.0 - matrix.sum(axis=-1).reshape(given.shape)
        termination = np.where(np.abs(missing) > 1e-12, missing, 0.0)
        if (termination < -ROUNDING).any():
            x, a = np.argwhere(termination < -ROUNDING)[0]
            raise InvalidModelError(
                f"row (state {x}, action {a}) of transition sums to {1 - missing[x, a]:.12g} > 1; scale it down to at "
                "most 1."
            )
        costs, law = as_floats("cost", cost), as_floats("initial", initial)
        return cls(matrix, given, costs, law, cost_limit, np.maximum(termination, 0.0))

    @classmethod
    def continuing(
        cls, transition: Matrix, reward: npt.ArrayLike, cost: npt.ArrayLike, initial: npt.ArrayLike, cost_limit: float
    ) -> "CMDP":
        """Build a CMDP that never ends; every row must sum to one, and value functions need a discount."""
        given, costs, law = as_floats("reward", reward), as_floats("cost", cost), as_floats("initial", initial)
        return cls(transition, given, costs, law, cost_limit, np.zeros(given.shape))

    @property
    def n_states(self) -> int:
        """Number of states ``S``."""
        return int(self.reward.shape[0])

    @property
    def n_actions(self) -> int:
        """Number of actions ``A``."""
        return int(self.reward.shape[1])

    @property
    def kernel(self) -> Matrix:
        """The transition as one matrix [S * A, S] with row ``x * A + a``, dense or sparse as given."""
        return self.transition if sparse.issparse(self.transition) else self.transition.reshape(-1, self.n_states)

    def with_cost_limit(self, cost_limit: float) -> "CMDP":
        """Return the same problem under another limit."""
        return replace(self, cost_limit=cost_limit)


def check_policy(cmdp: CMDP, policy: npt.ArrayLike) -> FloatArray:
    """Return ``policy`` as a float64 array [S, A] of distributions, or raise an error that names the row.

    Entries within ``ROUNDING`` below zero become zero.
    """
    probability = as_vector("policy", policy, (cmdp.n_states, cmdp.n_actions))
    bad = np.flatnonzero((probability < -ROUNDING).any(axis=1) | (np.abs(probability.sum(axis=1) - 1.0) > ROUNDING))
    if bad.size:
        x = int(bad[0])
        raise InvalidModelError(
            f"policy row {x} is {probability[x]}, not a distribution; make it non-negative and divide it by its sum."
        )
    return frozen(np.maximum(probability, 0.0))


def uniform_policy(cmdp: CMDP) -> FloatArray:
    """Return the policy that takes every action with probability ``1 / A``, [S, A]."""
    return np.full((cmdp.n_states, cmdp.n_actions), 1.0 / cmdp.n_actions, dtype=np.float64)


def greedy_policy(score: npt.ArrayLike) -> FloatArray:
    """Return the deterministic policy ``argmax_a score[x, a]`` as an array [S, A]; ties go to the lowest action."""
    table = np.asarray(score, dtype=np.float64)
    return np.asarray(np.eye(table.shape[1])[table.argmax(axis=1)], dtype=np.float64)


def policy_chain(cmdp: CMDP, policy: npt.ArrayLike) -> Chain:
    """Return the Markov chain of a policy: ``P^pi[x, y] = sum_a pi(a|x) P(y|x, a)`` (paper, Assumption 3.1).

    Args:
        cmdp: the model.
        policy: ``pi``, [S, A].

    Returns:
        A ``Chain`` [S, S] with the model's initial law; sparse iff the model is.

    Raises:
        InvalidModelError: a policy row that is not a distribution.
    """
    probability = check_policy(cmdp, policy)
    termination = (probability * cmdp.termination).sum(axis=1)
    if not sparse.issparse(cmdp.transition):
        return Chain(np.einsum("xa,xay->xy", probability, cmdp.transition), termination, cmdp.initial)
    return Chain(_mixing_matrix(probability) @ cmdp.transition, termination, cmdp.initial)


def chain_cmdp(chain: Chain, cost: npt.ArrayLike, cost_limit: float = 0.0) -> CMDP:
    """Return a chain as the CMDP with one action and no reward, so that what takes a CMDP takes a chain.

    Args:
        chain: ``P``, [S, S], with its termination and initial law.
        cost: ``d``, [S].
        cost_limit: ``d0``; with a single policy it decides nothing.
    """
    transition = chain.transition if chain.is_sparse else chain.transition[:, None, :]
    reward = np.zeros((chain.n_states, 1))
    return CMDP(transition, reward, np.asarray(cost), chain.initial, cost_limit, chain.termination[:, None])


def policy_reward(cmdp: CMDP, policy: npt.ArrayLike) -> FloatArray:
    """Return the expected one-step reward of a policy, ``r^pi(x) = sum_a pi(a|x) r(x, a)``, [S]."""
    return np.asarray((check_policy(cmdp, policy) * cmdp.reward).sum(axis=1))


def time_augmented(cmdp: CMDP, horizon: int) -> CMDP:
    """Return the episodic CMDP whose state is ``(x, t)``, ``t = 0..horizon``: the exact finite-horizon problem.

    State ``(x, t)`` has index ``t * S + x``. An episode has at most ``horizon`` decisions and ``horizon + 1``
    cost-bearing states; at ``t = horizon`` it ends, and no reward is earned there. A stationary policy of this model is
    a time-dependent policy of ``cmdp``, which finite horizons need: the best stationary policy can be strictly worse.

    Args:
        cmdp: a model with ``S`` states (episodes may also end before the horizon).
        horizon: ``T >= 0``, number of decisions.

    Returns:
        A sparse CMDP with ``S * (T + 1)`` states, same cost limit.
    """
    if horizon < 0 or horizon != int(horizon):
        raise InvalidModelError(f"horizon is {horizon}; it counts decisions, so it is an integer >= 0.")
    n_layers, size = int(horizon) + 1, cmdp.n_states
    advance = sparse.eye_array(n_layers, k=1, format="csr")
    transition = sparse.csr_array(sparse.kron(advance, sparse.csr_array(cmdp.kernel), format="csr"))
    reward = np.tile(cmdp.reward, (n_layers, 1))
    reward[-size:] = 0.0
    termination = np.tile(cmdp.termination, (n_layers, 1))
    termination[-size:] = 1.0
    initial = np.zeros(n_layers * size)
    initial[:size] = cmdp.initial
    return CMDP(transition, reward, np.tile(cmdp.cost, n_layers), initial, cmdp.cost_limit, termination)


def _mixing_matrix(probability: FloatArray) -> Matrix:
    """Return the sparse [S, S * A] matrix that averages rows ``x * A + a`` with weights ``pi(a|x)``."""
    n_states, n_actions = probability.shape
    pointer = np.arange(0, n_states * n_actions + 1, n_actions)
    return sparse.csr_array(
        (probability.ravel(), np.arange(n_states * n_actions), pointer), shape=(n_states, n_states * n_actions)
    )


def _check_rows(cmdp: CMDP) -> None:
    total = row_sums(cmdp.kernel).reshape(cmdp.reward.shape) + cmdp.termination
    bad = np.argwhere(np.abs(total - 1.0) > ROUNDING)
    if bad.size:
        x, a = (int(i) for i in bad[0])
        going_on = total[x, a] - cmdp.termination[x, a]
        raise InvalidModelError(
            f"row (state {x}, action {a}) of transition sums to {going_on:.12g} and termination[{x}, {a}] is "
            f"{cmdp.termination[x, a]:.12g}; together they must give 1. If missing mass ends the episode, use "
            "CMDP.episodic."
        )
