"""First in, first out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from gavelpy.model.allocation import Allocation
from gavelpy.model.problem import AllocationProblem
from gavelpy.policies.base import ruled
from gavelpy.policies.guarantees import Guarantee
from gavelpy.policies.queue import PACKING_THRESHOLD, check_packing_threshold, whole_shares
from gavelpy.solve.solver import Solver


@dataclass(frozen=True)
class Fifo:
    """Jobs in order of arrival (row order) each take whole GPUs of their fastest type that has enough left.

    The head of the queue blocks: when no type has enough GPUs left for it, nobody behind it starts. It is passed over
    when there are enough, but only of types where it cannot run. A gang larger than every type blocks for ever, as in
    the original; a scheduler asks with whole gangs (AllocationProblem.with_whole_gangs), where it is passed over.
    Blind, all types are equally fast: a job keeps the type it holds, and a new one takes the type with most GPUs left
    (the original draws one at random).
    The certificate's objective is the number of jobs that run. Gavel (OSDI '20), section 4.2 (FIFO), is an LP that
    prefers early jobs; like the original's code we do what a queue does.

    Where the problem has pairs, those that wait then join, in order, the job with which most is gained: when the rates
    of both, each relative to that job alone on the same type, sum to more than `packing_threshold`. The first in the
    queue that finds nobody ends it. The original forgets the job at which it ran out of GPUs and begins with the next.

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
    time_varying: ClassVar[bool] = False
    guarantees: ClassVar[frozenset[Guarantee]] = frozenset({Guarantee.STRATEGY_PROOF})

    def __post_init__(self) -> None:
        check_packing_threshold(self.packing_threshold)

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1."""
        order = np.arange(problem.job_count)
        share = whole_shares(problem, order, blocks=True, packing_threshold=self.packing_threshold)
        return ruled(problem, share, objective=float((problem.member_count @ share).sum()))
