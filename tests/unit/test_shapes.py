"""The shape checks are on, and they bite."""

from __future__ import annotations

import numpy as np
import pytest

from bvf_tutorial import tabular as tb
from tests import shapes


def test_contracts_are_installed() -> None:
    for name in shapes.CONTRACTS:
        assert hasattr(getattr(tb, name), "__wrapped__"), name


def test_wrong_result_is_caught() -> None:
    wrong = shapes.checked(lambda chain, cost: np.zeros((2, 2)), shapes.Vector)
    with pytest.raises(AssertionError, match="is not"):
        wrong(tb.chain4(), tb.CHAIN4_COST)


def test_axes_must_agree() -> None:
    def one_short(chain: tb.Chain, cost: np.ndarray) -> np.ndarray:
        return np.zeros(3)

    with pytest.raises(AssertionError, match="share"):
        shapes.checked(one_short, shapes.Vector)(tb.chain4(), tb.CHAIN4_COST)
