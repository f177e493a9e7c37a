"""Colab, without Colab: what a chapter asks pip for replaces nothing that a runtime has. `make colab` also runs the chapters."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from nbformat.v4 import new_code_cell, new_notebook
from packaging.requirements import Requirement
from packaging.version import Version

from tests.book.chapters import notebooks, read
from tools import colab
from tools.colab import ColabError, Runtime, asked_for, changes, dependencies, extras, replaced, set_up_cell
from tools.notebooks import Repository, setup_cell

RUNTIME = Runtime.read()
REPOSITORY = Repository.read()


def test_list_says_what_it_is() -> None:
    text = colab.PINS.read_text(encoding="utf-8")
    assert RUNTIME.python == "3.12"
    assert "# source: " in text
    assert "# read: 20" in text
    assert {"numpy", "scipy", "matplotlib", "gymnasium", "torch", "pillow", "tqdm", "ipykernel", "ipywidgets"} <= set(
        RUNTIME.pins
    )


def test_core_dependencies_are_all_preinstalled() -> None:
    """The tabular chapters add one package to a runtime, this one."""
    assert {requirement.name for requirement in dependencies([])} <= set(RUNTIME.pins)


@pytest.mark.field("two-numpys")
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_chapter_replaces_nothing(path: Path) -> None:
    package = asked_for(set_up_cell(read(path)))
    assert package.endswith(REPOSITORY.package)
    assert replaced(RUNTIME, dependencies(extras(package))) == {}


@pytest.mark.field("two-numpys")
@pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
def test_chapter_asks_pip_for_no_upgrade(path: Path) -> None:
    """Pip leaves alone what satisfies a range, unless it is told otherwise, or told to install another thing as well."""
    code = [cell.source for cell in read(path).cells if cell.cell_type == "code"]
    cell = set_up_cell(read(path))
    assert "--upgrade" not in cell
    assert "-U" not in cell
    assert "--force-reinstall" not in cell
    assert not [
        source
        for source in code
        if source != cell and "pip" in source and "install" in source and "subprocess" in source
    ]
    assert not [source for source in code if source.lstrip().startswith(("!pip", "%pip"))]


# The checks above, on what they must find.


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [("numpy>=2.4", True), ("torch<2", True), ("NumPy >= 1.26", False), ("mujoco>=4", False), ("torch==2.9.0", False)],
)
def test_replacement_is_seen(line: str, is_seen: bool) -> None:
    runtime = Runtime("x", "3.12", {"numpy": Version("2.0.2"), "torch": Version("2.9.0+cpu")})
    assert bool(replaced(runtime, [Requirement(line)])) == is_seen


def test_changes() -> None:
    before = {"a": "1", "b": "1", "c": "1"}
    assert changes(before, {"a": "1", "b": "2", "d": "1"}) == ["b 1 -> 2", "c 1 -> gone"]
    assert changes(before, before | {"new": "1"}) == []


def test_requirement_of_a_cell() -> None:
    for needs_deep, wanted in ((False, set()), (True, {"deep"})):
        package = asked_for(setup_cell(REPOSITORY, needs_deep).source)
        assert extras(package) == wanted
        assert len(dependencies(wanted)) > 4 * needs_deep
    with pytest.raises(ColabError, match="assigns no package"):
        asked_for("import sys")


def test_set_up_cell_must_be_one() -> None:
    for cells in ([], [setup_cell(REPOSITORY), setup_cell(REPOSITORY)]):
        with pytest.raises(ColabError, match=f"{len(cells)} cells"):
            set_up_cell(new_notebook(cells=[*cells, new_code_cell("1")]))


@pytest.mark.parametrize(
    ("text", "message"),
    [("# runtime: 1\n# python: 3.12\nnumpy>=2", "not name==version"), ("numpy==2", "the head must")],
)
def test_bad_list(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ColabError, match=message):
        Runtime.read(path)


def test_interpreter(capsys: pytest.CaptureFixture[str]) -> None:
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert colab.interpreter(here).endswith((f"python{here}", Path(sys.executable).name))
    assert colab.interpreter("2.4") == sys.executable
    assert "no Python 2.4 here" in capsys.readouterr().out


def test_a_cell_that_replaces_a_package_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real comparison around a cell that runs: only pip and its listing are played here."""
    versions = iter([{"numpy": "2.0.2"}, {"numpy": "2.0.2"}, {"numpy": "2.4.6"}])
    monkeypatch.setattr(colab, "installed", lambda python, cwd: next(versions))
    ran: list[Any] = []
    monkeypatch.setattr(colab.release, "run", lambda command, cwd: ran.append(command) or "")
    emulation = colab.Emulation(tmp_path, RUNTIME, tmp_path / "bvf_tutorial-0.1.0-py3-none-any.whl")
    emulation.run(notebooks()[0])
    set_up, chapter = ran
    assert f"bvf-tutorial @ file://{tmp_path}" in set_up[-1]
    assert "git+" not in set_up[-1]
    assert chapter[1:4] == ["-m", "tools.notebooks", "execute"]
    with pytest.raises(ColabError, match=r"numpy 2\.0\.2 -> 2\.4\.6"):
        emulation.run(notebooks()[0])
