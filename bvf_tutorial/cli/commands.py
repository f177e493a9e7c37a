"""This file knows the commands, each a thin call of the package, and their exit statuses.

Whatever takes time to import (torch) is imported when a command needs it, so that ``--help`` is instant.
"""

import contextlib
import importlib.metadata
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import (
    PROGRAM,
    Evaluate,
    Listing,
    Plot,
    Sweep,
    UsageError,
    Video,
    base_of,
    near,
    parsed,
    preset_in,
    training,
    value_after,
)
from .terminal import Progress, stoppable

if TYPE_CHECKING:
    from ..agents import Config
    from ..agents.runs import RunFolder

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status: 0 done, 1 failed, 2 not understood, 130 or 143 interrupted.

    Args:
        argv: words after the program's name; None for the process's own.
    """
    words = [*(sys.argv[1:] if argv is None else argv)]
    if words[:1] == ["--version"]:
        print(importlib.metadata.version("bvf-tutorial"))
        return 0
    if not words or words[0] in ("-h", "--help"):
        lines = [f"  {name:<10}{help_}" for name, (_, help_) in COMMANDS.items()]
        print("\n".join([f"usage: {PROGRAM} COMMAND [--help] ...", "", *lines]))
        return 0 if words else 2
    # Small networks: a second thread mostly waits for the first. Torch reads this when it is imported.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    try:
        if words[0] not in COMMANDS:
            raise UsageError(f"no command {words[0]!r}{near(words[0], COMMANDS)}")
        return COMMANDS[words[0]][0](words[1:])
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except BrokenPipeError:  # as in `list presets | head`; what is left to print has no reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1


def _train(words: list[str]) -> int:
    from ..agents.plain import differences
    from ..agents.runs import RunFolder

    resumed = value_after(words, "--resume")
    base = RunFolder.open(Path(resumed)).config if resumed else base_of(words)
    given = parsed(training(base), words, "train")
    config: Config = given.config
    options = {**base.environment.options, **config.environment.options}
    config = replace(config, environment=replace(config.environment, options=options))
    if given.preset and given.preset != preset_in(words):
        raise UsageError(f"{given.preset!r} stands behind an option; a preset comes first.")
    if resumed:
        keys = differences(base, config)
        if keys or given.preset or given.env or given.algorithm_name or given.constraint_name:
            what = ", ".join(keys) or "the preset"
            raise UsageError(f"{what} cannot change on --resume; a changed training begins in a new folder.")
        folder = RunFolder.open(Path(resumed))
    else:
        try:
            config = _with_limit(config)  # before there is a folder, so that a wrong option leaves none behind
        except (ValueError, TypeError, RuntimeError, AssertionError) as error:
            raise UsageError(str(error)) from error
        folder = RunFolder.create(given.out, config)
    return _trained(folder, given.tensorboard, given.checkpoint_seconds)


def _with_limit(config: "Config") -> "Config":
    """Return a configuration that states its task's cost limit, so that ``config.json`` does, too."""
    limit = config.environment.make(1, 1, config.device).cost_limit
    options = {**config.environment.options, "cost_limit": limit}
    return replace(config, environment=replace(config.environment, options=options))


def _trained(folder: "RunFolder", has_events: bool, checkpoint_seconds: float) -> int:
    from ..agents.runs import run

    if folder.status == "finished":
        print(f"{folder.path} is finished; nothing to do.")
        return 0
    print(f"{folder.config.name} in {folder.path}", flush=True)
    with stoppable() as caught, Progress(folder) as progress:
        status = run(folder, progress, lambda: bool(caught), has_events, checkpoint_seconds)
    if status == "finished":
        print(f"finished; {PROGRAM} evaluate {folder.path}")
        return 0
    print(f"interrupted; {PROGRAM} train --resume {folder.path}")
    return 128 + caught[0]


def _evaluate(words: list[str]) -> int:
    from ..agents.replay import evaluate_folder
    from ..agents.runs import RunFolder
    from ..statistics import mean_interval

    given = parsed(Evaluate, words, "evaluate")
    if given.episodes < 1:
        raise UsageError(f"--episodes is {given.episodes}; it is at least 1.")
    report = evaluate_folder(RunFolder.open(given.folder), given.episodes, given.deterministic)
    names = [*report["runs"][0]]
    print("  ".join(f"{name:>13}" for name in names))
    for row in report["runs"]:
        print("  ".join(f"{row[name]:>13.6g}" for name in names))
    mean, half = mean_interval([[row[name] for row in report["runs"]] for name in names[1:]])
    print("  ".join(f"{text:>13}" for text in ["mean", *(f"{each:.6g}" for each in mean)]))
    if len(report["runs"]) > 1:
        print("  ".join(f"{text:>13}" for text in ["95% +-", *(f"{each:.3g}" for each in half)]))
    kind = "deterministic" if given.deterministic else "sampled"
    print(f"{given.episodes} episodes a seed, {kind} policy after {report['done']:,} steps;", end=" ")
    print(f"cost limit {report['cost_limit']:g}")
    return 0


