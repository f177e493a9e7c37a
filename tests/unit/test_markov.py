"""Laws, graph properties and linear solves: accuracy, sparse against dense, structure."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from bvf_tutorial import tabular as tb
from tests.oracles import rational_stationary
from tests.strategies import SEED, continuing_chains, killed_chains


def sparsified(chain: tb.Chain) -> tb.Chain:
    return tb.Chain(sparse.csr_array(chain.transition), chain.termination, chain.initial)


@given(SEED, st.integers(2, 6))
def test_stationary_law_to_relative_accuracy(seed: int, size: int) -> None:
    """Probabilities down to 1e-20: every entry right to 1e-13 of itself, against exact rational arithmetic.

    Off-diagonal entries decide; the diagonal is what float64 leaves of one, so the oracle recomputes it exactly.
    """
    generator = np.random.default_rng(seed)
    transition = np.where(np.eye(size, dtype=bool), 0, 10 ** generator.uniform(-20, -1, (size, size)) / size)
    exact = [[Fraction(float(p)) for p in row] for row in transition]
    for i in range(size):
        exact[i][i] = 1 - sum(exact[i])
        transition[i, i] = float(exact[i][i])
    law = tb.stationary_distribution(tb.Chain.continuing(transition))
    np.testing.assert_allclose(law, [float(p) for p in rational_stationary(exact)], rtol=1e-13)


@given(killed_chains(), SEED)
def test_sparse_equals_dense(chain: tb.Chain, seed: int) -> None:
    thin, cost = sparsified(chain), np.random.default_rng(seed).uniform(0, 1, chain.n_states)
    np.testing.assert_allclose(tb.expected_visits(thin), tb.expected_visits(chain), rtol=1e-9)
    np.testing.assert_allclose(tb.backward_value(thin, cost), tb.backward_value(chain, cost), rtol=1e-8)
    np.testing.assert_allclose(tb.forward_value(thin, cost, 0.9), tb.forward_value(chain, cost, 0.9), rtol=1e-10)
    np.testing.assert_allclose(
        tb.time_reversal(thin).transition.toarray(), tb.time_reversal(chain).transition, rtol=1e-8, atol=1e-15
    )


@given(continuing_chains())
def test_sparse_stationary_law(chain: tb.Chain) -> None:
    np.testing.assert_allclose(
        tb.stationary_distribution(sparsified(chain)), tb.stationary_distribution(chain), rtol=1e-9
    )


@given(killed_chains(), st.sampled_from([1.0, 0.99, 0.5]), SEED)
def test_censoring_solves_the_system(chain: tb.Chain, gamma: float, seed: int) -> None:
    """Left and right application against LAPACK, signed right-hand sides included."""
    signal = np.random.default_rng(seed).normal(size=chain.n_states)
    system = np.eye(chain.n_states) - gamma * chain.transition
    resolvent = tb.Resolvent(chain, gamma)
    np.testing.assert_allclose(resolvent.right(signal), np.linalg.solve(system, signal), rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(resolvent.left(signal), np.linalg.solve(system.T, signal), rtol=1e-6, atol=1e-8)


def test_small_entries_survive_a_sparse_solve() -> None:
    """A long corridor against its closed form: visits fall to 1e-90 and keep their digits."""
    n_states, ahead = 300, 1e-3 / 2
    transition = sparse.diags_array([np.full(n_states - 1, ahead)], offsets=[1], format="csr")
    chain = tb.Chain.killed(transition, np.eye(n_states)[0])
    short = tb.Chain.killed(transition[:30, :30], np.eye(30)[0])
    np.testing.assert_allclose(tb.expected_visits(short), ahead ** np.arange(30.0), rtol=1e-12)
    age = tb.expected_age(short)
    np.testing.assert_allclose(age, np.arange(30.0), rtol=1e-10, atol=1e-10)
    assert tb.expected_visits(chain)[28] == pytest.approx(ahead**28, rel=1e-11)


def test_a_grid_walk_agrees_with_its_dense_twin() -> None:
    walk = tb.grid_walk(12)
    dense = tb.Chain(walk.transition.toarray(), walk.termination, walk.initial)
    cost = np.arange(144.0) % 7
    np.testing.assert_allclose(tb.backward_value(walk, cost), tb.backward_value(dense, cost), rtol=1e-10)
    np.testing.assert_allclose(tb.stationary_distribution(walk), tb.stationary_distribution(dense), rtol=1e-10)


def test_a_hundred_thousand_states_solve_their_equations() -> None:
    """Checked by the definition, not by another solver: the reversed operator must leave the value where it is."""
    walk = tb.grid_walk(300)
    cost = (np.arange(walk.n_states) % 3 == 0) * 10.0
    value, back = tb.backward_value(walk, cost), tb.time_reversal(walk)
    np.testing.assert_allclose(tb.bellman_operator(back, cost, value), value, rtol=1e-9)
    law = tb.stationary_distribution(walk)
    np.testing.assert_allclose(law @ walk.transition + (law @ walk.termination) * walk.initial, law, rtol=1e-9)


@given(st.integers(2, 9), SEED)
def test_period_of_a_cycle_with_chords(length: int, seed: int) -> None:
    """A cycle of ``length`` plus chords that keep residues modulo ``divisor``: the period is at least that divisor."""
    generator = np.random.default_rng(seed)
    divisor = int(generator.choice([k for k in range(1, length + 1) if length % k == 0]))
    weight = np.roll(np.eye(length), 1, axis=1)
    for x in range(length):
        for y in range(length):
            if (y - x - 1) % divisor == 0 and generator.random() < 0.3:
                weight[x, y] += 1
    chain = tb.Chain.continuing(weight / weight.sum(axis=1, keepdims=True))
    expected = next(k for k in range(length, 0, -1) if _returns_only_at(chain.transition, k))
    assert tb.period(chain) == expected
    assert expected % divisor == 0


def _returns_only_at(transition: np.ndarray, k: int) -> bool:
    """Whether all closed walks have lengths divisible by ``k``: by powers of the adjacency matrix, not by search."""
    step, power = transition > 0, np.eye(len(transition), dtype=bool)
    for n in range(1, 3 * len(transition)):
        power = (power.astype(int) @ step.astype(int)) > 0
        if n % k and power.diagonal().any():
            return False
    return True


def test_structure() -> None:
    assert tb.period(tb.cyclic3()) == 1
    assert tb.period(tb.Chain.continuing(np.roll(np.eye(4), 1, axis=1))) == 4
    fixed_length = tb.Chain.killed(np.diag([1.0, 1.0], 1), np.eye(3)[0])
    assert tb.period(fixed_length) == 3  # Assumption 3.1 excludes every episode of fixed length
    assert tb.is_irreducible(fixed_length)
    assert tb.stationary_distribution(fixed_length) == pytest.approx(np.full(3, 1 / 3))
    assert not tb.is_irreducible(tb.Chain.continuing(np.array([[1.0, 0], [0.5, 0.5]])))
    labels = tb.communicating_classes(tb.Chain.continuing(np.array([[1.0, 0], [0.5, 0.5]])))
    assert labels[0] != labels[1]
    birth_death = tb.Chain.continuing(np.array([[0.5, 0.5, 0], [0.2, 0.5, 0.3], [0, 0.6, 0.4]]))
    assert tb.is_reversible(birth_death)
    assert not tb.is_reversible(tb.cyclic3())
    assert tb.is_reversible(sparsified(birth_death))


def test_reference_chains() -> None:
    """Golden values of the two reference chains, with their sources in exact arithmetic above."""
    chain = tb.chain4()
    np.testing.assert_allclose(tb.expected_visits(chain), [1, 38 / 27, 10 / 9, 35 / 27], rtol=1e-15)
    assert tb.expected_length(chain) == pytest.approx(130 / 27, rel=1e-15)
    np.testing.assert_allclose(tb.forward_value(chain, tb.CHAIN4_COST), [64 / 9, 14 / 3, 68 / 9, 58 / 9], rtol=1e-14)
    discounted = [1.0, 2.5680293623583412, 4.702108497885418, 7.453429188634715]
    np.testing.assert_allclose(tb.backward_value(chain, tb.CHAIN4_COST, 0.9), discounted, rtol=1e-13)
    ahead = [5.238628411476557, 3.379073234551374, 6.040101013174309, 5.59892901694709]
    np.testing.assert_allclose(tb.forward_value(chain, tb.CHAIN4_COST, 0.9), ahead, rtol=1e-13)
    fork = tb.fork3()
    np.testing.assert_allclose(tb.stationary_distribution(fork), [0.4, 0.2, 0.4], rtol=1e-15)
    np.testing.assert_allclose(tb.backward_value(fork, tb.FORK3_COST), [0, 1, 0], atol=1e-15)
