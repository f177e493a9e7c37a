"""This file knows stacked networks: R independent multilayer perceptrons evaluated and trained as one.

Every parameter carries a leading axis of R runs, so that one ``baddbmm`` a layer serves all of them. The loss of a
learner is a mean over a run's samples and a *sum* over runs; gradients, clipping (per run) and Adam (elementwise) are
then those of R separate trainings. What a run draws depends on its own seed alone.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["Initialisation", "Moments", "Stack", "clip_by_run", "mean_by_run", "rows_by_run", "standardised_by_run"]

Initialisation = Literal["orthogonal", "uniform", "normal"]
"""How weights start; see ``Stack``."""

# In place: what they act on is a fresh sum that nothing else reads, and a copy costs a tenth of an update.
_ACTIVATION = {"tanh": torch.tanh_, "relu": torch.relu_}


def _generator(seed: int, role: str) -> torch.Generator:
    """Return the source of a network's first weights: a function of the run's seed and of the network's role."""
    entropy = (seed, *role.encode())
    # Shifted as a Python integer: NumPy 1.x does not shift its own by one.
    return torch.Generator().manual_seed(int(np.random.SeedSequence(entropy).generate_state(1, np.uint64)[0]) >> 1)


def _initial(
    shape: tuple[int, int], gain: float, kind: Initialisation, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Return one layer's weight [in, out] and bias [1, out]."""
    weight, bias = torch.empty(shape), torch.zeros(1, shape[1])
    if kind == "orthogonal":
        nn.init.orthogonal_(weight, gain, generator=generator)
    elif kind == "uniform":
        bound = 1 / math.sqrt(shape[0])
        nn.init.uniform_(weight, -bound, bound, generator=generator)
        nn.init.uniform_(bias, -bound, bound, generator=generator)
    else:
        nn.init.normal_(weight, 0.0, 0.1, generator=generator)
        nn.init.constant_(bias, 0.1)
    return weight, bias


class Stack(nn.Module):
    """R multilayer perceptrons of one shape.

    Inputs are numbers [R, N, I], or the codes [R, N] (int64) of a finite set, which stand for one-hot vectors: the
    first layer is then a row of its weight. An action may enter at the second layer.

    Args:
        n_inputs: ``I``, or the number of codes.
        hidden: widths of the hidden layers.
        n_outputs: numbers per sample.
        seeds: one per run; R of them.
        role: names the network, so that two networks of a run start differently.
        activation: "tanh" or "relu".
        initialisation: "orthogonal" (gain sqrt 2, biases 0), "uniform" (plus or minus 1/sqrt(fan-in), torch's default),
            or "normal" (weights of standard deviation 0.1 and biases 0.1, the released code's).
        n_actions: ``K``, coordinates of an action that enters at the second layer; 0 for none.
        output_gain: gain of the last layer under "orthogonal".

    Raises:
        ValueError: no hidden layer to enter, or an unknown activation.
    """

    def __init__(
        self,
        n_inputs: int,
        hidden: Sequence[int],
        n_outputs: int,
        seeds: Sequence[int],
        role: str,
        activation: Literal["tanh", "relu"] = "tanh",
        initialisation: Initialisation = "orthogonal",
        n_actions: int = 0,
        output_gain: float = 1.0,
    ) -> None:
        super().__init__()
        if len(hidden) < 1 + (n_actions > 0) or activation not in _ACTIVATION:
            raise ValueError(
                f"{role}: hidden {tuple(hidden)}, activation {activation!r}: give at least one hidden layer (two if an "
                f"action enters) and one of {', '.join(_ACTIVATION)}."
            )
        width = [n_inputs, *hidden, n_outputs]
        self.n_actions, self._activation = n_actions, _ACTIVATION[activation]
        weights, biases = [], []
        generators = [_generator(seed, role) for seed in seeds]
        for layer, shape in enumerate(pairwise(width)):
            gain = output_gain if layer == len(hidden) else math.sqrt(2)
            enters = n_actions if layer == 1 else 0
            drawn = [_initial((shape[0] + enters, shape[1]), gain, initialisation, each) for each in generators]
            weights.append(nn.Parameter(torch.stack([weight for weight, _ in drawn])))
            biases.append(nn.Parameter(torch.stack([bias for _, bias in drawn])))
        self.weight, self.bias = nn.ParameterList(weights), nn.ParameterList(biases)

    @property
    def n_runs(self) -> int:
        """``R``."""
        return len(self.weight[0])

    def forward(self, sample: Tensor, action: Tensor | None = None) -> Tensor:
        """Return [R, N, n_outputs].

        Args:
            sample: [R, N, I] floating point, or codes [R, N] int64.
            action: [R, N, K], where the network takes one.
        """
        if sample.is_floating_point():
            return self._deeper(torch.baddbmm(self.bias[0], sample, self.weight[0]), action)
        chosen = rows_by_run(self.weight[0], sample)
        return self._deeper(chosen + self.bias[0], action)

    def table(self) -> Tensor:
        """Return the outputs at every code, [R, n_inputs, n_outputs]: one evaluation for any number of samples."""
        return self._deeper(self.weight[0] + self.bias[0], None)

    def _deeper(self, hidden: Tensor, action: Tensor | None) -> Tensor:
        for layer in range(1, len(self.weight)):
            hidden = self._activation(hidden)
            if layer == 1 and action is not None:
                hidden = torch.cat([hidden, action.to(hidden.dtype)], dim=-1)
            hidden = torch.baddbmm(self.bias[layer], hidden, self.weight[layer])
        return hidden


def clip_by_run(parameters: Iterable[nn.Parameter], most: float) -> Tensor:
    """Scale gradients so that each run's norm over all ``parameters`` is at most ``most``; return the norms, [R]."""
    gradient = [each.grad for each in parameters if each.grad is not None]
    square = torch.stack([each.flatten(1).square().sum(dim=1) for each in gradient]).sum(dim=0)
    norm = square.sqrt()
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for each in gradient:
        each.mul_(factor.view(-1, *[1] * (each.ndim - 1)))
    return norm


def mean_by_run(value: Tensor, weight: Tensor) -> Tensor:
    """Return each run's weighted mean, [R]; both [R, N]. 0 for a run without weight."""
    total: Tensor = (value * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=1e-8)
    return total


def rows_by_run(value: Tensor, index: Tensor) -> Tensor:
    """Return ``value[r, index[r, i]]``, [R, N, ...]; value [R, M, ...], index [R, N] or [R, ...]."""
    flat = index + (torch.arange(len(value), device=value.device) * value.shape[1]).view(-1, *[1] * (index.ndim - 1))
    return value.flatten(0, 1).index_select(0, flat.flatten()).view(*index.shape, *value.shape[2:])


def standardised_by_run(value: Tensor, weight: Tensor) -> Tensor:
    """Return [R, N] with each run's weighted mean 0 and standard deviation 1 (all 0 where it is constant)."""
    centred = value - mean_by_run(value, weight)[:, None]
    return centred / (mean_by_run(centred.square(), weight).sqrt() + 1e-8)[:, None]


@dataclass(frozen=True, eq=False)
class Moments:
    """Running mean and variance of a stream, per run; state in, state out.

    Attributes:
        count: [R].
        mean: [R, F].
        square: [R, F], sum of squared deviations from the mean.
    """

    count: Tensor
    mean: Tensor
    square: Tensor

    @classmethod
    def empty(cls, n_runs: int, n_features: int, device: torch.device) -> "Moments":
        """Return the moments of nothing: mean 0, standard deviation 1."""
        zero = torch.zeros(n_runs, n_features, device=device)
        return cls(zero[:, 0], zero, zero)

    def state(self) -> dict[str, Tensor]:
        """Return the three tensors by name, which make the same moments again."""
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def after(self, sample: Tensor) -> "Moments":
        """Return the moments after N more samples a run, [R, N, F].

        Source: the parallel algorithm of Chan, Golub and LeVeque (1979).
        """
        n = sample.shape[1]
        mean = sample.mean(dim=1)
        square = (sample - mean[:, None]).square().sum(dim=1)
        before, shift = self.count[:, None], mean - self.mean
        total = before + n
        square = square + shift.square() * (before * n / total)
        return Moments(self.count + n, self.mean + shift * (n / total), self.square + square)

    @property
    def std(self) -> Tensor:
        """Standard deviation, [R, F]; 1 before two samples, and where the stream is constant."""
        variance = self.square / self.count.clamp(min=2)[:, None]
        return torch.where(variance > 1e-8, variance, 1.0).sqrt()

    def standardise(self, sample: Tensor, bound: float = 10.0) -> Tensor:
        """Return ``(sample - mean) / std`` of [R, N, F], clamped to plus or minus ``bound``."""
        return ((sample - self.mean[:, None]) / self.std[:, None]).clamp(-bound, bound)
