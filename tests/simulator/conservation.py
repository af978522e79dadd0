"""What every simulation must conserve, checked from its events alone: an observer of every simulation in the tests.

GPUs: at each time leased + idle + closed + absent = capacity, no GPU is under two leases (two jobs that share one:
three), and a lease has GPUs of one type, present and as many as the job may have. Steps: they only grow under a lease,
never beyond the job's total or what its rate gives in the time of the lease.
Jobs: each one finishes, is cancelled, or has a reason.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps

import numpy as np

from gavelpy.mechanism.events import (
    Event,
    JobCancelled,
    JobSubmitted,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLost,
    Outcome,
    ProgressReported,
)
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import Conditions
from gavelpy.simulator.simulate import Simulation

ROUNDING = 1e-9


@dataclass
class RunningLease:
    """A lease that has started, as the events show it."""

    lease: int
    gpus: list[int]
    start_s: float
    steps_before: float
    rate: float
    gpu_type: str


class Conservation:
    """Add it to the observers of one simulation, then pass the result to `check`."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.sharing_max = 2 if simulation.settings.mechanism.packing else 1
        self.has_plain_rates = simulation.settings.conditions == Conditions()
        self.running: dict[int, RunningLease] = {}  # by job
        self.jobs_on: dict[int, list[int]] = {}  # by GPU that is leased
        self.steps: dict[int, float] = {}  # of each job, as last reported
        self.over: set[int] = set()
        self.submitted = 0
        self.lost: dict[str, int] = {}  # GPUs of lost nodes
        self.saved: dict[int, float] = {}  # steps of each job at the last stop
        self.leased_gpu_s = self.absent_gpu_s = self.capacity_gpu_s = self.closed_gpu_s = self.now_s = 0.0

    def __call__(self, event: Event, now_s: float) -> None:
        """Checks an event, before the core applies it."""
        self._pass_time(now_s)
        match event:
            case LeaseStarted():
                self._started(event, now_s)
            case ProgressReported():
                for job, lease, steps in rows_of(event):
                    self._progressed(job, lease, steps, now_s)
            case LeaseEnded():
                self._ended(event, now_s)
            case NodeLost():
                self._lost(event)
            case NodeJoined():
                self.lost.pop(event.node_id, None)
            case JobSubmitted():
                self.submitted += 1
            case JobCancelled():
                self.over.add(event.job)
            case _:
                pass

    def check(self, result: SimulationResult) -> None:
        """Checks the end of the run and its metrics."""
        self._pass_time(result.history.now_s)
        found, near = result.metrics, {"rel_tol": 1e-6, "abs_tol": 1e-6}
        hours = found.gpu_hours
        assert self.submitted == result.history.count
        assert math.isclose(hours["capacity"] * 3600, self.capacity_gpu_s, **near), "capacity"
        assert math.isclose(hours["down"] * 3600, self.absent_gpu_s, **near), "GPU time of lost nodes"
        idle_gpu_s = self.capacity_gpu_s - self.absent_gpu_s - self.leased_gpu_s
        closed_gpu_s = (hours["closed"] + hours.get("trials", 0.0)) * 3600
        free_gpu_s = hours["idle"] * 3600 + closed_gpu_s
        assert abs(free_gpu_s - idle_gpu_s) <= 1e-6 * (self.capacity_gpu_s + 1.0), "free GPU time"
        assert math.isclose(closed_gpu_s, self.closed_gpu_s, **near), "GPU time of closed nodes"
        assert not found.efficiency > 1.0 + ROUNDING, "more useful GPU time than leased"
        parts = math.fsum(value for name, value in hours.items() if name != "capacity")
        assert math.isclose(parts, hours["capacity"], **near), f"the uses of GPU time do not add up: {hours}"
        if self.leased_gpu_s > 0 and not self.absent_gpu_s:
            assert math.isclose(found.efficiency * self.leased_gpu_s, result.useful_gpu_s.sum(), **near), "efficiency"
        if found.jobs_unfinished:
            lost = [row for row in range(self.submitted) if row not in self.over and not result.reasons.get(row)]
            lost = [row for row in lost if result.measured[row]]
            assert not lost, f"jobs {lost} neither ended nor have a reason"

    def _pass_time(self, now_s: float) -> None:
        elapsed_s = now_s - self.now_s
        assert elapsed_s >= 0, f"time runs backwards at {now_s}"
        if elapsed_s:
            present = len(self.simulation.core.pool.type_of)
            assert len(self.jobs_on) + sum(self.lost.values()) <= present, f"more GPUs than there are at {now_s}"
            self.capacity_gpu_s += elapsed_s * present
            self.absent_gpu_s += elapsed_s * sum(self.lost.values())
            self.leased_gpu_s += elapsed_s * len(self.jobs_on)
            pool = self.simulation.core.pool
            if not pool.usable.all():
                gone = np.isin(np.array(pool.node_ids)[pool.node_of], list(self.lost))
                closed = np.flatnonzero(~pool.usable & (pool.job < 0) & ~gone).tolist()
                self.closed_gpu_s += elapsed_s * sum(not self.jobs_on.get(gpu) for gpu in closed)
            self.now_s = now_s

    def _started(self, event: LeaseStarted, now_s: float) -> None:
        simulation = self.simulation
        types = simulation.core.pool.type_of
        for k, (job, lease) in enumerate(zip(event.jobs.tolist(), event.leases.tolist(), strict=True)):
            assert job not in self.running, f"job {job} runs twice at {now_s}"
            assert job not in self.over, f"job {job} runs after its end at {now_s}"
            gpus = event.gpus[event.gpu_offsets[k] : event.gpu_offsets[k + 1]].tolist()
            spec = simulation.trace.jobs[job]
            assert len(gpus) == len(set(gpus)), f"lease {lease} has a GPU twice"
            assert len(gpus) in (spec.sizes or (spec.gpus,)), f"lease {lease} has {len(gpus)} GPUs"
            (gpu_type,) = {int(types[gpu]) for gpu in gpus}
            for gpu in gpus:
                holders = self.jobs_on.setdefault(gpu, [])
                holders.append(job)
                assert len(holders) <= self.sharing_max, f"GPU {gpu} is under the leases of {holders} at {now_s}"
            rate = self._rate(job, gpu_type, len(gpus))
            name = simulation.core.pool.gpu_types[gpu_type]
            self.running[job] = RunningLease(lease, gpus, now_s, self.steps.get(job, 0.0), rate, name)

    def _rate(self, job: int, gpu_type: int, gpus: int) -> float:
        agents = self.simulation.agents
        assert agents is not None, "leases start on a cluster"
        own = agents.rate_by_size.get(job)
        return float(agents.true_rate[job, gpu_type] if own is None else own[gpus][gpu_type])

    def _progressed(self, job: int, lease: int, steps: float, now_s: float) -> None:
        held = self.running.get(job)
        if held is None or held.lease != lease:
            return
        total = self.simulation.trace.jobs[job].steps_total
        assert steps <= total * (1 + ROUNDING), f"job {job} has {steps} of {total} steps"
        if self.has_plain_rates:
            most = self._steps_at_most(job, held, now_s - held.start_s)
            assert steps <= most * (1 + 1e-6) + 1e-6 * max(total, 1.0), f"job {job} has {steps} steps, at most {most}"
        self.steps[job] = steps

    def _steps_at_most(self, job: int, held: RunningLease, time_s: float) -> float:
        """Steps after this time of a lease; a job with phases makes them one phase after the other."""
        trace, steps = self.simulation.trace, held.steps_before
        if not (phases := trace.phases.get(trace.jobs[job].id, ())):
            return steps + held.rate * time_s
        for phase, end in zip(phases, [*(one.from_step for one in phases[1:]), math.inf], strict=True):
            if steps < end and time_s > 0:
                rate = phase.rates_steps_per_s[held.gpu_type]
                made = min(end - steps, rate * time_s)
                steps, time_s = steps + made, time_s - made / rate
        return steps

    def _ended(self, event: LeaseEnded, now_s: float) -> None:
        for job, lease, steps in rows_of(event):
            self._progressed(job, lease, steps, now_s)
            self.saved[job] = steps
            if event.outcome is Outcome.FINISHED:
                assert math.isclose(steps, self.simulation.trace.jobs[job].steps_total), f"job {job} is not done"
                self.over.add(job)
            held = self.running.get(job)
            if held is not None and held.lease == lease:
                self._free(job)

    def _lost(self, event: NodeLost) -> None:
        """All leases on the node end, also those of gangs that hold GPUs elsewhere."""
        gpus = np.flatnonzero(self.simulation.core.pool.on(event.node_id)).tolist()
        for job in {job for gpu in gpus for job in self.jobs_on.get(gpu, ())}:
            self._free(job)
            self.steps[job] = self.saved.get(job, 0.0)
        self.lost[event.node_id] = len(gpus)

    def _free(self, job: int) -> None:
        for gpu in self.running.pop(job).gpus:
            self.jobs_on[gpu].remove(job)
            if not self.jobs_on[gpu]:
                del self.jobs_on[gpu]


def checked(run: Callable[[Simulation], SimulationResult]) -> Callable[[Simulation], SimulationResult]:
    """`Simulation.run`, with a check of what every simulation conserves."""

    @wraps(run)
    def run_checked(simulation: Simulation) -> SimulationResult:
        conservation = Conservation(simulation)
        simulation.observers.append(conservation)
        result = run(simulation)
        conservation.check(result)
        return result

    return run_checked


def rows_of(event: ProgressReported | LeaseEnded) -> list[tuple[int, int, float]]:
    """Job, lease and steps of each row."""
    return list(zip(event.jobs.tolist(), event.leases.tolist(), event.steps_done.tolist(), strict=True))
