"""Draw every figure of the experiments from its arms' tables, and beside it the table of what the runs came to.

Return above cost, mean and 80% interval over seeds, the limit as a dashed line; all runs, none selected. An arm that
has not been trained is named, on the figure and in the table, and is not drawn. Figures and summaries are made from
``results/experiments/`` in seconds, so they are not kept: they go to ``_build/figures/``.

Usage: ``python -m studies.figures [FIGURE ...] [--policy training|sampled|greedy|exact] [--smoothing 0.7]
[--tables DIR] [--output DIR]``.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure as Picture

from bvf_tutorial.agents.storage import write_atomically
from bvf_tutorial.plotting import draw_comparison, use_book_style
from bvf_tutorial.records import POLICIES, Record
from bvf_tutorial.statistics import Summary

from .experiments import FIGURES, OPTIMUM, OUTPUT, ROOT, Figure

TASKS = {
    "grid": "Grid world", "grid_conflict": "Grid world, conflict",
    "gather": "Point-Gather", "gather_binding": "Point-Gather, binding",
    "cheetah": "Safe-Cheetah", "circle": "Point-Circle",
}  # fmt: skip


def tables_of(figure: Figure, folder: Path) -> tuple[dict[str, Record], list[str]]:
    """Return the tables of a figure's arms by name, and the names of those that are not there."""
    names = [name for arms in figure.panels.values() for name in arms]
    there = [name for name in names if (folder / f"{name}.csv").exists()]
    return {name: Record.read(folder / f"{name}.csv") for name in there}, [n for n in names if n not in there]


def best_return(task: str, folder: Path) -> float:
    """Return the mean over a grid world's layouts of the best return within the limit, or NaN."""
    path = folder / f"{task}{OPTIMUM}.csv"
    return float(Record.read(path).column["FeasibleEpRet"].mean()) if path.exists() else float("nan")


def label_of(arm: str) -> str:
    """Return an arm's method, and what its cost values lack: "backward_tuned, no clock"."""
    lack = {"_clockless-": ", no clock", "_discounted-": ", discounted"}
    return arm.rpartition("-")[2] + "".join(text for part, text in lack.items() if part in arm)


def drawn(figure: Figure, folder: Path, policy: str = "training", smoothing: float = 0.0) -> Picture:
    """Return the picture of a figure whose arms' tables are in a folder.

    Raises:
        FileNotFoundError: not one of its arms has been trained, or measured in this way.
    """
    tables, missing = tables_of(figure, folder)
    prefix, panels, limit, best = POLICIES[policy], {}, {}, {}
    for key, names in figure.panels.items():
        shown = [name for name in names if name in tables and tables[name].has(f"{prefix}EpCost")]
        if not shown:
            continue
        task, algorithm = key.split("-")
        title = f"{TASKS.get(task, task)}, {algorithm.removesuffix('_tuned').upper()}"
        panels[title] = {
            label_of(name): (
                tables[name].curve(f"{prefix}EpRet", smoothing),
                tables[name].curve(f"{prefix}EpCost", smoothing),
            )
            for name in shown
        }
        limit[title] = tables[shown[0]].limit
        if np.isfinite(best_return(task, folder)):
            best[title] = best_return(task, folder)
    if not panels:
        raise FileNotFoundError(f"no arm of this figure has a table in {folder}; python -m studies.experiments.")
    with mpl.rc_context():
        use_book_style()
        width = max(6.4, 1.0 + 3.6 * len(panels))
        picture = Picture(figsize=(width, 6.8), layout="constrained")
        draw_comparison(picture, panels, limit, best)
        if missing:
            text = textwrap.fill(f"not trained yet: {', '.join(missing)}", int(15 * width), break_on_hyphens=False)
            picture.suptitle(text, fontsize=7)
    return picture


def rows_of(figure: Figure, folder: Path) -> list[dict[str, str]]:
    """Return the table beside a figure: a row per arm and policy that was measured; a missing arm has one, too."""
    tables, missing = tables_of(figure, folder)
    rows = []
    for name in (name for arms in figure.panels.values() for name in arms):
        if name in missing:
            rows.append({"arm": name, "policy": "not trained yet"})
            continue
        for policy, prefix in POLICIES.items():
            if tables[name].has(f"{prefix}EpCost"):
                summary = asdict(tables[name].summary(policy))
                limit = {"limit": _text(tables[name].limit)}
                rows.append({"arm": name, "policy": policy} | limit | {k: _text(v) for k, v in summary.items()})
    return rows


def markdown(figure: Figure, rows: Sequence[Mapping[str, str]]) -> str:
    """Return a table as Markdown under the figure's caption."""
    names = ["arm", "policy", "limit", *(each.name for each in fields(Summary))]
    lines = [f"| {' | '.join(name.replace('_', ' ') for name in names)} |", "|---" * len(names) + "|"]
    lines += [f"| {' | '.join(row.get(name, '') for name in names)} |" for row in rows]
    return "\n".join([figure.caption, "", *lines, ""])


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        middle, low, high = value
        return f"{middle:.4g} [{low:.4g}, {high:.4g}]" if np.isfinite([low, high]).all() else f"{middle:.4g}"
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4g}"
    return str(value)


def write_figure(name: str, folder: Path, output: Path, policy: str = "training", smoothing: float = 0.0) -> list[str]:
    """Write ``<name>.png``, ``<name>.csv`` and ``<name>.md``; return the arms that are missing.

    Raises:
        FileNotFoundError: as ``drawn``.
    """
    figure = FIGURES[name]
    picture = drawn(figure, folder, policy, smoothing)
    output.mkdir(parents=True, exist_ok=True)
    picture.savefig(output / f"{name}.png", dpi=150)
    rows, text = rows_of(figure, folder), io.StringIO()
    table = csv.DictWriter(text, ["arm", "policy", "limit", *(each.name for each in fields(Summary))], restval="")
    table.writeheader()
    table.writerows(rows)
    write_atomically(output / f"{name}.csv", text.getvalue().encode())
    write_atomically(output / f"{name}.md", markdown(figure, rows).encode())
    return tables_of(figure, folder)[1]


def main(words: Sequence[str] | None = None) -> int:
    """Draw what there is and say what is not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)} (all)")
    parser.add_argument("--policy", choices=[*POLICIES], default="training", help="whose episodes (training)")
    parser.add_argument("--smoothing", type=float, default=0.0, help="TensorBoard's; the paper drew with 0.7 (0)")
    parser.add_argument("--tables", type=Path, default=OUTPUT, metavar="DIR", help="where the arms' tables are")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "figures", metavar="DIR")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.figures if name not in FIGURES]
    if unknown:
        parser.error(f"no figure {unknown[0]!r}; they are {', '.join(FIGURES)}")
    for name in asked.figures or FIGURES:
        try:
            missing = write_figure(name, asked.tables, asked.output, asked.policy, asked.smoothing)
        except FileNotFoundError as error:
            print(f"{name}: not drawn, {error}")
            continue
        print(f"{name}: {asked.output / name}.png" + (f"; missing: {', '.join(missing)}" if missing else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())
