"""This file knows half-spaces of actions, and how to bring an action or a policy into one.

The paper turns a constraint on whole episodes into one that is linear in the policy at every state: on ``Q_D(x, .)``
for discrete actions, on the mean of a Gaussian policy, linearised, for continuous ones (eq. 9). Both are the half-space
``{u : normal . u <= offset}``, one per state of a batch.

Every function is batched over leading dimensions ``...`` (inputs broadcast), differentiable, and free of host
synchronisation. Where nothing can be done it says so in a ``Status``: no denominator is padded to hide a zero gradient.
Results carry rounding errors of a few units of the dtype relative to ``|normal . point| + |offset|``.
"""

import itertools
from dataclasses import dataclass
from enum import IntEnum
from statistics import NormalDist

import torch
from torch import Tensor

__all__ = ["HalfSpace", "Projection", "Status", "project", "project_all", "project_box", "project_curved"]


class Status(IntEnum):
    """What a projection did.

    Attributes:
        INACTIVE: the point satisfied the constraint (equality included); the multiplier is 0.
        ACTIVE: the point was moved to the boundary; the multiplier is positive.
        ZERO_GRADIENT: the point violates the constraint and the normal is zero, or not above ``min_norm``, so that
            moving along it does not help; the point is returned as it was (clipped, where there is a box).
        INFEASIBLE: no point satisfies all that was asked; the function says what it returns instead.
    """

    INACTIVE = 0
    ACTIVE = 1
    ZERO_GRADIENT = 2
    INFEASIBLE = 3


@dataclass(frozen=True, eq=False)
class HalfSpace:
    """The set ``{u : normal . u <= offset}``, one per batch entry.

    Attributes:
        normal: [..., K], ``Q_D(x, .)`` over K discrete actions (per-episode cost), or the gradient ``g`` of
            ``Q_D(x, u)`` in a K-dimensional action (cost per unit of action).
        offset: [...], in units of cost. ``+inf`` is no constraint.

    Raises:
        ValueError: the shapes do not fit; both are named. Values are looked at only by ``check``.
    """

    normal: Tensor
    offset: Tensor

    def __post_init__(self) -> None:
        if self.normal.ndim < 1 or self.normal.shape[:-1] != self.offset.shape:
            raise ValueError(
                f"normal has shape {tuple(self.normal.shape)} and offset {tuple(self.offset.shape)}; give normal "
                "[..., K] and offset [...], one offset per normal."
            )

    @classmethod
    def everything(cls, like: Tensor) -> "HalfSpace":
        """Return the half-space that contains every point (normal 0, offset ``+inf``), for points ``like`` [..., K]."""
        return cls(torch.zeros_like(like), torch.full_like(like[..., 0], torch.inf))

    @classmethod
    def around(cls, point: Tensor, normal: Tensor, slack: Tensor | float) -> "HalfSpace":
        """Return ``{u : normal . (u - point) <= slack}``, a cost linearised at ``point``.

        With the policy's mean as ``point``, ``normal = dQ_D/du`` there and ``slack = d_0 + d - Vb - Q_D`` this is the
        constraint of eq. (9); with the target policy's mean (and its ``Q_D``) it is the one of appendix J.

        Args:
            point: [..., K], where the cost was linearised.
            normal: [..., K], its gradient there.
            slack: [...], what is left of the limit there; negative if the point violates it.
        """
        offset = slack + _dot(normal, point)
        return cls(normal.expand(*offset.shape, normal.shape[-1]), offset)

    def slack(self, point: Tensor) -> Tensor:
        """Return ``offset - normal . point``, [...], in units of cost; ``>= 0`` is feasible.

        Raises:
            ValueError: ``point`` [..., K] has another last dimension than the normal.
        """
        return self.offset - _dot(self.normal, point)

    def tightened(self, std: Tensor, probability: float) -> "HalfSpace":
        """Return the half-space of *means* whose Gaussian action satisfies the constraint with a given probability.

        For ``u ~ N(mean, diag(std^2))``: ``Pr(normal . u <= offset) >= probability`` if and only if
        ``normal . mean <= offset - z ||std o normal||``, ``z`` the standard normal quantile of ``probability``.

        Args:
            std: [..., K], standard deviations, >= 0.
            probability: ``1 - delta``, strictly between 0 and 1; below 1/2 the half-space grows.

        Raises:
            ValueError: ``probability`` is not strictly between 0 and 1.
        """
        if not 0 < probability < 1:
            raise ValueError(f"probability is {probability}; no finite margin gives it. Choose one in (0, 1).")
        spread = torch.linalg.vector_norm(std * self.normal, dim=-1)
        offset = self.offset - NormalDist().inv_cdf(probability) * spread
        return HalfSpace(self.normal.expand(*offset.shape, self.normal.shape[-1]), offset)

    def feasible_actions(self) -> Tensor:
        """Return which deterministic choices among K actions satisfy ``normal[k] <= offset``, [..., K] boolean."""
        return self.normal <= self.offset[..., None]

    def greedy_action(self, score: Tensor) -> tuple[Tensor, Tensor]:
        """Return the feasible action of the highest score; where none is feasible, the one of the lowest cost.

        Args:
            score: [..., K], finite; ``Q(x, .)``.

        Returns:
            The action [...] (int64), and whether it is feasible [...] (boolean).
        """
        feasible = self.feasible_actions()
        best = torch.where(feasible, score, -torch.inf).argmax(-1)
        is_feasible = feasible.any(-1)
        return torch.where(is_feasible, best, self.normal.argmin(-1)), is_feasible

    def check(self) -> "HalfSpace":
        """Return the half-space itself after a look at its values, which waits for the device.

        Raises:
            ValueError: a normal that is not finite, or an offset that is NaN or ``-inf``; the first entry is named.
        """
        bad = ~torch.isfinite(self.normal).all(-1) | torch.isnan(self.offset) | (self.offset == -torch.inf)
        if bad.any():
            where = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"half-space {where} has normal {self.normal[where].tolist()} and offset {self.offset[where].item()}; "
                "the normal must be finite and the offset a number or +inf. Look at the cost critic's output."
            )
        return self


