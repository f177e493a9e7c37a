"""This file knows how the package is built for a release, and how the built wheel proves that it stands alone.

Usage, from the repository's root:

    python -m tools.release build [FOLDER]     # sdist and wheel into FOLDER (dist), checked by twine
    python -m tools.release test [FOLDER]      # a clean environment with the wheel alone passes the package's tests

Both work on a copy of the tracked files, so that what lies about in a working tree never gets into a release.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Folders of tests that are about the package; the others read the book, the site or the studies.
PACKAGE_TESTS = ("tests/unit", "tests/claims", "tests/envs", "tests/agents", "tests/fuzz")
# Of those, the files that read the repository: its README, its studies and their tables, the source tree.
REPOSITORY_TESTS = (
    *(f"unit/test_{name}.py" for name in ("readme", "experiments", "study", "tuning", "imports", "soak")),
    *(f"agents/test_{name}.py" for name in ("promises", "new_method")),
)
TEST_TOOLS = (
    *("pytest", "pytest-xdist", "hypothesis", "beartype", "jaxtyping"),
    *("nbformat", "cvxpy", "psutil", "ipywidgets"),
)
# Outside the repository there are no notebooks: pytest runs without nbval and with this in the place of pyproject.toml.
PYTEST_INI = """\
[pytest]
addopts = --strict-markers --import-mode=importlib -m "not slow"
pythonpath = .
markers =
    claim(label): the test of a statement of the book
    field(key): the test of a case from the field
    slow: minutes of the same law on more instances
"""


class ReleaseError(Exception):
    """A build or a check that failed; the message is what the tool said."""


@dataclass(frozen=True)
class Distribution:
    """The two files of a release."""

    sdist: Path
    wheel: Path


def run(command: Sequence[str], cwd: Path, **variables: str) -> str:
    """Run a command and return what it printed.

    Raises:
        ReleaseError: it failed; the message holds its last lines.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "PYTHONPATH"))}
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    said = done.stdout + done.stderr
    if done.returncode:
        raise ReleaseError(f"{' '.join(command)}: exit {done.returncode}\n{said[-4000:]}")
    return said


def copy_sources(target: Path, root: Path = ROOT) -> Path:
    """Copy the files that git tracks, or would track, into the new folder ``target``."""
    listing = run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], root)
    for name in filter(None, listing.split("\0")):
        if (root / name).is_file():  # a tracked file may be deleted here
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, target / name)
    return target


def build(folder: Path, root: Path = ROOT, *, is_isolated: bool = True) -> Distribution:
    """Build sdist and wheel into ``folder``, the wheel from the sdist, and let twine check both.

    Args:
        folder: where the two files go; it must hold no other ones.
        root: the repository.
        is_isolated: build in a fresh environment with the newest setuptools; otherwise with the one here.

    Raises:
        ReleaseError: the build or ``twine check --strict`` failed.
    """
    folder = folder.resolve()
    with tempfile.TemporaryDirectory() as scratch:
        sources = copy_sources(Path(scratch) / "sources", root)
        options = [] if is_isolated else ["--no-isolation", "--skip-dependency-check"]
        run([sys.executable, "-m", "build", *options, "--outdir", str(folder), str(sources)], Path(scratch))
    made = Distribution(*(_only(folder, pattern) for pattern in ("*.tar.gz", "*.whl")))
    run([sys.executable, "-m", "twine", "check", "--strict", str(made.sdist), str(made.wheel)], folder)
    return made


def _only(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(pattern))
    if len(found) != 1:
        raise ReleaseError(f"{folder}: {len(found)} files {pattern}, not one: start from an empty folder")
    return found[0]


def lay_out_tests(target: Path, root: Path = ROOT) -> Path:
    """Copy the package's tests, and nothing else of the repository, into ``target``."""
    for folder in PACKAGE_TESTS:
        shutil.copytree(root / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(root / "tests/data", target / "tests/data")
    for path in (root / "tests").glob("*.py"):
        shutil.copy2(path, target / "tests" / path.name)
    (target / "tests/book").mkdir()
    shutil.copy2(root / "tests/book/comparison.py", target / "tests/book/comparison.py")  # conftest.py registers it
    for name in REPOSITORY_TESTS:
        (target / "tests" / name).unlink()
    (target / "pytest.ini").write_text(PYTEST_INI, encoding="utf-8")
    return target


def prove(wheel: Path, scratch: Path, workers: int = 2) -> str:
    """Install the wheel with its extra ``deep`` in a clean environment, and run the package's tests outside the tree.

    Raises:
        ReleaseError: the installation or a test failed.
    """
    run([sys.executable, "-m", "venv", str(scratch / "venv")], scratch)
    python = str(scratch / "venv" / "bin" / "python")
    pinned = ["--constraint", str(ROOT / "constraints.txt")]
    run([python, "-m", "pip", "install", "--quiet", *pinned, f"{wheel.resolve()}[deep]", *TEST_TOOLS], scratch)
    tests = lay_out_tests(scratch / "outside")
    where = run([python, "-c", "import bvf_tutorial; print(bvf_tutorial.__file__)"], tests).strip()
    if not Path(where).is_relative_to(scratch / "venv"):
        raise ReleaseError(f"the tests would import {where}, not the wheel")
    options = ["-q", f"--numprocesses={workers}", "--dist=loadfile"]
    return run([python, "-m", "pytest", *options, "tests"], tests, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one of the two commands; return 1 when it failed."""
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("command", choices=["build", "test"])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="sdist and wheel (default: dist)")
    arguments = parser.parse_args(argv)
    try:
        if arguments.command == "build":
            made = build(arguments.folder)
            print(f"{made.sdist}\n{made.wheel}")
        else:
            with tempfile.TemporaryDirectory() as scratch:
                print(prove(_only(arguments.folder, "*.whl"), Path(scratch)).strip().splitlines()[-1])
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
