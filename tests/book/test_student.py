"""The student edition: no solution is left in it, and each chapter runs up to the first exercise that is not solved."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.book.chapters import ROOT, markdown, notebooks, read
from tools.myst import Directive, MystError, Names, plain, split
from tools.notebooks import SETUP_TAG, Repository, is_deep, setup_cell
from tools.student import EXERCISE_TAG, Exercise, exercises, solutions, student_edition, write

# A quick chapter that stops at an exercise; the rest are slow tests.
QUICK = ("04_backward_value",)
NAMES = Names.read()
PICTURE = re.compile(r"[A-Za-z0-9+/=\\]{200,}")  # the bytes of one in base64, which are no text
each_notebook = pytest.mark.parametrize("path", notebooks(), ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("student")
    write(folder / "dist")
    return folder / "dist"


def texts(folder: Path) -> Iterator[str]:
    """Yield every text of an edition: sources and outputs of its notebooks, and its other pages."""
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".ipynb":
            for cell in read(path).cells:
                yield cell.source
                yield from (PICTURE.sub("", str(output)) for output in cell.get("outputs", []))
        elif path.suffix == ".md":
            yield path.read_text(encoding="utf-8")


def outside(notebook: Any) -> str:
    """Return what a chapter says outside its solutions."""
    parts = [
        part if isinstance(part, str) else part.body
        for part in split(markdown(notebook))
        if isinstance(part, str) or part.name != "solution"
    ]
    return "\n".join([*parts, *(cell.source for cell in notebook.cells if cell.cell_type == "code")])


def distinctive(solution: str, elsewhere: str) -> list[str]:
    """Return the sentences and lines of code of a solution that occur nowhere else, as written and in plain words."""
    found = re.split(r"(?<=[.!?:])\s+|\n", solution)
    found += re.split(r"(?<=[.!?:])\s+|\n", plain(solution, NAMES))
    return sorted({piece.strip() for piece in found if len(piece.strip()) >= 20 and piece.strip() not in elsewhere})


def test_no_solution_is_left(edition: Path) -> None:
    everything = "\n".join(texts(edition))
    elsewhere = "\n".join(outside(read(path)) for path in notebooks())
    elsewhere += plain("\n".join(part for part in split(elsewhere) if isinstance(part, str)), NAMES)
    n_sentences = 0
    for path in notebooks():
        for label, solution in solutions(read(path)).items():
            sentences = distinctive(solution, elsewhere)
            assert sentences, f"{label}: nothing in its solution could be recognised"
            left = [sentence for sentence in sentences if sentence in everything]
            assert not left, f"{label}: {left}"
            n_sentences += len(sentences)
    assert n_sentences > 500
    assert "{solution}" not in everything


def test_the_search_finds_a_solution() -> None:
    chapter = read(notebooks()[0])
    solution = next(iter(solutions(chapter).values()))
    sentences = distinctive(solution, outside(chapter))
    assert sentences
    assert all(sentence in f"{solution}\n{plain(solution, NAMES)}" for sentence in sentences)
    assert not any(sentence in outside(chapter) for sentence in sentences)


@each_notebook
def test_edition_of_a_chapter(path: Path, edition: Path) -> None:
    notebook, chapter = read(edition / "book" / path.name), read(path)
    nbformat.validate(notebook)
    setup = [cell for cell in notebook.cells if SETUP_TAG in cell.metadata.get("tags", [])]
    assert [cell.source for cell in setup] == [setup_cell(Repository.read(), is_deep(chapter.cells)).source]
    waiting = [cell for cell in notebook.cells if EXERCISE_TAG in cell.metadata.get("tags", [])]
    assert [cell.cell_type == "code" for cell in waiting] == [exercise.is_coding for exercise in exercises(chapter)]
    for exercise, cell in zip(exercises(chapter), waiting, strict=True):
        assert exercise.label in cell.source
        assert (f'raise NotImplementedError("exercise {exercise.label}")' in cell.source) == exercise.is_coding
    # What is not an exercise is all there, in plain words.
    kept = [cell.source for cell in notebook.cells if cell.cell_type == "code" and cell not in waiting]
    assert kept == [cell.source for cell in chapter.cells if cell.cell_type == "code"]
    prose = markdown(notebook)
    assert not re.search(r"^(:::|`{3,}\{)|\{(prf:ref|cite:t|cite:p|eq|numref|doc|ref)\}`", prose, re.MULTILINE)
    for part in split(markdown(chapter)):
        if isinstance(part, Directive) and part.name == "exercise":
            assert plain(part.body, NAMES) in prose


def test_tables_of_the_chapters_are_there(edition: Path) -> None:
    for path in notebooks():
        for name in re.findall(
            r"results/([\w/]+\.csv)", "\n".join(c.source for c in read(path).cells if c.cell_type == "code")
        ):
            assert (edition / "results" / name).read_bytes() == (ROOT / "results" / name).read_bytes()


def first_unsolved(notebook: Any) -> str:
    """Return the id of the first cell that waits for code, '' if there is none."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and EXERCISE_TAG in cell.metadata.get("tags", []):
            return str(cell.id)
    return ""


def label_of(notebook: Any, name: str) -> str:
    """Return the exercise that a waiting cell names."""
    source = next(cell.source for cell in notebook.cells if cell.id == name)
    return re.findall(r"ex-[\w-]+", source)[0]


