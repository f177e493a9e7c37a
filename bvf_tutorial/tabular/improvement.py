r"""This file knows how a policy is improved, step by step, under a limit on its expected cost.

Theory. A step evaluates the present policy ``pi_k``, sets a limit ``b(x)`` per state, and solves the state-wise problem
of ``statewise`` with ``Q``, ``Q_D`` of ``pi_k``. The methods differ in ``b`` and in how far they go:

* as printed (paper, section 3.3): ``b = d0 - (Vb - d)``. ``pi_k`` itself need not satisfy it, the problem may be empty,
  and the next policy may cost more than the limit: each decision is given the whole slack (chapter 7).
* Lyapunov (Chow et al., 2018, constant version): ``b = V_D + slack / T``. Safe and monotone.
* safeguarded: ``b = max(d0 - (Vb - d), V_D)``, so that ``pi_k`` is always a solution and the return cannot fall; then
  one of the brakes keeps the cost under the limit.

Both guarantees come from the performance difference lemma, ``V'(x0) - V(x0) = E'[sum_t <pi' - pi, Q>(x_t)]``.

Sources: Satija et al. (2020), section 3.3; Chow et al. (2018); Kakade and Langford (2002). Proofs and counterexamples
in chapters 7 to 9.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from .arrays import FloatArray
from .cmdp import CMDP, check_policy, policy_chain, policy_reward
from .errors import InvalidModelError
from .resolvent import Resolvent
from .statewise import StateStatus, StateWise, ball_step, linear_step
from .values import evaluate_policy, q_value

__all__ = [
    "BRAKES",
    "Evaluation",
    "Improvement",
    "Step",
    "backward_offset",
    "coupling_bound",
    "evaluate",
    "improvements",
    "lyapunov_offset",
    "lyapunov_step",
    "policy_iteration",
    "safeguarded_offset",
    "safeguarded_step",
    "spi_step",
    "trust_radius",
]

BRAKES = ("ball", "mixture", "line_search", "lyapunov", "best")
"""The ways a safeguarded step keeps its cost under the limit (see ``safeguarded_step``)."""
FEASIBLE = 1e-9
"""How far over the limit, relative to it, a policy may be and still count as feasible, for the rounding of a solve."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A policy with everything a step needs to know of it; undiscounted.

    Attributes:
        cmdp: the model.
        policy: ``pi``, [S, A].
        visits: ``m``, [S].
        value: ``V``, [S], forward value of the reward; ``q``: ``Q``, [S, A].
        cost_value: ``V_D``, [S], forward value of the cost; ``cost_q``: ``Q_D``, [S, A].
        backward: backward value ``Vb``, [S]; NaN at states that no episode visits, which have no past.
    """

    cmdp: CMDP
    policy: FloatArray
    visits: FloatArray
    value: FloatArray
    q: FloatArray
    cost_value: FloatArray
    cost_q: FloatArray
    backward: FloatArray

    @property
    def expected_return(self) -> float:
        """``J``, expected return of an episode."""
        return float(self.cmdp.initial @ self.value)

    @property
    def expected_cost(self) -> float:
        """``E[C]``, expected cost of an episode."""
        return float(self.cmdp.initial @ self.cost_value)

    @property
    def slack(self) -> float:
        """``d0 - E[C]``, what the trajectory constraint leaves; negative when infeasible."""
        return self.cmdp.cost_limit - self.expected_cost

    @cached_property
    def state_wise_cost(self) -> FloatArray:
        """``Vb + V_D - d``, [S], expected cost of an episode seen from each state; NaN where it is never seen."""
        return self.backward + self.cost_value - self.cmdp.cost

    @property
    def is_feasible(self) -> bool:
        """Whether ``E[C] <= d0``, up to rounding."""
        return self.slack >= -FEASIBLE * (1.0 + self.cmdp.cost_limit)

    @property
    def is_value_feasible(self) -> bool:
        """Whether ``Vb + V_D - d <= d0`` at every visited state, the value-based constraint."""
        excess = np.nanmax(self.state_wise_cost) - self.cmdp.cost_limit
        return bool(excess <= FEASIBLE * (1.0 + self.cmdp.cost_limit))


Step = Callable[[Evaluation], StateWise]
"""What makes the next policy from the present policy's evaluation."""


def evaluate(cmdp: CMDP, policy: npt.ArrayLike) -> Evaluation:
    """Evaluate a policy forward and backward with one factorisation and four solves.

    Raises:
        ImproperPolicyError: the episode never ends from some state; put the clock in the state, or add termination.
    """
    probability = check_policy(cmdp, policy)
    chain = policy_chain(cmdp, probability)
    resolvent = Resolvent(chain)
    visits = resolvent.left(chain.initial)
    value, cost_value = resolvent.right(policy_reward(cmdp, probability)), resolvent.right(cmdp.cost)
    with np.errstate(invalid="ignore"):
        backward = np.where(visits > 0, resolvent.left(visits * cmdp.cost) / visits, np.nan)
    q, cost_q = q_value(cmdp, cmdp.reward, value), q_value(cmdp, cmdp.cost, cost_value)
    return Evaluation(cmdp, probability, visits, value, q, cost_value, cost_q, backward)


