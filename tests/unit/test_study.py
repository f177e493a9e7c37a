"""The study of safe improvement: a tiny run, its resumption, and the committed table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from bvf_tutorial import tabular as tb
from studies import safe_improvement as study

METHODS = {
    "elimination", "lagrangian", "lyapunov", "safeguarded-ball", "safeguarded-best", "safeguarded-line-search",
    "safeguarded-mixture", "spi-ball", "spi-keep", "spi-least-cost",
}  # fmt: skip
SAFE = sorted(m for m in METHODS if m.startswith("safeguarded") or m == "lyapunov")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One layered instance, computed as a reader would."""
    path = tmp_path_factory.mktemp("study") / "table.csv"
    options = ["--workers", "1", "--layered", "1", "--grids", "0", "--output", str(path)]
    # What an interrupted run left behind must not matter.
    path.with_suffix(".partial").write_text("family,seed\nlayered,", encoding="utf-8")
    subprocess.run(
        [sys.executable, "-m", "studies.safe_improvement", *options], check=True, cwd=Path(__file__).parents[2]
    )
    return path


def resume(path: Path, monkeypatch: pytest.MonkeyPatch, layered: int) -> None:
    options = ["--workers", "1", "--layered", str(layered), "--grids", "0", "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["safe_improvement", *options])
    study.main()


def test_a_run_is_complete(table: Path) -> None:
    rows = study.read(table)
    assert {str(r["method"]) for r in rows} == METHODS
    assert len(rows) == len(METHODS)
    assert all(r.keys() == set(study.FIELDS) and "" not in r.values() for r in rows)
    assert not table.with_suffix(".partial").exists(), "the table is written aside and then moved"
    head = table.read_text(encoding="utf-8").splitlines()[:3]
    assert [line.split(":")[0] for line in head] == ["# command", "# commit", "# machine"]


def test_a_row_says_what_the_run_did(table: Path) -> None:
    cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(0)), 0.4)
    optimum = tb.optimal_policy(cmdp)
    row = next(r for r in study.read(table) if r["method"] == "lyapunov")
    run = tb.policy_iteration(cmdp, tb.cautious_policy(cmdp), study.steps(5)["lyapunov"], 100)
    assert float(str(row["final_value"])) == pytest.approx(run.value[-1], rel=1e-7)
    assert float(str(row["worst_cost"])) == pytest.approx(run.cost.max(), rel=1e-7)
    gap = (optimum.value - run.value[-1]) / (optimum.value - run.value[0])
    assert float(str(row["gap"])) == pytest.approx(gap, rel=1e-4, abs=1e-8)
    assert (int(str(row["infeasible_iterates"])), int(str(row["decreases"]))) == (0, 0)


def test_a_run_resumes(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that are there are not computed again: a marked one survives while another instance is added."""
    path = tmp_path / "table.csv"
    rows = study.read(table)
    rows[0]["cpu_s"] = "12345.000"
    study.write(path, rows, "marked")
    before = path.read_bytes()
    resume(path, monkeypatch, 1)
    assert path.read_bytes() == before, "nothing was missing, nothing was written"
    resume(path, monkeypatch, 2)
    after = study.read(path)
    assert len(after) == 2 * len(METHODS)
    assert [r for r in after if r["cpu_s"] == "12345.000"] == [rows[0]]


def test_a_failed_write_leaves_the_table(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = table.read_bytes()
    with pytest.raises(ValueError, match="extra"):
        study.write(table, [{**study.read(table)[0], "extra": 1}], "broken")
    assert table.read_bytes() == before


@pytest.mark.parametrize("seed", [0, 7])
def test_the_start_is_feasible_and_sees_everything(seed: int) -> None:
    cmdp, optimum = study.problem("layered", seed)
    policy = tb.cautious_policy(cmdp)
    assert tb.evaluate_policy(cmdp, policy)[1] <= cmdp.cost_limit
    assert policy.min() > 0
    assert optimum.is_feasible


def test_the_committed_table_is_complete() -> None:
    lines = study.OUTPUT.read_text(encoding="utf-8").splitlines()
    assert lines[0] == "# command: python -m studies.safe_improvement --layered 150 --grids 20"
    assert lines[1].startswith("# commit: ")
    assert "unknown" not in lines[1]
    assert lines[2].startswith("# machine: ")
    rows = study.read(study.OUTPUT)
    found = {(str(r["family"]), int(str(r["seed"])), str(r["method"])) for r in rows}
    wanted = {("layered", s, m) for s in range(150) for m in METHODS} | {
        ("grid", s, m) for s in range(20) for m in METHODS
    }
    assert found == wanted
    assert len(rows) == len(wanted)


@pytest.mark.parametrize("method", SAFE)
def test_the_committed_table_keeps_the_promises(method: str) -> None:
    """What the theorem says of each braked method: no infeasible iterate, no decrease, no empty program."""
    rows = [r for r in study.read(study.OUTPUT) if r["method"] == method]
    for name in ("infeasible_iterates", "decreases", "iterations_with_empty_states"):
        assert {str(r[name]) for r in rows} == {"0"}, f"{method}: {name}"
    assert all(r["final_feasible"] == "1" for r in rows)
    assert all(float(str(r["worst_cost"])) <= float(str(r["cost_limit"])) * (1 + 1e-8) for r in rows)


def test_nobody_within_the_limit_beats_the_optimum() -> None:
    for r in study.read(study.OUTPUT):
        if r["final_feasible"] == "1":
            assert float(str(r["gap"])) >= -1e-6, r
