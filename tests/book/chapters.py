"""This file knows where the chapters are and what is in them; the tests of the book read them through it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import yaml

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "_build" / "html"
DIRECTIVE = re.compile(
    r"^(?P<fence>:{3,}|`{3,})\{(?P<name>[\w:-]+)\}(?P<argument>[^\n]*)\n(?P<body>.*?)^(?P=fence)[ \t]*$", re.M | re.S
)
OPTION = re.compile(r"^:([\w-]+):[ \t]*(.*)$")


def toc_entries() -> list[str]:
    """Return every document that ``_toc.yml`` names, root first, without suffix."""

    def walk(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            for key in ("root", "file"):
                if key in node:
                    yield node[key]
            for key in ("parts", "chapters", "sections"):
                yield from walk(node.get(key, []))
        elif isinstance(node, list):
            for child in node:
                yield from walk(child)

    return list(walk(yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))))


def notebooks() -> list[Path]:
    """Return the notebooks of ``book/``."""
    return sorted((ROOT / "book").glob("*.ipynb"))


def numbered(paths: list[Path]) -> list[Path]:
    """Return the chapters proper, which teach and have exercises: their names start with a number."""
    return [path for path in paths if path.name[0].isdigit()]


def read(path: Path) -> Any:
    """Return a notebook as nbformat reads it."""
    return nbformat.read(path, as_version=4)


def markdown(notebook: Any) -> str:
    """Return all markdown of a notebook as one text."""
    return "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown") + "\n"


def directives(text: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield name, argument and options of every MyST directive, nested ones included."""
    for match in DIRECTIVE.finditer(text):
        options: dict[str, str] = {}
        for line in match["body"].splitlines():
            option = OPTION.match(line)
            if not option:
                break
            options[option[1]] = option[2].strip()
        yield match["name"], match["argument"].strip(), options
        yield from directives(match["body"])


def tracked() -> set[str]:
    """Return the files that git tracks or would track, relative to the root."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"]
    return set(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines())
