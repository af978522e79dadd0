"""The ideal of a policy: its shares delivered continuously and exactly, without rounds, whole GPUs, starts or moves.

At each arrival and finish the policy allocates, and until the next one each job makes Σ_t share_t x rate_t steps a
second. Gavel (OSDI '20), section 7.5, compares its round mechanism with this (Figure 13). It shares no code with the
mechanism, so it is also the oracle of tests: with short rounds and without costs, both agree.
"""

from __future__ import annotations

import math

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats, Ints
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.problem import AllocationProblem, BlindView
from gavelpy.model.problem_arrays import Entity
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.base import Policy, varies_with_time
from gavelpy.simulator.phases import RatePhases
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Stop, never
from gavelpy.solve.solver import Solver

_DONE = 1e-9  # of its steps: a job with less left is done


class IdealSimulation:
    """One run of a policy. Rows of jobs are those of the trace."""

    def __init__(
        self,
        trace: Trace,
        cluster: Cluster,
        policy: Policy,
        settings: SimulationSettings,
        *,
        throughputs: ThroughputTable | None = None,
        blind: BlindView | None = None,
    ) -> None:
        _refuse(trace, settings)
        jobs, types = trace.jobs, cluster.gpu_types
        known = [throughputs.rates(job.job_type, job.gpus) if throughputs is not None else {} for job in jobs]
        rates = [job.rates_steps_per_s or row for job, row in zip(jobs, known, strict=True)]
        self.trace, self.policy, self.blind, self.solver = trace, policy, blind, Solver()
        self.gpu_types, self.gpu_counts = types, np.array(cluster.gpu_counts, dtype=np.float64)
        self.price = cluster.prices
        self.rate = np.array([[row.get(name, 0.0) for name in types] for row in rates]).reshape(len(jobs), len(types))
        self.phases = RatePhases(jobs, trace.phases, types) if trace.phases else None
        if self.phases is not None:
            self.rate = self.phases.first_rates(self.rate)
        self.gpus = np.array([job.gpus for job in jobs], dtype=np.float64)
        self.weight = np.array([job.weight for job in jobs])
        self.deadline_s = np.array([job.deadline_s for job in jobs])
        self.steps_total = np.array([job.steps_total for job in jobs])
        self.steps = np.zeros(len(jobs))
        self.attained_gpu_s = np.zeros(len(jobs))
        self.isolated_s = np.zeros(len(jobs))  # that the steps would have taken on 1/n of each GPU type
        self.entities = list(dict.fromkeys(job.entity for job in jobs if job.entity))
        self.entity = np.array([self.entities.index(job.entity) if job.entity else -1 for job in jobs], dtype=np.int64)
        self.share = np.zeros((len(jobs), len(types)))  # in force
        self.finish_s = np.full(len(jobs), math.nan)
        every_s = settings.mechanism.solve_at_least_every_s or settings.mechanism.round_s
        self.solve_every_s = every_s if varies_with_time(policy) else math.inf

    def run(self, measured: Bools, stop: Stop = never) -> Floats:
        """Finish times in seconds, (J,), once the measured jobs are done; NaN of jobs that did not finish."""
        arrival_s, now_s, arrived = self.trace.arrival_s.tolist(), 0.0, 0
        active: Ints = np.zeros(0, dtype=np.int64)
        while np.isnan(self.finish_s[measured]).any() and not stop():
            speed = (self.share[active] * self.rate[active]).sum(axis=1)
            left_s = np.divide(self._left_at_rate(active), speed, out=np.full(len(active), math.inf), where=speed > 0)
            until_s = min(
                arrival_s[arrived] if arrived < len(arrival_s) else math.inf, now_s + left_s.min(initial=math.inf)
            )
            if not math.isfinite(until_s):
                break  # no job that is left can run
            until_s = min(until_s, now_s + self.solve_every_s) if len(active) else until_s
            self._pass(active, speed, until_s - now_s)
            now_s = until_s
            self._enter_phases(active)
            self.finish_s[active[self._left(active) <= _DONE * self.steps_total[active]]] = now_s
            while arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
                arrived += 1
            active = np.flatnonzero(np.isnan(self.finish_s[:arrived]))
            self._allocate(active, now_s)
        return self.finish_s

    def _left(self, rows: Ints) -> Floats:
        left: Floats = np.maximum(self.steps_total[rows] - self.steps[rows], 0.0)
        return left

    def _left_at_rate(self, rows: Ints) -> Floats:
        """Steps left of these jobs, or of their phases, (K,)."""
        left = self._left(rows)
        return left if self.phases is None else np.minimum(left, self.phases.ends[rows] - self.steps[rows])

    def _enter_phases(self, rows: Ints) -> None:
        """Jobs that have made the last step of a phase enter the next one."""
        if self.phases is None:
            return
        ends = self.phases.ends[rows]
        for row in rows[self.steps[rows] >= ends - _DONE * self.steps_total[rows]].tolist():
            self.steps[row] = self.phases.ends[row]
            self.rate[row] = self.phases.enter(row, self.steps[row])

    def _pass(self, rows: Ints, speed: Floats, time_s: float) -> None:
        self.steps[rows] += speed * time_s
        self.attained_gpu_s[rows] += self.share[rows].sum(axis=1) * self.gpus[rows] * time_s
        part = self.gpu_counts / (max(len(rows), 1) * self.gpus[rows])[:, None]
        part /= np.maximum(part.sum(axis=1), 1.0)[:, None]
        alone = (part * self.rate[rows]).sum(axis=1)
        self.isolated_s[rows] += np.divide(speed * time_s, alone, out=np.zeros(len(rows)), where=alone > 0)

    def _allocate(self, rows: Ints, now_s: float) -> None:
        self.share[:] = 0.0
        if not len(rows):
            return
        problem = AllocationProblem.of(
            [self.trace.jobs[row].id for row in rows.tolist()],
            self.gpu_types,
            self.gpu_counts,
            self.rate[rows],
            gpus=self.gpus[rows],
            weight=self.weight[rows],
            steps_remaining=np.maximum(self._left(rows), 1e-12 * self.steps_total[rows]),
            steps_total=self.steps_total[rows],
            age_s=now_s - self.trace.arrival_s[rows],
            isolated_s=self.isolated_s[rows],
            deadline_s=self.trace.arrival_s[rows] + self.deadline_s[rows] - now_s,
            attained_gpu_s=self.attained_gpu_s[rows],
            price_usd_per_gpu_h=self.price,
            entity=self.entity[rows],
            entities=[Entity(name) for name in self.entities],
        ).with_whole_gangs()
        seen = problem if self.blind is None else problem.blind_to_type(self.blind)
        self.share[rows] = self.policy.allocate(seen, self.solver).share[: len(rows)]


def _refuse(trace: Trace, settings: SimulationSettings) -> None:
    mechanism = settings.mechanism
    given = {
        "teams": mechanism.teams,
        "priority classes": mechanism.priorities,
        "packing": mechanism.packing,
        "jobs of several sizes": any(job.sizes for job in trace.jobs),
    }
    for name, is_given in given.items():
        if is_given:
            raise InvalidInput(f"the ideal of a policy is defined for single jobs only, got {name}")
