"""Prepares the software of a job before its ranks start, in a child process with the rights of the job's user.

The child checks that a virtual or conda environment has a Python, unpacks the snapshot of the code, reads the secrets
of the job's user, which it writes to its standard output, and pulls the image of a container. It writes to its standard
error why it fails. The supervisor waits for it, and ends it if the lease ends meanwhile. Another child removes the
containers of a lease afterwards.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from gavelpy.errors import RemoteViolation
from gavelpy.runtime.lease_files import LEASE_DIRECTORY_VARIABLE, Launch, LeaseOutcome, clock_s
from gavelpy.runtime.shim import containers, processes, ranks
from gavelpy.runtime.snapshots import unpack
from gavelpy.runtime.user_secrets import values_of

CODE_OF_JOB: Final = ranks.CODE_NOT_FOUND  # what the job names is not there: not retried if it never saved
CODE_OF_NODE: Final = 75  # the node's storage fails
REMOVE_S: Final = 20.0
SECRETS_S: Final = 30
_POLL_S = 0.05
_MESSAGE_BYTES_MAX = 4_000


class Preparation(NamedTuple):
    """How a preparation ended; outcome None = the ranks can start."""

    outcome: LeaseOutcome | None
    message: str = ""
    code: int = 0
    secrets: Mapping[str, str] = {}  # values by variable


def prepare(
    launch: Launch, environment: Mapping[str, str], control_groups: Sequence[str], is_over: Callable[[], bool]
) -> Preparation:
    """Prepares in a child and waits for it, until `is_over`. Raises RankNotStarted."""
    directory = Path(environment[LEASE_DIRECTORY_VARIABLE])
    code, text, found = _in_child(lambda: _prepared(launch, directory, environment), launch, control_groups, is_over)
    if code is None:
        return Preparation(LeaseOutcome.STOPPED, "the lease was over before the job's software was prepared")
    if code == 0:
        return Preparation(None, secrets=json.loads(found) if launch.secrets else {})
    if code == -signal.SIGALRM:
        text, code = f"{launch.secrets_file} could not be read within {SECRETS_S} s", CODE_OF_NODE
    outcome = LeaseOutcome.LOST if code == CODE_OF_NODE else LeaseOutcome.FAILED
    return Preparation(outcome, text or f"the preparation of the job's software ended with code {code}", code)


def remove_containers(launch: Launch, directory: Path, control_groups: Sequence[str]) -> None:
    """Removes podman's records of the lease's containers. Gives up after `REMOVE_S`: other leases do without."""
    ends_s = clock_s() + REMOVE_S
    try:
        removal = containers.removal(launch, directory)
        code, text, _ = _in_child(removal, launch, control_groups, lambda: clock_s() > ends_s)
    except ranks.RankNotStarted as error:
        code, text = error.code, str(error)
    if code != 0:
        sys.stderr.write(f"containers of lease {launch.lease} are not removed: {text or 'podman does not end'}\n")


def _in_child(
    work: Callable[[], int], launch: Launch, control_groups: Sequence[str], is_over: Callable[[], bool]
) -> tuple[int | None, str, bytes]:
    """Exit code, message and output of `work`, done with the rights of the job's account; code None = it was ended."""
    child = ranks.start_rank(work, "/", {}, 0, control_groups, launch.identity)
    try:
        message, output, code = b"", b"", None
        while code is None and not is_over():
            ranks.readable([child.errors, child.output], _POLL_S)
            code = ranks.exit_code(child.process)
            message += _read(child.errors)
            output += _read(child.output)
    finally:
        os.close(child.errors)
        os.close(child.output)
    if code is None:
        processes.send(-child.process, signal.SIGKILL)
    else:
        os.waitpid(child.process, 0)
    return code, " ".join(message[:_MESSAGE_BYTES_MAX].decode(errors="replace").split()), output


def _read(end: int) -> bytes:
    """What can be read without waiting."""
    content = b""
    while ranks.readable([end], 0.0) and (more := os.read(end, _MESSAGE_BYTES_MAX)):
        content += more
    return content


def _prepared(launch: Launch, directory: Path, environment: Mapping[str, str]) -> int:
    """In the child: prepares everything and returns the exit code."""
    software, node = launch.software, environment.get("GAVEL_NODE_ID", "")
    where = f" on node {node}" if node else ""
    try:
        for kind, name in (("venv", "virtual"), ("conda", "conda")):
            if prefix := software.get(kind, ""):
                _check_environment(prefix, f"the {name} environment {prefix}")
        if digest := software.get("snapshot", ""):
            code = Path(software["code"])
            code.mkdir(mode=0o700, exist_ok=True)
            unpack(Path(software["archive"]), digest, code)
        secrets = _shared_secrets(launch) if launch.secrets else {}
        if "image" in software:
            containers.make_ready(launch, directory, {**secrets, **environment})
    except RemoteViolation as error:
        return _failed(CODE_OF_JOB, f"{error}{where}")
    except (FileNotFoundError, PermissionError) as error:
        return _failed(CODE_OF_JOB, f"{error.filename} cannot be read{where}: {error.strerror}")
    except OSError as error:
        return _failed(CODE_OF_NODE, f"the job's software cannot be prepared{where}: {error}")
    return 0


def _shared_secrets(launch: Launch) -> dict[str, str]:
    """Reads the job's secrets and writes them to stdout, for the shim. Ends if the home directory does not answer."""
    signal.alarm(SECRETS_S)
    values = values_of(launch.secrets, Path(launch.secrets_file))
    signal.alarm(0)
    sys.stdout.write(json.dumps(values))
    sys.stdout.flush()
    return values


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
