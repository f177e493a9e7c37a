r"""This file knows the returns that critics regress on: forward and backward lambda-returns, n-step returns, GAE.

One recursion serves them all. Read towards the future it is ``G_t = s_t + c_t [(1 - l_t) v_{t+1} + l_t G_{t+1}]`` with
the signal ``s``, the discount ``c`` and the mix ``l``. Ends are data and no special case: termination is ``c_t = 0``, a
cut where bootstrapping goes on is ``l_t = 0``. The backward direction is the same function between two flips, so the
off-by-one of the released code cannot be written.

Every function is batched over trailing dimensions ``...`` (runs, worlds), time first, without host synchronisation.
``tabular.learning`` has the same returns in float64 NumPy; a test compares them.
"""

import torch
from torch import Tensor

__all__ = ["backward_lambda_returns", "gae", "lambda_returns", "n_step_returns"]


def lambda_returns(
    signal: Tensor, discount: Tensor, next_value: Tensor, lambda_: Tensor | float, beyond: Tensor | None = None
) -> Tensor:
    """Return ``G_t = s_t + c_t [(1 - l_t) v_{t+1} + l_t G_{t+1}]``, [T, ...].

    ``lambda_ = 1`` is the Monte-Carlo return with a bootstrap at the end (the targets R and R_D of Algorithm 1),
    ``lambda_ = 0`` the target of TD(0).

    Args:
        signal: ``s_t``, [T, ...]: the reward of the move, or the cost of the state it leaves.
        discount: ``c_t``, [T, ...]: gamma inside an episode, 0 where nothing follows.
        next_value: ``v_{t+1}``, [T, ...], in units of the signal.
        lambda_: ``l_t``, a number or broadcastable to [T, ...].
        beyond: ``G_T``, [...]; by default the bootstrap ``v_T``.

    Raises:
        ValueError: signal, discount and next_value differ in shape.

    Source: Sutton and Barto (2018), eq. 12.20; Schulman et al. (2016), for the equality with GAE.
    """
    if not signal.shape == discount.shape == next_value.shape:
        raise ValueError(
            f"signal {tuple(signal.shape)}, discount {tuple(discount.shape)} and next_value {tuple(next_value.shape)} "
            "must have one shape [T, ...]."
        )
    # Outside the loop, over all steps at once: G_t = here_t + carry_t G_{t+1}.
    carry = discount * lambda_
    here = signal + (discount - carry) * next_value
    following = next_value[-1] if beyond is None else beyond
    target = torch.empty_like(here)
    for t in range(len(here) - 1, -1, -1):
        following = torch.addcmul(here[t], carry[t], following, out=target[t])
    return target


def backward_lambda_returns(
    cost: Tensor, discount: Tensor, previous_value: Tensor, lambda_: Tensor | float, before: Tensor | None = None
) -> Tensor:
    """Return ``R_t = d_t + c_t [(1 - l_t) v_{t-1} + l_t R_{t-1}]``, [T, ...]: targets of the backward value.

    ``lambda_returns`` read from the end to the start. With ``c_t = 0`` at an episode's start and ``lambda_ = 1`` it is
    the cost so far, this state's included. It is causal: handing the last return of one segment to the next as
    ``before`` gives exactly the returns of the unbroken stream, which the forward direction cannot have.

    Args:
        cost: ``d(x_t)``, [T, ...].
        discount: ``c_t``, [T, ...]: 0 at an episode's start, otherwise gamma.
        previous_value: ``v(x_{t-1})``, [T, ...].
        lambda_: ``l_t``, a number or broadcastable to [T, ...].
        before: ``R_{-1}``, [...]; by default the bootstrap ``previous_value[0]``.

    Raises:
        ValueError: cost, discount and previous_value differ in shape.

    Source: ours; the paper's appendix I.3 states the idea without the recursion.
    """
    mix = lambda_.flip(0) if isinstance(lambda_, Tensor) and lambda_.ndim == cost.ndim else lambda_
    return lambda_returns(cost.flip(0), discount.flip(0), previous_value.flip(0), mix, before).flip(0)


def n_step_returns(
    signal: Tensor, discount: Tensor, next_value: Tensor, n: int, lambda_: Tensor | float = 1.0
) -> Tensor:
    """Return ``G_t = s_t + c_t (s_{t+1} + ... + c_{t+n-1} v_{t+n})``, [T, ...]; near the end with fewer steps.

    Args:
        signal: ``s_t``, [T, ...].
        discount: ``c_t``, [T, ...].
        next_value: ``v_{t+1}``, [T, ...].
        n: steps before the bootstrap, >= 1.
        lambda_: 0 where an episode is cut and its value goes on, otherwise 1.

    Raises:
        ValueError: ``n < 1``, or the shapes differ.

    Source: Sutton and Barto (2018), eq. 7.1.
    """
    if n < 1:
        raise ValueError(f"n is {n}; an n-step return takes at least one step.")
    target = lambda_returns(signal, discount, next_value, 0.0)
    for _ in range(min(n, len(signal)) - 1):
        following = torch.cat([target[1:], next_value[-1:]])
        target = signal + discount * (next_value + lambda_ * (following - next_value))
    return target


def gae(signal: Tensor, discount: Tensor, value: Tensor, next_value: Tensor, lambda_: Tensor | float) -> Tensor:
    """Return the generalised advantage estimate ``A_t = G_t - v_t``, [T, ...].

    Equal to ``sum_k (prod c l) delta_{t+k}`` with ``delta_t = s_t + c_t v_{t+1} - v_t`` (appendix I.2 of the paper,
    whose sum must stop at the episode's end).

    Args:
        signal: ``s_t``, [T, ...].
        discount: ``c_t``, [T, ...].
        value: ``v_t``, [T, ...].
        next_value: ``v_{t+1}``, [T, ...].
        lambda_: a number or broadcastable to [T, ...].

    Source: Schulman et al. (2016), "High-dimensional continuous control using generalized advantage estimation".
    """
    return lambda_returns(signal, discount, next_value, lambda_) - value
