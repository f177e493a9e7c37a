"""The spread of an episode's cost: variance, exact law, tails, Cantelli, and the account in the state (chapter 11)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bvf_tutorial import tabular as tb
from tests.oracles import paths
from tests.strategies import SEED, costs, killed_chains, layered_chains

GOLDEN = {
    "mean": [7.1111111111, 8.1228070175, 11.2222222222, 12.5396825397],
    "forward": [30.2469135802, 28.6666666667, 27.6543209877, 25.0617283951],
    "backward": [0, 16.7743921207, 21.5555555556, 26.3718820862],
    "tail": [0.0293057447, 0.0579607065, 0.1020617096, 0.1278763566],
    "cvar": [19.3173651119, 23.1599247706, 26.7888002856, 28.3563208270],
    "cantelli": [0.154, 0.244, 0.390, 0.480],
}
"""chain4, by hand to ten digits; Pr(C > 20), CVaR at 0.9, Cantelli at 20."""


@st.composite
def integer_costs(draw: st.DrawFn, n_states: int) -> np.ndarray:
    generator = np.random.default_rng(draw(SEED))
    return generator.integers(0, 4, n_states) * (generator.random(n_states) < 0.6).astype(float)


@st.composite
def layered_cmdps(draw: st.DrawFn) -> tb.CMDP:
    """Draw an acyclic CMDP of two actions, whole costs and random ends, small enough to enumerate every path."""
    generator = np.random.default_rng(draw(SEED))
    width, depth = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    n_states = 1 + width * depth
    transition = np.zeros((n_states, 2, n_states))
    for x in range(n_states - width):
        first = 1 + (0 if x == 0 else 1 + (x - 1) // width) * width
        for a in range(2):
            end = generator.uniform(0, 0.5) * (generator.random() < 0.5)
            going = generator.random(width) < 0.6
            going[generator.integers(width)] = True
            transition[x, a, first : first + width][going] = generator.dirichlet(np.ones(going.sum())) * (1 - end)
    cost = generator.integers(0, 3, n_states).astype(float)
    reward = generator.integers(0, 4, (n_states, 2)).astype(float)
    return tb.CMDP.episodic(transition, reward, cost, np.eye(n_states)[0], float(draw(st.integers(0, 5))))


@st.composite
def sparse_policies(draw: st.DrawFn, n_states: int, n_actions: int) -> np.ndarray:
    """Draw a policy that leaves some actions out, so that some of its episodes are impossible."""
    generator = np.random.default_rng(draw(SEED))
    return (
        np.eye(n_actions)[generator.integers(n_actions, size=n_states)] * 0.5
        + np.eye(n_actions)[generator.integers(n_actions, size=n_states)] * 0.5
    )


def bills(chain: tb.Chain, cost: np.ndarray) -> dict[str, list]:
    """Return, by path enumeration, (weight, past, future, total) of every visit to every state, and of every start."""
    table: dict[str, list] = {"visit": [[] for _ in cost], "start": []}
    for weight, path in paths(chain.transition, chain.termination, chain.initial):
        bill = cost[path]
        table["start"].append((weight, bill.sum(), len(path)))
        for t, x in enumerate(path):
            table["visit"][x].append((weight, bill[: t + 1].sum(), bill[t:].sum(), bill.sum()))
    return table


def moments(weight: np.ndarray, value: np.ndarray) -> tuple[float, float]:
    mean = float(weight @ value / weight.sum())
    return mean, float(weight @ (value - mean) ** 2 / weight.sum())


# Conditional variance.


@pytest.mark.claim("prop-conditional-variance")
def test_conditional_moments_golden_holds() -> None:
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    back = tb.time_reversal(chain)
    np.testing.assert_allclose(tb.state_wise_cost(chain, cost), GOLDEN["mean"], atol=1e-9)
    np.testing.assert_allclose(tb.cost_variance(chain, cost), GOLDEN["forward"], atol=1e-9)
    np.testing.assert_allclose(tb.cost_variance(back, cost), GOLDEN["backward"], atol=1e-9)
    both = np.add(GOLDEN["forward"], GOLDEN["backward"])
    np.testing.assert_allclose(tb.state_wise_variance(chain, cost), both, atol=1e-9)


@pytest.mark.claim("prop-conditional-variance")
@settings(max_examples=50)
@given(st.data())
def test_past_and_future_variances_add_holds(data: st.DataObject) -> None:
    """Var(C | x) = Var_back(x) + Var_fwd(x), and Cov(past, future | x) = 0, by enumerating every visit."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    behind, ahead = tb.cost_variance(tb.time_reversal(chain), cost), tb.cost_variance(chain, cost)
    total = tb.state_wise_variance(chain, cost)
    for x, visits in enumerate(bills(chain, cost)["visit"]):
        weight, past, future, whole = np.array(visits).T
        assert moments(weight, past)[1] == pytest.approx(behind[x], rel=1e-9, abs=1e-9)
        assert moments(weight, future)[1] == pytest.approx(ahead[x], rel=1e-9, abs=1e-9)
        assert moments(weight, whole)[1] == pytest.approx(total[x], rel=1e-9, abs=1e-9)
        centred = (past - moments(weight, past)[0]) * (future - moments(weight, future)[0])
        assert weight @ centred / weight.sum() == pytest.approx(0.0, abs=1e-9)


