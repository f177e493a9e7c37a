"""What the past and the future say together: the whole episode's cost given the present (chapter 4)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import enumerated
from tests.strategies import costs, killed_chains, layered_chains


@pytest.mark.claim("prop-past-future")
@given(st.data())
def test_state_wise_cost_is_the_episode_cost_given_the_state(data: st.DataObject) -> None:
    """Vb + V - d = E[C of the episode covering a stationary instant | x], by enumerating every episode."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    truth = enumerated(chain.transition, chain.termination, chain.initial, cost)
    total = tb.state_wise_cost(chain, cost)
    np.testing.assert_allclose(total, truth["total"], rtol=1e-10, atol=1e-12)
    law = tb.stationary_distribution(chain)
    assert law @ total == pytest.approx(truth["product"] / truth["length"], abs=1e-10)
    np.testing.assert_allclose(tb.slack(chain, cost, 3.0), 3.0 - total, atol=1e-12)


@given(st.data())
def test_with_the_clock_every_time_sees_the_same_cost(data: st.DataObject) -> None:
    """For each t: eta_t . (U_t + V_t - d) = E[C], an equality, for episodes of a fixed number of steps."""
    chain = data.draw(killed_chains(max_states=5))
    forever = tb.Chain.continuing(chain.transition / chain.transition.sum(axis=1, keepdims=True))
    forever = tb.Chain(forever.transition, forever.termination, chain.initial)
    cost, horizon = data.draw(costs(chain.n_states)), data.draw(st.integers(0, 7))
    value = tb.finite_horizon_value(forever, cost, horizon)
    expected = forever.initial @ value.forward[0]
    for t in range(horizon + 1):
        seen = value.law[t] > 0
        total = value.law[t][seen] @ (value.backward[t] + value.forward[t] - cost)[seen]
        assert total == pytest.approx(expected, rel=1e-10, abs=1e-12)


def test_length_bias_golden() -> None:
    """chain4: E[LC]/E[L] = 9.817 > E[C] = 7.111. fork3: 0.4 < 0.5, so the average is no upper bound."""
    chain, law = tb.chain4(), tb.stationary_distribution(tb.chain4())
    assert law @ tb.state_wise_cost(chain, tb.CHAIN4_COST) == pytest.approx(9.817094017094014, rel=1e-13)
    fork = tb.fork3()
    average = tb.stationary_distribution(fork) @ tb.state_wise_cost(fork, tb.FORK3_COST)
    assert average == pytest.approx(0.4, rel=1e-13)
    assert tb.forward_value(fork, tb.FORK3_COST)[0] == pytest.approx(0.5, rel=1e-13)


@pytest.mark.claim("prop-duality")
@given(st.data())
def test_start_end_duality(data: st.DataObject) -> None:
    """E[C] = mu0 . V = sum_x m(x) r(x) Vb(x): the forward value at the start, the backward value at the end."""
    chain = data.draw(killed_chains(sparse_too=True))
    cost = data.draw(costs(chain.n_states))
    ending = tb.expected_visits(chain) * chain.termination
    from_start = chain.initial @ tb.forward_value(chain, cost)
    assert ending @ tb.backward_value(chain, cost) == pytest.approx(from_start, rel=1e-7, abs=1e-10)


def test_duality_golden() -> None:
    chain = tb.chain4()
    ending = tb.expected_visits(chain) * chain.termination
    np.testing.assert_allclose(ending, [0, 0.3518518519, 0, 0.6481481481], atol=1e-10)
    assert ending @ tb.backward_value(chain, tb.CHAIN4_COST) == pytest.approx(7.11111111111111, rel=1e-13)
