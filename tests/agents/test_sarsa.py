"""What SARSA decides from tables set by hand: elimination, relative rules, fallback, price, exploration."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Constraint, Multiplier, MultiplierState, Sarsa, SarsaConfig
from tests.agents.probes import TableTask, shown, trainer_of, two_gates

Q, COST = [10.0, 3.0, 0.0], [5.0, 2.0, 1.0]  # the dearer, the better
CODE = 1


def learner_of(constraint: Constraint, limit: float, backward: float, baseline: int, **state: Any) -> Sarsa:
    """Return a SARSA whose estimates at observation ``CODE`` are the given ones."""
    cmdp = tb.random_cmdp(np.random.default_rng(0), 3, 3)
    learner = trainer_of(TableTask(cmdp=cmdp, cost_limit=limit), SarsaConfig(hidden=(4,)), constraint, 1).learner
    assert isinstance(learner, Sarsa)
    table = {
        "q": torch.tensor(Q).expand(1, 4, 3),
        "cost_q": torch.tensor(COST).expand(1, 4, 3),
        "backward": torch.full((1, 4, 1), backward),
    }
    learner._shown = {name: table[name] for name in learner.network}
    learner._baseline = torch.full((1, 4), baseline)
    for key, value in state.items():
        setattr(learner, key, value)
    return learner


def decided(learner: Sarsa) -> tuple[int, dict[str, torch.Tensor]]:
    step = shown(torch.eye(4)[CODE : CODE + 1])
    action, decision = learner.decide(step, torch.zeros(1, 1), torch.full((1, 1, 2), 0.5, dtype=torch.float64), True)
    return int(action), decision


@pytest.mark.parametrize(
    ("limit", "backward", "expected"), [(9.0, 1.0, 0), (9.0, 6.0, 1), (9.0, 8.0, 2), (5.0, 0.0, 0)]
)
def test_the_backward_value_eliminates_actions(limit: float, backward: float, expected: int) -> None:
    """b = limit - Vb (the present cost is 0): the best action of cost at most that."""
    action, decision = decided(learner_of(Constraint("backward"), limit, backward, 2))
    assert decision["allowance"].item() == limit - backward
    assert action == expected
    assert not decision["is_empty"]


@pytest.mark.field("empty-set")
def test_where_nothing_is_admitted_the_cheapest_action_is_taken_and_counted() -> None:
    action, decision = decided(learner_of(Constraint("backward"), 9.0, 8.5, 2))
    assert (action, decision["is_empty"].item()) == (2, True)
    priced = Constraint("backward", fallback_multiplier=1.0)  # argmax Q - Q_D: 5, 1, -1
    assert decided(learner_of(priced, 9.0, 8.5, 2))[0] == 0


def test_lyapunov_is_relative_to_the_baseline_action() -> None:
    """Baseline cost 1 and half a unit of slack a decision admit cost 1.5; next to the dearest action all would pass."""
    slack = {"start_slack": torch.tensor([1.0]), "n_decisions": torch.tensor([2.0])}
    action, decision = decided(learner_of(Constraint("lyapunov"), 9.0, 0.0, 2, **slack))
    assert decision["allowance"].item() == 1.5
    assert action == 2
    assert decided(learner_of(Constraint("lyapunov"), 9.0, 0.0, 1, **slack))[0] == 1


def test_the_safeguard_always_admits_the_baseline() -> None:
    action, decision = decided(learner_of(Constraint("safeguarded"), 9.0, 8.5, 1))
    assert (action, decision["allowance"].item(), decision["is_empty"].item()) == (1, 2.0, False)


@pytest.mark.parametrize(("price", "expected"), [(0.0, 0), (2.0, 0), (3.0, 1), (torch.inf, 2)])
def test_a_price_weighs_cost_against_reward(price: float, expected: int) -> None:
    """Q - l Q_D: at price 3 the scores are -5, -3, -3; the first of the best is taken."""
    learner = learner_of(Constraint(multiplier=Multiplier("pid")), 9.0, 0.0, 2)
    one = torch.tensor([price])
    learner.multiplier = MultiplierState(one, one, one)
    assert decided(learner)[0] == expected


def test_during_the_warm_up_nothing_is_eliminated() -> None:
    learner = learner_of(replace(Constraint("backward"), warm_up=10), 9.0, 8.0, 2)
    assert decided(learner)[0] == 0
    learner.n_env_steps = 10
    assert decided(learner)[0] == 2


def test_a_known_past_replaces_the_critic() -> None:
    learner = learner_of(replace(Constraint("backward"), is_past_known=True), 9.0, 0.0, 2)
    step = shown(torch.eye(4)[CODE : CODE + 1])
    action, _ = learner.decide(step, torch.tensor([[6.5]]), torch.full((1, 1, 2), 0.5), True)
    assert action.item() == 1


def test_the_rates_fall_linearly_and_keep_their_ratio() -> None:
    config = SarsaConfig(hidden=(4,), learning_rate=0.4, cost_learning_rate=0.2, final_learning_rate=0.1)
    trainer = trainer_of(TableTask(cmdp=two_gates()), config, Constraint("backward"), 1)
    rollout = trainer.collect()
    for progress, share in ((0.0, 1.0), (0.5, 0.55), (1.0, 0.1), (1.2, 0.1)):
        trainer.learner.update(rollout, progress)
        rate = [group["lr"] for group in trainer.learner.optimiser.param_groups]
        np.testing.assert_allclose(rate, [0.4 * share, 0.2 * share, 0.2 * share])


def test_an_index_and_a_one_hot_vector_are_the_same_observation() -> None:
    learner = trainer_of(TableTask(cmdp=two_gates()), SarsaConfig(hidden=(4,)), Constraint(), 1).learner
    assert isinstance(learner, Sarsa)
    one_hot = torch.eye(5)[[3, 0, 4]][None]
    assert learner._code(one_hot).tolist() == [[3, 0, 4]]
    assert learner._code(torch.tensor([[[3.0], [0.0], [4.0]]])).tolist() == [[3, 0, 4]]
