"""Costs, their units and the limit: what is estimated, what is reported under which name, and where the limit stands."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from bvf_tutorial import api, plotting
from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import ALGORITHMS, PRESETS, Constraint, lambda_returns, sweeps
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.agents.metrics import METRICS
from bvf_tutorial.agents.plain import ConfigError
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.cli import main
from tests.agents.probes import TableTask, shown, trained, trainer_of
from tests.envs.toys import CounterEnv

torch.set_num_threads(1)
GAMMA = 0.99
TINY = [
    "--n-runs",
    "2",
    "--n-envs",
    "2",
    "--n-env-steps",
    "300",
    "--log-every",
    "150",
    "--evaluate-every",
    "150",
    "--n-evaluation-episodes",
    "2",
    "--algorithm.n-steps",
    "15",
    "--no-tensorboard",
]


def endless(cost: float) -> tb.CMDP:
    """Return one state for ever with two actions that do the same: reward 1 and a cost, decision after decision."""
    return tb.CMDP.episodic(np.ones((1, 2, 1)), np.ones((1, 2)), np.array([cost]), np.ones(1), 1.0)


# --- what is estimated ---

COMMON: dict[str, Any] = {"gamma": 0.8, "cost_gamma": 1.0, "n_steps": 8}
LEARNERS: dict[str, Algorithm] = {
    "sarsa": replace(
        ALGORITHMS["sarsa"], **COMMON, hidden=(16,), learning_rate=1e-2, cost_learning_rate=1e-2, reward_scale=1.0,
        cost_scale=1.0, final_learning_rate=0.02,
    ),
    "a2c": replace(
        ALGORITHMS["a2c"], **COMMON, actor_hidden=(8,), critic_hidden=(16, 16), critic_learning_rate=2e-2, cost_scale=1.0,
        final_learning_rate=0.02, is_reward_standardised=False,
    ),
}  # fmt: skip


def critics(learner: Any) -> dict[str, float]:
    """Return the values of the only state that is no end."""
    step = shown(torch.eye(2)[:1])
    if hasattr(learner, "_shown"):
        return {key: float(value[0, 0].abs().max()) for key, value in learner._shown.items()}
    action = torch.zeros(1, 1, 1)
    return {
        "q": float(learner.network["value"](step.observation).detach()[0, 0, 0]),
        "cost_q": abs(float(learner.cost_q(step.observation, action)[0].detach())),
        "backward": abs(float(learner.backward_value(step.observation)[0].detach())),
    }


@pytest.mark.field("no-cost")
@pytest.mark.parametrize("algorithm", LEARNERS)
def test_without_costs_every_critic_goes_to_0(algorithm: str) -> None:
    """Ten decisions with reward 1 and cost 0: the critics of costs forget their first values, that of reward does not."""
    task = TableTask(cmdp=endless(0.0), horizon=10, is_discrete=algorithm == "sarsa")
    trainer = trainer_of(task, LEARNERS[algorithm], Constraint("backward"), 120, n_envs=2)
    before = critics(trainer.learner)
    after = critics(trained(trainer).learner)
    first = max(before["cost_q"], before["backward"])
    assert first > 0.02
    assert max(after["cost_q"], after["backward"]) < 0.1 * first
    assert after["q"] > 1  # ten decisions at gamma .8: between 1 and 5


@pytest.mark.field("endless-cost")
def test_cost_1_for_ever_is_worth_100() -> None:
    """Exactly, from one long sample that is cut at its end, and as the fixed point of the learners' own target."""
    chain = tb.policy_chain(endless(1.0), np.full((1, 2), 0.5))
    assert tb.forward_value(chain, [1.0], GAMMA) == pytest.approx([100.0], rel=1e-12)
    episodes = tb.sample_episodes(endless(1.0), np.full((1, 2), 0.5), 3, np.random.default_rng(0), 50, "truncate")
    assert tb.lstd(episodes, [1.0], gamma=GAMMA).value == pytest.approx([100.0], rel=1e-9)
    one, value = torch.ones(50, dtype=torch.float64), torch.zeros(50, dtype=torch.float64)
    for _ in range(60):  # 3,000 steps of value iteration, 50 at a time
        value = lambda_returns(one, GAMMA * one, value.roll(-1), 1.0)[0].expand(50)
    assert float(value[0]) == pytest.approx(100.0, rel=1e-12)


