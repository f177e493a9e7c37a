"""Same stationary law, and the reversal as an adjoint (chapter 3; paper, Proposition B.1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from bvf_tutorial import tabular as tb
from tests.strategies import SEED, continuing_chains, killed_chains


@pytest.mark.claim("prop-same-law")
@given(continuing_chains())
def test_same_stationary_law(chain: tb.Chain) -> None:
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain)
    np.testing.assert_allclose(law @ back.transition, law, rtol=1e-10)
    np.testing.assert_allclose(tb.stationary_distribution(back), law, rtol=1e-10)
    assert tb.is_irreducible(back)


@given(killed_chains())
def test_per_step_law_of_episodes_is_the_restarted_stationary_law(chain: tb.Chain) -> None:
    """eta = m / E[L] solves eta P' = eta for the process that restarts: no irreducibility of P itself is needed."""
    law = tb.stationary_distribution(chain)
    np.testing.assert_allclose(law @ tb.restarted(chain).transition, law, rtol=1e-9)
    np.testing.assert_allclose(tb.stationary_distribution(tb.restarted(chain)), law, rtol=1e-9)
    np.testing.assert_allclose(law * tb.expected_length(chain), tb.expected_visits(chain), rtol=1e-10)


@pytest.mark.claim("prop-adjoint")
@given(continuing_chains(), SEED)
def test_reversal_is_the_adjoint(chain: tb.Chain, seed: int) -> None:
    """<f, P g>_eta = <P_back f, g>_eta, and neither expands the eta-norm."""
    generator = np.random.default_rng(seed)
    f, g = generator.normal(size=(2, chain.n_states))
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain)
    assert law @ (f * (chain.transition @ g)) == pytest.approx(law @ ((back.transition @ f) * g), abs=1e-12)
    assert law @ (back.transition @ f) ** 2 <= law @ f**2 * (1 + 1e-12)
    assert tb.is_reversible(chain) == bool(np.allclose(back.transition, chain.transition, atol=1e-9))


def test_adjoint_needs_the_stationary_law() -> None:
    """The plain transpose is the adjoint in the unweighted inner product only; on the cyclic chain they differ."""
    chain = tb.cyclic3()
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain).transition
    f, g = np.eye(3)[2], np.eye(3)[0]
    assert law @ (f * (chain.transition @ g)) == pytest.approx(law @ ((back @ f) * g))
    assert f @ (chain.transition @ g) != pytest.approx((back @ f) @ g)
