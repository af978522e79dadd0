"""Keep track of the processes of a lease, and limit them: control groups if they can be written, else a subreaper.

A process can leave the session and the environment of its job, but not its control group. Without one, the shim adopts
orphans of its job (PR_SET_CHILD_SUBREAPER), and the agent those of shims that were killed: an adopted process that
started after the shim is killed with the shim's lease. This works only for the agent that started the shim.

Memory and processes can be limited per GPU of a lease, and CPUs are divided in proportion to GPUs when they are short.
A job that declares CPU cores or memory is limited to them.
Each controller (`memory`, `pids`, `cpu`) is in version 2's hierarchy or in one of version 1; both work. Version 2
enables controllers only below a group without processes of its own, so the agent must be in a group below: by
`DelegateSubgroup=gavel-agent` in its unit or, with an older systemd or in a scope (`systemd-run --scope -p
Delegate=yes`), because it moves there itself.
"""

from __future__ import annotations

import logging
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gavelpy.errors import InvalidInput
from gavelpy.runtime.shim import cgroups

logger = logging.getLogger(__name__)

CGROUP_2: Final = "cgroup v2"
CGROUP_1: Final = "cgroup v1"
SUBREAPER: Final = "subreaper"
AGENT_GROUP: Final = "gavel-agent"  # of the agent within its unit's group
_CONTROLLERS: Final = ("freezer", "pids")  # of version 1 that keep processes together, in order of preference
_LIMITERS: Final = ("memory", "pids", "cpu")
_OPTIONS: Final = {"memory": "memory_bytes_per_gpu", "pids": "processes_per_gpu"}
_PREFIX: Final = "gavel-"
_PROBE: Final = "probe"
_OWNER: Final = "agent-"  # and its process id: a group that keeps the root of a living agent without leases
_PROBE_S: Final = 5.0
_GIB: Final = 1 << 30
_PERIOD_US: Final = 100_000  # of CPU quotas, the kernel's default
_QUOTA_MIN_US: Final = 1_000


@dataclass(frozen=True)
class JobNeeds:
    """What a job declares for each GPU; 0 = nothing."""

    cpus: float = 0.0
    memory_gib: float = 0.0


@dataclass(frozen=True)
class JobLimits:
    """Limits for each GPU of a lease; 0 = none. CPUs are always divided in proportion to GPUs."""

    memory_bytes: int = 0
    processes: int = 0  # threads count


@dataclass(frozen=True)
class Containment:
    """The kind, and the directory of the leases' groups; empty = none. `limiters`: version and directory, by name."""

    kind: str = SUBREAPER
    root: str = ""
    limiters: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    limits: JobLimits = JobLimits()

    @property
    def text(self) -> str:
        """For people: `cgroup v2, limits: memory, pids, cpu`."""
        return f"{self.kind}, {'limits: ' + ', '.join(self.limiters) if self.limiters else 'no limits'}"

    def group_of(self, lease: int) -> str:
        """The directory of a lease's group; empty = none."""
        return f"{self.root}/{cgroups.group_name(lease)}" if self.root else ""

    def limit_groups_of(self, lease: int, gpus: int, needs: JobNeeds = JobNeeds()) -> tuple[str, ...]:
        """The groups of a lease in other hierarchies, for its limits."""
        found = {str(Path(file).parent) for file in self.limits_of(lease, gpus, needs)}
        return tuple(sorted(found - {self.group_of(lease)}))

    def limits_of(self, lease: int, gpus: int, needs: JobNeeds = JobNeeds()) -> dict[str, str]:
        """The limits of a lease, by file; of two limits of its memory, the smaller one."""
        memory = [limit for limit in (self.limits.memory_bytes, int(needs.memory_gib * _GIB)) if limit]
        values = {"memory": min(memory, default=0) * gpus, "pids": self.limits.processes * gpus, "cpu": gpus}
        found = {}
        if needs.cpus and "cpu" in self.limiters:
            version, root = self.limiters["cpu"]
            file, text = _quota(version, needs.cpus * gpus)
            found[f"{root}/{cgroups.group_name(lease)}/{file}"] = text
        for controller, (version, root) in self.limiters.items():
            if value := values[controller]:
                file, text = _setting(controller, version, value)
                found[f"{root}/{cgroups.group_name(lease)}/{file}"] = text
        return found

    def close(self) -> None:
        """Removes the directories of groups unless a lease still runs in one."""
        for root in {self.root, *(root for _, root in self.limiters.values())} - {""}:
            for directory in (_owner(Path(root)), Path(root)):
                with suppress(OSError):
                    directory.rmdir()


def find_containment(
    name: str,
    mounts: str = "/proc/self/mountinfo",
    own: str = "/proc/self/cgroup",
    limits: JobLimits = JobLimits(),
) -> Containment:
    """The best kind that works here, tried with a process. `name` distinguishes agents on one machine.

    Raises InvalidInput if a limit is set that cannot be applied.
    """
    found = Containment()
    mounted, groups = Path(mounts).read_text(), Path(own).read_text()
    for kind, place in _places(mounted, groups):
        root = place / f"{_PREFIX}{name}"
        try:
            if kind == CGROUP_2:
                _leave(place)
            _owner(root).mkdir(parents=True, exist_ok=True)
            _try(root / _PROBE)
            _tidy(root)
        except (OSError, subprocess.SubprocessError) as error:
            logger.info("no control groups in %s: %s", place, error)
            Containment(root=str(root)).close()
            continue
        found = Containment(kind, str(root), dict(_limiters(root, kind, mounted, groups)), limits)
        break
    for controller, value in {"memory": limits.memory_bytes, "pids": limits.processes}.items():
        if value and controller not in found.limiters:
            found.close()
            raise InvalidInput(
                f"{_OPTIONS[controller]} = {value} cannot be applied: no control group with the controller "
                f"{controller!r} can be written here (containment: {found.text})"
            )
    return found


