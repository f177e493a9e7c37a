r"""This file knows the exact optimum of a CMDP, as a linear program over occupancy measures.

Theory. The occupancy measure ``rho(x, a)``, the expected (discounted) number of times an episode is in ``x`` and takes
``a``, is linear in what matters: return ``rho . r``, cost ``rho . d``. The set of all occupancy measures is the
polytope

    rho >= 0,   sum_a rho(y, a) - gamma sum_{x, a} rho(x, a) P(y | x, a) = mu0(y),

and ``pi(a|x) = rho(x, a) / sum_a rho(x, a)`` recovers a policy. So the constrained problem is one linear program; its
multiplier is the price of the limit, ``d(optimal return) / d(cost_limit)``. A vertex randomises in at most one state
per constraint. Source: Altman (1999), ch. 3, 8, 9.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import OptimizeResult, linprog

from .arrays import FloatArray, Matrix
from .cmdp import CMDP, check_policy, policy_chain
from .errors import DiscountError, SolveError
from .markov import expected_visits
from .values import evaluate_policy

__all__ = [
    "Frontier",
    "Optimum",
    "cost_range",
    "occupancy_measure",
    "optimal_policy",
    "pareto_frontier",
    "policy_from_occupancy",
]

RESIDUAL_LIMIT = 1e-6
"""Largest relative disagreement between the program's solution and an exact evaluation of the policy read from it."""


@dataclass(frozen=True, eq=False)
class Optimum:
    """The solution of a CMDP, or the proof that there is none.

    Attributes:
        status: "optimal", or "infeasible" when even the least-cost policy is over the limit.
        policy: [S, A], an optimal policy; the least-cost policy when infeasible. Uniform at states it never visits.
        occupancy: ``rho``, [S, A], its occupancy measure.
        value: expected return of ``policy``, evaluated exactly.
        cost: expected cost of ``policy``, evaluated exactly.
        multiplier: ``lambda >= 0``, return gained per unit of cost_limit; ``inf`` when infeasible.
        residual: largest relative violation of flow balance, cost limit, or of the program's own objective by the exact
            evaluation.
    """

    status: str
    policy: FloatArray
    occupancy: FloatArray
    value: float
    cost: float
    multiplier: float
    residual: float

    @property
    def is_feasible(self) -> bool:
        """Whether some policy respects the limit."""
        return self.status == "optimal"


@dataclass(frozen=True, eq=False)
class Frontier:
    """The Pareto frontier of a CMDP: the best return at each cost limit, one entry per limit.

    Attributes:
        cost_limit: [K].
        value: [K], optimal return; NaN where infeasible.
        cost: [K], cost of the optimal policy; NaN where infeasible.
        multiplier: [K], slope of the frontier; ``inf`` where infeasible.
    """

    cost_limit: FloatArray
    value: FloatArray
    cost: FloatArray
    multiplier: FloatArray


def occupancy_measure(cmdp: CMDP, policy: npt.ArrayLike, gamma: float = 1.0) -> FloatArray:
    """Return ``rho(x, a) = m(x) pi(a | x)``, [S, A], with ``m = mu0 (I - gamma P^pi)^{-1}``.

    Sums to ``E[L]`` when undiscounted.

    Raises:
        DiscountError, ImproperPolicyError: the visits are infinite.
    """
    probability = check_policy(cmdp, policy)
    return expected_visits(policy_chain(cmdp, probability), gamma)[:, None] * probability


def policy_from_occupancy(occupancy: npt.ArrayLike) -> FloatArray:
    """Return ``pi(a|x) = rho(x, a) / sum_a rho(x, a)``, [S, A]; uniform where a state is never visited."""
    table = np.maximum(np.asarray(occupancy, dtype=np.float64), 0.0)
    total = table.sum(axis=1, keepdims=True)
    return np.where(total > 0, table / np.where(total > 0, total, 1.0), 1.0 / table.shape[1])


def optimal_policy(cmdp: CMDP, gamma: float = 1.0) -> Optimum:
    """Return the policy of largest expected return whose expected cost is at most ``cmdp.cost_limit``, exactly.

    ``max rho . r`` over occupancy measures with ``rho . d <= d0``, by HiGHS. With ``gamma < 1`` return, cost *and the
    limit* are in discounted units: the limit of an undiscounted task must be converted first (chapter 2).

    Raises:
        DiscountError: gamma = 1 on a model that never ends.
        SolveError: the program is unbounded, or its solution fails the re-check; the message says by how much.
    """
    _check_model(cmdp, gamma)
    flow = _flow_matrix(cmdp, gamma)
    state_cost = np.repeat(cmdp.cost, cmdp.n_actions)
    result = _solve(
        -cmdp.reward.ravel(), flow, cmdp.initial, sparse.csr_array(state_cost[None, :]), np.array([cmdp.cost_limit])
    )
    if result.status == 0:
        return _optimum(cmdp, gamma, result, "optimal", max(0.0, -float(result.ineqlin.marginals[0])))
    # HiGHS proves infeasibility, or gives up (status 4) where the limit is just below the least cost: ask for that.
    least = _optimum(cmdp, gamma, _solve(state_cost, flow, cmdp.initial), "infeasible", np.inf)
    if least.cost <= cmdp.cost_limit:
        raise SolveError(
            f"HiGHS finds no optimum under cost_limit {cmdp.cost_limit}, though the least cost is {least.cost:.12g}; "
            "rescale rewards and costs towards 1, or move the limit by its seventh digit."
        )
    return least


