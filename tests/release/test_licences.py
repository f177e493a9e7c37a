"""Everything that others wrote is listed with its licence, and the check sees what is missing."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

from tools import licences
from tools.licences import (
    UNKNOWN,
    Vendored,
    between,
    dependencies,
    filled,
    licence_of,
    listed,
    unlisted,
    vendor_table,
    vendored,
)

PAGE = licences.PAGE.read_text(encoding="utf-8")
OPEN = re.compile(r"BSD|MIT|Apache|PSF|Python Software Foundation|MPL|Mozilla|ISC|HPND|LGPL|Zlib|3-Clause")
ROW = "| `thing/` | `thing` | 1.2.3 | MIT | `a.js` |\n"


def test_every_vendored_folder_is_listed_with_its_licence() -> None:
    assert vendored()
    assert unlisted() == []


def test_page_lists_every_vendored_file_as_it_is() -> None:
    assert licences.main(["--check"]) == 0
    assert UNKNOWN not in between(PAGE, "vendored files")
    assert len(re.findall(r"`[0-9a-f]{64}`", between(PAGE, "vendored files"))) == len(
        [path for path in licences.VENDOR.rglob("*") if path.is_file() and path.parent != licences.VENDOR]
    )


def test_every_dependency_is_listed_and_open() -> None:
    """Loosely: the wording of metadata changes, the kind of licence does not."""
    table = listed(between(PAGE, "dependencies"))
    assert set(table) == {entry.name for entry in dependencies()}
    for name, licence in table.items():
        assert OPEN.search(licence), f"{name}: {licence}"


def folder(tmp_path: Path, rows: str, *names: str) -> Path:
    (tmp_path / "README.md").write_text("| folder | npm package | version |\n|---|---|---|\n" + rows, encoding="utf-8")
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x" * 600, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("rows", "names", "problems"),
    [
        (ROW, ["thing/LICENSE", "thing/a.js"], []),
        (ROW, ["thing/a.js"], ["thing/ has no licence file"]),
        ("", ["thing/LICENSE"], ["thing/ has no row in the README"]),
        (ROW, [], ["the README names thing/, which is not there"]),
    ],
)
def test_unlisted(rows: str, names: list[str], problems: list[str], tmp_path: Path) -> None:
    assert unlisted(folder(tmp_path, rows, *names)) == problems


def test_an_empty_licence_is_none(tmp_path: Path) -> None:
    place = folder(tmp_path, ROW, "thing/a.js")
    (place / "thing" / "LICENSE").touch()
    assert unlisted(place) == ["thing/ has no licence file"]


def test_table_of_a_folder(tmp_path: Path) -> None:
    place = folder(tmp_path, ROW, "thing/a.js")
    assert vendored(place / "README.md") == [Vendored("thing", "thing", "1.2.3", "MIT")]
    digest = hashlib.sha256(b"x" * 600).hexdigest()
    assert vendor_table(place).splitlines()[2:] == [f"| `thing/a.js` | thing | 1.2.3 | MIT | `{digest}` |"]


def test_a_changed_file_fails_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(filled(PAGE, "vendored files", "old"), encoding="utf-8")
    monkeypatch.setattr(licences, "PAGE", page)
    assert licences.main(["--check"]) == 1
    assert "out of date" in capsys.readouterr().err
    assert licences.main([]) == 0
    assert licences.main(["--check"]) == 0


def test_licence_of_a_package() -> None:
    assert "BSD" in licence_of("numpy")
    assert licence_of("no-such-package-here") == UNKNOWN


def test_a_package_that_is_not_installed_keeps_its_line() -> None:
    old = "| ray | ray | Apache-2.0 |\n| numpy | core | old |"
    table = listed(licences.dependency_table(old))
    assert table["ray"].startswith("Apache")
    assert "BSD" in table["numpy"]
