"""A thousand malformed configurations and models: refused by a documented error that names the key, never from inside."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import sparse

from bvf_tutorial import tabular as tb
from bvf_tutorial.agents import PRESETS, EnvironmentConfig, make_trainer
from bvf_tutorial.agents.plain import config_from_plain, flat, to_plain
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.cli import main
from bvf_tutorial.envs.registration import TASKS
from tests.faults.trainings import refusal, tiny

NAMES = ("circle-ppo-backward", "gather-a2c-pid", "grid-sarsa-safeguarded", "circle-ppo-lagrangian")
NUMBERS = st.one_of(
    st.sampled_from([0, -1, 0.0, -0.5, 1.5, math.nan, math.inf, -math.inf, 10**400, -(2**63), 1e300]),
    st.integers(-5, 5),
    st.floats(-3, 3),
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "nan", "inf", "-inf", "x", "0", "cpu:x", "\x00", "ä"])),
    lambda each: st.one_of(st.lists(each, max_size=3), st.dictionaries(st.sampled_from(["kind", "a", "options"]), each, max_size=2)),
    max_leaves=4,
)  # fmt: skip


def places(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Return the paths of all keys of nested tables."""
    if not isinstance(value, dict):
        return []
    return [each for key in value for each in [(*path, key), *places(value[key], (*path, key))]]


PLAIN = {name: json.loads(json.dumps(to_plain(PRESETS[name]))) for name in NAMES}
PLACES = {name: places(plain) for name, plain in PLAIN.items()}


@st.composite
def malformed(draw: st.DrawFn) -> tuple[Any, tuple[str, ...]]:
    """Draw a configuration with one key that is gone, misspelt or has another value; and the key's path."""
    name = draw(st.sampled_from(NAMES))
    plain, path = copy.deepcopy(PLAIN[name]), draw(st.sampled_from(PLACES[name]))
    place = plain
    for key in path[:-1]:
        place = place[key]
    how = draw(st.sampled_from(["value", "value", "value", "gone", "misspelt"]))
    old = place.pop(path[-1])
    if how == "misspelt":
        place[path[-1] + draw(st.sampled_from(["s", "_", "x y", ""]))[::-1] + "q"] = old
    elif how == "value":
        place[path[-1]] = draw(JSON)
    return plain, path


def is_named(path: tuple[str, ...], message: str) -> bool:
    """Whether a message has the key; a network's message says "hidden" for the widths of whichever network."""
    key = path[-1]
    return key in message or (key.endswith("_hidden") and "hidden" in message)


def require_clear(plain: Any, path: tuple[str, ...]) -> None:
    """Fail unless the configuration is accepted, or refused by a ValueError that names the key and is one of ours.

    What the standard library and torch raise from inside is no class of ours; of a bare ``ValueError`` the key tells.
    """

    def make() -> None:
        config = config_from_plain(plain)
        # Sizes that are valid and huge are the machine's affair.
        sizes = (config.n_runs, config.n_envs, config.n_evaluation_episodes)
        if max(sizes) <= 100 and config.device == "cpu":
            config.environment.make(2, 1)

    text = refusal(make, ValueError)
    assert not text or is_named(path, text), (path, text)


@given(malformed())
@settings(max_examples=50)
def test_fifty_malformed_configurations(drawn: tuple[Any, tuple[str, ...]]) -> None:
    require_clear(*drawn)


@pytest.mark.slow
@given(malformed())
@settings(max_examples=1000)
def test_a_thousand_malformed_configurations(drawn: tuple[Any, tuple[str, ...]]) -> None:
    require_clear(*drawn)


@st.composite
def options(draw: st.DrawFn) -> tuple[str, str, Any]:
    """Draw a task, one of its arguments, and a value for it from JSON."""
    task = draw(st.sampled_from(sorted(TASKS)))
    fields = [*EnvironmentConfig(task).make(1, 1).task.__dataclass_fields__]
    key = draw(st.sampled_from([each for each in fields if not each.startswith("_")]))
    return task, key, draw(JSON)


