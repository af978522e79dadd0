"""Simulations with an estimator: jobs run at the rates of the trace, which the scheduler learns from readings.

The learning loop is the daemon's. Steps are read at each wake-up. Virtual jobs have no warm-up apart from the restart,
which is not counted. Readings of co-located jobs teach co-location slowdowns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.learning_loop import KnownJob, KnownJobs, Learner, LearningLoop, MeasuredJob
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.mechanism import sizes
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NO_INTS, ThroughputEstimated
from gavelpy.mechanism.jobs import JobTable
from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.simulator.cluster import VirtualCluster


@dataclass(frozen=True)
class _Seen:
    """Steps of a job at a time, with its lease."""

    lease: int
    steps: float
    now_s: float


@dataclass(frozen=True)
class Learning:
    """A scheduler with no rates, or with wrong claims, and no table: `gavel simulate --estimate`."""

    claims_off: float = 0.0  # claims are wrong by factors in [1 / this, this], one per type; 0 = no claims
    profile_gpu_s: float = 0.0  # GPU-seconds of each allocation for probes

    def __post_init__(self) -> None:
        if self.claims_off != 0.0 and not 1.0 <= self.claims_off <= 1000.0:
            raise InvalidInput(f"claims_off must be 0 (no claims) or in [1, 1000], got {self.claims_off!r}")
        if not (math.isfinite(self.profile_gpu_s) and self.profile_gpu_s >= 0):
            raise InvalidInput(f"profile_gpu_s must be finite and >= 0, got {self.profile_gpu_s!r}")

    def begin(self, trace: Trace, gpu_types: tuple[str, ...], seed: int) -> Estimation:
        """The state at the start of a run."""
        T, rng = len(gpu_types), np.random.default_rng(seed)
        empty = ThroughputTable((), gpu_types, np.zeros((0, T)), np.zeros((0, T), dtype=np.int64), ())
        claims = {str(job.id): self._claimed(job, rng) for job in trace.jobs} if self.claims_off else {}
        return Estimation(ThroughputEstimator(empty), claims)

    def _claimed(self, job: JobSpec, rng: np.random.Generator) -> dict[str, float]:
        span = math.log(self.claims_off)
        return {name: rate * math.exp(rng.uniform(-span, span)) for name, rate in job.rates_steps_per_s.items()}


class Estimation:
    """Estimator and readings of one run. The engine of the run must use the same estimator."""

    def __init__(
        self,
        estimator: ThroughputEstimator,
        claims: Mapping[str, Mapping[str, float]] | None = None,  # by job id: claimed steps/s by GPU type
        quantile: float = 0.5,
    ) -> None:
        self.estimator, self.loop, self.learner = estimator, LearningLoop(), Learner(estimator, quantile)
        self.claims = dict(claims or {})
        self.reasons: list[str] = []  # why readings and claims were rejected; new phases
        self._jobs: list[JobSpec] = []
        self._seen: dict[int, _Seen] = {}

    def as_submitted(self, row: int, job: JobSpec) -> JobSpec:
        """The job without its true rates; its claims go to the estimator, also for its other sizes in proportion."""
        self._jobs.append(job)
        claims, claimed = self.claims.get(job.id, {}), list[tuple[int, Mapping[str, float]]]()
        for gpus in [size for size in job.sizes if size != job.gpus and claims]:
            like, types = [(job.gpus, claims)], tuple(claims)
            (rates,) = self.estimator.rates_of_sizes([self._known(row, gpus).key], like, types, 0.5)
            claimed.append((gpus, dict(zip(types, rates.tolist(), strict=True))))
        for gpus, given in [*claimed, (job.gpus, claims)]:
            verdicts = self.estimator.claim(*self._known(row, gpus).key, given)
            self.reasons += [verdict.reason for verdict in verdicts if verdict.reason]
        self.learner.guessed([(row, gpus) for gpus in job.sizes or (job.gpus,)])
        return replace(job, rates_steps_per_s={}, rates_by_size={})

    def learned(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> ThroughputEstimated | None:
        """Rates that changed notably by the readings of running jobs, if any."""
        self._read(core, agents, now_s)
        jobs = self._living(core.jobs) if self.loop.is_due(now_s) else KnownJobs()
        request = self.loop.request(jobs, core.pool.gpu_types, now_s)
        if request is None:
            return None
        answer = self.learner.learn(request)
        self.loop.answered()
        self.reasons += [remark.text for remark in answer.remarks]
        rates = answer.rates_steps_per_s
        rows = core.jobs.ids.rows(answer.jobs)  # all are there: they are unfinished
        changed = answer.notable(sizes.rates_at(core.jobs, rows, answer.gpus)[:, : rates.shape[1]])
        gpus = answer.gpus[changed] if len(sizes.several(core.jobs, rows[changed])) else NO_INTS
        return ThroughputEstimated(answer.jobs[changed], rates[changed], gpus) if np.count_nonzero(changed) else None

    def _living(self, jobs: JobTable) -> KnownJobs:
        position, gpus = sizes.every(jobs, jobs.active)
        rows = jobs.active[position]
        serials = jobs.ids.of_rows(rows)
        several = frozenset(serials[sizes.several(jobs, rows)].tolist())
        types = [self._jobs[job].job_type for job in serials.tolist()]
        return KnownJobs(serials, types, gpus, [{}] * len(rows), several)

    def _known(self, row: int, gpus: int) -> KnownJob:
        job = self._jobs[row]
        return KnownJob(row, job.job_type, gpus, several=bool(job.sizes))

    def _read(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> None:
        """Reads the steps of running jobs since they were last read."""
        progress, gpu_types = agents.progress(now_s), core.pool.gpu_types
        if progress is None:
            return
        for row, lease, steps in zip(
            progress.jobs.tolist(), progress.leases.tolist(), progress.steps_done.tolist(), strict=True
        ):
            partner, since_s = int(agents.co_located[row]), float(agents.counted_s[row])
            seen = self._seen.get(row)
            if seen is None or seen.lease != lease or seen.now_s < since_s:
                seen = _Seen(lease, float(agents.steps_at_start[row]), since_s)
            self._seen[row] = _Seen(lease, steps, now_s)
            if now_s > seen.now_s:
                took_s = now_s - seen.now_s
                rate, gpu_type = max(steps - seen.steps, 0.0) / took_s, gpu_types[int(agents.lease_type[row])]
                job = self._jobs[row]
                gpus = int(np.count_nonzero(agents.gpu_job == row)) if job.sizes else job.gpus
                co_located = self._known(partner, gpus) if partner >= 0 else None
                self.loop.add(MeasuredJob(self._known(row, gpus), gpu_type, rate, took_s, co_located))
