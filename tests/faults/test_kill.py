"""``kill -9`` at any moment of a training and of a sweep: what is resumed ends with the same numbers, bit for bit."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bvf_tutorial.agents import Config, sweeps
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.agents.sweeps import planned, sweep
from bvf_tutorial.cli import main
from tests.faults.disk import Disk, is_killed
from tests.faults.forks import Fork
from tests.faults.trainings import SIZES, equal, hidden, numbers_of, require_whole, tiny, trained

ROOT = Path(__file__).parents[2]
WORDS = [
    "gather-a2c-pid", "--no-tensorboard", "--checkpoint-seconds", "0",
    *(word for key, value in SIZES.items() for word in (f"--{key}", str(value))),
    "--algorithm.n-steps", "7", "--algorithm.actor-hidden", "8", "--algorithm.critic-hidden", "8", "8",
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_locks_in_our_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """A git that is killed with its group must not leave ``index.lock`` behind."""
    monkeypatch.setenv("GIT_OPTIONAL_LOCKS", "0")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """What a training comes to that nothing disturbs."""
    folder = RunFolder.create(tmp_path_factory.mktemp("whole"), tiny())
    assert trained(folder) == "finished"
    return numbers_of(folder)


def seconds_of(child: Fork) -> float:
    """Return how long a child takes that nothing disturbs."""
    start = time.monotonic()
    assert child.wait() == 0
    return time.monotonic() - start


def moments(n: int, seconds: float) -> Iterator[float]:
    """Give moments all over a time; the same shares of it in every test run."""
    yield from np.random.default_rng(20).uniform(0.0, seconds, n)


def resumed(folder: RunFolder, log: Path) -> None:
    """Go on to the end in another process."""
    words = ["train", "--resume", str(folder.path), "--no-tensorboard", "--checkpoint-seconds", "0"]
    assert Fork(lambda: main(words), log).wait() == 0, log.read_text()


def kill_a_training(parent: Path, moment: float) -> tuple[RunFolder, bool]:
    """Kill a training at a moment, begin or resume it; return its folder and whether it was killed within.

    The moment is brought forward, again and again, for a training that was faster this time.
    """
    for attempt in range(30):
        path = parent / f"{attempt}"
        child = Fork(lambda path=path: main(["train", *WORDS, "--out", str(path)]), parent / "log.txt")  # type: ignore[misc]
        time.sleep(moment * 0.8**attempt)
        child.send_signal(signal.SIGKILL)
        if child.wait() == -signal.SIGKILL:
            break
    else:
        raise AssertionError("no kill came in time")
    made = [*path.iterdir()] if path.exists() else []
    for each in made:
        require_whole(each)
    begun = [each for each in made if (each / "config.json").exists()]
    if not begun:  # it died before there was anything to resume
        return RunFolder.create(path, tiny()), False
    return RunFolder.open(begun[0]), (begun[0] / "checkpoint.pt").exists()


def kill_trainings(n: int, tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> list[bool]:
    seconds = seconds_of(Fork(lambda: main(["train", *WORDS, "--out", str(tmp_path / "timed")]), tmp_path / "log.txt"))
    had_checkpoint = []
    for number, moment in enumerate(moments(n, seconds)):
        parent = tmp_path / f"{number}"
        parent.mkdir()
        folder, has_checkpoint = kill_a_training(parent, moment)
        had_checkpoint.append(has_checkpoint)
        resumed(folder, parent / "log.txt")
        table, state = numbers_of(folder)
        assert table == whole[0], moment
        assert equal(state, whole[1]), moment
        assert hidden(folder.path) == []
    return had_checkpoint


def test_a_training_killed_at_three_moments(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    kill_trainings(3, tmp_path, whole)


@pytest.mark.slow
def test_a_training_killed_at_fifty_moments(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    had_checkpoint = kill_trainings(50, tmp_path, whole)
    assert sum(had_checkpoint) >= 5, "some of the moments lie between checkpoints"


def killed_at(operation: int, path: Path, log: Path) -> int:
    """Train in a folder in a process that dies within its k-th operation on the disk; return its exit status."""

    def work() -> int:
        with pytest.MonkeyPatch.context() as patch:
            Disk(patch, operation, is_killed)
            trained(RunFolder.open(path))
        return 0

    return Fork(work, log).wait()


def operations(tmp_path: Path) -> list[tuple[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        folder = RunFolder.create(tmp_path, tiny())
        disk = Disk(patch)
        trained(folder)
    return disk.done


def kill_at_operations(numbers: Sequence[int], tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    for number in numbers:
        folder = RunFolder.create(tmp_path, tiny(), name=f"at-{number}")
        assert killed_at(number, folder.path, tmp_path / "log.txt") == -signal.SIGKILL
        require_whole(folder.path)
        if folder.status != "finished":  # as a sweep does, which never looks into a finished folder again
            trained(folder)
        assert folder.manifest["wall_seconds"] > 0.0, number
        table, state = numbers_of(folder)
        assert table == whole[0], number
        assert equal(state, whole[1]), number
        assert hidden(folder.path) == []


def test_a_training_killed_within_a_write_of_each_kind(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    """A write stops half-way: the first of each kind, and the last, with which a run is finished or is not."""
    done = operations(tmp_path)
    numbers = [done.index(("write", "metrics.csv")) + 1]
    for name in ("checkpoint.pt", "manifest.json"):
        of_kind = [number for number, what in enumerate(done, start=1) if what == ("write", f".{name}.PID")]
        numbers += [of_kind[0], of_kind[-1]]
    kill_at_operations(numbers, tmp_path, whole)


@pytest.mark.slow
def test_a_training_killed_within_every_operation_on_the_disk(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    done = operations(tmp_path)
    assert {what for what, _ in done} == {"open", "write", "fsync", "replace", "link"}
    kill_at_operations(range(1, len(done) + 1), tmp_path, whole)


@pytest.mark.slow
def test_an_interpreter_of_its_own_is_killed_and_resumed(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    """The command as it is typed, once: killed when its first row of metrics is there, then resumed."""
    command = [sys.executable, "-m", "bvf_tutorial", "train"]
    process = subprocess.Popen([*command, *WORDS, "--out", str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert process.stdout is not None
    while not process.stdout.readline().startswith("step 42 "):
        assert process.poll() is None
    process.kill()
    process.communicate()
    (path,) = tmp_path.iterdir()
    require_whole(path)
    resume = [*command, "--resume", str(path), "--no-tensorboard"]
    subprocess.run(resume, check=True, capture_output=True, cwd=ROOT)
    assert equal(numbers_of(RunFolder.open(path)), whole)


# Sweeps.


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are forks, in the sweep's own process group; all else of a sweep is as it is."""

    def started(folder: RunFolder, arguments: Sequence[str]) -> Fork:
        words = ["train", "--resume", str(folder.path), "--checkpoint-seconds", "0", *arguments]
        return Fork(lambda: main(words), folder.path / "log.txt")

    monkeypatch.setattr(sweeps, "_started", started)


