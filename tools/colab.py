"""This file knows what happens to a chapter in Colab: what is preinstalled, the set-up cell, then every other cell.

Usage, from the repository's root (half an hour and 8 GB: torch comes with its CUDA libraries):

    python -m tools.colab [--python PYTHON] [--work FOLDER] [NOTEBOOK ...]

It builds an environment of the packages that a Colab runtime has (``tests/release/colab-constraints.txt``), runs each
chapter's own set-up cell in it, with the wheel built here in the place of the address on GitHub, compares the installed
versions before and after, and executes the chapter. Without names, every notebook of ``book/`` is meant.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools import release
from tools.notebooks import BOOK, ROOT, SETUP_TAG

PINS = ROOT / "tests/release/colab-constraints.txt"
# What the set-up cell asks before it installs: it must find itself in Colab.
PRETEND = "import sys, types\nsys.modules['google.colab'] = types.ModuleType('google.colab')\n"


class ColabError(Exception):
    """Something that would go wrong in Colab; the message names the chapter or the package."""


@dataclass(frozen=True)
class Runtime:
    """A Colab runtime, as far as this book uses it.

    Args:
        name: what Colab calls it, year and month.
        python: its version of Python, two numbers.
        pins: normalised name and version of every preinstalled package that matters here.
    """

    name: str
    python: str
    pins: Mapping[str, Version]

    @classmethod
    def read(cls, path: Path = PINS) -> Runtime:
        """Read the list.

        Raises:
            ColabError: a line is not ``name==version``, or the head does not name runtime and Python.
        """
        text = path.read_text(encoding="utf-8")
        head = dict(re.findall(r"^# (runtime|python): ([\d.]+)", text, re.MULTILINE))
        pins: dict[str, Version] = {}
        for line in filter(None, (line.split("#")[0].strip() for line in text.splitlines())):
            name, is_exact, version = line.partition("==")
            if not is_exact:
                raise ColabError(f"{path.name}: {line!r} is not name==version")
            pins[canonicalize_name(name)] = Version(version)
        if set(head) != {"runtime", "python"}:
            raise ColabError(f"{path.name}: the head must have the lines '# runtime: ...' and '# python: ...'")
        return cls(head["runtime"], head["python"], pins)


def set_up_cell(notebook: Any) -> str:
    """Return the source of the cell that installs the package in Colab.

    Raises:
        ColabError: the notebook has not exactly one.
    """
    cells = [str(cell.source) for cell in notebook.cells if SETUP_TAG in cell.metadata.get("tags", [])]
    if len(cells) != 1:
        raise ColabError(f"{len(cells)} cells are tagged {SETUP_TAG}, not one: run `make format`")
    return cells[0]


def asked_for(source: str) -> str:
    """Return the requirement that a set-up cell gives to pip, the value of its variable ``package``."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "package":
            return str(ast.literal_eval(node.value))
    raise ColabError("the set-up cell assigns no package")


def extras(requirement: str) -> set[str]:
    """Return the extras in a requirement of this package; a bare ``git+`` address has none."""
    return set() if requirement.startswith("git+") else set(Requirement(requirement).extras)


def dependencies(wanted: Iterable[str], pyproject: Path = ROOT / "pyproject.toml") -> list[Requirement]:
    """Return the declared dependencies of the package, and those of the extras ``wanted``."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in wanted for line in project["optional-dependencies"][extra])]
    return [Requirement(line) for line in lines]


def replaced(runtime: Runtime, wanted: Iterable[Requirement]) -> dict[str, str]:
    """Return what pip would have to replace: preinstalled packages outside the range asked for, with that range."""
    pins = runtime.pins
    return {
        requirement.name: f"{requirement.specifier} excludes {pins[canonicalize_name(requirement.name)]}"
        for requirement in wanted
        if canonicalize_name(requirement.name) in pins
        and not requirement.specifier.contains(pins[canonicalize_name(requirement.name)], prereleases=True)
    }


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return, in words, every package that is gone or has another version than before; new ones are no change."""
    return [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if after.get(name) != version
    ]


def interpreter(version: str) -> str:
    """Return a Python of this version, or else the one that runs this tool, and say so."""
    for name in (f"python{version}", sys.executable):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run([name, "-c", code], capture_output=True, text=True, check=False)
        except OSError:
            continue
        if done.stdout.strip() == version:
            return name
    print(f"no Python {version} here: going on with {sys.version.split()[0]}, which the runtime does not have")
    return sys.executable


def installed(python: str, cwd: Path) -> dict[str, str]:
    """Return the normalised names and versions of what an environment has."""
    listing = release.run([python, "-m", "pip", "--disable-pip-version-check", "list", "--format=json"], cwd)
    found = json.loads(next(line for line in listing.splitlines() if line.startswith("[")))
    return {canonicalize_name(entry["name"]): str(entry["version"]) for entry in found}


