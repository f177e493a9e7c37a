"""Wrong versions that must be caught: each mutant is planted, and the claim that should notice is required to fail.

A claim that passes on a mutant proves nothing. The first mutants are errors of the paper and of its released code.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from bvf_tutorial import tabular as tb
from bvf_tutorial.tabular.resolvent import CensoredFactor
from tests.oracles import enumerated, hand_stream

COST, VALUE = np.array([1.0, 0, 2, 3, 0, 5]), np.array([0.5, 0.7, 2, 3, 1, 4])


def backward_gae_shifted(
    cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float, previous: float = 0.0
) -> np.ndarray:
    """The released code's backward GAE: the previous value is prepended, then both indices are read one place early."""
    shifted = np.r_[previous, value]
    advantage, target = 0.0, np.empty_like(cost)
    for t in range(len(cost)):
        going = float(t > 0)
        delta = cost[t] + gamma * going * shifted[t - 1] - shifted[t]
        advantage = delta + gamma * lambda_ * going * advantage
        target[t] = shifted[t] + advantage
    return target


def backward_gae_forward_order(cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    """Forward lambda-returns used unchanged: the direction of time forgotten."""
    return tb.lambda_returns(cost, np.r_[value[1:], 0], np.r_[np.full(len(cost) - 1, gamma), 0], lambda_)


def backward_gae_no_own_cost(cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    """The cost of the present state left out: costs paired one state late."""
    discount = np.r_[0.0, np.full(len(cost) - 1, gamma)]
    return tb.backward_lambda_returns(np.r_[0.0, cost[:-1]], np.r_[0.0, value[:-1]], discount, lambda_)


def backward_gae_leaks_across_start(cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    """The start of the episode bootstraps from whatever stood before it."""
    return tb.backward_lambda_returns(cost, np.roll(value, 1), np.full(len(cost), gamma), lambda_)


def backward_gae_correct(cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float) -> np.ndarray:
    discount = np.r_[0.0, np.full(len(cost) - 1, gamma)]
    return tb.backward_lambda_returns(cost, np.r_[0.0, value[:-1]], discount, lambda_)


def check_backward_gae(subject: Callable[[np.ndarray, np.ndarray, float, float], np.ndarray]) -> None:
    for gamma, lambda_ in ((0.9, 0.8), (1.0, 0.5), (0.9, 0.0)):
        truth = hand_stream(list(range(len(COST))), COST, VALUE, gamma, lambda_)
        np.testing.assert_allclose(subject(COST, VALUE, gamma, lambda_), truth, atol=1e-12)


@pytest.mark.parametrize(
    "mutant",
    [backward_gae_shifted, backward_gae_forward_order, backward_gae_no_own_cost, backward_gae_leaks_across_start],
)
def test_backward_gae_mutants_are_killed(mutant: Callable[..., np.ndarray]) -> None:
    check_backward_gae(backward_gae_correct)
    with pytest.raises(AssertionError):
        check_backward_gae(mutant)


def test_released_backward_gae_numbers() -> None:
    """The mutant is the released code's: it reproduces the numbers that code was seen to give, which are wrong."""
    cost, value = np.array([1.0, 0, 2]), np.array([3.0, 5, 7])
    np.testing.assert_allclose(backward_gae_correct(cost, value, 1.0, 0.5), [1, 2, 5.5])
    np.testing.assert_allclose(backward_gae_shifted(cost, value, 1.0, 0.5), [1, 0.5, 3.75])
    np.testing.assert_allclose(backward_gae_correct(COST, VALUE, 0.9, 0.0), [1, 0.45, 2.63, 4.8, 2.7, 5.9])
    released = backward_gae_shifted(COST, VALUE, 0.9, 0.0, previous=9.9)
    np.testing.assert_allclose(released, [1, 8.91, 2.45, 3.63, 1.8, 7.7])


def test_lambda_one_hides_the_shift_from_an_episode_start() -> None:
    """Why lambda = 1 alone is no test: the values cancel, whatever their index."""
    truth = hand_stream(list(range(len(COST))), COST, VALUE, 0.9, 1.0)
    np.testing.assert_allclose(backward_gae_shifted(COST, VALUE, 0.9, 1.0), truth, atol=1e-12)


CHAIN = tb.Chain.killed(
    np.array([[0, 0.6, 0.3, 0, 0], [0, 0, 0, 0.5, 0.2], [0, 0, 0, 0.9, 0.1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
    np.array([1.0, 0, 0, 0, 0]),
)
CHAIN_COST = np.array([1.0, 0, 2, 3, 1])
TRUTH = enumerated(CHAIN.transition, CHAIN.termination, CHAIN.initial, CHAIN_COST)


def reversal_transposed(chain: tb.Chain) -> np.ndarray:
    """Transpose and normalise rows: Bayes' rule with a uniform prior."""
    rows = chain.transition.T
    total = rows.sum(axis=1, keepdims=True)
    return np.divide(rows, total, out=np.zeros_like(rows), where=total > 0)


def reversal_law_inverted(chain: tb.Chain) -> np.ndarray:
    """m(x) and m(y) exchanged."""
    visits = tb.expected_visits(chain)
    return chain.transition.T * visits[:, None] / visits


def reversal_row_normalised(chain: tb.Chain) -> np.ndarray:
    """The ergodic formula on episodes: rows forced to sum to one, the start forgotten."""
    kernel = tb.time_reversal(chain).transition + np.diag(np.r_[1.0, np.zeros(4)]) * 0.5
    return kernel / kernel.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("mutant", [reversal_transposed, reversal_law_inverted, reversal_row_normalised])
def test_reversal_mutants_are_killed(mutant: Callable[[tb.Chain], np.ndarray]) -> None:
    np.testing.assert_allclose(tb.time_reversal(CHAIN).transition, TRUTH["kernel"], atol=1e-12)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(mutant(CHAIN), TRUTH["kernel"], atol=1e-12)


def value_unweighted(chain: tb.Chain, cost: np.ndarray) -> np.ndarray:
    """The accumulated cost not divided by the visits."""
    return np.linalg.solve((np.eye(5) - chain.transition).T, tb.expected_visits(chain) * cost)


def value_own_cost_twice(chain: tb.Chain, cost: np.ndarray) -> np.ndarray:
    """The present cost counted in both values and never subtracted."""
    return tb.backward_value(chain, cost) + cost


def value_forward(chain: tb.Chain, cost: np.ndarray) -> np.ndarray:
    """The forward value in the backward value's place: the recovery mask of the released code tests it twice."""
    return tb.forward_value(chain, cost)


@pytest.mark.parametrize("mutant", [value_unweighted, value_own_cost_twice, value_forward])
def test_backward_value_mutants_are_killed(mutant: Callable[[tb.Chain, np.ndarray], np.ndarray]) -> None:
    np.testing.assert_allclose(tb.backward_value(CHAIN, CHAIN_COST), TRUTH["backward"], atol=1e-12)
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(mutant(CHAIN, CHAIN_COST), TRUTH["backward"], atol=1e-12)


def test_mutants_inside_the_package_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plant errors in the code that runs, not in copies: the oracle must notice each one."""

    def notices() -> bool:
        with np.errstate(all="ignore"):  # a mutant may divide by the zeros it makes
            got = tb.backward_value(CHAIN, CHAIN_COST)
        return not np.allclose(got, TRUTH["backward"], atol=1e-12)

    assert not notices()
    left = CensoredFactor.left
    with monkeypatch.context() as patch:  # a transposed solve
        patch.setattr(CensoredFactor, "left", CensoredFactor.right)
        assert notices()
    with monkeypatch.context() as patch:  # an occupancy of one step too few
        patch.setattr(CensoredFactor, "left", lambda self, source: left(self, source) - source + 1e-9)
        assert notices()


def test_pivot_by_subtraction_loses_the_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gaussian elimination with the pivot 1 - P[n, n] in place of the sum: the 1e-20 chain must notice."""
    rare = 1e-20
    chain = tb.Chain.continuing(np.array([[1 - rare, rare, 0], [0.5, 0.5 - 1e-15, 1e-15], [0, 0.4, 0.6]]))
    exact = np.array([1.0, rare / 0.5, rare / 0.5 * 1e-15 / 0.4])
    np.testing.assert_allclose(tb.stationary_distribution(chain), exact, rtol=1e-14)
    system = np.vstack([(np.eye(3) - chain.transition).T, np.ones(3)])
    by_subtraction = np.linalg.lstsq(system, np.array([0, 0, 0, 1.0]), rcond=None)[0]
    assert not np.allclose(by_subtraction, exact, rtol=1e-2, atol=0)
