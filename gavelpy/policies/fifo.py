"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import COUNTED, Guarantee, ProblemInput, ruled
from gavelpy.policies.queue import PACKING_THRESHOLD, check_packing_threshold, jobs_running, whole_shares
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Fifo:
    """Jobs in order of arrival (row order) take whole GPUs of their fastest type that has enough left.

    The head of the queue blocks: if no type has enough GPUs left for it, no later job starts. It is skipped if enough
    GPUs are left, but only of types where it cannot run, or if only limits of its team stop it. A gang larger than
    every type blocks forever, as in the original; schedulers use AllocationProblem.with_whole_gangs, with which it is
    skipped. Blind, all types are equally fast: a job keeps the type that it holds, and a new job takes the type with
    most GPUs left (in the original, a random one). The certificate's objective is the number of running jobs. Gavel
    (OSDI '20), section 4.2 (FIFO), is an LP that prefers early jobs; like the original's code, this policy is a queue.

    If the problem has pairs, waiting jobs are then co-located, in order, each with the running job that gains most, if
    the rates of both, relative to each alone on the same type, sum to more than `packing_threshold`. The first job
    without a partner blocks the rest. (The original skips the job for which it ran out of GPUs.)

    >>> p = AllocationProblem.of(["a", "b"], ["v100", "k80"], [1, 1], [[4.0, 1.0], [9.0, 2.0]])
    >>> Fifo().allocate(p).share.tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """

    packing_threshold: float = PACKING_THRESHOLD

    name: ClassVar[str] = "fifo"
    summary: ClassVar[str] = (
        "Run jobs in order of arrival, each on the fastest GPUs left; the head of the queue blocks."
    )
    fills_leftover: ClassVar[bool] = False
    in_order: ClassVar[bool] = True
    time_varying: ClassVar[bool] = False
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.PAIRS, *COUNTED})
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def __post_init__(self) -> None:
        check_packing_threshold(self.packing_threshold)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1."""
        order = np.arange(problem.job_count)
        share = whole_shares(problem, order, blocks=True, packing_threshold=self.packing_threshold)
        return ruled(problem, share, objective=jobs_running(problem, share))
