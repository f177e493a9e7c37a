"""The graded assignments: full marks for the reference, not for a plausible mistake, and nothing secret for students."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.book.chapters import read
from tools.assignments import SOURCE, AssignmentError, grade, make_course, names

pytest.importorskip("nbgrader", reason="nbgrader is not installed: pip install nbgrader")

# nbgrader adds records to a session that does not hold them yet; it says so about its own code.
pytestmark = pytest.mark.filterwarnings("ignore:Object of type.*not in session")
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n(.*?)### END HIDDEN TESTS", re.DOTALL)
SOLUTION = re.compile(r"### BEGIN SOLUTION\n(.*?)### END SOLUTION", re.DOTALL)

# For each function that students write, a mistake that the tests they see do not find.
MISTAKES = {
    "01_backward_chain": {
        # Rows for columns.
        "visits": """
def visits(transition, initial):
    return np.linalg.solve(np.eye(len(initial)) - transition, initial)""",
        # Arrows counted by their probability, not by the traffic they carry.
        "reverse": """
def reverse(transition, initial):
    into = transition.T.sum(axis=1, keepdims=True)
    return np.divide(transition.T, into, out=np.zeros_like(transition), where=into > 0)""",
        # The forward value.
        "backward-value": """
def backward_value(transition, initial, cost):
    return np.linalg.solve(np.eye(len(cost)) - transition, cost)""",
        # Averaged over all states, not over last ones.
        "expected-cost": """
def expected_cost(transition, initial, cost):
    m = visits(transition, initial)
    return m / m.sum() @ backward_value(transition, initial, cost)""",
    },
    "02_learning": {
        # Episodes are not told apart.
        "cost-so-far": """
def cost_so_far(cost, is_first):
    return np.cumsum(cost)""",
        # Bootstraps across the reset.
        "backward-td": """
def backward_td(state, is_first, cost, step_size):
    value = np.zeros(len(cost))
    for t, now in enumerate(state):
        target = cost[now] + (value[state[t - 1]] if t else 0.0)
        value[now] += step_size * (target - value[now])
    return value""",
        # Off by one: the value of the present state. Invisible at lambda = 1.
        "backward-lambda-returns": """
def backward_lambda_returns(cost, value, is_first, lambda_):
    result = np.zeros(len(cost))
    for t in range(len(cost)):
        past = 0.0 if is_first[t] else (1 - lambda_) * value[t] + lambda_ * result[t - 1]
        result[t] = cost[t] + past
    return result""",
    },
    "03_safe_step": {
        # The present cost counted twice.
        "slack": """
def slack(backward, forward, cost, limit):
    return limit - (backward + forward)""",
        "admitted": """
def admitted(backward, q_cost, cost, limit):
    return q_cost <= (limit - backward)[:, None]""",
        # A mask by multiplication: wrong where Q is negative.
        "eliminate": """
def eliminate(q, q_cost, mask):
    return (q * mask).argmax(axis=1)""",
        # The policy is never replaced.
        "iterate": """
def iterate(n_policies):
    now = tb.evaluate(tb.stay_or_quit(), np.array([[0.8, 0.2]]))
    return np.full(n_policies, now.expected_return), np.full(n_policies, now.expected_cost)""",
    },
    "04_projection": {
        # Moves safe actions, too.
        "project": """
def project(point, normal, offset):
    return point - (normal @ point - offset) / (normal @ normal) * normal""",
        # Clips after projecting, which breaks the constraint.
        "project-box": """
def project_box(point, normal, offset, low, high):
    excess = max(normal @ point - offset, 0.0)
    return np.clip(point - excess / (normal @ normal) * normal, low, high)""",
        # Reports the violation of the proposal.
        "violation": """
def violation(point, normal, offset, low, high):
    return max(normal @ point - offset, 0.0)""",
    },
    "05_streams_and_prices": {
        # Every rollout begins at zero.
        "so-far": """
def so_far(cost, is_first, carry):
    result, carry = np.zeros_like(cost), np.zeros(cost.shape[1])
    for t in range(len(cost)):
        carry = cost[t] + np.where(is_first[t], 0.0, carry)
        result[t] = carry
    return result, carry""",
        # The integral winds up below zero.
        "prices": """
def prices(excess, proportional, integral):
    return np.maximum(proportional * np.asarray(excess) + integral * np.cumsum(excess), 0.0)""",
        # Forgets the integral.
        "loop": """
