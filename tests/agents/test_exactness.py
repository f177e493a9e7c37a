"""Training as a whole: stacked runs are separate runs, a resumed run is an unbroken one, judging changes nothing."""

from __future__ import annotations

import copy
import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import (
    ALGORITHMS,
    CONSTRAINTS,
    EVALUATION_WORLD,
    ActorCriticConfig,
    Evaluator,
    SarsaConfig,
    Setting,
    Trainer,
    make_learner,
    make_trainer,
    preset,
)
from bvf_tutorial.agents.algorithms import Algorithm
from bvf_tutorial.envs import GridTask, PointCircle, PointGather, TimeStep, VectorEnv
from bvf_tutorial.envs.noise import ACT, NoiseStream, WorldNoise
from tests.agents.probes import TableTask, differing, trained, trainer_of, two_gates
from tests.envs.toys import Counter

SMALL: dict[str, Algorithm] = {
    "sarsa": SarsaConfig(hidden=(16,), epsilon_steps=400, learning_rate=1e-2),
    "a2c": replace(ALGORITHMS["a2c"], actor_hidden=(16, 16), critic_hidden=(16, 16), n_steps=7),
    "ppo": replace(
        ALGORITHMS["ppo"], actor_hidden=(16, 16), critic_hidden=(16, 16), n_steps=7, minibatches=3, epochs=2
    ),
}
CASES = [
    ("sarsa", "unconstrained"),
    ("sarsa", "safeguarded"),
    ("sarsa", "pid"),
    ("a2c", "backward"),
    ("ppo", "unconstrained"),
    ("ppo", "target"),
    ("ppo", "lyapunov"),
    ("ppo", "backward_weight"),
]


def make(algorithm: str, constraint: str, n_updates: int, n_runs: int = 2, seed: int = 5, **options: Any) -> Trainer:
    """Return a trainer whose episodes (5 decisions, or 6) end in the middle of a rollout (7 steps, or 4)."""
    one = SMALL[algorithm]
    if algorithm == "sarsa":
        task: Any = GridTask(horizon=6, size=4)
    else:
        task = PointCircle(horizon=5, cost_limit=1.0)
        one = replace(one, is_observation_standardised=True)
    return trainer_of(
        task,
        one,
        replace(CONSTRAINTS[constraint], warm_up=60),
        n_updates,
        3,
        n_runs,
        seed,
        time_limit="truncate",
        **options,
    )


@pytest.mark.parametrize(("algorithm", "constraint"), CASES)
def test_a_stacked_run_is_the_same_seed_alone(algorithm: str, constraint: str) -> None:
    """Weights, memory, metrics; and the runs of one stack differ.

    To rounding, one error a gradient step, though nothing is shared: fused Adam steps eight numbers at once and rounds
    the rest of a tensor without fused multiply-adds, and the library of matrix products chooses its order of summation by
    the size of the stack where one side of a matrix is 1. So the last bit depends on where in the stack a run lies.
    """
    together = trained(make(algorithm, constraint, 8, n_runs=3))
    n_gradients = 8 * getattr(SMALL[algorithm], "epochs", 1) * getattr(SMALL[algorithm], "minibatches", 1)
    near: dict[str, Any] = {"rtol": n_gradients * 2**-23, "atol": n_gradients * 2**-23}
    for r in range(3):
        alone = trained(make(algorithm, constraint, 8, n_runs=1, seed=5 + r))
        for (name, many), (_, one) in zip(
            together.learner.network.state_dict().items(), alone.learner.network.state_dict().items(), strict=True
        ):
            torch.testing.assert_close(many[r], one[0], msg=lambda m, n=name: f"{n}: {m}", **near)
        torch.testing.assert_close(together.learner.multiplier.value[r], alone.learner.multiplier.value[0], **near)
        torch.testing.assert_close(together.totals.recent[:, r], alone.totals.recent[:, 0], **near)
    first = next(iter(together.learner.network.parameters()))
    assert not torch.equal(first[0], first[1])


@pytest.mark.field("resume")
@pytest.mark.parametrize(("algorithm", "constraint"), CASES)
def test_twice_n_updates_are_n_and_a_resume_and_n(algorithm: str, constraint: str) -> None:
    """The state goes through a file that holds plain tensors only; evaluations happen in between and are equal too."""
    options: dict[str, Any] = {"log_every": 40, "evaluate_every": 80}
    whole, half = make(algorithm, constraint, 9, **options), make(algorithm, constraint, 9, **options)
    rows_whole, rows_half = [], []
    for _ in range(9):
        rows_whole += whole.advance()
    for _ in range(4):
        rows_half += half.advance()
    assert not bool(half._step.is_last.any())  # in the middle of an episode
    file = io.BytesIO()
    torch.save(half.state_dict(), file)
    file.seek(0)
    resumed = make(algorithm, constraint, 9, **options)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for _ in range(5):
        rows_half += resumed.advance()
    assert differing(whole.state_dict(), resumed.state_dict()) == []
    assert repr(rows_half) == repr(rows_whole)  # NaN is "no data" and equals itself
    assert "SampledEpRet" in rows_whole[-1]


