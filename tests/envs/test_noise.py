"""Counter-based noise: the published vectors, independence of batch, grouping and device, no shared numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from bvf_tutorial.envs.noise import WorldNoise, philox, run_key

CPU = torch.device("cpu")


# Random123's file kat_vectors, lines "philox4x32 10".
@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_published_vectors(counter: list[int], key: list[int], expected: list[int]) -> None:
    words = philox([torch.tensor(word) for word in counter], [torch.tensor(word) for word in key])
    assert [int(word) for word in words] == expected


def test_a_world_sees_the_same_numbers_in_any_batch_and_grouping() -> None:
    many = WorldNoise.seeded([3] * 50, range(50), CPU)
    one = WorldNoise.seeded([3], [17], CPU)
    for n in (1, 3, 5):
        block = many.moves(64, 64, n)
        assert block.shape == (64, 50, n)
        for first in range(64, 128, 4):
            assert torch.equal(one.moves(first, 4, n)[:, 0], block[first - 64 : first - 60, 17])
        assert torch.equal(one.start(9, n)[0], many.start(9, n)[17])
        assert torch.equal(many.of(torch.tensor([17, 4])).start(9, n), many.start(9, n)[[17, 4]])
    assert many.moves(0, 4, 0).shape == (4, 50, 0)
    assert many.start(0, 0).shape == (50, 0)


@pytest.mark.field("own-noise")
def test_no_two_numbers_are_shared() -> None:
    """Over runs, worlds, steps and purposes: 32-bit numbers repeat as often as independent ones would, no more."""
    noise = WorldNoise.seeded([0] * 64 + [1] * 64, [*range(64), *range(64)], CPU)
    drawn = torch.cat([noise.moves(0, 64, 3).flatten(), *(noise.start(step, 5).flatten() for step in range(64))])
    n, distinct = len(drawn), len(drawn.unique())
    expected = n * (n - 1) / 2 / 2**32
    assert abs(n - distinct - expected) < 5 * np.sqrt(expected)
    # Whole streams of any two worlds differ.
    streams = noise.moves(0, 64, 1).squeeze(2).T
    assert len({tuple(each) for each in streams.tolist()}) == 128


def test_numbers_are_uniform_and_independent() -> None:
    noise = WorldNoise.seeded(list(range(200)), [0] * 200, CPU)
    drawn = noise.moves(0, 64, 2).numpy()
    assert drawn.min() > 0.0
    assert drawn.max() < 1.0
    assert stats.kstest(drawn.ravel(), "uniform").pvalue > 1e-4
    for a, b in (
        (drawn[:-1], drawn[1:]),  # steps
        (drawn[:, :-1], drawn[:, 1:]),  # seeds that differ by one
        (drawn[..., :1], drawn[..., 1:]),  # slots
    ):
        assert abs(stats.pearsonr(a.ravel(), b.ravel()).statistic) < 5 / np.sqrt(a.size)


def test_steps_beyond_32_bits_are_new() -> None:
    noise = WorldNoise.seeded([0], [0], CPU)
    late = noise.moves(2**34 - 4, 8, 1)
    assert torch.equal(late[:4], noise.moves(2**34 - 4, 4, 1))
    assert torch.equal(late[4:], noise.moves(2**34, 4, 1))
    assert not torch.equal(late[4:], noise.moves(0, 4, 1))


def test_keys() -> None:
    assert len({run_key(seed) for seed in range(1000)}) == 1000
    assert run_key(2**70) != run_key(2**70 + 1)
    with pytest.raises(ValueError, match="non-negative"):
        run_key(-1)
