"""This file knows the safety layer as a module of its own, for other people's torch code."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from ..halfspace import HalfSpace, Projection, Status, project_all, project_box

__all__ = ["SafetyLayer"]


class SafetyLayer(nn.Module):
    """The paper's safety layer on a continuous policy's mean, for other people's torch code; it has no parameters.

    Returns the nearest mean ``u`` to the proposal ``(1 - kappa) mean + kappa anchor`` (appendix J) with, for every cost
    and linearised at the anchor (eq. 9, Proposition 4.1)::

        Q_D(x, anchor) + g . (u - anchor) <= d0 + d(x) - Vb(x),        low <= u <= high.

    It is exact for this linear constraint, and no more: the cost's curvature, the noise around the mean, and errors of
    ``Q_D`` and ``Vb`` are not covered, and values of one policy say little about another (chapters 6, 7 and 10). Where
    nothing in the box satisfies it, or only gradients that count as zero could help, the proposal is returned, clipped
    to the box, and the status says so. Differentiable in every argument, almost everywhere.

    Args:
        low: lower bound of a mean, a number or [K]; ``-inf`` for none.
        high: upper bound.
        min_gradient: gradients (cost per unit of action) not longer than this count as zero.
        target_mix: kappa in [0, 1), the share of the anchor in the proposal.
        n_sweeps: rounds of the search for the bounds that hold, for several costs within a box; unused otherwise.
    """

    low: Tensor
    high: Tensor

    def __init__(
        self,
        low: float | Sequence[float] = -1.0,
        high: float | Sequence[float] = 1.0,
        min_gradient: float = 1e-3,
        target_mix: float = 0.0,
        n_sweeps: int = 50,
    ) -> None:
        super().__init__()
        self.register_buffer("low", torch.as_tensor(low, dtype=torch.get_default_dtype()))
        self.register_buffer("high", torch.as_tensor(high, dtype=torch.get_default_dtype()))
        self.min_gradient, self.target_mix, self.n_sweeps = min_gradient, target_mix, n_sweeps
        self._is_boxed = bool(torch.isfinite(self.low).any() | torch.isfinite(self.high).any())
        if not bool((self.low <= self.high).all()) or not 0 <= target_mix < 1 or not min_gradient >= 0 or n_sweeps < 1:
            raise ValueError(
                f"low {low} <= high {high}, 0 <= target_mix ({target_mix}) < 1, min_gradient ({min_gradient}) >= 0 and "
                f"n_sweeps ({n_sweeps}) >= 1 must hold."
            )

    def forward(
        self,
        mean: Tensor,
        cost_q_value: Tensor,
        gradient: Tensor,
        backward_value: Tensor,
        cost: Tensor,
        cost_limit: Tensor | float,
        anchor: Tensor | None = None,
    ) -> Projection:
        """Return the corrected mean as ``point`` [..., K], with ``multiplier`` and ``status`` (``halfspace.Status``).

        Args:
            mean: [..., K], the policy's own.
            cost_q_value: ``Q_D(x, anchor)``, [...], or [..., M] for M costs; d(x) included.
            gradient: ``g = dQ_D/du`` at the anchor, [..., K] or [..., M, K].
            backward_value: ``Vb(x)``, [...] or [..., M]; d(x) included.
            cost: ``d(x)``, [...] or [..., M].
            cost_limit: ``d0``, a number, or [M].
            anchor: [..., K], where the cost was linearised; by default the mean itself.

        Raises:
            ValueError: shapes that do not fit, or more than 6 costs.
        """
        anchor = mean if anchor is None else anchor
        slack = cost_limit + cost - backward_value - cost_q_value
        n_leading = gradient.ndim - mean.ndim
        if n_leading not in (0, 1) or gradient.shape[-1] != mean.shape[-1] or slack.shape != gradient.shape[:-1]:
            raise ValueError(
                f"mean has shape {tuple(mean.shape)}, gradient {tuple(gradient.shape)} and the slack of the costs "
                f"{tuple(slack.shape)}; give [..., K], [..., K] and [...], or for M costs [..., M, K] and [..., M]."
            )
        proposal = torch.lerp(mean, anchor, self.target_mix) if self.target_mix else mean
        if n_leading == 0:
            halfspace = HalfSpace.around(anchor, gradient, slack)
            step = project_box(halfspace, proposal, self.low, self.high, self.min_gradient)
        else:
            step = self._within_all(HalfSpace.around(anchor[..., None, :], gradient, slack), proposal)
        clipped = torch.clamp(proposal, self.low, self.high)
        return replace(step, point=torch.where((step.status >= Status.ZERO_GRADIENT)[..., None], clipped, step.point))

    def _within_all(self, halfspace: HalfSpace, proposal: Tensor) -> Projection:
        """Return the nearest point of M half-spaces and the box.

        Without a box ``project_all`` is exact. Within one, a search finds the coordinates that end at a bound; on the
        others ``project_all`` is exact again, and gradients flow through it.
        """
        is_long = torch.linalg.vector_norm(halfspace.normal, dim=-1) > self.min_gradient
        start = torch.clamp(proposal, self.low, self.high)
        is_lost = ((halfspace.slack(start[..., None, :]) < 0) & ~is_long).any(-1)
        normal = torch.where(is_long[..., None], halfspace.normal, 0.0)
        usable = HalfSpace(normal, torch.where(is_long, halfspace.offset, torch.inf))
        if self._is_boxed:
            found = self._searched(usable, proposal)
            is_free = (found > self.low) & (found < self.high)
            bound = torch.clamp(found, self.low, self.high)
            free = torch.where(is_free[..., None, :], normal, 0.0)
            used = (normal * torch.where(is_free, 0.0, bound)[..., None, :]).sum(-1)
            step = project_all(free, torch.where((free != 0).any(-1), usable.offset - used, torch.inf), proposal)
            point = torch.clamp(torch.where(is_free, step.point, bound), self.low, self.high)
            step = replace(step, point=point, status=self._judged(usable, proposal, point))
        else:
            step = project_all(usable.normal, usable.offset, proposal)
        return replace(step, status=torch.where(is_lost, int(Status.ZERO_GRADIENT), step.status))

    @torch.no_grad()
    def _searched(self, halfspace: HalfSpace, proposal: Tensor) -> Tensor:
        """Return ``proposal - sum_i lambda_i g_i``, [..., K], whose clipping to the box is the projection, nearly.

        Coordinate ascent of the dual: the best ``lambda_m`` for given others is the multiplier of ``project_box`` on
        half-space m, from ``proposal - sum_{i != m} lambda_i g_i`` (Hildreth, 1957).
        """
        moved, price = proposal, torch.zeros_like(halfspace.offset)
        for _ in range(self.n_sweeps):
            for m in range(price.shape[-1]):
                normal = halfspace.normal[..., m, :]
                rest = moved + price[..., m, None] * normal
                one = HalfSpace(normal, halfspace.offset[..., m])
                price[..., m] = project_box(one, rest, self.low, self.high).multiplier
                moved = rest - price[..., m, None] * normal
        return moved

    @torch.no_grad()
    def _judged(self, halfspace: HalfSpace, proposal: Tensor, point: Tensor) -> Tensor:
        """Return INFEASIBLE where ``point`` breaks a limit by more than the search's error, as ``project_all`` does."""
        length = torch.linalg.vector_norm(halfspace.normal, dim=-1)
        size = 1 + torch.linalg.vector_norm(proposal, dim=-1)[..., None]
        is_met = halfspace.slack(point[..., None, :]) >= -(torch.finfo(point.dtype).eps ** 0.5) * length * size
        is_moved = halfspace.slack(torch.clamp(proposal, self.low, self.high)[..., None, :]) < 0
        status = torch.where(is_moved.any(-1), int(Status.ACTIVE), int(Status.INACTIVE))
        return torch.where(is_met.all(-1), status, int(Status.INFEASIBLE))
