"""This file knows random numbers that depend on a world's seed, its index and the step, and on nothing else.

A generator with a hidden state gives a world other numbers when it is simulated in another batch, on another device or
after a resume. A counter-based generator is a function: the numbers of step ``t`` of world ``b`` of a run are
``philox(counter = (..., b, purpose), key = seed)``. So a world alone, in a batch of 1 or in a batch of 8192, on a CPU
or a GPU, sees the same noise, two worlds never share a number (distinct counters, and Philox is a bijection of them),
and a resumed run needs the step only.

Source: Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (2011), the
generator of CUDA's libraries; its published test vectors are tests of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["ACT", "MOVE", "SHUFFLE", "START", "NoiseStream", "WorldNoise", "philox", "run_key"]

_WORD = 0xFFFFFFFF
_MULTIPLIER = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
MOVE, START, ACT, SHUFFLE = 0, 1, 2, 3
"""Purposes, the fourth word of the counter, so that a task, a policy and a learner never share a number."""


def run_key(seed: int) -> tuple[int, int]:
    """Return the two 32-bit key words of a run, spread over all keys by NumPy's ``SeedSequence``; any seed >= 0."""
    low, high = np.random.SeedSequence(seed).generate_state(2, np.uint32)
    return int(low), int(high)


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the four 32-bit words that Philox4x32 with ten rounds makes of a counter and a key.

    Args:
        counter: four int64 tensors with values in [0, 2**32), broadcastable.
        key: two such tensors.

    Returns:
        Four int64 tensors with values in [0, 2**32), each pair (counter, key) to one block of 128 bits.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # The product of two 32-bit words fills 64 bits; int64 wraps, which keeps every bit.
        p0, p1 = c0 * _MULTIPLIER[0], c2 * _MULTIPLIER[1]
        c0, c1, c2, c3 = ((p1 >> 32) & _WORD) ^ c1 ^ k0, p1 & _WORD, ((p0 >> 32) & _WORD) ^ c3 ^ k1, p0 & _WORD
        k0, k1 = (k0 + _WEYL[0]) & _WORD, (k1 + _WEYL[1]) & _WORD
    return c0, c1, c2, c3


@dataclass(frozen=True, eq=False)
class WorldNoise:
    """The noise of W worlds.

    Attributes:
        key: [W, 2] int64, ``run_key`` of each world's run.
        index: [W] int64, the world's number within its run.
    """

    key: Tensor
    index: Tensor

    @classmethod
    def seeded(cls, seed: Sequence[int], index: Sequence[int], device: torch.device) -> "WorldNoise":
        """Return the noise of worlds with these run seeds and these numbers within their runs, each of length W."""
        keys = {each: run_key(each) for each in set(seed)}
        return cls(
            torch.tensor([keys[each] for each in seed], dtype=torch.int64).to(device),
            torch.tensor(list(index), dtype=torch.int64).to(device),
        )

    def of(self, world: Tensor) -> "WorldNoise":
        """Return the noise of the worlds with these positions, [N]."""
        return WorldNoise(self.key[world], self.index[world])

    def _uniform(self, low: Tensor, high: Tensor, purpose: int) -> Tensor:
        """Return [W, 4 N] numbers in (0, 1) for the counters ``(low, high, index, purpose)``."""
        word = torch.full_like(self.index[:, None], purpose)
        block = philox((low[None], high[None], self.index[:, None], word), (self.key[:, :1], self.key[:, 1:]))
        # The middle of each of 2**32 cells: never 0 or 1, so that quantiles of it are finite.
        return torch.stack(block, dim=-1).flatten(1).to(torch.float64).add_(0.5).mul_(2.0**-32)

    def start(self, step: int, n: int, purpose: int = START) -> Tensor:
        """Return [W, n] independent uniform numbers in (0, 1), float64, for an episode that starts at this step."""
        if n == 0:
            return self.key.new_empty((len(self.key), 0), dtype=torch.float64)
        slot = torch.arange(-(-n // 4), device=self.key.device)
        return self._uniform(slot, torch.full_like(slot, step), purpose)[:, :n]

    def moves(self, first: int, n_steps: int, n: int, purpose: int = MOVE) -> Tensor:
        """Return [n_steps, W, n] uniform numbers in (0, 1), float64, for the steps ``first, ..., first + n_steps - 1``.

        Many steps at once cost little more than one. The numbers of a step do not depend on how steps are grouped.

        Args:
            first: first step, a multiple of 4.
            n_steps: a multiple of 4.
            n: numbers per world and step.
            purpose: whose numbers these are.
        """
        if n == 0:
            return self.key.new_empty((n_steps, len(self.key), 0), dtype=torch.float64)
        count = torch.arange(first * n // 4, (first + n_steps) * n // 4, device=self.key.device)
        return self._uniform(count & _WORD, count >> 32, purpose).view(-1, n_steps, n).transpose(0, 1)


class NoiseStream:
    """The numbers of W worlds step by step, drawn many steps at once because that costs little more than one.

    Args:
        noise: of the worlds.
        n: numbers per world and step.
        purpose: whose numbers these are.
    """

    def __init__(self, noise: WorldNoise, n: int, purpose: int) -> None:
        self._noise, self._n, self._purpose = noise, n, purpose
        # As many steps at once as fit a processor's cache.
        self._block = max(4, min(64, 4 * (16384 // len(noise.index))))
        self._first, self._drawn = -1, torch.empty(0)

    def at(self, step: int) -> Tensor:
        """Return the numbers of one step, [W, n] in (0, 1), float64."""
        first = step - step % self._block
        if first != self._first:
            self._first, self._drawn = first, self._noise.moves(first, self._block, self._n, self._purpose)
        return self._drawn[step - first]
