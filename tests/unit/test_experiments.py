"""The experiments' machinery on tiny trainings: what is kept, what resumes, what fails, what is drawn."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import PRESETS, Trainer, make_trainer
from bvf_tutorial.plotting import METHODS, method_style
from bvf_tutorial.records import Record
from studies import experiments, figures
from studies.agents import best_return
from studies.experiments import COLUMNS, FIGURES, OPTIMUM, Arm, Outcome, config_of, train_all, work

ROOT = Path(__file__).parents[2]
NAMES = sorted({name for figure in FIGURES.values() for name in figure.arms})
GRID_OPTIMUM = f"grid{OPTIMUM}"
TINY = ("gather_binding-a2c_tuned-backward", "grid-sarsa-backward_warm")


def arm(name: str, folder: Path) -> Arm:
    return Arm(config_of(name, is_smoke=True), folder, "abc")


def longer(name: str, folder: Path, n_updates: int = 12) -> Arm:
    small = arm(name, folder).config
    steps = n_updates * small.algorithm.n_steps * small.n_envs
    return Arm(replace(small, n_env_steps=steps, log_every=steps // 6, evaluate_every=steps // 2), folder, "abc")


def numbers(text: str) -> list[str]:
    """A table without the line that says how long it took."""
    return [line for line in text.splitlines() if not line.startswith("# seconds")]


def serially(arms: Sequence[Arm], n_processes: int) -> Iterator[Outcome]:
    """An executor in this process."""
    for each in arms:
        yield work(each)


# Which arms there are.


@pytest.mark.parametrize("name", NAMES)
def test_an_arm_is_a_preset_with_the_reported_seeds(name: str) -> None:
    config = config_of(name)
    task = name.partition("-")[0]
    assert config.name == name
    assert (config.n_runs, config.seed) == (
        20 if task.startswith("grid") else 10,
        300 if re.match("gather_binding.*-ppo", name) else 100,
    )
    assert config.n_env_steps // config.log_every == 40
    assert config.n_env_steps // config.evaluate_every == experiments.N_EVALUATIONS
    if not name.endswith(OPTIMUM):
        preset = PRESETS[name]
        assert (config.algorithm, config.constraint, config.environment, config.n_envs) == (
            preset.algorithm, preset.constraint, preset.environment, preset.n_envs
        )  # fmt: skip


def test_the_papers_figures_have_the_papers_arms() -> None:
    paper = {"unconstrained", "lyapunov", "backward"}
    for figure, tasks in (
        ("grid", {"grid-sarsa"}), ("a2c", {"gather-a2c_tuned", "cheetah-a2c_tuned", "circle-a2c_tuned"}),
        ("ppo", {"gather-ppo", "cheetah-ppo", "circle-ppo"}), ("target", {"gather-ppo", "cheetah-ppo"}),
    ):  # fmt: skip
        panels = FIGURES[figure].panels
        assert tasks <= panels.keys()
        for task in tasks:
            assert paper <= {name.rpartition("-")[2] for name in panels[task]}
    assert all(any(name.endswith("-target") for name in names) for names in FIGURES["target"].panels.values())


def test_every_method_of_a_figure_has_a_style_of_its_own() -> None:
    methods = {
        name.rpartition("-")[2].removesuffix("_warm").removesuffix("_tuned")
        for name in NAMES
        if not name.endswith(OPTIMUM)
    }
    assert METHODS.keys() >= methods
    for figure in FIGURES.values():
        for names in figure.panels.values():
            labels = [figures.label_of(name) for name in names]
            assert len({str(each) for each in method_style(labels).values()}) == len(names)
    assert method_style(["circle-ppo-backward"])["circle-ppo-backward"] == method_style(["backward"])["backward"]
    assert len({str(each) for each in method_style(["new", "newer", "pid"]).values()}) == 3


# One arm.


@pytest.mark.parametrize("name", TINY)
def test_a_table_says_where_it_comes_from(name: str, tmp_path: Path) -> None:
    outcome = work(arm(name, tmp_path))
    assert outcome.error == ""
    path = tmp_path / f"{name}.csv"
    path.write_text(outcome.text)
    head, column = Record.read(path).head, Record.read(path).column
    assert [*head] == [
        "command", "commit", "seeds", "cost limit", "hardware", "versions", "seconds", "settings"
    ]  # fmt: skip
    assert head["command"] == f"python -m studies.experiments --only '^{name}$'"
    assert head["seeds"] == "100 to 101"
    assert float(head["cost limit"]) == (20 if name.startswith("grid") else 0.4)
    assert json.loads(head["settings"])["algorithm.n_steps" if "a2c" in name else "constraint.warm_up"] > 0
    assert str(tmp_path) not in outcome.text and str(ROOT) not in outcome.text
    assert tuple(column) == COLUMNS
    assert column["Seed"].tolist() == [100, 101, 100, 101]
    assert np.isfinite(column["GreedyEpCost"][2:]).all() and np.isnan(column["GreedyEpCost"][:2]).all()
    assert np.isfinite(column["ExactEpCost"]).all() == name.startswith("grid")
    assert np.isfinite(column["EpCost"]).any()


@pytest.mark.parametrize("name", TINY)
def test_a_resumed_arm_equals_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole = work(longer(name, tmp_path / "whole"))
    begun = longer(name, tmp_path / "begun")
    n_asked = 0

    def is_stopped() -> bool:
        nonlocal n_asked
        n_asked += 1
        return n_asked == 3

    stopped = work(begun, is_stopped)
    assert stopped.text == ""
    assert "goes on from there" in stopped.error
    assert experiments.state_of(begun) == "begun"
    assert numbers(work(begun).text) == numbers(whole.text) != []


def test_a_crash_costs_what_came_after_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = TINY[0]
    whole = work(longer(name, tmp_path / "whole"))
    begun = longer(name, tmp_path / "begun")
    monkeypatch.setattr(experiments, "CHECKPOINT_SECONDS", 0.0)
    advance, n_done = Trainer.advance, 0

    def until_the_fifth(self: Trainer) -> list[dict[str, float]]:
        nonlocal n_done
        n_done += 1
        if n_done == 5:
            raise OSError("power cut")
        return advance(self)

    monkeypatch.setattr(Trainer, "advance", until_the_fifth)
    assert work(begun).error.endswith("OSError: power cut\n")
    assert numbers(work(begun).text) == numbers(whole.text)
    assert n_done == 12 + 1, "it went on, it did not begin again"


def test_an_arm_that_another_process_finished_meanwhile_is_not_trained_again(tmp_path: Path) -> None:
    each = arm(TINY[0], tmp_path)
    train_all([each], serially, 1)
    marked = each.table.read_text() + "\n"
    each.table.write_text(marked)
    assert work(each).text == marked


def test_the_device_is_no_setting(tmp_path: Path) -> None:
    """A table from a GPU is not stale on a CPU; the line about the hardware says what it was."""
    each = arm(TINY[0], tmp_path)
    on_gpu = replace(each.config, device="cuda")
    assert experiments.settings_of(on_gpu) == experiments.settings_of(each.config)
    assert experiments.settings_of(replace(each.config, n_envs=3)) != experiments.settings_of(each.config)


def test_a_checkpoint_of_other_settings_is_not_gone_on_from(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    begun = longer(TINY[0], tmp_path)
    assert work(begun, lambda: True).error
    other = replace(begun, config=replace(begun.config, seed=7))
    fresh = replace(other, folder=tmp_path / "fresh")
    assert numbers(work(other).text) == numbers(work(fresh).text)
    assert "the preset has changed since its checkpoint" in capsys.readouterr().err


def test_the_optima_are_those_of_the_trainings_layouts(tmp_path: Path) -> None:
    """Against a linear program and a backward induction, on layouts small enough for the program."""
    small = arm(GRID_OPTIMUM, tmp_path)
    options = {"is_one_hot": False, "horizon": 14, "size": 4, "cost_limit": 0.2}
    config = replace(small.config, environment=replace(small.config.environment, options=options))
    (tmp_path / f"{GRID_OPTIMUM}.csv").write_text(work(replace(small, config=config)).text)
    column = Record.read(tmp_path / f"{GRID_OPTIMUM}.csv").column
    assert column["Seed"].tolist() == [100, 101]
    trainer = make_trainer(config)
    for run in range(2):
        grid = trainer.env.task.grid_of(run * trainer.env.n_envs)
        best = best_return(grid.horizon, grid.to_cmdp())[grid.start_state]
        assert column["BestEpRet"][run] == pytest.approx(best, rel=1e-4)
        within = tb.optimal_policy(grid.to_cmdp(time_augmented_states=True))
        assert column["FeasibleEpRet"][run] == pytest.approx(within.value, rel=1e-4)
        assert column["FeasibleEpCost"][run] == pytest.approx(0.2, rel=1e-4), "the limit binds"
        assert column["Multiplier"][run] > 0


def test_a_layout_without_a_feasible_policy_has_no_feasible_return(tmp_path: Path) -> None:
    small = arm(GRID_OPTIMUM, tmp_path)
    options = {"is_one_hot": False, "horizon": 14, "size": 4, "cost_limit": 1e-9}
    config = replace(small.config, environment=replace(small.config.environment, options=options))
    (tmp_path / f"{GRID_OPTIMUM}.csv").write_text(work(replace(small, config=config)).text)
    column = Record.read(tmp_path / f"{GRID_OPTIMUM}.csv").column
    assert np.isnan(column["FeasibleEpRet"]).all()
    assert np.isfinite(column["BestEpRet"]).all()


# Many arms.


def broken(each: Arm) -> Arm:
    environment = replace(each.config.environment, options={"no_such_option": 1})
    return replace(each, config=replace(each.config, name=f"{each.name}_broken", environment=environment))


def test_one_failing_arm_is_reported_and_the_rest_finish(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    well = [arm(name, tmp_path) for name in TINY]
    errors = train_all([well[0], broken(well[0]), well[1]], serially, 1)
    assert errors.keys() == {f"{TINY[0]}_broken"}
    assert "no_such_option" in errors[f"{TINY[0]}_broken"]
    assert f"{TINY[0]}_broken failed:" in capsys.readouterr().err
    assert {path.name for path in tmp_path.glob("*.csv")} == {f"{name}.csv" for name in TINY}
    assert not any(each.cache.exists() for each in well)


def test_the_command_skips_what_is_there_and_names_what_is_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(experiments, "EXECUTORS", {"local": serially})
    words = ["a2c", "--only", "^gather_binding-a2c_tuned-(backward|unconstrained)$", "--output", str(tmp_path)]
    handler = signal.getsignal(signal.SIGTERM)
    try:
        assert experiments.main([*words, "--smoke"]) == 0
        assert "2 trained, 0 were there" in capsys.readouterr().out
        kept = (tmp_path / "gather_binding-a2c_tuned-backward.csv").read_bytes()
        assert experiments.main([*words, "--smoke"]) == 0
        assert "0 trained, 2 were there" in capsys.readouterr().out
        assert (tmp_path / "gather_binding-a2c_tuned-backward.csv").read_bytes() == kept
        # The reported arms have other sizes than those of the smoke test.
        assert experiments.main(words) == 1
        assert "gather_binding-a2c_tuned-backward is stale: n_runs, n_envs, n_env_steps" in capsys.readouterr().err
        assert experiments.main([*words, "--list"]) == 0
        assert "stale" in capsys.readouterr().out
        assert experiments.main([*words, "--smoke", "--renew"]) == 0
    finally:
        signal.signal(signal.SIGTERM, handler)


@pytest.mark.parametrize("words", [["no_figure"], ["--processes", "0"], ["--executor", "slurm"]])
def test_wrong_words_are_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        experiments.main(words)
    assert ended.value.code == 2
    assert words[-1] in capsys.readouterr().err


def test_a_preset_that_is_none_is_named() -> None:
    with pytest.raises(KeyError, match="no preset 'circle-ppo-backwards'; the nearest are circle-ppo-backward"):
        config_of("circle-ppo-backwards")


@pytest.mark.skipif("ray" in sys.modules, reason="Ray is here")
def test_ray_is_asked_for_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SystemExit, match="pip install"):
        next(experiments.on_ray([], 1))


# Figures.


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest tables that can be drawn: one of a method with two runs, one of another."""
    folder = tmp_path_factory.mktemp("tables")
    train_all(
        [arm(name, folder) for name in ("gather_binding-a2c_tuned-backward", "gather_binding-a2c_tuned-unconstrained")],
        serially,
        1,
    )
    return folder


