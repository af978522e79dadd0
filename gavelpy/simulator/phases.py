"""True rates of virtual jobs that run in phases: each job runs in one of them, by its steps.

A job enters its next phase at a step, and goes back to an earlier one if it loses steps. Rates that conditions or other
jobs on its GPUs slow down change by the same factor. The scheduler receives the rates of a phase when it begins
(`ThroughputEstimated`), unless it learns rates from progress. Failures are drawn at the rate at which a lease begins.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.job import JobId, JobSpec
from gavelpy.model.job_phases import JobPhase, Phases


class RatePhases:
    """The current phase of each job; rows of jobs are serials."""

    def __init__(
        self,
        jobs: Sequence[JobSpec],
        phases: Mapping[JobId, Phases],
        gpu_types: tuple[str, ...],
        *,
        announces: bool = True,
    ) -> None:
        self.announces = announces  # whether the scheduler receives the rates of a phase when it begins
        self.ends = np.full(len(jobs), math.inf)  # (J,) steps at which the current phase ends
        self.begins = np.zeros(len(jobs))  # (J,) and begins
        self._from_step: dict[int, list[float]] = {}  # of all phases
        self._rates: dict[int, Floats] = {}  # (P, T)
        for row, job in enumerate(jobs):
            if job.id in phases:
                own = phases[job.id]
                self._from_step[row] = [phase.from_step for phase in own]
                self._rates[row] = np.array([_rates(phase, gpu_types) for phase in own])
                self.enter(row, 0.0)

    def first_rates(self, rate: Floats) -> Floats:
        """These rates (J, T), of jobs with phases those of the first one."""
        found = rate.copy()
        for row, rates in self._rates.items():
            found[row] = rates[0]
        return found

    def enter(self, row: int, steps: float) -> Floats:
        """Makes the phase at these steps the current one of a job with phases; returns its rates, (T,)."""
        from_step = self._from_step[row]
        k = bisect_right(from_step, steps) - 1
        self.begins[row] = from_step[k]
        self.ends[row] = from_step[k + 1] if k + 1 < len(from_step) else math.inf
        rates: Floats = self._rates[row][k]
        return rates

    def went_back(self, rows: Ints, steps: Floats) -> Bools:
        """Which of these jobs are at steps before their current phase, (K,)."""
        before: Bools = steps < self.begins[rows]
        return before


def _rates(phase: JobPhase, gpu_types: tuple[str, ...]) -> list[float]:
    return [phase.rates_steps_per_s.get(gpu_type, 0.0) for gpu_type in gpu_types]
