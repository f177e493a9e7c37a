"""Chapter 18: what a past certifies, whose past a buffer holds, several limits, errors, and prices that keep accounts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog, minimize_scalar

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Multiplier, MultiplierState
from bvf_tutorial.agents.multipliers import updated_multiplier
from tests.oracles import enumerated, paths
from tests.strategies import SEED, cmdps, continuing_chains, costs, killed_chains, policies


def rounds(p: float) -> tuple[tb.Chain, np.ndarray]:
    """Two rounds that cost 1 with probability p; the paths merge after each."""
    transition = np.zeros((7, 7))
    for t in (0, 3):
        transition[t, t + 1], transition[t, t + 2] = 1 - p, p
        transition[t + 1, t + 3] = transition[t + 2, t + 3] = 1.0
    return tb.Chain.killed(transition, np.eye(7)[0]), np.array([0.0, 0, 1, 0, 0, 1, 0])


@pytest.mark.claim("prop-past-certificate")
@given(st.floats(0.0, 0.999))
def test_feasible_states_say_nothing_about_how_often(q: float) -> None:
    """Any share of episodes can be over a limit that no state sees broken; law by enumeration of the paths."""
    chain, cost = rounds(q**0.5)
    seen = tb.state_wise_cost(chain.restricted(chain.visited), cost[chain.visited])
    limit = 1 + q**0.5
    assert seen.max() <= limit + 1e-12
    law = paths(chain.transition, chain.termination, chain.initial)
    assert sum(p for p, path in law if cost[path].sum() > limit) == pytest.approx(q, abs=1e-12)


@pytest.mark.claim("prop-past-certificate")
@given(st.data(), st.floats(1.01, 5.0))
def test_feasible_states_bound_how_far(data: st.DataObject, k: float) -> None:
    """Moments and tail against the law of the cost; the states without cost may see anything."""
    chain = data.draw(killed_chains(max_states=5))
    cost = np.random.default_rng(data.draw(SEED)).integers(0, 3, chain.n_states).astype(float)
    assume(cost.any())
    limit = tb.state_wise_cost(chain, cost)[cost > 0].max()
    mean = chain.initial @ tb.forward_value(chain, cost)
    second = chain.initial @ tb.product_moment(chain, cost, cost)
    variance = second - mean**2
    assert second <= limit * mean * (1 + 1e-9)
    assert variance <= mean * (limit - mean) + 1e-9 * limit**2 <= limit**2 / 4 + 2e-9 * limit**2
    n_levels = int(np.ceil(k * limit - 1e-9))
    law = chain.initial @ tb.cost_distribution(chain, cost, n_levels)
    assert 1 - law.sum() <= 1 / (2 * k - 1) ** 2 + 1e-9


@pytest.mark.claim("prop-past-certificate")
@given(st.floats(1.01, 20.0))
def test_the_tail_bound_is_the_worst_of_cantelli(k: float) -> None:
    """The completed square of the proof, against Cantelli's bound at every mean u and its largest variance u (1 - u)."""
    u = np.linspace(0, 1, 20_001)
    worst = tb.cantelli_bound(u, u * (1 - u), np.full_like(u, k)).max()
    assert worst <= 1 / (2 * k - 1) ** 2 + 1e-12
    assert worst == pytest.approx(1 / (2 * k - 1) ** 2, rel=1e-4)


@pytest.mark.claim("prop-pasts-mix")
@settings(max_examples=15)
@given(st.data(), st.lists(st.floats(0.05, 1.0), min_size=2, max_size=3))
def test_what_a_buffer_holds(data: st.DataObject, weights: list[float]) -> None:
    """TD's kernel is built from pooled rates; Monte Carlo's mean from each policy's own reversal."""
    cmdp = data.draw(cmdps())
    share = np.array(weights) / sum(weights)
    size, n_actions = cmdp.reward.shape
    generator = np.random.default_rng(data.draw(SEED))
    starts = generator.dirichlet(np.ones(size), len(share))
    pool = [data.draw(policies(size, n_actions)) for _ in share]
    chains = [replace(tb.policy_chain(cmdp, pi), initial=mu) for pi, mu in zip(pool, starts, strict=True)]
    visits = np.array([tb.expected_visits(chain) for chain in chains])
    rate = sum(w * m[:, None] * c.transition for w, m, c in zip(share, visits, chains, strict=True))
    first = share @ starts
    kernel = rate.T / (first + rate.sum(axis=0))[:, None]
    by_td = np.linalg.solve(np.eye(size) - kernel, cmdp.cost)
    occupancy = sum(w * m[:, None] * pi for w, m, pi in zip(share, visits, pool, strict=True))
    merged = replace(tb.policy_chain(cmdp, tb.policy_from_occupancy(occupancy)), initial=first)
    np.testing.assert_allclose(tb.expected_visits(merged), share @ visits, rtol=1e-9)
    np.testing.assert_allclose(tb.backward_value(merged, cmdp.cost), by_td, rtol=1e-8, atol=1e-10)


