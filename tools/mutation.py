"""This file knows how many small errors planted in the mathematics the tests notice: the mutation score.

mutmut writes the mutants, all of a module's into one file. Its own runner starts pytest once a mutant, which costs far
more than the tests; here one session is collected once, and for each mutant the tests that call its function run again,
the quickest first, until one fails.
"""

import argparse
import ast
import difflib
import os
import shutil
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from _pytest.runner import runtestprotocol

__all__ = ["SUITES", "Verdicts", "difference", "main", "plant"]

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".cache" / "mutants"
PATIENCE = 10.0
"""How many times as long as on the original, plus a second, a test may take on a mutant.

In processor time: the clock goes on while other programs run.
"""
OPTIONS = [
    *("-q", "-o", "addopts=", "--import-mode=importlib", "--rootdir=.", "--hypothesis-profile=mutation", "-m not slow"),
    *("--tb=no", "--no-header", "--no-summary", "-p", "no:cacheprovider", "-p", "no:nbval", "-p", "no:xdist"),
]
TABULAR = [
    *(f"tests/unit/test_{name}.py" for name in ("bad_input", "cmdp", "dual", "improvement", "learning", "markov")),
    *(f"tests/unit/test_{name}.py" for name in ("risk", "statewise")),
    *(f"tests/claims/test_{name}.py" for name in ("cmdp", "fixed_point", "past_future", "reversal", "td_backward")),
]
SUITES = {
    "returns": (["bvf_tutorial/agents/returns.py"], ["tests/agents/test_returns.py"]),
    "halfspace": (["bvf_tutorial/halfspace.py"], ["tests/unit/test_halfspace.py"]),
    "tabular": (
        [str(p.relative_to(ROOT)) for p in sorted((ROOT / "bvf_tutorial/tabular").glob("[!_]*.py"))],
        TABULAR,
    ),
}
"""Files to plant mutants in, and the tests that speak about them."""


class Overtime(BaseException):
    """No ``Exception``, which a test might expect."""


@dataclass
class Verdicts:
    """A plugin that runs the collected tests of a session once for each mutant.

    Attributes:
        mutants: names as mutmut's trampolines read them, ``module.x_function__mutmut_number``.
        slow: seconds of processor time above which a test is left out.
        killed: the test that failed, by mutant.
        alive: mutants that every test lets pass, or whose function no test calls.
    """

    mutants: list[str]
    slow: float
    killed: dict[str, str] = field(default_factory=dict)
    alive: list[str] = field(default_factory=list)

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run every test on the original, then those that call a mutant's function on the mutant."""
        from mutmut.state import state

        if session.testsfailed:
            raise pytest.UsageError("the tests cannot be collected")
        seconds: dict[pytest.Item, float] = {}
        callers: dict[str, list[pytest.Item]] = defaultdict(list)
        for item in session.items:
            for _ in range(2):  # what a library loads on its first call is no cost of the test
                state()._stats.clear()
                start = time.process_time()
                if not _passes(item, "stats", np.inf):
                    raise pytest.UsageError(f"{item.nodeid} fails without a mutant")
                seconds[item] = time.process_time() - start
                if seconds[item] <= self.slow:
                    break
            if seconds[item] > self.slow:
                print(f"left out, {seconds[item]:.1f} s: {item.nodeid}", flush=True)
                continue
            for function in state()._stats:
                callers[function].append(item)
        print(f"{len(seconds)} tests, {sum(seconds.values()):.1f} s", flush=True)
        for mutant in self.mutants:
            start = time.process_time()
            tests = sorted(callers[mutant.partition("__mutmut_")[0]], key=seconds.__getitem__)
            failed = next((x.nodeid for x in tests if not _passes(x, mutant, 1 + PATIENCE * seconds[x])), None)
            if failed is None:
                self.alive.append(mutant)
            else:
                self.killed[mutant] = failed
            verdict = failed or ("alive" if tests else "alive, never called")
            print(f"{mutant} {time.process_time() - start:.2f} s: {verdict}", flush=True)
        # A mutant that left something behind would have killed the later ones.
        for item in {item for tests in callers.values() for item in tests}:
            if not _passes(item, "", np.inf):
                raise pytest.UsageError(f"{item.nodeid} fails after the mutants and did not before: no verdict counts")
        return True


def _passes(item: pytest.Item, mutant: str, limit: float) -> bool:
    os.environ["MUTANT_UNDER_TEST"] = mutant
    item._initrequest()  # type: ignore[attr-defined]  # fixtures anew, as for a test that runs once
    with _limited(limit):
        reports = runtestprotocol(item, log=False, nextitem=None)
    os.environ["MUTANT_UNDER_TEST"] = ""
    return not any(report.failed for report in reports)


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    def stop(number: int, frame: FrameType | None) -> None:
        raise Overtime

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds if np.isfinite(seconds) else 0.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0.0)


def plant(files: list[str], work: Path) -> dict[str, list[str]]:
    """Copy package and tests to a folder, with all mutants in the named files; return the mutants' names by file."""
    from mutmut.mutation.file_mutation import mutate_file_contents

    for name in ("bvf_tutorial", "tests"):
        shutil.rmtree(work / name, ignore_errors=True)
        shutil.copytree(ROOT / name, work / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", work)
    os.chdir(ROOT)  # where mutmut looks for its settings
    planted = {}
    for file in files:
        mutated = mutate_file_contents(file, (ROOT / file).read_text())
        (work / file).write_text(mutated.code)
        module = file.removesuffix(".py").replace("/", ".")
        planted[file] = [f"{module}.{name}" for name in mutated.mutant_names]
    return planted


def difference(mutant: str, work: Path) -> str:
    """Return the lines in which a mutant planted in a folder differs from its original."""
    module, _, name = mutant.rpartition(".")
    tree = ast.parse((work / (module.replace(".", "/") + ".py")).read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    original, changed = (
        [line for statement in functions[each].body for line in ast.unparse(statement).splitlines()]
        for each in (name.partition("__mutmut_")[0] + "__mutmut_orig", name)
    )
    lines = difflib.unified_diff(original, changed, lineterm="", n=0)
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


def main(arguments: list[str] | None = None) -> int:
    """Print the verdict on every mutant, what the survivors change, and the score of each file."""
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--files", nargs="+", help="only these of the suite's files")
    parser.add_argument("--sample", type=int, help="so many mutants of each file, drawn at random with a fixed seed")
    parser.add_argument("--slow", type=float, default=2.0, help="leave out tests of more seconds of processor time")
    options = parser.parse_args(arguments)
    files, tests = SUITES[options.suite]
    work = WORK / options.suite
    planted = plant(options.files or files, work)
    drawn: dict[str, list[str]] = {
        file: np.random.default_rng(0).permutation(names)[: options.sample].tolist() for file, names in planted.items()
    }
    verdicts = Verdicts([name for names in drawn.values() for name in names], options.slow)
    os.chdir(work)
    sys.path.insert(0, str(work))
    status = pytest.main([*OPTIONS, *tests], plugins=[verdicts])
    for mutant in verdicts.alive:
        print(f"\n{mutant}\n{difference(mutant, work)}")
    for file, names in drawn.items():
        killed = sum(name in verdicts.killed for name in names)
        print(f"{file}: {killed} of {len(names)} killed, of {len(planted[file])} mutants")
    return int(status)


if __name__ == "__main__":
    sys.exit(main())
