"""Shortest remaining time first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.in_order import run_in_order
from gavelpy.solve.program import best_rate_steps_per_s
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class ShortestRemainingTime:
    """Jobs in order of  t_j = steps_j / max_t r_jt  run, each on the fastest GPUs that are left.

    steps_j    steps remaining
    r_jt       steps/s alone on type t; ties keep the order of arrival

    Schrage (Operations Research 16(3), 1968) proves that on one machine this order has the least total completion time
    of all; Tiresias (NSDI '19), section 2, compares with it as SRTF. Preemption is at the end of a round. A job that
    does not fit is skipped, so a large gang may wait long.

    It names the next round, so that the order holds on nodes as they are; `shortest_job_first` has the same order,
    states it as shares, and co-locates.

    >>> p = AllocationProblem.of("ab", ["v100", "k80"], [1, 1], [[4.0, 1.0], [2.0, 1.0]], steps_remaining=[40.0, 8.0])
    >>> ShortestRemainingTime().allocate(p).share.tolist()
    [[0.0, 1.0], [1.0, 0.0]]
    """

    name: ClassVar[str] = "srtf"
    summary: ClassVar[str] = "Run the jobs with the least time left first; preempt at the end of each round."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.STEPS_REMAINING, *COUNTED})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        return run_in_order(problem, np.argsort(time_left_s(problem), kind="stable"))


def time_left_s(problem: AllocationProblem) -> Floats:
    """Seconds that each job needs on its fastest GPUs, (J,); infinite if it can run nowhere."""
    best = best_rate_steps_per_s(problem)
    return np.where(best > 0, problem.steps_remaining / np.where(best > 0, best, 1.0), np.inf)