def backward_offset(evaluation: Evaluation) -> FloatArray:
    """Return ``b = d0 - (Vb - d)``, [S]: the paper's state-wise limit on ``<pi, Q_D>``.

    ``inf`` at states that no episode visits: without a past the printed limit is undefined there and limits nothing.
    """
    limit = evaluation.cmdp.cost_limit - evaluation.backward + evaluation.cmdp.cost
    return np.where(np.isnan(limit), np.inf, limit)


def safeguarded_offset(evaluation: Evaluation) -> FloatArray:
    """Return ``b = max(d0 - (Vb - d), V_D)``, [S], and ``V_D`` at states never visited.

    The present policy always satisfies it.
    """
    return np.where(
        np.isnan(evaluation.backward),
        evaluation.cost_value,
        np.maximum(backward_offset(evaluation), evaluation.cost_value),
    )


def lyapunov_offset(evaluation: Evaluation, horizon: float) -> FloatArray:
    """Return ``b = V_D + (d0 - E[C]) / T``, [S]: the same allowance at every state.

    The constant version of Chow et al. (2018); relative to the present policy it reads
    ``<pi' - pi, Q_D>(x) <= (d0 - E[C]) / T``.
    """
    _require_feasible(evaluation)
    return evaluation.cost_value + max(evaluation.slack, 0.0) / _positive(horizon)


def coupling_bound(radius: npt.ArrayLike, cost_span: float, horizon: int) -> FloatArray:
    """Return ``D sum_{t=1}^T (1 - (1 - sigma)^t)``: the most that a policy within TV ``sigma`` can add to the cost.

    Attained for every ``T`` and ``sigma`` (chapter 7), so it is the sharp form of the paper's Theorem 3.1.

    Args:
        radius: ``sigma`` in [0, 1], any shape.
        cost_span: ``D``, largest minus least cost of a state; an ended episode counts as cost 0.
        horizon: ``T``, largest number of decisions of an episode.
    """
    sigma = np.asarray(radius, dtype=np.float64)
    # -expm1(t log1p(-sigma)) keeps its digits where sigma is 1e-6 and the power would round to one.
    with np.errstate(divide="ignore"):
        parted = -np.expm1(np.arange(1, horizon + 1) * np.log1p(-sigma)[..., None])
    return np.asarray(cost_span * parted.sum(axis=-1))


def trust_radius(slack: float, cost_span: float, horizon: int, bound: str = "sharp") -> float:
    """Return a radius ``sigma`` such that no policy within TV ``sigma`` can add more than ``slack`` to the cost.

    Args:
        slack: ``d0 - E[C] >= 0``.
        cost_span: ``D >= 0``.
        horizon: ``T >= 1``.
        bound: "sharp", the root of ``coupling_bound = slack``; "linear", ``2 slack / (D T (T + 1))``; "paper",
            ``slack / (2 D T^2)`` (Theorem 3.1). Each is at most the one before it.
    """
    if slack < 0 or cost_span < 0 or horizon < 1:
        raise InvalidModelError(f"slack {slack}, cost_span {cost_span}, horizon {horizon}: need >= 0, >= 0 and >= 1.")
    if bound not in ("sharp", "linear", "paper"):
        raise InvalidModelError(f"bound is {bound!r}; use 'sharp', 'linear' or 'paper'.")
    if cost_span * horizon <= slack:
        return 1.0
    if slack == 0:
        return 0.0
    if bound != "sharp":
        share = slack / cost_span
        return float(min(1.0, share / (2 * horizon**2) if bound == "paper" else 2 * share / (horizon * (horizon + 1))))
    low, high = 0.0, 1.0
    while True:
        # Bisection ends at neighbouring floats; the lower one keeps the bound under the slack.
        middle = (low + high) / 2
        if middle in (low, high):
            return low
        low, high = (middle, high) if coupling_bound(middle, cost_span, horizon) <= slack else (low, middle)


