"""What leases of virtual jobs cost: the constants of `Costs`, or durations by job type, drawn for each lease."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.simulator.conditions.draws import DrawnDurations
from gavelpy.simulator.conditions.job_costs import COSTS, Costs, JobCosts

if TYPE_CHECKING:
    from gavelpy.model.job import JobSpec
    from gavelpy.simulator.settings import SimulationSettings


class Startup(NamedTuple):
    """Seconds from the start of leases to their first steps, (K,) each, or one for all."""

    total_s: Floats
    restoring_s: Floats | float  # of these
    migrating_s: Floats | float  # of these


class LeaseConditions:
    """Constant costs. Rows of jobs are serials."""

    def __init__(self, costs: Costs) -> None:
        self.constant: Costs | None = costs  # None: costs vary by job

    def startup(self, rows: Ints, moved: Bools, resumes: Bools) -> Startup:
        """Of leases that begin; `moved` = to other GPUs, `resumes` = from a checkpoint."""
        assert self.constant is not None, "these costs are constant"
        migrating_s = np.asarray(self.constant.migration_s * moved, dtype=np.float64)
        return Startup(migrating_s + self.constant.restart_s, 0.0, migrating_s)

    def stop_s(self, rows: Ints) -> Floats:
        """Seconds for the last checkpoints of leases that are stopped, (K,)."""
        assert self.constant is not None, "these costs are constant"
        return np.full(len(rows), self.constant.checkpoint_s)


def lease_conditions(settings: SimulationSettings, jobs: Sequence[JobSpec], seed: int) -> LeaseConditions:
    """The conditions of a run with these jobs."""
    conditions = settings.conditions
    if not conditions.causes:
        return LeaseConditions(settings.costs)
    return DrawnConditions(conditions.costs, settings.costs, [job.job_type for job in jobs], seed)


class DrawnConditions(LeaseConditions):
    """Costs by job type, drawn for each lease."""

    def __init__(self, costs: JobCosts, base: Costs, job_types: Sequence[str], seed: int) -> None:
        super().__init__(base)
        self.constant = None
        kinds = {name: k for k, name in enumerate(dict.fromkeys(job_types))}
        kind_of = np.array([kinds[name] for name in job_types], dtype=np.int64)
        of_type = [costs.of(name, base) for name in kinds]
        self._drawn = {
            name: DrawnDurations(seed, name, tuple(getattr(one, name) for one in of_type), kind_of) for name in COSTS
        }
        self._starts = np.zeros(len(job_types), dtype=np.int64)  # (J,) leases that began
        self._stops = np.zeros(len(job_types), dtype=np.int64)  # (J,) and were stopped

    def startup(self, rows: Ints, moved: Bools, resumes: Bools) -> Startup:
        """As LeaseConditions; only a job that resumes restores a checkpoint."""
        count = self._starts[rows]
        self._starts[rows] += 1
        restoring_s = self._drawn["restore"].draw(rows, count) * resumes
        migrating_s = self._drawn["migration"].draw(rows, count) * moved
        return Startup(self._drawn["start"].draw(rows, count) + restoring_s + migrating_s, restoring_s, migrating_s)

    def stop_s(self, rows: Ints) -> Floats:
        """As LeaseConditions."""
        count = self._stops[rows]
        self._stops[rows] += 1
        return self._drawn["checkpoint"].draw(rows, count)
