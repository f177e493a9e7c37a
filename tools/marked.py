"""This file knows how a page keeps a written part between two marks: ``<!-- name -->`` and ``<!-- end of name -->``."""

from __future__ import annotations


def between(text: str, name: str) -> str:
    """Return the part of a page between the marks of a name; "" where there are none."""
    _, _, rest = text.partition(f"<!-- {name} -->\n")
    part, _, _ = rest.partition(f"\n<!-- end of {name} -->")
    return part


def filled(text: str, name: str, part: str) -> str:
    """Return a page with another part between the marks.

    Raises:
        ValueError: the page has no such marks; the message names them.
    """
    first, last = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
    before, mark, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not mark or not end:
        raise ValueError(f"the page has no part between '<!-- {name} -->' and '<!-- end of {name} -->'.")
    return f"{before}{first}{part}{last}{after}"
