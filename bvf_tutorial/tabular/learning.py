r"""This file knows how to estimate values from sampled episodes: Monte Carlo, temporal differences, least squares.

Theory. The backward value needs no backward sampling: an episode recorded forward and read from its end to its start is
an episode of the backward chain. So every estimator here is written once, towards the future, and
``direction="backward"`` reads the record the other way (``sampling.reversed_episodes``); "termination" is then the
known start of the episode. Two facts are the backward direction's own:

* its lambda-returns are causal, ``R_t = d_t + gamma [(1 - lambda) v(x_{t-1}) + lambda R_{t-1}]``: they stream, without
  traces or waiting;
* it is on-policy by nature: the law of the predecessor depends on how often the *predecessor* is visited, so replay
  with other state weights converges to something else, even for a table.

Sources: Sutton (1988); Sutton and Barto (2018), chapters 6, 7, 12; Bradtke and Barto (1996) and Boyan (2002) for LSTD;
Satija et al. (2020), 3.2.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import FloatArray, as_vector
from .errors import DiscountError, InvalidModelError, SolveError
from .sampling import Episodes, reversed_episodes

__all__ = [
    "BackwardMemory",
    "LeastSquares",
    "MonteCarlo",
    "TemporalDifference",
    "backward_lambda_returns",
    "harmonic_step_size",
    "lambda_returns",
    "lstd",
    "monte_carlo",
    "n_step_returns",
    "stream_backward_return",
    "streaming_backward_td",
    "td",
]


def lambda_returns(
    cost: npt.ArrayLike, next_value: npt.ArrayLike, discount: npt.ArrayLike, lambda_: npt.ArrayLike
) -> FloatArray:
    """Return the lambda-returns ``G_t = d_t + discount_t [(1 - lambda_t) v_{t+1} + lambda_t G_{t+1}]``, shape [T, ...].

    Beyond the last step ``G_T = v_T``. Termination after ``t`` is ``discount_t = 0``, a cut where bootstrapping goes on
    is ``lambda_t = 0``: no special cases. Equivalent to GAE: ``G_t = v_t + A_t`` (Schulman et al., 2016).

    Args:
        cost: ``d_t``, [T, ...], time first.
        next_value: ``v_{t+1}``, [T, ...], value of the state *after* step ``t``.
        discount: [T, ...], gamma inside an episode, 0 at its end.
        lambda_: scalar or broadcastable to [T, ...].
    """
    signal, following, factor = _alike(cost, next_value, discount)
    mix = np.broadcast_to(np.asarray(lambda_, dtype=np.float64), signal.shape)
    target = np.empty_like(signal)
    carried = following[-1] if len(signal) else following
    for t in reversed(range(len(signal))):
        carried = signal[t] + factor[t] * ((1 - mix[t]) * following[t] + mix[t] * carried)
        target[t] = carried
    return target


def backward_lambda_returns(
    cost: npt.ArrayLike, previous_value: npt.ArrayLike, discount: npt.ArrayLike, lambda_: npt.ArrayLike
) -> FloatArray:
    """Return ``R_t = d_t + discount_t [(1 - lambda_t) v_{t-1} + lambda_t R_{t-1}]``, [T, ...].

    ``lambda_returns`` between two flips.

    ``discount_t`` links ``t`` to ``t - 1`` and is 0 at the first step of an episode. Equals the backward GAE target
    ``v_t + A_t`` with ``A_t = delta_t + gamma lambda A_{t-1}``, ``delta_t = d_t + gamma v_{t-1} - v_t``.

    Args:
        cost: ``d_t``, [T, ...], the cost of the state at ``t``.
        previous_value: ``v_{t-1}``, [T, ...], backward value of the state *before* step ``t`` (any finite number where
            ``discount_t`` is 0).
        discount: [T, ...].
        lambda_: scalar or broadcastable to [T, ...].
    """
    arrays = [np.flip(np.asarray(a, dtype=np.float64), axis=0) for a in (cost, previous_value, discount)]
    mix = np.flip(np.broadcast_to(np.asarray(lambda_, dtype=np.float64), arrays[0].shape), axis=0)
    return np.flip(lambda_returns(arrays[0], arrays[1], arrays[2], mix), axis=0)


def n_step_returns(cost: npt.ArrayLike, next_value: npt.ArrayLike, discount: npt.ArrayLike, n_steps: int) -> FloatArray:
    """Return the n-step returns, [T, ...], cut at the end of the record.

    ``G_t = d_t + discount_t d_{t+1} + ... + (discount_t ... discount_{t+n-1}) v_{t+n}``.

    Args:
        cost: [T, ...].
        next_value: ``v_{t+1}``, [T, ...].
        discount: [T, ...], 0 at the end of an episode.
        n_steps: ``n >= 1``; 1 is TD(0), T or more is Monte Carlo with bootstrap at the cut.

    Raises:
        InvalidModelError: the shapes differ, or ``n_steps`` is below 1.
    """
    if n_steps < 1:
        raise InvalidModelError(f"n_steps is {n_steps}; a target looks at least one step ahead.")
    signal, following, factor = _alike(cost, next_value, discount)
    # The n-step target at t is one backup of the (n-1)-step target at t + 1; the last step can only bootstrap.
    target = signal + factor * following
    for _ in range(min(n_steps, len(signal)) - 1):
        target = signal + factor * np.concatenate([target[1:], following[-1:]])
    return target


def _alike(
    cost: npt.ArrayLike, next_value: npt.ArrayLike, discount: npt.ArrayLike
) -> tuple[FloatArray, FloatArray, FloatArray]:
    signal, following, factor = (np.asarray(a, dtype=np.float64) for a in (cost, next_value, discount))
    if not (signal.shape == following.shape == factor.shape) or signal.ndim < 1:
        raise InvalidModelError(
            f"cost {signal.shape}, next_value {following.shape} and discount {factor.shape} must share one shape [T, "
            "...]."
        )
    return signal, following, factor


@dataclass(frozen=True, eq=False)
class MonteCarlo:
    """Every-visit averages.

    Attributes:
        value: [S], average return from each state; NaN where never visited.
        count: [S], number of visits.
        standard_error: [S], of ``value``, from the independence of episodes (visits within one are correlated); NaN
            where unknown.
    """

    value: FloatArray
    count: FloatArray
    standard_error: FloatArray


def monte_carlo(episodes: Episodes, cost: npt.ArrayLike, direction: str = "forward", gamma: float = 1.0) -> MonteCarlo:
    """Average the sampled returns of every visit: ``sum_i sum_{t: x_t = x} G_t / count(x)``.

    Args:
        episodes: recorded to the end the returns run to (their end forward, their start backward).
        cost: ``d``, [S].
        direction: "forward" (cost to go) or "backward" (cost so far), the present state's cost in both.
        gamma: discount factor.

    Raises:
        InvalidModelError: an episode whose far end is unknown has no Monte Carlo return; the episode is named. Use
            ``td`` there.
    """
    table, batch = _prepare(episodes, cost, direction, gamma)
    open_ended = np.flatnonzero(~batch.is_end_known)
    if open_ended.size:
        raise InvalidModelError(
            f"episode {open_ended[0]} is cut, so its {direction} return is unknown; use td, which bootstraps at the "
            "cut."
        )
    steps = _steps(batch, table, np.zeros_like(table), gamma)
    target = lambda_returns(steps.cost, steps.next_value, steps.discount, 1.0)
    episode = np.broadcast_to(np.arange(batch.n_episodes), steps.state.shape)[steps.is_learned]
    index = (episode, steps.state[steps.is_learned])
    shape = (batch.n_episodes, table.size)
    total = sparse.coo_array((target[steps.is_learned], index), shape=shape).tocsr()
    visit = sparse.coo_array((np.ones(episode.size), index), shape=shape).tocsr()
    count = np.asarray(visit.sum(axis=0)).ravel()
    with np.errstate(invalid="ignore", divide="ignore"):
        value = np.where(count > 0, np.asarray(total.sum(axis=0)).ravel() / count, np.nan)
        deviation = total - visit @ sparse.diags_array(np.nan_to_num(value))
        squares = np.asarray(deviation.power(2).sum(axis=0)).ravel()
        seen = np.asarray((visit > 0).sum(axis=0)).ravel()
        error = np.where(seen > 1, np.sqrt(squares * seen / np.maximum(seen - 1, 1)) / count, np.nan)
    return MonteCarlo(value, count, error)


def harmonic_step_size(initial: float, half_life: float) -> Callable[[int], float]:
    """Return the schedule ``alpha_k = initial / (1 + k / half_life)``.

    Its sum diverges and its sum of squares does not (Robbins-Monro).
    """
    return lambda k: initial / (1.0 + k / half_life)


@dataclass(frozen=True, eq=False)
class TemporalDifference:
    """The result of a pass of temporal-difference learning.

    Attributes:
        weight: ``w``, [K], final weights.
        value: ``Phi w``, [S].
        history: [U + 1, K], weights before the first and after each update.
    """

    weight: FloatArray
    value: FloatArray
    history: FloatArray


def td(
    episodes: Episodes,
    cost: npt.ArrayLike,
    direction: str = "forward",
    gamma: float = 1.0,
    lambda_: float = 0.0,
    n_steps: int = 0,
    features: npt.ArrayLike = (),
    step_size: Callable[[int], float] | float = 0.1,
    batch_size: int = 1,
    initial_weight: npt.ArrayLike = (),
) -> TemporalDifference:
    """Learn ``v = Phi w`` by semi-gradient temporal differences, one update per batch of episodes.

    ``w += alpha_k / B  sum_{episodes} sum_t phi(x_t) (G_t - v(x_t))``, with ``G_t`` the lambda-return (``lambda_ = 0``
    is TD(0), 1 is Monte Carlo) or, if ``n_steps >= 1``, the n-step return; targets use the weights before the update. A
    table is stable for ``alpha <= 1 / max m(x)``, ``m`` the visits per episode.

    Args:
        episodes: ``N`` episodes, used once, in order; a cut end is bootstrapped.
        cost: ``d``, [S].
        direction: "forward" or "backward".
        gamma: discount factor.
        lambda_: in [0, 1].
        n_steps: 0 to use lambda-returns, else ``n``.
        features: ``Phi``, [S, K]; empty for a table (``K = S``).
        step_size: ``alpha`` or a schedule ``k -> alpha_k`` over updates.
        batch_size: ``B`` episodes per update.
        initial_weight: [K]; empty for zeros.

    Raises:
        DiscountError, InvalidModelError: an argument out of its range or of another shape; it is named.
        SolveError: the weights diverge.
    """
    table, batch = _prepare(episodes, cost, direction, gamma, lambda_)
    if batch_size < 1:
        raise InvalidModelError(f"batch_size is {batch_size}; an update needs at least one episode.")
    phi = _features(features, table.size)
    start = initial_weight if np.size(initial_weight) else np.zeros(phi.shape[1])
    weight = as_vector("initial_weight", start, phi.shape[1:])
    schedule = step_size if callable(step_size) else (lambda _: step_size)
    history = [weight]
    for update, first in enumerate(range(0, batch.n_episodes, batch_size)):
        part = batch.chosen(slice(first, first + batch_size))
        value = phi @ weight
        steps = _steps(part, table, value, gamma)
        arguments = (steps.cost, steps.next_value, steps.discount)
        target = n_step_returns(*arguments, n_steps) if n_steps else lambda_returns(*arguments, lambda_)
        state = steps.state[steps.is_learned]
        error = np.bincount(state, target[steps.is_learned] - value[state], minlength=table.size)
        weight = weight + schedule(update) / part.n_episodes * (phi.T @ error)
        if not np.isfinite(weight).all():
            raise SolveError(
                f"weights diverged at update {update}; lower step_size (a table needs alpha <= 1 / max visits per "
                "episode)."
            )
        history.append(weight)
    return TemporalDifference(weight, phi @ weight, np.array(history))


@dataclass(frozen=True, eq=False)
class LeastSquares:
    """The sampled linear system of LSTD and its solution.

    Attributes:
        matrix: ``A = sum_t z_t (phi_t - gamma phi_{t+1})^T / N``, [K, K].
        vector: ``b = sum_t z_t d_t / N``, [K].
        weight: ``A^{-1} b``, [K].
        value: ``Phi w``, [S].
    """

    matrix: FloatArray
    vector: FloatArray
    weight: FloatArray
    value: FloatArray


def lstd(
    episodes: Episodes,
    cost: npt.ArrayLike,
    direction: str = "forward",
    gamma: float = 1.0,
    lambda_: float = 0.0,
    features: npt.ArrayLike = (),
) -> LeastSquares:
    """Solve for the fixed point of TD(lambda) on the sample.

    ``A w = b`` with traces ``z_t = gamma lambda z_{t-1} + phi_t``.

    On whole episodes ``A`` backward is exactly ``A`` forward transposed, for every ``lambda_``: one matrix serves both
    values.

    Args:
        episodes: ``N`` episodes; at a cut the last state is only bootstrapped from.
        cost: ``d``, [S].
        direction: "forward" or "backward".
        gamma: discount factor.
        lambda_: in [0, 1].
        features: ``Phi``, [S, K]; empty for a table, whose unvisited states then keep value NaN.

    Raises:
        SolveError: a singular system: features that the sample cannot tell apart; their number is given.
    """
    table, batch = _prepare(episodes, cost, direction, gamma, lambda_)
    phi = _features(features, table.size)
    used = np.ones(phi.shape[1], dtype=bool)
    if not np.size(features):
        used = np.isin(np.arange(table.size), batch.state)
    padded = np.vstack([phi[:, used], np.zeros((1, int(used.sum())))])
    steps = _steps(batch, table, np.zeros_like(table), gamma)
    matrix, vector = np.zeros((padded.shape[1],) * 2), np.zeros(padded.shape[1])
    trace = np.zeros((batch.n_episodes, padded.shape[1]))
    for t in range(len(steps.state)):
        learned = steps.is_learned[t][:, None]
        here = padded[steps.state[t]] * learned
        trace = (gamma * lambda_ * trace + here) * learned
        matrix += trace.T @ (here - steps.discount[t][:, None] * padded[steps.next_state[t]] * learned)
        vector += trace.T @ (steps.cost[t] * steps.is_learned[t])
    rank = np.linalg.matrix_rank(matrix)
    if rank < len(vector):
        raise SolveError(
            f"the LSTD system has rank {rank} of {len(vector)}: some features are never seen or collinear; drop them "
            "or add data."
        )
    weight = np.full(phi.shape[1], np.nan)
    weight[used] = np.linalg.solve(matrix, vector)
    value = weight if not np.size(features) else phi @ weight
    return LeastSquares(matrix / batch.n_episodes, vector / batch.n_episodes, weight, value)


@dataclass(frozen=True, eq=False)
class BackwardMemory:
    """What a stream of backward returns remembers between two steps: the last target and the last value.

    Nothing at a start.
    """

    target: FloatArray
    value: FloatArray

    @classmethod
    def empty(cls, n_streams: int) -> "BackwardMemory":
        """Return the memory of ``n_streams`` streams that have not begun."""
        return cls(np.zeros(n_streams), np.zeros(n_streams))


def stream_backward_return(
    memory: BackwardMemory,
    cost: FloatArray,
    value: FloatArray,
    is_start: npt.NDArray[np.bool_],
    gamma: float,
    lambda_: float,
) -> tuple[FloatArray, BackwardMemory]:
    """Return the backward lambda-return of this step, at this step.

    ``d_t + gamma [(1 - lambda) v_{t-1} + lambda R_{t-1}]``; state in, state out.

    Args:
        memory: after the previous step of each stream.
        cost: ``d_t``, [B].
        value: ``v(x_t)``, [B], present estimate, remembered for the next step.
        is_start: [B], whether an episode begins at this step, which forgets the memory.
        gamma: discount factor.
        lambda_: in [0, 1].

    Returns:
        The targets [B] and the memory after this step.
    """
    past = (1 - lambda_) * memory.value + lambda_ * memory.target
    target = np.asarray(cost, dtype=np.float64) + gamma * np.where(is_start, 0.0, past)
    return target, BackwardMemory(target, np.asarray(value, dtype=np.float64))


def streaming_backward_td(
    episodes: Episodes,
    cost: npt.ArrayLike,
    gamma: float = 1.0,
    lambda_: float = 0.0,
    step_size: float = 0.1,
    n_streams: int = 1,
) -> FloatArray:
    """Learn a backward value table online: ``n_streams`` environments step in parallel and each step updates at once.

    ``v(x_t) += alpha * mean over the streams now in x_t of (R_t - v(x_t))``. No step waits for the end of its episode.

    Args:
        episodes: whole episodes (``is_start_known``); stream ``b`` lives through episodes ``b``, ``b + n_streams``, ...
            one after another.
        cost: ``d``, [S].
        gamma: discount factor.
        lambda_: in [0, 1].
        step_size: ``alpha``.
        n_streams: ``B >= 1``.

    Returns:
        ``v``, [S]; zero at states never visited.
    """
    table, _ = _prepare(episodes, cost, "forward", gamma, lambda_)
    if n_streams < 1:
        raise InvalidModelError(f"n_streams is {n_streams}; it is at least 1.")
    if not episodes.is_start_known.all():
        raise InvalidModelError(
            f"episode {int(np.argmin(episodes.is_start_known))} begins in the middle; streaming needs known starts."
        )
    stream_state, stream_start = _streams(episodes, n_streams)
    value, memory = np.zeros(table.size), BackwardMemory.empty(n_streams)
    for state, is_start in zip(stream_state, stream_start, strict=True):
        target, memory = stream_backward_return(memory, table[state], value[state], is_start, gamma, lambda_)
        going = state >= 0
        count = np.bincount(state[going], minlength=table.size)
        error = np.bincount(state[going], (target - value[state])[going], minlength=table.size)
        value = value + step_size * error / np.maximum(count, 1)
    return value


def _streams(episodes: Episodes, n_streams: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Lay whole episodes end to end on ``n_streams`` lines.

    States [U, B] (-1 after a line's last episode) and episode starts [U, B].
    """
    recorded = episodes.is_recorded
    lines = [episodes.state[b::n_streams][recorded[b::n_streams]] for b in range(n_streams)]
    starts = [np.cumsum(np.r_[0, episodes.length[b::n_streams]])[:-1] for b in range(n_streams)]
    state = np.full((max(line.size for line in lines), n_streams), -1)
    is_start = np.zeros(state.shape, dtype=bool)
    for b, (line, start) in enumerate(zip(lines, starts, strict=True)):
        state[: line.size, b] = line
        is_start[start, b] = True
    return state, is_start


