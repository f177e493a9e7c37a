"""Environment steps per CPU-second, beside Gymnasium's vector environments and the physical limit, in one run.

Usage: ``python -m benchmarks.environments [--rounds 5] [--worlds 20 200 400 2000 8192] [--out FILE]``.

Everything takes turns, round by round; a row is the median over rounds of steps per CPU-second (of all threads, and all
worker processes of ``AsyncVectorEnv``). The limit of the cheetah is ``mujoco.rollout`` with 1000 environment steps a
call, no environment around it. Ratios to it are taken within each round, between things with equally many threads: one
for ``SyncVectorEnv`` and "1 thread", one per core for the rest. Torch has one thread.
"""

from __future__ import annotations

import argparse
import csv
import os
import platform
import re
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import gymnasium
import mujoco
import numpy as np
import psutil
import torch
from gymnasium import spaces
from mujoco.rollout import Rollout

from bvf_tutorial import envs
from bvf_tutorial.envs.physics import load_model

TASKS = {
    "GridWorld": envs.GridTask,
    "GridWorld, index": lambda: envs.GridTask(is_one_hot=False),
    "PointCircle": envs.PointCircle,
    "PointGather": envs.PointGather,
    "SafeCheetah": envs.SafeCheetah,
    "SafeCheetah, 1 thread": lambda: envs.SafeCheetah(n_threads=1),
}
LIMIT = "limit: mujoco.rollout"
SIMULATED_AT_MOST = 2048  # worlds of the cheetah, whose steps take 500 times longer


@dataclass
class Runner:
    """Something that makes steps: ``advance`` makes ``size`` of them; ``cpu`` is the CPU time spent so far, seconds."""

    advance: Callable[[], object]
    size: int
    cpu: Callable[[], float] = time.process_time
    close: Callable[[], object] = lambda: None

    def rate(self, seconds: float) -> float:
        """Return steps per CPU-second over at least this many CPU-seconds."""
        self.advance()
        begin, n = self.cpu(), 0
        while (spent := self.cpu() - begin) < seconds:
            self.advance()
            n += self.size
        return n / spent


def ours(name: str, n_worlds: int) -> Runner:
    """Return our environment, complete: noise, autoreset, checks, observation, cost."""
    env = envs.VectorEnv(TASKS[name](), n_envs=n_worlds)
    env.reset(0)
    generator = torch.Generator().manual_seed(0)
    space = env.action_space
    if isinstance(space, spaces.Discrete):
        action = torch.randint(int(space.n), (64, 1, n_worlds), generator=generator)
    else:
        low, high = torch.as_tensor(space.low), torch.as_tensor(space.high)
        action = low + (high - low) * torch.rand(64, 1, n_worlds, len(low), generator=generator)
    turn: Iterator[int] = iter(range(10**12))

    def advance() -> None:
        for _ in range(4):
            env.step(action[next(turn) % 64])

    return Runner(advance, 4 * n_worlds, close=env.close)


def gymnasiums(n_worlds: int, mode: str) -> Runner:
    """Return Gymnasium's HalfCheetah-v5 in its own vector environment, no cost added."""
    env = gymnasium.make_vec("HalfCheetah-v5", n_worlds, vectorization_mode=mode, max_episode_steps=200)
    env.reset(seed=0)
    action = np.random.default_rng(0).uniform(-1, 1, (64, n_worlds, 6)).astype(np.float32)
    turn: Iterator[int] = iter(range(10**12))
    workers = [psutil.Process(each.pid) for each in getattr(env, "processes", [])]

    def cpu() -> float:
        times = [worker.cpu_times() for worker in workers]
        return time.process_time() + sum(each.user + each.system for each in times)

    return Runner(lambda: env.step(action[next(turn) % 64]), n_worlds, cpu, env.close)


