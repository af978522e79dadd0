"""Start the processes of a job and collect their exit codes.

Each rank dies with the shim (PR_SET_PDEATHSIG). All ranks are in one process group, led by the first. Ranks are not
reaped before the lease is over, so the first rank's id, which is that of the group, is not reused. If the job runs as
its owner, a rank becomes that account before it executes the command.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import select
import signal
import struct
import termios
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.runtime.accounts import Identity, become
from gavelpy.runtime.shim import cgroups

PR_SET_PDEATHSIG: Final = 1
CODE_NOT_STARTED: Final = 1
CODE_NOT_EXECUTABLE: Final = 126  # as a shell reports it
CODE_NOT_FOUND: Final = 127
_C = ctypes.CDLL(None, use_errno=True)
_EXEC_CODES: Final = {
    errno.ENOENT: CODE_NOT_FOUND,
    errno.ENOTDIR: CODE_NOT_FOUND,
    errno.EACCES: CODE_NOT_EXECUTABLE,
    errno.ENOEXEC: CODE_NOT_EXECUTABLE,
}
_ERROR = struct.Struct("=i32s")  # errno and the step that failed
Program = Sequence[str] | Callable[[], int]  # arguments to execute, or a function that returns the exit code


class RankNotStarted(OSError):
    """A rank could not be started; the message has the step and the reason.

    `code`: the exit code to report, that of a shell if the command is at fault.
    """

    code = CODE_NOT_STARTED


@dataclass(frozen=True)
class Rank:
    """A started process and the non-blocking read ends of its output."""

    process: int
    output: int
    errors: int


def start_rank(
    argv: Program,
    working_directory: str,
    environment: Mapping[str, str],
    group: int,
    control_groups: Sequence[str] = (),
    identity: Identity | None = None,
    terminal: int = -1,
) -> Rank:
    """Starts a process in a process group (0 = a new one), control groups and with an identity (None = the shim's).

    With a `terminal`, the process leads a session of its own, and the terminal is its input and output. Raises
    RankNotStarted.
    """
    output, output_end = os.pipe2(os.O_CLOEXEC)
    errors, errors_end = os.pipe2(os.O_CLOEXEC)
    failure, failure_end = os.pipe2(os.O_CLOEXEC)
    shim = os.getpid()
    process = os.fork()
    if process == 0:
        ends = (output_end, errors_end, failure_end, terminal)
        _become(argv, working_directory, environment, (group, control_groups), identity, ends, shim)
    for end in (output_end, errors_end, failure_end):
        os.close(end)
    report = os.read(failure, _ERROR.size)
    os.close(failure)
    for end in (output, errors):
        os.set_blocking(end, False)
    if report:
        os.waitpid(process, 0)
        os.close(output)
        os.close(errors)
        raise _cannot_start(report, argv, working_directory)
    return Rank(process, output, errors)


def exit_code(process: int) -> int | None:
    """Exit code of a child that has ended (-n = by signal n), None while it runs; does not reap it."""
    result = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if result is None:
        return None
    return result.si_status if result.si_code == os.CLD_EXITED else -result.si_status


def readable(ends: Sequence[int], timeout_s: float) -> list[int]:
    """Which of these can be read within a time."""
    return select.select(ends, (), (), timeout_s)[0]


def reap_orphans(kept: Sequence[int]) -> None:
    """Reaps adopted children that have ended, except those in `kept`."""
    listing = Path(f"/proc/self/task/{os.getpid()}/children")
    children = listing.read_text().split() if listing.exists() else []
    for child in map(int, children):
        if child not in kept:
            os.waitpid(child, os.WNOHANG)


def _become(
    argv: Program,
    working_directory: str,
    environment: Mapping[str, str],
    groups: tuple[int, Sequence[str]],
    identity: Identity | None,
    ends: tuple[int, int, int, int],
    shim: int,
) -> None:
    """In the child: executes the command or calls the function, or reports why that failed. Never returns.

    The working directory and the command are found with the rights of the job's account.
    """
    step = "setpgid"
    try:
        group, control_groups = groups
        if ends[3] >= 0:
            step = "setsid"
            os.setsid()
            fcntl.ioctl(ends[3], termios.TIOCSCTTY, 0)
        else:
            os.setpgid(0, group)
        step = "joining the control group"
        for control_group in control_groups:
            cgroups.join(control_group)
        if identity is not None:
            step = "becoming the owner"
            become(identity)
        step = "prctl"
        _die_with(shim)
        _default_signals()
        null = os.open(os.devnull, os.O_RDONLY)
        streams = (null, *ends[:2]) if ends[3] < 0 else (ends[3],) * 3
        for source, target in zip(streams, (0, 1, 2), strict=True):
            os.dup2(source, target)
        step = "chdir"
        os.chdir(working_directory)
        if callable(argv):
            os.close(ends[2])
            os._exit(argv())
        step = "exec"
        os.execvpe(argv[0], list(argv), dict(environment))
    except OSError as error:
        os.write(ends[2], _ERROR.pack(error.errno or 0, step.encode()))
    finally:
        os._exit(CODE_NOT_STARTED)


def _die_with(shim: int) -> None:
    if _C.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")
    if os.getppid() != shim:  # the shim died before the call above
        os._exit(CODE_NOT_STARTED)


def _default_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if number < signal.SIGRTMIN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _cannot_start(report: bytes, argv: Program, working_directory: str) -> RankNotStarted:
    number, step_bytes = _ERROR.unpack(report)
    step = step_bytes.rstrip(b"\0").decode()
    why = os.strerror(number)
    match step:
        case "chdir":
            return RankNotStarted(number, f"cannot enter the working directory {working_directory!r}: {why}")
        case "exec" if not callable(argv):
            error = RankNotStarted(number, f"the command {argv[0]!r} cannot be run: {why}")
            error.code = _EXEC_CODES.get(number, CODE_NOT_STARTED)
            return error
    return RankNotStarted(number, f"{step} failed: {why}")
