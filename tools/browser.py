"""This file knows how to open the built site in a headless Chromium that can reach nothing else."""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from playwright.sync_api import Browser, Playwright, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "_build" / "html"
# A page that is not parsed yet, or only sends on to another one, is not what a reader sees.
ARRIVED = '() => document.readyState !== "loading" && !document.querySelector("meta[http-equiv=refresh i]")'
# True once every formula is drawn; a page without formulas loads no MathJax.
RENDERED = f"""() => ({ARRIVED})() && (!window.MathJax
    || (window.MathJax.startup?.promise ? window.MathJax.startup.promise.then(() => true) : false))"""
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_browser() -> str:
    """Return the path of a Chromium or Chrome: ``BVF_BROWSER``, or the first on the path.

    Raises:
        FileNotFoundError: there is none.
    """
    named = os.environ.get("BVF_BROWSER", "")
    for name in (named,) if named else NAMES:
        path = shutil.which(name)
        if path:
            return path
    raise FileNotFoundError(f"no browser: looked for {named or ', '.join(NAMES)}; install one or set BVF_BROWSER")


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the name is the base class's)
        """Say nothing: the tests report what failed."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a browser that closed a page while it was loading."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


@contextmanager
def serve(folder: Path = SITE) -> Iterator[str]:
    """Serve a folder on this machine for the length of a ``with`` block; yields its address."""
    with _Server(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


_driver: list[Playwright] = []


@contextmanager
def _playwright() -> Iterator[Playwright]:
    """Start Playwright, which runs once per thread: an inner block shares what an outer one started."""
    if _driver:
        yield _driver[0]
        return
    with sync_playwright() as started:
        _driver.append(started)
        try:
            yield started
        finally:
            _driver.clear()


@contextmanager
def launch() -> Iterator[Browser]:
    """Start the browser for the length of a ``with`` block.

    Raises:
        FileNotFoundError: there is no browser.
    """
    path = find_browser()
    with _playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


def pages(folder: Path = SITE) -> list[str]:
    """Return every page of the built site, relative to its root."""
    vendored = {"mathjax", "_static"}
    found = (path.relative_to(folder) for path in folder.rglob("*.html"))
    return sorted(path.as_posix() for path in found if path.parts[0] not in vendored)
