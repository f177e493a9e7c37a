"""This file knows how to draw episodes from a tabular CMDP, many at once, and how a batch of them is stored.

One step of the whole batch is one table look-up per episode: the successors of each (state, action) and their
cumulative probabilities sit in one row, and the drawn uniform number is compared with that row.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import FloatArray, IntArray
from .cmdp import CMDP, check_policy
from .errors import InvalidModelError

__all__ = ["Episodes", "episode_sum", "reversed_episodes", "sample_episodes"]


@dataclass(frozen=True, eq=False)
class Episodes:
    """A batch of ``N`` recorded episodes, or parts of episodes, of different lengths.

    Attributes:
        state: [N, T] integers; row ``i`` holds ``x_0 .. x_{L_i - 1}``, then -1.
        action: [N, T] integers, the action taken in each state (in the last state too), then -1.
        length: [N], number of recorded states ``L_i >= 1``.
        is_start_known: [N], whether the record begins where the episode began; if not, its past is bootstrapped.
        is_end_known: [N], whether the record ends where the episode ended; if not (a truncation), its future is
            bootstrapped.

    Raises:
        InvalidModelError: shapes that disagree, an impossible length or a missing state; the episode is named.
    """

    state: IntArray
    action: IntArray
    length: IntArray
    is_start_known: npt.NDArray[np.bool_]
    is_end_known: npt.NDArray[np.bool_]

    def __post_init__(self) -> None:
        state = np.asarray(self.state, dtype=np.int64)
        if state.ndim != 2 or np.shape(self.action) != state.shape:
            raise InvalidModelError(
                f"state {state.shape} and action {np.shape(self.action)} must share one shape [N, T]."
            )
        count = (state.shape[0],)
        for name in ("length", "is_start_known", "is_end_known"):
            if np.shape(getattr(self, name)) != count:
                raise InvalidModelError(
                    f"{name} has shape {np.shape(getattr(self, name))}, expected {count}: one entry per episode."
                )
        length = np.asarray(self.length, dtype=np.int64)
        wrong = np.flatnonzero((length < 1) | (length > state.shape[1]))
        if wrong.size:
            raise InvalidModelError(
                f"episode {wrong[0]} has length {length[wrong[0]]}, expected 1 to {state.shape[1]}."
            )
        recorded = np.arange(state.shape[1]) < length[:, None]
        if (recorded & (state < 0)).any():
            episode, step = np.argwhere(recorded & (state < 0))[0]
            raise InvalidModelError(
                f"episode {episode} has no state at step {step} although its length is {length[episode]}."
            )
        object.__setattr__(self, "state", np.where(recorded, state, -1))
        object.__setattr__(self, "action", np.where(recorded, np.asarray(self.action, dtype=np.int64), -1))
        object.__setattr__(self, "length", length)
        object.__setattr__(self, "is_start_known", np.asarray(self.is_start_known, dtype=bool))
        object.__setattr__(self, "is_end_known", np.asarray(self.is_end_known, dtype=bool))

    @property
    def n_episodes(self) -> int:
        """Number of episodes ``N``."""
        return int(self.length.size)

    @property
    def is_recorded(self) -> npt.NDArray[np.bool_]:
        """[N, T], whether a step exists."""
        return np.arange(self.state.shape[1]) < self.length[:, None]

    def chosen(self, index: IntArray | slice) -> "Episodes":
        """Return the episodes at ``index``."""
        return Episodes(
            self.state[index],
            self.action[index],
            self.length[index],
            self.is_start_known[index],
            self.is_end_known[index],
        )


def sample_episodes(
    cmdp: CMDP,
    policy: npt.ArrayLike,
    n_episodes: int,
    generator: np.random.Generator,
    horizon: int = 10_000,
    time_limit: str = "terminate",
) -> Episodes:
    """Draw episodes ``x_0 ~ mu0, a_t ~ pi(.|x_t), x_{t+1} ~ P(.|x_t, a_t)`` until they end or reach ``horizon``.

    Args:
        cmdp: the model.
        policy: ``pi``, [S, A].
        n_episodes: ``N``; all run at once.
        generator: source of randomness; same seed, same episodes.
        horizon: ``T``; an episode has at most ``T + 1`` states.
        time_limit: "terminate" if the limit is part of the task (the cost stops there), "truncate" if only the
            recording stops.

    Raises:
        InvalidModelError: a policy row that is not a distribution, a count or horizon below the minimum, an unknown
            time_limit.
    """
    if n_episodes < 1 or horizon < 0 or time_limit not in ("terminate", "truncate"):
        raise InvalidModelError(
            f"n_episodes {n_episodes}, horizon {horizon}, time_limit {time_limit!r}: need n_episodes >= 1, horizon >= "
            "0 and a limit of 'terminate' or 'truncate'."
        )
    choose = _cumulative(check_policy(cmdp, policy))
    successor, cumulative = _successor_table(cmdp)
    going = np.arange(n_episodes)
    state = _draw(_cumulative(cmdp.initial[None, :]), np.zeros(n_episodes, dtype=np.int64), generator)
    length = np.full(n_episodes, horizon + 1)
    visited: list[tuple[IntArray, IntArray, IntArray]] = []
    for t in range(horizon + 1):
        action = _draw(choose, state, generator)
        visited.append((going, state, action))
        if t == horizon:
            break
        row = state * cmdp.n_actions + action
        following = successor[row, _draw(cumulative, row, generator)]
        is_over = following < 0
        length[going[is_over]] = t + 1
        going, state = going[~is_over], following[~is_over]
        if not going.size:
            break
    record = np.full((2, n_episodes, len(visited)), -1)
    for t, (index, states, actions) in enumerate(visited):
        record[0, index, t], record[1, index, t] = states, actions
    cut = np.zeros(n_episodes, dtype=bool)
    cut[going] = True
    is_end_known = ~cut | (time_limit == "terminate")
    return Episodes(record[0], record[1], length, np.ones(n_episodes, dtype=bool), is_end_known)


def reversed_episodes(episodes: Episodes) -> Episodes:
    """Return the episodes run backward in time: the last state first.

    Estimating forward on them is estimating backward on the originals.
    """
    column = episodes.length[:, None] - 1 - np.arange(episodes.state.shape[1])
    column = np.where(column >= 0, column, 0)
    state = np.take_along_axis(episodes.state, column, axis=1)
    action = np.take_along_axis(episodes.action, column, axis=1)
    return Episodes(state, action, episodes.length, episodes.is_end_known, episodes.is_start_known)


def episode_sum(episodes: Episodes, signal: npt.ArrayLike) -> FloatArray:
    """Return the undiscounted sum of a state signal [S] (a cost, say) over each episode, [N]."""
    table = np.asarray(signal, dtype=np.float64)
    return np.asarray(np.where(episodes.is_recorded, table[episodes.state], 0.0).sum(axis=1))


def _draw(cumulative: FloatArray, row: IntArray, generator: np.random.Generator) -> IntArray:
    """Draw one column per row index by inverting the row's cumulative distribution."""
    uniform = generator.random(row.size)
    # Comparing column by column keeps memory at one vector; the last column is one by construction and needs no look.
    column = np.zeros(row.size, dtype=np.int64)
    for k in range(cumulative.shape[1] - 1):
        column += uniform >= cumulative[row, k]
    return column


