"""What policies answer for a given set of jobs, without simulation: Gavel's figures 11 and 12."""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.policies.base import policy_from
from gavelpy.policies.hierarchical import Hierarchical
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats, Ints
    from gavelpy.model.throughput import ThroughputTable

GPU_TYPES = ("v100", "p100", "k80")
ENTITY_WEIGHTS = (1.0, 2.0, 3.0)
JOBS_PER_ENTITY, GPUS_PER_TYPE = 6, 3  # of figure 11
TIMED = ("max_min_fairness", "finish_time_fairness", "min_makespan", "max_min_fairness_water_filling")
MEASURED_CPU_S = {  # the original's policies on n jobs and n/4 GPUs of each type, measured on two cores
    "max_min_fairness": {32: 0.085, 128: 0.021, 512: 0.037, 1024: 0.069, 2048: 0.073},
    "finish_time_fairness": {32: 0.131, 128: 0.353, 512: 1.55, 1024: 3.50, 2048: 6.72},
    "min_makespan": {32: 0.117, 128: 0.063, 512: 0.076, 1024: 0.147, 2048: 0.267},
    "max_min_fairness_water_filling": {32: 0.110, 128: 0.131, 512: 3.76, 1024: 29.7},
}
FULL_COUNTS, SMALL_COUNTS = (32, 128, 512, 1024, 2048), (32, 128, 512)
REPEATS = 5


def parts_of_entities(size: FigureSize) -> Reproduction:
    """Jobs of three entities arrive one by one; each entity's part of the throughput, against its part of the weights.

    As in figure 11: six jobs per entity, three GPUs of each type, fair within entities. A job's throughput counts
    relative to that on an equal share of all types, alone.
    """
    rates = _rates(size.table, len(ENTITY_WEIGHTS) * JOBS_PER_ENTITY, seed=0)
    entity = np.repeat(np.arange(len(ENTITY_WEIGHTS)), JOBS_PER_ENTITY)
    entities = [Entity(f"entity {i}", weight=weight) for i, weight in enumerate(ENTITY_WEIGHTS)]
    counts = range(1, len(entity) + 1)
    received = np.array([_received(rates[:n], entity[:n], entities) for n in counts])  # (n, entities)
    part = received / received.sum(axis=1, keepdims=True)
    rows = []
    for n in range(JOBS_PER_ENTITY, len(entity) + 1, JOBS_PER_ENTITY):
        weights = np.where(np.isin(np.arange(len(entities)), entity[:n]), ENTITY_WEIGHTS, 0.0)
        for i in np.flatnonzero(weights).tolist():
            expected = float(weights[i] / weights.sum())
            rows.append(Row(f"{n} jobs", entities[i].id, "part of the throughput", expected, float(part[n - 1, i])))
    x = np.array(counts, dtype=np.float64)
    curves = tuple(
        PlotCurve(f"{one.id}, weight {one.weight:g}", x, part[:, i], POLICY_COLOURS[i])
        for i, one in enumerate(entities)
    )
    figure = Figure("entities", "Parts of the throughput as jobs arrive", Axis("jobs"), Axis("part"), curves)
    return Reproduction(tuple(rows), (figure,), {"cluster": dict.fromkeys(GPU_TYPES, GPUS_PER_TYPE), "seed": 0})


def _received(rates: Floats, entity: Ints, entities: list[Entity]) -> Floats:
    jobs = [str(i) for i in range(len(rates))]
    gpus = [GPUS_PER_TYPE] * len(GPU_TYPES)
    problem = AllocationProblem.of(jobs, GPU_TYPES, gpus, rates, entity=entity, entities=entities)
    normalised = Hierarchical().allocate(problem).rate_steps_per_s / rates.mean(axis=1)
    found: Floats = np.bincount(entity, normalised, minlength=len(entities)).astype(np.float64)
    return found


def run_times(size: FigureSize) -> Reproduction:
    """CPU time of one answer without warm state, by number of jobs, with n/4 GPUs of each type."""
    counts = FULL_COUNTS if size.is_full else SMALL_COUNTS
    rows, curves = [], []
    for i, name in enumerate(TIMED):
        policy = policy_from(name)
        seconds = []
        for n in counts:
            problem = _problem(size.table, n)
            seconds.append(statistics.median(_cpu_s(policy, problem) for _ in range(REPEATS)))
            measured = MEASURED_CPU_S[name].get(n, UNKNOWN)
            rows.append(Row(f"{n} jobs", name, "CPU seconds", measured, seconds[-1]))
        x = np.array(counts, dtype=np.float64)
        curves.append(PlotCurve(name, x, np.array(seconds), POLICY_COLOURS[i]))
        known = {n: value for n, value in MEASURED_CPU_S[name].items() if n in counts}
        x, y = np.array(list(known), dtype=np.float64), np.array(list(known.values()))
        curves.append(PlotCurve(f"{name}, original", x, y, POLICY_COLOURS[i], True))
    figure = Figure("run_time", "CPU time of an answer", Axis("jobs"), Axis("CPU s"), tuple(curves))
    return Reproduction(tuple(rows), (figure,), {"gpus_of_each_type": "n / 4", "repeats": REPEATS, "seed": 0})


def _problem(table: ThroughputTable, count: int) -> AllocationProblem:
    rng = np.random.default_rng(0)
    rates = _rates(table, count, seed=0)
    jobs, gpus = [str(i) for i in range(count)], [count // 4] * len(GPU_TYPES)
    steps = rates[:, 0] * 3600.0 * 10.0 ** rng.uniform(0.0, 2.0, count)
    return AllocationProblem.of(jobs, GPU_TYPES, gpus, rates, steps_remaining=steps, steps_total=steps)


def _cpu_s(policy: object, problem: AllocationProblem) -> float:
    began_s = time.process_time()
    policy.allocate(problem)  # type: ignore[attr-defined]
    return time.process_time() - began_s


def _rates(table: ThroughputTable, count: int, *, seed: int) -> Floats:
    """Rates of jobs of random types on one GPU, each varied by up to 10 %, so that no two jobs are equal, (J, T)."""
    rng = np.random.default_rng(seed)
    kinds = [(job_type, gpus) for job_type, gpus in table.keys if gpus == 1]
    drawn = rng.integers(len(kinds), size=count).tolist()
    rates = np.array([[table.rates(*kinds[k]).get(name, 0.0) for name in GPU_TYPES] for k in drawn])
    varied: Floats = rates * rng.uniform(0.9, 1.1, (count, 1)) * rng.uniform(0.99, 1.01, rates.shape)
    return varied


FIG11 = PublishedFigure(
    "fig11",
    "Gavel: multi-level fairness as jobs of three entities arrive",
    "Narayanan et al., OSDI '20, figure 11: entities share in proportion to their weights",
    "jobs are drawn at random from the shipped rates; parts differ from the weights where an entity has too few jobs "
    "to use its part",
    parts_of_entities,
)
FIG12 = PublishedFigure(
    "fig12",
    "Gavel: CPU time of a policy over the number of jobs",
    "the original's policies (cvxpy with ECOS, GLPK_MI for water filling), measured by this project on two cores; the "
    "paper's figure 12 has wall-clock time on its authors' machine",
    "another machine: compare orders of magnitude; `python -m benchmarks` has ratios measured in one run",
    run_times,
)