def _setting(controller: str, version: str, value: int) -> tuple[str, str]:
    """The file of a limit, and its content. Weights of CPUs are for each GPU the default of one group."""
    match controller, version:
        case "memory", _:
            return ("memory.max" if version == CGROUP_2 else "memory.limit_in_bytes"), str(value)
        case "cpu", "cgroup v2":
            return "cpu.weight", str(min(100 * value, 10_000))
        case "cpu", _:
            return "cpu.shares", str(min(1024 * value, 262_144))
    return "pids.max", str(value)


def _quota(version: str, cpus: float) -> tuple[str, str]:
    """The file of a limit of CPU time, and its content."""
    quota = max(int(cpus * _PERIOD_US), _QUOTA_MIN_US)
    return ("cpu.max", f"{quota} {_PERIOD_US}") if version == CGROUP_2 else ("cpu.cfs_quota_us", str(quota))


def _limiters(root: Path, kind: str, mounts: str, own: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """The controllers that can limit leases: version and directory of their groups, by name."""
    if kind == CGROUP_2:
        for parent in (root.parent, root):
            for controller in _LIMITERS:
                with suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
    for controller in _LIMITERS:
        places = ((CGROUP_2, root),) if kind == CGROUP_2 else ()
        old = ((CGROUP_1, place / root.name) for _, place in _version_1(mounts, own, controller))
        for version, place in (*places, *old):
            if _can_limit(place, controller, version):
                yield controller, (version, str(place))
                break


def _can_limit(root: Path, controller: str, version: str) -> bool:
    """Whether a group below this directory can have a limit of this controller."""
    probe = root / _PROBE
    try:
        probe.mkdir(parents=True)
        file, text = _setting(controller, version, 1 << 30 if controller == "memory" else 1)
        (probe / file).write_text(text)
        probe.rmdir()
    except OSError:
        for directory in (probe, root):
            with suppress(OSError):  # the root has other groups
                directory.rmdir()
        return False
    return True


def _places(mounts: str, own: str) -> Iterator[tuple[str, Path]]:
    """This process's group in each suitable hierarchy, best first; of version 2, the group of its unit."""
    for _, controllers, path in _groups(own):
        if not controllers:
            unit = str(Path(path).parent) if Path(path).name == AGENT_GROUP else path
            yield from (
                (CGROUP_2, _below(point, root, unit)) for root, point, kind, _ in _mounted(mounts) if kind == "cgroup2"
            )
    for wanted in _CONTROLLERS:
        yield from _version_1(mounts, own, wanted)


def group_directories(mounts: str, own: str, controller: str) -> Iterator[tuple[str, Path]]:
    """The mount point of each hierarchy that may limit this process by a controller, and its group there."""
    for _, controllers, path in _groups(own):
        for root, point, kind, _ in _mounted(mounts) if not controllers else ():
            if kind == "cgroup2":
                yield point, _below(point, root, path)
    for _, controllers, path in _groups(own):
        for root, point, kind, options in _mounted(mounts) if controller in controllers.split(",") else ():
            if kind == "cgroup" and controller in options.split(","):
                yield point, _below(point, root, path)


def _version_1(mounts: str, own: str, controller: str) -> Iterator[tuple[str, Path]]:
    """This process's group in version 1's hierarchy of a controller."""
    for _, controllers, path in _groups(own):
        if controller in controllers.split(","):
            for root, point, kind, options in _mounted(mounts):
                if kind == "cgroup" and controller in options.split(","):
                    yield CGROUP_1, _below(point, root, path)


def _groups(own: str) -> list[list[str]]:
    """Number, controllers and path of this process's groups."""
    return [line.split(":", 2) for line in own.splitlines() if line.count(":") >= 2]


def _mounted(mounts: str) -> list[tuple[str, ...]]:
    """Root, mount point, kind and options of each mount."""
    parts = [line.partition(" - ") for line in mounts.splitlines()]
    return [(*before.split()[3:5], *after.split()[::2]) for before, _, after in parts]


def _below(point: str, root: str, path: str) -> Path:
    """The path of a group through a mount of `root` at `point`."""
    return Path(point) / os.path.relpath(path, root) if root != path else Path(point)


def _leave(group: Path) -> None:
    """Moves this process from its group to one below, if it is alone there; a session has other processes."""
    if (group / cgroups.PROCESSES).read_text().split() == [str(os.getpid())]:
        (group / AGENT_GROUP).mkdir(exist_ok=True)
        (group / AGENT_GROUP / cgroups.PROCESSES).write_text(str(os.getpid()))


def _owner(root: Path) -> Path:
    """The group that keeps `root` while this process lives."""
    return root / f"{_OWNER}{os.getpid()}"


def _tidy(root: Path) -> None:
    """Removes groups without leases of agents that were killed."""
    for other in root.parent.glob(f"{_PREFIX}*"):
        for owner in other.glob(f"{_OWNER}*"):
            if not Path("/proc", owner.name.removeprefix(_OWNER)).exists():
                with suppress(OSError):
                    owner.rmdir()
        if other != root and other.name != AGENT_GROUP:
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
