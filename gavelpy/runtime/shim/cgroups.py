"""The control group of a lease: everything that a job starts is in it, whatever session and environment it moves to.

Version 2 is killed by one write to `cgroup.kill`, or frozen, killed and thawed where the kernel is older than 5.14; so
is version 1's freezer. Version 1's `pids` has neither: it is killed again and again until it is empty. Children that a
job makes below its group are part of it. Standard library only: the shim loads this.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

PROCESSES = "cgroup.procs"
_KILL = "cgroup.kill"
_FREEZERS = (("cgroup.freeze", "1", "0"), ("freezer.state", "FROZEN", "THAWED"))


def group_name(lease: int) -> str:
    """Name of the directory of a lease's group."""
    return f"lease-{lease:08d}"


def is_group_of(path: str, lease: int) -> bool:
    """Whether this is a control group with the name of that lease's."""
    return bool(path) and Path(path).name == group_name(lease) and (Path(path) / PROCESSES).is_file()


def make(path: str) -> None:
    """Makes a group; raises OSError."""
    Path(path).mkdir(parents=True, exist_ok=True)


def join(path: str) -> None:
    """Puts the calling process into a group, and with it all that it starts from now on; raises OSError."""
    _write(Path(path) / PROCESSES, "0")


def members(path: str) -> tuple[int, ...]:
    """Processes in a group and below it; none where the group is gone."""
    found: list[int] = []
    for directory in _below(Path(path)):
        with suppress(OSError):
            found += map(int, (directory / PROCESSES).read_text().split())
    return tuple(process for process in found if process > 0)  # 0 = of another namespace


def kill(path: str) -> None:
    """Sends SIGKILL to all members; one that forks meanwhile is hit as well, but for version 1's `pids`."""
    group = Path(path)
    with suppress(OSError):
        if (group / _KILL).exists():
            _write(group / _KILL, "1")
            return
    freezers = [(d / name, on, off) for d in _below(group) for name, on, off in _FREEZERS if (d / name).exists()]
    for file, on, _ in freezers:
        with suppress(OSError):
            _write(file, on)
    for process in members(path):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    for file, _, off in freezers:
        with suppress(OSError):
            _write(file, off)


def remove(path: str) -> None:
    """Removes a group in which no process is left; one that is gone, or not empty, stays as it is."""
    for directory in reversed(_below(Path(path))):
        with suppress(OSError):
            directory.rmdir()


def _below(group: Path) -> list[Path]:
    """The group and its children, parents first."""
    return [Path(directory) for directory, _, _ in os.walk(group)]


def _write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