def check_runs_to_its_first_unsolved_exercise(path: Path) -> None:
    """Execute a chapter: it stops at the first unsolved exercise, and nothing before fails."""
    notebook = read(path)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.execution_count, cell.outputs = None, []
    first = first_unsolved(notebook)
    client = NotebookClient(
        notebook, timeout=300, allow_errors=False, resources={"metadata": {"path": str(path.parent)}}
    )
    stop = ("", "", "")
    try:
        client.execute()
    except CellExecutionError as error:
        ran = [cell for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count is not None]
        stop = (ran[-1].id, str(error.ename), str(error.evalue))
    expected = ("", "", "") if not first else (first, "NotImplementedError", f"exercise {label_of(notebook, first)}")
    assert stop == expected
    before = [cell.id for cell in notebook.cells if cell.cell_type == "code" and cell.execution_count is None]
    count = [cell.id for cell in notebook.cells if cell.cell_type == "code"]
    assert set(before).isdisjoint(count[: count.index(first)] if first else count)


@pytest.mark.parametrize(
    "name",
    [
        path.stem if path.stem in QUICK else pytest.param(path.stem, marks=pytest.mark.slow, id=path.stem)
        for path in notebooks()
    ],
)
def test_runs_to_its_first_unsolved_exercise(name: str, edition: Path) -> None:
    check_runs_to_its_first_unsolved_exercise(edition / "book" / f"{name}.ipynb")


# The rules, on what they must find.

CHAPTER = """\
Before.

```{exercise} One
:label: ex-one
Do {eq}`eq-a`.
```

````{solution} ex-one
:class: dropdown
The trick is a loop.

```python
answer = 42
```
````

```{exercise}
:label: ex-two
Think.
```

````{solution} ex-two
No code here, only `inline`.
````

After."""


def small(*code: str) -> Any:
    cells = [nbformat.v4.new_markdown_cell("# Chapter"), *map(nbformat.v4.new_code_cell, code)]
    return nbformat.v4.new_notebook(cells=[*cells, nbformat.v4.new_markdown_cell(CHAPTER)])


def test_an_exercise_with_code_in_its_solution_is_a_coding_exercise() -> None:
    assert exercises(small()) == [Exercise("ex-one", True), Exercise("ex-two", False)]


def test_cells_of_an_edition() -> None:
    tagged = nbformat.v4.new_code_cell("secret = 1", metadata={"tags": ["solution"]})
    chapter = small("a = 1")
    chapter.cells.append(tagged)
    made = student_edition(chapter, "small", NAMES, Repository.read())
    assert [cell.cell_type for cell in made.cells] == [
        "markdown", "code", "code", "markdown", "code", "markdown", "markdown", "markdown",
    ]  # fmt: skip
    assert made.cells[3].source == "Before.\n\n**Exercise ex-one (One).** Do (a)."
    assert 'raise NotImplementedError("exercise ex-one")' in made.cells[4].source
    assert made.cells[6].source == "*Your answer to ex-two:*"
    assert made.cells[7].source == "After."
    assert chapter.cells[-1].source == "secret = 1", "the argument was changed"


@pytest.mark.parametrize("code", ["1 / 0", "raise NotImplementedError('not an exercise')"])
def test_the_run_finds_what_fails_before_the_exercise(code: str, tmp_path: Path) -> None:
    path = tmp_path / "small.ipynb"
    nbformat.write(student_edition(small(code), "small", NAMES, Repository.read()), path)
    with pytest.raises(AssertionError, match="small-002"):
        check_runs_to_its_first_unsolved_exercise(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (":::{prf:theorem} Name\n:label: a\nIt *holds*.\n:::", "**Theorem (Name).** It *holds*."),
        (":::{prf:proof}\nClear.\n:::", "*Proof.* Clear. ∎"),
        ("```{admonition} Note\n:class: note\nOne.\n\nTwo.\n```", "> **Note.** One.\n>\n> Two."),
        ("```{note}\nOne.\n```", "> **Note.** One."),
        ("::::{grid} 1 3\n:gutter: 2\n\n:::{grid-item-card} Read\nHere.\n:::\n::::", "**Read.** Here."),
        ("(here)=\n## Title", "## Title"),
        ("$$ x $$ (eq-ch1-x)", "$$ x\n\\tag{ch1-x}\n$$"),
        ("{cite:t}`satija2020`", "Satija et al. (2020)"),
        ("{cite:p}`altman1999,sutton2018`", "(Altman, 1999; Sutton and Barto, 2018)"),
        ("{prf:ref}`prop-same-law`", "Proposition (The reversal has the same stationary law)"),
        ("{doc}`ch. 4 <04_backward_value>`", "ch. 4"),
        ("{doc}`04_backward_value`", "Backward value functions"),
        ("{doc}`/book/notation`", "Notation"),
        ("{numref}`fig-ch2-time`", "the figure “ch2-time”"),
    ],
)
def test_plain_words(text: str, words: str) -> None:
    assert plain(text, NAMES) == words


def test_included_code_is_the_packages() -> None:
    text = "```{literalinclude} ../bvf_tutorial/tabular/markov.py\n:pyobject: time_reversal\n:language: python\n```"
    shown = plain(text, NAMES)
    assert shown.startswith("```python\ndef time_reversal(")
    assert (
        shown.removeprefix("```python\n").removesuffix("\n```") in (ROOT / "bvf_tutorial/tabular/markov.py").read_text()
    )


@pytest.mark.parametrize(
    "text",
    [
        "```{tableofcontents}\n```",
        "{prf:ref}`prop-nowhere`",
        "{download}`a`",
        "```{literalinclude} ../bvf_tutorial/tabular/markov.py\n:pyobject: gone\n```",
    ],
)
def test_what_has_no_plain_form_is_an_error(text: str) -> None:
    with pytest.raises(MystError):
        plain(text, NAMES)
