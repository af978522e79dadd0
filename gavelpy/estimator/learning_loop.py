"""The learning loop: readings of running jobs in, rates to publish to the core out. No clock, no files, no threads.

Theory of operation. `LearningLoop` runs next to the core. It collects readings, and at most every `interval_s` makes a
request to the estimator. `Learner` runs next to the estimator. It takes the readings in, adds the measurements of named
job types to the table, so that similar types profit, and answers with the rates of jobs. The loop then publishes the
rates that changed notably. The simulator runs both in one process; the daemon sends request and answer through a pipe,
as the estimator has a process of its own. Its state is lost with that process: a new `Learner` returns no rates for a
job that it has neither estimated nor measured, so the core keeps the better rates of the earlier one.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.estimator.kinds import Key, key_of
from gavelpy.estimator.rate_filter import Reading, Verdict
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.throughput import ThroughputTable

if TYPE_CHECKING:  # the core's side runs without the estimator and its libraries
    from gavelpy.estimator.isolated import IsolatedModel
    from gavelpy.estimator.online import ThroughputEstimator

LEARN_EVERY_S = 30.0  # a filter needs a few readings of 10 s; an answer for 500 types and 10,000 jobs takes a second
LEARN_LOAD = 20.0  # pause after an answer, as a multiple of its duration: at most 5 % of a processor
NOTABLE = 0.03  # relative change of a rate that is published; smaller ones would only cause new allocations
NOTABLE_CO_LOCATED = 0.1  # the same for a co-located rate, which is noisier
READINGS_MAX = 20_000  # that wait for an answer
GROWN = 1.25  # growth of the number of rates after which the model is fitted again
ROWS_MAX = 500  # of the estimator's table: beyond, measurements of new job types improve only their own jobs


@dataclass(frozen=True)
class KnownJob:
    """Properties of a job that the estimator uses."""

    serial: int
    job_type: str
    gpus: int
    claims: Mapping[str, float] = field(default_factory=dict)  # steps/s by GPU type, from its owner
    several: bool = False  # it can run on other numbers of GPUs, too

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
    several: frozenset[int] = frozenset()  # serials of jobs with several sizes; they have one entry for each

    def __len__(self) -> int:
        return len(self.serials)

    def __iter__(self) -> Iterator[KnownJob]:
        serials = self.serials.tolist()
        return map(
            KnownJob, serials, self.job_types, self.gpus.tolist(), self.claims, map(self.several.__contains__, serials)
        )


@dataclass(frozen=True)
class MeasuredJob:
    """The rate of a job over a period, alone or co-located with a partner."""

    job: KnownJob
    gpu_type: str
    rate_steps_per_s: float
    seconds: float
    partner: KnownJob | None = None

    @property
    def reading(self) -> Reading:
        """The reading for the estimator."""
        return Reading(*self.job.key, self.gpu_type, self.rate_steps_per_s * self.seconds, self.seconds)


@dataclass(frozen=True)
class LearnRates:
    """Request: take in measurements, and return the new rates of these jobs."""

    measured: tuple[MeasuredJob, ...]
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
    gpus: Ints = field(default_factory=lambda: np.zeros(0, dtype=np.int64))  # (K,) on which they have these rates
    notes: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # for the owners of jobs, by serial
    remarks: tuple[Remark, ...] = ()
    co_located: frozenset[int] = frozenset()  # jobs whose co-located rate changed: publish theirs in any case

    def notable(self, before: Floats) -> Bools:
        """Which of these jobs' rates to publish, (K,), given their rates in the core (K, T); NaN: unknown there."""
        rates = self.rates_steps_per_s
        with np.errstate(invalid="ignore"):
            is_other = (np.abs(rates - before) > NOTABLE * before) | np.isnan(before)
        is_changed = (is_other & ~np.isnan(rates)).any(axis=1)
        return np.asarray(is_changed | np.isin(self.jobs, list(self.co_located)))


