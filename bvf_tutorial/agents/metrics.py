"""This file knows the table of metrics: what each means, in which unit, and how rows are kept in ``metrics.csv``.

Every table has the same columns, whatever was trained, so that tables can be laid under each other. An empty cell is
"no data". There are no times in it: a training that was interrupted and resumed leaves the same bytes.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from .storage import naming, write_atomically
from .train import Row

__all__ = ["COLUMNS", "METRICS", "append_rows", "cut_back", "read_table", "series"]

_EPISODE = {
    "EpRet": "undiscounted return per episode (reward)",
    "EpCost": "undiscounted cost per episode (cost)",
    "EpLen": "decisions per episode",
    "ViolationRate": "share of episodes over the cost limit",
}
METRICS: Mapping[str, str] = MappingProxyType(
    {
        **_EPISODE,
        "Episodes": "finished training episodes that the row's means are over",
        "LagrangeMultiplier": "price of cost (SARSA: reward per cost; PPO, A2C: of standardised advantages)",
        "ForwardBias": "forward cost value, estimated minus realised, mean (cost)",
        "ForwardError": "forward cost value, estimated minus realised, root mean square (cost)",
        "BackwardBias": "backward cost value, estimated minus realised, mean (cost)",
        "BackwardError": "backward cost value, estimated minus realised, root mean square (cost)",
        "SlackP10": "state-wise slack, tenth percentile (cost)",
        "SlackMedian": "state-wise slack, median (cost)",
        "SlackP90": "state-wise slack, ninetieth percentile (cost)",
        "EmptyShare": "share of states where no action was admitted",
        "CorrectedShare": "share of states where the safety layer moved the action",
        "CorrectionSize": "mean move of the action by the safety layer (half-widths of the box)",
        "Divergence": "divergence of the updated policy from the acting one (nats)",
        "Std": "standard deviation of the policy (half-widths of the box)",
        **{f"Sampled{key}": f"{text}, evaluation of the sampled policy" for key, text in _EPISODE.items()},
        **{f"Greedy{key}": f"{text}, evaluation of the deterministic policy" for key, text in _EPISODE.items()},
    }
)
"""What is logged, by the field's names, with its meaning and unit; a new diagnostic is one line of it."""

COLUMNS = ("Step", "Seed", *METRICS)
"""The columns of ``metrics.csv``; ``Step`` counts environment steps per run, ``Seed`` names the run."""


def append_rows(path: Path, rows: Sequence[Row]) -> None:
    """Append rows, in one write; make the file with its header if it is not there.

    Raises:
        ValueError: a metric has no column.
    """
    lines = [] if path.exists() else [",".join(COLUMNS)]
    for row in rows:
        for key in row:
            if key not in COLUMNS:
                raise ValueError(f"metric {key!r} has no column; give it a line in METRICS of agents/metrics.py.")
        lines.append(",".join(_cell(row.get(key, math.nan)) for key in COLUMNS))
    with naming(path), open(path, "a", encoding="ascii", newline="") as file:
        file.write("".join(f"{line}\n" for line in lines))


def cut_back(path: Path, n_rows: int) -> None:
    """Keep the header and the first rows only, so that what follows a checkpoint is written once.

    Raises:
        ValueError: there are fewer rows.
    """
    # The last line may have been cut short by a crash, and then has no newline.
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = [line for line in lines if line.endswith(b"\n")]
    if not n_rows and not whole:  # a crash within the first write leaves no header
        path.unlink(missing_ok=True)
        return
    if len(whole) - 1 < n_rows:
        raise ValueError(
            f"{path} has {max(0, len(whole) - 1)} rows, the checkpoint was taken after {n_rows}; bring the table back."
        )
    if lines:
        write_atomically(path, b"".join(whole[: n_rows + 1]))


def read_table(path: Path) -> dict[str, npt.NDArray[np.float64]]:
    """Return the columns of a table by name, each [rows]; empty cells are NaN.

    Raises:
        FileNotFoundError: there is no table.
        ValueError: a row has another number of cells, or a cell is no number; the message names the line.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; nothing has been logged there yet.")
    text = path.read_text(encoding="ascii")
    header, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
    names = header.split(",")
    rows = []
    for number, line in enumerate(lines, start=2):
        cells = line.split(",")
        try:
            if len(cells) != len(names):
                raise ValueError(f"{len(cells)} cells under {len(names)} columns")
            rows.append([float(cell) if cell else math.nan for cell in cells])
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}.") from error
    table = np.asarray(rows, dtype=np.float64).reshape(-1, len(names))
    return {name: table[:, i] for i, name in enumerate(names)}


def series(
    table: Mapping[str, npt.NDArray[np.float64]], metric: str
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return a metric's steps [N] and values [N, R], one column per seed, where any seed has data.

    Raises:
        ValueError: there is no such metric, or it was never measured; the message lists those that were.
    """
    measured = [name for name in METRICS if name in table and not np.isnan(table[name]).all()]
    if metric not in measured:
        raise ValueError(f"there is no data for {metric!r}; measured were {', '.join(measured) or 'none'}.")
    steps, seeds = np.unique(table["Step"]), np.unique(table["Seed"])
    value = np.full((len(steps), len(seeds)), np.nan)
    value[np.searchsorted(steps, table["Step"]), np.searchsorted(seeds, table["Seed"])] = table[metric]
    has_data = ~np.isnan(value).all(axis=1)
    return steps[has_data], value[has_data]


def _cell(value: float) -> str:
    """Return a number with as many digits as bring a float32 back; an integer whole, NaN empty."""
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.9g}"
