"""This file knows n-step SARSA with action elimination.

The learner does not know which safety method it runs: it asks the state-wise rule for a half-space when it acts.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ..envs.base import TimeStep, require
from ..halfspace import HalfSpace
from .constraints import Constraint, chosen_action, slack_share
from .estimators import Initialisation, Stack, mean_by_run, rows_by_run
from .learner import Decision, Learner, Setting, error_of, spread
from .multipliers import cost_share
from .returns import lambda_returns
from .rollout import Rollout, by_run

__all__ = ["Sarsa", "SarsaConfig"]


@dataclass(frozen=True)
class SarsaConfig:
    """n-step synchronous SARSA over finitely many observations (appendices G and I.1 of the paper).

    Attributes:
        n_steps: n, decisions between two updates, and steps of the returns.
        hidden: widths of the hidden layers; relu.
        learning_rate: Adam's, of the reward critic.
        cost_learning_rate: of both cost critics.
        final_learning_rate: share of all rates that is left at the end of the training, linear in between.
        gamma: discount of rewards.
        cost_gamma: discount of costs, in both directions; 1 makes values comparable with the undiscounted limit.
        backward_lambda: mix of the backward lambda-returns.
        is_streamed: carry backward returns over from one rollout to the next; false is Algorithm 1 as printed.
        epsilon: first and last probability of a uniformly random action.
        epsilon_steps: environment steps per run over which it falls linearly.
        reward_scale: rewards are multiplied by it inside the networks.
        cost_scale: costs are multiplied by it inside the networks.
        initialisation: of the weights.
    """

    n_steps: int = 4
    hidden: tuple[int, ...] = (64, 64, 64)
    learning_rate: float = 1e-3
    cost_learning_rate: float = 5e-4
    final_learning_rate: float = 1.0
    gamma: float = 0.99
    cost_gamma: float = 0.99
    backward_lambda: float = 0.95
    is_streamed: bool = True
    epsilon: tuple[float, float] = (1.0, 0.01)
    epsilon_steps: int = 200_000
    reward_scale: float = 0.01
    cost_scale: float = 0.1
    initialisation: Initialisation = "uniform"

    def __post_init__(self) -> None:
        rates = ("learning_rate", "cost_learning_rate", "final_learning_rate")
        require(self, ("n_steps", "hidden"), lambda value: value >= 1, "at least 1", "algorithm.")
        require(self, ("epsilon_steps",), lambda value: value >= 0, ">= 0", "algorithm.")
        require(self, rates, lambda value: 0 <= value < math.inf, "finite and >= 0", "algorithm.")
        require(
            self,
            ("gamma", "cost_gamma", "backward_lambda", "epsilon"),
            lambda value: 0 <= value <= 1,
            "in [0, 1]",
            "algorithm.",
        )
        require(
            self,
            ("reward_scale", "cost_scale"),
            lambda value: 0 < value < math.inf,
            "finite and positive",
            "algorithm.",
        )


class Sarsa(Learner):
    """SARSA with action elimination: the greedy action among those that the half-space admits.

    Observations come from a finite set, as one-hot vectors or as their index. Its networks are evaluated once per
    update at *every* observation; acting, bootstrapping and training then look up. The baseline of a relative
    rule is the greedy action that was last chosen at the observation.

    Raises:
        ValueError: observations are not finite, or actions are not discrete.
    """

    n_noise = 2

    def __init__(self, config: SarsaConfig, constraint: Constraint, setting: Setting) -> None:
        super().__init__(constraint, setting, config.cost_gamma)
        if not isinstance(setting.action_space, spaces.Discrete):
            raise ValueError(f"SARSA chooses among discrete actions, not from {setting.action_space}; use ppo or a2c.")
        self.config, self.n_steps = config, config.n_steps
        self._n_actions, self._n_codes = int(setting.action_space.n), _n_codes(setting.observation_space)
        outputs = {"q": self._n_actions}
        if constraint.needs_cost:
            outputs["cost_q"] = self._n_actions
        if constraint.needs_backward:
            outputs["backward"] = 1
        self.network = nn.ModuleDict(
            {
                name: Stack(self._n_codes, config.hidden, n, setting.seeds, name, "relu", config.initialisation)
                for name, n in outputs.items()
            }
        ).to(setting.device)
        rates = {"q": config.learning_rate, "cost_q": config.cost_learning_rate, "backward": config.cost_learning_rate}
        self._rates = [rates[name] for name in self.network]
        self.optimiser = torch.optim.Adam(
            [
                {"params": list(net.parameters()), "lr": rate}
                for net, rate in zip(self.network.values(), self._rates, strict=True)
            ],
            fused=True,
        )
        self._scale = {"q": config.reward_scale, "cost_q": config.cost_scale, "backward": config.cost_scale}
        self._refresh()
        self._baseline = self._shown.get("cost_q", -self._shown["q"]).argmin(dim=2)
        self._mean_share = torch.full((setting.n_runs,), 0.5, device=setting.device)

    @property
    def epsilon(self) -> float:
        """Present probability of a uniformly random action."""
        first, last = self.config.epsilon
        return first + (last - first) * min(1.0, self.n_env_steps / max(1, self.config.epsilon_steps))

    def _refresh(self) -> None:
        """Evaluate every network at every observation: ``_table`` learns, ``_shown`` acts, in environment units."""
        self._table = {name: self._stack(name).table() for name in self.network}
        self._shown = {name: table.detach() / self._scale[name] for name, table in self._table.items()}

    def decide(
        self, step: TimeStep, past: Tensor, noise: Tensor, is_deterministic: bool = False
    ) -> tuple[Tensor, Decision]:
        """Return an epsilon-greedy action, greedy within the half-space; see ``Learner.decide``."""
        code = self._code(step.observation)
        value = {name: rows_by_run(table, code) for name, table in self._shown.items()}
        decision: Decision = {"code": code}
        score = value["q"]
        greedy = score.argmax(dim=-1)
        if "cost_q" in value and self.is_acting:
            multiplier = self.multiplier.value[:, None]
            if self.constraint.state_rule != "none":
                baseline = self._baseline.gather(1, code)
                backward = value["backward"][..., 0] if "backward" in value else past
                base_cost = value["cost_q"].gather(2, baseline[..., None])[..., 0]
                allowance = self.allowance(step.cost, backward, base_cost)
                decision |= {"allowance": allowance, "slack": allowance - base_cost}
            if self.constraint.is_weighting:
                # Over the last rollout's mean: a mean over the present worlds would make a world's action their affair.
                decision["share"] = slack_share(allowance, base_cost, self.constraint.weight_width * self.cost_unit)
                multiplier = multiplier * decision["share"] / self._mean_share[:, None]
            score = torch.lerp(score, -value["cost_q"], cost_share(multiplier)[..., None])
            greedy = score.argmax(dim=-1)
            if self.constraint.is_projecting:
                fallback = cost_share(torch.tensor(self.constraint.fallback_multiplier))
                second = torch.lerp(value["q"], -value["cost_q"], fallback)
                greedy, is_empty = chosen_action(HalfSpace(value["cost_q"], allowance), score, second)
                decision["is_empty"] = is_empty
        action = greedy
        if not is_deterministic:
            explores = noise[..., 0] < self.epsilon
            action = torch.where(explores, (noise[..., 1] * self._n_actions).to(torch.int64), greedy)
        return action, decision | {"action": action, "greedy": greedy}

    def greedy_policy(self, cost: Tensor) -> Tensor:
        """Return the greedy action at every observation, [R, C]; for exact evaluation on a known model.

        Args:
            cost: ``d(x)`` of every observation, [R, C].
        """
        code = torch.arange(self._n_codes, device=cost.device).expand_as(cost)
        never = torch.zeros_like(cost, dtype=torch.bool)
        step = TimeStep(code[..., None].to(cost.dtype), torch.zeros_like(cost), cost, never, never, never)
        return self.decide(step, cost, torch.zeros(*cost.shape, self.n_noise), is_deterministic=True)[0]

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Regress all critics on the rollout's n-step returns; see ``Learner.update``."""
        config, entry = self.config, by_run(rollout.all_of("code") * self._n_actions + rollout.all_of("action"))
        self.set_rates(self._rates, config.final_learning_rate, progress)
        weight = by_run(rollout.is_move).to(torch.float32)
        n, shape = weight.shape[1], rollout.reward.shape
        metric: dict[str, Tensor] = {}
        losses = []
        for name, signal, gamma in (
            ("q", rollout.reward[1:], config.gamma),
            ("cost_q", rollout.cost_to_go(config.cost_gamma), config.cost_gamma),
        ):
            if name in self._table:
                value = self._table[name].flatten(1).gather(1, entry)
                stream = value.detach().view(shape[1], shape[0], shape[2]).transpose(0, 1)
                target = lambda_returns(
                    signal * self._scale[name], rollout.discount(gamma), stream[1:], rollout.mix(1.0)
                )
                losses.append(mean_by_run((value[:, :n] - by_run(target)).square(), weight))
        if "backward" in self._table:
            value = self._table["backward"][..., 0].gather(1, by_run(rollout.all_of("code")))
            stream = value.detach().view(shape[1], shape[0], shape[2]).transpose(0, 1) / self._scale["backward"]
            target, realised = self.past_targets(rollout, stream, config.backward_lambda, config.is_streamed)
            error = value[:, -n:] - by_run(target) * self._scale["backward"]
            losses.append(error.square().mean(dim=1))
            metric |= error_of(stream[1:] - realised, torch.ones_like(realised), "Backward")
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(torch.stack(losses).sum())
        self.optimiser.step()
        self._refresh()
        if "allowance" in rollout.decision:
            code, greedy = by_run(rollout.decision["code"]), by_run(rollout.decision["greedy"])
            self._baseline = self._baseline.scatter(1, code, greedy)
            metric |= spread(rollout.decision["slack"])
        if "share" in rollout.decision:
            self._mean_share = rollout.decision["share"].mean(dim=(0, 2)).clamp(min=1e-8)
        if "is_empty" in rollout.decision:
            metric["EmptyShare"] = rollout.decision["is_empty"].float().mean(dim=(0, 2))
        return metric

    def _stack(self, name: str) -> Stack:
        return self.network[name]  # type: ignore[return-value]

    def _code(self, observation: Tensor) -> Tensor:
        return observation.argmax(dim=-1) if observation.shape[-1] > 1 else observation[..., 0].to(torch.int64)

    def _memory(self) -> dict[str, Tensor]:
        return {"baseline": self._baseline, "mean_share": self._mean_share}

    def _restore(self, memory: Mapping[str, Tensor]) -> None:
        self._baseline, self._mean_share = memory["baseline"], memory["mean_share"]
        self._refresh()


def _n_codes(space: spaces.Box) -> int:
    """Return how many observations there are: a one-hot vector's length, or one more than the largest index."""
    if space.shape == (1,) and np.isfinite(space.high[0]) and space.low[0] == 0 and space.high[0] == int(space.high[0]):
        return int(space.high[0]) + 1
    if len(space.shape) == 1 and space.shape[0] > 1 and (space.low == 0).all() and (space.high == 1).all():
        return int(space.shape[0])
    raise ValueError(
        f"SARSA looks values up at finitely many observations, a one-hot vector or one index from 0, not at {space}; "
        "use gymnasium.wrappers.DiscretizeObservation, or ppo or a2c."
    )
