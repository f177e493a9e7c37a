"""This file knows how a policy is judged: whole episodes in worlds of its own, sampled or deterministic."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..envs.base import VectorEnv
from ..envs.noise import ACT, NoiseStream, WorldNoise
from .learner import Learner
from .rollout import is_violation

__all__ = ["EVALUATION_WORLD", "Evaluation", "Evaluator"]

EVALUATION_WORLD = 1_000_000
"""Number of the first evaluation world of a run; training worlds count from 0, so that no noise is shared."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What N whole episodes of each run came to; every tensor [R, N].

    Attributes:
        gain: undiscounted return.
        cost: undiscounted cost, the start's and the last state's included.
        length: decisions.
    """

    gain: Tensor
    cost: Tensor
    length: Tensor

    def metrics(self, cost_limit: float, prefix: str) -> dict[str, Tensor]:
        """Return means and the share of episodes over the limit by name, each [R]."""
        return {
            f"{prefix}EpRet": self.gain.mean(dim=1),
            f"{prefix}EpCost": self.cost.mean(dim=1),
            f"{prefix}EpLen": self.length.mean(dim=1),
            f"{prefix}ViolationRate": is_violation(self.cost, cost_limit).float().mean(dim=1),
        }


class Evaluator:
    """Plays whole episodes with a policy in an environment of its own; every world plays equally many.

    A world that counted the episodes it finishes within a time would favour short ones.

    Args:
        env: the evaluation environment, never the training's; see ``EVALUATION_WORLD``.
        seeds: one per run, for the policy's own noise.
        n_episodes: at least so many per run and evaluation.
    """

    def __init__(self, env: VectorEnv | Any, seeds: tuple[int, ...], n_episodes: int = 10) -> None:
        self.env, self._seeds, self.n_episodes = env, seeds, n_episodes
        self._decision, self._is_started = 0, False
        worlds = range(EVALUATION_WORLD, EVALUATION_WORLD + env.n_envs)
        self._noise = WorldNoise.seeded(
            [seed for seed in seeds for _ in worlds], [*worlds] * len(seeds), torch.device(env.device)
        )
        self._stream: dict[int, NoiseStream] = {}

    @torch.no_grad()
    def __call__(self, learner: Learner, is_deterministic: bool) -> Evaluation:
        """Return what the policy's next episodes came to; the learner is not changed."""
        noise = self._stream.setdefault(learner.n_noise, NoiseStream(self._noise, learner.n_noise, ACT))
        step = self.env.reset() if self._is_started else self.env.reset(self._seeds[0])
        self._is_started = True
        per_world = -(-self.n_episodes // self.env.n_envs)
        total = torch.stack([torch.zeros_like(step.cost), step.cost, torch.zeros_like(step.cost)])
        done = torch.zeros_like(step.cost)
        kept: list[tuple[Tensor, Tensor]] = []
        while bool((done < per_world).any()):
            drawn = noise.at(self._decision).view(*step.cost.shape, -1)
            self._decision += 1
            action, _ = learner.decide(step, total[1], drawn, is_deterministic)
            step = self.env.step(action)
            # A start's reward is 0, its cost its own, and the step that shows it is no decision.
            new = torch.stack([step.reward, step.cost, (~step.is_first).to(step.cost.dtype)])
            total = total.masked_fill(step.is_first, 0.0) + new
            kept.append((total, step.is_last & (done < per_world)))
            done = done + step.is_last
        is_kept = torch.stack([mask for _, mask in kept])
        value = torch.stack([each for each, _ in kept])
        # [T, R, B] -> [R, B, T], then exactly per_world entries of each world are true.
        n_runs = len(self._seeds)
        chosen = [value[:, i].permute(1, 2, 0)[is_kept.permute(1, 2, 0)].view(n_runs, -1) for i in range(3)]
        return Evaluation(*chosen)

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the next evaluation depends on."""
        env = self.env.state_dict() if self._is_started and hasattr(self.env, "state_dict") else {}
        return {"decision": self._decision, "is_started": self._is_started, "env": env}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken."""
        self._decision, self._is_started = int(saved["decision"]), bool(saved["is_started"])
        if saved["env"]:
            self.env.load_state_dict(saved["env"])
