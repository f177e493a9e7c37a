"""The risk module beyond its propositions: units, sparse models, numbers that would cancel, truncation, bad input."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from bvf_tutorial import tabular as tb
from bvf_tutorial.tabular.risk import TRUNCATION_LIMIT
from tests.strategies import SEED, cmdps, killed_chains


def as_sparse(chain: tb.Chain) -> tb.Chain:
    return tb.Chain(sparse.csr_array(chain.transition), chain.termination, chain.initial)


@settings(max_examples=40)
@given(st.data())
def test_sparse_equals_dense(data: st.DataObject) -> None:
    chain = data.draw(killed_chains(all_visited=False))
    cost = np.random.default_rng(data.draw(SEED)).integers(0, 3, chain.n_states).astype(float)
    for function in (tb.state_wise_variance, lambda *a, **k: tb.state_wise_distribution(*a, 15, **k)):
        dense, thin = (function(c, cost, unreachable="nan") for c in (chain, as_sparse(chain)))
        np.testing.assert_allclose(thin, dense, rtol=1e-8, atol=1e-11)
        assert (np.isnan(dense).reshape(chain.n_states, -1).all(axis=1) == ~chain.visited).all()


def test_without_cost_everything_is_sure() -> None:
    for chain in (tb.chain4(), as_sparse(tb.chain4())):
        np.testing.assert_allclose(tb.cost_distribution(chain, np.zeros(4), 2), [[1, 0]] * 4, atol=1e-14)
        assert not tb.state_wise_variance(chain, np.zeros(4)).any()


def test_units_scale() -> None:
    """A cost in tenths: the same law, quantities in units of cost; 0.3 is a multiple of 0.1 although floats say 2.9999."""
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    law = tb.state_wise_distribution(chain, cost, 300)
    np.testing.assert_array_equal(tb.state_wise_distribution(chain, cost * 0.1, 300, unit=0.1), law)
    cvar = tb.conditional_value_at_risk(law, 0.9)
    np.testing.assert_allclose(tb.conditional_value_at_risk(law, 0.9, unit=0.1), 0.1 * cvar, rtol=1e-14)
    for k in range(300):
        np.testing.assert_array_equal(tb.tail_probability(law, k * 0.1, 0.1), tb.tail_probability(law, k))
    np.testing.assert_array_equal(tb.tail_probability(law, 2.5), tb.tail_probability(law, 2))


def test_tails_count_what_lies_beyond_the_grid() -> None:
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    short, long = (tb.state_wise_distribution(chain, cost, n) for n in (12, 400))
    for threshold in (-3.0, 0.0, 7.0, 11.0):
        np.testing.assert_allclose(
            tb.tail_probability(short, threshold), tb.tail_probability(long, threshold), atol=1e-13
        )
    np.testing.assert_array_equal(tb.tail_probability(long, -3.0), 1.0)


@pytest.mark.parametrize("n_levels", [30, 60, 120])
def test_truncated_law_says_how_much_is_missing(n_levels: int) -> None:
    """The number of levels it asks for is enough, and not twice as many as needed."""
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    law = tb.state_wise_distribution(chain, cost, n_levels)
    with pytest.raises(
        tb.InvalidModelError, match=r"row 3 .* beyond its \d+ levels.* give it about \d+ levels"
    ) as caught:
        tb.conditional_value_at_risk(law, 0.9)
    more = int(str(caught.value).split("about ")[1].split()[0])
    missing = [1 - tb.state_wise_distribution(chain, cost, n_levels + int(f * more)).sum(axis=1)[3] for f in (0.6, 1.1)]
    assert missing[0] > TRUNCATION_LIMIT > missing[1]


def test_small_variance_beside_a_large_mean_keeps_its_digits() -> None:
    """Mean 1e9, variance p (1 - p): "second moment minus squared mean" would leave no digit."""
    chain = tb.Chain.killed(np.array([[0, 1.0, 0], [0, 0, 0.3], [0, 0, 0]]), np.array([1.0, 0, 0]))
    cost = np.array([1e9, 0, 1.0])
    np.testing.assert_allclose(tb.state_wise_variance(chain, cost), [0.21, 0.21, 0], rtol=1e-12)
    assert abs((tb.product_moment(chain, cost, cost) - tb.forward_value(chain, cost) ** 2)[0] - 0.21) > 1e-3


def test_small_probabilities_keep_their_digits() -> None:
    """One state, cost 1, survival 1e-3: Pr(C = k | x) = k p^(k-1) (1 - p)^2 down to 1e-290."""
    loop, p = tb.Chain.killed(np.array([[1e-3]]), np.array([1.0])), 1e-3
    law = tb.state_wise_distribution(loop, [1.0], 98)[0]
    k = np.arange(98.0)
    np.testing.assert_allclose(law[1:], (k * p ** (k - 1) * (1 - p) ** 2)[1:], rtol=1e-11)


def test_costs_beyond_the_grid_leave_an_empty_row() -> None:
    chain = tb.Chain.killed(np.array([[0, 0.5], [0, 0]]), np.array([1.0, 0]))
    law = tb.state_wise_distribution(chain, [0.0, 7.0], 5)
    np.testing.assert_allclose(law, [[0.5, 0, 0, 0, 0], [0, 0, 0, 0, 0]])
    np.testing.assert_allclose(tb.tail_probability(law, 4), [0.5, 1])


@settings(max_examples=40)
@given(st.data())
def test_account_changes_nothing_else(data: st.DataObject) -> None:
    """A policy that ignores its account earns and costs the same; the account's law is the law of the cost."""
    cmdp = data.draw(cmdps(max_states=4))
    cost = np.random.default_rng(data.draw(SEED)).integers(0, 3, cmdp.n_states).astype(float)
    cmdp = tb.CMDP(cmdp.transition, cmdp.reward, cost * 0.5, cmdp.initial, 2.0, cmdp.termination)
    n_levels = data.draw(st.integers(1, 6))
    wide = tb.cost_augmented(cmdp, n_levels, unit=0.5)
    policy = np.random.default_rng(data.draw(SEED)).dirichlet(np.ones(cmdp.n_actions), cmdp.n_states)
    lifted = np.tile(policy, (n_levels, 1))
    assert tb.evaluate_policy(wide, lifted) == pytest.approx(tb.evaluate_policy(cmdp, policy), rel=1e-7, abs=1e-9)
    ending = tb.expected_visits(tb.policy_chain(wide, lifted)) * tb.policy_chain(wide, lifted).termination
    law = cmdp.initial @ tb.cost_distribution(tb.policy_chain(cmdp, policy), cost, n_levels)
    by_account = ending.reshape(n_levels, cmdp.n_states).sum(axis=1)
    np.testing.assert_allclose(by_account[:-1], law[:-1], atol=1e-8)
    np.testing.assert_allclose(by_account[-1], 1 - law[:-1].sum(), atol=1e-8)


