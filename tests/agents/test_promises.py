"""What ``docs/promises.md`` promises: its tests exist, and processes agree to the byte."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"`((?:tests|\.github)/[\w/.]+?)(?:::(\w+))?`")


def test_every_test_that_is_named_exists() -> None:
    named = NAMED.findall((ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert len(named) > 15
    for path, function in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        if function:
            functions = {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)}
            assert function in functions, f"{path} has no {function}"


def metrics(name: str, folder: Path, threads: int) -> bytes:
    """Return the table that a training in a process of its own leaves."""
    size = "--n-runs 2 --n-envs 20 --n-env-steps 5280 --log-every 1320 --evaluate-every 2640 --n-evaluation-episodes 4"
    command = [sys.executable, "-m", "bvf_tutorial", "train", name, *size.split(" "), "--out", str(folder)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONHASHSEED": "random"}
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert finished.returncode == 0, finished.stderr[-2000:]
    (table,) = folder.rglob("metrics.csv")
    return table.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["grid-sarsa-backward", "circle-a2c-backward", "circle-ppo-backward_weight"])
def test_two_processes_leave_the_same_bytes(name: str, tmp_path: Path) -> None:
    first = metrics(name, tmp_path / "first", 1)
    assert len(first.splitlines()) > 4
    assert metrics(name, tmp_path / "second", 1) == first
    if "sarsa" in name:
        assert metrics(name, tmp_path / "third", 2) == first
