"""Runs, checkpoints and plots: files that are whole or not there, tables that are rectangular, curves of any length."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from bvf_tutorial import plotting
from bvf_tutorial.agents import Config, preset
from bvf_tutorial.agents.metrics import COLUMNS, append_rows, read_table, series
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.agents.storage import load_checkpoint, previous, save_checkpoint, write_atomically
from bvf_tutorial.cli import main

torch.set_num_threads(1)


def tiny(name: str, **algorithm: Any) -> Config:
    small = {"n_runs": 2, "n_envs": 2, "n_env_steps": 60, "log_every": 30, "evaluate_every": 0}
    config = preset(name, **small)
    return replace(config, algorithm=replace(config.algorithm, n_steps=15, **algorithm))


@pytest.mark.field("checkpoint")
@pytest.mark.parametrize("name", ["grid-sarsa-lyapunov", "gather-a2c-target", "gather-ppo-predictive"])
def test_checkpoints_load_with_weights_only(name: str, tmp_path: Path) -> None:
    """By torch's own reader, whose safe mode takes tensors, numbers and plain containers and nothing else."""
    folder = RunFolder.create(tmp_path, tiny(name))
    run(folder, has_events=False)
    state = torch.load(folder.checkpoint, weights_only=True)
    assert state["trainer"]["done"] == 60
    assert state["config"]["name"] == name


@pytest.mark.field("checkpoint")
@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_a_write_that_fails_leaves_what_was_there(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the disk, at the move and in the middle of the bytes; nothing half-written stays behind."""
    path = tmp_path / "checkpoint.pt"
    for number in (1, 2):
        save_checkpoint(path, {"number": number})
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    data: Any = b"x" * 10
    with monkeypatch.context() as broken:
        if call == "write":
            data = ["no bytes"]  # the file is open by then
        else:
            broken.setattr(os, call, lambda *arguments: (_ for _ in ()).throw(OSError(28, "No space left on device")))
        with pytest.raises((OSError, TypeError), match=r"No space|bytes-like"):
            write_atomically(path, data)
        if call == "fsync":
            with pytest.raises(OSError, match="No space"):
                save_checkpoint(path, {"number": 3})
    after = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    assert after[path.name] == before[path.name] and set(after) == set(before)
    assert load_checkpoint(path, "cpu")[0]["number"] == 2
    assert torch.load(previous(path), weights_only=True)["number"] in (1, 2)


@pytest.mark.field("eight-runs")
def test_eight_runs_of_one_second_have_eight_rectangular_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still. One table for all would have rows of several trainings, or of none."""
    now = time.localtime(0)
    real = time.strftime
    monkeypatch.setattr(time, "strftime", lambda form, *_: real(form, now))
    folders = [RunFolder.create(tmp_path, tiny("gather-a2c-pid")) for _ in range(8)]
    assert len({folder.path for folder in folders}) == len([*tmp_path.iterdir()]) == 8
    tables = []
    for folder in folders:
        assert run(folder, has_events=False) == "finished"
        cells = [line.split(",") for line in folder.metrics.read_text(encoding="ascii").splitlines()]
        assert cells[0] == [*COLUMNS] and {len(row) for row in cells} == {len(COLUMNS)}
        assert len(cells) == 1 + 2 * 2  # two rows of metrics of two seeds
        tables.append(folder.metrics.read_bytes())
    assert len(set(tables)) == 1  # one configuration, eight times


LENGTH = (100, 80, 1, 0)


def rows(length: int, seed: int) -> list[dict[str, float]]:
    return [{"Step": 10 * (t + 1), "Seed": seed, "EpCost": float(seed)} for t in range(length)]


def drawn(curve: dict[str, Any]) -> tuple[Any, list[str]]:
    axes = plotting.draw_training_curves(curve, Figure().add_subplot(), "cost")
    axes.figure.canvas.draw()
    return axes, [text.get_text() for text in axes.get_legend().get_texts()]


@pytest.mark.field("ragged-seeds")
@pytest.mark.filterwarnings("error")
def test_seeds_of_100_80_1_and_0_rows_are_one_curve(tmp_path: Path) -> None:
    """Each point is the mean over the seeds that have it; the legend says where seeds end and how many have no data."""
    path = tmp_path / "metrics.csv"
    for seed, length in enumerate(LENGTH):
        append_rows(path, rows(length, seed))
    append_rows(path, [{"Step": 10, "Seed": 3}])  # the last seed got as far as one row without an episode
    step, value = series(read_table(path), "EpCost")
    assert value.shape == (100, 4)
    axes, labels = drawn({"all": (step, value), "empty": ([], [])})
    assert labels == ["all (4 seeds, end at 10 to 1,000, 1 without data)", "empty (no data)"]
    mean = axes.lines[0].get_ydata()
    assert mean[[0, 1, 79, 80, 99]].tolist() == [1.0, 0.5, 0.5, 0.0, 0.0]
    (band,) = axes.collections  # none where one seed is left
    assert max(corner[0] for corner in band.get_paths()[0].vertices) == 800


@pytest.mark.field("ragged-seeds")
def test_runs_of_100_80_1_and_0_rows_are_four_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command draws those that have data and names the one that has none, which ends nothing."""
    paths = []
    for seed, length in enumerate(LENGTH):
        folder = RunFolder.create(tmp_path, replace(tiny("gather-a2c-pid"), name=f"run-{seed}"), f"run-{seed}")
        if length:
            append_rows(folder.metrics, rows(length, seed))
            folder.update_manifest(cost_limit=4.0)
        paths.append(str(folder.path))
    out = tmp_path / "curves.svg"
    assert main(["plot", *paths, "--out", str(out)]) == 0
    assert f"{paths[3]}: there is no data for 'EpCost'" in capsys.readouterr().err
    assert out.stat().st_size > 1000
    assert main(["plot", paths[3], "--out", str(out)]) == 1
    assert "error: " in capsys.readouterr().err
    curve = {
        f"run-{seed}": series(read_table(Path(path) / "metrics.csv"), "EpCost") for seed, path in enumerate(paths[:3])
    }
    axes, labels = drawn({**curve, "run-3": ([], [])})
    assert labels == [
        "run-0 (1 seed)", "run-1 (1 seed, ends at 800)", "run-2 (1 seed, ends at 10)", "run-3 (no data)",
    ]  # fmt: skip
    assert len(axes.collections) == 0  # one seed has no band
    (tmp_path / "run-1" / "metrics.csv").write_text("Step,Seed,EpCost\n10,1\n", encoding="ascii")
    assert main(["plot", *paths, "--out", str(out)]) == 1  # a damaged table is not one without data
    assert "line 2: 2 cells under 3 columns" in capsys.readouterr().err


@pytest.mark.field("ragged-seeds")
@pytest.mark.filterwarnings("error")
def test_ten_zeros_have_the_interval_from_0_to_0() -> None:
    mean, half = plotting.mean_interval(np.zeros((1, 10)))
    assert (mean - half).tolist() == (mean + half).tolist() == [0.0]
    axes, labels = drawn({"zeros": (np.array([1.0, 2.0]), np.zeros((2, 10)))})
    assert labels == ["zeros (10 seeds)"]
    assert {float(corner[1]) for corner in axes.collections[0].get_paths()[0].vertices} == {0.0}
