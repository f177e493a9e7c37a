"""The audit: Algorithm 1's loop and targets, own values, estimation errors, and what no other file of claims holds."""

from __future__ import annotations

from collections import Counter
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from bvf_tutorial import tabular as tb
from tests.oracles import enumerated, paths
from tests.strategies import SEED, cmdps, continuing_chains, costs, killed_chains, layered_chains, policies

BILL = np.array([1.0, 0, 2, 3, 0, 5])

# --- Algorithm 1: the loop ---------------------------------------------------------------------------------------------


class Trace:
    """What one episode of Algorithm 1 does, by the indices of its states; ``horizon`` is the paper's T."""

    def __init__(self) -> None:
        self.steps = 0
        self.ends: list[int] = []  # t after each segment
        self.forward: list[int] = []  # indices in the updates of V, Q_D and the policy
        self.backward: list[int] = []  # indices in the updates of the backward value
        self.zero_ahead = self.zero_behind = 0  # how often a bootstrap is set to 0
        self.behind: list[int] = []  # index of the state behind each segment, where its value is used


def printed(horizon: int, n: int) -> Trace:
    """Lines 3 to 27 of Algorithm 1, condition by condition."""
    run, t = Trace(), 1
    while t < horizon:
        t_start = t
        while t < t_start + n or t == horizon:
            run.steps += 1
            t += 1
        run.ends.append(t)
        run.zero_ahead += t == horizon
        run.zero_behind += t == 1
        if t != 1:
            run.behind.append(t_start - 1)
        run.forward += range(t_start, t)
        run.backward += range(t_start, t + 1)
    return run


def corrected(horizon: int, n: int) -> Trace:
    """The same with both loops stopped at T, and the zeros tied to the first and the last segment."""
    run, t, first = Trace(), 1, 1
    while t <= horizon:
        t_start = t
        while t < min(t_start + n, horizon + 1):
            run.steps += 1
            t += 1
        run.ends.append(t)
        run.zero_ahead += t == horizon + 1
        run.zero_behind += t_start == first
        if t_start != first:
            run.behind.append(t_start - 1)
        run.forward += range(t_start, t)
        run.backward += range(t_start, t)
    return run


SIZES = st.integers(2, 60), st.integers(1, 30)


@pytest.mark.claim("prop-algorithm-loop")
def test_printed_loop_needs_a_test_of_the_horizon() -> None:
    """T = 10, n = 4 takes 12 steps; T = 65, n = 20 takes 80; no bootstrap is ever set to zero."""
    for horizon, n, steps in ((10, 4, 12), (65, 20, 80)):
        run = printed(horizon, n)
        assert run.steps == steps > horizon
        assert run.zero_ahead == run.zero_behind == 0
    assert printed(10, 4).ends == [5, 9, 13]


