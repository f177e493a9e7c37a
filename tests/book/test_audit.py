"""The audit's tables name tests and labels that exist, leave out no statement that the paper makes, and use four verdicts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.book.chapters import ROOT, markdown, read
from tools import claims

PAGE = ROOT / "book" / "audit.ipynb"
HEAD = ("where", "says", "verdict", "what is true, where", "test")
VERDICTS = {"holds", "holds if", "corrected", "ill-posed"}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
LABEL = re.compile(r"\{prf:ref\}`(?:[^`<]*<)?([\w-]+)>?`")
DOCUMENT = re.compile(r"\{doc\}`(?:[^`<]*<)?([\w/-]+)>?`")


def rows(text: str) -> Iterator[tuple[str, ...]]:
    """Yield the rows of every table whose head is the audit's."""
    is_audit = False
    for line in text.splitlines():
        if not line.startswith("|"):
            is_audit = False
            continue
        cells = tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
        if cells == HEAD:
            is_audit = True
        elif is_audit and set(line) - set("|-: "):
            yield cells


def functions(path: str) -> set[str]:
    """Return the tests that a file defines, '' of a file that is not there."""
    file = ROOT / path
    tree = ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


@pytest.fixture(scope="module")
def table() -> list[tuple[str, ...]]:
    return list(rows(markdown(read(PAGE))))


def test_every_row_is_complete(table: list[tuple[str, ...]]) -> None:
    assert len(table) > 50
    wrong = [row for row in table if len(row) != len(HEAD) or not all(row)]
    assert not wrong, "a row with a missing or an extra cell; write a bar in mathematics as \\mid"
    assert {row[2] for row in table} == VERDICTS
    vague = [row[:2] for row in table if not LABEL.search(row[3]) and not DOCUMENT.search(row[3])]
    assert not vague, "a row without a link to the place that treats it"


def test_no_statement_twice(table: list[tuple[str, ...]]) -> None:
    said = [row[:2] for row in table]
    assert len(set(said)) == len(said)


def test_named_tests_exist(table: list[tuple[str, ...]]) -> None:
    for row in table:
        found = TEST.findall(row[4])
        assert bool(found) != (row[4] == "none"), f"{row[:2]}: name a test, or write 'none'"
        for file, name in found:
            assert name in functions(file), f"{row[:2]}: {file} has no {name}"


def test_rows_without_a_test_are_few(table: list[tuple[str, ...]]) -> None:
    """Only slips of notation, and differences between a text and a program that is not part of this book."""
    assert sum(row[4] == "none" for row in table) <= 0.05 * len(table)


def test_labels_and_documents_exist(table: list[tuple[str, ...]]) -> None:
    known = {statement.label for statement in claims.statements()}
    named = {label for row in table for label in LABEL.findall(row[3])}
    assert named - known == set()
    pages = {name for row in table for name in DOCUMENT.findall(row[3])}
    assert [name for name in pages if not (PAGE.parent / f"{name}.ipynb").is_file()] == []


def test_tests_and_labels_belong_together(table: list[tuple[str, ...]]) -> None:
    """Where a row's test is marked with labels, at least one of them is a label that the row names."""
    marks: dict[str, set[str]] = {}
    for label, names in claims.tests().items():
        for name in names:
            marks.setdefault(f"tests/claims/{name}", set()).add(label)
    for row in table:
        named = set(LABEL.findall(row[3]))
        marked = [marks.get(f"{file}::{name}", set()) for file, name in TEST.findall(row[4])]
        if named and any(marked):
            assert set().union(*marked) & named, f"{row[:2]}: the test belongs to {marked}, the row names {named}"


def test_every_statement_of_the_paper_is_audited(table: list[tuple[str, ...]]) -> None:
    of_paper = {
        statement.label for statement in claims.statements() if not claims.VERDICTS[statement.label][0].startswith("-")
    }
    named = {label for row in table for label in LABEL.findall(row[3])}
    assert of_paper - named == set(), "the paper states it, the audit does not"


def test_rows() -> None:
    text = (
        "| a |\n|---|\n| b |\n\n| "
        + " | ".join(HEAD)
        + " |\n|---|---|---|---|---|\n| 1 | 2 | holds | 3 | `t` |\n\n| x |"
    )
    assert list(rows(text)) == [("1", "2", "holds", "3", "`t`")]


def test_patterns() -> None:
    assert TEST.findall("`tests/claims/test_a.py::test_b`") == [("tests/claims/test_a.py", "test_b")]
    assert LABEL.findall("{prf:ref}`prop-a`, {prf:ref}`so <thm-b>`") == ["prop-a", "thm-b"]
    assert DOCUMENT.findall("{doc}`chapter 5 <05_learning>`") == ["05_learning"]