def loop(excess, n_updates, proportional, integral, up, down):
    result = []
    for _ in range(n_updates):
        result.append(excess)
        price = max(proportional * excess, 0.0)
        excess += (up - down * price) / (1 + price)
    return np.array(result)""",
    },
}
QUICK = ("01_backward_chain", "03_safe_step")
each_mistake = pytest.mark.parametrize(
    ("name", "function"), [(name, function) for name, wrong in MISTAKES.items() for function in wrong]
)


def source(name: str) -> Any:
    return read(SOURCE / "source" / name / f"{name}.ipynb")


def label(cell: Any) -> str:
    return str(cell.metadata.get("nbgrader", {}).get("grade_id", ""))


def mistaken(name: str, *functions: str) -> Any:
    """Return an assignment with the mistake in place of the reference in some functions."""
    notebook = source(name)
    for cell in notebook.cells:
        if label(cell) in functions:
            cell.source = MISTAKES[name][label(cell)].strip()
    return notebook


def failed(notebook: Any) -> list[str]:
    """Run a notebook's code in this process and return the tests that failed."""
    space: dict[str, Any] = {}
    result = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            try:
                exec(compile(cell.source, label(cell), "exec"), space)
            except Exception:
                result.append(label(cell))
    return result


def test_every_function_has_a_mistake() -> None:
    found = {n: {label(c) for c in source(n).cells if c.metadata.nbgrader.solution} for n in names()}
    assert found == {name: set(wrong) for name, wrong in MISTAKES.items()}


@pytest.mark.parametrize("name", names())
def test_reference_passes_every_test(name: str) -> None:
    assert failed(source(name)) == []
    points = [cell.metadata.nbgrader.points for cell in source(name).cells if cell.metadata.nbgrader.grade]
    text = source(name).cells[0].source
    assert f" {sum(points)} points: " in text
    hidden = [c.metadata.nbgrader.points for c in source(name).cells if HIDDEN.search(c.source)]
    assert f"{sum(points) - sum(hidden)} for the tests that you see, {sum(hidden)} for tests that run" in text


@each_mistake
def test_hidden_tests_find_what_public_ones_do_not(name: str, function: str) -> None:
    # Later functions may call the wrong one and fail with it.
    found = failed(mistaken(name, function))
    own = f"test-{function}-again" if f"test-{function}-again" in map(label, source(name).cells) else f"test-{function}"
    assert own in found
    assert f"test-{function}" not in found or own == f"test-{function}"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("course") / "dist"
    make_course(folder)
    return folder


def secrets(notebook: Any) -> Iterator[str]:
    """Yield the lines of solutions and hidden tests that stand nowhere else in an assignment."""
    code = "\n".join(cell.source for cell in notebook.cells)
    open_part = SOLUTION.sub("", HIDDEN.sub("", code))
    for part in [*SOLUTION.findall(code), *HIDDEN.findall(code)]:
        yield from (
            line.strip() for line in part.splitlines() if len(line.strip()) > 12 and line.strip() not in open_part
        )


@pytest.mark.parametrize("name", names())
def test_students_get_no_solution_and_no_hidden_test(name: str, course: Path) -> None:
    released = [path for path in (course / "release" / name).rglob("*") if path.is_file()]
    assert [path.name for path in released] == [f"{name}.ipynb"]
    everything = "\n".join(f"{cell.source}\n{cell.metadata}" for cell in read(released[0]).cells)
    hidden = list(secrets(source(name)))
    assert len(hidden) > 8
    assert not [line for line in hidden if line in everything]
    assert "HIDDEN" not in everything
    assert everything.count("raise NotImplementedError()") == len(MISTAKES[name])


def submit(course: Path, student: str, name: str, notebook: Any) -> None:
    path = course / "submitted" / student / name / f"{name}.ipynb"
    path.parent.mkdir(parents=True)
    nbformat.write(notebook, path)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names()])
def test_grader_tells_right_from_wrong(name: str, course: Path) -> None:
    released = read(course / "release" / name / f"{name}.ipynb")
    for student, solved in (("right", source(name)), ("wrong", mistaken(name, *MISTAKES[name]))):
        # What a student hands in: the released cells, with code in the place of the stubs.
        answer = {label(cell): cell.source for cell in solved.cells if cell.metadata.nbgrader.solution}
        work = nbformat.from_dict(released)
        for cell in work.cells:
            cell.source = answer.get(label(cell), cell.source)
        submit(course, student, name, work)
    right, wrong = grade(course, name, "right"), grade(course, name, "wrong")
    assert right.share == 1.0
    assert right.most == wrong.most
    hidden = {label(cell) for cell in source(name).cells if HIDDEN.search(cell.source)}
    lost = {test for test, point in wrong.point.items() if point == 0}
    # No public test finds them; of the hidden ones, at most one is met by chance where two mistakes cancel.
    assert lost <= hidden
    assert len(lost) >= len(hidden) - 1


def test_a_missing_submission_is_an_error(course: Path) -> None:
    with pytest.raises(AssignmentError, match="02_learning of nobody"):
        grade(course, "02_learning", "nobody")


def test_submissions_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "submitted").mkdir()
    with pytest.raises(FileExistsError, match="has submissions"):
        make_course(tmp_path)
