"""Train every curve of the paper's figures, and of ours beyond them, and keep each as one small table.

An *arm* is a preset with the seeds that are reported: one unit of work, one file
``results/experiments/<preset>.csv``. It has a row per log point and seed (``COLUMNS``; an empty cell is "no data")
under comment lines that say where the numbers come from. Seeds start at 100, and at 300 where the first ones served to
choose settings: nothing was tuned on them. Finished arms are skipped, begun ones go on from their checkpoint, and an
arm whose preset has changed since is named as stale. One arm that fails is reported, the others finish, and the exit
status is 1.

Usage: ``python -m studies.experiments [FIGURE ...] [--only REGEX] [--executor local|ray] [--processes N] [--smoke]
[--device cpu|cuda] [--renew] [--list] [--output DIR]``.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from contextlib import closing
from dataclasses import dataclass, replace
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tqdm import tqdm

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import Config, Constraint, EnvironmentConfig, Sarsa, Trainer, make_trainer, preset
from bvf_tutorial.agents.plain import flat, to_plain
from bvf_tutorial.agents.runs import processor
from bvf_tutorial.agents.storage import load_checkpoint, locked, save_checkpoint, write_atomically
from bvf_tutorial.agents.train import Row
from bvf_tutorial.agents.tuned import TUNED
from bvf_tutorial.envs import GridTask
from bvf_tutorial.records import Record

from .agents import exact_values

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "results" / "experiments"
OPTIMUM = "-optimum"
"""How the arms are called that train nothing, after their task: the exact optima of a grid world's layouts."""

COLUMNS = (
    "Step", "Seed", "EpRet", "EpCost", "EpLen", "ViolationRate", "Episodes", "LagrangeMultiplier",
    "SampledEpRet", "SampledEpCost", "SampledViolationRate", "GreedyEpRet", "GreedyEpCost", "GreedyViolationRate",
    "ExactEpRet", "ExactEpCost", "EmptyShare", "CorrectedShare", "ForwardBias", "BackwardBias",
)  # fmt: skip
"""Of an arm's table, in the words of ``agents.metrics``; Exact: of the greedy policy, by dynamic programming."""
OPTIMUM_COLUMNS = ("Seed", "BestEpRet", "BestEpCost", "FeasibleEpRet", "FeasibleEpCost", "Multiplier")
"""Of the optima's table: without a limit, then within it (empty where no policy is), and the limit's price."""

_PAPER = ("unconstrained", "lyapunov", "backward")
_TASKS = ("gather", "gather_binding", "cheetah", "circle")


def plain_problem(name: str) -> str:
    """Return ``<task>-<algorithm>`` of a preset; its versions without a clock and with discounted costs share it."""
    return name.rpartition("-")[0].replace("_clockless", "").removesuffix("_discounted")


@dataclass(frozen=True)
class Figure:
    """A figure as data: which arms it shows, and what their curves are shown for.

    Attributes:
        caption: the paper's claim, or our question.
        arms: preset names; arms of one task and algorithm share a panel, whatever their values know.
    """

    caption: str
    arms: tuple[str, ...]

    @property
    def panels(self) -> dict[str, tuple[str, ...]]:
        """The arms by panel, ``<task>-<algorithm>``."""
        table: dict[str, tuple[str, ...]] = {}
        for arm in self.arms:
            if not arm.endswith(OPTIMUM):
                panel = plain_problem(arm)
                table[panel] = (*table.get(panel, ()), arm)
        return table


