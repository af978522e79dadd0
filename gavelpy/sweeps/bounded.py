"""Runs each cell in a process of its own, for a limited CPU time.

CPU time does not depend on what else the machine does. A cell that reaches its limit ends its simulation and reports
how far it is. If it does not, because one call of its policy takes longer, the operating system ends its process after
another `GRACE_S`; and a process that takes far longer on the clock (`_wall_s`) is killed, because its policy waits for
something. All are results with an error of type `STOPPED`, so a slow policy has a row, and the others run.
The run of `isolated` that finish-time fairness needs does not count. A process ends by itself if the one that started
it is killed, so that a sweep that runs again does not compete with its own past.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from typing import TYPE_CHECKING, Any, Final

from gavelpy.sweeps.backends import DIED, Ended
from gavelpy.sweeps.cells import STOPPED, Cell, run_cell

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

START_S: Final = 600.0  # on the clock, for the imports and the trace; they do not count
GRACE_S: Final = 3.0  # after the limit, in which a cell may end by itself and report how far it is
_WALL_FACTOR: Final = 20.0  # of the clock to CPU time, on a machine that does much else
_WALL_MORE_S: Final = 90.0
LIMIT: Final = "limit_s"  # in the results of a cell that was stopped
_POLL_S: Final = 0.5  # between two checks of the limits
_ORPHAN_S: Final = 1.0  # between two checks of whether the process that started a cell still lives


def run_bounded(cells: Sequence[Cell], limit_s: float, *, jobs: int = 0) -> Iterator[Ended]:
    """Runs the cells, `jobs` at a time (0 = one for each core), and yields each with its results when it ends."""
    waiting, running = deque(cells), list[_Running]()
    most = jobs or os.cpu_count() or 1
    try:
        while waiting or running:
            while waiting and len(running) < most:
                running.append(_Running.start(waiting.popleft(), limit_s))
            connection.wait([one.results for one in running], _POLL_S)
            for one in [one for one in running if one.is_over]:
                running.remove(one)
                yield one.cell, one.ended()
    finally:
        for one in running:
            one.kill()


@dataclass
class _Running:
    """A cell in its process."""

    cell: Cell
    process: BaseProcess
    results: Connection
    limit_s: float
    end_s: float  # of the monotonic clock: when the process is killed
    found: dict[str, Any] | None = None

    @classmethod
    def start(cls, cell: Cell, limit_s: float) -> _Running:
        context = multiprocessing.get_context("spawn")  # of the parent's threads and locks nothing is copied
        results, sender = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(cell, limit_s, sender), daemon=True)
        process.start()
        sender.close()
        return cls(cell, process, results, limit_s, time.monotonic() + START_S)

    @property
    def is_over(self) -> bool:
        """Whether there are results, the process has ended, or its time has."""
        while self.found is None and self.results.poll():
            try:
                received: dict[str, Any] | float = self.results.recv()
            except EOFError:  # the process has ended without results
                received = dict(DIED)
            if isinstance(received, float):
                self.end_s = time.monotonic() + received
            else:
                self.found = received
        return self.found is not None or time.monotonic() > self.end_s

    def ended(self) -> dict[str, Any]:
        """The results; ends the process."""
        self.kill()
        if self.found is None:
            error = f"stopped after {_wall_s(self.limit_s):g} s without an answer of the policy"
            return self._stopped("") | {"error": error, "warnings": ""}
        if self.process.exitcode == -getattr(signal, "SIGXCPU", 0) != 0:
            return self._stopped("within one call of the policy") | {"warnings": ""}
        if self.found.get("error_type") == STOPPED:
            return self.found | self._stopped(self.found["error"].removeprefix("interrupted "))
        return self.found

    def kill(self) -> None:
        """Ends the process, whatever it does."""
        self.process.kill()
        self.process.join()
        self.results.close()

    def _stopped(self, where: str) -> dict[str, Any]:
        return {
            "error": f"stopped after {self.limit_s:g} s of CPU time {where}",
            "error_type": STOPPED,
            LIMIT: self.limit_s,
        }


def _run(cell: Cell, limit_s: float, results: Connection) -> None:
    """Runs the cell and sends its results. Ctrl-C is for the process that started this one, which ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch = _Watch(limit_s, results)
    results.send(run_cell(cell, progress=watch.progress, stop=watch.stop))


class _Watch:
    """The CPU time of the policy's own run: from its first event, and without the run of `isolated` after it."""

    def __init__(self, limit_s: float, results: Connection) -> None:
        self.limit_s, self.results = limit_s, results
        self.label, self.end_s, self.checked_s = "", 0.0, time.monotonic()

    def progress(self, label: str, *_: object) -> None:
        """Called after every event of a run."""
        if self.label and label != self.label:
            self._allow(math.inf)
        self.label = label

    def stop(self) -> bool:
        """Whether the time is over, before every event; ends the process if the one that started it has ended."""
        if not self.end_s:
            self._allow(self.limit_s)
        now_s, parent = time.monotonic(), multiprocessing.parent_process()
        if now_s - self.checked_s > _ORPHAN_S:
            self.checked_s = now_s
            if parent is not None and not parent.is_alive():
                os._exit(1)  # no process takes the results
        return time.process_time() > self.end_s

    def _allow(self, left_s: float) -> None:
        self.end_s = time.process_time() + left_s
        _limit_cpu_s(self.end_s + GRACE_S)
        self.results.send(_wall_s(left_s))


def _wall_s(limit_s: float) -> float:
    """How long a run may take on the clock."""
    return _WALL_FACTOR * limit_s + _WALL_MORE_S


def _limit_cpu_s(end_s: float) -> None:
    """Lets the operating system end this process at so much CPU time; not on Windows, which cannot."""
    try:
        import resource
    except ModuleNotFoundError:
        return
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    soft = most if math.isinf(end_s) else math.ceil(end_s)
    resource.setrlimit(resource.RLIMIT_CPU, (soft if most == resource.RLIM_INFINITY else min(soft, most), most))
