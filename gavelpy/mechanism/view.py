"""A read-only view of a core for shells, queries and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.model.arrays import Bools, Floats, Ints

if TYPE_CHECKING:
    from gavelpy.mechanism.core import SchedulerCore

Column = TypeVar("Column", Ints, Floats)


@dataclass(frozen=True, eq=False)
class CoreView:
    """Jobs by serial, GPUs by number. Arrays are read-only, and change with the core."""

    now_s: float
    round: int
    round_end_s: float  # infinite = no round in force
    gpu_types: tuple[str, ...]
    gpu_type_of: Ints  # (G,)
    gpu_job: Ints  # (G,) job with a lease granted or running here, -1 = none
    gpu_beside: Ints  # (G,) the co-located job, -1 = none
    job_state: Ints  # (J,) JobState
    job_lease: Ints  # (J,) -1 = none
    steps_done: Floats  # (J,) as last reported
    share: Floats  # (J, T) of the allocation in force, alone and co-located
    received_s: Floats  # (J, T) as the priority rule counts it

    @property
    def is_over(self) -> Bools:
        """Whether each job has finished, was cancelled or given up, (J,)."""
        over: Bools = self.job_state > ALIVE[-1]
        return over


def read_only(column: Column) -> Column:
    """A read-only view of an array."""
    view = column.view()
    view.setflags(write=False)
    return view


def view_of(core: SchedulerCore) -> CoreView:
    """The view of a core now."""
    jobs, pool, n = core.jobs, core.pool, core.jobs.count
    return CoreView(
        now_s=core.now_s,
        round=core.round,
        round_end_s=core.round_end_s,
        gpu_types=pool.gpu_types,
        gpu_type_of=read_only(pool.type_of),
        gpu_job=read_only(pool.job),
        gpu_beside=read_only(pool.beside),
        job_state=read_only(jobs.state[:n]),
        job_lease=read_only(jobs.lease[:n]),
        steps_done=read_only(jobs.steps_done[:n]),
        share=read_only(jobs.share[:n]),
        received_s=read_only(jobs.total("received_s")[:n]),
    )
