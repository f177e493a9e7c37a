"""This file knows a trained policy as NumPy users want it: observations in, actions out, and the file it is kept in."""

import io
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces

from ..agents import ActorCriticConfig, Constraint, Learner, Multiplier, SarsaConfig, Setting, make_learner
from ..agents.storage import load_file, write_atomically
from ..envs import TimeStep

__all__ = ["Policy", "load"]

Array = npt.NDArray[Any]
_FORMAT = "bvf_tutorial policy 1"


class Policy:
    """A trained policy: NumPy observations in, NumPy actions out; and the file it is kept in.

    Attributes:
        learner: the policy and its critics, of all runs.
        algorithm: its settings.
        constraint: its safety method.
        run: the run that acts.
    """

    def __init__(
        self, learner: Learner, algorithm: SarsaConfig | ActorCriticConfig, constraint: Constraint, run: int = 0
    ) -> None:
        self.learner, self.algorithm, self.constraint, self.run = learner, algorithm, constraint, run

    def __call__(
        self,
        observation: npt.ArrayLike,
        cost: npt.ArrayLike = np.nan,
        past: npt.ArrayLike = np.nan,
        generator: np.random.Generator | None = None,
    ) -> Array:
        """Return the deterministic action, flat, [K] or [N, K] (discrete: an integer, or [N]).

        Args:
            observation: [O] or [N, O], as ``Problem.make_env`` shows it.
            cost: ``d(x)`` of the state, a number or [N]; needed if ``needs_cost``.
            past: the episode's cost so far, this state's included, a number or [N]; needed if the method knows it.
            generator: samples an action instead, as in training.

        Raises:
            ValueError: a wrong shape, or a cost that the safety method needs is not given.
        """
        setting = self.learner.setting
        seen = np.asarray(observation, dtype=np.float32)
        if seen.ndim not in (1, 2) or seen.shape[-1:] != setting.observation_space.shape:
            raise ValueError(
                f"observation has shape {seen.shape}; this policy takes {setting.observation_space.shape} or a batch "
                "[N, ...] of it, as Problem.make_env() shows it."
            )
        n = 1 if seen.ndim == 1 else len(seen)
        self._require("cost", cost, self.needs_cost)
        self._require("past", past, self.needs_cost and self.constraint.is_past_known)
        shape = (setting.n_runs, n)
        floor = torch.zeros(shape, device=setting.device)
        given = [torch.tensor(np.broadcast_to(each, n), dtype=torch.float32) for each in (cost, past)]
        now, before = (each.to(setting.device).expand(shape) for each in given)
        batch = torch.from_numpy(seen.reshape(1, n, -1)).to(setting.device).expand(*shape, -1)
        never = floor > 0
        step = TimeStep(batch, floor, now, never, never, never)
        size = (n, self.learner.n_noise)
        noise = np.full(size, 0.5) if generator is None else generator.random(size)
        drawn = torch.from_numpy(noise.clip(1e-12, 1 - 1e-12)).to(setting.device).expand(*shape, -1)
        with torch.no_grad():
            action, _ = self.learner.decide(step, before, drawn, generator is None)
        array: Array = action[self.run].numpy(force=True)
        space = setting.action_space
        chosen = array.clip(space.low, space.high) if isinstance(space, spaces.Box) else array
        return np.asarray(chosen[0] if seen.ndim == 1 else chosen)

    @property
    def needs_cost(self) -> bool:
        """Whether acting reads the cost of the present state, as the backward rules do when they limit a decision."""
        is_deciding = self.constraint.is_projecting or isinstance(self.algorithm, SarsaConfig)
        return is_deciding and self.constraint.rule.needs_backward

    def save(self, path: str | Path) -> None:
        """Write the policy, its critics and settings to a file; a crash leaves the old file or the new one."""
        setting = self.learner.setting
        seen, space = setting.observation_space, setting.action_space
        box = [torch.as_tensor(each) for each in (space.low, space.high)] if isinstance(space, spaces.Box) else []
        content = {
            "format": _FORMAT,
            "algorithm": asdict(self.algorithm),
            "is_sarsa": isinstance(self.algorithm, SarsaConfig),
            "constraint": asdict(self.constraint),
            "observation": [torch.as_tensor(each) for each in (seen.low, seen.high)],
            "action": box or int(space.n),  # type: ignore[union-attr]
            "cost_limit": setting.cost_limit,
            "seeds": setting.seeds,
            "n_envs": setting.n_envs,
            "run": self.run,
            "learner": self.learner.state_dict(),
        }
        buffer = io.BytesIO()
        torch.save(_plain(content), buffer)
        write_atomically(Path(path), buffer.getvalue())

    def _require(self, key: str, value: npt.ArrayLike, is_needed: bool) -> None:
        if is_needed and np.isnan(np.asarray(value, dtype=np.float64)).any():
            raise ValueError(
                f"{key} is not given, and the safety method {self.constraint.state_rule!r} reads it when it decides; "
                f"pass {key}=... (info['cost'] of the last reset or step, or the episode's sum of them)."
            )


def _plain(value: Any) -> Any:
    """Return containers with Python's numbers for NumPy's, which torch does not load from a file that runs no code."""
    if type(value) is dict:
        return {key: _plain(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.item() if isinstance(value, np.generic) else value


def load(path: str | Path, device: str = "cpu") -> Policy:
    """Return the policy that ``Policy.save`` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: there is no such device here.
        ValueError: the file is damaged or no policy of this package.
    """
    if not Path(path).exists():
        raise FileNotFoundError(f"{path} does not exist.")
    try:
        return _restored(load_file(Path(path), device, _FORMAT), device)
    # Whatever a file with other entries, shapes or types gives.
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"{path} is damaged, or no policy of this package ({reason}).") from error


def _restored(saved: dict[str, Any], device: str) -> Policy:
    observation = spaces.Box(*(each.numpy(force=True) for each in saved["observation"]), dtype=np.float32)
    action: spaces.Box | spaces.Discrete = (
        spaces.Discrete(saved["action"])
        if isinstance(saved["action"], int)
        else spaces.Box(*(each.numpy(force=True) for each in saved["action"]), dtype=np.float32)
    )
    setting = Setting(
        observation, action, saved["cost_limit"], tuple(saved["seeds"]), saved["n_envs"], torch.device(device)
    )
    algorithm = (SarsaConfig if saved["is_sarsa"] else ActorCriticConfig)(**saved["algorithm"])
    constraint = Constraint(**{**saved["constraint"], "multiplier": Multiplier(**saved["constraint"]["multiplier"])})
    learner = make_learner(algorithm, constraint, setting)
    learner.load_state_dict(saved["learner"])
    return Policy(learner, algorithm, constraint, saved["run"])