def test_a_figure_is_drawn_and_names_what_is_missing(tables: Path, tmp_path: Path) -> None:
    missing = figures.write_figure("a2c", tables, tmp_path)
    assert set(missing) == set(FIGURES["a2c"].arms) - {
        "gather_binding-a2c_tuned-backward",
        "gather_binding-a2c_tuned-unconstrained",
    }
    assert (tmp_path / "a2c.png").stat().st_size > 10_000
    text = (tmp_path / "a2c.md").read_text()
    assert text.count("not trained yet") == len(missing)
    rows = figures.rows_of(FIGURES["a2c"], tables)
    measured = {(row["arm"], row["policy"]) for row in rows if "n_runs" in row}
    assert measured == {
        (f"gather_binding-a2c_tuned-{method}", policy)
        for method in ("backward", "unconstrained")
        for policy in ("training", "sampled", "greedy")
    }
    picture = figures.drawn(FIGURES["a2c"], tables)
    titles = [ax.get_title() for ax in picture.axes]
    assert titles == ["Point-Gather, binding, A2C (2 seeds)", ""], "a panel without arms is not drawn"
    drawn = [line for line in picture.axes[1].lines if len(line.get_xdata()) == 2 and line.get_linestyle() != "--"]
    assert len(drawn) == 2
    assert picture._suptitle.get_text().startswith("not trained yet: gather-a2c_tuned-unconstrained")
    words = [each.get_text() for each in picture.legends[0].get_texts()]
    assert words == ["unconstrained", "backward", "cost limit"]


