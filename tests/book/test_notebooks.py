"""What every chapter must have: its stored form, outputs, asserts, exercises, and alt text on every picture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.book.chapters import directives, markdown, notebooks, numbered, read
from tools.notebooks import SETUP_TAG, Repository, is_deep, setup_cell, stored_form

MOST_LINES = 25
MARKDOWN_IMAGE = re.compile(r"!\[(?P<alt>[^\]]*)\]\(")
MACHINE = re.compile(r"(?<![\w.~-])/(?:home|mnt|opt|root|srv|tmp|Users|var|work)/\w+|site-packages|[A-Z]:\\\\Users")

each_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)
each_chapter = pytest.mark.parametrize("path", numbered(notebooks()), ids=lambda path: path.stem)


class Images(HTMLParser):
    """Collect the alt text of every image of an HTML output ('' where there is none)."""

    def __init__(self) -> None:
        super().__init__()
        self.alt: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.alt.append((dict(attrs).get("alt") or "").strip())


def html_alts(text: str) -> list[str]:
    images = Images()
    images.feed(text)
    return images.alt


def cell_alts(cell: Any) -> Iterator[str]:
    """Yield the alt text of every picture that a code cell puts on the page."""
    described = str(cell.metadata.get("mystnb", {}).get("image", {}).get("alt", "")).strip()
    for output in cell.outputs:
        data = output.get("data", {})
        if "text/html" in data:
            yield from html_alts(data["text/html"])
        elif any(kind.startswith("image/") for kind in data):
            yield described


def text_alts(text: str) -> Iterator[str]:
    """Yield the alt text of every picture that markdown brings in."""
    yield from (match["alt"].strip() for match in MARKDOWN_IMAGE.finditer(text))
    yield from html_alts(text)
    for name, _, options in directives(text):
        if name in ("image", "figure", "glue:figure"):
            yield options.get("alt", "")


@each_notebook
def test_stored_form(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == stored_form(path, Repository.read()), "run `make format`"


@each_notebook
def test_executed(path: Path) -> None:
    missing = [cell.id for cell in read(path).cells if cell.cell_type == "code" and cell.execution_count is None]
    # A cell without a count has no stored output, and a strict comparison of nothing always passes.
    assert not missing, f"not executed: {missing}; run `make notebooks`"


@each_notebook
def test_setup_cell_installs_from_the_repository(path: Path) -> None:
    cells = read(path).cells
    expected = setup_cell(Repository.read(), is_deep(cells))
    found = [cell for cell in cells if SETUP_TAG in cell.metadata.get("tags", [])]
    assert [(cell.source, cell.metadata.tags) for cell in found] == [(expected.source, expected.metadata.tags)]


@each_notebook
def test_every_picture_has_alt_text(path: Path) -> None:
    notebook = read(path)
    bad = [cell.id for cell in notebook.cells if cell.cell_type == "code" and not all(cell_alts(cell))]
    bad += [cell.id for cell in notebook.cells if cell.cell_type == "markdown" and not all(text_alts(cell.source))]
    assert not bad, f"pictures without alt text in {bad}: set mystnb.image.alt, or alt= in the HTML"


@each_notebook
def test_cells_are_short(path: Path) -> None:
    code = [cell for cell in read(path).cells if cell.cell_type == "code"]
    long = [
        f"{cell.id}: {len(cell.source.splitlines())}" for cell in code if len(cell.source.splitlines()) > MOST_LINES
    ]
    assert not long, f"cells over {MOST_LINES} lines: {long}"


@each_notebook
def test_names_no_path_of_a_machine(path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("\\n", "\n")
    found = {match[0] for match in MACHINE.finditer(text)}
    assert not found, f"paths of somebody's machine: {found}"


@each_notebook
def test_code_is_python_outside_a_notebook(path: Path) -> None:
    for cell in read(path).cells:
        if cell.cell_type == "code":
            ast.parse(cell.source, filename=cell.id)


@each_chapter
def test_chapter_asserts_its_claims(path: Path) -> None:
    code = "\n".join(cell.source for cell in read(path).cells if cell.cell_type == "code")
    assert any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code))), "no cell asserts anything"


@each_chapter
def test_key_numbers_are_compared_strictly(path: Path) -> None:
    """nbval runs every cell and compares the tagged ones with what is stored: print exact, rounded numbers there."""
    strict = [c for c in read(path).cells if "nbval-check-output" in c.metadata.get("tags", [])]
    assert len(strict) >= 3, "tag at least three cells whose printed numbers are exact"
    assert all(cell.outputs for cell in strict)


@each_chapter
def test_chapter_says_what_it_is_for(path: Path) -> None:
    first = read(path).cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith("# ")
    start = markdown(read(path))[:4000]
    assert "What you will be able to do" in start, "the chapter does not open with 'What you will be able to do'"


@each_chapter
def test_every_exercise_has_a_solution(path: Path) -> None:
    found = list(directives(markdown(read(path))))
    exercise = {options.get("label", "") for name, _, options in found if name == "exercise"}
    solution = {argument for name, argument, _ in found if name == "solution"}
    assert exercise, "no exercise"
    assert "" not in exercise, "an exercise without a :label:"
    assert exercise == solution, (
        f"without a solution: {exercise - solution}; without an exercise: {solution - exercise}"
    )


# The checks above, on what they must find.


@pytest.mark.parametrize(
    ("text", "alts"),
    [
        ("![a hill](a.png)", ["a hill"]),
        ("![](a.png)", [""]),
        ('<img src="a.png" alt="a hill">', ["a hill"]),
        ('<img src="a.png">', [""]),
        (":::{figure} a.png\n:alt: a hill\n:::\n", ["a hill"]),
        ("```{image} a.png\n:width: 3\n```\n", [""]),
        ("````{note}\n```{image} a.png\n```\n````\n", [""]),
    ],
)
def test_text_alts(text: str, alts: list[str]) -> None:
    assert list(text_alts(text)) == alts


@pytest.mark.parametrize("text", ["in /mnt/a", "File '/home/me/x.py'", "at /Users/me", "lib/site-packages/numpy"])
def test_machine_paths_are_seen(text: str) -> None:
    assert MACHINE.search(text)


@pytest.mark.parametrize("text", ["../results/a.csv", "https://example.org/home/a", "head/home/rest", "in /m per step"])
def test_other_slashes_are_not_paths(text: str) -> None:
    assert not MACHINE.search(text)
