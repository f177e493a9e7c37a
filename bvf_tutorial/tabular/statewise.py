r"""This file knows the state-wise problem: the best action distribution of every state under one linear limit each.

Theory. A policy step of the paper asks, at each state ``x`` by itself, for

    max_p  p . Q   subject to   p . Q_D <= b,   p a distribution over actions

(its linear program of section 3.3; ``Q``, ``Q_D``, ``b`` depend on ``x``). Price the limit at ``lambda``: the best
response ranks the actions by ``Q - lambda Q_D``, and the ranking changes only at the finitely many prices where two
actions tie. Between the last ranking that costs too much and the first that does not, one mixture meets the limit
exactly. That solves the program in closed form, also inside a total variation ball, and for all states at once. An
entropy bonus makes the response a softmax and the price the root of one monotone equation.

Sources: Satija et al. (2020), section 3.3 and appendix D (whose signs are corrected here); proofs in chapter 9.
"""

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp, softmax

from .arrays import ROUNDING, FloatArray
from .errors import InvalidModelError

__all__ = [
    "StateStatus",
    "StateWise",
    "ball_step",
    "elimination_step",
    "entropy_step",
    "linear_step",
    "multiplier_bracket",
]

TOLERANCE = 1e-12
"""How far, relative to the magnitudes that meet there, a limit may be missed and still count as met, for rounding."""


class StateStatus(IntEnum):
    """What the limit did at a state."""

    FREE = 0
    """The unconstrained choice respects the limit; the multiplier is zero."""
    ACTIVE = 1
    """The limit binds and is met exactly; elimination met it by removing the best action."""
    EMPTY = 2
    """No choice respects the limit; the returned one has the least cost."""


@dataclass(frozen=True, eq=False)
class StateWise:
    """The solution of the state-wise problem, for all states.

    Attributes:
        policy: [S, A], the best distribution of each state; the one of least cost where ``status`` is EMPTY.
        multiplier: ``lambda(x) >= 0``, [S], price of the limit; ``inf`` where it is EMPTY, or met by the least-cost
            actions only; NaN for a method without one (elimination).
        status: [S], values of ``StateStatus``.
    """

    policy: FloatArray
    multiplier: FloatArray
    status: npt.NDArray[np.int8]

    def count(self, status: StateStatus) -> int:
        """Return at how many states ``status`` occurred."""
        return int((self.status == status).sum())


def linear_step(score: npt.ArrayLike, normal: npt.ArrayLike, offset: npt.ArrayLike) -> StateWise:
    """Return ``argmax_p p . score`` subject to ``p . normal <= offset``, exactly, at each state (paper, section 3.3).

    The optimum mixes at most two actions. Ties in the score go to the lower cost.

    Args:
        score: ``Q``, [S, A].
        normal: ``Q_D``, [S, A].
        offset: ``b``, [S]; ``inf`` where there is no limit.

    Raises:
        InvalidModelError: shapes that do not fit, or a NaN; the entry is named.
    """
    q, d, b = _checked(score, normal, offset)
    return ball_step(q, d, b, np.full(q.shape, 1.0 / q.shape[1]), 1.0)


