"""Simulated max-min fairness with estimated rates against true ones: effect of declared rates and of profiling."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gavelpy.engine import Engine
from gavelpy.estimator.evaluate import one_gpu
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.simulator.estimation import Estimation
from gavelpy.simulator.metrics import SimulationResult
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation

JOBS, GPUS_OF_A_TYPE, HOURS = 40, 8, 10.0  # duration of a medium job on its own V100
WRONG = 0.3, 3.0  # range of the factors by which claims are wrong
WINDOW_S = 3600.0, 4 * 3600.0
PROFILED_S = 1500.0  # GPU-seconds per allocation


@dataclass(frozen=True)
class Against:
    """Results with estimated rates, divided by those with true ones."""

    work: float  # effective throughput in the window
    jct: float  # average completion time
    makespan: float


def compared(table: ThroughputTable, seed: int, *, claimed: bool, profiled: bool) -> Against:
    """Compares the runs of one trace; the estimator's own table is empty."""
    rng = np.random.default_rng(seed)
    trace = drawn_trace(one_gpu(table), rng)
    span = np.log(WRONG)
    claims: dict[str, dict[str, float]] = {
        job.id: {name: rate * float(np.exp(rng.uniform(*span))) for name, rate in job.rates_steps_per_s.items()}
        for job in trace.jobs
    }
    cluster = Cluster.parse(",".join(f"{name}:{GPUS_OF_A_TYPE}" for name in table.gpu_types))
    settings, T = SimulationSettings(), len(table.gpu_types)
    empty = ThroughputTable((), table.gpu_types, np.zeros((0, T)), np.zeros((0, T), dtype=np.int64), ())
    known = ThroughputEstimator(empty)
    engine = Engine(MaxMinFairness(), estimator=known, profile_budget_s=PROFILED_S if profiled else 0.0)
    estimation = Estimation(known, claims if claimed else {})
    oracle = Simulation(trace, cluster, Engine(MaxMinFairness()), settings).run()
    found = Simulation(trace, cluster, engine, settings, estimation=estimation).run()
    return Against(
        effective_work(found, trace, *WINDOW_S) / effective_work(oracle, trace, *WINDOW_S),
        found.metrics.avg_jct_s / oracle.metrics.avg_jct_s,
        found.metrics.makespan_s / oracle.metrics.makespan_s,
    )


def effective_work(result: SimulationResult, trace: Trace, from_s: float, until_s: float) -> float:
    """Lease time within a window, weighted by each job's true rate over its mean rate."""
    rates, leases = {job.id: job.rates_steps_per_s for job in trace.jobs}, result.leases
    seconds = np.maximum(np.minimum(leases.end_s, until_s) - np.maximum(leases.start_s, from_s), 0.0)
    speed = [
        rates[job][gpu_type] / np.mean(list(rates[job].values()))
        for job, gpu_type in zip(leases.job, leases.gpu_type, strict=True)
    ]
    return float(np.sum(seconds * np.array(speed)))


def drawn_trace(table: ThroughputTable, rng: np.random.Generator) -> Trace:
    """Jobs of the table's types, which all arrive at once."""
    jobs = []
    for n in range(JOBS):
        job_type, gpus = table.keys[int(rng.integers(len(table.keys)))]
        rates = dict(table.rates(job_type, gpus))
        steps = max(rates.values()) * 3600.0 * HOURS * float(rng.uniform(0.3, 1.5))
        jobs.append(JobSpec(JobId(f"job {n}"), steps, job_type=job_type, rates_steps_per_s=rates))
    return Trace(tuple(jobs), np.zeros(JOBS))
