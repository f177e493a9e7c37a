"""The command line: every command once on a tiny training, typos, interruption of a real process, exit statuses."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import imageio.v2 as imageio
import numpy as np
import pytest
import torch
from scipy import stats

import bvf_tutorial
from bvf_tutorial import plotting
from bvf_tutorial.agents import PRESETS, figure_of
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.agents.sweeps import planned, sweep, values_of
from bvf_tutorial.cli import main
from bvf_tutorial.cli.terminal import Progress

torch.set_num_threads(1)
ROOT = Path(__file__).parents[2]
# 15-decision rollouts end within the 65-decision episodes, and every third within the window of a row.
SMALL = [
    *("--n-runs", "2", "--n-envs", "2", "--log-every", "100", "--evaluate-every", "300"),
    *("--n-evaluation-episodes", "2", "--algorithm.n-steps", "15", "--algorithm.epochs", "1", "--no-tensorboard"),
]


def new_folder(parent: Path, *words: str) -> RunFolder:
    assert main(["train", *words, *SMALL, "--out", str(parent)]) == 0
    return RunFolder.open(max(parent.iterdir(), key=lambda path: path.stat().st_mtime_ns))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return new_folder(tmp_path_factory.mktemp("trained"), "circle-ppo-backward", "--n-env-steps", "630")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    status = main([str(word) for word in words])
    return status, "".join(capsys.readouterr())


def test_help_is_instant_since_it_imports_no_torch() -> None:
    code = "import sys\nfrom bvf_tutorial.cli import main\nmain(['--help'])\nprint([m for m in ('torch', 'numpy', 'matplotlib') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    *usage, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    assert [line.split()[0] for line in usage[2:]] == ["train", "evaluate", "plot", "video", "sweep", "list"]


def test_help_of_a_command_has_units_defaults_and_the_figure(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["train", "cheetah-ppo-backward", "--help"])
    assert end.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "defaults of cheetah-ppo-backward (figure 3 of the paper)" in text
    assert "environment steps per run" in text
    assert "SARSA prices in reward per cost" in text
    assert figure_of("grid-sarsa-lyapunov") == "figure 1"
    assert figure_of("gather-a2c_paper-unconstrained") == "figure 2"
    assert figure_of("circle-ppo-target") == "appendix J"
    assert figure_of("cheetah-ppo-lyapunov_target") == "appendix J"
    assert (
        figure_of("gather_binding-ppo-backward") == figure_of("circle-ppo-pid") == figure_of("circle-a2c-target") == ""
    )


@pytest.mark.field("misspelt")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("trian", "no command 'trian'; did you mean 'train'?"),
        ("train circle-ppo-bakward", "no preset 'circle-ppo-bakward'; did you mean 'circle-ppo-backward'?"),
        ("train --env circl", "no --env 'circl'; did you mean 'circle'?"),
        ("train --constraint=bakward", "no --constraint 'bakward'; did you mean 'backward'?"),
        ("train --constraint backward_warm", "no preset 'circle-ppo-backward_warm'; did you mean"),
        ("train --algorithm sarsa", "--algorithm sarsa does not play --env circle; choose one of a2c, a2c_paper, a2c_tuned, ppo, ppo_discounted, ppo_paper."),
        ("train circle-ppo-pid --n-run 3", "no option --n-run; did you mean '--n-runs'?"),
        (
            "train circle-ppo-pid --constraint.multiplier.proportionl 2",
            "no option --constraint.multiplier.proportionl; did you mean '--constraint.multiplier.proportional'?",
        ),
        ("train circle-ppo-pid --n-runs ten", "Error parsing --n-runs: invalid literal for int() with base 10: 'ten'"),
        ("train circle-ppo-pid --constraint.use x", "invalid choice 'x' for argument '--constraint.use'. Expected one of"),
        ("train circle-ppo-pid --constraint.state-rule x", "constraint.state_rule is 'x'; choose one of none, backward"),
        ("train circle-ppo-pid --n-runs 0", "n_runs is 0; it is at least 1."),
        ("train circle-ppo-pid --environment.options cost_limt=5", "no argument 'cost_limt'; did you mean 'cost_limit'?"),
        ("train circle-ppo-pid --environment.options cost_limit", "say KEY=VALUE"),
        ("train --n-runs 3 circle-ppo-pid", "'circle-ppo-pid' stands behind an option; a preset comes first."),
        ("train circle-ppo-pid more", "'more' is one word too many"),
        ("plot FOLDER --metric EpCots", "no metric 'EpCots'; did you mean 'EpCost'?"),
        ("plot", "give at least one run's folder"),
        ("evaluate FOLDER --episodes 0", "--episodes is 0; it is at least 1."),
        ("evaluate FOLDER --episods 3", "no option --episods; did you mean '--episodes'?"),
        ("evaluate", "Missing from"),
        ("sweep circle-ppo-bakward", "no preset 'circle-ppo-bakward'; did you mean 'circle-ppo-backward'?"),
        ("sweep circle-ppo-pid --set n_run=3", "no setting 'n_run'; did you mean 'n_runs'?"),
        ("sweep circle-ppo-pid --set n_runs", "is no KEY=VALUE"),
        ("sweep circle-ppo-pid --processes 0", "--processes is 0; it is at least 1."),
        ("train --env circle --env circl", "no --env 'circl'; did you mean 'circle'?"),
        ("list preset", "no list of 'preset'; did you mean 'presets'?"),
        ("train --resume FOLDER --algorithm.gamma 0.5", "algorithm.gamma cannot change on --resume"),
        ("train circle-ppo-pid --resume FOLDER", "the preset cannot change on --resume"),
    ],
)  # fmt: skip
def test_a_mistake_gives_status_2_and_one_line(
    words: str, message: str, trained: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    status, text = said(capsys, *words.replace("FOLDER", str(trained.path)).split())
    assert status == 2
    assert message in text
    assert text.startswith("error: ")
    assert text.count("\n") == 1
    assert not [*tmp_path.iterdir()]  # nothing is left behind


def test_a_preset_by_its_parts_and_settings_by_flags(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    by_parts = new_folder(
        tmp_path, "--env", "gather", "--algorithm=a2c", "--constraint", "lyapunov", "--n-env-steps", "60",
        "--constraint.multiplier.recovery", "inf", "--environment.options", "cost_limit=0.5", "--algorithm.actor-hidden", "8", "9",
    )  # fmt: skip
    config = by_parts.config
    assert config.name == "gather-a2c-lyapunov"
    assert config.constraint == PRESETS["gather-a2c-lyapunov"].constraint
    assert config.algorithm.actor_hidden == (8, 9)  # type: ignore[union-attr]
    assert config.environment.options == {"observation": "scaled", "cost_limit": 0.5}
    assert by_parts.manifest["cost_limit"] == 0.5
    assert "of 0.5" in capsys.readouterr().out


def test_evaluate_prints_a_table_and_writes_json(trained: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, "evaluate", trained.path, "--episodes", "3", "--deterministic")
    assert status == 0
    report = json.loads((trained.path / "evaluation_deterministic.json").read_text())
    cost = [row["EpCost"] for row in report["runs"]]
    header, *rows = [line.split() for line in text.splitlines()]
    column = header.index("EpCost")
    assert [float(row[column]) for row in rows[:2]] == pytest.approx(cost, rel=1e-5)
    mean = dict(zip(header[1:], rows[2][1:], strict=True))
    assert float(mean["EpCost"]) == pytest.approx(np.mean(cost), rel=1e-5)
    assert "3 episodes a seed, deterministic policy after 630 steps; cost limit 10" in text


def test_plot_draws_runs_of_other_lengths(
    trained: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = new_folder(tmp_path / "short", "circle-ppo-backward", "--n-env-steps", "300")
    out = tmp_path / "deep" / "curves.png"
    assert main(["plot", str(trained.path), str(short.path), "--metric", "EpCost", "--out", str(out)]) == 0
    assert imageio.imread(out).shape[2] >= 3
    capsys.readouterr()
    status, text = said(capsys, "plot", trained.path, "--metric", "CorrectedShare", "--out", tmp_path / "x.docx")
    assert status == 1
    assert "docx" in text


def test_plot_draws_every_run_whatever_its_folder_is_called(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "a" / "run", tmp_path / "b" / "run", tmp_path / "other"]
    for each in folders:
        shutil.copytree(trained.path, each)
    drawn: list[list[str]] = []
    monkeypatch.setattr(plotting, "save_training_curves", lambda out, curves, *rest: drawn.append([*curves]))
    assert main(["plot", *map(str, folders), "--out", str(tmp_path / "x.png")]) == 0
    assert drawn == [[str(folders[0]), str(folders[1]), "other"]]


def test_plot_without_data_says_what_there_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = new_folder(tmp_path / "run", "circle-ppo-unconstrained", "--n-env-steps", "300")
    status, text = said(capsys, "plot", folder.path, "--metric", "SlackMedian", "--out", tmp_path / "x.png")
    assert status == 1
    assert "there is no data for 'SlackMedian'; measured were EpRet, EpCost" in text


def test_a_second_training_in_a_finished_folder_does_nothing(
    trained: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = trained.metrics.read_bytes()
    status, text = said(capsys, "train", "--resume", trained.path)
    assert status == 0
    assert "is finished" in text
    assert trained.metrics.read_bytes() == before


def test_video_films_one_whole_episode(trained: RunFolder, tmp_path: Path) -> None:
    assert main(["video", str(trained.path), "--out", str(tmp_path / "film.mp4"), "--run", "1"]) == 0
    with imageio.get_reader(tmp_path / "film.mp4") as reader:
        assert reader.count_frames() == 66  # every state of an episode of 65 decisions
    assert main(["video", str(trained.path), "--out", str(tmp_path / "film.gif"), "--run", "2"]) == 1


def test_lists_are_complete(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, "list", "presets")
    assert status == 0
    assert [line.split()[0] for line in text.splitlines()[1:]] == [*PRESETS]
    version = subprocess.run(
        [sys.executable, "-m", "bvf_tutorial", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert version.stdout.strip() == bvf_tutorial.__version__
    pipe = f"{sys.executable} -m bvf_tutorial list presets | head -1"
    assert subprocess.run(pipe, shell=True, capture_output=True, text=True, cwd=ROOT).stderr == ""
    status, text = said(capsys, "list")
    assert all(
        word in text
        for word in ("environments:", "algorithms:", "constraints:", "metrics:", "EpCost", "gather_binding")
    )


def test_an_interrupted_process_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    """A real process, not on a terminal, gets a real Ctrl-C; ``--resume`` then completes the table byte for byte."""
    words = ["train", "circle-ppo-backward", "--n-env-steps", "1500", *SMALL]
    whole = new_folder(tmp_path / "whole", "circle-ppo-backward", "--n-env-steps", "1500")
    process = subprocess.Popen(
        [sys.executable, "-m", "bvf_tutorial", *words, "--out", str(tmp_path / "split")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert process.stdout is not None
    lines: list[str] = []
    while not any(line.startswith("step ") for line in lines):
        lines.append(process.stdout.readline())
        assert lines[-1], process.communicate()
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    (path,) = (tmp_path / "split").iterdir()
    assert f"interrupted; python -m bvf_tutorial train --resume {path}" in output
    assert "\r" not in output + errors  # no bar outside a terminal
    assert "Traceback" not in errors
    split = RunFolder.open(path)
    assert split.status == "interrupted"
    assert 0 < split.manifest["done"] < 1500
    assert whole.metrics.read_bytes() != split.metrics.read_bytes()
    assert main(["train", "--resume", str(path), "--no-tensorboard"]) == 0
    assert split.metrics.read_bytes() == whole.metrics.read_bytes()


@pytest.mark.field("failing-sweep")
def test_sweep_goes_on_past_a_failure_and_names_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = [
        "sweep", "gather-a2c-pid", "--out", str(tmp_path), "--processes", "2", "--no-tensorboard", "--set",
        "n_env_steps=60", "n_runs=1,0", "n_envs=2", "log_every=30", "evaluate_every=0", "environment.options.horizon=-1,15",
    ]  # fmt: skip
    assert main(words) == 1
    text = capfd.readouterr().out
    assert "1 of 4 finished" in text
    assert text.count("failed: n_runs is 0; it is at least 1.") == 2
    assert text.count("failed: error: PointGather: horizon -1 must be >= 1") == 2  # as it ended, and in the summary
    (done,) = (each for each in tmp_path.iterdir() if RunFolder.open(each).status == "finished")
    before = done.joinpath("metrics.csv").read_bytes()
    assert main(words) == 1
    text = capfd.readouterr().out
    assert f"{done.name}: already finished" in text
    assert done.joinpath("metrics.csv").read_bytes() == before


def test_a_sweep_goes_on_past_a_folder_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    small = {"n_envs": 2, "log_every": 60, "evaluate_every": 0, "n_env_steps": 60, "algorithm.n_steps": 5}
    configs, _ = planned(["gather-a2c-pid"], [0, 1, 2], {key: [value] for key, value in small.items()})
    unread, unwritten, good = configs
    for name in (unread, unwritten):
        (tmp_path / name).mkdir()
        RunFolder.begin(tmp_path / name, configs[name])
    (tmp_path / unread / "manifest.json").write_text("{")
    (tmp_path / unwritten / "log.txt").mkdir()
    status = sweep(tmp_path, configs)
    assert "manifest.json is not JSON" in status[unread]
    assert "log.txt" in status[unwritten]
    assert status[good] == "finished"


def test_a_sweep_of_a_plain_kind_exits_with_0_and_refuses_other_settings(tmp_path: Path, capfd: Any) -> None:
    words = ["sweep", "gather-a2c-pid", "--out", str(tmp_path), "--no-tensorboard", "--seeds", "3", "--set"]
    small = ["n_envs=2", "log_every=30", "evaluate_every=0"]
    assert main([*words, *small, "n_env_steps=60"]) == 0
    (folder,) = tmp_path.iterdir()
    assert folder.name == "gather-a2c-pid-seed=3"
    assert RunFolder.open(folder).config.seed == 3
    assert main([*words, *small, "n_env_steps=90"]) == 1
    assert "holds a training with other n_env_steps; give another folder" in capfd.readouterr().out


@pytest.mark.slow
def test_a_stopped_sweep_keeps_checkpoints_and_goes_on(tmp_path: Path) -> None:
    small = {"n_envs": 2, "log_every": 60, "evaluate_every": 0, "n_env_steps": 3000, "algorithm.n_steps": 5}
    configs, _ = planned(["gather-a2c-pid"], [0, 1], {key: [value] for key, value in small.items()})
    first, second = configs
    log = tmp_path / first / "log.txt"
    is_begun = lambda: log.exists() and "step " in log.read_text()  # noqa: E731
    assert sweep(tmp_path, configs, is_stopped=is_begun) == {first: "interrupted", second: "not started"}
    assert 0 < RunFolder.open(tmp_path / first).manifest["done"] < 3000
    assert sweep(tmp_path, {first: configs[first]}) == {first: "finished"}
    assert RunFolder.open(tmp_path / first).manifest["n_sessions"] == 2


def test_a_plan_is_the_product_of_its_values() -> None:
    assert values_of("1e-3,3e-3") == [1e-3, 3e-3]
    assert values_of("[64,64],[32]") == [[64, 64], [32]]
    assert values_of("backward,lyapunov") == ["backward", "lyapunov"]
    assert values_of("true") == [True]
    configs, errors = planned(
        ["circle-ppo-pid", "circle-ppo-backward"], [0, 10],
        {"algorithm.learning_rate": [1e-3, 3e-3], "constraint.multiplier.proportional": [2, -1], "n_runs": [5]},
    )  # fmt: skip
    assert len(configs) == len(errors) == 8
    assert {config.seed for config in configs.values()} == {0, 10}
    assert all(config.n_runs == 5 for config in configs.values())
    assert all("proportional is -1" in error for error in errors.values())
    assert len({(c.name, c.seed) for c in configs.values()}) == 8


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_there_is_a_bar_and_no_lines(
    trained: RunFolder, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = _Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    with Progress(trained) as progress:
        progress(300, [])
        progress(
            600,
            [
                {"Step": 600, "Seed": 0, "EpRet": 4.0, "EpCost": 7.0},
                {"Step": 600, "Seed": 1, "EpRet": 6.0, "EpCost": np.nan},
            ],
        )
    assert "return 5, cost 7 of 10" in screen.getvalue()
    assert " steps/s" in screen.getvalue()
    assert capsys.readouterr().out == ""


# Curves.


@pytest.fixture
def axes() -> Iterator[Any]:
    from matplotlib.figure import Figure

    return Figure().add_subplot()


def test_the_band_is_students_interval() -> None:
    value = np.array([[1.0, 2.0, 4.0], [3.0, np.nan, 5.0], [7.0, np.nan, np.nan], [2.0, 2.0, 2.0]])
    mean, half = plotting.mean_interval(value)
    assert mean == pytest.approx([7 / 3, 4, 7, 2])
    low, high = stats.t.interval(0.95, 2, loc=7 / 3, scale=stats.sem(value[0]))
    assert (mean[0] - half[0], mean[0] + half[0]) == pytest.approx((low, high))
    assert half[1] == pytest.approx(stats.t.ppf(0.975, 1) * 1.0)
    assert np.isnan(half[2])
    assert half[3] == 0


@pytest.mark.field("ragged-seeds")
def test_curves_say_their_seeds_and_ends_and_the_limit(axes: Any) -> None:
    step = np.array([10.0, 20.0, 30.0])
    rng = np.random.default_rng(0)
    curves = {
        "many": (step, rng.normal(size=(3, 5))),
        "one": (step[:2], np.array([[1.0], [2.0]])),
        "constant": (step, np.full((3, 2), 4.0)),
        "unbounded": (step, np.array([[0.0, 0.0], [np.inf, 0.0], [0.0, 0.0]])),
        "single point": (step[:1], np.array([[1.0, 3.0]])),
    }
    plotting.draw_training_curves(curves, axes, "cost (cost)", [10.0, 10.0])
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == [
        "many (5 seeds)", "one (1 seed, ends at 20)", "constant (2 seeds)", "unbounded (2 seeds)",
        "single point (2 seeds, ends at 10)", "cost limit 10",
    ]  # fmt: skip
    assert axes.get_ylabel() == "cost (cost)"
    assert axes.get_xlabel() == "environment steps per run"
    assert len(axes.collections) == 4  # no band for one seed
    colours = [line.get_color() for line in axes.lines]
    assert len(set(colours)) == 6
    assert set(colours) <= set(plotting.COLORS.values())
    assert axes.lines[-1].get_ydata()[0] == 10
    axes.figure.canvas.draw()


def test_more_curves_than_colours_differ_in_their_lines(axes: Any) -> None:
    curves = {f"{k}": (np.arange(3.0), np.ones((3, 1)) * k) for k in range(13)}
    plotting.draw_training_curves(curves, axes, "x")
    assert len({(line.get_color(), line.get_linestyle()) for line in axes.lines}) == 13


def test_one_thread_unless_the_user_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for given, kept in (("", "1"), ("2", "2")):
        monkeypatch.delenv("OMP_NUM_THREADS")
        if given:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert main(["trian"]) == 2
        assert os.environ["OMP_NUM_THREADS"] == kept
