"""Count grid-world steps per second of the batched sampler, beside a plain Python loop, in one run.

Usage: ``python benchmarks/sampling.py [--rounds 5]``. One thread; the sizes take turns; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld

BATCHES = (1, 20, 400, 8000)


def loop(model: tb.CMDP, policy: np.ndarray, n_episodes: int, generator: np.random.Generator, horizon: int) -> int:
    """Sample with one ``choice`` per action and per step, as a first program would; return the number of steps."""
    steps = 0
    for _ in range(n_episodes):
        state = int(model.initial.argmax())
        for _ in range(horizon):
            action = generator.choice(model.n_actions, p=policy[state])
            steps += 1
            if generator.random() < model.termination[state, action]:
                break
            law = model.transition[state, action]
            state = int(generator.choice(model.n_states, p=law / law.sum()))
    return steps


def main() -> None:
    """Print steps per second of each way to sample, and its ratio to the loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    grid = GridWorld.random(0)
    model = grid.to_cmdp()
    policy = 0.5 * tb.optimal_policy(model).policy + 0.5 * tb.uniform_policy(model)
    generator = np.random.default_rng(0)
    rate: dict[str, list[float]] = {"loop": [], **{f"batch of {size}": [] for size in BATCHES}}
    for _ in range(rounds):
        start = time.perf_counter()
        steps = loop(model, policy, 20, generator, grid.horizon)
        rate["loop"].append(steps / (time.perf_counter() - start))
        for size in BATCHES:
            start = time.perf_counter()
            steps = int(tb.sample_episodes(model, policy, size, generator, grid.horizon).length.sum())
            rate[f"batch of {size}"].append(steps / (time.perf_counter() - start))
    base = statistics.median(rate["loop"])
    for name, rates in rate.items():
        median = statistics.median(rates)
        print(f"{name:>14}: {median:>12,.0f} steps/s, {median / base:>7.1f} x loop")


if __name__ == "__main__":
    main()
