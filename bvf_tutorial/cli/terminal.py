"""This file knows how a training shows itself while it runs, and how it is asked to stop."""

import contextlib
import math
import signal
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tqdm import tqdm

if TYPE_CHECKING:
    from ..agents import Row
    from ..agents.runs import RunFolder

__all__ = ["Progress", "stoppable"]


class Progress:
    """A bar on a terminal, a line per row of metrics elsewhere: return, cost against the limit, steps per second.

    Means are over the seeds; steps per second count those of all seeds.

    Args:
        folder: of the training.
    """

    def __init__(self, folder: "RunFolder") -> None:
        self._folder, config = folder, folder.config
        self._n_runs, self._total = config.n_runs, config.n_env_steps
        self._done, self._seen, self._since = int(folder.manifest.get("done", 0)), -1, time.monotonic()
        self._bar: Any = tqdm(
            total=self._total * self._n_runs,
            initial=self._done * self._n_runs,
            unit=" steps",
            unit_scale=True,
            disable=not sys.stderr.isatty(),
            dynamic_ncols=True,
        )

    def __call__(self, done: int, rows: Sequence["Row"]) -> None:
        """Show progress; see ``agents.runs.Report``."""
        if self._seen < 0:  # the first update also loads, compiles and warms up
            self._seen, self._since = done, time.monotonic()
        self._bar.update((done - self._done) * self._n_runs)
        self._done = done
        if not rows:
            return
        limit = float(self._folder.manifest["cost_limit"])
        text = f"return {_mean(rows, 'EpRet')}, cost {_mean(rows, 'EpCost')} of {limit:g}"
        self._bar.set_postfix_str(text)
        if self._bar.disable:
            seconds = time.monotonic() - self._since
            # A coarse clock may stand still between two rows, and a clock may be put back.
            has_speed = done > self._seen and seconds > 0
            speed = f", {(done - self._seen) * self._n_runs / seconds:,.0f} steps/s" if has_speed else ""
            print(f"step {done:,} of {self._total:,}: {text}{speed}", flush=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


@contextlib.contextmanager
def stoppable() -> Iterator[list[int]]:
    """Give a list that has the signal's number after Ctrl-C or a request to terminate; a second one stops at once."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: object) -> None:
        caught.append(number)
        for each, handler in before.items():
            signal.signal(each, handler)
        print("stopping after this update; once more to stop at once", file=sys.stderr, flush=True)

    for number in before:
        signal.signal(number, handle)
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _mean(rows: Sequence["Row"], key: str) -> str:
    values = [row[key] for row in rows if not math.isnan(row[key])]
    return f"{statistics.fmean(values):.4g}" if values else "-"
