"""SARSA on the grid: stacked runs, targets on a stream, units, masks, empty sets, prices, exploration (chapter 13)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Stack, lambda_returns
from bvf_tutorial.agents.estimators import clip_by_run
from bvf_tutorial.envs import GridWorld
from bvf_tutorial.halfspace import HalfSpace
from tests.strategies import SEED

torch.set_num_threads(1)


def trained_stack(
    seeds: tuple[int, ...],
    data: torch.Tensor,
    answer: torch.Tensor,
    optimiser: type[torch.optim.Optimizer],
    clip: str = "none",
    is_mean: bool = False,
) -> list[torch.Tensor]:
    """Return the parameters, in double precision, after 20 steps of regression."""
    net = Stack(3, (8, 8), 2, seeds, "q").double()
    chosen = optimiser(net.parameters(), lr=0.01)
    for _ in range(20):
        chosen.zero_grad()
        loss = (net(data) - answer).square().mean(dim=(1, 2))
        (loss.mean() if is_mean else loss.sum()).backward()
        if clip == "run":
            clip_by_run(net.parameters(), 0.05)
        elif clip == "stack":
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.05)
        chosen.step()
    return [each.detach() for each in net.parameters()]


def regression(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(3, 10, 3, generator=generator, dtype=torch.float64),
        torch.randn(3, 10, 2, generator=generator, dtype=torch.float64),
    )


@pytest.mark.claim("prop-stacked-runs")
@pytest.mark.parametrize("optimiser", [torch.optim.SGD, torch.optim.Adam])
@pytest.mark.parametrize("clip", ["none", "run"])
def test_stacked_runs_hold(optimiser: type[torch.optim.Optimizer], clip: str) -> None:
    """Three runs in a stack take the steps that each takes alone, with a loss summed over runs, also clipped per run."""
    data, answer = regression(0)
    stacked = trained_stack((0, 1, 2), data, answer, optimiser, clip)
    for run in range(3):
        alone = trained_stack((run,), data[run : run + 1], answer[run : run + 1], optimiser, clip)
        for many, one in zip(stacked, alone, strict=True):
            torch.testing.assert_close(many[run], one[0], rtol=0, atol=1e-10)


@pytest.mark.claim("prop-stacked-runs")
def test_stacked_runs_need_a_sum_and_a_norm_per_run() -> None:
    """A mean over runs divides a step of gradient descent by R; one norm for the stack lets run 2's data move run 0."""
    data, answer = regression(0)
    first = [each.detach() for each in Stack(3, (8, 8), 2, (0, 1, 2), "q").double().parameters()]
    net = {is_mean: Stack(3, (8, 8), 2, (0, 1, 2), "q").double() for is_mean in (False, True)}
    for is_mean, each in net.items():
        loss = (each(data) - answer).square().mean(dim=(1, 2))
        (loss.mean() if is_mean else loss.sum()).backward()
    for summed, mean in zip(net[False].parameters(), net[True].parameters(), strict=True):
        assert summed.grad is not None
        assert mean.grad is not None
        torch.testing.assert_close(summed.grad, 3 * mean.grad, rtol=1e-12, atol=1e-14)
    other = answer.clone()
    other[2] += 5
    for clip, is_coupled in (("stack", True), ("run", False)):
        one, two = (trained_stack((0, 1, 2), data, each, torch.optim.SGD, clip) for each in (answer, other))
        moved = max(float((a[0] - b[0]).abs().max()) for a, b in zip(one, two, strict=True))
        assert (moved > 1e-3) == is_coupled
        assert moved == 0 or is_coupled
        assert max(float((a[0] - b[0]).abs().max()) for a, b in zip(one, first, strict=True)) > 1e-3  # it does move


