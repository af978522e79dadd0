"""The memory of GPUs, and which jobs may share it: where jobs are real, two are co-located only if both surely fit.

A program that does not get the GPU memory that it needs fails, and may take the other one with it. Therefore only jobs
whose owners declared their memory share GPUs (`gavel submit --gpu-memory`), and only where both needs together are at
most what a GPU of that type has ([gpu_types.NAME] of the scheduler). Declaring it is also the owner's consent.

A simulation has no memory of GPU types: there, pairs that do not fit have a rate of zero in the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobSpec

MEMORY_GIB_MAX = 1e6
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


def memory_of(types: Sequence[GpuType], names: Sequence[str], specs: Sequence[JobSpec]) -> GpuMemory | None:
    """What these jobs need, and what GPUs of the types with these names have; None where no type is known."""
    if not types:
        return None
    known = {one.name: one.memory_gib for one in types}
    needed = np.array([spec.gpu_memory_gib for spec in specs])
    return GpuMemory(needed, np.array([known.get(name, 0.0) for name in names]))


def fit_together(needed_gib: Floats, there_gib: Floats) -> Bools:
    """Whether two jobs fit on one GPU, (K, K, T), by what each needs (K,) and what GPUs of each type have (T,).

    A need of 0 is not declared: such a job shares with none.
    """
    both = needed_gib[:, None] + needed_gib[None, :]
    declared = (needed_gib > 0)[:, None] & (needed_gib > 0)[None, :]
    return np.asarray(declared[:, :, None] & (both[:, :, None] <= there_gib))