@pytest.mark.claim("prop-pasts-mix")
@settings(max_examples=25)
@given(SEED, st.floats(0.1, 0.9))
def test_monte_carlo_weighs_pasts_by_visits(seed: int, share: float) -> None:
    """Every path of both policies, each with its own start law, poured into one buffer."""
    generator = np.random.default_rng(seed)
    cmdp = tb.random_layered_cmdp(generator, horizon=2, width=2, n_actions=2, branching=2)
    starts = generator.dirichlet(np.ones(5), 2)
    pool = [generator.dirichlet(np.full(2, 0.5), 5) for _ in range(2)]
    chains = [replace(tb.policy_chain(cmdp, pi), initial=mu) for pi, mu in zip(pool, starts, strict=True)]
    count, past = np.zeros(5), np.zeros(5)
    for weight, chain in zip((share, 1 - share), chains, strict=True):
        for p, path in paths(chain.transition, chain.termination, chain.initial):
            np.add.at(count, path, weight * p)
            np.add.at(past, path, weight * p * np.cumsum(cmdp.cost[path]))
    visits = [w * tb.expected_visits(chain) for w, chain in zip((share, 1 - share), chains, strict=True)]
    mixed = sum(m * tb.backward_value(chain, cmdp.cost) for m, chain in zip(visits, chains, strict=True))
    np.testing.assert_allclose(past / count, mixed / sum(visits), rtol=1e-9, atol=1e-12)


@pytest.mark.claim("prop-pasts-mix")
def test_monte_carlo_and_td_read_a_buffer_differently() -> None:
    """Two policies on a diamond with a second diamond behind: one takes both dear sides, the other both free ones."""
    transition = np.zeros((7, 2, 7))
    for t in (0, 3):
        transition[t, :, t + 1 : t + 3] = np.eye(2)
        transition[t + 1 : t + 3, :, t + 3] = 1.0
    cmdp = tb.CMDP.episodic(transition, np.zeros((7, 2)), [0.0, 1, 0, 0, 1, 0, 0], np.eye(7)[0], 1.0)
    dear, free = np.tile([1.0, 0.0], (7, 1)), np.tile([0.0, 1.0], (7, 1))
    records = [tb.sample_episodes(cmdp, pi, 50, np.random.default_rng(0)) for pi in (dear, free)]
    joined = tb.Episodes(*(np.concatenate([getattr(r, k) for r in records]) for k in
                           ("state", "action", "length", "is_start_known", "is_end_known")))  # fmt: skip
    pooled = tb.monte_carlo(joined, cmdp.cost, "backward").value
    np.testing.assert_allclose(pooled[[4, 5, 6]], [2, 0, 1])
    merged = tb.policy_chain(cmdp, (dear + free) / 2)  # the occupancies of both, averaged
    np.testing.assert_allclose(tb.backward_value(merged, cmdp.cost)[[4, 5, 6]], [1.5, 0.5, 1])


def squared_weights(target: np.ndarray, behaviour: np.ndarray, transition: np.ndarray) -> np.ndarray:
    return np.einsum("ya,yax->yx", target**2 / behaviour, transition)