def _cumulative(probability: FloatArray) -> FloatArray:
    """Return row-wise cumulative sums, exactly one from the last positive column on: rounding never draws a zero."""
    cumulative: FloatArray = np.cumsum(probability, axis=1) / probability.sum(axis=1, keepdims=True)
    last = probability.shape[1] - 1 - (probability[:, ::-1] > 0).argmax(axis=1)
    cumulative[np.arange(probability.shape[1]) >= last[:, None]] = 1.0
    return cumulative


def _successor_table(cmdp: CMDP) -> tuple[IntArray, FloatArray]:
    """Return successors and cumulative probabilities, [S * A, W]; column 0, successor -1, ends the episode."""
    kernel = sparse.csr_array(cmdp.kernel, copy=True)  # the next line writes into it
    kernel.eliminate_zeros()
    count = np.diff(kernel.indptr)
    width = int(count.max(initial=0)) + 1
    successor = np.full((kernel.shape[0], width), -1)
    probability = np.zeros((kernel.shape[0], width))
    row = np.repeat(np.arange(kernel.shape[0]), count)
    column = np.arange(kernel.nnz) - np.repeat(kernel.indptr[:-1], count) + 1
    successor[row, column] = kernel.indices
    probability[row, column] = kernel.data
    probability[:, 0] = cmdp.termination.ravel()
    return successor, _cumulative(probability)
