"""The workflows as files: they parse, run nothing that can change under them, and may do no more than they need."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.book.chapters import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PIN = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
# What a job may do beyond reading the sources, with the reason.
MAY = {
    ("ci.yml", "publish"): {"pages": "write", "id-token": "write"},  # it deploys the site
    ("monthly.yml", "report"): {"issues": "write"},  # it opens the report
}
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)


def parsed(path: Path) -> dict[Any, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    """The key `on`, which YAML 1.1 reads as true."""
    return dict(workflow[True])


def steps(workflow: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def unpinned(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if "uses:" in line and not PIN.search(line)]


def test_the_workflows_are_there() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "monthly.yml"]


@each_workflow
def test_actions_are_pinned_to_a_commit(path: Path) -> None:
    assert unpinned(path.read_text(encoding="utf-8")) == []
    assert all(
        step["with"]["persist-credentials"] is False
        for step in steps(parsed(path))
        if "checkout@" in step.get("uses", "")
    )


def test_a_version_is_one_commit_everywhere() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    found = set(re.findall(r"uses: (\S+)@(\w{40}) # (\S+)", text))
    assert len({name for name, _, _ in found}) == len(found)


@each_workflow
def test_permissions_are_least(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    for name, job in workflow["jobs"].items():
        assert job.get("permissions", {}) == MAY.get((path.name, name), {}), name


@each_workflow
def test_every_job_ends(path: Path) -> None:
    """The default limit is six hours. A step that reads the machine's shell variables gets no text of others."""
    for name, job in parsed(path)["jobs"].items():
        assert "timeout-minutes" in job or name == "publish"
        for step in job["steps"]:
            assert "${{" not in step.get("run", ""), "expressions belong in `env`, where a shell cannot execute them"


def test_monthly_is_monthly_and_reports() -> None:
    workflow = parsed(ROOT / ".github/workflows/monthly.yml")
    minute, hour, day, month, weekday = triggers(workflow)["schedule"][0]["cron"].split()
    assert minute.isdigit()
    assert hour.isdigit()
    assert 1 <= int(day) <= 28
    assert (month, weekday) == ("*", "*")
    report = workflow["jobs"]["report"]
    assert all(f"contains(needs.*.result, {result!r})" in report["if"] for result in ("failure", "cancelled"))
    assert set(report["needs"]) == set(workflow["jobs"]) - {"report"}
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    for command in ("bash .ci/run", "pip-audit", "make colab", "make release", "gh issue create"):
        assert command in commands


def test_ci_has_time_for_itself() -> None:
    job = parsed(ROOT / ".github/workflows/ci.yml")["jobs"]["check"]
    assert job["timeout-minutes"] == 100  # it takes about 50 on two cores
    assert job["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13"]


@pytest.mark.parametrize(
    ("line", "is_seen"),
    [
        ("- uses: actions/checkout@v4", True),
        ("- uses: actions/checkout@08eba0b27e820071cde6df949e0beb9ba4906955", True),
        ("- uses: actions/checkout@08eba0b27e820071cde6df949e0beb9ba4906955 # v4", True),
        ("- uses: actions/checkout@08eba0b27e820071cde6df949e0beb9ba4906955 # v4.3.0", False),
        ("- run: make", False),
    ],
)
def test_unpinned_is_seen(line: str, is_seen: bool) -> None:
    assert bool(unpinned(line)) == is_seen
