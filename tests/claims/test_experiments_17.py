"""Chapter 17: what a smoother hides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bvf_tutorial.statistics import share_over, smoothed

SIZE = st.floats(0.01, 10.0)
WEIGHT = st.floats(0.0, 0.95)


@pytest.mark.claim("prop-smoothing")
@given(SIZE, SIZE, WEIGHT, st.floats(-20.0, 20.0))
def test_smoothed_swings(over: float, under: float, weight: float, limit: float) -> None:
    """The package's smoother on a swing of 1,000 points: both limits, and who is over once it has settled."""
    assume(abs(weight - over / under) > 1e-6)
    curve = limit + np.where(np.arange(1000) % 2, -under, over)
    assert share_over(curve[:, None], limit)[0] == 0.5
    settled = smoothed(curve, weight)[900:]
    middle, amplitude = limit - (under - over) / 2, (1 - weight) / (1 + weight) * (over + under) / 2
    assert settled.max() == pytest.approx(middle + amplitude, abs=1e-9)
    assert settled.min() == pytest.approx(middle - amplitude, abs=1e-9)
    assert (settled.max() <= limit) == (weight >= over / under)