def test_a_figure_shows_the_mean_of_its_table(tables: Path) -> None:
    column = Record.read(tables / "gather_binding-a2c_tuned-unconstrained.csv").column
    picture = figures.drawn(FIGURES["a2c"], tables)
    line = picture.axes[1].lines[0]
    steps = np.unique(column["Step"])
    assert line.get_xdata().tolist() == steps.tolist()
    expected = [np.nanmean(column["EpCost"][column["Step"] == step]) for step in steps]
    assert line.get_ydata() == pytest.approx(expected)
    dashed = picture.axes[1].lines[-1]
    assert set(dashed.get_ydata()) == {0.4}


def test_points_without_episodes_are_no_points(tmp_path: Path) -> None:
    """A training's first rows may be before the first episode's end: they count nothing, and are not drawn."""
    path = tmp_path / "circle-ppo-pid.csv"
    lines = [
        "# cost limit: 10", "Step,Seed,EpRet,EpCost,ViolationRate,Episodes",
        "100,1,,,,0", "100,2,,,,0", "200,1,5,12,1,2", "200,2,,,,0", "300,1,7,8,0.25,4", "300,2,9,6,0,4",
    ]  # fmt: skip
    path.write_text("\n".join(lines) + "\n")
    found = Record.read(path).summary("training")
    assert (found.n_runs, found.n_failed, found.n_within) == (2, 0, 1)
    assert (found.ep_return, found.ep_cost) == ((6 + 9) / 2, (10 + 6) / 2)
    assert found.violation_rate == pytest.approx((2 + 1) / 10)
    assert found.cumulative_violation == (2 * 200 + 0) / 2
    assert found.steps_to_feasibility == 300
    figure = experiments.Figure("one", ("circle-ppo-pid",))
    assert figures.drawn(figure, tmp_path).axes[0].lines[0].get_xdata().tolist() == [200, 300]
    assert [row["policy"] for row in figures.rows_of(figure, tmp_path)] == ["training"]


