"""This file knows how ``docs/claims.md`` is made: from the statements of the book, the tests, the verdicts below.

``python -m tools.claims`` writes the list; ``--check`` fails if the one in the repository is out of date.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = ROOT / "docs" / "claims.md"

# label -> (where the paper states it, what we find). "-" marks statements that are ours.
VERDICTS = {
    "prop-penalty-gap": ("Sec. 5 (Lagrangian methods)", "confirmed, with the smallest case"),
    "prop-occupancy-lp": ("- (Altman, 1999)", "holds"),
    "prop-one-randomised-state": ("- (Altman, 1999)", "holds"),
    "prop-time-matters": ("Sec. 2, feasible set", "differs: stationary policies are not enough for a finite horizon"),
    "prop-frontier-concave": ("-", "holds"),
    "prop-discounted-limit": ("Sec. 6, gamma = .99", "qualified: a discounted limit is not the stated one"),
    "prop-reversal-bayes": ("Eq. (2)", "holds where the state is visited"),
    "prop-same-law": ("Prop. B.1", "holds; the printed proof has a slip, aperiodicity is not needed"),
    "prop-adjoint": ("-", "holds; strengthens Prop. B.1"),
    "prop-reversal-killed": ("-", "holds; replaces Assumption 3.1 for episodes"),
    "prop-killed-start": ("Sec. 3.2, x0 terminal", "qualified: right only if the start is never revisited"),
    "prop-one-forward-solve": ("-", "holds"),
    "prop-fixed-point": ("Prop. 3.2", "holds as corrected, for the killed kernel"),
    "prop-no-fixed-point": ("Prop. 3.2", "as printed (ergodic chain) it fails: no fixed point, or a line of them"),
    "prop-same-rate": ("-", "holds"),
    "prop-weighted-contraction": ("-", "holds; in the plain sup norm there is no contraction"),
    "prop-past-future": (
        "Sec. 3.3, Eq. (7)",
        "holds as an identity given the state; the averaged bound does not",
    ),
    "prop-duality": ("-", "holds"),
    "prop-sampling": ("Prop. 3.1, finite K", "holds if x_{t-K} is stationary"),
    "prop-sampling-limit": (
        "Prop. 3.1, K to infinity",
        "as printed both sides diverge; holds as an offset from the average",
    ),
    "prop-sampling-bias": ("Sec. 6, the admitted gap", "quantified: the bias of episodes that start at x0"),
    "prop-causal-lambda": ("App. I.3", "derived; the released code's version is off by one"),
    "prop-transposed-lstd": ("-", "holds"),
    "prop-truncated-episodes": ("Sec. 6, horizon T", "quantified: TD without the clock does not pool to E[C]"),
    "prop-on-policy": ("Sec. 3.2", "qualified: backward learning is on-policy even for a table"),
}


@dataclass(frozen=True)
class Statement:
    """A labelled statement of the book: its label, title, and the chapter file that holds it."""

    label: str
    title: str
    chapter: str


def statements() -> Iterator[Statement]:
    """Yield the labelled statements of the chapters in reading order."""
    directive = re.compile(r"^:{3,}\{prf:(\w+)\}[ ]*(.*)\n:label: (\S+)", re.MULTILINE)
    for path in sorted((ROOT / "book").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown":
                for kind, title, label in directive.findall("".join(cell["source"])):
                    if kind != "proof":
                        yield Statement(label, title.strip() or kind, path.stem)


def tests() -> dict[str, list[str]]:
    """Return, for every label, the tests that carry its mark, as ``file::function``."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests" / "claims").glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func).endswith("mark.claim"):
                        for label in mark.args:
                            assert isinstance(label, ast.Constant)
                            found.setdefault(str(label.value), []).append(f"{path.name}::{node.name}")
    return found


def document() -> str:
    """Return the text of the list.

    Raises:
        SystemExit: a statement without a verdict or a test; the label is named.
    """
    tested = tests()
    rows = []
    for statement in statements():
        if statement.label not in VERDICTS or statement.label not in tested:
            raise SystemExit(f"{statement.label} needs a verdict in tools/claims.py and a marked test in tests/claims")
        paper, verdict = VERDICTS[statement.label]
        names = ", ".join(f"`{name}`" for name in tested[statement.label])
        rows.append(
            f"| `{statement.label}` | {statement.title} | {paper} | {verdict} | {statement.chapter} | {names} |"
        )
    head = (
        "# Claims\n\nEvery labelled statement of the book, where the paper states it, what we find, and the test that "
        "holds it (in `tests/claims`).\nGenerated by `python -m tools.claims`; do not edit.\n\n"
        "| label | statement | in the paper | verdict | chapter | test |\n|---|---|---|---|---|---|\n"
    )
    return head + "\n".join(rows) + "\n"


def main() -> None:
    """Write the list, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail if docs/claims.md is out of date")
    check = parser.parse_args().check
    text = document()
    if check:
        if not LIST.exists() or LIST.read_text(encoding="utf-8") != text:
            raise SystemExit("docs/claims.md is out of date: run python -m tools.claims")
        return
    LIST.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
