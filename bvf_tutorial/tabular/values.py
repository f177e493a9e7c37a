r"""This file knows value functions: what an episode still costs, what it has cost so far, and what both say together.

Theory. ``V = d + gamma P V`` looks forward; the backward value ``Vb = d + gamma N Vb`` is the same equation on the
reversed chain (``markov.time_reversal``): the expected cost since the episode began, the present state's cost included.
Two facts make it cheap. Multiplying by the visits ``m`` turns it into one *forward* system,
``m Vb = (m d) (I - gamma P)^{-1}``; and ``N`` is similar to ``P^T``, so it contracts exactly as fast as ``P``. Given
the present state, past and future are independent, so

    E[cost of the whole episode | x_t = x] = Vb(x) + V(x) - d(x).

Sources: Satija et al. (2020), section 3.2 with the corrections proved in chapter 4 of the book; Bertsekas
(1995).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import FloatArray, as_vector
from .chain import Chain
from .cmdp import CMDP, check_policy, policy_chain, policy_reward
from .errors import InvalidModelError, UnreachableStateError, name_states
from .markov import backward_kernel, expected_visits, stationary_distribution
from .resolvent import Resolvent, check_discount

__all__ = [
    "FiniteHorizonValue",
    "backward_q_value",
    "backward_value",
    "bellman_operator",
    "evaluate_policy",
    "expected_age",
    "expected_remaining",
    "finite_horizon_value",
    "forward_value",
    "lambda_operator",
    "product_moment",
    "q_value",
    "slack",
    "state_wise_cost",
]


def forward_value(chain: Chain, cost: npt.ArrayLike, gamma: float = 1.0) -> FloatArray:
    """Return the forward value ``V = (I - gamma P)^{-1} d``.

    Expected cost from each state to the end of the episode, [S].

    Args:
        chain: the chain of the policy.
        cost: ``d``, [S], cost (or reward) per visit.
        gamma: discount factor; 1 needs episodes that end from every state.

    Raises:
        DiscountError, ImproperPolicyError: the sum diverges.
    """
    return Resolvent(chain, gamma).right(as_vector("cost", cost, (chain.n_states,)))


def backward_value(chain: Chain, cost: npt.ArrayLike, gamma: float = 1.0, unreachable: str = "raise") -> FloatArray:
    """Return the expected cost since the episode began, the present state included, [S] (paper, eq. 3, corrected).

    ``Vb = (I - gamma N)^{-1} d`` computed from forward quantities only: ``m Vb = (m d) (I - gamma P)^{-1}``. With
    ``gamma < 1`` a cost ``k`` steps ago counts ``gamma^k``. For a continuing chain ``m`` is the stationary law and the
    past is infinite, so ``gamma < 1``.

    Args:
        chain: the chain of the policy.
        cost: ``d``, [S].
        gamma: discount factor.
        unreachable: "raise", or "nan" to mark states that no episode visits (for plots).

    Raises:
        UnreachableStateError: a state that no episode visits has no past; the states are named.
        DiscountError: gamma = 1 on a chain that never ends. The paper's operator has no fixed point there (its
            Proposition 3.2).
        ImproperPolicyError: the episode never ends from some reachable state.
    """
    check_discount(chain, gamma, chain.visited)
    return where_visited(chain, cost, unreachable, lambda part, signal: _accumulated(part, signal, gamma))


def q_value(cmdp: CMDP, immediate: npt.ArrayLike, value: npt.ArrayLike, gamma: float = 1.0) -> FloatArray:
    """Return the state-action value ``Q(x, a) = c(x, a) + gamma sum_y P(y | x, a) V(y)``, [S, A].

    Args:
        cmdp: the model.
        immediate: ``c``, the reward [S, A], or a state cost [S] that every action shares.
        value: ``V``, [S], forward value of the same signal.
        gamma: discount factor.
    """
    table = np.asarray(immediate, dtype=np.float64)
    table = table[:, None] if table.ndim == 1 else table
    follow = cmdp.kernel @ as_vector("value", value, (cmdp.n_states,))
    return np.asarray(table + gamma * follow.reshape(cmdp.n_states, cmdp.n_actions))


def backward_q_value(cmdp: CMDP, policy: npt.ArrayLike, gamma: float = 1.0) -> FloatArray:
    """Return the backward value given the *last* action: ``E[cost so far | x_t = x, a_{t-1} = a]``, [S, A].

    ``d(x) + gamma sum_y Pr(y, a | x) Vb(y) / sum_y Pr(y, a | x)`` with ``Pr`` the ``backward_kernel``; NaN where action
    ``a`` never leads to ``x``. Weighted by the arrival probabilities, plus the probability of starting in ``x`` times
    ``d(x)``, it averages to ``Vb(x)``. Conditioning on the *next* action changes nothing: given the state, the policy's
    choice is independent of the past.
    """
    probability = check_policy(cmdp, policy)
    value = backward_value(policy_chain(cmdp, probability), cmdp.cost, gamma)
    kernel = backward_kernel(cmdp, probability)
    if not sparse.issparse(kernel):
        kernel = kernel.reshape(cmdp.n_states, -1)
    per_action = np.tile(np.eye(cmdp.n_actions), (cmdp.n_states, 1))
    arrival = np.asarray(kernel @ per_action)
    past = np.asarray(kernel @ (np.repeat(value, cmdp.n_actions)[:, None] * per_action))
    with np.errstate(invalid="ignore"):
        return np.where(arrival > 0, cmdp.cost[:, None] + gamma * past / arrival, np.nan)


def bellman_operator(chain: Chain, cost: npt.ArrayLike, value: npt.ArrayLike, gamma: float = 1.0) -> FloatArray:
    """Return ``T v = d + gamma P v``, [S] (paper, eq. 6 when ``chain`` is a ``time_reversal``).

    One operator for both directions: forward on ``chain``, backward on ``time_reversal(chain)``. On a killed chain it
    has one fixed point and iteration converges at the rate ``rho(gamma P)``, the same in both directions; on a
    continuing chain with ``gamma = 1`` it has none unless the stationary cost is zero, yet applying it is well defined,
    so nothing is raised here.
    """
    size = (chain.n_states,)
    return np.asarray(as_vector("cost", cost, size) + gamma * (chain.transition @ as_vector("value", value, size)))


def lambda_operator(
    chain: Chain, cost: npt.ArrayLike, value: npt.ArrayLike, gamma: float, lambda_: float
) -> FloatArray:
    """Return ``T_lambda v = v + (I - gamma lambda P)^{-1} (T v - v)``, [S] (paper, appendix I.3, for either direction).

    The expected lambda-return from bootstrap ``v``. Its fixed point is the value function for every ``lambda_``;
    ``lambda_ = 0`` is ``bellman_operator`` and ``lambda_ = 1`` returns the value at once.
    """
    start = as_vector("value", value, (chain.n_states,))
    return np.asarray(
        start + Resolvent(chain, gamma * lambda_).right(bellman_operator(chain, cost, start, gamma) - start)
    )


def expected_age(chain: Chain, unreachable: str = "raise") -> FloatArray:
    """Return the expected number of steps since the episode began, given the present state, [S].

    Zero at a start never revisited.
    """
    return backward_value(chain, np.ones(chain.n_states), unreachable=unreachable) - 1.0


def expected_remaining(chain: Chain) -> FloatArray:
    """Return the expected number of states still to come, the present one included, [S]: ``(I - P)^{-1} 1``."""
    return forward_value(chain, np.ones(chain.n_states))


def state_wise_cost(chain: Chain, cost: npt.ArrayLike, gamma: float = 1.0, unreachable: str = "raise") -> FloatArray:
    """Return ``Vb + V - d``, [S], the left side of the value-based constraint (paper, eq. 7 and 8).

    Undiscounted, it is the expected cost of the whole episode given that the present state is ``x``: ``d`` is counted
    in both values and subtracted once. Averaged over the stationary law it is ``E[L C] / E[L]``, which need not be
    above ``E[C]`` (``examples.fork3``).
    """
    check_discount(chain, gamma, chain.visited)

    def whole_episode(part: Chain, signal: FloatArray) -> FloatArray:
        return _accumulated(part, signal, gamma) + forward_value(part, signal, gamma) - signal

    return where_visited(chain, cost, unreachable, whole_episode)


def slack(
    chain: Chain, cost: npt.ArrayLike, cost_limit: float, gamma: float = 1.0, unreachable: str = "raise"
) -> FloatArray:
    """Return ``d0 - (Vb + V - d)``, [S]: how much more the state-wise constraint allows at each state.

    >= 0 is feasible.
    """
    return cost_limit - state_wise_cost(chain, cost, gamma, unreachable)


def product_moment(chain: Chain, first: npt.ArrayLike, second: npt.ArrayLike) -> FloatArray:
    """Return ``E[F G | x_0 = x]``, [S], where ``F`` and ``G`` sum two signals ``f`` and ``g`` until the episode ends.

    ``M = (I - P)^{-1} (f V_g + g V_f - f g)``: the pairs of steps ``(s, t)`` of one episode, split at the earlier one.
    With ``f = 1`` and ``g = d`` it is ``E[L C]``; with ``f = g = d`` the second moment of the cost. On
    ``time_reversal(chain)`` it looks back. Source: proved in chapter 6.

    Args:
        chain: a chain whose episodes end from every state.
        first: ``f``, [S].
        second: ``g``, [S].

    Raises:
        DiscountError, ImproperPolicyError: the sums diverge.
    """
    resolvent, size = Resolvent(chain), (chain.n_states,)
    f, g = as_vector("first", first, size), as_vector("second", second, size)
    return resolvent.right(f * resolvent.right(g) + g * resolvent.right(f) - f * g)


def evaluate_policy(cmdp: CMDP, policy: npt.ArrayLike, gamma: float = 1.0) -> tuple[float, float]:
    """Return the expected return and the expected cost of an episode under a policy, exactly: ``(m . r^pi, m . d)``.

    Only states that the policy reaches are used, so a policy may be improper elsewhere. Discounted when ``gamma < 1``.

    Raises:
        DiscountError, ImproperPolicyError: the sums diverge.
    """
    visits = expected_visits(policy_chain(cmdp, policy), gamma)
    return float(visits @ policy_reward(cmdp, policy)), float(visits @ cmdp.cost)


@dataclass(frozen=True, eq=False)
class FiniteHorizonValue:
    """Time-indexed laws and values of a chain watched for ``T + 1`` states; row ``t`` belongs to time ``t``.

    Attributes:
        law: ``eta_t``, [T + 1, S], probability that the episode is still on at ``t`` and the state is ``x``.
        forward: ``V_t``, [T + 1, S], expected cost from time ``t`` to the end, the present included.
        backward: ``U_t``, [T + 1, S], expected cost up to time ``t``, the present included, given the state; NaN where
            ``eta_t = 0``.
    """

    law: FloatArray
    forward: FloatArray
    backward: FloatArray


def finite_horizon_value(chain: Chain, cost: npt.ArrayLike, horizon: int) -> FiniteHorizonValue:
    """Return exact time-indexed values for episodes cut after ``horizon`` decisions.

    ``eta_t = eta_{t-1} P``, ``W_t = eta_t d + W_{t-1} P``, ``U_t = W_t / eta_t``, and ``V_t = d + P V_{t+1}``,
    ``V_T = d``. For every ``t`` that all episodes reach, ``eta_t . (U_t + V_t - d) = E[C]``: with the clock in the
    state, the identity the paper wants is exact.

    Args:
        chain: the chain of a stationary policy, killed or not (a time-dependent policy: use ``time_augmented`` and
            ``backward_value``).
        cost: ``d``, [S].
        horizon: ``T >= 0``.
    """
    if horizon < 0 or horizon != int(horizon):
        raise InvalidModelError(f"horizon is {horizon}; it counts decisions, so it is an integer >= 0.")
    signal = as_vector("cost", cost, (chain.n_states,))
    forward_kernel, transposed = chain.transition, chain.transition.T
    law = np.empty((int(horizon) + 1, chain.n_states))
    collected, forward = np.empty_like(law), np.empty_like(law)
    law[0], collected[0], forward[-1] = chain.initial, chain.initial * signal, signal
    for t in range(1, int(horizon) + 1):
        law[t] = transposed @ law[t - 1]
        collected[t] = law[t] * signal + transposed @ collected[t - 1]
        forward[-1 - t] = signal + forward_kernel @ forward[-t]
    with np.errstate(invalid="ignore"):
        backward = np.where(law > 0, collected / law, np.nan)
    return FiniteHorizonValue(law, forward, backward)


def _accumulated(chain: Chain, signal: FloatArray, gamma: float) -> FloatArray:
    """Return ``(m d) (I - gamma P)^{-1} / m`` for a chain whose states are all visited."""
    resolvent = Resolvent(chain, gamma)
    if not chain.is_killed:
        law = stationary_distribution(chain)
    else:
        law = resolvent.left(chain.initial) if gamma == 1.0 else expected_visits(chain)
    return np.asarray(resolvent.left(law * signal) / law)


def where_visited(
    chain: Chain, cost: npt.ArrayLike, unreachable: str, evaluate: Callable[[Chain, FloatArray], FloatArray]
) -> FloatArray:
    """Return a quantity that looks back, [S, ...], on the states an episode visits; raise or mark NaN at the others."""
    signal = as_vector("cost", cost, (chain.n_states,))
    if unreachable not in ("raise", "nan"):
        raise InvalidModelError(f"unreachable is {unreachable!r}; use 'raise' or 'nan'.")
    missing = np.flatnonzero(~chain.visited) if chain.is_killed else np.array([], dtype=int)
    if not missing.size:
        return evaluate(chain, signal)
    if unreachable == "raise":
        raise UnreachableStateError(
            f"{name_states(missing)} cannot be reached from the initial law and have no past; restrict the chain with "
            "chain.restricted(chain.visited), or pass unreachable='nan' to mark them."
        )
    part = evaluate(chain.restricted(chain.visited), signal[chain.visited])
    value = np.full((chain.n_states, *part.shape[1:]), np.nan)
    value[chain.visited] = part
    return value
