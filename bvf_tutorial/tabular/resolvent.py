"""This file knows how to apply ``(I - gamma P)^{-1}`` from the left or the right, accurately, dense or sparse.

Every exact quantity of the package is one such solve: visits ``m = mu0 (I - P)^{-1}``, values ``V = (I - P)^{-1} d``,
and accumulated cost ``W = (m d) (I - P)^{-1}``. Two methods, one interface:

* dense: elimination in the manner of Grassmann, Taksar and Heyman (1985). States are censored one by one; the pivot is
  the probability of *leaving*, summed from positive terms, never ``1 - P[x, x]``. Nothing is subtracted, so
  non-negative right-hand sides give every entry to high *relative* accuracy, also next to transition probabilities of
  1e-20.
* sparse: SuperLU with a minimum-degree ordering and no pivoting. ``I - gamma P`` is a diagonally dominant M-matrix, so
  its factors have non-positive off-diagonal entries and the triangular solves only add terms of one sign: entries 1e-40
  below the largest still carry digits, where a Krylov method, which controls a norm, leaves none. Backward values
  divide by exactly those entries.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import linalg

from .arrays import FloatArray
from .chain import Chain, can_terminate
from .errors import DiscountError, ImproperPolicyError, SolveError, name_states

__all__ = ["RESIDUAL_LIMIT", "CensoredFactor", "Resolvent"]

RESIDUAL_LIMIT = 1e-8
"""Largest residual a sparse solution may leave at any entry, relative to the sum of the magnitudes that meet there."""
_TOO_RARE = "the chain ends too rarely for float64: add termination, discount, or use a dense model."


class Resolvent:
    """The operator ``(I - gamma P)^{-1}`` of a chain, ready to be applied.

    Args:
        chain: the chain; with ``gamma = 1`` the episode must end with positive probability from every state.
        gamma: discount factor in [0, 1].

    Raises:
        DiscountError: gamma outside [0, 1], or gamma = 1 on a chain that never ends.
        ImproperPolicyError: gamma = 1 and the episode never ends from some state; the states are named.
        SolveError: ``I - gamma P`` of a sparse chain is singular in float64; from ``left`` and ``right``, a sparse
            solution that fails its own equation at some entry.
    """

    def __init__(self, chain: Chain, gamma: float = 1.0) -> None:
        check_discount(chain, gamma)
        transition = chain.transition * gamma
        self._left: Callable[[FloatArray], FloatArray]
        self._right: Callable[[FloatArray], FloatArray]
        if not chain.is_sparse:
            # The discounted chain is a killed chain; written so, its deficit keeps the digits that 1 - gamma * rowsum
            # would cancel.
            factor = CensoredFactor(transition, (1.0 - gamma) + gamma * chain.termination)
            self._left, self._right = factor.left, factor.right
            return
        matrix = sparse.csc_array(sparse.eye_array(chain.n_states) - transition)
        # States in order of time (a clock in the state) make the matrix triangular: as it stands it fills nothing in.
        ordering = "MMD_AT_PLUS_A" if sparse.tril(transition).nnz else "NATURAL"
        try:
            lu = linalg.splu(matrix, permc_spec=ordering, diag_pivot_thresh=0.0, options={"SymmetricMode": True})
        except RuntimeError as error:
            raise SolveError(f"the sparse system cannot be factored ({error}); {_TOO_RARE}") from error
        self._left = lambda source: _checked(lu.solve(source, trans="T"), transition.T, source)
        self._right = lambda signal: _checked(lu.solve(signal), transition, signal)

    def left(self, source: FloatArray) -> FloatArray:
        """Return the row vector ``source (I - gamma P)^{-1}``, [S].

        Mass that starts as ``source``, counted at every visit.
        """
        return self._left(np.asarray(source, dtype=np.float64))

    def right(self, signal: FloatArray) -> FloatArray:
        """Return the column vector ``(I - gamma P)^{-1} signal``, [S]: the signal collected from each state on."""
        return self._right(np.asarray(signal, dtype=np.float64))


class CensoredFactor:
    """The elimination of Grassmann, Taksar and Heyman for a dense substochastic matrix.

    Eliminating state ``n`` watches the chain only while it is in ``0..n-1``: ``P[i, j] += P[i, n] P[n, j] / s_n``,
    where ``s_n = r_n + sum_{j<n} P[n, j]`` is the probability of leaving ``n`` and ``r`` the probability of ending.
    O(S^3) time, O(S^2) memory.

    Args:
        transition: [S, S] non-negative; the diagonal is never read (it is one minus the rest).
        leaving: ``r``, [S], probability that the chain ends at each state.
        first_pivot: pivot of state 0 when the chain never ends: 1.0 makes ``left(e_0)`` the visits between two visits
            to state 0.
    """

    def __init__(self, transition: FloatArray, leaving: FloatArray, first_pivot: float = 0.0) -> None:
        self.flow = np.array(transition, dtype=np.float64)
        end = np.array(leaving, dtype=np.float64)
        size = end.size
        self.pivot = np.empty(size)
        for n in range(size - 1, 0, -1):
            row, column = self.flow[n, :n], self.flow[:n, n]
            self.pivot[n] = end[n] + row.sum()
            self.flow[:n, :n] += np.outer(column, row / self.pivot[n])
            end[:n] += column * (end[n] / self.pivot[n])
        self.pivot[0] = first_pivot or end[0]

    def left(self, source: FloatArray) -> FloatArray:
        """Return ``source (I - P)^{-1}`` (see ``Resolvent.left``)."""
        mass = np.array(source, dtype=np.float64)
        for n in range(mass.size - 1, 0, -1):
            mass[:n] += (mass[n] / self.pivot[n]) * self.flow[n, :n]
        visits = np.empty_like(mass)
        visits[0] = mass[0] / self.pivot[0]
        for n in range(1, mass.size):
            visits[n] = (mass[n] + visits[:n] @ self.flow[:n, n]) / self.pivot[n]
        return visits

    def right(self, signal: FloatArray) -> FloatArray:
        """Return ``(I - P)^{-1} signal`` (see ``Resolvent.right``)."""
        gain = np.array(signal, dtype=np.float64)
        for n in range(gain.size - 1, 0, -1):
            gain[:n] += self.flow[:n, n] * (gain[n] / self.pivot[n])
        value = np.empty_like(gain)
        value[0] = gain[0] / self.pivot[0]
        for n in range(1, gain.size):
            value[n] = (gain[n] + self.flow[n, :n] @ value[:n]) / self.pivot[n]
        return value


def check_discount(chain: Chain, gamma: float, among: npt.NDArray[np.bool_] | bool = True) -> None:
    """Raise unless ``(I - gamma P)^{-1}`` exists: gamma < 1, or gamma = 1 and the episode can end from every state.

    Args:
        chain: the chain.
        gamma: discount factor.
        among: [S], the states that matter (those an episode visits, say); all of them by default.
    """
    if not 0.0 <= gamma <= 1.0:
        raise DiscountError(f"gamma is {gamma}; a discount factor lies in [0, 1].")
    if gamma < 1.0:
        return
    if not chain.is_killed:
        raise DiscountError(
            "gamma = 1 on a chain that never ends: the sum of costs diverges and the undiscounted equation has no "
            "solution unless the stationary cost is zero; use gamma < 1, or give the chain termination."
        )
    stuck = np.flatnonzero(among & ~can_terminate(chain))
    if stuck.size:
        raise ImproperPolicyError(
            f"from {name_states(stuck)} the episode never ends, so undiscounted sums diverge; use a policy that can "
            "end from there, use gamma < 1, or add a time limit with time_augmented."
        )


def _checked(solution: FloatArray, matrix: object, source: FloatArray) -> FloatArray:
    """Return ``solution`` of ``x = source + matrix x``, or raise an error that names where the equation fails."""
    arriving = matrix @ solution  # type: ignore[operator]
    scale = np.abs(solution) + np.abs(source) + np.abs(arriving)
    residual = np.abs(source + arriving - solution)
    failed = residual > RESIDUAL_LIMIT * scale
    if failed.any() or not np.isfinite(solution).all():
        worst = int(
            np.argmax(np.where(np.isfinite(solution), residual / np.maximum(scale, np.finfo(float).tiny), np.inf))
        )
        raise SolveError(
            f"the linear solve fails its own equation at state {worst} (residual {residual[worst]:.3g}); {_TOO_RARE}"
        )
    return solution
