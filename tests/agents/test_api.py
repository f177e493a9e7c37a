"""The Python interface: a few lines on one's own environment, several costs as one, a safety layer for other code, examples."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from bvf_tutorial import api
from bvf_tutorial.agents import CONSTRAINTS, ActorCriticConfig, make_trainer, preset
from bvf_tutorial.agents.constraints import Situation, admitted, backward_allowance, corrected_mean
from bvf_tutorial.envs import EnvironmentFault, GridTask, PointCircle
from bvf_tutorial.halfspace import Status

ROOT = Path(__file__).parents[2]
SMALL = ActorCriticConfig(n_steps=11, epochs=2, minibatches=2, actor_hidden=(8,), critic_hidden=(8, 8))


class Line(gymnasium.Env[Any, Any]):
    """A point on a line: reward its place after the move, two costs, ten decisions."""

    def __init__(self, costs: str = "one", limit: float = 3.0) -> None:
        self.observation_space = spaces.Dict({"place": spaces.Box(-9, 9, (1, 1)), "side": spaces.Discrete(2)})
        self.action_space = spaces.Box(-2.0, 1.0, (1, 1))
        self.costs = costs
        if limit:
            self.cost_limit = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.clock, self.place = 0, float(self.np_random.uniform(-1, 1))
        return self.seen(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action.shape == (1, 1) and self.action_space.contains(action)
        self.clock += 1
        self.place += float(action[0, 0])
        return self.seen(), self.place, False, self.clock == 10, self.info()

    def seen(self) -> dict[str, Any]:
        return {"place": np.array([[self.place]], dtype=np.float32), "side": int(self.place > 0)}

    def info(self) -> dict[str, Any]:
        far, right = abs(self.place) / 10, float(self.place > 0.5)
        return {
            "one": {"cost": right},
            "mapping": {"cost": {"far": far, "right": right}},
            "vector": {"cost": np.array([far, right])},
            "entries": {"far": far, "right": right},
            "none": {},
        }[self.costs]


def test_five_lines_on_an_environment_of_ones_own(tmp_path: Path) -> None:
    result = api.train(Line, algorithm="ppo", constraint="pid", cost_limit=2.0, n_env_steps=9_000, horizon=10, seed=3)
    assert [row["Step"] for row in result.metrics] == [5060, 9020] and {row["Seed"] for row in result.metrics} == {3}
    setting = result.policy.learner.setting
    assert setting.cost_limit == 2.0 and setting.observation_space.shape == (4,)  # place, two sides, t / T
    env = result.problem.make_env()
    observation, info = env.reset(seed=0)
    assert observation.shape == (4,) and observation[3] == 0
    total, n, is_over = info["cost"], 0, False
    while not is_over:
        observation, _, is_over, is_cut, info = env.step(result.policy(observation))
        assert not is_cut  # the sum of costs ends here, so the learner is told so
        total, n = total + info["cost"], n + 1
    assert n == 10 and observation[3] == 1
    judged = result.evaluate(25)
    assert judged.cost.shape == (1, 40) and (judged.length == 10).all()
    result.save(tmp_path / "policy.pt")
    loaded = api.load(tmp_path / "policy.pt")
    many = np.random.default_rng(0).normal(size=(50, 4))
    np.testing.assert_array_equal(loaded(many), result.policy(many))
    assert torch.equal(api.evaluate(loaded, result.problem, 25).cost, judged.cost)
    assert [each.name for each in tmp_path.iterdir()] == ["policy.pt"]


@pytest.mark.slow
def test_constrained_costs_less_than_unconstrained() -> None:
    free, safe = (
        api.train(Line, "ppo", method, cost_limit=1.0, n_env_steps=20_000, horizon=10)
        for method in ("unconstrained", "pid")
    )
    assert free.evaluate(100).cost.mean() > 6
    assert safe.evaluate(100).cost.mean() < 2
    assert safe.evaluate(100).gain.mean() < free.evaluate(100).gain.mean()


def test_policy_samples_and_clips() -> None:
    result = api.train(Line, SMALL, "unconstrained", n_env_steps=220, horizon=10)
    one = np.zeros(4)
    assert np.array_equal(result.policy(one), result.policy(one[None])[0])
    drawn = result.policy(np.zeros((4000, 4)), generator=np.random.default_rng(0))
    assert drawn.min() >= -2 and drawn.max() <= 1 and result.policy(one).shape == (1,)
    # std exp(-1) half-widths of a box of half-width 1.5, little of it beyond the bounds
    assert drawn.std() == pytest.approx(1.5 * float(result.policy.learner.log_std.detach().exp()), rel=0.1)
    assert not np.array_equal(drawn[:2000], drawn[2000:])


def test_policy_asks_for_the_cost_that_its_layer_reads() -> None:
    result = api.train(Line, SMALL, "backward", n_env_steps=220, horizon=10)
    with pytest.raises(ValueError, match=r"cost is not given.*pass cost="):
        result.policy(np.zeros(4))
    assert result.policy(np.zeros(4), cost=0.0).shape == (1,)
    known = api.train(Line, SMALL, replace(CONSTRAINTS["backward"], is_past_known=True), n_env_steps=220, horizon=10)
    with pytest.raises(ValueError, match=r"past is not given"):
        known.policy(np.zeros(4), cost=0.0)
    weighted = api.train(Line, SMALL, "backward_weight", n_env_steps=220, horizon=10)
    assert weighted.policy(np.zeros(4)).shape == (1,)  # a weight acts in the update, not in the decision
    with pytest.raises(ValueError, match=r"shape \(3,\); this policy takes \(4,\)"):
        weighted.policy(np.zeros(3))


def test_policy_equals_the_acting_learner_of_its_run() -> None:
    """What NumPy users get is what the training's own decide returns, for each run, with the layer in place."""
    result = api.train(PointCircle(), SMALL, "backward", n_env_steps=2_000, n_runs=2, n_envs=5)
    worlds = result.problem.make(5, 2)
    step = worlds.reset(7)
    action, _ = result.policy.learner.decide(
        step, step.cost, torch.full((2, 5, 2), 0.5).double(), is_deterministic=True
    )
    space = worlds.action_space
    for run in range(2):
        ours = result.policy_of(run)(step.observation[run].numpy(), step.cost[run].numpy())
        np.testing.assert_allclose(ours, action[run].numpy().clip(space.low, space.high), rtol=1e-6)
    assert not np.allclose(
        result.policy(step.observation[0].numpy(), 0.0), result.policy_of(1)(step.observation[0].numpy(), 0.0)
    )


