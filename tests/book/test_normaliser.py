"""The stored form of a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import notebooks
from tools.notebooks import NotebookError, Repository, dumps, execute, main, normalise, stored_form

REPOSITORY = Repository("https://github.com/owner/name", "main")


def fresh() -> Any:
    """A notebook as JupyterLab leaves it: pairing and widget state, timings, addresses, chunked streams."""
    code = new_code_cell("print(1)\n", execution_count=17)
    code.metadata = {"tags": ["hide-input"], "execution": {"iopub.execute_input": "2026"}, "collapsed": False}
    code.metadata["mystnb"] = {"image": {"alt": "a line"}}
    code.outputs = [
        new_output("stream", name="stdout", text="1"),
        new_output("stream", name="stdout", text="2\n"),
        new_output("stream", name="stderr", text="careful\n"),
        new_output(
            "execute_result",
            data={"text/plain": "<Line at 0x7f00aa12bc34>", notebooks.WIDGET_VIEW: {"model_id": "x"}},
            metadata={"needs_background": "light"},
            execution_count=17,
        ),
    ]
    metadata = {
        "jupytext": {"formats": "ipynb,md"},
        "widgets": {"application/vnd.jupyter.widget-state+json": {}},
        "language_info": {"name": "python", "version": "3.11.7"},
    }
    return new_notebook(cells=[new_markdown_cell("# Title\n"), code, new_code_cell("2")], metadata=metadata)


def test_form() -> None:
    result = normalise(fresh(), "01_slug", REPOSITORY)
    assert result.metadata == {"kernelspec": notebooks.KERNELSPEC, "language_info": {"name": "python"}}
    assert [cell.id for cell in result.cells] == ["01_slug-000", "01_slug-001", "01_slug-002", "01_slug-003"]
    title, setup, code, unexecuted = result.cells
    assert title.source == "# Title"
    assert setup.metadata.tags == notebooks.SETUP_TAGS
    assert code.metadata == {"tags": ["hide-input"], "mystnb": {"image": {"alt": "a line"}}}
    assert code.source == "print(1)"
    assert (setup.execution_count, code.execution_count, unexecuted.execution_count) == (1, 2, None)
    stdout, stderr, value = code.outputs
    assert (stdout.text, stderr.text) == ("12\n", "careful\n")
    assert value == {
        "output_type": "execute_result",
        "data": {"text/plain": "<Line at 0x0>"},
        "metadata": {},
        "execution_count": 2,
    }


def test_argument_is_left_as_it_was() -> None:
    notebook = fresh()
    before = dumps(notebook)
    normalise(notebook, "slug", REPOSITORY)
    assert dumps(notebook) == before


def test_twice_is_once() -> None:
    once = normalise(fresh(), "slug", REPOSITORY)
    assert dumps(normalise(once, "slug", REPOSITORY)) == dumps(once)


def test_setup_cell_follows_the_repository() -> None:
    old = normalise(fresh(), "slug", Repository("https://github.com/owner/old", "main"))
    new = normalise(old, "slug", REPOSITORY)
    assert len(new.cells) == len(old.cells)
    assert 'package = "git+https://github.com/owner/name@main"' in new.cells[1].source


def test_setup_cell_brings_the_robots_where_a_chapter_needs_them() -> None:
    for source, is_deep in (
        ("import torch", True),
        ("from bvf_tutorial.halfspace import project", True),
        ("from bvf_tutorial.envs import PointCircle, VectorEnv", True),
        ("from bvf_tutorial.envs import GridWorld", False),
        ("print('import torch')", False),
    ):
        notebook = fresh()
        notebook.cells[-1].source, notebook.cells[-1].cell_type = source, "code"
        setup = normalise(notebook, "slug", REPOSITORY).cells[1].source
        assert ('package = "bvf-tutorial[deep] @ git+https://github.com/owner/name@main"' in setup) == is_deep, source


def test_setup_cell_does_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda command, check: calls.append(command))
    source = notebooks.setup_cell(REPOSITORY).source
    exec(source, {})
    assert calls == []
    monkeypatch.setitem(__import__("sys").modules, "google.colab", __import__("types"))
    exec(source, {})
    assert [command[1:] for command in calls] == [["-m", "pip", "install", "--quiet", REPOSITORY.package]]


def test_size_cap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "big.ipynb"
    nbformat.write(fresh(), path)
    size = len(stored_form(path, REPOSITORY))
    monkeypatch.setattr(notebooks, "SIZE_CAP", size - 1)
    with pytest.raises(NotebookError, match=r"big\.ipynb: [\d,]+ bytes stored"):
        stored_form(path, REPOSITORY)


def test_not_a_notebook(tmp_path: Path) -> None:
    path = tmp_path / "bad.ipynb"
    path.write_text("hello", encoding="utf-8")
    with pytest.raises(NotebookError, match=r"bad\.ipynb: not a valid notebook"):
        stored_form(path, REPOSITORY)


def test_check_writes_nothing_and_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.ipynb"
    nbformat.write(fresh(), path)
    before = path.read_text(encoding="utf-8")
    assert main(["normalise", "--check", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == before
    assert "a.ipynb: not in its stored form" in capsys.readouterr().err
    assert main(["normalise", str(path)]) == 0
    assert main(["normalise", "--check", str(path)]) == 0


def test_execute_stores_outputs(tmp_path: Path) -> None:
    path = tmp_path / "a.ipynb"
    nbformat.write(new_notebook(cells=[new_markdown_cell("# A"), new_code_cell("import os\nprint(6 * 7)")]), path)
    assert main(["execute", str(path)]) == 0
    assert nbformat.read(path, as_version=4).cells[2].outputs[0].text == "42\n"
    assert main(["normalise", "--check", str(path)]) == 0


def test_execute_names_the_broken_notebook(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("1 / 0")]), path)
    before = path.read_text(encoding="utf-8")
    with pytest.raises(NotebookError, match=r"(?s)broken\.ipynb: .*ZeroDivisionError"):
        execute(path)
    assert path.read_text(encoding="utf-8") == before


def test_repository_is_read_from_the_configuration(tmp_path: Path) -> None:
    config = tmp_path / "_config.yml"
    config.write_text("repository:\n  url: https://github.com/a/b/\n  branch: dev\n", encoding="utf-8")
    repository = Repository.read(config)
    assert repository.package == "git+https://github.com/a/b@dev"
    assert repository.colab("book/x.ipynb") == "https://colab.research.google.com/github/a/b/blob/dev/book/x.ipynb"
