"""This file knows what a notebook test compared: one line per chapter at the end of a run, from nbval's own options.

It is a plugin of pytest that `tests/conftest.py` registers. Every code cell carries what nbval decided for it, as a user
property of its report, so the counts are the same with pytest-xdist, where cells run in other processes.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

PROPERTY = "notebook-cell"
OUTCOMES = ("passed", "failed", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True)
class Cell:
    """What one code cell adds to its chapter's line.

    Args:
        notebook: path of the notebook, as pytest names it.
        is_skipped: nbval does not run it (tag ``nbval-skip``).
        is_compared: its fresh output must equal the stored one, after the sanitizers.
        outputs: stored outputs that the comparison reads; pictures are not among them.
        asserts: ``assert`` statements in its code.
    """

    notebook: str
    is_skipped: bool
    is_compared: bool
    outputs: int
    asserts: int


def count_asserts(source: str) -> int:
    """Return the number of ``assert`` statements in a cell; lines that only IPython reads (``%``, ``!``) are left out."""
    code = "\n".join("pass" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines())
    try:
        return sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code)))
    except SyntaxError:  # a cell that shows an error of syntax on purpose
        return 0


def text_outputs(cell: Any) -> int:
    """Return how many stored outputs nbval reads: streams, errors, and data of any kind but PNG and JPEG."""
    kinds = [set(output.get("data", {"text": ""})) - {"image/png", "image/jpeg"} for output in cell.outputs]
    return sum(bool(kind) for kind in kinds)


def line(cells: Iterable[Cell]) -> str:
    """Return the line of one chapter."""
    cells = list(cells)
    run = [cell for cell in cells if not cell.is_skipped]
    compared = [cell for cell in run if cell.is_compared]
    return (
        f"{cells[0].notebook}: {len(run)} cells run, {len(compared)} compared with their stored output "
        f"({sum(cell.outputs for cell in compared)} outputs), {len(run) - len(compared)} run only, "
        f"{len(cells) - len(run)} skipped, {sum(cell.asserts for cell in run)} asserts"
    )


class Comparison:
    """The plugin: it marks every cell when it is collected and counts the marks of the cells that were reported."""

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        """Attach what nbval decided; items of other kinds have no cell."""
        cell, options = getattr(item, "cell", None), getattr(item, "options", None)
        if cell is None or options is None:
            return
        asserts, outputs = count_asserts(cell.source), text_outputs(cell)
        item.user_properties.append((PROPERTY, [bool(options["skip"]), bool(options["check"]), outputs, asserts]))

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Write the chapters' lines, in the order of their names."""
        found: dict[str, list[Cell]] = defaultdict(list)
        for outcome in OUTCOMES:
            for report in terminalreporter.stats.get(outcome, []):
                notebook = report.nodeid.split("::")[0]
                for name, value in report.user_properties:
                    if name == PROPERTY:
                        found[notebook].append(Cell(notebook, *value))
        if found:
            terminalreporter.section("what the notebook tests compared")
            for notebook in sorted(found):
                terminalreporter.write_line(line(found[notebook]))