@pytest.mark.field("endless-cost")
@pytest.mark.slow
def test_a_critic_finds_100() -> None:
    """SARSA's cost critic, from a stream that the horizon cuts every ten decisions: a value of 10 would forget the rest."""
    settings = replace(LEARNERS["sarsa"], cost_gamma=GAMMA, n_steps=12, cost_scale=0.01, epsilon=(1.0, 1.0))
    task = TableTask(cmdp=endless(1.0), horizon=10)
    learner = trained(trainer_of(task, settings, Constraint("backward"), 300, n_envs=1, time_limit="truncate")).learner
    assert critics(learner)["cost_q"] == pytest.approx(100.0, rel=0.02)


# --- what is reported under which name ---


@pytest.mark.field("two-units")
def test_200_and_86_6_have_names_of_their_own() -> None:
    """Two hundred states of cost 1. A training that discounts costs in its critics reports undiscounted ones."""
    line = np.eye(200, k=1)
    cmdp = tb.CMDP.episodic(np.repeat(line[:, None], 2, axis=1), np.zeros((200, 2)), np.ones(200), np.eye(200)[0], 1.0)
    policy = np.full((200, 2), 0.5)
    discounted = (1 - GAMMA**200) / (1 - GAMMA)
    assert discounted == pytest.approx(86.6, abs=0.005)
    assert tb.evaluate_policy(cmdp, policy)[1] == pytest.approx(200.0)
    assert tb.evaluate_policy(cmdp, policy, GAMMA)[1] == pytest.approx(discounted)
    chain = tb.policy_chain(cmdp, policy)
    assert tb.forward_value(chain, cmdp.cost)[0] == pytest.approx(200.0)
    assert tb.forward_value(chain, cmdp.cost, GAMMA)[0] == pytest.approx(discounted)
    settings = replace(LEARNERS["sarsa"], cost_gamma=GAMMA, gamma=GAMMA)
    trainer = trainer_of(TableTask(cmdp=cmdp), settings, Constraint("backward"), 60, evaluate_every=480)
    rows = [row for _ in range(60) for row in trainer.advance()]
    assert trainer.is_finished and len(rows) == 1
    assert [rows[0][key] for key in ("EpCost", "SampledEpCost", "GreedyEpCost")] == [200.0] * 3
    # No column has a discounted cost of episodes, so that none can be taken for the other.
    costs = {key: text for key, text in METRICS.items() if "cost per episode" in text}
    assert set(costs) == {"EpCost", "SampledEpCost", "GreedyEpCost"}
    assert all(text.startswith("undiscounted cost per episode (cost)") for text in costs.values())


@pytest.mark.field("evaluation-cost")
def test_both_evaluations_have_names_and_ten_episodes() -> None:
    for name, config in PRESETS.items():
        assert config.n_evaluation_episodes >= 10 and config.evaluate_every > 0, name
    for prefix, label in (("Sampled", "sampled"), ("Greedy", "deterministic")):
        for key in ("EpRet", "EpCost", "EpLen", "ViolationRate"):
            assert METRICS[f"{prefix}{key}"] == f"{METRICS[key]}, evaluation of the {label} policy"
    # What differs is seen: epsilon-greedy exploration costs, the greedy policy does not. Action 0 costs nothing.
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 1] = transition[0, 1, 2] = 1.0
    choice = tb.CMDP.episodic(transition, np.zeros((3, 2)), [0.0, 0.0, 1.0], [1.0, 0, 0], 0.5)
    settings = replace(LEARNERS["sarsa"], epsilon=(1.0, 1.0))
    trainer = trainer_of(
        TableTask(cmdp=choice), settings, Constraint(multiplier=PRESETS["grid-sarsa-recovery"].constraint.multiplier),
        20, n_evaluation=10, evaluate_every=640,
    )  # fmt: skip
    trainer.learner._shown["q"] = torch.tensor([2.0, 1.0]).expand(1, 4, 2).clone()  # type: ignore[attr-defined]
    sampled, greedy = (trainer.evaluator(trainer.learner, is_greedy) for is_greedy in (False, True))
    assert sampled.cost.shape == greedy.cost.shape == (1, 10)
    assert 0 < sampled.cost.mean() < 1 and (greedy.cost == 0).all()
    assert {*sampled.metrics(0.5, "Sampled"), *greedy.metrics(0.5, "Greedy")} < set(METRICS)


