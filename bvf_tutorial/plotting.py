"""This file knows how the book's pictures look.

Colours a colour-blind reader can tell apart, grids, chains and frontiers.

Every function draws on an axes it is given and returns it; a state that has no value (NaN) is hatched, never painted as
zero. The figure's face stays white so that pictures read in dark mode, too.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.colors import Colormap
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle
from matplotlib.ticker import EngFormatter

from .envs.gridworld import GridWorld
from .statistics import mean_interval
from .tabular.chain import Chain
from .tabular.optimum import Frontier

__all__ = [
    "COLORS",
    "METHODS",
    "draw_cell_values",
    "draw_chain",
    "draw_comparison",
    "draw_frontier",
    "draw_layout",
    "draw_policy",
    "draw_training_curves",
    "mean_interval",
    "method_style",
    "save_training_curves",
    "use_book_style",
]

COLORS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "vermilion": "#D55E00",
    "purple": "#CC79A7",
    "grey": "#7F7F7F",
}
"""The palette of Okabe and Ito (2008), plus a grey.

Forward quantities are blue, backward ones vermilion, limits black and dashed.
"""

METHODS = MappingProxyType(
    {
        "unconstrained": ("vermilion", "-"), "lyapunov": ("green", "-"),
        "backward": ("blue", "-"), "target": ("blue", "-."), "lyapunov_target": ("green", "-."),
        "backward_alone": ("blue", ":"),
        "safeguarded": ("sky", "-"), "backward_weight": ("sky", "-."), "forward_weight": ("sky", ":"),
        "predictive": ("orange", "-"), "pid": ("orange", "-."), "lagrangian": ("orange", ":"),
        "recovery": ("purple", "-"), "penalty": ("purple", ":"),
    }
)  # fmt: skip
"""Colour and line of each safety method; the paper's own three have its colours (red, green, blue)."""

_ARROW = ((0, -0.32), (0.32, 0), (0, 0.32), (-0.32, 0))


