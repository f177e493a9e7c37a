"""Summaries of several runs: golden values computed elsewhere, plain loops as oracles, and runs that fail or are one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from bvf_tutorial import statistics as bs
from bvf_tutorial.records import Record

NAN, INF = math.nan, math.inf
NUMBER = st.floats(-100, 100, allow_subnormal=False).map(lambda x: round(x, 3))
TABLE = hnp.arrays(np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=7), elements=NUMBER | st.just(NAN))
SCORE = hnp.arrays(np.float64, st.integers(1, 12), elements=NUMBER)

# rliable 1.2.0 with arch 7.2.0: `aggregate_iqm`, and `get_interval_estimates` with 20,000 resamples from three seeds.
TASKS = np.array(
    [
        [9.08, -0.11, 5.84], [3.86, 4.09, 4.57], [0.96, 4.54, 3.27], [11.65, 5.45, 4.29], [4.44, 3.66, 2.89],
        [4.22, 5.96, 4.52], [6.92, 4.6, 5.05], [8.09, 6.09, 3.99], [4.63, 6.08, 8.87], [4.46, 4.51, 7.0],
    ]
)  # fmt: skip
TASKS_IQM, TASKS_LOW, TASKS_HIGH = 4.828125, (4.318, 4.311, 4.327), (5.510, 5.512, 5.515)
RUNS = np.array([4.24, 0.2, 4.37, 9.18, 0.62, 2.32, 0.38])
RUNS_IQM, RUNS_LOW, RUNS_HIGH = 2.386, (0.524, 0.571, 0.572), (5.518, 5.518, 5.518)


# The interquartile mean and its interval.


def test_interquartile_means_are_rliables() -> None:
    assert bs.interquartile_mean(TASKS) == pytest.approx(TASKS_IQM, abs=1e-12)
    assert bs.interquartile_mean(RUNS) == pytest.approx(RUNS_IQM, abs=1e-12)


@pytest.mark.parametrize(("strata", "low", "high"), [(TASKS.T, TASKS_LOW, TASKS_HIGH), ([RUNS], RUNS_LOW, RUNS_HIGH)])
def test_bootstrap_intervals_are_rliables(strata: np.ndarray, low: tuple[float], high: tuple[float]) -> None:
    """Within the noise that 20,000 resamples leave, which is what the three of rliable's own differ by, thrice over."""
    found = bs.bootstrap_interval(strata, n_resamples=20_000)
    for end, (golden, noise) in zip(found, [(np.mean(e), np.ptp(e)) for e in (low, high)], strict=True):
        assert end == pytest.approx(golden, abs=3 * noise + 0.01)


def test_resampling_stays_within_its_stratum() -> None:
    """Two tasks of constant scores leave nothing to chance; resampling them together would."""
    assert bs.bootstrap_interval([np.zeros(10), np.ones(10)]) == (0.5, 0.5)


def test_the_interval_has_its_confidence_and_its_seed() -> None:
    rng = np.random.default_rng(0)
    score = rng.normal(size=40)
    wide, narrow = (bs.bootstrap_interval([score], np.mean, confidence=c) for c in (0.95, 0.5))
    half = stats.t.interval(0.95, 39, scale=stats.sem(score))[1]
    assert (wide[1] - wide[0]) / 2 == pytest.approx(half, rel=0.1)
    assert wide[0] < narrow[0] < narrow[1] < wide[1]
    assert bs.bootstrap_interval([score], seed=1) == bs.bootstrap_interval([score], seed=1)


@pytest.mark.parametrize("strata", [[], [[]], [[1.0]], [[1.0, 2.0, 3.0], [4.0]]])
def test_one_run_has_no_interval(strata: list[list[float]]) -> None:
    assert np.isnan(bs.bootstrap_interval(strata)).all()


def test_failed_runs_move_the_mean_and_widen_the_interval() -> None:
    score = [5.0, 6.0, 7.0, 8.0, 5.5, 6.5, 7.5, 8.5]
    kept = bs.interquartile_mean(score)
    failed = [*score[:-2], -INF, -INF]
    assert -INF < bs.interquartile_mean(failed) < kept
    low, high = bs.bootstrap_interval([failed])
    assert low == -INF
    assert math.isfinite(high)
    assert bs.interquartile_mean([*score[:-3], -INF, -INF, -INF]) == -INF
    with pytest.raises(ValueError, match=r"score \[1\] is NaN; give a failed run the worst score"):
        bs.interquartile_mean([1.0, NAN])