@pytest.mark.claim("prop-algorithm-loop")
@given(*SIZES)
def test_printed_loop_counts_hold(horizon: int, n: int) -> None:
    """n ceil((T - 1) / n) steps, one more if n divides T - 1; 0 is in no update, each inner boundary in two."""
    run = printed(horizon, n)
    assert run.steps == n * -(-(horizon - 1) // n) + ((horizon - 1) % n == 0) >= horizon
    assert (run.steps == horizon) == ((horizon - 1) % n == 0 or horizon % n == 0)
    assert run.zero_ahead == run.zero_behind == 0
    assert 0 not in run.forward + run.backward and run.behind[0] == 0
    visits = Counter(run.backward)
    assert {i for i, k in visits.items() if k == 2} == set(run.ends[:-1])
    assert run.ends[-1] == run.steps + 1  # the last index of the backward update never acted, so it has no cost


@pytest.mark.claim("prop-algorithm-loop")
@given(*SIZES)
def test_loop_holds_as_corrected(horizon: int, n: int) -> None:
    """T steps, each index once in each update, one zero at either end."""
    run = corrected(horizon, n)
    assert run.steps == horizon
    assert run.forward == run.backward == list(range(1, horizon + 1))
    assert run.zero_ahead == run.zero_behind == 1
    assert run.behind == [t - 1 for t in run.ends[:-1]]


@pytest.mark.claim("prop-algorithm-loop")
def test_correcting_the_inner_loop_alone_needs_the_outer_one() -> None:
    """With `while t < T` kept, T = 9, n = 4 stops after 8 steps: the last segment would begin at t = T."""
    horizon, n, t, steps = 9, 4, 1, 0
    while t < horizon:
        t_start = t
        while t < min(t_start + n, horizon + 1):
            steps, t = steps + 1, t + 1
    assert steps == 8 and corrected(9, 4).steps == 9


def test_one_update_needs_two_signs() -> None:
    """d theta is an ascent direction, d phi a descent direction: one step along both, either way, worsens one of the two."""
    reward, theta, phi = np.array([0.0, 1.0]), np.zeros(2), 0.0
    policy = np.exp(theta) / np.exp(theta).sum()
    # Exact expectations of the printed increments for one decision between two actions.
    d_theta = sum(p * (np.eye(2)[a] - policy) * (reward[a] - phi) for a, p in enumerate(policy))
    d_phi = -2 * (policy @ reward - phi)

    def outcome(step: float) -> tuple[float, float]:
        moved = np.exp(theta + step * d_theta)
        return float(moved @ reward / moved.sum()), float(policy @ (reward - phi - step * d_phi) ** 2)

    (value, error), up, down = outcome(0.0), outcome(0.1), outcome(-0.1)
    assert up[0] > value > down[0]
    assert up[1] > error > down[1]
    # The recovery update of the paper, minus grad log pi times R_D, does lower the cost on ascent.
    cost = np.array([0.0, 1.0])
    recovery = -sum(p * (np.eye(2)[a] - policy) * cost[a] for a, p in enumerate(policy))
    moved = np.exp(theta + 0.1 * recovery)
    assert moved @ cost / moved.sum() < policy @ cost


# --- Algorithm 1: the targets ------------------------------------------------------------------------------------------


def segment_targets(bill: np.ndarray, behind: np.ndarray, n: int) -> np.ndarray:
    """Corrected backward targets in segments of n: bootstrap from the state before a segment, nothing before the start."""
    is_cut = np.arange(len(bill)) % n == 0
    discount = np.r_[0.0, np.ones(len(bill) - 1)]
    return tb.backward_lambda_returns(bill, np.r_[0.0, behind[:-1]], discount, np.where(is_cut, 0.0, 1.0))


@pytest.mark.claim("prop-algorithm-targets")
def test_golden_targets_hold_as_corrected() -> None:
    """d = (1, 0, 2, 3, 0, 5), n = 3: running sums, and 11 at every step."""
    target = segment_targets(BILL, np.cumsum(BILL), 3)
    np.testing.assert_allclose(target, [1, 1, 3, 6, 6, 11], atol=1e-12)
    ahead = tb.n_step_returns(BILL, np.zeros(6), np.r_[np.ones(5), 0.0], 6)
    np.testing.assert_allclose(target + ahead - BILL, np.full(6, 11.0), atol=1e-12)


@pytest.mark.claim("prop-algorithm-targets")
@given(st.lists(st.floats(0, 10), min_size=1, max_size=12), st.integers(1, 12))
def test_targets_as_running_sums_hold(bill: list[float], n: int) -> None:
    """Along one episode, for every n; and past + future - present is its cost, however it is cut."""
    cost = np.array(bill)
    target = segment_targets(cost, np.cumsum(cost), n)
    np.testing.assert_allclose(target, np.cumsum(cost), rtol=1e-12, atol=1e-12)
    ahead = np.cumsum(cost[::-1])[::-1]
    np.testing.assert_allclose(target + ahead - cost, np.full(len(cost), cost.sum()), rtol=1e-12, atol=1e-12)


@pytest.mark.claim("prop-algorithm-targets")
@settings(max_examples=30)
@given(st.data())
def test_targets_with_the_clock_hold(data: st.DataObject) -> None:
    """With the right value behind each segment and states that tell the time, the mean target is Vb, by enumeration."""
    chain = data.draw(layered_chains())
    chain = chain.restricted(chain.visited)
    cost, n = data.draw(costs(chain.n_states)), data.draw(st.integers(1, 5))
    truth = enumerated(chain.transition, chain.termination, chain.initial, cost)
    total = np.zeros(chain.n_states)
    for probability, path in paths(chain.transition, chain.termination, chain.initial):
        np.add.at(total, path, probability * segment_targets(cost[path], truth["backward"][path], n))
    np.testing.assert_allclose(total / truth["visits"], truth["backward"], rtol=1e-10, atol=1e-12)


def mean_target(chain: tb.Chain, cost: np.ndarray, behind: np.ndarray, n: int, phase: int = 0) -> np.ndarray:
    """Exact mean of the targets over all visits to each state, segments cut at the times t = phase mod n, t > 0."""
    law, summed = chain.initial, chain.initial * cost  # eta_t, and eta_t E[R_t | x_t]
    visits, total, t = law.copy(), summed.copy(), 0
    while law.sum() > 1e-14:
        t += 1
        carried = law * behind if t % n == phase else summed
        law = law @ chain.transition
        summed = carried @ chain.transition + law * cost
        visits, total = visits + law, total + summed
    return total / visits


@pytest.mark.claim("prop-algorithm-targets")
@settings(max_examples=30)
@given(killed_chains(max_states=5), st.data(), st.integers(1, 5))
def test_targets_with_a_random_phase_hold(chain: tb.Chain, data: st.DataObject, n: int) -> None:
    """States that do not tell the time: right on average over the phase of the cuts, and for n = 1."""
    cost = data.draw(costs(chain.n_states))
    value = np.linalg.solve(np.eye(chain.n_states) - tb.time_reversal(chain).transition, cost)
    mean = np.mean([mean_target(chain, cost, value, n, phase) for phase in range(n)], axis=0)
    np.testing.assert_allclose(mean, value, rtol=1e-6, atol=1e-8)


@pytest.mark.claim("prop-algorithm-targets")
def test_targets_need_a_random_phase_or_the_clock() -> None:
    """One state that survives with probability 1/2: Vb = 2, mean target 11/6 with n = 2, and learning ends at 16/9."""
    one, cost = tb.Chain.killed(np.array([[0.5]]), np.ones(1)), np.ones(1)
    assert mean_target(one, cost, np.array([2.0]), 1)[0] == pytest.approx(2, abs=1e-12)
    assert mean_target(one, cost, np.array([2.0]), 2)[0] == pytest.approx(11 / 6, abs=1e-12)
    assert mean_target(one, cost, np.array([2.0]), 2, phase=1)[0] == pytest.approx(13 / 6, abs=1e-12)
    value = np.array([2.0])
    for _ in range(60):
        value = mean_target(one, cost, value, 2)
    assert value[0] == pytest.approx(16 / 9, abs=1e-12)
    np.testing.assert_allclose(
        mean_target(tb.chain4(), tb.CHAIN4_COST, tb.backward_value(tb.chain4(), tb.CHAIN4_COST), 2),
        [1, 3.8045663363, 5.8263079716, 9.4219498271],
        atol=1e-9,
    )
    # Looking ahead there is no such effect: the future does not ask what time it is. Two forward steps give V again.
    ahead = tb.forward_value(tb.chain4(), tb.CHAIN4_COST)
    twice = tb.bellman_operator(tb.chain4(), tb.CHAIN4_COST, tb.bellman_operator(tb.chain4(), tb.CHAIN4_COST, ahead))
    np.testing.assert_allclose(twice, ahead, rtol=1e-12)


@pytest.mark.claim("prop-algorithm-targets")
@given(st.floats(0.05, 0.97), st.integers(1, 6))
def test_bias_of_aligned_segments_holds(q: float, n: int) -> None:
    """One state that survives with probability q: (1 - q) / (1 - q^n)^2 sum (j + 1) q^j; a share (n + 1) / (2 n) at last."""

    def learned(q: float) -> float:
        j = np.arange(n)
        return float((1 - q) / (1 - q**n) ** 2 * ((j + 1) * q**j).sum())

    one = tb.Chain.killed(np.array([[q]]), np.ones(1))
    assert mean_target(one, np.ones(1), np.array([learned(q)]), n)[0] == pytest.approx(learned(q), rel=1e-9)
    assert learned(1 - 1e-5) * 1e-5 == pytest.approx((n + 1) / (2 * n), abs=1e-3)


@pytest.mark.claim("prop-algorithm-targets")
def test_subtracted_cost_needs_to_be_the_counted_one() -> None:
    """The released code subtracts c_{t-1}: the sum is off by c_t - c_{t-1}, here by (-1, 2, 1, -3, 5)."""
    whole = np.cumsum(BILL) + np.cumsum(BILL[::-1])[::-1]
    np.testing.assert_allclose(whole[1:] - BILL[:-1] - 11, np.diff(BILL), atol=1e-12)
    np.testing.assert_allclose(np.diff(BILL), [-1, 2, 1, -3, 5])


@pytest.mark.claim("prop-algorithm-targets")
def test_targets_need_the_boundary_left_out() -> None:
    """The printed backward loop runs on to x_t, whose cost is not known: the second segment gives its right target."""
    first = np.cumsum(np.r_[BILL[:3], 0.0])  # the boundary state with cost 0 in place of the unknown 3
    second = segment_targets(BILL, np.cumsum(BILL), 3)[3:]
    assert (first[3], second[0]) == (3.0, 6.0)
    assert np.mean([first[3], second[0]]) != second[0]


# --- Own values --------------------------------------------------------------------------------------------------------


def seen_by(old: tb.Evaluation, policy: np.ndarray) -> np.ndarray:
    """The printed left side: <pi, Q_D of the old policy> + Vb of the old policy - d."""
    return (policy * old.cost_q).sum(axis=1) + old.backward - old.cmdp.cost


@pytest.mark.claim("prop-own-values")
@settings(max_examples=30)
@given(cmdps(), st.data())
def test_own_values_entail_the_limit_holds(cmdp: tb.CMDP, data: st.DataObject) -> None:
    """With its own values the left side is the state-wise cost, and at the starts it bounds E[C]."""
    now = tb.evaluate(cmdp, data.draw(policies(cmdp.n_states, cmdp.n_actions)))
    seen = now.visits > 0
    np.testing.assert_allclose(seen_by(now, now.policy)[seen], now.state_wise_cost[seen], rtol=1e-8, atol=1e-8)
    limit = float(seen_by(now, now.policy)[cmdp.initial > 0].max())
    assert now.expected_cost <= limit * (1 + 1e-9)


@pytest.mark.claim("prop-own-values")
def test_entailment_needs_own_values() -> None:
    """One state, two actions, limit 4: within the limits of pi_1 (2.159), over its own (19), and it costs 10."""
    old = tb.evaluate(tb.stay_or_quit(), [[2 / 15, 13 / 15]])
    assert old.is_feasible and old.is_value_feasible
    always = np.array([[1.0, 0.0]])
    assert seen_by(old, always)[0] == pytest.approx(2.1590909091, abs=1e-9)
    own = tb.evaluate(tb.stay_or_quit(), always)
    assert own.state_wise_cost[0] == pytest.approx(19, abs=1e-9)
    assert own.expected_cost == pytest.approx(10, abs=1e-9) and not own.is_feasible


@pytest.mark.claim("prop-own-values")
@settings(max_examples=30)
@given(SEED, st.data())
def test_one_decision_holds_with_either_values(seed: int, data: st.DataObject) -> None:
    """If an episode decides once, Q_D does not depend on the policy, and the printed constraint at x0 is exact."""
    cmdp = tb.random_layered_cmdp(np.random.default_rng(seed), 1)
    old, new = (data.draw(policies(cmdp.n_states, cmdp.n_actions)) for _ in range(2))
    start = int(cmdp.initial.argmax())
    assert cmdp.initial[start] == 1
    left = seen_by(tb.evaluate(cmdp, old), new)[start]
    assert left == pytest.approx(tb.evaluate(cmdp, new).expected_cost, rel=1e-9, abs=1e-12)


# --- Estimation errors -------------------------------------------------------------------------------------------------


@pytest.mark.claim("prop-estimation-margin")
@settings(max_examples=50)
@given(cmdps(), st.data(), st.floats(0, 0.5), st.floats(0, 0.5))
def test_margin_holds(cmdp: tb.CMDP, data: st.DataObject, e1: float, e2: float) -> None:
    """A distribution chosen within d0 - e1 - e2 for the estimates is within d0 for the truth, at every state."""
    now = tb.evaluate(cmdp, data.draw(policies(cmdp.n_states, cmdp.n_actions)))
    generator = np.random.default_rng(data.draw(SEED))
    backward = now.backward + e1 * generator.uniform(-1, 1, now.backward.shape)
    cost_q = now.cost_q + e2 * generator.uniform(-1, 1, now.cost_q.shape)
    limit = float(np.nanmax(now.state_wise_cost)) + 2 * (e1 + e2)  # the policy itself then passes, so no state is empty
    seen = now.visits > 0
    offset = (limit - e1 - e2 - backward + cmdp.cost)[seen]
    step = tb.linear_step(now.q[seen], cost_q[seen], offset)
    truth = (step.policy * now.cost_q[seen]).sum(axis=1) + (now.backward - cmdp.cost)[seen]
    assert step.count(tb.StateStatus.EMPTY) == 0 and (truth <= limit + 1e-9).all()


@pytest.mark.claim("prop-estimation-margin")
@given(st.floats(0, 0.2), st.floats(0, 0.2))
def test_limit_needs_the_margin(e1: float, e2: float) -> None:
    """Two actions of cost 0 and 1, limit 1/2, both values too low: over by e1 + e2, so no smaller margin will do."""
    cost_q, backward, cost, limit = np.array([0.0, 1.0]), 0.0, 0.0, 0.5
    for margin, over in ((0.0, e1 + e2), (e1 + e2, 0.0)):
        offset = limit - margin - (backward - e1) + cost
        step = tb.linear_step([[0.0, 1.0]], [cost_q - e2], [offset])
        assert step.policy[0] @ cost_q + backward - cost - limit == pytest.approx(over, abs=1e-12)


# --- Sections 2 and 3: definitions -------------------------------------------------------------------------------------


def test_return_at_no_cost_needs_the_clock() -> None:
    """T = 1, d0 = 0: going at once earns 1 and costs 1 a step later; waiting, then going earns 1 at no cost."""
    # (s, 0), (s, 1), (y, 1); action 0 goes, action 1 waits; the reward at t = T counts, as in the paper's sum.
    transition = np.zeros((3, 2, 3))
    transition[0, 0, 2] = transition[0, 1, 1] = 1.0
    reward = np.array([[1.0, 0], [1, 0], [0, 0]])
    cmdp = tb.CMDP.episodic(transition, reward, [0.0, 0, 1], [1.0, 0, 0], 0.0)
    for go in (0.0, 1e-3, 0.5, 1.0):
        value, cost = tb.evaluate_policy(cmdp, [[go, 1 - go], [go, 1 - go], [1.0, 0.0]])
        assert cost == pytest.approx(go, abs=1e-12)
        assert value == pytest.approx(go + (1 - go) * go, abs=1e-12)  # so cost 0 means return 0
    assert tb.evaluate_policy(cmdp, [[0.0, 1], [1, 0], [1, 0]]) == pytest.approx((1.0, 0.0), abs=1e-12)
    best = tb.optimal_policy(cmdp)
    assert (best.value, best.cost) == pytest.approx((1.0, 0.0), abs=1e-9)


def test_fixed_point_needs_values_of_the_remaining_horizon() -> None:
    """V(x) with all T + 1 terms from every x: one more application of the operator adds a term."""
    chain, cost = tb.two_state(), np.array([0.0, 1.0])
    value = tb.finite_horizon_value(chain, cost, 5).forward
    np.testing.assert_allclose(tb.bellman_operator(chain, cost, value[1]), value[0], rtol=1e-12)
    gap = tb.bellman_operator(chain, cost, value[0]) - value[0]
    assert gap.min() > 0.1  # the cost of a seventh state
    # The appendix's (I - P)^{-1} d does not exist for an ergodic kernel.
    assert np.linalg.matrix_rank(np.eye(2) - chain.transition) == 1


@given(st.integers(0, 12))
def test_period_of_fixed_length_episodes_holds(horizon: int) -> None:
    """T + 1 states, then the reset: period T + 1, so Assumption 3.1 excludes every finite horizon T > 0."""
    line = tb.Chain.killed(np.eye(horizon + 1, k=1), np.eye(horizon + 1)[0])
    assert tb.period(tb.restarted(line)) == horizon + 1


@settings(max_examples=40)
@given(continuing_chains(max_states=6), st.integers(0, 6))
def test_powers_of_the_reversal_hold(chain: tb.Chain, n: int) -> None:
    """P_back^n(x, y) = eta(y) P^n(y, x) / eta(x): irreducible with P, with the same period."""
    law = tb.stationary_distribution(chain)
    power = np.linalg.matrix_power
    expected = (law[:, None] * power(chain.transition, n)).T / law[:, None]
    np.testing.assert_allclose(power(tb.time_reversal(chain).transition, n), expected, rtol=1e-8, atol=1e-12)


def test_golden_cycle_stopped_at_its_start_holds() -> None:
    """d = (0, 1, 2), x0 = 0 absorbing for the backward chain: Vb = (0, 2, 4), rho = 1/2."""
    cycle = tb.cyclic3()
    transition = np.array(cycle.transition)
    transition[:, 0] = 0.0  # cost since the last visit to x0: entering it ends the episode
    chain = tb.Chain(transition, cycle.transition[:, 0], np.eye(3)[0])
    np.testing.assert_allclose(tb.backward_value(chain, [0.0, 1, 2]), [0, 2, 4], atol=1e-12)
    assert np.abs(np.linalg.eigvals(tb.time_reversal(chain).transition)).max() == pytest.approx(0.5, rel=1e-9)


def test_golden_number_of_sweeps_holds() -> None:
    """Hazard 1/200: about 200 ln(1e6) = 2763 sweeps; with the clock 200 sweeps are exact."""
    horizon, tolerance = 199, 1e-6
    rough = (horizon + 1) * np.log(1 / tolerance)
    assert round(rough) == 2763
    blind = tb.time_reversal(tb.Chain.killed(np.array([[horizon / (horizon + 1)]]), np.ones(1)))
    value, exact, sweeps = np.zeros(1), horizon + 1.0, 0
    while abs(value[0] - exact) > tolerance * exact:
        value, sweeps = tb.bellman_operator(blind, np.ones(1), value), sweeps + 1
    assert 0.99 * rough < sweeps < rough
    line = tb.Chain.killed(np.eye(horizon + 1, k=1), np.eye(horizon + 1)[0])
    back, value = tb.time_reversal(line), np.full(horizon + 1, 1e6)
    assert not np.linalg.matrix_power(back.transition, horizon + 1).any()
    assert np.linalg.matrix_power(back.transition, horizon).any()
    for _ in range(horizon + 1):
        value = tb.bellman_operator(back, np.ones(horizon + 1), value)
    np.testing.assert_allclose(value, np.arange(1, horizon + 2), rtol=1e-12)


def law_norm(matrix: np.ndarray, law: np.ndarray) -> float:
    """The operator norm in L2(eta)."""
    root = np.sqrt(law)
    return float(np.linalg.norm(root[:, None] * matrix / root, 2))


@settings(max_examples=40)
@given(killed_chains(max_states=6), SEED)
def test_stability_of_the_projected_backward_kernel_holds(chain: tb.Chain, seed: int) -> None:
    """||N||_eta = ||P||_eta <= 1, and rho(Pi N) < 1 for any features."""
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain).transition
    assert law_norm(back, law) == pytest.approx(law_norm(chain.transition, law), rel=1e-6, abs=1e-9)
    assert law_norm(back, law) <= 1 + 1e-9
    phi = np.random.default_rng(seed).normal(size=(chain.n_states, min(2, chain.n_states)))
    root = np.sqrt(law)[:, None]
    projection = phi @ np.linalg.pinv(root * phi) * root.T
    assert np.abs(np.linalg.eigvals(projection @ back)).max() < 1


