"""This file knows how to say a chapter's MyST in plain Markdown, for readers without Sphinx: students and slides.

Directives become paragraphs with a bold lead, roles become the words that the site shows in their place. Statements go
by their names and equations by their labels, so that nothing here can disagree with a number on the site.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from pybtex.database import parse_file  # type: ignore[import-untyped]

from tools.notebooks import BOOK

DIRECTIVE = re.compile(
    r"^(?P<fence>:{3,}|`{3,})\{(?P<name>[\w:-]+)\}(?P<argument>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.M | re.S
)
OPTION = re.compile(r"^:([\w-]+):[ \t]*(.*)$")
ROLE = re.compile(r"\{(?P<name>[a-z]+(?::[a-z]+)?)\}`(?P<text>[^`]+)`")
TARGET = re.compile(r"^(?P<words>.*\S)\s*<(?P<label>[^<>]+)>$", re.S)
# A display with a label behind it; the label becomes the tag, so that {eq} can name it.
LABELLED = re.compile(r"\$\$(?P<math>(?:(?!\$\$).)+)\$\$[ \t]*\(eq-(?P<label>[\w-]+)\)", re.S)


# An anchor for links, on a line of its own.
ANCHOR = re.compile(r"^\([\w-]+\)=[ \t]*\n?", re.MULTILINE)
# Directives that only arrange what is in them, and those that put a title above it.
CONTAINERS = ("grid", "grid-item", "tab-set", "div")
TITLED = ("card", "dropdown", "grid-item-card", "tab-item")
NOTES = ("attention", "caution", "hint", "important", "note", "seealso", "tip", "warning")


class MystError(Exception):
    """A directive or role that has no plain form; the message names it."""


@dataclass(frozen=True)
class Directive:
    """One MyST directive: its name, argument, options (``:key: value`` lines) and the text below them."""

    name: str
    argument: str
    options: dict[str, str]
    body: str

    @property
    def label(self) -> str:
        """Its label, '' where it has none."""
        return self.options.get("label", "")

    @property
    def kind(self) -> str:
        """Its name without the domain: ``proposition`` for ``prf:proposition``."""
        return self.name.rpartition(":")[2]


def split(text: str) -> Iterator[str | Directive]:
    """Yield the prose and the outermost directives of a Markdown text in order; blank prose is left out."""
    start = 0
    for match in DIRECTIVE.finditer(text):
        if prose := text[start : match.start()].strip():
            yield prose
        yield _directive(match)
        start = match.end()
    if prose := text[start:].strip():
        yield prose


def _directive(match: re.Match[str]) -> Directive:
    options: dict[str, str] = {}
    lines = match["body"].splitlines()
    while lines and (option := OPTION.match(lines[0])):
        options[option[1]] = option[2].strip()
        lines.pop(0)
    return Directive(match["name"], match["argument"].strip(), options, "\n".join(lines).strip())


@dataclass(frozen=True)
class Names:
    """What the book calls its parts.

    Args:
        statement: words for the label of a statement or exercise, such as ``Proposition (Same law)``.
        chapter: title of a chapter by its file's stem.
        source: authors and year of a reference by its key.
    """

    statement: dict[str, str] = field(default_factory=dict)
    chapter: dict[str, str] = field(default_factory=dict)
    source: dict[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def read(cls, book: Path = BOOK) -> Names:
        """Read the titles, labels and references of a book's folder."""
        statement: dict[str, str] = {}
        chapter: dict[str, str] = {}
        for path in sorted(book.glob("*.ipynb")):
            cells = [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown"]
            chapter[path.stem] = cells[0].source.splitlines()[0].lstrip("# ").strip() if cells else path.stem
            for part in (part for cell in cells for part in split(cell.source)):
                if isinstance(part, Directive) and part.label:
                    statement[part.label] = _lead(part)
        for path in sorted(book.glob("*.md")):
            chapter[path.stem] = path.read_text(encoding="utf-8").lstrip().splitlines()[0].lstrip("# ").strip()
        return cls(statement, chapter, _sources(book / "references.bib"))


def _sources(path: Path) -> dict[str, tuple[str, str]]:
    """Return authors, as in running text, and year of every reference."""
    if not path.is_file():
        return {}
    result = {}
    for key, entry in parse_file(str(path)).entries.items():
        people = entry.persons.get("author") or entry.persons.get("editor") or []
        last = [re.sub("[{}]", "", " ".join(person.prelast_names + person.last_names)) for person in people]
        who = f"{last[0]} et al." if len(last) > 2 else " and ".join(last)
        result[key] = (who or key, entry.fields.get("year", "no year"))
    return result


def _lead(directive: Directive) -> str:
    """Return the words that name a statement or an exercise."""
    kind = directive.kind.capitalize()
    if directive.argument:
        return f"{kind} ({directive.argument})"
    return f"{kind} {directive.label}" if directive.kind == "exercise" else kind


def plain(text: str, names: Names, root: Path = BOOK) -> str:
    """Return a Markdown text with its directives and roles in plain words.

    Args:
        text: MyST as a chapter writes it.
        names: the book's names, see `Names.read`.
        root: folder against which paths of ``literalinclude`` are read.

    Raises:
        MystError: a directive or role that has no plain form here, or a label that the book does not have.
    """
    return "\n\n".join(plain_part(part, names, root) for part in split(text))


def plain_part(part: str | Directive, names: Names, root: Path = BOOK) -> str:
    """Return one part of `split` in plain words; errors as `plain`."""
    return _plain_directive(part, names, root) if isinstance(part, Directive) else _plain_prose(part, names)


def _plain_prose(text: str, names: Names) -> str:
    """Translate the labels of displays and the roles of a text without directives."""
    text = ANCHOR.sub("", text)
    text = LABELLED.sub(lambda match: f"$${match['math'].rstrip()}\n\\tag{{{match['label']}}}\n$$", text)
    return ROLE.sub(lambda match: _role(match["name"], match["text"], names), text)


def _plain_directive(directive: Directive, names: Names, root: Path) -> str:
    if directive.name == "literalinclude":
        return f"```python\n{included(directive, root)}\n```"
    body = plain(directive.body, names, root)
    if directive.name in CONTAINERS:
        return body
    if directive.name in TITLED:
        return f"**{_plain_prose(directive.argument, names)}.** {body}" if directive.argument else body
    if directive.name in NOTES:
        return _quote(f"**{directive.name.capitalize()}.** {body}")
    if directive.kind == "proof":
        return f"*Proof.* {body} ∎"
    if directive.name == "admonition":
        return _quote(f"**{_plain_prose(directive.argument, names)}.** {body}")
    if directive.name == "exercise" or directive.name.startswith("prf:"):
        # A list or a display must begin its own paragraph.
        gap = "\n\n" if re.match(r"[-*] |\d+\. |\$\$|`{3}", body) else " "
        return f"**{_plain_prose(_lead(directive), names)}.**{gap}{body}"
    raise MystError(f"no plain form for the directive {{{directive.name}}}: add one to tools/myst.py")


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.splitlines())


