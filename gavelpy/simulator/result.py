"""Results of a simulation: metrics for a table, frames for a notebook."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Metrics:
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
    cost_usd: float  # GPU time under lease at its price; a shared GPU costs once
    ftf_worst: float
    ftf_mean: float
    deadline_misses: int
    preemptions: int  # times a job was stopped before its end
    migrations: int  # times a job started on other GPUs than it last ran on
    rounds: int
    solves: int
    jobs_measured: int  # finished and measured
    jobs_unfinished: int  # measured, but not finished when the run ended
    wall_s: float
    cpu_s: float
    cpu_solve_s: float
    probes_alone: int = 0  # (job, GPU type) that were probed
    probes_pairs: int = 0  # (job, partner, GPU type) that were probed
    probes_gpu_s: float = 0.0  # GPU time reserved for probes

    def to_json(self) -> dict[str, Any]:
        """The documented object; NaN becomes null."""
        values = asdict(self)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """One policy on one trace."""

    label: str  # "name" or "name@blind"
    metrics: Metrics
    jobs: (
        pd.DataFrame
    )  # index job; arrival_s first_start_s finish_s jct_s gpus weight job_type ftf preemptions migrations
    #                     gpu_s measured reason
    leases: pd.DataFrame  # one row per stay on the same GPUs: job gpu_type gpus start_s end_s; pairs overlap
    sharing: pd.DataFrame  # one row per time of two jobs on the same GPUs: job partner gpu_type gpus start_s end_s
    shares: pd.DataFrame  # one row per job and type: job gpu_type owed_s received_s, alone and co-located
    utilization: pd.DataFrame  # index time_s; one column per GPU type: fraction leased
    parameters: dict[str, Any]
    stalled: str = ""  # why the run ended with unfinished jobs: no job gained a step any more
    isolated_stalled: str = ""  # the same for the run under `isolated`: finish-time fairness is incomplete