@pytest.mark.claim("prop-past-weights")
@given(SEED)
def test_weights_on_the_past_path_by_path(seed: int) -> None:
    """Every path of states and actions of a layered problem, with its weight: means and second moments by time."""
    generator = np.random.default_rng(seed)
    cmdp = tb.random_layered_cmdp(generator, horizon=2, width=2, n_actions=2, branching=2)
    b, pi = (0.8 * generator.dirichlet(np.ones(2), 5) + 0.1 for _ in range(2))
    walks = [(1.0, 1.0, 0, float(cmdp.cost[0]))]  # probability under b, weight, state, cost so far
    count, past, second = (np.zeros(5) for _ in range(3))
    for _ in range(3):
        following = []
        for p, w, x, c in walks:
            count[x], past[x], second[x] = count[x] + p * w, past[x] + p * w * c, second[x] + p * w**2
            for a in range(2):
                for y in np.flatnonzero(cmdp.transition[x, a]):
                    step = p * b[x, a] * cmdp.transition[x, a, y]
                    following.append((step, w * pi[x, a] / b[x, a], int(y), c + cmdp.cost[y]))
        walks = following
    chain = tb.policy_chain(cmdp, pi)
    np.testing.assert_allclose(count, tb.expected_visits(chain), rtol=1e-10)
    np.testing.assert_allclose(past / count, tb.backward_value(chain, cmdp.cost), rtol=1e-10, atol=1e-12)
    matrix = squared_weights(pi, b, cmdp.transition)
    np.testing.assert_allclose(second, cmdp.initial @ np.linalg.inv(np.eye(5) - matrix), rtol=1e-10)


@pytest.mark.claim("prop-past-weights")
@settings(max_examples=15)
@given(st.data())
def test_variance_is_finite_by_the_radius(data: st.DataObject) -> None:
    """The second moment of the sum itself, for episodes cut after t steps: it settles below 1, and grows for ever from 1.

    With g the mean and u the second moment from each first state, one more step in front gives u <- 1_x (2 g - 1) + M u.
    """
    cmdp = data.draw(cmdps())
    size, n_actions = cmdp.reward.shape
    b, pi = data.draw(policies(size, n_actions)), data.draw(policies(size, n_actions))
    matrix, chain = squared_weights(pi, b, cmdp.transition), tb.policy_chain(cmdp, pi)
    radius = np.abs(np.linalg.eigvals(matrix)).max()
    assume(abs(radius - 1) > 0.02 and chain.visited.all())
    mean, second = np.zeros((size, size)), np.zeros((size, size))
    for _ in range(3000):
        mean = np.eye(size) + chain.transition @ mean
        second = np.diag(2 * np.diag(mean) - 1) + matrix @ second
        if (largest := (cmdp.initial @ second).max()) > 1e12:
            break
    if radius < 1:
        visits = np.linalg.inv(np.eye(size) - chain.transition)
        exact = cmdp.initial @ np.linalg.inv(np.eye(size) - matrix) * (2 * np.diag(visits) - 1)
        np.testing.assert_allclose(cmdp.initial @ second, exact, rtol=1e-6)
    else:
        assert largest > 1e12


@pytest.mark.claim("prop-past-weights")
def test_variance_by_drawn_episodes() -> None:
    """One state, survival 0.6, target (0.6, 0.4) from a fair coin; fourth moments are finite, so errors can be estimated."""
    generator, survival = np.random.default_rng(0), 0.6
    length = generator.geometric(1 - survival, 100_000)
    ratio = np.where(generator.random((length.size, length.max())) < 0.5, 1.2, 0.8)
    weight = np.cumprod(np.c_[np.ones(length.size), ratio[:, :-1]], axis=1)
    total = np.where(np.arange(length.max()) < length[:, None], weight, 0.0).sum(axis=1)
    matrix = survival * (0.6**2 + 0.4**2) / 0.5
    exact = (2 / (1 - survival) - 1) / (1 - matrix)
    assert abs((total**2).mean() - exact) < 5 * (total**2).std() / length.size**0.5
    assert abs(total.mean() - 1 / (1 - survival)) < 5 * total.std() / length.size**0.5


