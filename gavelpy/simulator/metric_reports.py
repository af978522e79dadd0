"""What virtual jobs report of their metrics: values of their curves, with their progress and at each rung of their app.

A job with rungs reports when it has done exactly so many steps; then the core stops it, lets it continue or ends it.
Rows of jobs are serials.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from gavelpy.mechanism.events import MetricsReported
from gavelpy.model.apps import LOSS, AppRole
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.job import JobId, JobSpec
from gavelpy.model.metric_curve import MetricCurve


class MetricReports:
    """The curves of the jobs of a trace, and the step at which each job comes to its next rung."""

    def __init__(self, jobs: Sequence[JobSpec], curves: Mapping[JobId, MetricCurve]) -> None:
        self.ends = np.full(len(jobs), math.inf)  # (J,) steps of the next rung
        self._rungs: dict[int, Floats] = {}  # steps of all rungs, ascending
        self._curves = {row: curves[job.id] for row, job in enumerate(jobs) if job.id in curves}
        roles = {row: AppRole.parse(job.app) for row, job in enumerate(jobs) if job.app}
        named = {row: roles[row].metric if row in roles else LOSS for row in self._curves}
        self._names = tuple(sorted(set(named.values())))
        self._place = {row: self._names.index(name) for row, name in named.items()}
        for row, role in roles.items():
            if role.rungs:
                self._rungs[row] = np.array([rung.steps for rung in role.rungs if rung.steps < jobs[row].steps_total])
        self.enter(np.arange(len(jobs)), np.zeros(len(jobs)))

    def enter(self, rows: Ints, steps: Floats) -> None:
        """These jobs (K,) have done so many steps (K,): the next rung is the first one behind."""
        for row, done in zip(rows.tolist(), steps.tolist(), strict=True) if self._rungs else ():
            if (rungs := self._rungs.get(row)) is not None:
                behind = rungs[rungs > done]
                self.ends[row] = behind[0] if len(behind) else math.inf

    def report(self, rows: Ints, leases: Ints, steps: Floats) -> MetricsReported | None:
        """What those of these jobs (K,) that have a curve report after so many steps (K,); None if none has."""
        having = [k for k, row in enumerate(rows.tolist()) if row in self._curves and steps[k] > 0]
        if not having:
            return None
        found, done = rows[having], steps[having]
        values = [noisy_at(self._curves[row], step) for row, step in zip(found.tolist(), done.tolist(), strict=True)]
        place = np.array([self._place[row] for row in found.tolist()], dtype=np.int64)
        return MetricsReported(found, leases[having], place, done, np.array(values), self._names)


def noisy_at(curve: MetricCurve, steps: float) -> float:
    """The value of a curve with its noise, which depends on its seed and the steps only."""
    if not curve.noise:
        return curve.at(steps)
    rng = np.random.default_rng((int(curve.seed), round(steps * 1000)))
    return curve.at(steps, float(rng.standard_normal()))
