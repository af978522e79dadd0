"""Rates of leases relative to the stated ones: locality, interference, stragglers, noise and drift."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Floats, Ints
from gavelpy.simulator.conditions.draws import normal, subject_of, uniform

if TYPE_CHECKING:
    from gavelpy.model.job import JobSpec
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.simulator.conditions.spec import Conditions

UNCONSOLIDATED = "_unconsolidated"
DRIFT_MAX = 1.0  # of the logarithm of a rate, either way


class RateFactors:
    """Factors by nodes, by lease and by neighbours. Rows of jobs are serials, rows of nodes those of the core."""

    def __init__(
        self, conditions: Conditions, seed: int, rack_of: Ints, is_slow: Sequence[bool], apart: Floats | None
    ) -> None:
        self._conditions, self._seed = conditions, seed
        self._rack_of = rack_of  # (N,)
        slow = conditions.stragglers.nodes_factor
        self._node_factor = np.where(np.array(is_slow, dtype=np.bool_), slow, 1.0)  # (N,)
        self._apart = apart  # (J, T) rate of a gang on several nodes / on one; NaN = unknown; None = by factors only

    def of_nodes(self, rows: Ints, gpu_types: Ints, offsets: Ints, nodes: Ints) -> Floats:
        """Of leases (K,) whose GPUs are on these nodes: nodes[offsets[k]:offsets[k + 1]]."""
        locality, first = self._conditions.locality, offsets[:-1]
        nodes_known = np.minimum(nodes, len(self._node_factor) - 1)  # nodes that joined later are like the last one
        found = np.minimum.reduceat(self._node_factor[nodes_known], first)
        on_several = np.minimum.reduceat(nodes, first) < np.maximum.reduceat(nodes, first)
        apart = np.full(len(rows), locality.nodes_factor)
        if self._apart is not None:
            stated = self._apart[rows, gpu_types]
            apart = np.where(np.isnan(stated), apart, stated)
        racks = self._rack_of[nodes_known]
        in_several = np.minimum.reduceat(racks, first) < np.maximum.reduceat(racks, first)
        found = found * np.where(on_several, apart, 1.0) * np.where(in_several, locality.racks_factor, 1.0)
        return np.asarray(found)

    def of_leases(self, rows: Ints, count: Ints, days: Floats) -> Floats:
        """Of leases (K,), the `count`-th of their jobs, which began `days` after the first ones."""
        rates, slow = self._conditions.rates, self._conditions.stragglers
        found = np.ones(len(rows))
        if rates.noise_sigma:
            sigma = rates.noise_sigma
            found *= np.exp(sigma * normal(self._seed, "noise", rows, count) - sigma**2 / 2)
        if rates.drift_sigma_per_day:
            trend = rates.drift_sigma_per_day * normal(self._seed, "drift", rows)
            found *= np.exp(np.clip(trend * days, -DRIFT_MAX, DRIFT_MAX))
        if slow.leases_share:
            is_slow = uniform(self._seed, "slow lease", rows, count) < slow.leases_share
            found *= np.where(is_slow, slow.leases_factor, 1.0)
        return found

    def of_neighbors(self, gpu_job: Ints, gpu_second: Ints, node_of: Ints, rows: Ints) -> Floats:
        """Of running jobs (K,): whether another job has GPUs of one of their nodes."""
        held, second = (gpu_job >= 0).nonzero()[0], (gpu_second >= 0).nonzero()[0]
        jobs, nodes = gpu_job[held], node_of[held]
        if len(second):
            jobs = np.concatenate([jobs, gpu_second[second]])
            nodes = np.concatenate([nodes, node_of[second]])
        found = np.ones(len(rows))
        if len(jobs):
            one = np.empty(int(nodes.max()) + 1, dtype=np.int64)  # of the jobs on each node; else without meaning
            one[nodes] = jobs
            is_shared = np.zeros(len(one), dtype=np.bool_)
            is_shared[nodes[one[nodes] != jobs]] = True
            crowded = np.zeros(int(max(jobs.max(), rows.max(initial=-1))) + 1, dtype=np.bool_)
            crowded[jobs[is_shared[nodes]]] = True
            found[crowded[rows]] = self._conditions.interference.node_factor
        return found


def slow_nodes(seed: int, share: float, node_ids: Sequence[str]) -> list[bool]:
    """Which of these nodes are slow."""
    subjects = np.array([subject_of(name) for name in node_ids], dtype=np.int64)
    return [number < share for number in uniform(seed, "slow node", subjects).tolist()]


def rates_apart(jobs: Sequence[JobSpec], table: ThroughputTable, gpu_types: Sequence[str]) -> Floats:
    """Rate of each job on each type with GPUs on several nodes / on one, (J, T); NaN = unknown.

    The table has rates of gangs on several nodes as those of types with the suffix `_unconsolidated`.
    """
    found = {}
    for key in {(job.job_type, job.gpus) for job in jobs}:
        rates = table.rates(*key)
        pairs = [(rates.get(name, 0.0), rates.get(name + UNCONSOLIDATED, 0.0)) for name in gpu_types]
        found[key] = [apart / together if together > 0 < apart else np.nan for together, apart in pairs]
    return np.array([found[job.job_type, job.gpus] for job in jobs]).reshape(len(jobs), len(gpu_types))