def test_account_takes_sparse_models() -> None:
    cmdp = tb.time_augmented(tb.wait_or_go(), 2)
    wide = tb.cost_augmented(cmdp, 4)
    assert wide.n_states == 24
    assert tb.optimal_policy(wide).value == pytest.approx(tb.optimal_policy(cmdp).value, abs=1e-9)


BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (
        lambda: tb.cost_distribution(tb.chain4(), [1, 0, 2.5, 3], 9),
        tb.InvalidModelError,
        r"cost\[2\] is 2.5, not a non",
    ),
    (
        lambda: tb.cost_distribution(tb.chain4(), [1, -1, 2, 3], 9),
        tb.InvalidModelError,
        r"cost\[1\] is -1.0, not a non",
    ),
    (lambda: tb.cost_distribution(tb.chain4(), [1, 0, 2], 9), tb.InvalidModelError, r"cost has shape \(3,\)"),
    (lambda: tb.cost_distribution(tb.chain4(), np.ones(4), 0), tb.InvalidModelError, "n_levels is 0; it counts"),
    (lambda: tb.cost_distribution(tb.chain4(), np.ones(4), 2.5), tb.InvalidModelError, "n_levels is 2.5"),  # type: ignore[arg-type]
    (lambda: tb.cost_distribution(tb.chain4(), np.ones(4), 9, 0.0), tb.InvalidModelError, "unit is 0.0; the grid"),
    (lambda: tb.cost_distribution(tb.cyclic3(), np.ones(3), 9), tb.DiscountError, "never ends"),
    (lambda: tb.cost_variance(tb.cyclic3(), np.ones(3)), tb.DiscountError, "never ends"),
    (lambda: tb.cost_variance(tb.chain4(), np.full(4, np.nan)), tb.InvalidModelError, r"cost\[0\] is nan"),
    (lambda: tb.state_wise_variance(tb.chain4(), np.ones(4), "skip"), tb.InvalidModelError, "unreachable is 'skip'"),
    (lambda: tb.tail_probability(np.ones((2, 3)) / 3, 3.0), tb.InvalidModelError, r"threshold 3.0 .* n_levels >= 4"),
    (lambda: tb.tail_probability(np.ones(3) / 3, 1), tb.InvalidModelError, r"shape \(3,\), expected \[S, K\]"),
    (lambda: tb.tail_probability([[1.5, -0.5]], 0), tb.InvalidModelError, r"law\[0, 1\] is -0.5"),
    (lambda: tb.conditional_value_at_risk(np.ones((2, 2)) / 2, 1.0), tb.InvalidModelError, "level is 1.0; it lies in"),
    (lambda: tb.conditional_value_at_risk([[0.5, 0.2]], 0.5), tb.InvalidModelError, "row 0 of the law leaves 0.3"),
    (lambda: tb.cantelli_bound(1.0, [-1.0], 2.0), tb.InvalidModelError, "variance -1.0 is negative"),
    (lambda: tb.cantelli_quantile(1.0, -1.0, 0.5), tb.InvalidModelError, "variance -1.0 is negative"),
    (lambda: tb.cantelli_quantile(1.0, 1.0, 0.0), tb.InvalidModelError, "probability is 0.0; it lies in"),
    (lambda: tb.cost_augmented(tb.coin_flip(), 0), tb.InvalidModelError, "n_levels is 0"),
    (
        lambda: tb.cost_augmented(tb.coin_flip(), 3, 0.7),
        tb.InvalidModelError,
        r"cost\[1\] is 1.0, not a non-negative mult",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), BAD)
