"""This file knows how to do work in a process that may be killed: a fork of this one, where torch is loaded already.

A fresh interpreter would spend most of its life importing torch, and most kills would hit that.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from tqdm import tqdm

__all__ = ["Fork"]


class Fork:
    """A child process that does ``work`` and exits with the status it returns; looks like a ``subprocess.Popen``.

    Args:
        work: done in the child, which never comes back from it.
        log: what it prints.
        is_leader: give it a process group of its own, with all its children.
    """

    def __init__(self, work: Callable[[], int], log: Path, is_leader: bool = False) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        status = 70
        try:
            if is_leader:
                os.setpgid(0, 0)
            target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            for number in (1, 2):
                os.dup2(target, number)
            # New ones: those of the parent are pytest's, and may hold text that was never written.
            sys.stdout, sys.stderr = (open(number, "w", buffering=1, closefd=False) for number in (1, 2))  # noqa: SIM115
            # tqdm's lock is a semaphore that forks share: one that is killed while it holds it would stop all others.
            tqdm.set_lock(threading.RLock())
            status = work()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    def poll(self) -> int | None:
        """Return the exit status, minus the signal's number after one, or None while it lives."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, seconds: float = 300.0) -> int:
        """Return the exit status when it has ended."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                raise TimeoutError(f"process {self.pid} did not end in {seconds} s")
            time.sleep(0.002)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal if it lives."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill_group(self) -> None:
        """Kill it and all its children at once, as a power cut does."""
        os.killpg(self.pid, signal.SIGKILL)
        self.wait()
