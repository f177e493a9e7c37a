"""This file knows how heavy each page of the built site is, and how long a reader waits before it can be used.

Usage, from the repository's root, after ``make book``: ``python -m tools.loading [PAGE ...]``. The times are those of
this machine, with the site served by it; they are printed, not asserted.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from playwright.sync_api import Browser

from tools.browser import RENDERED, launch, pages, serve

SLIDER = """async () => { const slider = document.querySelector(".bvf-slider"); if (!slider) return;
  const image = slider.querySelector("img"), range = slider.querySelector("input"), before = image.src;
  range.value = range.max; range.dispatchEvent(new Event("input"));
  if (range.max > 0 && image.src === before) throw new Error("the picture stayed"); await image.decode(); }"""


@dataclass(frozen=True)
class Loading:
    """What one page takes: megabytes, and seconds until its text, its formulas and its first slider are there."""

    megabytes: float
    text: float
    formulas: float
    slider: float


def measure(browser: Browser, url: str) -> Loading:
    """Open a page with an empty cache and move its first slider, or wait for its formulas where it has none."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page, size = context.new_page(), dict[str, int]()
        page.on("response", lambda r: size.update({r.url: int(r.headers.get("content-length", 0))}))
        start = time.perf_counter()
        page.goto(url, wait_until="domcontentloaded")
        text = time.perf_counter() - start
        page.wait_for_function(RENDERED)
        formulas = time.perf_counter() - start
        page.evaluate(SLIDER)
        slider = time.perf_counter() - start
        page.wait_for_load_state("load")
        return Loading(sum(size.values()) / 1e6, text, formulas, slider)
    finally:
        context.close()


def main(names: Sequence[str] = ()) -> int:
    """Print a table, one row per page."""
    print(f"{'page':45} {'MB':>6} {'text s':>7} {'formulas s':>11} {'slider s':>9}")
    with serve() as address, launch() as browser:
        for name in names or pages():
            row = measure(browser, f"{address}/{name}")
            print(f"{name:45} {row.megabytes:6.2f} {row.text:7.2f} {row.formulas:11.2f} {row.slider:9.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
