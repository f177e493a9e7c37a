"""This file knows how to draw random chains, policies and CMDPs for Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from scipy import sparse

from bvf_tutorial import tabular as tb

SEED = st.integers(0, 2**32 - 1)


def _rows(generator: np.random.Generator, n_rows: int, n_states: int, sparsity: float) -> np.ndarray:
    """Random distributions, some entries exactly zero, none of the rows empty."""
    weight = generator.exponential(size=(n_rows, n_states)) * (generator.random((n_rows, n_states)) > sparsity)
    weight[np.arange(n_rows), generator.integers(n_states, size=n_rows)] += 0.1
    return weight / weight.sum(axis=1, keepdims=True)


@st.composite
def killed_chains(draw: st.DrawFn, max_states: int = 8, all_visited: bool = True, sparse_too: bool = False) -> tb.Chain:
    """Draw a chain whose episodes end from every state; by default every state is visited."""
    n_states = draw(st.integers(1, max_states))
    generator = np.random.default_rng(draw(SEED))
    transition = _rows(generator, n_states, n_states, draw(st.sampled_from([0.0, 0.5])))
    end = generator.uniform(0.01, 0.9, n_states) * (generator.random(n_states) < 0.7)
    end[generator.integers(n_states)] = 0.3
    # A little mass on a cycle through all states makes each of them visited and able to end.
    cycle = np.roll(np.eye(n_states), 1, axis=1)
    transition = (0.9 * transition + 0.1 * cycle if all_visited else transition) * (1 - end)[:, None]
    if not all_visited:
        end = np.maximum(end, 0.05)
        transition = transition / transition.sum(axis=1, keepdims=True) * (1 - end)[:, None]
    initial = _rows(generator, 1, n_states, 0.5)[0] if draw(st.booleans()) else np.eye(n_states)[0]
    if sparse_too and draw(st.booleans()):
        return tb.Chain(sparse.csr_array(transition), end, initial)
    return tb.Chain(transition, end, initial)


@st.composite
def continuing_chains(draw: st.DrawFn, max_states: int = 8) -> tb.Chain:
    """Draw an irreducible chain that never ends; sometimes a periodic one."""
    n_states = draw(st.integers(2, max_states))
    generator = np.random.default_rng(draw(SEED))
    cycle = np.roll(np.eye(n_states), 1, axis=1)
    mix = draw(st.sampled_from([0.0, 0.3, 0.9]))
    return tb.Chain.continuing((1 - mix) * cycle + mix * _rows(generator, n_states, n_states, 0.3))


@st.composite
def costs(draw: st.DrawFn, n_states: int) -> np.ndarray:
    """Draw non-negative state costs, some zero."""
    generator = np.random.default_rng(draw(SEED))
    return generator.uniform(0, 5, n_states) * (generator.random(n_states) < 0.7)


@st.composite
def layered_chains(draw: st.DrawFn) -> tb.Chain:
    """Draw an acyclic chain, small enough to enumerate every path, with random ends: oracles are exact on it."""
    width, depth = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(SEED))
    n_states = 1 + width * depth
    transition, end = np.zeros((n_states, n_states)), np.ones(n_states)
    for state in range(n_states - width):
        first = 1 + (0 if state == 0 else 1 + (state - 1) // width) * width
        end[state] = generator.uniform(0, 0.6)
        transition[state, first : first + width] = generator.dirichlet(np.ones(width)) * (1 - end[state])
    return tb.Chain(transition, end, np.eye(n_states)[0])


@st.composite
def cmdps(draw: st.DrawFn, max_states: int = 6) -> tb.CMDP:
    """Draw an episodic CMDP with two or three actions and a limit that binds."""
    n_states = draw(st.integers(2, max_states))
    generator = np.random.default_rng(draw(SEED))
    cmdp = tb.random_cmdp(generator, n_states, draw(st.integers(2, 3)), branching=min(2, n_states), termination=0.2)
    return tb.with_binding_limit(cmdp, draw(st.sampled_from([0.2, 0.5, 0.8])))


@st.composite
def policies(draw: st.DrawFn, n_states: int, n_actions: int) -> np.ndarray:
    """Draw a policy with full support."""
    generator = np.random.default_rng(draw(SEED))
    return 0.9 * generator.dirichlet(np.ones(n_actions), n_states) + 0.1 / n_actions