@pytest.mark.claim("prop-joint-shortage")
@settings(max_examples=40)
@given(SEED, st.integers(2, 4), st.integers(2, 3))
def test_joint_shortage(seed: int, n_actions: int, n_costs: int) -> None:
    """The primal as a linear program over actions; the dual as one over prices; emptiness as a third."""
    generator = np.random.default_rng(seed)
    over = generator.normal(size=(n_costs, n_actions))  # Q_i(a) - b_i
    one = np.ones((1, n_actions))
    primal = linprog(np.r_[np.zeros(n_actions), 1], np.c_[over, -np.ones(n_costs)], np.zeros(n_costs),
                     np.c_[one, 0], [1], [(0, None)] * n_actions + [(None, None)])  # fmt: skip
    dual = linprog(np.r_[np.zeros(n_costs), -1], np.c_[-over.T, np.ones(n_actions)], np.zeros(n_actions),
                   np.c_[np.ones((1, n_costs)), 0], [1], [(0, None)] * n_costs + [(None, None)])  # fmt: skip
    assert primal.fun == pytest.approx(-dual.fun, abs=1e-8)
    assume(abs(primal.fun) > 1e-6)
    served = linprog(np.zeros(n_actions), over, np.zeros(n_costs), one, [1])
    assert (served.status == 0) == (primal.fun < 0)
    assert primal.fun >= over.min(axis=1).max() - 1e-9


@pytest.mark.claim("prop-joint-shortage")
def test_each_limit_alone_is_not_enough() -> None:
    over = np.array([[1.0, -0.5], [-0.5, 1.0]])
    assert (over.min(axis=1) < 0).all()
    assert linprog(np.zeros(2), over, np.zeros(2), np.ones((1, 2)), [1]).status == 2


def best_return(cmdp: tb.CMDP, costs: list[np.ndarray], limits: list[float]) -> float:
    n_actions = cmdp.n_actions
    flow = (np.repeat(np.eye(cmdp.n_states), n_actions, axis=0) - cmdp.kernel).T
    solved = linprog(-cmdp.reward.ravel(), np.repeat(costs, n_actions, axis=1), limits, flow, cmdp.initial)
    return -solved.fun if solved.status == 0 else -np.inf


@pytest.mark.claim("prop-merged-costs")
@settings(max_examples=30)
@given(SEED, st.integers(2, 3), st.booleans())
def test_merged_limits_lie_between(seed: int, n_costs: int, has_exit: bool) -> None:
    generator = np.random.default_rng(seed)
    cmdp = tb.random_layered_cmdp(generator, horizon=3, width=3, n_actions=2)
    cost = generator.uniform(0, 1, (n_costs, 10)) * (generator.random((n_costs, 10)) > 0.3)
    if has_exit:
        cost[:, 0] = 0.0
        transition = np.concatenate([cmdp.transition, np.zeros((10, 1, 10))], axis=1)
        reward = np.c_[cmdp.reward, np.zeros(10)]
        cmdp = tb.CMDP.episodic(transition, reward, cmdp.cost, cmdp.initial, 1.0)
    relative = list(cost / generator.uniform(0.3, 2.0, n_costs)[:, None])
    every = best_return(cmdp, relative, [1.0] * n_costs)
    largest, total = best_return(cmdp, [np.max(relative, 0)], [1.0]), best_return(cmdp, [np.sum(relative, 0)], [1.0])
    shares = best_return(cmdp, relative, [1 / n_costs] * n_costs)
    assert shares <= total + 1e-7
    assert total <= largest + 1e-7
    assert largest <= every + 1e-7
    if has_exit:  # leaving at once costs nothing and returns nothing
        assert total >= every / n_costs - 1e-7


@pytest.mark.claim("prop-merged-costs")
@pytest.mark.parametrize("n_costs", [2, 3, 5])
def test_merging_can_keep_only_one_share(n_costs: int) -> None:
    """Purchases in a row: state 2 t decides, state 2 t + 1 pays the t-th cost."""
    size = 2 * n_costs + 1
    transition, reward, cost = np.zeros((size, 2, size)), np.zeros((size, 2)), np.zeros((n_costs, size))
    for t in range(n_costs):
        transition[2 * t, 0, 2 * t + 1] = transition[2 * t, 1, 2 * t + 2] = transition[2 * t + 1, :, 2 * t + 2] = 1.0
        reward[2 * t, 0] = cost[t, 2 * t + 1] = 1.0
    cmdp = tb.CMDP.episodic(transition, reward, cost[0], np.eye(size)[0], 1.0)
    assert best_return(cmdp, list(cost), [1.0] * n_costs) == pytest.approx(n_costs)
    for merged in (cost.max(axis=0), cost.sum(axis=0)):
        assert best_return(cmdp, [merged], [1.0]) == pytest.approx(1.0)


