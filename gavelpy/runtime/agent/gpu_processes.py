"""How much memory the processes of each lease use of a GPU, as NVIDIA's `nvidia-smi` lists it.

It lists compute processes with their GPU and memory. A process belongs to the lease below whose shim it runs. Looking
now and then misses short peaks; frameworks rarely give memory back, so what a job uses after some steps is near its
peak. Jobs with LeaseIterator and torch report the peak themselves.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from gavelpy.runtime.agent.gpus import NVIDIA
from gavelpy.runtime.shim.processes import all_processes

logger = logging.getLogger(__name__)

TOOL: Final = "nvidia-smi"
QUERY: Final = ("--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits")
TIMEOUT_S: Final = 20.0
_MIB: Final = 1024.0  # a GiB


class GpuProcess(NamedTuple):
    """Memory that a process uses of a GPU."""

    process: int
    gpu: str
    gib: float


def find_tool(vendor: str) -> str:
    """The path of nvidia-smi; empty if the GPUs are of another vendor or it is not installed."""
    return (shutil.which(TOOL) or "") if vendor == NVIDIA else ""


def gpu_processes(tool: str) -> list[GpuProcess]:
    """The processes that use GPUs now; empty if the tool fails."""
    try:
        found = subprocess.run([tool, *QUERY], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        logger.debug("%s failed: %s", tool, error)
        return []
    return parsed(found.stdout)


def parsed(text: str) -> list[GpuProcess]:
    """The processes in the tool's table; lines without a number of MiB, as for processes of others, are left out."""
    rows = ([part.strip() for part in line.split(",")] for line in text.splitlines())
    return [GpuProcess(int(row[0]), row[1], int(row[2]) / _MIB) for row in rows if _is_whole(row)]


def used_by(shims: Iterable[int], found: Iterable[GpuProcess], parent_of: Mapping[int, int]) -> dict[int, float]:
    """GiB that the processes below each of these shims use together of one GPU, the most of all GPUs."""
    roots, used = set(shims), defaultdict[tuple[int, str], float](float)
    for one in found:
        process, seen = one.process, set[int]()
        while process not in roots and process in parent_of and process not in seen:
            seen.add(process)
            process = parent_of[process]
        if process in roots:
            used[process, one.gpu] += one.gib
    most: dict[int, float] = {}
    for (shim, _), gib in used.items():
        most[shim] = max(gib, most.get(shim, 0.0))
    return most


def measured(tool: str, shims: Iterable[int]) -> dict[int, float]:
    """GiB of a GPU that the leases of these shims use now, by shim; only those that use any."""
    found = gpu_processes(tool)
    parents = {facts.process: facts.parent for facts in all_processes()} if found else {}
    return used_by(shims, found, parents)


def _is_whole(row: list[str]) -> bool:
    return len(row) == 3 and row[0].isdecimal() and row[2].isdecimal()
