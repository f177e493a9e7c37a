"""This file knows how the README's picture is made: ``python -m tools.picture`` draws docs/backward_value.png."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from bvf_tutorial.plotting import draw_cell_values, draw_policy, use_book_style

PICTURE = Path(__file__).parents[1] / "docs" / "backward_value.png"


def main() -> None:
    """Draw a policy of a grid world, what it has cost so far in each cell, and what it will still cost."""
    use_book_style()
    grid = GridWorld.random(0)
    model = grid.to_cmdp()
    # Mostly the optimum, sometimes at random: a policy in the middle of learning, which visits every cell.
    policy = 0.8 * tb.optimal_policy(model).policy + 0.2 * tb.uniform_policy(model)
    chain = tb.policy_chain(model, policy)
    figure, axes = plt.subplots(1, 3, figsize=(12.5, 3.9))
    draw_policy(grid, policy, axes[0])
    backward = tb.backward_value(chain, model.cost)
    forward = tb.forward_value(chain, model.cost)
    top = max(backward.max(), forward.max())
    draw_cell_values(grid, backward, axes[1], "expected cost so far", vmin=0, vmax=top)
    draw_cell_values(grid, forward, axes[2], "expected cost to go", vmin=0, vmax=top)
    for ax, title in zip(axes, ("a policy in a grid of pits", "backward value", "forward value"), strict=True):
        ax.set_title(title)
    figure.savefig(PICTURE, dpi=110, metadata={"Software": None})


if __name__ == "__main__":
    main()
