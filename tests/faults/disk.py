"""This file knows a disk on which the k-th operation goes wrong, and what a run asks of a disk."""

from __future__ import annotations

import builtins
import errno
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bvf_tutorial.agents import metrics, storage

__all__ = ["Disk", "is_full", "is_killed"]


def is_full(path: str, is_named: bool) -> None:
    """Say that there is no space, as the operating system does: a failed write has no file's name."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), *([path] if is_named else []))


def is_killed(path: str, is_named: bool) -> None:
    """Die, as by ``kill -9`` or a power cut."""
    os.kill(os.getpid(), signal.SIGKILL)


class Disk:
    """Stands between the package's storage and the disk, counts operations from 1, and lets one go wrong.

    Args:
        patch: undoes it.
        at: the operation that goes wrong; 0 for none.
        fault: what goes wrong; a write has then written its first half.
        stays: every later operation that needs space goes wrong too.
    """

    def __init__(
        self, patch: pytest.MonkeyPatch, at: int = 0, fault: Callable[[str, bool], None] = is_full, stays: bool = False
    ) -> None:
        self.at, self.fault, self.stays = at, fault, stays
        self.done: list[tuple[str, str]] = []
        for module in (storage, metrics):
            patch.setattr(module, "open", self.open, raising=False)
        patch.setattr(storage, "os", _Os(self))

    def ask(self, what: str, path: str) -> bool:
        """Note an operation; return whether it goes wrong."""
        self.done.append((what, Path(path).name.replace(str(os.getpid()), "PID")))
        return len(self.done) == self.at or (self.stays and 0 < self.at < len(self.done))

    def open(self, path: Any, mode: str = "r", **arguments: Any) -> Any:
        if self.ask("open", str(path)):
            self.fault(str(path), True)
        return _File(self, str(path), builtins.open(path, mode, **arguments))


class _File:
    def __init__(self, disk: Disk, path: str, file: Any) -> None:
        self._disk, self._path, self._file = disk, path, file

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, data: Any) -> int:
        if self._disk.ask("write", self._path):
            self._file.write(data[: len(data) // 2])
            self._file.flush()
            self._disk.fault(self._path, False)
        return int(self._file.write(data))


class _Os:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def fsync(self, number: int) -> None:
        if self._disk.ask("fsync", ""):
            self._disk.fault("", False)
        os.fsync(number)

    def replace(self, source: Any, target: Any) -> None:
        if self._disk.ask("replace", str(target)):
            self._disk.fault(str(source), True)
        os.replace(source, target)

    def link(self, source: Any, target: Any) -> None:
        if self._disk.ask("link", str(target)):
            self._disk.fault(str(source), True)
        os.link(source, target)
