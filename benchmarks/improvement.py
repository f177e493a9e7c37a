"""Time one exact improvement step of every method, and the exact optimum by prices beside the linear program.

Steps: the 12 x 12 grid world with its clock, 28,944 sparse states, 200 decisions, from ``cautious_policy``; methods
take turns, medians over the rounds. Optimum: the same grid cut to shorter horizons, so that the linear program ends.
One thread. Usage: ``python -m benchmarks.improvement [--rounds 5]``.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import time
from collections.abc import Callable
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from studies.safe_improvement import steps

HORIZON, PROGRAM_HORIZONS = 200, (20, 30, 40)


def seconds(call: Callable[[], object]) -> float:
    """Return the wall time of one call."""
    clock = time.perf_counter()
    call()
    return time.perf_counter() - clock


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
    print("exact optimum: horizon, states, by prices, by linear program, ratio")
    for horizon in PROGRAM_HORIZONS:
        short = dataclasses.replace(GridWorld.random(0), horizon=horizon).to_cmdp(time_augmented_states=True)
        # A limit that binds at every horizon, whatever the cheapest way to the goal costs in it.
        short = short.with_cost_limit(1.2 * tb.evaluate_policy(short, tb.least_cost_policy(short))[1])
        pairs = [
            (seconds(partial(tb.optimum_by_prices, short)), seconds(partial(tb.optimal_policy, short)))
            for _ in range(max(1, rounds // 2))
        ]
        dual, program = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"  {horizon:4d} {short.n_states:7d} {dual:8.2f} s {program:8.2f} s {program / dual:8.1f}")


if __name__ == "__main__":
    main()
