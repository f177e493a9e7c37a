"""A full disk and folders that cannot be written: the error names the file, the checkpoint before stays good."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bvf_tutorial.agents import runs
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.agents.storage import load_checkpoint, write_atomically
from bvf_tutorial.cli import main
from tests.faults.disk import Disk
from tests.faults.forks import Fork
from tests.faults.trainings import equal, hidden, numbers_of, refusal, require_whole, tiny, trained


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, Any]]:
    """What a training comes to that nothing disturbs."""
    folder = RunFolder.create(tmp_path_factory.mktemp("whole"), tiny())
    trained(folder)
    return numbers_of(folder)


def operations(parent: Path) -> list[tuple[str, str]]:
    with pytest.MonkeyPatch.context() as patch:
        folder = RunFolder.create(parent, tiny())
        disk = Disk(patch)
        trained(folder)
    return disk.done


def fill_at(numbers: Sequence[int], stays: bool, tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    """Let the disk be full at the k-th operation; then make room and go on."""
    for number in numbers:
        folder, saved = RunFolder.create(tmp_path, tiny(), name=f"{stays}-{number}"), [b""]
        with pytest.MonkeyPatch.context() as patch:
            save = runs.save_checkpoint

            def noted(path: Path, state: Any, save: Any = save, saved: list[bytes] = saved) -> None:
                save(path, state)
                saved.append(path.read_bytes())

            patch.setattr(runs, "save_checkpoint", noted)
            disk = Disk(patch, number, stays=stays)
            text = refusal(lambda folder=folder: trained(folder), OSError)  # type: ignore[misc]
        if text:
            assert text.startswith(f"[Errno {errno.ENOSPC}] ")
            assert str(folder.path) in text, disk.done[number - 1]
            assert folder.status in (
                ("created", "running", "finished") if stays else ("created", "running", "finished", "failed")
            )
        else:  # a link that cannot be made is done by a copy
            assert disk.done[number - 1][0] == "link", disk.done[number - 1]
            assert folder.status == "finished"
        if saved[-1]:
            assert folder.checkpoint.read_bytes() == saved[-1]
        else:
            assert not folder.checkpoint.exists()
        assert set(hidden(folder.path)) <= {".checkpoint.pt.link"}
        require_whole(folder.path)
        if folder.status != "finished":
            assert trained(folder) == "finished"
        table, state = numbers_of(folder)
        assert table == whole[0], number
        assert equal(state, whole[1]), number
        assert hidden(folder.path) == []


def test_a_disk_that_is_full_at_an_operation_of_each_kind(tmp_path: Path, whole: tuple[bytes, dict[str, Any]]) -> None:
    done = operations(tmp_path)
    kinds = [("write", ".checkpoint.pt.PID"), ("replace", "checkpoint.pt"), ("write", "metrics.csv")]
    last_of = {kind: number for number, kind in enumerate(done, start=1) if kind in kinds}
    assert len(last_of) == 3
    fill_at([*last_of.values()], True, tmp_path, whole)


@pytest.mark.slow
@pytest.mark.parametrize("stays", [False, True])
def test_a_disk_that_is_full_at_every_operation(
    stays: bool, tmp_path: Path, whole: tuple[bytes, dict[str, Any]]
) -> None:
    fill_at(range(1, len(operations(tmp_path)) + 1), stays, tmp_path, whole)


def test_a_file_that_the_system_refuses_to_let_grow(tmp_path: Path) -> None:
    """The operating system's own refusal, by a limit on the size of files: status 1, one line, with the path."""
    folder = RunFolder.create(tmp_path, tiny())
    n_rows = 0

    def stop_after_a_row(done: int, rows: Any) -> None:
        nonlocal n_rows
        n_rows += len(rows)

    assert runs.run(folder, stop_after_a_row, lambda: n_rows > 0, has_events=False) == "interrupted"
    before = folder.checkpoint.read_bytes()

    def work() -> int:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        return main(["train", "--resume", str(folder.path), "--no-tensorboard", "--checkpoint-seconds", "0"])

    log = tmp_path / "log.txt"
    assert Fork(work, log).wait() == 1
    assert len(before) > 20_000, "the limit lies between the manifest and a checkpoint"
    last = log.read_text().splitlines()[-1]
    assert last == f"error: [Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}: '{folder.checkpoint}'"
    assert folder.checkpoint.read_bytes() == before
    assert hidden(folder.path) in ([], [".checkpoint.pt.link"])
    assert folder.status == "failed"
    assert str(folder.checkpoint) in folder.manifest["error"]
    assert trained(folder) == "finished"


def test_a_failed_write_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    write_atomically(path, b"old")
    with pytest.MonkeyPatch.context() as patch:
        Disk(patch, 2)
        with pytest.raises(OSError, match=f"No space left on device: '{path}'"):
            write_atomically(path, b"newer")
    assert path.read_bytes() == b"old"
    assert [*tmp_path.iterdir()] == [path]


# Folders that cannot be written.


@pytest.fixture
def anyone(tmp_path: Path) -> Iterator[Path]:
    """A folder that a user without rights can reach; the tests may run as root, for whom nothing is read-only."""
    if os.geteuid():
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="bvf-faults-"))
    path.chmod(0o777)
    yield path
    shutil.rmtree(path)


def without_rights(words: Sequence[str], log: Path) -> tuple[int, str]:
    """Run a command as a user who owns nothing; return its exit status and what it printed last."""

    def work() -> int:
        if not os.geteuid():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        return main(words)

    status = Fork(work, log).wait()
    return status, log.read_text().splitlines()[-1]


def lock_up(path: Path) -> None:
    for each in path.iterdir():
        each.chmod(0o444)
    path.chmod(0o555)


def test_read_only_folders_are_named_and_left_as_they_are(anyone: Path, tmp_path: Path) -> None:
    parent = anyone / "runs"
    folder = RunFolder.create(parent, tiny())
    trained(folder)
    folder.update_manifest(status="running")  # so that there is something to do
    before = {each.name: each.read_bytes() for each in folder.path.iterdir()}
    lock_up(folder.path)
    parent.chmod(0o555)
    try:
        log = tmp_path / "log.txt"
        words = ["gather-a2c-pid", "--n-envs", "2", "--n-env-steps", "60"]
        denied = f"error: [Errno {errno.EACCES}] {os.strerror(errno.EACCES)}: "
        for command, named in (
            (["train", *words, "--out", str(parent)], str(parent / "gather-a2c-pid-")),
            (["train", "--resume", str(folder.path), "--no-tensorboard"], str(folder.path / "lock")),
            (["evaluate", str(folder.path), "--episodes", "1"], str(folder.path / "evaluation_sampled.json")),
            (["sweep", "gather-a2c-pid", "--seeds", "0", "--out", str(parent)], "1"),
        ):
            status, last = without_rights(command, log)
            assert status == 1
            if command[0] == "sweep":
                assert last.startswith("  gather-a2c-pid-seed=0: failed: [Errno 13]")
                assert str(parent / "gather-a2c-pid-seed=0") in last
            else:
                assert last.startswith(f"{denied}'{named}"), last
        assert {each.name: each.read_bytes() for each in folder.path.iterdir()} == before
        assert load_checkpoint(folder.checkpoint, "cpu")[1] == ""
    finally:
        parent.chmod(0o755)
        folder.path.chmod(0o755)
