"""A run's folder: what is written comes back, survives crashes and second processes, and goes on to the same bytes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bvf_tutorial.agents import CONSTRAINTS, PRESETS, Config, Row, make_trainer, preset
from bvf_tutorial.agents.metrics import COLUMNS, METRICS, append_rows, cut_back, read_table, series
from bvf_tutorial.agents.plain import ConfigError, changed, config_from_plain, differences, flat, to_plain
from bvf_tutorial.agents.replay import evaluate_folder, film
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.agents.storage import CheckpointError, LockedError, load_checkpoint, locked, previous, save_checkpoint

torch.set_num_threads(1)
TINY: dict[str, Any] = {"n_runs": 2, "n_envs": 2, "log_every": 100, "evaluate_every": 300, "n_evaluation_episodes": 2}


def tiny(name: str, n_env_steps: int, **algorithm: Any) -> Config:
    """Return a preset at the size of a test; odd rollouts end in the middle of episodes and of rows of metrics."""
    config = preset(name, n_env_steps=n_env_steps, **TINY)
    return replace(config, algorithm=replace(config.algorithm, **algorithm))


def stop_after(n_env_steps: int) -> tuple[Any, Any]:
    """Return a report and a question that together stop a training."""
    seen: list[int] = [0]
    return (lambda done, rows: seen.append(done)), (lambda: seen[-1] >= n_env_steps)


def equal(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


# The configuration.


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_comes_back_equal_from_json(name: str) -> None:
    text = json.dumps(to_plain(PRESETS[name]), allow_nan=False)
    assert config_from_plain(json.loads(text)) == PRESETS[name]


@pytest.mark.field("misspelt")
def test_what_is_wrong_with_a_configuration_is_named() -> None:
    def broken(**change: Any) -> Any:
        plain = to_plain(PRESETS["circle-ppo-backward"])
        for dotted, value in change.items():
            *path, last = dotted.split("__")
            place = plain
            for key in path:
                place = place[key]
            place[last] = value
        return plain

    for change, message in (
        ({"n_run": 3}, r"no setting 'n_run'; did you mean 'n_runs'\?"),
        (
            {"constraint__multiplier__proportionl": 1.0},
            r"'constraint.multiplier.proportionl'; did you mean 'proportional'",
        ),
        ({"algorithm__clip": "wide"}, r"algorithm.clip is 'wide'; it must be a number"),
        ({"algorithm__kind": "Dqn"}, r"algorithm.kind is 'Dqn'; choose one of SarsaConfig, ActorCriticConfig"),
        ({"algorithm__actor_hidden": 64}, r"algorithm.actor_hidden is 64; it must be a list"),
        ({"n_envs": 2.5}, r"n_envs is 2.5; it must be an integer"),
        ({"n_envs": True}, r"n_envs is True; it must be an integer"),
        ({"constraint__is_past_known": 1}, r"constraint.is_past_known is 1; it must be true or false"),
        ({"environment__time_limit": "cut"}, r"environment.time_limit is 'cut'"),
        ({"constraint": []}, r"constraint is \[\]; it must be a table"),
        ({"n_runs": 0}, r"n_runs is 0; it is at least 1"),
    ):
        with pytest.raises(ValueError, match=message):
            config_from_plain(broken(**change))
    plain = to_plain(Config())
    del plain["algorithm"]["clip"]
    with pytest.raises(ConfigError, match=r"'algorithm.clip' is missing"):
        config_from_plain(plain)
    with pytest.raises(ConfigError, match="holds numbers, text"):
        to_plain(replace(Config(), environment=replace(Config().environment, options={"f": len})))


def test_settings_change_by_dotted_key_and_differences_are_named() -> None:
    base = PRESETS["circle-ppo-backward"]
    other = changed(
        base, {"constraint.multiplier.recovery": "inf", "algorithm.learning-rate": 1, "environment.options.arena": 9.0}
    )
    assert other.algorithm.learning_rate == 1.0
    assert other.environment.options == {"observation": "scaled", "arena": 9.0}
    assert differences(base, other) == ["environment.options", "algorithm.learning_rate"]
    assert differences(base, PRESETS["circle-ppo-backward"]) == []
    assert set(differences(base, replace(base, algorithm=PRESETS["grid-sarsa-backward"].algorithm))) >= {
        "algorithm.kind",
        "algorithm.epsilon",
        "algorithm.clip",
    }
    with pytest.raises(ConfigError, match=r"'algorithm.lerning_rate'; did you mean 'algorithm.learning_rate'"):
        changed(base, {"algorithm.lerning_rate": 1})
    assert "constraint.multiplier.rule" in flat(to_plain(base))


# The table of metrics.


def test_rows_come_back_with_the_digits_of_float32(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    value = float(np.float32(0.1) / 3)
    rows: list[Row] = [
        {"Step": 10, "Seed": s, "EpRet": value, "LagrangeMultiplier": np.inf, "EpCost": np.nan} for s in (4, 5)
    ]
    append_rows(path, rows)
    append_rows(path, [{**row, "Step": 20} for row in rows])
    assert [len(line.split(",")) for line in path.read_text().splitlines()] == [len(COLUMNS)] * 5
    table = read_table(path)
    assert (table["EpRet"].astype(np.float32) == np.float32(value)).all()
    assert np.isinf(table["LagrangeMultiplier"]).all()
    assert np.isnan(table["EpCost"]).all()
    step, shown = series(table, "EpRet")
    assert step.tolist() == [10, 20]
    assert shown.shape == (2, 2)
    with pytest.raises(ValueError, match=r"no data for 'EpCost'; measured were EpRet, LagrangeMultiplier"):
        series(table, "EpCost")
    with pytest.raises(ValueError, match="'Reward' has no column"):
        append_rows(path, [{"Step": 30, "Seed": 4, "Reward": 1.0}])
    with open(path, "a", encoding="ascii") as file:
        file.write("30,4,1.5")  # a crash in the middle of a line
    assert len(read_table(path)["Step"]) == 4
    cut_back(path, 2)
    assert read_table(path)["Step"].tolist() == [10, 10]
    with pytest.raises(ValueError, match="has 2 rows, the checkpoint was taken after 3"):
        cut_back(path, 3)
    with open(path, "a", encoding="ascii") as file:
        file.write("30,4\n")
    with pytest.raises(ValueError, match=r"line 4: 2 cells under \d+ columns"):
        read_table(path)


@pytest.mark.parametrize("method", CONSTRAINTS)
@pytest.mark.parametrize("start", ["grid-sarsa", "circle-ppo"])
def test_everything_that_is_logged_has_a_column(start: str, method: str) -> None:
    trainer = make_trainer(
        replace(tiny(f"{start}-{method}", 90, n_steps=15), evaluate_every=0, log_every=30, n_evaluation_episodes=1)
    )
    names = {key for _ in range(3) for row in trainer.advance() for key in row}
    assert {"EpRet", "LagrangeMultiplier"} <= names <= set(COLUMNS)
    assert all(text for text in METRICS.values())


# Folders, crashes, second processes.


@pytest.mark.field("resume")
@pytest.mark.parametrize(
    ("name", "algorithm"),
    [
        ("circle-ppo-target", {"n_steps": 20, "epochs": 2}),
        ("gather-a2c-pid", {"n_steps": 7}),
        ("grid-sarsa-safeguarded", {"n_steps": 7}),
    ],
)
def test_stopped_and_resumed_leaves_the_same_bytes(tmp_path: Path, name: str, algorithm: dict[str, Any]) -> None:
    """2N steps equal N, a crash after further rows, and the rest; N lies within an episode and within a row's window."""
    config = tiny(name, 660, **algorithm)
    whole, split = RunFolder.create(tmp_path, config), RunFolder.create(tmp_path, config)
    assert run(whole, has_events=False) == "finished"
    report, is_stopped = stop_after(330)
    assert run(split, report, is_stopped, has_events=False) == "interrupted"
    assert split.status == "interrupted"
    done = split.manifest["done"]
    assert 330 <= done < 400
    assert done % config.log_every
    if name != "grid-sarsa-safeguarded":
        assert (split.trainer()[0].env.state_dict()["clock"] % config.environment.make(1, 1).task.horizon > 0).all()
    with open(split.metrics, "ab") as file:  # as if a crash had come later than the checkpoint
        file.write(whole.metrics.read_bytes().splitlines(keepends=True)[-1] + b"999,0,0.1")
    assert run(split, has_events=False) == "finished"
    assert split.metrics.read_bytes() == whole.metrics.read_bytes()
    left, right = (folder.trainer()[0].state_dict() for folder in (whole, split))
    assert equal(left, right)
    assert split.manifest["n_sessions"] == 2
    assert split.manifest["wall_seconds"] > 0


