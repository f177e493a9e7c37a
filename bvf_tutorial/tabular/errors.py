"""This file knows the names of everything that can be wrong with a tabular model or a request about it.

Each message names the offending row, state or key and says what to do.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = [
    "DiscountError",
    "ImproperPolicyError",
    "InvalidModelError",
    "ReducibleChainError",
    "SolveError",
    "TabularError",
    "UnreachableStateError",
]


class TabularError(ValueError):
    """Base class of every error raised by ``bvf_tutorial.tabular``."""


class InvalidModelError(TabularError):
    """A model, policy or batch of episodes that does not describe what it should."""


class ReducibleChainError(TabularError):
    """A chain with several closed classes, or transient states, where a single irreducible class is needed."""


class UnreachableStateError(TabularError):
    """A quantity conditioned on a state that the chain never visits: 0/0, no value can be right."""


class ImproperPolicyError(TabularError):
    """A policy under which the episode never ends from some state, in an undiscounted problem."""


class DiscountError(TabularError):
    """A discount factor outside its range, or gamma = 1 on a chain that never ends."""


class SolveError(TabularError):
    """A linear system or linear program whose solution, checked again, does not solve it."""


def name_states(states: npt.ArrayLike | Sequence[int], most: int = 5) -> str:
    """Name up to ``most`` states for an error message: ``"states 3, 7 and 12 more"``."""
    index = np.atleast_1d(np.asarray(states, dtype=int))
    shown = ", ".join(str(i) for i in index[:most])
    more = f" and {index.size - most} more" if index.size > most else ""
    return f"state{'s' if index.size > 1 else ''} {shown}{more}"
