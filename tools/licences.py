"""This file knows what in the repository others wrote, and under which licences the packages it needs come.

It writes the two tables of ``docs/data-and-licences.md``, between their marks:

    python -m tools.licences [--check]

The first lists every file under ``book/_vendor`` with its SHA-256 hash, its package, version and licence from that
folder's README; the second the direct dependencies with the licence that their installed metadata states. ``--check``
writes nothing and fails when the first table is out of date; the second depends on what is installed.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement

from .marked import between, filled

ROOT = Path(__file__).parents[1]
VENDOR = ROOT / "book" / "_vendor"
PAGE = ROOT / "docs" / "data-and-licences.md"
UNKNOWN = "not stated"
LICENCE_FILE = re.compile(r"(?i)licen[cs]e|copying")


@dataclass(frozen=True)
class Vendored:
    """A folder of ``book/_vendor``: where its files come from, as that folder's README states it."""

    folder: str
    package: str
    version: str
    licence: str


@dataclass(frozen=True)
class Dependency:
    """A direct dependency: its name, the extra that asks for it (or ``core``), and its licence."""

    name: str
    extra: str
    licence: str


def vendored(readme: Path = VENDOR / "README.md") -> list[Vendored]:
    """Return the rows of the README's table."""
    row = re.compile(r"^\| `([\w.-]+)/` \| `([^`]+)` \| (\S+) \| ([^|]+?) \|", re.MULTILINE)
    return [Vendored(*found) for found in row.findall(readme.read_text(encoding="utf-8"))]


def unlisted(folder: Path = VENDOR) -> list[str]:
    """Return what is wrong, in words: a folder without a row, a row without a folder, a folder without its licence."""
    rows = {entry.folder for entry in vendored(folder / "README.md")}
    there = {path.name for path in folder.iterdir() if path.is_dir()}
    problems = [f"{name}/ has no row in the README" for name in sorted(there - rows)]
    problems += [f"the README names {name}/, which is not there" for name in sorted(rows - there)]
    for name in sorted(there & rows):
        licences = [path for path in (folder / name).iterdir() if LICENCE_FILE.search(path.name)]
        if not any(path.stat().st_size > 500 for path in licences):
            problems.append(f"{name}/ has no licence file")
    return problems


def vendor_table(folder: Path = VENDOR) -> str:
    """Return the table of the vendored files, sorted by path."""
    known = {entry.folder: entry for entry in vendored(folder / "README.md")}
    lines = ["| file | package | version | licence | SHA-256 |", "|---|---|---|---|---|"]
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.parent != folder):
        name = path.relative_to(folder).as_posix()
        entry = known.get(name.split("/")[0], Vendored("", UNKNOWN, UNKNOWN, UNKNOWN))
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        lines.append(f"| `{name}` | {entry.package} | {entry.version} | {entry.licence} | `{digest}` |")
    return "\n".join(lines)


def licence_of(name: str) -> str:
    """Return the licence in a package's metadata: the SPDX expression, else the classifiers, else a short text."""
    try:
        metadata = importlib.metadata.metadata(name)
    except importlib.metadata.PackageNotFoundError:
        return UNKNOWN
    if "License-Expression" in metadata:
        return str(metadata["License-Expression"])
    prefix = "License :: OSI Approved :: "
    classes = [line.removeprefix(prefix) for line in metadata.get_all("Classifier") or [] if line.startswith(prefix)]
    if classes:
        return ", ".join(classes)
    return "; ".join(metadata.get_all("License") or []).partition("\n")[0].strip()[:60] or UNKNOWN


def dependencies(pyproject: Path = ROOT / "pyproject.toml") -> list[Dependency]:
    """Return the direct dependencies, those of the core first, each under the first extra that names it."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    groups = {"core": project["dependencies"], **project["optional-dependencies"]}
    found: dict[str, Dependency] = {}
    for extra, lines in groups.items():
        for name in sorted(Requirement(line).name for line in lines):
            found.setdefault(name, Dependency(name, extra, licence_of(name)))
    return list(found.values())


def listed(table: str) -> dict[str, str]:
    """Return the licences in a table of dependencies by package."""
    return dict(re.findall(r"^\| ([\w-]+) \| \w+ \| (.+) \|$", table, re.MULTILINE))


def dependency_table(old: str) -> str:
    """Return the table of the direct dependencies; one that is not installed keeps its line in the ``old`` table."""
    known = listed(old)
    lines = ["| package | needed by | licence |", "|---|---|---|"]
    for entry in dependencies():
        licence = known.get(entry.name, UNKNOWN) if entry.licence == UNKNOWN else entry.licence
        lines.append(f"| {entry.name} | {entry.extra} | {licence} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Write the tables; with ``--check``, return 1 when the folders or the first table are not as they should be."""
    parser = argparse.ArgumentParser(prog="tools.licences", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--check", action="store_true", help="write nothing")
    arguments = parser.parse_args(argv)
    problems = unlisted()
    text = PAGE.read_text(encoding="utf-8")
    tables = {"vendored files": vendor_table()}
    if arguments.check:
        if between(text, "vendored files") != tables["vendored files"]:
            problems.append(f"{PAGE.name}: the table of vendored files is out of date: run python -m tools.licences")
    else:
        tables["dependencies"] = dependency_table(between(text, "dependencies"))
        for name, table in tables.items():
            text = filled(text, name, table)
        PAGE.write_text(text, encoding="utf-8")
    for problem in problems:
        print(problem, file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
