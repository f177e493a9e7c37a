"""This file knows what a finite Markov chain with termination is, and the shape of its graph.

A policy turns a CMDP into a chain. The chain is *killed* when the episode can end (some ``termination`` is positive)
and *continuing* otherwise. Rows are "from", columns are "to".
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from .arrays import ROUNDING, FloatArray, IntArray, Matrix, as_floats, as_matrix, as_vector, check_distribution
from .errors import InvalidModelError, ReducibleChainError, name_states

__all__ = [
    "Chain",
    "can_terminate",
    "communicating_classes",
    "is_irreducible",
    "period",
    "reachable",
    "require_single_class",
    "restarted",
    "row_sums",
]


@dataclass(frozen=True, eq=False)
class Chain:
    """A Markov chain on states ``0..S-1`` that starts at ``initial`` and ends with probability ``termination``.

    Attributes:
        transition: ``P``, [S, S], dense or ``scipy.sparse``: ``P[x, y] = Pr(x_{t+1} = y | x_t = x)``. Substochastic
            when killed.
        termination: ``r``, [S], probability that the episode ends at (after counting) the state; ``P 1 + r = 1``.
        initial: ``mu0``, [S], law of the first state of an episode.

    Raises:
        InvalidModelError: a negative or non-finite entry, or a row with ``sum_y P[x, y] + r[x] != 1``; the row is
            named.
    """

    transition: Matrix
    termination: FloatArray
    initial: FloatArray

    def __post_init__(self) -> None:
        transition = _square(self.transition)
        size = transition.shape[0]
        termination = as_vector("termination", self.termination, (size,))
        if (termination < 0).any():
            worst = int(np.argmin(termination))
            raise InvalidModelError(f"termination[{worst}] is {termination[worst]}; a probability is >= 0.")
        excess = row_sums(transition) + termination - 1.0
        if (np.abs(excess) > ROUNDING).any():
            worst = int(np.argmax(np.abs(excess)))
            raise InvalidModelError(
                f"row {worst} of transition sums to {1.0 + excess[worst] - termination[worst]:.12g} and "
                f"termination[{worst}] is {termination[worst]:.12g}; together they must give 1. If missing mass ends "
                "the episode, use Chain.killed."
            )
        object.__setattr__(self, "transition", transition)
        object.__setattr__(self, "termination", termination)
        object.__setattr__(self, "initial", check_distribution("initial", self.initial, size))

    @classmethod
    def killed(cls, transition: Matrix, initial: npt.ArrayLike) -> "Chain":
        """Build a chain whose missing row mass ends the episode: ``r = 1 - P 1`` (below 1e-12 it is rounding)."""
        matrix = _square(transition)
        missing = 1.0 - row_sums(matrix)
        if (missing < -ROUNDING).any():
            worst = int(np.argmin(missing))
            raise InvalidModelError(
                f"row {worst} of transition sums to {1.0 - missing[worst]:.12g} > 1; scale it down to at most 1."
            )
        return cls(matrix, np.where(missing > 1e-12, missing, 0.0), as_floats("initial", initial))

    @classmethod
    def continuing(cls, transition: Matrix) -> "Chain":
        """Build a chain that never ends; ``initial`` is uniform, which no stationary quantity depends on."""
        matrix = _square(transition)
        size = matrix.shape[0]
        return cls(matrix, np.zeros(size), np.full(size, 1.0 / size))

    @property
    def n_states(self) -> int:
        """Number of states ``S``."""
        return int(self.termination.size)

    @property
    def is_killed(self) -> bool:
        """Whether an episode can end anywhere."""
        return bool(self.termination.any())

    @property
    def is_sparse(self) -> bool:
        """Whether ``transition`` is a ``scipy.sparse`` array."""
        return bool(sparse.issparse(self.transition))

    @cached_property
    def visited(self) -> npt.NDArray[np.bool_]:
        """[S], states that an episode reaches with positive probability."""
        return reachable(self.transition, self.initial > 0)

    def restricted(self, keep: npt.NDArray[np.bool_]) -> "Chain":
        """Return the chain on the states ``keep``, which must hold the initial mass and all their own successors."""
        index = np.flatnonzero(keep)
        transition = self.transition[index][:, index]
        return Chain(transition, self.termination[index], self.initial[index])


def _square(transition: Matrix) -> Matrix:
    matrix = as_matrix("transition", transition)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.shape[0]:
        raise InvalidModelError(f"transition has shape {matrix.shape}, expected a square [S, S] matrix.")
    return matrix


def row_sums(matrix: Matrix) -> FloatArray:
    """Return the row sums of a dense or sparse matrix, [S]."""
    return np.asarray(matrix.sum(axis=1), dtype=np.float64).ravel()


def reachable(transition: Matrix, seed: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Return which states a path of positive probability reaches from the states ``seed`` (themselves included), [S].

    Args:
        transition: [S, S], dense or sparse; only its sign pattern matters. Pass its transpose to go backward in time.
        seed: [S], boolean.
    """
    graph = _pattern(transition)
    size = graph.shape[0]
    source = np.flatnonzero(seed)
    # One extra node, the last row, with an edge to every seed turns many searches into one.
    target = np.r_[graph.indices, source]
    pointer = np.r_[graph.indptr, target.size]
    extended = sparse.csr_array((np.ones(target.size), target, pointer), shape=(size + 1, size + 1))
    order = csgraph.breadth_first_order(extended, size, directed=True, return_predecessors=False)
    found = np.zeros(size + 1, dtype=bool)
    found[order] = True
    return found[:size]


