"""The house: who may import whom, and what an import costs. Every check starts a fresh interpreter or reads the source."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from tools.house import MARK, PACKAGE, PAGE, diagram, imports
from tools.marked import between

# A file may import from its own room and from rooms further left: mathematics, tasks, pictures.
ROOMS = {
    "tabular": 0, "halfspace": 0, "statistics": 0, "records": 1, "envs": 1, "plotting": 2, "widgets": 2, "agents": 2, "api": 3, "cli": 4, "__main__": 5
}  # fmt: skip
ALLOWED_OUTSIDE = {
    "tabular": {"numpy", "scipy"},
    "halfspace": {"torch"},
    "statistics": {"numpy", "scipy"},
    "records": {"numpy"},
    "envs": {
        "numpy",
        "scipy",
        "gymnasium",
        "torch",
        "mujoco",
        "mujoco_warp",
        "warp",
        "OpenGL",
        "imageio",
        "imageio_ffmpeg",
        "PIL",
    },
    "agents": {"numpy", "torch", "gymnasium"},
    "api": {"numpy", "torch", "gymnasium"},
    "cli": {"tyro", "tqdm"},
    "__main__": set(),
    "plotting": {"numpy", "scipy", "matplotlib", "cycler"},
    "widgets": {"matplotlib", "PIL", "ipywidgets"},
}
# Inside a room, in reading order: a file imports only from files before it.
ORDER = {
    "tabular": [
        "errors", "arrays", "chain", "resolvent", "cmdp", "markov", "values", "risk", "optimum", "dual", "statewise", "improvement",
        "examples", "generators", "sampling", "learning",
    ],
    "envs": [
        "registration", "gridworld", "render", "video", "noise", "base", "grid_task", "point", "physics", "warp", "locomotion",
        "gym", "adapter", "six_tuple", "check",
    ],
    "agents": [
        "returns", "multipliers", "constraints", "estimators", "rollout", "learner", "sarsa", "actor_critic", "algorithms",
        "evaluate", "train", "config", "tuned", "presets", "plain", "storage", "metrics", "runs", "replay", "sweeps",
    ],
}  # fmt: skip
# Lines, half of them documentation: equations, shapes, units, errors. Raise a limit for a new capability, not for an old one.
MOST_LINES = {
    "tabular": 4500,
    "envs": 4400,
    "agents": 3650,
    "api": 900,
    "cli": 700,
    "halfspace": 450,
    "statistics": 450,
    "records": 120,
    "plotting": 520,
    "widgets": 250,
    "__init__": 20,
}


def room(name: str) -> str:
    return name.split(".")[1]


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_direction_of_imports(path: Path) -> None:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    if parts == ("__init__",):
        assert imports(path) == set()
        return
    own = parts[0]
    for name in imports(path):
        if name.startswith("bvf_tutorial"):
            assert ROOMS[room(name)] < ROOMS[own] or room(name) == own, f"{own} may not import {name}"
            if own in ORDER and parts[1] != "__init__" and room(name) == own:
                order = ORDER[own]
                # An engine is imported by what chooses it, when it is chosen.
                is_late = (parts[1], name.split(".")[2]) in {("physics", "warp")}
                assert is_late or order.index(name.split(".")[2]) < order.index(parts[1]), (
                    f"{parts[1]} may not import {name}"
                )
        elif name.split(".")[0] not in sys.stdlib_module_names:
            assert name.split(".")[0] in ALLOWED_OUTSIDE[own], f"{own} may not import {name}"


def test_diagram_of_the_rooms_is_up_to_date() -> None:
    assert between(PAGE.read_text(encoding="utf-8"), MARK) == diagram(), "run python -m tools.house"


def test_every_file_says_what_it_knows() -> None:
    for path in PACKAGE.rglob("*.py"):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        assert text, path
        if path.name != "__init__.py" or path.parent == PACKAGE:
            assert text.startswith("This file knows "), path


def test_docstrings_of_attributes_carry_no_colon() -> None:
    """The API pages read "a: b" in the first line of an attribute's or a property's docstring as a type and a text."""
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and {"property", "cached_property"} & {
                ast.unparse(mark) for mark in node.decorator_list
            }:
                assert ": " not in (ast.get_docstring(node) or "-").splitlines()[0], f"{path.name}: {node.name}"
            for before, text in itertools.pairwise(node.body if isinstance(node, ast.Module | ast.ClassDef) else []):
                is_documented = isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr)
                if is_documented and isinstance(text.value, ast.Constant):
                    first = str(text.value.value).splitlines()[0]
                    assert ": " not in first, f"{path.name}: {ast.unparse(before)}"


def test_size_of_the_house() -> None:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    for own, most in MOST_LINES.items():
        here = sum(n for path, n in lines.items() if path.relative_to(PACKAGE).with_suffix("").parts[0] == own)
        assert 0 < here < most, f"{own} has {here} lines"
    for path in lines:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                assert node.end_lineno is not None
                assert node.end_lineno - node.lineno < 60, f"{path.name}: {node.name} is too long to read at once"


def run(code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PACKAGE.parent
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


BLOCK = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Block())
"""


