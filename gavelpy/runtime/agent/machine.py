"""CPU cores and memory of this node that jobs may use: as configured, else what the agent itself may use.

The agent may use the cores of its affinity mask and the machine's memory, within the limits of its control groups
(`CPUQuota=`, `MemoryMax=` of its unit, or of a container): the groups of jobs are below them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gavelpy.errors import InvalidInput
from gavelpy.runtime.agent.config import NodeConfig
from gavelpy.runtime.agent.leases.containment import group_directories

GIB = 1 << 30
_QUOTAS = (("cpu", "cpu.max", ""), ("cpu", "cpu.cfs_quota_us", "cpu.cfs_period_us"))
_MEMORY = (("memory", "memory.max"), ("memory", "memory.limit_in_bytes"))


@dataclass(frozen=True)
class NodeAmounts:
    """What jobs may use of a node."""

    cpus: float
    memory_gib: float

    @property
    def text(self) -> str:
        """For people: `32 CPU cores, 251.5 GiB of memory`."""
        return f"{self.cpus:g} CPU cores, {self.memory_gib:g} GiB of memory"


def machine_of(config: NodeConfig, root: Path = Path("/")) -> NodeAmounts:
    """What this node offers, without what is reserved; raises InvalidInput if nothing is left."""
    cpus = (config.cpus or _cpus(root)) - config.cpus_reserved
    memory_gib = (config.memory_gib or _memory_bytes(root) / GIB) - config.memory_gib_reserved
    for name, left, whole in (("cpus", cpus, config.cpus), ("memory_gib", memory_gib, config.memory_gib)):
        if left <= 0:
            reserved = getattr(config, f"{name}_reserved")
            have = left + reserved
            raise InvalidInput(
                f"{name}_reserved must be less than what the node has ({have:g}{'' if whole else ', detected'}), "
                f"got {reserved:g}"
            )
    return NodeAmounts(_down(cpus), _down(memory_gib))


def _cpus(root: Path) -> float:
    limits = [float(len(os.sched_getaffinity(0)))]
    for controller, file, period_file in _QUOTAS:
        for group in _groups(root, controller):
            with suppress(OSError, ValueError):
                quota, *rest = (group / file).read_text().split()
                period = rest[0] if rest else (group / period_file).read_text()
                if quota != "max" and int(quota) > 0:
                    limits.append(int(quota) / int(period))
    return min(limits)


def _memory_bytes(root: Path) -> float:
    lines = (root / "proc/meminfo").read_text().splitlines()
    limits = [1024 * int(line.split()[1]) for line in lines if line.startswith("MemTotal:")]
    for controller, file in _MEMORY:
        for group in _groups(root, controller):
            with suppress(OSError, ValueError):
                limits.append(int((group / file).read_text()))
    return min(limits)


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The groups of this process with a controller, and those above them."""
    with suppress(OSError):
        mounts, own = (root / "proc/self/mountinfo").read_text(), (root / "proc/self/cgroup").read_text()
        for point, group in group_directories(mounts, own, controller):
            yield from (above for above in (group, *group.parents) if above.is_relative_to(point))


def _down(amount: float) -> float:
    """Rounded down to hundredths, so that a few bytes more or less change nothing."""
    return math.floor(amount * 100) / 100
