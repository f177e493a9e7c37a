"""Several processes: two on one folder, two sweeps at once, a worker that dies; none harms another."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bvf_tutorial.agents import sweeps
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.cli import main
from tests.faults.forks import Fork
from tests.faults.trainings import SIZES, equal, numbers_of, tiny, trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """What a training comes to that nothing disturbs."""
    folder = RunFolder.create(tmp_path_factory.mktemp("whole"), tiny())
    trained(folder)
    return numbers_of(folder)


def until(path: Path, what: str) -> None:
    """Wait for a file."""
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_a_second_process_is_refused_and_the_first_unharmed(
    tmp_path: Path, whole: tuple[bytes, dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """In the middle of a training, of which the first waits until the second has been told."""
    folder, ready, go = RunFolder.create(tmp_path, tiny()), tmp_path / "ready", tmp_path / "go"

    def pause() -> bool:
        if folder.checkpoint.exists() and not ready.exists():
            ready.touch()
            until(go, "the second process")
        return False

    def work() -> int:
        return int(run(folder, is_stopped=pause, has_events=False, checkpoint_seconds=0.0) != "finished")

    first = Fork(work, tmp_path / "log.txt")
    until(ready, "the first checkpoint")
    before = {each.name: each.read_bytes() for each in folder.path.iterdir()}
    capsys.readouterr()
    assert main(["train", "--resume", str(folder.path), "--no-tensorboard"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"error: {folder.path} is in use by process {first.pid} on ")
    assert text.endswith("; wait for it, or stop it.\n")
    assert main(["evaluate", str(folder.path), "--episodes", "1"]) == 0, "reading is no harm"
    (folder.path / "evaluation_sampled.json").unlink()
    assert {each.name: each.read_bytes() for each in folder.path.iterdir()} == before
    go.touch()
    assert first.wait() == 0
    assert equal(numbers_of(folder), whole)
    assert folder.manifest["n_sessions"] == 1


def test_of_four_processes_on_one_folder_one_trains(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    folder = RunFolder.create(tmp_path, tiny())
    words = ["train", "--resume", str(folder.path), "--no-tensorboard", "--checkpoint-seconds", "0"]
    logs = [tmp_path / f"log-{number}.txt" for number in range(4)]
    status = [each.wait() for each in [Fork(lambda: main(words), log) for log in logs]]
    assert set(status) <= {0, 1}
    assert 0 in status
    for log, each in zip(logs, status, strict=True):
        assert (each == 1) == ("is in use by process" in log.read_text())
    assert equal(numbers_of(folder), whole)


# A worker that dies.


@pytest.mark.parametrize("how", ["SIGKILL", "exit"])
def test_a_worker_that_dies_is_named_and_the_others_finish(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    doomed, other = "gather-a2c-pid-seed=0", "gather-a2c-pid-seed=5"

    def started(folder: RunFolder, arguments: Sequence[str]) -> Fork:
        def work() -> int:
            if folder.path.name == doomed:

                def die(done: int) -> None:
                    os._exit(5) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)

                monkeypatch.setattr(RunFolder, "save", lambda self, trainer, n_rows: die(n_rows))
            return main(["train", "--resume", str(folder.path), "--checkpoint-seconds", "0", *arguments])

        return Fork(work, folder.path / "log.txt")

    monkeypatch.setattr(sweeps, "_started", started)
    words = [f"{key}={value}" for key, value in SIZES.items()]
    small = ["algorithm.n_steps=7", "algorithm.actor_hidden=[8]", "algorithm.critic_hidden=[8,8]"]
    command = ["sweep", "gather-a2c-pid", "--out", str(tmp_path), "--processes", "2", "--no-tensorboard"]
    assert main([*command, "--seeds", "0", "5", "--set", *words, *small]) == 1
    text = capfd.readouterr().out
    told = "killed by SIGKILL" if how == "SIGKILL" else "exit status 5"
    assert "1 of 2 finished" in text
    assert text.splitlines()[-1].startswith(f"  {doomed}: failed: {told}")
    assert RunFolder.open(tmp_path / other).status == "finished"
    monkeypatch.undo()
    assert RunFolder.open(tmp_path / doomed).status == "running"  # it could not say
