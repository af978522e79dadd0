"""Simulated packed max-min with estimated rates against the same with true ones, hour by hour.

Effective throughput: the steps of all jobs in a period, each in seconds at the job's mean rate alone on the GPU types.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.estimation_runs import PROFILED_S, WRONG, drawn_trace
from gavelpy.engine import Engine
from gavelpy.estimator.evaluate import one_gpu
from gavelpy.estimator.online import ThroughputEstimator
from gavelpy.mechanism.events import Event, LeaseEnded, ProgressReported
from gavelpy.mechanism.settings import MechanismSettings
from gavelpy.model.arrays import Floats, Ints
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import Trace
from gavelpy.model.throughput import ThroughputTable
from gavelpy.policies.max_min_fairness import MaxMinFairness
from gavelpy.simulator.estimation import Estimation
from gavelpy.simulator.settings import SimulationSettings
from gavelpy.simulator.simulate import Simulation

GPUS_OF_A_TYPE, NEW_TYPES = 6, 8
PAIRS_KNOWN = 0.2  # fraction of the pairs of a new type
EDGES_S: Floats = np.arange(8, dtype=np.float64) * 3600.0  # edges of the curve


@dataclass(frozen=True, eq=False)
class Curves:
    """Effective throughput by hour, (7,) each."""

    oracle: Floats
    estimated: Floats
    alone: Floats  # not packed, true rates


@dataclass
class Steps:
    """An observer that records the progress of each job over time."""

    reported: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def __call__(self, event: Event, now_s: float) -> None:
        if isinstance(event, ProgressReported | LeaseEnded):
            for job, steps in zip(event.jobs.tolist(), event.steps_done.tolist(), strict=True):
                self.reported.setdefault(job, [(0.0, 0.0)]).append((now_s, steps))

    def work(self, seconds_a_step: Floats, edges_s: Floats) -> Floats:
        """Effective throughput between consecutive edges."""
        total = np.zeros(len(edges_s))
        for job, reports in self.reported.items():
            at_s, steps = np.array(reports).T
            total += np.interp(edges_s, at_s, steps) * seconds_a_step[job]
        return np.diff(total) / np.diff(edges_s)


def new_types(table: ThroughputTable, seed: int) -> Curves:
    """Some job types are new: they ran alone on one GPU type, and a fifth of their pairs ran."""
    table, rng = one_gpu(table), np.random.default_rng(seed)
    trace = drawn_trace(table, rng)
    return _curves(table, trace, ThroughputEstimator(_without(table, _new(table, rng), rng)), {})


def new_types_claimed(table: ThroughputTable, seed: int) -> Curves:
    """Some job types are new: no measured rates, and declared rates that are wrong by up to a factor of three."""
    table, rng = one_gpu(table), np.random.default_rng(seed)
    trace, new = drawn_trace(table, rng), _new(table, rng)
    names = {table.keys[row][0] for row in new.tolist()}
    claims = {job_id: claim for job_id, claim in _claims(trace, rng).items() if _type_of(trace, job_id) in names}
    return _curves(table, trace, ThroughputEstimator(_without(table, new, rng, part=0.0)), claims)


def nothing_known(table: ThroughputTable, seed: int, profiled_s: float = 0.0) -> Curves:
    """No table, only declared rates, wrong by up to a factor of three; no rates of pairs."""
    table, rng = one_gpu(table), np.random.default_rng(seed)
    trace, T = drawn_trace(table, rng), len(table.gpu_types)
    empty = ThroughputTable((), table.gpu_types, np.zeros((0, T)), np.zeros((0, T), dtype=np.int64), ())
    return _curves(table, trace, ThroughputEstimator(empty), _claims(trace, rng), profiled_s)


def nothing_known_profiled(table: ThroughputTable, seed: int) -> Curves:
    """The same, with GPU time for the most valuable measurements, including pairs."""
    return nothing_known(table, seed, PROFILED_S)


def _new(table: ThroughputTable, rng: np.random.Generator) -> Ints:
    return np.asarray(rng.choice(len(table.keys), NEW_TYPES, replace=False), dtype=np.int64)


def _claims(trace: Trace, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    span = np.log(WRONG)
    return {
        str(job.id): {name: rate * float(np.exp(rng.uniform(*span))) for name, rate in job.rates_steps_per_s.items()}
        for job in trace.jobs
    }


def _type_of(trace: Trace, job_id: str) -> str:
    return next(job.job_type for job in trace.jobs if job.id == job_id)


def _curves(
    table: ThroughputTable,
    trace: Trace,
    known: ThroughputEstimator,
    claims: dict[str, dict[str, float]],
    profiled_s: float = 0.0,
) -> Curves:
    packed = SimulationSettings(mechanism=MechanismSettings(packing=True))
    plain = SimulationSettings(mechanism=MechanismSettings())
    engine = Engine(MaxMinFairness(), estimator=known, profile_budget_s=profiled_s)
    return Curves(
        _work(trace, table, Engine(MaxMinFairness(), throughputs=table), packed),
        _work(trace, table, engine, packed, Estimation(known, claims)),
        _work(trace, table, Engine(MaxMinFairness()), plain),
    )


def _work(
    trace: Trace,
    table: ThroughputTable,
    engine: Engine,
    settings: SimulationSettings,
    estimation: Estimation | None = None,
) -> Floats:
    steps = Steps()
    cluster = Cluster.parse(",".join(f"{name}:{GPUS_OF_A_TYPE}" for name in table.gpu_types))
    Simulation(trace, cluster, engine, settings, estimation=estimation, observers=[steps], throughputs=table).run()
    mean_rate = np.array([float(np.mean(list(job.rates_steps_per_s.values()))) for job in trace.jobs], dtype=np.float64)
    return steps.work(np.reciprocal(mean_rate), EDGES_S)


def _without(table: ThroughputTable, new: Ints, rng: np.random.Generator, part: float = PAIRS_KNOWN) -> ThroughputTable:
    """The table with only one rate alone and `part` of the pairs of these rows; 0: no rates of them."""
    rates, pairs = table.rate_steps_per_s.copy(), table.pair_rate_steps_per_s
    measured = rng.integers(len(table.gpu_types), size=len(new))
    rates[new] = np.nan
    rates[new, measured] = table.rate_steps_per_s[new, measured] if part > 0 else np.nan
    is_new = np.asarray(np.isin(table.pair_rows, new).any(axis=1))
    hidden = is_new[:, None] & (rng.random((len(pairs), len(table.gpu_types))) >= part)
    return replace(table, rate_steps_per_s=rates, pair_rate_steps_per_s=np.where(hidden[:, None, :], np.nan, pairs))