@pytest.mark.claim("prop-noisy-past")
@settings(max_examples=50)
@given(st.data())
def test_only_a_mean_error_counts_for_own_values(data: st.DataObject) -> None:
    chain = data.draw(killed_chains())
    cost = data.draw(costs(chain.n_states))
    error = np.random.default_rng(data.draw(SEED)).normal(size=chain.n_states) * 3
    limit = (tb.state_wise_cost(chain, cost) + error).max()  # the smallest limit that the estimate claims to meet
    visits = tb.expected_visits(chain)
    mean = visits @ cost
    assert mean <= limit - chain.initial @ error + 1e-9 * (1 + mean)
    assert mean <= limit - (visits * chain.termination) @ error + 1e-9 * (1 + mean)
    if mean > 1e-6:
        assert mean <= limit - (visits * cost) @ error / mean + 1e-9 * (1 + mean)


@pytest.mark.claim("prop-noisy-past")
@given(SEED, SEED)
def test_with_a_clock_the_stationary_mean_counts(seed: int, other: int) -> None:
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), horizon=4, width=3)
    now = tb.evaluate(cmdp, tb.uniform_policy(cmdp))
    keep = now.visits > 0
    visits, seen = now.visits[keep], now.state_wise_cost[keep]
    error = np.random.default_rng(other).normal(size=visits.size)
    limit = (seen + error).max()
    layer = np.r_[0, 1 + np.repeat(np.arange(4), 3)][keep]
    for t in range(5):
        at = layer == t
        assert visits[at].sum() == pytest.approx(1)
        assert now.expected_cost <= limit - visits[at] @ error[at] + 1e-9
    assert now.expected_cost <= limit - visits @ error / visits.sum() + 1e-9
    # Least squares with an intercept: no mean error, whatever the other feature.
    feature = np.c_[np.ones(visits.size), error]
    root = np.sqrt(visits)[:, None]
    fitted = feature @ np.linalg.lstsq(root * feature, root[:, 0] * now.backward[keep], rcond=None)[0]
    assert visits @ (fitted - now.backward[keep]) == pytest.approx(0, abs=1e-9)
    assert now.expected_cost <= (seen + fitted - now.backward[keep]).max() + 1e-9


@pytest.mark.claim("prop-noisy-past")
@settings(max_examples=50)
@given(st.data())
def test_td_with_an_intercept_is_right_at_the_last_state(data: st.DataObject) -> None:
    """The fixed point of backward TD(0) with linear features, in any chain: no mean error at the last state."""
    chain = data.draw(killed_chains())
    chain = chain.restricted(chain.visited)
    cost, visits = data.draw(costs(chain.n_states)), tb.expected_visits(chain)
    feature = np.c_[np.ones(visits.size), np.random.default_rng(data.draw(SEED)).normal(size=visits.size)]
    before = (visits[:, None] * chain.transition).T / visits[:, None] @ feature
    system = (feature.T * visits) @ (feature - before)
    assume(np.linalg.cond(system) < 1e6)
    believed = feature @ np.linalg.solve(system, (feature.T * visits) @ cost)
    scale = 1 + np.abs(believed).max() + cost.max() * visits.sum()
    error = believed - tb.backward_value(chain, cost)
    assert (visits * chain.termination) @ error == pytest.approx(0, abs=1e-8 * scale)
    assert visits @ cost <= (tb.state_wise_cost(chain, cost) + error).max() + 1e-8 * scale


@pytest.mark.claim("prop-noisy-past")
def test_without_a_clock_the_stationary_mean_does_not_count() -> None:
    """fork3 with the error that makes every state claim the same: the claim is eta's average, 0.4, and E[C] is 0.5."""
    seen = tb.state_wise_cost(tb.fork3(), tb.FORK3_COST)
    eta = tb.stationary_distribution(tb.fork3())
    error = 1.0 - seen
    assert (seen + error).max() - eta @ error == pytest.approx(0.4)


