"""The table of contents, the files it names, and the engine that reads it."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import yaml

from tests.book.chapters import ROOT, notebooks, toc_entries


def test_jupyter_book_is_version_1() -> None:
    # 2.x ignores _config.yml and exits 0 without writing a site.
    assert version("jupyter-book").split(".")[0] == "1"


def test_every_entry_is_one_file() -> None:
    for entry in toc_entries():
        found = [suffix for suffix in (".ipynb", ".md") if (ROOT / f"{entry}{suffix}").is_file()]
        assert len(found) == 1, f"{entry} in _toc.yml: found {found or 'no file'}, expected one of .ipynb and .md"


def test_every_notebook_is_in_the_book() -> None:
    named = set(toc_entries())
    missing = [path.name for path in notebooks() if f"book/{path.stem}" not in named]
    assert not missing, f"not in _toc.yml: {missing}"


def test_the_preface_lists_every_chapter_once() -> None:
    """A list by hand goes stale: seven chapters stood there as planned after they had been written."""
    preface = (ROOT / "book" / "preface.ipynb").read_text(encoding="utf-8")
    for path in notebooks():
        if path.stem[:2].isdigit():
            assert preface.count(f"<{path.stem}>`") == 1, f"the preface's table has no row, or two, for {path.stem}"


@pytest.mark.field("broken-cell")
def test_a_failing_cell_fails_the_build() -> None:
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    assert config["execute"]["execute_notebooks"] == "force"
    assert config["execute"]["allow_errors"] is False
    assert config["sphinx"]["config"]["nb_execution_raise_on_error"] is True
