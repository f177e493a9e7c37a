"""Tasks as streams of states: the restarted chain, shared and counter-based noise, the point robot's reward (chapter 12)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import GridTask, GridWorld, PointCircle, PointGather, State, Task, VectorEnv
from bvf_tutorial.envs.noise import philox, run_key
from tests.strategies import SEED


@dataclass(frozen=True)
class Fork(Task):
    """Four cells, a random start in 0..1, two actions; cell 3 ends the episode. Cost and law are the fields of a table."""

    name: ClassVar[str] = "Fork"

    horizon: int = 3
    cost_limit: float = 5.0
    start_noise = 1
    move_noise = 1

    COST: ClassVar[Tensor] = torch.tensor([3.0, 1.0, 0.5, 2.0], dtype=torch.float64)
    START: ClassVar[Tensor] = torch.tensor([0.7, 0.3, 0.0, 0.0], dtype=torch.float64)
    LAW: ClassVar[Tensor] = torch.tensor(
        [
            [[0.2, 0.5, 0.3, 0.0], [0.0, 0.1, 0.5, 0.4]],
            [[0.0, 0.5, 0.4, 0.1], [0.3, 0.0, 0.2, 0.5]],
            [[0.1, 0.1, 0.6, 0.2], [0.5, 0.2, 0.2, 0.1]],
            [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]],  # an end is left by no move
        ],
        dtype=torch.float64,
    )

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(0.0, 3.0, (1,), np.float32)

    @property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(2)

    def start(self, noise: Tensor, world: Tensor) -> State:
        return {"cell": (noise[:, 0] >= self.START[0]).long()}

    def move(self, state: State, action: Tensor, noise: Tensor) -> tuple[State, Tensor, Tensor]:
        law = self.LAW[state["cell"], action].cumsum(1)
        cell = (noise >= law).sum(1).clamp(max=3)
        return {"cell": cell}, torch.ones_like(noise[:, 0]), cell == 3

    def observe(self, state: State) -> Tensor:
        return state["cell"][:, None].double()

    def cost(self, state: State) -> Tensor:
        return self.COST[state["cell"]]


def fork_model(horizon: int) -> tb.Chain:
    """The exact clocked chain of uniform play: state t * 4 + cell, ended in cell 3 and at the horizon."""
    kernel = Fork.LAW.mean(1).numpy()
    moves = np.zeros((horizon + 1, 4, horizon + 1, 4))
    for t in range(horizon):
        moves[t, :3, t + 1] = kernel[:3]
    n = 4 * (horizon + 1)
    initial = np.zeros((horizon + 1, 4))
    initial[0] = Fork.START.numpy()
    return tb.Chain.killed(moves.reshape(n, n), initial.ravel())


def played(env: VectorEnv, n_steps: int, seed: int) -> dict[str, np.ndarray]:
    """Play uniform actions; return what the stream showed, each [n_steps + 1, W]."""
    generator = torch.Generator().manual_seed(seed)
    steps = [env.reset(seed)]
    for _ in range(n_steps):
        steps.append(env.step(torch.randint(2, (env.n_runs, env.n_envs), generator=generator)))
    names = ("cost", "reward", "is_first", "is_last")
    out = {name: torch.stack([getattr(step, name) for step in steps]).flatten(1).numpy() for name in names}
    out["cell"] = torch.stack([step.observation[..., 0] for step in steps]).flatten(1).numpy().astype(int)
    return out


def clock_of(is_first: np.ndarray) -> np.ndarray:
    """Return the steps since the start, for each entry of the stream."""
    time = np.zeros(is_first.shape, dtype=int)
    for n in range(1, len(is_first)):
        time[n] = np.where(is_first[n], 0, time[n - 1] + 1)
    return time


@pytest.mark.claim("prop-stream")
def test_the_stream_is_the_restarted_chain() -> None:
    """Every transition of (cell, clock), restarts included, has the law P + r mu_0; the visits tend to eta."""
    seen = played(VectorEnv(Fork(), n_envs=3000), 60, seed=0)
    chain = fork_model(3)
    full = tb.restarted(chain).transition
    code = clock_of(seen["is_first"]) * 4 + seen["cell"]
    is_end = (seen["cell"] == 3) | (code >= 12)
    np.testing.assert_array_equal(seen["is_last"], is_end)
    np.testing.assert_array_equal(seen["is_first"][1:], seen["is_last"][:-1])
    count = np.zeros((16, 16))
    np.add.at(count, (code[:-1].ravel(), code[1:].ravel()), 1)
    for state in np.flatnonzero(count.sum(1)):
        n = count[state].sum()
        assert not count[state][full[state] == 0].any()
        error = np.sqrt(full[state] * (1 - full[state]) / n) + 1e-12
        assert (np.abs(count[state] / n - full[state]) < 5 * error + 1e-9).all()
    visits = tb.expected_visits(chain)
    eta = visits / visits.sum()
    np.testing.assert_allclose(eta @ full, eta, atol=1e-12)
    cost, late = np.tile(Fork.COST.numpy(), 4), slice(20, None)  # the phase of the first episodes is forgotten by then
    for sample, exact in (
        ((code[late, :, None] == np.arange(16)).mean(0), eta),
        (seen["cost"][late].mean(0), eta @ cost),
        (seen["is_first"][late].mean(0), 1 / visits.sum()),
    ):
        error = sample.std(axis=0) / np.sqrt(len(sample))  # worlds are independent
        assert (np.abs(sample.mean(0) - exact) <= 5 * error + 1e-9).all()


@pytest.mark.claim("prop-stream")
@given(SEED, st.integers(1, 5), st.integers(1, 3))
def test_counters_of_a_stream(seed: int, horizon: int, n_envs: int) -> None:
    """A counter cleared at starts gives the episodes' costs; read one step late, it has the next start's cost too."""
    seen = played(VectorEnv(Fork(horizon=horizon), n_envs=n_envs), 40, seed)
    for world in range(n_envs):
        cost, is_first, is_last = (seen[name][:, world] for name in ("cost", "is_first", "is_last"))
        begins, ends = np.flatnonzero(is_first), np.flatnonzero(is_last)
        episodes = [cost[b : e + 1].sum() for b, e in zip(begins, ends, strict=False)]
        running, right, late = 0.0, [], []
        for n in range(len(cost)):
            if is_first[n] and n:
                late.append(running + cost[n])
            running = cost[n] + (0.0 if is_first[n] else running)
            if is_last[n]:
                right.append(running)
        np.testing.assert_allclose(right, episodes, rtol=1e-6)
        starts = cost[begins[1:]]
        np.testing.assert_allclose(late, np.array(episodes[: len(starts)]) + starts, rtol=1e-6)
        assert (seen["reward"][is_first, world] == 0).all()
        assert all(length <= horizon for length in ends - begins[: len(ends)])


@pytest.mark.claim("prop-shared-noise")
@given(SEED, st.integers(2, 8), st.floats(0.0, 1.0))
def test_variance_of_a_mean_of_correlated_worlds(seed: int, n: int, share: float) -> None:
    """By the covariance matrix itself: 1' C 1 / B^2, and the expectation of the reported s^2 / B as a trace."""
    sigma2 = float(np.random.default_rng(seed).uniform(0.1, 3))
    rho = share - (1 - share) / (n - 1)  # from -1 / (B - 1), the least possible, to 1
    covariance = sigma2 * ((1 - rho) * np.eye(n) + rho)
    assert np.linalg.eigvalsh(covariance).min() > -1e-9
    variance = covariance.sum() / n**2
    assert variance == pytest.approx(sigma2 / n * (1 + (n - 1) * rho), abs=1e-12)
    centring = np.eye(n) - 1 / n
    reported = np.trace(centring @ covariance) / (n - 1) / n
    assert reported == pytest.approx(sigma2 * (1 - rho) / n, abs=1e-12)