@dataclass(frozen=True, eq=False)
class Projection:
    """Where a point went, and why.

    Attributes:
        point: [..., K].
        multiplier: ``lambda >= 0``, [...] ([..., M] for M constraints); the point moved by ``-lambda normal``.
        status: [...], int64, the values of ``Status``.
    """

    point: Tensor
    multiplier: Tensor
    status: Tensor

    @property
    def is_feasible(self) -> Tensor:
        """Whether the returned point satisfies everything that was asked, up to rounding; [...], boolean."""
        return self.status <= Status.ACTIVE

    def counts(self) -> dict[str, int]:
        """Return how many batch entries have each status, by name; waits for the device."""
        return {status.name: int((self.status == status).sum()) for status in Status}


def project(halfspace: HalfSpace, point: Tensor, min_norm: float = 0.0) -> Projection:
    """Return the nearest point of a half-space: ``argmin 1/2 ||u - point||^2`` subject to ``normal . u <= offset``.

    ``u = point - lambda normal`` with ``lambda = (-slack)^+ / ||normal||^2`` (Prop. 4.1). Holds for a normal that is
    not zero; a zero normal is no constraint (offset >= 0) or an impossible one, flagged ``ZERO_GRADIENT``.

    Args:
        halfspace: normal [..., K].
        point: [..., K], the unconstrained action or mean.
        min_norm: normals not longer than this count as zero, for gradients that are mostly estimation error. One whose
            square underflows the dtype does in any case.

    Notes:
        At ``slack = 0`` the gradient is the one of the inactive side. Source: Satija et al. (2020), Prop. 4.1 and
        appendix F, after Dalal et al. (2018), Prop. 1; the zero normal is ours.
    """
    slack = halfspace.slack(point)
    square, is_movable = _square(halfspace.normal, min_norm)
    is_violated = slack < 0
    # Both operands are made harmless before the division: a NaN gradient would survive a `where` after it.
    multiplier = torch.where(is_violated & is_movable, -slack, 0.0) / square
    moved = point - multiplier[..., None] * halfspace.normal
    return Projection(moved, multiplier, _status(is_violated, is_movable))


