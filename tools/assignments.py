"""This file knows how the graded assignments become a course for nbgrader: the sources, and what students get.

``python -m tools.assignments`` writes ``dist/course``; ``--output`` names another folder. In it, ``release/`` goes to
the students, and ``nbgrader autograde`` grades what they put into ``submitted/STUDENT/ASSIGNMENT/``.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.notebooks import ROOT

SOURCE = ROOT / "teaching" / "assignments"
OUTPUT = ROOT / "dist" / "course"


class AssignmentError(Exception):
    """An assignment that nbgrader could not release or grade; the message has nbgrader's own words."""


@dataclass(frozen=True)
class Grade:
    """What a submission got: points by the id of the graded cell, and the most there are."""

    point: dict[str, float]
    most: dict[str, float]

    @property
    def share(self) -> float:
        """All points over the most, in [0, 1]."""
        return sum(self.point.values()) / sum(self.most.values())


def names(source: Path = SOURCE) -> list[str]:
    """Return the assignments in order."""
    return sorted(path.parent.name for path in (source / "source").glob("*/*.ipynb"))


def _api(course: Path) -> Any:
    # nbgrader starts its database's tool by name, which is not on the path of an environment that is not activated.
    scripts = str(Path(sys.executable).parent)
    if scripts not in os.environ.get("PATH", "").split(os.pathsep):
        os.environ["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
    from nbgrader.apps import NbGraderAPI  # type: ignore[import-untyped]
    from nbgrader.coursedir import CourseDirectory  # type: ignore[import-untyped]
    from traitlets.config.loader import PyFileConfigLoader

    config = PyFileConfigLoader("nbgrader_config.py", path=str(course)).load_config()
    config.CourseDirectory.root = str(course)
    config.Exchange.root = str(course / "exchange")  # not used: files are given and taken by hand
    return NbGraderAPI(coursedir=CourseDirectory(config=config), config=config, log_level="CRITICAL")


def make_course(output: Path = OUTPUT, chosen: Sequence[str] = ()) -> list[Path]:
    """Write a course folder, made anew, with the students' notebooks in ``release/``; return these.

    Args:
        output: the folder of the course.
        chosen: names of assignments; all of them if empty.

    Raises:
        AssignmentError: nbgrader refused an assignment.
        FileExistsError: the folder has submissions, which would be lost.
    """
    if (output / "submitted").exists():
        raise FileExistsError(f"{output} has submissions: move them away first, or choose another folder")
    if output.exists():
        shutil.rmtree(output)
    shutil.copytree(SOURCE, output, ignore=shutil.ignore_patterns("README.md", ".ipynb_checkpoints"))
    (output / "exchange").mkdir()
    api = _api(output)
    for name in chosen or names():
        _checked(api.generate_assignment(name), name)
    return [output / "release" / name / f"{name}.ipynb" for name in chosen or names()]


def grade(course: Path, name: str, student: str) -> Grade:
    """Grade one submission, ``submitted/STUDENT/NAME/NAME.ipynb`` of a course folder, by its public and hidden tests.

    Raises:
        AssignmentError: nbgrader could not grade it.
    """
    api = _api(course)
    _checked(api.autograde(name, student), f"{name} of {student}")
    with api.gradebook as book:
        found = book.find_submission(name, student).notebooks[0].grades
        return Grade(
            {grade.name: float(grade.auto_score or 0.0) for grade in found},
            {grade.name: float(grade.max_score) for grade in found},
        )


def _checked(result: dict[str, Any], what: str) -> None:
    if not result["success"]:
        raise AssignmentError(f"{what}: {result.get('error') or result.get('log')}")


def main(argv: Sequence[str] | None = None) -> int:
    """Write the course and say what to give to the students."""
    parser = argparse.ArgumentParser(prog="tools.assignments", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder to write, made anew")
    arguments = parser.parse_args(argv)
    try:
        released = make_course(arguments.output)
    except (AssignmentError, FileExistsError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{len(released)} assignments for students: {arguments.output / 'release'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