def stream_targets(seed: int, n: int, gamma: float, is_cost: bool, is_glued: bool = False) -> tuple[float, float]:
    """Return the exact mean of the n-step target of one decision on the stream, and the policy's value, by enumeration.

    A random model of three states and an absorbing last one, with a clock: episodes end there or after four decisions.
    Every path of the stream is one world, weighted by its probability; a restart takes a step.
    """
    generator = np.random.default_rng(seed)
    kernel = generator.dirichlet(np.ones(4), (3, 2))  # state 3 is terminal
    policy, start = generator.dirichlet(np.ones(2), 3), generator.dirichlet(np.ones(3))
    reward, cost, horizon = generator.normal(size=(3, 2, 4)), generator.uniform(0, 5, 4), 4
    value = np.zeros((horizon + 1, 4))  # V(t, x) of the episode's rest; a last state's cost belongs to the move into it
    q = np.zeros((horizon, 3, 2))
    for t in reversed(range(horizon)):
        is_end = np.array([False, False, False, True]) | (t + 1 == horizon)
        signal = cost[:3, None, None] + gamma * cost * is_end if is_cost else reward
        q[t] = (kernel * (signal + gamma * value[t + 1] * ~is_end)).sum(axis=2)
        value[t, :3] = (policy * q[t]).sum(axis=1)
    paths = [(1.0, 2, int(generator.integers(3)), int(generator.integers(2)), ())]  # probability, clock, state, action
    first = paths[0][1:4]
    for _ in range(n):
        longer = []
        for probability, t, x, a, seen in paths:
            if x == 3 or t == horizon:  # the restart, which ignores the action
                for y in range(3):
                    for b in range(2):
                        record = (0.0, gamma if is_glued else 0.0, q[0, y, b])
                        longer.append((probability * start[y] * policy[y, b], 0, y, b, (*seen, record)))
                continue
            for y in range(4):
                is_end = y == 3 or t + 1 == horizon
                signal = cost[x] + gamma * cost[y] * is_end if is_cost else reward[x, a, y]
                carried = gamma if is_glued or not is_end else 0.0
                for b in range(2) if not is_end else (0,):
                    chance = 1.0 if is_end else policy[y, b]
                    ahead = 0.0 if is_end else q[t + 1, y, b]
                    record = (signal, carried, ahead)
                    longer.append((probability * kernel[x, a, y] * chance, t + 1, y, b, (*seen, record)))
        paths = longer
    table = torch.tensor([[path[4][k] for path in paths] for k in range(n)], dtype=torch.float64)
    target = lambda_returns(table[..., 0], table[..., 1], table[..., 2], 1.0)[0]
    weight = torch.tensor([path[0] for path in paths], dtype=torch.float64)
    assert float(weight.sum()) == pytest.approx(1, abs=1e-12)
    return float(weight @ target), float(q[first])


@pytest.mark.claim("prop-sarsa-ends")
@given(SEED, st.integers(1, 4), st.sampled_from([0.9, 1.0]), st.booleans())
def test_targets_on_the_stream_hold(seed: int, n: int, gamma: float, is_cost: bool) -> None:
    """The mean of the n-step target over all paths of the stream, ends and restarts included, is the policy's value."""
    mean, value = stream_targets(seed, n, gamma, is_cost)
    assert mean == pytest.approx(value, rel=1e-10, abs=1e-10)


@pytest.mark.claim("prop-sarsa-ends")
def test_targets_on_the_stream_need_the_restart_cut_off() -> None:
    """With a restart that counts as a move, the target of a decision adds the next episode's value."""
    mean, value = stream_targets(0, 4, 1.0, True, is_glued=True)
    assert mean > value + 1  # costs are positive, so the next episode's add up


@pytest.mark.claim("prop-adam-speed")
@given(SEED, st.integers(-8, 8))
def test_a_table_knows_no_unit_holds(seed: int, power: int) -> None:
    """Two learners act on their own tables with the same noise: the same actions, and values in proportion, exactly."""
    unit, seen = 2.0**power, []  # a power of two multiplies without rounding, so that ties stay ties
    reward = np.random.default_rng(seed).normal(size=(4, 2))
    for scale in (1.0, unit):
        generator, table, x, actions = np.random.default_rng(seed + 1), np.zeros((4, 2)), 0, []
        a = 0
        for _ in range(40):
            y, explores, any_action = (int(generator.integers(k)) for k in (4, 3, 2))
            b = any_action if explores == 0 else int(table[y].argmax())
            table[x, a] += 0.3 * (scale * reward[x, a] + 0.9 * table[y, b] - table[x, a])
            actions.append(b)
            x, a = y, b
        seen.append((table, actions))
    assert seen[0][1] == seen[1][1]
    np.testing.assert_array_equal(seen[1][0], unit * seen[0][0])


def adam_steps(gradient: np.ndarray, beta: tuple[float, float] = (0.9, 0.999)) -> np.ndarray:
    """Return the steps of torch's Adam, in units of the learning rate, for given gradients of one parameter."""
    parameter = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([parameter], lr=1.0, betas=beta, eps=0.0)
    place = [0.0]
    for each in gradient:
        parameter.grad = torch.tensor([each], dtype=torch.float64)
        adam.step()
        place.append(parameter.item())
    return np.diff(place)