def project_curved(
    halfspace: HalfSpace, point: Tensor, smoothness: Tensor | float, min_norm: float = 0.0
) -> Projection:
    """Return a point whose *true* cost meets the limit, if the cost's gradient is Lipschitz in the action.

    The linearisation at ``point`` errs by at most ``L/2 ||u - point||^2``. The nearest point where even that bound
    meets the limit is ``point - lambda normal`` with ``lambda = (1 - sqrt(1 + 2 L slack / ||normal||^2)) / L``. It
    exists if ``-slack <= ||normal||^2 / (2 L)``; otherwise the step of the largest guaranteed decrease,
    ``lambda = 1 / L``, is returned, flagged ``INFEASIBLE``. ``L = 0`` is ``project``.

    Args:
        halfspace: the linearisation *at this point*, ``HalfSpace.around(point, ...)``; normal [..., K].
        point: [..., K].
        smoothness: ``L >= 0``, [...] or a number: ``||dQ_D/du(u) - dQ_D/du(v)|| <= L ||u - v||``.
        min_norm: as in ``project``.

    Notes:
        Not in the paper; the quadratic upper bound is the descent lemma. The gradient in the slack grows without bound
        as the discriminant goes to zero.
    """
    step, bound = project(halfspace, point, min_norm), _tensor(smoothness, point)
    discriminant = 1 - 2 * bound * step.multiplier
    has_root = discriminant > 0
    root = torch.where(has_root, torch.where(has_root, discriminant, 1.0).sqrt(), 0.0)
    is_too_far = discriminant < 0
    deepest = 1 / torch.where(is_too_far, bound, 1.0)
    # The conjugate form 2 s / (1 + sqrt(1 - 2 L s)) of the root loses no digits, and is s at L = 0.
    multiplier = torch.where(is_too_far, deepest, 2 * step.multiplier / (1 + root))
    status = torch.where(is_too_far, int(Status.INFEASIBLE), step.status)
    return Projection(point - multiplier[..., None] * halfspace.normal, multiplier, status)


def project_box(
    halfspace: HalfSpace, point: Tensor, low: Tensor | float, high: Tensor | float, min_norm: float = 0.0
) -> Projection:
    """Return the nearest point of a half-space *and* a box: ``normal . u <= offset``, ``low <= u <= high``.

    The solution is ``u(lambda) = clip(point - lambda normal, low, high)``. ``normal . u(lambda)`` is piecewise linear
    and nonincreasing, so its root is found over the sorted breakpoints, then recomputed in closed form from the
    coordinates that are free there; gradients flow through that form. O(K^2) memory a batch entry.

    If even the cheapest point of the box violates the half-space, the status is ``INFEASIBLE``; the point returned is
    the cheapest one of the box that is nearest to ``point``, and the multiplier is the smallest that leads to it.

    Args:
        halfspace: normal [..., K].
        point: [..., K], inside the box or not; ``INACTIVE`` means that clipping alone is the answer.
        low: [..., K] or a number, may be ``-inf``; ``low <= high``.
        high: [..., K] or a number, may be ``+inf``.
        min_norm: as in ``project``.

    Notes:
        The result lies in the box without rounding error. Clipping after ``project`` is not this (chapter "The safety
        layer"). The one-constraint case of the breakpoint methods for the continuous quadratic knapsack problem
        (Brucker, 1984).
    """
    lower, upper = _tensor(low, point), _tensor(high, point)
    start = torch.clamp(point, lower, upper)
    slack = halfspace.slack(start)
    is_violated, is_movable = slack < 0, _square(halfspace.normal, min_norm)[1]
    # A coordinate waits where it starts while the point is beyond that bound, moves with lambda, stops at its last one.
    normal = torch.where(_square(halfspace.normal[..., None], 0.0)[1], halfspace.normal, 0.0)
    final = torch.where(normal > 0, lower, torch.where(normal < 0, upper, start))
    with torch.no_grad():
        entry, leave, last = _segment(normal, slack, point, start, final)
        is_free = (entry <= last) & (leave > last)
        has_free = is_free.any(-1)
    # Zero before any product: the bounds of a free coordinate may be infinite.
    rest = torch.where(is_free, 0.0, torch.where(entry > last, start, final))
    free_normal = torch.where(is_free, normal, 0.0)
    square = torch.where(has_free, free_normal.square().sum(-1), 1.0)
    is_active = is_violated & is_movable
    excess = _dot(free_normal, point) + _dot(halfspace.normal, rest) - halfspace.offset
    root = torch.where(is_active & has_free, excess, 0.0).clamp(min=0) / square
    multiplier = torch.where(is_active & ~has_free, last[..., 0], root)
    # A coordinate with a zero normal stays, but its derivative by the normal is that of a free one, -lambda.
    moved = torch.where(is_free | (normal == 0), point - multiplier[..., None] * halfspace.normal, rest)
    result = torch.where(is_active[..., None], torch.clamp(moved, lower, upper), start)
    status = torch.where(is_active & ~has_free, int(Status.INFEASIBLE), _status(is_violated, is_movable))
    return Projection(result, multiplier, status)