def ball_step(
    score: npt.ArrayLike, normal: npt.ArrayLike, offset: npt.ArrayLike, center: npt.ArrayLike, radius: npt.ArrayLike
) -> StateWise:
    """Return the same within ``TV(p, center) <= radius``: the paper's step inside the ball of its Theorem 3.1.

    At a price ``lambda`` the best response moves mass ``radius`` from the worst-ranked actions to the best. A binary
    search over the ``A (A - 1) / 2`` prices at which two actions tie finds the two responses to mix, which share the
    price at which both are optimal, so their mixture is optimal.

    Args:
        score: ``Q``, [S, A].
        normal: ``Q_D``, [S, A].
        offset: ``b``, [S].
        center: [S, A], the present policy.
        radius: scalar or [S], in [0, 1]; total variation is half the L1 distance. 1 is the whole simplex.
    """
    q, d, b = _checked(score, normal, offset)
    middle, reach = _checked_ball(center, radius, q.shape)
    tie = _tie_prices(q, d)

    def respond(interval: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray, npt.NDArray[np.bool_]]:
        response = _move_mass(_ranking(q, d, tie, interval), middle, reach)
        cost = (response * d).sum(axis=1)
        return response, cost, _is_within(cost, (response * np.abs(d)).sum(axis=1), b)

    first = np.zeros(len(b), dtype=np.int64)
    last = np.full(len(b), tie.shape[1], dtype=np.int64)
    while (first < last).any():
        halfway = (first + last) // 2
        is_met = respond(halfway)[2]
        last = np.where(is_met, halfway, last)
        first = np.where(is_met, first, np.minimum(halfway + 1, last))
    # Where no response meets the limit the search ends at the last one, the cheapest.
    within, low, is_met = respond(last)
    beyond, high, _ = respond(np.maximum(last - 1, 0))
    is_empty, is_active = ~is_met, (last > 0) & is_met
    is_mixed = is_active & (high > low)
    width = np.where(is_mixed, high - low, 1.0)
    # Each share from its own difference: one minus the other would lose the digits of a small one.
    share = np.clip(np.where(is_mixed, b - low, 0.0) / width, 0.0, 1.0)
    rest = np.clip(np.where(is_mixed, high - b, 1.0) / width, 0.0, 1.0)
    policy = rest[:, None] * within + share[:, None] * beyond
    price = np.take_along_axis(np.c_[np.zeros(len(b)), tie], last[:, None], axis=1)[:, 0]
    status = np.where(is_empty, StateStatus.EMPTY, np.where(is_active, StateStatus.ACTIVE, StateStatus.FREE))
    return StateWise(policy, np.where(is_empty, np.inf, price), status.astype(np.int8))


def elimination_step(score: npt.ArrayLike, normal: npt.ArrayLike, offset: npt.ArrayLike) -> StateWise:
    """Return the best single action among those with ``normal <= offset`` (paper, section 4: deterministic policies).

    It solves the state-wise program over deterministic policies only. Where every action is eliminated: the least-cost
    action, with status EMPTY. Arguments as for ``linear_step``.
    """
    q, d, b = _checked(score, normal, offset)
    is_allowed = _is_within(d, np.abs(d), b[:, None])
    is_empty = ~is_allowed.any(axis=1)
    choice = np.where(is_empty, d.argmin(axis=1), np.where(is_allowed, q, -np.inf).argmax(axis=1))
    is_free = q[np.arange(len(b)), choice] >= q.max(axis=1)
    status = np.where(is_empty, StateStatus.EMPTY, np.where(is_free, StateStatus.FREE, StateStatus.ACTIVE))
    return StateWise(np.eye(q.shape[1])[choice], np.full(len(b), np.nan), status.astype(np.int8))


def entropy_step(score: npt.ArrayLike, normal: npt.ArrayLike, offset: npt.ArrayLike, temperature: float) -> StateWise:
    """Return ``argmax_p p . Q + tau H(p)`` subject to ``p . Q_D <= b`` (paper, appendix D, with the signs corrected).

    ``p`` is proportional to ``exp((Q - lambda Q_D) / tau)``, and ``lambda >= 0`` minimises the convex dual
    ``tau logsumexp((Q - lambda Q_D) / tau) + lambda b``, whose derivative is ``b - E_lambda[Q_D]`` and whose second
    derivative is ``Var_lambda(Q_D) / tau``. Newton steps, replaced by bisection where they leave the bracket.

    Args:
        score: ``Q``, [S, A].
        normal: ``Q_D``, [S, A].
        offset: ``b``, [S].
        temperature: ``tau > 0``, in units of the score.

    Returns:
        FREE where the plain softmax respects the limit; ACTIVE with ``lambda`` in (0, inf), or ``inf`` where only the
        least-cost actions do; EMPTY where nothing does (then the softmax over the least-cost actions).

    Raises:
        InvalidModelError: a temperature that is not positive; shapes that do not fit, or a NaN.
    """
    if not (np.isfinite(temperature) and temperature > 0):
        raise InvalidModelError(f"temperature is {temperature}; it must be positive (use linear_step for 0).")
    q, d, b = _checked(score, normal, offset)
    least = d.min(axis=1)
    is_cheapest = _is_within(d, np.abs(d), least[:, None])
    plain = softmax(q / temperature, axis=1)
    is_free = _is_within((plain * d).sum(axis=1), (plain * np.abs(d)).sum(axis=1), b)
    is_empty = ~_is_within(least, np.abs(least), b)
    is_corner = ~is_free & ~is_empty & _is_within(b, np.abs(b), least)
    solved = np.flatnonzero(~is_free & ~is_empty & ~is_corner)
    price = np.zeros(len(b))
    # Measured from the least cost: a common offset of 1e6 would cost as many digits of the exponent.
    d, b = d - least[:, None], b - least
    price[solved] = _entropy_price(q[solved], d[solved], b[solved], temperature)
    price[is_empty | is_corner] = np.inf
    finite = np.where(np.isfinite(price), price, 0.0)[:, None]
    logit = (q - finite * d) / temperature
    policy = softmax(np.where((is_empty | is_corner)[:, None] & ~is_cheapest, -np.inf, logit), axis=1)
    status = np.where(is_empty, StateStatus.EMPTY, np.where(is_free, StateStatus.FREE, StateStatus.ACTIVE))
    return StateWise(policy, price, status.astype(np.int8))


