"""The two reference chains to full precision: every number of tests/data/chain4.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bvf_tutorial import tabular as tb

DATA = json.loads((Path(__file__).parents[1] / "data" / "chain4.json").read_text(encoding="utf-8"))


def chain4_numbers() -> dict[str, Any]:
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    back, law = tb.time_reversal(chain), tb.stationary_distribution(chain)
    record = DATA["chain4"]
    start, gamma, lambda_ = record["lambda_op_v0"], record["lambda_op_gamma"], record["lambda_op_lambda"]
    biased = float(law @ tb.state_wise_cost(chain, cost))
    return {
        "P": chain.transition,
        "d": cost,
        "mu0": chain.initial,
        "m": tb.expected_visits(chain),
        "EL": tb.expected_length(chain),
        "EC": float(chain.initial @ tb.forward_value(chain, cost)),
        "ELC": biased * tb.expected_length(chain),
        "eta": law,
        "N": back.transition,
        "V": tb.forward_value(chain, cost),
        "V_back": tb.backward_value(chain, cost),
        "rhs_length_biased": biased,
        "rho": float(np.abs(np.linalg.eigvals(chain.transition)).max()),
        "var_fwd": tb.cost_variance(chain, cost),
        "var_back": tb.cost_variance(back, cost),
        "V_back_gamma09": tb.backward_value(chain, cost, 0.9),
        "V_gamma09": tb.forward_value(chain, cost, 0.9),
        "lambda_op_v0": start,
        "lambda_op_gamma": gamma,
        "lambda_op_lambda": lambda_,
        "lambda_op_out": tb.lambda_operator(back, cost, start, gamma, lambda_),
    }


def fork3_numbers() -> dict[str, Any]:
    chain, cost = tb.fork3(), tb.FORK3_COST
    law, length = tb.stationary_distribution(chain), tb.expected_length(chain)
    biased, total = float(law @ tb.state_wise_cost(chain, cost)), float(tb.forward_value(chain, cost)[0])
    return {
        "m": tb.expected_visits(chain),
        "EL": length,
        "eta": law,
        "r": chain.termination,
        "V": tb.forward_value(chain, cost),
        "ell": tb.expected_remaining(chain),
        "N": tb.time_reversal(chain).transition,
        "VB": tb.backward_value(chain, cost),
        "ELC": biased * length,
        "EC": total,
        "rhs": biased,
        "cov": biased * length - length * total,
    }


@pytest.mark.parametrize(("name", "numbers"), [("chain4", chain4_numbers), ("cov_negative3", fork3_numbers)])
def test_golden_values(name: str, numbers: Any) -> None:
    computed = numbers()
    assert set(DATA[name]) == set(computed)
    for key, value in computed.items():
        np.testing.assert_allclose(value, DATA[name][key], rtol=1e-13, atol=1e-13, err_msg=key)