def test_a_changed_configuration_is_refused_by_key(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 60, n_steps=15))
    run(folder, has_events=False)
    other = changed(folder.config, {"algorithm.gamma": 0.5})
    (folder.path / "config.json").write_text(json.dumps(to_plain(other)))
    with pytest.raises(ConfigError, match=r"config.json is not the checkpoint's: algorithm.gamma differ"):
        folder.trainer()
    (folder.path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="is not JSON"):
        folder.trainer()


def test_the_manifest_says_where_numbers_come_from_and_how_it_ended(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 60, n_steps=15))
    assert folder.status == "created"
    run(folder, has_events=False)
    told = folder.manifest
    assert told["status"] == "finished"
    assert told["seeds"] == [0, 1]
    assert told["cost_limit"] == folder.config.environment.make(1, 1).cost_limit
    assert told["versions"]["torch"] == torch.__version__
    assert set(told) >= {
        "commit",
        "is_dirty",
        "device",
        "hardware",
        "command",
        "wall_seconds",
        "cpu_seconds",
        "started",
    }
    broken = RunFolder.create(tmp_path, changed(folder.config, {"environment.options.horizon": -1}))
    with pytest.raises(ValueError, match="horizon"):
        run(broken, has_events=False)
    assert broken.status == "failed"
    assert "horizon" in broken.manifest["error"]
    (broken.path / "config.json").write_bytes((folder.path / "config.json").read_bytes())
    run(broken, has_events=False)
    assert broken.status == "finished"
    assert "error" not in broken.manifest  # it is no longer how the training ended


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_a_checkpoint_of_another_machines_device_is_not_called_damaged(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 60, n_steps=15))
    run(folder, has_events=False)
    (folder.path / "config.json").write_text(json.dumps(to_plain(replace(folder.config, device="cuda"))))
    with pytest.raises(OSError, match=r"checkpoint\.pt is asked for on 'cuda', and torch finds none here"):
        folder.trainer()


