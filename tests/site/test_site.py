"""The built site, in a real browser that can reach nothing but it: what a reader sees, reads and moves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Locator, Page
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.site.conftest import NAMES, NARROW, TIMEOUT_MS, WIDE, Visit
from tools.browser import RENDERED, SITE, serve

pytestmark = pytest.mark.site

HEAVIEST = 3_000_000


def test_a_page_that_sends_on_is_waited_for(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text('<meta http-equiv="Refresh" content="1; url=chapter.html" />')
    (tmp_path / "chapter.html").write_text("<p>here</p>")
    with serve(tmp_path) as url:
        context = browser.new_context()
        try:
            page = context.new_page()
            page.goto(url, wait_until="load")
            page.wait_for_function(RENDERED, timeout=TIMEOUT_MS)
            assert page.url == f"{url}/chapter.html"
        finally:
            context.close()


def moves(page: Page, image: Locator, before: str, timeout: int = 3_000) -> bool:
    """Return whether the picture becomes another one within the time."""
    try:
        page.wait_for_function(
            "([image, src]) => image.src !== src", arg=[image.element_handle(), before], timeout=timeout
        )
    except PlaywrightTimeout:
        return False
    return True


def test_loads_without_help_and_without_errors(visit: Visit) -> None:
    assert visit.outside == []
    assert visit.problem == []


def test_names_no_other_hosts_resource(visit: Visit) -> None:
    # A preconnect or a lazy picture asks for nothing while the test looks, and leaks all the same.
    addresses = visit.page.eval_on_selector_all(
        "script[src], img[src], iframe[src], link[href]:not([rel=canonical]), source[src], video[src], object[data]",
        "nodes => nodes.map(node => node.src || node.href || node.data)",
    )
    own = visit.allowed
    assert [url for url in addresses if not url.startswith((own, "data:", "blob:"))] == []


def test_formulas_are_rendered(visit: Visit) -> None:
    written = visit.page.locator("main .math").count()
    drawn = visit.page.locator("main .math mjx-container svg").count()
    assert drawn >= written, f"{written} formulas are written, {drawn} are drawn"
    bad = "mjx-merror, [data-mjx-error], mjx-container [data-mml-node=merror], mjx-container [fill=red]"
    assert visit.page.locator(bad).count() == 0, visit.page.locator(bad).first.inner_html()[:500]
    assert gaps(visit.page) == [], "characters whose outlines book/_ext/slim.py took out of the font"


def test_page_answers_while_formulas_are_drawn(visit: Visit) -> None:
    batches = visit.page.evaluate("window.bvfFormulas")
    total = visit.page.locator("mjx-container").count()
    assert sum(batches) >= total
    assert max(batches, default=0) <= max(20, total / 2), f"{max(batches)} of {total} formulas were drawn in one go"


def gaps(page: Page) -> list[str]:
    """Return the characters, as code points, that formulas draw as nothing although they are no spaces."""
    return list(
        page.eval_on_selector_all(
            "svg defs path[id*=TEX], mjx-container path[data-c]",
            """nodes => nodes.filter(node => !node.getAttribute("d"))
                 .map(node => node.dataset.c || node.id.replace(/.*-/, ""))
                 .filter(code => !["20", "A0", "2061", "2062", "2063", "2064"].includes(code))""",
        )
    )


def test_pictures_are_there_and_described(visit: Visit) -> None:
    pictures = visit.page.eval_on_selector_all(
        "main img",
        """async nodes => { const out = []; for (const node of nodes) {
             node.loading = "eager"; await node.decode().catch(() => 0);
             out.push([node.src.slice(0, 120), node.alt.trim(), node.naturalWidth]); } return out; }""",
    )
    assert [src for src, alt, _ in pictures if not alt] == [], "without alt text"
    assert [src for src, _, width in pictures if not width] == [], "without a picture"
    assert [src for src, alt, _ in pictures if "_images/" in alt or alt.endswith(".png")] == [], "alt is a file name"


def weight(visit: Visit) -> dict[str, int]:
    """Return the bytes of everything that a page loads, by address."""
    served = (response for response in visit.loaded if response.url.startswith("http"))
    return {response.url: int(response.headers.get("content-length", 0)) for response in served}


def test_weighs_less_than_three_megabytes(visit: Visit) -> None:
    visit.page.eval_on_selector_all(
        "img",
        "async nodes => { for (const node of nodes) { node.loading = 'eager'; await node.decode().catch(() => 0); } }",
    )
    parts = weight(visit)
    assert sum(parts.values()) > 100_000, "nothing was counted"
    heaviest = sorted(((size, url) for url, size in parts.items()), reverse=True)[:5]
    assert sum(parts.values()) <= HEAVIEST, f"{sum(parts.values()):,} bytes, most of them in {heaviest}"


def test_films_play(visit: Visit) -> None:
    films = visit.page.eval_on_selector_all(
        "main video",
        """async nodes => { const out = []; for (const node of nodes) {
             node.muted = true; await node.play().catch(() => 0);
             for (let i = 0; i < 50 && !node.currentTime; i++) await new Promise(done => setTimeout(done, 100));
             out.push([node.ariaLabel || "", node.videoWidth, node.currentTime]); node.pause(); } return out; }""",
    )
    assert [label for label, _, _ in films if not label.strip()] == [], "without a description"
    assert [label for label, width, time in films if not width or not time] == [], "the film does not play"


def test_sliders_move(visit: Visit) -> None:
    page = visit.page
    for slider in page.locator(".bvf-slider").all():
        slider.evaluate(
            "node => { for (let up = node; up; up = up.parentElement) if (up.tagName == 'DETAILS') up.open = true; }"
        )
        image = slider.locator("img").first
        for control in slider.locator("input[type=range]").all():
            before = image.evaluate("node => node.src")
            control.focus()
            page.keyboard.press("End")
            if control.evaluate("node => node.value === node.defaultValue"):
                page.keyboard.press("Home")
            assert moves(page, image, before), "the slider moved and the picture stayed"
        for button in slider.locator("button.bvf-play").all():
            before = image.evaluate("node => node.src")
            button.click()
            assert moves(page, image, before), "play was pressed and the picture stayed"
            button.click()


def outline(control: Locator) -> float:
    """Return the width in pixels of the line around a control."""
    return float(
        control.evaluate(
            "node => (s => s.outlineStyle === 'none' ? 0 : parseFloat(s.outlineWidth))(getComputedStyle(node))"
        )
    )


def test_sliders_obey_the_keyboard(visit: Visit) -> None:
    keyboard = visit.page.keyboard
    for slider in visit.page.locator(".bvf-slider").all():
        image, button = slider.locator("img").first, slider.locator("button.bvf-play").first
        control = slider.locator("input[type=range]").first
        image.click()  # the tab key goes on from here
        for reached in (button, control):
            keyboard.press("Tab")
            assert reached.evaluate("node => node === document.activeElement"), "the tab key does not lead here"
            assert outline(reached) >= 2, "the focus is not seen"
        keyboard.press("Home")
        before = image.evaluate("node => node.src")
        for _ in range(int(control.get_attribute("max") or 0)):  # neighbouring positions may show the same picture
            value = control.input_value()
            keyboard.press("ArrowRight")
            assert control.input_value() != value, "the arrow was pressed and the slider stayed"
            if image.evaluate("node => node.src") != before:
                break
        assert image.evaluate("node => node.src") != before, "the arrow was pressed and the picture stayed"
        keyboard.press("Home")
        keyboard.press("Shift+Tab")
        before = image.evaluate("node => node.src")
        keyboard.press("Enter")
        assert moves(visit.page, image, before), "enter was pressed and the picture stayed"
        keyboard.press("Enter")


def test_follows_the_colour_scheme(visit: Visit) -> None:
    page = visit.page
    colour = "getComputedStyle(document.body).backgroundColor"
    seen = {}
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.wait_for_function("scheme => document.documentElement.dataset.theme === scheme", arg=scheme)
        text = page.evaluate("getComputedStyle(document.querySelector('main') || document.body).color")
        seen[scheme] = (page.evaluate(colour), text)
        assert len(page.screenshot()) > 2_000, "an empty picture"
    page.emulate_media(color_scheme="light")
    (paper, ink), (dark_paper, dark_ink) = seen["light"], seen["dark"]
    assert paper != dark_paper
    assert ink != dark_ink
    assert ink != paper


def test_fits_a_phone(visit: Visit) -> None:
    page = visit.page
    page.set_viewport_size(NARROW)
    try:
        width, room = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        cause = page.evaluate(
            """() => [...document.querySelectorAll("main *")].filter(node => {
                 for (let up = node.parentElement; up; up = up.parentElement)
                   if (getComputedStyle(up).overflowX !== "visible") return false;
                 return node.getBoundingClientRect().right > innerWidth + 1; })
               .slice(0, 3).map(node => node.outerHTML.slice(0, 150))"""
        )
        assert width <= room, f"{width} px on a screen of {room}: {cause}"
        # The theme hides what sticks out of its columns: a box that is cut off would be lost, not scrolled.
        assert cut_off(page) == [], "cut off on a narrow screen"
    finally:
        page.set_viewport_size(WIDE)


def cut_off(page: Page) -> list[str]:
    """Return text blocks of the article that end beyond the screen and that no box lets the reader scroll to."""
    return list(
        page.evaluate(
            """() => [...document.querySelectorAll("article p, article pre, article table, article img, article svg")]
               .filter(node => {
                 if (!node.getClientRects().length) return false;
                 if (node.getBoundingClientRect().right <= innerWidth + 1) return false;
                 if (node.closest("mjx-assistive-mml, [hidden], .headerlink")) return false;
                 for (let up = node; up && up.tagName !== "ARTICLE"; up = up.parentElement)
                   if (["auto", "scroll"].includes(getComputedStyle(up).overflowX)) return false;
                 return true; })
               .slice(0, 3).map(node => node.outerHTML.slice(0, 150))"""
        )
    )


def test_search_finds_a_word(browser: Browser, address: str) -> None:
    context = browser.new_context(viewport=WIDE)
    try:
        visit = Visit(context, f"{address}/search.html?q=value", address)
        visit.page.wait_for_selector("#search-results li a")
        assert visit.outside == []
        assert visit.problem == []
    finally:
        context.close()


def test_opens_from_the_disk(browser: Browser, address: str) -> None:
    # `address` only makes sure that the site is there.
    names = [name for name in NAMES if name.startswith("book/")]
    with_slider = [name for name in names if "bvf-slider" in (SITE / name).read_text(encoding="utf-8")]
    for name in (with_slider or names)[:1]:
        context = browser.new_context(viewport=WIDE)
        try:
            visit = Visit(context, (SITE / name).as_uri(), "file://")
            assert visit.outside == []
            assert visit.problem == []
            test_formulas_are_rendered(visit)
            test_sliders_move(visit)
        finally:
            context.close()


# The watch itself: a page that does everything wrong must be caught.


@pytest.fixture
def bad_page(tmp_path: Path) -> str:
    html = """<!doctype html><html><body><main><article class="bd-article">
      <div class="math">unrendered</div>
      <img src="data:image/gif;base64,R0lGODlhAQABAAAAACw="><pre style="width:900px">x</pre>
      <video src="data:video/mp4;base64,AAAA"></video>
      <div class="bvf-slider"><img alt="a" src="data:,a"><input type="range" min="0" max="3" value="0"></div>
      </article></main><script src="https://example.org/x.js"></script><script>undefined.field</script></body></html>"""
    (tmp_path / "bad.html").write_text(html, encoding="utf-8")
    return (tmp_path / "bad.html").as_uri()


def test_the_watch_sees_a_bad_page(browser: Browser, bad_page: str) -> None:
    context = browser.new_context(viewport=NARROW)
    try:
        visit = Visit(context, bad_page, "file://")
        assert visit.outside == ["https://example.org/x.js"]
        assert any(re.search("page error", text) for text in visit.problem)
        for check in (
            test_loads_without_help_and_without_errors,
            test_names_no_other_hosts_resource,
            test_formulas_are_rendered,
            test_pictures_are_there_and_described,
            test_films_play,
            test_sliders_move,
            test_sliders_obey_the_keyboard,
            test_weighs_less_than_three_megabytes,
            test_fits_a_phone,
        ):
            with pytest.raises((AssertionError, Error)):
                check(visit)
        visit.page.set_viewport_size(NARROW)
        assert len(cut_off(visit.page)) == 1
    finally:
        context.close()
