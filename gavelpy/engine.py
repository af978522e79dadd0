"""The engine: computes allocations with a policy, and rates with a throughput table or an estimator.

An engine serves one scheduler. It keeps the solver's warm state between calls, which affects speed but no result.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import SolverFailed
from gavelpy.estimator.kinds import Key, key_of
from gavelpy.estimator.probes import (
    Candidates,
    PairCandidates,
    Probe,
    Shares,
    pair_candidates,
    plan,
    value_alone,
    with_probes,
)
from gavelpy.mechanism import named_round
from gavelpy.mechanism.class_tiers import TiersLeft, joined_answers, less_used, of_jobs, part_of
from gavelpy.mechanism.commands import EstimateThroughput, SizesOfJobs, SolveAllocation
from gavelpy.mechanism.events import (
    NO_FLOATS,
    NO_INTS,
    NO_PAIRS,
    AllocationFailed,
    AllocationSolved,
    ThroughputEstimated,
)
from gavelpy.mechanism.gpu_memory import GpuMemory, fit_together
from gavelpy.model.allocation import Allocation
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.configurations import with_size_rows
from gavelpy.model.pairs import with_gaining_pairs
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies import memory
from gavelpy.policies.base import Policy, ProblemInput, uses_of
from gavelpy.policies.team_rows import allocate_within
from gavelpy.solve.solver import Solver

if TYPE_CHECKING:
    from gavelpy.estimator.online import ThroughputEstimator

PAIR_QUANTILE = 0.15  # of the rate of a co-located job relative to its rate alone
SHARE_UNIT = 2.0**-24  # the tie rule rounds shares down to multiples of this
PROBE_SHARE = 0.25  # time share of a probed job until the next allocation
PAIR_PROBE_SHARE = 0.5  # the same for a probed pair; a smaller share would wait behind larger ones
KEYS_SPARE = 1024  # keys kept for jobs that are in no problem: new jobs, and jobs that may return
LEFT_MAX_S = 86400.0 * 365.0  # cap on the remaining GPU time of a job
ROUNDING = 2.0**-34  # solver error below a multiple that is ignored

_Prices = tuple[dict[str, float], dict[tuple[str, str], float]]  # of GPUs, and of other resources


@dataclass
class Profiled:
    """The measurements that an engine has scheduled, and the GPU time reserved for them."""

    gpu_s: float = 0.0
    alone: set[tuple[int, int]] = field(default_factory=set)  # serial, GPU type
    pairs: set[tuple[int, int, int]] = field(default_factory=set)  # two serials, GPU type

    def add(self, jobs: Ints, probes: Sequence[Probe]) -> None:
        """Adds probes; their rows are indices into `jobs`, which are serials."""
        for probe in probes:
            self.gpu_s += probe.gpu_s
            job = int(jobs[probe.row])
            if probe.partner < 0:
                self.alone.add((job, probe.gpu_type))
            else:
                self.pairs.add((job, int(jobs[probe.partner]), probe.gpu_type))


@dataclass(eq=False)
class Engine:
    """A policy with its solver and its source of rates. `blind` hides the differences between GPU types from it.

    With an `estimator` every rate has an estimate. `quantile` sets how cautious it is: 0.5 is the median, smaller
    values are more likely exceeded. Co-location slowdowns use the lower `pair_quantile`: picking the best of many noisy
    estimates is biased upwards (winner's curse).
    """

    policy: Policy
    blind: BlindView | None = None
    throughputs: ThroughputTable | None = None
    solver: Solver = field(default_factory=Solver)
    cpu_s: float = 0.0  # of the policy so far
    shadow_prices: dict[str, float] = field(default_factory=dict)  # by GPU type, of the last allocation
    resource_prices: dict[tuple[str, str], float] = field(default_factory=dict)  # of others, by GPU type and resource
    estimator: ThroughputEstimator | None = None
    quantile: float = 0.5
    pair_quantile: float = PAIR_QUANTILE
    profile_budget_s: float = 0.0  # GPU-seconds of each allocation reserved for measurements
    profile_probe_s: float = 360.0  # length of a probe: the mechanism's round
    profiled: Profiled = field(default_factory=Profiled)  # measurements scheduled so far
    _keys: dict[int, Key] = field(default_factory=dict)  # of the jobs whose rates are estimated, by serial

    def solve(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The policy's allocation as an event; if the solver fails, an event after which the old allocation stays."""
        assert question.problem.runs_alone, "the mechanism sends single jobs; pairs are added here"
        self._forget(question.jobs)
        if question.parts:
            return self._solved_by_part(question)
        return self._solved_by_class(question) if question.tiers else self._solved(question)

    def _solved_by_part(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The answers for each part of the cluster. Objective and marginal values as for classes, first parts first."""
        answers: list[AllocationSolved] = []
        prices: _Prices = {}, {}
        budget_s, measured_s = self.profile_budget_s, self.profiled.gpu_s
        for one in question.parts:
            part = part_of(question, one)
            self.profile_budget_s = max(budget_s - (self.profiled.gpu_s - measured_s), 0.0)
            try:
                answer = self._solved_by_class(part) if part.tiers else self._solved(part)
            finally:
                self.profile_budget_s = budget_s
            if isinstance(answer, AllocationFailed):
                return answer
            answers.append(answer)
            question = less_used(question, part, answer)
            prices = self._prices_after(prices)
        self.shadow_prices, self.resource_prices = prices
        return joined_answers(question.epoch, answers)

    def _solved_by_class(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        """The answers for each priority class, the highest first, on the whole GPUs that the classes above leave.

        Objective: of the highest class with jobs that can run. A type's marginal value: of the highest class in which
        it is positive.
        """
        left = TiersLeft(question)
        answers: list[AllocationSolved] = []
        prices: _Prices = {}, {}
        budget_s, measured_s = self.profile_budget_s, self.profiled.gpu_s
        for k in range(len(question.tiers)):
            part = left.part(k)
            if part is None:
                continue
            self.profile_budget_s = max(budget_s - (self.profiled.gpu_s - measured_s), 0.0)
            try:
                answer = self._solved(part)
            finally:
                self.profile_budget_s = budget_s
            if isinstance(answer, AllocationFailed):
                return answer
            left.answered(k, part, answer)
            answers.append(answer)
            prices = self._prices_after(prices)
        self.shadow_prices, self.resource_prices = prices
        return joined_answers(question.epoch, answers)

    def _solved(self, question: SolveAllocation) -> AllocationSolved | AllocationFailed:
        if question.sizes is not None and ProblemInput.SIZES not in (uses_of(self.policy) or ()):
            return self._without_sizes(question, question.sizes)
        began_s = time.process_time()
        full = self.problem_of(question)
        problem = full if self.blind is None else full.blind_to_type(self.blind)
        try:
            allocation = allocate_within(self.policy, problem, question.limits, self.solver)
        except SolverFailed as failure:
            return AllocationFailed(question.epoch, str(failure))
        finally:
            self.cpu_s += time.process_time() - began_s
        shares = self._shares(question, full, allocation)
        row, gpu_type = np.nonzero(shares.alone)
        pair = np.flatnonzero(shares.together)
        share, gpus = shares.alone[row, gpu_type], NO_INTS
        if question.sizes is not None:
            several = _rounded(np.where(full.fits, allocation.share, 0.0)[-len(question.sizes.rows) :])
            size, its_type = np.nonzero(several)
            gpus = np.concatenate([np.rint(full.gpus_asked[row]).astype(np.int64), question.sizes.gpus[size]])
            row, gpu_type = np.concatenate([row, question.sizes.rows[size]]), np.concatenate([gpu_type, its_type])
            share = np.concatenate([share, several[size, its_type]])
        next_round, impossible = named_round.of_answer(full, question.jobs, allocation)
        self.shadow_prices = dict(zip(problem.gpu_types, allocation.shadow_prices.tolist(), strict=True))
        named = allocation.problem.resources[1:]  # with the rows of teams
        self.resource_prices = {
            (gpu_type, name): price
            for name, column in zip(named, allocation.resource_prices.T[1:].tolist(), strict=True)
            for gpu_type, price in zip(problem.gpu_types, column, strict=True)
        }
        certificate, (resources, value) = allocation.certificate, allocation.other_values
        return AllocationSolved(
            question.epoch,
            question.jobs[row],
            gpu_type,
            share,
            certificate.objective,
            certificate.gap,
            certificate.path,
            question.jobs[shares.pairs[pair]],
            shares.pair_type[pair],
            shares.together[pair],
            certificate.warning,
            _known(allocation.shadow_prices),
            allocation.again_s,
            memory.labelled(self.policy, allocation.memory),
            *_refused(question, allocation, impossible),
            sizes=gpus,
            next_round=next_round,
            resources=resources,
            resource_value=value if resources else NO_FLOATS,
        )

    def problem_of(self, question: SolveAllocation) -> AllocationProblem:
        """The problem of a request with its pairs and sizes, as the policy gets it if it is not blind."""
        full, sizes = self._with_pairs(question) if question.packing else question.problem, question.sizes
        if sizes is not None:
            full = with_size_rows(full, sizes.rows, sizes.gpus.astype(float), sizes.rate_steps_per_s)
        return replace(full, memory=memory.own(self.policy, full.memory)) if full.memory else full

    def _without_sizes(self, question: SolveAllocation, sizes: SizesOfJobs) -> AllocationSolved | AllocationFailed:
        """The answer of a policy that does not use sizes: it refuses the jobs that have several."""
        problem, refused = question.problem, np.unique(sizes.rows)
        rows = np.setdiff1d(np.arange(problem.job_count), refused)
        answer = self._solved(of_jobs(question, rows, problem.member_rate_steps_per_s[rows], problem.capacity))
        if isinstance(answer, AllocationFailed):
            return answer
        why = f"policy {self.policy.name!r} does not use sizes"
        return replace(
            answer,
            refused_jobs=np.concatenate([answer.refused_jobs, question.jobs[refused]]),
            refused_why=(*answer.refused_why, *([why] * len(refused))),
        )

    def _prices_after(self, prices: _Prices) -> _Prices:
        """The prices of the answers before, and where they are 0 those of the last answer."""
        gpus, others = prices
        return (
            {name: gpus.get(name) or price for name, price in self.shadow_prices.items()},
            {key: others.get(key) or price for key, price in self.resource_prices.items()},
        )

    def estimate(self, question: EstimateThroughput) -> ThroughputEstimated:
        """Rates of jobs without rates: the estimator's, else the table's, NaN if unknown."""
        if self.estimator is not None:
            named = zip(question.jobs.tolist(), question.job_types, question.gpus.tolist(), strict=True)
            keys = [key_of(serial, job_type, gpus) for serial, job_type, gpus in named]
            several = question.several or (None,) * len(keys)
            measured = zip(question.jobs.tolist(), keys, several, strict=True)  # jobs with several sizes as they run
            self._keys.update({serial: key for serial, key, requested in measured if requested is None})
            rates = self.estimator.rates_of_sizes(keys, several, question.gpu_types, self.quantile)
            return ThroughputEstimated(question.jobs, rates, _sizes_asked(question))
        rates = np.full((len(question.jobs), len(question.gpu_types)), np.nan)
        for row, key in enumerate(zip(question.job_types, question.gpus.tolist(), strict=True)):
            known = self.throughputs.rates(*key) if self.throughputs is not None else {}
            rates[row] = [known.get(gpu_type, np.nan) for gpu_type in question.gpu_types]
        return ThroughputEstimated(question.jobs, rates, _sizes_asked(question))

    def _shares(self, question: SolveAllocation, problem: AllocationProblem, allocation: Allocation) -> Shares:
        """The policy's shares, with time for probes, in multiples of the unit."""
        J, share = problem.job_count, np.where(problem.fits, allocation.share, 0.0)
        counts = problem.gpu_counts
        if question.sizes is not None:
            P = len(share) - len(question.sizes.rows)
            counts, share = np.maximum(counts - question.sizes.gpus @ share[P:], 0.0), share[:P]
        if len(share) == J and not (self.estimator is not None and self.profile_budget_s > 0):
            return Shares(_rounded(share), NO_PAIRS, NO_INTS, NO_FLOATS)
        pair, pair_type = np.nonzero(share[J:])
        members = problem.member_job[J : 2 * len(share) - J].reshape(-1, 2)[pair]  # those of sizes follow
        shares = Shares(share[:J], members, pair_type, share[J:][pair, pair_type])
        if self.estimator is not None and self.profile_budget_s > 0:
            probes = self._probes(self.estimator, question, problem, shares, allocation)
            self.profiled.add(question.jobs, probes)
            shares = with_probes(shares, problem.gpus_asked, counts, probes, PROBE_SHARE, PAIR_PROBE_SHARE)
        return replace(shares, alone=_rounded(shares.alone), together=_rounded(shares.together))

    def _with_pairs(self, question: SolveAllocation) -> AllocationProblem:
        """The problem with the pairs that gain according to the estimator, else the table."""
        problem = question.problem
        needed_gib = [0.0] * problem.job_count if question.memory is None else question.memory.needed_gib.tolist()
        several = set() if question.sizes is None else set(question.sizes.rows.tolist())
        is_sized = [row in several for row in range(problem.job_count)]  # such jobs share GPUs with no other job
        kinds = list(zip(_keys_of(question), needed_gib, is_sized, strict=True))
        row = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
        keys = [key for key, _, _ in row]
        if self.estimator is not None:
            slowdowns = self.estimator.pairs(keys, problem.gpu_types, self.pair_quantile)
        elif self.throughputs is not None:
            slowdowns = np.nan_to_num(self.throughputs.slowdowns(keys, problem.gpu_types), nan=0.0)
        else:
            return problem
        if question.memory is not None:
            fits = fit_together(np.array([needed for _, needed, _ in row]), question.memory.there_gib)
            slowdowns = np.where(fits, slowdowns, 0.0)
        if several:
            is_free = ~np.array([sized for _, _, sized in row])
            slowdowns = np.where((is_free[:, None] & is_free)[:, :, None], slowdowns, 0.0)
        return with_gaining_pairs(problem, [row[kind] for kind in kinds], slowdowns)

    def _probes(
        self,
        estimator: ThroughputEstimator,
        question: SolveAllocation,
        full: AllocationProblem,
        shares: Shares,
        allocation: Allocation,
    ) -> list[Probe]:
        """The most valuable measurements among the problem's jobs with estimated rates; with packing, also pairs."""
        problem = question.problem
        estimated = [row for row, serial in enumerate(question.jobs.tolist()) if serial in self._keys]
        rows = np.array(estimated, dtype=np.int64)
        if not len(rows):
            return []
        keys = [self._keys[serial] for serial in question.jobs[rows].tolist()]
        known = estimator.estimates(keys, problem.gpu_types)
        rate = problem.member_rate_steps_per_s[rows]
        best = rate.max(axis=1, initial=0.0)
        gpus = problem.gpus_asked[rows]
        left = np.divide(problem.steps_remaining[rows] * gpus, best, out=np.zeros(len(rows)), where=best > 0)
        is_open = (rate > 0) & problem.is_whole[rows]
        jobs = Candidates(known.blocks, is_open, gpus, np.minimum(left, LEFT_MAX_S), allocation.shadow_prices)
        pairs = None
        if question.packing:
            value = value_alone(full, allocation.share, allocation.shadow_prices)[rows]
            of_gpus = None if question.memory is None else question.memory.of(rows)
            types, left = problem.gpu_types, jobs.gpu_s_left
            pairs = self._pairs(estimator, keys, types, of_gpus, value, left, _among(rows, shares))
        probes = plan(jobs, self.profile_budget_s, probe_s=self.profile_probe_s, pairs=pairs)
        at = [*rows.tolist(), -1]  # -1 stays: alone
        return [replace(probe, row=at[probe.row], partner=at[probe.partner]) for probe in probes]

    def _pairs(
        self,
        estimator: ThroughputEstimator,
        keys: Sequence[Key],
        gpu_types: tuple[str, ...],
        of_gpus: GpuMemory | None,
        value: Floats,
        gpu_s_left: Floats,
        running: Ints,
    ) -> PairCandidates:
        kinds = list(dict.fromkeys(keys))
        slowdowns, fits = estimator.slowdowns(kinds, gpu_types)
        if of_gpus is not None:
            fits = np.where(fit_together(_most_gib(keys, of_gpus.needed_gib), of_gpus.there_gib), fits, 0.0)
        cautious = estimator.pairs(kinds, gpu_types, self.pair_quantile)
        return pair_candidates(keys, slowdowns, fits, cautious, value, gpu_s_left, running)

    def _forget(self, jobs: Ints) -> None:
        """Drops the keys of jobs that are over: of jobs that are not `present`, only the newest few are kept."""
        if len(self._keys) <= len(jobs) + KEYS_SPARE:
            return
        present = set(jobs.tolist())
        absent = sorted(serial for serial in self._keys if serial not in present)
        for serial in absent[: max(len(absent) - KEYS_SPARE, 0)]:
            del self._keys[serial]


def _sizes_asked(question: EstimateThroughput) -> Ints:
    """The GPUs of each estimate, if some job has several sizes."""
    return question.gpus if question.several else NO_INTS


def _known(prices: Floats) -> Floats:
    """The marginal values; none of a rule, which optimises nothing."""
    return np.zeros(0) if np.isnan(prices).any() else prices


def _refused(question: SolveAllocation, answer: Allocation, impossible: dict[int, str]) -> tuple[Ints, tuple[str, ...]]:
    """The jobs that the policy refuses, and why; also of those that it names where it is `impossible`, by row."""
    row_of = {job: row for row, job in enumerate(question.problem.job_ids)} if answer.refused else {}
    refused = impossible | {row_of[job]: why for job, why in answer.refused.items()}
    return question.jobs[list(refused)] if refused else NO_INTS, tuple(refused.values())


def _rounded(share: Floats) -> Floats:
    """Shares rounded down to multiples of the unit."""
    return np.asarray(np.floor((share + ROUNDING) / SHARE_UNIT) * SHARE_UNIT)


def _keys_of(question: SolveAllocation) -> list[Key]:
    named = zip(question.jobs.tolist(), question.job_types, question.problem.gpus_asked.tolist(), strict=True)
    return [key_of(serial, job_type, int(gpus)) for serial, job_type, gpus in named]


def _most_gib(keys: Sequence[Key], needed_gib: Floats) -> Floats:
    """The most GPU memory that a job of each distinct key needs, (K,); infinite where one did not declare it."""
    most: dict[Key, float] = {}
    for key, needed in zip(keys, needed_gib.tolist(), strict=True):
        most[key] = max(most.get(key, 0.0), needed or np.inf)
    return np.array(list(most.values()))


def _among(rows: Ints, shares: Shares) -> Ints:
    """Pairs with a share, as positions in `rows`, and their GPU type, (P, 3)."""
    place = np.full(len(shares.alone), -1)
    place[rows] = np.arange(len(rows))
    found = np.column_stack([place[shares.pairs], shares.pair_type])
    return found[(found >= 0).all(axis=1)]