@dataclass(frozen=True, eq=False)
class _Steps:
    """A batch time first: [T, N] arrays of what each step needs, whatever the direction."""

    state: npt.NDArray[np.int64]
    next_state: npt.NDArray[np.int64]
    cost: FloatArray
    next_value: FloatArray
    discount: FloatArray
    is_learned: npt.NDArray[np.bool_]


def _steps(batch: Episodes, cost: FloatArray, value: FloatArray, gamma: float) -> _Steps:
    """Lay out a batch for backups: a step is learned where its target exists.

    The last one of a cut episode only lends its value.
    """
    state = batch.state.T
    next_state = np.vstack([state[1:], np.full((1, state.shape[1]), -1)])
    is_cut = (np.arange(len(state))[:, None] == batch.length - 1) & ~batch.is_end_known
    # Giving the cut state its own value as its target makes every kind of return bootstrap there, with no case of its
    # own.
    signal = np.where(is_cut, value[state], cost[state])
    discount = np.where(next_state >= 0, gamma, 0.0)
    return _Steps(
        state, next_state, signal, np.where(next_state >= 0, value[next_state], 0.0), discount, (state >= 0) & ~is_cut
    )


def _prepare(
    episodes: Episodes, cost: npt.ArrayLike, direction: str, gamma: float, lambda_: float = 0.0
) -> tuple[FloatArray, Episodes]:
    if not 0.0 <= gamma <= 1.0:
        raise DiscountError(f"gamma is {gamma}; a discount factor lies in [0, 1].")
    if not 0.0 <= lambda_ <= 1.0:
        raise InvalidModelError(f"lambda_ is {lambda_}; it lies in [0, 1]: 0 is one step, 1 is Monte Carlo.")
    if direction not in ("forward", "backward"):
        raise InvalidModelError(f"direction is {direction!r}; use 'forward' or 'backward'.")
    table = as_vector("cost", cost, (np.size(cost),))
    if episodes.state.max() >= table.size:
        raise InvalidModelError(
            f"the episodes visit state {episodes.state.max()}, but cost has {table.size} entries; give one per state."
        )
    return table, episodes if direction == "forward" else reversed_episodes(episodes)


def _features(features: npt.ArrayLike, n_states: int) -> FloatArray:
    if not np.size(features):
        return np.eye(n_states)
    phi = np.asarray(features, dtype=np.float64)
    if phi.ndim != 2 or len(phi) != n_states or not np.isfinite(phi).all():
        raise InvalidModelError(f"features has shape {phi.shape}, expected finite [{n_states}, K]: one row per state.")
    return phi
