"""Plots of single runs: the timeline of jobs on GPU types, the GPU time of job families, time owed and received.

Each plot holds the lines of every run, marked with the run's label (`meta`); the page shows one run at a time, on axes
that fit that run (`meta` of the layout: range of each axis by label). The size of a plot is bounded: large traces are
sampled evenly, adjacent stays are merged, and stays too short to see take the GPU type that was held longest near them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.report.comparison import time_unit
from gavelpy.report.result import Result

if TYPE_CHECKING:
    import pandas as pd

# From Paul Tol's muted scheme; hues differ from those of the policies.
GPU_TYPE_COLOURS = ("#cc6677", "#44aa99", "#ddbb55", "#8878c3", "#66aadd", "#999999", "#aa4499", "#88aa33")
_WAITING = "rgba(128,128,128,0.35)"
_ROWS_MAX = 220
_SEGMENTS_MAX = 2500
_FAMILIES_MAX = 14
_POINTS_MAX = 1200


def timeline(results: Sequence[Result]) -> Any:  # plotly has no types
    """One row per job in order of arrival, coloured by GPU type while it runs, grey while it waits."""
    import plotly.graph_objects as go

    figure = go.Figure()
    palette = _palette(results)
    ends_s = {r.label: float(r.leases["end_s"].max()) if len(r.leases) else 0.0 for r in results}
    longest_s = max(ends_s.values())
    unit, scale = time_unit(longest_s)
    rows_most = 1
    for result in results:
        rows = _rows(result.jobs)
        rows_most = max(rows_most, len(rows))
        _add_waits(figure, result, rows, scale, unit)
        stays = merged(result.leases[result.leases["job"].isin(rows.index)])
        for gpu_type, colour in palette.items():
            here = stays[stays["gpu_type"] == gpu_type]
            _add_segments(
                figure,
                here["start_s"].to_numpy(dtype=float) / scale,
                here["end_s"].to_numpy(dtype=float) / scale,
                rows.loc[here["job"]].to_numpy(),
                here["job"].astype(str).to_list(),
                name=gpu_type,
                meta=result.label,
                line={"color": colour, "width": float(np.clip(500 / rows_most, 2.4, 16))},
                hovertemplate=f"%{{text}} on {gpu_type}, %{{x:,.1f}} {unit}<extra></extra>",
            )
    figure.update_xaxes(title_text=f"time [{unit}]", range=[0, 1.005 * longest_s / scale])
    jobs_most = max(len(result.jobs) for result in results)
    figure.update_yaxes(title_text="jobs, in order of arrival", range=[jobs_most - 0.3, -0.7])
    figure.update_yaxes(showgrid=False, zeroline=False, **({"dtick": 1} if jobs_most <= 12 else {}))
    height = int(np.clip(140 + 3.2 * rows_most, 320, 760))
    ranges = {label: {"xaxis": [0, 1.005 * (end_s or longest_s) / scale]} for label, end_s in ends_s.items()}
    figure.update_layout(meta=ranges, height=height, legend=_LEGEND, margin={"l": 60, "r": 10, "t": 40, "b": 50})
    return figure


def families(results: Sequence[Result]) -> Any:  # plotly has no types
    """Heat map: the fraction of each job family's GPU time spent on each type."""
    import plotly.graph_objects as go

    figure = go.Figure()
    gpu_types = list(_palette(results))
    names_most = 1
    for result in results:
        fractions = _family_fractions(result, gpu_types)
        names_most = max(names_most, len(fractions))
        figure.add_heatmap(
            x=gpu_types,
            y=fractions.index.to_list(),
            z=np.round(fractions.to_numpy(), 4).tolist(),
            text=[[f"{100 * value:.0f} %" for value in row] for row in fractions.to_numpy()],
            texttemplate="%{text}",
            zmin=0,
            zmax=1,
            colorscale=[[0, "rgba(47,127,193,0.04)"], [1, "rgba(47,127,193,0.95)"]],
            showscale=False,
            xgap=2,
            ygap=2,
            meta=result.label,
            hovertemplate="%{y}: %{text} of its GPU time on %{x}<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(side="top", showgrid=False, zeroline=False)
    figure.update_layout(height=50 + 36 * names_most, margin={"l": 10, "r": 10, "t": 34, "b": 10})
    return figure


def shares(results: Sequence[Result]) -> Any:  # plotly has no types
    """Time owed by the policy against time received, one point per (job, GPU type)."""
    import plotly.graph_objects as go

    figure = go.Figure()
    palette = _palette(results)
    frames = [_thinned(result.shares) for result in results]
    most_s = [float(f[["owed_s", "received_s"]].to_numpy().max()) if len(f) else 0.0 for f in frames]
    unit, scale = time_unit(max(most_s))
    edge = 1.03 * max(most_s) / scale
    ranges = {}
    figure.add_scatter(
        x=[0, edge],
        y=[0, edge],
        mode="lines",
        line={"color": "rgba(128,128,128,0.7)", "width": 1, "dash": "dot"},
        name="as owed",
        hoverinfo="skip",
    )
    for result, frame, longest_s in zip(results, frames, most_s, strict=True):
        own = [-0.02 * edge, edge] if longest_s == 0 else [-0.02 * longest_s / scale, 1.03 * longest_s / scale]
        ranges[result.label] = {"xaxis": own, "yaxis": own}
        for gpu_type, colour in palette.items():
            here = frame[frame["gpu_type"] == gpu_type]
            figure.add_scatter(
                x=np.round(here["owed_s"].to_numpy(dtype=float) / scale, 3).tolist(),
                y=np.round(here["received_s"].to_numpy(dtype=float) / scale, 3).tolist(),
                text=here["job"].astype(str).to_list(),
                mode="markers",
                name=gpu_type,
                meta=result.label,
                marker={"color": colour, "size": 7, "opacity": 0.65, "line": {"width": 0}},
                hovertemplate=f"%{{text}} on {gpu_type}: owed %{{x:,.2f}} {unit}, got %{{y:,.2f}}<extra></extra>",
            )
    figure.update_xaxes(title_text=f"owed by the policy [{unit}]", range=[-0.02 * edge, edge])
    figure.update_yaxes(title_text=f"received [{unit}]", range=[-0.02 * edge, edge])
    figure.update_layout(meta=ranges, height=480, legend=_LEGEND, margin={"l": 60, "r": 10, "t": 40, "b": 50})
    return figure


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


_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.01, "x": 0}


