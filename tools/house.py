"""This file knows which file of the package imports which, and draws the rooms of the house from it.

It writes the diagram of ``docs/architecture.md`` between its marks, in Mermaid, which GitHub and editors draw:

    python -m tools.house
"""

from __future__ import annotations

import ast
from pathlib import Path

from .marked import filled

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "bvf_tutorial"
PAGE = ROOT / "docs" / "architecture.md"
MARK = "rooms, drawn by tools.house"


def imports(path: Path) -> set[str]:
    """Return the absolute dotted names that a file of the package imports, relative ones resolved."""
    here = (PACKAGE.name, *path.relative_to(PACKAGE).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = here[: len(here) - node.level] if node.level else ()
            name = ".".join([*base, *([node.module] if node.module else [])])
            found |= {name} if node.module else {f"{name}.{alias.name}" for alias in node.names}
    return found


def rooms() -> dict[str, set[str]]:
    """Return, for every folder and single file of the package, what else of the package its files import."""
    found: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        own = path.relative_to(PACKAGE).with_suffix("").parts[0]
        if own.startswith("__"):
            continue
        names = (name.split(".") for name in imports(path))
        used = {name[1] for name in names if name[0] == PACKAGE.name and len(name) > 1}
        found.setdefault(own, set()).update(used - {own})
    return found


def diagram() -> str:
    """Return the rooms as a Mermaid flow chart: an arrow from a room to each that it imports, the lowest drawn last."""
    table = rooms()
    lines = ["```mermaid", "flowchart TD"]
    for name in table:
        files = len(list((PACKAGE / name).glob("*.py")))
        lines.append(f'  {name}["{name}<br>{files} files"]' if files else f"  {name}")
    lines += [f"  {name} --> {other}" for name, used in table.items() for other in sorted(used)]
    return "\n".join([*lines, "```"])


def main() -> None:
    """Write the diagram."""
    text = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(filled(text, MARK, diagram()), encoding="utf-8")


if __name__ == "__main__":
    main()
