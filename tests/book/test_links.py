"""Every address of the project's own repository: one owner, one branch, and files that exist."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import yaml

from tests.book.chapters import ROOT, notebooks, tracked
from tools.notebooks import Repository

ADDRESS = re.compile(r"(?:git\+)?https://(?:github\.com|colab\.research\.google\.com|mybinder\.org)/[^\s\"'<>)\]`]*")
REPOSITORY = Repository.read()
OWNER, NAME = urlsplit(REPOSITORY.url).path.strip("/").split("/")
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "CITATION.cff", "pyproject.toml", "_config.yml"]
FILES = sorted({*PAGES, *(path.relative_to(ROOT).as_posix() for path in notebooks())})


def problem(address: str, files: set[str]) -> str:
    """Return what is wrong with an address, '' when it is right or another project's."""
    parts = urlsplit(address.removeprefix("git+").rstrip(".,;:"))
    piece = [unquote(text) for text in parts.path.strip("/").split("/")]
    if parts.hostname == "mybinder.org":
        if piece == [""]:
            return ""
        query = {key: value[0] for key, value in parse_qs(parts.query).items()}
        if piece[:2] != ["v2", "gh"] or piece[2:5] != [OWNER, NAME, REPOSITORY.branch]:
            return f"is not Binder's address of {REPOSITORY.url} at {REPOSITORY.branch}"
        file = query.get("urlpath", query.get("labpath", "")).removeprefix("lab/tree/")
        return "" if not file or file in files else f"opens {file}, which is not in the repository"
    if parts.hostname == "colab.research.google.com":
        if piece == [""]:
            return ""
        if piece[:5] != ["github", OWNER, NAME, "blob", REPOSITORY.branch]:
            return f"is not Colab's address of {REPOSITORY.url} at {REPOSITORY.branch}"
        return "" if "/".join(piece[5:]) in files else f"opens {'/'.join(piece[5:])}, which is not in the repository"
    project = piece[1].split("@")[0].removesuffix(".git") if len(piece) > 1 else ""
    if project != NAME:
        return ""
    if piece[0] != OWNER:
        return f"names the owner {piece[0]}, not {OWNER}"
    if len(piece) > 4 and piece[2] in ("blob", "tree", "raw"):
        file = "/".join(piece[4:])
        if piece[3] != REPOSITORY.branch:
            return f"points to the branch {piece[3]}, not {REPOSITORY.branch}"
        is_there = file in files or any(name.startswith(f"{file}/") for name in files)
        return "" if is_there else f"points to {file}, which is not in the repository"
    return ""


@pytest.mark.parametrize("file", FILES)
def test_addresses_are_the_repositorys(file: str) -> None:
    files = tracked()
    found = ADDRESS.findall((ROOT / file).read_text(encoding="utf-8").replace("\\n", "\n"))
    wrong = {address: problem(address, files) for address in found if problem(address, files)}
    assert not wrong


def test_citation_and_package_name_the_repository() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["repository-code"] == REPOSITORY.url
    assert f'Repository = "{REPOSITORY.url}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_citation_has_the_packages_version() -> None:
    import bvf_tutorial

    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == bvf_tutorial.__version__


@pytest.mark.parametrize(
    ("address", "is_right"),
    [
        (f"https://github.com/{OWNER}/{NAME}", True),
        (f"https://github.com/somebody/{NAME}", False),
        ("https://github.com/somebody/else", True),
        (f"git+https://github.com/somebody/{NAME}.git@main", False),
        (f"https://github.com/{OWNER}/{NAME}/blob/main/a.md", True),
        (f"https://github.com/{OWNER}/{NAME}/blob/main/gone.md", False),
        (f"https://github.com/{OWNER}/{NAME}/blob/old/a.md", False),
        (f"https://colab.research.google.com/github/{OWNER}/{NAME}/blob/main/a.md", True),
        (f"https://colab.research.google.com/github/{OWNER}/{NAME}/blob/main/gone.ipynb", False),
        (f"https://colab.research.google.com/github/somebody/{NAME}/blob/main/a.md", False),
        (f"https://mybinder.org/v2/gh/{OWNER}/{NAME}/main?urlpath=lab/tree/a.md", True),
        (f"https://mybinder.org/v2/gh/{OWNER}/{NAME}/main?urlpath=lab%2Ftree%2Fgone.md", False),
        (f"https://mybinder.org/v2/gh/{OWNER}/other/main", False),
    ],
)
def test_problem(address: str, is_right: bool) -> None:
    assert (problem(address, {"a.md"}) == "") == is_right
