"""This file knows a record of runs: a small table under comment lines that say where its numbers come from.

A row is a log point of a seed, with at least ``Step`` and ``Seed``; an empty cell is "no data". ``# name: value`` lines
stand above the header. The experiments of the book write such tables (``studies/experiments.py``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .statistics import Array, Summary, by_run, smoothed, summarised

__all__ = ["POLICIES", "Record"]

POLICIES: Mapping[str, str] = {"training": "", "sampled": "Sampled", "greedy": "Greedy", "exact": "Exact"}
"""Prefixes of metrics by whose episodes they are of, namely the training's, an evaluation's of the sampled or of the
deterministic policy, or its exact means."""


@dataclass(frozen=True, eq=False)
class Record:
    """A table of results.

    Attributes:
        head: the comment lines by name: command, commit, seeds, cost limit, hardware, ...
        column: by name, [rows].
    """

    head: Mapping[str, str]
    column: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str) -> "Record":
        """Return the record of a table's text.

        Raises:
            ValueError: there is no header line.
        """
        lines = text.splitlines()
        rows = [line for line in lines if not line.startswith("#")]
        if not rows:
            raise ValueError("the table has no header line; is the file whole?")
        notes = (line[2:].partition(": ") for line in lines if line.startswith("# "))
        table = np.atleast_1d(np.genfromtxt(rows, delimiter=",", names=True))
        return cls({key: value for key, _, value in notes}, {name: table[name] for name in table.dtype.names or ()})

    @classmethod
    def read(cls, path: Path) -> "Record":
        """Return the record of a file.

        Raises:
            FileNotFoundError: there is none.
            ValueError: there is no header line.
        """
        return cls.parse(path.read_text(encoding="utf-8"))

    @property
    def limit(self) -> float:
        """Of an episode's cost."""
        return float(self.head["cost limit"])

    def has(self, metric: str) -> bool:
        """Whether any run was measured by it."""
        return metric in self.column and not np.isnan(self.column[metric]).all()

    def curve(self, metric: str, smoothing: float = 0.0) -> tuple[Array, Array]:
        """Return a metric's steps [N] and values [N, R], at the points where any run has one; smoothed run by run."""
        step, value = by_run(self.column["Step"], self.column["Seed"], self.column[metric])
        has_data = ~np.isnan(value).all(axis=1)
        return step[has_data], smoothed(value[has_data], smoothing)

    def summary(self, policy: str = "training") -> Summary:
        """Return what the runs came to, by the episodes of one of ``POLICIES``."""
        prefix = POLICIES[policy]
        step, cost = by_run(self.column["Step"], self.column["Seed"], self.column[f"{prefix}EpCost"])
        # Points where no run finished an episode, or was evaluated.
        has_data = ~np.isnan(cost).all(axis=1)

        def values(metric: str) -> Any:
            if metric not in self.column:
                return np.full_like(cost, np.nan)[has_data]
            return by_run(self.column["Step"], self.column["Seed"], self.column[metric])[1][has_data]

        # Every evaluation has as many episodes.
        n_episodes = values("Episodes") if policy == "training" else 1.0
        ret, rate = values(f"{prefix}EpRet"), values(f"{prefix}ViolationRate")
        return summarised(step[has_data], ret, cost[has_data], rate, n_episodes, self.limit)
