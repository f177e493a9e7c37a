"""This file knows what a trained policy does afterwards: judged over many episodes, or filmed."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..envs.noise import ACT, NoiseStream, WorldNoise
from .evaluate import EVALUATION_WORLD, Evaluator
from .runs import RunFolder
from .storage import write_atomically
from .train import Trainer

__all__ = ["FILM_WORLD", "evaluate_folder", "film"]

FILM_WORLD = 2_000_000
"""Number of the world that is filmed; training and evaluation have others."""


def evaluate_folder(folder: RunFolder, n_episodes: int, is_deterministic: bool) -> dict[str, Any]:
    """Return, and write into the folder, what whole episodes with the checkpoint's policy came to.

    The file is ``evaluation_sampled.json`` or ``evaluation_deterministic.json``; ``runs`` has one entry a seed, in
    undiscounted units per episode.

    Args:
        folder: with a checkpoint.
        n_episodes: per run, in that many worlds that no training has seen.
        is_deterministic: the mean or greedy action in place of a sampled one.
    """
    config = folder.config
    trainer = _trained(folder)
    setting = trainer.learner.setting
    env = config.environment.make(n_episodes, config.n_runs, config.device, EVALUATION_WORLD)
    result = Evaluator(env, setting.seeds, n_episodes)(trainer.learner, is_deterministic)
    metric = {key: value.tolist() for key, value in result.metrics(setting.cost_limit, "").items()}
    report = {
        "done": trainer.done,
        "is_deterministic": is_deterministic,
        "n_episodes": n_episodes,
        "cost_limit": setting.cost_limit,
        "runs": [{"Seed": seed} | {key: metric[key][r] for key in metric} for r, seed in enumerate(setting.seeds)],
    }
    name = "deterministic" if is_deterministic else "sampled"
    write_atomically(folder.path / f"evaluation_{name}.json", f"{json.dumps(report, indent=2)}\n".encode())
    return report


@torch.no_grad()
def film(
    folder: RunFolder,
    run: int = 0,
    n_episodes: int = 1,
    is_deterministic: bool = True,
    size: tuple[int, int] = (480, 480),
) -> Iterator[npt.NDArray[np.uint8]]:
    """Give a picture [height, width, 3] of every state of whole episodes of one run's policy.

    Args:
        folder: with a checkpoint.
        run: position of the run, 0 for the first seed.
        n_episodes: how many, at least 1.
        is_deterministic: the mean or greedy action in place of a sampled one.
        size: (height, width), pixels.

    Raises:
        ValueError: no such run, or no episode.
    """
    config = folder.config
    if n_episodes < 1:
        raise ValueError(f"n_episodes is {n_episodes}; it is at least 1.")
    if not 0 <= run < config.n_runs:
        raise ValueError(f"run is {run}; this training has the runs 0 to {config.n_runs - 1}.")
    trainer = _trained(folder)
    learner = trainer.learner
    # All runs act, since their networks are one; one of them is drawn.
    env = config.environment.make(1, config.n_runs, config.device, FILM_WORLD)
    noise = WorldNoise.seeded(learner.setting.seeds, [FILM_WORLD] * config.n_runs, torch.device(config.device))
    stream = NoiseStream(noise, learner.n_noise, ACT)
    step = env.reset(config.seed)
    past, decision = step.cost, 0
    while n_episodes:
        yield env.render(run, size)
        if step.is_last[run, 0]:
            n_episodes -= 1
        drawn = stream.at(decision).view(*step.cost.shape, -1)
        action, _ = learner.decide(step, past, drawn, is_deterministic)
        step, decision = env.step(action), decision + 1
        past = step.cost + past.masked_fill(step.is_first, 0.0)


def _trained(folder: RunFolder) -> Trainer:
    trainer, _, warning = folder.trainer()
    if warning:
        print(warning, file=sys.stderr)
    return trainer