def test_contraction_needs_a_discount() -> None:
    """x0 -> x1 -> x2, end: the norm of N in L2(eta) is exactly 1."""
    line = tb.Chain.killed(np.eye(3, k=1), np.eye(3)[0])
    law = tb.stationary_distribution(line)
    assert law_norm(tb.time_reversal(line).transition, law) == pytest.approx(1.0, abs=1e-12)


@settings(max_examples=40)
@given(killed_chains(max_states=6), st.sampled_from([0.5, 0.9, 0.99]), st.sampled_from([0.0, 0.5, 0.95]))
def test_contraction_of_discounted_operators_holds(chain: tb.Chain, gamma: float, lambda_: float) -> None:
    """Modulus gamma in the sup norm, and gamma (1 - lambda) / (1 - gamma lambda) in L2(eta), backward as forward."""
    law, back = tb.stationary_distribution(chain), tb.time_reversal(chain).transition
    assert gamma * np.abs(back).sum(axis=1).max() <= gamma + 1e-9
    system = np.eye(chain.n_states) - gamma * lambda_ * back
    linear = np.linalg.solve(system, gamma * (1 - lambda_) * back)
    assert law_norm(linear, law) <= gamma * (1 - lambda_) / (1 - gamma * lambda_) + 1e-9


@settings(max_examples=40)
@given(killed_chains(max_states=6), st.data())
def test_adjoint_values_hold(chain: tb.Chain, data: st.DataObject) -> None:
    """E_eta[g Vb of d] = E_eta[d V of g]."""
    d, g = data.draw(costs(chain.n_states)), data.draw(costs(chain.n_states))
    law = tb.stationary_distribution(chain)
    right = law @ (d * tb.forward_value(chain, g))
    assert law @ (g * tb.backward_value(chain, d)) == pytest.approx(right, rel=1e-8, abs=1e-10)