def adam_bound(k: np.ndarray, beta: tuple[float, float] = (0.9, 0.999)) -> np.ndarray:
    one, two = beta
    q = one**2 / two
    return (1 - one) / np.sqrt(1 - two) * np.sqrt(1 - two**k) / (1 - one**k) * np.sqrt((1 - q**k) / (1 - q))


@pytest.mark.claim("prop-adam-speed")
@given(SEED, st.floats(1e-3, 1e3))
def test_adam_walks_holds(seed: int, unit: float) -> None:
    """Random gradients of wild sizes: every step within the bound, and the same in another unit."""
    generator = np.random.default_rng(seed)
    gradient = generator.normal(size=30) * 10 ** generator.uniform(-3, 3, 30)
    steps = adam_steps(gradient)
    assert (np.abs(steps) <= adam_bound(np.arange(1, 31)) * (1 + 1e-9)).all()
    np.testing.assert_allclose(adam_steps(unit * gradient), steps, rtol=1e-8)


@pytest.mark.claim("prop-adam-speed")
@pytest.mark.parametrize("k", [1, 2, 10, 100])
def test_adam_bound_is_attained_holds(k: int) -> None:
    """Gradients that grow by beta2 / beta1 a step attain it; it tends to 7.27 for the usual constants."""
    steps = adam_steps((0.9 / 0.999) ** np.arange(k - 1, -1, -1.0))
    assert abs(steps[-1]) == pytest.approx(float(adam_bound(np.array(k))), rel=1e-9)
    assert float(adam_bound(np.array(10**5))) == pytest.approx(7.27, abs=0.005)


@pytest.mark.claim("prop-mask-product")
@given(st.lists(st.integers(-3000, 3000), min_size=2, max_size=6, unique=True), st.integers(1, 2**6 - 1))
def test_masks_by_multiplication_hold_so_far(score: list[int], admitted: int) -> None:
    """(Q + 1000) * mask takes an eliminated action iff all admitted ones are below -1000; the comparison never does."""
    q = torch.tensor(score, dtype=torch.float64)
    mask = torch.tensor([bool(admitted >> k & 1) for k in range(len(score))])
    assume(mask.any() and not mask.all() and q[mask].max() != -1000)  # the last is a tie
    product = int(((q + 1000) * mask).argmax())
    assert bool(mask[product]) == bool(q[mask].max() > -1000)
    cost = torch.where(mask, 0.0, 2.0).double()
    action, is_feasible = HalfSpace(cost, torch.tensor(1.0, dtype=torch.float64)).greedy_action(q)
    assert bool(is_feasible)
    assert bool(mask[action])
    assert q[action] == q[mask].max()
    if q[mask].max() > -1000:
        assert product == int(action)


@pytest.mark.claim("prop-mask-product")
def test_mask_needs_a_comparison() -> None:
    """Q = (-1500, -1200), only the first admitted: the product takes the second."""
    q, mask = torch.tensor([-1500.0, -1200.0]), torch.tensor([True, False])
    assert int(((q + 1000) * mask).argmax()) == 1
    assert int(HalfSpace(torch.tensor([0.0, 2.0]), torch.tensor(1.0)).greedy_action(q)[0]) == 0


def soft_least_cost(cmdp: tb.CMDP, epsilon: float, horizon: int) -> float:
    """Return c(epsilon): the least cost with a free first action and later ones replaced at rate epsilon."""
    kernel = cmdp.kernel.reshape(cmdp.n_states, cmdp.n_actions, cmdp.n_states)
    paid = cmdp.cost.copy()
    for _ in range(horizon):
        q = cmdp.cost[:, None] + kernel @ paid
        paid = (1 - epsilon) * q.min(axis=1) + epsilon * q.mean(axis=1)
    return float(cmdp.initial @ q.min(axis=1))


