"""ElasticFlow against other schedulers: how many jobs meet their deadlines.

The jobs are those of cluster 01 of its traces, with their deadlines of 0.5 to 1.5 times the recorded run time.
ElasticFlow, Pollux, EDF and SRTF choose the number of GPUs of jobs of up to 8 GPUs, 1, 2, 4 or 8; the other schedulers
give jobs the number that they request, as in the paper. Without a trace, jobs are drawn with the trace's run times,
numbers of GPUs and deadlines, for a quarter of the GPUs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import JobId, JobSpec, Trace
from gavelpy.policies.base import ProblemInput
from gavelpy.policies.in_order import run_in_order
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve
from gavelpy.reproduction.comparisons import completion_s, settings_with, simulated
from gavelpy.reproduction.published import UNKNOWN, FigureSize, PublishedFigure, Reproduction, Row
from gavelpy.traces.formats import DurationRule, ReadOptions
from gavelpy.traces.reader import read_trace

if TYPE_CHECKING:
    from gavelpy.model.allocation import Allocation
    from gavelpy.model.arrays import Floats
    from gavelpy.model.problem import AllocationProblem
    from gavelpy.policies.base import Policy
    from gavelpy.solve.solver import Solver

GPU_TYPE, ROUND_S, GPUS_PER_NODE = "v100", 60.0, 8
GPUS, DRAWN_GPUS = 64, 16  # for recorded and for drawn jobs
SIZES, EFFICIENCY = (1, 2, 4, 8), 0.95  # of each doubling of the GPUs of a job
FIRST, SMALL_JOBS, FULL_JOBS = 600, 80, 300  # of the trace, in order of submission
LEAST, MOST = 1.46, 7.65
"""Jobs that meet their deadlines under ElasticFlow over those under another scheduler: the range (abstract)."""
MEDIAN_S, SPREAD = 8287.0, 0.85  # run times of the trace, and the deviation of their logarithms
LOAD = 2.0  # GPU time of drawn jobs over that of the cluster until the last arrives; 2.2 for the 300 recorded ones
GPU_COUNTS = {1: 1530, 2: 11, 4: 6, 8: 5, 16: 6}  # jobs of the trace, without 37 of 32 and 64


@dataclass(frozen=True)
class EarliestDeadlineFirst:
    """Jobs in order of deadlines, each on the fastest GPUs that are left."""

    name: ClassVar[str] = "edf"
    summary: ClassVar[str] = "Run the jobs with the earliest deadlines first."
    fills_leftover: ClassVar[bool] = False
    time_varying: ClassVar[bool] = True
    uses: ClassVar[frozenset[ProblemInput]] = frozenset({ProblemInput.DEADLINE, ProblemInput.SIZES})

    def allocate(self, problem: AllocationProblem, solver: Solver | None = None) -> Allocation:  # noqa: ARG002 the protocol's
        """Shares of 0 and 1, and the next round."""
        return run_in_order(problem, np.argsort(problem.deadline_s, kind="stable"))


OURS = "elasticflow"
ELASTIC: dict[str, str | Policy] = {OURS: OURS, "edf": EarliestDeadlineFirst(), "pollux": "pollux", "srtf": "srtf"}
RIGID: dict[str, str | Policy] = {
    "edf, as requested": EarliestDeadlineFirst(),
    "gandiva": "gandiva",
    "tiresias": "tiresias",
    "themis": "themis",
}
NOT_IN_PAPER = ("srtf",)


def drawn(jobs: int, seed: int) -> Trace:
    """Jobs with log-normal run times and deadlines of 0.5 to 1.5 times them, which arrive at random."""
    rng = np.random.default_rng(seed)
    counts = np.array(list(GPU_COUNTS.values()), dtype=np.float64)
    run_s = MEDIAN_S * np.exp(SPREAD * rng.standard_normal(jobs))
    gpus = rng.choice(np.array(list(GPU_COUNTS)), size=jobs, p=counts / counts.sum())
    deadline_s = run_s * rng.uniform(0.5, 1.5, jobs)
    gaps_s = rng.exponential(float(run_s @ gpus) / (DRAWN_GPUS * LOAD * jobs), jobs)
    gaps_s[0] = 0.0
    rows = zip(run_s.tolist(), gpus.tolist(), deadline_s.tolist(), strict=True)
    specs = (
        JobSpec(JobId(str(k)), steps, gpus=count, rates_steps_per_s={GPU_TYPE: 1.0}, deadline_s=due_s)
        for k, (steps, count, due_s) in enumerate(rows)
    )
    return Trace(tuple(specs), np.cumsum(gaps_s), f"seed {seed}")


def recorded(trace: Trace, jobs: int) -> Trace:
    """The jobs after the first 600. Raises InvalidInput if a job has no deadline or there are too few."""
    if len(trace) < FIRST + jobs or any(math.isinf(job.deadline_s) for job in trace.jobs):
        late = sum(math.isfinite(job.deadline_s) for job in trace.jobs)
        allowed = f"{FIRST + jobs} jobs or more, all with deadlines (ElasticFlow's derived cluster01.csv)"
        raise InvalidInput(f"trace must have {allowed}, got {len(trace)} jobs, {late} with deadlines")
    chosen = slice(FIRST, FIRST + jobs)
    specs = tuple(
        replace(job, rates_steps_per_s={GPU_TYPE: job.rates_steps_per_s[GPU_TYPE]}) for job in trace.jobs[chosen]
    )
    return Trace(specs, trace.arrival_s[chosen] - trace.arrival_s[FIRST], f"{trace.name}, from job {FIRST + 1}")


def with_sizes(trace: Trace) -> Trace:
    """The same jobs, of which those of up to 8 GPUs can run on 1, 2, 4 and 8."""
    return replace(trace, jobs=tuple(_elastic(job) if job.gpus in SIZES else job for job in trace.jobs))


def _elastic(job: JobSpec) -> JobSpec:
    rate = job.rates_steps_per_s[GPU_TYPE]
    rates = {size: {GPU_TYPE: rate * (2.0 * EFFICIENCY) ** math.log2(size / job.gpus)} for size in SIZES}
    rates.pop(job.gpus)
    return replace(job, sizes=SIZES, rates_by_size=rates)


def compared(traces: list[Trace], gpus: int, size: FigureSize) -> Reproduction:
    """Jobs that met their deadlines under each policy, over all traces, and the ratios of ElasticFlow's to them."""
    cluster, settings = Cluster.parse(f"{GPU_TYPE}:{gpus}", gpus_per_node=GPUS_PER_NODE), settings_with(ROUND_S)
    met = dict.fromkeys([*ELASTIC, *RIGID], 0)
    curves = list[PlotCurve]()
    for trace in traces:
        results = simulated(with_sizes(trace), cluster, ELASTIC, settings, size, trace.name)
        results |= simulated(trace, cluster, RIGID, settings, size, trace.name)
        deadline_s = np.array([job.deadline_s for job in trace.jobs])
        for i, (name, result) in enumerate(results.items()):
            jct_s = completion_s(result, trace)
            is_met = jct_s <= deadline_s
            met[name] += int(is_met.sum())
            if trace is traces[0]:
                ended_h: Floats = np.sort((trace.arrival_s + jct_s)[is_met]) / 3600.0
                colour = POLICY_COLOURS[i % len(POLICY_COLOURS)]
                curves.append(PlotCurve(name, ended_h, np.arange(1.0, len(ended_h) + 1.0), colour))
    at = f"{sum(map(len, traces))} jobs"
    rows = [Row(at, name, "deadlines met", UNKNOWN, float(count)) for name, count in met.items()]
    others = {name: count for name, count in met.items() if name != OURS and name not in NOT_IN_PAPER}
    for quantity, published, name in (
        ("ratio, least", LEAST, max(others, key=others.__getitem__)),
        ("ratio, most", MOST, min(others, key=others.__getitem__)),
    ):
        rows.append(Row(at, f"{OURS} / {name}", quantity, published, met[OURS] / max(others[name], 1)))
    figure = Figure("deadlines", "Jobs that met their deadlines", Axis("h"), Axis("jobs"), tuple(curves))
    used = {"cluster": f"{GPU_TYPE}:{gpus}", "round_s": ROUND_S, "traces": [trace.name for trace in traces]}
    return Reproduction(tuple(rows), (figure,), used | {"sizes": SIZES, "efficiency": EFFICIENCY})


def deadlines_met(size: FigureSize) -> Reproduction:
    """ElasticFlow and other schedulers on recorded jobs, or on drawn ones."""
    jobs = FULL_JOBS if size.is_full else SMALL_JOBS
    if size.trace is None:
        return compared([drawn(jobs, seed) for seed in range(size.seeds or 1)], DRAWN_GPUS, size)
    if size.seeds is not None:
        raise InvalidInput(f"seeds must not be given with a trace, from which nothing is drawn, got {size.seeds}")
    options = ReadOptions(durations=DurationRule.SECONDS)
    return compared([recorded(read_trace(size.trace, from_format="elasticflow", options=options), jobs)], GPUS, size)


DEADLINES_MET = PublishedFigure(
    "elasticflow",
    "ElasticFlow against other schedulers: deadlines met",
    "Gu et al., ASPLOS '23, abstract: 1.46 to 7.65 times as many jobs meet their deadlines, on a cluster of 128 GPUs",
    "64 GPUs and a part of one trace; speeds on other numbers of GPUs are assumed (95 % of the efficiency for each"
    " doubling), and placement does not slow jobs down",
    deadlines_met,
)
