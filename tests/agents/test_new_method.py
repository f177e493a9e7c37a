"""A contributor follows ``docs/architecture.md`` and adds a safety method to a copy of the package: 10 lines, no more."""

from __future__ import annotations

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FUNCTION = '''
def halved_allowance(situation: Situation) -> Tensor:
    """Return ``b = Q_D(x, pi_B) + (d0 + d - Vb - Q_D(x, pi_B)) / 2``: half of the slack for this decision."""
    slack = backward_allowance(situation) - situation.baseline_cost
    return situation.baseline_cost + slack / 2

'''
RULE = '    "halved": StateRule(halved_allowance, needs_backward=True, is_relative=True),\n'
METHOD = '        "halved": Constraint("halved", multiplier=_RECOVERY),\n'


def inserted(text: str, mark: str, lines: str) -> str:
    assert text.count(mark) == 1, mark
    return text.replace(mark, mark + lines) if mark.endswith("{\n") else text.replace(mark, lines + mark)


@pytest.mark.slow
def test_a_method_is_a_function_and_two_lines(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    row = next(line for line in guide.splitlines() if line.startswith("| a state-wise safety rule |"))
    for place in ("agents/constraints.py", "STATE_RULES", "CONSTRAINTS"):
        assert place in row
    assert len((FUNCTION + RULE + METHOD).splitlines()) < 30

    shutil.copytree(ROOT / "bvf_tutorial", tmp_path / "bvf_tutorial", ignore=shutil.ignore_patterns("__pycache__"))
    file = tmp_path / "bvf_tutorial" / "agents" / "constraints.py"
    text = file.read_text(encoding="utf-8")
    text = inserted(text, "\n@dataclass(frozen=True)\nclass StateRule:", FUNCTION)
    text = inserted(text, "STATE_RULES: dict[str, StateRule] = {\n", RULE)
    file.write_text(inserted(text, '        "unconstrained": Constraint(),\n', METHOD), encoding="utf-8")

    # Every task and learner has it, without another change.
    for name in ("circle-ppo-halved", "grid-sarsa-halved"):
        size = ["--n-runs", "1", "--n-envs", "2", "--n-env-steps", "800", "--log-every", "400", "--evaluate-every", "0"]
        command = [sys.executable, "-m", "bvf_tutorial", "train", name, *size, "--out", str(tmp_path / "runs")]
        finished = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert finished.returncode == 0, finished.stderr[-2000:]
    tables = sorted((tmp_path / "runs").rglob("metrics.csv"))
    assert len(tables) == 2
    for path in tables:
        rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        assert rows[-1]["EmptyShare"] != "", "the rule was never asked"