def require_clear_option(task: str, key: str, value: Any) -> None:
    is_huge = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > 100
    plain = to_plain(EnvironmentConfig(task))
    plain["options"] = {key: value}
    config = {**PLAIN["circle-ppo-backward"], "environment": plain}

    def make() -> None:
        environment = config_from_plain(config).environment
        if not is_huge:
            env = environment.make(2, 1)
            assert env.observation_space is not None
            assert env.action_space is not None

    text = refusal(make, ValueError)
    assert not text or key in text, (task, key, value, text)


@given(options())
@settings(max_examples=50)
def test_fifty_malformed_options_of_tasks(drawn: tuple[str, str, Any]) -> None:
    require_clear_option(*drawn)


@pytest.mark.slow
@given(options())
@settings(max_examples=1000)
def test_a_thousand_malformed_options_of_tasks(drawn: tuple[str, str, Any]) -> None:
    require_clear_option(*drawn)


SMALL = {"n_runs": 1, "n_envs": 2, "n_env_steps": 60, "log_every": 20, "evaluate_every": 0, "n_evaluation_episodes": 1}


@st.composite
def settings_of_algorithms(draw: st.DrawFn) -> tuple[Any, tuple[str, ...]]:
    """Draw a tiny configuration with one number of its algorithm or safety method changed."""
    name = draw(st.sampled_from(NAMES[1:]))
    plain = copy.deepcopy(PLAIN[name]) | SMALL
    short = {"n_steps": 5, "epochs": 2, "minibatches": 2}
    plain["algorithm"] |= {key: value for key, value in short.items() if key in plain["algorithm"]}
    paths = [
        path for path in PLACES[name] if path[0] in ("algorithm", "constraint") and path[1:] and path[-1] != "kind"
    ]
    path = draw(st.sampled_from(paths))
    place = plain
    for key in path[:-1]:
        place = place[key]
    if isinstance(place[path[-1]], list):
        place[path[-1]] = draw(st.lists(st.integers(-1, 3), max_size=3))
    elif isinstance(place[path[-1]], int | float) and not isinstance(place[path[-1]], bool):
        place[path[-1]] = draw(
            NUMBERS.filter(lambda value: abs(value) < 1e3 or value != value or abs(value) == math.inf)
        )
    else:
        assume(False)
    return plain, path


@pytest.mark.slow
@given(settings_of_algorithms())
@settings(max_examples=200)
def test_what_is_accepted_trains(drawn: tuple[Any, tuple[str, ...]]) -> None:
    """Or says in words that it diverged; a bad number found within an update is found too late."""
    plain, path = drawn
    text = refusal(lambda: make_trainer(config_from_plain(plain)), ValueError)
    assert not text or is_named(path, text), (path, text)
    if not text:
        trainer = make_trainer(config_from_plain(plain))
        text = refusal(lambda: [trainer.advance(), trainer.advance()], ValueError)
        assert not text or "finite" in text, (path, text)


def test_misspelt_files_are_refused_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = RunFolder.create(tmp_path, tiny())
    for key in flat(to_plain(tiny())):
        plain = to_plain(tiny())
        *path, last = key.split(".")
        place = plain
        for each in path:
            place = place[each]
        place[f"{last}x"] = place.pop(last)
        (folder.path / "config.json").write_text(json.dumps(plain))
        assert main(["train", "--resume", str(folder.path)]) == 1
        text = capsys.readouterr().err
        assert text.startswith(f"error: {folder.path / 'config.json'}: ")
        assert last in text
        assert text.count("\n") == 1


# Models.


def parts() -> dict[str, Any]:
    """The pieces of a valid model of three states and two actions."""
    generator = np.random.default_rng(0)
    transition = generator.dirichlet(np.ones(4), (3, 2))
    return {
        "transition": transition[..., :3], "reward": generator.normal(size=(3, 2)), "cost": np.array([0.0, 1.0, 2.0]),
        "initial": np.array([0.5, 0.5, 0.0]), "cost_limit": 1.0, "termination": transition[..., 3],
    }  # fmt: skip


