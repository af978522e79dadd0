"""Conservative backfilling: first in, first out, and later jobs may start unless that delays any job before them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.backfilling import TICK_S, JobStarts
from gavelpy.policies.base import Guarantee, ProblemInput
from gavelpy.policies.refusals import refuse_unused
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class ConservativeBackfilling:
    """Each job, in order of arrival, gets a reservation: the earliest time at which it fits until it ends.

    Around the jobs that run until their steps are done, and the reservations before it; of several GPU types the one
    where it starts first, ties: the fastest. Jobs whose reservation is now start. Each answer computes all reservations
    again. Mu'alem and Feitelson (IEEE TPDS 12(6), 2001), section 2: conservative backfilling.

    Guarantee: with exact steps and rates and one GPU type, no job starts later than it would without the jobs that
    arrived after it. Jobs are not preempted. Sizes and other resources are refused.

    Under `easy_backfilling` d would start, since it delays only c. Here c has a reservation at 10 s, when a ends:

    >>> p = AllocationProblem.of(
    ...     "abcd", ["v100"], [3], [[1.0]] * 4, gpus=[2, 3, 1, 1], steps_remaining=[10.0, 9.0, 60.0, 40.0],
    ...     gpu_type_held=[0, -1, -1, -1],
    ... )
    >>> ConservativeBackfilling().allocate(p).share[:, 0].tolist()
    [1.0, 0.0, 0.0, 0.0]
    """

    name: ClassVar[str] = "conservative_backfilling"
    summary: ClassVar[str] = "Run jobs in order of arrival; later ones start in gaps that delay no job before them."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.STEPS_REMAINING, ProblemInput.GPU_TYPE_HELD})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        refuse_unused(self, problem)
        starts = JobStarts(problem)
        plans = [Plan(float(starts.free[t]), starts.ends(t)) for t in range(len(problem.gpu_types))]
        for job, fewest in starts.waiting_with_fewest():
            if fewest > max(plan.free[0] for plan in plans):
                break  # no later job can start now
            gpus, types = float(starts.gpus[job]), starts.by_speed(job)
            found = [plans[t].earliest_s(gpus, starts.runs_for_s(job, t)) for t in types]
            at_s = min(found)
            gpu_type = types[found.index(at_s)]
            plans[gpu_type].take(at_s, gpus, starts.runs_for_s(job, gpu_type))
            if at_s == 0:
                starts.start(job, gpu_type)
        return starts.answer()


class Plan:
    """The free GPUs of a type over time, as steps: from `times[k]` on there are `free[k]`."""

    def __init__(self, free_now: float, ends: list[tuple[float, float]]) -> None:
        self.times, self.free = [0.0], [free_now]
        for at_s, gpus in ends:
            if at_s > self.times[-1]:
                self.times.append(at_s)
                self.free.append(self.free[-1])
            self.free[-1] += gpus

    def earliest_s(self, gpus: float, length_s: float) -> float:
        """The first time from which that many GPUs are free for so long. At the end all GPUs are free."""
        start = 0
        for k, free in enumerate(self.free):
            if self.times[k] >= self.times[start] + length_s - TICK_S and start < k:
                break
            if free < gpus:
                start = k + 1
        return self.times[start]

    def take(self, at_s: float, gpus: float, length_s: float) -> None:
        """Reserves GPUs."""
        begin, end = self._step_at(at_s), self._step_at(at_s + length_s)
        for k in range(begin, end):
            self.free[k] -= gpus

    def _step_at(self, at_s: float) -> int:
        """The step that begins then, within `TICK_S`; it is made if there is none."""
        for k, time_s in enumerate(self.times):
            if abs(time_s - at_s) <= TICK_S:
                return k
            if time_s > at_s:
                self.times.insert(k, at_s)
                self.free.insert(k, self.free[k - 1])
                return k
        self.times.append(at_s)
        self.free.append(self.free[-1])
        return len(self.times) - 1
