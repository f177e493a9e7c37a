"""Numbers that are none, from the environment, the network and MuJoCo: named; what is on the disk stays good."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from bvf_tutorial.agents import Trainer
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.agents.storage import load_checkpoint
from bvf_tutorial.agents.train import DivergenceError
from bvf_tutorial.envs import EnvironmentFault, PointGather, VectorEnv
from tests.faults.trainings import equal, numbers_of, tiny, trained

Change = Callable[[Trainer], None]


def hurt(folder: RunFolder, change: Change, after: int, error: type[Exception], message: str) -> None:
    """Train, spoil the trainer after so many updates; require the error, and good checkpoints before it."""
    with pytest.MonkeyPatch.context() as patch:
        advance, n_done = Trainer.advance, 0

        def spoiled(self: Trainer) -> Any:
            nonlocal n_done
            rows = advance(self)
            n_done += 1
            if n_done == after:
                change(self)
            return rows

        patch.setattr(Trainer, "advance", spoiled)
        with pytest.raises(error, match=message) as raised:
            trained(folder)
    assert folder.status == "failed"
    assert folder.manifest["error"] == f"{error.__name__}: {raised.value}"
    state, warning = load_checkpoint(folder.checkpoint, "cpu")
    assert warning == ""
    network = state["trainer"]["learner"]["network"]
    assert all(bool(value.isfinite().all()) for value in network.values())


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[bytes, dict[str, Any]]]:
    """What trainings come to that nothing disturbs."""
    kept: dict[str, tuple[bytes, dict[str, Any]]] = {}

    def whole(name: str) -> tuple[bytes, dict[str, Any]]:
        if name not in kept:
            folder = RunFolder.create(tmp_path_factory.mktemp("whole"), tiny(name, n_runs=2))
            trained(folder)
            kept[name] = numbers_of(folder)
        return kept[name]

    return whole


@pytest.mark.parametrize(
    ("key", "value"), [("observation", math.nan), ("reward", math.inf), ("cost", math.nan), ("cost", -1.0)]
)
def test_from_the_environment(key: str, value: float, tmp_path: Path, wholes: Any) -> None:
    """In the second world of the second run, at one step; gone when the training is resumed."""
    folder = RunFolder.create(tmp_path, tiny(n_runs=2))
    with pytest.MonkeyPatch.context() as patch:
        n_asked, own = 0, {name: getattr(PointGather, name) for name in ("observe", "cost", "move")}

        def spoil(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal n_asked
            n_asked += len(tensor) == 4
            if n_asked != 90 or len(tensor) != 4:
                return tensor
            tensor = tensor.clone()
            tensor[3] = value
            return tensor

        if key == "reward":

            def move(self: PointGather, *given: Any) -> Any:
                state, reward, terminated = own["move"](self, *given)
                return state, spoil(reward), terminated

            patch.setattr(PointGather, "move", move)
        else:
            name = "observe" if key == "observation" else "cost"
            patch.setattr(PointGather, name, lambda self, state: spoil(own[name](self, state)))
        step = 90 if key == "reward" else 89  # the start is step 0 and has no move
        wanted = "finite and >= 0" if key == "cost" else "finite"
        with pytest.raises(
            EnvironmentFault, match=rf"^PointGather, run 1, world 1, step {step}: {key} is .*; it must be {wanted}\.$"
        ):
            trained(folder)
    assert folder.status == "failed"
    assert folder.trainer()[0].done > 0
    assert trained(folder) == "finished"
    assert equal(numbers_of(folder), wholes("gather-a2c-pid"))


def set_weight(key: str, value: float = math.nan) -> Change:
    def change(trainer: Trainer) -> None:
        with torch.no_grad():
            trainer.learner.network.state_dict()[key].view(2, -1)[1, 0] = value

    return change


def set_sarsa_weight(trainer: Trainer) -> None:
    set_weight("q.weight.0")(trainer)
    trainer.learner._refresh()


# An actor's weight shows in its next action, a critic's in the action after its next update, or only in the network:
# NaN compares as false, so that a maximum or a projection over it is a number. Then it is seen before the next row.
@pytest.mark.parametrize(
    ("name", "change", "error", "message"),
    [
        ("gather-a2c-pid", set_weight("actor.weight.0"), EnvironmentFault, "^PointGather, run 1, world 0, step 50: action is .*nan.*finite"),
        ("gather-a2c-pid", set_weight("value.bias.0"), EnvironmentFault, "^PointGather, run 1, world 0, step 57: action is .*nan"),
        ("gather-a2c-pid", set_weight("log_std", math.inf), EnvironmentFault, "^PointGather, run 1, world 0, step 50: action is"),
        ("gather-ppo-backward", set_weight("backward.weight.1"), DivergenceError, r"^PointGather, run 1, seed 1, step 126: network backward\.weight\.0"),
        ("grid-sarsa-pid", set_sarsa_weight, DivergenceError, r"^GridWorld, run 1, seed 1, step 126: network q\.weight\.0 is not finite, the"),
    ],
)  # fmt: skip
def test_from_the_network(
    name: str, change: Change, error: type[Exception], message: str, tmp_path: Path, wholes: Any
) -> None:
    folder = RunFolder.create(tmp_path, tiny(name, n_runs=2))
    hurt(folder, change, 7, error, message)
    assert trained(folder) == "finished"
    assert equal(numbers_of(folder), wholes(name))


def test_a_network_that_diverges_in_the_update_before_a_checkpoint_is_not_saved(tmp_path: Path) -> None:
    """The update's own step; the row, and with it a checkpoint, is due at once."""
    folder = RunFolder.create(tmp_path, tiny(n_runs=2))
    with pytest.MonkeyPatch.context() as patch:
        step, n_steps = torch.optim.Adam.step, 0

        def spoiled(self: Any, *given: Any) -> None:
            nonlocal n_steps
            step(self, *given)
            n_steps += 1
            if n_steps == 9:
                with torch.no_grad():
                    self.param_groups[1]["params"][0].view(2, -1)[0, 0] = math.inf

        patch.setattr(torch.optim.Adam, "step", spoiled)
        with pytest.raises(DivergenceError, match=r"^PointGather, run 0, seed 0, step 126: network value\.weight\.0"):
            trained(folder)
    assert folder.trainer()[0].done == 84
    assert len(folder.table()["Step"]) == 2 * 2, "no row of it either"
    assert trained(folder) == "finished"