def test_a_task_by_name_and_a_grid() -> None:
    result = api.train("GridWorld", "sarsa", "backward", n_env_steps=2_000, n_envs=4)
    env = result.problem.make_env()
    observation, info = env.reset(seed=0)
    assert int(result.policy(observation, info["cost"])) in range(4)
    limited = api.train("PointCircle", SMALL, "pid", cost_limit=7.0, n_env_steps=400, n_envs=4)
    assert limited.policy.learner.setting.cost_limit == 7.0


def test_training_and_evaluation_share_no_seed() -> None:
    """An integer seed of Gymnasium's vectors is spread by a sequence whose first entries do not depend on the count."""
    seen: dict[str, list[float]] = {}
    where = "training"

    class Recorder(Line):
        def reset(self, **options: Any) -> Any:
            shown, info = super().reset(**options)
            seen.setdefault(where, []).append(self.place)
            return shown, info

    result = api.train(Recorder, SMALL, "unconstrained", n_env_steps=220, horizon=10)
    trained = set(seen["training"])
    where = "evaluation"
    result.evaluate(20)
    assert len(seen["evaluation"]) >= 20 and not trained & set(seen["evaluation"])


def test_same_seed_same_numbers_other_seed_others() -> None:
    one, two, other = (
        api.train(Line, SMALL, "pid", n_env_steps=500, log_every=100, horizon=10, seed=s) for s in (0, 0, 1)
    )
    assert [str(row) for row in one.metrics] == [str(row) for row in two.metrics] != [str(row) for row in other.metrics]


