"""Environment steps per CPU-second with training, where the time goes, and Stable-Baselines3 beside it, in one run.

Usage: ``python -m benchmarks.agents [--rounds 5] [--seconds 2] [--only REGEX] [--out FILE]``.

Everything takes turns, round by round: a turn makes whole rollouts with their updates until ``--seconds`` of CPU time
are spent, and a row is the median over rounds. 20 environments per run, one thread, no evaluation. The shares are of
the time in ``env.step``, ``learner.decide`` and ``learner.update``; the rest is the loop's. The floor is the CPU time
of the bare matrix products of the updates, same shapes and number, as a share of the row's time: what no rewriting
saves.

Stable-Baselines3 has no safety methods, so its rows are unconstrained. It plays once as its users make environments
("its vector": 20 Gymnasium environments in a DummyVecEnv) and once with our batch of 20 worlds behind its interface,
which leaves only the learner to compare. Ratios are taken within each round, to the latter.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import numpy as np
import torch
from torch import Tensor

from bvf_tutorial.agents import ActorCriticConfig, Stack, Trainer, make_trainer, preset

N_ENVS = 20
"""Worlds per run, of every row: a preset of its own number would compare batches, not learners."""
HAS_SB3 = importlib.util.find_spec("stable_baselines3") is not None
# Row -> preset, runs, and the target in environment steps per CPU-second (0 for none).
OURS: dict[str, tuple[str, int, int]] = {
    "grid SARSA": ("grid-sarsa-unconstrained", 20, 180_000),
    "grid SARSA, backward": ("grid-sarsa-backward", 20, 60_000),
    "circle PPO, 1 run": ("circle-ppo-unconstrained", 1, 0),
    "circle PPO": ("circle-ppo-unconstrained", 10, 0),
    "circle PPO, backward, 1 run": ("circle-ppo-backward", 1, 0),
    "circle PPO, backward": ("circle-ppo-backward", 10, 12_000),
    "circle PPO, backward, paper's networks": ("circle-ppo_paper-backward", 10, 12_000),
    "circle PPO, backward weight": ("circle-ppo-backward_weight", 10, 0),
    "circle A2C, 1 run": ("circle-a2c-unconstrained", 1, 0),
    "circle A2C": ("circle-a2c-unconstrained", 10, 0),
    "circle A2C, backward": ("circle-a2c-backward", 10, 40_000),
    "circle A2C, backward, paper's networks": ("circle-a2c_paper-backward", 10, 0),
    "cheetah PPO, 1 run": ("cheetah-ppo-unconstrained", 1, 0),
    "cheetah PPO": ("cheetah-ppo-unconstrained", 10, 0),
    "cheetah PPO, backward": ("cheetah-ppo-backward", 10, 4_000),
}
SB3 = [f"{task} {kind}, SB3, {worlds}" for task, kind in (("circle", "PPO"), ("circle", "A2C"), ("cheetah", "PPO"))
       for worlds in ("our worlds", "its vector")]  # fmt: skip


@dataclass
class Runner:
    """Something that trains: ``advance`` makes ``size`` environment steps and learns from them."""

    advance: Callable[[], object]
    size: int
    spent: dict[str, float] = field(default_factory=dict)
    floor: Callable[[], float] = lambda: 0.0

    def measure(self, seconds: float) -> dict[str, float]:
        """Return steps per CPU-second over at least this many CPU-seconds, and the shares of the parts in them."""
        self.advance()
        self.spent.update(dict.fromkeys(self.spent, 0.0))
        begin, n = time.process_time(), 0
        while (total := time.process_time() - begin) < seconds:
            self.advance()
            n += 1
        shares = {part: cpu / total for part, cpu in self.spent.items()}
        return {"rate": n * self.size / total, **shares, "floor": self.floor() * n / total}


def ours(name: str, n_runs: int) -> Runner:
    """Return a training of ours, its three parts timed."""
    trainer = make_trainer(preset(name, n_runs=n_runs, n_envs=N_ENVS, n_env_steps=10**9, evaluate_every=0))
    runner = Runner(trainer.advance, trainer.learner.n_steps * trainer.env.n_envs * n_runs)
    runner.floor = lambda: floor(trainer)
    learner = trainer.learner
    parts = (("simulation", trainer.env, "step"), ("acting", learner, "decide"), ("updating", learner, "update"))
    for part, owner, method in parts:
        setattr(owner, method, timed(getattr(owner, method), runner.spent, part))
    return runner


def timed(function: Callable[..., Any], spent: dict[str, float], part: str) -> Callable[..., Any]:
    """Return the function with its CPU time added up."""
    spent[part] = 0.0

    def call(*args: Any, **options: Any) -> Any:
        begin = time.process_time()
        result = function(*args, **options)
        spent[part] += time.process_time() - begin
        return result

    return call


def floor(trainer: Trainer) -> float:
    """Return the CPU-seconds of one update's bare matrix products: forward, and backward in weights and inputs."""
    learner = trainer.learner
    config: Any = learner.config  # type: ignore[attr-defined]
    is_batched = isinstance(config, ActorCriticConfig)
    n_samples, n_passes, n_updates = learner.n_steps * trainer.env.n_envs, 1, 1
    if is_batched:
        n_passes, n_updates = config.minibatches, config.epochs * config.minibatches
    product: list[Callable[[], Tensor]] = []
    for network in learner.network.values():
        assert isinstance(network, Stack)
        for layer, weight in enumerate(each.detach() for each in network.weight):
            n_runs, n_in, n_out = weight.shape
            if not is_batched and layer == 0:
                continue  # a code's first layer is a row of its weight
            n = -(-n_samples // n_passes) if is_batched else network.weight[0].shape[1]
            sample, error = torch.randn(n_runs, n, n_in), torch.randn(n_runs, n, n_out)
            product.append(lambda x=sample, w=weight: torch.bmm(x, w))
            product.append(lambda x=sample, e=error: torch.bmm(x.mT, e))
            if layer > 0:  # nobody asks for the gradient in the observation
                product.append(lambda e=error, w=weight: torch.bmm(e, w.mT))
    times = []
    for _ in range(3):
        begin = time.process_time()
        for each in product:
            each()
        times.append(time.process_time() - begin)
    return n_updates * min(times)


def stable_baselines3(task: str, kind: str, worlds: str) -> Runner:
    """Return Stable-Baselines3's PPO or A2C, unconstrained, sized as our preset."""
    import stable_baselines3 as sb3
    from stable_baselines3.common.env_util import make_vec_env

    config = preset(f"{task}-{kind.lower()}-unconstrained")
    algorithm: Any = config.algorithm
    if worlds == "our worlds":
        env = batched(config.environment.make(N_ENVS, 1))
    else:
        spec = config.environment
        options = {"is_time_aware": spec.is_time_aware, "time_limit": spec.time_limit, **spec.options}
        env = make_vec_env(
            lambda: gymnasium.make(f"bvf_tutorial.envs:bvf/{spec.name}-v0", **options), n_envs=N_ENVS, seed=0
        )
    n_steps = algorithm.n_steps - 1  # its restart takes no step of its own
    common = {
        "n_steps": n_steps, "learning_rate": algorithm.learning_rate, "gae_lambda": algorithm.gae_lambda,
        "policy_kwargs": {"net_arch": {"pi": [*algorithm.actor_hidden], "vf": [*algorithm.critic_hidden]}},
        "device": "cpu", "seed": 0,
    }  # fmt: skip
    if kind == "PPO":
        batch = -(-n_steps * N_ENVS // algorithm.minibatches)
        model: Any = sb3.PPO("MlpPolicy", env, batch_size=batch, n_epochs=algorithm.epochs, **common)
    else:
        model = sb3.A2C("MlpPolicy", env, **common)
    size = n_steps * N_ENVS
    return Runner(lambda: model.learn(size, reset_num_timesteps=False), size)


def batched(worlds: Any) -> Any:
    """Return our worlds behind Stable-Baselines3's vector interface, for tasks whose episodes all end together."""
    from stable_baselines3.common.vec_env import VecEnv

    class Batched(VecEnv):
        def __init__(self) -> None:
            super().__init__(worlds.n_envs, worlds.observation_space, worlds.action_space)
            self.action = torch.zeros(1, worlds.n_envs, *worlds.action_space.shape)

        def reset(self) -> Any:
            return worlds.reset(0).observation[0].numpy()

        def step_async(self, actions: Any) -> None:
            self.action = torch.from_numpy(actions)[None]

        def step_wait(self) -> Any:
            step = worlds.step(self.action)
            seen, is_over = step.observation[0].numpy(), step.is_last[0].numpy()
            info: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
            if is_over.any():
                assert is_over.all()
                for i, each in enumerate(info):
                    each |= {"terminal_observation": seen[i], "TimeLimit.truncated": False}
                seen = worlds.step(self.action).observation[0].numpy()
            return seen, step.reward[0].numpy(), is_over, info

        def close(self) -> None:
            worlds.close()

        def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
            return [None] * self.num_envs  # it asks for the render mode only

        def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
            raise NotImplementedError

        def env_method(self, method_name: str, *args: Any, indices: Any = None, **options: Any) -> list[Any]:
            raise NotImplementedError

        def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
            return [False] * self.num_envs

    return Batched()


def runner_of(row: str) -> Runner:
    """Return what a row measures."""
    if row in OURS:
        name, n_runs, _ = OURS[row]
        return ours(name, n_runs)
    start, _, worlds = row.split(", ")
    return stable_baselines3(*start.split(" "), worlds)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="CPU-seconds per measurement")
    parser.add_argument("--only", default="", help="regular expression of the rows to measure")
    parser.add_argument("--out", type=Path, help="write the table here as CSV")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if not HAS_SB3:
        print("stable-baselines3 is not installed, so its rows are left out: pip install stable-baselines3")
    rows = [row for row in [*OURS, *(SB3 if HAS_SB3 else [])] if re.search(chosen.only, row)]
    runners = {row: runner_of(row) for row in rows}
    found: dict[str, list[dict[str, float]]] = {row: [] for row in rows}
    for _ in range(chosen.rounds):
        for row, runner in runners.items():
            found[row].append(runner.measure(chosen.seconds))
    table = [summary(row, found) for row in rows]
    print(f"{'':>40} {'steps/CPU-s':>12} {'target':>8} {'SB3':>6}   simulation  acting  updating  floor")
    for row in table:
        shares = "".join(f"{row[part] or '':>10}" for part in ("simulation", "acting", "updating", "floor"))
        rate, target, ratio = row["steps_per_cpu_second"], row["target"], row["ratio_to_sb3"]
        print(f"{row['what']:>40} {rate:>12,} {target:>8} {ratio:>6} {shares}")
    if chosen.out:
        write(chosen.out, table, chosen)


def summary(row: str, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Return a row of the table: medians over the rounds, ratios within them."""
    rounds = found[row]
    base = found.get(", ".join([row.split(",")[0], "SB3", "our worlds"]), [])
    ratio = [a["rate"] / b["rate"] for a, b in zip(rounds, base, strict=False)]
    shares = {
        part: f"{statistics.median(each[part] for each in rounds):.2f}" if part in rounds[0] and row in OURS else ""
        for part in ("simulation", "acting", "updating", "floor")
    }
    return {
        "what": row,
        "runs": OURS[row][1] if row in OURS else 1,
        "steps_per_cpu_second": round(statistics.median(each["rate"] for each in rounds)),
        "target": OURS[row][2] or "" if row in OURS else "",
        "ratio_to_sb3": f"{statistics.median(ratio):.2f}" if ratio else "",
        **shares,
    }


def write(path: Path, table: list[dict[str, Any]], chosen: argparse.Namespace) -> None:
    """Write the table with where it came from."""
    run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    sb3 = f", stable-baselines3 {__import__('stable_baselines3').__version__}" if HAS_SB3 else ""
    header = (
        f"# python -m benchmarks.agents --rounds {chosen.rounds} --seconds {chosen.seconds:g}; commit "
        f"{run.stdout.strip()}; medians; {platform.machine()}, one thread, Python {platform.python_version()}, "
        f"torch {torch.__version__}, numpy {np.__version__}{sb3}\n"
    )
    with path.open("w", newline="", encoding="utf-8") as file:
        file.write(header)
        writer = csv.DictWriter(file, table[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(table)


if __name__ == "__main__":
    main()
