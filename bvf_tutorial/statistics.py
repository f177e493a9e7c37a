"""This file knows how several runs are summarised, and nothing of what ran.

A table is [N, R]: N points in time by R runs. NaN is "no data"; NaN from some point to the table's end means that the
run *ended early*, and such a run counts as one that failed. Failed runs are never left out: as a share or a time they
count as the worst, and a score that they do not have must be given as -inf or inf, which an interquartile mean bears.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = [
    "PairedDifference",
    "Summary",
    "aligned",
    "bootstrap_interval",
    "by_run",
    "cumulative_violation",
    "has_ended",
    "interquartile_mean",
    "late",
    "late_mean",
    "mean_interval",
    "paired_difference",
    "share_over",
    "smoothed",
    "steps_to_feasibility",
    "summarised",
    "violation_rate",
]

Array = npt.NDArray[np.float64]


def mean_interval(value: npt.ArrayLike, confidence: float = 0.95) -> tuple[Array, Array]:
    """Return the mean over runs, [N], and half the width of its Student t interval, NaN where fewer than two count.

    Holds when: runs are independent and their values about normal.

    Args:
        value: [N, R]; NaN is no data and does not count.
        confidence: of the interval; the paper's bands have 0.8.
    """
    table = np.asarray(value, dtype=np.float64)
    count = (~np.isnan(table)).sum(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.nansum(table, axis=1) / count
        variance = np.nansum((table - mean[:, None]) ** 2, axis=1) / (count - 1)
        quantile = special.stdtrit(np.maximum(count - 1, 1), 0.5 + confidence / 2)
        half = np.where(count > 1, quantile * np.sqrt(variance / count), np.nan)
    return mean, half


def interquartile_mean(score: npt.ArrayLike, axis: int | None = None) -> Any:
    """Return the mean of the middle half of all scores; ``floor(n / 4)`` of n are cut at either end.

    Source: Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical precipice".

    Args:
        score: of any shape, tasks and runs alike; a failed run's is -inf or inf.
        axis: that is averaged out; all of them unless given.

    Raises:
        ValueError: a score is NaN; the message says which.
    """
    from scipy import stats  # a second to import, which pictures need not wait for

    value = np.asarray(score, dtype=np.float64)
    missing = np.argwhere(np.isnan(value))
    if missing.size:
        raise ValueError(f"score {missing[0].tolist()} is NaN; give a failed run the worst score, -inf or inf.")
    with np.errstate(invalid="ignore"):  # -inf and inf in one middle half have no mean
        return stats.trim_mean(value, 0.25, axis=axis)


def bootstrap_interval(
    strata: Sequence[npt.ArrayLike],
    statistic: Callable[..., Any] = interquartile_mean,
    confidence: float = 0.95,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of all scores; runs are resampled within each stratum (task).

    Source: Agarwal et al. (2021), stratified bootstrap; resampling by ``scipy.stats.bootstrap``.

    Args:
        strata: per task the scores of its runs, [R_k] each.
        statistic: of an array along its last axis, ``statistic(score, axis=-1)``.
        confidence: of the interval.
        n_resamples: drawn.
        seed: of the resampling, so that a table can be drawn again.

    Returns:
        Both ends; NaN where a stratum has fewer than two runs, which give no interval.
    """
    from scipy import stats

    score = [np.asarray(each, dtype=np.float64) for each in strata]
    if not score or min(each.size for each in score) < 2:
        return np.nan, np.nan

    def joined(*sample: Array, axis: int = -1) -> Any:
        return statistic(np.concatenate(sample, axis=axis), axis=axis)

    with np.errstate(invalid="ignore"):  # the standard error of infinite scores, which is not used
        drawn = stats.bootstrap(
            score, joined, n_resamples=n_resamples, vectorized=True, confidence_level=confidence, method="percentile",
            rng=np.random.default_rng(seed),
        ).bootstrap_distribution  # fmt: skip
    # A draw, never a mix of two: between infinite ones there is no line.
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2], method="closest_observation")
    return float(low), float(high)


