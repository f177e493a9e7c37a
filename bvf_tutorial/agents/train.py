"""This file knows the training loop, one for every learner and method: collect, note episodes, update, evaluate."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from ..envs.base import TimeStep, VectorEnv
from ..envs.noise import ACT, NoiseStream, WorldNoise
from .evaluate import Evaluator
from .learner import Learner
from .rollout import EpisodeTotals, Rollout

__all__ = ["DivergenceError", "Row", "Trainer"]

Row = dict[str, float]
"""One run's metrics at one moment, by their field names (EpRet, EpCost, ...); NaN is "no data"."""


class DivergenceError(ValueError):
    """A network has a weight that is no finite number; the message names the run, the step and the weight."""


class Trainer:
    """R runs that train as one; everything the future depends on is in ``state_dict``.

    Args:
        env: the training environment, not yet reset.
        learner: made for it.
        seed: run r has the seed ``seed + r``; environments, first weights and exploration follow from it.
        n_env_steps: environment steps per run, restarts included.
        evaluator: judges the policy; it has an environment of its own.
        log_every: environment steps per run between two rows of metrics.
        evaluate_every: environment steps per run between two evaluations; 0 for none.

    Raises:
        ValueError: ``log_every`` or ``evaluate_every`` is out of its range.
    """

    def __init__(
        self,
        env: VectorEnv | Any,
        learner: Learner,
        seed: int,
        n_env_steps: int,
        evaluator: Evaluator,
        log_every: int = 10_000,
        evaluate_every: int = 0,
    ) -> None:
        if log_every < 1 or evaluate_every < 0:
            raise ValueError(f"log_every is {log_every}, at least 1; evaluate_every is {evaluate_every}, at least 0.")
        self.env, self.learner, self.seed, self.n_env_steps = env, learner, seed, n_env_steps
        self.evaluator, self.log_every, self.evaluate_every = evaluator, log_every, evaluate_every
        self.done = self._evaluated = 0
        seeds, worlds = learner.setting.seeds, range(env.n_envs)
        noise = WorldNoise.seeded([s for s in seeds for _ in worlds], [*worlds] * len(seeds), torch.device(env.device))
        self._noise = NoiseStream(noise, learner.n_noise, ACT)
        self._decision = 0
        self._step: TimeStep = env.reset(seed)
        self._past = self._step.cost
        self.totals = EpisodeTotals.started(self._step)
        learner.begin(self._step)
        self._sum: dict[str, Tensor] = {}

    @property
    def is_finished(self) -> bool:
        """Whether ``n_env_steps`` have been made."""
        return self.done >= self.n_env_steps

    @torch.no_grad()
    def collect(self) -> Rollout:
        """Return the next rollout and move the environment on."""
        learner, shape = self.learner, self._step.cost.shape
        steps, decisions = [self._step], []
        for _ in range(learner.n_steps):
            noise = self._noise.at(self._decision).view(*shape, -1)
            self._decision += 1
            action, decision = learner.decide(steps[-1], self._past, noise)
            step = self.env.step(action)
            self._past = step.cost + self._past.masked_fill(step.is_first, 0.0)
            steps.append(step)
            decisions.append(decision)
        # What is bootstrapped from at T is decided with the noise that the next rollout's first decision will use.
        _, last = learner.decide(steps[-1], self._past, self._noise.at(self._decision).view(*shape, -1))
        self._step = steps[-1]
        return Rollout.of(steps, decisions, last)

    def advance(self) -> list[Row]:
        """Make one rollout and one update; return the rows of metrics that are due, one per run.

        Raises:
            EnvironmentFault: the environment got or gave a number that no learner may see.
            DivergenceError: a weight is not finite; looked for before every row and every ``state_dict``.
        """
        rollout = self.collect()
        before, self.done = self.done, self.done + rollout.n_steps * self.env.n_envs
        self.totals = self.totals.after(rollout, self.learner.setting.cost_limit, self.env.n_envs)
        self.learner.note_episodes(self.totals, self.done)
        self._gather(self.learner.update(rollout, self.done / self.n_env_steps))
        if self.done // self.log_every == before // self.log_every and not self.is_finished:
            return []
        self.env.check()
        self._require_finite()
        metric = self._flushed()
        every = self.evaluate_every
        if every and (self.done // every > self._evaluated // every or self.is_finished):
            self._evaluated = self.done
            for name, is_deterministic in (("Sampled", False), ("Greedy", True)):
                result = self.evaluator(self.learner, is_deterministic)
                metric |= result.metrics(self.learner.setting.cost_limit, name)
        table = {key: value.tolist() for key, value in metric.items()}
        seeds = self.learner.setting.seeds
        return [
            {"Step": self.done, "Seed": seed} | {key: table[key][r] for key in table} for r, seed in enumerate(seeds)
        ]

    def _require_finite(self) -> None:
        for key, value in self.learner.network.state_dict().items():
            is_bad = ~value.isfinite().flatten(1).all(dim=1)
            if bool(is_bad.any()):
                run = int(is_bad.nonzero()[0])
                name = self.env.task.name if isinstance(self.env, VectorEnv) else self.env.name
                where = f"{name}, run {run}, seed {self.learner.setting.seeds[run]}, step {self.done}"
                raise DivergenceError(
                    f"{where}: network {key} is not finite, the training has diverged; begin again with lower learning "
                    "rates."
                )

    def _gather(self, metric: Mapping[str, Tensor]) -> None:
        """Add an update's diagnostics, each [R], to the sums of the next row; NaN is no data and does not count."""
        totals, count = self.totals, self.totals.is_new * self.totals.recent[0]
        named = dict(zip(("EpRet", "EpCost", "EpLen", "ViolationRate"), totals.recent[1:], strict=True))
        for key, value in named.items():
            self._add(key, value, count)
        for key, value in metric.items():
            self._add(key, value, torch.isfinite(value).to(torch.float32))

    def _add(self, key: str, value: Tensor, weight: Tensor) -> None:
        entry = torch.stack([torch.where(weight > 0, value, 0.0) * weight, weight])
        self._sum[key] = self._sum[key] + entry if key in self._sum else entry

    def _flushed(self) -> dict[str, Tensor]:
        """Return the means since the last row, each [R], and begin the next; 0 / 0 is NaN, "no data"."""
        mean = {key: total / weight for key, (total, weight) in self._sum.items()}
        mean["EpLen"] = mean["EpLen"] - 1  # decisions, one less than states
        mean["Episodes"] = self._sum["EpCost"][1]
        mean["LagrangeMultiplier"] = self.learner.multiplier.value
        self._sum = {}
        return mean

    def state_dict(self) -> dict[str, Any]:
        """Return everything that the future depends on, as plain tensors, numbers and containers of them.

        Raises:
            TypeError: the environment is a foreign one, whose state nobody can read; its policy can be saved.
            DivergenceError: a weight is not finite, so that nothing could go on from here.
        """
        self._require_finite()
        if not isinstance(self.env, VectorEnv):
            raise TypeError(
                f"{self.env.name} does not tell its state, so this training cannot be resumed exactly; train in "
                "one go, and save the policy with api.Policy.save or its learner's state_dict."
            )
        return {
            "done": self.done,
            "evaluated": self._evaluated,
            "decision": self._decision,
            "env": self.env.state_dict(),
            "step": {field.name: getattr(self._step, field.name) for field in fields(TimeStep)},
            "past": self._past,
            "totals": {field.name: getattr(self.totals, field.name) for field in fields(EpisodeTotals)},
            "sum": dict(self._sum),
            "learner": self.learner.state_dict(),
            "evaluator": self.evaluator.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Go on exactly where ``state_dict`` was taken."""
        self.done, self._decision = int(saved["done"]), int(saved["decision"])
        self._evaluated = int(saved["evaluated"])
        self.env.load_state_dict(saved["env"])
        self._step, self._past = TimeStep(**saved["step"]), saved["past"]
        self.totals, self._sum = EpisodeTotals(**saved["totals"]), dict(saved["sum"])
        self.learner.load_state_dict(saved["learner"])
        self.evaluator.load_state_dict(saved["evaluator"])
