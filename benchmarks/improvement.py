"""Time one exact improvement step of every method, and the exact optimum by prices beside the linear program.

Steps: the 12 x 12 grid world with its clock, 28,944 sparse states, 200 decisions, from ``cautious_policy``; methods
take turns, medians over the rounds. Optimum: random CMDPs with a clock of 30 decisions, which
the linear program still solves; on the grid world it fails its re-check at some limits from 30 decisions on. One
thread.
Usage: ``python -m benchmarks.improvement [--rounds 5]``.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from studies.safe_improvement import steps

HORIZON, PROGRAM_SIZES = 200, (20, 50, 100)


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    clock = time.perf_counter()
    call()
    return time.perf_counter() - clock


def clocked(size: int) -> tb.CMDP:
    """Return a random CMDP that never ends with a clock of 30 decisions, limit 40% of the way from the least cost."""
    endless = tb.random_cmdp(np.random.default_rng(0), size, termination=0.0)
    cmdp = tb.time_augmented(endless, 30)
    least, best = (tb.evaluate_policy(cmdp, p)[1] for p in (tb.least_cost_policy(cmdp), tb.best_response(cmdp, 0.0)))
    return cmdp.with_cost_limit(least + 0.4 * (best - least))


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    cmdp = GridWorld.random(0).to_cmdp(time_augmented_states=True)
    policy = tb.cautious_policy(cmdp)
    times: dict[str, list[float]] = {"evaluation only": [], **{name: [] for name in steps(HORIZON)}}
    for _ in range(rounds):
        times["evaluation only"].append(seconds(lambda: tb.evaluate(cmdp, policy)))
        for name, step in steps(HORIZON).items():
            times[name].append(seconds(lambda step=step: step(tb.evaluate(cmdp, policy))))
    print(f"one step, {cmdp.n_states} states, medians of {rounds}")
    for name, taken in times.items():
        print(f"  {name:24s} {statistics.median(taken):.3f} s")
    print("exact optimum: base states, states, by prices, by linear program, ratio")
    for size in PROGRAM_SIZES:
        model = clocked(size)
        pairs = [
            (seconds(partial(tb.optimum_by_prices, model)), seconds(partial(tb.optimal_policy, model)))
            for _ in range(rounds)
        ]
        dual, program = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"  {size:4d} {model.n_states:7d} {dual:8.2f} s {program:8.2f} s {program / dual:8.1f}")


if __name__ == "__main__":
    main()