def _make(parent: Path, barrier: Any, paths: Any) -> None:
    barrier.wait()
    paths.put(str(RunFolder.create(parent, Config()).path))


def _hold(path: Path, ready: Any) -> None:
    with locked(path):
        ready.set()
        signal.pause()


@pytest.mark.field("eight-runs")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forking; the children start no threads
def test_eight_processes_in_one_second_have_eight_folders(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, paths = context.Barrier(8), context.Queue()
    processes = [context.Process(target=_make, args=(tmp_path, barrier, paths), daemon=True) for _ in range(8)]
    for process in processes:
        process.start()
    made = {paths.get(timeout=30) for _ in processes}
    for process in processes:
        process.join(timeout=30)
    assert len(made) == 8
    assert {path.name for path in tmp_path.iterdir()} == {Path(path).name for path in made}
    assert all(RunFolder.open(Path(path)).config == Config() for path in made)
    with pytest.raises(FileExistsError):
        RunFolder.create(tmp_path, Config(), name=Path(made.pop()).name)
    with pytest.raises(FileNotFoundError, match=r"no run's folder: it has no config.json"):
        RunFolder.open(tmp_path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 60, n_steps=15))
    context = multiprocessing.get_context("fork")
    ready = context.Event()
    other = context.Process(target=_hold, args=(folder.path, ready), daemon=True)
    other.start()
    assert ready.wait(30)
    with pytest.raises(LockedError, match=f"in use by process {other.pid} on "):
        run(folder, has_events=False)
    assert folder.status == "created"  # the refused one has changed nothing
    assert other.pid is not None
    os.kill(other.pid, signal.SIGKILL)
    other.join(30)
    assert (folder.path / "lock").read_text().startswith(f"process {other.pid}")  # a stale lock file
    assert run(folder, has_events=False) == "finished"