class LearningLoop:
    """The core's side: collects readings, and decides when a request to the estimator is due."""

    def __init__(self, interval_s: float = LEARN_EVERY_S) -> None:
        self.interval_s = interval_s
        self._readings: deque[MeasuredJob] = deque(maxlen=READINGS_MAX)
        self._is_pending = False
        self._learned_s = -math.inf
        self._pause_s = 0.0

    def add(self, reading: MeasuredJob) -> None:
        """Keeps a reading for the next request."""
        self._readings.append(reading)

    def is_due(self, now_s: float) -> bool:
        """Whether new rates are due; then a request must name all living jobs."""
        return not self._is_pending and now_s - self._learned_s >= max(self.interval_s, self._pause_s)

    def request(self, jobs: KnownJobs, gpu_types: tuple[str, ...], now_s: float) -> LearnRates | None:
        """The request to send now, if any; `jobs` are empty unless one is due. Pass its answer to `answered`."""
        if self._is_pending or not (len(jobs) or self._readings):
            return None
        if len(jobs):
            self._learned_s = now_s
        self._is_pending = True
        measured = tuple(self._readings)
        self._readings.clear()
        return LearnRates(measured, jobs, gpu_types)

    def answered(self, seconds: float = 0.0) -> None:
        """The answer has arrived; it took `seconds`, which lengthen the pause until the next request."""
        self._is_pending, self._pause_s = False, LEARN_LOAD * seconds