def project_all(normal: Tensor, offset: Tensor, point: Tensor) -> Projection:
    """Return the nearest point of the intersection of M half-spaces.

    Enumerates the ``2^M`` sets of active constraints. On the set ``I`` the multipliers solve
    ``G_I G_I^T lambda_I = -slack_I``; the point ``u - G_I^T lambda_I`` is the projection if and only if
    ``lambda_I >= 0`` and the other constraints hold (Karush, Kuhn and Tucker). Sets with dependent normals are skipped:
    one with independent normals always does. Gradients flow through the equations of the set that was chosen.

    The status is ``INFEASIBLE`` where no set does, and ``ZERO_GRADIENT`` where a constraint with a zero normal is
    violated; the point is then returned as it was, with multipliers 0.

    Args:
        normal: [..., M, K], ``G``; M is at most 6.
        offset: [..., M]; ``+inf`` is no constraint.
        point: [..., K].

    Returns:
        A projection with multipliers [..., M].

    Raises:
        ValueError: shapes that do not fit, or more than 6 constraints.

    Notes:
        Feasibility is decided to the square root of the dtype's precision, relative to the distances involved: gaps
        below that count as touching, and normals at smaller angles as dependent. Picking the largest multiplier
        instead (Dalal et al., 2018) is right only where the other constraints hold at its result.
    """
    if normal.ndim < 2 or normal.shape[:-1] != offset.shape or normal.shape[-1] != point.shape[-1]:
        raise ValueError(
            f"normal has shape {tuple(normal.shape)}, offset {tuple(offset.shape)} and point {tuple(point.shape)}; "
            "give [..., M, K], [..., M] and [..., K]."
        )
    if not 1 <= offset.shape[-1] <= 6:
        raise ValueError(
            f"M = {offset.shape[-1]} constraints; the 2^M active sets are enumerated for M from 1 to 6 only. Use a "
            "quadratic-programming solver."
        )
    is_bounded = torch.isfinite(offset)
    slack = torch.where(is_bounded, offset - _dot(normal, point[..., None, :]), 0.0)
    square, is_nonzero = _square(normal, 0.0)
    is_usable = is_bounded & is_nonzero
    # In unit normals every quantity is a distance, and one tolerance fits all.
    length = square.sqrt()
    unit = torch.where(is_usable[..., None], normal / length[..., None], 0.0)
    distance = torch.where(is_usable, slack / length, 0.0)
    with torch.no_grad():
        is_chosen, is_solved = _active_set(unit, distance, is_usable, point)
    is_violated, is_movable = (slack < 0).any(-1), ~((slack < 0) & ~is_usable).any(-1)
    is_active = is_violated & is_movable
    depth = _solve_set(unit, distance, is_chosen & (is_active & is_solved)[..., None])
    status = torch.where(is_active & ~is_solved, int(Status.INFEASIBLE), _status(is_violated, is_movable))
    return Projection(point - (depth[..., None] * unit).sum(-2), depth / length, status)


def _dot(left: Tensor, right: Tensor) -> Tensor:
    if left.shape[-1] != right.shape[-1]:
        raise ValueError(
            f"a normal of shape {tuple(left.shape)} and a point of shape {tuple(right.shape)} differ in their last "
            "dimension, the number of actions or action coordinates."
        )
    return (left * right).sum(-1)


