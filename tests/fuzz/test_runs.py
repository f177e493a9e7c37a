"""A run's folder under random stops, crashes, damage and readings: what it holds is a beginning of the undisturbed run."""

from __future__ import annotations

import functools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bvf_tutorial.agents import Config, preset
from bvf_tutorial.agents.replay import evaluate_folder
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.agents.storage import LockedError, locked, previous

torch.set_num_threads(1)
STEPS = 420
GARBAGE = b"999,0,0.1"  # a row that a crash cut short


class CrashError(Exception):
    """What stops a training from within."""


def tiny(name: str) -> Config:
    config = preset(
        name, n_env_steps=STEPS, n_runs=2, n_envs=2, log_every=60, evaluate_every=210, n_evaluation_episodes=2
    )
    return replace(config, algorithm=replace(config.algorithm, n_steps=7))


@functools.cache
def undisturbed(name: str) -> bytes:
    """Return the table of metrics of a run that nothing happens to."""
    with tempfile.TemporaryDirectory() as parent:
        folder = RunFolder.create(Path(parent), tiny(name))
        assert run(folder, has_events=False) == "finished"
        return folder.metrics.read_bytes()


class Folder(RuleBasedStateMachine):
    """One run's folder and what happens to it."""

    name = ""

    @initialize()
    def begin(self) -> None:
        self.home = tempfile.TemporaryDirectory()
        self.folder = RunFolder.create(Path(self.home.name), tiny(self.name))
        self.has_garbage = False

    @precondition(lambda self: self.folder.status != "finished")
    @rule(more=st.integers(1, STEPS // 2), every=st.sampled_from([0.0, 60.0]))
    def train_and_stop(self, more: int, every: float) -> None:
        seen: list[int] = []

        def is_stopped() -> bool:
            return bool(seen) and seen[-1] - seen[0] >= more

        run(self.folder, lambda done, rows: seen.append(done), is_stopped, has_events=False, checkpoint_seconds=every)
        self.has_garbage = False  # what was behind the checkpoint is cut off first

    @precondition(lambda self: self.folder.status != "finished")
    @rule(after=st.integers(1, 20))
    def train_and_crash(self, after: int) -> None:
        seen: list[int] = []

        def report(done: int, rows: Any) -> None:
            seen.append(done)
            if len(seen) >= after:
                raise CrashError

        try:
            run(self.folder, report, has_events=False, checkpoint_seconds=0.0)
        except CrashError:
            assert self.folder.status == "failed"
        self.has_garbage = False

    @precondition(
        lambda self: self.folder.metrics.exists() and self.folder.status != "finished" and not self.has_garbage
    )
    @rule()
    def a_row_is_cut_short(self) -> None:
        with open(self.folder.metrics, "ab") as file:
            file.write(GARBAGE)
        self.has_garbage = True

    @precondition(lambda self: previous(self.folder.checkpoint).exists() and self.folder.status != "finished")
    @rule(share=st.floats(0, 0.99))
    def the_newest_checkpoint_is_cut_short(self, share: float) -> None:
        data = self.folder.checkpoint.read_bytes()
        self.folder.checkpoint.write_bytes(data[: int(share * len(data))])

    @precondition(lambda self: self.folder.checkpoint.exists() and not self.has_garbage)
    @rule()
    def evaluate(self) -> None:
        before = self.folder.metrics.read_bytes() if self.folder.metrics.exists() else b""
        first, second = (evaluate_folder(self.folder, 2, is_deterministic=True) for _ in range(2))
        assert repr(first) == repr(second)
        assert before == (self.folder.metrics.read_bytes() if self.folder.metrics.exists() else b"")

    @rule()
    def another_process_is_there(self) -> None:
        with locked(self.folder.path), pytest.raises(LockedError):
            run(self.folder, has_events=False)

    @invariant()
    def it_holds_a_beginning(self) -> None:
        if not hasattr(self, "folder") or not self.folder.metrics.exists():
            return
        found = self.folder.metrics.read_bytes()
        assert undisturbed(self.name).startswith(found.removesuffix(GARBAGE) if self.has_garbage else found)

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        if self.folder.status != "finished":
            assert run(self.folder, has_events=False) == "finished"
        assert self.folder.metrics.read_bytes() == undisturbed(self.name)
        self.home.cleanup()


def check(name: str, max_examples: int, steps: int) -> None:
    machine = type("FolderOf" + name.title().replace("-", ""), (Folder,), {"name": name})
    machine.TestCase.settings = settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],  # to shrink a failure would train for minutes
    )
    machine.TestCase().runTest()


def test_a_folder_survives_any_order() -> None:
    check("gather-a2c-pid", 4, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gather-a2c-pid", "grid-sarsa-safeguarded"])
def test_a_folder_survives_any_long_order(name: str) -> None:
    check(name, 6, 10)