@pytest.mark.claim("prop-noisy-past")
@settings(max_examples=30)
@given(SEED, SEED, st.floats(0.0, 0.5))
def test_the_next_policy_pays_at_each_decision(seed: int, other: int, room: float) -> None:
    """At limits that leave every deciding state at least one action, with a wrong past."""
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), horizon=3, width=3)
    error = np.random.default_rng(other).uniform(-1.0, 0.2, cmdp.n_states)
    decides = (cmdp.transition.sum(axis=2) > 0).any(axis=1)
    seen = tb.evaluate(cmdp, tb.uniform_policy(cmdp))
    least = seen.cost_q.min(axis=1) + seen.backward - cmdp.cost + error
    cmdp = cmdp.with_cost_limit(max(float(np.nanmax(least[decides])), 0.0) + room)
    old = tb.evaluate(cmdp, seen.policy)
    step = tb.linear_step(old.q, old.cost_q, tb.backward_offset(old) - error)
    assert not (step.status[decides] == tb.StateStatus.EMPTY).any()
    policy = np.where(decides[:, None], step.policy, old.policy)
    new = tb.evaluate(cmdp, policy)
    at = decides & (new.visits > 0)
    slack = cmdp.cost_limit - old.state_wise_cost
    assert new.expected_cost <= old.expected_cost + new.visits[at] @ (slack - error)[at] + 1e-8


@pytest.mark.claim("prop-noisy-past")
@pytest.mark.parametrize(("n", "risk", "epsilon"), [(1, 0.1, 0.2), (4, 0.05, 0.03), (20, 0.01, 0.01)])
def test_an_error_paid_at_each_decision_is_attained(n: int, risk: float, epsilon: float) -> None:
    cmdp = tb.repeated_risk(n, n * risk)
    timid = tb.uniform_policy(cmdp)
    timid[: 3 * n : 3] = [risk, 1 - risk]
    old = tb.evaluate(cmdp, timid)
    np.testing.assert_allclose(cmdp.cost_limit - old.state_wise_cost[: 3 * n : 3], 0, atol=1e-12)
    policy = timid.copy()
    policy[: 3 * n : 3] = tb.linear_step(old.q, old.cost_q, tb.backward_offset(old) + epsilon).policy[: 3 * n : 3]
    assert tb.evaluate_policy(cmdp, policy)[1] == pytest.approx(cmdp.cost_limit + n * epsilon)


@pytest.mark.claim("prop-slack-price")
@settings(max_examples=4)
@given(SEED, st.floats(0.01, 0.5))
def test_maximisers_of_the_barrier(seed: int, barrier: float) -> None:
    """The maximiser found along the exact frontier, a concave search that never computes the price mu / s."""
    cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed), horizon=2, width=3))
    best, least = tb.optimal_policy(cmdp), tb.cost_range(cmdp)[0]
    assume(cmdp.cost_limit - least > 1e-3)
    found = []
    for mu in (barrier, barrier / 3):

        def loss(share: float, mu: float = mu) -> float:
            cost = cmdp.cost_limit - share * (cmdp.cost_limit - least)
            return -tb.optimal_policy(cmdp.with_cost_limit(cost)).value - mu * np.log(cmdp.cost_limit - cost)

        share = minimize_scalar(loss, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-7}).x
        top = tb.optimal_policy(cmdp.with_cost_limit(cmdp.cost_limit - share * (cmdp.cost_limit - least)))
        found.append((top.value, top.cost))
        assert top.value >= best.value - mu - 1e-5
    assert found[1][0] >= found[0][0] - 1e-5
    assert found[1][1] >= found[0][1] - 1e-5


@pytest.mark.claim("prop-slack-price")
@settings(max_examples=12)
@given(SEED, st.floats(0.1, 5.0))
def test_a_best_response_certifies_itself(seed: int, price: float) -> None:
    """A best response to any price, if feasible, is greedy for mu / s with mu = price times slack; so the gap is mu."""
    cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed), horizon=3, width=3))
    now = tb.evaluate(cmdp, tb.best_response(cmdp, price))
    assume(now.slack > 1e-9)
    assert now.expected_return >= tb.optimal_policy(cmdp).value - price * now.slack - 1e-7


