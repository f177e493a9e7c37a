"""Lagrangian, Lyapunov, CPO's surrogate, one price or many: what each neighbour promises and what it needs (chapter 8)."""

from __future__ import annotations

from functools import partial
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import enumerated
from tests.strategies import SEED, cmdps, policies


def values(cmdp: tb.CMDP, policy: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return visits, V, Q, V_D and Q_D of policies [..., S, A], by plain linear algebra (not the package's)."""
    kernel = np.einsum("...xa,xay->...xy", policy, cmdp.transition)
    inverse = np.linalg.inv(np.eye(cmdp.n_states) - kernel)
    v = np.einsum("...xy,...y->...x", inverse, (policy * cmdp.reward).sum(axis=-1))
    v_cost = inverse @ cmdp.cost
    ahead, ahead_cost = (np.einsum("xay,...y->...xa", cmdp.transition, w) for w in (v, v_cost))
    return cmdp.initial @ inverse, v, cmdp.reward + ahead, v_cost, cmdp.cost[:, None] + ahead_cost


def deterministic(cmdp: tb.CMDP) -> np.ndarray:
    """Return all deterministic policies, [N, S, A]."""
    choice = np.array(list(product(range(cmdp.n_actions), repeat=cmdp.n_states)))
    return np.eye(cmdp.n_actions)[choice]


def points(cmdp: tb.CMDP, policy: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (return, cost) of policies."""
    _, v, _, v_cost, _ = values(cmdp, policy)
    return v @ cmdp.initial, v_cost @ cmdp.initial


def best_mixture(value: np.ndarray, cost: np.ndarray, limit: float) -> float:
    """Return the best return of a mixture of two points whose cost is at most the limit."""
    cheap = cost <= limit
    best = value[cheap].max()
    for v, c in zip(value[~cheap], cost[~cheap], strict=True):
        share = (limit - cost[cheap]) / (c - cost[cheap])
        best = max(best, (value[cheap] + share * (v - value[cheap])).max())
    return float(best)


@st.composite
def layered(draw: st.DrawFn, horizon: int = 0) -> tb.CMDP:
    """Draw a layered CMDP whose limit binds; ``horizon`` 0 draws it, too."""
    depth = horizon or draw(st.integers(1, 4))
    generator = np.random.default_rng(draw(SEED))
    cmdp = tb.random_layered_cmdp(generator, depth, 3, draw(st.integers(2, 3)), branching=2)
    return tb.with_binding_limit(cmdp, draw(st.sampled_from([0.1, 0.4, 0.8])))


# The dual.


@pytest.mark.claim("prop-exact-dual")
@settings(max_examples=25)
@given(cmdps(max_states=4))
def test_exact_dual_holds(cmdp: tb.CMDP) -> None:
    """No gap: the lowest point of the upper envelope of all lines is the best mixture, and the search finds both."""
    value, cost = points(cmdp, deterministic(cmdp))
    optimum, found = best_mixture(value, cost, cmdp.cost_limit), tb.optimum_by_prices(cmdp)
    with np.errstate(all="ignore"):
        crossing = np.subtract.outer(value, value) / np.subtract.outer(cost, cost)
    price = np.r_[0.0, crossing[np.isfinite(crossing) & (crossing > 0)]]
    envelope = np.array([(value - p * (cost - cmdp.cost_limit)).max() for p in price])
    assert envelope.min() == pytest.approx(optimum, rel=1e-7, abs=1e-7), "duality gap"
    assert found.value == pytest.approx(optimum, rel=1e-7, abs=1e-7)
    at = (value - found.multiplier * (cost - cmdp.cost_limit)).max()
    assert at == pytest.approx(optimum, rel=1e-7, abs=1e-7), "the price does not attain the dual"
    if found.multiplier > 0:
        assert found.cost == pytest.approx(cmdp.cost_limit, rel=1e-9, abs=1e-9), "the mixture meets the limit exactly"


@pytest.mark.claim("prop-exact-dual")
@settings(max_examples=30)
@given(cmdps(max_states=4), SEED)
def test_exact_dual_is_convex_and_its_replies_never_repeat(cmdp: tb.CMDP, seed: int) -> None:
    value, cost = points(cmdp, deterministic(cmdp))
    low, high = np.sort(np.random.default_rng(seed).exponential(2.0, 2))
    g_low, g_middle, g_high = ((value - p * (cost - cmdp.cost_limit)).max() for p in (low, (low + high) / 2, high))
    assert g_middle <= (g_low + g_high) / 2 + 1e-12
    dear, cheap = int(value.argmax()), int(cost.argmin())
    trail = []
    while cost[dear] > cmdp.cost_limit >= cost[cheap]:
        assert len(trail) < len(value)
        price = max(0.0, (value[dear] - value[cheap]) / (cost[dear] - cost[cheap]))
        reply = int((value - price * cost).argmax())
        gain = (value - price * cost)[reply] - (value - price * cost)[cheap]
        if gain <= 1e-10:
            break
        assert reply not in trail, "a reply came back"
        trail.append(reply)
        # On either side of the limit the costs move inwards.
        if cost[reply] > cmdp.cost_limit:
            assert cost[reply] < cost[dear] + 1e-10
            dear = reply
        else:
            assert cost[reply] > cost[cheap] - 1e-10
            cheap = reply


@pytest.mark.claim("prop-exact-dual")
@pytest.mark.parametrize(
    ("cmdp", "value", "price"),
    [(tb.coin_flip(), 0.5, 1.0), (tb.coin_gate(), 0.8, 1.0), (tb.equal_gates(2, 3.0), 1.5, 1.0)],
)
def test_exact_dual_holds_by_hand(cmdp: tb.CMDP, value: float, price: float) -> None:
    found = tb.optimum_by_prices(cmdp)
    assert found.value == pytest.approx(value, abs=1e-12)
    # equal_gates: any price in [1, 3] supports the corner.
    assert price - 1e-12 <= found.multiplier <= (3.0 if cmdp.n_states == 4 else price) + 1e-12


@pytest.mark.claim("prop-exact-dual")
def test_exact_dual_needs_randomised_policies() -> None:
    """Over deterministic policies alone there is a gap: 0 against 1/2 in coin_flip."""
    cmdp = tb.coin_flip()
    value, cost = points(cmdp, deterministic(cmdp))
    assert value[cost <= cmdp.cost_limit].max() == 0.0
    dual = min((value - p * (cost - cmdp.cost_limit)).max() for p in (0.0, 1.0))
    assert dual == 0.5


# The primal-dual method.


@pytest.mark.claim("prop-primal-dual")
@settings(max_examples=20)
@given(layered(), st.floats(0.01, 2.0), st.integers(1, 40), st.sampled_from([0.0, 0.5]))
def test_primal_dual_holds(cmdp: tb.CMDP, alpha: float, n: int, first: float) -> None:
    run, limit = tb.primal_dual(cmdp, alpha, n, first), cmdp.cost_limit
    optimum = tb.optimal_policy(cmdp).value
    reach = np.abs(run.cost - limit).max()
    value, cost = points(cmdp, run.policy)
    assert value == pytest.approx(run.average_value[-1], abs=1e-9)
    assert cost == pytest.approx(run.average_cost[-1], abs=1e-9)
    assert optimum - value <= first**2 / (2 * alpha * n) + alpha * reach**2 / 2 + 1e-6
    least = points(cmdp, tb.least_cost_policy(cmdp))
    assume(limit - least[1] > 1e-6)  # some policy has room
    ceiling = (points(cmdp, tb.best_response(cmdp, 0.0))[0] - least[0]) / (limit - least[1]) + alpha * reach
    assert (run.multiplier <= max(first, ceiling) + 1e-9).all()
    assert cost - limit <= max(first, ceiling) / (alpha * n) + 1e-9


@pytest.mark.claim("prop-primal-dual")
def test_primal_dual_needs_the_average() -> None:
    """coin_flip, optimum 1/2 at cost 1/2: every single iterate costs 0 or 1, for ever, and the return goes down, too."""
    run = tb.primal_dual(tb.coin_flip(), 0.3, 200)
    assert set(np.unique(run.cost)) == {0.0, 1.0}
    assert set(np.unique(run.cost[-10:])) == {0.0, 1.0}, "it still jumps at the end"
    assert (np.diff(run.value) < 0).any(), "not monotone"
    assert (run.cost > 0.5).any(), "not feasible on the way"
    assert run.average_cost[-1] == pytest.approx(0.5, abs=0.02)
    assert run.average_value[-1] == pytest.approx(0.5, abs=0.02)


# Lyapunov.


@st.composite
def feasible(draw: st.DrawFn) -> tuple[tb.CMDP, np.ndarray, float]:
    """Draw a CMDP with random episode lengths, a policy, a limit above its cost, and the bound on decisions."""
    cmdp = draw(cmdps())
    policy = draw(policies(cmdp.n_states, cmdp.n_actions))
    cost = float(points(cmdp, policy)[1])
    cmdp = cmdp.with_cost_limit(cost * (1 + draw(st.sampled_from([0.0, 0.1, 0.5, 2.0]))))
    return cmdp, policy, tb.decision_bound(cmdp)


@pytest.mark.claim("prop-lyapunov")
@settings(max_examples=40)
@given(feasible())
def test_lyapunov_holds(problem: tuple[tb.CMDP, np.ndarray, float]) -> None:
    cmdp, policy, horizon = problem
    now = tb.evaluate(cmdp, policy)
    _, old, _, cost_value, cost_q = values(cmdp, policy)
    allowance = (cmdp.cost_limit - cost_value @ cmdp.initial) / horizon
    assert np.allclose(tb.lyapunov_offset(now, horizon), cost_value + max(allowance, 0.0), atol=1e-9)
    better = tb.lyapunov_step(now, horizon).policy
    # The dearest policy of the set, not only the step's.
    dearest = tb.linear_step(cost_q, cost_q, cost_value + max(allowance, 0.0)).policy
    for new in (better, dearest):
        assert points(cmdp, new)[1] <= cmdp.cost_limit * (1 + 1e-9) + 1e-9
    assert (values(cmdp, better)[1] >= old - 1e-8).all()


@pytest.mark.claim("prop-lyapunov")
@pytest.mark.parametrize("n", [1, 2, 10])
def test_lyapunov_is_attained(n: int) -> None:
    """repeated_risk: n decisions, each takes its n-th part, together the whole slack."""
    cmdp = tb.repeated_risk(n, 0.5)
    step = tb.lyapunov_step(tb.evaluate(cmdp, tb.least_cost_policy(cmdp)), n)
    assert points(cmdp, step.policy)[1] == pytest.approx(0.5, rel=1e-12)


@pytest.mark.claim("prop-lyapunov")
def test_lyapunov_needs_a_bound_on_the_decisions() -> None:
    """Ten decisions, told that there is one: each takes the whole slack, and the episode costs ten times the limit."""
    cmdp = tb.repeated_risk(10, 0.5)
    now = tb.evaluate(cmdp, tb.least_cost_policy(cmdp))
    assert points(cmdp, tb.lyapunov_step(now, 1).policy)[1] == pytest.approx(5.0, rel=1e-12)


@pytest.mark.claim("prop-lyapunov")
def test_lyapunov_needs_a_feasible_start() -> None:
    cmdp = tb.coin_flip()
    with pytest.raises(tb.InvalidModelError, match="over the limit"):
        tb.lyapunov_step(tb.evaluate(cmdp, np.array([[1.0, 0], [1, 0]])), 1)


# The allowance of the backward value.


@pytest.mark.claim("prop-allowance")
@settings(max_examples=30)
@given(layered(), st.data())
def test_allowance_holds(cmdp: tb.CMDP, data: st.DataObject) -> None:
    """E[s(x_t)] = slack at every t, from all episodes listed one by one; and the total is T times Lyapunov's."""
    policy = data.draw(policies(cmdp.n_states, cmdp.n_actions))
    chain, now = tb.policy_chain(cmdp, policy), tb.evaluate(cmdp, policy)
    with np.errstate(invalid="ignore"):  # states that no episode visits
        truth = enumerated(chain.transition, chain.termination, chain.initial, cmdp.cost)
    seen = truth["visits"] > 0
    room = cmdp.cost_limit - now.state_wise_cost
    assert np.allclose(room[seen], cmdp.cost_limit - truth["total"][seen], atol=1e-10)
    layer = np.r_[0, 1 + np.arange(cmdp.n_states - 1) // 3]
    per_time = np.array([(truth["visits"] * np.where(seen, room, 0.0))[layer == t].sum() for t in range(layer[-1] + 1)])
    slack = cmdp.cost_limit - truth["cost"]
    assert np.allclose(per_time, slack, atol=1e-10)
    horizon = layer[-1]
    assert per_time[:-1].sum() == pytest.approx(horizon * slack, abs=1e-9)


@pytest.mark.claim("prop-allowance")
def test_allowance_holds_as_pinned() -> None:
    """coin_gate: slack 0.1 at each time, -0.1 at the bad state, 0.3 at the good one."""
    now = tb.evaluate(tb.coin_gate(), np.array([[1, 0], [1, 0], [0.4, 0.6], [1, 0], [1, 0]]))
    room = 1.3 - now.state_wise_cost
    assert np.allclose(room, [0.1, 0.3, -0.1, 0.3, 1.3 - 9 / 7], atol=1e-12)
    assert now.visits[1:3] @ room[1:3] == pytest.approx(0.1, abs=1e-12)
    assert now.visits[3:] @ room[3:] == pytest.approx(0.1, abs=1e-12)


@pytest.mark.claim("prop-allowance")
def test_allowance_needs_the_clock() -> None:
    """Averaged over steps of episodes of random length the slack is another number (stay_or_quit, chain4)."""
    now = tb.evaluate(tb.stay_or_quit(), np.array([[0.8, 0.2]]))
    assert 4 - now.state_wise_cost[0] == pytest.approx(4 - 43 / 7, abs=1e-12)
    assert now.slack == pytest.approx(4 - 25 / 7, abs=1e-12)
    chain = tb.chain4()
    whole = tb.state_wise_cost(chain, tb.CHAIN4_COST)
    assert tb.stationary_distribution(chain) @ whole == pytest.approx(9.8170940171, abs=1e-9)
    assert tb.expected_visits(chain) @ tb.CHAIN4_COST == pytest.approx(7.1111111111, abs=1e-9)


# The surrogate.


def surrogate_cost(cmdp: tb.CMDP, old: np.ndarray, new: np.ndarray) -> tuple[float, np.ndarray]:
    """Return C(old) + sum m A_D, and A_D, [S]."""
    visits, _, _, cost_value, cost_q = values(cmdp, old)
    gain = ((new - old) * cost_q).sum(axis=1)
    return float(cost_value @ cmdp.initial + visits @ gain), gain


@pytest.mark.claim("prop-surrogate-bound")
@settings(max_examples=40)
@given(layered(), st.floats(0.0, 1.0), SEED)
def test_surrogate_bound_holds(cmdp: tb.CMDP, share: float, seed: int) -> None:
    generator = np.random.default_rng(seed)
    old = generator.dirichlet(np.ones(cmdp.n_actions), cmdp.n_states)
    aim = np.eye(cmdp.n_actions)[generator.integers(cmdp.n_actions, size=cmdp.n_states)]
    new = old + share * (aim - old)
    sigma = float((np.abs(new - old).sum(axis=1) / 2).max())
    surrogate, gain = surrogate_cost(cmdp, old, new)
    layer = np.r_[0, 1 + np.arange(cmdp.n_states - 1) // 3]
    horizon = int(layer[-1])
    span = np.array([np.ptp(gain[layer == t]) for t in range(horizon)])
    bound = float(((1 - (1 - sigma) ** np.arange(horizon)) * span).sum())
    error = abs(points(cmdp, new)[1] - surrogate)
    assert error <= bound + 1e-10
    _, _, _, _, cost_q = values(cmdp, old)
    reach = float(np.ptp(cost_q, axis=1).max())
    assert error <= sigma**2 * reach * horizon * (horizon - 1) + 1e-10


@pytest.mark.claim("prop-surrogate-bound")
@pytest.mark.parametrize("horizon", [1, 2, 5, 20])
@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0])
def test_surrogate_bound_is_attained(horizon: int, sigma: float) -> None:
    """leave_safety: stay for ever against leave with probability sigma; the error equals the first bound."""
    cmdp = tb.leave_safety(horizon, 1.0)
    old, new = np.tile([0.0, 1.0], (cmdp.n_states, 1)), np.tile([sigma, 1 - sigma], (cmdp.n_states, 1))
    t = np.arange(horizon)
    visits, truth = tb.evaluate(cmdp, old), tb.evaluate(cmdp, new).expected_cost
    surrogate = visits.expected_cost + float(visits.visits @ ((new - old) * visits.cost_q).sum(axis=1))
    assert surrogate == pytest.approx(sigma * horizon * (horizon + 1) / 2, rel=1e-12)
    bound = ((1 - (1 - sigma) ** t) * sigma * (horizon - t)).sum()
    assert abs(surrogate - truth) == pytest.approx(bound, rel=1e-9, abs=1e-12)


@pytest.mark.claim("prop-surrogate-bound")
def test_surrogate_bound_needs_its_penalty() -> None:
    """stay_or_quit from 0.8: the surrogate alone allows 314/375, which costs 375/92.4 > 4."""
    cmdp = tb.stay_or_quit()
    old, new = np.array([[0.8, 0.2]]), np.array([[314 / 375, 61 / 375]])
    assert surrogate_cost(cmdp, old, new)[0] == pytest.approx(4.0, rel=1e-12)
    assert points(cmdp, new)[1] == pytest.approx(375 / 92.4, rel=1e-12)
    assert points(cmdp, new)[1] > 4.05


# One price or many.


def prices(q: np.ndarray, cost_q: np.ndarray, policy: np.ndarray) -> np.ndarray:
    """Return [S, 2], the interval of prices at which the actions in use maximise Q - lambda Q_D; (1, 0) if none."""
    result = np.zeros((len(q), 2))
    for x, (gain, cost, p) in enumerate(zip(q, cost_q, policy, strict=True)):
        low, high = 0.0, np.inf
        for a in np.flatnonzero(p > 1e-9):
            for more, extra in zip(gain - gain[a], cost - cost[a], strict=True):
                if extra > 1e-9:
                    low = max(low, more / extra)
                elif extra < -1e-9:
                    high = min(high, more / extra)
                elif more > 1e-9:
                    high = -1.0
        result[x] = (low, high) if low <= high + 1e-9 else (1.0, 0.0)
    return result


@pytest.mark.claim("prop-local-multipliers")
@settings(max_examples=40)
@given(cmdps(max_states=4))
def test_local_multipliers_holds(cmdp: tb.CMDP) -> None:
    """Each deterministic policy, with the limit at its cost: optimal iff the intervals of all states meet."""
    every = deterministic(cmdp)
    value, cost = points(cmdp, every)
    visits, _, q, _, cost_q = values(cmdp, every)
    # Optimal under its own cost: what best_mixture says.
    for i in np.flatnonzero((visits > 1e-9).all(axis=1)):
        gap = best_mixture(value, cost, cost[i] * (1 + 1e-13)) - value[i]
        interval = prices(q[i], cost_q[i], every[i])
        excess = interval[:, 0].max() - interval[:, 1].min()
        # Ties decide by rounding: only clear cases.
        if gap > 1e-7:
            assert excess > 0
        elif excess < -1e-6 or excess > 1e-6:
            assert excess < 0


@pytest.mark.claim("prop-local-multipliers")
@settings(max_examples=40)
@given(cmdps())
def test_local_multipliers_holds_at_the_optimum(cmdp: tb.CMDP) -> None:
    """The optimum, which randomises, is greedy at every visited state for the one price of the dual."""
    optimum = tb.optimum_by_prices(cmdp)
    visits, _, q, _, cost_q = values(cmdp, optimum.policy)
    score = q - optimum.multiplier * cost_q
    used = (optimum.policy > 1e-9) & (visits > 1e-9)[:, None]
    assert (np.where(used, score.max(axis=1, keepdims=True) - score, 0.0) <= 1e-6 * (1 + np.abs(score))).all()
    assert optimum.multiplier * (cmdp.cost_limit - points(cmdp, optimum.policy)[1]) == pytest.approx(0.0, abs=1e-7)


@pytest.mark.claim("prop-local-multipliers")
def test_local_multipliers_hold_as_pinned() -> None:
    """coin_gate: prices 0 and 1 where the printed step stops (0.65), 1 and 1 at the optimum (0.8)."""
    gate = tb.coin_gate()

    def at(bad: float) -> np.ndarray:
        policy = np.array([[1, 0], [1, 0], [bad, 1 - bad], [1, 0], [1, 0]])
        _, _, q, _, cost_q = values(gate, policy)
        return prices(q, cost_q, policy)[1:3]

    assert np.allclose(at(0.6), [[0, 1], [1, 1]], atol=1e-12)
    now = tb.evaluate(gate, np.array([[1, 0], [1, 0], [0.3, 0.7], [1, 0], [1, 0]]))
    step = tb.spi_step(now)
    assert np.allclose(step.policy, now.policy, atol=1e-12)
    assert np.allclose(step.multiplier[1:3], [0, 1], atol=1e-12)


@pytest.mark.claim("prop-local-multipliers")
@pytest.mark.parametrize("brake", tb.BRAKES)
@pytest.mark.parametrize("share", [0.0, 0.02])
def test_local_multipliers_needs_one_price(brake: str, share: float) -> None:
    """equal_gates(2, 3): every brake stops at return 1 of 3/2, where the gates' prices are 3 and 1."""
    gates = tb.equal_gates(2, 3.0)
    start = (1 - share) * tb.least_cost_policy(gates) + share * tb.uniform_policy(gates)
    run = tb.policy_iteration(gates, start, partial(tb.safeguarded_step, brake=brake, horizon=2), 300)
    assert run.n_infeasible == run.n_decreases == 0
    assert run.value[-1] == pytest.approx(1.0, abs=1e-9)
    assert np.allclose(run.policy[1:3], 0.5, atol=1e-9)
    half = np.array([[1, 0], [0.5, 0.5], [0.5, 0.5], [1, 0]])
    again = tb.safeguarded_step(tb.evaluate(gates, half), brake, 2)
    assert np.allclose(again.policy[1:3], 0.5, atol=1e-12)
    _, _, q, _, cost_q = values(gates, half)
    assert np.allclose(prices(q, cost_q, half)[1:3], [[3, 3], [1, 1]], atol=1e-12), "a price for each, none for both"
    assert tb.optimal_policy(gates).value == pytest.approx(1.5, abs=1e-9)


@pytest.mark.claim("prop-local-multipliers")
@settings(max_examples=12)
@given(st.floats(0, 1), st.floats(0, 1), st.sampled_from(tb.BRAKES))
def test_local_multipliers_stall_from_every_start(first: float, second: float, brake: str) -> None:
    """The gate that earns less is never shut again; from the first step on it is open a little, and stays so."""
    gates = tb.equal_gates(2, 3.0)
    assume(first + second <= 1 - 1e-3)
    policy = np.array([[1, 0], [first, 1 - first], [second, 1 - second], [1, 0]])
    walk = tb.improvements(gates, policy, partial(tb.safeguarded_step, brake=brake, horizon=2))
    path = np.array([next(walk)[0].policy[2, 0] for _ in range(12)])
    assert (np.diff(path) >= -1e-12).all()
    assert path[1] > 0
    value = points(gates, next(walk)[0].policy)[0]
    assert value <= 1.5 - path[1] + 1e-12


@pytest.mark.claim("prop-local-multipliers")
def test_local_multipliers_needs_every_state_visited() -> None:
    """State 0 ends for 1 or goes to state 1, where the policy would lose 5 and could win 5: greedy, and not optimal."""
    transition = np.zeros((2, 2, 2))
    transition[0, 1, 1] = 1.0
    cmdp = tb.CMDP.episodic(
        transition, np.array([[1.0, 0.0], [-5.0, 5.0]]), np.array([0.0, 1.0]), np.array([1.0, 0.0]), 1.0
    )
    policy = np.array([[1.0, 0.0], [1.0, 0.0]])
    visits, _, q, _, cost_q = values(cmdp, policy)
    assert visits[1] == 0
    assert prices(q, cost_q, policy)[0, 0] == 0.0, "price 0 makes it greedy at the state that it visits"
    assert points(cmdp, policy)[0] == 1.0
    assert points(cmdp, deterministic(cmdp))[0].max() == 5.0
