"""Returns of critics: against the float64 ones of the tabular package, against sums by definition, against hand values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import backward_lambda_returns, gae, lambda_returns, n_step_returns
from tests.agents.probes import record
from tests.oracles import hand_lambda, hand_n_step, hand_stream
from tests.strategies import SEED

LENGTH, UNIT = st.integers(1, 9), st.floats(0, 1)


def as_tensor(value: object) -> Tensor:
    return torch.as_tensor(np.asarray(value), dtype=torch.float64)


def episode(length: int, gamma: float, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return signal, value, and the discounts towards the future and the past of one terminated episode."""
    signal, value = np.random.default_rng(seed).normal(size=(2, length))
    ahead = np.r_[np.full(length - 1, gamma), 0.0]
    return as_tensor(signal), as_tensor(value), as_tensor(ahead), as_tensor(ahead[::-1].copy())


@given(LENGTH, UNIT, UNIT, SEED)
def test_forward_lambda_returns_by_definition(length: int, gamma: float, lambda_: float, seed: int) -> None:
    signal, value, ahead, _ = episode(length, gamma, seed)
    following = torch.cat([value[1:], torch.zeros(1, dtype=torch.float64)])
    got = lambda_returns(signal, ahead, following, lambda_)
    np.testing.assert_allclose(got, hand_lambda(signal.tolist(), value.tolist(), gamma, lambda_), atol=1e-10)
    advantage = gae(signal, ahead, value, following, lambda_)
    delta = signal + ahead * following - value
    by_sum = [sum((gamma * lambda_) ** (k - t) * delta[k] for k in range(t, length)) for t in range(length)]
    np.testing.assert_allclose(advantage, by_sum, atol=1e-10)


@given(LENGTH, UNIT, UNIT, SEED)
def test_backward_lambda_returns_by_definition(length: int, gamma: float, lambda_: float, seed: int) -> None:
    cost, value, _, behind = episode(length, gamma, seed)
    previous = torch.cat([torch.full((1,), 99.0, dtype=torch.float64), value[:-1]])  # nothing lies before a start
    got = backward_lambda_returns(cost, behind, previous, lambda_)
    truth = hand_stream(list(range(length)), cost.numpy(), value.numpy(), gamma, lambda_)
    np.testing.assert_allclose(got, truth, atol=1e-10)


@given(LENGTH, UNIT, st.integers(1, 12), SEED)
def test_n_step_returns_by_definition(length: int, gamma: float, n: int, seed: int) -> None:
    signal, value, ahead, _ = episode(length, gamma, seed)
    following = torch.cat([value[1:], torch.zeros(1, dtype=torch.float64)])
    got = n_step_returns(signal, ahead, following, n)
    np.testing.assert_allclose(got, hand_n_step(signal.tolist(), value.tolist(), gamma, n), atol=1e-10)


@given(st.integers(2, 9), st.integers(1, 8), UNIT, st.integers(1, 12), SEED)
def test_n_step_returns_stop_at_a_cut_and_bootstrap_there(
    length: int, cut: int, gamma: float, n: int, seed: int
) -> None:
    """A stream that is cut gives the returns of its two pieces, each of which ends with its own bootstrap."""
    cut, draw = min(cut, length - 1), np.random.default_rng(seed)
    signal, following = (as_tensor(each) for each in draw.normal(size=(2, length, 2)))
    discount, mix = torch.full((length, 2), gamma, dtype=torch.float64), torch.ones(length, 1, dtype=torch.float64)
    mix[cut - 1] = 0.0
    pieces = [n_step_returns(signal[i], discount[i], following[i], n) for i in (slice(cut), slice(cut, length))]
    torch.testing.assert_close(n_step_returns(signal, discount, following, n, mix), torch.cat(pieces))


