"""This file knows what a page may hold: scripts and styles of this site, described pictures, and no dead controls."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# sphinx-thebe comes with Jupyter Book and fetches its kernel client from a content network; no page here uses it.
UNUSED = "thebe"
WIDGET = "application/vnd.jupyter.widget-view+json"


def _text(asset: Any) -> str:
    """Return the address and the inline body of a script or style sheet as one string."""
    return f"{getattr(asset, 'filename', asset) or ''} {getattr(asset, 'attributes', {}).get('body', '')}"


def keep_local_assets(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Drop thebe; warn about any other script or style sheet that another host would serve."""
    for kind in ("script_files", "css_files"):
        kept = [asset for asset in context.get(kind, []) if UNUSED not in _text(asset).lower()]
        for asset in kept:
            if "://" in str(getattr(asset, "filename", asset) or ""):
                logger.warning("%s loads %s from another host: copy it to book/_vendor", page, _text(asset))
        context[kind] = kept


def keep_lists_lists(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Take the role of a list from the bibliography, whose entries have links and no list items as children."""
    if "body" in context:
        context["body"] = context["body"].replace(
            '<div role="list" class="citation-list">', '<div class="citation-list">'
        )


def require_alt_text(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Warn about every picture that a reader who cannot see it would miss."""
    for image in doctree.findall(nodes.image):
        if not image.get("alt", "").strip():
            logger.warning(
                "picture without alt text: give the cell the metadata {'mystnb': {'image': {'alt': '...'}}}",
                location=image,
            )


def refuse_dead_controls(app: Sphinx, doctree: nodes.document, page: str) -> None:
    """Warn about every live widget: without a kernel behind the page its controls do nothing."""
    for raw in doctree.findall(nodes.raw):
        if WIDGET in raw.astext():
            logger.warning(
                "live widget on a page without a kernel: tag the cell remove-output and show a figure beside it",
                location=raw,
            )


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the checks with Sphinx."""
    app.connect("html-page-context", keep_local_assets, priority=990)
    app.connect("html-page-context", keep_lists_lists)
    app.connect("doctree-resolved", require_alt_text)
    app.connect("doctree-resolved", refuse_dead_controls)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
