"""Safe policy iteration: what the printed theorems need, the sharp radius, the safeguarded repair (chapter 7)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from bvf_tutorial import tabular as tb
from tests.oracles import enumerated, paths
from tests.strategies import SEED, cmdps, costs, killed_chains, policies

EMPTY = int(tb.StateStatus.EMPTY)
GATE_START = np.array([[1, 0], [1, 0], [0.4, 0.6], [1, 0], [1, 0]])
"""coin_gate: earn surely at the good state, with 0.4 at the bad one."""


@st.composite
def layered(draw: st.DrawFn) -> tuple[tb.CMDP, np.ndarray]:
    """Draw a layered CMDP whose limit binds, and a feasible policy with full support."""
    generator = np.random.default_rng(draw(SEED))
    horizon, width = draw(st.integers(1, 5)), draw(st.integers(2, 3))
    cmdp = tb.random_layered_cmdp(generator, horizon, width, draw(st.integers(2, 4)), branching=2)
    cmdp = tb.with_binding_limit(cmdp, draw(st.sampled_from([0.1, 0.4, 0.9])))
    return cmdp, feasible_policy(cmdp, generator)


def feasible_policy(cmdp: tb.CMDP, generator: np.random.Generator) -> np.ndarray:
    """Move from the least-cost policy towards a random one, half of the way that the limit allows at most."""
    least, aim = tb.least_cost_policy(cmdp), generator.dirichlet(np.ones(cmdp.n_actions), cmdp.n_states)
    share = 1.0
    while tb.evaluate(cmdp, least + share * (aim - least)).slack < 0 and share > 1e-9:
        share /= 2
    return least + (share if share > 1e-9 else 0.0) * (aim - least)


def iterates(cmdp: tb.CMDP, policy: np.ndarray, step: tb.Step, n: int) -> list[tb.Evaluation]:
    walk = tb.improvements(cmdp, policy, step)
    return [next(walk)[0] for _ in range(n + 1)]


def in_ball(generator: np.random.Generator, center: np.ndarray, radius: float) -> np.ndarray:
    """Draw a policy within total variation ``radius`` of ``center``: mass moved between random corners."""
    aim = np.eye(center.shape[1])[generator.integers(center.shape[1], size=len(center))]
    distance = np.abs(aim - center).sum(axis=1, keepdims=True) / 2
    return center + (aim - center) * np.minimum(1.0, radius / np.maximum(distance, 1e-12))


def worst_case(cmdp: tb.CMDP, policy: np.ndarray, radius: np.ndarray, horizon: int) -> np.ndarray:
    """Return, by a robust dynamic program over the ball (one small linear program a state), the largest cost to come."""
    value, n_actions = cmdp.cost.copy(), cmdp.n_actions
    for _ in range(horizon):
        ahead = cmdp.cost[:, None] + np.einsum("xay,y->xa", cmdp.transition, value)
        for x, row in enumerate(ahead):
            # p = policy + up - down, total of up at most the radius
            result = linprog(
                np.r_[-row, row],
                A_ub=[np.r_[np.ones(n_actions), np.zeros(n_actions)]],
                b_ub=[radius[x]],
                A_eq=[np.r_[np.ones(n_actions), -np.ones(n_actions)]],
                b_eq=[0.0],
                bounds=[(0, 1)] * n_actions + [(0, q) for q in policy[x]],
            )
            value[x] = policy[x] @ row - result.fun
    return value


# Performance difference, and the identities behind Theorem 3.1.


@pytest.mark.claim("prop-performance-difference")
@settings(max_examples=15)
@given(cmdps(), st.data())
def test_performance_difference_holds(cmdp: tb.CMDP, data: st.DataObject) -> None:
    old, new = (data.draw(policies(cmdp.n_states, cmdp.n_actions)) for _ in range(2))
    before, after = tb.evaluate(cmdp, old), tb.evaluate(cmdp, new)
    chain = tb.policy_chain(cmdp, new)
    visits = np.linalg.inv(np.eye(cmdp.n_states) - chain.transition)
    for v, w, q in ((before.value, after.value, before.q), (before.cost_value, after.cost_value, before.cost_q)):
        assert np.allclose(w - v, visits @ ((new - old) * q).sum(axis=1), atol=1e-9)


@pytest.mark.claim("prop-performance-difference")
def test_performance_difference_holds_by_enumeration() -> None:
    """Every episode of an acyclic problem, with the advantage of the old policy collected along it."""
    generator = np.random.default_rng(0)
    cmdp = tb.random_layered_cmdp(generator, 3, 2, 2, branching=2)
    old, new = (generator.dirichlet(np.ones(2), cmdp.n_states) for _ in range(2))
    chain, before = tb.policy_chain(cmdp, new), tb.evaluate(cmdp, old)
    gain = ((new - old) * before.cost_q).sum(axis=1)
    bills = [
        enumerated(chain.transition, chain.termination, chain.initial, signal)["forward"][0]
        for signal in (cmdp.cost, gain)
    ]
    assert np.isclose(bills[0] - before.expected_cost, bills[1], rtol=1e-12)


@pytest.mark.claim("prop-perturbation-identities")
@settings(max_examples=25)
@given(killed_chains(), st.data())
def test_perturbation_identities_hold_as_corrected(chain: tb.Chain, data: st.DataObject) -> None:
    size = chain.n_states
    generator, d = np.random.default_rng(data.draw(SEED)), data.draw(costs(size))
    p0 = chain.transition
    p1 = generator.dirichlet(np.ones(size + 1), size)[:, :size] * 0.9
    eye, delta = np.eye(size), p1 - p0
    r0, r1 = np.linalg.inv(eye - p0), np.linalg.inv(eye - p1)
    v0, v1 = r0 @ d, r1 @ d
    assert np.allclose(r0, r1 @ (eye - delta @ r0), rtol=1e-9, atol=1e-9)
    assert np.allclose(v1, v0 + r1 @ (delta @ v0), rtol=1e-9, atol=1e-9)


@pytest.mark.claim("prop-perturbation-identities")
def test_perturbation_identities_need_the_corrected_signs() -> None:
    """One state: kernels 0.72 and 0.12 (stay_or_quit at 0.8 and 2/15); no change at all refutes the printed last line."""
    p0, p1, d = 0.72, 0.12, 1.0
    r0, r1 = 1 / (1 - p0), 1 / (1 - p1)
    assert np.isclose(r0, r1 * (1 - (p1 - p0) * r0))
    assert np.isclose(r1 * (1 + (p1 - p0) * r0) - r0, -375 / 77)
    assert np.isclose(r1 * d, r0 * d + r1 * (p1 - p0) * r0 * d)
    assert not np.isclose(r1 * d, r0 * d - r1 * (p1 - p0) * r0 * d)
    limit, value = 4.0, r0 * d
    assert np.isclose(value + (limit - value), limit)
    assert value - (limit - value) == 2 * value - limit < value, "the same policy would break the printed bound"


# Theorem 3.2.


@pytest.mark.claim("prop-conditional-improvement")
@settings(max_examples=12)
@given(layered(), st.sampled_from([1.0, 0.3, 0.01]))
def test_conditional_improvement_holds(problem: tuple[tb.CMDP, np.ndarray], radius: float) -> None:
    cmdp, policy = problem
    now = tb.evaluate(cmdp, policy)
    # The limit that makes the policy just satisfy its own constraints.
    now = tb.evaluate(cmdp.with_cost_limit(float(np.nanmax(now.state_wise_cost))), policy)
    assert now.is_value_feasible
    step = tb.spi_step(now, radius=radius)
    assert step.count(EMPTY) == 0
    assert (tb.evaluate(cmdp, step.policy).value >= now.value - 1e-9).all()


@pytest.mark.claim("prop-conditional-improvement")
def test_conditional_improvement_needs_the_policys_own_constraints() -> None:
    for limit in (1.4, 1.4 - 1e-3):
        now = tb.evaluate(tb.coin_gate(limit), GATE_START)
        after = tb.evaluate(now.cmdp, tb.spi_step(now).policy)
        assert (after.expected_return >= now.expected_return - 1e-12) == now.is_value_feasible == (limit == 1.4)


@pytest.mark.claim("prop-improvement-fails")
def test_improvement_needs_more_than_feasibility() -> None:
    """One state, two actions: a decrease, then over the limit, then an empty program."""
    cmdp = tb.stay_or_quit()
    walk = tb.improvements(cmdp, [[0.8, 0.2]], tb.spi_step)
    seen = [next(walk) for _ in range(4)]
    stay = [e.policy[0, 0] for e, _ in seen]
    assert np.allclose(stay, [0.8, 0.1333333333, 1, 1], atol=1e-9)
    assert np.allclose([e.expected_return for e, _ in seen[:3]], [2.8571428571, 0.1515151515, 10], atol=1e-9)
    assert np.allclose([e.expected_cost for e, _ in seen[:3]], [3.5714285714, 1.1363636364, 10], atol=1e-9)
    assert np.allclose([e.state_wise_cost[0] for e, _ in seen[:3]], [6.1428571429, 1.2727272727, 19], atol=1e-9)
    assert [e.is_feasible for e, _ in seen] == [True, True, False, False]
    assert [e.is_value_feasible for e, _ in seen] == [False, True, False, False]
    assert [s.count(EMPTY) for _, s in seen] == [0, 0, 0, 1]
    assert np.isclose(tb.backward_offset(seen[2][0])[0], -5, atol=1e-9)
    best = tb.optimal_policy(cmdp)
    assert np.isclose(best.policy[0, 0], 5 / 6, atol=1e-9) and np.isclose(best.value, 10 / 3, atol=1e-9)


def test_one_state_formulas_and_best_state_wise_policy_hold() -> None:
    """V = p m, V_D = Vb = m with m = 1 / (1 - 0.9 p): state-wise 2 m - 1 <= 4 iff p <= 2/3, returning 5/3."""
    for stay in np.linspace(0, 1, 11):
        now, m = tb.evaluate(tb.stay_or_quit(), [[stay, 1 - stay]]), 1 / (1 - 0.9 * stay)
        assert np.allclose([now.expected_return, now.expected_cost, now.backward[0]], [stay * m, m, m], rtol=1e-12)
        assert now.is_value_feasible == (stay <= 2 / 3)
    edge = tb.evaluate(tb.stay_or_quit(), [[2 / 3, 1 / 3]])
    assert np.isclose(edge.state_wise_cost[0], 4) and np.isclose(edge.expected_return, 1.6666666667, atol=1e-9)
    assert np.allclose(tb.spi_step(edge).policy, edge.policy, atol=1e-12)


def test_feasibility_needs_more_than_the_cost_since_the_last_visit() -> None:
    """With the cost since the last visit to x0 (Vb = d) one step gives p = 14/15 and costs 6.25 > 4."""
    now = tb.evaluate(tb.stay_or_quit(), [[0.8, 0.2]])
    step = tb.linear_step(now.q, now.cost_q, now.cmdp.cost_limit - now.cmdp.cost + now.cmdp.cost)
    assert np.isclose(step.policy[0, 0], 0.9333333333, atol=1e-9)
    assert np.isclose(tb.evaluate(now.cmdp, step.policy).expected_cost, 6.25, atol=1e-9)


@pytest.mark.claim("prop-improvement-fails")
def test_improvement_needs_own_constraints_with_a_clock_and_full_programs() -> None:
    seen = iterates(tb.coin_gate(), GATE_START, tb.spi_step, 2)
    assert np.allclose(seen[0].state_wise_cost, [1.2, 1, 1.4, 1, 1.2857142857], atol=1e-9)
    assert np.allclose([e.expected_return for e in seen], [0.7, 0.65, 0.65], atol=1e-12)
    assert np.allclose([e.expected_cost for e in seen], [1.2, 1.15, 1.15], atol=1e-12)
    assert np.allclose([seen[0].value[2], seen[1].value[2]], [0.4, 0.3], atol=1e-12)
    assert all(tb.spi_step(e).count(EMPTY) == 0 and e.is_feasible for e in seen)
    assert np.allclose(tb.spi_step(seen[1]).multiplier[1:3], [0, 1]), "each state has its own price"
    best = tb.optimal_policy(tb.coin_gate())
    assert np.isclose(best.value, 0.8, atol=1e-9) and np.isclose(best.multiplier, 1, atol=1e-9)


@pytest.mark.claim("prop-improvement-fails")
def test_improvement_needs_more_than_the_ball_of_theorem_3_1() -> None:
    """Value-feasible start, programs never empty inside the printed ball, and still the second step loses."""
    policy = np.array([[1, 0], [0.5, 0.5], [0.8, 0.2], [1, 0]])
    seen, cmdp = [], tb.downstream_drift()
    for _ in range(3):
        now = tb.evaluate(cmdp, policy)
        radius = tb.trust_radius(now.slack, 1.0, 3, "paper")
        step = tb.spi_step(now, radius=radius)
        assert step.count(EMPTY) == 0 and now.is_feasible
        assert np.abs(step.policy - policy).sum(axis=1).max() / 2 <= radius + 1e-15
        seen.append((now.expected_return, now.state_wise_cost[1], radius, now.is_value_feasible))
        policy = step.policy
    assert np.allclose([s[0] for s in seen], [1.95, 1.971875, 1.9515927504208745], atol=1e-12)
    assert np.allclose([s[1] for s in seen[:2]], [1.4, 1.4125], atol=1e-12)
    assert np.allclose([s[2] for s in seen[:2]], [0.025, 0.428125 / 18], atol=1e-12)
    assert [s[3] for s in seen] == [True, False, False], "the state-wise constraint is not inherited"


def test_one_step_inside_the_ball_needs_own_constraints() -> None:
    """coin_gate at p_b = 0.31: excluded by 0.01, the printed ball (0.018125) reaches the limit, 0.655 -> 0.65."""
    policy = GATE_START.copy()
    policy[2] = [0.31, 0.69]
    now = tb.evaluate(tb.coin_gate(), policy)
    radius = tb.trust_radius(now.slack, 1.0, 2, "paper")
    step = tb.spi_step(now, radius=radius)
    assert np.isclose(radius, 0.018125, atol=1e-12) and step.count(EMPTY) == 0
    after = tb.evaluate(now.cmdp, step.policy)
    assert np.allclose([now.expected_return, after.expected_return], [0.655, 0.65], atol=1e-12)


# Overshoot, empty programs, unseen states.


def risky(n: int, chance: float) -> tuple[tb.CMDP, np.ndarray]:
    cmdp = tb.repeated_risk(n, 1 + (n - 1) * chance)
    policy = tb.uniform_policy(cmdp)
    policy[: 3 * n : 3] = [chance, 1 - chance]
    return cmdp, policy


@pytest.mark.claim("prop-overshoot")
@settings(max_examples=12)
@given(layered(), st.floats(0, 1))
def test_overshoot_bound_holds(problem: tuple[tb.CMDP, np.ndarray], share: float) -> None:
    cmdp, policy = problem
    n = int(tb.decision_bound(cmdp) + 0.5)
    policy = 0.9 * policy + 0.1 / cmdp.n_actions  # so that it visits whatever its successor visits
    limit = float(np.nanmax(tb.evaluate(cmdp, policy).state_wise_cost)) * (1 + share)
    now = tb.evaluate(cmdp.with_cost_limit(limit), policy)
    step = tb.spi_step(now)
    assert step.count(EMPTY) == 0
    after = tb.evaluate(cmdp, step.policy)
    slack = now.cmdp.cost_limit - now.state_wise_cost
    # A last state decides nothing, so its slack cannot be spent.
    deciding = (cmdp.termination < 1).any(axis=1) & (now.visits > 0)
    assert after.expected_cost <= now.expected_cost + after.visits[deciding] @ slack[deciding] + 1e-9
    assert after.expected_cost <= n * now.cmdp.cost_limit + 1e-9


@pytest.mark.claim("prop-overshoot")
@pytest.mark.parametrize(
    ("n", "chance", "before", "after", "limit"), [(2, 0.1, 0.2, 2.0, 1.1), (10, 0.01, 0.1, 10.0, 1.09)]
)
def test_one_limit_per_state_needs_a_brake(n: int, chance: float, before: float, after: float, limit: float) -> None:
    cmdp, policy = risky(n, chance)
    now = tb.evaluate(cmdp, policy)
    step = tb.spi_step(now)
    assert now.is_value_feasible and step.count(EMPTY) == 0 and np.isclose(cmdp.cost_limit, limit, atol=1e-12)
    costs_seen = now.expected_cost, tb.evaluate(cmdp, step.policy).expected_cost
    assert np.allclose(costs_seen, [before, after], atol=1e-9)


@pytest.mark.claim("prop-overshoot")
def test_overshoot_factor_holds_with_equality_in_the_limit() -> None:
    for n in (2, 5, 20):
        cmdp, policy = risky(n, 1e-6)
        after = tb.evaluate(cmdp, tb.spi_step(tb.evaluate(cmdp, policy)).policy)
        assert n - 1e-3 < after.expected_cost / cmdp.cost_limit <= n


@pytest.mark.claim("prop-overshoot")
def test_overshoot_bound_needs_the_states_to_be_visited() -> None:
    for damage in (10.0, 1e6):
        cmdp = tb.unseen_trap(damage)
        hidden, seen = (tb.evaluate(cmdp, [[enter, 1 - enter], [0.0, 1.0], [0.0, 1.0]]) for enter in (0.0, 0.01))
        assert hidden.is_value_feasible and np.isnan(hidden.backward[1:]).all()
        assert tb.evaluate(cmdp, tb.spi_step(hidden).policy).expected_cost == damage
        assert tb.evaluate(cmdp, tb.spi_step(seen).policy).expected_cost <= 1 + 1e-9
        safe = tb.evaluate(cmdp, tb.safeguarded_step(hidden, "line_search", 2).policy)
        assert safe.is_feasible and safe.expected_return >= hidden.expected_return


def test_full_programs_need_more_than_a_ball() -> None:
    """repeated_risk with the ball 0.05: cost 0.3 is feasible, but 1.15 > 1.1 at the single-action states."""
    cmdp, policy = risky(2, 0.1)
    after = tb.evaluate(cmdp, tb.spi_step(tb.evaluate(cmdp, policy), radius=0.05).policy)
    assert np.isclose(after.expected_cost, 0.3) and np.isclose(np.nanmax(after.state_wise_cost), 1.15)
    assert list(np.flatnonzero(tb.spi_step(after, radius=0.05).status == EMPTY)) == [2, 5]


@pytest.mark.claim("prop-empty-last-state")
@settings(max_examples=12)
@given(layered())
def test_empty_last_state_holds(problem: tuple[tb.CMDP, np.ndarray]) -> None:
    cmdp, policy = problem
    chain = tb.policy_chain(cmdp, policy)
    with np.errstate(invalid="ignore"):  # states that no episode visits
        truth = enumerated(chain.transition, chain.termination, chain.initial, cmdp.cost)
    now = tb.evaluate(cmdp, policy)
    last = (cmdp.termination == 1).all(axis=1) & (now.visits > 0)
    assert np.allclose(truth["total"][now.visits > 0], now.state_wise_cost[now.visits > 0])
    excess = truth["total"][last] - cmdp.cost_limit
    is_empty = tb.spi_step(now).status[last] == EMPTY
    assert is_empty[excess > 1e-8].all() and not is_empty[excess < -1e-8].any()
    assert is_empty.any() or truth["cost"] <= cmdp.cost_limit + 1e-9


@pytest.mark.claim("prop-empty-last-state")
def test_feasible_problem_needs_full_last_states() -> None:
    """A coin, a cost of 1 on one side, limit 1/2: every policy is feasible and the program is empty."""
    transition = np.zeros((3, 1, 3))
    transition[0, 0, 1:] = 0.5
    now = tb.evaluate(tb.CMDP.episodic(transition, np.zeros((3, 1)), [0, 1, 0], [1, 0, 0], 0.5), np.ones((3, 1)))
    assert now.is_feasible and list(tb.spi_step(now).status) == [0, EMPTY, 0]
    gate = tb.evaluate(tb.coin_gate(1.25), GATE_START)
    assert gate.is_feasible and tb.spi_step(gate).status[4] == EMPTY


# Theorem 3.1.


@pytest.mark.claim("thm-sharp-radius")
@settings(max_examples=8)
@given(layered(), st.sampled_from([1e-3, 0.05, 0.4]))
def test_sharp_radius_holds_against_the_worst_policy(problem: tuple[tb.CMDP, np.ndarray], sigma: float) -> None:
    cmdp, policy = problem
    horizon = int(tb.decision_bound(cmdp) + 0.5)
    worst = worst_case(cmdp, policy, np.full(cmdp.n_states, sigma), horizon)
    increase = cmdp.initial @ worst - tb.evaluate(cmdp, policy).expected_cost
    assert increase <= tb.coupling_bound(sigma, cmdp.cost.max(), horizon) + 1e-7


@pytest.mark.claim("thm-sharp-radius")
@settings(max_examples=12)
@given(layered(), SEED)
def test_sharp_radius_holds(problem: tuple[tb.CMDP, np.ndarray], seed: int) -> None:
    cmdp, policy = problem
    generator, now = np.random.default_rng(seed), tb.evaluate(cmdp, policy)
    horizon, span = int(tb.decision_bound(cmdp) + 0.5), float(cmdp.cost.max())
    radii = [tb.trust_radius(max(now.slack, 0.0), span, horizon, bound) for bound in ("paper", "linear", "sharp")]
    assert (np.diff(radii) >= -1e-12 * radii[2]).all()
    for _ in range(5):
        assert tb.evaluate(cmdp, in_ball(generator, policy, radii[2])).is_feasible


@pytest.mark.claim("thm-sharp-radius")
@settings(max_examples=25)
@given(st.integers(1, 30), st.floats(0, 1), st.floats(0.1, 10))
def test_sharp_radius_holds_with_equality(horizon: int, sigma: float, span: float) -> None:
    cmdp = tb.leave_safety(horizon, 1.0, span)
    base, moved = (np.tile([leave, 1 - leave], (cmdp.n_states, 1)) for leave in (0.0, sigma))
    assert tb.evaluate_policy(cmdp, base)[1] == 0
    exact = span * sum(1 - (1 - sigma) ** t for t in range(1, horizon + 1))
    assert np.isclose(tb.evaluate_policy(cmdp, moved)[1], exact, rtol=1e-9, atol=1e-9)
    assert np.isclose(tb.coupling_bound(sigma, span, horizon), exact, rtol=1e-9, atol=1e-9)
    assert exact <= span * sigma * horizon * (horizon + 1) / 2 * (1 + 1e-9) + 1e-12


@pytest.mark.claim("thm-sharp-radius")
def test_sharp_radius_needs_no_more() -> None:
    """A radius 0.1% larger than the sharp one is unsafe on leave_safety, for every horizon."""
    for horizon in (1, 2, 5, 10, 200):
        sigma = tb.trust_radius(0.5, 1.0, horizon)
        cmdp = tb.leave_safety(horizon, 0.5)
        for factor, is_feasible in ((1.0, True), (1.001, False)):
            leave = min(1.0, sigma * factor)
            policy = np.tile([leave, 1 - leave], (cmdp.n_states, 1))
            assert tb.evaluate(cmdp, policy).is_feasible == is_feasible


@pytest.mark.parametrize(
    ("horizon", "paper", "sharp"),
    [(1, 0.25, 0.5), (2, 0.0625, 0.1771243445), (5, 0.01, 0.0349169446), (10, 0.0025, 0.0093482398),
     (200, 6.25e-6, 2.49168e-5)],
)  # fmt: skip
def test_golden_radii_hold(horizon: int, paper: float, sharp: float) -> None:
    assert np.isclose(tb.trust_radius(0.5, 1.0, horizon, "paper"), paper, rtol=1e-12)
    assert abs(tb.trust_radius(0.5, 1.0, horizon) - sharp) < 5e-11
    assert np.isclose(tb.trust_radius(0.5, 1.0, horizon, "linear"), 1 / (horizon * (horizon + 1)), rtol=1e-12)


def test_radii_of_the_papers_experiments_hold() -> None:
    tasks = ((20, 10, 200, "2.5e-05"), (50, 1, 200, "0.000625"), (10, 1, 65, "0.00118"), (4, 1, 15, "0.00889"))
    for limit, span, horizon, golden in tasks:
        assert f"{tb.trust_radius(limit, span, horizon, 'paper'):.3g}" == golden
    assert round(1 / tb.trust_radius(20, 10, 200, "paper")) == 40_000


@pytest.mark.claim("thm-sharp-radius")
def test_printed_radius_needs_state_costs() -> None:
    """Costs of actions give one more decision: at horizon = 1, slack 1/2 the printed 1/4 adds 0.6875."""
    sigma = tb.trust_radius(0.5, 1.0, 1, "paper")
    cmdp = tb.leave_safety(2, 0.5)
    leave = np.tile([sigma, 1 - sigma], (cmdp.n_states, 1))
    assert sigma == 0.25 and np.isclose(tb.evaluate_policy(cmdp, leave)[1], 0.6875, atol=1e-12)


def test_a_ball_needs_slack() -> None:
    assert [tb.trust_radius(0.0, 1.0, 7, bound) for bound in ("sharp", "linear", "paper")] == [0, 0, 0]


def late(risk: float) -> np.ndarray:
    policy = np.tile([0.0, 1.0], (5, 1))
    policy[2] = [risk, 1 - risk]
    return policy


@pytest.mark.claim("prop-case-two")
@pytest.mark.parametrize(("risk", "limit", "golden"), [(0.0, 1.0, 1.1666666667), (0.05, 1.05, 1.2087301587)])
def test_case_two_needs_the_slack_of_the_start(risk: float, limit: float, golden: float) -> None:
    now = tb.evaluate(tb.late_risk(limit), late(risk))
    assert (now.cost_value <= limit + 1e-12).all()
    theta = np.nanmax(limit - now.backward - now.cmdp.cost)
    sigma = (limit - now.cost_value[2]) / (2 * 3 * theta)
    after = tb.evaluate(now.cmdp, late(risk + sigma))
    assert abs(after.expected_cost - golden) < 1e-9 and not after.is_feasible
    if risk == 0:
        assert np.allclose(now.cost_value, [1, 1, 0, 0, 1]) and np.allclose(now.backward[:4], [0, 1, 1, 1])
        assert theta == 1 and np.isclose(sigma, 1 / 6)


@pytest.mark.claim("prop-case-two")
def test_case_two_needs_the_sign_of_the_cost() -> None:
    """d = 1, L states, d0 = L: the printed Theta is L - 2 < V_D(x0) = L; with +d it is L."""
    for length in (3, 6):
        chain = tb.Chain.killed(np.eye(length, k=1), np.eye(length)[0])
        now = tb.evaluate(tb.chain_cmdp(chain, np.ones(length), float(length)), np.ones((length, 1)))
        limit, cost = now.cmdp.cost_limit, now.cmdp.cost
        assert np.isclose(np.max(limit - now.backward - cost), length - 2)
        assert np.isclose(np.max(limit - now.backward + cost), length) and np.isclose(now.expected_cost, length)


@pytest.mark.claim("prop-case-two")
@settings(max_examples=8)
@given(layered())
def test_case_two_holds_as_corrected(problem: tuple[tb.CMDP, np.ndarray]) -> None:
    cmdp, policy = problem
    value = tb.evaluate(cmdp, policy).cost_value
    limit, horizon = 1.2 * value.max() + 0.1, int(tb.decision_bound(cmdp) + 0.5)
    sigma = min(1.0, (limit - value.max()) / (horizon * value.max())) if value.max() > 0 else 1.0
    worst = worst_case(cmdp, policy, np.full(cmdp.n_states, sigma), horizon)
    assert (worst <= limit + 1e-7).all()


@pytest.mark.claim("prop-case-two")
@settings(max_examples=12)
@given(layered(), SEED)
def test_one_sided_version_holds(problem: tuple[tb.CMDP, np.ndarray], seed: int) -> None:
    """Any split of the slack over the layers, any policy within it, at any distance."""
    cmdp, policy = problem
    now, generator = tb.evaluate(cmdp, policy), np.random.default_rng(seed)
    left = np.round(tb.forward_value(tb.policy_chain(cmdp, policy), np.ones(cmdp.n_states))).astype(int)
    layer, horizon = left.max() - left, int(left.max()) - 1
    allowance = np.r_[generator.dirichlet(np.ones(horizon)) * max(now.slack, 0.0), 0.0][layer]
    after = tb.evaluate(
        cmdp, tb.linear_step(generator.normal(size=now.q.shape), now.cost_q, now.cost_value + allowance).policy
    )
    assert after.is_feasible


# Safeguarded SPI.


def pairs(seen: list[tb.Evaluation]) -> Iterator[tuple[tb.Evaluation, tb.Evaluation]]:
    return pairwise(seen)


@pytest.mark.claim("thm-safeguarded")
@pytest.mark.parametrize("brake", tb.BRAKES)
@settings(max_examples=8)
@given(problem=layered())
def test_safeguarded_holds(brake: str, problem: tuple[tb.CMDP, np.ndarray]) -> None:
    cmdp, policy = problem
    step = partial(tb.safeguarded_step, brake=brake, horizon=tb.decision_bound(cmdp))
    walk = tb.improvements(cmdp, policy, step)
    seen = [next(walk) for _ in range(5)]
    assert all(e.is_feasible and s.count(EMPTY) == 0 for e, s in seen)
    for before, after in pairs([e for e, _ in seen]):
        assert (after.value >= before.value - 1e-9).all()


@pytest.mark.claim("thm-safeguarded")
@pytest.mark.parametrize("brake", [b for b in tb.BRAKES if b != "ball"])
@settings(max_examples=6)
@given(cmdp=cmdps(), seed=SEED)
def test_safeguarded_holds_with_random_lengths(brake: str, cmdp: tb.CMDP, seed: int) -> None:
    """Episodes without a horizon: the expected number of decisions that matter takes its place."""
    policy = feasible_policy(cmdp, np.random.default_rng(seed))
    step = partial(tb.safeguarded_step, brake=brake, horizon=tb.decision_bound(cmdp))
    seen = iterates(cmdp, policy, step, 4)
    assert all(e.is_feasible for e in seen)
    for before, after in pairs(seen):
        assert (after.value >= before.value - 1e-7 * (1 + np.abs(before.value))).all()


@pytest.mark.claim("thm-safeguarded")
def test_several_hundred_safeguarded_steps_hold() -> None:
    generator, counted = np.random.default_rng(0), 0
    for trial in range(10):
        cmdp = tb.with_binding_limit(tb.random_layered_cmdp(generator, 4, 3))
        policy, best = feasible_policy(cmdp, generator), tb.optimal_policy(cmdp).value
        for brake in tb.BRAKES:
            step = partial(tb.safeguarded_step, brake=brake, horizon=4)
            run = tb.policy_iteration(cmdp, policy, step, 8)
            counted += len(run.value) - 1
            assert run.n_infeasible == run.n_decreases == run.n_empty.max() == 0, (trial, brake)
            assert run.value[-1] <= best + 1e-7
    assert counted >= 300


@pytest.mark.claim("thm-safeguarded")
def test_safeguarded_needs_a_brake() -> None:
    """The relaxed limit alone is monotone, but still spends the slack once per decision."""
    cmdp, policy = risky(10, 0.01)
    now = tb.evaluate(cmdp, policy)
    step = tb.linear_step(now.q, now.cost_q, tb.safeguarded_offset(now))
    after = tb.evaluate(cmdp, step.policy)
    assert (after.value >= now.value).all() and np.isclose(after.expected_cost, 10)


@pytest.mark.claim("thm-safeguarded")
def test_safeguarded_needs_a_feasible_start_and_the_relaxed_limit() -> None:
    with pytest.raises(tb.InvalidModelError, match="over the limit"):
        tb.safeguarded_step(tb.evaluate(tb.stay_or_quit(), [[1.0, 0.0]]), "mixture", 10)
    # The printed limit under the mixture brake: nothing infeasible, no program empty, and the return still falls.
    now = tb.evaluate(tb.coin_gate(), GATE_START)
    target = tb.linear_step(now.q, now.cost_q, tb.backward_offset(now))
    excess = (target.policy * now.cost_q).sum(axis=1) - now.cost_value
    assert target.count(EMPTY) == 0 and excess.max() <= 1e-12
    assert tb.evaluate(now.cmdp, target.policy).expected_return < now.expected_return


# Sub-optimality.


def gate(good: float, bad: float, limit: float = 1.3) -> tb.Evaluation:
    return tb.evaluate(tb.coin_gate(limit), [[1, 0], [good, 1 - good], [bad, 1 - bad], [1, 0], [1, 0]])


@pytest.mark.claim("prop-no-multiplicative")
@settings(max_examples=25)
@given(st.floats(0.01, 0.99), st.floats(0.1, 100), st.floats(1e-6, 1))
def test_no_multiplicative_guarantee_holds(probability: float, damage: float, chance: float) -> None:
    cmdp = tb.rare_disaster(probability, damage)
    surely = tb.evaluate(cmdp, [[1.0, 0.0], [1.0, 0.0]])
    assert surely.is_feasible and surely.expected_return == 1
    some = tb.evaluate(cmdp, [[chance, 1 - chance], [1.0, 0.0]])
    assert some.is_feasible and not some.is_value_feasible
    none = tb.evaluate(cmdp, [[0.0, 1.0], [1.0, 0.0]])
    assert none.is_value_feasible and none.expected_return == 0


@pytest.mark.claim("prop-hierarchy")
@settings(max_examples=12)
@given(layered())
def test_hierarchy_holds(problem: tuple[tb.CMDP, np.ndarray]) -> None:
    """Largest episode >= largest state-wise cost >= E[C], with the largest episode by dynamic programming."""
    cmdp, policy = problem
    chain, now = tb.policy_chain(cmdp, policy), tb.evaluate(cmdp, policy)
    largest = cmdp.cost.copy()
    for _ in range(cmdp.n_states):
        reach = np.where(chain.transition > 0, largest, -np.inf).max(axis=1)
        largest = cmdp.cost + np.maximum(reach, 0.0)
    top = float(np.nanmax(now.state_wise_cost))
    assert largest[0] >= top - 1e-9 and top >= now.expected_cost - 1e-9


def dearest_episode(now: tb.Evaluation) -> float:
    chain = tb.policy_chain(now.cmdp, now.policy)
    return max(
        float(now.cmdp.cost[path].sum()) for _, path in paths(chain.transition, chain.termination, chain.initial)
    )


@pytest.mark.claim("prop-hierarchy")
def test_hierarchy_holds_strictly() -> None:
    """coin_gate at 1.3: optima 0.8 on average, 0.65 state by state, 0.5 almost surely; brute force over both numbers."""
    axis = np.arange(11) / 10
    lattice = [gate(good, bad) for good in axis for bad in axis]
    assert np.isclose(max(e.expected_return for e in lattice if e.is_feasible), 0.8)
    assert np.isclose(max(e.expected_return for e in lattice if e.is_value_feasible), 0.65)
    sure = [e.expected_return for e in lattice if dearest_episode(e) <= e.cmdp.cost_limit]
    assert np.isclose(max(sure), 0.5) and dearest_episode(gate(1, 0)) == 1
    assert np.isclose(tb.optimal_policy(tb.coin_gate()).value, 0.8, atol=1e-9)


@pytest.mark.claim("prop-price-of-conditioning")
def test_price_of_conditioning_holds_with_equality() -> None:
    below = tb.optimal_policy(tb.coin_gate(1.15))
    assert np.isclose(below.value, 0.65, atol=1e-9) and np.isclose(below.multiplier, 1, atol=1e-9)
    assert gate(1, 0.3).is_value_feasible and np.isclose(gate(1, 0.3).expected_return, below.value, atol=1e-9)
    assert np.isclose(tb.optimal_policy(tb.coin_gate()).value - 0.65, below.multiplier * 0.15, atol=1e-9)


@pytest.mark.claim("prop-price-of-conditioning")
@settings(max_examples=12)
@given(layered(), st.floats(0.05, 1))
def test_price_of_conditioning_holds(problem: tuple[tb.CMDP, np.ndarray], share: float) -> None:
    """Whatever the smaller limit c, its optimum is within the state-wise limit d0 = its own worst state."""
    cmdp, _ = problem
    low = tb.optimal_policy(cmdp)
    worst = float(np.nanmax(tb.evaluate(cmdp, low.policy).state_wise_cost))
    limit = max(worst, cmdp.cost_limit)
    high = tb.optimal_policy(cmdp.with_cost_limit(limit))
    assert tb.evaluate(cmdp.with_cost_limit(limit), low.policy).is_value_feasible
    assert high.value - low.value <= low.multiplier * (limit - cmdp.cost_limit) + 1e-7
    between = cmdp.cost_limit + share * (limit - cmdp.cost_limit)
    middle = tb.optimal_policy(cmdp.with_cost_limit(between))
    assert low.value - 1e-7 <= middle.value <= high.value + 1e-7


# Fixed points.


@pytest.mark.claim("prop-stalled")
@settings(max_examples=12)
@given(layered())
def test_optimality_of_lyapunov_fixed_points_with_slack_holds(problem: tuple[tb.CMDP, np.ndarray]) -> None:
    """Quantified: with slack, each state closes at least the share of its gap to greedy that its allowance buys."""
    cmdp, policy = problem
    now, horizon = tb.evaluate(cmdp, policy), tb.decision_bound(cmdp)
    gap = now.q.max(axis=1) - now.value
    span = np.maximum(now.cost_q.max(axis=1) - now.cost_q.min(axis=1), 1e-300)
    gain = ((tb.lyapunov_step(now, horizon).policy - policy) * now.q).sum(axis=1)
    assert (gain >= np.minimum(1.0, max(now.slack, 0.0) / horizon / span) * gap - 1e-9).all()


@pytest.mark.claim("prop-stalled")
@settings(max_examples=12)
@given(layered())
def test_certificate_by_one_price_holds(problem: tuple[tb.CMDP, np.ndarray]) -> None:
    """The best response to the optimal price, mixed to meet the limit, passes part 2; its return is the optimum."""
    cmdp, _ = problem
    best = tb.optimum_by_prices(cmdp)
    now = tb.evaluate(cmdp, best.policy)
    score = now.q - best.multiplier * now.cost_q
    used = (best.policy > 1e-6) & (now.visits > 1e-9)[:, None]
    scale = 1 + np.abs(score).max()
    assert (np.where(used, score.max(axis=1, keepdims=True) - score, 0.0) <= 1e-6 * scale).all()
    assert abs(best.multiplier * now.slack) <= 1e-6 * scale
    assert np.isclose(now.expected_return, tb.optimal_policy(cmdp).value, rtol=1e-6, atol=1e-6)


@pytest.mark.claim("prop-stalled")
def test_leaving_a_fixed_point_with_slack_needs_a_lyapunov_step() -> None:
    now = gate(1, 0.3)
    assert np.isclose(now.slack, 0.15) and np.isclose(now.expected_return, 0.65)
    for brake in tb.BRAKES:
        step = tb.safeguarded_step(now, brake, 2)
        stays = np.allclose(step.policy[1:3], now.policy[1:3], atol=1e-12)
        assert stays == (brake in ("ball", "mixture", "line_search"))
    run = tb.policy_iteration(now.cmdp, GATE_START, partial(tb.safeguarded_step, brake="lyapunov", horizon=2), 100)
    assert np.isclose(run.value[-1], 0.8, atol=1e-9)


@pytest.mark.claim("prop-stalled")
@pytest.mark.parametrize("brake", tb.BRAKES)
@pytest.mark.parametrize(("n", "prize"), [(2, 10.0), (4, 100.0)])
def test_convergence_to_the_optimum_needs_more_than_a_brake(brake: str, n: int, prize: float) -> None:
    cmdp = tb.equal_gates(n, prize)
    run = tb.policy_iteration(
        cmdp, tb.least_cost_policy(cmdp), partial(tb.safeguarded_step, brake=brake, horizon=2), 80
    )
    assert np.isclose(tb.optimal_policy(cmdp).value, prize / n, atol=1e-9)
    assert np.isclose(run.value[-1], (prize + n - 1) / n**2, atol=1e-6) and run.n_infeasible == 0
    assert np.ptp(run.policy[1 : n + 1, 0]) < 1e-12