def _palette(results: Sequence[Result]) -> dict[str, str]:
    gpu_types = dict.fromkeys(str(t) for result in results for t in result.utilization.columns)
    return {name: GPU_TYPE_COLOURS[i % len(GPU_TYPE_COLOURS)] for i, name in enumerate(gpu_types)}


def _rows(jobs: pd.DataFrame) -> pd.Series[int]:
    """Row number of each plotted job in order of arrival: all jobs, or an even sample."""
    import pandas as pd

    order = jobs["arrival_s"].argsort(kind="stable").to_numpy()
    kept = np.unique(np.linspace(0, len(order) - 1, min(len(order), _ROWS_MAX)).round().astype(int))
    return pd.Series(kept, index=jobs.index[order[kept]])


def _add_waits(figure: Any, result: Result, rows: pd.Series[int], scale: float, unit: str) -> None:
    """A thin line from each job's arrival to its finish, or to the end of the run."""
    jobs = result.jobs.loc[rows.index]
    end_s = max(
        float(result.leases["end_s"].max()) if len(result.leases) else 0.0,
        float(jobs["arrival_s"].max()) if len(jobs) else 0.0,
    )
    _add_segments(
        figure,
        jobs["arrival_s"].to_numpy(dtype=float) / scale,
        jobs["finish_s"].fillna(end_s).to_numpy(dtype=float) / scale,
        rows.to_numpy(),
        [str(job) for job in rows.index],
        name="waiting",
        meta=result.label,
        line={"color": _WAITING, "width": 1},
        hovertemplate=f"%{{text}} waits, %{{x:,.1f}} {unit}<extra></extra>",
    )


def _add_segments(
    figure: Any,  # plotly has no types
    start: np.ndarray,
    end: np.ndarray,
    row: np.ndarray,
    text: Sequence[str],
    **style: Any,  # plotly's attributes
) -> None:
    """Horizontal segments as one line with gaps."""
    x = np.stack([start, end, np.full(len(start), np.nan)], axis=1).ravel().round(3)
    y = np.stack([row, row, row], axis=1).ravel()
    figure.add_scatter(
        x=[None if np.isnan(value) else value for value in x.tolist()],
        y=y.tolist(),
        text=[label for label in text for _ in range(3)],
        mode="lines",
        connectgaps=False,
        **style,
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
