"""This file knows the rule by which a chapter becomes a deck of slides, and writes the decks.

``python -m tools.slides`` writes one deck per chapter to ``dist/slides``, with reveal.js and MathJax beside them, so
that a deck opens with no network. Names of chapters (``07_safe_policy_iteration``) choose some; ``--output`` names
another folder.
"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import nbformat

from tools.myst import LABELLED, Directive, Names, plain, plain_part, split
from tools.notebooks import BOOK, ROOT, SETUP_TAG

OUTPUT = ROOT / "dist" / "slides"
KIT = ROOT / "teaching" / "slides"
MATHJAX = BOOK / "_vendor" / "mathjax"

HEADING = re.compile(r"^(#{1,3}) +(.+)$", re.MULTILINE)
FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z$*])")
EQUATION = re.compile(r"\{eq\}`eq-([\w-]+)`")
# Left out: what students do by themselves.
SKIPPED = ("Exercises", "Exercise", "Where to read on", "Explore")
MOST_CODE = 14
MOST_OUTPUT = 10
MOST_BULLETS = 5
LEAD = 320


def slide(source: str, *, is_html: bool = False) -> Any:
    """Return one slide of Markdown or HTML, below the last; `deck` puts a section's first one to the right of it."""
    cell: Any = nbformat.v4.new_raw_cell(source) if is_html else nbformat.v4.new_markdown_cell(source)
    cell.metadata["slideshow"] = {"slide_type": "subslide"}
    return cell


def deck(notebook: Any, names: Names) -> Any:
    """Return the slides of a chapter as a notebook with slide metadata.

    The rule. The title comes with what the reader will be able to do. A section (``##``) brings its title and first
    sentences, then in order a slide for each statement (any ``prf:`` directive but proofs) with the displays it refers
    to, each figure with its caption, and its first short cell of code that prints. The summary keeps its points.
    Proofs, the rest of the text, exercises, live explorers and reading lists stay in the book.
    """
    title, shown = _title(notebook), _equations(notebook)
    cells: list[Any] = []
    section, has_code, is_skipped, first = "", True, False, 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading, text in _sections(cell.source):
                if heading:
                    # The code below the chapter's own title is its imports.
                    section, has_code, is_skipped = heading, heading == title, heading in SKIPPED
                    first = len(cells)
                if not is_skipped:
                    cells.extend(_text_slides(heading, text, names))
                    cells.extend(_statements(section, text, shown, names))
        elif cell.cell_type == "code" and not is_skipped and SETUP_TAG not in cell.metadata.get("tags", []):
            if "figure" in cell.metadata.get("mystnb", {}):
                cells.extend(_figure_slide(cell, section, names))
            elif not has_code and _is_short(cell):
                has_code = True
                cells.extend(_code_slide(cell, section))
        if first < len(cells):
            cells[first].metadata["slideshow"]["slide_type"] = "slide"
    return nbformat.v4.new_notebook(cells=cells, metadata={"title": title})


def _title(notebook: Any) -> str:
    match = HEADING.search(notebook.cells[0].source)
    return match[2].strip() if match else ""


def _sections(source: str) -> Iterator[tuple[str, str]]:
    """Yield heading and text of each section that begins in a cell; text before the first has the heading ''."""
    hidden = FENCE.sub(lambda match: " " * len(match[0]), source)
    marks = [match for match in HEADING.finditer(hidden) if len(match[1]) < 3]
    starts = [0, *(match.start() for match in marks), len(source)]
    titles = ["", *(source[match.start(2) : match.end(2)].strip() for match in marks)]
    for title, start, end in zip(titles, starts, starts[1:], strict=False):
        text = source[start:end]
        if title:
            text = text.partition("\n")[2]
        if title or text.strip():
            yield title, text.strip()


def _text_slides(heading: str, text: str, names: Names) -> Iterator[Any]:
    """Yield the slides of a section's text."""
    prose = "\n\n".join(part for part in split(text) if isinstance(part, str))
    if heading == "Summary":
        yield from _bullets(plain(prose, names))
    elif "**What you will be able to do**" in prose:
        points = plain(prose.partition("**What you need.**")[0], names)
        yield slide(f"# {heading}\n\n{points}")
    elif heading and (lead := _lead(prose)):
        yield slide(f"## {heading}\n\n{plain(lead, names)}")


def _statements(section: str, text: str, shown: dict[str, str], names: Names) -> Iterator[Any]:
    """Yield a slide for each statement, with the displays that it refers to."""
    for part in split(text):
        if isinstance(part, Directive) and part.name.startswith("prf:") and part.kind != "proof":
            said = plain_part(part, names)
            wanted = [label for label in dict.fromkeys(EQUATION.findall(part.body)) if f"(eq-{label})" not in part.body]
            where = "".join(f"\n\n{shown[label]}" for label in wanted if label in shown)
            yield slide(f"## {section}\n\n{said}" + (f"\n\nwhere{where}" if where else ""))


def _equations(notebook: Any) -> dict[str, str]:
    """Return the displays of a chapter by their labels, in plain Markdown."""
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    return {match["label"]: plain(match[0], Names()) for match in LABELLED.finditer(text)}


