"""Compare the ways to improve a policy under a limit with the exact optimum, on 150 layered CMDPs and 20 grid worlds.

Layered: ``random_layered_cmdp`` with seeds 0 to 149 (five decisions, three actions), limit 40% of the way from the
least to the unconstrained cost. Grids: ``GridWorld.random`` with seeds 0 to 19, the clock in the state (28,944 sparse
states, 200 decisions), the paper's limit of 20. Every method starts from ``cautious_policy``, 98% least cost and 2%
uniform, and is exact: no sampling. One row per instance and method. Rows that the output
file already has are not computed again; each instance is written when it is complete.

Usage: ``python -m studies.safe_improvement [--workers 2] [--layered 150] [--grids 20] [--output CSV]``.
"""

from __future__ import annotations

import argparse
import csv
import functools
import multiprocessing
import os
import platform
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

# Before NumPy: two workers share two cores.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np
from tqdm import tqdm

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld

OUTPUT = Path(__file__).parents[1] / "results" / "safe_improvement.csv"
ITERATIONS = {"layered": 100, "grid": 30}
HORIZON = {"layered": 5, "grid": 200}
FIELDS = (
    "family", "seed", "method", "iterations", "infeasible_iterates", "decreases", "iterations_with_empty_states",
    "worst_cost", "final_cost", "final_value", "final_feasible", "gap", "cost_limit", "optimal_value", "multiplier",
    "start_value", "start_cost", "cpu_s",
)  # fmt: skip


def problem(family: str, seed: int) -> tuple[tb.CMDP, tb.Optimum]:
    """Return an instance with its exact optimum."""
    if family == "layered":
        cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed)), 0.4)
        return cmdp, tb.optimal_policy(cmdp)
    cmdp = GridWorld.random(seed).to_cmdp(time_augmented_states=True)
    return cmdp, tb.optimum_by_prices(cmdp)


def in_the_papers_ball(evaluation: tb.Evaluation, horizon: int) -> tb.StateWise:
    """Take the printed step inside the ball of Theorem 3.1, with the radius printed there."""
    radius = tb.trust_radius(max(evaluation.slack, 0.0), float(evaluation.cmdp.cost.max()), horizon, "paper")
    return tb.spi_step(evaluation, radius=radius)


def steps(horizon: int) -> dict[str, tb.Step]:
    """Return the methods by name; ``lyapunov`` is both the baseline and a brake of the safeguarded iteration."""
    printed: dict[str, tb.Step] = {
        "spi-keep": tb.spi_step,
        "spi-least-cost": functools.partial(tb.spi_step, fallback="least_cost"),
        "spi-ball": functools.partial(in_the_papers_ball, horizon=horizon),
        "elimination": functools.partial(tb.spi_step, choose=tb.elimination_step, fallback="least_cost"),
    }
    braked: dict[str, tb.Step] = {
        brake if brake == "lyapunov" else f"safeguarded-{brake.replace('_', '-')}": functools.partial(
            tb.safeguarded_step, brake=brake, horizon=horizon
        )
        for brake in tb.BRAKES
    }
    return printed | braked


def lagrangian(cmdp: tb.CMDP, n_iterations: int) -> tb.Improvement:
    """Run the primal-dual method from price 0; its final policy is that of the average occupancy measure.

    The step size, a tenth of the frontier's mean slope per unit of the first excess, has the units of the price and is
    not tuned.
    """
    dear = tb.evaluate_policy(cmdp, tb.best_response(cmdp, 0.0))
    cheap = tb.evaluate_policy(cmdp, tb.least_cost_policy(cmdp))
    slope = (dear[0] - cheap[0]) / max(dear[1] - cheap[1], 1e-12)
    # Where the limit does not bind the excess is negative, and the price stays at zero whatever the step size.
    run = tb.primal_dual(cmdp, 0.1 * slope / max(abs(dear[1] - cmdp.cost_limit), 1e-12), n_iterations)
    final = tb.evaluate_policy(cmdp, run.policy)
    value, cost = np.r_[run.value, final[0]], np.r_[run.cost, final[1]]
    none, unknown = np.zeros(len(value), dtype=np.int64), np.full(len(value), np.nan)
    return tb.Improvement(value, cost, unknown, none, none, run.policy, cmdp.cost_limit, False)


