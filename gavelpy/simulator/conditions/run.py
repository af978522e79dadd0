"""The conditions of one run: what its cluster, its steps and its events from outside need."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.events import AllocationFailed, AllocationSolved, Event
from gavelpy.mechanism.gpus import GpuPool
from gavelpy.model.arrays import Floats
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobSpec
from gavelpy.model.throughput import ThroughputTable
from gavelpy.simulator.conditions.cadence import NEVER_S, PeriodicSaves, intervals_s
from gavelpy.simulator.conditions.draws import duration, uniform
from gavelpy.simulator.conditions.exogenous import HOUR_S, ExogenousEvents, racks
from gavelpy.simulator.conditions.leases import DrawnConditions, LeaseConditions
from gavelpy.simulator.conditions.rate_factors import RateFactors, rates_apart, slow_nodes
from gavelpy.simulator.conditions.trials import TrialPool
from gavelpy.simulator.settings import SimulationSettings, StepCount


class RunConditions:
    """Of one policy on one trace."""

    def __init__(
        self, settings: SimulationSettings, jobs: tuple[JobSpec, ...], cluster: Cluster, seed: int,
        given: Iterable[tuple[float, Event]] = (),
    ) -> None:  # fmt: skip
        self.conditions, self._settings = settings.conditions, settings
        self._jobs, self._cluster, self._seed = jobs, cluster, seed
        self._check()
        self.trials = TrialPool(self.conditions, settings.costs, cluster, seed)
        self.exogenous = ExogenousEvents(self.conditions, cluster, seed, given, self.trials)
        self.answers = DelayedAnswers(settings, seed) if _delays(settings) else None

    def leases(self, pool: GpuPool, table: ThroughputTable | None) -> LeaseConditions:
        """What leases cost, how fast they run and when they fail."""
        conditions, base = self.conditions, self._settings.costs
        if not conditions.causes:
            return LeaseConditions(base)
        apart = None
        if conditions.locality.by_table:
            if table is None:
                raise InvalidInput("locality by_table needs throughputs with rates of types TYPE_unconsolidated")
            apart = rates_apart(self._jobs, table, pool.gpu_types)
        by_rack = racks(self._cluster.nodes, conditions.nodes.nodes_per_rack).values()
        rack_of_node = {node.node_id: k for k, rack in enumerate(by_rack) for node in rack}
        rack_of = np.array([rack_of_node[name] for name in pool.node_ids], dtype=np.int64)
        is_slow = slow_nodes(self._seed, conditions.stragglers.nodes_share, pool.node_ids)
        factors = RateFactors(conditions, self._seed, rack_of, is_slow, apart)
        return DrawnConditions(conditions, base, self._jobs, self._seed, pool, factors)

    def steps(self, leases: LeaseConditions) -> StepCount:
        """How jobs count steps, and save meanwhile."""
        checkpoints = self.conditions.checkpoints
        if not isinstance(leases, DrawnConditions) or not (checkpoints.every_s or checkpoints.by_failure_rate):
            return self._settings.steps
        save_s = leases.save_s()
        if checkpoints.by_failure_rate:
            return PeriodicSaves(intervals_s(save_s, self._mtbf_s()), save_s)
        return PeriodicSaves(np.full(len(save_s), checkpoints.every_s), save_s)

    def _mtbf_s(self) -> Floats:
        """Mean time between failures of each job while it runs, (J,), on as few nodes as it fits on."""
        nodes, spot, failing = self.conditions.nodes, self.conditions.spot, self.conditions.job_failures
        gpus = np.array([job.gpus for job in self._jobs], dtype=np.float64)
        wide = max((node.gpu_count for node in self._cluster.nodes), default=1)
        on_nodes = np.ceil(gpus / wide)
        rates = (  # per hour
            (on_nodes, nodes.mtbf_h),
            (np.ceil(on_nodes / nodes.nodes_per_rack), nodes.rack_mtbf_h),
            (gpus, nodes.gpu_mtbf_h),
            (gpus, failing.system_mtbf_gpu_h),
            (on_nodes * spot.share, spot.every_h if spot.notice_s == 0 else 0.0),
        )
        per_h: Floats = np.zeros(len(gpus))
        for count, mean_h in rates:
            per_h += count / mean_h if mean_h else 0.0
        found: Floats = np.divide(HOUR_S, per_h, out=np.full(len(gpus), NEVER_S), where=per_h > 0)
        return found

    def _check(self) -> None:
        conditions, settings = self.conditions, self._settings
        if not conditions.causes:
            return
        if type(settings.steps) is not StepCount and (
            conditions.checkpoints.every_s or conditions.checkpoints.by_failure_rate
        ):
            raise InvalidInput("[checkpoints] needs jobs that count fractions of steps, got the preset gavel-osdi20")
        known = {str(node.node_id) for node in self._cluster.nodes}
        for name in [name for window in conditions.maintenance for name in window.nodes if name not in known]:
            raise InvalidInput(f"nodes of [[maintenance]] must be in the cluster, such as {min(known)!r}, got {name!r}")
        for name in [name for name in conditions.spot.gpu_types if name not in self._cluster.gpu_types]:
            types = ", ".join(self._cluster.gpu_types)
            raise InvalidInput(f"gpu_types of [spot] must be in the cluster ({types}), got {name!r}")


def _delays(settings: SimulationSettings) -> bool:
    latency = settings.conditions.latency
    return bool(latency.solve_per_job_s or duration(latency.solve).mean_s)


_SOLVER, _ANY_SHARE = np.array([0]), np.array([0.5])


class DelayedAnswers:
    """Allocations that have been computed and arrive later."""

    def __init__(self, settings: SimulationSettings, seed: int) -> None:
        self._latency, self._seed = settings.conditions.latency, seed
        self._took = duration(self._latency.solve)
        self._queue: list[tuple[float, int, AllocationSolved | AllocationFailed]] = []
        self._count = 0

    @property
    def next_s(self) -> float:
        """When the next answer arrives; infinite if none is under way."""
        return self._queue[0][0] if self._queue else math.inf

    def send(self, answer: AllocationSolved | AllocationFailed, jobs: int, now_s: float) -> None:
        """An answer is under way, to a problem of so many jobs."""
        share = uniform(self._seed, "solve", _SOLVER, self._count) if self._took.is_random else _ANY_SHARE
        took_s = self._took.quantile_s(share).item() + self._latency.solve_per_job_s * jobs
        heapq.heappush(self._queue, (now_s + took_s, self._count, answer))
        self._count += 1

    def pop(self) -> AllocationSolved | AllocationFailed:
        """The next answer."""
        return heapq.heappop(self._queue)[2]
