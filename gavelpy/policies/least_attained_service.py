"""Least attained service: the jobs that received the least GPU time so far run first, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput
from gavelpy.policies.in_order import run_in_order
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class LeastAttainedService:
    """Jobs in order of  a_j  run, each on the fastest GPUs that are left.

    a_j    GPU-seconds that job j received so far; ties keep the order of arrival

    Tiresias (NSDI '19), section 3.2: continuous 2D-LAS, priority g_j t_j with the time t_j for which the job ran on
    g_j GPUs. Lengths need not be known. It is the order itself, not Gavel's policy of this name (`las` is an alias of
    `max_min_fairness`), which makes rates equal. Equal jobs take turns of one round, so there are many preemptions:
    `tiresias` has queues against that. A job that does not fit is skipped.

    >>> p = AllocationProblem.of("abc", ["v100"], [2], np.ones((3, 1)), attained_gpu_s=[720.0, 0.0, 360.0])
    >>> LeastAttainedService().allocate(p).share[:, 0].tolist()
    [0.0, 1.0, 1.0]
    """

    name: ClassVar[str] = "least_attained_service"
    summary: ClassVar[str] = "Run the jobs that received the least GPU time first; preempt at the end of each round."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.ATTAINED, *COUNTED})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        return run_in_order(problem, np.argsort(problem.attained_gpu_s, kind="stable"))
