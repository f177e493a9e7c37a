"""This file knows what a page does not need, and takes it out of the built site, so that a page weighs under 3 MB.

The theme ships 2,000 icons as a script and as fonts, of which a page draws about twenty; the font of the formulas holds
alphabets that the book never writes; matplotlib stores a plot of a hundred colours with four bytes a pixel. The files
in the repository stay as their authors made them; only the copies in the output folder change.
"""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

from fontTools import subset  # type: ignore[import-untyped]
from PIL import Image, ImageChops, ImageStat
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

ICONS = "_static/vendor/fontawesome/*"
ICON_RULE = re.compile(r'((?:\.fa-[a-z0-9-]+:before,?)+)\{content:"\\([0-9a-f]+)"\}')
ICON_NAME = re.compile(r"\bfa-[a-z0-9-]+")
ICON_FACE = re.compile(r"@font-face\{[^}]*\}")
ICON_FONTS = {"Brands": ("fa-brands-400", 400), "Free": ("fa-solid-900", 900)}
ICON_TAGS = re.compile(
    r'<script src="[^"]*vendor/fontawesome/[^"]*"></script>|<link rel="preload" as="font"[^>]*vendor/fontawesome/[^>]*>'
)
ICON_ELEMENT = re.compile(r'<i class="((?:fa|fas|fab|far)[ "])')

FORMULA_FONT = "mathjax/output/svg/fonts/tex.js"
PATHS = re.compile(r"(\.AddPaths\)\(\w+\.(\w+),\{)([^}]*)(?=\})")
PATH = re.compile(r'(\d+):"[^"]*",?')
UNUSED_VARIANTS = frozenset(
    [
        "fraktur",
        "frakturBold",
        "monospace",
        "sansSerifBold",
        "sansSerifBoldItalic",
        "sansSerifItalic",
        "texCalligraphicBold",
        "texMathit",
        "texOldstyle",
        "texOldstyleBold",
    ]
)
# The mathematical alphabets of Unicode: bold, italic, script, double-struck, sans-serif; Greek italic; bold digits.
ALPHABETS = (
    (0x1D400, 0x1D467),
    (0x1D49C, 0x1D4CF),
    (0x1D538, 0x1D56B),
    (0x1D5A0, 0x1D5B9),
    (0x1D6A8, 0x1D71B),
    (0x1D7CE, 0x1D7D7),
)
FIRST_ALPHABET = 0x1D400
ALLOWED_ERROR = 0.5  # mean absolute difference per channel, of 255 levels


def _used_names(folder: Path) -> set[str]:
    """Return the names of icons that pages and the theme's scripts mention."""
    files = [*folder.rglob("*.html"), *folder.glob("_static/scripts/*.js")]
    return {name for file in files for name in ICON_NAME.findall(file.read_text(encoding="utf-8"))}


def _icon_face(font: Path, family: str, weight: int, codes: set[int]) -> str:
    """Return a ``@font-face`` rule with the font's glyphs for ``codes`` inside it, which also works from the disk."""
    options = subset.Options(flavor="woff2")
    loaded = subset.load_font(str(font), options)
    chosen = subset.Subsetter(options)
    chosen.populate(unicodes=codes)
    chosen.subset(loaded)
    small = io.BytesIO()
    subset.save_font(loaded, small, options)
    data = base64.b64encode(small.getvalue()).decode()
    return (
        f"@font-face{{font-display:block;font-family:Font Awesome\\ 6 {family};font-style:normal;"
        f'font-weight:{weight};src:url(data:font/woff2;base64,{data}) format("woff2")}}'
    )


def keep_used_icons(folder: Path) -> None:
    """Reduce the theme's icons to those that pages draw, as fonts inside the style sheet; no script draws them.

    Raises:
        ExtensionError: the theme keeps its icons elsewhere than this file knows.
    """
    sheets = list(folder.glob(f"{ICONS}/css/all.min.css"))
    if len(sheets) != 1:
        raise ExtensionError(f"{len(sheets)} style sheets of icons, not 1, match {ICONS}: adapt book/_ext/slim.py")
    sheet, used = sheets[0], _used_names(folder)
    css, codes = sheet.read_text(encoding="utf-8"), set()
    for selectors, code in ICON_RULE.findall(css):
        if used & set(ICON_NAME.findall(selectors)):
            codes.add(int(code, 16))
    css = ICON_RULE.sub(lambda rule: rule[0] if int(rule[2], 16) in codes else "", css)
    fonts = sheet.parent.parent / "webfonts"
    faces = [
        _icon_face(fonts / f"{name}.woff2", family, weight, codes) for family, (name, weight) in ICON_FONTS.items()
    ]
    sheet.write_text(ICON_FACE.sub("", css) + "".join(faces), encoding="utf-8")
    for file in (*fonts.glob("*"), *sheet.parent.parent.glob("js/*")):
        file.unlink()
    for page in folder.rglob("*.html"):
        text = ICON_TAGS.sub("", page.read_text(encoding="utf-8"))
        page.write_text(ICON_ELEMENT.sub(r'<i aria-hidden="true" class="\1', text), encoding="utf-8")


def _is_kept(code: int) -> bool:
    return code < FIRST_ALPHABET or any(first <= code <= last for first, last in ALPHABETS)


def _kept_paths(match: re.Match[str]) -> str:
    head, variant, body = match.groups()
    if variant in UNUSED_VARIANTS:
        return str(head)
    return head + PATH.sub(lambda path: path[0] if _is_kept(int(path[1])) else "", body).rstrip(",")


def keep_used_alphabets(folder: Path) -> None:
    """Take the outlines of alphabets that the book does not write out of the font of the formulas.

    A formula that needs one of them would show a gap; a browser test finds gaps. Then add its range to ``ALPHABETS``.

    Raises:
        ExtensionError: the font has another form than this file knows.
    """
    font = folder / FORMULA_FONT
    text = font.read_text(encoding="utf-8")
    variants = {match[2] for match in PATHS.finditer(text)}
    if not variants >= UNUSED_VARIANTS | {"normal"}:
        raise ExtensionError(f"{FORMULA_FONT} has no paths as MathJax 3 writes them: adapt book/_ext/slim.py")
    font.write_text(PATHS.sub(_kept_paths, text), encoding="utf-8")


def with_palette(picture: bytes) -> bytes:
    """Return a PNG with 256 colours, a third of the bytes, or the same bytes where that would be seen.

    It would be seen in a picture with transparency, or where the mean difference exceeds ``ALLOWED_ERROR``.
    """
    full = Image.open(io.BytesIO(picture))
    if full.mode not in ("RGB", "RGBA") or (full.mode == "RGBA" and full.getchannel("A").getextrema() != (255, 255)):
        return picture
    colours = full.convert("RGB")
    few = colours.quantize(256, dither=Image.Dither.NONE)
    error = ImageStat.Stat(ImageChops.difference(colours, few.convert("RGB"))).mean
    small = io.BytesIO()
    few.save(small, format="png", optimize=True)
    return small.getvalue() if max(error) <= ALLOWED_ERROR and small.tell() < len(picture) else picture


def slim(app: Sphinx, exception: Exception | None) -> None:
    """Take out of the finished site what no page needs; other builders and failed builds are left alone."""
    if exception is not None or app.builder.name != "html":
        return
    folder = Path(app.outdir)
    keep_used_icons(folder)
    keep_used_alphabets(folder)
    for file in folder.glob("_images/*.png"):
        file.write_bytes(with_palette(file.read_bytes()))


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the work at the end of the build."""
    app.connect("build-finished", slim)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