@pytest.mark.claim("prop-conditional-variance")
@given(st.data())
def test_variance_is_second_moment_minus_squared_mean_holds(data: st.DataObject) -> None:
    """The equation of Sobel and M2 = d^2 + 2 d P V + P M2 agree, in both directions, dense and sparse."""
    chain = data.draw(killed_chains(sparse_too=True))
    cost = data.draw(costs(chain.n_states))
    for direction in (chain, tb.time_reversal(chain)):
        mean = tb.forward_value(direction, cost)
        second = tb.product_moment(direction, cost, cost)
        scale = 1e-9 * (1 + second.max())
        np.testing.assert_allclose(tb.cost_variance(direction, cost), second - mean**2, rtol=1e-8, atol=scale)


@pytest.mark.claim("prop-conditional-variance")
@given(st.data())
def test_total_variance_over_the_states_is_length_biased_holds(data: st.DataObject) -> None:
    """E_eta Var(C|x) + Var_eta E[C|x] is the variance of C under the law in which an episode weighs L / E[L]."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(costs(chain.n_states))
    law, mean = tb.stationary_distribution(chain), tb.state_wise_cost(chain, cost)
    weight, total, length = np.array(bills(chain, cost)["start"]).T
    inside, between = law @ tb.state_wise_variance(chain, cost), moments(law, mean)[1]
    assert inside + between == pytest.approx(moments(weight * length, total)[1], rel=1e-9, abs=1e-9)


@pytest.mark.claim("prop-conditional-variance")
def test_variances_adding_needs_the_stationary_instant() -> None:
    """At a fixed time the past has another law: chain4 at t = 2 in state 1 has paid less, and more surely, than Vb says."""
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    cmdp = tb.time_augmented(tb.chain_cmdp(chain, cost), 60)
    timed = tb.policy_chain(cmdp, np.ones((cmdp.n_states, 1)))
    behind = tb.cost_variance(tb.time_reversal(timed.restricted(timed.visited)), cmdp.cost[timed.visited])
    index = np.cumsum(timed.visited) - 1
    at_two = behind[index[2 * 4 + 1]]
    # Two ways to be in state 1 at time 2: over 1 (probability 1/8, paid 1) or over 2 (1/4, paid 3).
    assert at_two == pytest.approx(moments(np.array([1 / 8, 1 / 4]), np.array([1.0, 3.0]))[1], rel=1e-12)
    assert at_two < 1 < tb.cost_variance(tb.time_reversal(chain), cost)[1]


# The exact law.


@pytest.mark.claim("prop-episode-law")
@pytest.mark.claim("prop-conditional-var")
def test_law_golden_holds() -> None:
    law = tb.state_wise_distribution(tb.chain4(), tb.CHAIN4_COST, 400)
    np.testing.assert_allclose(tb.tail_probability(law, 20), GOLDEN["tail"], atol=1e-9)
    np.testing.assert_allclose(tb.conditional_value_at_risk(law, 0.9), GOLDEN["cvar"], atol=1e-9)
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-13)


@pytest.mark.claim("prop-episode-law")
@settings(max_examples=50)
@given(st.data())
def test_law_by_convolution_holds(data: st.DataObject) -> None:
    """Level by level and state by state: the backward, forward and whole laws of every visit, by enumeration."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(integer_costs(chain.n_states))
    n_levels = data.draw(st.integers(1, 18))
    computed = (
        tb.cost_distribution(tb.time_reversal(chain), cost, n_levels),
        tb.cost_distribution(chain, cost, n_levels),
        tb.state_wise_distribution(chain, cost, n_levels),
    )
    for x, visits in enumerate(bills(chain, cost)["visit"]):
        weight, *amounts = np.array(visits).T
        for law, amount in zip(computed, amounts, strict=True):
            truth = np.bincount(amount.astype(int), weight, max(n_levels, 20))[:n_levels] / weight.sum()
            np.testing.assert_allclose(law[x], truth, atol=1e-12)