def test_a_training_that_is_stopped_with_a_bad_network_keeps_the_good_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path, tiny("grid-sarsa-pid", n_runs=2))
    n_done = 0

    def stop_after_seven(done: int, rows: Any) -> None:
        nonlocal n_done
        n_done += 1

    with pytest.MonkeyPatch.context() as patch:
        advance = Trainer.advance

        def spoiled(self: Trainer) -> Any:
            rows = advance(self)
            if n_done == 6:
                set_sarsa_weight(self)
            return rows

        patch.setattr(Trainer, "advance", spoiled)
        with pytest.raises(DivergenceError, match="step 98"):
            run(folder, stop_after_seven, lambda: n_done == 7, has_events=False, checkpoint_seconds=0.0)
    assert folder.trainer()[0].done == 84


@pytest.mark.parametrize(("key", "value"), [("position", math.nan), ("position", 1e12), ("velocity", math.inf)])
def test_from_mujoco(key: str, value: float, tmp_path: Path) -> None:
    """A bad qpos or qvel: the simulation stops, and the world, not its batch, is named."""
    config = tiny("cheetah-a2c-pid")
    config = replace(config, environment=replace(config.environment, options={"n_threads": 1}))
    folder = RunFolder.create(tmp_path, config)

    def change(trainer: Trainer) -> None:
        assert isinstance(trainer.env, VectorEnv)
        trainer.env._state = {name: each.clone() for name, each in trainer.env._state.items()}
        trainer.env._state[key][1, 1] = value

    hurt(
        folder,
        change,
        7,
        EnvironmentFault,
        r"^SafeCheetah, run 0, world 1, step 50: observation is \[.*nan.*\]; it must be finite\.$",
    )
    assert trained(folder) == "finished"
    whole = RunFolder.create(tmp_path, config)
    trained(whole)
    assert equal(numbers_of(folder), numbers_of(whole))
    assert not re.search("nan|inf", folder.metrics.read_text())
