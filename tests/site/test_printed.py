"""The book on paper: everything that the site shows is there, readable, and its links and page numbers hold."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.book.chapters import ROOT, toc_entries

pytest.importorskip("pypdf", reason="the printed forms need pypdf: pip install -e '.[dev]'")
from pypdf import PdfReader

from tools import printed
from tools.browser import launch

pytestmark = [
    pytest.mark.site,
    pytest.mark.skipif(not (ROOT / "_build" / ".built").exists(), reason="the site is not built: run make book"),
]
XHTML = "{http://www.w3.org/1999/xhtml}"
SOME = ("book/preface", "book/03_backward_chain", "book/12_from_tables_to_robots", "book/notation")
"""Pages with every kind of content: sliders, films, statements, exercises, code, wide tables."""


@pytest.fixture(scope="module")
def pdf(tmp_path_factory: pytest.TempPathFactory) -> PdfReader:
    target = tmp_path_factory.mktemp("pdf") / "book.pdf"
    printed.write_pdf(target, asked=[pair for pair in printed.entries() if pair[0] in SOME])
    return PdfReader(target)


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The whole book as EPUB, unpacked."""
    folder = tmp_path_factory.mktemp("epub")
    printed.write_epub(folder / "book.epub")
    with zipfile.ZipFile(folder / "book.epub") as packed:
        assert packed.namelist()[0] == "mimetype"
        assert packed.getinfo("mimetype").compress_type == zipfile.ZIP_STORED
        packed.extractall(folder / "book")
        names = set(packed.namelist())
    root = ElementTree.parse(folder / "book" / "EPUB" / "package.opf").getroot()
    listed = [item.get("href") for item in root.iter("{http://www.idpf.org/2007/opf}item")]
    assert {f"EPUB/{name}" for name in listed} == names - {"mimetype", "META-INF/container.xml", "EPUB/package.opf"}
    assert len(listed) == len(set(listed))
    return folder / "book" / "EPUB"


def documents(folder: Path) -> dict[str, ElementTree.Element]:
    """Every page; parsing fails where it is not well formed."""
    return {path.name: ElementTree.parse(path).getroot() for path in sorted(folder.glob("*.xhtml"))}


def test_entries_are_those_of_the_site() -> None:
    assert [entry for entry, _ in printed.entries()] == toc_entries()
    assert [part for _, part in printed.entries() if part][:2] == ["Foundations", "Safe policy improvement"]


def test_the_contents_name_the_pages_on_which_chapters_begin(pdf: PdfReader) -> None:
    text = [re.sub(r"\s+", " ", page.extract_text()) for page in pdf.pages]
    assert "Contents" in text[1]
    found = re.findall(r"(\d+\. [A-Z][A-Za-z ]+?|Notation) (\d+)(?= |$)", text[1])
    assert len(found) == len(SOME) - 1
    for title, number in found:
        assert text[int(number) - 1].startswith(title), (title, number)


def test_the_bookmarks_are_the_headings(pdf: PdfReader) -> None:
    titles = [re.sub(r"\s+", " ", each["/Title"]) for each in pdf.outline if not isinstance(each, list)]
    assert any(title.startswith("3. The backward") for title in titles), titles


def test_nothing_of_the_screen_is_left_on_paper(pdf: PdfReader) -> None:
    text = "\n".join(page.extract_text() for page in pdf.pages)
    assert "Proposition 3.1" in text
    assert "Solution to" in text  # unfolded
    for left in ("Show code cell", "Hide code cell", r"\(", r"\frac", "Toggle", "Launch"):
        assert left not in text, left


def test_every_moving_picture_is_printed_as_frames(pdf: PdfReader, unpacked: Path) -> None:
    page = documents(unpacked)
    n_strips = {name: len(root.findall(f".//{XHTML}div[@class='strip']")) for name, root in page.items()}
    n_strips = {
        name: n + len(page[name].findall(f".//{XHTML}div[@class='strip tall']")) for name, n in n_strips.items()
    }
    for entry in toc_entries():
        site = (printed.SITE / f"{entry}.html").read_text(encoding="utf-8")
        n_moving = site.count('class="bvf-slider"') + site.count("<video")
        assert n_strips[f"{entry.rpartition('/')[2]}.xhtml"] == n_moving, entry
    for name, root in page.items():
        for holder in root.iter(f"{XHTML}div"):
            if holder.get("class", "").startswith("strip"):
                sources = [image.get("src") for image in holder.iter(f"{XHTML}img")]
                assert len(sources) == len({(unpacked / each).read_bytes() for each in sources}) >= 2, name
    assert sum(len(each.images) for each in pdf.pages) > 20


def test_links_and_pictures_of_the_epub_are_there(unpacked: Path) -> None:
    page = documents(unpacked)
    ids = {name: {node.get("id") for node in root.iter() if node.get("id")} for name, root in page.items()}
    wrong = []
    for name, root in page.items():
        for link in root.iter(f"{XHTML}a"):
            target = link.get("href", "")
            if "://" in target or not target or target.startswith("mailto:"):
                continue
            home, _, anchor = target.partition("#")
            if (home and home not in ids) or (anchor and anchor not in ids[home or name]):
                wrong.append(f"{name}: {target}")
        for image in root.iter(f"{XHTML}img"):
            if not (unpacked / image.get("src")).is_file() or not image.get("alt", "").strip():
                wrong.append(f"{name}: {image.get('src')}")
        assert not list(root.iter(f"{XHTML}script")), name
    assert not wrong, wrong[:20]


def test_no_page_of_the_epub_is_wider_than_a_reader(unpacked: Path) -> None:
    with launch() as browser:
        page = browser.new_page(viewport={"width": 600, "height": 900})
        for name in sorted(documents(unpacked)):
            page.goto((unpacked / name).as_uri())
            wide, broken = page.evaluate(
                "() => [document.documentElement.scrollWidth,"
                " [...document.images].filter((image) => !image.naturalWidth).map((image) => image.src)]"
            )
            assert wide <= 610, (name, wide)
            assert not broken, name