def smoothed(value: npt.ArrayLike, weight: float = 0.7) -> Array:
    """Return TensorBoard's running means ``m_n = (1 - w) sum_k w^(n-k) x_k / (1 - w^n)`` along the first axis.

    The divisor takes out the bias towards the zero that the mean starts from. Values that are not finite stand in the
    result as they are and are no part of any mean.

    Args:
        value: [N, ...].
        weight: w of the past, in [0, 1); 0 changes nothing.

    Raises:
        ValueError: the weight is out of its range.
    """
    if not 0 <= weight < 1:
        raise ValueError(f"weight is {weight}; it must be in [0, 1).")
    table = np.asarray(value, dtype=np.float64)
    result, total, mass = table.copy(), np.zeros(table.shape[1:]), np.zeros(table.shape[1:])
    for n, each in enumerate(table):
        is_data = np.isfinite(each)
        total = np.where(is_data, weight * total + (1 - weight) * np.where(is_data, each, 0.0), total)
        mass = np.where(is_data, weight * mass + 1 - weight, mass)
        result[n] = np.where(is_data, total / np.where(is_data, mass, 1.0), each)
    return result


def by_run(step: npt.ArrayLike, seed: npt.ArrayLike, value: npt.ArrayLike) -> tuple[Array, Array]:
    """Return a long table's column as steps [N] and values [N, R], one column per seed; NaN where there is no row.

    Args:
        step: [rows].
        seed: [rows].
        value: [rows].

    Raises:
        ValueError: a seed has two rows of one step; the message says which.
    """
    (grid, row), (seeds, column) = (np.unique(np.asarray(key), return_inverse=True) for key in (step, seed))
    which, count = np.unique(row * seeds.size + column, return_counts=True)
    if (count > 1).any():
        n, r = divmod(int(which[count > 1][0]), seeds.size)
        raise ValueError(f"seed {seeds[r]:g} has {count.max()} rows of step {grid[n]:g}; a run has one.")
    table = np.full((grid.size, seeds.size), np.nan)
    table[row, column] = np.asarray(value, dtype=np.float64)
    return grid.astype(np.float64), table


def aligned(curve: Sequence[tuple[npt.ArrayLike, npt.ArrayLike]], step: npt.ArrayLike = ()) -> tuple[Array, Array]:
    """Return runs with step grids of their own on one grid, [N], and their values there, [N, R].

    Between two of a run's points its values are interpolated linearly; before the first and after the last it has none.

    Args:
        curve: per run its steps, ascending, and values; NaN values are left out.
        step: the grid; all runs' steps unless given.

    Raises:
        ValueError: there is no run, or a run's steps do not ascend; the message says which.
    """
    runs = [(np.asarray(s, dtype=np.float64), np.asarray(v, dtype=np.float64)) for s, v in curve]
    if not runs:
        raise ValueError("there is no run to align.")
    for r, (at, value) in enumerate(runs):
        if at.shape != value.shape or (np.diff(at) <= 0).any():
            raise ValueError(f"run {r} has {at.size} steps and {value.size} values; steps must ascend, one per value.")
    given = np.asarray(step, dtype=np.float64)
    grid = given if given.size else np.unique(np.concatenate([at for at, _ in runs]))
    table = np.full((grid.size, len(runs)), np.nan)
    for r, (at, value) in enumerate(runs):
        kept = ~np.isnan(value)
        if kept.any():
            table[:, r] = np.interp(grid, at[kept], value[kept], left=np.nan, right=np.nan)
    return grid, table


