"""This file knows what broke in other people's projects, and what we owe where the same happens to us.

Every row is a public bug report against a safe-RL, RL, solver or notebook project, named by project and number; nothing
is copied. A test that holds a row carries ``@pytest.mark.field("its-key")``, wherever it stands; ``test_index.py`` fails
when a row has no test, or a mark no row.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """A row: where it was seen, the input that shows it, and the behaviour owed."""

    seen_in: str
    given: str
    owed: str


NUMERICS = {
    "zero-limit": Case(
        "omnisafe 384",
        "cost limit 0 and a cost that is always 0, 256 steps",
        "finite metrics, multiplier >= 0; no finished episode is no data, never NaN",
    ),
    "nan-observation": Case(
        "omnisafe 359",
        "NaN in the observation at step 10",
        "an error that names environment, world, key and step",
    ),
    "zero-gradient": Case(
        "safe-explorer, division by g.g",
        "project with g = 0 and slack +1, -1, and both in one batch",
        "nothing moves; feasible and infeasible are told apart, the latter counted in the log",
    ),
    "two-constraints": Case(
        "safe-control-gym 36",
        "g1 = (1, 0) and g2 = (0, 1), both violated",
        "both satisfied by an active set, not the one with the largest multiplier alone",
    ),
    "empty-set": Case(
        "qpth 31, QuantEcon.py 171",
        "a limit below the least Q_D",
        "infeasible, the least-cost action, counted; never argmax 0 of nothing",
    ),
    "mask": Case("the paper's released code", "Q = [-1500, -1200], only action 0 allowed", "action 0"),
    "multiplier": Case(
        "Torch-PPO-Lagrangian 1, SafePO 69",
        "cost 0 under limit 25 for 100 updates; violations of 1 and 100",
        "exactly 0; gradient steps in ratio 100",
    ),
}
COSTS = {
    "no-cost": Case("omnisafe 87", "reward 1 and cost 0 everywhere", "every estimator of costs goes to 0"),
    "endless-cost": Case("omnisafe 118", "cost 1 for ever, gamma .99", "value 100"),
    "two-units": Case(
        "CUP-safe-rl 1",
        "cost 1 a step, 200 steps",
        "200 undiscounted, 86.6 discounted, each under its own name",
    ),
    "where-is-the-limit": Case(
        "omnisafe 363",
        "a user looks for the limit",
        "in --help with its unit, in config.json, as a line of every plot of costs",
    ),
    "one-limit": Case(
        "MASA-Safe-RL 106",
        "the environment says 20, the command line 25",
        "one source; an override is explicit and recorded, a silent mismatch an error",
    ),
    "evaluation-cost": Case(
        "omnisafe 344",
        "training and evaluation differ",
        "a sampled and a deterministic evaluation, labelled, of at least 10 episodes",
    ),
    "bad-cost": Case(
        "safe-control-gym 105, FSRL's default of 0", "cost -1, or none at all", "an error that says what to fix"
    ),
    "five-and-six": Case(
        "safety-gymnasium 43",
        "steps of five values and of six",
        "five are native; converters there and back over 100 steps",
    ),
}
EPISODES = {
    "cut-target": Case(
        "omnisafe 161",
        "observation t, horizon 5, V(observation) = observation",
        "the target at the cut uses V(5), not V of the next start",
    ),
    "two-ends": Case(
        "cleanrl 198, cleanrl 457, skrl 449",
        "one rollout, its first episode truncated, its second terminated",
        "advantages by hand, forward and backward",
    ),
    "seven-steps": Case(
        "Gymnasium 1265", "episodes of 3 steps, 7 vector steps", "the true transitions; an episode costs 3, not 4"
    ),
    "three-horizons": Case("omnisafe 268", "three horizons of every registered task", "all run"),
}
SEEDS = {
    "eighty-starts": Case(
        "Stable-Baselines3 2268", "seeds 0-9 with 8 worlds each", "80 first observations, all different"
    ),
    "batch-of-one": Case("tianshou 604", "one environment, a batch of one, a batch of B", "one trajectory"),
    "seed-7-twice": Case("the paper's released code", "--seed 7, twice", "the same metrics.csv; config.json says 7"),
    "own-noise": Case("EfficientZero 27", "the worlds of one batch", "noise that differs pairwise"),
}
INSTALL = {
    "newest": Case(
        "safety-gymnasium 124", "the newest gymnasium and mujoco, Python 3.11 to 3.13", "installs and passes"
    ),
    "no-display": Case(
        "safety-gymnasium 105, safety-gymnasium 33",
        "no DISPLAY",
        "an image, or an error with the remedy; never an abort",
    ),
    "two-numpys": Case(
        "colabtools 5238", "NumPy 1.26 and 2.x", "both import; no notebook replaces a package that is loaded"
    ),
    "broken-cell": Case(
        "jupyter-book 945",
        "a cell that raises, a cell that runs too long",
        "the build fails and names chapter and cell",
    ),
}
RUNS = {
    "resume": Case(
        "omnisafe 346, Stable-Baselines3 1643",
        "2N steps; N, a resume and N, split within an episode",
        "bitwise equal on a CPU",
    ),
    "checkpoint": Case(
        "e3nn 519",
        "a checkpoint, whole, cut short, damaged",
        "loads with weights_only=True; a clear error and the one before intact; atomic writes",
    ),
    "eight-runs": Case("omnisafe 202", "eight runs started in one second", "eight folders, eight rectangular tables"),
    "failing-sweep": Case(
        "omnisafe 338",
        "one configuration of a sweep raises",
        "the others finish, the summary names it, the exit status is not 0",
    ),
    "ragged-seeds": Case(
        "bigartm 501, scipy 14804",
        "seeds with 100, 80, 1 and 0 rows; ten zeros",
        "a plot that states lengths; the interval [0, 0]; no band for one seed",
    ),
    "improper-policy": Case(
        "pymdptoolbox 15, bettermdptools 19",
        "a policy whose episode never ends, gamma 1",
        "a named error at once, no singular matrix, no endless loop",
    ),
    "misspelt": Case("omnisafe 45", "a misspelt option or key", "refused, with the nearest valid name"),
}
SECTIONS = {
    "numerics": NUMERICS,
    "costs": COSTS,
    "episodes": EPISODES,
    "seeds": SEEDS,
    "install": INSTALL,
    "runs": RUNS,
}
CASES = {key: case for section in SECTIONS.values() for key, case in section.items()}