@pytest.mark.parametrize("algorithm", SMALL)
def test_a_saved_state_is_not_changed_by_further_training(algorithm: str) -> None:
    """What is saved for later must be a value: going back to it is going back."""
    trainer = make(algorithm, "backward", 12)
    for _ in range(5):
        trainer.advance()
    saved = trainer.state_dict()
    kept = copy.deepcopy(saved)
    for _ in range(3):
        trainer.advance()
    assert differing(saved, kept) == []


@pytest.mark.parametrize("algorithm", SMALL)
def test_same_seed_same_numbers_and_other_seed_other_numbers(algorithm: str) -> None:
    one, two, other = (trained(make(algorithm, "backward", 6, seed=seed)) for seed in (7, 7, 8))
    assert differing(one.state_dict(), two.state_dict()) == []
    assert differing(one.learner.network.state_dict(), other.learner.network.state_dict()) != []


@pytest.mark.parametrize("constraint", ["unconstrained", "target", "predictive"])
@pytest.mark.parametrize("algorithm", SMALL)
def test_every_parameter_moves_and_stays_finite(algorithm: str, constraint: str) -> None:
    """An optimiser whose step counter stands still moves nothing and raises nothing."""
    trainer = make(algorithm, constraint, 12)
    before = {name: value.clone() for name, value in trainer.learner.network.state_dict().items()}
    trained(trainer)
    for name, value in trainer.learner.network.state_dict().items():
        assert torch.isfinite(value).all(), name
        assert all(not torch.equal(value[r], before[name][r]) for r in range(2)), name


@pytest.mark.parametrize("algorithm", SMALL)
def test_judging_does_not_change_training(algorithm: str) -> None:
    plain = make(algorithm, "backward", 10)
    judged = make(algorithm, "backward", 10)
    for _ in range(10):
        plain.advance()
        judged.advance()
        judged.evaluator(judged.learner, False)
        judged.evaluator(judged.learner, True)
    one, two = ({k: v for k, v in each.state_dict().items() if k != "evaluator"} for each in (plain, judged))
    assert differing(one, two) == []


@pytest.mark.parametrize("algorithm", SMALL)
def test_evaluation_is_repeated_by_a_resume_and_fresh_each_time(algorithm: str) -> None:
    trainer = trained(make(algorithm, "backward", 3))
    first = trainer.evaluator(trainer.learner, False)
    saved = copy.deepcopy(trainer.evaluator.state_dict())
    second = trainer.evaluator(trainer.learner, False)
    again = make(algorithm, "backward", 3)
    again.evaluator.load_state_dict(saved)
    assert torch.equal(again.evaluator(trainer.learner, False).gain, second.gain)
    assert not torch.equal(first.gain, second.gain)


def test_worlds_of_training_and_of_evaluation_share_no_number() -> None:
    """Every number a policy and a task draw in 64 steps, as 32-bit cells: none in both but by chance (2**-32 a pair)."""
    trainer = make("ppo", "unconstrained", 1)
    judge = trainer.evaluator
    drawn = []
    for noise in (trainer._noise._noise, judge._noise):
        drawn.append(set(noise.moves(0, 64, 2, ACT).flatten().tolist()))
    assert all(len(each) > 300 for each in drawn)
    assert drawn[0].isdisjoint(drawn[1])
    task = PointGather()
    start = [VectorEnv(task, 8, first_world=first).reset(5).observation for first in (0, EVALUATION_WORLD)]
    start = [[tuple(world.tolist()) for world in each[0]] for each in start]
    assert len(set(start[0])) == len(set(start[1])) == 8
    assert set(start[0]).isdisjoint(start[1])
    # The judge that a trainer is made with starts there.
    assert make_trainer(preset("circle-a2c-unconstrained")).evaluator.env._first_world == EVALUATION_WORLD


@pytest.mark.parametrize(("n_episodes", "n_worlds", "each"), [(10, 10, 1), (10, 4, 3), (1, 3, 1)])
def test_every_world_plays_equally_many_episodes_with_exact_totals(n_episodes: int, n_worlds: int, each: int) -> None:
    """Horizon 5: return 1 + 2 + 3 + 4 + 5, cost 1 in six states, five decisions, every time."""
    trainer = trainer_of(Counter(), SMALL["a2c"], CONSTRAINTS["unconstrained"], 1, n_runs=2, n_evaluation=n_worlds)
    evaluator = Evaluator(trainer.evaluator.env, trainer.learner.setting.seeds, n_episodes)
    for is_deterministic in (True, False):
        result = evaluator(trainer.learner, is_deterministic)
        assert result.gain.shape == (2, n_worlds * each)
        assert result.gain.unique().tolist() == [15.0]
        assert result.cost.unique().tolist() == [6.0]
        assert result.length.unique().tolist() == [5.0]
    metric = result.metrics(5.5, "Sampled")
    assert {key: value.tolist() for key, value in metric.items()} == {
        "SampledEpRet": [15.0] * 2, "SampledEpCost": [6.0] * 2, "SampledEpLen": [5.0] * 2, "SampledViolationRate": [1.0] * 2
    }  # fmt: skip
    assert result.metrics(6.0, "")["ViolationRate"].tolist() == [0.0, 0.0]


