"""This file knows which words each command takes, and says in one line what is wrong with others."""

import contextlib
import difflib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_origin

import tyro

if TYPE_CHECKING:
    from ..agents import Config

__all__ = [
    "PROGRAM",
    "Evaluate",
    "Listing",
    "Plot",
    "Sweep",
    "UsageError",
    "Video",
    "base_of",
    "near",
    "parsed",
    "preset_in",
    "training",
    "value_after",
]

PROGRAM = "python -m bvf_tutorial"
"""What the user typed."""
Folder = Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FOLDER")]
"""A run's folder."""


class UsageError(ValueError):
    """What was typed makes no command; one line says why and what would."""


@dataclass
class Evaluate:
    """Judge the policy of a run's checkpoint over whole episodes in fresh worlds; print a table, write JSON.

    Attributes:
        folder: of the run.
        episodes: per seed.
        deterministic: the mean or greedy action in place of a sampled one.
    """

    folder: Folder
    episodes: int = 100
    deterministic: bool = False


@dataclass
class Plot:
    """Draw one metric of one or several runs: means over seeds, 95% intervals, the cost limit.

    Attributes:
        folders: of the runs, one curve each.
        metric: a column of metrics.csv (EpRet, EpCost, ViolationRate, GreedyEpCost, SlackMedian, ...).
        out: the picture; its suffix says the format (png, svg, pdf).
    """

    folders: tyro.conf.Positional[tuple[Path, ...]]
    metric: str = "EpCost"
    out: Path = Path("curves.png")


@dataclass
class Video:
    """Film the policy of a run's checkpoint.

    Attributes:
        folder: of the run.
        out: the film, .mp4 or .gif.
        run: position of the seed in the training, 0 for the first.
        episodes: how many, one after the other.
        sampled: the sampled action in place of the mean or greedy one.
    """

    folder: Folder
    out: Path = Path("film.mp4")
    run: int = 0
    episodes: int = 1
    sampled: bool = False


@dataclass
class Sweep:
    """Train presets x seeds x settings, each in its own folder and process; go on where an earlier sweep stopped.

    Attributes:
        presets: names from `list presets`.
        seeds: of the first runs; none for the presets' own.
        set: settings KEY=VALUE[,VALUE...], e.g. n_env_steps=50000 algorithm.learning_rate=1e-3,3e-3.
        out: parent of the folders.
        processes: trainings at once.
        tensorboard: write TensorBoard events.
    """

    presets: tyro.conf.Positional[tuple[str, ...]]
    seeds: tuple[int, ...] = ()
    set: tuple[str, ...] = ()
    out: Path = Path("runs/sweep")
    processes: int = 1
    tensorboard: bool = True


@dataclass
class Listing:
    """List names: presets, environments, algorithms, constraints, metrics.

    Attributes:
        kind: one of them; "" for all but the presets.
    """

    kind: tyro.conf.Positional[str] = ""


def near(word: str, valid: Iterable[str]) -> str:
    """Return ``; did you mean ...?``, or where to find the valid names."""
    names = [*valid]
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; choose one of {', '.join(names)}." if len(names) < 40 else f"; see `{PROGRAM} list`."


def value_after(words: Sequence[str], option: str) -> str:
    """Return the word after an option, or behind its ``=``, of several the last, as tyro does; "" without it."""
    found = ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == option:
            found = following
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def preset_in(words: Sequence[str]) -> str:
    """Return the preset that ``train`` was given, "" for none; it stands before any option."""
    return words[0] if words and not words[0].startswith("-") else ""


def base_of(words: Sequence[str]) -> "Config":
    """Return the preset, with the parts that ``--env``, ``--algorithm`` and ``--constraint`` name.

    Raises:
        UsageError: no such name, or an algorithm that does not play the task; the message has the nearest.
    """
    from ..agents import ALGORITHMS, ENVIRONMENTS, PRESETS

    methods = {each.split("-")[2] for each in PRESETS}
    name = preset_in(words)
    if name and name not in PRESETS:
        raise UsageError(f"no preset {name!r}{near(name, PRESETS)}")
    part = {"--env": "circle", "--algorithm": "ppo", "--constraint": "unconstrained"}
    if name:
        part = dict(zip(part, name.split("-"), strict=True))
    for option, valid in (("--env", ENVIRONMENTS), ("--algorithm", ALGORITHMS), ("--constraint", methods)):
        given = value_after(words, option)
        if given and given not in valid:
            raise UsageError(f"no {option} {given!r}{near(given, valid)}")
        part[option] = given or part[option]
    name = "-".join(part.values())
    if name not in PRESETS:
        fit = sorted({each.split("-")[1] for each in PRESETS if each.startswith(f"{part['--env']}-")})
        if part["--algorithm"] in fit:
            raise UsageError(f"no preset {name!r}{near(name, PRESETS)}")
        raise UsageError(
            f"--algorithm {part['--algorithm']} does not play --env {part['--env']}; choose one of {', '.join(fit)}."
        )
    return PRESETS[name]