def _plot(words: list[str]) -> int:
    from ..agents.metrics import METRICS, series
    from ..agents.runs import RunFolder
    from ..plotting import save_training_curves

    given = parsed(Plot, words, "plot")
    if given.metric not in METRICS:
        raise UsageError(f"no metric {given.metric!r}{near(given.metric, METRICS)}")
    if not given.folders:
        raise UsageError("give at least one run's folder.")
    folders = [RunFolder.open(path) for path in given.folders]
    # A curve's name is the first of these that no other run has; two runs of one name would be one curve.
    kinds = [[f.config.name for f in folders], [f.path.name for f in folders], [str(f.path) for f in folders]]
    names = [
        next((n for n, kind in zip(own, kinds, strict=True) if kind.count(n) == 1), own[-1])
        for own in zip(*kinds, strict=True)
    ]
    curves: dict[str, Any] = {}
    without = []
    for name, folder in zip(names, folders, strict=True):
        try:
            table = folder.table() if folder.metrics.exists() else {}
        except ValueError as error:
            raise ValueError(f"{folder.path}: {error}") from error
        try:
            curves[name] = series(table, given.metric)
        except ValueError as error:  # such a run takes no other's curve away; the legend says that it has none
            curves[name] = ([], [])
            without.append(f"{folder.path}: {error}")
    if len(without) == len(folders):
        raise ValueError(without[0])
    for line in without:
        print(line, file=sys.stderr)
    told = [folder.manifest.get("cost_limit") for folder in folders] if given.metric.endswith("EpCost") else []
    limits = [each for each in told if each is not None]  # a run that never began has none
    save_training_curves(given.out, curves, METRICS[given.metric], limits)
    print(given.out)
    return 0


def _video(words: list[str]) -> int:
    from ..agents.replay import film
    from ..agents.runs import RunFolder
    from ..envs.video import save_video

    given = parsed(Video, words, "video")
    folder = RunFolder.open(given.folder)
    speed = folder.config.environment.make(1, 1).task.frames_per_second
    print(save_video(given.out, film(folder, given.run, given.episodes, not given.sampled), fps=speed))
    return 0


def _sweep(words: list[str]) -> int:
    from ..agents import PRESETS
    from ..agents.plain import ConfigError
    from ..agents.sweeps import planned, sweep, values_of

    given = parsed(Sweep, words, "sweep")
    for name in given.presets:
        if name not in PRESETS:
            raise UsageError(f"no preset {name!r}{near(name, PRESETS)}")
    for each in given.set:
        if "=" not in each:
            raise UsageError(f"--set {each!r} is no KEY=VALUE[,VALUE...].")
    if given.processes < 1:
        raise UsageError(f"--processes is {given.processes}; it is at least 1.")
    settings = {key: values_of(text) for key, _, text in (each.partition("=") for each in given.set)}
    try:
        configs, errors = planned(given.presets, given.seeds, settings)
    except ConfigError as error:
        raise UsageError(str(error)) from error
    if not configs and not errors:
        raise UsageError("give at least one preset.")
    for name, config in configs.items():
        # A configuration that makes no task fails by name in its own process.
        with contextlib.suppress(ValueError, TypeError, RuntimeError, AssertionError):
            configs[name] = _with_limit(config)
    more = () if given.tensorboard else ("--no-tensorboard",)
    with stoppable() as caught:
        say = lambda line: print(line, flush=True)  # noqa: E731
        status = sweep(given.out, configs, given.processes, more, say, lambda: bool(caught))
    status |= {name: f"failed: {why}" for name, why in errors.items()}
    done = [name for name, how in status.items() if how == "finished"]
    print(f"{len(done)} of {len(status)} finished in {given.out}")
    for name, how in status.items():
        if how != "finished":
            print(f"  {name}: {how}")
    if caught:
        return 128 + caught[0]
    return 0 if len(done) == len(status) else 1


def _list(words: list[str]) -> int:
    from ..agents import ALGORITHMS, ENVIRONMENTS, PRESETS, Constraint
    from ..agents.metrics import METRICS
    from ..agents.plain import flat, to_plain
    from ..agents.presets import figure_of

    def told(value: Any, default: Any) -> str:
        base = flat(to_plain(default))
        own = [f"{key}={each}" for key, each in flat(to_plain(value)).items() if base.get(key) != each]
        return ", ".join(own) or "the defaults"

    tables: dict[str, Mapping[str, str]] = {
        "environments": {k: f"{v.name}, {told(v, type(v)(v.name, ''))}" for k, v in ENVIRONMENTS.items()},
        "algorithms": {k: f"{type(v).__name__}, {told(v, type(v)())}" for k, v in ALGORITHMS.items()},
        "constraints": {k.split("-")[2]: told(v.constraint, Constraint()) for k, v in PRESETS.items()},
        "metrics": METRICS,
        "presets": {k: f"{v.n_env_steps:,} steps a run  {figure_of(k)}".strip() for k, v in PRESETS.items()},
    }
    kind = parsed(Listing, words, "list").kind
    if kind and kind not in tables:
        raise UsageError(f"no list of {kind!r}{near(kind, tables)}")
    for name, table in tables.items():
        if name == kind or (not kind and name != "presets"):
            width = max(len(key) for key in table) + 2
            print("\n".join([f"{name}:", *(f"  {key:<{width}}{text}" for key, text in table.items())]))
    if not kind:
        print(f"presets: ENVIRONMENT-ALGORITHM-CONSTRAINT, {len(PRESETS)} of them; `list presets` shows them")
    return 0


COMMANDS: dict[str, tuple[Callable[[list[str]], int], str]] = {
    "train": (_train, "train a preset or a combination of names, in a new folder; --resume goes on"),
    "evaluate": (_evaluate, "judge a trained policy over many episodes"),
    "plot": (_plot, "draw a metric of one or several trainings"),
    "video": (_video, "film a trained policy"),
    "sweep": (_sweep, "train many configurations, skip the finished, resume the begun"),
    "list": (_list, "names of presets, environments, algorithms, constraints and metrics"),
}
