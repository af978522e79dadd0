"""The slow questions the core asks: which share of time for whom, and how fast is a job nobody measured.

One question of a kind is out at a time. An answer counts for the jobs that still live; if the world has moved on
meanwhile, the question is asked again. Open questions are state: after a restart they are asked again.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.mechanism.commands import EstimateThroughput, SolveAllocation
from gavelpy.mechanism.domains import can_run
from gavelpy.mechanism.events import NO_INTS, AllocationSolved, ThroughputEstimated
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.mechanism.jobs import JobTable
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.mechanism.unsaved import NONE_KEPT, Kept
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.problem import THOUSANDTHS, AllocationProblem, Entity

NONE_OPEN = -1
FAILURES_MAX = 16  # in a row, and the question rests until the world changes; the last pause is 2 ** 15 rounds long


class AllocationQuestion:
    """Whether the allocation in force is out of date, and the question that is out about it."""

    def __init__(self) -> None:
        self.stale = False
        self.epoch = 0  # of the last question
        self.open_epoch = NONE_OPEN
        self.asked_s = -math.inf
        self.asked_jobs: Ints = NO_INTS
        self.failures = 0  # in a row
        self.retry_s = -math.inf  # after a failure: not before

    def may_ask(self, now_s: float, interval_s: float) -> bool:
        """Whether a new question is due and allowed."""
        return self.stale and self.open_epoch == NONE_OPEN and now_s >= self.allowed_s(interval_s)

    def allowed_s(self, interval_s: float) -> float:
        """When the policy may be asked again. A question at time 0 does not count, as in the original."""
        return max(self.retry_s, self.asked_s + interval_s if self.asked_s > 0 else 0.0)

    def renew(self) -> None:
        """The world has changed: whatever was asked or failed before, the question is a new one."""
        self.stale = True
        self.retry_s = -math.inf

    def expire(self, now_s: float, every_s: float) -> None:
        """An answer that was asked for `every_s` ago is out of date, as time alone may change it; 0 = never."""
        if every_s and self.open_epoch == NONE_OPEN and now_s >= self.asked_s + every_s:
            self.stale = True

    def put_off(self, now_s: float, round_s: float) -> None:
        """The policy failed. The same question may be put again after a round, then two, then four."""
        self.failures += 1
        if not self.stale:
            pause_s = round_s * 2.0 ** (self.failures - 1) if self.failures <= FAILURES_MAX else math.inf
            self.retry_s = now_s + pause_s
        self.stale = True

    def ask(
        self,
        jobs: JobTable,
        pool: GpuPool,
        rows: Ints,
        now_s: float,
        packing: bool = False,
        kept: Kept = NONE_KEPT,
    ) -> list[SolveAllocation]:
        """The question about these jobs, if there are any, next to those that are `kept`."""
        self.stale = False
        if not len(rows):
            return []
        self.epoch += 1
        self.open_epoch, self.asked_s, self.asked_jobs = self.epoch, now_s, rows
        problem = problem_of(jobs, pool, rows, now_s, kept)
        job_types = tuple(jobs.specs[row].job_type for row in rows.tolist()) if packing else ()
        return [SolveAllocation(self.epoch, problem, rows, packing, job_types)]

    def forget(self) -> bool:
        """Whether a question was open; its answer will not come, and it may be put again at once."""
        was_open = self.open_epoch != NONE_OPEN
        if was_open:
            self.open_epoch, self.asked_s = NONE_OPEN, -math.inf
        return was_open

    def close(self, epoch: int) -> bool:
        """Whether an answer is to the open question; it is no longer open then."""
        if epoch != self.open_epoch:
            return False
        self.open_epoch = NONE_OPEN
        return True

    def apply(self, answer: AllocationSolved, jobs: JobTable, forgotten_s: float = 0.0) -> None:
        """Puts the shares in force; those of jobs that died meanwhile have no effect.

        Of pairs without a share those are forgotten that are owed and have received less than `forgotten_s`.
        """
        self.failures, self.retry_s = 0, -math.inf
        jobs.target[jobs.active] = 0.0
        jobs.target[answer.jobs, answer.gpu_type] = answer.share
        if len(answer.pair_share) or jobs.pairs.count:
            _put_pairs(answer, jobs, forgotten_s)
        asked = self.asked_jobs
        jobs.solved[asked] = np.where(jobs.solved[asked] < 0, answer.epoch, jobs.solved[asked])


def _put_pairs(answer: AllocationSolved, jobs: JobTable, forgotten_s: float) -> None:
    pairs, is_alive = jobs.pairs, jobs.state[: jobs.count] <= ALIVE[-1]
    in_use = jobs.partner[pairs.first] == pairs.second
    is_worth_it = np.maximum(pairs.owed_s, pairs.received_s) >= forgotten_s
    lives = is_alive[pairs.first] & is_alive[pairs.second]
    wanted = is_alive[answer.pair_jobs].all(axis=1) & (answer.pair_share > 0)
    members, gpu_type, share = answer.pair_jobs[wanted], answer.pair_gpu_type[wanted], answer.pair_share[wanted]
    pairs.put(members, gpu_type, share, lives & (in_use | is_worth_it))


class ThroughputQuestion:
    """The jobs whose rates nobody knows, and the question that is out about some of them."""

    def __init__(self) -> None:
        self.wanted: list[int] = []  # jobs to ask about
        self.asked: Ints = NO_INTS  # jobs of the open question that are not answered yet, ascending

    @property
    def may_ask(self) -> bool:
        """Whether a question is due and none is out."""
        return bool(self.wanted) and not len(self.asked)

    def want(self, rows: list[int]) -> None:
        """Asks about these jobs next."""
        self.wanted += rows

    def ask(self, jobs: JobTable, pool: GpuPool) -> EstimateThroughput:
        """The question about all jobs that wait for one; those that have died meanwhile are answered for nobody."""
        rows = self.asked = np.unique(np.array(self.wanted, dtype=np.int64))
        self.wanted = []
        specs = [jobs.specs[row] for row in rows.tolist()]
        return EstimateThroughput(rows, tuple(s.job_type for s in specs), jobs.gpus[rows], pool.gpu_types)

    def apply(self, answer: ThroughputEstimated, jobs: JobTable) -> bool:
        """Believes the rates that are known; returns whether living jobs got any."""
        self.asked = np.setdiff1d(self.asked, answer.jobs)
        rates: Floats = answer.rates_steps_per_s
        known = ~np.isnan(rates).all(axis=1) & (jobs.state[answer.jobs] <= ALIVE[-1])
        rows, rates, types = answer.jobs[known], rates[known], rates.shape[1]  # types that joined since stay unknown
        jobs.rate[rows, :types] = np.where(np.isnan(rates), jobs.rate[rows, :types], rates)
        return bool(len(rows))


def problem_of(jobs: JobTable, pool: GpuPool, rows: Ints, now_s: float, kept: Kept = NONE_KEPT) -> AllocationProblem:
    """The allocation problem of these jobs now; books the isolated time of the work done since the last one.

    What is divided are the GPUs that no `kept` job holds. An isolated share is one of the whole cluster among all.
    """
    counts = pool.counts if kept.open_gpus is None else pool.type_counts(kept.open_gpus)
    gpus = jobs.gpus[rows]
    usable = can_run(jobs, pool, rows, kept.open_gpus)  # unknown, or a gang too large: not run there
    rate = np.where(usable, jobs.rate[rows], 0.0)
    _book_isolated(jobs, np.union1d(rows, kept.jobs) if len(kept.jobs) else rows, pool.counts)
    steps_left = jobs.steps_total[rows] - jobs.steps_done[rows]
    order = np.arange(len(rows))
    return AllocationProblem(
        job_ids=tuple(jobs.specs[row].id for row in rows.tolist()),
        gpu_types=pool.gpu_types,
        capacity=counts[:, None] * THOUSANDTHS,
        demand=gpus[:, None] * THOUSANDTHS,
        member_configuration=order,
        member_job=order,
        member_rate_steps_per_s=rate,
        gpus_asked=gpus.astype(np.float64),
        weight=jobs.weight[rows],
        steps_remaining=np.maximum(steps_left, jobs.steps_total[rows] * 1e-12),
        steps_total=jobs.steps_total[rows],
        age_s=now_s - jobs.submitted_s[rows],
        isolated_s=jobs.isolated_s[rows],
        deadline_s=jobs.deadline_at_s[rows] - now_s,
        attained_gpu_s=jobs.attained_gpu_s[rows],
        price_usd_per_gpu_h=pool.prices,
        entity=jobs.entity[rows],
        gpu_type_held=jobs.lease_type[rows],
        entities=tuple(Entity(name) for name in jobs.entities),
    )


def _book_isolated(jobs: JobTable, rows: Ints, counts: Ints) -> None:
    """Adds what the steps since the last question would have cost alone on 1/n of each type. Gavel §4.2, Themis."""
    progressed = jobs.steps_done[rows] - jobs.isolated_steps[rows]
    before = jobs.isolated_rate[rows]
    jobs.isolated_s[rows] += np.divide(progressed, before, out=np.zeros(len(rows)), where=before > 0).clip(min=0.0)
    jobs.isolated_steps[rows] = jobs.steps_done[rows]
    share = counts[None, :] / (len(rows) * jobs.gpus[rows])[:, None]
    share /= np.maximum(share.sum(axis=1, keepdims=True), 1.0)
    jobs.isolated_rate[rows] = (share * np.nan_to_num(jobs.rate[rows], nan=0.0)).sum(axis=1)