def multiplier_bracket(score: FloatArray, normal: FloatArray, offset: FloatArray, temperature: float) -> FloatArray:
    """Return an upper bound of the entropy step's multiplier, [S] (chapter 9).

    ``tau / (q_plus - q_min) max(0, log(S / ((b - q_min) W_min)))`` with ``q_plus`` the least cost above ``b``,
    ``S = sum_{Q_D > b} (Q_D - b) e^{Q / tau}`` and ``W_min`` the weight ``e^{Q / tau}`` of the least-cost actions.
    Holds where ``min Q_D < b < E_0[Q_D]``.
    """
    above = normal > offset[:, None]
    least = normal.min(axis=1)
    excess = np.where(above, normal - offset[:, None], 0.0)
    log_excess = logsumexp(np.where(above, score / temperature, -np.inf), axis=1, b=np.where(above, excess, 0.0))
    log_cheapest = logsumexp(np.where(normal == least[:, None], score / temperature, -np.inf), axis=1)
    gap = np.where(above, normal, np.inf).min(axis=1) - least
    return np.asarray(temperature / gap * np.maximum(0.0, log_excess - np.log(offset - least) - log_cheapest))


def _entropy_price(q: FloatArray, d: FloatArray, b: FloatArray, temperature: float) -> FloatArray:
    """Return the root ``lambda`` of ``E_lambda[Q_D] = b``, [S], where ``min Q_D < b < E_0[Q_D]``."""
    if not b.size:
        return b
    low, high = np.zeros(len(b)), multiplier_bracket(q, d, b, temperature)
    price = low.copy()
    for _ in range(200):
        weight = softmax((q - price[:, None] * d) / temperature, axis=1)
        mean = (weight * d).sum(axis=1)
        low, high = np.where(mean > b, price, low), np.where(mean > b, high, price)
        variance = (weight * (d - mean[:, None]) ** 2).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = price + (mean - b) * temperature / variance
        step = np.where((newton > low) & (newton < high), newton, (low + high) / 2)
        if (np.abs(step - price) <= 4 * np.finfo(float).eps * np.abs(price)).all():
            break
        price = step
    return price