def _named(tasks: Sequence[str], algorithms: Sequence[str], methods: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{task}-{algorithm}-{method}" for task in tasks for algorithm in algorithms for method in methods)


def _beyond(task: str) -> Figure:
    methods = ("unconstrained", "backward_alone", *(f"{name}_tuned" for name in TUNED["ppo"]))
    caption = "Which part of a method does the work, at equal tuning: the state-wise rule, or the price of cost?"
    return Figure(caption, _named((task,), ("a2c_tuned", "ppo"), methods))


def _beyond_grid(task: str) -> Figure:
    methods = ("unconstrained", *(f"{name}_tuned" for name in TUNED[task]))
    caption = "What safeguard, penalty and recovery bring on the grid world at equal tuning, beside the exact optimum."
    return Figure(caption, (*_named((task,), ("sarsa_tuned",), methods), f"{task}{OPTIMUM}"))


FIGURES: Mapping[str, Figure] = MappingProxyType(
    {
        "grid": Figure(
            "Figure 1 of the paper: SARSA with backward values keeps the limit better than Lyapunov, at some return.",
            (*_named(("grid",), ("sarsa",), (*_PAPER, "lyapunov_warm", "backward_warm")), f"grid{OPTIMUM}"),
        ),
        "a2c": Figure(
            "Figure 2 of the paper: A2C with backward values keeps the limit for most of the training, Lyapunov less.",
            _named(_TASKS, ("a2c_tuned",), _PAPER),
        ),
        "ppo": Figure(
            "Figure 3 of the paper: the same for PPO, except on Point-Circle, where some runs end infeasible.",
            _named(_TASKS, ("ppo",), _PAPER),
        ),
        "target": Figure(
            "Appendix J of the paper: PPO whose proposal is mixed with the previous actor's, beside the plain layer.",
            _named(("gather", "gather_binding", "cheetah"), ("ppo",), (*_PAPER, "lyapunov_target", "target")),
        ),
        "beyond_grid": _beyond_grid("grid"),
        "beyond_conflict": _beyond_grid("grid_conflict"),
        "beyond_circle": _beyond("circle"),
        "beyond_gather": _beyond("gather_binding"),
        "beyond_cheetah": _beyond("cheetah"),
        "values": Figure(
            "What cost values are worth that do not know the time left, or that discount: not in the limit's unit.",
            tuple(
                f"{variant}-backward_tuned"
                for task in ("circle", "gather_binding", "cheetah")
                for variant in (f"{task}-ppo", f"{task}_clockless-ppo", f"{task}-ppo_discounted")
            ),
        ),
    }
)  # fmt: skip
"""The figures by name. A curve is added by adding a preset's name."""

N_RUNS = {"grid": 20, "grid_conflict": 20}
"""Seeds of a task's arms, by task; ten where it is not listed."""
FIRST_SEED = {"gather_binding-ppo": 300}
"""The first seed where settings were chosen on seeds from 100 on, by task and algorithm; 100 where it is not listed."""
N_ENV_STEPS = {"grid-sarsa": 4_000_000, "grid-sarsa_tuned": 1_000_000, "grid_conflict-sarsa_tuned": 1_000_000}
"""Environment steps per run where they are not the preset's, by task and algorithm; the first is about the paper's
200,000 episodes. Of the conflict grids, half of that left 7 of 20 runs without any limit short of the goal."""
N_EVALUATIONS = 20
"""Evaluations per run."""
CHECKPOINT_SECONDS = 60.0


@dataclass(frozen=True)
class Arm:
    """One unit of work: a training of all its seeds, and where its table goes.

    Attributes:
        config: what is trained, all runs as one.
        folder: of the table; checkpoints are in ``.cache/<name>`` within it.
        commit: what the code is.
    """

    config: Config
    folder: Path
    commit: str = "unknown"

    @property
    def name(self) -> str:
        """The preset's name."""
        return self.config.name

    @property
    def table(self) -> Path:
        """Where the finished table stands."""
        return self.folder / f"{self.name}.csv"

    @property
    def cache(self) -> Path:
        """Where the checkpoint stands until the table does."""
        return self.folder / ".cache" / self.name


@dataclass(frozen=True)
class Outcome:
    """How an arm ended: with the text of its table, or with an error.

    Attributes:
        name: of the arm.
        text: the table; "" with an error.
        error: a traceback, or why it did not end; "" without one.
    """

    name: str
    text: str = ""
    error: str = ""


class InterruptedArmError(RuntimeError):
    """A training was asked to stop and left a checkpoint."""


def config_of(name: str, is_smoke: bool = False) -> Config:
    """Return what an arm trains: its preset with the seeds and the length that are reported.

    Args:
        name: of the preset.
        is_smoke: two short runs in place of them, which show that the arm works and nothing else.

    Raises:
        KeyError: no such preset.
    """
    task, algorithm, *_ = name.split("-")
    config = replace(preset(f"{task}-sarsa-unconstrained" if name.endswith(OPTIMUM) else name), name=name)
    steps = N_ENV_STEPS.get(f"{task}-{algorithm}", config.n_env_steps)
    sized = replace(
        config, n_runs=N_RUNS.get(task, 10), seed=FIRST_SEED.get(plain_problem(name), 100), n_env_steps=steps,
        log_every=steps // 40, evaluate_every=steps // N_EVALUATIONS,
    )  # fmt: skip
    if not is_smoke:
        return sized
    # Two updates, and enough decisions that episodes of the grid world end; one evaluation.
    steps = 2 * max(2 * config.algorithm.n_steps, 400 if task.startswith("grid") else 0)
    constraint = replace(config.constraint, warm_up=min(config.constraint.warm_up, steps // 2))
    return replace(
        sized, n_runs=2, n_envs=2, n_env_steps=steps, log_every=steps // 2, evaluate_every=steps,
        n_evaluation_episodes=2, constraint=constraint,
    )  # fmt: skip


def work(arm: Arm, is_stopped: Callable[[], bool] = lambda: False) -> Outcome:
    """Do an arm in this process; never raise, so that an error reaches the caller whatever its class pickles to."""
    torch.set_num_threads(1)
    # What this process has loaded may be newer than what the first one has; on other machines there is no history.
    arm = replace(arm, commit=current_commit() or arm.commit)
    try:
        text = optimum_table(arm) if arm.name.endswith(OPTIMUM) else training_table(arm, is_stopped)
    except InterruptedArmError as error:
        return Outcome(arm.name, error=str(error))
    except Exception:
        return Outcome(arm.name, error=traceback.format_exc())
    return Outcome(arm.name, text)


def training_table(arm: Arm, is_stopped: Callable[[], bool] = lambda: False) -> str:
    """Return the table of a training, begun or from its checkpoint; a resumed one equals an uninterrupted one.

    Raises:
        InterruptedArmError: it was asked to stop; there is a checkpoint.
        LockedError: another process trains this arm.
    """
    arm.cache.mkdir(parents=True, exist_ok=True)
    with locked(arm.cache):
        if state_of(arm) == "finished":  # by another process, since this one looked
            return arm.table.read_text(encoding="utf-8")
        trainer, note = _begun(arm)
        rows: list[Row] = note["rows"]
        wall, cpu, saved = time.monotonic() - note["wall"], time.process_time() - note["cpu"], time.monotonic()
        total = arm.config.n_env_steps
        with tqdm(total=total, initial=trainer.done, desc=arm.name, mininterval=20.0, leave=False) as bar:
            while not trainer.is_finished:
                rows += _with_exact_values(trainer, trainer.advance())
                bar.update(trainer.done - bar.n)
                has_stopped = is_stopped()
                if has_stopped or time.monotonic() - saved >= CHECKPOINT_SECONDS:
                    times = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
                    _save(arm, trainer, note | times)
                    saved = time.monotonic()
                if has_stopped and not trainer.is_finished:
                    share = trainer.done / total
                    raise InterruptedArmError(f"stopped at {share:.0%}; the same command goes on from there.")
    seconds = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    limit = trainer.learner.setting.cost_limit
    return _table_text(arm, rows, COLUMNS, note["commits"], limit, seconds)


def optimum_table(arm: Arm) -> str:
    """Return the table of the grid world's exact optima, one row per seed: within the horizon, with a clock."""
    wall, cpu, rows = time.monotonic(), time.process_time(), []
    trainer = make_trainer(arm.config)
    task = trainer.env.task
    assert isinstance(task, GridTask)
    for run, seed in enumerate(trainer.learner.setting.seeds):
        cmdp = task.grid_of(run * trainer.env.n_envs).to_cmdp(time_augmented_states=True)
        best = tb.evaluate_policy(cmdp, tb.best_response(cmdp, 0.0))
        within = tb.optimum_by_prices(cmdp)
        is_feasible = within.status == "optimal"
        values = (seed, *best, *((within.value, within.cost, within.multiplier) if is_feasible else [math.nan] * 3))
        rows.append(dict(zip(OPTIMUM_COLUMNS, values, strict=True)))
    seconds = {"wall": time.monotonic() - wall, "cpu": time.process_time() - cpu}
    return _table_text(arm, rows, OPTIMUM_COLUMNS, [arm.commit], trainer.learner.setting.cost_limit, seconds)


def _with_exact_values(trainer: Trainer, rows: list[Row]) -> list[Row]:
    """Return rows with their table's columns only, and exact values where the task has a model."""
    exact = exact_values(trainer) if rows and isinstance(trainer.learner, Sarsa) else {}
    found = [row | {key: value[run] for key, value in exact.items()} for run, row in enumerate(rows)]
    return [{key: value for key, value in row.items() if key in COLUMNS} for row in found]


def _begun(arm: Arm) -> tuple[Trainer, dict[str, Any]]:
    """Return an arm's trainer and what is noted beside it, from its checkpoint or from the start."""
    trainer = make_trainer(arm.config)
    note: dict[str, Any] = {"rows": [], "wall": 0.0, "cpu": 0.0, "commits": [arm.commit]}
    try:
        state, warning = load_checkpoint(arm.cache / "checkpoint.pt", arm.config.device)
    except FileNotFoundError:
        return trainer, note
    if warning:
        print(warning, file=sys.stderr)
    if state["settings"] != json.dumps(settings_of(arm.config)):
        print(f"{arm.name}: the preset has changed since its checkpoint; training from the start.", file=sys.stderr)
        return trainer, note
    trainer.load_state_dict(state["trainer"])
    note = dict(state["note"])
    note["commits"] = list(dict.fromkeys([*note["commits"], arm.commit]))
    return trainer, note


def _save(arm: Arm, trainer: Trainer, note: Mapping[str, Any]) -> None:
    settings = json.dumps(settings_of(arm.config))
    save_checkpoint(
        arm.cache / "checkpoint.pt", {"settings": settings, "trainer": trainer.state_dict(), "note": dict(note)}
    )


def settings_of(config: Config) -> dict[str, Any]:
    """Return a configuration's settings by dotted key, without the device and those that are their class's default.

    So a setting that is new, and off by default, does not make older tables stale.
    """
    plain, standard = flat(to_plain(config)), flat(to_plain(_standard(config)))
    kept = {key: value for key, value in plain.items() if key not in standard or standard[key] != value}
    kept.pop("device", None)
    return kept


def _standard(config: Config) -> Config:
    # The required sizes have no default that would mean anything, so 0 and "" would not be valid; these never occur.
    return Config(
        name="-", environment=EnvironmentConfig("-"), algorithm=type(config.algorithm)(), constraint=Constraint(),
        n_runs=10**9, n_env_steps=10**9, log_every=10**9, evaluate_every=10**9, seed=10**9,
    )  # fmt: skip


def _table_text(
    arm: Arm,
    rows: Sequence[Mapping[str, float]],
    columns: Sequence[str],
    commits: Sequence[str],
    limit: float,
    seconds: Mapping[str, float],
) -> str:
    first, last = arm.config.seed, arm.config.seed + arm.config.n_runs - 1
    versions = ", ".join(f"{name} {_version(name)}" for name in ("torch", "numpy", "mujoco"))
    head = {
        "command": f"python -m studies.experiments --only '^{arm.name}$'",
        "commit": ", ".join(commits),
        "seeds": f"{first} to {last}",
        "cost limit": f"{limit:g}",
        "hardware": f"{platform.machine()}, {processor()}, {os.cpu_count()} cores; device {_device(arm.config)}",
        "versions": f"Python {platform.python_version()}, {versions}",
        "seconds": ", ".join(f"{name} {value:.1f}" for name, value in seconds.items()),
        "settings": json.dumps(settings_of(arm.config)),
    }
    text = io.StringIO()
    text.writelines(f"# {key}: {value}\n" for key, value in head.items())
    table = csv.writer(text, lineterminator="\n")
    table.writerow(columns)
    table.writerows([_cell(row.get(key, math.nan)) for key in columns] for row in rows)
    return text.getvalue()


def _cell(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    return "" if math.isnan(value) else f"{value:.5g}"


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "absent"


def _device(config: Config) -> str:
    is_cuda = torch.device(config.device).type == "cuda"
    return torch.cuda.get_device_name(config.device) if is_cuda else config.device


def stale_settings(arm: Arm) -> list[str]:
    """Return the settings in which a finished table differs from what its arm would train now; none if up to date."""
    then: dict[str, Any] = json.loads(Record.read(arm.table).head["settings"])
    now = json.loads(json.dumps(settings_of(arm.config)))
    return [key for key in {**then, **now} if (key in then, then.get(key)) != (key in now, now.get(key))]


def current_commit() -> str:
    """Return the short hash of the code's commit, with ``-dirty`` where package or studies differ; "" if unknown."""

    def git(*arguments: str) -> str:
        try:
            done = subprocess.run(
                ["git", "--no-optional-locks", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False
            )
        except OSError:
            return ""
        return done.stdout.strip()

    commit = git("rev-parse", "--short", "HEAD")
    # Chapters and results may be unfinished; they do not change a number.
    is_dirty = bool(git("status", "--porcelain", "--", "bvf_tutorial", "studies"))
    return commit + ("-dirty" if commit and is_dirty else "")


# Executors: arms in, outcomes out as they come.


_stop: Any = None


def _begin_worker(stop: Any) -> None:
    # A Ctrl-C reaches every process of the terminal; only the first one may act on it, and tells the others.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    global _stop
    _stop = stop


def _work_in_worker(arm: Arm, parent: int) -> Outcome:
    return work(arm, lambda: _stop.is_set() or os.getppid() != parent)


def on_this_machine(arms: Sequence[Arm], n_processes: int) -> Iterator[Outcome]:
    """Yield the outcomes of arms that train in processes of this machine, ``n_processes`` at once.

    Each has a process of its own, so that one that crashes takes no other with it. Closing the iterator, as an
    interrupt does, stops the running ones at their checkpoints.
    """
    context = get_context("spawn")
    stop = context.Event()

    def alone(arm: Arm) -> Outcome:
        if stop.is_set():
            return Outcome(arm.name, error="not started")
        with futures.ProcessPoolExecutor(1, context, _begin_worker, (stop,)) as pool:
            return pool.submit(_work_in_worker, arm, os.getpid()).result()

    with futures.ThreadPoolExecutor(n_processes) as threads:
        running = {threads.submit(alone, arm): arm for arm in arms}
        try:
            for done in futures.as_completed(running):
                error = done.exception()
                yield done.result() if error is None else Outcome(running[done].name, error=f"process died: {error}")
        finally:
            stop.set()


def on_ray(arms: Sequence[Arm], n_processes: int) -> Iterator[Outcome]:
    """Yield the outcomes of arms that train on a Ray cluster, one core each.

    The cluster is that of ``RAY_ADDRESS``; without it, one of ``n_processes`` cores is started on this machine. Tables
    come back to this process; checkpoints stay on the disk of the machine that trains.
    """
    try:
        import ray  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise SystemExit(f"--executor ray needs Ray ({error}): pip install 'ray[default]'") from error
    if not ray.is_initialized():
        # A cluster's machines need the same packages; the code itself travels.
        code = {"working_dir": str(ROOT), "excludes": [".git", ".venv", "_build", "book", "results", ".*_cache"]}
        is_remote = bool(os.environ.get("RAY_ADDRESS"))
        ray.init(runtime_env=code, include_dashboard=False, **({} if is_remote else {"num_cpus": n_processes}))
    remote = ray.remote(num_cpus=1, max_retries=0)(work)
    waiting = {remote.remote(arm): arm for arm in arms}
    try:
        while waiting:
            ready, _ = ray.wait([*waiting])
            for reference in ready:
                arm = waiting.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayError as error:
                    yield Outcome(arm.name, error=f"process died: {error}")
    finally:
        for reference in waiting:
            ray.cancel(reference)


Executor = Callable[[Sequence[Arm], int], Iterator[Outcome]]
EXECUTORS: Mapping[str, Executor] = MappingProxyType({"local": on_this_machine, "ray": on_ray})
"""Executors by name."""


def train_all(arms: Sequence[Arm], executor: Executor, n_processes: int) -> dict[str, str]:
    """Train arms and write each table when it is there; return the errors by name."""
    errors: dict[str, str] = {}
    by_name = {arm.name: arm for arm in arms}
    with closing(executor(arms, n_processes)) as outcomes, tqdm(total=len(arms), unit="arm", position=0) as bar:  # type: ignore[type-var]
        for outcome in outcomes:
            arm = by_name[outcome.name]
            if outcome.error:
                errors[outcome.name] = outcome.error
                tqdm.write(f"{outcome.name} failed: {outcome.error.strip().splitlines()[-1]}", file=sys.stderr)
            else:
                arm.folder.mkdir(parents=True, exist_ok=True)
                write_atomically(arm.table, outcome.text.encode())
                shutil.rmtree(arm.cache, ignore_errors=True)
            bar.set_postfix_str(outcome.name)
            bar.update()
    return errors


def state_of(arm: Arm) -> str:
    """Return how an arm stands, as "finished", "stale: <settings>", "begun" or "missing"."""
    if arm.table.exists():
        keys = stale_settings(arm)
        return f"stale: {', '.join(keys)}" if keys else "finished"
    return "begun" if (arm.cache / "checkpoint.pt").exists() else "missing"


def arms_of(figures: Sequence[str], only: str, folder: Path, is_smoke: bool = False, device: str = "cpu") -> list[Arm]:
    """Return the arms of figures whose names match a regular expression, each once.

    Args:
        figures: names.
        only: searched for in the arms' names.
        folder: of the tables.
        is_smoke: see ``config_of``.
        device: that trains.

    Raises:
        KeyError: no such figure or preset.
    """
    names = dict.fromkeys(name for figure in figures for name in FIGURES[figure].arms if re.search(only, name))
    commit = current_commit() or "unknown"
    return [Arm(replace(config_of(name, is_smoke), device=device), folder, commit) for name in names]


def main(words: Sequence[str] | None = None) -> int:
    """Train what is missing; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"of {', '.join(FIGURES)} (all)")
    parser.add_argument("--only", default="", metavar="REGEX", help="arms whose name matches")
    parser.add_argument("--executor", choices=[*EXECUTORS], default="local")
    parser.add_argument("--processes", type=int, default=1, help="arms at once (1)")
    parser.add_argument("--device", default="cpu", help='"cuda" trains on a GPU (cpu)')
    parser.add_argument("--smoke", action="store_true", help="two short runs of every arm, into a temporary folder")
    parser.add_argument("--renew", action="store_true", help="train arms again whose preset has changed")
    parser.add_argument("--list", action="store_true", help="say how every arm stands and train nothing")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the tables (results/experiments)")
    asked = parser.parse_args(words)
    unknown = [name for name in asked.figures if name not in FIGURES]
    if unknown or asked.processes < 1:
        parser.error(f"no figure {unknown[0]!r}" if unknown else f"--processes is {asked.processes}; it is at least 1")
    folder = asked.output or (Path(tempfile.mkdtemp(prefix="experiments-")) if asked.smoke else OUTPUT)
    arms = arms_of(asked.figures or [*FIGURES], asked.only, folder.resolve(), asked.smoke, asked.device)
    state = {arm.name: state_of(arm) for arm in arms}
    if asked.list:
        print("\n".join(f"{arm.name:<40} {state[arm.name]}" for arm in arms))
        return 0
    stale = [] if asked.renew else [arm for arm in arms if state[arm.name].startswith("stale")]
    todo = [arm for arm in arms if state[arm.name] != "finished" and arm not in stale]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        errors = train_all(todo, EXECUTORS[asked.executor], asked.processes)
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from the checkpoints.", file=sys.stderr)
        return 130
    for name, error in errors.items():
        print(f"\n{name} failed:\n{error}", file=sys.stderr)
    for arm in stale:
        print(f"{arm.name} is {state[arm.name]} differ; --renew trains it again.", file=sys.stderr)
    n_done = len(todo) - len(errors)
    n_there = len(arms) - len(todo) - len(stale)
    print(f"{n_done} trained, {n_there} were there, {len(stale)} stale, {len(errors)} failed; {folder}")
    return 1 if errors or stale else 0


if __name__ == "__main__":
    sys.exit(main())