@dataclass(frozen=True)
class Emulation:
    """An environment like Colab's, and the folder that stands for its disk.

    Args:
        folder: holds ``venv``, and per chapter a folder ``book`` with ``results`` beside it, as on the address that a
            chapter reads its tables from.
        runtime: what is preinstalled.
        wheel: the package, built from this tree.
    """

    folder: Path
    runtime: Runtime
    wheel: Path

    @property
    def python(self) -> str:
        """The environment's interpreter."""
        return str(self.folder / "venv" / "bin" / "python")

    def preinstall(self, python: str) -> None:
        """Build the environment, or keep the one that is there."""
        if not Path(self.python).exists():
            release.run([python, "-m", "venv", str(self.folder / "venv")], self.folder)
        release.run([self.python, "-m", "pip", "install", "--quiet", "--requirement", str(PINS)], self.folder)
        has = installed(self.python, self.folder)
        # A local part is no difference: torch 2.9.0+cpu there, a CUDA build of 2.9.0 here.
        wrong = {
            name: has.get(name, "absent") for name, pin in self.runtime.pins.items() if not _is_pin(has, name, pin)
        }
        if wrong:
            raise ColabError(f"the environment differs from the list: {wrong}")

    def reset(self) -> None:
        """Remove the package and what it brought, so that the next chapter starts as on a fresh runtime."""
        kept = {*self.before()}
        gone = [name for name in installed(self.python, self.folder) if name not in kept]
        if gone:
            release.run([self.python, "-m", "pip", "uninstall", "--quiet", "--yes", *gone], self.folder)

    def before(self) -> dict[str, str]:
        """Return what a fresh runtime has: read once, then from a file beside the environment."""
        record = self.folder / "preinstalled.json"
        if not record.exists():
            record.write_text(json.dumps(installed(self.python, self.folder)), encoding="utf-8")
        return dict(json.loads(record.read_text(encoding="utf-8")))

    def run(self, path: Path) -> None:
        """Do with one chapter what Colab does.

        Raises:
            ColabError: the set-up cell changed what was preinstalled.
            ReleaseError: pip or a cell failed.
        """
        before = self.before()
        cell = set_up_cell(nbformat.read(path, as_version=4))
        package = asked_for(cell)
        marks = f"[{','.join(sorted(extras(package)))}]" if extras(package) else ""
        local = f"bvf-tutorial{marks} @ {self.wheel.resolve().as_uri()}"
        release.run([self.python, "-c", PRETEND + cell.replace(package, local)], self.folder)
        changed = changes(before, installed(self.python, self.folder))
        if changed:
            raise ColabError(f"the set-up cell changes what Colab has loaded: {', '.join(changed)}")
        with tempfile.TemporaryDirectory(dir=self.folder) as disk:
            book = Path(disk) / "book"
            book.mkdir()
            for notebook in BOOK.glob("*.ipynb"):
                shutil.copy2(notebook, book)
            shutil.copytree(ROOT / "results", Path(disk) / "results", ignore=shutil.ignore_patterns(".*"))
            release.run([self.python, "-m", "tools.notebooks", "execute", str(book / path.name)], ROOT)


def _is_pin(has: Mapping[str, str], name: str, pin: Version) -> bool:
    return name in has and Version(has[name]).public == pin.public


def emulate(folder: Path, python: str, notebooks: Sequence[Path]) -> int:
    """Run every chapter, print a line for each, and return how many failed."""
    folder.mkdir(parents=True, exist_ok=True)
    runtime = Runtime.read()
    shutil.rmtree(folder / "dist", ignore_errors=True)
    emulation = Emulation(folder, runtime, release.build(folder / "dist").wheel)
    emulation.preinstall(python or interpreter(runtime.python))
    print(f"Colab runtime {runtime.name}: {len(emulation.before())} packages", flush=True)
    failed = 0
    for path in notebooks:
        start = time.monotonic()
        try:
            emulation.reset()
            emulation.run(path)
            verdict = "runs"
        except (ColabError, release.ReleaseError) as error:
            failed += 1
            verdict = f"FAILS: {error}"
        print(f"{path.name}: {verdict}, {time.monotonic() - start:.0f} s", flush=True)
    return failed


def main(argv: Sequence[str] | None = None) -> int:
    """Emulate Colab; return 1 when a chapter failed."""
    parser = argparse.ArgumentParser(prog="tools.colab", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("notebooks", nargs="*", type=Path, help="default: all of book/")
    parser.add_argument("--python", default="", help="interpreter of the runtime's version (default: found)")
    parser.add_argument("--work", type=Path, default=ROOT / ".cache/colab", help="where the environment is kept")
    arguments = parser.parse_args(argv)
    failed = emulate(arguments.work.resolve(), arguments.python, arguments.notebooks or sorted(BOOK.glob("*.ipynb")))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
