"""This file knows how every test runs: one thread of linear algebra, no deadline for Hypothesis, no display."""

from __future__ import annotations

import os

# Before NumPy is imported anywhere: on small matrices a second thread only waits for the first.
for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

import matplotlib
import pytest
from hypothesis import HealthCheck, Phase, settings

# Example times vary with the machine's load, so a deadline would fail by chance. On a developer's machine each run draws
# new examples; in CI the examples are a function of the test's code, so that a change lands or fails for its own sake.
common = {"deadline": None, "print_blob": True, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("book", **common)
settings.register_profile("ci", derandomize=True, **common)
# A mutant needs a verdict that is the same in each run, and no smallest counterexample.
settings.register_profile(
    "mutation", derandomize=True, max_examples=25, phases=[Phase.explicit, Phase.generate], **common
)
settings.load_profile("ci" if os.environ.get("CI") else "book")

# Not by MPLBACKEND, which the kernels of the chapters would inherit: they would draw nothing.
matplotlib.use("Agg")

from tests import shapes
from tests.book.comparison import Comparison

# Every call of every test checks its shapes; the package itself carries no type checker.
shapes.install()


def pytest_configure(config: pytest.Config) -> None:
    """Register the chapters' summary here, as a plugin: hooks of a conftest are not called for files outside its folder."""
    config.pluginmanager.register(Comparison(), "notebook-comparison")
