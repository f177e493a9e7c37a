"""This file knows how to photograph every page of the site, wide and narrow, light and dark, for people to look at."""

from __future__ import annotations

import sys
from typing import Literal

from tools.browser import RENDERED, ROOT, launch, pages, serve

FOLDER = ROOT / "_build" / "screenshots"
SIZES = {"wide": (1280, 900), "narrow": (390, 844)}
SCHEMES: tuple[Literal["light"], Literal["dark"]] = ("light", "dark")


def main() -> int:
    """Write one PNG per page, width and colour scheme to ``_build/screenshots``."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with serve() as address, launch() as browser:
        for size, (width, height) in SIZES.items():
            for scheme in SCHEMES:
                context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
                page = context.new_page()
                for name in pages():
                    page.goto(f"{address}/{name}")
                    page.wait_for_function(RENDERED)
                    target = FOLDER / f"{name.removesuffix('.html').replace('/', '-')}-{size}-{scheme}.png"
                    page.screenshot(path=target, full_page=True)
                    print(target.relative_to(ROOT))
                context.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