def included(directive: Directive, root: Path) -> str:
    """Return the code that a ``literalinclude`` shows: a file, or the object that ``:pyobject:`` names.

    Raises:
        MystError: the file has no such object.
    """
    text = (root / directive.argument).read_text(encoding="utf-8")
    wanted = directive.options.get("pyobject", "")
    if not wanted:
        return text.rstrip()
    body: list[ast.stmt] = ast.parse(text).body
    node: Any = None
    for name in wanted.split("."):
        node = next((item for item in body if getattr(item, "name", "") == name), None)
        if node is None:
            raise MystError(f"{directive.argument} has no {wanted}")
        body = node.body
    first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def _role(name: str, text: str, names: Names) -> str:
    """Return the words for one role; an explicit text, as in ``words <label>``, is taken as it is."""
    match = TARGET.match(text)
    if match and name in ("doc", "ref", "prf:ref", "numref"):
        return match["words"]
    try:
        if name in ("cite:t", "cite:p"):
            return _citation(name, text.split(","), names)
        if name in ("ref", "prf:ref"):
            return names.statement[text]
        if name == "doc":
            return names.chapter[text.rpartition("/")[2]]
    except KeyError as error:
        raise MystError(f"{{{name}}}`{text}` names {error}, which the book does not have") from error
    if name == "eq":
        return f"({text.removeprefix('eq-')})"
    if name == "numref":
        return f"the figure “{text.removeprefix('fig-')}”"
    raise MystError(f"no plain form for the role {{{name}}}: add one to tools/myst.py")


def _citation(name: str, keys: list[str], names: Names) -> str:
    sources = [names.source[key.strip()] for key in keys]
    if name == "cite:t":
        return " and ".join(f"{who} ({year})" for who, year in sources)
    return "(" + "; ".join(f"{who}, {year}" for who, year in sources) + ")"