@pytest.mark.field("checkpoint")
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "checkpoint.pt"
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_checkpoint(path, "cpu")
    save_checkpoint(path, {"number": 1, "tensor": torch.arange(1000.0)})
    save_checkpoint(path, {"number": 2, "tensor": torch.arange(1000.0)})
    assert load_checkpoint(path, "cpu")[0]["number"] == 2
    assert sorted(each.name for each in tmp_path.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[good.index(torch.arange(1000.0).numpy().tobytes()) + 17] ^= 1
    foreign = tmp_path / "foreign.pt"
    torch.save({"number": 3}, foreign)
    for data, message in (
        (good[: len(good) // 2], "not a readable checkpoint"),
        (b"", "not a readable checkpoint"),
        (b"text", "not a readable checkpoint"),
        (bytes(flipped), "checksum"),
        (foreign.read_bytes(), "no checkpoint of this package"),
    ):
        path.write_bytes(data)
        state, warning = load_checkpoint(path, "cpu")
        assert state["number"] == 1
        assert message in warning
        assert "checkpoint.previous.pt" in warning
    path.unlink()
    assert load_checkpoint(path, "cpu")[0]["number"] == 1
    previous(path).write_bytes(b"text")
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(path, "cpu")
    path.write_bytes(b"text")
    previous(path).unlink()
    with pytest.raises(CheckpointError, match="no earlier one"):
        load_checkpoint(path, "cpu")


class _Bomb:
    def __reduce__(self) -> Any:
        return (sys.exit, (3,))


@pytest.mark.field("checkpoint")
def test_a_checkpoint_runs_no_code(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    torch.save({"format": "bvf_tutorial checkpoint 1", "bomb": _Bomb()}, path)
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(path, "cpu")
    path.write_bytes(pickle.dumps(_Bomb()))
    with pytest.raises(CheckpointError, match="not a readable checkpoint"):
        load_checkpoint(path, "cpu")


def test_going_on_from_the_checkpoint_before_gives_the_same_bytes(tmp_path: Path, capsys: Any) -> None:
    config = tiny("gather-a2c-pid", 420, n_steps=7)
    whole, damaged = RunFolder.create(tmp_path, config), RunFolder.create(tmp_path, config)
    run(whole, has_events=False)
    run(damaged, has_events=False, checkpoint_seconds=0)
    assert previous(damaged.checkpoint).exists()
    damaged.checkpoint.write_bytes(damaged.checkpoint.read_bytes()[:-99])
    assert run(damaged, has_events=False) == "finished"
    assert "Going on from the one before" in capsys.readouterr().err
    assert damaged.metrics.read_bytes() == whole.metrics.read_bytes()


def test_tensorboard_has_a_curve_for_every_seed(tmp_path: Path) -> None:
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 330, n_steps=15))
    report, is_stopped = stop_after(200)
    run(folder, report, is_stopped)
    run(folder)
    table = folder.table()
    for seed in (0, 1):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            events = event_accumulator.EventAccumulator(str(folder.path / "tensorboard" / f"seed_{seed}"))
            events.Reload()
        mine = table["Seed"] == seed
        shown = events.Scalars("EpCost")
        assert [each.step for each in shown] == table["Step"][mine].astype(int).tolist()
        assert np.allclose([each.value for each in shown], table["EpCost"][mine], rtol=1e-6)


def test_training_goes_on_without_tensorboard(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    folder = RunFolder.create(tmp_path, tiny("gather-a2c-pid", 60, n_steps=15))
    assert run(folder) == "finished"
    assert "pip install tensorboard" in capsys.readouterr().err


def test_an_evaluation_is_of_the_checkpoint_and_always_the_same(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("circle-ppo-unconstrained", 264))
    run(folder, has_events=False)
    first, second = (evaluate_folder(folder, 3, is_deterministic=True) for _ in range(2))
    assert first == second == json.loads((folder.path / "evaluation_deterministic.json").read_text())
    assert [row["Seed"] for row in first["runs"]] == [0, 1]
    assert all(row["EpLen"] == 65 for row in first["runs"])
    sampled = evaluate_folder(folder, 3, is_deterministic=False)
    assert sampled["runs"] != first["runs"]
    with pytest.raises(ValueError, match="n_episodes is -1; it is at least 1"):  # and does not film for ever
        next(film(folder, 0, -1))
