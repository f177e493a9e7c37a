"""The plans, the exam and its answers: they name what the book has, the numbers are right, and students get no answer."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.book.chapters import ROOT, markdown, notebooks, numbered, read
from tests.book.test_links import ADDRESS, problem
from tools.student import exercises, write

TEACHING = ROOT / "teaching"
PLANS = sorted(TEACHING.glob("plan_*.md"))
LECTURE = re.compile(r"^## Lecture (\d+): .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| (\d+) \| (\w+) \| (.+?) \|$", re.MULTILINE)
CODE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")
CHAPTERS = {path.stem: read(path) for path in notebooks()}
PAGES = sorted(path for path in TEACHING.rglob("*.md") if "template" not in path.parts)


def text(name: str) -> str:
    return (TEACHING / name).read_text(encoding="utf-8")


def headings(chapter: str) -> set[str]:
    return set(re.findall(r"^#{2,3} (.+)$", markdown(CHAPTERS[chapter]), re.MULTILINE))


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_plan_names_sections_of_the_book_and_fills_its_time(plan: Path) -> None:
    words = plan.read_text(encoding="utf-8")
    lectures = list(LECTURE.finditer(words))
    assert len(lectures) == int(re.findall(r"\d+", plan.stem)[0])
    assert [int(lecture[1]) for lecture in lectures] == list(range(1, len(lectures) + 1))
    for lecture in lectures:
        rows = ROW.findall(lecture[0])
        assert sum(int(minutes) for minutes, _, _ in rows) == 90, f"lecture {lecture[1]}"
        wrong = [(chapter, section) for _, chapter, section in rows if section not in headings(chapter)]
        assert not wrong, f"lecture {lecture[1]}: no such section: {wrong}"
        for part in ("**Goals.**", "**Live (", "**Questions in class.**", "**Homework.**"):
            assert part in lecture[0], f"lecture {lecture[1]} has no {part}"


@pytest.mark.parametrize("plan", PLANS, ids=lambda path: path.stem)
def test_homework_exists(plan: Path) -> None:
    words = plan.read_text(encoding="utf-8")
    known = {exercise.label for chapter in CHAPTERS.values() for exercise in exercises(chapter)}
    named = set(re.findall(r"\bex-[\w-]+", words))
    assert named
    assert named <= known
    assignments = set(re.findall(r"`(\d\d_\w+)`", words))
    assert assignments <= {path.name for path in (TEACHING / "assignments" / "source").iterdir()}


def test_instructors_have_goals_for_every_chapter() -> None:
    goals = re.findall(r"^\| (\d\d_\w+) \| (.+) \|$", text("instructor/README.md"), re.MULTILINE)
    assert [chapter for chapter, _ in goals] == [path.stem for path in numbered(notebooks())]


def test_misconceptions_name_sections() -> None:
    """A quoted title in the last column is a section of the chapter that stands before it."""
    rows = re.findall(r'^\| "[^|]+ \| [^|]+ \| ([^|]+) \|$', text("instructor/README.md"), re.MULTILINE)
    assert len(rows) == 13
    by_number = {name[:2]: name for name in CHAPTERS if name[0].isdigit()}
    n_sections = 0
    for row in rows:
        for number, rest in re.findall(r"chapter (\d+)((?:(?!chapter).)*)", row):
            for title in re.findall(r'"([^"]+)"', rest):
                n_sections += 1
                assert title in headings(by_number[f"{int(number):02d}"]), f"chapter {number} has no section {title}"
    assert n_sections >= 10


def questions() -> list[str]:
    return re.findall(r"^\*\*(Q\d+)\*\* \(", text("exam.md"), re.MULTILINE)


def test_every_question_has_its_answer() -> None:
    asked = questions()
    assert len(asked) >= 12
    assert asked == [f"Q{number}" for number in range(1, len(asked) + 1)]
    assert re.findall(r"^## (Q\d+)$", text("instructor/answers.md"), re.MULTILINE) == asked


def test_numbers_of_the_answers() -> None:
    space: dict[str, object] = {}
    sections = re.split(r"^## ", text("instructor/answers.md"), flags=re.MULTILINE)
    checked = []
    for section in sections:
        for code in CODE.findall(section):
            exec(compile(code, section.split()[0], "exec"), space)
            if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(code))):
                checked.append(section.split()[0])
    # Every answer with a number has a check; the last is an argument.
    assert checked == questions()[:-1]


def test_students_get_no_answer(tmp_path: Path) -> None:
    write(tmp_path / "dist")
    everything = "\n".join(
        path.read_text(encoding="utf-8") for path in (tmp_path / "dist").rglob("*.*") if path.is_file()
    )
    answers = CODE.sub("", text("instructor/answers.md"))
    sentences = [piece.strip() for piece in re.split(r"(?<=[.:;])\s+|\n", answers) if len(piece.strip()) > 30]
    assert len(sentences) > 50
    assert not [sentence for sentence in sentences if sentence in everything]
    names = {path.name for path in (tmp_path / "dist").rglob("*")}
    assert not names & {"answers.md", "exam.md", "teaching", "instructor", "source"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(TEACHING).as_posix())
def test_links_of_the_kit_lead_somewhere(page: Path) -> None:
    missing = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if not (page.parent / link).exists()]
    assert not missing


def test_links_of_the_public_page() -> None:
    words = (ROOT / "book" / "teaching.md").read_text(encoding="utf-8")
    files = {path.relative_to(ROOT).as_posix() for path in TEACHING.rglob("*") if path.is_file()}
    found = ADDRESS.findall(words)
    assert len(found) >= 5
    assert not {address: problem(address, files) for address in found if problem(address, files)}
    answers = text("instructor/answers.md")
    assert not [line for line in words.splitlines() if len(line) > 40 and line in answers]