def _lead(prose: str) -> str:
    """Return the first sentences of a section's first paragraph, as far as there is room."""
    blocks = [block.strip() for block in re.split(r"\n\s*\n", HEADING.sub("", prose)) if block.strip()]
    first = next((block for block in blocks if not re.match(r"[-*|>]|\d+\. |\$\$|!\[", block)), "")
    if "$$" in first:
        first = first.partition("$$")[0].strip()
    said = ""
    for sentence in SENTENCE.split(first.replace("\n", " ")):
        # A sentence that only a display would finish is left out.
        if said and (len(said) + len(sentence) > LEAD or not sentence.rstrip("*_").endswith((".", "!", "?", ":"))):
            break
        said = f"{said} {sentence}".strip()
    return said


def _bullets(text: str) -> Iterator[Any]:
    """Yield the points of a summary, a few on each slide."""
    points = [point.strip() for point in re.split(r"^(?=- )", text, flags=re.MULTILINE) if point.startswith("- ")]
    n_slides = -(-len(points) // MOST_BULLETS)
    for number in range(n_slides):
        share = points[number * len(points) // n_slides : (number + 1) * len(points) // n_slides]
        yield slide("## Summary\n\n" + "\n".join(share))


def _figure_slide(cell: Any, section: str, names: Names) -> Iterator[Any]:
    """Yield a figure of record with its caption: a picture, or a piece of HTML that moves by itself."""
    from nbconvert.filters import markdown2html

    caption = markdown2html(plain(str(cell.metadata["mystnb"]["figure"].get("caption", "")), names))
    described = html.escape(str(cell.metadata["mystnb"].get("image", {}).get("alt", "")), quote=True)
    for output in cell.outputs:
        data = output.get("data", {})
        if "text/html" in data:
            body = data["text/html"]
        elif "image/png" in data:
            body = f'<img alt="{described}" src="data:image/png;base64,{data["image/png"].strip()}">'
        else:
            continue
        head = f"<h2>{html.escape(section)}</h2>" if section else ""
        yield slide(f"{head}<figure>{body}<figcaption>{caption}</figcaption></figure>", is_html=True)
        return


def _is_short(cell: Any) -> bool:
    """Return whether a cell is code to show: short, not folded away, not only imports, and it prints."""
    tags = cell.metadata.get("tags", [])
    lines = [line for line in cell.source.splitlines() if line.strip()]
    shown = [line for line in lines if not re.match(r"(import|from) ", line)]
    hidden = {"hide-input", "hide-cell", "remove-output", "remove-cell", "remove-input"}
    prints = any(output.output_type == "stream" and output.name == "stdout" for output in cell.outputs)
    return len(lines) <= MOST_CODE and len(shown) >= 2 and prints and not hidden & set(tags)


def _code_slide(cell: Any, section: str) -> Iterator[Any]:
    """Yield a slide of code with the beginning of what it printed."""
    yield slide(f"## {section}")
    printed = "".join(o.text for o in cell.outputs if o.output_type == "stream" and o.name == "stdout").splitlines()
    if len(printed) > MOST_OUTPUT:
        printed = [*printed[: MOST_OUTPUT - 1], "..."]
    text = "\n".join(printed)
    code = nbformat.v4.new_code_cell(cell.source, outputs=[nbformat.v4.new_output("stream", name="stdout", text=text)])
    code.metadata["slideshow"] = {"slide_type": "-"}
    yield code


def render(notebook: Any) -> str:
    """Return the page of a deck."""
    from nbconvert.exporters import SlidesExporter
    from traitlets.config import Config

    config = Config()
    config.SlidesExporter.exclude_input_prompt = True
    config.SlidesExporter.exclude_output_prompt = True
    make: Any = SlidesExporter  # nbconvert says nothing of its types
    exporter = make(config=config, extra_template_basedirs=[str(KIT)], template_name="template")
    return str(exporter.from_notebook_node(notebook)[0])


def write(output: Path = OUTPUT, chosen: Sequence[str] = (), book: Path = BOOK) -> list[Path]:
    """Write decks and the assets that they share; return the decks.

    Args:
        output: the folder; decks of other chapters in it are left.
        chosen: stems of chapters; all that have a number if empty.
        book: the chapters' folder.

    Raises:
        FileNotFoundError: there is no chapter of a chosen name.
    """
    names = Names.read(book)
    paths = [book / f"{name}.ipynb" for name in chosen] or sorted(book.glob("[0-9]*.ipynb"))
    output.mkdir(parents=True, exist_ok=True)
    shutil.copytree(KIT / "reveal.js", output / "reveal.js", dirs_exist_ok=True)
    shutil.copytree(MATHJAX, output / "mathjax", dirs_exist_ok=True)
    for name in ("slides.css", "slides.js"):
        shutil.copy2(KIT / "template" / name, output / name)
    written = []
    for path in paths:
        target = output / f"{path.stem}.html"
        target.write_text(render(deck(nbformat.read(path, as_version=4), names)), encoding="utf-8")
        written.append(target)
    return written


def main(argv: Sequence[str] | None = None) -> int:
    """Write the decks and say where they are."""
    parser = argparse.ArgumentParser(prog="tools.slides", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("chapters", nargs="*", help="stems of chapters; default: all with a number")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write")
    arguments = parser.parse_args(argv)
    written = write(arguments.output, arguments.chapters)
    print(f"{len(written)} decks: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
