"""The backward value as a fixed point: where it exists, how fast it is reached, and where the paper's has none (chapter 4)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import enumerated, rational_backward
from tests.strategies import costs, killed_chains, layered_chains


def radius(matrix: np.ndarray) -> float:
    return float(np.abs(np.linalg.eigvals(matrix)).max())


@pytest.mark.claim("prop-one-forward-solve")
@given(st.data())
def test_one_forward_solve(data: st.DataObject) -> None:
    """m Vb = (m d) (I - P)^{-1} equals the value of the reversed chain, (I - N)^{-1} d."""
    chain = data.draw(killed_chains(sparse_too=True))
    cost = data.draw(costs(chain.n_states))
    gamma = data.draw(st.sampled_from([1.0, 0.9, 0.0]))
    expected = tb.forward_value(tb.time_reversal(chain), cost, gamma)
    np.testing.assert_allclose(tb.backward_value(chain, cost, gamma), expected, rtol=1e-7, atol=1e-10)


@given(st.data())
def test_backward_value_against_every_path(data: st.DataObject) -> None:
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    truth = enumerated(chain.transition, chain.termination, chain.initial, cost)
    np.testing.assert_allclose(tb.backward_value(chain, cost), truth["backward"], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(tb.forward_value(chain, cost), truth["forward"], rtol=1e-10, atol=1e-12)


def test_chain4_in_exact_arithmetic() -> None:
    """The reference chain by rational elimination: Vb = (1, 197/57, 17/3, 191/21)."""
    f = Fraction
    transition = [
        [f(0), f(1, 2), f(1, 2), f(0)],
        [f(0), f(1, 4), f(1, 4), f(1, 4)],
        [f(0), f(1, 2), f(0), f(1, 2)],
        [f(0), f(0), f(1, 5), f(3, 10)],
    ]
    exact = rational_backward(transition, [f(1), f(0), f(0), f(0)], [f(1), f(0), f(2), f(3)])
    assert exact == [f(1), f(197, 57), f(17, 3), f(191, 21)]
    np.testing.assert_allclose(tb.backward_value(tb.chain4(), tb.CHAIN4_COST), [float(v) for v in exact], rtol=1e-14)


@pytest.mark.claim("prop-fixed-point")
@given(st.data())
def test_unique_fixed_point_on_killed_chains(data: st.DataObject) -> None:
    """Iterating d + N v converges to Vb from any start, at the rate of rho(N) < 1."""
    chain = data.draw(killed_chains(max_states=6))
    cost = data.draw(costs(chain.n_states))
    back, value = tb.time_reversal(chain), tb.backward_value(chain, cost)
    rate = radius(back.transition)
    assert rate < 1
    np.testing.assert_allclose(tb.bellman_operator(back, cost, value), value, rtol=1e-8, atol=1e-10)
    assume(rate < 0.99)
    iterate = np.random.default_rng(data.draw(st.integers(0, 99))).normal(0, 100, chain.n_states)
    for _ in range(int(np.log(1e-12) / np.log(max(rate, 0.1))) + 60):
        iterate = tb.bellman_operator(back, cost, iterate)
    np.testing.assert_allclose(iterate, value, rtol=1e-5, atol=1e-5)


@pytest.mark.claim("prop-no-fixed-point")
def test_no_fixed_point_on_a_continuing_chain() -> None:
    """Proposition 3.2 as printed: the system is inconsistent, the iterates grow by eta . d a step, their offset converges."""
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    back, law = tb.time_reversal(chain), tb.stationary_distribution(chain)
    system = np.eye(2) - back.transition
    assert np.linalg.matrix_rank(np.column_stack([system, cost])) == 2 > np.linalg.matrix_rank(system)
    iterate = np.zeros(2)
    for _ in range(2000):
        iterate = tb.bellman_operator(back, cost, iterate)
    np.testing.assert_allclose(iterate, [333.0555555556, 334.7222222222], rtol=1e-12)
    offset = np.linalg.solve(np.eye(2) - back.transition + np.outer(np.ones(2), law), cost - law @ cost)
    np.testing.assert_allclose(iterate - 2000 * law @ cost, offset, atol=1e-9)
    np.testing.assert_allclose(offset, [-0.2777777778, 1.3888888889], atol=1e-10)
    with pytest.raises(tb.DiscountError, match="never ends"):
        tb.backward_value(chain, cost)
    # With eta . d = 0 there is a line of fixed points: any constant may be added.
    centred = cost - law @ cost
    for constant in (0.0, 7.0):
        np.testing.assert_allclose(tb.bellman_operator(back, centred, offset + constant), offset + constant, atol=1e-12)


def test_discount_restores_the_fixed_point() -> None:
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    value, back = tb.backward_value(chain, cost, 0.9), tb.time_reversal(chain)
    np.testing.assert_allclose(tb.bellman_operator(back, cost, value, 0.9), value, rtol=1e-13)
    assert tb.stationary_distribution(chain) @ value == pytest.approx(10 / 6)  # eta . d / (1 - gamma)


@pytest.mark.claim("prop-same-rate")
@given(killed_chains())
def test_backward_iteration_is_as_fast_as_forward(chain: tb.Chain) -> None:
    """N is similar to P^T, so both spectra agree; compared through characteristic polynomials, which are smooth."""
    back = tb.time_reversal(chain)
    np.testing.assert_allclose(np.poly(back.transition), np.poly(chain.transition), atol=1e-9)
    visits = tb.expected_visits(chain)
    np.testing.assert_allclose(back.transition * visits[:, None] / visits, chain.transition.T, atol=1e-12)


def test_same_rate_golden() -> None:
    assert radius(tb.chain4().transition) == pytest.approx(0.6887359393196327, rel=1e-12)
    assert radius(tb.time_reversal(tb.chain4()).transition) == pytest.approx(0.6887359393196327, rel=1e-12)


@pytest.mark.claim("prop-weighted-contraction")
@given(killed_chains())
def test_weighted_contraction(chain: tb.Chain) -> None:
    """In the sup norm weighted by w = expected age + 1 the modulus is 1 - 1 / max w."""
    back = tb.time_reversal(chain)
    weight = tb.expected_age(chain) + 1
    modulus = (back.transition @ weight / weight).max()
    assert modulus <= 1 - 1 / weight.max() + 1e-9
    np.testing.assert_allclose(back.transition @ weight, weight - 1, rtol=1e-7, atol=1e-9)


def test_plain_sup_norm_does_not_contract() -> None:
    back = tb.time_reversal(tb.chain4()).transition
    assert np.abs(back).sum(axis=1).max() == pytest.approx(1.0)  # rows away from the start sum to one