def plan() -> dict[str, Config]:
    settings = {key: [value] for key, value in SIZES.items()}
    small = {"algorithm.n_steps": [7], "algorithm.actor_hidden": [[8]], "algorithm.critic_hidden": [[8, 8]]}
    configs, errors = planned(["gather-a2c-pid"], [0, 5], settings | small)
    assert not errors
    return configs


def swept(path: Path) -> dict[str, str]:
    return sweep(path, plan(), 2, ("--no-tensorboard",), lambda line: None)


def kill_sweeps(n: int, tmp_path: Path) -> None:
    """Kill the sweep and its workers at once, and every other time the sweep alone, whose workers live on."""
    seconds = seconds_of(Fork(lambda: swept(tmp_path / "whole") and 0, tmp_path / "log.txt"))
    wanted = {name: numbers_of(RunFolder.open(tmp_path / "whole" / name)) for name in plan()}
    for number, moment in enumerate(moments(n, seconds)):
        path = tmp_path / f"{number}"
        child = Fork(lambda path=path: swept(path) and 0, tmp_path / "log.txt", is_leader=True)  # type: ignore[misc]
        time.sleep(moment)
        if number % 2:
            child.send_signal(signal.SIGKILL)
            child.wait()
        elif child.poll() is None:
            child.kill_group()
        for each in path.iterdir() if path.exists() else ():
            require_whole(each)
        until = time.monotonic() + 300
        while set((status := swept(path)).values()) != {"finished"}:
            # A worker that lives on is not disturbed; it is named, unless it has the lock and has not yet signed it.
            assert all(how == "finished" or "is in use by" in how for how in status.values()), status
            assert time.monotonic() < until
            time.sleep(0.3)
        for name in plan():
            assert equal(numbers_of(RunFolder.open(path / name)), wanted[name]), (moment, name)
            assert hidden(path / name) == []


@pytest.mark.usefixtures("forking")
def test_a_sweep_killed_at_three_moments(tmp_path: Path) -> None:
    kill_sweeps(3, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("forking")
def test_a_sweep_killed_at_fifty_moments(tmp_path: Path) -> None:
    kill_sweeps(50, tmp_path)
