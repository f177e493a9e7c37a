"""The decks: each opens with the network off, draws its formulas, and shows no directive and no text that is cut off."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from playwright.sync_api import Browser, Page

from tests.book.chapters import ROOT, directives, markdown, notebooks, numbered, read
from tools.browser import find_browser, launch
from tools.myst import Names
from tools.slides import SKIPPED, deck, main, write

QUICK = ("06_state_wise_constraint", "10_safety_layer")
CHAPTERS = [path.stem for path in numbered(notebooks())]
NAMES = Names.read()
RAW = re.compile(r":::|`{3}|\{(?:prf:)?[a-z]+(?::[tp])?\}|\$\$|\\tag|\\label")


def has_browser() -> bool:
    try:
        find_browser()
    except FileNotFoundError:
        # Where a browser is required (CI), its absence fails the tests instead of skipping them.
        return bool(os.environ.get("BVF_REQUIRE_BROWSER"))
    return True


in_browser = pytest.mark.skipif(not has_browser(), reason="no browser: install Chromium or set BVF_BROWSER")
each_chapter = pytest.mark.parametrize("name", CHAPTERS)


def texts(notebook: Any) -> str:
    return "\n\n".join(cell.source for cell in notebook.cells)


@each_chapter
def test_every_statement_and_figure_has_its_slide(name: str) -> None:
    chapter = read(ROOT / "book" / f"{name}.ipynb")
    made = deck(chapter, NAMES)
    text = texts(made)
    stated = [(kind, title) for kind, title, _ in directives(markdown(chapter)) if kind.startswith("prf:")]
    expected = sum(kind != "prf:proof" for kind, _ in stated)
    assert (
        len(re.findall(r"\n\n\*\*(?:Theorem|Proposition|Lemma|Corollary|Definition|Remark|Example)\b", text))
        == expected
    )
    figures = [
        cell for cell in chapter.cells if cell.cell_type == "code" and "figure" in cell.metadata.get("mystnb", {})
    ]
    assert text.count("<figure>") == sum(bool(cell.outputs) for cell in figures)
    assert made.metadata.title == chapter.cells[0].source.splitlines()[0].removeprefix("# ")
    assert "What you will be able to do" in made.cells[0].source
    assert "## Summary" in text


@each_chapter
def test_no_exercise_and_no_solution_on_slides(name: str) -> None:
    text = texts(deck(read(ROOT / "book" / f"{name}.ipynb"), NAMES))
    assert not re.search(r"^## (" + "|".join(SKIPPED) + r")$", text, re.MULTILINE)
    assert "{solution}" not in text
    assert not re.search(r"ex-(ch|audit|preface)", text)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with launch() as opened:
        yield opened


class Deck:
    """A deck opened with the network off, with what went wrong on the way."""

    def __init__(self, browser: Browser, path: Path) -> None:
        context = browser.new_context(viewport={"width": 1280, "height": 720}, offline=True)
        self.page: Page = context.new_page()
        self.problem: list[str] = []
        self.asked: list[str] = []
        self.page.on("pageerror", lambda error: self.problem.append(f"page error: {error}"))
        self.page.on(
            "console", lambda said: self.problem.append(said.text) if said.type in ("error", "warning") else None
        )
        self.page.on("requestfailed", lambda request: self.problem.append(f"not loaded: {request.url}"))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_function(
            "document.documentElement.dataset.ready === 'true' || document.title === 'bad'", timeout=60_000
        )


def n_formulas(notebook: Any) -> int:
    """Count the formulas that the slides of a deck ask for."""
    words = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type != "code")
    words = re.sub(r'alt="[^"]*"|`[^`\n]*`|<script>.*?</script>', "", words, flags=re.DOTALL)
    return len(re.findall(r"\$\$.+?\$\$|(?<!\\)\$[^$]+?\$", words, re.DOTALL))


def check(opened: Deck, least: int = 1) -> None:
    """Fail for anything that a room full of students would see, and if fewer formulas are drawn than there should be."""
    page = opened.page
    assert opened.problem == []
    assert [url for url in opened.asked if not url.startswith(("file:", "data:"))] == []
    outside = "[src^='http'], link[href^='http'], script[src^='//']"
    assert page.evaluate(f'document.querySelectorAll("{outside}").length') == 0
    # Formulas: some, none with an error, and no dollar left around one.
    assert page.evaluate("document.querySelectorAll('mjx-container').length") >= least
    assert (
        page.evaluate("document.querySelectorAll('[data-mml-node=merror], mjx-merror, [data-mjx-error]').length") == 0
    )
    prose = page.evaluate(
        """() => [...document.querySelectorAll(".slides section:not(.stack)")].map(slide => {
             const copy = slide.cloneNode(true);
             copy.querySelectorAll("pre, code, mjx-container, script").forEach(node => node.remove());
             return copy.textContent; }).join("\\n")"""
    )
    assert not RAW.findall(prose)
    assert "$" not in prose
    # Nothing is cut off, and no text is so small that the last row cannot read it.
    assert page.evaluate("document.querySelectorAll('.overflows').length") == 0
    assert page.evaluate("[...document.querySelectorAll('.slides img')].every(i => i.alt && i.naturalWidth > 0)")
    small = page.evaluate(
        """() => [...document.querySelectorAll(".slides section p, .slides section li")]
             .filter(node => parseFloat(getComputedStyle(node).fontSize) < 14).length"""
    )
    assert small == 0


@in_browser
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow, id=n) for n in CHAPTERS])
def test_deck_opens_offline(name: str, browser: Browser, tmp_path: Path) -> None:
    (path,) = write(tmp_path, [name])
    opened = Deck(browser, path)
    page = opened.page
    try:
        wanted = n_formulas(deck(read(ROOT / "book" / f"{name}.ipynb"), NAMES))
        assert wanted > 0
        check(opened, wanted)
        n_slides = page.evaluate("Reveal.getTotalSlides()")
        assert n_slides > 10
        # The keys of a presenter reach the last slide.
        for _ in range(n_slides):
            page.keyboard.press("Space")
        assert page.evaluate("Reveal.isLastSlide()")
        slider = page.evaluate_handle("document.querySelector('.bvf-slider input[type=range]')").as_element()
        if slider:
            picture = "document.querySelector('.bvf-slider img').src"
            before = page.evaluate(picture)
            slider.evaluate(
                "node => { node.value = node.max; node.dispatchEvent(new Event('input', {bubbles: true})); }"
            )
            assert page.evaluate(picture) != before
    finally:
        page.context.close()


@in_browser
def test_the_check_sees_a_bad_deck(browser: Browser, tmp_path: Path) -> None:
    bad = {
        "an outside script": '<script src="https://example.org/x.js"></script>',
        "a page error": "<script>undefined.field</script>",
        "no formulas": "<p>x</p>",
    }
    for what, body in bad.items():
        (tmp_path / "bad.html").write_text(f"<!doctype html><title>bad</title><div class=slides>{body}</div>")
        opened = Deck(browser, tmp_path / "bad.html")
        with pytest.raises(AssertionError):
            check(opened)
        opened.page.context.close()
        assert what
    # And in a deck that is right but for one slide.
    right = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# T\n\n" + " $x$" * 11)])
    for wrong in ("", ":::{prf:theorem}", "$x", "$\\frac{1$", "word " * 4000):
        chapter = tmp_path / "book"
        chapter.mkdir(exist_ok=True)
        cell = nbformat.v4.new_markdown_cell(f":::{{prf:proposition}} Long\n{wrong}\n:::")
        nbformat.write(nbformat.v4.new_notebook(cells=[*right.cells, cell]), chapter / "01_bad.ipynb")
        (path,) = write(tmp_path / "out", ["01_bad"], chapter)
        opened = Deck(browser, path)
        if wrong:
            with pytest.raises(AssertionError):
                check(opened)
        else:
            check(opened)
        opened.page.context.close()


def test_unknown_chapter_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="99_none"):
        main(["99_none", "--output", str(tmp_path)])


# The rule, on a small chapter.

CHAPTER = """\
## One
First sentence. Second one, see {eq}`eq-a`.

