"""What shells, queries and reports may read of a core: a frozen picture of one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.model.arrays import Bools, Floats, Ints

Column = TypeVar("Column", Ints, Floats)


@dataclass(frozen=True, eq=False)
class CoreView:
    """Rows of jobs are serials, rows of GPUs their numbers. Arrays are read-only, and change with the core."""

    now_s: float
    round: int
    round_end_s: float  # infinite = no round in force
    gpu_types: tuple[str, ...]
    gpu_type_of: Ints  # (G,)
    gpu_job: Ints  # (G,) whose lease is promised or running here, -1 = nobody
    gpu_beside: Ints  # (G,) the same of the partner it shares the GPU with, -1 = nobody
    job_state: Ints  # (J,) JobState
    job_lease: Ints  # (J,) -1 = none
    steps_done: Floats  # (J,) as last reported
    share: Floats  # (J, T) of the allocation in force, alone and with partners
    received_s: Floats  # (J, T) as the priority rule counts it

    @property
    def is_over(self) -> Bools:
        """Whether each job has finished, was cancelled or given up, (J,)."""
        over: Bools = self.job_state > ALIVE[-1]
        return over


def read_only(column: Column) -> Column:
    """A view of an array that cannot be written to."""
    view = column.view()
    view.setflags(write=False)
    return view