@given(SCORE, st.floats(0.1, 10), NUMBER, st.randoms(use_true_random=False))
def test_interquartile_mean_laws(score: np.ndarray, scale: float, shift: float, random: object) -> None:
    mean = bs.interquartile_mean(score)
    assert score.min() - 1e-9 <= mean <= score.max() + 1e-9
    assert bs.interquartile_mean(np.sort(score)) == pytest.approx(mean, abs=1e-9)
    assert bs.interquartile_mean(scale * score + shift) == pytest.approx(scale * mean + shift, abs=1e-8)
    cut = len(score) // 4
    assert mean == pytest.approx(np.mean(sorted(score)[cut : len(score) - cut]), abs=1e-9)


# The mean's interval and paired differences.


def test_the_mean_has_students_interval() -> None:
    value = np.array([[1.0, 2.0, 4.0], [3.0, NAN, 5.0], [7.0, NAN, NAN], [2.0, 2.0, 2.0], [NAN, NAN, NAN]])
    mean, half = bs.mean_interval(value, 0.8)
    low, high = stats.t.interval(0.8, 2, loc=7 / 3, scale=stats.sem(value[0]))
    assert (mean[0] - half[0], mean[0] + half[0]) == pytest.approx((low, high))
    assert half[1] == pytest.approx(stats.t.ppf(0.9, 1))
    assert mean[:4] == pytest.approx([7 / 3, 4, 7, 2])
    assert half[3] == 0
    assert np.isnan([half[2], half[4], mean[4]]).all()


@given(hnp.arrays(np.float64, (2, 6), elements=NUMBER))
def test_a_paired_difference_is_students(score: np.ndarray) -> None:
    found = bs.paired_difference(*score)
    if np.ptp(score[0] - score[1]) < 1e-6:  # where the textbook's formula divides by rounding
        return
    golden = stats.ttest_rel(*score)
    assert found.t == pytest.approx(golden.statistic)
    assert (found.low, found.high) == pytest.approx(tuple(golden.confidence_interval(0.8)), abs=1e-9)
    assert found.n_pairs == 6
    back = bs.paired_difference(score[1], score[0])
    assert (back.mean, back.t, back.low) == pytest.approx((-found.mean, -found.t, -found.high))


