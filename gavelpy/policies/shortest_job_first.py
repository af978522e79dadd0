"""Shortest job first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput, ruled
from gavelpy.policies.queue import PACKING_THRESHOLD, check_packing_threshold, jobs_running, whole_shares
from gavelpy.solve.program import best_rate_steps_per_s
from gavelpy.solve.solver import Solver

Measure = Literal["remaining", "total"]


@dataclass(frozen=True)
class ShortestJobFirst:
    """Jobs in order of  steps_j / max_t rate_jt  take whole GPUs of their fastest type that has enough left.

    steps_j    steps remaining (shortest remaining time first) or, with by="total", of the whole job
    rate_jt    steps/s alone on type t; ties keep the order of arrival

    Gavel (OSDI '20), section 4.2 (shortest job first), with section 4.1's max over types. No job blocks: one that does
    not fit is skipped in favour of longer ones that do, since waiting for a large gang would leave GPUs idle that
    short jobs can use. The certificate's objective is the number of running jobs.

    If the problem has pairs, waiting jobs are then co-located as in `fifo`, the shortest first; a job without a partner
    waits. The original has no such policy.

    >>> p = AllocationProblem.of(["a", "b"], ["v100"], [1], [[4.0], [4.0]], steps_remaining=[300.0, 100.0])
    >>> ShortestJobFirst().allocate(p).share.tolist()
    [[0.0], [1.0]]
    """

    by: Measure = "remaining"
    packing_threshold: float = PACKING_THRESHOLD

    name: ClassVar[str] = "shortest_job_first"
    summary: ClassVar[str] = "Run the jobs with the least work first, each on the fastest GPUs left."
    fills_leftover: ClassVar[bool] = True
    time_varying: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.by not in get_args(Measure):
            raise InvalidInput(f"by must be 'remaining' or 'total', got {self.by!r}")
        check_packing_threshold(self.packing_threshold)

    @property
    def uses(self) -> frozenset[ProblemInput]:
        """Total steps or those that remain, by `by`."""
        return frozenset(
            {
                ProblemInput.STEPS_TOTAL if self.by == "total" else ProblemInput.STEPS_REMAINING,
                ProblemInput.PAIRS,
                *COUNTED,
            }
        )

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1."""
        steps = problem.steps_remaining if self.by == "remaining" else problem.steps_total
        best = best_rate_steps_per_s(problem)
        time_s = np.where(best > 0, steps / np.where(best > 0, best, 1.0), np.inf)
        order = np.argsort(time_s, kind="stable")
        share = whole_shares(problem, order, blocks=False, packing_threshold=self.packing_threshold)
        return ruled(problem, share, objective=jobs_running(problem, share))
