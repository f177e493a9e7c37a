"""This file knows the safety methods, and knows no learner.

A *state-wise rule* says how much expected cost, from this state to the episode's end, a decision may have: the
right-hand side ``b(x)`` of ``<pi(.|x), Q_D(x, .)> <= b(x)``. It is one function, an *allowance*; the half-space of
actions that it admits comes from it in the same way for every rule, discrete or continuous. A *multiplier rule*
(``multipliers``) says what cost weighs. A safety method is one of each: the paper's is one cell of that grid,
``backward`` x ``recovery``; its honest ablations are the neighbours.

To add a rule, write one function and add one line to ``STATE_RULES``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from ..halfspace import HalfSpace, Projection, Status, project_box
from .multipliers import Multiplier

__all__ = [
    "CONSTRAINTS",
    "STATE_RULES",
    "Constraint",
    "Situation",
    "StateRule",
    "admitted",
    "backward_allowance",
    "chosen_action",
    "corrected_mean",
    "forward_allowance",
    "lyapunov_allowance",
    "safeguarded_allowance",
    "slack_share",
    "slack_weight",
    "unlimited_allowance",
]


@dataclass(frozen=True, eq=False)
class Situation:
    """What a state-wise rule may look at, in units of cost; every tensor [...], one entry per state.

    Attributes:
        cost: ``d(x)``.
        backward_value: ``Vb(x)``, expected cost so far, ``d(x)`` included.
        baseline_cost: ``Q_D(x, pi_B(x))``, of the baseline policy's action.
        start_slack: ``d0 - V_D(x0)``, estimated from episodes; broadcasts.
        n_decisions: expected decisions per episode; broadcasts.
        limit: ``d0 (1 - margin)``.
    """

    cost: Tensor
    backward_value: Tensor
    baseline_cost: Tensor
    start_slack: Tensor
    n_decisions: Tensor
    limit: float


def unlimited_allowance(situation: Situation) -> Tensor:
    """Return ``+inf``: every action is admitted."""
    return torch.full_like(situation.cost, torch.inf)


def backward_allowance(situation: Situation) -> Tensor:
    """Return ``b = d0 + d(x) - Vb(x)``, the paper's (eqs. 6 and 9): what the expected past has left of the limit.

    Holds when: the values are those of the policy that acts. Feasible episodes do not follow from feasible states of
    *another* policy's values, and the set may be empty (chapters 6 and 7).
    """
    return situation.limit + situation.cost - situation.backward_value


def safeguarded_allowance(situation: Situation) -> Tensor:
    """Return ``b = max(d0 + d - Vb, Q_D(x, pi_B))``: never less than what the baseline needs, so never empty.

    Source: ours (chapter 7, safeguarded safe policy iteration).
    """
    return torch.maximum(backward_allowance(situation), situation.baseline_cost)


def lyapunov_allowance(situation: Situation) -> Tensor:
    """Return ``b = Q_D(x, pi_B) + (d0 - V_D(x0)) / T``, the constant Lyapunov slack shared among T decisions.

    Source: Chow et al. (2018, 2019), relative to the baseline *action*; the released code of the paper compares with
    the costliest action, which admits everything while the slack is not negative.
    """
    return situation.baseline_cost + situation.start_slack / situation.n_decisions


def forward_allowance(situation: Situation) -> Tensor:
    """Return ``b = d0``: the ablation that forgets the past."""
    return torch.full_like(situation.cost, situation.limit)


@dataclass(frozen=True)
class StateRule:
    """An allowance, and what it needs.

    Attributes:
        allowance: the function.
        needs_backward: whether it reads ``backward_value``.
        is_relative: whether it reads the baseline; a continuous policy is then linearised at the baseline's mean.
    """

    allowance: Callable[[Situation], Tensor]
    needs_backward: bool = False
    is_relative: bool = False


STATE_RULES: dict[str, StateRule] = {
    "none": StateRule(unlimited_allowance),
    "backward": StateRule(backward_allowance, needs_backward=True),
    "safeguarded": StateRule(safeguarded_allowance, needs_backward=True, is_relative=True),
    "lyapunov": StateRule(lyapunov_allowance, is_relative=True),
    "forward": StateRule(forward_allowance),
}
"""State-wise rules by name."""


@dataclass(frozen=True)
class Constraint:
    """A safety method; the default is none.

    Attributes:
        state_rule: a name of ``STATE_RULES``: what a decision may cost from here on.
        use: what the rule does: "projection" admits only actions within the allowance; "weight" makes the state's slack
            a weight on the multiplier.
        multiplier: the price of cost that follows the episodes.
        cost_limit_margin: the paper's delta; the method aims at ``d0 (1 - margin)``.
        warm_up: environment steps per run before the method acts.
        is_past_known: read the episode's realised cost so far in place of the backward critic.
        target_mix: the paper's kappa (appendix J), share of the baseline's mean in the proposal; 0 is the plain layer.
        baseline_period: updates between two copies of the actor that serve as baseline.
        min_gradient: gradients of Q_D per unit of action not longer than this count as zero.
        fallback_multiplier: price of cost where no discrete action is admitted; inf takes the cheapest action, as the
            paper does.
        weight_width: slack, in units of the limit, over which a "weight" falls from 3/4 to 1/4 is 2.2 times this.
    """

    state_rule: str = "none"
    use: Literal["projection", "weight"] = "projection"
    multiplier: Multiplier = field(default_factory=Multiplier)
    cost_limit_margin: float = 0.0
    warm_up: int = 0
    is_past_known: bool = False
    target_mix: float = 0.0
    baseline_period: int = 1
    min_gradient: float = 1e-3
    fallback_multiplier: float = torch.inf
    weight_width: float = 0.2

    def __post_init__(self) -> None:
        if self.state_rule not in STATE_RULES:
            raise ValueError(f"constraint.state_rule is {self.state_rule!r}; choose one of {', '.join(STATE_RULES)}.")
        if self.use not in ("projection", "weight"):
            raise ValueError(f"constraint.use is {self.use!r}; say 'projection' or 'weight'.")
        for key in ("cost_limit_margin", "target_mix"):
            if not 0 <= getattr(self, key) < 1:
                raise ValueError(f"constraint.{key} is {getattr(self, key)}; it must be in [0, 1).")
        for key in ("warm_up", "min_gradient", "fallback_multiplier"):
            if not getattr(self, key) >= 0:
                raise ValueError(f"constraint.{key} is {getattr(self, key)}; it must be >= 0.")
        if self.is_weighting and self.multiplier.rule == "recovery" and self.multiplier.recovery == torch.inf:
            raise ValueError(
                "constraint.use is 'weight' and multiplier.recovery is inf; no weight changes an infinite price. Give "
                "recovery a finite price, or use another multiplier."
            )
        if self.baseline_period < 1 or not self.weight_width > 0:
            raise ValueError(
                f"constraint.baseline_period is {self.baseline_period} and weight_width {self.weight_width}; the first "
                "is at least 1, the second positive."
            )

    @property
    def rule(self) -> StateRule:
        """The state-wise rule."""
        return STATE_RULES[self.state_rule]

    @property
    def is_projecting(self) -> bool:
        """Whether decisions are confined to a half-space."""
        return self.state_rule != "none" and self.use == "projection"

    @property
    def is_weighting(self) -> bool:
        """Whether the state's slack weighs the multiplier."""
        return self.state_rule != "none" and self.use == "weight"

    @property
    def needs_cost(self) -> bool:
        """Whether any forward cost estimate is needed."""
        return self.state_rule != "none" or self.multiplier.rule != "none"

    @property
    def needs_baseline(self) -> bool:
        """Whether a continuous policy is linearised at, or mixed with, a baseline."""
        return self.is_projecting and (self.rule.is_relative or self.target_mix > 0)

    @property
    def needs_backward(self) -> bool:
        """Whether a backward critic is needed."""
        return self.rule.needs_backward and not self.is_past_known

    def limit(self, cost_limit: float) -> float:
        """Return ``d0 (1 - margin)``, what the method aims at."""
        return cost_limit * (1 - self.cost_limit_margin)