def test_golden_mean_backward_value_holds() -> None:
    """chain4: E_eta[Vb] = E_eta[d l] = 4.9743589744."""
    chain, law = tb.chain4(), tb.stationary_distribution(tb.chain4())
    assert law @ tb.backward_value(chain, tb.CHAIN4_COST) == pytest.approx(4.9743589744, abs=1e-10)
    assert law @ (tb.CHAIN4_COST * tb.expected_remaining(chain)) == pytest.approx(4.9743589744, abs=1e-10)


@given(st.integers(1, 200), st.floats(0.01, 0.99), st.floats(0.1, 10))
def test_ratio_of_the_sharp_to_the_printed_radius_holds(horizon: int, share: float, span: float) -> None:
    """At least 4 T / (T + 1) while the slack is below D T, and close to it for a small slack."""
    factor = 4 * horizon / (horizon + 1)
    for slack in (share * span * horizon, 1e-9 * span):
        sharp, paper = (tb.trust_radius(slack, span, horizon, bound) for bound in ("sharp", "paper"))
        assert sharp >= factor * paper * (1 - 1e-9)
    assert sharp == pytest.approx(factor * paper, rel=1e-6)


# --- Section 6: what the numbers of the experiments say -----------------------------------------------------------------


def test_at_most_two_pits_needs_more_than_an_expectation() -> None:
    """Four pits of cost 10 with probability 1/2: E[C] = 20 meets the limit, and half of the episodes pass four."""
    transition = np.eye(5, k=1)
    transition[0, 1] = 0.5
    chain, cost = tb.Chain.killed(transition, np.eye(5)[0]), np.array([0.0, 10, 10, 10, 10])
    assert tb.forward_value(chain, cost)[0] == pytest.approx(20.0)
    bill = [(p, cost[path].sum()) for p, path in paths(chain.transition, chain.termination, chain.initial)]
    assert sum(p for p, c in bill if c > 20) == pytest.approx(0.5)
    # Markov's inequality is all that the expectation gives: Pr(C >= 30) <= 2/3, attained by three pits.
    transition = np.eye(4, k=1)
    transition[0, 1] = 2 / 3
    three = tb.Chain.killed(transition, np.eye(4)[0])
    assert tb.forward_value(three, [0.0, 10, 10, 10])[0] == pytest.approx(20.0)