def test_differences_of_constant_and_single_pairs() -> None:
    assert bs.paired_difference([3.0, 5.0, 9.0], [1.0, 3.0, 7.0]) == bs.PairedDifference(2.0, 2.0, 2.0, INF, 3)
    assert bs.paired_difference([1.0, 3.0], [3.0, 5.0]).t == -INF
    assert bs.paired_difference([1.0, 3.0], [1.0, 3.0]).t == 0
    one = bs.paired_difference([4.0], [1.0])
    assert (one.mean, one.n_pairs) == (3.0, 1)
    assert np.isnan([one.t, one.low, one.high]).all()


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ([1.0, NAN], [1.0, 2.0], "seed 1 has no finite score"),
        ([1.0, 2.0], [INF, 2.0], "seed 0 has no finite score"),
        ([1.0, 2.0], [1.0], r"shapes \(2,\) and \(1,\)"),
        ([], [], "at least one"),
    ],
)
def test_a_failed_run_is_not_dropped_from_a_pair(left: list[float], right: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bs.paired_difference(left, right)


# Smoothing.


def test_smoothing_is_tensorboards() -> None:
    """By hand with weight .7: 1; (.21 + .6) / .51; (.147 + .42 + .9) / .657."""
    assert bs.smoothed([1.0, 2.0, 3.0]) == pytest.approx([1, 0.81 / 0.51, 1.467 / 0.657])
    assert bs.smoothed([[1.0, 5.0], [2.0, 5.0]])[:, 1] == pytest.approx([5, 5])


@given(TABLE, st.floats(0, 0.99))
def test_smoothing_weighs_the_past(value: np.ndarray, weight: float) -> None:
    found = bs.smoothed(value, weight)
    for run in range(value.shape[1]):
        data = [n for n in range(len(value)) if not math.isnan(value[n, run])]
        for k, n in enumerate(data):
            past = np.array([weight ** (k - j) for j in range(k + 1)])
            assert found[n, run] == pytest.approx(past @ value[data[: k + 1], run] / past.sum(), abs=1e-6)
    assert np.array_equal(np.isnan(found), np.isnan(value))


def test_smoothing_leaves_what_is_not_finite() -> None:
    assert bs.smoothed([1.0, NAN, INF, 1.0], 0.5).tolist() == pytest.approx([1, NAN, INF, 1], nan_ok=True)
    assert bs.smoothed([3.0, 1.0], 0.0).tolist() == [3, 1]
    for weight in (1.0, -0.1):
        with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
            bs.smoothed([1.0], weight)


# Ragged runs.


def test_runs_of_different_grids_are_aligned() -> None:
    curve = [([0.0, 10.0, 20.0], [0.0, 1.0, 4.0]), ([5.0, 15.0], [2.0, 4.0]), ([0.0, 20.0], [NAN, NAN])]
    step, value = bs.aligned(curve)
    assert step.tolist() == [0, 5, 10, 15, 20]
    assert value[:, 0].tolist() == [0, 0.5, 1, 2.5, 4]
    assert value[:, 1].tolist() == pytest.approx([NAN, 2, 3, 4, NAN], nan_ok=True)
    assert np.isnan(value[:, 2]).all()
    assert bs.aligned(curve, [10.0])[1][0, :2].tolist() == [1, 3]


def test_no_data_between_is_bridged_and_ends_are_not_extended() -> None:
    _, value = bs.aligned([([0, 1, 2, 3, 4], [NAN, 1.0, NAN, 5.0, NAN])])
    assert value[:, 0].tolist() == pytest.approx([NAN, 1, 3, 5, NAN], nan_ok=True)


@given(st.lists(st.sets(st.integers(0, 50), min_size=1, max_size=8), min_size=1, max_size=4), NUMBER, NUMBER)
def test_a_line_is_aligned_exactly(grids: list[set[int]], slope: float, start: float) -> None:
    curve = [(sorted(grid), [start + slope * each for each in sorted(grid)]) for grid in grids]
    step, value = bs.aligned(curve)
    for run, grid in enumerate(grids):
        within = (step >= min(grid)) & (step <= max(grid))
        assert np.array_equal(~np.isnan(value[:, run]), within)
        assert value[within, run] == pytest.approx(start + slope * step[within], abs=1e-6)


@pytest.mark.parametrize(
    ("curve", "message"),
    [([], "no run"), ([([0, 1], [1, 2]), ([1, 1], [1, 2])], "run 1"), ([([0, 1], [1.0])], "run 0 has 2 steps and 1")],
)
def test_runs_that_cannot_be_aligned_are_named(curve: list, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bs.aligned(curve)


@given(TABLE, st.randoms(use_true_random=False))
def test_a_long_table_comes_back_whatever_its_order(value: np.ndarray, random: st.DataObject) -> None:
    n, r = value.shape
    row = [(10 * (i + 1), 100 + j, value[i, j]) for i in range(n) for j in range(r)]
    random.shuffle(row)  # type: ignore[attr-defined]
    step, table = bs.by_run(*zip(*row, strict=True))
    assert step.tolist() == [10 * (i + 1) for i in range(n)]
    assert np.array_equal(table, value, equal_nan=True)


def test_a_long_table_with_gaps_and_doubles() -> None:
    step, table = bs.by_run([1, 2, 1], [7, 7, 8], [0.5, 0.6, 0.7])
    assert step.tolist() == [1, 2]
    assert np.array_equal(table, [[0.5, 0.7], [0.6, NAN]], equal_nan=True)
    with pytest.raises(ValueError, match="seed 8 has 2 rows of step 1"):
        bs.by_run([1, 1, 1], [7, 8, 8], [0.5, 0.6, 0.7])


# Safety.

# Runs that are well, have a gap, ended early, never began, and are over at the end.
STEP = np.array([10.0, 20.0, 30.0, 50.0])
COST = np.array(
    [[12.0, NAN, 12.0, NAN, 5.0], [9.0, 14.0, 9.0, NAN, 5.0], [10.0, NAN, NAN, NAN, 5.0], [8.0, 6.0, NAN, NAN, 11.0]]
)


def test_safety_by_hand() -> None:
    assert bs.has_ended(COST).sum(axis=0).tolist() == [0, 0, 2, 4, 0]
    assert bs.share_over(COST, 10.0).tolist() == [0.25, 0.5, 0.75, 1.0, 0.25]
    assert bs.steps_to_feasibility(STEP, COST, 10.0).tolist() == [20, 50, INF, INF, INF]
    # The second run's point at 20 stands for 20 steps, its point at 50 for 30.
    assert bs.cumulative_violation(STEP, COST, 10.0).tolist() == [20, 80, INF, INF, 20]
    assert bs.late(STEP).tolist() == [False, True, True, True]
    assert bs.late_mean(STEP, COST).tolist() == pytest.approx([9, 10, NAN, NAN, 7], nan_ok=True)


@given(TABLE, NUMBER)
def test_safety_by_loops(cost: np.ndarray, limit: float) -> None:
    step = 10.0 * np.arange(1, len(cost) + 1) ** 2
    share, first, total = (
        bs.share_over(cost, limit), bs.steps_to_feasibility(step, cost, limit), bs.cumulative_violation(step, cost, limit)
    )  # fmt: skip
    for run in range(cost.shape[1]):
        data = [n for n in range(len(cost)) if not math.isnan(cost[n, run])]
        lost = len(cost) - 1 - data[-1] if data else len(cost)
        over = [n for n in data if cost[n, run] > limit]
        assert share[run] == pytest.approx((len(over) + lost) / (len(data) + lost))
        after = [n for n in data if not over or n > over[-1]]
        assert first[run] == (step[after[0]] if after and not lost else INF)
        width = np.diff(step[data], prepend=0.0) if data else np.zeros(0)
        expected = sum(max(cost[n, run] - limit, 0.0) * each for n, each in zip(data, width, strict=True))
        assert total[run] == (pytest.approx(expected) if not lost else INF)


def test_the_violation_rate_counts_episodes() -> None:
    """Three of four episodes and none of one: 3 / 5, not the mean of the shares."""
    rate = np.array([[0.75, NAN], [0.0, NAN], [NAN, NAN]])
    assert bs.violation_rate(rate, np.array([[4, 0], [1, 0], [NAN, NAN]])).tolist() == pytest.approx(
        [0.6, NAN], nan_ok=True
    )
    assert bs.violation_rate([[0.5], [0.25]], 10).tolist() == [0.375]


# The summary.


def summary(ret: np.ndarray, cost: np.ndarray) -> bs.Summary:
    return bs.summarised(STEP, ret, cost, np.where(np.isnan(cost), NAN, cost > 10), 5, 10.0)


def test_a_summary_of_constant_runs() -> None:
    found = summary(np.full((4, 3), 7.0), np.full((4, 3), 11.0))
    assert (found.n_runs, found.n_failed, found.n_within) == (3, 0, 0)
    assert (found.ep_return, found.ep_return_half, found.ep_return_iqm) == (7, 0, (7, 7, 7))
    assert (found.ep_cost, found.violation_rate, found.share_over) == (11, 1, 1)
    assert (found.cumulative_violation, found.steps_to_feasibility) == (50, INF)


def test_runs_that_finished_no_episode_never_stayed_within_the_limit() -> None:
    text = "# cost limit: 10\nStep,Seed,EpRet,EpCost,ViolationRate,Episodes\n1,3,,,,\n2,3,,,,\n"
    found = Record.parse(text).summary()
    assert (found.ep_return, found.ep_cost, found.n_within, found.steps_to_feasibility) == (-INF, INF, 0, INF)


def test_a_summary_of_one_run_has_no_interval() -> None:
    found = summary(np.full((4, 1), 7.0), np.full((4, 1), 3.0))
    assert (found.ep_return, found.ep_return_iqm[0], found.n_within, found.steps_to_feasibility) == (7, 7, 1, 10)
    assert np.isnan([found.ep_return_half, *found.ep_return_iqm[1:], found.ep_cost_half, *found.ep_cost_iqm[1:]]).all()


def test_a_failed_run_counts_in_a_summary() -> None:
    cost, ret = np.full((4, 8), 3.0), np.full((4, 8), 7.0)
    ret[:, 0] = [1.0, 2.0, 6.0, 4.0]
    well = summary(ret, cost)
    assert (well.n_failed, well.n_within, well.share_over) == (0, 8, 0)
    assert well.ep_return == pytest.approx((7 * 7 + 4) / 8)
    cost[2:, 3] = ret[2:, 3] = NAN
    found = summary(ret, cost)
    assert (found.n_runs, found.n_failed, found.n_within) == (8, 1, 7)
    assert (found.ep_return, found.ep_cost) == (-INF, INF)
    assert found.ep_return_iqm[0] == 7
    assert found.share_over == pytest.approx(2 / 3 / 8)
    assert found.cumulative_violation == INF
    assert found.steps_to_feasibility == 10


def test_a_record_is_parsed_with_its_gaps() -> None:
    text = "# command: python -m x\n# cost limit: 10\nStep,Seed,EpRet,EpCost\n1,3,5,\n1,4,7,9\n2,3,,11\n2,4,9,9\n"
    record = Record.parse(text)
    assert dict(record.head) == {"command": "python -m x", "cost limit": "10"} and record.limit == 10
    step, cost = record.curve("EpCost")
    assert step.tolist() == [1, 2]
    np.testing.assert_array_equal(cost, [[np.nan, 9], [11, 9]])
    assert record.has("EpRet") and not record.has("GreedyEpRet")


def test_a_record_without_a_header_is_refused() -> None:
    with pytest.raises(ValueError, match="no header line"):
        Record.parse("# command: x\n")
