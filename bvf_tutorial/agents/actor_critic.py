"""This file knows the actor-critic that is A2C and PPO, with a safety layer on the policy's mean.

A2C is PPO with one epoch over one minibatch: at ratio 1 the two losses have one gradient. The learner does not know
which safety method it runs. It asks the state-wise rule for a half-space when it *acts*, and keeps it: the policy that
an update makes is constrained by the estimates of the policy that acted, which is the iteration of eq. (6).
"""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ..envs.base import TimeStep, require
from ..envs.noise import SHUFFLE, WorldNoise
from ..halfspace import HalfSpace, Status
from .constraints import Constraint, admitted, corrected_mean, slack_weight
from .estimators import Initialisation, Moments, Stack, clip_by_run, mean_by_run, rows_by_run, standardised_by_run
from .learner import Decision, Learner, Setting, calibration, error_of, spread
from .multipliers import cost_share, predicted_multiplier
from .returns import backward_lambda_returns, lambda_returns
from .rollout import Rollout, by_run

__all__ = ["ActorCritic", "ActorCriticConfig"]


@dataclass(frozen=True)
class ActorCriticConfig:
    """PPO with clipping and GAE, and, with one epoch over one minibatch, A2C (Algorithm 1, appendix I of the paper).

    Attributes:
        n_steps: T, decisions between two updates; the horizon plus one is a whole episode with its restart.
        epochs: passes over a rollout.
        minibatches: parts of a pass.
        clip: the ratio's clipping range.
        actor_hidden: widths of the actor's hidden layers.
        critic_hidden: widths of the critics' hidden layers; an action enters at the second.
        activation: of every hidden layer; the mean is tanh, scaled to the action box.
        initialisation: of the weights.
        learning_rate: Adam's, of the actor.
        critic_learning_rate: of all critics.
        final_learning_rate: share of both rates that is left at the end of the training, linear in between.
        gamma: discount of rewards.
        cost_gamma: discount of costs, in both directions; 1 makes values comparable with the undiscounted limit.
        gae_lambda: mix of all forward returns.
        backward_lambda: mix of the backward lambda-returns.
        is_streamed: carry backward returns over from one rollout to the next; false is Algorithm 1 as printed.
        entropy_coef: the paper's beta.
        log_std: initial logarithm of the standard deviation, in half-widths of the action box; learned.
        max_gradient_norm: per run and network.
        is_observation_standardised: observations are standardised by their running moments, clamped to 10.
        is_reward_standardised: rewards are divided by the running standard deviation of the discounted return.
        cost_scale: costs are multiplied by it inside the networks.
    """

    n_steps: int = 200
    epochs: int = 5
    minibatches: int = 4
    clip: float = 0.2
    actor_hidden: tuple[int, ...] = (64, 64)
    critic_hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    initialisation: Initialisation = "orthogonal"
    learning_rate: float = 1e-3
    critic_learning_rate: float = 1e-3
    final_learning_rate: float = 1.0
    gamma: float = 0.99
    cost_gamma: float = 1.0
    gae_lambda: float = 0.95
    backward_lambda: float = 0.95
    is_streamed: bool = True
    entropy_coef: float = 0.001
    log_std: float = -1.0
    max_gradient_norm: float = 0.5
    is_observation_standardised: bool = False
    is_reward_standardised: bool = True
    cost_scale: float = 0.1

    def __post_init__(self) -> None:
        counts = ("n_steps", "epochs", "minibatches", "actor_hidden", "critic_hidden")
        rates = ("learning_rate", "critic_learning_rate", "final_learning_rate", "entropy_coef")
        shares = ("gamma", "cost_gamma", "gae_lambda", "backward_lambda")
        require(self, counts, lambda value: value >= 1, "at least 1", "algorithm.")
        require(self, rates, lambda value: 0 <= value < math.inf, "finite and >= 0", "algorithm.")
        require(self, shares, lambda value: 0 <= value <= 1, "in [0, 1]", "algorithm.")
        require(self, ("clip", "max_gradient_norm"), lambda value: value > 0, "positive", "algorithm.")
        require(self, ("cost_scale",), lambda value: 0 < value < math.inf, "finite and positive", "algorithm.")
        require(self, ("log_std",), math.isfinite, "finite", "algorithm.")


