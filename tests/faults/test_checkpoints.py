"""Checkpoints that are cut, changed, foreign or of other times: named, or the one before is used; no code is run."""

from __future__ import annotations

import io
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bvf_tutorial import api
from bvf_tutorial.agents.plain import ConfigError
from bvf_tutorial.agents.replay import evaluate_folder, film
from bvf_tutorial.agents.runs import RunFolder
from bvf_tutorial.agents.storage import CheckpointError, load_checkpoint, previous, save_checkpoint
from bvf_tutorial.cli import main
from tests.faults.disk import Disk
from tests.faults.trainings import equal, refusal, tiny, trained

MARK = Path("executed")


class Bomb:
    """Leaves a mark where it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (str(MARK),)


@pytest.fixture(autouse=True)
def nothing_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert not MARK.exists()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint and the one before it."""
    folder = RunFolder.create(tmp_path_factory.mktemp("finished"), tiny())
    trained(folder)
    return folder.path


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> RunFolder:
    path = tmp_path / "run"
    path.mkdir()
    for each in finished.iterdir():
        (path / each.name).write_bytes(each.read_bytes())
    return RunFolder.open(path)


def saved(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def zipped(content: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def scripted() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(2, 2)), buffer)
    return buffer.getvalue()


def read_error(path: Path, data: bytes) -> str:
    """Return what is said about a file that stands alone and is no checkpoint."""
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as raised:
        load_checkpoint(path, "cpu")
    return str(raised.value)


FOREIGN: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "not a readable checkpoint"),
    "text": (lambda: b"step,cost\n1,2\n", "not a readable checkpoint"),
    "pickle with code": (lambda: pickle.dumps(Bomb()), "not a readable checkpoint"),
    "torch pickle with code": (lambda: saved({"format": "bvf_tutorial checkpoint 1", "x": Bomb()}), "not a readable checkpoint"),
    "old torch file": (lambda: _old({"format": "bvf_tutorial checkpoint 1"}), "not a readable checkpoint"),
    "old torch file with code": (lambda: _old(Bomb()), "not a readable checkpoint"),
    "zip": (lambda: zipped({"a.txt": b"a"}), "not a readable checkpoint"),
    "zip of nothing": (lambda: zipped({}), "not a readable checkpoint"),
    "zip with a pickle with code": (lambda: zipped({"a/data.pkl": pickle.dumps(Bomb()), "a/version": b"3\n"}), "not a readable checkpoint"),
    "packed zip": (lambda: zipped({"a/data.pkl": bytes(999)}, zipfile.ZIP_DEFLATED), "not a readable checkpoint"),
    "scripted module": (scripted, "not a readable checkpoint"),
    "network": (lambda: saved(nn.Linear(2, 2).state_dict()), "no checkpoint of this package"),
    "tensor": (lambda: saved(torch.ones(3)), "no checkpoint of this package"),
    "whole network": (lambda: saved(nn.Linear(2, 2)), "not a readable checkpoint"),
    "other version": (lambda: saved({"format": "bvf_tutorial checkpoint 2"}), "no checkpoint of this package"),
    "policy": (lambda: saved({"format": "bvf_tutorial policy 1"}), "no checkpoint of this package"),
}  # fmt: skip