def cost_range(cmdp: CMDP, gamma: float = 1.0) -> tuple[float, float]:
    """Return the least cost of any policy, and the least cost at which the best unconstrained return is reached.

    Limits below the first are infeasible, limits above the second do not bind; a useful limit lies between.
    """
    _check_model(cmdp, gamma)
    flow = _flow_matrix(cmdp, gamma)
    state_cost = np.repeat(cmdp.cost, cmdp.n_actions)
    least = _solve(state_cost, flow, cmdp.initial)
    best = _solve(-cmdp.reward.ravel(), flow, cmdp.initial)
    # Among all return-optimal occupancies, the cheapest; a relative 1e-9 keeps the face non-empty in float64.
    floor = best.fun + 1e-9 * max(1.0, abs(best.fun))
    cheapest = _solve(state_cost, flow, cmdp.initial, sparse.csr_array(-cmdp.reward.reshape(1, -1)), np.array([floor]))
    # Evaluated from the policies, not read from the program: its tolerance of 1e-7 per row adds up over an episode.
    exact = [
        evaluate_policy(cmdp, policy_from_occupancy(r.x.reshape(cmdp.reward.shape)), gamma) for r in (least, cheapest)
    ]
    return exact[0][1], exact[1][1]


def pareto_frontier(cmdp: CMDP, cost_limits: Iterable[float], gamma: float = 1.0) -> Frontier:
    """Return the optimal return as a function of the limit.

    Concave, non-decreasing, piecewise linear, slope = multiplier.
    """
    limits = np.asarray(list(cost_limits), dtype=np.float64)
    solutions = [optimal_policy(cmdp.with_cost_limit(float(limit)), gamma) for limit in limits]
    feasible = np.array([s.is_feasible for s in solutions])
    value = np.where(feasible, [s.value for s in solutions], np.nan)
    cost = np.where(feasible, [s.cost for s in solutions], np.nan)
    return Frontier(limits, value, cost, np.array([s.multiplier for s in solutions]))


def _check_model(cmdp: CMDP, gamma: float) -> None:
    if not 0.0 <= gamma <= 1.0:
        raise DiscountError(f"gamma is {gamma}; a discount factor lies in [0, 1].")
    if gamma == 1.0 and not cmdp.termination.any():
        raise DiscountError(
            "gamma = 1 on a model that never ends: occupancies are infinite; use gamma < 1 or time_augmented."
        )


def _flow_matrix(cmdp: CMDP, gamma: float) -> Matrix:
    """Return the [S, S * A] matrix of flow balance: visits to ``y`` minus discounted arrivals in ``y``."""
    stay = sparse.kron(sparse.eye_array(cmdp.n_states), np.ones((1, cmdp.n_actions)), format="csr")
    return sparse.csr_array(stay - gamma * sparse.csr_array(cmdp.kernel).T)


def _solve(
    objective: FloatArray,
    flow: Matrix,
    initial: FloatArray,
    limit_row: Matrix | None = None,
    limit: FloatArray | None = None,
) -> OptimizeResult:
    result = linprog(objective, A_ub=limit_row, b_ub=limit, A_eq=flow, b_eq=initial, bounds=(0, None), method="highs")
    if result.status == 2 and limit_row is None:
        raise SolveError(
            "no policy ends from the initial states, so no occupancy is finite; add termination, discount, or use "
            "time_augmented."
        )
    # With a limit, status 4 (HiGHS gives up) is the caller's to decide, like status 2 (infeasible).
    if result.status not in (0, 2) and not (result.status == 4 and limit_row is not None):
        raise SolveError(
            f"HiGHS returned status {result.status} ({result.message}); an unbounded program means a policy that "
            "earns reward for ever: add termination, discount, or use time_augmented."
        )
    return result


def _optimum(cmdp: CMDP, gamma: float, result: OptimizeResult, status: str, multiplier: float) -> Optimum:
    occupancy = np.maximum(result.x.reshape(cmdp.reward.shape), 0.0)
    policy = policy_from_occupancy(occupancy)
    value, cost = evaluate_policy(cmdp, policy, gamma)
    balance = np.abs(_flow_matrix(cmdp, gamma) @ occupancy.ravel() - cmdp.initial).max()
    scale = 1.0 + abs(value) + cost
    gaps = [
        balance,
        abs(occupancy.ravel() @ cmdp.reward.ravel() - value) / scale,
        abs(occupancy.sum(axis=1) @ cmdp.cost - cost) / scale,
    ]
    if status == "optimal":
        gaps.append(max(0.0, cost - cmdp.cost_limit) / scale)
    residual = float(max(gaps))
    if residual > RESIDUAL_LIMIT:
        raise SolveError(
            f"the linear program's solution fails its re-check by {residual:.3g}; rescale rewards and costs towards 1."
        )
    return Optimum(status, policy, occupancy, value, cost, multiplier, residual)
