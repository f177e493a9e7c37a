"""This file knows how the built site becomes a book on paper: one PDF, and one EPUB, of all pages.

Both are taken from the pages as a browser has drawn them, formulas included, so that paper and screen cannot differ. Of
a moving picture a few frames are printed. Usage: ``python -m tools.printed pdf|epub [--output FILE]``.
"""

from __future__ import annotations

import argparse
import base64
import html
import re
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

import yaml
from playwright.sync_api import Browser
from pypdf import PdfReader
from tqdm import tqdm

from bvf_tutorial import __version__
from tools.browser import RENDERED, ROOT, SITE, launch, serve

CODE = Path(__file__).with_suffix(".js")
STYLE = Path(__file__).with_suffix(".css")
N_FRAMES = 3
"""Of a moving picture, on paper."""
_XHTML = """<?xml version="1.0" encoding="utf-8"?>
<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/><title>{title}</title>{head}</head>
<body>{body}</body></html>
"""
_CONTAINER = """<?xml version="1.0"?>
<container version="1.0" xmlns="urn:oasis:names:tc:opendocument:xmlns:container"><rootfiles>
<rootfile full-path="EPUB/package.opf" media-type="application/oebps-package+xml"/></rootfiles></container>
"""
_KINDS = {
    "xhtml": "application/xhtml+xml", "css": "text/css", "png": "image/png", "jpeg": "image/jpeg", "jpg": "image/jpeg",
    "gif": "image/gif", "svg": "image/svg+xml",
}  # fmt: skip
_FOOTER = (
    '<div style="width:100%;font:8px sans-serif;color:#555;text-align:center"><span class="pageNumber"></span></div>'
)


@dataclass(frozen=True)
class Article:
    """One page of the site, ready for a book.

    Attributes:
        entry: its document in ``_toc.yml``.
        slug: its id within the book.
        part: caption of the part that it opens, or "".
        title: its heading, with the chapter's number.
        xhtml: its body, one ``section``.
    """

    entry: str
    slug: str
    part: str
    title: str
    xhtml: str


def entries(root: Path = ROOT) -> list[tuple[str, str]]:
    """Return every document of ``_toc.yml`` in order, with the caption of the part that it opens or ""."""
    table = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    found = [(table["root"], "")]
    for part in table["parts"]:
        for i, chapter in enumerate(part["chapters"]):
            found.append((chapter["file"], "" if i else part["caption"]))
    return found


def articles(browser: Browser, address: str, asked: list[tuple[str, str]]) -> Iterator[Article]:
    """Yield the pages of a served site as articles, in order."""
    slugs = {entry: entry.rpartition("/")[2] for entry, _ in asked}
    context = browser.new_context(viewport={"width": 1000, "height": 900}, color_scheme="light")
    page = context.new_page()
    for entry, part in tqdm(asked, unit="page"):
        page.goto(f"{address}/{entry}.html")
        page.wait_for_function(RENDERED)
        known = {"slug": slugs[entry], "slugs": slugs, "address": address, "frames": N_FRAMES}
        found = page.evaluate(CODE.read_text(encoding="utf-8"), known)
        title = re.sub(r"\s+", " ", found["title"])
        yield Article(entry, slugs[entry], part, title, found["xhtml"])
    context.close()


def book_title() -> tuple[str, str]:
    """Return title and authors, as ``_config.yml`` has them."""
    config = yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))
    return config["title"], config["author"]


def cover() -> str:
    """Return the first page."""
    title, author = (html.escape(text) for text in book_title())
    return f'<div class="cover"><h1>{title}</h1><p>{author}</p><p>Version {__version__}</p></div>'


def contents(book: list[Article], number: Mapping[str, int]) -> str:
    """Return the table of contents; ``number`` has the page of each slug, or nothing."""
    lines = []
    for each in book:
        if each.part:
            lines.append(f'<li class="part">{html.escape(each.part)}</li>')
        page = f"<span>{number[each.slug]}</span>" if each.slug in number else ""
        lines.append(f'<li><a href="#{each.slug}"><span>{html.escape(each.title)}</span>{page}</a></li>')
    return f'<section class="contents"><h2>Contents</h2><ol>{"".join(lines)}</ol></section>'


def style(folder: Path = SITE) -> str:
    """Return the style sheet of both forms: the colours of code as on the site, and our own."""
    code = (folder / "_static" / "pygments.css").read_text(encoding="utf-8")
    light = code.partition('html[data-theme="dark"]')[0].replace('html[data-theme="light"] ', "")
    return light + STYLE.read_text(encoding="utf-8")


def write_pdf(target: Path, folder: Path = SITE, asked: list[tuple[str, str]] | None = None) -> int:
    """Print the site's pages as one PDF with bookmarks, links and a table of contents; return its number of pages."""
    with serve(folder) as address, launch() as browser:
        book = list(articles(browser, address, asked or entries()))
        first = _printed(browser, _whole(book, folder, {}), target)
        # The contents name pages, which only a printed book knows; the second printing has the same breaks.
        number = {each.slug: first[each.slug] for each in book if each.slug in first}
        if _printed(browser, _whole(book, folder, number), target) != first:
            raise RuntimeError("the two printings broke their pages differently, so the contents would be wrong.")
    return len(PdfReader(target).pages)


def _whole(book: list[Article], folder: Path, number: Mapping[str, int]) -> str:
    body = "".join([cover(), contents(book, number), *(each.xhtml for each in book)])
    head = f"<style><![CDATA[{style(folder)}]]></style>"
    return _XHTML.format(title=html.escape(book_title()[0]), head=head, body=body)


