"""The control group of a lease: contains everything that a job starts, in any session and with any environment.

Version 2 is killed by a write to `cgroup.kill`, or frozen, killed and thawed on kernels older than 5.14; so is version
1's freezer. Version 1's `pids` has neither: kill repeatedly until it is empty. Groups that a job creates below its
group are part of it. Standard library only: the shim loads this.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from gavelpy.runtime.lease_files import Launch

PROCESSES = "cgroup.procs"
_KILL = "cgroup.kill"
_MEMORY_EVENTS = ("memory.events", "memory.oom_control")  # of versions 2 and 1
_MEMORY_LIMITS = ("memory.max", "memory.limit_in_bytes")
_FREEZERS = (("cgroup.freeze", "1", "0"), ("freezer.state", "FROZEN", "THAWED"))


def group_name(lease: int) -> str:
    """Directory name of a lease's group."""
    return f"lease-{lease:08d}"


def is_group_of(path: str, lease: int) -> bool:
    """Whether the path is a control group with this lease's name."""
    return bool(path) and Path(path).name == group_name(lease) and (Path(path) / PROCESSES).is_file()


class JobGroups:
    """The control groups of a job: `main`, by which it is killed (empty = none), and `all`, with those of limits."""

    def __init__(self) -> None:
        self.main = ""
        self.all: tuple[str, ...] = ()

    def make(self, launch: Launch) -> str:
        """Makes the groups and sets the limits; returns why a limit cannot be set: then the job must not run.

        Without its main group a job still runs: its processes are found by session, environment and descent.
        """
        try:
            if launch.cgroup:
                make(launch.cgroup)
                self.main, self.all = launch.cgroup, (launch.cgroup,)
        except OSError as error:
            sys.stderr.write(f"control group: {error}\n")
        try:
            for group in launch.limit_groups:
                make(group)
                self.all += (group,)
            limit(launch.limits)
        except OSError as error:
            return f"a limit of the job's control group cannot be set: {error}"
        return ""

    def remove(self) -> None:
        """Removes the groups that have no processes."""
        for group in self.all:
            remove(group)


def make(path: str) -> None:
    """Creates a group; raises OSError."""
    Path(path).mkdir(parents=True, exist_ok=True)


def limit(limits: Mapping[str, str]) -> None:
    """Writes limits of groups that exist, by file; raises OSError, which names the file."""
    for file, value in limits.items():
        _write(Path(file), value)


def join(path: str) -> None:
    """Moves the calling process, with all that it starts later, into a group; raises OSError."""
    _write(Path(path) / PROCESSES, "0")


def members(path: str) -> tuple[int, ...]:
    """Processes in a group and below it; none if the group does not exist."""
    found: list[int] = []
    for directory in _below(Path(path)):
        with suppress(OSError):
            found += map(int, (directory / PROCESSES).read_text().split())
    return tuple(process for process in found if process > 0)  # 0 = of another namespace


def memory_kills(paths: Iterable[str]) -> int:
    """Processes that the kernel killed for lack of memory in groups and below them; -1 if that is not counted."""
    for file in (Path(path) / name for path in paths for name in _MEMORY_EVENTS):
        with suppress(OSError, ValueError):
            for line in file.read_text().splitlines():
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return -1


def memory_limit_gib(limits: Mapping[str, str]) -> float:
    """The limit of memory among these limits by file, in GiB; 0 = there is none."""
    found = (int(value) for file, value in limits.items() if Path(file).name in _MEMORY_LIMITS)
    return round(next(found, 0) / (1 << 30), 2)


def kill(path: str) -> None:
    """Sends SIGKILL to all members, including those that fork meanwhile, except in version 1's `pids`."""
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
    """Removes a group that has no processes; ignores one that has, or does not exist."""
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
