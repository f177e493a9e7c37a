"""Every page by the rules of axe-core: nothing serious in the light, in the dark, on a wide screen or on a phone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from tests.site.conftest import NARROW, WIDE, Visit

axe = pytest.importorskip("axe_playwright_python.base", reason="needs axe-playwright-python")

pytestmark = pytest.mark.site

SEVERE = ("serious", "critical")
# Everything folded is opened, since a reader opens it. Each text that looks like one already judged is left out: its
# tag, its classes and those of everything around it, its colours and its size are the same. Axe takes seconds a page
# otherwise, for thousands of words of code. The outlines in a formula are no text and carry no role.
OPEN = """document.querySelectorAll("details").forEach(node => node.open = true);
  document.querySelectorAll(".toggle-hidden").forEach(node => node.classList.remove("toggle-hidden"));"""
COPY = """([judged, flat]) => {
  const known = new Set(judged), fresh = [], drop = [];
  for (const node of document.querySelectorAll("body *")) {
    if (flat || node.childElementCount || !node.textContent.trim() || node.closest("svg, script, style")) continue;
    let look = "";
    for (let up = node; up && up !== document.body; up = up.parentElement)
      look += up.tagName + [...up.classList].sort() + (up.role || "") + "/";
    const style = getComputedStyle(node);
    look += [style.color, style.backgroundColor, style.fontSize, style.fontWeight];
    if (known.has(look)) drop.push(node); else { known.add(look); fresh.push(look); }
  }
  drop.forEach(node => node.dataset.known = "");
  const copy = document.documentElement.cloneNode(true);
  drop.forEach(node => delete node.dataset.known);
  copy.querySelectorAll("[data-known], script").forEach(node => node.remove());
  const styles = copy.querySelectorAll("style"); // MathJax adds rules that are not in the text of its style sheet
  document.querySelectorAll("style").forEach((node, i) =>
    styles[i].textContent = [...node.sheet.cssRules].map(rule => rule.cssText).join(" "));
  copy.querySelectorAll("mjx-container svg").forEach(node => node.replaceChildren());
  if (flat) copy.querySelectorAll("pre").forEach(node => node.textContent = node.textContent);
  const still = document.createElement("style"); // what is folded fades in; axe would judge it half pale
  still.textContent = "*, *::before, *::after {animation: none !important; transition: none !important}";
  copy.querySelector("head").append(still);
  const base = document.createElement("base");
  base.href = location.href;
  copy.querySelector("head").prepend(base);
  return ["<!doctype html>" + copy.outerHTML, fresh];
}"""
RUN = """async options => (await axe.run(document, {resultTypes: ["violations"], preload: false, ...options})).violations
  .flatMap(rule => rule.nodes.map(node => [rule.impact, rule.id, node.html.slice(0, 160),
    [...node.any, ...node.all, ...node.none].map(check => check.message).join("; ").slice(0, 160)]))"""
CONTRAST: dict[str, Any] = {"runOnly": ["color-contrast"]}
ALL_ELSE: dict[str, Any] = {"rules": {"color-contrast": {"enabled": False}}}
judged: list[str] = []


@pytest.fixture(scope="session")
def sheet(browser: Browser, address: str) -> Iterator[Page]:
    """An empty page, on which copies of the site's pages are judged without their scripts."""
    context = browser.new_context(viewport=WIDE)
    try:
        page = context.new_page()
        page.goto(f"{address}/_static/bvf.css")  # of the same origin: copies load the style sheets
        yield page
    finally:
        context.close()


def show(sheet: Page, html: str) -> None:
    """Put a copy on the sheet, with axe beside it."""
    sheet.set_content(html, wait_until="load")
    sheet.evaluate(axe.AXE_SCRIPT)


def violations(sheet: Page, options: dict[str, Any]) -> list[str]:
    """Return what axe finds serious or critical on the sheet."""
    return [" | ".join(row) for row in sheet.evaluate(RUN, options) if row[0] in SEVERE]


def contrast(sheet: Page, html: str) -> list[str]:
    """Return the texts of a copy that are hard to read, light and dark, wide and narrow."""
    show(sheet, html)
    found = []
    for scheme in ("light", "dark"):
        sheet.evaluate(
            "scheme => Object.assign(document.documentElement.dataset, {theme: scheme, mode: scheme})", scheme
        )
        for size in (WIDE, NARROW):
            sheet.set_viewport_size(size)
            found += [f"{scheme}, {size['width']} px: {text}" for text in violations(sheet, CONTRAST)]
    return found


def test_axe_finds_nothing_serious(visit: Visit, sheet: Page) -> None:
    page, found = visit.page, []
    page.evaluate(OPEN)
    try:
        html, fresh = page.evaluate(COPY, [judged, False])
        if fresh:
            found += contrast(sheet, html)
            judged.extend(fresh)
        # Pages of source code share one template, whose narrow form any one of them shows.
        is_code = "/_modules/" in page.url and not page.url.endswith("/_modules/index.html")
        for size in (WIDE,) if is_code else (WIDE, NARROW):
            page.set_viewport_size(size)
            # bvf.js gives tab stops to what scrolls at this width.
            page.wait_for_function("document.documentElement.dataset.scrollsAt == innerWidth")
            html, _ = page.evaluate(COPY, [[], True])
            sheet.set_viewport_size(size)
            show(sheet, html)
            found += [f"{size['width']} px: {text}" for text in violations(sheet, ALL_ELSE)]
    finally:
        page.set_viewport_size(WIDE)
    assert found == [], "\n".join([f"{len(found)} serious violations:", *found[:20]])


def test_axe_sees_a_bad_page(sheet: Page) -> None:
    html = """<!doctype html><html><head><title>bad</title><style>html {background: #fff}
      [data-theme=dark] p {color: #eee}</style></head>
      <body><main><h1>Bad</h1><p>pale in the dark</p><span style="color: #ccc">pale</span><a href="x"></a>
      <img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><input type="range"></main></body></html>"""
    found = contrast(sheet, html)
    assert sum("light" in text for text in found) == 2
    assert sum("dark" in text for text in found) == 4, "the dark is not looked at"
    rules = {text.split(" | ")[1] for text in violations(sheet, ALL_ELSE)}
    assert rules >= {"image-alt", "label", "link-name", "html-has-lang"}