def spi_step(
    evaluation: Evaluation,
    choose: Callable[[FloatArray, FloatArray, FloatArray], StateWise] = linear_step,
    fallback: str = "keep",
    radius: float = 1.0,
) -> StateWise:
    """Return the paper's safe policy improvement step, as printed (section 3.3), for better and worse.

    Args:
        evaluation: the present policy, feasible or not.
        choose: how a state picks: ``linear_step`` (the linear program), ``elimination_step`` (deterministic policies),
            or ``functools.partial(entropy_step, temperature=...)``.
        fallback: what a state does whose problem is EMPTY: "keep" the present distribution, or take the "least_cost"
            action.
        radius: TV ball around the present policy that the linear program is intersected with (Theorem 3.1).
    """
    if fallback not in ("keep", "least_cost"):
        raise InvalidModelError(f"fallback is {fallback!r}; use 'keep' or 'least_cost'.")
    problem = evaluation.q, evaluation.cost_q, backward_offset(evaluation)
    if radius < 1.0:
        if choose is not linear_step:
            raise InvalidModelError(
                "a radius below 1 needs choose=linear_step: the ball is solved with the linear program."
            )
        solution = ball_step(*problem, evaluation.policy, radius)
    else:
        solution = choose(*problem)
    if fallback == "least_cost":
        return solution
    is_empty = (solution.status == StateStatus.EMPTY)[:, None]
    return StateWise(np.where(is_empty, evaluation.policy, solution.policy), solution.multiplier, solution.status)


def lyapunov_step(evaluation: Evaluation, horizon: float) -> StateWise:
    """Return the step of the constant Lyapunov function: the state-wise program with ``lyapunov_offset``.

    Feasible and monotone without any trust region. Raises ``InvalidModelError`` from an infeasible policy.
    """
    return linear_step(evaluation.q, evaluation.cost_q, lyapunov_offset(evaluation, horizon))


def safeguarded_step(evaluation: Evaluation, brake: str, horizon: float) -> StateWise:
    """Return a step of Safeguarded SPI: never infeasible, never a smaller return (chapter 7, with proof).

    ``pi'`` solves the state-wise program under ``safeguarded_offset``. The brake:

    * "ball": the program inside the TV ball of the linear ``trust_radius`` (``horizon`` bounds every episode).
    * "mixture": ``pi_k + alpha (pi' - pi_k)``, ``alpha = min(1, slack / (T max_x A_D(x)^+))`` with
      ``A_D = <pi', Q_D> - V_D``.
    * "line_search": the same direction with the largest ``alpha`` that a root finder finds whose exact cost respects
      the limit.
    * "lyapunov": instead of the backward limit, ``lyapunov_step``.
    * "best": of mixture, line_search and lyapunov the one of largest exact return. Greedy: it tends to spend the slack
      at once, and can end below plain "lyapunov" (chapter 8).

    Args:
        evaluation: a feasible policy.
        brake: one of ``BRAKES``.
        horizon: ``T``, decisions of an episode that matter: the horizon, or ``dual.decision_bound``; for "ball" the
            longest episode's, since an expected number bounds no coupling.

    Raises:
        InvalidModelError: the policy is over the limit (start from ``cautious_policy``), or the brake is unknown.
    """
    _require_feasible(evaluation)
    if brake not in BRAKES:
        raise InvalidModelError(f"brake is {brake!r}; use one of {', '.join(BRAKES)}.")
    if brake == "lyapunov":
        return lyapunov_step(evaluation, horizon)
    offset, slack = safeguarded_offset(evaluation), max(evaluation.slack, 0.0)
    if brake == "ball":
        span = float(evaluation.cmdp.cost.max())
        radius = trust_radius(slack, span, int(np.ceil(_positive(horizon))), "linear")
        return ball_step(evaluation.q, evaluation.cost_q, offset, evaluation.policy, radius)
    target = linear_step(evaluation.q, evaluation.cost_q, offset)
    excess = (target.policy * evaluation.cost_q).sum(axis=1) - evaluation.cost_value
    worst = _positive(horizon) * max(float(excess.max()), 0.0)
    share = 1.0 if worst <= slack else slack / worst
    if brake == "mixture":
        return _towards(evaluation, target, share)
    searched = _towards(evaluation, target, _largest_share(evaluation, target, share))
    if brake == "line_search":
        return searched
    candidates = [searched, _towards(evaluation, target, share), lyapunov_step(evaluation, horizon)]
    returns = [evaluate_policy(evaluation.cmdp, candidate.policy)[0] for candidate in candidates]
    return candidates[int(np.argmax(returns))]


