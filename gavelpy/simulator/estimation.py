"""A simulated scheduler that must find rates out: jobs run at the trace's, and it knows what users say and jobs show.

Steps are counted at the end of every round. Virtual jobs have no warm-up beyond the restart, which is not counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.estimator.online import Reading, ThroughputEstimator
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ThroughputEstimated
from gavelpy.model.arrays import Floats
from gavelpy.model.job import JobSpec
from gavelpy.simulator.cluster import VirtualCluster

NOTABLE = 0.03  # relative change of a rate that the core hears of
ABSORB_S = 1800.0  # between two times that other job types learn from what was measured


@dataclass(frozen=True)
class _Seen:
    """How far a job had come, under which lease."""

    lease: int
    steps: float
    now_s: float


class Estimation:
    """One run's estimator and what it has been told. The engine of the run must ask the same estimator."""

    def __init__(
        self,
        estimator: ThroughputEstimator,
        claims: Mapping[str, Mapping[str, float]] | None = None,  # by job id: steps/s by GPU type, as the user says
        quantile: float = 0.5,
    ) -> None:
        self.estimator, self.quantile = estimator, quantile
        self.claims = dict(claims or {})
        self.reasons: list[str] = []  # why readings and claims were refused, new phases
        self._keys: list[Key] = []
        self._seen: dict[int, _Seen] = {}
        self._told: dict[int, Floats] = {}  # (T,) by job
        self._absorbed_s = 0.0

    def as_submitted(self, row: int, job: JobSpec) -> JobSpec:
        """The job without its true rates; the user's figures go to the estimator."""
        key = key_of(row, job.job_type, job.gpus)
        self._keys.append(key)
        for verdict in self.estimator.claim(*key, self.claims.get(job.id, {})):
            self._note(verdict.reason)
        return replace(job, rates_steps_per_s={})

    def learned(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> ThroughputEstimated | None:
        """Rates that have changed enough by what running jobs show, if any."""
        self._read(core, agents, now_s)
        if now_s - self._absorbed_s >= ABSORB_S:
            self.estimator.absorb()
            self._absorbed_s = now_s
        view = core.view()
        alive = np.flatnonzero(~view.is_over)
        if not len(alive):
            return None
        rates = self.estimator.rates([self._keys[row] for row in alive.tolist()], view.gpu_types, self.quantile)
        nothing = np.zeros(len(view.gpu_types))
        before = np.array([self._told.get(row, nothing) for row in alive.tolist()])
        changed = (np.abs(rates - before) > NOTABLE * before).any(axis=1)
        if not changed.any():
            return None
        self._told.update(zip(alive[changed].tolist(), rates[changed], strict=True))
        return ThroughputEstimated(alive[changed], rates[changed])

    def _read(self, core: SchedulerCore, agents: VirtualCluster, now_s: float) -> None:
        progress, gpu_types = agents.progress(now_s), core.view().gpu_types
        if progress is None:
            return
        for row, lease, steps in zip(
            progress.jobs.tolist(), progress.leases.tolist(), progress.steps_done.tolist(), strict=True
        ):
            seen = self._seen.get(row)
            if seen is None or seen.lease != lease:
                seen = _Seen(lease, float(agents.steps_at_start[row]), float(agents.began_s[row]))
            self._seen[row] = _Seen(lease, steps, now_s)
            gpu_type = int(agents.gpu_type_of[core.jobs.gpus_held(row)[0]])
            if now_s > seen.now_s:
                job_type, gpus = self._keys[row]
                made, took_s = max(steps - seen.steps, 0.0), now_s - seen.now_s
                reading = Reading(job_type, gpus, gpu_types[gpu_type], made, took_s)
                self._note(self.estimator.observe(reading).reason)

    def _note(self, reason: str) -> None:
        if reason:
            self.reasons.append(reason)
