"""Forecasts of jobs that were not submitted, as a dry run answers them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gavelpy.runtime.daemon.engine.forecasts import Times
from gavelpy.simulator.expected import Expected


@dataclass(frozen=True)
class JobForecast:
    """When and where a job would run if it were submitted now. Times count from now; -1 = unknown."""

    can_run: bool
    reason: str  # why a time is unknown
    gpu_type: str
    gpus: int  # of its first lease
    node_ids: Sequence[str]
    start_in_s: float
    finish_in_s: float
    start_low_s: float  # of the interval in which the start is in 80 % of all cases
    start_high_s: float  # -1 = without an upper end
    finish_low_s: float
    finish_high_s: float


@dataclass(frozen=True)
class PlannedJob:
    """A job of a dry run."""

    name: str
    forecast: JobForecast
    note: str


def forecast_of(expected: Expected, times: Times, why_not: str) -> JobForecast:
    """A forecast for clients; `why_not`: why it is incomplete, if it is."""
    starts, ends = math.isfinite(expected.start_in_s), math.isfinite(expected.finish_in_s)
    return JobForecast(
        can_run=starts,
        reason="" if starts and ends else why_not or "no job will start or end until something changes",
        gpu_type=expected.gpu_type,
        gpus=expected.gpus,
        node_ids=expected.node_ids,
        **vars(times),
    )