@pytest.mark.field("evaluation-cost")
def test_the_command_judges_a_hundred_episodes_and_says_how(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, kind in (((), "sampled"), (("--deterministic",), "deterministic")):
        assert main(["evaluate", str(folder.path), *words]) == 0
        assert f"100 episodes a seed, {kind} policy after 300 steps; cost limit 10" in capsys.readouterr().out
        report = json.loads((folder.path / f"evaluation_{kind}.json").read_text(encoding="utf-8"))
        assert (report["n_episodes"], report["is_deterministic"]) == (100, kind == "deterministic")


# --- where the limit stands ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    parent = tmp_path_factory.mktemp("costs")
    assert main(["train", "circle-ppo-unconstrained", *TINY, "--algorithm.epochs", "1", "--out", str(parent)]) == 0
    (path,) = parent.iterdir()
    return RunFolder.open(path)


@pytest.mark.field("where-is-the-limit")
def test_help_says_the_limit_and_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "circle-ppo-unconstrained", "--help"])
    text = " ".join(capsys.readouterr().out.replace("\u2502", " ").split())
    assert "cost_limit (undiscounted cost per episode)" in text


@pytest.mark.field("where-is-the-limit")
def test_config_json_says_the_limit_of_a_training_and_of_a_sweep(
    folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where it is the task's own and nobody typed it."""
    config, manifest = (json.loads((folder.path / f"{name}.json").read_text()) for name in ("config", "manifest"))
    assert config["environment"]["options"]["cost_limit"] == manifest["cost_limit"] == 10.0
    real = sweeps.sweep
    monkeypatch.setattr(sweeps, "sweep", lambda *words: real(*words[:-1], lambda: True))  # writes folders, starts none
    words = ["sweep", "gather-a2c-pid", "--set", "environment.options.horizon=15,-1", "--out", str(tmp_path)]
    for _ in range(2):  # the second finds the first's folders, and in them the same configurations
        assert main(words) == 1
        assert capsys.readouterr().out.count(": not started") == 2
    good = json.loads((tmp_path / "gather-a2c-pid-environment.options.horizon=15" / "config.json").read_text())
    assert good["environment"]["options"]["cost_limit"] == PRESETS["gather-a2c-pid"].environment.make(1, 1).cost_limit


@pytest.mark.field("where-is-the-limit")
@pytest.mark.parametrize("metric", [key for key in METRICS if key.startswith(("Ep", "Sampled", "Greedy", "Violation"))])
def test_every_plot_of_costs_has_the_limit(
    metric: str, folder: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    draw = plotting.draw_training_curves
    monkeypatch.setattr(plotting, "draw_training_curves", lambda *words: drawn.append(draw(*words)))
    assert main(["plot", str(folder.path), "--metric", metric, "--out", str(tmp_path / "curve.svg")]) == 0
    (axes,) = drawn
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    at_limit = [line for line in axes.lines if line.get_linestyle() == "--" and set(line.get_ydata()) == {10.0}]
    assert ("cost limit 10" in labels) == (len(at_limit) == 1) == metric.endswith("EpCost")


@pytest.mark.field("where-is-the-limit")
def test_the_figures_of_the_book_have_the_limit() -> None:
    curve = (np.array([1.0, 2.0]), np.array([[3.0, 4.0], [5.0, 6.0]]))
    figure = Figure()
    plotting.draw_comparison(figure, {"One": {"circle-ppo-pid": (curve, curve)}}, {"One": 7.0})
    gain, cost = figure.axes
    assert [7.0 in line.get_ydata() for axes in (gain, cost) for line in axes.lines] == [False, False, True]


@pytest.mark.field("one-limit")
def test_an_override_is_explicit_and_recorded(tmp_path: Path) -> None:
    """The environment's 20 and our 25: the Python interface, the command line, and a file that was changed afterwards."""
    worlds = api.Problem(lambda: CounterEnv(cost_limit=20.0), 25.0).make(2)
    assert (worlds.cost_limit, worlds.cost_limit_source) == (25.0, "argument, in place of the environment's 20")
    assert api.Problem(lambda: CounterEnv(cost_limit=20.0)).make(2).cost_limit_source == "environment"
    words = ["train", "gather-a2c-pid", *TINY, "--environment.options", "cost_limit=25", "--out", str(tmp_path)]
    assert main(words) == 0
    (path,) = tmp_path.iterdir()
    folder = RunFolder.open(path)
    assert folder.config.environment.options["cost_limit"] == folder.manifest["cost_limit"] == 25.0
    trainer, _, _ = folder.trainer()
    assert trainer.learner.setting.cost_limit == trainer.env.cost_limit == trainer.evaluator.env.cost_limit == 25.0
    text = (path / "config.json").read_text(encoding="utf-8")
    (path / "config.json").write_text(text.replace('"cost_limit": 25', '"cost_limit": 20'), encoding="utf-8")
    assert text != (path / "config.json").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config.json is not the checkpoint's: environment.options differ"):
        folder.trainer()
