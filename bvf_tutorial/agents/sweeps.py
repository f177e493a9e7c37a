"""This file knows many trainings: which configurations a sweep has, and how each trains in a process of its own."""

import itertools
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import Config
from .plain import ConfigError, changed, differences
from .presets import preset
from .runs import RunFolder

__all__ = ["planned", "sweep", "values_of"]


def values_of(text: str) -> list[Any]:
    """Return the values that ``1e-3,3e-3``, ``true,false``, ``[64,64],[32,32]`` or ``backward,lyapunov`` stands for."""
    try:
        values: list[Any] = json.loads(f"[{text}]")
    except ValueError:
        return [each.strip() for each in text.split(",")]
    return values


def planned(
    presets: Sequence[str], seeds: Sequence[int], settings: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, Config], dict[str, str]]:
    """Return the configurations of a sweep by folder name, and the errors of those that are none.

    Args:
        presets: names.
        seeds: of the first runs; empty for the presets' own.
        settings: values by dotted key of the configuration; every combination is one training.

    Raises:
        KeyError: no such preset.
        ConfigError: no such setting; a value that is out of range is an error of its own configuration only.
    """
    configs, errors = {}, {}
    varied = {**{key: [*values] for key, values in settings.items()}, **({"seed": [*seeds]} if seeds else {})}
    for name in presets:
        for combination in itertools.product(*varied.values()):
            changes = dict(zip(varied, combination, strict=True))
            shown = [f"{key}={value}" for key, value in changes.items() if len(varied[key]) > 1 or key == "seed"]
            folder = re.sub(r"[^\w.=+-]+", "_", "-".join([name, *shown]))
            base = preset(name)
            try:
                configs[folder] = changed(base, {"name": "-".join([name, *shown]), **changes})
            except ConfigError as error:
                if "no setting" in str(error):
                    raise
                errors[folder] = str(error)
            except ValueError as error:
                errors[folder] = str(error)
    return configs, errors


def sweep(
    parent: Path,
    configs: Mapping[str, Config],
    n_processes: int = 1,
    arguments: Sequence[str] = (),
    tell: Callable[[str], None] = print,
    is_stopped: Callable[[], bool] = lambda: False,
) -> dict[str, str]:
    """Train every configuration in its own folder and process; return how each ended, "failed: why" for an error.

    Finished ones are skipped, begun ones go on from their checkpoint. What a training prints is in its ``log.txt``.

    Args:
        parent: of the folders.
        configs: by folder name.
        n_processes: at once, at least 1.
        arguments: further ones for ``train``.
        tell: told one line about every start and end.
        is_stopped: asked often; true interrupts the running ones, which write checkpoints, and starts no more.

    Raises:
        ValueError: ``n_processes`` is less than 1.
    """
    if n_processes < 1:
        raise ValueError(f"n_processes is {n_processes}; it is at least 1.")
    status, waiting = {}, []
    for name, config in configs.items():
        try:
            folder = _prepared(parent / name, config)
            if folder.status == "finished":
                status[name] = "finished"
                tell(f"{name}: already finished")
            else:
                (folder.path / "log.txt").open("ab").close()  # or its process could not be started
                waiting.append(folder)
        except (ConfigError, OSError) as error:
            status[name] = f"failed: {error}"
            tell(f"{name}: {status[name]}")
    running: dict[str, tuple[RunFolder, subprocess.Popen[bytes]]] = {}
    was_told = False
    while waiting or running:
        if is_stopped() and not was_told:
            was_told = True
            for _, process in running.values():
                process.send_signal(signal.SIGINT)
            status |= {folder.path.name: "not started" for folder in waiting}
            waiting.clear()
        while waiting and len(running) < n_processes:
            folder = waiting.pop(0)
            tell(f"{folder.path.name}: training")
            running[folder.path.name] = (folder, _started(folder, arguments))
        for name, (folder, process) in [*running.items()]:
            if process.poll() is not None:
                status[name] = _ended(folder, process.returncode)
                tell(f"{name}: {status[name]}")
                del running[name]
        time.sleep(0.1)
    return {name: status[name] for name in configs}


def _prepared(path: Path, config: Config) -> RunFolder:
    path.mkdir(parents=True, exist_ok=True)
    if not (path / "config.json").exists():
        return RunFolder.begin(path, config)
    folder = RunFolder.open(path)
    keys = differences(config, folder.config)
    if keys:
        raise ConfigError(f"{path} holds a training with other {', '.join(keys)}; give another folder.")
    return folder


def _started(folder: RunFolder, arguments: Sequence[str]) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "bvf_tutorial", "train", "--resume", str(folder.path), *arguments]
    with open(folder.path / "log.txt", "ab") as log:
        # In a session of its own, so that a Ctrl-C in the terminal reaches it once, through the sweep.
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def _ended(folder: RunFolder, code: int) -> str:
    if code == 0:
        return "finished"
    if code in (128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM):
        return "interrupted"
    lines = (folder.path / "log.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    last = lines[-1] if lines else ""
    # Not the last line, which may be of a worker that outlived its sweep and trains here still.
    errors = [line for line in lines if re.match(r"error: |[\w.]+(Error|Exception)\b", line)]
    if code == 1 and errors:
        return f"failed: {errors[-1]}"
    # A process that died without a word: its last line says how far it was, not what happened.
    how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit status {code}"
    return f"failed: {how}{f' after: {last}' if last else ''}"
