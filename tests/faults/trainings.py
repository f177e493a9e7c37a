"""This file knows the smallest training that has everything a fault can hit, and what must be true of its folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bvf_tutorial.agents import Config, preset
from bvf_tutorial.agents.metrics import read_table
from bvf_tutorial.agents.plain import config_from_plain
from bvf_tutorial.agents.runs import RunFolder, run
from bvf_tutorial.agents.storage import load_checkpoint, previous

torch.set_num_threads(1)
SIZES: Mapping[str, Any] = {
    "n_runs": 1, "n_envs": 2, "n_env_steps": 210, "log_every": 42, "evaluate_every": 105, "n_evaluation_episodes": 1,
}  # fmt: skip
"""15 updates, rows of metrics every third, two evaluations."""


def tiny(name: str = "gather-a2c-pid", **sizes: Any) -> Config:
    """Return a preset whose rollouts end in the middle of episodes."""
    config = preset(name, **{**SIZES, **sizes})
    small = {"n_steps": 7} | ({} if "sarsa" in name else {"actor_hidden": (8,), "critic_hidden": (8, 8)})
    return replace(config, algorithm=replace(config.algorithm, **small))


def trained(folder: RunFolder) -> str:
    """Train to the end with a checkpoint at every row of metrics."""
    return run(folder, has_events=False, checkpoint_seconds=0.0)


def numbers_of(folder: RunFolder) -> tuple[bytes, dict[str, Any]]:
    """Return the table's bytes and everything the future would depend on."""
    return folder.metrics.read_bytes(), folder.trainer()[0].state_dict()


def equal(left: Any, right: Any) -> bool:
    """Whether two states are equal bit for bit."""
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and left.shape == right.shape and torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(equal(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(equal, left, right))
    return bool(left == right)


def require_whole(path: Path) -> None:
    """Fail if a file in the folder is half written and yet has the name under which a reader looks for it."""
    for each in path.iterdir():
        if each.name.startswith("."):
            continue  # beside its place; no reader asks for it
        if each.name == "config.json":
            config_from_plain(json.loads(each.read_text()))
        elif each.name == "manifest.json":
            assert json.loads(each.read_text())["status"]
        elif each.name in ("checkpoint.pt", previous(path / "checkpoint.pt").name):
            alone = path.parent / f"alone-{path.name}-{each.stem}"
            alone.mkdir(exist_ok=True)
            (alone / "checkpoint.pt").write_bytes(each.read_bytes())
            assert load_checkpoint(alone / "checkpoint.pt", "cpu")[1] == ""
        elif each.name == "metrics.csv":
            read_table(each)  # takes a last line without its end for none
        else:
            assert each.name in ("lock", "log.txt"), each.name


def refusal(work: Callable[[], Any], kind: type[Exception]) -> str:
    """Return what an error of this kind says, or "" where there is none; any other error comes through."""
    try:
        work()
    except kind as error:
        return str(error)
    return ""


def hidden(path: Path) -> list[str]:
    """Return the files that stand beside their places."""
    return sorted(each.name for each in path.iterdir() if each.name.startswith("."))