def admitted(allowance: Tensor, cost_q: Tensor, gradient: Tensor, anchor: Tensor) -> HalfSpace:
    """Return the means whose linearised cost is within the allowance: ``Q_D + g . (u - anchor) <= b`` (eq. 9, app. J).

    For discrete actions the half-space is ``HalfSpace(Q_D(x, .), b)`` and needs no linearisation.

    Args:
        allowance: ``b(x)``, [...].
        cost_q: ``Q_D(x, anchor)``, [...].
        gradient: ``g = dQ_D/du`` at the anchor, [..., K].
        anchor: [..., K], where the cost was linearised.
    """
    return HalfSpace.around(anchor, gradient, allowance - cost_q)


def corrected_mean(halfspace: HalfSpace, proposal: Tensor, min_gradient: float) -> Projection:
    """Return the nearest mean in the half-space and the box [-1, 1]^K; where there is none, the proposal, flagged.

    Going to the cheapest corner instead ruins learning: an infeasible start would never move again.
    """
    step = project_box(halfspace, proposal, -1.0, 1.0, min_gradient)
    point = torch.where((step.status == Status.INFEASIBLE)[..., None], proposal, step.point)
    return replace(step, point=point)


def chosen_action(halfspace: HalfSpace, score: Tensor, fallback_score: Tensor) -> tuple[Tensor, Tensor]:
    """Return the best admitted action, where none is admitted the best by ``fallback_score``, and where that was so.

    Action elimination (section 4.1 of the paper); the mask is a comparison, never a product with the score.

    Args:
        halfspace: normal ``Q_D(x, .)`` [..., A], offset ``b(x)``.
        score: [..., A].
        fallback_score: [..., A].
    """
    action, is_feasible = halfspace.greedy_action(score)
    return torch.where(is_feasible, action, fallback_score.argmax(dim=-1)), ~is_feasible


