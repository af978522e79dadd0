"""The memory of GPUs, and which jobs may share it: where jobs are real, two are co-located only if both surely fit.

A program that does not get the GPU memory that it needs fails, and may take the other one with it. Therefore only jobs
whose owners declared their memory share GPUs (`gavel submit --gpu-memory`), and only where both needs together are at
most what a GPU of that type has ([gpu_types.NAME] of the scheduler). Declaring it is also the owner's consent.

Nodes measure the memory that jobs use. A job that uses more than its owner declared needs what it uses. With
`packing_measured`, the operator's consent, jobs that declared nothing share GPUs as well: once they were measured,
while they ran alone, and with a tenth more than they used, as a program may not have used the most yet.

A simulation has no memory of GPU types: there, pairs that do not fit have a rate of zero in the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore
    from gavelpy.mechanism.events import GpuMemoryMeasured
    from gavelpy.mechanism.jobs import JobTable
    from gavelpy.mechanism.settings import MechanismSettings

MEMORY_GIB_MAX = 1e6
MARGIN = 1.1  # of a job that declared nothing: memory that counts over memory that it has used
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True)
class GpuType:
    """A GPU type in the configuration."""

    name: str
    memory_gib: float = 0.0  # of one GPU; 0 = not known: no jobs share GPUs of this type


def check_gpu_types(types: Sequence[GpuType]) -> None:
    """Raises InvalidInput, which names type and field, unless each has a name of its own and a memory that can be."""
    seen: set[str] = set()
    for one in types:
        if not _NAME.fullmatch(one.name):
            allowed = "named by 1 to 63 letters, digits, '.', '_' and '-'"
            raise InvalidInput(f"gpu_types must be {allowed}, got {one.name[:80]!r}")
        if one.name in seen:
            raise InvalidInput(f"gpu_types must have each name once, got {one.name!r} twice")
        if not 0 <= one.memory_gib <= MEMORY_GIB_MAX:
            allowed = f"in [0, {MEMORY_GIB_MAX:g}]"
            raise InvalidInput(f"gpu_types.{one.name}.memory_gib must be {allowed}, got {one.memory_gib!r}")
        seen.add(one.name)


@dataclass(frozen=True, eq=False)
class GpuMemory:
    """What the jobs of a problem need and what its GPU types have."""

    needed_gib: Floats  # (J,) of each GPU; 0 = not declared
    there_gib: Floats  # (T,) of a GPU; 0 = not known

    def of(self, rows: Ints) -> GpuMemory:
        """The same for some of the jobs."""
        return GpuMemory(self.needed_gib[rows], self.there_gib)


def memory_of(jobs: JobTable, rows: Ints, names: Sequence[str], settings: MechanismSettings) -> GpuMemory | None:
    """What these jobs need, and what GPUs of the types with these names have; None where no type is known."""
    if not settings.gpu_types or not settings.packing:
        return None
    known = {one.name: one.memory_gib for one in settings.gpu_types}
    return GpuMemory(needed_gib(jobs, rows, settings), np.array([known.get(name, 0.0) for name in names]))


def needed_gib(jobs: JobTable, rows: Ints, settings: MechanismSettings) -> Floats:
    """GPU memory that these jobs count with, (K,): 0 = they share GPUs with none."""
    return np.array([_need(jobs, row, settings) for row in rows.tolist()], dtype=np.float64)


def need_on(jobs: JobTable, serial: int, gpu_type: str, settings: MechanismSettings) -> tuple[float, float]:
    """GiB that a job counts with on a GPU of this type, and as a part of its memory, at most 1; 0 = not known."""
    row = jobs.ids.row(serial)
    need = _need(jobs, row, settings) if settings.packing and row >= 0 else 0.0
    there = next((one.memory_gib for one in settings.gpu_types if one.name == gpu_type), 0.0)
    return need, min(need / there, 1.0) if there else 0.0


def measured(jobs: JobTable, event: GpuMemoryMeasured, settings: MechanismSettings) -> bool:
    """Books the GPU memory that running jobs have used; returns whether any of them now counts with another need."""
    counts = (jobs.lease[event.jobs] == event.leases) | (jobs.stopping[event.jobs] == event.leases)
    rows, peaks = event.jobs[counts], event.peak_gib[counts]
    before = needed_gib(jobs, rows, settings)
    for row, peak in zip(rows.tolist(), peaks.tolist(), strict=True):
        jobs.measured_gib[row] = max(peak, jobs.measured_gib.get(row, 0.0))
    return settings.packing and bool((needed_gib(jobs, rows, settings) != before).any())


def part(core: SchedulerCore) -> None:
    """Takes the share, and the place in a named round, of pairs that do not fit on their GPUs any more.

    Measurements and settings can be newer than an allocation. Jobs that no plan preempts stay where they are.
    """
    jobs, settings = core.jobs, core.settings
    if not settings.packing or not settings.gpu_types:
        return
    named, claims = core.question.next_round, jobs.claims
    if len(named):
        core.question.next_round = named[_fit(core, named[:, 0], named[:, 1], named[:, 2])]
    core.settle()  # shares change
    is_bound = jobs.marks(core.exempt.jobs)[claims.first]
    claims.target[~is_bound & ~_fit(core, claims.first, claims.second, claims.gpu_type)] = 0.0


def _fit(core: SchedulerCore, first: Ints, second: Ints, gpu_type: Ints) -> Bools:
    """Whether these jobs fit on a GPU of the type, (K,): all without a second job, which is -1."""
    known = {one.name: one.memory_gib for one in core.settings.gpu_types}
    there = np.array([known.get(name, 0.0) for name in core.pool.gpu_types])
    one, other = (needed_gib(core.jobs, rows, core.settings) for rows in (first, np.maximum(second, 0)))
    return np.asarray((second < 0) | ((one > 0) & (other > 0) & (one + other <= there[gpu_type])))


def in_words(declared_gib: float, measured_gib: float) -> str:
    """What a job declared and uses of GPU memory, for people; empty = it was not measured."""
    if not measured_gib:
        return ""
    used = f"has used {measured_gib:.1f} GiB of GPU memory"
    if not declared_gib:
        return f"{used}; it declared none (--gpu-memory)"
    if measured_gib <= declared_gib:
        return f"{used} of {declared_gib:g} GiB that it declared"
    return f"{used}, more than the {declared_gib:g} GiB that it declared: it now counts with what it used"


def _need(jobs: JobTable, row: int, settings: MechanismSettings) -> float:
    declared, used = jobs.specs[row].gpu_memory_gib, jobs.measured_gib.get(row, 0.0)
    if declared:
        return max(declared, used)
    return MARGIN * used if settings.packing_measured else 0.0


def fit_together(needed_gib: Floats, there_gib: Floats) -> Bools:
    """Whether two jobs fit on one GPU, (K, K, T), by what each needs (K,) and what GPUs of each type have (T,).

    A need of 0 is not declared: such a job shares with none.
    """
    both = needed_gib[:, None] + needed_gib[None, :]
    declared = (needed_gib > 0)[:, None] & (needed_gib > 0)[None, :]
    return np.asarray(declared[:, :, None] & (both[:, :, None] <= there_gib))
