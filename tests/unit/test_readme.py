"""The README keeps its word: its code runs, its files exist, its commands are targets, its picture has alt text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def test_the_worlds_run(capsys: pytest.CaptureFixture[str]) -> None:
    _, code = blocks()
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "0.4 torch.Size([1, 200]) tensor(False)\n"


def test_the_ten_lines_run(capsys: pytest.CaptureFixture[str]) -> None:
    code, _ = blocks()
    assert len([line for line in code.splitlines() if line.strip()]) <= 10
    exec(compile(code, "README.md", "exec"), {})
    status, value, multiplier, worst = capsys.readouterr().out.split()
    assert status == "optimal"
    assert 980 < float(value) < 1000
    assert float(multiplier) > 0
    assert float(worst) < 0


def test_links_and_files() -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", TEXT):
        assert (ROOT / target).exists(), target
    for name in re.findall(r"`([\w.]+/)`", TEXT):
        if not name.startswith(("claims", "unit", "book/_", "site")):
            assert (ROOT / name).is_dir(), name
    assert all(alt.strip() for alt in re.findall(r"!\[(.*?)\]", TEXT, re.DOTALL))


def test_commands_are_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", TEXT, re.MULTILINE))
    assert {"book", "test", "lab", "help"} <= named
    assert named <= targets
