"""The backward Markov chain: Bayes' rule, the reversal of a killed chain, where it begins and ends (chapter 3)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridWorld
from tests.oracles import enumerated
from tests.strategies import cmdps, continuing_chains, killed_chains, layered_chains, policies


def dense(matrix: object) -> np.ndarray:
    return np.asarray(matrix.todense() if hasattr(matrix, "todense") else matrix)


@pytest.mark.claim("prop-reversal-bayes")
@given(st.data())
def test_backward_kernel_is_bayes_rule(data: st.DataObject) -> None:
    """Eq. (2): the joint law of (previous state, action, state), divided by the law of the state."""
    cmdp = data.draw(cmdps())
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    chain = tb.policy_chain(cmdp, policy)
    if not chain.visited.all():
        with pytest.raises(tb.UnreachableStateError):
            tb.backward_kernel(cmdp, policy)
        return
    visits = tb.expected_visits(chain)
    kernel = tb.backward_kernel(cmdp, policy)
    for x in range(cmdp.n_states):
        for y in range(cmdp.n_states):
            for a in range(cmdp.n_actions):
                joint = visits[y] * policy[y, a] * cmdp.transition[y, a, x]
                assert kernel[x, y, a] == pytest.approx(joint / visits[x], rel=1e-12)
    np.testing.assert_allclose(kernel.sum(axis=(1, 2)), 1 - cmdp.initial / visits, atol=1e-12)
    np.testing.assert_allclose(kernel.sum(axis=2), tb.time_reversal(chain).transition, atol=1e-13)


def test_backward_kernel_of_the_cyclic_chain() -> None:
    """Golden values: eta = (.4, .4, .2) and the reversed drift."""
    chain = tb.cyclic3()
    np.testing.assert_allclose(tb.stationary_distribution(chain), [0.4, 0.4, 0.2], rtol=1e-15)
    np.testing.assert_allclose(
        tb.time_reversal(chain).transition, [[0.5, 0, 0.5], [0.5, 0.5, 0], [0, 1, 0]], rtol=1e-15, atol=1e-16
    )


@pytest.mark.claim("prop-reversal-killed")
@given(killed_chains(sparse_too=True))
def test_reversal_of_a_killed_chain(chain: tb.Chain) -> None:
    """The reversal ends at the start and starts at the end, has the same visits, and reverses back."""
    visits, back = tb.expected_visits(chain), tb.time_reversal(chain)
    np.testing.assert_allclose(back.termination, chain.initial / visits, rtol=1e-12)
    ends = visits * chain.termination
    assert ends.sum() == pytest.approx(1.0, rel=1e-9)  # every episode ends exactly once
    np.testing.assert_allclose(back.initial, ends, rtol=1e-8, atol=1e-14)
    np.testing.assert_allclose(tb.expected_visits(back), visits, rtol=1e-7)
    twice = tb.time_reversal(back)
    np.testing.assert_allclose(dense(twice.transition), dense(chain.transition), rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(twice.termination, chain.termination, rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(twice.initial, chain.initial, rtol=1e-7, atol=1e-14)


@given(layered_chains())
def test_reversal_against_every_path(chain: tb.Chain) -> None:
    """Count predecessors over all episodes: the oracle never forms a kernel from P."""
    seen = chain.visited
    chain = chain.restricted(seen)
    truth = enumerated(chain.transition, chain.termination, chain.initial, np.zeros(chain.n_states))
    assert truth["mass"] == pytest.approx(1.0, rel=1e-12)
    back = tb.time_reversal(chain)
    np.testing.assert_allclose(tb.expected_visits(chain), truth["visits"], rtol=1e-12)
    np.testing.assert_allclose(back.transition, truth["kernel"], rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(back.termination, truth["first"], rtol=1e-10, atol=1e-15)


@pytest.mark.claim("prop-killed-start")
@given(killed_chains())
def test_backward_chain_ends_only_at_the_start(chain: tb.Chain) -> None:
    """Row sums are 1 - mu0/m; with one start state the chain ends there with probability 1 / E[visits to it]."""
    start = tb.Chain(chain.transition, chain.termination, np.eye(chain.n_states)[0])
    visits, back = tb.expected_visits(start), tb.time_reversal(start)
    np.testing.assert_allclose(back.transition.sum(axis=1), 1 - start.initial / visits, atol=1e-9)
    assert back.termination[0] == pytest.approx(1 / visits[0])
    assert not back.termination[1:].any()


def test_terminal_start_is_right_only_if_never_revisited() -> None:
    """Cost since the last visit to x0 (column x0 removed) against cost since the reset: equal on chain4, not on the grid."""

    def since_last_visit(chain: tb.Chain, cost: np.ndarray) -> np.ndarray:
        # An episode is cut into cycles at each visit to the start; entering it ends a cycle.
        start = int(chain.initial.argmax())
        transition = np.array(chain.transition)
        end = chain.termination + transition[:, start]
        transition[:, start] = 0
        return tb.backward_value(tb.Chain(transition, end, chain.initial), cost)

    chain = tb.chain4()
    np.testing.assert_allclose(since_last_visit(chain, tb.CHAIN4_COST), tb.backward_value(chain, tb.CHAIN4_COST))
    grid = GridWorld.random(0)
    model = grid.to_cmdp()
    walk = tb.policy_chain(model, tb.uniform_policy(model))
    since_visit, since_reset = since_last_visit(walk, model.cost), tb.backward_value(walk, model.cost)
    assert tb.expected_visits(walk)[grid.start_state] > 2
    assert (since_reset > since_visit + 1e-6).mean() > 0.9


@given(continuing_chains())
def test_reversal_needs_no_aperiodicity(chain: tb.Chain) -> None:
    """Assumption 3.1 asks for aperiodicity; a periodic chain reverses as well, and keeps its period."""
    back = tb.time_reversal(chain)
    assert tb.period(back) == tb.period(chain)
    np.testing.assert_allclose(back.transition.sum(axis=1), 1, rtol=1e-12)


def test_needs_visited_states() -> None:
    """Without m(x) > 0 the backward kernel is 0/0: an error that names the state."""
    chain = tb.Chain.killed(np.array([[0.5, 0, 0], [0.2, 0.2, 0], [0, 0, 0.0]]), np.array([1.0, 0, 0]))
    with pytest.raises(tb.UnreachableStateError, match="states 1, 2 cannot be reached"):
        tb.time_reversal(chain)