@pytest.mark.claim("prop-slack-price")
@settings(max_examples=20)
@given(SEED, SEED)
def test_a_short_tilt_raises_return_and_barrier(seed: int, other: int) -> None:
    """Against differences of exact evaluations: both rates, and that both are positive for a small barrier."""
    cmdp = tb.with_binding_limit(tb.random_layered_cmdp(np.random.default_rng(seed), horizon=3, width=3), 0.6)
    policy = 0.9 * tb.cautious_policy(cmdp) + 0.1 * np.random.default_rng(other).dirichlet(np.ones(3), cmdp.n_states)
    policy /= policy.sum(axis=1, keepdims=True)
    now = tb.evaluate(cmdp, policy)
    assume(now.slack > 0.01)

    def covariance(f: np.ndarray, g: np.ndarray) -> float:
        inner = (policy * f * g).sum(axis=1) - (policy * f).sum(axis=1) * (policy * g).sum(axis=1)
        return float(now.visits @ inner)

    assume(covariance(now.q, now.q) > 1e-3)
    mu = 1e-4 * now.slack
    score = now.q - mu / now.slack * now.cost_q

    def moved(step: float) -> tb.Evaluation:
        tilted = policy * np.exp(step * (score - score.max(axis=1, keepdims=True)))
        return tb.evaluate(cmdp, tilted / tilted.sum(axis=1, keepdims=True))

    ahead, behind = moved(1e-4), moved(-1e-4)
    rate = (ahead.expected_return - behind.expected_return) / 2e-4
    growth = (ahead.expected_cost - behind.expected_cost) / 2e-4
    assert rate == pytest.approx(covariance(now.q, score), rel=1e-4, abs=1e-7)
    assert growth == pytest.approx(covariance(now.cost_q, score), rel=1e-4, abs=1e-7)
    assert ahead.expected_return > now.expected_return
    assert ahead.slack > 0
    gain = ahead.expected_return - now.expected_return
    assert gain + mu * np.log(ahead.slack / now.slack) > 0


@pytest.mark.claim("prop-price-budget")
@given(SEED, st.floats(0.01, 1.0), st.floats(0.0, 3.0), st.integers(1, 80))
def test_the_integral_keeps_accounts(seed: int, gain: float, initial: float, n: int) -> None:
    """Random excesses through the package's rule; where it was clipped is read from the integral itself."""
    gains = Multiplier("pid", integral=gain, initial=initial, most=1e9)
    state = MultiplierState.started(gains, 1, torch.device("cpu"))
    state = replace(state, integral=state.integral.double())
    excess, held, news = np.random.default_rng(seed).normal(size=n), [initial], torch.tensor([True])
    for e in excess:
        state = updated_multiplier(gains, state, torch.tensor([e + 7.0], dtype=torch.float64), news, 7.0, 1.0)
        held.append(float(state.integral))
    zero = np.flatnonzero(np.array(held) == 0)
    last = int(zero[-1]) if zero.size else 0
    stretch = excess[last:]
    assert stretch.sum() == pytest.approx((held[-1] - held[last]) / gain, rel=1e-5, abs=1e-5 / gain)
    if zero.size and held[-1] > 0:
        assert stretch.sum() > 0
        assert len(stretch) >= held[-1] / (gain * stretch.max()) - 1e-5


@pytest.mark.claim("prop-differential-blind")
@settings(max_examples=20)
@given(st.data(), st.floats(0.0, 10.0))
def test_differences_do_not_know_the_rate(data: st.DataObject, more: float) -> None:
    chain = data.draw(continuing_chains(max_states=5))
    assume(tb.period(chain) == 1)
    back = tb.time_reversal(chain)
    cost = data.draw(costs(chain.n_states))
    eta = tb.stationary_distribution(chain)

    def whole(signal: np.ndarray) -> np.ndarray:
        centred = signal - eta @ signal
        parts = [np.linalg.solve(np.eye(eta.size) - c.transition + eta, centred) for c in (chain, back)]
        return parts[0] + parts[1] - centred

    found = whole(cost)
    scale = 1 + np.abs(found).max()
    np.testing.assert_allclose(whole(cost + more), found, atol=1e-9 * scale)
    assert eta @ found == pytest.approx(0, abs=1e-9 * scale)
    second = np.sort(np.abs(np.linalg.eigvals(chain.transition)))[-2]
    assume(second < 0.99)
    window = np.zeros(eta.size)
    for c in (chain, back):
        ahead = cost - eta @ cost
        for _ in range(2000):
            window, ahead = window + ahead, c.transition @ ahead
    np.testing.assert_allclose(window - (cost - eta @ cost), found, atol=1e-7 * scale)


def test_enumeration_agrees_with_the_oracle_used_above() -> None:
    """The rounds by the book's other oracle."""
    chain, cost = rounds(0.3)
    truth = enumerated(chain.transition, chain.termination, chain.initial, cost)
    np.testing.assert_allclose(truth["backward"] + truth["forward"] - cost, tb.state_wise_cost(chain, cost))