def row(
    cmdp: tb.CMDP, optimum: tb.Optimum, first: tuple[float, float], run: Callable[[], tb.Improvement]
) -> dict[str, object]:
    """Run one method and return what the table says of it."""
    clock = time.process_time()
    history = run()
    spent = time.process_time() - clock
    return {
        "iterations": len(history.value) - 1,
        "infeasible_iterates": history.n_infeasible,
        "decreases": history.n_decreases,
        "iterations_with_empty_states": int((history.n_empty > 0).sum()),
        "worst_cost": f"{history.cost.max():.8g}",
        "final_cost": f"{history.cost[-1]:.8g}",
        "final_value": f"{history.value[-1]:.8g}",
        "final_feasible": int(history.is_feasible[-1]),
        "gap": f"{(optimum.value - history.value[-1]) / (optimum.value - first[0]):.6g}",
        "cost_limit": f"{cmdp.cost_limit:.8g}",
        "optimal_value": f"{optimum.value:.8g}",
        "multiplier": f"{optimum.multiplier:.6g}",
        "start_value": f"{first[0]:.8g}",
        "start_cost": f"{first[1]:.8g}",
        "cpu_s": f"{spent:.3f}",
    }


def instance(key: tuple[str, int]) -> list[dict[str, object]]:
    """Return the rows of one instance, all methods."""
    family, seed = key
    cmdp, optimum = problem(family, seed)
    policy = tb.cautious_policy(cmdp)
    first, n_iterations = tb.evaluate_policy(cmdp, policy), ITERATIONS[family]
    runs: dict[str, Callable[[], tb.Improvement]] = {
        name: functools.partial(tb.policy_iteration, cmdp, policy, step, n_iterations)
        for name, step in steps(HORIZON[family]).items()
    }
    runs["lagrangian"] = functools.partial(lagrangian, cmdp, n_iterations)
    return [
        {"family": family, "seed": seed, "method": name, **row(cmdp, optimum, first, run)} for name, run in runs.items()
    ]


def read(path: Path) -> list[dict[str, object]]:
    """Return the rows a file already has; none if it does not exist."""
    if not path.exists():
        return []
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [dict(record) for record in csv.DictReader(lines)]


def write(path: Path, rows: list[dict[str, object]], command: str) -> None:
    """Replace the file at once, with where its numbers come from in comments."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    unfinished = path.with_suffix(".partial")
    with unfinished.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# command: {command}\n# commit: {commit.stdout.strip() or 'unknown'}\n")
        file.write(f"# machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
        table = csv.DictWriter(file, FIELDS, lineterminator="\n")
        table.writeheader()
        table.writerows(sorted(rows, key=lambda r: (str(r["family"]), int(str(r["seed"])), str(r["method"]))))
    unfinished.replace(path)


def main() -> None:
    """Compute the missing instances, the long ones first, and write the table after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--layered", type=int, default=150, help="number of layered CMDPs")
    parser.add_argument("--grids", type=int, default=20, help="number of grid worlds")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    options = parser.parse_args()
    command = f"python -m studies.safe_improvement --layered {options.layered} --grids {options.grids}"
    rows = read(options.output)
    done = {(str(r["family"]), int(str(r["seed"]))) for r in rows}
    wanted = [("grid", seed) for seed in range(options.grids)] + [("layered", seed) for seed in range(options.layered)]
    missing = [key for key in wanted if key not in done]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for result in tqdm(pool.imap_unordered(instance, missing), total=len(missing), unit="instance"):
            rows += result
            write(options.output, rows, command)


if __name__ == "__main__":
    main()