@pytest.mark.claim("prop-episode-law")
@settings(max_examples=50)
@given(st.data())
def test_law_has_the_moments_holds(data: st.DataObject) -> None:
    """On chains with loops, dense and sparse: the law's mean and variance are the solved ones, its mass is one."""
    chain = data.draw(killed_chains(max_states=5, sparse_too=True))
    cost = data.draw(integer_costs(chain.n_states))
    mean, variance = tb.state_wise_cost(chain, cost), tb.state_wise_variance(chain, cost)
    n_levels = int((mean + 60 * np.sqrt(variance)).max()) + 60
    law, level = tb.state_wise_distribution(chain, cost, n_levels), np.arange(n_levels)
    # Tails are geometric: 60 standard deviations beyond the mean leave nothing that a double can show.
    np.testing.assert_allclose(law.sum(axis=1), 1, atol=1e-9)
    np.testing.assert_allclose(law @ level, mean, rtol=1e-8, atol=1e-9)
    spread = law @ level**2.0 - (law @ level) ** 2
    np.testing.assert_allclose(spread, variance, rtol=1e-8, atol=1e-9 * (1 + mean.max() ** 2))


@pytest.mark.claim("prop-episode-law")
def test_law_by_sampling_holds() -> None:
    """chain4, 20000 episodes: the share of the visits to x whose episode costs more than 20, at 4 standard errors."""
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    batch = tb.sample_episodes(tb.chain_cmdp(chain, cost), np.ones((4, 1)), 20_000, np.random.default_rng(0))
    above = tb.episode_sum(batch, cost) > 20
    tail = tb.tail_probability(tb.state_wise_distribution(chain, cost, 400), 20)
    for x in range(4):
        count = (batch.state == x).sum(axis=1)  # visits of one episode are dependent: the ratio's error is per episode
        estimate = (count * above).sum() / count.sum()
        error = np.sqrt(((count * (above - estimate)) ** 2).sum()) / count.sum()
        assert abs(estimate - tail[x]) < 4 * error


# Tails and the conditional value at risk.


