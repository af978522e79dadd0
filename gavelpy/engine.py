"""Answers the core's questions with a policy and a table of throughputs.

One engine serves one scheduler: it keeps the solver's warm state between questions, which carries speed and never
meaning.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, ThroughputEstimated
from gavelpy.model.problem import BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import Policy
from gavelpy.solve.solver import Solver

SHARE_UNIT = 2.0**-24  # the tie rule rounds shares down to multiples of this
ROUNDING = 2.0**-34  # what a solver's last bits may lack of a multiple


@dataclass(eq=False)
class Engine:
    """A policy at work. `blind` hides the differences between GPU types from it."""

    policy: Policy
    blind: BlindView | None = None
    throughputs: ThroughputTable | None = None
    solver: Solver = field(default_factory=Solver)
    cpu_s: float = 0.0  # spent in the policy so far

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The policy's answer as an event; a solver that fails is an answer too, and the old allocation stays."""
        began_s = time.process_time()
        problem = question.problem if self.blind is None else question.problem.blind_to_type(self.blind)
        try:
            allocation = self.policy.allocate(problem, self.solver)
        except SolverFailed as failure:
            return AllocationFailed(question.epoch, str(failure))
        finally:
            self.cpu_s += time.process_time() - began_s
        assert problem.runs_alone, "the mechanism leases GPUs to single jobs"
        share = np.where(question.problem.member_rate_steps_per_s > 0, allocation.share, 0.0)
        share = np.floor((share + ROUNDING) / SHARE_UNIT) * SHARE_UNIT
        row, gpu_type = np.nonzero(share)
        certificate = allocation.certificate
        return AllocationSolved(
            question.epoch,
            question.jobs[row],
            gpu_type,
            share[row, gpu_type],
            certificate.objective,
            certificate.gap,
            certificate.path,
        )

    def estimate(self, question: EstimateThroughput) -> ThroughputEstimated:
        """What the table says of jobs that came without rates; NaN rows where it says nothing."""
        rates = np.full((len(question.jobs), len(question.gpu_types)), np.nan)
        for row, key in enumerate(zip(question.job_types, question.gpus.tolist(), strict=True)):
            known = self.throughputs.rates(*key) if self.throughputs is not None else {}
            if known:
                rates[row] = [known.get(gpu_type, 0.0) for gpu_type in question.gpu_types]
        return ThroughputEstimated(question.jobs, rates)
