"""Metrics and data frames of a simulated run, computed from its history."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.engine import Profiled
from gavelpy.journal.history import History
from gavelpy.model.arrays import Bools, Floats

if TYPE_CHECKING:
    import pandas as pd
UTILIZATION_BINS = 240


@dataclass(frozen=True)
class RunMetrics:
    """Over the measured jobs (JCT, fairness, deadlines) and over the whole run (the rest). NaN: no job to measure.

    JCT = finish - arrival. Finish-time fairness of a job = its JCT / its JCT in a run of the same trace under
    `isolated`.
    """

    avg_jct_s: float
    p50_jct_s: float
    p90_jct_s: float
    p99_jct_s: float
    makespan_s: float  # from the first arrival to the end of the run
    utilization: float  # GPU time under lease / total GPU time of the run; a shared GPU counts once
    efficiency: float  # useful GPU time (of steps that were kept) / GPU time under lease; NaN without leases
    cost_usd: float  # GPU time under lease at its price; a shared GPU costs once
    ftf_worst: float
    ftf_mean: float
    deadline_misses: int
    preemptions: int  # times a job was stopped before its end
    migrations: int  # times a job started on other GPUs than it last ran on
    rounds: int
    solves: int
    ideal_avg_jct_s: float  # with the policy's shares delivered continuously and exactly; NaN unless requested
    ideal_makespan_s: float
    jobs_measured: int  # finished and measured
    jobs_unfinished: int  # measured, but not finished when the run ended
    wall_s: float
    cpu_s: float
    cpu_solve_s: float
    cpu_fairness_s: float = 0.0  # of the additional run under `isolated`, one for all policies
    probes_alone: int = 0  # (job, GPU type) that were probed
    probes_pairs: int = 0  # (job, partner, GPU type) that were probed
    probes_gpu_s: float = 0.0  # GPU time reserved for probes
    gpu_hours: Mapping[str, float] = field(default_factory=dict)  # by use; see `capacity.gpu_hours`
    avg_fair_share_delay_s: float = math.nan  # waiting of measured jobs that finished, but for the following
    avg_fragmentation_delay_s: float = math.nan  # enough GPUs were free, but not close together

    def to_json(self) -> dict[str, Any]:
        """The documented object; NaN becomes null."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """One policy on one trace."""

    label: str  # "name" or "name@blind"
    metrics: RunMetrics
    history: History
    measured: Bools  # (J,) jobs that count
    reasons: Mapping[int, str]  # why jobs have not finished, by serial
    allocation_values: Sequence[tuple[float, Mapping[str, float]]]  # time and marginal values of each allocation
    parameters: dict[str, Any]
    useful_gpu_s: Floats  # (J,) GPU time of steps that were kept: see UsefulTime
    ftf: Floats | None = None  # (J,) finish-time fairness, if it is known
    stalled: str = ""  # why the run ended with unfinished jobs: no job gained a step any more
    partial: str = ""  # where the run was stopped before its end; its figures are of the time until then
    isolated_stalled: str = ""  # the same for the run under `isolated`: finish-time fairness is incomplete

    @cached_property
    def jobs(self) -> pd.DataFrame:
        """Index job; arrival_s first_start_s finish_s jct_s gpus weight job_type deadline_s ftf preemptions ...

        Then migrations gpu_s useful_gpu_s measured reason.
        """
        return _jobs_frame(self)

    @cached_property
    def leases(self) -> pd.DataFrame:
        """One row per stay on the same GPUs: job gpu_type gpus start_s end_s; pairs overlap."""
        return leases_frame(self.history)

    @cached_property
    def sharing(self) -> pd.DataFrame:
        """One row per time of two jobs on the same GPUs: job partner gpu_type gpus start_s end_s."""
        return sharing_frame(self.history)

    @cached_property
    def shares(self) -> pd.DataFrame:
        """One row per job and type: job gpu_type owed_s received_s, alone and co-located."""
        return shares_frame(self.history)

    @cached_property
    def utilization(self) -> pd.DataFrame:
        """Index time_s; one column per GPU type: fraction leased."""
        return utilization_frame(self.history)

    @cached_property
    def marginal_values(self) -> pd.DataFrame:
        """Index time_s of an allocation; one column per GPU type; empty for rules."""
        return marginal_values_frame(self.allocation_values)


@dataclass(frozen=True)
class Effort:
    """Rounds and run time of a simulation."""

    rounds: int
    wall_s: float
    cpu_s: float
    cpu_solve_s: float


def _jobs_frame(result: SimulationResult) -> pd.DataFrame:
    """One row per job; see SimulationResult.jobs."""
    import pandas as pd

    history = result.history
    n, specs = history.count, history.specs
    return pd.DataFrame(
        {
            "arrival_s": history.arrival_s[:n],
            "first_start_s": history.first_start_s[:n],
            "finish_s": history.finish_s[:n],
            "jct_s": history.finish_s[:n] - history.arrival_s[:n],
            "gpus": history.gpus[:n],
            "weight": [s.weight for s in specs],
            "job_type": [s.job_type for s in specs],
            "deadline_s": [s.deadline_s for s in specs],
            "ftf": np.full(n, math.nan) if result.ftf is None else result.ftf,
            "preemptions": history.preemptions[:n],
            "migrations": history.migrations[:n],
            "gpu_s": history.gpu_s[:n],
            "useful_gpu_s": result.useful_gpu_s[:n],
            "measured": result.measured[:n],
            "reason": [result.reasons.get(row, "") for row in range(n)],
        },
        index=pd.Index([s.id for s in specs], name="job"),
    )


def metrics(history: History, measured: Bools, effort: Effort, useful_gpu_s: Floats) -> RunMetrics:
    """Metrics of one run, without fairness: see `with_fairness`. `measured` (J,) marks the jobs that count."""
    n, chosen = history.count, np.flatnonzero(measured[: history.count])
    all_jct_s = history.finish_s[chosen] - history.arrival_s[chosen]
    is_over = ~np.isnan(all_jct_s)
    jct_s = all_jct_s[is_over]
    deadline_s = np.array([history.specs[row].deadline_s for row in chosen.tolist()], dtype=np.float64)
    overdue = np.where(is_over, all_jct_s, history.now_s - history.arrival_s[chosen]) > deadline_s
    _, gpus, _, starts, ends = history.leased_intervals()
    gpu_s = (ends - starts) * gpus
    available_gpu_s = sum(history.gpu_counts) * history.now_s
    percentiles = np.percentile(jct_s, [50, 90, 99]).tolist() if len(jct_s) else [math.nan] * 3
    first_arrival_s = float(history.arrival_s[0]) if history.count else 0.0
    return RunMetrics(
        avg_jct_s=float(jct_s.mean()) if len(jct_s) else math.nan,
        p50_jct_s=percentiles[0],
        p90_jct_s=percentiles[1],
        p99_jct_s=percentiles[2],
        makespan_s=history.now_s - first_arrival_s,
        utilization=float(gpu_s.sum() / available_gpu_s) if available_gpu_s > 0 else 0.0,
        efficiency=float(useful_gpu_s.sum() / gpu_s.sum()) if gpu_s.sum() > 0 else math.nan,
        cost_usd=history.cost_usd(),
        ftf_worst=math.nan,
        ftf_mean=math.nan,
        deadline_misses=int(overdue.sum()),
        preemptions=int(history.preemptions[:n].sum()),
        migrations=int(history.migrations[:n].sum()),
        rounds=effort.rounds,
        solves=history.solves,
        ideal_avg_jct_s=math.nan,
        ideal_makespan_s=math.nan,
        jobs_measured=len(jct_s),
        jobs_unfinished=int(len(chosen) - len(jct_s)),
        wall_s=effort.wall_s,
        cpu_s=effort.cpu_s,
        cpu_solve_s=effort.cpu_solve_s,
    )


def with_delays(found: RunMetrics, history: History, measured: Bools, fragmentation_s: Floats) -> RunMetrics:
    """The metrics with the two parts of the waiting. `fragmentation_s` (J,): fragmentation delays of all jobs.

    A start that is under way counts as running. Source of the two terms: Jeon et al. (ATC '19), section 3.
    """
    n = history.count
    jobs, _, starts, ends, _ = history.sized_runs()
    waited_s = history.finish_s[:n] - history.arrival_s[:n] - np.bincount(jobs, ends - starts, minlength=n)[:n]
    rows = np.flatnonzero(measured[:n] & ~np.isnan(waited_s))
    if not len(rows):
        return found
    apart_s = float(fragmentation_s[rows].mean())
    return replace(
        found,
        avg_fair_share_delay_s=float(waited_s[rows].mean()) - apart_s,
        avg_fragmentation_delay_s=apart_s,
    )


def with_fairness(result: SimulationResult, isolated: SimulationResult, extra_s: float) -> SimulationResult:
    """The result with finish-time fairness relative to the `isolated` run of the same trace.

    `extra_s`: CPU time of that run, if it was made for this only.
    """
    both = min(result.history.count, isolated.history.count)  # a run may end before the last arrivals
    jct_s, jct_isolated_s = (one.history.finish_s[:both] - one.history.arrival_s[:both] for one in (result, isolated))
    ftf = np.full(result.history.count, math.nan)
    ftf[:both] = np.where(result.measured[:both], jct_s / jct_isolated_s, math.nan)
    known, found = ftf[~np.isnan(ftf)], replace(result.metrics, cpu_fairness_s=extra_s)
    if len(known):
        found = replace(found, ftf_worst=float(known.max()), ftf_mean=float(known.mean()))
    return replace(result, metrics=found, ftf=ftf, isolated_stalled=isolated.stalled)


def with_ideal(result: SimulationResult, arrival_s: Floats, finish_s: Floats) -> SimulationResult:
    """The result with the figures of its policy's ideal run: arrivals and finishes (J,), NaN = not finished."""
    chosen = result.measured & ~np.isnan(finish_s)
    if not chosen.any():
        return result
    avg_jct_s, makespan_s = float((finish_s - arrival_s)[chosen].mean()), float(finish_s[chosen].max() - arrival_s[0])
    return replace(result, metrics=replace(result.metrics, ideal_avg_jct_s=avg_jct_s, ideal_makespan_s=makespan_s))


def leases_frame(history: History) -> pd.DataFrame:
    """One row a stay on the same GPUs, by start; two stays of a pair overlap: see `sharing_frame`."""
    import pandas as pd

    rows, types, starts, ends, gpus = history.sized_runs()
    order = np.lexsort((rows, starts))
    ids = np.array([s.id for s in history.specs], dtype=object)
    names = np.array(history.gpu_types, dtype=object)
    return pd.DataFrame(
        {
            "job": ids[rows[order]],
            "gpu_type": names[types[order]],
            "gpus": gpus[order],
            "start_s": starts[order],
            "end_s": ends[order],
        }
    )


def sharing_frame(history: History) -> pd.DataFrame:
    """One row a time in which two jobs had leases on the same GPUs, by start."""
    import pandas as pd

    jobs, partners, types, starts, ends = history.sharing.times(history.now_s)
    order = np.lexsort((jobs, starts))
    ids = np.array([s.id for s in history.specs], dtype=object)
    names = np.array(history.gpu_types, dtype=object)
    return pd.DataFrame(
        {
            "job": ids[jobs[order]],
            "partner": ids[partners[order]],
            "gpu_type": names[types[order]],
            "gpus": history.gpus[jobs[order]],
            "start_s": starts[order],
            "end_s": ends[order],
        }
    )


def shares_frame(history: History) -> pd.DataFrame:
    """Seconds owed by the policy and received under lease, alone or co-located, one row per job and type."""
    import pandas as pd

    owed_s = history.owed()
    received_s = np.zeros_like(owed_s)
    rows, types, starts, ends = history.run_intervals()
    np.add.at(received_s, (rows, types), ends - starts)
    J, T = owed_s.shape
    return pd.DataFrame(
        {
            "job": np.repeat([s.id for s in history.specs], T) if J else [],
            "gpu_type": np.tile(history.gpu_types, J) if J else [],
            "owed_s": owed_s.ravel(),
            "received_s": received_s.ravel(),
        }
    )


def utilization_frame(history: History) -> pd.DataFrame:
    """Fraction of each type's GPUs under lease, in equal bins of time; a GPU that two jobs share counts once."""
    import pandas as pd

    edges = np.linspace(0.0, max(history.now_s, 1.0), UTILIZATION_BINS + 1)
    types, held, _, starts, ends = history.leased_intervals()
    columns = {}
    for kind, name in enumerate(history.gpu_types):
        here = types == kind
        leased_gpu_s = _time_since(edges, starts[here], held[here]) - _time_since(edges, ends[here], held[here])
        columns[name] = np.diff(leased_gpu_s) / (np.diff(edges) * history.gpu_counts[kind])
    return pd.DataFrame(columns, index=pd.Index(edges[:-1], name="time_s"))


def marginal_values_frame(values: Sequence[tuple[float, Mapping[str, float]]]) -> pd.DataFrame:
    """Marginal values by GPU type of each allocation, in units of the policy's objective."""
    import pandas as pd

    frame = pd.DataFrame([by_type for _, by_type in values])
    frame.index = pd.Index([time_s for time_s, _ in values], name="time_s", dtype=float)
    return frame


def _time_since(edges: Floats, moments: Floats, weight: Floats) -> Floats:
    """For each edge, Σ weight x time from each moment to the edge, of the moments before it."""
    order = np.argsort(moments, kind="stable")
    moments, weight = moments[order], weight[order]
    count = np.searchsorted(moments, edges)
    weights = np.concatenate([[0.0], np.cumsum(weight)])
    weighted = np.concatenate([[0.0], np.cumsum(weight * moments)])
    since: Floats = edges * weights[count] - weighted[count]
    return since


def with_probes_made(metrics: RunMetrics, profiled: Profiled, history: History) -> RunMetrics:
    """The metrics with the probes that got GPUs, each counted once, and the GPU time reserved for probes."""
    rows, types, _, _ = history.run_intervals()
    alone = set(zip(rows.tolist(), types.tolist(), strict=True))
    jobs, partners, pair_types, _, _ = history.sharing.times(history.now_s)
    members = np.sort(np.column_stack([jobs, partners]), axis=1)
    pairs = {(a, b, t) for (a, b), t in zip(members.tolist(), pair_types.tolist(), strict=True)}
    asked = {(min(a, b), max(a, b), t) for a, b, t in profiled.pairs}
    return replace(
        metrics,
        probes_alone=len(profiled.alone & alone),
        probes_pairs=len(asked & pairs),
        probes_gpu_s=profiled.gpu_s,
    )