@pytest.mark.claim("prop-conditional-var")
@given(st.data(), st.floats(0, 0.999))
def test_cvar_is_the_minimum_of_rockafellar_and_uryasev_holds(data: st.DataObject, level: float) -> None:
    """CVaR = min_z z + E[(C - z)^+] / (1 - level), at the quantile; and the mean of the worst share, atoms split."""
    generator = np.random.default_rng(data.draw(SEED))
    row = generator.dirichlet(np.full(data.draw(st.integers(1, 12)), 0.5))
    law = np.vstack([row, np.eye(row.size)[0]])
    k = np.arange(row.size)
    computed = tb.conditional_value_at_risk(law, level, unit=2.0)
    objective = [z + law @ np.maximum(2 * k - z, 0) / (1 - level) for z in 2.0 * k]
    np.testing.assert_allclose(computed, np.min(objective, axis=0), rtol=1e-9, atol=1e-9)
    worst, left = 0.0, 1 - level
    for j in k[::-1]:
        taken = min(row[j], left)
        worst, left = worst + 2 * j * taken, left - taken
    assert computed[0] == pytest.approx(worst / (1 - level), rel=1e-9, abs=1e-9)


@pytest.mark.claim("prop-conditional-var")
@settings(max_examples=50)
@given(st.data())
def test_cvar_lies_between_the_mean_and_cantelli_holds(data: st.DataObject) -> None:
    """mean <= CVaR <= mean + sqrt(level / (1 - level)) sd <= ..., increasing in the level, the mean at level 0."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost = data.draw(integer_costs(chain.n_states))
    law = tb.state_wise_distribution(chain, cost, 20)
    mean, variance = tb.state_wise_cost(chain, cost), tb.state_wise_variance(chain, cost)
    previous = tb.conditional_value_at_risk(law, 0.0)
    np.testing.assert_allclose(previous, mean, rtol=1e-9, atol=1e-9)
    for level in (0.3, 0.9, 0.99):
        value = tb.conditional_value_at_risk(law, level)
        assert (value >= previous - 1e-9).all()
        # The root of a variance that is rounding (1e-16 of the squared mean) instead of zero is 1e-8 of the mean.
        assert (value <= tb.cantelli_quantile(mean, variance, 1 - level) + 1e-6).all()
        previous = value


@pytest.mark.claim("prop-conditional-var")
@given(st.data())
def test_cvar_constraint_is_safer_than_the_chance_constraint_holds(data: st.DataObject) -> None:
    """CVaR_{1-p} <= d0 implies Pr(C > d0) <= p."""
    generator = np.random.default_rng(data.draw(SEED))
    law = generator.dirichlet(np.full(8, 0.4), 20)
    probability = data.draw(st.floats(0.01, 1))
    value = tb.conditional_value_at_risk(law, 1 - probability)
    for d0 in range(8):
        assert (tb.tail_probability(law, d0)[value <= d0] <= probability + 1e-12).all()


# Cantelli.


@pytest.mark.claim("prop-cantelli")
def test_cantelli_golden_holds() -> None:
    chain, cost = tb.chain4(), tb.CHAIN4_COST
    mean, variance = tb.state_wise_cost(chain, cost), tb.state_wise_variance(chain, cost)
    np.testing.assert_allclose(tb.cantelli_bound(mean, variance, 20), GOLDEN["cantelli"], atol=5e-4)


@pytest.mark.claim("prop-cantelli")
@settings(max_examples=50)
@given(st.data())
def test_cantelli_bounds_every_state_wise_tail_holds(data: st.DataObject) -> None:
    """Pr(C >= c | x) <= bound at every level and state; and its quantile is exceeded at most as often as stated."""
    chain = data.draw(killed_chains(max_states=5))
    cost = data.draw(integer_costs(chain.n_states))
    law = tb.state_wise_distribution(chain, cost, 40)
    mean, variance = tb.state_wise_cost(chain, cost), tb.state_wise_variance(chain, cost)
    for k in range(1, 40):
        at_least = tb.tail_probability(law, k - 1)
        assert (at_least <= tb.cantelli_bound(mean, variance, k) + 1e-9).all()
    for probability in (0.05, 0.3, 1.0):
        limit = tb.cantelli_quantile(mean, variance, probability)
        for x in np.flatnonzero(limit < 39):
            assert tb.tail_probability(law[x : x + 1], limit[x])[0] <= probability + 1e-9


@pytest.mark.claim("prop-cantelli")
@given(st.floats(0.01, 0.99), st.floats(-5, 5), st.floats(0.1, 5))
def test_cantelli_is_attained_holds(p: float, mean: float, deviation: float) -> None:
    """Two points, the upper one with probability p at the quantile: mean and variance as given, Pr(C >= limit) = p."""
    upper = float(tb.cantelli_quantile(mean, deviation**2, p))
    lower = mean - np.sqrt(p / (1 - p)) * deviation
    found = moments(np.array([p, 1 - p]), np.array([upper, lower]))
    assert found == pytest.approx((mean, deviation**2), rel=1e-9, abs=1e-9)
    assert float(tb.cantelli_bound(mean, deviation**2, upper)) == pytest.approx(p, rel=1e-9)


@pytest.mark.claim("prop-cantelli")
def test_strict_chance_constraint_needs_a_positive_variance() -> None:
    """A sure cost of exactly d0 meets quantile <= d0 for every p; Pr(C >= d0) is 1, and Pr(C > d0) is 0."""
    assert float(tb.cantelli_quantile(2.0, 0.0, 0.1)) == 2.0
    law = np.array([[0.0, 0.0, 1.0]])
    assert tb.tail_probability(law, 1)[0] == 1 > 0.1
    assert tb.tail_probability(law, 2)[0] == 0


# The account in the state.


@pytest.mark.claim("prop-cost-augmented")
@given(st.data())
def test_state_wise_constraint_with_the_account_is_the_almost_sure_one_holds(data: st.DataObject) -> None:
    """Vb + V - d <= d0 at every visited (x, account) iff no possible episode costs more than d0, by enumeration."""
    cmdp = data.draw(layered_cmdps())
    wide = tb.cost_augmented(cmdp, int(cmdp.cost_limit) + 2)
    chain = tb.policy_chain(wide, data.draw(sparse_policies(wide.n_states, 2)))
    part = chain.restricted(chain.visited)
    dearest = max(
        wide.cost[chain.visited][path].sum()
        for _, path in paths(part.transition.toarray(), part.termination, part.initial)
    )
    worst = np.nanmax(tb.state_wise_cost(chain, wide.cost, unreachable="nan"))
    assert (worst <= cmdp.cost_limit + 1e-9) == (dearest <= cmdp.cost_limit)


@pytest.mark.claim("prop-cost-augmented")
@given(st.data())
def test_backward_value_is_the_account_holds(data: st.DataObject) -> None:
    """Vb(x, k) = k below the last level, at least k on it, and the past has no variance there; for any policy."""
    cmdp = data.draw(layered_cmdps())
    n_levels = data.draw(st.integers(1, 8))
    wide = tb.cost_augmented(cmdp, n_levels)
    chain = tb.policy_chain(wide, data.draw(sparse_policies(wide.n_states, 2)))
    part, account = chain.restricted(chain.visited), np.repeat(np.arange(n_levels), cmdp.n_states)[chain.visited]
    value = tb.backward_value(part, wide.cost[chain.visited])
    exact = account < n_levels - 1
    np.testing.assert_allclose(value[exact], account[exact], atol=1e-9)
    assert (value >= account - 1e-9).all()
    spread = tb.cost_variance(tb.time_reversal(part), wide.cost[chain.visited])
    np.testing.assert_allclose(spread[exact], 0, atol=1e-9)


@pytest.mark.claim("prop-cost-augmented")
def test_almost_sure_equivalence_needs_levels_beyond_the_limit() -> None:
    """d0 = 1.5, 0 -> 1 (.2) | 2 (.8), 1 -> 2 (.5) | end, d = (0, 1, 1): C = 2 has probability .1.

    With two levels state 2 pools the accounts 1 and 2 and every state sees at most 1.5; a third level tells them apart.
    """
    chain = tb.Chain.killed(np.array([[0, 0.2, 0.8], [0, 0, 0.5], [0, 0, 0]]), np.array([1.0, 0, 0]))
    cmdp = tb.chain_cmdp(chain, [0.0, 1, 1], 1.5)
    found = []
    for n_levels in (2, 3):
        wide = tb.cost_augmented(cmdp, n_levels)
        whole = tb.state_wise_cost(tb.policy_chain(wide, np.ones((wide.n_states, 1))), wide.cost, unreachable="nan")
        found.append(np.nanmax(whole))
    assert found == pytest.approx([1.5, 2.0], rel=1e-12)
    assert tb.tail_probability(tb.cost_distribution(chain, [0.0, 1, 1], 3), 1.5)[0] == pytest.approx(0.1)


def gamble() -> tb.CMDP:
    """x0 flips a coin to g (cost 0) or b (cost 1); there: idle -> i (cost 0), or earn 1 -> e (cost 1). d0 = 1.3."""
    transition = np.zeros((5, 2, 5))
    transition[0, :, 1:3] = 0.5
    transition[1:3, 0, 3] = transition[1:3, 1, 4] = 1.0
    reward = np.zeros((5, 2))
    reward[1:3, 1] = 1.0
    return tb.CMDP.episodic(transition, reward, np.array([0.0, 0, 1, 0, 1]), np.eye(5)[0], 1.3)


def without_overdraft(cmdp: tb.CMDP, n_levels: int) -> tb.CMDP:
    """The model with its account whose only cost is a visit to an account beyond the limit; none is allowed."""
    wide = tb.cost_augmented(cmdp, n_levels)
    overdrawn = np.repeat(np.arange(n_levels) > cmdp.cost_limit, cmdp.n_states)
    return tb.CMDP(wide.transition, wide.reward, overdrawn.astype(float), wide.initial, 0.0, wide.termination)


@pytest.mark.claim("prop-cost-augmented")
def test_almost_sure_optimum_is_another_problem_holds() -> None:
    """In expectation .8, state-wise .65 at (g, b) = (1, .3), almost surely .5: strictly in this order."""
    cmdp = gamble()
    assert tb.optimal_policy(cmdp).value == pytest.approx(0.8, abs=1e-9)
    assert tb.optimal_policy(without_overdraft(cmdp, 3)).value == pytest.approx(0.5, abs=1e-9)

    def room(p_good: float, p_bad: float) -> float:
        policy = np.full((5, 2), 0.5)
        policy[1], policy[2] = (1 - p_good, p_good), (1 - p_bad, p_bad)
        return float(np.nanmin(tb.slack(tb.policy_chain(cmdp, policy), cmdp.cost, 1.3, unreachable="nan")))

    tenths = np.linspace(0, 1, 11)
    best = max(0.5 * (good + bad) for good in tenths for bad in tenths if room(good, bad) >= -1e-12)
    assert room(1.0, 0.301) < 0  # the best point of the grid is on the boundary
    assert best == pytest.approx(0.65, abs=1e-9)


@pytest.mark.claim("prop-cost-augmented")
@settings(max_examples=40)
@given(st.data())
def test_almost_sure_optimum_by_enumeration_holds(data: st.DataObject) -> None:
    """The program without overdraft against every deterministic rule of the account; at most the CMDP's optimum."""
    cmdp = data.draw(layered_cmdps())
    n_levels = int(cmdp.cost_limit) + 2

    def best(x: int, account: int) -> float:
        if account > cmdp.cost_limit:
            return -np.inf
        options = []
        for a in range(2):
            following = [
                (p, best(y, account + int(cmdp.cost[y]))) for y, p in enumerate(cmdp.transition[x, a]) if p > 0
            ]
            options.append(cmdp.reward[x, a] + sum(p * v for p, v in following))
        return max(options)

    truth = best(0, int(cmdp.cost[0]))
    solved = tb.optimal_policy(without_overdraft(cmdp, n_levels))
    assert solved.is_feasible == bool(np.isfinite(truth))
    if solved.is_feasible:
        assert solved.value == pytest.approx(truth, abs=1e-6)
        assert solved.value <= tb.optimal_policy(cmdp).value + 1e-6