def test_bad_input(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_states_without_a_past_are_named() -> None:
    chain = tb.Chain.killed(np.array([[0, 0.5, 0], [0, 0, 0], [0.5, 0, 0]]), np.array([1.0, 0, 0]))
    for call in (tb.state_wise_variance, lambda c, d: tb.state_wise_distribution(c, d, 3)):
        with pytest.raises(tb.UnreachableStateError, match="state 2 cannot be reached"):
            call(chain, np.ones(3))
    law = tb.state_wise_distribution(chain, np.ones(3), 4, unreachable="nan")
    assert np.isnan(law[2]).all()
    np.testing.assert_allclose(tb.tail_probability(law, 1), [0.5, 1, np.nan])
    np.testing.assert_allclose(tb.conditional_value_at_risk(law, 0.5), [2, 2, np.nan])
    with pytest.raises(tb.InvalidModelError, match=r"cost\[2\] is 0.5"):
        tb.state_wise_distribution(chain, [1, 1, 0.5], 4, unreachable="nan")


def test_cantelli_at_a_sure_cost() -> None:
    np.testing.assert_array_equal(tb.cantelli_bound(2.0, 0.0, [1.0, 2.0, 2.1]), [1, 1, 0])
    assert float(tb.cantelli_quantile(2.0, 9.0, 1.0)) == 2.0