def test_a_figure_without_arms_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(FileNotFoundError, match=r"no arm of this figure has a table in .*; python -m studies"):
        figures.drawn(FIGURES["ppo"], tmp_path)
    assert figures.main(["ppo", "--tables", str(tmp_path), "--output", str(tmp_path / "out")]) == 0
    assert "ppo: not drawn" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_the_grid_world_has_its_optimum(tmp_path: Path) -> None:
    train_all([arm("grid-sarsa-unconstrained", tmp_path)], serially, 1)
    assert math.isnan(figures.best_return("grid", tmp_path))
    assert len(figures.drawn(FIGURES["grid"], tmp_path).axes[0].lines) == 1
    (tmp_path / f"{GRID_OPTIMUM}.csv").write_text("# seeds: two\nSeed,FeasibleEpRet\n100,980\n101,984\n")
    line = figures.drawn(FIGURES["grid"], tmp_path).axes[0].lines[1]
    assert set(line.get_ydata()) == {982.0}


def test_committed_tables_are_whole_and_of_the_presets_as_they_are() -> None:
    for path in sorted(experiments.OUTPUT.glob("*.csv")):
        assert path.stem in NAMES, f"{path.name} is of no figure"
        each = Arm(config_of(path.stem), experiments.OUTPUT)
        assert experiments.state_of(each) == "finished"
        assert path.stat().st_size <= 150_000
        column, config = Record.read(path).column, each.config
        assert np.unique(column["Seed"]).tolist() == list(range(config.seed, config.seed + config.n_runs))
        if not path.stem.endswith(OPTIMUM):
            assert column["Step"].max() >= config.n_env_steps


