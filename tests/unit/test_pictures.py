"""Pictures: every function draws, says what its axes are, keeps a white face, and never paints a missing value as zero."""

from __future__ import annotations

import re
from collections.abc import Iterator

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from bvf_tutorial import plotting, widgets
from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld


@pytest.fixture(autouse=True)
def closed_figures() -> Iterator[None]:
    with mpl.rc_context():
        plotting.use_book_style()
        yield
    plt.close("all")


def test_colours_are_told_apart_without_colour_vision() -> None:
    """Simulated deuteranopia and protanopia (Vienot et al., 1999): every pair of line colours keeps a distance."""
    to_linear = np.array([[0.31399, 0.63951, 0.04650], [0.15537, 0.75789, 0.08670], [0.01775, 0.10945, 0.87257]])
    without = {
        "protanopia": np.array([[0, 1.05118294, -0.05116099], [0, 1, 0], [0, 0, 1]]),
        "deuteranopia": np.array([[1, 0, 0], [0.9513092, 0, 0.04866992], [0, 0, 1]]),
    }
    lines = mpl.rcParams["axes.prop_cycle"].by_key()["color"][:4]
    colour = np.array([mpl.colors.to_rgb(code) for code in lines])
    for reduce in without.values():
        seen = (np.linalg.inv(to_linear) @ reduce @ to_linear @ (colour**2.2).T).T.clip(0, 1) ** (1 / 2.2)
        gap = np.linalg.norm(seen[:, None] - seen[None], axis=2) + np.eye(len(lines))
        assert gap.min() > 0.15


def test_grid_pictures() -> None:
    grid = GridWorld.random(0)
    model = grid.to_cmdp()
    optimum = tb.optimal_policy(model)
    chain = tb.policy_chain(model, optimum.policy)
    _, axes = plt.subplots(1, 3)
    plotting.draw_layout(grid, axes[0], legend=True)
    plotting.draw_policy(grid, optimum.policy, axes[1], weight=tb.expected_visits(chain))
    value = tb.backward_value(chain, model.cost, unreachable="nan")
    value[0] = np.nan
    plotting.draw_cell_values(grid, value, axes[2], "backward value (cost)", digits=1)
    for ax in axes:
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("column", "row")
    assert axes[2].figure.axes[-1].get_ylabel() == "backward value (cost)"
    image = axes[2].get_images()[0].get_array()
    assert np.ma.getmaskarray(image)[0, 0]
    assert {text.get_text() for text in axes[0].texts} == {"S", "G"}
    assert mpl.colors.to_rgb(axes[0].figure.get_facecolor()) == (1, 1, 1)


def test_chain_and_frontier_pictures() -> None:
    place = np.array([[0, 0], [1.3, 0.7], [1.3, -0.7], [2.6, 0]])
    _, axes = plt.subplots(1, 2)
    plotting.draw_chain(tb.chain4(), place, axes[0], value=tb.CHAIN4_COST)
    words = {text.get_text() for text in axes[0].texts}
    assert {"end 0.25", "end 0.50", "0.2", "0\n1.00"} <= words
    back = tb.time_reversal(tb.chain4())
    plotting.draw_chain(back, place, axes[0], label=["a", "b", "c", "d"], colour="vermilion")
    problem = tb.random_cmdp(np.random.default_rng(0))
    least, most = tb.cost_range(problem)
    plotting.draw_frontier(tb.pareto_frontier(problem, np.linspace(0.5 * least, most, 5)), axes[1])
    assert "cost limit" in axes[1].get_xlabel()
    assert {text.get_text() for text in axes[1].get_legend().get_texts()} == {"optimal return", "infeasible"}


def slider(size: int = 3) -> widgets.FrameSlider:
    def draw(position: int) -> plt.Figure:
        figure, ax = plt.subplots(figsize=(2, 1))
        ax.plot([0, position])
        return figure

    return widgets.frame_slider(draw, range(size), "a line that rises", label="height {} < 9")


def test_sliders_are_self_contained_and_reproducible() -> None:
    before = plt.get_fignums()
    first, second = slider()._repr_html_(), slider()._repr_html_()
    assert first == second
    assert plt.get_fignums() == before
    assert not re.search(r"(?:src|href)\s*=\s*[\"']?\s*(?:https?:)?//", first)
    assert "http" not in first
    assert first.count("data:image/png;base64,") == 4  # three frames and the first one shown
    assert 'alt="a line that rises"' in first
    assert "height 2 &lt; 9" in first
    assert first != slider(2)._repr_html_()
    assert "3 frames" in repr(slider())


def test_explorer_redraws() -> None:
    seen = []

    def draw(height: int = 3) -> plt.Figure:
        seen.append(height)
        return plt.figure()

    panel = widgets.explorer(draw, height=(0, 5, 1))
    assert panel.children[0].value == 3
    panel.children[0].value = 4
    panel.update()
    assert seen[-1] == 4
