"""Every labelled statement of the book has a test, and every test of a statement names one that exists."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.book.chapters import ROOT, directives, markdown, notebooks, read

NOT_STATEMENTS = {"prf:proof"}


def statements(text: str) -> set[str]:
    """Return the labels of the statements of a text: theorems, lemmas, ... but not proofs."""
    found = (item for item in directives(text) if item[0].startswith("prf:") and item[0] not in NOT_STATEMENTS)
    return {options["label"] for _, _, options in found if options.get("label")}


def claims(source: str) -> Iterator[str]:
    """Yield the label of every ``pytest.mark.claim("label")`` of a file, without importing it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("mark.claim"):
            assert node.args, f"line {node.lineno}: a claim without a label"
            for argument in node.args:
                assert isinstance(argument, ast.Constant), f"line {node.lineno}: write the label out"
                yield str(argument.value)


def test_statements_and_claims_are_the_same() -> None:
    stated = {label for path in notebooks() for label in statements(markdown(read(path)))}
    files = sorted((ROOT / "tests" / "claims").rglob("*.py"))
    tested = {label for file in files for label in claims(file.read_text(encoding="utf-8"))}
    assert stated - tested == set(), "stated in the book, tested nowhere in tests/claims"
    assert tested - stated == set(), "tested in tests/claims, stated nowhere in the book"


def test_statements() -> None:
    text = """
:::{prf:theorem} One
:label: thm-one

Text.
:::

::::{admonition} Box
:::{prf:lemma}
:label: lem-two
Text.
:::
::::

```{prf:definition} Unlabelled
Text.
```

:::{prf:proof}
:label: not-a-statement
Text.
:::

```{exercise}
:label: ex-one
Text.
```
"""
    assert statements(text) == {"thm-one", "lem-two"}


def test_claims() -> None:
    source = """
import pytest
pytestmark = pytest.mark.claim("all")
@pytest.mark.claim("a", "b")
@pytest.mark.slow
def test_x(): ...
"""
    assert sorted(claims(source)) == ["a", "all", "b"]
