"""Starts real shims with a script in a lease directory, and waits for conditions."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import End, Launch, LeaseTerms, ShimState, clock_s
from gavelpy.runtime.shim import shim_argv
from gavelpy.runtime.shim.log_files import log_files
from gavelpy.runtime.shim.processes import kill_lease, lease_processes

T = TypeVar("T")
DEADLINE_S = 60.0  # on a busy machine; every wait returns as soon as it can


class CapturedLine(NamedTuple):
    """One line of a log file."""

    time_s: float
    text: str
    is_continued: bool


def parse_line(line: bytes) -> CapturedLine:
    """Parses a line of a log file without its newline."""
    match = re.fullmatch(rb"(\d{1,12}\.\d{6})([ +])(.*)", line, re.DOTALL)
    assert match, line
    return CapturedLine(float(match[1]), match[3].decode(errors="replace"), match[2] == b"+")


def wait_for(what: Callable[[], T | None], deadline_s: float = DEADLINE_S) -> T:
    """Waits for a true value of `what` and returns it."""
    ends_s = time.monotonic() + deadline_s
    while time.monotonic() < ends_s:
        value = what()
        if value:
            return value
        time.sleep(0.005)
    raise AssertionError(f"did not come to be within {deadline_s} s")


def on_the_edge(what: Callable[[], T | None], edge_s: float, *shims: Shim) -> None:
    """Waits until `what` is true; until then leases end this far in the future, and do not change afterwards."""

    def look() -> bool:
        is_so = bool(what())
        for shim in shims[: 0 if is_so else None]:
            shim.order(until_clock_s=clock_s() + edge_s)
        return is_so

    wait_for(look)


def sampled(what: Callable[[], T], seconds: float) -> list[T]:
    """Values of `what` over some time."""
    ends_s = time.monotonic() + seconds
    values = []
    while time.monotonic() < ends_s:
        values.append(what())
        time.sleep(0.003)
    return values


@dataclass
class Shim:
    """A shim under test and its lease directory."""

    directory: Path
    process: subprocess.Popen[bytes]
    lease: LeaseTerms

    def state(self) -> ShimState:
        """The state of the shim, once its job runs."""
        return wait_for(self._running)

    def order(self, **changes: object) -> None:
        """Writes newer lease terms."""
        self.lease = replace(self.lease, version=self.lease.version + 1, **changes)  # type: ignore[arg-type]  # of Lease
        lease_files.write_lease(self.directory, self.lease)

    def end(self) -> End:
        """The recorded end, once the shim has ended."""
        wait_for(lambda: self.process.poll() is not None)
        end = lease_files.read_end(self.directory)
        assert end is not None, (self.directory / "shim.log").read_text()
        return end

    def lines(self, rank: int = 0, *, is_error_stream: bool = False) -> list[str]:
        """The output of a rank, over all files."""
        files = [
            file for file in log_files(self.directory) if (file.rank, file.is_error_stream) == (rank, is_error_stream)
        ]
        raw = b"".join(file.path.read_bytes() for file in files).split(b"\n")[:-1]
        return [parse_line(line).text for line in raw]

    def prints(self, text: str) -> None:
        """Waits until rank 0 has printed a line."""
        wait_for(lambda: text in self.lines())

    def _running(self) -> ShimState | None:
        state = lease_files.read_shim(self.directory)
        return state if state and state.phase is not lease_files.ShimPhase.STARTING else None


@contextmanager
def started(
    directory: Path,
    script: str,
    *,
    lease_s: float = 60.0,
    lease: LeaseTerms | None = None,
    ranks: int = 1,
    prefix: tuple[str, ...] = (),
    **launch: object,
) -> Iterator[Shim]:
    """A shim that runs a Python script; all its processes are killed afterwards. `prefix`: of the shim's command."""
    lease = lease or LeaseTerms(1, clock_s() + lease_s)
    write_lease_directory(directory, script, lease, ranks=ranks, **launch)
    shim = Shim(directory, subprocess.Popen([*prefix, *shim_argv(directory)]), lease)
    try:
        yield shim
    finally:
        state = lease_files.read_shim(directory)
        if shim.process.poll() is None:
            shim.process.send_signal(signal.SIGKILL)
        shim.process.wait()
        if state:
            wait_for(lambda: kill_lease(state, directory))


def write_lease_directory(directory: Path, script: str, lease: LeaseTerms, *, ranks: int = 1, **launch: object) -> None:
    """Writes the files that the agent writes before it starts a shim."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "script.py").write_text(script)
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(Path(__file__).parents[3])}
    told: dict[str, object] = {
        "lease": 7,
        "job": 3,
        "argv": (sys.executable, str(directory / "script.py")),
        "working_directory": str(directory),
        "environment": {**environment, **launch.pop("environment", {})},  # type: ignore[dict-item]  # a mapping of texts
        "rank_environments": tuple({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks)),
        "grace_s": 2.0,
        **launch,
    }
    lease_files.write_launch(directory, Launch(**told))  # type: ignore[arg-type]  # the fields of Launch
    lease_files.write_lease(directory, lease)


def processes_left(shim: Shim) -> tuple[int, ...]:
    """The processes of a lease that still run."""
    state = lease_files.read_shim(shim.directory)
    return lease_processes(state, shim.directory) if state else ()