def _checked(
    score: npt.ArrayLike, normal: npt.ArrayLike, offset: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    q, d, b = (np.asarray(value, dtype=np.float64) for value in (score, normal, offset))
    if q.ndim != 2 or q.shape[1] == 0 or d.shape != q.shape or b.shape != q.shape[:1]:
        raise InvalidModelError(
            f"score {q.shape}, normal {d.shape} and offset {b.shape} must be [S, A], [S, A] and [S], with A >= 1."
        )
    for name, array in (("score", q), ("normal", d), ("offset", b)):
        bad = np.argwhere(np.isnan(array) if name == "offset" else ~np.isfinite(array))
        if bad.size:
            where = ", ".join(str(i) for i in bad[0])
            raise InvalidModelError(f"{name}[{where}] is {array[tuple(bad[0])]}; use inf in offset for 'no limit'.")
    return q, d, b


def _checked_ball(
    center: npt.ArrayLike, radius: npt.ArrayLike, shape: tuple[int, ...]
) -> tuple[FloatArray, FloatArray]:
    middle, reach = np.asarray(center, dtype=np.float64), np.asarray(radius, dtype=np.float64)
    if middle.shape != shape or reach.shape not in ((), shape[:1]):
        raise InvalidModelError(
            f"center {middle.shape} and radius {reach.shape} must be {shape} and a number or {shape[:1]}."
        )
    if not ((reach >= 0) & (reach <= 1)).all():
        raise InvalidModelError("the radius must lie in [0, 1]: total variation is half the L1 distance.")
    bad = np.flatnonzero(~((middle >= -ROUNDING).all(axis=1) & (np.abs(middle.sum(axis=1) - 1.0) <= ROUNDING)))
    if bad.size:
        raise InvalidModelError(f"center row {bad[0]} is {middle[bad[0]]}, not a distribution.")
    return middle, np.broadcast_to(reach, shape[:1])


def _is_within(cost: FloatArray, magnitude: FloatArray, offset: FloatArray) -> npt.NDArray[np.bool_]:
    """Return whether ``cost <= offset`` up to rounding, relative to the magnitudes that were added up in the cost.

    A huge cost of an action that is not used must not blur a small limit.
    """
    finite = np.where(np.isfinite(offset), np.abs(offset), 0.0)
    return np.asarray(cost <= offset + TOLERANCE * (magnitude + finite))


def _tie_prices(q: FloatArray, d: FloatArray) -> FloatArray:
    """Return, sorted, the positive prices at which two actions tie, [S, A (A - 1) / 2], filled up with ``inf``."""
    i, j = np.triu_indices(q.shape[1], 1)
    with np.errstate(all="ignore"):
        price = (q[:, i] - q[:, j]) / (d[:, i] - d[:, j])
    return np.sort(np.where(price > 0, price, np.inf), axis=1)


def _ranking(q: FloatArray, d: FloatArray, tie: FloatArray, interval: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the actions from best to worst at the prices of the given interval between ties, [S, A].

    A better and dearer action ranks higher as long as the price is below their tie. Pairs are compared by their ties,
    not by ``q - price d``: where two costs differ by rounding the price is 1e15, and the difference would cancel.
    """
    gain, extra = q[:, :, None] - q[:, None, :], d[:, :, None] - d[:, None, :]
    below = np.take_along_axis(np.c_[np.zeros(len(q)), tie], interval[:, None], axis=1)[:, :, None]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        is_worth_it = gain / extra > below
        is_cheap_enough = gain / extra <= below
    dominates = ((gain > 0) & (extra <= 0)) | ((gain == 0) & (extra < 0))
    wins = dominates | ((gain > 0) & (extra > 0) & is_worth_it) | ((gain < 0) & (extra < 0) & is_cheap_enough)
    return np.argsort(-wins.sum(axis=2), axis=1, kind="stable")


def _move_mass(ranking: npt.NDArray[np.int64], center: FloatArray, radius: FloatArray) -> FloatArray:
    """Return ``center`` with mass ``radius`` moved from the worst-ranked actions to the best-ranked, [S, A]."""
    ranked = np.take_along_axis(center, ranking, axis=1)
    worst_first = ranked[:, :0:-1]
    before = np.cumsum(worst_first, axis=1) - worst_first
    taken = np.clip(radius[:, None] - before, 0.0, worst_first)
    # A radius of one takes everything: no crumbs of rounding may stay behind.
    taken = np.where(radius[:, None] >= 1.0, worst_first, taken)
    moved = np.empty_like(ranked)
    moved[:, 1:] = (worst_first - taken)[:, ::-1]
    moved[:, 0] = np.maximum(1.0 - moved[:, 1:].sum(axis=1), 0.0)
    result = np.empty_like(moved)
    np.put_along_axis(result, ranking, moved, axis=1)
    return result