class Learner:
    """The estimator's side: takes readings in, and answers with the rates of jobs."""

    def __init__(self, estimator: ThroughputEstimator, quantile: float = 0.5) -> None:
        self.estimator, self.quantile = estimator, quantile
        self._fitted_to = 0  # rates
        self._guessed: set[tuple[int, int]] = set()  # jobs and GPUs with rates from this estimator alone
        self._outvoted: set[tuple[int, int]] = set()  # with rates from owners that measurements have replaced
        self._teachers: dict[Key, bool] = {}  # keys of named types measured since the last answer; new when co-located?
        self._co_located: set[int] = set()  # jobs whose co-located rate has changed since the last answer with rates
        self._published: dict[tuple[Key, Key, str], float] = {}  # co-located rates, as last returned

    def guessed(self, jobs: Iterable[tuple[int, int]]) -> None:
        """The estimator has returned rates for these jobs on these numbers of GPUs, and owners have given none."""
        self._guessed.update(jobs)

    def learn(self, request: LearnRates) -> RatesLearned:
        """Takes in all measurements; returns new rates of the jobs in the request."""
        remarks: list[Remark] = []
        for measured in request.measured:
            verdicts = self._take(measured)
            remarks += [Remark(measured.job.serial, v.accepted, v.reason) for v in verdicts if v.reason]
        jobs = tuple(request.jobs)
        if not jobs:
            return RatesLearned(remarks=tuple(remarks))
        self._absorb(jobs)
        notes: dict[int, tuple[str, ...]] = {}
        for job in jobs:
            if job.claims and self.estimator.is_measured(job.key):
                found = self._differences(job)
                notes[job.serial] = (*notes.get(job.serial, ()), *found)
                self._outvoted |= {(job.serial, job.gpus)} if found else set()
        on_any = {job.serial for job in jobs if job.several and self.estimator.is_measured(job.key)}
        updated = [job for job in jobs if self._is_updated(job, on_any)]
        serials = np.array([job.serial for job in updated], dtype=np.int64)
        gpus = np.array([job.gpus for job in updated], dtype=np.int64)
        rates = self._rates(updated, request.gpu_types)
        co_located, self._co_located = frozenset(self._co_located), set()
        return RatesLearned(serials, rates, gpus, notes, tuple(remarks), co_located)

    def table_to_fit(self) -> ThroughputTable | None:
        """The table, if it has grown by GROWN since the model was last fitted; pass the fitted model to `adopt`."""
        from gavelpy.estimator.isolated import LEARN_MIN

        table = self.estimator.table
        rates = int((table.rate_steps_per_s > 0).sum())
        if rates < max(LEARN_MIN, GROWN * self._fitted_to):
            return None
        self._fitted_to = rates
        return table

    def adopt(self, isolated: IsolatedModel) -> None:
        """Estimates by a fitted model from now on."""
        self.estimator.adopt(replace(self.estimator.model, isolated=isolated))

    def _take(self, measured: MeasuredJob) -> list[Verdict]:
        job, partner = measured.job, measured.partner
        if partner is None:
            is_known = self.estimator.is_measured(job.key)
            claimed = [] if is_known else self.estimator.claim(*job.key, job.claims)
            verdict = self.estimator.observe(measured.reading)
            if job.job_type or job.several:  # a rate on one number of GPUs improves those on others
                self._teachers.setdefault(job.key, False)
            return [*claimed, verdict]
        verdict = self.estimator.observe_colocated(measured.reading, partner.key)
        if self._is_new(measured, partner, verdict):
            self._co_located |= {job.serial, partner.serial}
            self._teachers |= {known.key: True for known in (job, partner) if known.job_type}
        return [verdict]

    def _is_new(self, measured: MeasuredJob, partner: KnownJob, verdict: Verdict) -> bool:
        """Whether a co-located rate differs notably from the last one."""
        cell, rate = (measured.job.key, partner.key, measured.gpu_type), measured.rate_steps_per_s
        before = self._published.get(cell)
        if before is not None and abs(rate - before) <= NOTABLE_CO_LOCATED * before and not verdict.reason:
            return False
        self._published[cell] = rate
        return True

    def _absorb(self, jobs: Sequence[KnownJob]) -> None:
        """Adds notable measurements of named job types to the table, and drops rates that no living job needs.

        Adding to the table computes the estimates of all similar types again, so unchanged rates are not added.
        """
        news = [key for key, is_new in self._teachers.items() if is_new or self.estimator.is_news(key, NOTABLE)]
        self._teachers.clear()
        room = max(0, ROWS_MAX - len(self.estimator.table.keys))
        known = [key for key in news if key in self.estimator.table]
        if absorbed := [*known, *[key for key in news if key not in self.estimator.table][:room]]:
            self.estimator.absorb(absorbed)
        self.estimator.keep({job.key for job in jobs})
        living = {(job.serial, job.gpus) for job in jobs}
        self._guessed &= living
        self._outvoted &= living

    def _differences(self, job: KnownJob) -> list[str]:
        where = f" ({job.gpus} GPUs)" if job.several else ""
        return [f"{text}{where}" for text in self.estimator.differences(*job.key, job.claims)]

    def _is_updated(self, job: KnownJob, on_any: set[int]) -> bool:
        """Whether the estimator's rates replace those of a job. `on_any`: jobs measured on any of several sizes."""
        if job.claims:
            return (job.serial, job.gpus) in self._outvoted
        is_known = job.serial in on_any or self.estimator.is_measured(job.key)
        return is_known or (job.serial, job.gpus) in self._guessed

    def _rates(self, jobs: Sequence[KnownJob], gpu_types: tuple[str, ...]) -> Floats:
        """Rates of these jobs, (K, T); if the owner has given rates, only for their GPU types."""
        keys = tuple(dict.fromkeys(job.key for job in jobs))
        if not keys:
            return np.zeros((0, len(gpu_types)))
        row = {key: k for k, key in enumerate(keys)}
        rates = self.estimator.rates(keys, gpu_types, self.quantile)[[row[job.key] for job in jobs]]
        wanted = [[not job.claims or job.claims.get(name, 0.0) > 0 for name in gpu_types] for job in jobs]
        return np.where(np.array(wanted, dtype=np.bool_), rates, math.nan)
