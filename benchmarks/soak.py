"""Does a long training keep its memory? Train, log, evaluate and save checkpoints for an hour, and watch the peak.

Usage: ``python -m benchmarks.soak [--preset NAME] [--minutes 60]``. It prints the largest resident memory so far, at
every twentieth of the time, and exits with 1 if it grew after the first half by more than ``ALLOWED``: caches fill at
the beginning, a leak goes on.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import torch

from bvf_tutorial.agents import preset
from bvf_tutorial.agents.runs import RunFolder, run

ALLOWED = 0.02
"""Of the peak after the first half."""
N_POINTS = 20


def growth(peak: Sequence[float]) -> float:
    """Return by how much of itself a peak grew after the first half of its points."""
    early = peak[len(peak) // 2]
    return peak[-1] / early - 1


def soaked(name: str, seconds: float, folder: Path) -> list[float]:
    """Train a preset for some time in a folder; return the peak at equal times, in megabytes."""
    config = replace(preset(name), n_env_steps=2**40, log_every=2_000, evaluate_every=4_000, n_evaluation_episodes=10)
    begin, process, largest = time.monotonic(), psutil.Process(), 0.0
    peak: list[float] = []

    def is_stopped() -> bool:
        nonlocal largest
        # Not the system's own count of the peak, which knows of what ran in this process before.
        largest = max(largest, process.memory_info().rss / 1e6)
        spent = time.monotonic() - begin
        while len(peak) < N_POINTS and spent >= (len(peak) + 1) * seconds / N_POINTS:
            peak.append(largest)
            print(f"{spent / 60:7.1f} min  peak {peak[-1]:8.1f} MB", flush=True)
        return spent >= seconds

    run(RunFolder.create(folder, config), is_stopped=is_stopped, checkpoint_seconds=seconds / 100)
    return peak


def main() -> int:
    """Print the peaks, and say whether the last one stays."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="circle-ppo-backward", metavar="NAME", help="(circle-ppo-backward)")
    parser.add_argument("--minutes", type=float, default=60.0, help="(60)")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        peak = soaked(asked.preset, 60 * asked.minutes, Path(folder))
    print(f"{asked.preset}: the peak grew by {growth(peak):+.2%} after the first half (allowed {ALLOWED:.0%})")
    return int(growth(peak) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
