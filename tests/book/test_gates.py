"""A broken cell fails `make book` and `make test`: the real targets, run on a book of one chapter."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from tests.book.chapters import ROOT

pytestmark = pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
CHAPTER = Path("book/01_chapter.ipynb")


def write_chapter(tree: Path, code: str) -> None:
    cells = [new_markdown_cell("# Chapter"), new_code_cell(code, execution_count=1)]
    nbformat.write(new_notebook(cells=cells), tree / CHAPTER)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with the project's own build files and a book of one chapter that runs."""
    for name in ("Makefile", "_config.yml", "pyproject.toml", "requirements.txt", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    for name in ("book/_ext", "book/_static", "bvf_tutorial", "tests/book"):
        ignore = shutil.ignore_patterns("__pycache__", "test_*.py")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    (tmp_path / "book/_vendor").symlink_to(ROOT / "book/_vendor")
    shutil.copy2(ROOT / "book/references.bib", tmp_path / "book/references.bib")
    (tmp_path / "_toc.yml").write_text("format: jb-book\nroot: book/01_chapter\n", encoding="utf-8")
    write_chapter(tmp_path, "print(6 * 7)")
    return tmp_path


def make(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make in the tree with the environment that runs this test in the place of .venv."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "MAKE", "MFLAGS"))}
    # The environment is there already: an "old" file is never remade.
    command = ["make", f"VENV={sys.prefix}", "-o", f"{sys.prefix}/.installed", "WORKERS=0", *arguments]
    return subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.field("broken-cell")
def test_book_gate(tree: Path) -> None:
    good = make(tree, "book")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "42" in (tree / "_build/html/book/01_chapter.html").read_text(encoding="utf-8")
    assert make(tree, "-q", "book").returncode == 0, "a second run would build again"
    write_chapter(tree, "1 / 0")
    assert make(tree, "-q", "book").returncode == 1, "a changed chapter would not be built"
    broken = make(tree, "book")
    assert broken.returncode != 0
    assert "ZeroDivisionError" in broken.stdout + broken.stderr
    assert make(tree, "-q", "book").returncode == 1, "the broken book counts as built"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "warning"),
    [
        ("import matplotlib.pyplot as plt\nplt.plot([0, 1])\nplt.show()", "picture without alt text"),
        ("import ipywidgets\nipywidgets.IntSlider()", "live widget on a page without a kernel"),
    ],
    ids=["picture", "widget"],
)
def test_warnings_fail_the_book(tree: Path, code: str, warning: str) -> None:
    write_chapter(tree, code)
    result = make(tree, "book")
    assert result.returncode != 0
    assert warning in result.stdout + result.stderr


@pytest.mark.slow
def test_test_gate(tree: Path) -> None:
    good = make(tree, "test")
    assert good.returncode == 0, good.stdout + good.stderr
    assert "1 passed" in good.stdout
    write_chapter(tree, "1 / 0")
    broken = make(tree, "test")
    assert broken.returncode != 0
    assert "ZeroDivisionError" in broken.stdout
    assert "1 failed" in broken.stdout
