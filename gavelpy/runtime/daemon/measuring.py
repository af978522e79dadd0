"""How fast running jobs are, for the estimator; and what it says, for the core and for the owners of jobs.

Only jobs that report their steps are measured, at the rate that they report themselves: theirs leaves out the first
steps and checkpoints. A job that has not come a step further says nothing. No clock: time is an argument.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ThroughputEstimated
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.runtime.daemon.config import ThroughputSettings
from gavelpy.runtime.daemon.estimation_values import (
    EstimationChoice,
    KnownJob,
    KnownJobs,
    LearnRates,
    Measured,
    RatesLearned,
)
from gavelpy.runtime.daemon.lease_facts import is_by_time
from gavelpy.runtime.daemon.lease_values import Lease

logger = logging.getLogger(__name__)
READ_EVERY_S = 10.0  # or once a round, where that is less
LEARN_EVERY_S = 30.0
LEARN_LOAD = 20.0  # an answer that took a second is followed by another question no sooner than in so many
SECONDS_MIN = 1.0  # that the end of a lease must add, to be a reading
NOTABLE = 0.03  # relative change of a rate that the core hears of
READINGS_MAX = 20_000  # that wait while the engine is busy


def estimation_choice(settings: ThroughputSettings, round_s: float) -> EstimationChoice:
    """What the configuration means for the engine."""
    return EstimationChoice(settings.estimate, settings.model, settings.profile_gpu_s, round_s)


@dataclass(slots=True)
class _Run:
    """A lease at work, and how far it was when it was last looked at."""

    began_s: float
    seen_s: float
    steps: float


class Measuring:
    """`look` now and then, and tell it when leases start and end."""

    def __init__(self, core: SchedulerCore, settings: ThroughputSettings) -> None:
        self.core = core  # read only
        self.settings = settings
        self.notes: dict[int, tuple[str, ...]] = {}  # what the owners of living jobs should hear, by serial
        self._runs: dict[int, _Run] = {}  # by lease
        self._readings: deque[Measured] = deque(maxlen=READINGS_MAX)
        self._is_asked = False
        self._read_s = self._learned_s = -math.inf
        self._learn_pause_s = 0.0
        self._refused: set[int] = set()  # jobs whose readings were refused: it is logged once

    def started(self, lease: int, now_s: float) -> None:
        """A lease has begun to run."""
        self._runs[lease] = _Run(now_s, now_s, -1.0)

    def ended(self, lease: Lease, now_s: float) -> None:
        """A lease is over: its last seconds count, too."""
        run = self._runs.pop(lease.lease, None)
        if run is not None and now_s - run.seen_s >= SECONDS_MIN:
            self._read(lease, run, now_s)

    def look(self, leases: Mapping[int, Lease], now_s: float) -> LearnRates | None:
        """What to ask the engine now, if anything. Its answer goes to `learned`."""
        round_s = self.core.settings.round_s
        if not self.settings.estimate or now_s - self._read_s < min(READ_EVERY_S, round_s):
            return None
        self._read_s = now_s
        self._read_all(leases.values(), now_s)
        self._runs = {lease: run for lease, run in self._runs.items() if lease in leases}
        is_due = now_s - self._learned_s >= max(min(LEARN_EVERY_S, round_s), self._learn_pause_s)
        if self._is_asked or not (self._readings or is_due):
            return None
        jobs = self._living() if is_due else KnownJobs()
        if not (len(jobs) or self._readings):
            return None
        self._learned_s = now_s if is_due else self._learned_s
        self._is_asked = True
        measured = tuple(self._readings)
        self._readings.clear()
        return LearnRates(measured, jobs, self.core.pool.gpu_types)

    def learned(self, answer: RatesLearned, seconds: float) -> ThroughputEstimated | None:
        """Rates that have changed enough for the core to hear of."""
        self._is_asked = False
        self._learn_pause_s = LEARN_LOAD * seconds
        self._log(answer)
        state = self.core.jobs.state
        self.notes = {job: notes for job, notes in (self.notes | dict(answer.notes)).items() if state[job] <= ALIVE[-1]}
        types = answer.rates_steps_per_s.shape[1]
        before, rates = self.core.jobs.rate[answer.jobs, :types], answer.rates_steps_per_s
        with np.errstate(invalid="ignore"):
            is_other = (np.abs(rates - before) > NOTABLE * before) | np.isnan(before)
        changed = (is_other & ~np.isnan(rates)).any(axis=1) & (state[answer.jobs] <= ALIVE[-1])
        if not changed.any():
            return None
        logger.info("rates learned", extra={"jobs": int(changed.sum())})
        return ThroughputEstimated(answer.jobs[changed], rates[changed])

    def _read_all(self, leases: Iterable[Lease], now_s: float) -> None:
        for lease in leases:
            if lease.is_started and not lease.is_end_told:
                run = self._runs.setdefault(lease.lease, _Run(-math.inf, now_s, lease.steps_done))  # from before us
                self._read(lease, run, now_s)
                run.seen_s, run.steps = now_s, lease.steps_done

    def _read(self, lease: Lease, run: _Run, now_s: float) -> None:
        rate, seconds = lease.rate_measured_steps_per_s, now_s - run.seen_s
        is_warm = run.seen_s - run.began_s >= self.settings.warm_up_s
        if is_warm and rate > 0 and seconds > 0 and lease.steps_done > run.steps and not is_by_time(lease):
            self._readings.append(Measured(self._known(lease.job), lease.gpu_type, rate, seconds))

    def _living(self) -> KnownJobs:
        active, gpus = self.core.jobs.active, self.core.jobs.gpus
        specs = [self.core.jobs.specs[job] for job in active.tolist()]
        return KnownJobs(active, [s.job_type for s in specs], gpus[active], [s.rates_steps_per_s for s in specs])

    def _known(self, job: int) -> KnownJob:
        spec = self.core.jobs.specs[job]
        return KnownJob(job, spec.job_type, spec.gpus, dict(spec.rates_steps_per_s))

    def _log(self, answer: RatesLearned) -> None:
        for remark in answer.remarks:
            if remark.is_accepted:
                logger.info("estimator", extra={"job_id": remark.job, "detail": remark.text})
            elif remark.job not in self._refused:
                self._refused.add(remark.job)
                logger.warning("reading refused", extra={"job_id": remark.job, "detail": remark.text})
