"""Train the presets that chapters 13 to 15 draw, ten seeds each, and store their curves.

One row per preset, seed and log point, with the training's metrics and evaluations in worlds of their own. On the grid
world the greedy policy is also evaluated exactly, beside the layout's best return. Seeds 100 to 109, and 300 to 309
where the first ones served to choose settings: nothing was tuned on them. Presets that the output has already are not
trained again; a preset is written when all its runs are done.

Usage: ``python -m studies.agents [--only REGEX] [--runs 10] [--output CSV]``.
"""

from __future__ import annotations

import argparse
import csv
import io
import os
import platform
import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
import torch
from tqdm import tqdm

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Config, Sarsa, Trainer, make_trainer, preset
from bvf_tutorial.agents.storage import write_atomically
from bvf_tutorial.agents.train import Row
from bvf_tutorial.envs import GridTask

OUTPUT = Path(__file__).parents[1] / "results" / "agents.csv"
FIRST_SEED = 100
LATER_SEED = {"gather_binding-ppo": 300}
"""The first seed of tasks and algorithms whose settings were chosen on seeds from 100 on."""
PRESETS = (
    "grid-sarsa-unconstrained",
    "grid-sarsa-backward",
    "grid-sarsa-backward_warm",
    "grid-sarsa-safeguarded_warm",
    "grid-sarsa-lyapunov_warm",
    "grid-sarsa-penalty_warm",
    "circle-ppo-unconstrained",
    "circle-ppo-backward",
    "circle-ppo-pid",
    "circle-ppo-predictive",
    "circle-ppo-backward_weight",
    "circle-a2c-unconstrained",
    "circle-a2c-backward_alone",
    "circle-a2c-backward",
    "circle-a2c-recovery",
    "gather_binding-a2c-unconstrained",
    "gather_binding-a2c-backward_alone",
    "gather_binding-a2c-backward",
    "gather_binding-a2c-recovery",
    "circle-ppo-backward_alone",
    "circle-ppo-recovery",
    "gather_binding-ppo-unconstrained",
    "gather_binding-ppo-backward",
)


def exact_values(trainer: Trainer) -> dict[str, list[float]]:
    """Return the exact return and cost of each run's greedy policy within the horizon, and the best return."""
    learner, task = trainer.learner, trainer.env.task
    assert isinstance(learner, Sarsa)
    assert isinstance(task, GridTask)
    grids = [task.grid_of(run * trainer.env.n_envs) for run in range(trainer.env.n_runs)]
    cmdps = [grid.to_cmdp() for grid in grids]
    cost = torch.as_tensor(np.stack([cmdp.cost for cmdp in cmdps]), dtype=torch.float32, device=learner.setting.device)
    action = learner.greedy_policy(cost).numpy(force=True)
    found: dict[str, list[float]] = {"ExactEpRet": [], "ExactEpCost": [], "BestEpRet": []}
    for grid, cmdp, chosen in zip(grids, cmdps, action, strict=True):
        policy = np.eye(cmdp.n_actions)[chosen]
        chain = tb.policy_chain(cmdp, policy)
        for key, signal in (("ExactEpRet", tb.policy_reward(cmdp, policy)), ("ExactEpCost", cmdp.cost)):
            # T decisions have T rewards and T + 1 costs.
            n_decisions = grid.horizon - (key == "ExactEpRet")
            found[key].append(float(tb.finite_horizon_value(chain, signal, n_decisions).forward[0, grid.start_state]))
        found["BestEpRet"].append(best_return(grid.horizon, cmdp)[grid.start_state])
    return found


def best_return(horizon: int, cmdp: tb.CMDP) -> np.ndarray:
    """Return the largest expected return within ``horizon`` decisions, costs ignored, at every state."""
    value = np.zeros(cmdp.n_states)
    for _ in range(horizon):
        value = (cmdp.reward + np.asarray(cmdp.transition) @ value).max(axis=1)
    return value


def trained(config: Config) -> Iterator[Row]:
    """Yield the rows of a training, one per seed and log point."""
    trainer = make_trainer(config)
    start = time.process_time()
    with tqdm(total=config.n_env_steps, desc=config.name, mininterval=5.0) as bar:
        while not trainer.is_finished:
            rows = trainer.advance()
            bar.update(trainer.done - bar.n)
            if not rows:
                continue
            exact = exact_values(trainer) if isinstance(trainer.learner, Sarsa) else {}
            for run, row in enumerate(rows):
                cpu = {"CpuSeconds": time.process_time() - start}
                yield row | {key: value[run] for key, value in exact.items()} | cpu


def main() -> None:
    """Train what is missing and write the table anew, a preset at a time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="train presets whose name matches this regular expression")
    parser.add_argument("--runs", type=int, default=10, help="seeds per preset, from 100 (10)")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    kept = read(asked.output)
    shown = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    commit = shown.stdout.strip() or "unknown"
    for name in PRESETS:
        if not re.search(asked.only, name) or any(row["preset"] == name for row in kept):
            continue
        config = replace(preset(name), n_runs=asked.runs, seed=LATER_SEED.get(name.rpartition("-")[0], FIRST_SEED))
        source = {"preset": name, "commit": commit}
        kept += [source | {key: f"{value:.6g}" for key, value in row.items()} for row in trained(config)]
        write(asked.output, kept, asked.runs)


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a table; none if there is no file."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8") as lines:
        return [dict(row) for row in csv.DictReader(line for line in lines if not line.startswith("#"))]


def write(path: Path, rows: list[dict[str, str]], n_runs: int) -> None:
    """Write the table in one move; a metric that a method lacks is an empty cell."""
    fields = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    text.write(f"# command: python -m studies.agents --runs {n_runs}\n")
    text.write(f"# seeds: {FIRST_SEED} to {FIRST_SEED + n_runs - 1}\n")
    later = "; ".join(f"{key} {seed} to {seed + n_runs - 1}" for key, seed in LATER_SEED.items())
    text.write(f"# later seeds: {later}\n")
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    text.write(f"# machine: {platform.machine()}, {os.cpu_count()} cores, {versions}\n")
    table = csv.DictWriter(text, fields, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_atomically(path, text.getvalue().encode())


if __name__ == "__main__":
    main()
