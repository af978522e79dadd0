"""Figures of single runs: the timeline of jobs on GPU types, the GPU time of job families, time owed and received.

The page shows one run at a time, on axes that fit that run. The size of a figure is bounded: large traces are sampled
evenly, adjacent stays are merged, and stays too short to see take the GPU type that was held longest near them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.report.comparison import Result, time_unit
from gavelpy.report.plots import Axis, Figure, PlotMarks

if TYPE_CHECKING:
    import pandas as pd

# From Paul Tol's muted scheme; hues differ from those of the policies.
GPU_TYPE_COLOURS = ("#cc6677", "#44aa99", "#ddbb55", "#8878c3", "#66aadd", "#999999", "#aa4499", "#88aa33")
_WAITING = "#9a9a9a"
_ROWS_MAX = 220
_SEGMENTS_MAX = 2500
_FAMILIES_MAX = 14
_POINTS_MAX = 1200


def of_each_run(results: Sequence[Result]) -> list[Figure]:
    """All figures that show one run at a time."""
    return [timeline(results), shares(results)]


def timeline(results: Sequence[Result]) -> Figure:
    """One row per job in order of arrival, coloured by GPU type while it runs, grey while it waits."""
    palette = _palette(results)
    ends_s = {r.label: float(r.leases["end_s"].max()) if len(r.leases) else 0.0 for r in results}
    longest_s = max(ends_s.values())
    unit, scale = time_unit(longest_s)
    rows_by_run = {result.label: _rows(result.jobs) for result in results}
    rows_most = max(1, *map(len, rows_by_run.values()))
    width = float(np.clip(500 / rows_most, 2.4, 16))
    marks = {}
    for result in results:
        rows = rows_by_run[result.label]
        stays = merged(result.leases[result.leases["job"].isin(rows.index)])
        groups = [_waits(result, rows, scale)]
        for gpu_type, colour in palette.items():
            here = stays[stays["gpu_type"] == gpu_type]
            start, end = (here[name].to_numpy(dtype=float) / scale for name in ("start_s", "end_s"))
            row = rows.loc[here["job"]].to_numpy().astype(np.float64)
            groups.append(PlotMarks(gpu_type, colour, start, row, tuple(here["job"].astype(str)), end, width))
        marks[result.label] = tuple(groups)
    jobs_most = max(len(result.jobs) for result in results)
    return Figure(
        "timeline",
        "Timeline",
        Axis(f"time [{unit}]"),
        Axis("jobs, in order of arrival", range=(-0.7, max(jobs_most, 1) - 0.3), is_reversed=True),
        marks=marks,
        x_ranges={label: (0.0, 1.005 * (end_s or longest_s or 1.0) / scale) for label, end_s in ends_s.items()},
        height=int(np.clip(140 + 3.2 * rows_most, 320, 760)),
    )


def shares(results: Sequence[Result]) -> Figure:
    """Time owed by the policy against time received, one point per (job, GPU type)."""
    palette = _palette(results)
    frames = {r.label: _thinned(r.shares) for r in results}
    most_s = {k: float(f[["owed_s", "received_s"]].to_numpy().max()) if len(f) else 0.0 for k, f in frames.items()}
    unit, scale = time_unit(max(most_s.values()))
    edge = (max(most_s.values()) or 1.0) / scale
    ranges = {}
    marks = {}
    for label, frame in frames.items():
        own = most_s[label] / scale or edge
        ranges[label] = (-0.02 * own, 1.03 * own)
        marks[label] = tuple(
            PlotMarks(
                gpu_type,
                colour,
                here["owed_s"].to_numpy(dtype=float) / scale,
                here["received_s"].to_numpy(dtype=float) / scale,
                tuple(here["job"].astype(str)),
            )
            for gpu_type, colour in palette.items()
            for here in [frame[frame["gpu_type"] == gpu_type]]
        )
    return Figure(
        "shares",
        "Shares owed and received",
        Axis(f"owed by the policy [{unit}]"),
        Axis(f"received [{unit}]"),
        marks=marks,
        x_ranges=ranges,
        y_ranges=ranges,
        has_diagonal=True,
        height=460,
    )


def families(results: Sequence[Result]) -> dict[str, pd.DataFrame]:
    """For each run, the fraction of each job family's GPU time spent on each type."""
    gpu_types = list(_palette(results))
    return {result.label: _family_fractions(result, gpu_types) for result in results}


def delivered(result: Result) -> float:
    """Fraction of the time owed on each type that was received there, 0..1; NaN if nothing was owed."""
    owed = result.shares["owed_s"].to_numpy(dtype=float)
    received = result.shares["received_s"].to_numpy(dtype=float)
    return float(np.minimum(owed, received).sum() / owed.sum()) if owed.sum() > 0 else float("nan")


