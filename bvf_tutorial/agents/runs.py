"""This file knows a run's folder: what stands in it, and how a training there starts, stops and goes on.

``config.json`` (all of ``Config``), ``metrics.csv``, ``manifest.json`` (where the numbers come from), ``checkpoint.pt``
and the one before it, ``tensorboard/``, ``lock``.
"""

import contextlib
import importlib.metadata
import json
import math
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch

from .config import Config, make_trainer
from .metrics import append_rows, cut_back, read_table
from .plain import ConfigError, config_from_plain, differences, to_plain
from .storage import CheckpointError, load_checkpoint, locked, save_checkpoint, write_atomically
from .train import Row, Trainer

__all__ = ["Report", "RunFolder", "processor", "run"]

Report = Callable[[int, Sequence[Row]], None]
"""Called after every update with the environment steps per run so far and the rows of metrics that were due."""


@dataclass(frozen=True)
class RunFolder:
    """A folder with a training in it.

    Attributes:
        path: the folder; it has a ``config.json``.
    """

    path: Path

    @classmethod
    def create(cls, parent: Path, config: Config, name: str = "") -> Self:
        """Make a folder that no other process has, and write the configuration into it.

        Args:
            parent: is made if need be.
            config: what will be trained.
            name: of the folder; "" for the configuration's name and the time, made unique by a number.

        Raises:
            FileExistsError: ``name`` was given and exists.
        """
        parent.mkdir(parents=True, exist_ok=True)
        stem = name or f"{config.name}-{time.strftime('%Y%m%d-%H%M%S')}"
        path, number = parent / stem, 2
        # Only one of many processes succeeds in making a folder; the time alone would not tell them apart.
        while True:
            try:
                path.mkdir()
                break
            except FileExistsError:
                if name:
                    raise
                path, number = parent / f"{stem}-{number}", number + 1
        return cls.begin(path, config)

    @classmethod
    def begin(cls, path: Path, config: Config) -> Self:
        """Write the configuration and the first manifest into an existing folder."""
        folder = cls(path)
        folder.update_manifest(status="created", command=[*sys.argv], wall_seconds=0.0, cpu_seconds=0.0, n_sessions=0)
        folder._write("config.json", to_plain(config))
        return folder

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return an existing run's folder.

        Raises:
            FileNotFoundError: it has no ``config.json``.
        """
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} is no run's folder: it has no config.json.")
        return cls(path)

    @property
    def config(self) -> Config:
        """The configuration.

        Raises:
            ConfigError: the file is no JSON, or no configuration; the message names the file and the key.
        """
        plain = self._read("config.json")
        try:
            config: Config = config_from_plain(plain)
        except ValueError as error:
            raise ConfigError(f"{self.path / 'config.json'}: {error}") from error
        return config

    @property
    def manifest(self) -> dict[str, Any]:
        """Where the numbers come from, and how far the training is."""
        found: dict[str, Any] = self._read("manifest.json") if (self.path / "manifest.json").exists() else {}
        if not isinstance(found, dict):
            raise ConfigError(f"{self.path / 'manifest.json'} holds no table of names and values; remove it.")
        return found

    @property
    def status(self) -> str:
        """How it stands, as "created", "running", "finished", "interrupted" or "failed"; a crash leaves "running"."""
        return str(self.manifest.get("status", "created"))

    @property
    def checkpoint(self) -> Path:
        """Where the newest checkpoint stands."""
        return self.path / "checkpoint.pt"

    @property
    def metrics(self) -> Path:
        """Where the table of metrics stands."""
        return self.path / "metrics.csv"

    def update_manifest(self, **entry: Any) -> None:
        """Write entries of the manifest, keeping the others; the error of an earlier status goes with it."""
        kept = {key: each for key, each in self.manifest.items() if key != "error" or "status" not in entry}
        self._write("manifest.json", kept | entry)

    def trainer(self) -> tuple[Trainer, int, str]:
        """Return the trainer as its checkpoint left it, the rows logged by then, and a warning or "".

        Raises:
            FileNotFoundError: there is no checkpoint.
            OSError: the training's device is not here.
            CheckpointError: none is readable, or it is of another version of this package.
            ConfigError: the checkpoint is of another configuration; the message names the keys.
        """
        config = self.config
        state, warning = load_checkpoint(self.checkpoint, config.device)
        trainer = make_trainer(config)
        try:
            keys = differences(config, config_from_plain(state["config"]))
            if not keys:
                trainer.load_state_dict(state["trainer"])
                return trainer, int(state["n_rows"]), warning
        # Whatever a state with other entries, shapes or types gives.
        except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            raise CheckpointError(
                f"{self.checkpoint} does not fit this version of the package ({type(error).__name__}: "
                f"{' '.join(str(error).split())}); go on with the version that manifest.json names, or begin again in "
                "a new folder."
            ) from error
        raise ConfigError(f"{self.path / 'config.json'} is not the checkpoint's: {', '.join(keys)} differ.")

    def save(self, trainer: Trainer, n_rows: int) -> None:
        """Write a checkpoint."""
        state = {"config": to_plain(self.config), "n_rows": n_rows, "trainer": trainer.state_dict()}
        save_checkpoint(self.checkpoint, state)

    def table(self) -> dict[str, Any]:
        """Return the columns of ``metrics.csv`` by name."""
        return read_table(self.metrics)

    def _read(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{self.path / name} is not JSON: {error}.") from error

    def _write(self, name: str, value: Any) -> None:
        text = json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False)
        write_atomically(self.path / name, f"{text}\n".encode())


def run(
    folder: RunFolder,
    report: Report = lambda done, rows: None,
    is_stopped: Callable[[], bool] = lambda: False,
    has_events: bool = True,
    checkpoint_seconds: float = 60.0,
) -> str:
    """Train in a folder from its checkpoint, or from the start, to the end; return the status it ends with.

    A checkpoint is written at the end, when stopped, and with a row of metrics at most every ``checkpoint_seconds``.

    Args:
        folder: not finished, and of no other process.
        report: told about progress.
        is_stopped: asked after every update; true ends with a checkpoint and the status "interrupted".
        has_events: write TensorBoard events, if tensorboard is installed.
        checkpoint_seconds: wall time between checkpoints.

    Raises:
        LockedError: another process trains there.
        CheckpointError: no checkpoint is readable.
    """
    with locked(folder.path), _recorded(folder) as ending:
        trainer, n_rows = _begun(folder)
        folder.update_manifest(
            cost_limit=trainer.learner.setting.cost_limit, seeds=[*trainer.learner.setting.seeds], done=trainer.done
        )
        with _events(folder.path / "tensorboard", trainer, has_events) as write_events:
            saved = time.monotonic()
            while not trainer.is_finished and not is_stopped():
                rows = trainer.advance()
                if rows:
                    append_rows(folder.metrics, rows)
                    n_rows += len(rows)
                    write_events(rows)
                    # A clock that went back must not put the next checkpoint off.
                    if not 0 <= time.monotonic() - saved < checkpoint_seconds:
                        folder.save(trainer, n_rows)
                        saved = time.monotonic()
                report(trainer.done, rows)
        folder.save(trainer, n_rows)
        status = "finished" if trainer.is_finished else "interrupted"
        ending |= {"status": status, "done": trainer.done}
    return status


def _begun(folder: RunFolder) -> tuple[Trainer, int]:
    try:
        trainer, n_rows, warning = folder.trainer()
    except FileNotFoundError:
        trainer, n_rows, warning = make_trainer(folder.config), 0, ""
    if warning:
        print(warning, file=sys.stderr)
    if n_rows or folder.metrics.exists():
        cut_back(folder.metrics, n_rows)
    return trainer, n_rows


@contextlib.contextmanager
def _recorded(folder: RunFolder) -> Iterator[dict[str, Any]]:
    """Keep the manifest true: times add up over resumes, and how it ended stands there, whatever happens.

    Yields a table to fill with how it ended. One write brings it and the times: a run killed between two would be
    finished without its times, and nobody would come to remove what the second left half written.
    """
    before, wall, cpu = folder.manifest, time.monotonic(), time.process_time()

    def spent() -> dict[str, Any]:
        wall_seconds = max(0.0, time.monotonic() - wall)  # clocks have gone back
        cpu_seconds = max(0.0, time.process_time() - cpu)
        return {
            "wall_seconds": round(float(before.get("wall_seconds", 0.0)) + wall_seconds, 3),
            "cpu_seconds": round(float(before.get("cpu_seconds", 0.0)) + cpu_seconds, 3),
            "ended": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        }

    folder.update_manifest(
        status="running", process=os.getpid(), n_sessions=int(before.get("n_sessions", 0)) + 1,
        started=before.get("started", time.strftime("%Y-%m-%dT%H:%M:%S%z")), **_origin(folder.config),
    )  # fmt: skip
    ending: dict[str, Any] = {}
    try:
        yield ending
    except BaseException as error:
        ending = {"status": "failed", "error": f"{type(error).__name__}: {error}"}
        if isinstance(error, KeyboardInterrupt):
            ending = {"status": "interrupted"}
        with contextlib.suppress(OSError):  # on a full disk, what could not be written first is what to tell
            folder.update_manifest(**ending, **spent())
        raise
    folder.update_manifest(**ending, **spent())


def _origin(config: Config) -> dict[str, Any]:
    """Return what code on what machine makes the numbers."""
    here = Path(__file__).parent

    def git(*arguments: str) -> str:
        try:
            # Without its optional locks, for which a commit that is made at this moment would fail.
            command = ["git", "--no-optional-locks", "-C", str(here), *arguments]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    def version(name: str) -> str:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return ""

    packages = ("bvf-tutorial", "numpy", "torch", "mujoco", "gymnasium")
    is_cuda = torch.device(config.device).type == "cuda"
    return {
        "commit": git("rev-parse", "HEAD"),
        "is_dirty": bool(git("status", "--porcelain")),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in packages}},
        "device": config.device,
        "hardware": {
            "platform": platform.platform(),
            "processor": processor(),
            "cores": os.cpu_count(),
            "accelerator": torch.cuda.get_device_name(config.device) if is_cuda else "",
            "threads": torch.get_num_threads(),
        },
    }


def processor() -> str:
    """Return the name of this machine's processor as the system tells it, "" if it does not."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in text.splitlines() if line.startswith("model name")]
    return names[0] if names else platform.processor()


@contextlib.contextmanager
def _events(path: Path, trainer: Trainer, is_wanted: bool) -> Iterator[Callable[[Sequence[Row]], None]]:
    """Give a function that writes rows as TensorBoard events: one folder, and curve, a seed, tagged by metric.

    TensorBoard shows folders as curves of one chart; a mean over seeds would hide the one that is stuck.
    """
    if not is_wanted:
        yield lambda rows: None
        return
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        print(f"no TensorBoard events are written ({error}): pip install tensorboard", file=sys.stderr)
        yield lambda rows: None
        return
    writers = {
        seed: SummaryWriter(str(path / f"seed_{seed}"), purge_step=trainer.done + 1)
        for seed in trainer.learner.setting.seeds
    }

    def write(rows: Sequence[Row]) -> None:
        for row in rows:
            for key, value in row.items():
                if key not in ("Step", "Seed") and math.isfinite(value):
                    writers[int(row["Seed"])].add_scalar(key, value, int(row["Step"]))

    try:
        yield write
    finally:
        for writer in writers.values():
            writer.close()