$$ x = 1 $$ (eq-a)

:::{prf:proposition} Name
:label: prop-name
It follows from {eq}`eq-a`.
:::

:::{prf:proof}
Hidden.
:::

## Exercises

```{exercise}
:label: ex-a
Hidden, too.
```

## Summary

- a
- b
"""


def test_slides_of_a_small_chapter() -> None:
    code = nbformat.v4.new_code_cell(
        "y = 2\nprint(y)", outputs=[nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    )
    head = nbformat.v4.new_markdown_cell(
        "# Title\n\n**What you will be able to do**\n\n- it\n\n**What you need.** Time."
    )
    imports = nbformat.v4.new_code_cell("import numpy\na = 1\nb = 2")
    before, _, after = CHAPTER.partition("## Exercises")
    cells = [head, imports, *map(nbformat.v4.new_markdown_cell, (before, f"## Exercises{after}"))]
    cells.insert(3, code)
    made = deck(nbformat.v4.new_notebook(cells=cells), NAMES)
    assert [cell.source for cell in made.cells] == [
        "# Title\n\n**What you will be able to do**\n\n- it",
        "## One\n\nFirst sentence. Second one, see (a).",
        "## One\n\n**Proposition (Name).** It follows from (a).\n\nwhere\n\n$$ x = 1\n\\tag{a}\n$$",
        "## One",
        "y = 2\nprint(y)",
        "## Summary\n\n- a\n- b",
    ]
    kinds = [cell.metadata.slideshow.slide_type for cell in made.cells]
    assert kinds == ["slide", "slide", "subslide", "subslide", "-", "slide"]
    assert made.cells[4].outputs[0].text == "2"