def test_evaluation_does_not_favour_short_episodes() -> None:
    """Episodes of random length with return = length: the mean of whole episodes, not of those that end in time."""
    chain = tb.chain_cmdp(tb.Chain.killed(np.array([[0.9]]), np.array([1.0])), [1.0])
    chain = tb.CMDP(chain.transition, np.ones((1, 1)), chain.cost, chain.initial, 50.0, chain.termination)
    trainer = trainer_of(TableTask(cmdp=chain), SMALL["sarsa"], CONSTRAINTS["unconstrained"], 1, n_evaluation=2000)
    result = trainer.evaluator(trainer.learner, False)
    assert torch.equal(result.gain, result.length)
    assert torch.equal(result.cost, result.length)  # the state that stands for the end is free
    error = result.length.std().item() / math.sqrt(2000)
    assert abs(result.length.mean().item() - 10) < 5 * error


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("algorithm", SMALL)
def test_what_a_world_does_depends_on_no_other_world(algorithm: str, constraint: str) -> None:
    """The decision for a batch of worlds is the decision for each alone: states, not batches, have policies."""
    trainer = trained(make(algorithm, constraint, 6, n_runs=1))
    learner = trainer.learner
    rollout = trainer.collect()
    noise = torch.rand(1, 3, learner.n_noise, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for t in range(rollout.n_steps):
        step = TimeStep(
            *(
                getattr(rollout, key)[t]
                for key in ("observation", "reward", "cost", "terminated", "truncated", "is_first")
            )
        )
        past = rollout.cost[t]
        together, _ = learner.decide(step, past, noise, True)
        for b in range(3):
            part = TimeStep(*(getattr(step, key)[:, b : b + 1] for key in vars(step)))
            alone, _ = learner.decide(part, past[:, b : b + 1], noise[:, b : b + 1], True)
            torch.testing.assert_close(alone[0, 0], together[0, b], rtol=1e-5, atol=1e-6)


def test_exploration_is_a_coin_per_world_and_uniform() -> None:
    """Worlds explore independently: with epsilon 1 every action of every world is its own draw."""
    trainer = trainer_of(
        GridTask(size=4), replace(SMALL["sarsa"], epsilon=(1.0, 1.0)), CONSTRAINTS["unconstrained"], 1, 100
    )
    rollout = torch.stack([trainer.collect().decision["action"] for _ in range(100)]).flatten(0, 2)  # [T * R, B]
    count = torch.bincount(rollout.flatten(), minlength=4).double()
    expected = rollout.numel() / 4
    assert ((count - expected).square() / expected).sum() < 21.1  # chi-square, 3 degrees, 1e-4
    same = (rollout[:, 0::2] == rollout[:, 1::2]).double().mean()
    assert abs(same.item() - 0.25) < 5 * math.sqrt(0.25 * 0.75 / (rollout.numel() / 2))
    half = trainer_of(
        GridTask(size=4), replace(SMALL["sarsa"], epsilon=(0.5, 0.5)), CONSTRAINTS["unconstrained"], 1, 100
    )
    decision = half.collect().decision
    explored = (decision["action"] != decision["greedy"]).double()  # 3/8 of the worlds, not all or none
    assert 0.2 < explored.mean() < 0.55
    assert explored.mean(dim=2).std() < 0.2


def test_noise_streams_are_one_function_of_the_step() -> None:
    noise = WorldNoise.seeded([3, 3], [0, 1], torch.device("cpu"))
    one, two = NoiseStream(noise, 2, ACT), NoiseStream(noise, 2, ACT)
    assert torch.equal(torch.stack([one.at(t) for t in range(70)])[69], two.at(69))
    assert not torch.equal(one.at(0)[0], one.at(0)[1])


def test_a_learner_of_another_environment_is_refused() -> None:
    env = VectorEnv(PointCircle(), 2)
    with pytest.raises(ValueError, match="use ppo or a2c"):
        make_learner(SMALL["sarsa"], CONSTRAINTS["unconstrained"], Setting.of(env, 0))
    grid = VectorEnv(TableTask(cmdp=two_gates()), 2)
    with pytest.raises(ValueError, match="use sarsa"):
        make_learner(ActorCriticConfig(), CONSTRAINTS["unconstrained"], Setting.of(grid, 0))