def training(base: "Config") -> Any:
    """Return the shape of ``train``'s arguments with the defaults of a configuration."""
    from ..agents import ALGORITHMS, CONSTRAINTS, ENVIRONMENTS
    from ..agents.presets import figure_of

    Base, text = type(base), f"defaults of {base.name}"  # noqa: N806
    with contextlib.suppress(ValueError):
        text += f" ({figure_of(base.name)} of the paper)" if figure_of(base.name) else ""

    @dataclass
    class Training:
        """Arguments of ``train``; its help is made below."""

        config: Annotated[Base, tyro.conf.arg(name="")]  # type: ignore[valid-type]
        preset: Annotated[
            tyro.conf.Positional[str], tyro.conf.arg(help="a name from `list presets`, before any option")
        ]
        env: Annotated[str, tyro.conf.arg(help=f"task of the preset: {', '.join(ENVIRONMENTS)}")]
        algorithm_name: Annotated[str, tyro.conf.arg(name="algorithm", help=f"of the preset: {', '.join(ALGORITHMS)}")]
        constraint_name: Annotated[
            str, tyro.conf.arg(name="constraint", help=f"safety method: {', '.join(CONSTRAINTS)}")
        ]
        out: Annotated[Path, tyro.conf.arg(help="parent of the new run's folder")]
        resume: Annotated[str, tyro.conf.arg(help="a run's folder: go on from its checkpoint to the same numbers")]
        tensorboard: Annotated[bool, tyro.conf.arg(help="write TensorBoard events")]
        checkpoint_seconds: Annotated[float, tyro.conf.arg(help="seconds of wall time between two checkpoints")]

    Training.__doc__ = (
        f"Train a preset, or --env, --algorithm and --constraint by name; {text}. Ctrl-C keeps a checkpoint."
    )
    return Training(base, "", "", "", "", Path("runs"), "", True, 60.0)


def parsed(shape: Any, words: Sequence[str], command: str) -> Any:
    """Return a command's arguments as an instance of ``shape``: a dataclass, or an instance with the defaults.

    Raises:
        UsageError: with tyro's message in one line, or the option nearest to an unknown one.
        SystemExit: after ``--help``.
    """
    default = {} if isinstance(shape, type) else {"default": shape}
    options: dict[str, Any] = {
        **default, "prog": f"{PROGRAM} {command}", "registry": _registry(), "config": (tyro.conf.AvoidSubcommands,),
    }  # fmt: skip
    kind = shape if isinstance(shape, type) else type(shape)
    message = io.StringIO()
    try:
        with contextlib.redirect_stderr(message):
            found, unknown = tyro.cli(kind, args=words, return_unknown_args=True, **options)
    except SystemExit as end:
        if not end.code:
            raise
        raise UsageError(f"{_one_line(message.getvalue())} ({PROGRAM} {command} --help)") from end
    except ValueError as error:  # a configuration that refuses its values
        raise UsageError(str(error)) from error
    if unknown:
        word = unknown[0].partition("=")[0]
        if not word.startswith("-"):
            raise UsageError(f"{word!r} is one word too many; see {PROGRAM} {command} --help")
        shown = io.StringIO()
        with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
            tyro.cli(kind, args=["--help"], **options)
        raise UsageError(f"no option {word}{near(word, re.findall('--[a-z][a-z0-9.-]*', shown.getvalue()))}")
    return found


def _one_line(message: str) -> str:
    """Return what tyro says in a box, without the box, its title and the help that it repeats."""
    text = " ".join(re.sub("[\u2500-\u257f]", " ", message).split())
    for end in (" Argument helptext:", " For full helptext"):
        text = text.partition(end)[0]
    return re.sub(r"^(Value error Error parsing (config\.)?|Invalid choice (?=invalid)|Required options )", "", text)


def _registry() -> tyro.constructors.ConstructorRegistry:
    """Return what tyro must be told: a table of simple values is typed ``KEY=VALUE KEY=VALUE``."""
    registry = tyro.constructors.ConstructorRegistry()

    def value(text: str) -> Any:
        try:
            each = json.loads(text)
        except ValueError:
            return text
        return tuple(each) if isinstance(each, list) else each

    def table(words: Sequence[str]) -> dict[str, Any]:
        if any("=" not in word for word in words):
            raise ValueError("say KEY=VALUE KEY=VALUE")
        return {key: value(text) for key, _, text in (word.partition("=") for word in words)}

    @registry.primitive_rule
    def rule(info: Any) -> Any:
        if get_origin(info.type) is not Mapping:
            return None
        return tyro.constructors.PrimitiveConstructorSpec(
            nargs="*",
            metavar="KEY=VALUE ...",
            instance_from_str=table,
            is_instance=lambda each: isinstance(each, Mapping),
            str_from_instance=lambda each: [f"{key}={json.dumps(one)}" for key, one in each.items()],
        )

    return registry