def use_book_style() -> None:
    """Set matplotlib's defaults for the book: readable sizes, white face, the colour cycle of ``COLORS``."""
    cycle = [COLORS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky", "black")]
    mpl.rcParams.update(
        {
            "figure.figsize": (6.4, 3.8),
            "figure.dpi": 110,
            "figure.facecolor": "white",
            "savefig.facecolor": "white",
            "axes.prop_cycle": cycler(color=cycle),
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.labelsize": 10,
            "legend.frameon": False,
            "figure.constrained_layout.use": True,
        }
    )


def draw_layout(grid: GridWorld, ax: Axes, legend: bool = False) -> Axes:
    """Draw a grid world's layout: S start (green), G goal (blue), pits (vermilion, hatched).

    Args:
        grid: the layout.
        ax: where to draw.
        legend: whether to name the cells below the picture.
    """
    _frame(grid, ax)
    for row, column in np.argwhere(grid.pit):
        ax.add_patch(
            _cell(int(row), int(column), facecolor="#F3C5AE", edgecolor=COLORS["vermilion"], hatch="xxx", linewidth=0)
        )
    for (row, column), colour, letter in ((grid.start, "green", "S"), (grid.goal, "blue", "G")):
        ax.add_patch(_cell(row, column, facecolor=COLORS[colour]))
        ax.text(column, row, letter, ha="center", va="center", color="white", fontweight="bold")
    if legend:
        handles = [
            Rectangle((0, 0), 1, 1, facecolor=COLORS["green"], label="start"),
            Rectangle((0, 0), 1, 1, facecolor=COLORS["blue"], label="goal"),
            Rectangle((0, 0), 1, 1, facecolor="#F3C5AE", edgecolor=COLORS["vermilion"], hatch="xxx", label="pit"),
        ]
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    return ax


def draw_policy(
    grid: GridWorld, policy: npt.ArrayLike, ax: Axes, weight: npt.ArrayLike = (), threshold: float = 0.02
) -> Axes:
    """Draw a policy as arrows on the layout; an arrow's length is the action's probability.

    Args:
        grid: the layout.
        policy: [size * size, 4].
        ax: where to draw.
        weight: [size * size], visits; cells visited less than ``threshold`` of the most visited fade out. Empty: no
            fading.
        threshold: see ``weight``.
    """
    draw_layout(grid, ax)
    probability = np.asarray(policy, dtype=np.float64)
    visits = np.asarray(weight, dtype=np.float64) if np.size(weight) else np.ones(grid.size**2)
    for state in range(grid.size**2):
        row, column = divmod(state, grid.size)
        if state == grid.goal_state:
            continue
        faint = visits[state] < threshold * visits.max()
        for action, (right, down) in enumerate(_ARROW):
            size = probability[state, action]
            if size > 0.05:
                ax.annotate(
                    "",
                    (column + right * size * 1.2, row + down * size * 1.2),
                    (column - right * size * 0.4, row - down * size * 0.4),
                    arrowprops={
                        "arrowstyle": "->,head_width=0.2,head_length=0.25",
                        "shrinkA": 0,
                        "shrinkB": 0,
                        "color": COLORS["black"],
                        "alpha": 0.15 if faint else 1.0,
                        "lw": 1.3,
                    },
                )
    return ax


def draw_cell_values(
    grid: GridWorld,
    value: npt.ArrayLike,
    ax: Axes,
    label: str,
    cmap: str | Colormap = "viridis",
    vmin: float | None = None,
    vmax: float | None = None,
    digits: int = -1,
) -> Axes:
    """Draw one number per cell (a value, a slack, visits) as colour, with a labelled colour bar.

    NaN cells are hatched grey.

    Args:
        grid: the layout; pits, start and goal are outlined.
        value: [size * size].
        ax: where to draw.
        label: of the colour bar, with units.
        cmap: a perceptually ordered map ("viridis", "cividis"); a diverging one ("PuOr") for signed quantities.
        vmin: colour range, from the data unless given.
        vmax: colour range, from the data unless given.
        digits: decimals to print in each cell; -1 prints nothing.
    """
    table = np.asarray(value, dtype=np.float64).reshape(grid.size, grid.size)
    _frame(grid, ax)
    for row, column in np.argwhere(np.isnan(table)):
        ax.add_patch(_cell(int(row), int(column), facecolor="#E8E8E8", edgecolor="#B0B0B0", hatch="//", linewidth=0))
    image = ax.imshow(np.ma.masked_invalid(table), cmap=cmap, vmin=vmin, vmax=vmax)
    for row, column in np.argwhere(grid.pit):
        ax.add_patch(_cell(int(row), int(column), fill=False, edgecolor=COLORS["vermilion"], linewidth=1.2))
    for (row, column), letter in ((grid.start, "S"), (grid.goal, "G")):
        _print(ax, image, table[row, column], row, column, letter)
    if digits >= 0:
        for row, column in np.argwhere(~np.isnan(table)):
            if (row, column) not in (grid.start, grid.goal):
                _print(ax, image, table[row, column], int(row), int(column), f"{table[row, column]:.{digits}f}", size=6)
    ax.figure.colorbar(image, ax=ax, label=label, shrink=0.85)
    return ax


def draw_chain(
    chain: Chain,
    position: npt.ArrayLike,
    ax: Axes,
    label: Sequence[str] = (),
    value: npt.ArrayLike = (),
    colour: str = "blue",
    digits: int = 2,
) -> Axes:
    """Draw a small chain as circles and arrows.

    An arrow's width and number are its probability, a grey stub marks the episode's end.

    Args:
        chain: at most a dozen states.
        position: [S, 2], (x, y) of each state.
        ax: where to draw.
        label: [S] names; empty for ``0..S-1``.
        value: [S] numbers printed under the names; empty for none.
        colour: of the arrows, a key of ``COLORS`` (blue forward, vermilion backward).
        digits: decimals of the probabilities.
    """
    place = np.asarray(position, dtype=np.float64)
    transition = np.asarray(chain.transition.todense() if chain.is_sparse else chain.transition)
    names = list(label) or [str(i) for i in range(chain.n_states)]
    shown = np.asarray(value, dtype=np.float64)
    for source, target in np.argwhere(transition > 1e-12):
        _arrow(
            ax,
            place[source],
            place[target],
            float(transition[source, target]),
            COLORS[colour],
            digits,
            _outward(place, source),
        )
    for state in range(chain.n_states):
        ax.add_patch(
            Circle(tuple(place[state]), 0.2, facecolor="white", edgecolor=COLORS["black"], linewidth=1.4, zorder=3)
        )
        text = names[state] if not shown.size else f"{names[state]}\n{shown[state]:.{digits}f}"
        ax.text(
            place[state, 0], place[state, 1], text, ha="center", va="center", zorder=4, fontsize=9 if shown.size else 11
        )
        if chain.termination[state] > 1e-12:
            aside = _turned(_outward(place, state), -1.0)
            end = place[state] + 0.55 * aside
            ax.add_patch(_line(place[state] + 0.2 * aside, end, 0.0, COLORS["grey"], 1.2))
            _label(ax, end + 0.1 * aside, f"end {chain.termination[state]:.{digits}f}", "#555555")
    ax.set_aspect("equal")
    ax.set_xlim(place[:, 0].min() - 0.7, place[:, 0].max() + 0.7)
    ax.set_ylim(place[:, 1].min() - 0.85, place[:, 1].max() + 0.75)
    ax.axis("off")
    return ax


def draw_frontier(
    frontier: Frontier, ax: Axes, cost_unit: str = "cost per episode", value_unit: str = "return per episode"
) -> Axes:
    """Draw the best return against the cost limit; infeasible limits are shaded grey.

    Args:
        frontier: from ``pareto_frontier``, limits ascending.
        ax: where to draw.
        cost_unit: label of the horizontal axis.
        value_unit: label of the vertical axis.
    """
    ax.plot(frontier.cost_limit, frontier.value, color=COLORS["blue"], marker=".", label="optimal return")
    infeasible = frontier.cost_limit[np.isnan(frontier.value)]
    if infeasible.size:
        feasible = frontier.cost_limit[~np.isnan(frontier.value)]
        edge = feasible.min() if feasible.size else infeasible.max()
        ax.axvspan(infeasible.min(), edge, color="#E0E0E0", label="infeasible")
    ax.set_xlabel(f"cost limit ({cost_unit})")
    ax.set_ylabel(value_unit)
    ax.legend()
    return ax


Curve = tuple[npt.ArrayLike, npt.ArrayLike]
"""Steps [N] and values [N, R], one column per seed."""


def method_style(names: Sequence[str]) -> dict[str, tuple[str, Any]]:
    """Return colour and line of safety methods by name, the same in every figure; up to four new ones are grey.

    Args:
        names: of ``agents.CONSTRAINTS``, or presets, which end in one; ``_warm`` and ``_tuned``: longer dashes.
    """
    style, n_unknown = {}, 0
    for name in names:
        method = name.rpartition("-")[2]
        plain = method.removesuffix("_warm").removesuffix("_tuned")
        colour, line = METHODS.get(plain, ("grey", ("-", "-.", ":", "--")[n_unknown % 4]))
        n_unknown += colour == "grey"
        longer = {"-": (0, (8, 1.5)), "-.": (0, (8, 1.5, 1, 1.5)), ":": (0, (1, 3))}
        style[name] = (COLORS[colour], longer.get(line, line) if method != plain else line)
    return style


def draw_training_curves(
    curve: Mapping[str, Curve],
    ax: Axes,
    label: str,
    limit: Sequence[float] = (),
    confidence: float = 0.95,
    style: Mapping[str, tuple[str, Any]] = MappingProxyType({}),
) -> Axes:
    """Draw means over seeds against environment steps, a band for the mean's interval where there are two seeds.

    The legend counts the seeds of each curve and says where they end, if that is before the longest curve's end or not
    the same for all. A curve without data has its line in the legend and none in the picture.

    Args:
        curve: by name, from ``agents.metrics.series``; steps [N] and values [N, R], either may be empty.
        ax: where to draw.
        label: of the vertical axis, with its unit.
        limit: cost limits, drawn as dashed lines with their values.
        confidence: of the band.
        style: colour and line by name, as from ``method_style``; in the order of the palette where it has none.
    """
    cycle = [COLORS[name] for name in ("blue", "vermilion", "green", "orange", "purple", "sky")]
    longest = max((float(np.max(step)) for step, _ in curve.values() if np.size(step)), default=0.0)
    for i, (name, (step, value)) in enumerate(curve.items()):
        table = np.asarray(value, dtype=np.float64)
        table = table if table.size else table.reshape(np.size(step), 0)
        mean, half = mean_interval(table, confidence)
        mean = np.where(np.isfinite(mean), mean, np.nan)  # an infinite price is a gap
        text = f"{name} ({_extent(np.asarray(step, dtype=np.float64), table, longest)})"
        in_turn = (cycle[i % len(cycle)], ("-", "-.", ":")[(i + i // len(cycle)) % 3])
        colour, line = style.get(name, in_turn)
        # A curve of one point would be invisible without a mark.
        ax.plot(step, mean, linestyle=line, color=colour, label=text, marker="." if len(mean) == 1 else "")
        if np.isfinite(half).any():
            ax.fill_between(np.asarray(step, dtype=np.float64), mean - half, mean + half, color=colour, alpha=0.2, lw=0)
    for each in sorted(set(limit)):
        ax.axhline(each, color=COLORS["black"], linestyle="--", linewidth=1.2, label=f"cost limit {each:g}")
    ax.set_xlabel("environment steps per run")
    ax.set_ylabel(label)
    ax.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=1 + (len(curve) > 2), fontsize=9)
    return ax


def _extent(step: npt.NDArray[np.float64], table: npt.NDArray[np.float64], longest: float) -> str:
    """Return how many seeds a curve [N, R] has, where they end, and how many have no data."""
    n_seeds, end = table.shape[1], [float(step[each].max()) for each in ~np.isnan(table.T) if each.any()]
    if not end:
        return "no data"
    text, low, high = f"{n_seeds} seed{'s' if n_seeds > 1 else ''}", min(end), max(end)
    if low < high:
        text += f", end at {low:,.0f} to {high:,.0f}"
    elif high < longest:
        text += f", ends at {high:,.0f}"
    return text + (f", {n_seeds - len(end)} without data" if len(end) < n_seeds else "")


def draw_comparison(
    figure: Figure,
    panel: Mapping[str, Mapping[str, tuple[Curve, Curve]]],
    limit: Mapping[str, float],
    best: Mapping[str, float] = MappingProxyType({}),
    confidence: float = 0.8,
) -> None:
    """Draw return above cost for several tasks side by side, one style per method and one legend, as the paper does.

    Args:
        figure: empty, constrained layout.
        panel: by title, the curves of return and cost by method or preset.
        limit: cost limit of each title.
        best: best feasible return of titles where it is known, drawn as a dotted line.
        confidence: of the bands of the mean.
    """
    axes = figure.subplots(2, len(panel), sharex="col", squeeze=False)
    handle: dict[str, Any] = {}
    line_of_level: dict[str, Any] = {}
    for column, (title, curves) in zip(axes.T, panel.items(), strict=True):
        style = method_style([*curves])
        for i, (ax, label) in enumerate(zip(column, ("return per episode", "cost per episode"), strict=True)):
            limits = (limit[title],) if i else ()
            draw_training_curves({k: pair[i] for k, pair in curves.items()}, ax, label, limits, confidence, style)
            if not i and title in best:
                ax.axhline(
                    best[title], color=COLORS["black"], linestyle=":", linewidth=1.4, label="best feasible return"
                )
            ax.get_legend().remove()
            for line, name in zip(ax.lines, curves, strict=False):
                handle.setdefault(name.rpartition("-")[2], line)
            if len(ax.lines) > len(curves):
                line_of_level["cost limit" if i else "best feasible return"] = ax.lines[-1]
        seeds = sorted({np.shape(pair[0][1])[1] for pair in curves.values()})
        column[0].set_title(f"{title} ({', '.join(map(str, seeds))} seeds)")
        column[0].set_xlabel("")
        column[1].xaxis.set_major_formatter(EngFormatter(sep=""))
    handle |= line_of_level
    n_columns = max(2, int(figure.get_figwidth() / 1.7))
    figure.legend(handle.values(), handle, loc="outside lower center", ncols=n_columns, fontsize=9)


def save_training_curves(
    path: Path,
    curve: Mapping[str, Curve],
    label: str,
    limit: Sequence[float] = (),
    size: tuple[float, float] = (7, 4.2),
) -> None:
    """Write ``draw_training_curves`` to a file, whose suffix says the format; needs no display.

    Raises:
        ValueError: matplotlib does not write this format.
    """
    with mpl.rc_context():
        use_book_style()
        figure = Figure(figsize=size)
        draw_training_curves(curve, figure.add_subplot(), label, limit)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)


def _frame(grid: GridWorld, ax: Axes) -> None:
    ax.set_xlim(-0.5, grid.size - 0.5)
    ax.set_ylim(grid.size - 0.5, -0.5)
    ax.set_aspect("equal")
    ax.set_xticks(np.arange(-0.5, grid.size), minor=True)
    ax.set_yticks(np.arange(-0.5, grid.size), minor=True)
    ax.grid(which="minor", color="#CCCCCC", linewidth=0.6)
    ax.tick_params(which="minor", length=0)
    ax.set_xlabel("column")
    ax.set_ylabel("row")


def _cell(row: int, column: int, **style: Any) -> Rectangle:
    return Rectangle((column - 0.5, row - 0.5), 1, 1, **style)


def _print(ax: Axes, image: Any, number: float, row: int, column: int, text: str, size: float = 9) -> None:
    """Print text in a cell in the ink that reads on its colour."""
    red, green, blue, _ = image.cmap(image.norm(number)) if np.isfinite(number) else (1.0, 1.0, 1.0, 1.0)
    ink = "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"
    ax.text(column, row, text, ha="center", va="center", color=ink, fontsize=size)


def _line(start: Any, end: Any, bend: float, colour: str, width: float) -> FancyArrowPatch:
    return FancyArrowPatch(
        tuple(start),
        tuple(end),
        connectionstyle=f"arc3,rad={bend}",
        arrowstyle="-|>",
        mutation_scale=11,
        color=colour,
        linewidth=width,
        zorder=2,
    )


def _outward(place: Any, state: int) -> Any:
    """Return the unit vector from the middle of the picture to a state (up, for a state in the middle).

    Free space for loops and ends.
    """
    away = place[state] - (place.min(axis=0) + place.max(axis=0)) / 2
    size = float(np.linalg.norm(away))
    return away / size if size > 1e-9 else np.array([0.0, 1.0])


def _turned(vector: Any, angle: float) -> Any:
    """Return a plane vector turned counter-clockwise by an angle in radians."""
    cosine, sine = np.cos(angle), np.sin(angle)
    return np.array([cosine * vector[0] - sine * vector[1], sine * vector[0] + cosine * vector[1]])


def _arrow(ax: Axes, source: Any, target: Any, probability: float, colour: str, digits: int, outward: Any) -> None:
    """Draw one transition; both directions of a pair bend apart, a self-loop sits on the outer side of its state."""
    width = 0.6 + 2.4 * probability
    text = f"{probability:.{digits}f}".rstrip("0").rstrip(".")
    if np.allclose(source, target):
        ends = [source + 0.21 * _turned(outward, angle) for angle in (0.6, -0.6)]
        ax.add_patch(_line(ends[0], ends[1], -1.6, colour, width))
        _label(ax, source + 0.52 * outward, text, colour)
        return
    direction = (target - source) / np.linalg.norm(target - source)
    normal = np.array([direction[1], -direction[0]])
    ax.add_patch(_line(source + 0.2 * direction, target - 0.2 * direction, 0.18, colour, width))
    middle = (source + target) / 2 + normal * 0.13 * np.linalg.norm(target - source)
    _label(ax, middle, text, colour)


def _label(ax: Axes, place: Any, text: str, colour: str) -> None:
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}
    ax.text(place[0], place[1], text, ha="center", va="center", fontsize=8, color=colour, bbox=box, zorder=5)
