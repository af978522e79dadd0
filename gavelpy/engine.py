"""Answers the core's questions with a policy, and with a table of throughputs or an estimator.

One engine serves one scheduler: it keeps the solver's warm state between questions, which carries speed and never
meaning.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.estimator.kinds import Key, key_of
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.estimator.plan import Candidates, plan, with_probes
from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, ThroughputEstimated
from gavelpy.model.arrays import Floats
from gavelpy.model.pairs import with_gaining_pairs
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import Policy
from gavelpy.solve.solver import Solver

PAIR_QUANTILE = 0.15  # of what a job keeps beside a partner
SHARE_UNIT = 2.0**-24  # the tie rule rounds shares down to multiples of this
PROBE_SHARE = 0.25  # of a probed job's time, until the next allocation
LEFT_MAX_S = 86400.0 * 365.0  # of GPU time that a better type can save a share of
ROUNDING = 2.0**-34  # what a solver's last bits may lack of a multiple


@dataclass(eq=False)
class Engine:
    """A policy at work. `blind` hides the differences between GPU types from it.

    With an `estimator` every rate that is asked for has an answer, and `quantile` says how cautious it is: 0.5 is the
    median, less is a rate that the truth more likely exceeds. What jobs keep beside each other is told more cautiously:
    of many pairs a policy takes those that are estimated highest, and so those that are overestimated.
    """

    policy: Policy
    blind: BlindView | None = None
    throughputs: ThroughputTable | None = None
    solver: Solver = field(default_factory=Solver)
    cpu_s: float = 0.0  # spent in the policy so far
    prices: dict[str, float] = field(default_factory=dict)  # by GPU type, of the last answer
    estimator: ThroughputEstimator | None = None
    quantile: float = 0.5
    pair_quantile: float = PAIR_QUANTILE
    profile_budget_s: float = 0.0  # GPU-seconds of each allocation that go to measuring what is worth knowing
    profile_probe_s: float = 360.0  # a probe: the mechanism's round
    _keys: dict[int, Key] = field(default_factory=dict)  # by serial of the jobs whose rates were asked for

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The policy's answer as an event; a solver that fails is an answer too, and the old allocation stays."""
        assert question.problem.runs_alone, "the mechanism asks about single jobs; pairs are added here"
        began_s = time.process_time()
        asked = self._with_pairs(question) if question.packing else question.problem
        problem = asked if self.blind is None else asked.blind_to_type(self.blind)
        try:
            allocation = self.policy.allocate(problem, self.solver)
        except SolverFailed as failure:
            return AllocationFailed(question.epoch, str(failure))
        finally:
            self.cpu_s += time.process_time() - began_s
        J = asked.job_count
        everything = np.where(asked.fits, allocation.share, 0.0)
        share, together = everything[:J], everything[J:]
        if self.estimator is not None and self.profile_budget_s > 0:
            share = self._with_probes(self.estimator, question, share, allocation.prices)
        share, together = (np.floor((part + ROUNDING) / SHARE_UNIT) * SHARE_UNIT for part in (share, together))
        row, gpu_type = np.nonzero(share)
        pair, pair_type = np.nonzero(together)
        self.prices = dict(zip(problem.gpu_types, allocation.prices.tolist(), strict=True))
        certificate = allocation.certificate
        return AllocationSolved(
            question.epoch,
            question.jobs[row],
            gpu_type,
            share[row, gpu_type],
            certificate.objective,
            certificate.gap,
            certificate.path,
            question.jobs[asked.member_job[J:].reshape(-1, 2)[pair]],
            pair_type,
            together[pair, pair_type],
        )

    def estimate(self, question: EstimateThroughput) -> ThroughputEstimated:
        """Rates of jobs that came without: the estimator's, else what the table says, NaN where that says nothing."""
        if self.estimator is not None:
            named = zip(question.jobs.tolist(), question.job_types, question.gpus.tolist(), strict=True)
            keys = [key_of(serial, job_type, gpus) for serial, job_type, gpus in named]
            self._keys.update(zip(question.jobs.tolist(), keys, strict=True))
            return ThroughputEstimated(question.jobs, self.estimator.rates(keys, question.gpu_types, self.quantile))
        rates = np.full((len(question.jobs), len(question.gpu_types)), np.nan)
        for row, key in enumerate(zip(question.job_types, question.gpus.tolist(), strict=True)):
            known = self.throughputs.rates(*key) if self.throughputs is not None else {}
            rates[row] = [known.get(gpu_type, np.nan) for gpu_type in question.gpu_types]
        return ThroughputEstimated(question.jobs, rates)

    def _with_pairs(self, question: SolveAllocation) -> AllocationProblem:
        """The problem with the pairs that gain by what the estimator, else the table, says of them."""
        problem = question.problem
        named = zip(question.jobs.tolist(), question.job_types, problem.gpus_asked.tolist(), strict=True)
        keys = [key_of(serial, job_type, int(gpus)) for serial, job_type, gpus in named]
        row = {key: i for i, key in enumerate(dict.fromkeys(keys))}
        if self.estimator is not None:
            kept = self.estimator.pairs(list(row), problem.gpu_types, self.pair_quantile)
        elif self.throughputs is not None:
            kept = np.nan_to_num(self.throughputs.slowdowns(list(row), problem.gpu_types), nan=0.0)
        else:
            return problem
        return with_gaining_pairs(problem, [row[key] for key in keys], kept)

    def _with_probes(
        self, estimator: ThroughputEstimator, question: SolveAllocation, share: Floats, prices: Floats
    ) -> Floats:
        """The shares with some time for probes, where jobs of unknown rates are asked about."""
        problem = question.problem
        rows = np.array(
            [row for row, serial in enumerate(question.jobs.tolist()) if serial in self._keys], dtype=np.int64
        )
        if not len(rows):
            return share
        keys = [self._keys[serial] for serial in question.jobs[rows].tolist()]
        known = estimator.estimates(keys, problem.gpu_types)
        rate = problem.member_rate_steps_per_s[rows]
        best = rate.max(axis=1, initial=0.0)
        gpus = problem.gpus_asked[rows]
        left = np.divide(problem.steps_remaining[rows] * gpus, best, out=np.zeros(len(rows)), where=best > 0)
        is_open = (rate > 0) & problem.is_whole[rows]
        jobs = Candidates(known.blocks, is_open, gpus, np.minimum(left, LEFT_MAX_S), prices)
        probes = plan(jobs, self.profile_budget_s, probe_s=self.profile_probe_s)
        probes = [replace(probe, row=int(rows[probe.row])) for probe in probes]
        return with_probes(share, problem.gpus_asked, problem.gpu_counts, probes, PROBE_SHARE)
