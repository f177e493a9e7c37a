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

from tools.browser import ARRIVED, RENDERED, launch, pages, serve

# The formulas of the first screen; those of a folded box have no size.
SEEN = """() => [...document.querySelectorAll(".math")].filter((node) => {
  const box = node.getBoundingClientRect(); return box.height && box.bottom > 0 && box.top < innerHeight;
}).every((node) => node.querySelector("mjx-container"))"""
SLIDER = """async () => { const slider = document.querySelector(".bvf-slider"); if (!slider) return;
  const image = slider.querySelector("img"), range = slider.querySelector("input"), before = image.src;
  range.value = range.max; range.dispatchEvent(new Event("input"));
  if (range.max > 0 && image.src === before) throw new Error("the picture stayed"); await image.decode(); }"""


@dataclass(frozen=True)
class Loading:
    """What one page takes: megabytes, and seconds until its parts are there.

    Attributes:
        megabytes: transferred.
        text: parsed.
        slider: the first one has moved.
        first_screen: its formulas are drawn.
        formulas: all of them are; the page answers meanwhile.
    """

    megabytes: float
    text: float
    slider: float
    first_screen: float
    formulas: float


def measure(browser: Browser, url: str) -> Loading:
    """Open a page with an empty cache, move its first slider at once, and wait for its formulas."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    try:
        page, size = context.new_page(), dict[str, int]()
        page.on("response", lambda r: size.update({r.url: int(r.headers.get("content-length", 0))}))
        start = time.perf_counter()
        page.goto(url, wait_until="domcontentloaded")
        page.wait_for_function(ARRIVED)
        text = time.perf_counter() - start
        page.evaluate(SLIDER)
        slider = time.perf_counter() - start
        page.wait_for_function(SEEN)
        first_screen = time.perf_counter() - start
        page.wait_for_function(RENDERED)
        formulas = time.perf_counter() - start
        page.wait_for_load_state("load")
        return Loading(sum(size.values()) / 1e6, text, slider, first_screen, formulas)
    finally:
        context.close()


def main(names: Sequence[str] = ()) -> int:
    """Print a table, one row per page."""
    print(f"{'page':45} {'MB':>6} {'text s':>7} {'slider s':>9} {'screen s':>9} {'formulas s':>11}")
    with serve() as address, launch() as browser:
        for name in names or pages():
            row = measure(browser, f"{address}/{name}")
            times = f"{row.text:7.2f} {row.slider:9.2f} {row.first_screen:9.2f} {row.formulas:11.2f}"
            print(f"{name:45} {row.megabytes:6.2f} {times}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