def slack_share(allowance: Tensor, cost_value: Tensor, width: float) -> Tensor:
    """Return ``sigmoid(-slack / width)``, slack ``= b(x) - V_D(x)``: near 1 where the limit is spent, 1/2 at it."""
    return torch.sigmoid((cost_value - allowance) / width)


def slack_weight(allowance: Tensor, cost_value: Tensor, width: float, weight: Tensor) -> Tensor:
    """Return ``slack_share`` over its mean, [R, N]: how much more than the average state this one's cost weighs.

    Args:
        allowance: [R, N].
        cost_value: [R, N].
        width: units of cost.
        weight: [R, N], samples that count in the mean.
    """
    share = slack_share(allowance, cost_value, width)
    mean = (share * weight).sum(dim=1, keepdim=True) / weight.sum(dim=1, keepdim=True).clamp(min=1e-8)
    return share / mean.clamp(min=1e-8)


_RECOVERY, _PID = Multiplier("recovery"), Multiplier("pid")
_PREDICTIVE = Multiplier("pid", prediction=20.0)

CONSTRAINTS: Mapping[str, Constraint] = MappingProxyType(
    {
        "unconstrained": Constraint(),
        "backward": Constraint("backward", multiplier=_RECOVERY),
        "backward_alone": Constraint("backward"),
        "safeguarded": Constraint("safeguarded", multiplier=_RECOVERY),
        "lyapunov": Constraint("lyapunov", multiplier=_RECOVERY),
        "target": Constraint("backward", multiplier=_RECOVERY, target_mix=0.6),
        "lyapunov_target": Constraint("lyapunov", multiplier=_RECOVERY, target_mix=0.6),
        "lagrangian": Constraint(multiplier=Multiplier("lagrangian")),
        "pid": Constraint(multiplier=_PID),
        "predictive": Constraint(multiplier=_PREDICTIVE, cost_limit_margin=0.25),
        "backward_weight": Constraint("backward", "weight", _PREDICTIVE, cost_limit_margin=0.25),
        "forward_weight": Constraint("forward", "weight", _PREDICTIVE, cost_limit_margin=0.25),
        "recovery": Constraint(multiplier=_RECOVERY),
        "penalty": Constraint(multiplier=Multiplier("fixed")),
    }
)
"""Named methods, namely the paper's curves (unconstrained, backward, lyapunov, and these with target networks),
standards, and ablations."""
