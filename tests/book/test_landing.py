"""The landing page agrees with the chapters, and the six figures to play with are where they should be."""

from __future__ import annotations

import re

import pytest

from tests.book.chapters import ROOT, markdown, notebooks, numbered, read

PREFACE = read(ROOT / "book" / "preface.ipynb")
CHAPTERS = numbered(notebooks())
ROW = re.compile(r"^\| \{doc\}`[^<`]+<(\w+)>` \|.*\| (\d+) min \| ([^|]+) \|$", re.M)

# What moves, and in which chapter: a slider for the page and controls for a running kernel.
FIGURES = {
    "reversal of a chain": ("03_backward_chain", "fig-ch3-turning"),
    "backward value filling in": ("04_backward_value", "fig-ch4-sweeps"),
    "inspection paradox": ("06_state_wise_constraint", "fig-ch6-waiting"),
    "safe policy iteration, wrong and right": ("07_safe_policy_iteration", "fig-ch7-slider"),
    "projection with a box": ("10_safety_layer", "fig-ch10-box"),
    "training diagnostics": ("15_ppo_and_backward_gae", "fig-ch15-film"),
}


def test_table_has_every_chapter_once() -> None:
    assert [name for name, *_ in ROW.findall(markdown(PREFACE))] == [path.stem for path in CHAPTERS]


@pytest.mark.parametrize("row", ROW.findall(markdown(PREFACE)), ids=lambda row: row[0])
def test_table_gives_the_times_of_the_chapter(row: tuple[str, str, str]) -> None:
    name, minutes, code = row
    first = read(ROOT / "book" / f"{name}.ipynb").cells[0].source
    says = next(line for line in first.splitlines() if line.startswith("**Time.**"))
    assert re.search(rf"\b{minutes} minutes\b", says), says
    assert re.search(rf"\b(in|take) {re.escape(code.strip())}\b", says), says


def test_ways_in_and_moving_picture() -> None:
    opening = PREFACE.cells[0].source
    for way, target in (("Read", "{doc}"), ("Run", "{ref}"), ("Teach", "<teaching>")):
        card = re.search(rf"^:::\{{grid-item-card\}} {way}\n(.*?)^:::$", opening, re.M | re.S)
        assert card, way
        assert target in card[1], way
    first = next(position for position, cell in enumerate(PREFACE.cells) if "frame_slider(" in cell.source)
    shown = [c for c in PREFACE.cells[1:first] if c.cell_type == "code" and "hide-input" not in c.metadata["tags"]]
    assert [cell for cell in shown if "remove-cell" not in cell.metadata["tags"]] == [], (
        "code stands before the picture"
    )


@pytest.mark.parametrize(("chapter", "label"), FIGURES.values(), ids=FIGURES)
def test_figure_moves_on_the_page_and_live(chapter: str, label: str) -> None:
    code = [cell for cell in read(ROOT / "book" / f"{chapter}.ipynb").cells if cell.cell_type == "code"]
    found = [cell for cell in code if cell.metadata.get("mystnb", {}).get("figure", {}).get("name") == label]
    assert len(found) == 1, f"no cell is named {label}"
    assert "frame_slider(" in found[0].source
    assert found[0].metadata["mystnb"]["figure"]["caption"].strip()
    assert any("explorer(" in cell.source for cell in code), "nothing to move when the chapter runs live"
