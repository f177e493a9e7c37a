"""Stacked networks: R runs at once are R networks alone, in values, gradients, clipping and Adam's steps."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bvf_tutorial.agents import Moments, Stack
from bvf_tutorial.agents.estimators import clip_by_run, mean_by_run, rows_by_run, standardised_by_run
from tests.strategies import SEED

torch.set_num_threads(1)
SEEDS = (3, 11, 42)


def sample(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("initialisation", ["orthogonal", "uniform", "normal"])
def test_first_weights_depend_on_the_runs_own_seed_alone(initialisation: str) -> None:
    stack = Stack(5, (8, 7), 2, SEEDS, "critic", initialisation=initialisation)
    for r, seed in enumerate(SEEDS):
        alone = Stack(5, (8, 7), 2, (seed,), "critic", initialisation=initialisation)
        for one, many in zip(alone.parameters(), stack.parameters(), strict=True):
            assert torch.equal(one[0], many[r])
    other = Stack(5, (8, 7), 2, SEEDS, "actor", initialisation=initialisation)
    assert not torch.equal(stack.weight[0], other.weight[0])  # roles start differently
    assert not torch.equal(stack.weight[0][0], stack.weight[0][1])


def test_initialisations_are_what_they_say() -> None:
    """64 inputs, 64 wide: exact orthogonality, exact bounds, and moments within 5 standard errors."""
    stack = Stack(64, (64, 64), 2, SEEDS, "x", initialisation="orthogonal", output_gain=0.01)
    gram = stack.weight[1].transpose(1, 2) @ stack.weight[1]
    np.testing.assert_allclose(gram.detach(), (2 * torch.eye(64)).expand(3, 64, 64), atol=1e-4)  # gain sqrt 2
    last = stack.weight[2].transpose(1, 2) @ stack.weight[2]
    np.testing.assert_allclose(last.detach(), (1e-4 * torch.eye(2)).expand(3, 2, 2), atol=1e-8)
    assert all((bias == 0).all() for bias in stack.bias)
    uniform = Stack(64, (64, 64), 2, SEEDS, "x", initialisation="uniform")
    for parameter in (uniform.weight[1], uniform.bias[1]):
        assert parameter.abs().max() <= 1 / 8
    n = uniform.weight[1].numel()
    assert abs(uniform.weight[1].std().item() * 8 * math.sqrt(3) - 1) < 5 * math.sqrt(0.2 / n)
    normal = Stack(64, (64, 64), 2, SEEDS, "x", initialisation="normal")
    assert abs(normal.weight[1].std().item() / 0.1 - 1) < 5 / math.sqrt(2 * n)
    assert all((bias == 0.1).all() for bias in normal.bias)


@pytest.mark.parametrize("n_samples", [1, 20, 80])
def test_a_run_of_many_computes_what_it_computes_alone(n_samples: int) -> None:
    """Bit for bit on one thread: a batched product is R products."""
    stack, data = Stack(5, (32, 32), 2, SEEDS, "q"), sample(3, n_samples, 5)
    for r, seed in enumerate(SEEDS):
        assert torch.equal(Stack(5, (32, 32), 2, (seed,), "q")(data[r : r + 1])[0], stack(data)[r])


def test_it_is_the_multilayer_perceptron() -> None:
    stack, data = Stack(5, (8, 7), 2, SEEDS, "q", n_actions=2), sample(3, 4, 5)
    action = sample(3, 4, 2, seed=1)
    for r in range(3):
        hidden = torch.tanh(data[r] @ stack.weight[0][r] + stack.bias[0][r])
        hidden = torch.tanh(torch.cat([hidden, action[r]], dim=1) @ stack.weight[1][r] + stack.bias[1][r])
        truth = hidden @ stack.weight[2][r] + stack.bias[2][r]
        torch.testing.assert_close(stack(data, action)[r], truth, rtol=1e-5, atol=1e-6)


def test_codes_are_rows_of_one_hot_inputs_and_the_table_is_all_codes() -> None:
    stack, code = Stack(6, (8, 7), 2, SEEDS, "q", "relu"), torch.tensor([[0, 5, 3, 3], [1, 2, 4, 0], [5, 5, 1, 2]])
    by_code = stack(code)
    torch.testing.assert_close(by_code, stack(torch.nn.functional.one_hot(code, 6).float()), rtol=1e-5, atol=1e-6)
    everything = stack(torch.arange(6).expand(3, 6))
    assert torch.equal(stack.table(), everything)
    torch.testing.assert_close(rows_by_run(stack.table(), code), by_code, rtol=1e-5, atol=1e-6)


def test_gradients_clipping_and_adam_are_those_of_separate_trainings() -> None:
    """Three steps of clipped Adam; one run's gradient is far over the bound, so a shared norm would be seen."""
    data, target = sample(3, 20, 5), sample(3, 20, 2, seed=1) * torch.tensor([0.1, 1.0, 100.0]).view(3, 1, 1)

    def train(seeds: tuple[int, ...], x: torch.Tensor, y: torch.Tensor) -> tuple[Stack, torch.Tensor]:
        stack = Stack(5, (16, 16), 2, seeds, "q")
        adam = torch.optim.Adam(stack.parameters(), lr=1e-2, fused=True)
        for _ in range(3):
            adam.zero_grad(set_to_none=True)
            (stack(x) - y).square().mean(dim=(1, 2)).sum().backward()
            norm = clip_by_run(list(stack.parameters()), 1.0)
            adam.step()
        return stack, norm

    together, norm = train(SEEDS, data, target)
    assert norm[2] > 10 > 1.0 > norm[0]  # one run is clipped, one is not
    for r, seed in enumerate(SEEDS):
        alone, norm_alone = train((seed,), data[r : r + 1], target[r : r + 1])
        assert torch.equal(norm_alone[0], norm[r])
        for one, many in zip(alone.parameters(), together.parameters(), strict=True):
            assert torch.equal(one[0], many[r])