@pytest.mark.parametrize(
    ("make", "options", "error", "text"),
    [
        (Line(), {}, TypeError, "Line is one environment, and training and evaluation need several"),
        (lambda: 3, {}, TypeError, "must make a gymnasium.Env"),
        (lambda: Line(limit=0.0), {}, ValueError, "say cost_limit="),
        (lambda: Line("none"), {}, EnvironmentFault, r"Line, run 0, world 0, step 0: info\['cost'\] is missing at an .*start"),
        (lambda: Line("none"), {"start_cost": 0.0}, EnvironmentFault, r"world 0, step 1: info\['cost'\] is missing"),
        (Line, {"n_runs": 2}, ValueError, "one run, so train once per seed"),
        (Line, {"algorithm": "pop"}, ValueError, "choose one of sarsa"),
        (Line, {"constraint": "backwards"}, ValueError, "choose one of unconstrained"),
        (Line, {"algorithm": "sarsa"}, ValueError, "use ppo or a2c"),
        ("GridWorld", {}, ValueError, "use sarsa"),
        ("CartPole-v1", {"cost_limit": 1.0}, ValueError, "DiscretizeObservation"),
        (PointCircle(), {"cost_limit": {"a": 1.0}}, ValueError, "has one cost"),
        (PointCircle(), {"cost_limit": np.ones(2)}, ValueError, "has one cost"),
        (Line, {"log_every": 0}, ValueError, "log_every is 0, at least 1"),
        (Line, {"evaluate_every": -1}, ValueError, "evaluate_every is -1, at least 0"),
        (lambda: Line("mapping"), {"cost_limit": {"far": 1.0, "left": 1.0}}, ValueError, r"\['far', 'right'\], but .*'left'"),
        (lambda: Line("mapping"), {"cost_limit": {"far": 1.0, "right": 0.0}}, ValueError, "positive and finite"),
    ],
)  # fmt: skip
def test_bad_input_says_what_to_do(make: Any, options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        api.train(make, n_env_steps=100, **options)


def test_a_limit_may_be_a_number_of_numpy() -> None:
    assert api.Problem(Line, np.float32(5)).make(1).cost_limit == 5  # type: ignore[arg-type]  # not the environment's 3
    assert api.Problem(Line, np.int64(5)).make(1).cost_limit == 5  # type: ignore[arg-type]
    several = api.Problem(lambda: Line("mapping", limit=0.0), np.array([2.0, 5.0])).make(1)  # type: ignore[arg-type]
    assert several.cost_limit == 1


def test_a_policy_with_numbers_of_numpy_comes_back(tmp_path: Path) -> None:
    rate = np.float64(2e-3)
    result = api.train(Line, replace(SMALL, learning_rate=rate), "backward", seed=np.int64(3), n_env_steps=300)
    result.save(tmp_path / "policy.pt")
    again = api.load(tmp_path / "policy.pt")
    assert again.learner.setting.seeds == (3,)
    assert again.algorithm.learning_rate == rate
    seen = np.array([0.3, 1.0, 0.0])
    assert np.array_equal(again(seen, 1.0), result.policy(seen, 1.0))


def test_a_policy_is_judged_where_it_was_trained() -> None:
    class Wider(Line):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = spaces.Box(-2.0, 2.0, (1, 1))

    policy = api.train(Line, SMALL, "unconstrained", n_env_steps=300).policy
    with pytest.raises(
        ValueError, match=r"the environment's action_space is Box\(-2.0, 2.0, .* trained on Box\(-2.0, 1.0"
    ):
        api.evaluate(policy, Wider, 2)
    # One number each, but another count of cells: SARSA has no row for them, or with several runs another run's.
    grid = api.train(GridTask(size=4, is_one_hot=False), "sarsa", "unconstrained", n_env_steps=100, n_runs=2).policy
    with pytest.raises(ValueError, match="the environment's observation_space is"):
        api.evaluate(grid, GridTask(size=5, is_one_hot=False), 2)


def test_vector_environments_are_used_as_they_are() -> None:
    def make() -> gymnasium.vector.VectorEnv[Any, Any, Any]:
        return gymnasium.vector.SyncVectorEnv([Line] * 3, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP)

    result = api.train(make, SMALL, "pid", n_env_steps=400)
    assert result.policy.learner.setting.observation_space.shape == (3,)
    assert result.policy.learner.setting.n_envs == 3
    named = api.train(make, "ppo", "pid", n_env_steps=100)
    assert named.policy.algorithm.cost_gamma < 1  # episodes are cut and go on: an undiscounted value would not exist


def test_a_foreign_training_refuses_to_be_saved_midway() -> None:
    trainer = make_trainer(preset("circle-ppo-unconstrained", n_envs=2, n_evaluation_episodes=2))
    trainer.env = api.Problem(Line).make(2)
    with pytest.raises(TypeError, match="Line does not tell its state, so this training cannot be resumed exactly"):
        trainer.state_dict()


@pytest.mark.parametrize("content", [b"", b"not a policy", None])
def test_load_refuses_what_is_no_policy(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "file.pt"
    if content is None:
        torch.save({"format": "another"}, path)
    else:
        path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged, or no policy of this package"):
        api.load(path)


# Several costs.


@pytest.mark.parametrize("how", ["mapping", "vector", "entries"])
@pytest.mark.parametrize("combine", ["largest", "sum"])
def test_combined_cost_bounds_each_relative_cost(how: str, combine: str) -> None:
    limit = [2.0, 4.0] if how == "vector" else {"far": 2.0, "right": 4.0}
    env = api.SeveralCosts(Line(how), limit, combine=combine)
    assert env.cost_limit == 1.0
    for seed in range(5):
        _, info = env.reset(seed=seed)
        rows, is_over = [info], False
        while not is_over:
            *_, is_over, info = env.step(np.ones((1, 1), dtype=np.float32))
            rows.append(info)
        names = ("0", "1") if how == "vector" else ("far", "right")
        relative = np.array([[row[f"cost_{name}"] / d for name, d in zip(names, (2, 4), strict=True)] for row in rows])
        assert relative.sum() > 0
        combined = sum(row["cost"] for row in rows)
        expected = relative.max(axis=1).sum() if combine == "largest" else relative.sum()
        assert combined == pytest.approx(expected) and combined >= relative.sum(axis=0).max() - 1e-12


def test_training_with_several_limits_meets_each() -> None:
    result = api.train(
        lambda: Line("mapping"), "ppo", "pid", cost_limit={"far": 6.0, "right": 3.0}, n_env_steps=10_000, horizon=10
    )
    assert result.policy.learner.setting.cost_limit == 1.0
    env = result.problem.make_env()
    generator, total = np.random.default_rng(0), np.zeros(2)
    for seed in range(50):
        observation, info = env.reset(seed=10**6 + seed)
        total += info["cost_far"], info["cost_right"]
        is_over = False
        while not is_over:
            observation, _, is_over, _, info = env.step(result.policy(observation, generator=generator))
            total += info["cost_far"], info["cost_right"]
    assert (total / 50 / (6.0, 3.0)).max() < 1.2  # the multiplier's, not the combination's, error


# The safety layer.


def random_layer(n: int, m: int, k: int, seed: int) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shape = (n, m) if m else (n,)
    return {
        "mean": torch.rand(n, k, generator=draw, dtype=torch.float64) * 2 - 1,
        "cost_q_value": 5 + torch.randn(shape, generator=draw, dtype=torch.float64),
        "gradient": torch.randn(*shape, k, generator=draw, dtype=torch.float64),
        "backward_value": 4 + torch.rand(shape, generator=draw, dtype=torch.float64),
        "cost": torch.rand(shape, generator=draw, dtype=torch.float64),
    }


def nearest(call: dict[str, Tensor], limit: float, i: int, box: float) -> np.ndarray | None:
    """Return the projection by a quadratic program, or None where nothing is feasible."""
    mean = call["mean"][i].numpy()
    gradient = np.atleast_2d(call["gradient"][i].numpy())
    slack = np.atleast_1d((limit + call["cost"] - call["backward_value"] - call["cost_q_value"])[i].numpy())
    u = cp.Variable(len(mean))
    bound = [u >= -box, u <= box] if np.isfinite(box) else []
    problem = cp.Problem(cp.Minimize(cp.sum_squares(u - mean)), [gradient @ (u - mean) <= slack, *bound])
    problem.solve(solver=cp.CLARABEL)
    return None if u.value is None or "infeasible" in problem.status else u.value


@pytest.mark.parametrize("m", [0, 1, 2, 3])
@pytest.mark.parametrize("box", [1.0, np.inf])
def test_layer_is_the_nearest_mean(m: int, box: float) -> None:
    call = random_layer(30, m, 4, seed=m)
    step = api.SafetyLayer(-box, box, n_sweeps=200)(**call, cost_limit=9.0)
    n_feasible = 0
    for i in range(30):
        true = nearest(call, 9.0, i, box)
        assert bool(step.is_feasible[i]) == (true is not None)
        if true is not None:
            n_feasible += 1
            np.testing.assert_allclose(step.point[i].numpy(), true, atol=1e-5)
        else:
            assert step.status[i] == Status.INFEASIBLE and torch.equal(step.point[i], call["mean"][i].clamp(-box, box))
    assert n_feasible > 10 and (step.status == Status.ACTIVE).sum() > 5


def test_layer_is_the_one_that_the_agents_train_with() -> None:
    call = random_layer(200, 0, 3, seed=9)
    anchor = random_layer(200, 0, 3, seed=10)["mean"]
    none = torch.zeros(200)
    allowance = backward_allowance(Situation(call["cost"], call["backward_value"], none, none, none, 9.0))
    halfspace = admitted(allowance, call["cost_q_value"], call["gradient"], anchor)
    proposal = torch.lerp(call["mean"], anchor, 0.6)
    theirs = corrected_mean(halfspace, proposal, 0.5)
    ours = api.SafetyLayer(min_gradient=0.5, target_mix=0.6)(**call, cost_limit=9.0, anchor=anchor)
    assert torch.equal(ours.point, theirs.point) and torch.equal(ours.status, theirs.status)
    assert set(ours.status.tolist()) >= {Status.INACTIVE, Status.ACTIVE, Status.INFEASIBLE}


def test_layer_hand_values() -> None:
    """Proposition 4.1, the clipping counter-example, appendix J and the two-constraint counter-example (chapter 10)."""
    zero, free = torch.tensor(0.0), api.SafetyLayer(-np.inf, np.inf)
    step = free(torch.tensor([0.5, -0.2]), torch.tensor(1.0), torch.tensor([3.0, 4.0]), zero, zero, 0.0)
    torch.testing.assert_close(step.point, torch.tensor([0.38, -0.36]))
    assert float(step.multiplier) == pytest.approx(0.04)
    step = api.SafetyLayer()(torch.tensor([0.9, 0.9]), torch.tensor(0.5), torch.tensor([-1.0, 0.5]), zero, zero, 0.0)
    torch.testing.assert_close(step.point, torch.tensor([1.0, 0.1]))
    target = api.SafetyLayer(-np.inf, np.inf, target_mix=0.25)
    step = target(torch.tensor([1.0, 0.0]), zero, torch.tensor([1.0, 1.0]), zero, zero, 0.2, torch.zeros(2))
    torch.testing.assert_close(step.point, torch.tensor([0.475, -0.275]))
    for layer in (free, api.SafetyLayer()):
        two = layer(torch.ones(2), torch.ones(2), torch.eye(2), torch.zeros(2), torch.zeros(2), 0.0)
        torch.testing.assert_close(two.point, torch.zeros(2))


@pytest.mark.parametrize("m", [0, 2])
@pytest.mark.parametrize("box", [1.0, np.inf])
def test_layer_counts_short_gradients_as_none(m: int, box: float) -> None:
    call = random_layer(5, m, 3, seed=0)
    call["gradient"] = call["gradient"] * 1e-6
    step = api.SafetyLayer(-box, box)(**call, cost_limit=-5.0)
    assert (step.status == Status.ZERO_GRADIENT).all() and torch.equal(step.point, call["mean"])
    assert (api.SafetyLayer(-box, box)(**call, cost_limit=50.0).status == Status.INACTIVE).all()


@pytest.mark.parametrize(("m", "box"), [*itertools.product((0, 2), (1.0, np.inf))])
def test_layer_is_differentiable(m: int, box: float) -> None:
    call = random_layer(12, m, 3, seed=3)
    layer = api.SafetyLayer(-box, box, n_sweeps=40)
    step = layer(**call, cost_limit=9.0)
    is_smooth = step.is_feasible & (step.point.abs() < 0.99 if np.isfinite(box) else step.point.abs() < 99).all(-1)
    assert int((is_smooth & (step.status == Status.ACTIVE)).sum()) >= 3
    inputs = [value[is_smooth].requires_grad_() for value in call.values()]
    assert torch.autograd.gradcheck(lambda *given: layer(*given, 9.0).point, inputs, fast_mode=True)


def test_layer_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match=r"give \[..., K\], \[..., K\] and \[...\]"):
        api.SafetyLayer()(torch.zeros(5, 3), torch.zeros(5), torch.zeros(5, 2), torch.zeros(5), torch.zeros(5), 1.0)
    with pytest.raises(ValueError, match="must hold"):
        api.SafetyLayer(1.0, -1.0)


def test_layer_moves_with_the_module() -> None:
    layer = torch.nn.Sequential(api.SafetyLayer([-1.0, -2.0], [1.0, 2.0])).double()
    assert layer[0].low.dtype == torch.float64 and not list(layer.parameters())


# The examples run as they stand.


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.name for path in (ROOT / "examples").glob("*.py")))
def test_example_runs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("stable_baselines3")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--steps", "4000"],
        capture_output=True, text=True, check=False, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "cost" in done.stdout
