"""Collects rates of running jobs for the estimator, and passes its answers to the core and to the owners of jobs.

Only jobs that report their steps are measured, by the rate that they report: it excludes the first steps and
checkpoints. A job without a new step is not measured. No clock: time is an argument. The estimator runs in the engine's
process (`learner`); `LearnRates` and `RatesLearned` are the messages between the two.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.events import ThroughputEstimated
from gavelpy.mechanism.lifecycle import ALIVE
from gavelpy.model.arrays import Floats, Ints
from gavelpy.runtime.daemon.config import ThroughputSettings
from gavelpy.runtime.daemon.leases.lease import Lease, is_by_time


@dataclass(frozen=True)
class EstimationChoice:
    """Whether and how rates are estimated."""

    is_on: bool = False
    model_file: str = ""  # of `gavel throughput fit`; "" = the shipped model
    profile_gpu_s: float = 0.0  # GPU-seconds of each allocation for measurements
    probe_s: float = 360.0  # duration of one measurement: a round


@dataclass(frozen=True)
class KnownJob:
    """Properties of a job that the estimator uses."""

    serial: int
    job_type: str
    gpus: int
    claims: Mapping[str, float] = field(default_factory=dict)  # steps/s by GPU type, from its owner

    @property
    def key(self) -> Key:
        """The estimator's key of its rates."""
        return key_of(self.serial, self.job_type, self.gpus)


@dataclass(frozen=True, eq=False)
class KnownJobs:
    """Many jobs, in columns: ten times faster to make and send than one object per job."""

    serials: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    job_types: Sequence[str] = ()
    gpus: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    claims: Sequence[Mapping[str, float]] = ()

    def __len__(self) -> int:
        return len(self.serials)

    def __iter__(self) -> Iterator[KnownJob]:
        return map(KnownJob, self.serials.tolist(), self.job_types, self.gpus.tolist(), self.claims)


@dataclass(frozen=True)
class MeasuredRate:
    """The rate of a job over a period."""

    job: KnownJob
    gpu_type: str
    rate_steps_per_s: float
    seconds: float


@dataclass(frozen=True)
class LearnRates:
    """Request: take in measurements, and return the new rates of these jobs."""

    measured: tuple[MeasuredRate, ...]
    jobs: Iterable[KnownJob]  # all living jobs; empty = only take in
    gpu_types: tuple[str, ...]


@dataclass(frozen=True)
class Remark:
    """A comment on an accepted or refused measurement or claim."""

    job: int
    is_accepted: bool
    text: str


@dataclass(frozen=True, eq=False)
class RatesLearned:
    """Answer to LearnRates. NaN: unchanged."""

    jobs: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,)
    rates_steps_per_s: Floats = field(default_factory=lambda: np.zeros((0, 0)))  # (K, T)
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # for the owners of jobs, by serial
    remarks: tuple[Remark, ...] = ()


logger = logging.getLogger(__name__)
READ_EVERY_S = 10.0  # or once a round, if that is shorter
LEARN_EVERY_S = 30.0
LEARN_LOAD = 20.0  # pause after an answer, as a multiple of its duration
SECONDS_MIN = 1.0  # shortest reading at the end of a lease
NOTABLE = 0.03  # smallest relative change of a rate that is reported to the core
READINGS_MAX = 20_000  # in the queue while the engine is busy


def estimation_choice(settings: ThroughputSettings, round_s: float) -> EstimationChoice:
    """The engine's settings from the configuration."""
    return EstimationChoice(settings.estimate, settings.model, settings.profile_gpu_s, round_s)


@dataclass(slots=True)
class _Run:
    """A running lease, and its steps at the last reading."""

    began_s: float
    seen_s: float
    steps: float


class Measuring:
    """Call `look` periodically, and `started` and `ended` for each lease."""

    def __init__(self, core: SchedulerCore, settings: ThroughputSettings) -> None:
        self.core = core  # read only
        self.settings = settings
        self.notes: dict[int, tuple[str, ...]] = {}  # for the owners of living jobs, by serial
        self._runs: dict[int, _Run] = {}  # by lease
        self._readings: deque[MeasuredRate] = deque(maxlen=READINGS_MAX)
        self._is_asked = False
        self._read_s = self._learned_s = -math.inf
        self._learn_pause_s = 0.0
        self._refused: set[int] = set()  # jobs with refused readings: logged once

    def started(self, lease: int, now_s: float) -> None:
        """A lease has started."""
        self._runs[lease] = _Run(now_s, now_s, -1.0)

    def ended(self, lease: Lease, now_s: float) -> None:
        """A lease has ended: its last seconds are a reading, too."""
        run = self._runs.pop(lease.lease, None)
        if run is not None and now_s - run.seen_s >= SECONDS_MIN:
            self._read(lease, run, now_s)

    def look(self, leases: Mapping[int, Lease], now_s: float) -> LearnRates | None:
        """The request to send to the engine now, if any. Pass the answer to `learned`."""
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
        """An event with the rates that have changed by more than NOTABLE, if any."""
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
                run = self._runs.setdefault(
                    lease.lease, _Run(-math.inf, now_s, lease.steps_done)
                )  # started before this scheduler
                self._read(lease, run, now_s)
                run.seen_s, run.steps = now_s, lease.steps_done

    def _read(self, lease: Lease, run: _Run, now_s: float) -> None:
        rate, seconds = lease.rate_measured_steps_per_s, now_s - run.seen_s
        is_warm = run.seen_s - run.began_s >= self.settings.warm_up_s
        if is_warm and rate > 0 and seconds > 0 and lease.steps_done > run.steps and not is_by_time(lease):
            self._readings.append(MeasuredRate(self._known(lease.job), lease.gpu_type, rate, seconds))

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
