"""The files of the built site, read without a browser: every chapter is there, with its buttons and no traces."""

from __future__ import annotations

import pytest

from tests.book.chapters import ROOT, SITE, toc_entries, tracked
from tests.book.test_links import ADDRESS, REPOSITORY, problem
from tests.book.test_notebooks import MACHINE

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(not (ROOT / "_build" / ".built").exists(), reason="the site is not built: run make book"),
]
each_entry = pytest.mark.parametrize("entry", toc_entries())


def page(entry: str) -> str:
    return (SITE / f"{entry}.html").read_text(encoding="utf-8")


@each_entry
def test_entry_became_a_page(entry: str) -> None:
    assert (SITE / f"{entry}.html").is_file()
    assert "<h1>" in page(entry)


@each_entry
def test_page_names_no_path_of_a_machine(entry: str) -> None:
    # A warning or a traceback that only the build's own execution prints.
    found = {match[0] for match in MACHINE.finditer(page(entry))}
    assert not found, f"paths of somebody's machine: {found}"


@pytest.mark.parametrize("entry", [entry for entry in toc_entries() if (ROOT / f"{entry}.ipynb").is_file()])
def test_chapter_has_its_launch_buttons(entry: str) -> None:
    files = tracked()
    found = ADDRESS.findall(page(entry).replace("&amp;", "&"))
    assert REPOSITORY.colab(f"{entry}.ipynb") in found
    assert any("mybinder.org" in address and address.endswith(f"{entry}.ipynb") for address in found)
    wrong = {address: problem(address, files) for address in found if problem(address, files)}
    assert not wrong
