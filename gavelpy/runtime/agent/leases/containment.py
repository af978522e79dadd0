"""Keep track of the processes of a lease: control groups if they can be written, else a subreaper.

A process can leave the session and the environment of its job, but not its control group. Without one, the shim adopts
orphans of its job (PR_SET_CHILD_SUBREAPER), and the agent those of shims that were killed: an adopted process that
started after the shim is killed with the shim's lease. This works only for the agent that started the shim.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gavelpy.runtime.shim import cgroups

logger = logging.getLogger(__name__)

CGROUP_2: Final = "cgroup v2"
CGROUP_1: Final = "cgroup v1"
SUBREAPER: Final = "subreaper"
_CONTROLLERS: Final = ("freezer", "pids")  # of version 1, in order of preference
_PREFIX: Final = "gavel-"
_PROBE: Final = "probe"
_PROBE_S: Final = 5.0


@dataclass(frozen=True)
class Containment:
    """The kind, and the directory of the leases' groups; empty = none."""

    kind: str = SUBREAPER
    root: str = ""

    def group_of(self, lease: int) -> str:
        """The directory of a lease's group; empty = none."""
        return f"{self.root}/{cgroups.group_name(lease)}" if self.root else ""

    def close(self) -> None:
        """Removes the directory of groups unless a lease still runs in one."""
        if self.root:
            with suppress(OSError):
                Path(self.root).rmdir()


def find_containment(name: str, mounts: str = "/proc/self/mountinfo", own: str = "/proc/self/cgroup") -> Containment:
    """The best kind that works here, tried with a process. `name` distinguishes agents on one machine."""
    for kind, place in _places(Path(mounts).read_text(), Path(own).read_text()):
        root = place / f"{_PREFIX}{name}"
        try:
            root.mkdir(exist_ok=True)
            _try(root / _PROBE)
            _tidy(root)
        except (OSError, subprocess.SubprocessError) as error:
            logger.info("no control groups in %s: %s", place, error)
            with suppress(OSError):
                root.rmdir()
            continue
        return Containment(kind, str(root))
    return Containment()


def _places(mounts: str, own: str) -> Iterator[tuple[str, Path]]:
    """This process's group in each suitable hierarchy, best first."""
    groups = [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]
    mounted = [line.partition(" - ") for line in mounts.splitlines()]
    found = [(*before.split()[3:5], *after.split()[::2]) for before, _, after in mounted]  # root, point, kind, options
    for _, controllers, path in groups:
        if not controllers:
            yield from ((CGROUP_2, _below(point, root, path)) for root, point, kind, _ in found if kind == "cgroup2")
    for wanted in _CONTROLLERS:
        for _, controllers, path in groups:
            if wanted in controllers.split(","):
                for root, point, kind, options in found:
                    if kind == "cgroup" and wanted in options.split(","):
                        yield CGROUP_1, _below(point, root, path)


def _below(point: str, root: str, path: str) -> Path:
    """The path of a group through a mount of `root` at `point`."""
    return Path(point) / os.path.relpath(path, root) if root != path else Path(point)


def _tidy(root: Path) -> None:
    """Removes empty groups of agents that were killed."""
    for other in root.parent.glob(f"{_PREFIX}*"):
        if other != root:
            with suppress(OSError):
                other.rmdir()


def _try(probe: Path) -> None:
    """Raises OSError or SubprocessError unless a process can join a group and the group can be removed."""
    probe.mkdir(exist_ok=True)
    try:
        subprocess.run(
            ["/bin/sh", "-c", 'echo 0 > "$1"', "sh", str(probe / cgroups.PROCESSES)],
            check=True,
            timeout=_PROBE_S,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    finally:
        probe.rmdir()