def test_tabular_works_with_everything_else_absent() -> None:
    """No torch, mujoco, matplotlib, gymnasium, pandas, IPython: the mathematics needs NumPy and SciPy."""
    blocked = {"torch", "mujoco", "matplotlib", "gymnasium", "IPython", "ipywidgets", "pandas", "jaxtyping", "beartype"}
    code = BLOCK.format(blocked=blocked) + (
        "from bvf_tutorial import tabular as tb\nprint(tb.backward_value(tb.chain4(), tb.CHAIN4_COST)[3] > 9)\n"
    )
    assert run(code).split() == ["True"]


def test_tasks_are_known_without_torch_and_mujoco() -> None:
    """The exact grid world works and every Gymnasium id is registered; only making a task needs torch, and says so."""
    code = BLOCK.format(blocked={"torch", "mujoco", "matplotlib", "IPython", "pandas"}) + (
        "import gymnasium\n"
        "from bvf_tutorial.envs import GridWorld\n"
        "print(GridWorld.random(0).to_cmdp().n_states, sum(key.startswith('bvf/') for key in gymnasium.registry))\n"
        "try:\n    gymnasium.make('bvf/PointCircle-v0')\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert run(code).splitlines() == ["144 8", "blocked: torch"]


def test_core_needs_only_its_declared_dependencies() -> None:
    """Pictures and sliders draw without ipywidgets, IPython or torch; only the live explorer asks, in words."""
    blocked = {"torch", "mujoco", "ipywidgets", "IPython", "pandas", "plotly"}
    code = BLOCK.format(blocked=blocked) + (
        "import matplotlib; matplotlib.use('Agg')\n"
        "import matplotlib.pyplot as plt\n"
        "from bvf_tutorial import plotting, widgets\n"
        "from bvf_tutorial.envs import GridWorld\n"
        "draw = lambda k: plotting.draw_layout(GridWorld.random(k), plt.figure().add_subplot()).figure\n"
        "print(len(widgets.frame_slider(draw, [0, 1], 'layouts').frames))\n"
        "try:\n    widgets.explorer(draw, k=(0, 1, 1))\n"
        "except ImportError as error:\n    print(error)\n"
    )
    assert run(code).splitlines() == [
        "2",
        "the live explorer needs ipywidgets: pip install ipywidgets (the sliders on the page do not)",
    ]


def test_importing_the_package_loads_nothing() -> None:
    """The reason it takes milliseconds: no NumPy, SciPy or torch behind the bare import. Times belong to benchmarks."""
    code = "import sys; import bvf_tutorial; print([m for m in ('numpy', 'scipy', 'torch', 'matplotlib') if m in sys.modules])"
    assert run(code).strip() == "[]"
    code = "import sys; import bvf_tutorial.tabular; print([m for m in ('torch', 'matplotlib') if m in sys.modules])"
    assert run(code).strip() == "[]"
