"""EASY backfilling: first in, first out, and later jobs may start unless that delays the first of the queue."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.backfilling import TICK_S, JobStarts
from gavelpy.policies.base import Guarantee, ProblemInput
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class EasyBackfilling:
    """Jobs start in order of arrival. The first that does not fit gets a reservation; later ones start around it.

    s    shadow time: the earliest time at which enough GPUs of a type are free for the first waiting job, if the jobs
         that run end when their steps are done;  the reservation is on the type where that is earliest, ties: the
         fastest
    e    extra GPUs: free on that type at s, less those of the first job

    A later job, in order of arrival, starts now on a type with enough free GPUs. On the reserved type it must end by s,
    or need no more than e GPUs, which are then less. Lifka (JSSPP '95); Mu'alem and Feitelson (IEEE TPDS 12(6), 2001),
    section 2. Slurm's scheduler/backfill is similar, for several reservations. Extension to several GPU types: a job
    takes the fastest on which it may start now, and does not wait for a faster one, as under `fifo`.

    Guarantee: with exact steps and rates, a reservation is never later in a later answer. Preemption by other rules
    (lost nodes, priority classes) breaks it. Jobs are not preempted. Sizes and other resources are refused.

    The gang b waits until a ends at 50 s. Of the jobs behind it, c would end too late, and d starts:

    >>> p = AllocationProblem.of(
    ...     "abcd", ["v100"], [3], [[1.0]] * 4, gpus=[2, 3, 1, 1], steps_remaining=[50.0, 9.0, 60.0, 40.0],
    ...     gpu_type_held=[0, -1, -1, -1],
    ... )
    >>> EasyBackfilling().allocate(p).share[:, 0].tolist()
    [1.0, 0.0, 0.0, 1.0]
    """

    name: ClassVar[str] = "easy_backfilling"
    summary: ClassVar[str] = "Run jobs in order of arrival; later ones start in gaps that do not delay the first."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.STEPS_REMAINING, ProblemInput.GPU_TYPE_HELD})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        refuse_unused(self, problem)
        starts = JobStarts(problem)
        reserved, shadow_s, extra = -1, math.inf, 0.0
        for job, fewest in starts.waiting_with_fewest():
            if fewest > starts.free.max():
                break  # no later job can start now
            gpus = starts.gpus[job]
            for gpu_type in starts.by_speed(job):
                is_late = gpu_type == reserved and starts.runs_for_s(job, gpu_type) > shadow_s + TICK_S
                if gpus <= (min(starts.free[gpu_type], extra) if is_late else starts.free[gpu_type]):
                    starts.start(job, gpu_type)
                    extra -= gpus if is_late else 0.0
                    break
            else:
                if reserved < 0:
                    shadow_s, reserved, extra = reservation(starts, job)
        return starts.answer()


def reservation(starts: JobStarts, job: int) -> tuple[float, int, float]:
    """Shadow time in seconds from now, type, and extra GPUs of a job that fits nowhere now."""
    found = []
    for order, gpu_type in enumerate(starts.by_speed(job)):
        ends = starts.ends(gpu_type)
        for at_s, _ in ends:
            free = float(starts.free[gpu_type]) + sum(gpus for end_s, gpus in ends if end_s <= at_s + TICK_S)
            if free >= starts.gpus[job]:
                found.append((at_s, order, gpu_type, free - float(starts.gpus[job])))
                break
    at_s, _, gpu_type, extra = min(found, default=(math.inf, 0, -1, 0.0))
    return at_s, gpu_type, extra
