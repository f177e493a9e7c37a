"""Time the bare import of the package and of its tabular part, each in a fresh interpreter, beside NumPy's own import.

Usage: ``python benchmarks/import_time.py [--rounds 7]``. The three take turns; medians of whole-process wall time.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import time

STATEMENTS = ("pass", "import bvf_tutorial", "import numpy", "import scipy.optimize", "import bvf_tutorial.tabular")


def main() -> None:
    """Print the median seconds of each statement."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    spent: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(rounds):
        for statement in STATEMENTS:
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", statement], check=True)
            spent[statement].append(time.perf_counter() - start)
    for statement, seconds in spent.items():
        print(f"{statement:>28}: {statistics.median(seconds):.3f} s")


if __name__ == "__main__":
    main()