def has_ended(value: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Return where a run has no value any more, [N, R]: from there to the table's end all of its values are NaN."""
    missing = np.isnan(np.asarray(value, dtype=np.float64))
    return np.logical_and.accumulate(missing[::-1], axis=0)[::-1]


def late(step: npt.ArrayLike, share: float = 0.25) -> npt.NDArray[np.bool_]:
    """Return which points are after the first ``share`` of the training, [N]: ``step > share * last step``."""
    at = np.asarray(step, dtype=np.float64)
    is_late: npt.NDArray[np.bool_] = at > share * at.max(initial=0.0)
    return is_late


def late_mean(step: npt.ArrayLike, value: npt.ArrayLike, share: float = 0.25) -> Array:
    """Return each run's mean over the points after the first ``share`` of the training, [R]; NaN if it ended early.

    Args:
        step: [N].
        value: [N, R]; NaN is no data.
        share: see ``late``.
    """
    table = np.asarray(value, dtype=np.float64)
    # Not nanmean, which warns where there is nothing.
    part = table[late(step, share)]
    count = (~np.isnan(part)).sum(axis=0)
    mean = np.nansum(part, axis=0) / np.maximum(count, 1)
    return np.where((count > 0) & ~has_ended(table).any(axis=0), mean, np.nan)


def violation_rate(rate: npt.ArrayLike, n_episodes: npt.ArrayLike) -> Array:
    """Return each run's share of episodes over the limit, ``P(EpCost > limit)``, [R], from the shares of its points.

    Args:
        rate: [N, R], share of a point's episodes that cost more than the limit; NaN is no data.
        n_episodes: [N, R] or a number, episodes of each point.

    Returns:
        NaN for a run without any episode.
    """
    share = np.asarray(rate, dtype=np.float64)
    count = np.where(np.isnan(share), 0.0, np.broadcast_to(np.asarray(n_episodes, dtype=np.float64), share.shape))
    total = count.sum(axis=0)
    over = (np.nan_to_num(share) * count).sum(axis=0)
    return np.where(total > 0, over / np.where(total > 0, total, 1.0), np.nan)


def share_over(cost: npt.ArrayLike, limit: float) -> Array:
    """Return each run's share of points whose mean episode cost is over the limit, [R].

    Points without data do not count, except those after a run's end: they count as over.

    Args:
        cost: [N, R].
        limit: of an episode's cost.
    """
    table = np.asarray(cost, dtype=np.float64)
    is_lost = has_ended(table)
    count = (~np.isnan(table) | is_lost).sum(axis=0)
    over = ((table > limit) | is_lost).sum(axis=0)
    return np.where(count > 0, over / np.maximum(count, 1), np.nan)


def cumulative_violation(step: npt.ArrayLike, cost: npt.ArrayLike, limit: float) -> Array:
    """Return ``sum_n max(EpCost_n - limit, 0) (step_n - step_{n-1})`` of each run, [R], in cost times steps.

    A point stands for all steps since the run's last point with data. A run that ended early has no sum: inf.

    Args:
        step: [N], ascending.
        cost: [N, R]; NaN is no data.
        limit: of an episode's cost.
    """
    table, at = np.asarray(cost, dtype=np.float64), np.asarray(step, dtype=np.float64)
    is_data = ~np.isnan(table)
    # The last step with data before each point; 0 before the first.
    seen = np.maximum.accumulate(np.where(is_data, at[:, None], 0.0), axis=0)
    since = at[:, None] - np.vstack([np.zeros((1, table.shape[1])), seen[:-1]])
    total = (np.where(is_data, np.maximum(np.nan_to_num(table) - limit, 0.0), 0.0) * since).sum(axis=0)
    return np.where(has_ended(table).any(axis=0), np.inf, total)


def steps_to_feasibility(step: npt.ArrayLike, cost: npt.ArrayLike, limit: float) -> Array:
    """Return the first step from which on each run's mean episode cost stays within the limit, [R]; inf if never.

    Args:
        step: [N], ascending.
        cost: [N, R]; NaN is no data; a run that ended early never stayed.
        limit: of an episode's cost.
    """
    table, at = np.asarray(cost, dtype=np.float64), np.asarray(step, dtype=np.float64)
    is_out = (table > limit) | has_ended(table)
    # Points from which on nothing is over, the first of them that has data.
    stays = ~np.logical_or.accumulate(is_out[::-1], axis=0)[::-1] & ~np.isnan(table)
    return np.asarray(np.where(stays, at[:, None], np.inf).min(axis=0, initial=np.inf))


@dataclass(frozen=True)
class PairedDifference:
    """What two methods differ by on the same seeds.

    Attributes:
        mean: of left minus right.
        low: of the interval of the mean; NaN with one pair.
        high: of the interval.
        t: the statistic of Student's paired test; infinite where all pairs differ by the same, 0 where by nothing.
        n_pairs: seeds.
    """

    mean: float
    low: float
    high: float
    t: float
    n_pairs: int


def paired_difference(left: npt.ArrayLike, right: npt.ArrayLike, confidence: float = 0.8) -> PairedDifference:
    """Return the mean difference of two methods on the same seeds, its Student t interval and statistic.

    Holds when: differences are independent and about normal. The pairing takes out what a seed is for both methods.

    Args:
        left: [R], one score per seed.
        right: [R], the same seeds in the same order.
        confidence: of the interval.

    Raises:
        ValueError: the numbers of seeds differ, or a score is not finite; the message says which.
    """
    one, other = np.asarray(left, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if one.shape != other.shape or one.ndim != 1 or not one.size:
        raise ValueError(f"scores have shapes {one.shape} and {other.shape}; give one per seed, at least one.")
    difference = one - other
    unknown = np.flatnonzero(~np.isfinite(difference))
    if unknown.size:
        raise ValueError(f"seed {unknown[0]} has no finite score; give a failed run the score that it is worth.")
    (mean,), (half,) = mean_interval(difference[None], confidence)
    n_pairs = difference.size
    if n_pairs == 1:
        return PairedDifference(float(mean), np.nan, np.nan, np.nan, 1)
    error = float(np.std(difference, ddof=1)) / np.sqrt(n_pairs)
    t = mean / error if error > 0 else np.copysign(np.inf, mean) if mean else 0.0
    return PairedDifference(float(mean), float(mean - half), float(mean + half), float(t), n_pairs)


@dataclass(frozen=True)
class Summary:
    """What a method's runs came to; means and shares are over the points after the first quarter of the training.

    Attributes:
        n_runs: runs, failed ones included.
        n_failed: runs that ended early.
        ep_return: mean return per episode, of the runs' means; -inf with a failed run.
        ep_return_half: half the width of its 80% interval.
        ep_return_iqm: interquartile mean of the same, low and high end of its 95% bootstrap interval.
        ep_cost: mean cost per episode; inf with a failed run.
        ep_cost_half: half the width of its 80% interval.
        ep_cost_iqm: interquartile mean and interval of the same.
        violation_rate: share of all episodes over the limit.
        share_over: share of points, of all runs, whose mean cost is over the limit.
        n_within: runs that are over the limit in at most 5% of their points.
        cumulative_violation: over the *whole* training, mean of the runs, in cost times steps.
        steps_to_feasibility: median of the runs; inf where half of them never stay within the limit.
    """

    n_runs: int
    n_failed: int
    ep_return: float
    ep_return_half: float
    ep_return_iqm: tuple[float, float, float]
    ep_cost: float
    ep_cost_half: float
    ep_cost_iqm: tuple[float, float, float]
    violation_rate: float
    share_over: float
    n_within: int
    cumulative_violation: float
    steps_to_feasibility: float


def summarised(
    step: npt.ArrayLike,
    ep_return: npt.ArrayLike,
    ep_cost: npt.ArrayLike,
    violation: npt.ArrayLike,
    n_episodes: npt.ArrayLike,
    limit: float,
) -> Summary:
    """Return the summary of a method's runs.

    Args:
        step: [N].
        ep_return: [N, R], mean return of a point's episodes; NaN is no data.
        ep_cost: [N, R], their mean cost.
        violation: [N, R], share of them over the limit.
        n_episodes: [N, R] or a number, how many they are.
        limit: of an episode's cost.
    """
    cost, rate, part = np.asarray(ep_cost, dtype=np.float64), np.asarray(violation, dtype=np.float64), late(step)
    count = np.broadcast_to(np.asarray(n_episodes, dtype=np.float64), rate.shape)
    is_failed = has_ended(cost).any(axis=0)
    found = []
    for value, worst in ((ep_return, -np.inf), (cost, np.inf)):
        each = late_mean(step, value)
        score = np.where(np.isnan(each), worst, each)
        with np.errstate(invalid="ignore"):
            (mean,), (half,) = mean_interval(score[None], 0.8)
        found.append((float(mean), float(half), (float(interquartile_mean(score)), *bootstrap_interval([score]))))
    over = share_over(cost[part], limit)
    return Summary(
        n_runs=cost.shape[1],
        n_failed=int(is_failed.sum()),
        ep_return=found[0][0],
        ep_return_half=found[0][1],
        ep_return_iqm=found[0][2],
        ep_cost=found[1][0],
        ep_cost_half=found[1][1],
        ep_cost_iqm=found[1][2],
        violation_rate=float(violation_rate(rate[part].reshape(-1, 1), count[part].reshape(-1, 1))[0]),
        share_over=float(over.mean()),
        n_within=int((over <= 0.05).sum()),
        cumulative_violation=float(cumulative_violation(step, cost, limit).mean()),
        steps_to_feasibility=float(np.median(steps_to_feasibility(step, cost, limit))),
    )
