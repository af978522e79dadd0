"""Protocols of what a report needs from a run. The simulator's results implement them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pandas as pd

BLIND_SUFFIX = "@blind"


class RunMetrics(Protocol):
    """Metrics of one run. Times in seconds; NaN without measured jobs. `jobs_measured` counts finished jobs only."""

    @property
    def avg_jct_s(self) -> float: ...
    @property
    def p50_jct_s(self) -> float: ...
    @property
    def p90_jct_s(self) -> float: ...
    @property
    def p99_jct_s(self) -> float: ...
    @property
    def makespan_s(self) -> float: ...
    @property
    def utilization(self) -> float: ...
    @property
    def cost_usd(self) -> float: ...
    @property
    def ftf_worst(self) -> float: ...
    @property
    def ftf_mean(self) -> float: ...
    @property
    def deadline_misses(self) -> int: ...
    @property
    def preemptions(self) -> int: ...
    @property
    def migrations(self) -> int: ...
    @property
    def rounds(self) -> int: ...
    @property
    def solves(self) -> int: ...
    @property
    def jobs_measured(self) -> int: ...
    @property
    def jobs_unfinished(self) -> int: ...
    @property
    def wall_s(self) -> float: ...
    @property
    def cpu_s(self) -> float: ...
    @property
    def cpu_solve_s(self) -> float: ...
    @property
    def probes_alone(self) -> int: ...
    @property
    def probes_pairs(self) -> int: ...
    @property
    def probes_gpu_s(self) -> float: ...


class Result(Protocol):
    """One run: its metrics and data frames.

    jobs         index job id, in order of arrival; arrival_s, finish_s (NaN = unfinished), jct_s, job_type, measured,
                 reason (why it never finished, or "")
    leases       one row per stay on the same GPUs: job, gpu_type, gpus, start_s, end_s
    shares       one row per (job, GPU type): job, gpu_type, owed_s, received_s
    utilization  index start of a bin in seconds; one column per GPU type, fraction of its GPUs leased
    """

    @property
    def label(self) -> str: ...
    @property
    def metrics(self) -> RunMetrics: ...
    @property
    def jobs(self) -> pd.DataFrame: ...
    @property
    def leases(self) -> pd.DataFrame: ...
    @property
    def shares(self) -> pd.DataFrame: ...
    @property
    def utilization(self) -> pd.DataFrame: ...
    @property
    def parameters(self) -> Mapping[str, Any]: ...  # JSON values


def policy_of(label: str) -> str:
    """The policy's name in a label `name` or `name@blind`."""
    return label.removesuffix(BLIND_SUFFIX)


def is_blind(label: str) -> bool:
    """Whether the run was blind to GPU types."""
    return label.endswith(BLIND_SUFFIX)
