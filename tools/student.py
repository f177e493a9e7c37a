"""This file knows how the student edition is made: the chapters without solutions, with room for the reader's own.

``python -m tools.student`` writes it to ``dist/student``; ``--output`` names another folder.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tools.myst import Directive, Names, plain, plain_part, split
from tools.notebooks import BOOK, ROOT, Repository, dumps, normalise

OUTPUT = ROOT / "dist" / "student"
SOLUTION_TAG = "solution"
EXERCISE_TAG = "exercise"
CODE = re.compile(r"^ *`{3,} *(?:python|\{code)", re.MULTILINE)
UNSOLVED = """\
# Your code for {label}, in the place of this line and the next.
raise NotImplementedError("exercise {label}")"""

README = """\
# Student edition

The chapters of *{title}*, without solutions.

1. Install Python 3.11 to 3.13 and the package: `pip install "bvf-tutorial[book,deep] @ {package}"`.
   In Colab the first code cell of each chapter does it.
2. Open a notebook of `book/` in JupyterLab and run it from the top. Everything above the exercises runs as it is.
3. The first cell that you have not solved stops with `NotImplementedError` and names its exercise. Replace its
   `raise` line by your code and run it. Exercises without a code cell have a text cell for your answer.

The chapters use each other's words: "(spi)" behind a formula is its name, and statements are cited by their titles.
The whole book, with solutions to check yours against, is at {url}.
"""


@dataclass(frozen=True)
class Exercise:
    """An exercise as the student edition needs it: its label, and whether its solution is code."""

    label: str
    is_coding: bool


def solutions(notebook: Any) -> dict[str, str]:
    """Return the text of every solution by the label of its exercise."""
    return {
        part.argument: part.body
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for part in split(cell.source)
        if isinstance(part, Directive) and part.name == "solution"
    }


def exercises(notebook: Any) -> list[Exercise]:
    """Return the exercises in order. One whose solution contains a block of code is a coding exercise."""
    solved = solutions(notebook)
    return [
        Exercise(part.label, bool(CODE.search(solved.get(part.label, ""))))
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for part in split(cell.source)
        if isinstance(part, Directive) and part.name == "exercise"
    ]


def answer_cell(exercise: Exercise) -> Any:
    """Return the cell below an exercise: code that raises until it is solved, or a text to fill in."""
    if exercise.is_coding:
        cell = nbformat.v4.new_code_cell(UNSOLVED.format(label=exercise.label))
    else:
        cell = nbformat.v4.new_markdown_cell(f"*Your answer to {exercise.label}:*")
    cell.metadata["tags"] = [EXERCISE_TAG]
    return cell


def _cells(notebook: Any, names: Names) -> Iterator[Any]:
    """Yield the cells of the student edition."""
    found = {exercise.label: exercise for exercise in exercises(notebook)}
    for cell in notebook.cells:
        tags = cell.metadata.get("tags", [])
        if SOLUTION_TAG in tags:
            continue
        if cell.cell_type != "markdown":
            yield cell
            continue
        text: list[str] = []
        for part in split(cell.source):
            if isinstance(part, Directive) and part.name == "exercise":
                lead = f"**Exercise {part.label}" + (f" ({part.argument})" if part.argument else "")
                yield nbformat.v4.new_markdown_cell("\n\n".join([*text, f"{lead}.** {plain(part.body, names)}"]))
                yield answer_cell(found[part.label])
                text = []
            elif isinstance(part, str) or part.name != "solution":
                text.append(plain_part(part, names))
        if text:
            yield nbformat.v4.new_markdown_cell("\n\n".join(text))


def student_edition(notebook: Any, slug: str, names: Names, repository: Repository) -> Any:
    """Return a chapter without solutions, in its stored form and in plain Markdown.

    Every exercise is followed by a cell for the answer: a coding exercise (its solution has a block of code) by code
    that raises ``NotImplementedError``, another one by text.

    Args:
        notebook: the chapter.
        slug: its file's stem, from which the cells get their ids.
        names: what the book calls its parts.
        repository: from where the Colab cell installs the package.
    """
    cells = list(_cells(nbformat.from_dict(notebook), names))
    return normalise(nbformat.v4.new_notebook(cells=cells), slug, repository)


def tables(notebooks: Sequence[Any], results: Path = ROOT / "results") -> list[Path]:
    """Return the files and folders of ``results/`` whose names stand in some chapter's code."""
    code = "\n".join(cell.source for notebook in notebooks for cell in notebook.cells if cell.cell_type == "code")
    return [path for path in sorted(results.iterdir()) if re.search(rf"""["'/]{re.escape(path.name)}["'/]""", code)]


def write(output: Path = OUTPUT, book: Path = BOOK) -> list[Path]:
    """Write the student edition of every notebook of a book; return what was written. The folder is made anew."""
    names, repository = Names.read(book), Repository.read()
    if output.exists():
        shutil.rmtree(output)
    (output / "book").mkdir(parents=True)
    chapters = {path.name: nbformat.read(path, as_version=4) for path in sorted(book.glob("*.ipynb"))}
    written = [output / "book" / name for name in chapters]
    for target, notebook in zip(written, chapters.values(), strict=True):
        edition = student_edition(notebook, target.stem, names, repository)
        target.write_text(dumps(edition), encoding="utf-8")
    for table in tables(list(chapters.values())):
        (output / "results").mkdir(exist_ok=True)
        if table.is_dir():  # without the checkpoints of trainings that go on there
            shutil.copytree(table, output / "results" / table.name, ignore=shutil.ignore_patterns(".*"))
        else:
            shutil.copy2(table, output / "results" / table.name)
    text = README.format(title=names.chapter["preface"], package=repository.package, url=repository.url)
    (output / "README.md").write_text(text, encoding="utf-8")
    return [*written, output / "README.md"]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the student edition and say where it is."""
    parser = argparse.ArgumentParser(prog="tools.student", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write, made anew")
    arguments = parser.parse_args(argv)
    written = write(arguments.output)
    n_coding = sum(e.is_coding for path in sorted(BOOK.glob("*.ipynb")) for e in exercises(nbformat.read(path, 4)))
    print(f"{len(written) - 1} chapters, {n_coding} coding exercises to solve: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