@given(st.integers(1, 12), SEED)
def test_the_tabular_package_says_the_same_of_any_stream(n_steps: int, seed: int) -> None:
    """Discounts and mixes that vary by step, several streams at once."""
    draw = np.random.default_rng(seed)
    signal, value = draw.normal(size=(2, n_steps, 3))
    discount = draw.uniform(0, 1, (n_steps, 3)) * (draw.random((n_steps, 3)) < 0.7)
    mix = draw.uniform(0, 1, (n_steps, 3))
    forward = lambda_returns(*map(as_tensor, (signal, discount, value, mix)))
    backward = backward_lambda_returns(*map(as_tensor, (signal, discount, value, mix)))
    for i in range(3):
        one = tb.lambda_returns(signal[:, i], value[:, i], discount[:, i], mix[:, i])
        np.testing.assert_allclose(forward[:, i], one, atol=1e-12)
        one = tb.backward_lambda_returns(signal[:, i], value[:, i], discount[:, i], mix[:, i])
        np.testing.assert_allclose(backward[:, i], one, atol=1e-12)


def test_values_of_the_backward_gae_example() -> None:
    """d, V of the book's chapter on learning backward values; the released code gives other numbers from the same."""
    cost, value = as_tensor([1.0, 0, 2, 3, 0, 5]), as_tensor([0.5, 0.7, 2, 3, 1, 4])
    behind, previous = as_tensor([0, 0.9, 0.9, 0.9, 0.9, 0.9]), torch.cat([value[:1], value[:-1]])
    target = backward_lambda_returns(cost, behind, previous, 0.8)
    np.testing.assert_allclose(target, [1, 0.81, 2.7092, 5.310624, 4.36364928, 8.3218274816], rtol=1e-12)
    np.testing.assert_allclose(target - value, [0.5, 0.11, 0.7092, 2.310624, 3.36364928, 4.3218274816], rtol=1e-12)
    mixed = as_tensor([0.8, 0.8, 0.8, 0.0, 0.8, 0.8])  # the trace cut at t = 3
    cut = backward_lambda_returns(cost, behind, previous, mixed)
    np.testing.assert_allclose(cut[3:], [4.8, 3.996, 8.05712], rtol=1e-12)
    short = backward_lambda_returns(
        as_tensor([1, 0, 2]), as_tensor([0, 1, 1]), as_tensor([0, 3, 5]), 0.5
    )  # released: 1, 0.5, 3.75
    np.testing.assert_array_equal(short, [1, 2, 5.5])


@given(st.integers(2, 12), st.integers(1, 11), UNIT, SEED)
def test_streaming_over_segments_equals_the_unbroken_stream(n_steps: int, cut: int, lambda_: float, seed: int) -> None:
    cut, draw = min(cut, n_steps - 1), np.random.default_rng(seed)
    cost, value = (as_tensor(each) for each in draw.normal(size=(2, n_steps, 2)))
    discount = as_tensor(draw.random((n_steps, 2)) * (draw.random((n_steps, 2)) < 0.7))
    whole = backward_lambda_returns(cost, discount, value, lambda_)
    first = backward_lambda_returns(cost[:cut], discount[:cut], value[:cut], lambda_)
    rest = backward_lambda_returns(cost[cut:], discount[cut:], value[cut:], lambda_, before=first[-1])
    assert torch.equal(torch.cat([first, rest]), whole)
    mix = as_tensor(draw.random(2))  # one per stream, for all its steps: nothing of it is read from the end
    assert torch.equal(
        backward_lambda_returns(cost, discount, value, mix),
        backward_lambda_returns(cost, discount, value, mix.expand(n_steps, 2)),
    )