@pytest.mark.claim("prop-shared-noise")
def test_worlds_that_share_a_seed_are_one_world() -> None:
    """Same start, noise and actions, same trajectory; of their own, twenty worlds give a twentieth of the variance."""
    n_runs, n_envs = 400, 20
    straight = torch.tensor([1.0, 0.1]).expand(n_runs, n_envs, 2)
    shared_seed = [run for run in range(n_runs) for _ in range(n_envs)]
    spread = {}
    for name, seed in (("own", list(range(n_runs))), ("shared", shared_seed)):
        env = VectorEnv(PointGather(), n_envs, n_runs)
        cost = env.reset(seed).cost.clone()
        for _ in range(15):
            cost += env.step(straight).cost
        if name == "shared":
            assert torch.equal(cost, cost[:, :1].expand_as(cost))
        spread[name] = float(cost.mean(1).var())
    # Each variance of 400 means is known to about 10% (heavier tails included); 20 within five standard errors.
    assert 10 < spread["shared"] / spread["own"] < 35


def unscrambled(words: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """Invert Philox4x32-10 with exact integers."""
    size = 2**32
    w0, w1, w2, w3 = words
    for turn in reversed(range(10)):
        k0, k1 = (key[0] + turn * 0x9E3779B9) % size, (key[1] + turn * 0xBB67AE85) % size
        c2, c0 = w1 * pow(0xCD9E8D57, -1, size) % size, w3 * pow(0xD2511F53, -1, size) % size
        w0, w1, w2, w3 = c0, w0 ^ (0xCD9E8D57 * c2 >> 32) ^ k0, c2, w2 ^ (0xD2511F53 * c0 >> 32) ^ k1
    return w0, w1, w2, w3


WORD = st.integers(0, 2**32 - 1)


@pytest.mark.claim("prop-counter-noise")
@given(st.tuples(WORD, WORD, WORD, WORD), SEED)
def test_the_scrambling_has_an_inverse(counter: tuple[int, ...], seed: int) -> None:
    key = run_key(seed)
    words = philox([torch.tensor(word) for word in counter], [torch.tensor(word) for word in key])
    assert unscrambled(tuple(int(word) for word in words), key) == counter


@pytest.mark.claim("prop-counter-noise")
@pytest.mark.parametrize("task", [GridTask(horizon=7), PointGather(), Fork()], ids=lambda task: task.name)
def test_a_world_is_a_function_of_seed_number_and_actions(task: Task) -> None:
    """Alone in small batches, beside other runs, resumed in the middle: the same stream, restarts included."""
    generator = torch.Generator().manual_seed(0)
    space = task.action_space
    shape = (1, 40, *(space.shape or ()))
    actions = [
        torch.randint(int(space.n), shape, generator=generator)
        if isinstance(space, spaces.Discrete)
        else torch.rand(shape, generator=generator) - 0.5
        for _ in range(75)
    ]

    def stream(env: VectorEnv, seed: list[int], run: int, resume_at: int = -1) -> Tensor:
        steps = [env.reset(seed)]
        for n, action in enumerate(actions):
            if n == resume_at:
                saved, env = env.state_dict(), VectorEnv(task, env.n_envs, env.n_runs)
                env.load_state_dict(saved)
            steps.append(env.step(action[:, : env.n_envs].expand(env.n_runs, *action[0, : env.n_envs].shape)))
        rows = [torch.cat([s.observation[run], s.reward[run, :, None], s.cost[run, :, None]], 1)[:3] for s in steps]
        return torch.stack(rows)

    expected = stream(VectorEnv(task, 40), [5], 0)
    assert torch.equal(stream(VectorEnv(task, 3), [5], 0), expected)
    assert torch.equal(stream(VectorEnv(task, 3, 4), [1, 2, 5, 9], 2), expected)
    assert torch.equal(stream(VectorEnv(task, 40), [5], 0, resume_at=37), expected)
    assert not torch.equal(stream(VectorEnv(task, 40), [6], 0), expected)


def frozen_reward(pose: Tensor, velocity: Tensor) -> Tensor:
    """v . (-y, x) / (1 + |r - 15|) with a velocity that does not depend on the motion."""
    x, y = pose[..., 0], pose[..., 1]
    return (x * velocity[..., 1] - y * velocity[..., 0]) / (1 + (torch.hypot(x, y) - 15).abs())


@pytest.mark.claim("prop-frozen-velocity")
@given(st.floats(0, 2 * math.pi), st.floats(0.1, 3.0))
def test_a_frozen_velocity_pays_for_parking(direction: float, speed: float) -> None:
    """The best place of all, by search on a grid, pays R |v|, and lies where (-y, x) points along v."""
    velocity = speed * torch.tensor([math.cos(direction), math.sin(direction)], dtype=torch.float64)
    place = 15 / speed * torch.stack([velocity[1], -velocity[0]])
    assert float(frozen_reward(place, velocity)) == pytest.approx(15 * speed, rel=1e-9)
    axis = torch.linspace(-20, 20, 161, dtype=torch.float64)
    everywhere = torch.stack(torch.meshgrid(axis, axis, indexing="ij"), -1)
    assert float(frozen_reward(everywhere, velocity).max()) <= 15 * speed * (1 + 1e-12)


@pytest.mark.claim("prop-frozen-velocity")
def test_without_seeing_a_frozen_velocity_every_policy_earns_nothing() -> None:
    """Linear in v: opposite velocities cancel exactly, on any trajectory; with ours, the same trajectories differ."""
    env = VectorEnv(PointCircle(), n_envs=50)
    generator = torch.Generator().manual_seed(0)
    env.reset(0)
    pose, total = [], torch.zeros(50)
    for _ in range(65):
        action = torch.stack([torch.ones(1, 50), 0.25 * torch.rand(1, 50, generator=generator)], -1)
        total += env.step(action).reward[0]
        pose.append(env.state_dict()["state"]["pose"])
    velocity = torch.randn(50, 2, generator=generator)
    earned = [frozen_reward(torch.stack(pose), sign * velocity).sum(0) for sign in (1, -1)]
    torch.testing.assert_close(earned[0], -earned[1])
    assert float(earned[0].abs().min()) > 0
    assert float(total.abs().max()) > 0


COORDINATE = st.floats(-20, 20)


@pytest.mark.claim("prop-swept-area")
@given(COORDINATE, COORDINATE, st.floats(-7, 7), st.floats(-1, 1), st.floats(-0.25, 0.25))
def test_the_reward_is_twice_the_swept_area(x: float, y: float, heading: float, speed: float, turn: float) -> None:
    task = PointCircle()
    pose = torch.tensor([[x, y, heading]], dtype=torch.float64)
    action = torch.tensor([[speed, turn]], dtype=torch.float64)
    after, reward, _ = task.move({"pose": pose, "velocity": 0 * pose}, action, torch.empty(1, 0))
    new_x, new_y = after["pose"][0, :2].tolist()
    r = math.hypot(new_x, new_y)
    # The shoelace formula of the triangle (0, p, p').
    area = (0 * (y - new_y) + x * (new_y - 0) + new_x * (0 - y)) / 2
    assert float(reward) == pytest.approx(2 * area / (1 + abs(r - 15)), abs=1e-9)
    assert abs(float(reward)) <= r / (1 + abs(r - 15)) + 1e-9 <= 15 + 2e-9


@pytest.mark.claim("prop-swept-area")
def test_no_controller_earns_more_than_the_bound() -> None:
    """788.09 for the paper's numbers; a hand-written controller reaches 672 of it."""
    bound = 15 * (65 - 15) + sum(t / (16 - t) for t in range(1, 16))
    assert bound == pytest.approx(788.0917, abs=1e-3)
    env = VectorEnv(PointCircle())
    env.reset(0)
    total, furthest = 0.0, []
    for _ in range(65):
        x, y, heading = env.state_dict()["state"]["pose"][0].tolist()
        r = math.hypot(x, y)
        turn = math.remainder(math.atan2(y, x) + math.pi / 2 + (r - 15) / 4 - heading, 2 * math.pi)
        total += float(env.step(torch.tensor([[[1.0, 0.0 if r < 11 else turn]]])).reward)
        furthest.append(math.hypot(*env.state_dict()["state"]["pose"][0, :2].tolist()))
    assert 670 < total < bound
    assert all(r <= t + 1 + 1e-9 for t, r in enumerate(furthest))


def test_the_grid_world_streams_its_last_states() -> None:
    """The goal's entry shows in the stream and pays, and the start that follows pays nothing."""
    grid = GridWorld.random(0)
    env = VectorEnv(GridTask(layout=(grid,), is_one_hot=False), n_envs=50)
    policy = torch.as_tensor(tb.optimal_policy(grid.to_cmdp()).policy).clamp(min=0)
    generator = torch.Generator().manual_seed(0)
    step = env.reset(0)
    n_ends = 0
    for _ in range(60):
        before = step
        action = torch.multinomial(policy[step.observation[0, :, 0].long()], 1, generator=generator)
        step = env.step(action.T)
        ended = before.is_last[0]
        n_ends += int(ended.sum())
        assert torch.equal(step.is_first[0], ended)
        assert (step.observation[0, ended, 0] == grid.start_state).all()
        assert not step.reward[0, ended].any()
        assert (before.observation[0, ended, 0] == grid.goal_state).all()
    assert n_ends > 50
