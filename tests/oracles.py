"""This file knows slow, independent truths: path enumeration and exact elimination. It never imports the package."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction

import numpy as np


def paths(transition: np.ndarray, termination: np.ndarray, initial: np.ndarray) -> Iterator[tuple[float, list[int]]]:
    """Yield every episode of an acyclic chain with its probability."""
    stack = [(float(p), [x]) for x, p in enumerate(initial) if p > 0]
    while stack:
        probability, path = stack.pop()
        here = path[-1]
        if termination[here] > 0:
            yield probability * float(termination[here]), path
        for there, p in enumerate(transition[here]):
            if p > 0:
                stack.append((probability * float(p), [*path, there]))


def enumerated(
    transition: np.ndarray, termination: np.ndarray, initial: np.ndarray, cost: np.ndarray
) -> dict[str, np.ndarray]:
    """Return, from all episodes: visits m, backward, forward and whole-episode cost per state, kernel N, E[C], E[L], E[LC]."""
    n_states = len(cost)
    table = {name: np.zeros(n_states) for name in ("visits", "backward", "forward", "total", "first")}
    kernel = np.zeros((n_states, n_states))
    moments = defaultdict(float)
    for probability, path in paths(transition, termination, initial):
        bill = [float(cost[x]) for x in path]
        moments["mass"] += probability
        moments["cost"] += probability * sum(bill)
        moments["length"] += probability * len(path)
        moments["product"] += probability * len(path) * sum(bill)
        for t, x in enumerate(path):
            table["visits"][x] += probability
            table["backward"][x] += probability * sum(bill[: t + 1])
            table["forward"][x] += probability * sum(bill[t:])
            table["total"][x] += probability * sum(bill)
            if t:
                kernel[x, path[t - 1]] += probability
            else:
                table["first"][x] += probability
    visits = table.pop("visits")
    result = {name: value / visits for name, value in table.items()}
    return {**result, "visits": visits, "kernel": kernel / visits[:, None]} | {
        k: np.array(v) for k, v in moments.items()
    }


def rational_solve(matrix: list[list[Fraction]], right: list[Fraction]) -> list[Fraction]:
    """Solve a linear system exactly by Gauss-Jordan elimination over the rationals."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(matrix, right, strict=True)]
    for k in range(size):
        pivot = next(i for i in range(k, size) if rows[i][k] != 0)
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [value / rows[k][k] for value in rows[k]]
        for i in range(size):
            if i != k and rows[i][k] != 0:
                rows[i] = [a - rows[i][k] * b for a, b in zip(rows[i], rows[k], strict=True)]
    return [row[-1] for row in rows]


def rational_backward(
    transition: list[list[Fraction]], initial: list[Fraction], cost: list[Fraction]
) -> list[Fraction]:
    """Return the backward value from its definition, (I - N)^{-1} d with N by Bayes' rule, in exact arithmetic."""
    size = len(cost)
    span = range(size)
    balance = [[(1 if i == j else 0) - transition[j][i] for j in span] for i in span]
    visits = rational_solve(balance, initial)
    kernel = [[visits[y] * transition[y][x] / visits[x] for y in span] for x in span]
    return rational_solve([[(1 if i == j else 0) - kernel[i][j] for j in span] for i in span], cost)


def rational_stationary(transition: list[list[Fraction]]) -> list[Fraction]:
    """Return the stationary law of an irreducible chain in exact arithmetic."""
    size = len(transition)
    rows = [[transition[j][i] - (1 if i == j else 0) for j in range(size)] for i in range(size - 1)]
    rows.append([Fraction(1)] * size)
    return rational_solve(rows, [Fraction(0)] * (size - 1) + [Fraction(1)])


def hand_n_step(cost: list[float], value: list[float], gamma: float, n_steps: int) -> list[float]:
    """Return forward n-step returns of one terminated episode by the definition; ``value[t]`` is v(x_t)."""
    length = len(cost)
    result = []
    for t in range(length):
        end = min(t + n_steps, length)
        total = sum(gamma ** (k - t) * cost[k] for k in range(t, end))
        result.append(total + (gamma ** (end - t) * value[end] if end < length else 0.0))
    return result


def hand_lambda(cost: list[float], value: list[float], gamma: float, lambda_: float) -> list[float]:
    """Return forward lambda-returns of one terminated episode as the weighted sum of its n-step returns."""
    length = len(cost)
    ladder = [hand_n_step(cost, value, gamma, n) for n in range(1, length + 1)]
    result = []
    for t in range(length):
        left = length - t
        total = sum((1 - lambda_) * lambda_ ** (n - 1) * ladder[n - 1][t] for n in range(1, left))
        result.append(total + lambda_ ** (left - 1) * ladder[left - 1][t])
    return result


def hand_stream(path: list[int], cost: np.ndarray, value: np.ndarray, gamma: float, lambda_: float) -> list[float]:
    """Return backward lambda-returns of one whole episode: hand_lambda of the path read from its end."""
    bill = [float(cost[x]) for x in reversed(path)]
    boot = [float(value[x]) for x in reversed(path)]
    return list(reversed(hand_lambda(bill, boot, gamma, lambda_)))
