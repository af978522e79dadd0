"""The shim as a process: a session of its own, its errors in shim.log, one lease directory."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from gavelpy.errors import RemoteViolation
from gavelpy.runtime import lease_files
from gavelpy.runtime.lease_files import End, Launch, Lease, Outcome, clock_s
from gavelpy.runtime.shim import processes
from gavelpy.runtime.shim.supervisor import Supervisor

LOG_FILE = "shim.log"


def main(argv: Sequence[str]) -> int:
    """Sees the lease of one directory through; the exit code says nothing about the job."""
    directory = Path(argv[0]).resolve()
    _detach(directory)
    try:
        launch, lease = _read(directory)
    except RemoteViolation as error:
        lease_files.write_end(directory, End(Outcome.FAILED, 0, 0.0, 0.0, str(error), clock_s()))
        return 1
    Supervisor(directory, launch, lease).run()
    return 0


def _detach(directory: Path) -> None:
    if os.getsid(0) != os.getpid():
        os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    null = os.open(os.devnull, os.O_RDWR)
    log = os.open(directory / LOG_FILE, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for source, target in ((null, 0), (null, 1), (log, 2)):
        os.dup2(source, target)
    os.chdir("/")
    processes.adopt_orphans()


def _read(directory: Path) -> tuple[Launch, Lease]:
    launch, lease = lease_files.read_launch(directory), lease_files.read_lease(directory)
    if launch is None or lease is None:
        missing = lease_files.LAUNCH_FILE if launch is None else lease_files.LEASE_FILE
        raise RemoteViolation(f"{directory / missing} must be there before the shim")
    if not launch.argv or not launch.rank_environments:
        raise RemoteViolation(f"{directory / lease_files.LAUNCH_FILE}: argv and rank_environments must not be empty")
    return launch, lease