# In processes of their own: minutes.


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(OPTIMUM)])
def test_every_arm_of_every_figure_trains(name: str, tmp_path: Path) -> None:
    outcome = work(arm(name, tmp_path))
    assert outcome.error == ""
    assert len(outcome.text.splitlines()) == 8 + 1 + 4


@pytest.mark.slow
def test_a_killed_process_takes_no_other_with_it(tmp_path: Path) -> None:
    long = longer("circle-a2c_tuned-backward", tmp_path, 10**5)
    waiting = arm("circle-a2c_tuned-pid", tmp_path)

    def kill_the_first() -> None:
        while not long.cache.exists() or not multiprocessing.active_children():
            time.sleep(0.1)
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_the_first)
    killer.start()
    errors = train_all([long, waiting], experiments.on_this_machine, 1)
    killer.join()
    assert errors.keys() == {"circle-a2c_tuned-backward"}
    assert errors["circle-a2c_tuned-backward"].startswith("process died")
    assert waiting.table.exists()


@pytest.mark.slow
def test_an_interrupted_command_leaves_checkpoints(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "studies.experiments",
        "a2c",
        "--only",
        "^circle.*(backward|lyap)",
        "--processes",
        "2",
    ]
    process = subprocess.Popen(
        [*command, "--output", str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
        # As from a terminal: what a shell starts in the background ignores this signal, and so do its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    caches = [tmp_path / ".cache" / f"circle-a2c_tuned-{method}" for method in ("backward", "lyapunov")]
    while not all((cache / "lock").exists() for cache in caches):
        assert process.poll() is None
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert "goes on from the checkpoints" in process.communicate(timeout=120)[1]
    assert process.returncode == 130
    assert all((cache / "checkpoint.pt").exists() for cache in caches)


@pytest.mark.slow
def test_on_two_ray_nodes_one_arm_fails_and_the_rest_finish(tmp_path: Path) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed (pip install ray): its executor is not tested")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    try:
        ray.init(address=cluster.address, runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}})
        assert sum(node["Alive"] for node in ray.nodes()) == 2
        well = [arm(name, tmp_path) for name in TINY]
        errors = train_all([well[0], broken(well[0]), well[1]], experiments.on_ray, 2)
    finally:
        ray.shutdown()
        cluster.shutdown()
    assert errors.keys() == {f"{TINY[0]}_broken"}
    for each in well:
        here = work(replace(each, folder=tmp_path / "here")).text
        assert numbers(each.table.read_text())[2:] == numbers(here)[2:]
