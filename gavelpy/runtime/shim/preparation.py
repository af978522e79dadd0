"""Prepares the software of a job before its ranks start, in a child process with the rights of the job's user.

The child checks that a virtual or conda environment has a Python, and unpacks the snapshot of the code. It writes to
its standard error why it fails. The supervisor waits for it, and ends it if the lease ends meanwhile.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import Launch
from gavelpy.runtime.shim import processes, ranks
from gavelpy.runtime.snapshots import unpack

CODE_OF_JOB: Final = ranks.CODE_NOT_FOUND  # what the job names is not there: not retried if it never saved
CODE_OF_NODE: Final = 75  # the node's storage fails
ENDED_EARLY: Final = -1
_POLL_S = 0.05
_MESSAGE_BYTES_MAX = 4_000


class Preparation(NamedTuple):
    """How a preparation ended; code 0 = the ranks can start."""

    code: int
    message: str = ""


def prepare(
    launch: Launch, environment: Mapping[str, str], control_groups: Sequence[str], is_over: Callable[[], bool]
) -> Preparation:
    """Prepares in a child and waits for it, until `is_over`. Raises RankNotStarted."""
    node = environment.get("GAVEL_NODE_ID", "")
    child = ranks.start_rank(
        lambda: _prepared(launch.software, node), "/", environment, 0, control_groups, launch.identity
    )
    try:
        message, code = b"", None
        while code is None and not is_over():
            ranks.readable([child.errors], _POLL_S)
            code = ranks.exit_code(child.process)
            message += _read(child.errors)
    finally:
        os.close(child.errors)
        os.close(child.output)
    if code is None:
        processes.send(-child.process, signal.SIGKILL)
        return Preparation(ENDED_EARLY, "the lease was over before the job's software was prepared")
    os.waitpid(child.process, 0)
    text = " ".join(message[:_MESSAGE_BYTES_MAX].decode(errors="replace").split())
    return Preparation(code, text or f"the preparation of the job's software ended with code {code}")


def _read(end: int) -> bytes:
    """What can be read without waiting."""
    content = b""
    while ranks.readable([end], 0.0) and (more := os.read(end, _MESSAGE_BYTES_MAX)):
        content += more
    return content


def _prepared(software: Mapping[str, str], node: str) -> int:
    """In the child: prepares everything and returns the exit code."""
    where = f" on node {node}" if node else ""
    try:
        for kind, name in (("venv", "virtual"), ("conda", "conda")):
            if prefix := software.get(kind, ""):
                _check_environment(prefix, f"the {name} environment {prefix}")
        if digest := software.get("snapshot", ""):
            code = Path(software["code"])
            code.mkdir(mode=0o700, exist_ok=True)
            unpack(Path(software["archive"]), digest, code)
    except RemoteViolation as error:
        return _failed(CODE_OF_JOB, f"{error}{where}")
    except (FileNotFoundError, PermissionError) as error:
        return _failed(CODE_OF_JOB, f"{error.filename} cannot be read{where}: {error.strerror}")
    except OSError as error:
        return _failed(CODE_OF_NODE, f"the job's software cannot be prepared{where}: {error}")
    return 0


def _check_environment(prefix: str, what: str) -> None:
    python = Path(prefix) / "bin" / "python"
    if not python.exists():
        raise RemoteViolation(f"{what} has no bin/python")
    if not os.access(python, os.X_OK):
        raise RemoteViolation(f"{what} has a bin/python that cannot be run")


def _failed(code: int, message: str) -> int:
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    return code