@pytest.mark.field("two-ends")
def test_a_truncated_and_a_terminated_episode_in_one_rollout() -> None:
    """Advantages by hand. States: 0 1 2(cut) | 3 4(end) | 5, gamma 1/2, lambda 1/2; the move out of 2 and of 4 is none."""
    rollout = record(
        reward=[0, 1, 2, 0, 4, 0],
        cost=[1, 2, 4, 8, 16, 32],
        truncated=[0, 0, 1, 0, 0, 0],
        terminated=[0, 0, 0, 0, 1, 0],
        is_first=[1, 0, 0, 1, 0, 1],
    )
    value = torch.tensor([10.0, 20, 30, 40, 50, 60]).view(6, 1, 1)
    discount, mix = rollout.discount(0.5), rollout.mix(0.5)
    got = gae(rollout.reward[1:], discount, value[:-1], value[1:], mix)
    # 1: cut at 2, so 2 + V(2) / 2. 3: terminal after it, so the reward alone.
    at_1, at_0 = 2 + 0.5 * 30, 1 + 0.5 * (0.5 * 20 + 0.5 * (2 + 0.5 * 30))
    is_move = rollout.is_move[:, 0, 0]
    assert is_move.tolist() == [True, True, False, True, False]
    np.testing.assert_allclose(got[is_move][:, 0, 0], [at_0 - 10, at_1 - 20, 4 - 40])
    # Costs to go: a terminal state's cost is known and counted, a cut one's value goes on.
    to_go = lambda_returns(rollout.cost_to_go(0.5), discount, value[1:], mix)
    at_1 = 2 + 0.5 * 30
    np.testing.assert_allclose(to_go[is_move][:, 0, 0], [1 + 0.5 * (10 + 0.5 * at_1), at_1, 8 + 0.5 * 16])
    # The backward direction at the states 1..5: 3 and 5 are starts.
    behind = rollout.backward_discount(0.5)
    back = backward_lambda_returns(rollout.cost[1:], behind, value[:-1], 0.5)
    at_1 = 2 + 0.5 * 10
    at_2 = 4 + 0.5 * (0.5 * 20 + 0.5 * at_1)
    np.testing.assert_allclose(back[:, 0, 0], [at_1, at_2, 8, 16 + 0.5 * (0.5 * 40 + 0.5 * 8), 32])


@pytest.mark.field("cut-target")
def test_the_target_at_a_truncation_uses_its_own_value_not_the_next_start() -> None:
    """Observation t, horizon 5, V(obs) = obs."""
    time = [0, 1, 2, 3, 4, 5, 0, 1]
    rollout = record(reward=[0.0] * 8, truncated=[t == 5 for t in time], is_first=[t == 0 for t in time])
    value = torch.tensor(time, dtype=torch.float32).view(-1, 1, 1)
    target = lambda_returns(rollout.reward[1:], rollout.discount(1.0), value[1:], rollout.mix(1.0))
    assert target[:5, 0, 0].tolist() == [5.0] * 5


@pytest.mark.field("two-units", "endless-cost")
def test_cost_1_for_200_steps_discounted_or_not() -> None:
    """200 undiscounted, 86.6 at gamma .99, 100 for ever: three different numbers."""
    one, keep = torch.ones(200, dtype=torch.float64), torch.cat([torch.ones(199), torch.zeros(1)]).double()
    assert lambda_returns(one, keep, one, 1.0)[0] == 200
    assert lambda_returns(one, 0.99 * keep, one, 1.0)[0].item() == pytest.approx(86.602, abs=1e-3)
    hundred = torch.full((200,), 100.0, dtype=torch.float64)
    np.testing.assert_allclose(lambda_returns(one, 0.99 * torch.ones_like(one), hundred, 0.7), 100, rtol=1e-12)


def test_bad_input_is_refused() -> None:
    one = torch.ones(3)
    message = r"signal \(3,\), discount \(2,\) and next_value \(3,\) must have one shape \[T, ...\]\.$"
    with pytest.raises(ValueError, match=f"^{message}"):
        lambda_returns(one, one[:2], one, 0.5)
    with pytest.raises(ValueError, match=r"next_value \(2,\)"):
        lambda_returns(one, one, one[:2], 0.5)
    with pytest.raises(ValueError, match="n is 0"):
        n_step_returns(one, one, one, 0)