class ActorCritic(Learner):
    """A Gaussian policy whose mean passes the safety layer, with critics of reward, cost and past cost.

    Actions live in ``[-1, 1]^K`` here and are scaled to the box of the environment. ``Q_D(x, u)`` is regressed at the
    executed action: at the mean alone its gradient would not be identified (chapter 10).

    Raises:
        ValueError: actions are not a bounded box.
    """

    def __init__(self, config: ActorCriticConfig, constraint: Constraint, setting: Setting) -> None:
        super().__init__(constraint, setting, config.cost_gamma)
        space = setting.action_space
        if not isinstance(space, spaces.Box) or not space.is_bounded():
            raise ValueError(f"PPO and A2C take actions from a bounded box, not from {space}; use sarsa.")
        self.config, self.n_steps = config, config.n_steps
        low, high = (torch.as_tensor(each, device=setting.device) for each in (space.low, space.high))
        self._centre, self._half = (high + low) / 2, (high - low) / 2
        self.n_noise = n_actions = int(np.prod(space.shape))
        n_inputs, seeds = int(np.prod(setting.observation_space.shape)), setting.seeds
        body = {"activation": config.activation, "initialisation": config.initialisation}

        def critic(role: str, enters: int = 0) -> Stack:
            return Stack(n_inputs, config.critic_hidden, 1, seeds, role, n_actions=enters, **body)  # type: ignore[arg-type]

        network: dict[str, nn.Module] = {
            "actor": Stack(n_inputs, config.actor_hidden, n_actions, seeds, "actor", output_gain=0.01, **body),  # type: ignore[arg-type]
            "value": critic("value"),
        }
        if constraint.is_projecting:
            network["cost_q"] = critic("cost_q", n_actions)
        elif constraint.needs_cost:
            network["cost_value"] = critic("cost_value")
        if constraint.needs_backward:
            network["backward"] = critic("backward")
        self.network = nn.ModuleDict(network).to(setting.device)
        self.network.register_parameter(
            "log_std", nn.Parameter(torch.full((len(seeds), 1, n_actions), config.log_std, device=setting.device))
        )
        self._baseline = copy.deepcopy(self._stack("actor")).requires_grad_(False)
        actor = [*self.network["actor"].parameters(), self.log_std]
        rest = [p for name, net in self.network.items() if name != "actor" for p in net.parameters()]
        self.optimiser = torch.optim.Adam(
            [{"params": actor, "lr": config.learning_rate}, {"params": rest, "lr": config.critic_learning_rate}],
            fused=True,
        )
        self._shuffle = WorldNoise.seeded(seeds, [0] * len(seeds), setting.device)
        self._n_updates, self._acted = 0, copy.deepcopy(self._stack("actor").state_dict())
        self._seen = Moments.empty(len(seeds), n_inputs, setting.device)
        self._gained = Moments.empty(len(seeds), 1, setting.device)
        self._return = torch.zeros(len(seeds), setting.n_envs, device=setting.device)

    @property
    def log_std(self) -> nn.Parameter:
        """Logarithm of the standard deviation in half-widths of the box, [R, 1, K]."""
        return self.network.get_parameter("log_std")

    def mean(self, feature: Tensor) -> Tensor:
        """Return the actor's own mean, before any correction, in [-1, 1]^K; [R, N, K]."""
        raw: Tensor = self._stack("actor")(feature)
        return raw.tanh()

    def cost_q(self, feature: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Return ``Q_D(x, u)`` [R, N] and its gradient in the action [R, N, K], units of cost."""
        point = action.detach().requires_grad_()
        with torch.enable_grad():
            value = self._stack("cost_q")(feature, point)[..., 0] / self.config.cost_scale
            (gradient,) = torch.autograd.grad(value.sum(), point)
        return value.detach(), gradient

    def backward_value(self, feature: Tensor) -> Tensor:
        """Return ``Vb(x)``, [R, N], units of cost."""
        value: Tensor = self._stack("backward")(feature)[..., 0]
        return value / self.config.cost_scale

    @torch.no_grad()
    def decide(
        self, step: TimeStep, past: Tensor, noise: Tensor, is_deterministic: bool = False
    ) -> tuple[Tensor, Decision]:
        """Return a Gaussian action around the corrected mean; see ``Learner.decide``."""
        feature = step.observation
        if self.config.is_observation_standardised:
            feature = self._seen.standardise(feature)
        mean = self.mean(feature)
        decision: Decision = {"feature": feature, "past": past}
        if self.constraint.is_projecting:
            anchor = torch.tanh(self._baseline(feature)) if self.constraint.needs_baseline else mean
            value, gradient = self.cost_q(feature, anchor)
            backward = self.backward_value(feature) if self.constraint.needs_backward else past
            allowance = self.allowance(step.cost, backward, value)
            halfspace = admitted(allowance, value, gradient, anchor)
            proposal = torch.lerp(mean, anchor, self.constraint.target_mix)
            projection = corrected_mean(halfspace, proposal, self.constraint.min_gradient)
            mean = projection.point
            decision |= {
                "normal": halfspace.normal,
                "offset": halfspace.offset,
                "anchor": anchor,
                "slack": halfspace.slack(proposal),
                "status": projection.status,
                "correction": (mean - proposal).norm(dim=-1),
                "cost_value": value + (gradient * (mean - anchor)).sum(dim=-1),
                "backward": backward,
            }
        action = mean
        if not is_deterministic:
            action = mean + self.log_std.exp() * torch.special.ndtri(noise).to(mean.dtype)
        decision |= {"action": action, "log_probability": self._log_probability(mean, action)}
        return self._centre + self._half * action, decision

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Improve the policy and regress all critics on the rollout; see ``Learner.update``."""
        config = self.config
        self.set_rates((config.learning_rate, config.critic_learning_rate), config.final_learning_rate, progress)
        data, metric = self._prepared(rollout)
        n_samples = data["weight"].shape[1]
        divergence = []
        for epoch in range(config.epochs):
            if config.minibatches == 1:
                divergence.append(self._descend(data))
                continue
            shuffled = self._permutation(n_samples, self._n_updates * config.epochs + epoch)
            for part in shuffled.chunk(config.minibatches, dim=1):
                divergence.append(self._descend({key: rows_by_run(value, part) for key, value in data.items()}))
        self._n_updates += 1
        if self.constraint.needs_baseline and self._n_updates % self.constraint.baseline_period == 0:
            # The policy that collected the next rollout is one update ahead of its baseline.
            self._baseline.load_state_dict(self._acted)
        self._acted = copy.deepcopy(self._stack("actor").state_dict())
        if config.is_observation_standardised:
            self._seen = self._seen.after(by_run(rollout.observation[1:]))
        return metric | {
            "Divergence": torch.stack(divergence).mean(dim=0),
            "Std": self.log_std.exp().mean(dim=(1, 2)).detach(),
        }

    @torch.no_grad()
    def _prepared(self, rollout: Rollout) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return what the losses need of every sample, [R, T * B, ...], and diagnostics, [R]."""
        config, weight = self.config, by_run(rollout.is_move).to(torch.float32)
        feature = rollout.all_of("feature")
        everything = by_run(feature)
        data = {"feature": by_run(feature[:-1]), "next_feature": by_run(feature[1:]), "weight": weight}
        for key in ("action", "log_probability", "normal", "offset", "anchor"):
            if key in rollout.decision:
                data[key] = by_run(rollout.decision[key])
        metric: dict[str, Tensor] = {}
        reward = self._scaled_reward(rollout)
        value = self._stream(self._stack("value")(everything)[..., 0], rollout)
        signal = (reward, rollout.discount(config.gamma), value[1:], rollout.mix(config.gae_lambda))
        data["return"] = by_run(lambda_returns(*signal))
        data["advantage"] = standardised_by_run(data["return"] - by_run(value[:-1]), weight)
        if not self.constraint.needs_cost:
            return data, metric
        if "cost_q" in self.network:
            cost_value = rollout.all_of("cost_value")
        else:
            cost_value = self._stream(self._stack("cost_value")(everything)[..., 0] / config.cost_scale, rollout)
        to_go = rollout.cost_to_go(config.cost_gamma)
        target = lambda_returns(
            to_go, rollout.discount(config.cost_gamma), cost_value[1:], rollout.mix(config.gae_lambda)
        )
        data["cost_return"] = by_run(target) * config.cost_scale
        data["cost_change"] = by_run(target - cost_value[:-1])
        data["cost_advantage"] = standardised_by_run(data["cost_change"], weight)
        metric |= calibration(rollout, config.cost_gamma, cost_value[:-1])
        past = rollout.all_of("past")
        if self.constraint.needs_backward:
            if "backward" in rollout.decision:
                past = rollout.all_of("backward")
            else:
                past = self._stream(self.backward_value(everything), rollout)
            target, realised = self.past_targets(rollout, past, config.backward_lambda, config.is_streamed)
            data["past_return"] = by_run(target) * config.cost_scale
            metric |= error_of(past[1:] - realised, torch.ones_like(realised), "Backward")
        if self.constraint.is_weighting:
            cost = by_run(rollout.cost[:-1])
            allowance = self.allowance(cost, by_run(past[:-1]), by_run(cost_value[:-1]))
            width = self.constraint.weight_width * self.cost_unit
            data["price_weight"] = slack_weight(allowance, by_run(cost_value[:-1]), width, weight)
            metric |= spread(self._stream(allowance - by_run(cost_value[:-1]), rollout))
        if self.constraint.is_projecting:
            metric |= _layer_diagnostics(rollout)
        return data, metric

    def _stream(self, value: Tensor, rollout: Rollout) -> Tensor:
        """Return [R, T * B] or [R, (T + 1) * B] as [T, R, B] or [T + 1, R, B]."""
        return value.view(len(value), -1, rollout.reward.shape[2]).transpose(0, 1)

    def _scaled_reward(self, rollout: Rollout) -> Tensor:
        """Return the rewards of the moves, [T, R, B], over the running deviation of the discounted return if asked."""
        reward = rollout.reward[1:]
        if not self.config.is_reward_standardised:
            return reward
        discount = rollout.backward_discount(self.config.gamma)
        gained = backward_lambda_returns(reward, discount, reward, 1.0, self._return)
        self._return = gained[-1]
        self._gained = self._gained.after(by_run(gained)[..., None])
        return reward / self._gained.std

    def _permutation(self, n_samples: int, epoch: int) -> Tensor:
        """Return a random order of the samples of each run, [R, n_samples]."""
        return self._shuffle.start(epoch, n_samples, SHUFFLE).argsort(dim=1)

    def _policy_mean(self, data: Mapping[str, Tensor]) -> Tensor:
        """Return the corrected mean, [R, N, K], with the half-spaces of the policy that acted."""
        mean = self.mean(data["feature"])
        if "normal" not in data:
            return mean
        proposal = torch.lerp(mean, data["anchor"], self.constraint.target_mix)
        halfspace = HalfSpace(data["normal"], data["offset"])
        return corrected_mean(halfspace, proposal, self.constraint.min_gradient).point

    def _descend(self, data: Mapping[str, Tensor]) -> Tensor:
        """Take one gradient step on a minibatch [R, N, ...]; return the policy's divergence from the old one, [R]."""
        config, weight, feature = self.config, data["weight"], data["feature"]
        log_ratio = self._log_probability(self._policy_mean(data), data["action"]) - data["log_probability"]
        ratio = log_ratio.exp()
        advantage = self._advantage(data, ratio.detach())
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - config.clip, 1 + config.clip) * advantage)
        loss = -mean_by_run(surrogate, weight) - config.entropy_coef * self.log_std.sum(dim=(1, 2))
        error = self._stack("value")(feature)[..., 0] - data["return"]
        loss = loss + mean_by_run(error.square(), weight)
        if "cost_return" in data:
            taken = (data["action"],) if "cost_q" in self.network else ()
            critic = self._stack("cost_q" if taken else "cost_value")
            error = critic(feature, *taken)[..., 0] - data["cost_return"]
            loss = loss + mean_by_run(error.square(), weight)
        if "past_return" in data:
            error = self._stack("backward")(data["next_feature"])[..., 0] - data["past_return"]
            loss = loss + error.square().mean(dim=1)
        self.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss.sum())
        for name, net in self.network.items():
            own = [self.log_std] if name == "actor" else []
            clip_by_run([*net.parameters(), *own], config.max_gradient_norm)
        self.optimiser.step()
        return mean_by_run((ratio - 1 - log_ratio).detach(), weight)

    def _advantage(self, data: Mapping[str, Tensor], ratio: Tensor) -> Tensor:
        """Return ``(A_R - l A_D) / (1 + l)``, [R, N]; the price may depend on the state and on the ratios so far."""
        if not self.is_acting or "cost_advantage" not in data:
            return data["advantage"]
        gains, price = self.constraint.multiplier, self.multiplier.value
        if gains.prediction > 0:
            change = self.n_decisions * mean_by_run((ratio - 1) * data["cost_change"], data["weight"])
            price = predicted_multiplier(gains, price, change, self.cost_unit)
        price = price[:, None]
        if "price_weight" in data:
            price = price * data["price_weight"]
        return torch.lerp(data["advantage"], -data["cost_advantage"], cost_share(price))

    def _log_probability(self, mean: Tensor, action: Tensor) -> Tensor:
        score = (action - mean) * torch.exp(-self.log_std)
        return (-0.5 * score.square() - self.log_std).sum(dim=-1)

    def _stack(self, name: str) -> Stack:
        return self.network[name]  # type: ignore[return-value]

    def _memory(self) -> dict[str, Tensor]:
        memory = {"return": self._return, "n_updates": torch.tensor(self._n_updates)}
        for name, moments in (("seen", self._seen), ("gained", self._gained)):
            memory |= {f"{name}.{key}": value for key, value in moments.state().items()}
        for name, actor in (("baseline", self._baseline.state_dict()), ("acted", self._acted)):
            memory |= {f"{name}.{key}": value for key, value in actor.items()}
        return memory

    def _restore(self, memory: Mapping[str, Tensor]) -> None:
        def part(name: str) -> dict[str, Tensor]:
            return {key.removeprefix(f"{name}."): value for key, value in memory.items() if key.startswith(f"{name}.")}

        self._return, self._n_updates = memory["return"], int(memory["n_updates"])
        self._seen, self._gained = Moments(**part("seen")), Moments(**part("gained"))
        self._baseline.load_state_dict(part("baseline"))
        self._acted = part("acted")


def _layer_diagnostics(rollout: Rollout) -> dict[str, Tensor]:
    """Return what the safety layer did, each [R]."""
    status = rollout.decision["status"]
    return spread(rollout.decision["slack"]) | {
        "EmptyShare": (status >= Status.ZERO_GRADIENT).float().mean(dim=(0, 2)),
        "CorrectedShare": (status == Status.ACTIVE).float().mean(dim=(0, 2)),
        "CorrectionSize": rollout.decision["correction"].mean(dim=(0, 2)),
    }