def _printed(browser: Browser, text: str, target: Path) -> dict[str, int]:
    """Print one document; return the page, from 1, of every id that something links to."""
    target.parent.mkdir(parents=True, exist_ok=True)
    page = browser.new_page()
    page.set_default_timeout(600_000)
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "book.xhtml"
        source.write_text(text, encoding="utf-8")
        page.goto(source.as_uri(), wait_until="load")
        page.pdf(
            path=target, prefer_css_page_size=True, outline=True, tagged=True,
            display_header_footer=True, header_template="<span></span>", footer_template=_FOOTER,
        )  # fmt: skip
    page.close()
    reader = PdfReader(target)
    return {
        name.removeprefix("/"): (reader.get_destination_page_number(to) or 0) + 1
        for name, to in reader.named_destinations.items()
    }


def write_epub(target: Path, folder: Path = SITE, asked: list[tuple[str, str]] | None = None) -> int:
    """Write the site's pages as one EPUB 3, a file per page and one per picture; return the number of pages.

    Source: EPUB 3.3, W3C Recommendation; a ZIP with a package document, a navigation document and the content.
    """
    with serve(folder) as address, launch() as browser:
        book = list(articles(browser, address, asked or entries()))
    home = {each.slug: f"{each.slug}.xhtml" for each in book}
    content = {"style.css": style(folder).encode(), "nav.xhtml": _navigation(book, home).encode()}
    for each in book:
        body, pictures = _with_pictures(each, folder)
        body = re.sub(r'(<a\b[^>]*?\bhref=")#([^"]*)"', lambda match: f'{match[1]}{_place(match[2], home)}"', body)
        head = '<link rel="stylesheet" type="text/css" href="style.css"/>'
        content[home[each.slug]] = _XHTML.format(title=html.escape(each.title), head=head, body=body).encode()
        content |= pictures
    content["package.opf"] = _package(book, home, content).encode()
    target.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("mimetype", "application/epub+zip", zipfile.ZIP_STORED)  # first and plain, so that it is seen
        packed.writestr("META-INF/container.xml", _CONTAINER)
        for name, data in content.items():
            packed.writestr(f"EPUB/{name}", data)
    return len(book)


def _navigation(book: list[Article], home: Mapping[str, str]) -> str:
    items = "".join(f'<li><a href="{home[each.slug]}">{html.escape(each.title)}</a></li>' for each in book)
    body = f'<nav xmlns:epub="http://www.idpf.org/2007/ops" epub:type="toc"><h1>Contents</h1><ol>{items}</ol></nav>'
    return _XHTML.format(title="Contents", head="", body=body)


def _package(book: list[Article], home: Mapping[str, str], content: Mapping[str, bytes]) -> str:
    """Return the package document: what the book is, its files, and their order."""
    title, author = (html.escape(text) for text in book_title())
    items = []
    for number, (name, data) in enumerate(content.items()):
        properties = ' properties="nav"' if name == "nav.xhtml" else ' properties="svg"' if b"<svg" in data else ""
        kind = _KINDS[name.rpartition(".")[2]]
        items.append(f'<item id="file-{number}" href="{name}" media-type="{kind}"{properties}/>')
    number_of = {name: number for number, name in enumerate(content)}
    spine = "".join(f'<itemref idref="file-{number_of[home[each.slug]]}"/>' for each in book)
    modified = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"""<?xml version="1.0" encoding="utf-8"?>
<package xmlns="http://www.idpf.org/2007/opf" version="3.0" unique-identifier="id" xml:lang="en">
<metadata xmlns:dc="http://purl.org/dc/elements/1.1/"><dc:identifier id="id">bvf-tutorial-{__version__}</dc:identifier>
<dc:title>{title}</dc:title><dc:creator>{author}</dc:creator><dc:language>en</dc:language>
<meta property="dcterms:modified">{modified}</meta></metadata>
<manifest>{"".join(items)}</manifest><spine>{spine}</spine></package>
"""


def _place(anchor: str, home: Mapping[str, str]) -> str:
    slug = anchor.partition("--")[0]
    return home[slug] if anchor == slug else f"{home[slug]}#{anchor}"


def _with_pictures(article: Article, folder: Path) -> tuple[str, dict[str, bytes]]:
    """Return an article's body with its pictures as files of the book, and these files."""
    pictures: dict[str, bytes] = {}

    def moved(match: re.Match[str]) -> str:
        source = html.unescape(match[2])
        if source.startswith("data:"):
            kind, _, data = source.removeprefix("data:image/").partition(";base64,")
            content = base64.b64decode(data)
        else:
            path = folder / unquote(urlsplit(source).path).removeprefix("/")
            kind, content = path.suffix[1:], path.read_bytes()
        name = f"{article.slug}-{len(pictures)}.{kind.partition('+')[0]}"
        pictures[name] = content
        return f'{match[1]}src="{name}"'

    return re.sub(r'(<img\b[^>]*?)\bsrc="([^"]*)"', moved, article.xhtml), pictures


def main() -> int:
    """Write one form of the book."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("form", choices=("pdf", "epub"))
    parser.add_argument("--output", type=Path, metavar="FILE", help="(dist/bvf-tutorial.pdf or .epub)")
    asked = parser.parse_args()
    target = asked.output or ROOT / "dist" / f"bvf-tutorial.{asked.form}"
    n_pages = (write_pdf if asked.form == "pdf" else write_epub)(target)
    print(f"{target}: {n_pages} pages, {target.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