def limit(n_worlds: int, n_threads: int) -> Runner:
    """Return ``mujoco.rollout`` alone: 1000 environment steps of 5 physics steps a call, states kept, nothing else."""
    model = load_model("half_cheetah")
    pool = Rollout(nthread=n_threads)
    data = [mujoco.MjData(model) for _ in range(n_threads)]
    generator = np.random.default_rng(0)
    # 1000 steps of few worlds at a time: the limit does not depend on the number of worlds.
    n_worlds = min(n_worlds, 20)
    start = np.zeros((n_worlds, 1 + model.nq + model.nv))
    start[:, 1:] = generator.uniform(-0.1, 0.1, start[:, 1:].shape)
    control = generator.uniform(-1, 1, (n_worlds, 1000, model.nu)).repeat(5, axis=1)
    state = np.zeros((n_worlds, 5000, start.shape[1]))

    def advance() -> None:
        pool.rollout([model] * n_worlds, data, start, control, skip_checks=True, nstep=5000, state=state)

    return Runner(advance, n_worlds * 1000, close=pool.close)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worlds", type=int, nargs="+", default=[20, 200, 400, 2000, 8192])
    parser.add_argument("--seconds", type=float, default=1.0, help="CPU-seconds per measurement")
    parser.add_argument("--only", default="", help="regular expression of the rows to measure, beside the limit")
    parser.add_argument("--out", type=Path, help="write the table here as CSV")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    # Loading Gymnasium's own HalfCheetah warns, in each of its worlds, and would write a log file here.
    mujoco.set_mju_user_warning(lambda message: None)
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    makers: dict[tuple[str, int], Callable[[], Runner]] = {
        (LIMIT, 0): lambda: limit(20, threads),
        (f"{LIMIT}, 1 thread", 0): lambda: limit(20, 1),
    }
    for n in chosen.worlds:
        for name in TASKS:
            if "Cheetah" not in name or n <= SIMULATED_AT_MOST:
                makers[name, n] = lambda name=name, n=n: ours(name, n)
        if n <= 200:
            for mode in ("sync", "async"):
                makers[f"HalfCheetah-v5, {mode}", n] = lambda mode=mode, n=n: gymnasiums(n, mode)
    makers = {key: make for key, make in makers.items() if key[0].startswith(LIMIT) or re.search(chosen.only, key[0])}
    rate: dict[tuple[str, int], list[float]] = {key: [] for key in makers}
    for _ in range(chosen.rounds):
        for key, make in makers.items():  # made and closed in turn: 200 worker processes do not wait beside the others
            runner = make()
            rate[key].append(runner.rate(chosen.seconds))
            runner.close()
    print(f"{'':>32} {'worlds':>7} {'steps / CPU-second':>20} {'to the limit':>13} {'to sync':>13}")
    rows = []
    for (name, n), rates in rate.items():
        own_sync = rate.get(("HalfCheetah-v5, sync", n), [])
        to_sync = [a / b for a, b in zip(rates, own_sync, strict=False)] if "Cheetah" in name else []
        beside = f"{statistics.median(to_sync):.2f}" if to_sync else ""
        base = f"{LIMIT}, 1 thread" if name.endswith(("sync", "1 thread")) and "async" not in name else LIMIT
        ratio = [a / b for a, b in zip(rates, rate[base, 0], strict=True)]
        shown = f"{statistics.median(ratio):.2f}" if "Cheetah" in name else ""
        print(f"{name:>32} {n or '':>7} {statistics.median(rates):>20,.0f} {shown:>13} {beside:>13}")
        rows.append((name, n or "", round(statistics.median(rates)), shown, beside))
    if chosen.out:
        run = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
        header = (
            f"# python -m benchmarks.environments --rounds {chosen.rounds}; commit {run.stdout.strip()}; medians; "
            f"{platform.machine()}, {threads} cores, Python {platform.python_version()}, torch {torch.__version__}, "
            f"mujoco {mujoco.__version__}, gymnasium {gymnasium.__version__}\n"
        )
        with chosen.out.open("w", newline="", encoding="utf-8") as file:
            file.write(header)
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("what", "worlds", "steps_per_cpu_second", "ratio_to_limit", "ratio_to_sync"))
            writer.writerows(rows)


if __name__ == "__main__":
    main()