def _old(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own scripts
@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files_are_named_and_the_one_before_is_used(kind: str, tmp_path: Path) -> None:
    make, message = FOREIGN[kind]
    path = tmp_path / "checkpoint.pt"
    text = read_error(path, make())
    assert text.startswith(str(path))
    assert message in text
    assert text.endswith("There is no earlier one; begin again in a new folder.")
    previous(path).write_bytes(saved({"format": "bvf_tutorial checkpoint 1", "number": 1}))
    state, warning = load_checkpoint(path, "cpu")
    assert state["number"] == 1
    assert warning.startswith(str(path))
    assert warning.endswith("Going on from the one before, checkpoint.previous.pt.")


def cut(data: bytes, lengths: range, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for length in lengths:
        text = read_error(path, data[:length])
        assert text.startswith(f"{path} is not a readable checkpoint"), (length, text)


def test_a_small_checkpoint_cut_at_every_97th_byte(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"tensor": torch.arange(1000.0), "number": 1})
    data = path.read_bytes()
    cut(data, range(0, len(data), 97), tmp_path)


@pytest.mark.slow
def test_a_checkpoint_cut_at_every_97th_byte(finished: Path, tmp_path: Path) -> None:
    data = (finished / "checkpoint.pt").read_bytes()
    cut(data, range(0, len(data), 97), tmp_path)


def change(data: bytes, wanted: Any, n: int, tmp_path: Path) -> int:
    """Change bytes of a checkpoint, one at a time: an error, or a state without a difference; return how many errors."""
    path, generator, n_errors = tmp_path / "checkpoint.pt", np.random.default_rng(97), 0
    for place in np.sort(generator.choice(len(data), n, replace=False)):
        changed = bytearray(data)
        changed[place] ^= 1 << int(generator.integers(8))
        path.write_bytes(bytes(changed))
        text = refusal(lambda: load_checkpoint(path, "cpu"), CheckpointError)
        n_errors += bool(text)
        assert text.startswith(str(path)) or equal(load_checkpoint(path, "cpu")[0], wanted), place
    return n_errors


def test_a_changed_byte_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"tensor": torch.arange(100.0), "number": 1, "names": ["a", "b"]})
    data, wanted = path.read_bytes(), load_checkpoint(path, "cpu")[0]
    assert change(data, wanted, 300, tmp_path) > 100


@pytest.mark.slow
def test_every_changed_byte_of_a_small_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    save_checkpoint(path, {"tensor": torch.arange(100.0), "number": 1, "names": ["a", "b"]})
    data, wanted = path.read_bytes(), load_checkpoint(path, "cpu")[0]
    for _ in range(2):
        change(data, wanted, len(data), tmp_path)


@pytest.mark.slow
def test_a_changed_byte_of_a_training_is_found_or_changes_nothing(finished: Path, tmp_path: Path) -> None:
    data, wanted = (finished / "checkpoint.pt").read_bytes(), load_checkpoint(finished / "checkpoint.pt", "cpu")[0]
    change(data, wanted, 1000, tmp_path)


def test_a_damaged_checkpoint_never_takes_the_place_of_the_good_one_before(tmp_path: Path) -> None:
    """Whatever goes wrong in the first save after going on from the one before."""
    path, n_failed = tmp_path / "checkpoint.pt", 0
    for operation in range(1, 10):
        previous(path).unlink(missing_ok=True)
        save_checkpoint(path, {"number": 1})
        save_checkpoint(path, {"number": 2})
        path.write_bytes(path.read_bytes()[:-97])
        with pytest.MonkeyPatch.context() as patch:
            disk = Disk(patch, operation)
            n_failed += bool(refusal(lambda: save_checkpoint(path, {"number": 3}), OSError))
        assert load_checkpoint(path, "cpu")[0]["number"] == (1 if len(disk.done) >= operation else 3)
        assert load_checkpoint(previous(path), "cpu")[0]["number"] == 1
    assert n_failed == 4, "open, write, fsync and replace"


# Checkpoints that can be read and do not fit.


def edited(folder: RunFolder, edit: Callable[[dict[str, Any]], Any]) -> None:
    state = torch.load(folder.checkpoint, weights_only=True)
    edit(state)
    torch.save(state, folder.checkpoint)


