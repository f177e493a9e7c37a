"""Numbers and safety layers: limits of 0, gradients of 0, several constraints, sets without a member."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bvf_tutorial import api
from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import ALGORITHMS, CONSTRAINTS, Constraint, Trainer
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.agents.metrics import append_rows, read_table, series
from bvf_tutorial.halfspace import HalfSpace, Projection, Status, project, project_all, project_box, project_curved
from bvf_tutorial.tabular import StateStatus
from tests.agents.probes import TableTask, trainer_of

torch.set_num_threads(1)
SMALL: dict[str, Algorithm] = {
    "sarsa": replace(ALGORITHMS["sarsa"], hidden=(8,), n_steps=16, epsilon_steps=100),
    "ppo": replace(ALGORITHMS["ppo"], actor_hidden=(8,), critic_hidden=(8, 8), n_steps=16, epochs=1, minibatches=1),
}


def corridor(cost: list[float], limit: float) -> tb.CMDP:
    """Return states one after the other for ever, the last one first again; reward 1 a move, actions the same."""
    n = len(cost)
    transition = np.repeat(np.roll(np.eye(n), 1, axis=1)[:, None], 3, axis=1)
    return tb.CMDP.episodic(transition, np.ones((n, 3)), np.array(cost), np.eye(n)[0], limit)


def trainer_with(algorithm: str, constraint: Constraint, cost: list[float], limit: float, horizon: int) -> Trainer:
    """Return 256 environment steps of four worlds, a row of metrics after each of the four updates."""
    task = TableTask(
        cmdp=corridor(cost, limit), horizon=horizon, cost_limit=limit, is_discrete=algorithm == "sarsa"
    )  # fmt: skip
    return trainer_of(task, SMALL[algorithm], constraint, 4, n_envs=4, log_every=64)


@pytest.mark.field("zero-limit")
@pytest.mark.parametrize("algorithm", SMALL)
@pytest.mark.parametrize("method", CONSTRAINTS)
def test_limit_0_and_cost_0_for_256_steps(algorithm: str, method: str, tmp_path: Path) -> None:
    """Sixteen decisions an episode, then a thousand, of which none ends within 256 steps: its columns stay empty."""
    for horizon, n_episodes in ((16, 4), (1000, 0)):
        trainer = trainer_with(algorithm, CONSTRAINTS[method], [0.0, 0.0], 0.0, horizon)
        path = tmp_path / f"{horizon}.csv"
        while not trainer.is_finished:
            append_rows(path, trainer.advance())
        assert trainer.done == 256
        text, table = path.read_text(encoding="ascii").lower(), read_table(path)
        assert "nan" not in text and "inf" not in text
        assert (table["LagrangeMultiplier"] >= 0).all()
        assert table["Episodes"].sum() == n_episodes * 3
        for key in ("EpRet", "EpCost", "EpLen", "ViolationRate"):
            assert np.isnan(table[key]).all() == (n_episodes == 0), key
        if n_episodes:
            assert series(table, "EpCost")[1].max() == 0
        else:
            with pytest.raises(ValueError, match="there is no data for 'EpCost'"):
                series(table, "EpCost")
        for value in trainer.learner.network.state_dict().values():
            assert value.isfinite().all()


ZERO, POINT = torch.zeros(2, dtype=torch.float64), torch.tensor([0.25, -0.5], dtype=torch.float64)


def layers() -> dict[str, Any]:
    """Return every projection of the package as a function of slacks [N], for normals of 0 around one point."""

    def around(slack: torch.Tensor) -> tuple[HalfSpace, torch.Tensor]:
        return HalfSpace.around(POINT, ZERO, slack), POINT.expand(len(slack), 2)

    def all_of(slack: torch.Tensor) -> Projection:
        return project_all(
            torch.zeros(len(slack), 1, 2, dtype=torch.float64), slack[:, None], POINT.expand(len(slack), 2)
        )

    def module(box: float) -> Any:
        none = torch.tensor(0.0, dtype=torch.float64)
        return lambda slack: api.SafetyLayer(-box, box)(
            POINT.expand(len(slack), 2), -slack, torch.zeros(len(slack), 2, dtype=torch.float64), none, none, 0.0
        )

    return {
        "project": lambda slack: project(*around(slack)),
        "box": lambda slack: project_box(*around(slack), -1.0, 1.0),
        "curved": lambda slack: project_curved(*around(slack), 0.5),
        "all": all_of,
        "layer": module(np.inf),
        "layer in a box": module(1.0),
    }


@pytest.mark.field("zero-gradient")
@pytest.mark.parametrize("name", layers())
@pytest.mark.parametrize("slack", [[1.0], [-1.0], [1.0, -1.0], [-1.0, 1.0]])
def test_a_gradient_of_0_moves_nothing(name: str, slack: list[float]) -> None:
    step = layers()[name](torch.tensor(slack, dtype=torch.float64))
    assert torch.equal(step.point, POINT.expand(len(slack), 2))
    assert step.status.tolist() == [Status.INACTIVE if each > 0 else Status.ZERO_GRADIENT for each in slack]
    assert step.is_feasible.tolist() == [each > 0 for each in slack]
    assert (step.multiplier == 0).all()


@pytest.mark.field("zero-gradient")
def test_a_gradient_of_0_is_counted_in_the_log() -> None:
    """Constant critics, Q_D = 0 and Vb = 2, under limit 1: slack 1 + 2 - 2 where the cost is 2, 1 + 0 - 2 where it is 0."""
    trainer = trainer_with("ppo", Constraint("backward"), [2.0, 0.0, 0.0], 1.0, 1000)
    learner = trainer.learner
    with torch.no_grad():
        for name, value in (("cost_q", 0.0), ("backward", 2.0 * learner.config.cost_scale)):
            network = learner.network[name]
            network.weight[-1].zero_()  # no slope in the action either
            network.bias[-1].fill_(value)
    rollout = trainer.collect()
    is_spent = rollout.cost[:-1] == 0
    assert 0.5 < is_spent.float().mean() < 1
    expected = torch.where(is_spent, int(Status.ZERO_GRADIENT), int(Status.INACTIVE))
    assert torch.equal(rollout.decision["status"].long(), expected)
    assert (rollout.decision["correction"] == 0).all()
    metric = learner.update(rollout, 0.0)
    assert metric["EmptyShare"].item() == pytest.approx(is_spent.float().mean().item())
    assert metric["CorrectedShare"].item() == 0


@pytest.mark.field("two-constraints")
def test_two_violated_constraints_are_both_satisfied() -> None:
    """u <= 0 in both coordinates from (1, 2): the larger multiplier alone would repair the second and leave the first."""
    point, normal = torch.tensor([1.0, 2.0], dtype=torch.float64), torch.eye(2, dtype=torch.float64)
    offset = torch.zeros(2, dtype=torch.float64)
    alone = [project(HalfSpace(normal[i], offset[i]), point) for i in range(2)]
    largest = max(alone, key=lambda each: float(each.multiplier))
    assert (normal @ largest.point).tolist() == [1.0, 0.0]
    both = project_all(normal, offset, point)
    assert both.point.tolist() == [0.0, 0.0]
    assert both.multiplier.tolist() == [1.0, 2.0]
    assert Status(int(both.status)) is Status.ACTIVE
    for box in (np.inf, 3.0):
        step = api.SafetyLayer(-box, box, n_sweeps=50)(point, point, normal, offset, offset, 0.0)  # Q_D(u) = u
        torch.testing.assert_close(step.point, torch.zeros(2, dtype=torch.float64))
        assert bool(step.is_feasible)


SCORE, COST = [1.0, 9.0, 2.0], [5.0, 6.0, 4.0]


@pytest.mark.field("empty-set")
def test_a_limit_below_every_cost_has_the_least_cost_action() -> None:
    """Discrete elimination, the state-wise programs, and the whole CMDP say infeasible in so many words."""
    action, is_feasible = HalfSpace(torch.tensor(COST), torch.tensor(3.0)).greedy_action(torch.tensor(SCORE))
    assert (action.item(), is_feasible.item()) == (2, False)
    for step in (
        tb.linear_step([SCORE], [COST], [3.0]),
        tb.elimination_step([SCORE], [COST], [3.0]),
        tb.entropy_step([SCORE], [COST], [3.0], 0.5),
    ):
        assert StateStatus(int(step.status[0])) is StateStatus.EMPTY
        assert step.policy.tolist() == [[0, 0, 1]]
    cost = np.array([0.0, 5.0, 6.0, 4.0])  # a choice of three states, each of which ends the episode
    transition = np.zeros((4, 3, 4))
    transition[0, [0, 1, 2], [1, 2, 3]] = 1.0
    reward = np.zeros((4, 3))
    reward[0] = SCORE
    answer = tb.optimal_policy(tb.CMDP.episodic(transition, reward, cost, np.eye(4)[0], 3.0))
    assert (answer.status, answer.is_feasible) == ("infeasible", False)
    assert answer.cost == pytest.approx(4.0)
    assert answer.policy[0].argmax() == 2


@pytest.mark.field("empty-set")
def test_a_state_without_an_admitted_action_is_counted() -> None:
    """Of two states that take turns, one has no action within the limit 4.5: half of the visits, its cheapest action."""
    trainer = trainer_with("sarsa", Constraint("forward"), [0.0, 0.0], 4.5, 1000)
    learner: Any = trainer.learner
    learner._shown["q"] = torch.tensor(SCORE).expand(1, 3, 3).clone()
    learner._shown["cost_q"] = torch.tensor([[[5.0, 6.0, 4.0], [7.0, 6.0, 5.0], [0.0, 0.0, 0.0]]])
    rollout = trainer.collect()
    is_second = rollout.observation[:-1, ..., 1] == 1
    assert is_second.float().mean() == 0.5
    assert torch.equal(rollout.decision["is_empty"], is_second)
    assert (rollout.decision["greedy"] == 2).all()  # the only one admitted in the first, the cheapest in the second
    assert learner.update(rollout, 0.0)["EmptyShare"].item() == 0.5
    assert math.isfinite(float(learner._shown["q"].sum()))
