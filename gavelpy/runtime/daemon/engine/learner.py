"""Online estimation in the engine's process: takes measurements, returns improved rates.

Its state is lost with the process. A new process returns no rates for a job that it has neither estimated nor measured,
so the core keeps the better rates of the earlier process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from gavelpy.estimator.isolated import LEARN_MIN, IsolatedModel
from gavelpy.estimator.kinds import Key
from gavelpy.estimator.online import Reading, ThroughputEstimator, Verdict
from gavelpy.model.arrays import Floats
from gavelpy.runtime.daemon.engine.measuring import KnownJob, LearnRates, MeasuredRate, RatesLearned, Remark

GROWN = 1.25  # growth of the number of rates after which the model is fitted again
ROWS_MAX = 500  # of the estimator's table: beyond, measurements of new job types improve only their own jobs


class Learner:
    """Holds the estimator, and which jobs it estimates."""

    def __init__(self, estimator: ThroughputEstimator, *, fits: bool = False) -> None:
        self.estimator = estimator
        self._fits = fits  # fits hyper-parameters to the table, in a thread
        self._fitted_to = 0  # rates
        self._fit: Future[IsolatedModel] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fit")
        self._guessed: set[int] = set()  # jobs with rates from this estimator
        self._outvoted: set[int] = set()  # jobs with rates from their owner that measurements have replaced
        self._teachers: dict[Key, None] = {}  # measured keys of named types that the table has not taken in

    def guessed(self, jobs: Sequence[int]) -> None:
        """The estimator has returned rates for these jobs."""
        self._guessed.update(jobs)

    def learn(self, question: LearnRates) -> RatesLearned:
        """Takes in all measurements; returns new rates of the jobs in the request."""
        remarks = [remark for measured in question.measured for remark in self._take(measured)]
        jobs = tuple(question.jobs)
        if not jobs:
            return RatesLearned(remarks=tuple(remarks))
        self._absorb(jobs)
        self._fit_model()
        notes = {job.serial: self._differences(job) for job in jobs if self._is_measured(job) and job.claims}
        self._outvoted |= {serial for serial, found in notes.items() if found}
        updated = [job for job in jobs if self._is_updated(job)]
        rates = self._rates(updated, question.gpu_types)
        return RatesLearned(np.array([job.serial for job in updated], dtype=np.int64), rates, notes, tuple(remarks))

    def _take(self, measured: MeasuredRate) -> list[Remark]:
        job = measured.job
        verdicts: list[Verdict] = []
        if not self._is_measured(job):
            verdicts += self.estimator.claim(*job.key, job.claims)
        steps = measured.rate_steps_per_s * measured.seconds
        verdicts.append(self.estimator.observe(Reading(*job.key, measured.gpu_type, steps, measured.seconds)))
        if job.job_type:
            self._teachers[job.key] = None
        return [Remark(job.serial, verdict.accepted, verdict.reason) for verdict in verdicts if verdict.reason]

    def _absorb(self, jobs: Sequence[KnownJob]) -> None:
        """Adds measurements of named job types to the table, and drops rates that no living job needs."""
        room = max(0, ROWS_MAX - len(self.estimator.table.keys))
        known = [key for key in self._teachers if key in self.estimator.table]
        new = [key for key in self._teachers if key not in self.estimator.table]
        if self._teachers:
            self.estimator.absorb([*known, *new[:room]])
        self._teachers.clear()
        self.estimator.keep({job.key for job in jobs})
        living = {job.serial for job in jobs}
        self._guessed &= living
        self._outvoted &= living

    def _fit_model(self) -> None:
        """Adopts a fitted model, and starts another fit when the table has grown by GROWN."""
        known = self.estimator
        if self._fit is not None and self._fit.done():
            known.adopt(replace(known.model, isolated=self._fit.result()))
            self._fit = None
        rates = int((known.table.rate_steps_per_s > 0).sum())
        if self._fits and self._fit is None and rates >= max(LEARN_MIN, GROWN * self._fitted_to):
            self._fitted_to = rates
            roofline = known.model.isolated.roofline
            self._fit = self._thread.submit(IsolatedModel(roofline=roofline).fitted, known.table)

    def wait(self) -> None:
        """Waits for a running fit; the next `learn` adopts the model."""
        if self._fit is not None:
            self._fit.result()

    def _is_measured(self, job: KnownJob) -> bool:
        return self.estimator.is_measured(job.key)

    def _is_updated(self, job: KnownJob) -> bool:
        if job.claims:
            return job.serial in self._outvoted
        return job.serial in self._guessed or self._is_measured(job)

    def _differences(self, job: KnownJob) -> tuple[str, ...]:
        return tuple(self.estimator.differences(*job.key, job.claims))

    def _rates(self, jobs: Sequence[KnownJob], gpu_types: tuple[str, ...]) -> Floats:
        """Rates of these jobs, (K, T); if the owner has given rates, only for their GPU types."""
        keys = tuple(dict.fromkeys(job.key for job in jobs))
        if not keys:
            return np.zeros((0, len(gpu_types)))
        row = {key: k for k, key in enumerate(keys)}
        rates = self.estimator.rates(keys, gpu_types)[[row[job.key] for job in jobs]]
        wanted = [[not job.claims or job.claims.get(name, 0.0) > 0 for name in gpu_types] for job in jobs]
        return np.where(np.array(wanted, dtype=np.bool_), rates, math.nan)