@dataclass(frozen=True, eq=False)
class Improvement:
    """The history of an improvement method; entry 0 is the start, entry ``k`` the policy after ``k`` steps.

    Attributes:
        value: [K + 1], expected return ``J(pi_k)``.
        cost: [K + 1], expected cost.
        worst_state: [K + 1], largest state-wise cost ``Vb + V_D - d`` over visited states.
        n_empty: [K + 1], states whose problem was EMPTY in the step that led to ``pi_k``, entry 0 is 0.
        n_active: [K + 1], states whose limit was ACTIVE in it.
        policy: [S, A], the last policy.
        cost_limit: ``d0`` of the model.
        is_settled: whether the last step changed nothing any more.
    """

    value: FloatArray
    cost: FloatArray
    worst_state: FloatArray
    n_empty: npt.NDArray[np.int64]
    n_active: npt.NDArray[np.int64]
    policy: FloatArray
    cost_limit: float
    is_settled: bool

    @property
    def slack(self) -> FloatArray:
        """``d0 - cost``, [K + 1]; negative where infeasible."""
        return self.cost_limit - self.cost

    @property
    def is_feasible(self) -> npt.NDArray[np.bool_]:
        """Whether each policy respects the limit, up to rounding, [K + 1]."""
        return self.slack >= -FEASIBLE * (1.0 + self.cost_limit)

    @property
    def n_infeasible(self) -> int:
        """Number of policies over the limit, the start included."""
        return int((~self.is_feasible).sum())

    @property
    def n_decreases(self) -> int:
        """Number of steps after which the return was smaller (by more than rounding)."""
        return int((np.diff(self.value) < -FEASIBLE * (1.0 + np.abs(self.value[:-1]))).sum())


def improvements(cmdp: CMDP, policy: npt.ArrayLike, step: Step) -> Iterator[tuple[Evaluation, StateWise]]:
    """Yield, for ever, each policy's evaluation with the step that led to it (first the start itself, all FREE)."""
    probability = check_policy(cmdp, policy)
    size = cmdp.n_states
    solution = StateWise(probability, np.zeros(size), np.zeros(size, dtype=np.int8))
    while True:
        evaluation = evaluate(cmdp, solution.policy)
        yield evaluation, solution
        solution = step(evaluation)


def policy_iteration(
    cmdp: CMDP, policy: npt.ArrayLike, step: Step, n_iterations: int, tolerance: float = 1e-12
) -> Improvement:
    """Apply ``step`` up to ``n_iterations`` times and return the whole history.

    Args:
        cmdp: the model with its limit.
        policy: the start, [S, A].
        step: for example ``functools.partial(safeguarded_step, brake="best", horizon=T)``, or ``spi_step``.
        n_iterations: largest number of steps.
        tolerance: stop when a step changes no visited state's probabilities by more.
    """
    record: list[tuple[float, float, float, int, int]] = []
    is_settled, present = False, check_policy(cmdp, policy)
    for evaluation, solution in islice(improvements(cmdp, present, step), n_iterations + 1):
        change = np.abs(solution.policy - present)[evaluation.visits > 0].max()
        is_settled = bool(record) and bool(change <= tolerance)
        present = solution.policy
        empty, active = solution.count(StateStatus.EMPTY), solution.count(StateStatus.ACTIVE)
        worst = float(np.nanmax(evaluation.state_wise_cost))
        record.append((evaluation.expected_return, evaluation.expected_cost, worst, empty, active))
        if is_settled:
            break
    value, cost, worst_state, n_empty, n_active = (np.array(column) for column in zip(*record, strict=True))
    return Improvement(value, cost, worst_state, n_empty, n_active, present, cmdp.cost_limit, is_settled)


def _towards(evaluation: Evaluation, target: StateWise, share: float) -> StateWise:
    policy = evaluation.policy + share * (target.policy - evaluation.policy)
    return StateWise(policy / policy.sum(axis=1, keepdims=True), target.multiplier, target.status)


def _largest_share(evaluation: Evaluation, target: StateWise, safe: float) -> float:
    """Return the largest share found whose exact cost is within the limit; at least ``safe``, which is proved to be."""
    cmdp, found = evaluation.cmdp, [safe]

    def excess(share: float) -> float:
        chain = policy_chain(cmdp, _towards(evaluation, target, share).policy)
        over = float(chain.initial @ Resolvent(chain).right(cmdp.cost)) - cmdp.cost_limit
        if over <= 0.0:
            found.append(share)
        return over

    # The cost is a smooth function of the share, so a root finder needs few evaluations; what it ends on may be a hair
    # over the limit, hence the largest share that was seen to be within it.
    if excess(1.0) > 0.0 and excess(safe) < 0.0:
        brentq(excess, safe, 1.0, xtol=1e-12, rtol=1e-6, maxiter=20, disp=False)
    return max(found)


def _require_feasible(evaluation: Evaluation) -> None:
    if not evaluation.is_feasible:
        raise InvalidModelError(
            f"the policy costs {evaluation.expected_cost:.12g}, over the limit {evaluation.cmdp.cost_limit:.12g}: a "
            "safeguarded step starts from a feasible policy, for example cautious_policy(cmdp)."
        )


def _positive(horizon: float) -> float:
    if not (np.isfinite(horizon) and horizon > 0):
        raise InvalidModelError(f"horizon is {horizon}; it must be a positive number of decisions.")
    return float(horizon)
