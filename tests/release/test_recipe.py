"""docs/nbval.md keeps its word: a project made from its blocks, with notebooks that differ in one thing each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_notebook, new_output

from tests.book.chapters import ROOT
from tests.book.comparison import Cell, Comparison, count_asserts, line, text_outputs

RECIPE = (ROOT / "docs/nbval.md").read_text(encoding="utf-8")
PICTURE = "from IPython.display import Image\nImage(data=b'\\x89PNG\\r\\n\\x1a\\n' + b'{}', format='png')"
CHECKED = {"tags": ["nbval-check-output"]}


def blocks() -> dict[str, str]:
    """The files of the recipe: fenced blocks whose first line is a comment with a file's name."""
    found = re.findall(r"```\w+\n# (\S+\.\w+)\n(.*?)```", RECIPE, re.DOTALL)
    return dict(found)


def notebook(**changes: Any) -> Any:
    """Four cells with their stored outputs; ``changes`` gives one of the outputs, or the assert, another form."""
    stored = {
        "number": "0.2500\n",
        "picture": "aWs=",
        "time": "took 3.1 s\n",
        "untagged": "1\n",
        "claim": "1 + 1 == 2",
    } | changes
    cells = [
        new_code_cell("print(f'{1 / 4:.4f}')", metadata=CHECKED),
        new_code_cell(PICTURE.format("new"), metadata=CHECKED),
        new_code_cell("print('took 0.02 s')", metadata=CHECKED),
        new_code_cell(f"assert {stored['claim']}\nprint(1)"),
    ]
    cells[0].outputs = [new_output("stream", name="stdout", text=stored["number"])]
    data = {"image/png": stored["picture"], "text/plain": "<IPython.core.display.Image object>"}
    cells[1].outputs = [new_output("execute_result", data=data, execution_count=2)]
    cells[2].outputs = [new_output("stream", name="stdout", text=stored["time"])]
    cells[3].outputs = [new_output("stream", name="stdout", text=stored["untagged"])]
    for count, cell in enumerate(cells, 1):
        cell.execution_count = count
    return new_notebook(cells=cells)


NOTEBOOKS = {
    "same": notebook(),
    "drift": notebook(number="0.2600\n"),
    "tail": notebook(number="0.2509\n"),
    "time": notebook(time="took 8 minutes\n"),
    "untagged": notebook(untagged="2\n"),
    "false": notebook(claim="1 + 1 == 3"),
}


def outcome(project: Path, *arguments: str) -> tuple[dict[str, list[int]], str]:
    """Run pytest in the project; return the failed cells per notebook and all that it said."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-rf", "-p", "no:cacheprovider", *arguments]
    said = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False).stdout
    failed: dict[str, list[int]] = {}
    for name, cell in re.findall(r"^FAILED notebooks/(\w+)\.ipynb::Cell (\d+)", said, re.MULTILINE):
        failed.setdefault(name, []).append(int(cell))
    return failed, said


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    for name, text in blocks().items():
        (folder / name).write_text(text, encoding="utf-8")
    shutil.copy2(ROOT / "tests/book/comparison.py", folder / "comparison.py")
    (folder / "notebooks").mkdir()
    for name, cells in NOTEBOOKS.items():
        nbformat.write(cells, folder / "notebooks" / f"{name}.ipynb")
    return folder


def test_the_recipe_has_its_files() -> None:
    assert set(blocks()) == {"pyproject.toml", "nbval_sanitize.cfg", "conftest.py"}
    ours = (ROOT / "tests/book/nbval_sanitize.cfg").read_text(encoding="utf-8")
    for rule in re.findall(r"\[.*?\]\nregex: .*\nreplace: .*\n", blocks()["nbval_sanitize.cfg"]):
        assert rule in ours, "the recipe shows a rule that this book does not use"


@pytest.mark.slow
def test_lax(project: Path) -> None:
    """A drifting number fails, a false assert fails; a changed picture, a timing and a digit behind the third pass."""
    failed, said = outcome(project, "--numprocesses=2", "--dist=loadfile")
    # In "time" the stored unit is minutes, which no sanitizer hides.
    assert failed == {"drift": [0], "time": [2], "false": [3]}, said
    lines = said[said.index("what the notebook tests compared") :]
    expected = "4 cells run, 3 compared with their stored output (3 outputs), 1 run only, 0 skipped, 1 asserts"
    for name in NOTEBOOKS:
        assert f"notebooks/{name}.ipynb: {expected}\n" in lines
    assert expected in RECIPE


def test_strict(project: Path) -> None:
    """Without lax, an untagged output is compared too; the lines come without pytest-xdist as well."""
    failed, said = outcome(
        project, "-o", "addopts=--nbval --nbval-sanitize-with=nbval_sanitize.cfg", "notebooks/untagged.ipynb"
    )
    assert failed == {"untagged": [3]}, said
    assert "untagged.ipynb: 4 cells run, 4 compared with their stored output (4 outputs), 0 run only" in said


def test_recipe_names_the_options_of_this_project() -> None:
    own = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for option in re.findall(r'"(--nbval[\w-]*(?:=\d+)?)"', blocks()["pyproject.toml"]):
        assert f'"{option}"' in own


# What the lines count.


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("assert True\nfor i in range(3):\n    assert i < 3", 2),
        ("%matplotlib inline\nassert 1", 1),
        ("def f(:", 0),
        ("'assert'", 0),
    ],
)
def test_count_asserts(source: str, count: int) -> None:
    assert count_asserts(source) == count


def test_text_outputs() -> None:
    cell = new_code_cell("1")
    cell.outputs = [
        new_output("stream", name="stdout", text="1"),
        new_output("display_data", data={"image/png": "aWs="}),
        new_output("display_data", data={"image/png": "aWs=", "text/plain": "<Figure>"}),
    ]
    assert text_outputs(cell) == 2


def test_line() -> None:
    cells = [
        Cell("a.ipynb", False, True, 2, 1),
        Cell("a.ipynb", False, False, 5, 3),
        Cell("a.ipynb", True, False, 0, 7),
    ]
    assert (
        line(cells)
        == "a.ipynb: 2 cells run, 1 compared with their stored output (2 outputs), 1 run only, 1 skipped, 4 asserts"
    )


def test_make_test_prints_the_lines(pytestconfig: pytest.Config) -> None:
    """This very run has the plugin."""
    assert isinstance(pytestconfig.pluginmanager.get_plugin("notebook-comparison"), Comparison)
