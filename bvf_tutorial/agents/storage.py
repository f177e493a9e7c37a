"""This file knows how a run's files survive crashes and second processes: atomic writes, checkpoints, a lock.

A checkpoint holds plain tensors, numbers and containers of them, so that reading one can run no code.
"""

import contextlib
import errno
import io
import os
import re
import socket
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "CheckpointError",
    "LockedError",
    "load_checkpoint",
    "load_file",
    "locked",
    "naming",
    "save_checkpoint",
    "write_atomically",
]

_FORMAT = "bvf_tutorial checkpoint 1"
_PARTIAL = re.compile(r"\..+\.(\d+|link)")


class CheckpointError(ValueError):
    """A file that is no readable checkpoint; the message names it, why, and what to do."""


class LockedError(RuntimeError):
    """Another process works in the folder; the message says which."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file that is complete or not there: beside its place, to the disk, then moved."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    with naming(path):
        try:
            with open(partial, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name the file in an error of the operating system, which says "no space left on device" and not where."""
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error


def save_checkpoint(path: Path, state: Mapping[str, Any]) -> None:
    """Write ``checkpoint.pt`` atomically and keep the one before it as ``checkpoint.previous.pt``."""
    buffer = io.BytesIO()
    torch.save({"format": _FORMAT, **state}, buffer)
    if path.exists() and _is_whole(path):  # of a damaged one, the one before is the better to keep
        # A copy by link, so that the newest checkpoint never has no name.
        link = path.with_name(f".{path.name}.link")
        link.unlink(missing_ok=True)
        try:
            os.link(path, link)
        except OSError:  # a file system without links
            write_atomically(link, path.read_bytes())
        os.replace(link, previous(path))
        link.unlink(missing_ok=True)  # two names of one file, as after a crash at this place, are not replaced
    write_atomically(path, buffer.getvalue())


def _is_whole(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except Exception:  # as many kinds as there are ways to be damaged
        return False


def previous(path: Path) -> Path:
    """Return where the checkpoint before this one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def load_checkpoint(path: Path, device: str) -> tuple[dict[str, Any], str]:
    """Return the newest readable checkpoint's state, and a warning where that is the one before the newest, else "".

    Raises:
        FileNotFoundError: there is none.
        CheckpointError: none is readable.
    """
    if not path.exists() and not previous(path).exists():
        raise FileNotFoundError(f"{path.parent} has no checkpoint; train there first.")
    try:
        return load_file(path, device, _FORMAT), ""
    except CheckpointError as error:
        if not previous(path).exists():
            raise CheckpointError(f"{error} There is no earlier one; begin again in a new folder.") from error
        state = load_file(previous(path), device, _FORMAT)
        return state, f"{error} Going on from the one before, {previous(path).name}."


def load_file(path: Path, device: str, kind: str) -> dict[str, Any]:
    """Return what a file holds whose entry ``format`` is ``kind``; every checksum is looked at, no code is run.

    Raises:
        CheckpointError: it is missing, damaged, or of another format.
        OSError: the device is not here; the file may be as good as ever.
    """
    if torch.device(device).type == "cuda" and not torch.cuda.is_available():
        raise OSError(f"{path} is asked for on {device!r}, and torch finds none here; use a machine that has one.")
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
        if broken is not None:
            raise CheckpointError(f"{path} is damaged: the checksum of {broken} is wrong.")
        state = torch.load(path, map_location=device, weights_only=True)
    except CheckpointError:
        raise
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} is missing.") from error
    except Exception as error:  # torch.load raises a dozen kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]  # some say nothing
        raise CheckpointError(f"{path} is not a readable checkpoint (cut short or foreign): {reason}.") from error
    if not isinstance(state, dict) or state.get("format") != kind:
        raise CheckpointError(f"{path} is a torch file, but no {kind.split()[1]} of this package in this version.")
    return state


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold a folder for this process.

    The operating system holds the lock and lets go when the process ends, however it ends; so a lock file without its
    process, left by a crash or a power cut, is no lock.

    Raises:
        LockedError: another process holds it.
    """
    import fcntl  # not on Windows, where only this function cannot be used

    path = folder / "lock"
    with open(path, "ab+", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            file.seek(0)
            owner = file.read().decode(errors="replace").strip() or "another process"
            raise LockedError(f"{folder} is in use by {owner}; wait for it, or stop it.") from error
        with naming(path):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n".encode())
        # A run's files are written under this lock, so what stands half written beside them is a killed process's.
        for partial in folder.glob(".*"):
            if _PARTIAL.fullmatch(partial.name):
                partial.unlink(missing_ok=True)
        try:
            yield
        finally:
            file.truncate(0)
