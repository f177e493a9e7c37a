"""Clocks that jump: nothing depends on them but the times that are reported, and none of these is negative."""

from __future__ import annotations

import io
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.cli.terminal import Progress
from tests.faults.trainings import equal, numbers_of, tiny, trained

YEAR = 365.25 * 86_400.0


def jumps(*sizes: float) -> Callable[[], float]:
    """Return a clock that goes on by these sizes in turn, for ever."""

    def steps() -> Iterator[float]:
        now = 1e9
        while True:
            for size in sizes:
                now += size
                yield now

    clock = steps()
    return lambda: next(clock)


CLOCKS = {
    "backwards": lambda: jumps(-0.5),
    "a year on": lambda: jumps(0.01, YEAR),
    "a year back": lambda: jumps(0.01, 0.01, -YEAR),
    "to and fro": lambda: jumps(YEAR, -YEAR, 0.01, -3600.0, 3600.0),
    "standing still": lambda: jumps(0.0),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """What a training comes to under a clock that goes right."""
    folder = RunFolder.create(tmp_path_factory.mktemp("whole"), tiny())
    trained(folder)
    return numbers_of(folder)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("is_terminal", [False, True])
@pytest.mark.parametrize("name", CLOCKS)
def test_only_reported_times_depend_on_the_clock(
    name: str,
    is_terminal: bool,
    tmp_path: Path,
    whole: tuple[bytes, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder, clock = RunFolder.create(tmp_path, tiny()), CLOCKS[name]()
    if is_terminal:
        monkeypatch.setattr(sys, "stderr", _Terminal())
    with monkeypatch.context() as patch:
        for each in ("time", "monotonic", "perf_counter", "process_time"):
            patch.setattr(time, each, clock)
        with Progress(folder) as progress:
            assert run(folder, progress, has_events=False) == "finished"
    assert equal(numbers_of(folder), whole)
    told = folder.manifest
    assert told["wall_seconds"] >= 0
    assert told["cpu_seconds"] >= 0
    speeds = re.findall(r"(\S+) steps/s", capsys.readouterr().out)
    assert not any(speed.startswith("-") for speed in speeds)
    if name in ("backwards", "standing still"):
        assert speeds == [], "no time has passed"
    if name == "a year on" and not is_terminal:
        assert speeds


def test_a_clock_that_went_back_does_not_put_checkpoints_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, saved = RunFolder.create(tmp_path, tiny()), []
    save = RunFolder.save

    def noted(self: RunFolder, trainer: Any, n_rows: int) -> None:
        saved.append(trainer.done)
        save(self, trainer, n_rows)

    monkeypatch.setattr(RunFolder, "save", noted)
    with monkeypatch.context() as patch:
        patch.setattr(time, "monotonic", jumps(-YEAR))
        run(folder, has_events=False)
    assert len(saved) == 6, "one at every row, and the last"


def test_folders_of_a_day_that_comes_twice_are_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "strftime", lambda form: "20200101-000000")
    first, second = RunFolder.create(tmp_path, tiny()), RunFolder.create(tmp_path, tiny())
    assert first.path != second.path