@pytest.mark.claim("prop-exploration-empties")
@given(SEED, st.floats(0, 1), st.floats(0, 1))
def test_exploration_empties_holds(seed: int, low: float, high: float) -> None:
    """No epsilon-greedy policy has a start action below c(epsilon), and c does not decrease. Layered: time is state."""
    horizon = 4
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), horizon)
    start = int(cmdp.initial.argmax())
    assert cmdp.initial[start] == 1
    low, high = min(low, high), max(low, high)
    least = soft_least_cost(cmdp, high, horizon + 1)
    assert soft_least_cost(cmdp, low, horizon + 1) <= least + 1e-12
    generator = np.random.default_rng(seed + 1)
    for _ in range(5):
        greedy = np.eye(cmdp.n_actions)[generator.integers(cmdp.n_actions, size=cmdp.n_states)]
        policy = (1 - high) * greedy + high * tb.uniform_policy(cmdp)
        chain = tb.policy_chain(cmdp, policy)
        q = tb.q_value(cmdp, cmdp.cost, tb.forward_value(chain, cmdp.cost))
        limit = least - 1e-6
        offset = limit + cmdp.cost[start] - tb.backward_value(chain, cmdp.cost, unreachable="nan")[start]
        assert offset == pytest.approx(limit, abs=1e-12)  # nothing lies behind a start that is never seen again
        assert (q[start] > offset).all()


@pytest.mark.claim("prop-exploration-empties")
def test_exploration_empties_the_papers_grid_holds() -> None:
    """Ten layouts: empty above a rate between .2 and .56; random behaviour costs over 400, the most careful at rest < 12."""
    for seed in range(10):
        cmdp = GridWorld.random(seed).to_cmdp()
        assert soft_least_cost(cmdp, 0.56, 200) > 20 > soft_least_cost(cmdp, 0.2, 200)
        assert soft_least_cost(cmdp, 1.0, 200) > 400
        assert soft_least_cost(cmdp, 0.0, 200) < 12


@pytest.mark.claim("prop-fixed-penalty")
@given(SEED, st.floats(1e-3, 10))
def test_fixed_penalty_holds(seed: int, excess: float) -> None:
    """Above the optimal multiplier every best response is feasible and loses at most price times unused limit."""
    cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed), 4), 0.4)
    optimum = tb.optimal_policy(cmdp)
    assert optimum.is_feasible
    price = optimum.multiplier + excess
    value, cost = tb.evaluate_policy(cmdp, tb.best_response(cmdp, price))
    assert cost <= cmdp.cost_limit + 1e-6
    assert -1e-6 <= optimum.value - value <= price * (cmdp.cost_limit - cost) + 1e-6


@pytest.mark.claim("prop-fixed-penalty")
def test_fixed_penalty_needs_a_price_above_the_multiplier() -> None:
    """Below it, the best response costs more than the limit (layout 0: price .005 against a multiplier of .0068)."""
    cmdp = GridWorld.random(0).to_cmdp()
    multiplier = tb.optimal_policy(cmdp).multiplier
    assert multiplier == pytest.approx(0.0068, abs=5e-5)
    assert tb.evaluate_policy(cmdp, tb.best_response(cmdp, 0.005))[1] > 20
    assert tb.evaluate_policy(cmdp, tb.best_response(cmdp, 0.008))[1] <= 20


@pytest.mark.claim("prop-price-of-exploring")
@given(SEED, st.floats(0.001, 1))
def test_price_of_exploring_holds(seed: int, epsilon: float) -> None:
    """Added cost = epsilon sum_x m_eps(x) (mean Q_D - V_D), exactly, for any base policy and any exploration."""
    generator = np.random.default_rng(seed)
    cmdp = tb.random_layered_cmdp(generator, 4)
    policy, other = (generator.dirichlet(np.full(cmdp.n_actions, 0.5), cmdp.n_states) for _ in range(2))
    mixed = (1 - epsilon) * policy + epsilon * other
    value = tb.forward_value(tb.policy_chain(cmdp, policy), cmdp.cost)
    surplus = (other * tb.q_value(cmdp, cmdp.cost, value)).sum(axis=1) - value
    added = tb.evaluate_policy(cmdp, mixed)[1] - tb.evaluate_policy(cmdp, policy)[1]
    visits = tb.expected_visits(tb.policy_chain(cmdp, mixed))
    assert added == pytest.approx(epsilon * float(visits @ surplus), abs=1e-9)


@pytest.mark.claim("prop-price-of-exploring")
def test_price_of_exploring_on_the_grid_holds() -> None:
    """Layout 0 at epsilon = .01: .76 over the limit, 1,500 times less than the worst case of the bound."""
    cmdp = GridWorld.random(0).to_cmdp()
    policy = tb.optimal_policy(cmdp).policy
    added = tb.evaluate_policy(cmdp, 0.99 * policy + 0.01 * tb.uniform_policy(cmdp))[1] - 20
    assert added == pytest.approx(0.7565, abs=5e-4)
    assert tb.coupling_bound(0.01, 10, 200) / added == pytest.approx(1510, abs=2)