def can_terminate(chain: Chain) -> npt.NDArray[np.bool_]:
    """Return from which states the episode can end, [S]; if it can from all, it surely does from all."""
    return reachable(chain.transition.T, chain.termination > 0)


def communicating_classes(chain: Chain) -> IntArray:
    """Return a label per state, [S]: two states share a label iff each reaches the other."""
    _, label = csgraph.connected_components(_pattern(chain.transition), directed=True, connection="strong")
    return np.asarray(label, dtype=np.int64)


def is_irreducible(chain: Chain) -> bool:
    """Return whether every state reaches every other.

    For a killed chain, in the process that restarts at ``initial``.
    """
    if chain.is_killed:
        return bool(chain.visited.all() and can_terminate(chain).all())
    return bool(communicating_classes(chain).max() == 0)


def period(chain: Chain) -> int:
    """Return the period of an irreducible chain: the greatest common divisor of its cycle lengths (1 is aperiodic).

    A killed chain is read as the process that restarts. Periodicity matters for the limit of ``P^t``, never for the
    stationary law, the backward kernel or a value function. One breadth-first search; O(number of transitions).

    Raises:
        ReducibleChainError: the chain is not irreducible.
    """
    if not is_irreducible(chain):
        raise ReducibleChainError(
            "the period of a reducible chain is not one number; restrict the chain to one communicating class."
        )
    graph = sparse.coo_array(_pattern(restarted(chain).transition))
    order, parent = csgraph.breadth_first_order(graph.tocsr(), 0, directed=True, return_predecessors=True)
    level = np.zeros(chain.n_states, dtype=np.int64)
    for state in order[1:]:
        level[state] = level[parent[state]] + 1
    return int(np.gcd.reduce(level[graph.row] + 1 - level[graph.col]))


def restarted(chain: Chain) -> Chain:
    """Return the continuing chain that starts a new episode at the end of each: ``P + r mu0``.

    Its stationary law is the per-step law of the episodes, ``m / E[L]`` (renewal reward). Continuing chains are
    returned as they are.
    """
    if not chain.is_killed:
        return chain
    if chain.is_sparse:
        jump = sparse.csr_array(chain.termination[:, None]) @ sparse.csr_array(chain.initial[None, :])
        return Chain(chain.transition + jump, np.zeros(chain.n_states), chain.initial)
    return Chain(chain.transition + np.outer(chain.termination, chain.initial), np.zeros(chain.n_states), chain.initial)


def require_single_class(chain: Chain) -> None:
    """Raise ``ReducibleChainError`` unless a continuing chain is irreducible.

    The message names states of another class.
    """
    label = communicating_classes(chain)
    if label.max() > 0:
        other = np.flatnonzero(label != label[0])
        raise ReducibleChainError(
            f"the chain has {int(label.max()) + 1} communicating classes ({name_states(other)} do not communicate "
            "with state 0), so its stationary law is not unique or not positive; restrict it to one closed class, or "
            "give it termination and initial."
        )


def _pattern(matrix: Matrix) -> Matrix:
    """Return the sign pattern as a ``csr_array`` without explicit zeros."""
    graph = sparse.csr_array(matrix) if not sparse.issparse(matrix) else matrix.tocsr().copy()
    graph.eliminate_zeros()
    return graph
