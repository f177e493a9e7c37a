r"""This file knows the Lagrangian of a CMDP: the best response to a price on cost, and the search for the right price.

Theory. ``L(pi, lambda) = J(pi) - lambda (C(pi) - d0)``. At a fixed price ``lambda`` the best response is an ordinary
Markov decision problem, solved by policy iteration, one linear solve a sweep. ``g(lambda) = max_pi L(pi, lambda)`` is
convex and piecewise linear; its minimum is the constrained optimum, because the (cost, return) pairs of all policies
form a convex set (there is no duality gap). Each best response is a vertex of the frontier, a line in ``lambda``; where
the lines of a cheap and a dear response cross lies the next price to ask, and after finitely many questions no response
beats the crossing. Mixing the two occupancy measures meets the limit exactly.

Sources: Everett (1963); Altman (1999), ch. 9 and 12; Puterman (2014), section 7.2 for policy iteration.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .arrays import FloatArray
from .cmdp import CMDP, greedy_policy, policy_chain, uniform_policy
from .errors import InvalidModelError, SolveError
from .optimum import Optimum, occupancy_measure, policy_from_occupancy
from .resolvent import Resolvent
from .values import evaluate_policy, q_value

__all__ = [
    "PrimalDual",
    "best_response",
    "cautious_policy",
    "decision_bound",
    "least_cost_policy",
    "optimum_by_prices",
    "primal_dual",
]

IMPROVEMENT = 1e-10
"""An action replaces another only if it is better by this share of the values at stake; less is rounding and cycles."""


def best_response(cmdp: CMDP, multiplier: float, gamma: float = 1.0) -> FloatArray:
    """Return a deterministic policy that maximises ``E[sum r - lambda d]``, [S, A], by policy iteration.

    Args:
        cmdp: the model; the limit plays no role.
        multiplier: ``lambda``, price of a unit of cost in units of return, >= 0 and finite.
        gamma: discount factor.

    Raises:
        ImproperPolicyError: the best response never ends from some state (it loops where looping is free); discount,
            or put the clock in the state.
    """
    if not (np.isfinite(multiplier) and multiplier >= 0):
        raise InvalidModelError(
            f"multiplier is {multiplier}; it must be finite and >= 0 (an infinite one: least_cost_policy)."
        )
    return _optimal(cmdp, cmdp.reward - multiplier * cmdp.cost[:, None], gamma)


def least_cost_policy(cmdp: CMDP, gamma: float = 1.0) -> FloatArray:
    """Return a deterministic policy of least expected cost from every state, [S, A]: the response to an infinite price.

    The problem is feasible iff this policy is. Raises as ``best_response``.
    """
    return _optimal(cmdp, np.broadcast_to(-cmdp.cost[:, None], cmdp.reward.shape), gamma)


def cautious_policy(cmdp: CMDP, share: float = 0.02, gamma: float = 1.0) -> FloatArray:
    """Return the least-cost policy with a little of every action, [S, A]: a feasible start that sees what it can.

    Where a policy never goes it has no past and no backward value. The share of uniform play is halved until the
    expected cost is within the limit; where even the least cost has no room, it is 0.

    Args:
        cmdp: the model with its limit.
        share: largest share of uniform play, in [0, 1].
        gamma: discount factor; the limit is in the same units as the discounted cost.

    Raises:
        InvalidModelError: the problem is infeasible; the message names the least cost.
    """
    if not 0 <= share <= 1:
        raise InvalidModelError(f"share is {share}; a share of uniform play lies in [0, 1].")
    cheapest = least_cost_policy(cmdp, gamma)
    least = evaluate_policy(cmdp, cheapest, gamma)[1]
    if least > cmdp.cost_limit:
        raise InvalidModelError(
            f"the least expected cost is {least:.12g}, over cost_limit {cmdp.cost_limit:.12g}: no policy is feasible."
        )
    for _ in range(50):
        policy = (1 - share) * cheapest + share * uniform_policy(cmdp)
        if evaluate_policy(cmdp, policy, gamma)[1] <= cmdp.cost_limit:
            return policy
        share /= 2
    return cheapest


def decision_bound(cmdp: CMDP) -> float:
    """Return the largest expected number of decisions of an episode that can matter, under any policy.

    A decision in ``x`` cannot matter when every action ends the episode there. Finite horizon: ``T`` of the paper's
    bounds. Otherwise it takes the place of ``T`` in ``V'_D - V_D <= T max_x A_D(x)^+``.

    Raises:
        ImproperPolicyError: some policy never ends; put the clock in the state.
    """
    matters = np.where((cmdp.termination < 1.0).any(axis=1), 1.0, 0.0)
    count = np.repeat(matters[:, None], cmdp.n_actions, axis=1)
    longest = _optimal(cmdp, count, 1.0)
    chain = policy_chain(cmdp, longest)
    return float(chain.initial @ Resolvent(chain).right(matters))


def optimum_by_prices(cmdp: CMDP, gamma: float = 1.0, max_prices: int = 200) -> Optimum:
    """Return the exact constrained optimum as ``optimum.optimal_policy`` does, by the dual instead of a linear program.

    For large sparse models with a clock: each price costs a few triangular solves. The result is certified: no response
    to the final price beats the mixture by more than ``residual`` (relative).

    Args:
        cmdp: the model; every deterministic policy must end (a clock in the state), or ``gamma < 1``.
        gamma: discount factor; the limit is in the same units as the discounted cost.
        max_prices: give up after so many prices.

    Raises:
        SolveError: the prices do not settle.
        ImproperPolicyError: as ``best_response``; use ``optimal_policy`` there.
    """
    dear = _vertex(cmdp, best_response(cmdp, 0.0, gamma), gamma)
    if dear.cost <= cmdp.cost_limit:
        return _certified("optimal", dear, 0.0, 0.0)
    cheap = _vertex(cmdp, least_cost_policy(cmdp, gamma), gamma)
    if cheap.cost > cmdp.cost_limit:
        return _certified("infeasible", cheap, np.inf, 0.0)
    for _ in range(max_prices):
        price = max(0.0, (dear.value - cheap.value) / (dear.cost - cheap.cost))
        reply = _vertex(cmdp, best_response(cmdp, price, gamma), gamma)
        gain = (reply.value - price * reply.cost) - (cheap.value - price * cheap.cost)
        gap = max(0.0, gain) / (1.0 + abs(reply.value) + price * reply.cost)
        if gap <= 1e-9:
            share = (cmdp.cost_limit - cheap.cost) / (dear.cost - cheap.cost)
            occupancy = cheap.occupancy + share * (dear.occupancy - cheap.occupancy)
            mixture = _vertex(cmdp, policy_from_occupancy(occupancy), gamma)
            return _certified("optimal", mixture, price, gap)
        dear, cheap = (reply, cheap) if reply.cost > cmdp.cost_limit else (dear, reply)
    raise SolveError(f"the price of cost did not settle in {max_prices} steps; raise max_prices or use optimal_policy.")


@dataclass(frozen=True, eq=False)
class PrimalDual:
    """The history of the primal-dual method, one entry per iteration.

    Attributes:
        multiplier: [K], the price ``lambda_k`` that iteration ``k`` answered.
        value: [K], expected return of the best response to it.
        cost: [K], its expected cost.
        policy: [S, A], the policy of the final average.
    """

    multiplier: FloatArray
    value: FloatArray
    cost: FloatArray
    policy: FloatArray

    @property
    def average_value(self) -> FloatArray:
        """Expected return of the average of the occupancy measures so far, [K], which is the mean of the returns."""
        return np.asarray(self.value.cumsum() / np.arange(1, self.value.size + 1))

    @property
    def average_cost(self) -> FloatArray:
        """Expected cost of the average of the occupancy measures so far, [K]."""
        return np.asarray(self.cost.cumsum() / np.arange(1, self.cost.size + 1))


def primal_dual(
    cmdp: CMDP, step_size: float, n_iterations: int, multiplier: float = 0.0, gamma: float = 1.0
) -> PrimalDual:
    """Run ``lambda_{k+1} = max(0, lambda_k + alpha (C(pi_k) - d0))`` with ``pi_k`` the best response to ``lambda_k``.

    The subgradient method on the dual. Best responses are deterministic, so costs jump between vertices of the frontier
    and ``pi_k`` need not converge; the average of the occupancy measures does, at the rate ``O(1/(alpha K) + alpha)``.

    Args:
        cmdp: the model.
        step_size: ``alpha > 0``, price per unit of cost.
        n_iterations: ``K >= 1``.
        multiplier: ``lambda_0 >= 0``.
        gamma: discount factor.
    """
    if not (step_size > 0 and n_iterations >= 1):
        raise InvalidModelError(f"step_size {step_size}, n_iterations {n_iterations}: both must be positive.")
    price, history = float(multiplier), np.empty((3, n_iterations))
    total = np.zeros(cmdp.reward.shape)
    for k in range(n_iterations):
        reply = _vertex(cmdp, best_response(cmdp, price, gamma), gamma)
        history[:, k] = price, reply.value, reply.cost
        total += reply.occupancy
        price = max(0.0, price + step_size * (reply.cost - cmdp.cost_limit))
    return PrimalDual(history[0], history[1], history[2], policy_from_occupancy(total / n_iterations))


@dataclass(frozen=True, eq=False)
class _Vertex:
    policy: FloatArray
    occupancy: FloatArray
    value: float
    cost: float


def _vertex(cmdp: CMDP, policy: FloatArray, gamma: float) -> _Vertex:
    value, cost = evaluate_policy(cmdp, policy, gamma)
    return _Vertex(policy, occupancy_measure(cmdp, policy, gamma), value, cost)


def _certified(status: str, vertex: _Vertex, multiplier: float, residual: float) -> Optimum:
    return Optimum(status, vertex.policy, vertex.occupancy, vertex.value, vertex.cost, multiplier, residual)


def _optimal(cmdp: CMDP, signal: npt.ArrayLike, gamma: float) -> FloatArray:
    """Return a deterministic policy that maximises the sum of ``signal`` [S, A] from every state: policy iteration."""
    reward = np.asarray(signal, dtype=np.float64)
    policy = uniform_policy(cmdp)
    while True:
        chain = policy_chain(cmdp, policy)
        value = Resolvent(chain, gamma).right((policy * reward).sum(axis=1))
        score = q_value(cmdp, reward, value, gamma)
        scale = IMPROVEMENT * (1.0 + np.abs(score).max(axis=1))
        present = (policy * score).sum(axis=1)
        # Where no action is clearly better, an already chosen one stays.
        is_better = score.max(axis=1) > present + scale
        is_settled = ~is_better & (policy.max(axis=1) == 1.0)
        if is_settled.all():
            return policy
        policy = np.where(is_settled[:, None], policy, greedy_policy(score))
