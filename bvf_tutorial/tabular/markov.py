r"""This file knows the laws of a Markov chain and the chain that runs backward in time.

Theory. Let an episode visit ``x_0 .. x_{L-1}`` and let ``m = mu0 (I - P)^{-1}`` be the expected visits, so that
``E[L] = m 1`` and ``eta = m / E[L]`` is the law of the state at a uniformly chosen step. By Bayes' rule, a step into
``x`` came from ``y`` with probability

    N(x, y) = m(y) P(y, x) / m(x),      N = D_m^{-1} P^T D_m,

and was the first of its episode with probability ``mu0(x) / m(x)``. So the reversal of a killed chain is a killed
chain: it starts at the end of an episode, ``m r``, and ends at its start. Reversing twice returns the original. For a
continuing irreducible chain ``m`` is replaced by the stationary law ``eta`` and nothing is killed: the paper's eq. (2)
summed over actions.

Sources: Kemeny and Snell (1976); Norris (1997), section 1.9; Morimura et al. (2010); Satija et al. (2020),
section 3.1.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

from .arrays import FloatArray, Matrix, scale_rows
from .chain import Chain, communicating_classes, is_irreducible, period, require_single_class, restarted
from .cmdp import CMDP, check_policy, policy_chain
from .errors import UnreachableStateError, name_states
from .resolvent import CensoredFactor, Resolvent, check_discount

__all__ = [
    "backward_kernel",
    "communicating_classes",
    "expected_length",
    "expected_visits",
    "is_irreducible",
    "is_reversible",
    "period",
    "restarted",
    "stationary_distribution",
    "time_reversal",
]


def expected_visits(chain: Chain, gamma: float = 1.0) -> FloatArray:
    """Return the expected number of visits to each state in an episode, ``m = mu0 (I - gamma P)^{-1}``, [S].

    Exact zeros mark states that no episode reaches; what a policy does there does not matter. Dense chains: high
    relative accuracy entry by entry. With ``gamma < 1`` a visit at time ``t`` counts ``gamma^t``.

    Raises:
        DiscountError: gamma = 1 and the chain never ends.
        ImproperPolicyError: from a reachable state the episode never ends; the states are named.
    """
    check_discount(chain, gamma, chain.visited)
    visits = np.zeros(chain.n_states)
    part = chain if chain.visited.all() else chain.restricted(chain.visited)
    visits[chain.visited] = Resolvent(part, gamma).left(part.initial)
    return visits


def expected_length(chain: Chain) -> float:
    """Return the expected number of cost-bearing states of an episode, ``E[L] = m 1``."""
    return float(expected_visits(chain).sum())


def stationary_distribution(chain: Chain) -> FloatArray:
    """Return the stationary law per step, ``eta P = eta`` with ``eta 1 = 1``, [S] (paper, eq. 1).

    For a killed chain it is that of the process that starts a new episode at each end, ``eta = m / E[L]``; it needs no
    aperiodicity and no irreducibility, only episodes of finite expected length, and is zero at states that no episode
    reaches.

    Raises:
        ReducibleChainError: a continuing chain with several communicating classes.
    """
    if chain.is_killed:
        visits = expected_visits(chain)
        return np.asarray(visits / visits.sum())
    require_single_class(chain)
    if chain.is_sparse:
        # Visits between two visits to state 0: kill the chain on entering it, start it there.
        entering = np.asarray(chain.transition[:, [0]].todense()).ravel()
        open_others = sparse.diags_array(np.r_[0.0, np.ones(chain.n_states - 1)])
        start = np.eye(1, chain.n_states).ravel()
        visits = Resolvent(Chain(chain.transition @ open_others, entering, start)).left(start)
    else:
        visits = CensoredFactor(chain.transition, np.zeros(chain.n_states), first_pivot=1.0).left(
            np.eye(1, chain.n_states).ravel()
        )
    return np.asarray(visits / visits.sum())


def time_reversal(chain: Chain) -> Chain:
    """Return the backward Markov chain (paper, Definition 3.1, made precise for episodes).

    ``N(x, y) = m(y) P(y, x) / m(x)``, started at the end of an episode ``m r / sum(m r)`` and ended at its start with
    probability ``mu0(x) / m(x)``; for a continuing chain the same with the stationary law ``eta``, started at ``eta``,
    never ended. The reversal has the same visits (or stationary law) as the chain, and reversing twice gives the chain
    back.

    *Holds when* every state is visited. Source: Norris (1997), Theorem 1.9.1; the killed form is derived in chapter 3.

    Raises:
        UnreachableStateError: states that no episode reaches have no past; restrict the chain to ``chain.visited``
            first.
        ReducibleChainError, ImproperPolicyError: as for the laws.
    """
    law = _positive_law(chain)
    # Flow y -> x over the law of x, then transposed: rows are "from" in the backward chain, too.
    flow = scale_rows(law, chain.transition)
    reversed_transition = scale_rows(1.0 / law, sparse.csr_array(flow.T) if sparse.issparse(flow) else flow.T)
    if not chain.is_killed:
        return replace(chain, transition=reversed_transition, initial=law)
    ending = law * chain.termination
    return Chain(reversed_transition, chain.initial / law, ending / ending.sum())


def backward_kernel(cmdp: CMDP, policy: npt.ArrayLike) -> Matrix:
    """Return the backward kernel with actions (paper, eq. 2): who led here, and by which action.

    ``Pr(x_{t-1} = y, a_{t-1} = a | x_t = x) = P(x | y, a) pi(a | y) law(y) / law(x)``, where ``law`` is the expected
    visits of an episode or the stationary law. Summed over ``y`` and ``a`` it gives one minus the probability that
    ``x`` is the first state.

    Returns:
        [S, S, A] indexed ``[x, y, a]`` for a dense model; for a sparse one [S, S * A] with column ``y * A + a``.

    Raises:
        UnreachableStateError: states that the policy never visits.
    """
    probability = check_policy(cmdp, policy)
    law = _positive_law(policy_chain(cmdp, probability))
    flow = scale_rows((law[:, None] * probability).ravel(), cmdp.kernel)
    if sparse.issparse(flow):
        return scale_rows(1.0 / law, sparse.csr_array(flow.T))
    return (flow / law).T.reshape(cmdp.n_states, cmdp.n_states, cmdp.n_actions)


def is_reversible(chain: Chain, tolerance: float = 1e-12) -> bool:
    """Return whether the chain equals its own reversal.

    ``law(x) P(x, y) = law(y) P(y, x)`` up to ``tolerance`` of the largest flow.
    """
    flow = scale_rows(_positive_law(chain), chain.transition)
    return bool(abs(flow - flow.T).max() <= tolerance * flow.max())


def _positive_law(chain: Chain) -> FloatArray:
    law = expected_visits(chain) if chain.is_killed else stationary_distribution(chain)
    missing = np.flatnonzero(law <= 0)
    if missing.size:
        raise UnreachableStateError(
            f"{name_states(missing)} cannot be reached from the initial law, so their past is 0/0; restrict the chain "
            "with chain.restricted(chain.visited), or use a policy that visits them."
        )
    return law