def merged(leases: pd.DataFrame, segments_max: int = _SEGMENTS_MAX) -> pd.DataFrame:
    """Consecutive stays of a job on one type merged into one; if too many remain, across the shortest gaps too.

    If still too many remain (a job that alternates between types has no such gaps), stays that start within the same
    time bin become one, on the type that was held longest.
    """
    ordered = leases.sort_values(["job", "start_s"], kind="stable").reset_index(drop=True)
    if ordered.empty:
        return ordered
    same = (ordered["job"] == ordered["job"].shift()) & (ordered["gpu_type"] == ordered["gpu_type"].shift())
    gap = np.where(same, ordered["start_s"] - ordered["end_s"].shift(), np.inf)
    finite = np.sort(gap[np.isfinite(gap)])
    surplus = len(ordered) - segments_max
    bridged = finite[min(surplus, len(finite)) - 1] if surplus > 0 and len(finite) else 0.0
    segment = np.cumsum(gap > max(float(bridged), 1e-6))
    groups = ordered.groupby(segment, sort=False)
    joined = groups.agg({"job": "first", "gpu_type": "first", "start_s": "first", "end_s": "max"})
    return (joined if len(joined) <= segments_max else _coarsened(joined, segments_max)).reset_index(drop=True)


def _coarsened(stays: pd.DataFrame, segments_max: int) -> pd.DataFrame:
    """About `segments_max` stays, at least one or two per job: a job's stays that start in one time bin become one."""
    by_job = stays.groupby("job", sort=False)
    first_s = by_job["start_s"].transform("min")
    span_s = float((by_job["end_s"].max() - by_job["start_s"].min()).sum())
    stretch_s = span_s / max(segments_max - by_job.ngroups, segments_max // 2, 1)
    stretch = ((stays["start_s"] - first_s) // stretch_s).to_numpy()
    held = (stays["end_s"] - stays["start_s"]).groupby([stays["job"], stretch, stays["gpu_type"]], sort=False).sum()
    longest = held.groupby(level=[0, 1], sort=False).idxmax().str[2].to_numpy()
    ends = stays.groupby(["job", stretch], sort=False)[["start_s", "end_s"]].agg({"start_s": "min", "end_s": "max"})
    coarse = ends.reset_index("job").assign(gpu_type=longest).reset_index(drop=True)
    return coarse[["job", "gpu_type", "start_s", "end_s"]]


def _palette(results: Sequence[Result]) -> dict[str, str]:
    gpu_types = dict.fromkeys(str(t) for result in results for t in result.utilization.columns)
    return {name: GPU_TYPE_COLOURS[i % len(GPU_TYPE_COLOURS)] for i, name in enumerate(gpu_types)}


def _rows(jobs: pd.DataFrame) -> pd.Series[int]:
    """Row number of each plotted job in order of arrival: all jobs, or an even sample."""
    import pandas as pd

    order = jobs["arrival_s"].argsort(kind="stable").to_numpy()
    kept = np.unique(np.linspace(0, len(order) - 1, min(len(order), _ROWS_MAX)).round().astype(int))
    return pd.Series(kept, index=jobs.index[order[kept]])


def _waits(result: Result, rows: pd.Series[int], scale: float) -> PlotMarks:
    """A thin line from each job's arrival to its finish, or to the end of the run."""
    jobs = result.jobs.loc[rows.index]
    end_s = max(
        float(result.leases["end_s"].max()) if len(result.leases) else 0.0,
        float(jobs["arrival_s"].max()) if len(jobs) else 0.0,
    )
    arrival, finish = (
        values.to_numpy(dtype=float) / scale for values in (jobs["arrival_s"], jobs["finish_s"].fillna(end_s))
    )
    return PlotMarks(
        "waiting", _WAITING, arrival, rows.to_numpy().astype(np.float64), tuple(map(str, rows.index)), finish, 1.0
    )


def _family_fractions(result: Result, gpu_types: Sequence[str]) -> pd.DataFrame:
    """Rows job families, columns GPU types; each row sums to one. A family is a job type without its parentheses."""
    leases = result.leases
    gpu_s = (leases["end_s"] - leases["start_s"]) * leases["gpus"]
    job_type = result.jobs["job_type"].astype(str).str.replace(r" \(.*", "", regex=True).replace("", "all jobs")
    family = leases["job"].map(job_type)
    table = gpu_s.groupby([family, leases["gpu_type"]]).sum().unstack(fill_value=0)
    table = table.reindex(columns=list(gpu_types), fill_value=0.0)
    largest = table.sum(axis=1).sort_values(ascending=False, kind="stable").index[:_FAMILIES_MAX]
    table = table.loc[sorted(largest)]
    return table.div(table.sum(axis=1).where(lambda total: total > 0, 1.0), axis=0)


def _thinned(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows with time owed or received; an even sample if there are too many."""
    alive = frame[(frame["owed_s"] > 0) | (frame["received_s"] > 0)]
    kept = np.unique(np.linspace(0, len(alive) - 1, min(len(alive), _POINTS_MAX)).round().astype(int))
    return alive.iloc[kept]
