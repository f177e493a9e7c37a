"""What a release holds, and that the wheel works where nothing else of the repository is."""

from __future__ import annotations

import email.parser
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from bvf_tutorial import __version__
from tests.book.chapters import ROOT
from tools import release

# Seconds, not minutes: exact mathematics, statistics, returns, a task. `make release` runs all, in a clean environment.
QUICK = (
    "unit/test_bad_input.py", "unit/test_statistics.py", "claims/test_golden.py", "agents/test_returns.py", "envs/test_point.py"
)  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> release.Distribution:
    """The two files of a release, built from the files that git knows; `twine check --strict` is part of it."""
    return release.build(tmp_path_factory.mktemp("dist"), is_isolated=False)


@pytest.fixture(scope="module")
def unpacked(made: release.Distribution, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, installed alone in a folder of its own."""
    folder = tmp_path_factory.mktemp("installed")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(folder)]
    subprocess.run([*command, str(made.wheel)], check=True)
    return folder


def test_wheel_holds_the_package_and_nothing_else(made: release.Distribution) -> None:
    names = set(zipfile.ZipFile(made.wheel).namelist())
    package = {name for name in names if name.startswith("bvf_tutorial/")}
    information = {name for name in names - package if name.split("/")[0].endswith(".dist-info")}
    assert names == package | information, names - package - information
    tracked = set(release.run(["git", "ls-files", "-co", "--exclude-standard", "bvf_tutorial"], ROOT).split())
    assert package == {name for name in tracked if (ROOT / name).is_file()}
    assert {"bvf_tutorial/py.typed", "bvf_tutorial/envs/assets/point.xml"} <= package


def test_sdist_holds_what_a_release_needs(made: release.Distribution) -> None:
    top = f"bvf_tutorial-{__version__}"
    with tarfile.open(made.sdist) as sdist:
        names = set(sdist.getnames())
    assert {
        f"{top}/{name}" for name in ("LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
    } <= names
    assert not [name for name in names if name.startswith((f"{top}/tests", f"{top}/book", f"{top}/results"))]


def test_metadata(made: release.Distribution) -> None:
    with zipfile.ZipFile(made.wheel) as wheel:
        text = wheel.read(f"bvf_tutorial-{__version__}.dist-info/METADATA").decode()
    metadata = email.parser.Parser().parsestr(text)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert metadata["Version"] == __version__
    assert metadata["License-Expression"] == project["license"]
    assert metadata["Requires-Python"] == project["requires-python"]
    required = [line for line in metadata.get_all("Requires-Dist") if "extra ==" not in line]
    assert sorted(required) == sorted(project["dependencies"])


def test_version_is_the_same_everywhere() -> None:
    citation = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert citation is not None
    assert newest is not None
    assert citation[1] == newest[1] == __version__


@pytest.mark.slow
def test_wheel_passes_the_quick_tests_outside(unpacked: Path, tmp_path: Path) -> None:
    outside = release.lay_out_tests(tmp_path / "outside")
    assert not (outside / "bvf_tutorial").exists()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(unpacked), "PYTHONDONTWRITEBYTECODE": "1"}
    where = [sys.executable, "-c", "import bvf_tutorial; print(bvf_tutorial.__file__)"]
    found = subprocess.run(where, cwd=outside, env=environment, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).is_relative_to(unpacked), f"the tests would import {found}"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(f"tests/{name}" for name in QUICK)]
    done = subprocess.run(command, cwd=outside, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) > len(QUICK)


def test_two_files_of_a_kind_are_refused(tmp_path: Path) -> None:
    for name in ("a.whl", "b.whl"):
        (tmp_path / name).touch()
    with pytest.raises(release.ReleaseError, match="2 files"):
        release._only(tmp_path, "*.whl")


def test_failed_command_says_what_it_said(tmp_path: Path) -> None:
    with pytest.raises(release.ReleaseError, match=r"(?s)exit 3\n.*told you"):
        release.run([sys.executable, "-c", "print('told you'); raise SystemExit(3)"], tmp_path)
