"""Every row of the table has a test, and every mark names a row."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.book.chapters import ROOT
from tests.field.cases import CASES, SECTIONS


def marked(source: str) -> Iterator[tuple[str, str]]:
    """Yield (test, key) for every ``pytest.mark.field("key")`` on a test of a file, without importing it."""
    if "mark.field" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        for mark in node.decorator_list if isinstance(node, ast.FunctionDef) else ():
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.field":
                assert node.name.startswith("test_"), f"line {node.lineno}: {node.name} is no test"
                assert mark.args and not mark.keywords, f"line {node.lineno}: a mark without a key"
                for argument in mark.args:
                    assert isinstance(argument, ast.Constant), f"line {node.lineno}: write the key out"
                    yield node.name, str(argument.value)


def test_rows_and_marks_are_the_same() -> None:
    held: set[str] = set()
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        held |= {key for _, key in marked(path.read_text(encoding="utf-8"))}
    assert set(CASES) - held == set(), "rows that no test holds"
    assert held - set(CASES) == set(), "marks that name no row"


def test_every_row_is_complete() -> None:
    assert sum(map(len, SECTIONS.values())) == len(CASES), "a key stands in two sections"
    for key, case in CASES.items():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", key), key
        assert case.seen_in and case.given and case.owed, key
        is_numbered = all(re.fullmatch(r"[\w.-]+( [\w-]+)* \d+", each) for each in case.seen_in.split(", "))
        assert is_numbered or key in {"zero-gradient", "mask", "seed-7-twice", "bad-cost"}, f"{key}: project and number"


def test_every_section_has_its_file_and_every_test_there_its_row() -> None:
    for name, section in SECTIONS.items():
        path = ROOT / "tests" / "field" / f"test_{name}.py"
        source = path.read_text(encoding="utf-8")
        keys = [*marked(source)]
        tests = {node.name for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
        assert {test for test in tests if test.startswith("test_")} == {test for test, _ in keys}, path.name
        assert {key for _, key in keys} <= set(section), f"{path.name} holds rows of another section"


def test_marked() -> None:
    source = """
import pytest
@pytest.mark.field("a", "b")
@pytest.mark.slow
def test_x(): ...
@pytest.mark.claim("c")
def test_y(): ...
class TestZ:
    @pytest.mark.field("d")
    def test_z(self): ...
"""
    assert sorted(marked(source)) == [("test_x", "a"), ("test_x", "b"), ("test_z", "d")]
