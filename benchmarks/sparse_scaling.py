"""Time the stationary law and the backward value of a sparse grid walk from ten thousand to a million states.

Each size runs in its own process, so that peak memory is that size's own; sizes and the dense solve take turns, and
medians over the rounds are printed side by side. One thread.
Usage: ``python benchmarks/sparse_scaling.py [--rounds 3] [--output CSV]``.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

SPARSE_SIDES, DENSE_SIDES = (100, 316, 1000), (32, 50, 70)
FIELDS = ("kind", "states", "stationary_s", "backward_s", "microseconds_per_state", "peak_gb")


def measure(kind: str, side: int) -> dict[str, float]:
    """Solve one walk in this process and return its times and peak memory."""
    import numpy as np

    from bvf_tutorial import tabular as tb

    walk = tb.grid_walk(side)
    cost = np.where(np.random.default_rng(0).random(walk.n_states) < 0.3, 10.0, 0.0)
    if kind == "dense":
        # What a newcomer writes: LAPACK on the full matrix, for the visits and for the accumulated cost.
        system = np.eye(walk.n_states) - walk.transition.toarray().T
        start = time.perf_counter()
        visits = np.linalg.solve(system, walk.initial)
        middle = time.perf_counter()
        value = np.linalg.solve(system, visits * cost) / visits
    else:
        start = time.perf_counter()
        tb.stationary_distribution(walk)
        middle = time.perf_counter()
        value = tb.backward_value(walk, cost)
    end = time.perf_counter()
    assert np.isfinite(value).all()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    return {"stationary_s": middle - start, "backward_s": end - middle, "peak_gb": peak}


def main() -> None:
    """Run every size in turn, ``--rounds`` times, and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="also write the table as CSV, with its provenance in comments")
    parser.add_argument("--one", nargs=2, metavar=("KIND", "SIDE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one[0], int(options.one[1]))))
        return
    cases = [("dense", side) for side in DENSE_SIDES] + [("sparse", side) for side in SPARSE_SIDES]
    runs: dict[tuple[str, int], list[dict[str, float]]] = {case: [] for case in cases}
    threads = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    for _ in range(options.rounds):
        for kind, side in cases:
            command = [sys.executable, __file__, "--one", kind, str(side)]
            finished = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True, check=True)
            runs[kind, side].append(json.loads(finished.stdout))
    rows = []
    for (kind, side), measured in runs.items():
        median = {key: statistics.median(run[key] for run in measured) for key in measured[0]}
        both = median["stationary_s"] + median["backward_s"]
        rows.append({"kind": kind, "states": side**2, "microseconds_per_state": both / side**2 * 1e6, **median})
    print(f"{'solve':>7} {'states':>9} {'stationary':>11} {'backward':>9} {'us/state':>9} {'peak GB':>8}")
    for row in rows:
        print(
            f"{row['kind']:>7} {row['states']:>9,} {row['stationary_s']:>10.3f}s {row['backward_s']:>8.3f}s "
            f"{row['microseconds_per_state']:>9.1f} {row['peak_gb']:>8.2f}"
        )
    if options.output:
        write(options.output, rows, options.rounds)


def write(path: Path, rows: list[dict[str, float]], rounds: int) -> None:
    """Write the table and what made it; the file appears whole or not at all."""
    describe = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(describe, capture_output=True, text=True, check=False).stdout.strip()
    head = (
        f"# command: python benchmarks/sparse_scaling.py --rounds {rounds} --output {path}\n# commit: {commit}\n"
        f"# machine: {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, one thread\n"
    )
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        file.write(head)
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        for row in rows:
            writer.writerow({key: f"{row[key]:.4g}" if isinstance(row[key], float) else row[key] for key in FIELDS})
    temporary.replace(path)


if __name__ == "__main__":
    main()
