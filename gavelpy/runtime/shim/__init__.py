"""The shim: a small process that runs one lease on one node and outlives the agent; standard library only.

supervisor     the loop: start ranks, capture output, send signals, write end.json
failures       class and evidence of a failure, from exit codes and output
termination    when to warn, terminate and kill the job; outcome and steps of the lease
ranks          start processes and collect their exit codes
processes      find and kill all processes of a lease
isolation      the job's own /tmp and /proc
cgroups        the control group of a lease
log_files      captured output, with rotation
preparation    check the environment of a job and unpack its snapshot, before its ranks start
containers     ranks in containers of podman or apptainer
terminal       the terminal of an interactive job, to which clients attach
"""

from __future__ import annotations

import sys
from pathlib import Path

SHIM_SCRIPT = Path(__file__).with_name("__main__.py")  # an argument of every shim


def shim_argv(directory: Path) -> list[str]:
    """Command of the shim for a lease directory that contains launch.json and lease.json.

    Start it with input and output closed. It creates its own session.
    """
    return [sys.executable, "-I", "-S", str(SHIM_SCRIPT), str(directory)]
