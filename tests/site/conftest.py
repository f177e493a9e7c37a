"""This file knows how the browser tests open a page: with the network off, once for every test that looks at it."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Response, Route

from tests.book.chapters import toc_entries
from tools.browser import RENDERED, SITE, find_browser, launch, pages, serve

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 390, "height": 844}
TIMEOUT_MS = 15_000
# Before the site is built there is nothing to list; the chapters must be among the pages, whatever else is.
NAMES = sorted({*(f"{entry}.html" for entry in toc_entries()), "index.html", "search.html", *pages()})


def require(condition: bool, reason: str) -> None:
    """Skip when something is missing, or fail where the run says that nothing may be."""
    if condition:
        return
    if os.environ.get("BVF_REQUIRE_BROWSER"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """The address of the built site."""
    require((SITE / "index.html").is_file(), "the site is not built: run make book")
    with serve() as url:
        yield url


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One browser for all tests."""
    try:
        find_browser()
    except FileNotFoundError as error:
        require(False, str(error))
    with launch() as started:
        yield started


# How many formulas appear at a time; what appears within one task of the page arrives as one list.
COUNT_FORMULAS = """window.bvfFormulas = []; new MutationObserver((changes) => {
  const added = changes.flatMap((change) => [...change.addedNodes]).filter((n) => n.nodeName === "MJX-CONTAINER");
  if (added.length) window.bvfFormulas.push(added.length);
}).observe(document, { childList: true, subtree: true });"""


class Visit:
    """One page, opened with the network off, and everything that it loaded or that went wrong on the way."""

    def __init__(self, context: BrowserContext, url: str, allowed: str) -> None:
        self.outside: list[str] = []
        self.problem: list[str] = []
        self.loaded: list[Response] = []
        self.allowed = allowed
        context.route("**/*", self._route)
        self.page: Page = context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.page.on("pageerror", lambda error: self.problem.append(f"page error: {error}"))
        self.page.on("console", self._console)
        self.page.on("requestfailed", lambda r: self.problem.append(f"not loaded: {r.url[:200]}"))
        self.page.on("response", self._response)
        self.page.add_init_script(COUNT_FORMULAS)
        self.page.goto(url, wait_until="load")
        self.page.wait_for_function(RENDERED)

    def _response(self, response: Response) -> None:
        if response.status >= 400:
            self.problem.append(f"{response.status}: {response.url[:200]}")
        self.loaded.append(response)

    def _console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.problem.append(f"console: {message.text} ({message.location.get('url', '')})")

    def _route(self, route: Route) -> None:
        url = route.request.url
        if url.startswith((self.allowed, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(url)
            route.abort()


# Of the session, so that pytest runs everything about a page, whichever file it is in, while that page is open.
@pytest.fixture(scope="session", params=NAMES)
def visit(request: pytest.FixtureRequest, browser: Browser, address: str) -> Iterator[Visit]:
    """Every page in turn, on a wide and light screen."""
    context = browser.new_context(viewport=WIDE, color_scheme="light")
    try:
        yield Visit(context, f"{address}/{request.param}", address)
    finally:
        context.close()
