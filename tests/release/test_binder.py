"""Binder's files by repo2docker's rules: it reads only `binder/` where that folder exists, and installs from the root."""

from __future__ import annotations

import re
import tomllib

from packaging.requirements import Requirement

from tests.book.chapters import ROOT

BINDER = ROOT / "binder"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def lines(name: str) -> list[str]:
    text = (BINDER / name).read_text(encoding="utf-8")
    return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_only_files_that_repo2docker_knows() -> None:
    """A file of another name would be ignored without a word."""
    assert {path.name for path in BINDER.iterdir()} == {"apt.txt", "requirements.txt", "runtime.txt"}


def test_python_is_a_tested_one() -> None:
    (line,) = lines("runtime.txt")
    version = re.fullmatch(r"python-(\d+\.\d+)", line)
    assert version is not None, "repo2docker reads python-X.Y"
    assert f"Programming Language :: Python :: {version[1]}" in PROJECT["classifiers"]


def test_requirements_name_what_exists() -> None:
    """The path behind -c is relative to the file, the one behind -e to the folder that pip runs in, the root."""
    constraint, editable = lines("requirements.txt")
    option, name = constraint.split()
    assert option == "-c"
    assert (BINDER / name).resolve() == ROOT / "constraints.txt"
    option, package = editable.split()
    assert option == "-e"
    assert (ROOT / package.split("[")[0] / "pyproject.toml").is_file()
    extras = set(Requirement(package.replace(".", "x", 1)).extras)
    assert extras == {"book", "deep"} <= set(PROJECT["optional-dependencies"])


def test_system_packages_are_those_that_ci_installs() -> None:
    """Every one is drawn with in continuous integration, whose script installs them by the same names."""
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    names = lines("apt.txt")
    assert len(names) == 4
    for name in names:
        assert re.fullmatch(r"[a-z0-9][a-z0-9+.-]+", name)
        assert re.search(rf"\binstall (?:[\w-]+ )*{re.escape(name)}(?= |$)", script, re.MULTILINE), name