def test_clipping_by_definition() -> None:
    parameter = [torch.nn.Parameter(torch.zeros(2, 3)), torch.nn.Parameter(torch.zeros(2, 1, 2))]
    parameter[0].grad = torch.tensor([[3.0, 0, 0], [0.3, 0, 0]])
    parameter[1].grad = torch.tensor([[[0.0, 4.0]], [[0, 0.4]]])
    norm = clip_by_run(parameter, 1.0)
    np.testing.assert_allclose(norm, [5, 0.5])
    np.testing.assert_allclose(parameter[0].grad, [[0.6, 0, 0], [0.3, 0, 0]], rtol=1e-5)
    np.testing.assert_allclose(parameter[1].grad[:, 0, 1], [0.8, 0.4], rtol=1e-5)


def test_weighted_means_and_standardisation_per_run() -> None:
    value, weight = torch.tensor([[1.0, 2, 9], [4, 4, 4]]), torch.tensor([[1.0, 1, 0], [1, 1, 1]])
    assert mean_by_run(value, weight).tolist() == [1.5, 4.0]
    assert mean_by_run(value, torch.zeros(2, 3)).tolist() == [0.0, 0.0]
    got = standardised_by_run(value, weight)
    np.testing.assert_allclose(got[0, :2], [-1, 1], rtol=1e-5)
    assert got[1].tolist() == [0, 0, 0]


@given(st.lists(st.integers(1, 20), min_size=1, max_size=5), st.floats(-100, 100), SEED)
def test_running_moments_equal_those_of_the_whole_stream(length: list[int], offset: float, seed: int) -> None:
    data = np.random.default_rng(seed).normal(offset, 2.0, (2, sum(length), 3)).astype(np.float32)
    moments, first = Moments.empty(2, 3, torch.device("cpu")), 0
    for n in length:
        moments, first = moments.after(torch.as_tensor(data[:, first : first + n])), first + n
    np.testing.assert_allclose(moments.mean, data.mean(axis=1, dtype=np.float64), rtol=1e-4, atol=1e-4)
    if data.shape[1] > 1:
        truth = data.astype(np.float64).std(axis=1, ddof=0) * math.sqrt(data.shape[1] / max(2, data.shape[1]))
        np.testing.assert_allclose(moments.std, truth, rtol=1e-3)
    else:
        assert (moments.std == 1).all()
    again = Moments(**moments.state())
    assert torch.equal(again.square, moments.square)


def test_moments_of_a_constant_do_not_divide_by_zero() -> None:
    moments = Moments.empty(1, 1, torch.device("cpu")).after(torch.full((1, 50, 1), 3.0))
    assert moments.standardise(torch.tensor([[[3.0], [1e6]]])).flatten().tolist() == [0.0, 10.0]


def test_networks_refuse_what_cannot_be_built() -> None:
    with pytest.raises(ValueError, match="critic: hidden \\(8,\\)"):
        Stack(5, (8,), 1, SEEDS, "critic", n_actions=1)
    with pytest.raises(ValueError, match="gelu"):
        Stack(5, (8, 8), 1, SEEDS, "critic", "gelu")  # type: ignore[arg-type]
