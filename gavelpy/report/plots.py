"""Plots that compare runs: key metrics, completion times, utilization over time.

Each policy has one colour in all plots; its blind run is fainter and dashed. Traces of any size give plots of bounded
size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.report.comparison import COLUMNS, cells, time_unit
from gavelpy.report.result import Result, is_blind, policy_of

if TYPE_CHECKING:
    import pandas as pd

# From Okabe and Ito's colour-blind safe palette, adjusted in lightness for white and black backgrounds.
POLICY_COLOURS = ("#d9622b", "#2f7fc1", "#1b9e77", "#b66bb0", "#d9a01c", "#4fb3e3", "#7f8790", "#a3623a")
_CDF_POINTS_MAX = 300
_BINS_MAX = 160
_GLANCE = ("avg_jct_s", "p99_jct_s", "makespan_s", "ftf_worst")


def colours(results: Sequence[Result]) -> dict[str, str]:
    """The colour of each policy, in order of first appearance."""
    policies = dict.fromkeys(policy_of(result.label) for result in results)
    return {policy: POLICY_COLOURS[i % len(POLICY_COLOURS)] for i, policy in enumerate(policies)}


def glance(results: Sequence[Result]) -> Any:  # plotly has no types
    """Bar charts of the four key metrics: one panel per metric, one bar per run."""
    from plotly.subplots import make_subplots

    shown = [next(column for column in COLUMNS if column.field == field) for field in _GLANCE]
    filled = [cells(column, results) for column in shown]
    titles = [f"{c.title} [{c.unit}]" if c.unit else c.title for c in filled]
    figure = make_subplots(1, len(shown), shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.035)
    palette = colours(results)
    for panel, (column, texts) in enumerate(zip(shown, filled, strict=True), start=1):
        values = [float(getattr(result.metrics, column.field)) for result in results]
        figure.add_bar(
            row=1,
            col=panel,
            orientation="h",
            y=[result.label for result in results],
            x=[value if math.isfinite(value) else None for value in values],
            text=list(texts.texts),
            textposition="outside",
            cliponaxis=False,
            marker={
                "color": [palette[policy_of(result.label)] for result in results],
                "opacity": [0.5 if is_blind(result.label) else 1.0 for result in results],
                "line": {"width": 0},
            },
            hovertemplate="%{y}: %{text}<extra></extra>",
            showlegend=False,
        )
        figure.update_xaxes(range=[0, 1.24 * max((v for v in values if math.isfinite(v)), default=1.0)], col=panel)
    figure.update_yaxes(autorange="reversed", showgrid=False, zeroline=False)
    figure.update_xaxes(showticklabels=False, showgrid=False)
    figure.update_layout(height=60 + 34 * len(results), bargap=0.25, margin={"l": 10, "r": 20, "t": 34, "b": 10})
    return figure


def completion_times(results: Sequence[Result]) -> Any:  # plotly has no types
    """CDF of job completion times per run, over all measured jobs: unfinished ones keep it below one."""
    import plotly.graph_objects as go

    figure = go.Figure()
    curves = [_cumulative(result.jobs) for result in results]
    unit, scale = time_unit(max((float(np.median(x)) for x, _ in curves if len(x)), default=0.0))
    for result, (times_s, fraction) in zip(results, curves, strict=True):
        figure.add_scatter(
            x=np.round(times_s / scale, 4).tolist(),
            y=np.round(fraction, 4).tolist(),
            mode="lines",
            name=result.label,
            line=_line(result.label, colours(results), width=2.4),
            hovertemplate=f"%{{y:.0%}} within %{{x:,.2f}} {unit}<extra>{result.label}</extra>",
        )
    figure.update_xaxes(title_text=f"completion time [{unit}], log scale", type="log", dtick=_log_ticks(curves))
    figure.update_yaxes(title_text="jobs finished", tickformat=".0%", range=[0, 1.01])
    figure.update_layout(height=430, legend=_LEGEND, margin={"l": 60, "r": 10, "t": 10, "b": 50})
    return figure


def utilization(results: Sequence[Result]) -> Any:  # plotly has no types
    """Leased fraction of each GPU type over time: one panel per type, one line per run."""
    from plotly.subplots import make_subplots

    gpu_types = list(dict.fromkeys(str(t) for result in results for t in result.utilization.columns))
    titles = [f"{gpu_type}, fraction leased" for gpu_type in gpu_types]
    figure = make_subplots(
        max(len(gpu_types), 1),
        1,
        shared_xaxes=True,
        subplot_titles=titles or None,
        vertical_spacing=0.28 / max(len(gpu_types), 3),
    )
    palette = colours(results)
    longest_s = max((float(r.utilization.index[-1]) for r in results if len(r.utilization)), default=0.0)
    unit, scale = time_unit(longest_s)
    for result in results:
        coarse = _coarser(result.utilization)
        for row, gpu_type in enumerate(gpu_types, start=1):
            if gpu_type not in coarse.columns:
                continue
            figure.add_scatter(
                row=row,
                col=1,
                x=np.round(coarse.index.to_numpy(dtype=float) / scale, 3).tolist(),
                y=np.round(coarse[gpu_type].to_numpy(dtype=float), 4).tolist(),
                mode="lines",
                name=result.label,
                legendgroup=result.label,
                showlegend=row == 1,
                line=_line(result.label, palette, width=1.8),
                hovertemplate=f"%{{y:.0%}} at %{{x:,.1f}} {unit}<extra>{result.label}, {gpu_type}</extra>",
            )
    figure.update_yaxes(tickformat=".0%", range=[0, 1.04], dtick=0.5)
    figure.update_xaxes(title_text=f"time [{unit}]", row=max(len(gpu_types), 1), col=1)
    height = 110 + 150 * max(len(gpu_types), 1)
    figure.update_layout(height=height, legend=_LEGEND, margin={"l": 60, "r": 10, "t": 30, "b": 50})
    return figure


_LEGEND = {"orientation": "h", "yanchor": "bottom", "y": 1.06, "x": 0}


def _line(label: str, palette: dict[str, str], *, width: float) -> dict[str, Any]:  # plotly's attributes
    blind = is_blind(label)
    return {
        "color": _faded(palette[policy_of(label)]) if blind else palette[policy_of(label)],
        "dash": "dash" if blind else "solid",
        "width": width,
    }


def _faded(colour: str, opacity: float = 0.65) -> str:
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity})"


def _cumulative(jobs: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Sorted completion times of measured jobs in seconds, and the fraction finished by each; sampled if many."""
    measured = jobs[jobs["measured"].astype(bool)]
    times = np.sort(measured["jct_s"].to_numpy(dtype=float))
    times = times[np.isfinite(times)]
    kept = np.unique(np.linspace(0, len(times) - 1, min(len(times), _CDF_POINTS_MAX)).round().astype(int))
    return times[kept], (kept + 1) / max(len(measured), 1)


def _log_ticks(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> int | str:
    """Plotly's tick distance: powers of ten; over a short range also 2 and 5 between them."""
    times = np.concatenate([times for times, _ in curves])
    return 1 if len(times) and times.max() > 50 * times.min() else "D2"


def _coarser(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with neighbouring bins averaged, at most _BINS_MAX rows."""
    every = -(-len(frame) // _BINS_MAX)
    if every <= 1:
        return frame
    groups = np.arange(len(frame)) // every
    means = frame.groupby(groups).mean()
    means.index = frame.index[::every]
    return means