ODD = st.sampled_from(
    [
        None, "text", b"bytes", "1", object(), {}, [], [[]], [[1.0], [1.0, 2.0]], [None], 1j, [1j], math.nan, -1.0, math.inf,
        10**400, True, np.zeros(0), np.zeros((0, 2)), np.zeros((3, 0)), np.zeros((3, 2, 3, 1)), np.ones((2, 2, 2)), np.ones(3) * 1j,
        np.array(["a", "b"]), np.array([1, "b"], dtype=object), np.array([{}], dtype=object), np.datetime64("2020-01-01"),
        sparse.eye_array(3), sparse.eye_array(3).tocsr() * 1j, sparse.csr_array((6, 3)), sparse.coo_array(np.ones((6, 3))),
        sparse.csr_array(np.full((6, 3), np.nan)), sparse.csr_matrix(np.ones((2, 3))), lambda: 0, [[[1.0]]], {"a": 1}, {1.0, 2.0},
        range(3), "nan", [[1, 2, 3], [4, 5, 6]], np.ma.masked_array([1.0, 2, 3], [True, False, False]),
    ]
)  # fmt: skip


@st.composite
def malformed_models(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw a model's pieces, one of which is something else, has another shape, or has a bad entry."""
    model, key = parts(), draw(st.sampled_from([*parts()]))
    how = draw(st.sampled_from(["odd", "entry", "shape", "sparse entry"]))
    value = np.array(model[key])
    if how == "odd":
        model[key] = draw(ODD)
    elif how == "shape" and value.ndim:
        axis = draw(st.integers(0, value.ndim - 1))
        model[key] = draw(
            st.sampled_from([value[..., None], value[0], np.delete(value, 0, axis), np.repeat(value, 2, axis), value.T])
        )
    else:
        if how == "sparse entry" and key == "transition":
            value = value.reshape(6, 3)
        where = tuple(draw(st.integers(0, size - 1)) for size in value.shape)
        value[where] = draw(st.sampled_from([math.nan, math.inf, -math.inf, -0.1, 1e9, value[where] + 0.01]))
        model[key] = sparse.csr_array(value) if how == "sparse entry" and key == "transition" else value
    return key, model


def require_clear_model(key: str, model: dict[str, Any]) -> None:
    limited = {name: value for name, value in model.items() if name != "termination"}
    makers: list[Callable[[], tb.CMDP]] = [lambda: tb.CMDP(**model)]
    if key != "termination":
        makers += [lambda: tb.CMDP.episodic(**limited), lambda: tb.CMDP.continuing(**limited)]
    for number, make in enumerate(makers):
        text = refusal(make, tb.TabularError)
        if not text:
            cmdp = make()
            assert cmdp.kernel.shape == (cmdp.n_states * cmdp.n_actions, cmdp.n_states)
            assert np.isfinite(cmdp.cost).all()
            assert (cmdp.cost >= 0).all()
            assert cmdp.initial.sum() == pytest.approx(1)
            assert 0 <= cmdp.cost_limit < math.inf
        elif number < 2:  # as a continuing model each of these is refused already for its missing mass
            assert key in text or key == "termination", (key, text)


@given(malformed_models())
@settings(max_examples=50)
def test_fifty_malformed_models(drawn: tuple[str, dict[str, Any]]) -> None:
    require_clear_model(*drawn)


@pytest.mark.slow
@given(malformed_models())
@settings(max_examples=1000)
def test_a_thousand_malformed_models(drawn: tuple[str, dict[str, Any]]) -> None:
    require_clear_model(*drawn)


@given(ODD)
@settings(max_examples=50)
def test_malformed_chains_and_policies(odd: Any) -> None:
    start = np.array([0.5, 0.5, 0.0])
    half = np.full((3, 3), 1 / 6)
    for make in (
        lambda: tb.Chain.killed(odd, start), lambda: tb.Chain.continuing(odd), lambda: tb.Chain.killed(half, odd),
        lambda: tb.Chain(half, odd, start), lambda: tb.policy_chain(tb.CMDP(**parts()), odd),
    ):  # fmt: skip
        assert refusal(make, tb.TabularError) or make().initial.sum() == pytest.approx(1)
