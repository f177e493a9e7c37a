"""The grid world: its layout rules, its exact model, its sampler."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from bvf_tutorial import tabular as tb
from bvf_tutorial.envs import ACTION_NAMES, GridWorld


def test_layout_rules() -> None:
    """Start bottom-right, goal in the left column, no pit on either, about 30% pits; one seed, one layout."""
    grids = [GridWorld.random(seed) for seed in range(200)]
    for grid in grids:
        assert grid.start == (11, 11)
        assert grid.goal[1] == 0
        assert not grid.pit[grid.start]
        assert not grid.pit[grid.goal]
        assert grid.fewest_pits() * grid.pit_cost <= grid.cost_limit
    share = np.mean([grid.pit.sum() / 142 for grid in grids])
    assert abs(share - 0.3) < 4 * np.sqrt(0.3 * 0.7 / 142 / 200)
    rows = np.bincount([grid.goal[0] for grid in grids], minlength=12)
    assert stats.chisquare(rows).pvalue > 1e-3
    assert np.array_equal(GridWorld.random(7).pit, grids[7].pit)
    assert len({grid.pit.tobytes() for grid in grids}) == 200


def test_fewest_pits_by_relaxation() -> None:
    """Against Bellman-Ford over cells, on layouts drawn without the solvability rule; and unsolvable ones do occur."""
    counts = []
    for seed in range(60):
        grid = GridWorld.random(seed, must_be_solvable=False, pit_probability=0.45)
        distance = np.full(144, np.inf)
        distance[grid.start_state] = 0
        while True:
            before = distance.copy()
            for action in range(4):
                target = grid.successor()[:, action]
                np.minimum.at(distance, target, distance + grid.pit.ravel()[target])
            if np.array_equal(before, distance):
                break
        assert grid.fewest_pits() == distance[grid.goal_state]
        counts.append(grid.fewest_pits())
    assert max(counts) > 2


def test_a_kept_layout_need_not_be_feasible() -> None:
    """Layouts without a two-pit path are fewer than one in a hundred; and a two-pit path is no promise about the mean."""
    drawn = [GridWorld.random(seed, must_be_solvable=False).fewest_pits() for seed in range(4000)]
    assert 0 < np.mean(np.array(drawn) > 2) < 0.01
    for seed in (8, 11):
        grid = GridWorld.random(seed)
        assert grid.fewest_pits() == 2
        assert tb.optimal_policy(grid.to_cmdp()).status == "infeasible"


def test_model_cell_by_cell() -> None:
    """The dense model against the rules written out for one step."""
    grid = GridWorld.random(0)
    model = grid.to_cmdp()
    step = {"up": (-1, 0), "right": (0, 1), "down": (1, 0), "left": (0, -1)}
    for state in range(144):
        row, column = divmod(state, 12)
        for action in range(4):
            expected = np.zeros(144)
            for executed, name in enumerate(ACTION_NAMES):
                weight = 0.05 / 4 + 0.95 * (executed == action)
                there = min(max(row + step[name][0], 0), 11), min(max(column + step[name][1], 0), 11)
                expected[there[0] * 12 + there[1]] += weight
            if state == grid.goal_state:
                assert not model.transition[state, action].any()
                assert model.termination[state, action] == 1.0
                assert model.reward[state, action] == 0.0
                continue
            np.testing.assert_allclose(model.transition[state, action], expected, atol=1e-15)
            goal = expected[grid.goal_state]
            assert model.reward[state, action] == pytest.approx(1000 * goal - (1 - goal))
            assert model.termination[state, action] == 0.0
    assert model.cost.tolist() == (10.0 * grid.pit.ravel()).tolist()
    assert model.initial.argmax() == 143
    assert model.cost_limit == 20.0


def test_time_augmented_model() -> None:
    """201 layers; values of the clocked model are the finite-horizon values of the plain one."""
    grid = GridWorld.random(1)
    plain, timed = grid.to_cmdp(), grid.to_cmdp(time_augmented_states=True)
    assert timed.n_states == 144 * 201
    policy = tb.uniform_policy(plain)
    chain = tb.policy_chain(timed, np.tile(policy, (201, 1)))
    exact = tb.finite_horizon_value(tb.policy_chain(plain, policy), plain.cost, 200)
    value = tb.forward_value(chain, timed.cost).reshape(201, 144)
    np.testing.assert_allclose(value, exact.forward, rtol=1e-9, atol=1e-9)
    assert tb.expected_length(chain) == pytest.approx(exact.law.sum(), rel=1e-10)
    back = tb.backward_value(chain, timed.cost, unreachable="nan").reshape(201, 144)
    np.testing.assert_allclose(back, exact.backward, rtol=1e-9, atol=1e-9)


def test_sampled_episodes_agree_with_the_model() -> None:
    """Chi-square of the executed moves from every well-visited cell; length, cost and return within five errors."""
    grid = GridWorld.random(2)
    model = grid.to_cmdp()
    policy = 0.5 * tb.optimal_policy(model).policy + 0.5 * tb.uniform_policy(model)
    episodes = tb.sample_episodes(model, policy, 20_000, np.random.default_rng(0), horizon=grid.horizon)
    here, there = episodes.state[:, :-1], episodes.state[:, 1:]
    moved = there >= 0
    p_values = []
    for state in range(144):
        for action in range(4):
            chosen = moved & (here == state) & (episodes.action[:, :-1] == action)
            if chosen.sum() < 400 or state == grid.goal_state:
                continue
            expected = model.transition[state, action]
            live = expected > 0
            seen = np.bincount(there[chosen], minlength=144)
            assert not seen[~live].any()
            if live.sum() > 1:
                p_values.append(stats.chisquare(seen[live], seen.sum() * expected[live]).pvalue)
    assert len(p_values) > 100
    assert min(p_values) > 1e-3 / len(p_values)
    exact = tb.finite_horizon_value(tb.policy_chain(model, policy), model.cost, grid.horizon)
    cost = tb.episode_sum(episodes, model.cost)
    assert abs(cost.mean() - exact.forward[0, grid.start_state]) < 5 * cost.std() / np.sqrt(20_000)
    length = episodes.length
    assert abs(length.mean() - exact.law.sum()) < 5 * length.std() / np.sqrt(20_000)
    assert length.max() <= 201


def test_other_presets_are_arguments() -> None:
    grid = GridWorld.random(0, size=5, pit_probability=0.1)
    model = grid.to_cmdp()
    assert model.n_states == 25
    sure = GridWorld(grid.pit, grid.goal, slip=0.0, pit_cost=3.0, horizon=9).to_cmdp(time_augmented_states=True)
    assert sure.n_states == 250
    assert sure.cost.max() in (0.0, 3.0)
    assert set(np.unique(sure.transition.data)) == {1.0}


def test_barriers_have_one_gap_each_and_free_columns_between() -> None:
    for seed in range(50):
        grid = GridWorld.barriers(seed)
        columns = np.flatnonzero(grid.pit.any(axis=0))
        assert len(columns) == 4
        assert (np.diff(columns) >= 2).all()
        assert (grid.pit[:, columns].sum(axis=0) == 11).all()
        assert not grid.pit[:, [0, 11]].any()
        assert grid.fewest_pits() == 0
        assert np.array_equal(grid.pit, GridWorld.barriers(seed).pit)
    drawn = [GridWorld.barriers(seed) for seed in range(500)]
    assert len({grid.pit.tobytes() for grid in drawn}) > 490  # 35 sets of columns times 12^4 gaps
    # Every set of columns can occur, the widest one included.
    assert len({tuple(np.flatnonzero(grid.pit.any(axis=0))) for grid in drawn}) == 35
    assert GridWorld.barriers(0, n_barriers=5).pit.any(axis=0).sum() == 5
    assert not GridWorld.barriers(0, n_barriers=0).pit.any()
    for wrong in (-1, 6):
        with pytest.raises(tb.InvalidModelError, match="room for 5"):
            GridWorld.barriers(0, n_barriers=wrong)


def test_return_and_cost_conflict_between_barriers_and_not_among_scattered_pits() -> None:
    """What the limit costs at best, as a share of the best return; exact."""
    loss, multiplier = {}, {}
    for kind, draw in (("barriers", GridWorld.barriers), ("scattered", GridWorld.random)):
        found = []
        for seed in range(8):
            model = draw(seed).to_cmdp()
            best = tb.evaluate_policy(model, tb.best_response(model, 0.0))[0]
            found.append((best - tb.optimal_policy(model).value) / best)
        loss[kind] = np.array(found)
        multiplier[kind] = max(tb.optimal_policy(draw(seed).to_cmdp()).multiplier for seed in range(8))
    assert loss["barriers"].mean() > 0.05
    assert (loss["barriers"] > 0.01).sum() >= 6
    assert loss["scattered"].max() < 0.001
    # The prices of the tuned methods exceed them, so that the priced optimum is feasible.
    assert multiplier["scattered"] < 5.0
    assert multiplier["barriers"] < 2.0
