"""The tasks. So far the grid world, exact and tabular; it needs NumPy only."""

from .gridworld import ACTION_NAMES, GridWorld

__all__ = ["ACTION_NAMES", "GridWorld"]
