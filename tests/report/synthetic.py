"""Synthetic results with the shape of the simulator's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

GPU_TYPES = ("v100", "p100", "k80")
FAMILIES = ("ResNet-18 (batch size 16)", "ResNet-18 (batch size 64)", "A3C", "LSTM (batch size 5)", "CycleGAN")


@dataclass(frozen=True)
class SyntheticMetrics:
    """Plausible values of all metrics."""

    avg_jct_s: float = 36_000.0
    p50_jct_s: float = 18_000.0
    p90_jct_s: float = 80_000.0
    p99_jct_s: float = 200_000.0
    makespan_s: float = 400_000.0
    utilization: float = 0.8
    efficiency: float = 0.95
    ideal_avg_jct_s: float = float("nan")
    ideal_makespan_s: float = float("nan")
    cost_usd: float = 1234.5
    ftf_worst: float = 1.8
    ftf_mean: float = 0.9
    deadline_misses: int = 0
    preemptions: int = 40
    migrations: int = 25
    rounds: int = 1000
    solves: int = 300
    jobs_measured: int = 10
    jobs_unfinished: int = 0
    wall_s: float = 1.0
    cpu_s: float = 1.0
    cpu_solve_s: float = 0.5
    probes_alone: int = 0
    probes_pairs: int = 0
    probes_gpu_s: float = 0.0
    gpu_hours: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class SyntheticResult:
    """A synthetic run."""

    label: str
    metrics: SyntheticMetrics
    jobs: pd.DataFrame
    leases: pd.DataFrame
    shares: pd.DataFrame
    utilization: pd.DataFrame
    marginal_values: pd.DataFrame
    parameters: dict[str, Any] = field(default_factory=dict)
    partial: str = ""


def make_result(
    label: str = "fifo",
    *,
    jobs: int = 10,
    stays: int = 3,
    slowness: float = 1.0,
    unfinished: int = 0,
    reason: str = "no GPU type has 64 GPUs",
    seed: int = 0,
    **figures: float,
) -> SyntheticResult:
    """A run of `jobs` jobs with `stays` leases each; the last `unfinished` never start."""
    rng = np.random.default_rng(seed)
    arrival = np.sort(rng.uniform(0, 200_000, jobs)).round(3)
    jct = (rng.lognormal(9.8, 1.2, jobs) * slowness).round(3)
    stuck = np.arange(jobs) >= jobs - unfinished
    jct[stuck] = np.nan
    ids = [f"job-{i}" for i in range(jobs)]
    frame = pd.DataFrame(
        {
            "arrival_s": arrival,
            "first_start_s": arrival + 0.1 * jct,
            "finish_s": arrival + jct,
            "jct_s": jct,
            "gpus": rng.choice([1, 2, 4], jobs),
            "weight": 1.0,
            "job_type": rng.choice(FAMILIES, jobs),
            "ftf": jct / 40_000,
            "preemptions": stays - 1,
            "migrations": 1,
            "gpu_s": 0.6 * jct,
            "measured": True,
            "reason": np.where(stuck, reason, ""),
        },
        index=pd.Index(ids, name="job"),
    )
    defaults: dict[str, float] = {
        "avg_jct_s": float(np.nanmean(jct)) if not stuck.all() else float("nan"),
        "jobs_measured": jobs - unfinished,
        "jobs_unfinished": unfinished,
    }
    metrics = replace(SyntheticMetrics(), **(defaults | figures))  # type: ignore[arg-type]  # counts are whole floats
    leases, shares, busy = _leases(frame, stays, rng), _shares(frame, rng), _busy(frame, rng)
    return SyntheticResult(label, metrics, frame, leases, shares, busy, busy * [3.0, 2.0, 1.0])


def _leases(jobs: pd.DataFrame, stays: int, rng: np.random.Generator) -> pd.DataFrame:
    done = jobs.dropna(subset="finish_s")
    edges = np.linspace(0.1, 1.0, stays + 1)
    rows = [
        (job, str(rng.choice(GPU_TYPES)), int(gpus), arrival + a * jct, arrival + (a + 0.8 * (b - a)) * jct)
        for job, arrival, jct, gpus in zip(done.index, done["arrival_s"], done["jct_s"], done["gpus"], strict=True)
        for a, b in pairwise(edges)
    ]
    types = {"job": object, "gpu_type": object, "gpus": np.int64, "start_s": np.float64, "end_s": np.float64}
    return pd.DataFrame(rows, columns=list(types)).astype(types)


def _shares(jobs: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    done = jobs.dropna(subset="finish_s")
    owed = np.outer(done["jct_s"], [0.4, 0.3, 0.0])
    received = owed * rng.normal(1.0, 0.06, owed.shape)
    return pd.DataFrame(
        {
            "job": np.repeat(done.index.to_numpy(), len(GPU_TYPES)),
            "gpu_type": np.tile(GPU_TYPES, len(done)),
            "owed_s": owed.ravel(),
            "received_s": received.ravel(),
        }
    )


def _busy(jobs: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    end = float(np.nanmax([jobs["arrival_s"].max(), jobs["finish_s"].max()])) if len(jobs) else 0.0
    times = np.arange(0.0, end, 3600.0)
    busy = np.clip(0.9 - 0.8 * (times / max(end, 1.0)) ** 3, 0, 1)
    noise = rng.normal(0, 0.05, (len(times), len(GPU_TYPES)))
    index = pd.Index(times, name="time_s")
    return pd.DataFrame(np.clip(busy[:, None] + noise, 0, 1), index=index, columns=list(GPU_TYPES))