def without(*keys: str) -> Callable[[dict[str, Any]], Any]:
    def edit(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        del state[keys[-1]]

    return edit


def with_value(value: Any, *keys: str) -> Callable[[dict[str, Any]], Any]:
    def edit(state: dict[str, Any]) -> None:
        for key in keys[:-1]:
            state = state[key]
        state[keys[-1]] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (without("config"), "KeyError: 'config'"),
        (without("config", "n_envs"), "'n_envs' is missing"),
        (with_value(3, "config", "n_new"), "no setting 'n_new'"),
        (with_value([], "config"), "must be a table"),
        (without("trainer"), "KeyError: 'trainer'"),
        (without("trainer", "evaluated"), "KeyError: 'evaluated'"),
        (without("trainer", "learner", "memory", "carry"), "KeyError: 'carry'"),
        (without("trainer", "learner", "network", "log_std"), "Missing key"),
        (with_value(torch.ones(3), "trainer", "learner", "network", "log_std"), "size mismatch"),
        (with_value(torch.ones(3), "trainer", "step", "new"), "TypeError"),
        (with_value(3, "trainer", "env"), "TypeError"),
        (with_value([0], "trainer", "env", "seed"), "1 worlds"),
        (with_value("many", "trainer", "done"), "ValueError"),
        (with_value("many", "n_rows"), "ValueError"),
    ],
)
def test_checkpoints_of_other_versions_say_so(
    edit: Callable[[dict[str, Any]], Any], message: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    edited(folder, edit)
    folder.update_manifest(status="running")
    before = folder.metrics.read_bytes()
    assert main(["train", "--resume", str(folder.path), "--no-tensorboard"]) == 1
    text = capsys.readouterr().err
    assert text.startswith(f"error: {folder.checkpoint} does not fit this version of the package (")
    assert message in text
    assert text.count("\n") == 1
    assert folder.metrics.read_bytes() == before


def test_another_trainings_checkpoint_is_refused_by_its_settings(folder: RunFolder, tmp_path: Path) -> None:
    other = RunFolder.create(tmp_path, tiny("gather-ppo-backward", seed=3))
    trained(other)
    folder.checkpoint.write_bytes(other.checkpoint.read_bytes())
    with pytest.raises(
        ConfigError, match=r"config.json is not the checkpoint's: name, .*constraint.state_rule, .*seed.* differ"
    ):
        folder.trainer()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "NaN", '{"n_runs": 1}', "\x00"])
def test_damaged_configurations_are_named(text: str, folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.path / "config.json").write_text(text)
    path = str(folder.path)
    for words in (["train", "--resume", path], ["evaluate", path], ["video", path], ["plot", path, "--out", "x.png"]):
        assert main(words) == 1
        said = capsys.readouterr().err
        assert said.startswith("error: ")
        assert str(folder.path / "config.json") in said, said


def test_a_table_of_fewer_rows_than_its_checkpoint_is_refused(folder: RunFolder) -> None:
    folder.metrics.write_text("")
    folder.update_manifest(status="running")
    with pytest.raises(ValueError, match=re.escape(f"{folder.metrics} has 0 rows, the checkpoint was taken after 5")):
        trained(folder)


# Whoever reads a checkpoint says when it is not the newest.


def test_evaluations_and_films_say_that_they_are_of_the_one_before(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    folder.checkpoint.write_bytes(folder.checkpoint.read_bytes()[:-97])
    assert evaluate_folder(folder, 1, is_deterministic=True)["n_episodes"] == 1
    assert "Going on from the one before" in capsys.readouterr().err
    next(film(folder, size=(32, 32)))
    assert "Going on from the one before" in capsys.readouterr().err


# Policies in a file of their own.


def test_policies_that_are_damaged_or_foreign_are_refused(folder: RunFolder, tmp_path: Path) -> None:
    config, path = folder.config, tmp_path / "policy.pt"
    policy = api.Policy(folder.trainer()[0].learner, config.algorithm, config.constraint)
    policy.save(path)
    data = path.read_bytes()
    whole = torch.load(path, weights_only=True)
    weight = whole["learner"]["network"]["actor.weight.0"].numpy().tobytes()
    flipped = bytearray(data)
    flipped[data.index(weight) + 2] ^= 64
    wrong = [b"", data[:-97], bytes(flipped), pickle.dumps(Bomb()), folder.checkpoint.read_bytes(), saved(Bomb())]
    wrong += [saved({key: value for key, value in whole.items() if key != gone}) for gone in whole]
    wrong += [saved(whole | {key: "new"}) for key in ("learner", "algorithm", "action", "observation", "seeds")]
    for each in wrong:
        path.write_bytes(each)
        with pytest.raises(ValueError, match=r"policy\.pt is damaged, or no policy of this package \("):
            api.load(path)
    path.write_bytes(data)
    assert api.load(path)(np.zeros(policy.learner.setting.observation_space.shape)) is not None
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"policy\.pt does not exist"):
        api.load(path)