@pytest.mark.parametrize(("runs", "factor"), [(20, 1.3277), (10, 1.3830)])
def test_equal_error_bars_need_another_level(runs: int, factor: float) -> None:
    """80% intervals are 1.33 (20 seeds) and 1.38 (10 seeds) standard errors wide; one standard error covers 67%, 66%."""
    assert stats.t.ppf(0.9, runs - 1) == pytest.approx(factor, abs=5e-5)
    covered = 2 * stats.t.cdf(1, runs - 1) - 1
    assert covered == pytest.approx({20: 0.670, 10: 0.657}[runs], abs=5e-4)


def test_fair_comparison_needs_other_seeds_than_the_choice() -> None:
    """The best of four equal settings lies 1.03 standard errors above their common mean, of two 0.56."""
    normal, x = NormalDist(), np.linspace(-9, 9, 200_001)
    density, share = np.array([normal.pdf(u) for u in x[::100]]), np.array([normal.cdf(u) for u in x[::100]])
    for k, golden in ((2, 0.5641895835), (4, 1.0293753730)):
        mean = (x[::100] * k * share ** (k - 1) * density).sum() * (x[100] - x[0])
        assert mean == pytest.approx(golden, abs=1e-8)


def test_lyapunov_mask_needs_the_baseline_action() -> None:
    """The released Lyapunov mask compares with the dearest action, so with slack it removes none; the text's removes one."""
    cost_q, allowance, baseline = np.array([1.0, 2, 5]), 0.5, np.array([1.0, 0, 0])
    assert (cost_q <= allowance + cost_q.max()).all()
    assert list(cost_q <= allowance + baseline @ cost_q) == [True, False, False]


@pytest.mark.parametrize("first", np.linspace(0, 1, 11))
def test_safety_needs_knowledge(first: float) -> None:
    """Two problems, alike until the first step is done, in which the other action costs 1: no first choice is safe in both."""
    worst = 0.0
    for dear in range(2):
        transition = np.zeros((2, 2, 2))
        transition[0, dear, 1] = 1.0
        cmdp = tb.CMDP.episodic(transition, np.zeros((2, 2)), [0.0, 1], [1.0, 0], 0.4)
        worst = max(worst, tb.evaluate_policy(cmdp, [[first, 1 - first], [1.0, 0]])[1])
    assert worst == pytest.approx(max(first, 1 - first), abs=1e-12) and worst > 0.4