def _tensor(value: Tensor | float, like: Tensor) -> Tensor:
    return value if isinstance(value, Tensor) else like.new_full((), value)


def _square(normal: Tensor, min_norm: float) -> tuple[Tensor, Tensor]:
    """Return ``||normal||^2`` (1 where it counts as zero, so that one can divide by it) and whether it does not."""
    square = normal.square().sum(-1)
    is_movable = square > max(min_norm**2, torch.finfo(normal.dtype).tiny)
    return torch.where(is_movable, square, 1.0), is_movable


def _status(is_violated: Tensor, is_movable: Tensor) -> Tensor:
    active = torch.where(is_movable, int(Status.ACTIVE), int(Status.ZERO_GRADIENT))
    return torch.where(is_violated, active, int(Status.INACTIVE))


def _segment(
    normal: Tensor, slack: Tensor, point: Tensor, start: Tensor, final: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the multipliers at which coordinates start and stop to move, and the last of them that violates [..., 1].

    From its value at 0, where ``slack`` is left, ``normal . u(lambda)`` falls by the sum over i of
    ``normal_i^2 (min(lambda, leave_i) - min(lambda, entry_i))``.
    """
    is_still = start == final  # the normal is zero, the side has no width, or the point is there already
    divisor = torch.where(is_still, 1.0, normal)
    entry = torch.where(is_still, 0.0, (point - start) / divisor).clamp(min=0)
    leave = torch.where(is_still, 0.0, (point - final) / divisor).clamp(min=0)
    breakpoints = torch.cat([torch.zeros_like(entry[..., :1]), entry, leave], -1).sort(-1).values
    at = breakpoints[..., None]
    travelled = torch.minimum(at, leave[..., None, :]) - torch.minimum(at, entry[..., None, :])
    is_above = slack[..., None] + (normal[..., None, :].square() * travelled).sum(-1) < 0
    index = (is_above.sum(-1, keepdim=True) - 1).clamp(min=0)
    return entry, leave, breakpoints.gather(-1, index)


def _solve_set(unit: Tensor, distance: Tensor, is_active: Tensor) -> Tensor:
    """Return the multipliers [..., M] that put every active constraint on its boundary; 0 for the others."""
    mask = is_active.to(unit.dtype)
    gram = (unit @ unit.mT) * mask[..., None] * mask[..., None, :] + torch.diag_embed(1 - mask)
    # The checked `solve` would wait for the device; singular systems have been excluded.
    solution: Tensor = torch.linalg.solve_ex(gram, (-distance * mask)[..., None])[0]
    return solution[..., 0]


def _active_set(unit: Tensor, distance: Tensor, is_usable: Tensor, point: Tensor) -> tuple[Tensor, Tensor]:
    """Return the active set of the smallest KKT residual, [..., M], and whether that residual is rounding, [...]."""
    size, precision = distance.shape[-1], torch.finfo(unit.dtype).eps
    subset = torch.tensor(list(itertools.product((False, True), repeat=size)), device=unit.device)
    subset = subset.expand(*distance.shape[:-1], -1, -1)
    gram = (unit @ unit.mT)[..., None, :, :]
    both = subset[..., None] & subset[..., None, :]
    determinant = torch.where(both, gram, torch.eye(size, dtype=unit.dtype, device=unit.device)).det()
    is_independent = determinant > 8 * size * precision
    depth = _solve_set(unit[..., None, :, :], distance[..., None, :], subset & is_independent[..., None])
    left = distance[..., None, :] + (gram * depth[..., None, :]).sum(-1)
    violation = torch.where(subset | ~is_usable[..., None, :], 0.0, -left)
    residual = torch.where(is_independent, torch.maximum(-depth, violation).amax(-1), torch.inf)
    smallest, index = residual.min(-1)
    scale = distance.abs().amax(-1) + torch.linalg.vector_norm(point, dim=-1)
    chosen = subset.gather(-2, index[..., None, None].expand(*index.shape, 1, size))[..., 0, :]
    return chosen, smallest <= precision**0.5 * scale
