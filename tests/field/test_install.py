"""Versions, and cells that break: what the ranges admit, what CI runs, and how a build fails."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests.book.chapters import ROOT
from tests.book.test_gates import CHAPTER, make
from tests.book.test_gates import pytestmark as needs_make
from tests.book.test_gates import tree as tree  # a fixture
from tools.colab import Runtime

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PYTHONS = ["3.11", "3.12", "3.13"]


def requirements() -> dict[str, SpecifierSet]:
    """Return the ranges of what the package itself needs, by name."""
    lines = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["deep"]
    return {each.name: each.specifier for each in map(Requirement, lines)}


def pins() -> dict[str, Version]:
    """Return the exact versions that were tested."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return {name: Version(version) for name, version in (line.split("==") for line in lines if "==" in line)}


def jobs(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8"))["jobs"])


def commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.field("newest")
def test_ranges_admit_the_newest_and_ci_runs_it() -> None:
    """No upper bound that an upgrade would run into; every Python with the pins, the ends of the range without them."""
    python = SpecifierSet(PROJECT["requires-python"])
    for each in PYTHONS:
        assert each in python and f"Programming Language :: Python :: {each}" in PROJECT["classifiers"]
    for name in ("gymnasium", "mujoco"):
        for version in (pins()[name], Version(f"{pins()[name].major}.99"), Version(f"{pins()[name].major + 1}.0")):
            assert version in requirements()[name], f"{name} {version}"
    check = jobs("ci.yml")["check"]
    assert check["strategy"]["matrix"]["python"] == PYTHONS
    newest = jobs("monthly.yml")["newest"]
    assert {PYTHONS[0], PYTHONS[-1]} <= set(newest["strategy"]["matrix"]["python"])
    assert ": > constraints.txt" in commands(newest), "the pins hold the newest back"
    for job in (check, newest):
        assert "bash .ci/run" in commands(job)
        (setup,) = (step for step in job["steps"] if "setup-python@" in step.get("uses", ""))
        assert setup["with"]["python-version"] == "${{ matrix.python }}"


@pytest.mark.field("two-numpys")
def test_both_numpys_are_in_the_range_and_run() -> None:
    numpy = requirements()["numpy"]
    assert "1.26.0" in numpy and "1.26.4" in numpy and "2.0.2" in numpy and "2.99" in numpy
    assert pins()["numpy"].major == Runtime.read().pins["numpy"].major == 2
    oldest = jobs("monthly.yml")["oldest-numpy"]
    assert '"numpy==1.26.*" ".[deep]"' in commands(oldest)
    files = re.findall(r"tests/\S+\.py", commands(oldest))
    rooms = {Path(file).parent.name for file in files}
    assert rooms == {"unit", "agents", "envs"}
    for file in files:
        assert "import cvxpy" not in (ROOT / file).read_text(encoding="utf-8"), f"{file}: cvxpy needs NumPy 2"


@needs_make
@pytest.mark.field("broken-cell")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "what"),
    [
        ("broken = 'cell two'\n1 / 0", ["ZeroDivisionError: division by zero", "broken = 'cell two'"]),
        ("broken = 'cell two'\nimport time\ntime.sleep(600)", ["timed out", "broken = 'cell two'"]),
    ],
    ids=["raises", "too long"],
)
def test_a_broken_cell_fails_the_book_by_name(tree: Path, code: str, what: list[str]) -> None:
    """The second of three cells, which Jupyter Book shows as it stands; the limit of the project's own file, shortened."""
    cells = [new_code_cell(each, execution_count=i) for i, each in enumerate(["fine = 1", code, "later = 3"], start=1)]
    nbformat.write(new_notebook(cells=[new_markdown_cell("# Chapter"), *cells]), tree / CHAPTER)
    config = (tree / "_config.yml").read_text(encoding="utf-8")
    assert config.count("  timeout: 300") == 1
    (tree / "_config.yml").write_text(config.replace("  timeout: 300", "  timeout: 5"), encoding="utf-8")
    result = make(tree, "book")
    said = re.sub(r"\x1b\[[0-9;]*m", "", result.stdout + result.stderr)  # colours
    assert result.returncode != 0
    assert "01_chapter" in said
    for text in what:
        assert text in said, said
    assert "fine = 1" not in said and "later = 3" not in said
