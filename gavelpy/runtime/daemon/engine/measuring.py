"""Collects rates of running jobs for the estimator, and passes its answers to the core and to the owners of jobs.

Only jobs that report their steps are measured, by the rate that they report: it excludes the first steps and
checkpoints. A job without a new step is not measured. No clock: time is an argument. The estimator runs in the engine's
process (`learner`); `LearnRates` and `RatesLearned` are the messages between the two.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gavelpy.estimator.learning_loop import (
    LEARN_EVERY_S,
    KnownJob,
    KnownJobs,
    LearningLoop,
    LearnRates,
    MeasuredJob,
    RatesLearned,
)
from gavelpy.mechanism import sizes
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import NO_INTS, ThroughputEstimated
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.runtime.daemon.config_sections import ThroughputSettings
from gavelpy.runtime.daemon.leases.lease import Lease, is_by_time, partner_of

logger = logging.getLogger(__name__)
READ_EVERY_S = 10.0  # or once a round, if that is shorter
NONE = -1
SECONDS_MIN = 1.0  # shortest reading at the end of a lease


@dataclass(slots=True)
class _Run:
    """A running lease, and its steps at the last reading."""

    began_s: float
    seen_s: float
    steps: float
    partner: int = NONE  # the co-located job, since the last reading


class Measuring:
    """Call `look` periodically, and `started` and `ended` for each lease."""

    def __init__(self, core: SchedulerCore, settings: ThroughputSettings) -> None:
        self.core = core  # read only
        self.settings = settings
        self.notes: dict[int, tuple[str, ...]] = {}  # for the owners of living jobs, by serial
        self._runs: dict[int, _Run] = {}  # by lease
        self._loop = LearningLoop()
        self._read_s = -math.inf
        self._refused: set[int] = set()  # jobs with refused readings: logged once

    def started(self, lease: int, now_s: float) -> None:
        """A lease has started."""
        self._runs[lease] = _Run(now_s, now_s, -1.0)

    def ended(self, lease: Lease, now_s: float) -> None:
        """A lease has ended: its last seconds are a reading, too."""
        run = self._runs.pop(lease.lease, None)
        is_alone = not self.core.settings.packing  # else the core no longer knows its partner
        if run is not None and is_alone and now_s - run.seen_s >= SECONDS_MIN:
            self._read(lease, run, now_s)

    def look(self, leases: Mapping[int, Lease], now_s: float) -> LearnRates | None:
        """The request to send to the engine now, if any. Pass the answer to `learned`."""
        round_s = self.core.settings.round_s
        if not self.settings.estimate or now_s - self._read_s < min(READ_EVERY_S, round_s):
            return None
        self._read_s = now_s
        self._read_all(leases.values(), now_s)
        self._runs = {lease: run for lease, run in self._runs.items() if lease in leases}
        self._loop.interval_s = min(LEARN_EVERY_S, round_s)
        jobs = self._living() if self._loop.is_due(now_s) else KnownJobs()
        return self._loop.request(jobs, self.core.pool.gpu_types, now_s)

    def learned(self, answer: RatesLearned, seconds: float) -> ThroughputEstimated | None:
        """An event with the rates that have changed notably, if any."""
        self._loop.answered(seconds)
        self._log(answer)
        state, ids = self.core.jobs.by_serial.state, self.core.jobs.ids
        known = {job: notes for job, notes in (self.notes | dict(answer.notes)).items() if ids.row(job) >= 0}
        self.notes = {job: notes for job, notes in known.items() if state[job] <= ALIVE[-1]}
        rates = answer.rates_steps_per_s
        before = sizes.rates_at(self.core.jobs, ids.rows(answer.jobs), answer.gpus)[:, : rates.shape[1]]
        changed = answer.notable(before) & (state[answer.jobs] <= ALIVE[-1])
        if not changed.any():
            return None
        logger.info("rates learned", extra={"jobs": int(changed.sum())})
        is_any = len(sizes.several(self.core.jobs, ids.rows(answer.jobs[changed])))
        return ThroughputEstimated(answer.jobs[changed], rates[changed], answer.gpus[changed] if is_any else NO_INTS)

    def _read_all(self, leases: Iterable[Lease], now_s: float) -> None:
        for lease in leases:
            if lease.is_started and not lease.is_end_reported:
                run = self._runs.setdefault(
                    lease.lease, _Run(-math.inf, now_s, lease.steps_done)
                )  # started before this scheduler
                self._read(lease, run, now_s)
                run.seen_s, run.steps = now_s, lease.steps_done
                run.partner, _ = partner_of(self.core, lease.job, lease.lease)

    def _read(self, lease: Lease, run: _Run, now_s: float) -> None:
        rate, seconds = lease.rate_measured_steps_per_s, now_s - run.seen_s
        is_warm = run.seen_s - run.began_s >= self.settings.warm_up_s
        is_new = is_warm and rate > 0 and seconds > 0 and lease.steps_done > run.steps and not is_by_time(lease)
        partner, its_lease = partner_of(self.core, lease.job, lease.lease)
        if is_new and self._was_beside(run, partner, its_lease):
            known = None if partner == NONE else self._known(partner, len(lease.gpus))
            measured = self._known(lease.job, len(lease.gpus))
            self._loop.add(MeasuredJob(measured, lease.gpu_type, rate, seconds, known))

    def _was_beside(self, run: _Run, partner: int, its_lease: int) -> bool:
        """Whether a lease was co-located with the same job, or with none, ever since the last reading."""
        if partner == NONE or partner != run.partner:
            return partner == run.partner
        other = self._runs.get(its_lease)
        return other is not None and other.began_s <= run.seen_s

    def _living(self) -> KnownJobs:
        jobs = self.core.jobs
        position, gpus = sizes.every(jobs, jobs.active)
        rows = jobs.active[position]
        specs = [jobs.specs[row] for row in rows.tolist()]
        claims = [spec.rates_on(size) for spec, size in zip(specs, gpus.tolist(), strict=True)]
        serials = jobs.ids.of_rows(rows)
        several = frozenset(serials[sizes.several(jobs, rows)].tolist())
        return KnownJobs(serials, [spec.job_type for spec in specs], gpus, claims, several)

    def _known(self, job: int, gpus: int) -> KnownJob:
        spec = self.core.jobs.by_serial.specs[job]
        return KnownJob(job, spec.job_type, gpus, dict(spec.rates_on(gpus)), bool(spec.sizes))

    def _log(self, answer: RatesLearned) -> None:
        for remark in answer.remarks:
            if remark.is_accepted:
                logger.info("estimator", extra={"job_id": remark.job, "detail": remark.text})
            elif remark.job not in self._refused:
                self._refused.add(remark.job)
                logger.warning("reading refused", extra={"job_id": remark.job, "detail": remark.text})
