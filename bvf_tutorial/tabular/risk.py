r"""This file knows the spread of an episode's cost: its variance, its exact law, its tails, and what bounds them.

Theory. Given the present state, past and future are independent, so the cost of the whole episode,
``C = (so far) + (to come) - d(x)``, is a sum of two independent parts and a constant: variances add, laws convolve.
Each part belongs to a chain, the past to ``markov.time_reversal``; so every function of a chain below looks back when
it is given the reversal. ``x`` is the state at a stationary instant (``m(x)`` visits per episode): the *state-wise*
quantities are those of the episode that covers it.

Sources: Sobel (1982), variance; Rockafellar and Uryasev (2000, 2002), conditional value at risk; Cantelli (1928); all
proved in chapter 11 of the book.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import FloatArray, IntArray, as_vector
from .chain import Chain, row_sums
from .cmdp import CMDP
from .errors import InvalidModelError
from .markov import time_reversal
from .resolvent import Resolvent, check_discount
from .values import forward_value, where_visited

__all__ = [
    "cantelli_bound",
    "cantelli_quantile",
    "conditional_value_at_risk",
    "cost_augmented",
    "cost_distribution",
    "cost_variance",
    "state_wise_distribution",
    "state_wise_variance",
    "tail_probability",
]

TRUNCATION_LIMIT = 1e-10
"""Largest probability beyond the last level of a law that ``conditional_value_at_risk`` accepts."""


def cost_variance(chain: Chain, cost: npt.ArrayLike) -> FloatArray:
    """Return ``Var(C | x_0 = x)`` of the cost to the end of the episode, [S], in squared units of cost.

    ``(I - P)^{-1} u`` with ``u(x) = sum_y P(x, y) (V(y) - v(x))^2 + r(x) v(x)^2`` and ``v = P V``: what each step adds,
    by the law of total variance. All terms are >= 0, so a small variance beside a large mean keeps its digits, which
    "second moment minus squared mean" (``product_moment``) would cancel. On ``time_reversal(chain)`` it is the variance
    of the cost so far. Source: Sobel (1982).

    Args:
        chain: a chain whose episodes end from every state.
        cost: ``d``, [S], of any sign.

    Raises:
        DiscountError, ImproperPolicyError: the sum diverges.
    """
    value = forward_value(chain, cost)
    following = np.asarray(chain.transition @ value)
    if chain.is_sparse:
        step = chain.transition.tocoo()
        jump = step.data * (value[step.col] - following[step.row]) ** 2
        spread = np.bincount(step.row, jump, chain.n_states)
    else:
        spread = (chain.transition * (value[None, :] - following[:, None]) ** 2).sum(axis=1)
    return Resolvent(chain).right(spread + chain.termination * following**2)


def state_wise_variance(chain: Chain, cost: npt.ArrayLike, unreachable: str = "raise") -> FloatArray:
    """Return ``Var(C | x_t = x)`` of the whole episode's cost given the present state, [S]: backward plus forward.

    The present cost ``d(x)`` is a constant given ``x``, so nothing is subtracted. Arguments and errors as for
    ``state_wise_cost``.
    """
    check_discount(chain, 1.0, chain.visited)

    def whole_episode(part: Chain, signal: FloatArray) -> FloatArray:
        return cost_variance(time_reversal(part), signal) + cost_variance(part, signal)

    return where_visited(chain, cost, unreachable, whole_episode)


def cost_distribution(chain: Chain, cost: npt.ArrayLike, n_levels: int, unit: float = 1.0) -> FloatArray:
    """Return ``Pr(C = k unit | x_0 = x)`` for ``k = 0..n_levels - 1``, [S, K], exactly.

    ``p(x, k) = q(x, k - d(x) / unit)``, where ``q(x, j) = r(x) 1[j = 0] + sum_y P(x, y) p(y, j)`` is the law of what
    follows ``x``. A state with a cost looks down to levels already known; the states without cost, ``Z``, look at each
    other and share one factorisation of ``I - P_ZZ``. The mass beyond the last level is ``1 - p.sum(axis=1)``. On
    ``time_reversal(chain)`` it is the law of the cost so far. O(K) products with ``P``.

    Args:
        chain: a chain whose episodes end from every state, dense or sparse.
        cost: ``d``, [S], non-negative multiples of ``unit``.
        n_levels: ``K >= 1``.
        unit: grid of the cost, > 0.

    Raises:
        InvalidModelError: a cost that is not on the grid; the state is named.
        DiscountError, ImproperPolicyError: an episode may never end.
    """
    check_discount(chain, 1.0)
    level = _levels(cost, chain.n_states, n_levels, unit)
    free, paying = np.flatnonzero(level == 0), np.flatnonzero(level > 0)
    law, following = np.zeros((2, chain.n_states, n_levels))
    settle = _among(chain, free)
    for k in range(n_levels):
        ready = paying[level[paying] <= k]
        law[ready, k] = following[ready, k - level[ready]]
        arriving = chain.transition @ law[:, k] + (chain.termination if k == 0 else 0.0)
        law[free, k] = settle(arriving[free])
        following[:, k] = chain.transition @ law[:, k] + (chain.termination if k == 0 else 0.0)
    return law


def state_wise_distribution(
    chain: Chain, cost: npt.ArrayLike, n_levels: int, unit: float = 1.0, unreachable: str = "raise"
) -> FloatArray:
    """Return ``Pr(C = k unit | x_t = x)`` of the whole episode's cost given the present state, [S, K], exactly.

    The convolution of the backward and the forward law, moved down by ``d(x)``, which both contain. Summed directly,
    not by Fourier transform: terms are >= 0, so small probabilities keep their digits. Arguments and errors as for
    ``cost_distribution``; ``unreachable`` as for ``state_wise_cost``.
    """
    check_discount(chain, 1.0, chain.visited)
    _levels(cost, chain.n_states, n_levels, unit)  # before states are renumbered: the error names the caller's

    def whole_episode(part: Chain, signal: FloatArray) -> FloatArray:
        level = _levels(signal, part.n_states, n_levels, unit)
        behind = cost_distribution(time_reversal(part), signal, n_levels, unit)
        ahead = cost_distribution(part, signal, n_levels, unit)
        law = np.zeros((part.n_states, n_levels))
        for x, k in enumerate(level):
            if k < n_levels:
                law[x, k:] = np.convolve(behind[x, k:], ahead[x, k:])[: n_levels - k]
        return law

    return where_visited(chain, cost, unreachable, whole_episode)


def tail_probability(law: npt.ArrayLike, threshold: float, unit: float = 1.0) -> FloatArray:
    """Return ``Pr(C > threshold)`` per row of a law, [S]; the mass beyond its last level counts as above.

    Args:
        law: [S, K], ``Pr(C = k unit)``, from ``cost_distribution`` or ``state_wise_distribution``.
        threshold: in units of cost, below ``K unit``.
        unit: grid of the law.

    Raises:
        InvalidModelError: the threshold lies beyond the grid; how many levels it needs is said. Or a bad unit.
    """
    table = _law_table(law)
    _check_unit(unit)
    # Rounded up by 1e-9 of a level, so that a threshold of 0.3 on a grid of 0.1 means level 3.
    inside = np.floor(threshold / unit + 1e-9) + 1
    if not inside <= table.shape[1]:
        raise InvalidModelError(
            f"threshold {threshold} lies beyond the last level {(table.shape[1] - 1) * unit:g} of the law; compute it "
            f"with n_levels >= {inside:.0f}."
        )
    # Both the levels above and what is beyond them are summed; where that is nothing, rounding may leave -1e-17.
    beyond = np.maximum(1.0 - table.sum(axis=1), 0.0)
    return np.asarray(np.minimum(table[:, int(max(inside, 0)) :].sum(axis=1) + beyond, 1.0))


def conditional_value_at_risk(law: npt.ArrayLike, level: float, unit: float = 1.0) -> FloatArray:
    """Return ``CVaR_level(C)`` per row of a law, [S]: the mean cost of the worst share ``1 - level`` of episodes.

    ``unit / (1 - level) sum_k min(1 - level, Pr(C > k unit))``, which splits an atom at the quantile as the definition
    asks; equal to ``min_z z + E[(C - z)^+] / (1 - level)``. Level 0 gives the mean. Leaving out a tail of probability
    ``p`` moves it by about ``p / (1 - level)`` times the scale of the tail. Source: Rockafellar and Uryasev (2000,
    2002).

    Args:
        law: [S, K], ``Pr(C = k unit)``.
        level: in [0, 1); 0.9 looks at the worst tenth.
        unit: grid of the law.

    Raises:
        InvalidModelError: more than ``TRUNCATION_LIMIT`` of probability lies beyond the last level of a row; the
            message says about how many more levels are needed.
    """
    if not 0.0 <= level < 1.0:
        raise InvalidModelError(f"level is {level}; it lies in [0, 1), and 0.9 means the worst tenth.")
    table = _law_table(law)
    _check_unit(unit)
    missing = 1.0 - table.sum(axis=1)
    if (missing > TRUNCATION_LIMIT).any():
        row = int(np.nanargmax(missing))
        raise InvalidModelError(
            f"row {row} of the law leaves {missing[row]:.3g} of probability beyond its {table.shape[1]} levels, more "
            f"than {TRUNCATION_LIMIT}; give it about {_more_levels(table[row], float(missing[row]))} levels more."
        )
    above = np.cumsum(table[:, :0:-1], axis=1)  # Pr(C > k unit), the smallest terms first
    mean = unit / (1.0 - level) * np.minimum(1.0 - level, above).sum(axis=1)
    return np.where(np.isnan(missing), np.nan, mean)


def cantelli_bound(mean: npt.ArrayLike, variance: npt.ArrayLike, threshold: npt.ArrayLike) -> FloatArray:
    """Return the largest ``Pr(C >= threshold)`` of any law with this mean and variance, of the shape of the arguments.

    ``variance / (variance + (threshold - mean)^2)`` above the mean, 1 at or below it. Attained by a law on two points.
    Source: Cantelli (1928).

    Args:
        mean: expected cost.
        variance: >= 0, in squared units of cost.
        threshold: in units of cost.
    """
    centre, square, limit = np.broadcast_arrays(*(np.asarray(a, float) for a in (mean, variance, threshold)))
    _check_variance(square)
    distance = limit - centre
    with np.errstate(invalid="ignore"):  # 0 / 0 is computed, and not used, where the threshold is at a sure cost
        return np.where(distance <= 0, 1.0, square / (square + distance**2))


def cantelli_quantile(mean: npt.ArrayLike, variance: npt.ArrayLike, probability: float) -> FloatArray:
    """Return ``mean + sqrt((1 - p) / p variance)``: no law of this mean and variance exceeds it more often than ``p``.

    The inverse of ``cantelli_bound``, and an upper bound of ``CVaR_{1 - p}`` as well. With state-wise mean and
    variance, ``cantelli_quantile <= d0`` is a state-wise chance constraint: it implies ``Pr(C > d0 | x) <= p`` (and
    ``Pr(C >= d0 | x) <= p``, unless the cost is sure and equal to ``d0``).

    Args:
        mean: expected cost.
        variance: >= 0, in squared units of cost.
        probability: ``p`` in (0, 1].
    """
    if not 0.0 < probability <= 1.0:
        raise InvalidModelError(f"probability is {probability}; it lies in (0, 1], and 0.1 means one episode in ten.")
    square = np.asarray(variance, dtype=np.float64)
    _check_variance(square)
    return np.asarray(np.asarray(mean) + np.sqrt((1.0 - probability) / probability * square))


def cost_augmented(cmdp: CMDP, n_levels: int, unit: float = 1.0) -> CMDP:
    """Return the CMDP whose state is ``(x, cost so far)``, the present cost included; the backward value is read off.

    State ``(x, k unit)`` has index ``k * S + x``. The last level means "this much or more": below it the backward value
    *is* ``k unit``, whatever the policy. With ``(n_levels - 1) unit > d0`` the state-wise constraint
    ``Vb + V - d <= d0`` at every visited state of this model holds iff ``C <= d0`` with probability one (costs being
    non-negative). That is another, harder problem than the CMDP. A stationary policy of this model is a policy of
    ``cmdp`` that looks at its account.

    Args:
        cmdp: a model with ``S`` states whose costs are multiples of ``unit``.
        n_levels: ``K >= 1``.
        unit: grid of the cost, > 0.

    Returns:
        A sparse CMDP with ``S * K`` states, same cost limit; some states are never visited.

    Raises:
        InvalidModelError: a cost that is not on the grid; the state is named.
    """
    size = cmdp.n_states
    level = _levels(cmdp.cost, size, n_levels, unit)
    step = sparse.coo_array(cmdp.kernel)
    account = np.arange(n_levels)[:, None]
    row = account * (size * cmdp.n_actions) + step.row
    column = np.minimum(account + level[step.col], n_levels - 1) * size + step.col
    data = np.broadcast_to(step.data, row.shape)
    shape = (n_levels * size * cmdp.n_actions, n_levels * size)
    transition = sparse.csr_array((data.ravel(), (row.ravel(), column.ravel())), shape=shape)
    initial = np.zeros(n_levels * size)
    initial[np.minimum(level, n_levels - 1) * size + np.arange(size)] = cmdp.initial
    reward, termination = (np.tile(table, (n_levels, 1)) for table in (cmdp.reward, cmdp.termination))
    return CMDP(transition, reward, np.tile(cmdp.cost, n_levels), initial, cmdp.cost_limit, termination)


def _levels(cost: npt.ArrayLike, size: int, n_levels: int, unit: float) -> IntArray:
    """Return the costs as whole numbers of ``unit``, or raise an error that names the state off the grid."""
    if n_levels < 1 or n_levels != int(n_levels):
        raise InvalidModelError(f"n_levels is {n_levels}; it counts levels of cost, so it is an integer >= 1.")
    _check_unit(unit)
    signal = as_vector("cost", cost, (size,))
    level = np.rint(signal / unit)
    wrong = np.flatnonzero((signal < 0) | (np.abs(signal / unit - level) > 1e-9 * np.maximum(level, 1.0)))
    if wrong.size:
        raise InvalidModelError(
            f"cost[{wrong[0]}] is {signal[wrong[0]]}, not a non-negative multiple of unit {unit}; choose a unit that "
            "divides every cost, or round the costs up to its multiples."
        )
    return np.asarray(level, dtype=np.int64)


def _among(chain: Chain, states: IntArray) -> Callable[[FloatArray], FloatArray]:
    """Return ``(I - P_ZZ)^{-1}`` for the states ``Z`` as a function, from one factorisation."""
    if not states.size:
        return lambda source: source
    inside = chain.transition[states][:, states]
    outside = np.delete(np.arange(chain.n_states), states)
    # Summed from positive terms, as the elimination wants it, instead of 1 - P_ZZ 1.
    leaving = chain.termination[states] + row_sums(chain.transition[states][:, outside])
    return Resolvent(Chain(inside, leaving, np.full(states.size, 1.0 / states.size))).right


def _law_table(law: npt.ArrayLike) -> FloatArray:
    table = np.asarray(law, dtype=np.float64)
    if table.ndim != 2 or not table.size:
        raise InvalidModelError(f"law has shape {table.shape}, expected [S, K]; a single law is one row: law[None, :].")
    if (table < 0).any():
        x, k = np.argwhere(table < 0)[0]
        raise InvalidModelError(f"law[{x}, {k}] is {table[x, k]}; a probability is >= 0.")
    return table


def _check_unit(unit: float) -> None:
    if not (np.isfinite(unit) and unit > 0):
        raise InvalidModelError(f"unit is {unit}; the grid of the cost is a finite number > 0.")


def _check_variance(variance: FloatArray) -> None:
    if (variance < 0).any():
        raise InvalidModelError(f"variance {variance[variance < 0][0]} is negative; pass the variance, >= 0.")


def _more_levels(row: FloatArray, missing: float) -> int:
    """Return how many more levels bring ``missing`` below the limit at the rate of the upper half of the law."""
    half = (row.size + 1) // 2
    rate = np.log1p(row[half:].sum() / missing) / max(row.size - half, 1)
    return int(np.ceil(np.log(missing / TRUNCATION_LIMIT) / rate)) if rate > 0 else row.size
