"""The tuning: the same budget for every method, the rule as written, and choices that are the table's."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from bvf_tutorial.agents import preset
from bvf_tutorial.agents.plain import changed
from bvf_tutorial.agents.tuned import TUNED
from studies import tuning
from studies.agents import read


def row(share: float, ret: float) -> dict[str, str]:
    return {"share_over": str(share), "return": str(ret)}


def test_the_rule_prefers_return_among_those_within_the_limit() -> None:
    rows = [row(0.0, 1.0), row(0.05, 3.0), row(0.06, 9.0), row(0.02, 2.0)]
    assert tuning.chosen(rows) is rows[1]


def test_the_rule_prefers_safety_where_none_is_within_the_limit() -> None:
    rows = [row(0.5, 9.0), row(0.2, 1.0), row(0.3, 5.0)]
    assert tuning.chosen(rows) is rows[1]


def test_what_is_judged() -> None:
    """Eight log points of two runs: the first two are the first quarter, the last four the second half."""
    cost = [[9, 9], [9, 1], [1, 1], [9, 1], [1, 1], [1, 9], [1, 1], [1, 1]]
    rows = [
        {"Step": step + 1.0, "Seed": float(run), "EpRet": 10.0 * step + run, "EpCost": float(cost[step][run])}
        for step in range(8)
        for run in range(2)
    ]
    assert tuning.judged(rows, 5.0) == {
        "return": 55.5, "cost": 2.0, "share_over": 2 / 12, "share_over_first_quarter": 3 / 4, "runs_within": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", tuning.PROBLEMS)
def test_every_method_has_the_same_budget_and_valid_candidates(name: str) -> None:
    for method, candidates in tuning.PROBLEMS[name].candidates.items():
        configs = {changed(preset(f"{name}-{method}"), settings).constraint for settings in candidates}
        assert len(configs) == len(candidates) == 4, method


def test_seeds_are_not_reported_ones() -> None:
    for problem in tuning.PROBLEMS.values():
        assert problem.n_runs <= 100  # from 0; figures report from 100 on


@pytest.mark.parametrize("name", tuning.PROBLEMS)
def test_the_presets_have_the_choices_of_the_table(name: str) -> None:
    rows = [row for row in read(tuning.OUTPUT) if row["problem"] == name]
    choices, methods = TUNED[name.split("-")[1].removesuffix("_tuned")], tuning.PROBLEMS[name].candidates
    assert methods.keys() == choices.keys()
    assert Counter(row["method"] for row in rows) == dict.fromkeys(methods, 4)
    assert not any(row["commit"].endswith("-dirty") for row in rows)
    for method in methods:
        best = tuning.chosen([row for row in rows if row["method"] == method])
        expected = changed(preset(f"{name}-{method}"), json.loads(best["settings"])).constraint
        assert choices[method] == expected, f"{method}: the table chose {best['settings']}"


def test_finished_candidates_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(tuning.PROBLEMS["circle-ppo"], n_runs=1, n_env_steps=10_560)
    few = {"recovery": small.candidates["recovery"][:2]}
    monkeypatch.setattr(tuning, "PROBLEMS", {"circle-ppo": replace(small, candidates=few)})
    output = tmp_path / "tuning.csv"
    monkeypatch.setattr("sys.argv", ["tuning", "--output", str(output)])
    tuning.main()
    first = output.read_bytes()
    assert len(read(output)) == 2
    monkeypatch.setattr(tuning, "trained", None)  # a second training would raise
    tuning.main()
    assert output.read_bytes() == first
