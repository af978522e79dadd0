"""Shortest remaining service first: shortest remaining time first by GPU time, preemptive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, ProblemInput
from gavelpy.policies.in_order import run_in_order, service_left_gpu_s
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class ShortestRemainingService:
    """Jobs in order of  g_j steps_j / max_t r_jt  run, each on the fastest GPUs that are left.

    g_j        GPUs requested
    steps_j    steps remaining
    r_jt       steps/s on the GPUs requested, alone on type t; ties keep the order of arrival

    Tiresias (NSDI '19), section 3.2: with known lengths, the least remaining GPU time (time and space, "2D") first has
    a lower average completion time than the least remaining time, because a gang that is nearly done still delays as
    many jobs as it has GPUs. Preemption is at the end of a round. A job that does not fit is skipped.

    A gang of 4 with 10 s left waits for three jobs of 1 GPU with 30 s left:

    >>> steps = [10.0, 30.0, 30.0, 30.0]
    >>> p = AllocationProblem.of("abcd", ["v100"], [4], np.ones((4, 1)), gpus=[4, 1, 1, 1], steps_remaining=steps)
    >>> ShortestRemainingService().allocate(p).share[:, 0].tolist()
    [0.0, 1.0, 1.0, 1.0]
    """

    name: ClassVar[str] = "srsf"
    summary: ClassVar[str] = "Run the jobs with the least GPU time left first; preempt at the end of each round."
    fills_leftover: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.STEPS_REMAINING, *COUNTED})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        return run_in_order(problem, np.argsort(service_left_gpu_s(problem), kind="stable"))
