"""Simulations with an estimator: jobs run at the rates of the trace, which the scheduler learns from readings.

Steps are read at the end of every round. Virtual jobs have no warm-up apart from the restart, which is not counted.
Readings of co-located jobs teach co-location slowdowns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.kinds import Key, key_of
from gavelpy.estimator.online import Reading, ThroughputEstimator
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ThroughputEstimated
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.simulator.cluster import VirtualCluster

NOTABLE = 0.03  # relative change of a rate that is reported to the core
NOTABLE_CO_LOCATED = 0.1  # relative change of a co-located rate that triggers a new allocation
ABSORB_S = 1800.0  # between two updates of the model with new measurements


@dataclass(frozen=True)
class _Seen:
    """Steps of a job at a time, with its lease and partner."""

    lease: int
    partner: int
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
        self.estimator, self.quantile = estimator, quantile
        self.claims = dict(claims or {})
        self.reasons: list[str] = []  # why readings and claims were rejected; new phases
        self._keys: list[Key] = []
        self._seen: dict[int, _Seen] = {}
        self._reported: dict[int, Floats] = {}  # (T,) by job
        self._shown: dict[tuple[Key, Key, str], float] = {}  # co-located rates that were reported to the core
        self._absorbed_s = 0.0

    def as_submitted(self, row: int, job: JobSpec) -> JobSpec:
        """The job without its true rates; its claims go to the estimator."""
        key = key_of(row, job.job_type, job.gpus)
        self._keys.append(key)
        for verdict in self.estimator.claim(*key, self.claims.get(job.id, {})):
            self._note(verdict.reason)
        return replace(job, rates_steps_per_s={})

    def learned(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> ThroughputEstimated | None:
        """Rates that changed enough by the readings of running jobs, if any."""
        changed_rows = self._read(core, agents, now_s)
        if now_s - self._absorbed_s >= ABSORB_S:
            self.estimator.absorb()
            self._absorbed_s = now_s
        view = core.view()
        alive = np.flatnonzero(~view.is_over)
        if not len(alive):
            return None
        rates = self.estimator.rates([self._keys[row] for row in alive.tolist()], view.gpu_types, self.quantile)
        nothing = np.zeros(len(view.gpu_types))
        before = np.array([self._reported.get(row, nothing) for row in alive.tolist()])
        changed = (np.abs(rates - before) > NOTABLE * before).any(axis=1)
        changed |= np.isin(alive, list(changed_rows))
        if not changed.any():
            return None
        self._reported.update(zip(alive[changed].tolist(), rates[changed], strict=True))
        return ThroughputEstimated(alive[changed], rates[changed])

    def _read(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> set[int]:
        """Passes readings to the estimator; returns the jobs whose co-located rates changed."""
        progress, gpu_types = agents.progress(now_s), core.view().gpu_types
        changed_rows: set[int] = set()
        if progress is None:
            return changed_rows
        for row, lease, steps in zip(
            progress.jobs.tolist(), progress.leases.tolist(), progress.steps_done.tolist(), strict=True
        ):
            partner, since_s = int(agents.co_located[row]), float(agents.counted_s[row])
            seen = self._seen.get(row)
            if seen is None or seen.lease != lease or seen.now_s < since_s:
                seen = _Seen(lease, partner, float(agents.steps_at_start[row]), since_s)
            self._seen[row] = _Seen(lease, partner, steps, now_s)
            if now_s > seen.now_s:
                job_type, gpus = self._keys[row]
                made, took_s = max(steps - seen.steps, 0.0), now_s - seen.now_s
                gpu_type = gpu_types[int(agents.lease_type[row])]
                reading = Reading(job_type, gpus, gpu_type, made, took_s)
                if partner < 0:
                    self._note(self.estimator.observe(reading).reason)
                elif self._read_co_located(row, partner, reading):
                    changed_rows |= {row, partner}
        return changed_rows

    def _read_co_located(self, row: int, partner: int, reading: Reading) -> bool:
        """Passes the reading of a co-located job to the estimator; returns whether its rate changed notably."""
        verdict = self.estimator.observe_colocated(reading, self._keys[partner])
        self._note(verdict.reason)
        cell, rate = (self._keys[row], self._keys[partner], reading.gpu_type), reading.steps / reading.seconds
        before = self._shown.get(cell)
        if before is not None and abs(rate - before) <= NOTABLE_CO_LOCATED * before and not verdict.reason:
            return False
        self._shown[cell] = rate
        return True

    def _note(self, reason: str) -> None:
        if reason:
            self.reasons.append(reason)
