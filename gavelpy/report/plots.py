"""Figures as data, and those that compare runs: completion times, fairness, utilization, queue, marginal values, bars.

Each policy has one colour in all figures; its blind run is fainter and dashed. Traces of any size give figures of
bounded size. The page (`html`, by uPlot) and files (`export`, by matplotlib) draw the same values.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.report.comparison import COLUMNS, Result, cells, is_blind, policy_of, time_unit

if TYPE_CHECKING:
    import pandas as pd


from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd


class Scale(StrEnum):
    """How an axis maps and prints its values."""

    LINEAR = "linear"
    LOG = "log"
    PERCENT = "percent"


@dataclass(frozen=True)
class Axis:
    """Title, scale, and the range that is shown first; None = all values."""

    title: str
    scale: Scale = Scale.LINEAR
    range: tuple[float, float] | None = None
    is_reversed: bool = False


@dataclass(frozen=True, eq=False)
class PlotCurve:
    """One line; `is_faint` draws it dashed and lighter, for a blind run. `low` and `high`: a band of confidence."""

    label: str
    x: Floats  # (n,) increasing
    y: Floats  # (n,)
    colour: str  # #rrggbb
    is_faint: bool = False
    low: Floats | None = None  # (n,) NaN = unknown
    high: Floats | None = None  # (n,)

    def table(self, x: str, y: str) -> dict[str, Any]:
        """The columns of its points; `x` and `y`: their titles."""
        band = {} if self.low is None else {f"{y} low": self.low, f"{y} high": self.high}
        return {"run": self.label, x: self.x, y: self.y, **band}


@dataclass(frozen=True, eq=False)
class PlotMarks:
    """Points of one group; with `end`, horizontal segments from x to end."""

    group: str
    colour: str
    x: Floats  # (n,)
    y: Floats  # (n,)
    text: tuple[str, ...]  # (n,)
    end: Floats | None = None  # (n,)
    width: float = 6.0  # of a point or a line, in pixels
    is_hollow: bool = False
    is_named: bool = False  # whether the text of each point is next to it


@dataclass(frozen=True, eq=False)
class Figure:
    """Curves of all runs, or marks by run. `x_ranges` and `y_ranges`: what is shown first, by run."""

    name: str  # of the element and the file
    title: str
    x: Axis
    y: Axis
    curves: tuple[PlotCurve, ...] = ()
    marks: Mapping[str, tuple[PlotMarks, ...]] = field(default_factory=dict)
    x_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    y_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    has_diagonal: bool = False  # the line x = y
    height: int = 320  # pixels

    def to_json(self) -> dict[str, Any]:
        """The document that the page draws; curves are on one common grid, null where they have no value."""
        document: dict[str, Any] = {
            "title": self.title,
            "x": vars(self.x),
            "y": vars(self.y),
            "height": self.height,
            "diagonal": self.has_diagonal,
            "x_ranges": dict(self.x_ranges),
            "y_ranges": dict(self.y_ranges),
        }
        if self.curves:
            grid = np.unique(np.concatenate([curve.x for curve in self.curves]))
            document["grid"] = _short(grid)
            document["curves"] = [
                {"label": c.label, "colour": c.colour, "faint": c.is_faint, "y": _on(grid, c)} for c in self.curves
            ]
        document["marks"] = {
            run: [
                {
                    "group": m.group,
                    "colour": m.colour,
                    "x": _short(m.x),
                    "y": _short(m.y),
                    "end": None if m.end is None else _short(m.end),
                    "text": list(m.text),
                    "width": m.width,
                    "hollow": m.is_hollow,
                    **({"named": True} if m.is_named else {}),
                }
                for m in groups
            ]
            for run, groups in self.marks.items()
        }
        return document

    def table(self) -> pd.DataFrame:
        """One row per point of a curve, or per mark."""
        import pandas as pd

        if self.curves:
            parts = [pd.DataFrame(curve.table(self.x.title, self.y.title)) for curve in self.curves]
            return pd.concat(parts, ignore_index=True)
        return pd.concat(
            [self._table_of(run, groups) for run, groups in self.marks.items()] or [pd.DataFrame()], ignore_index=True
        )

    def _table_of(self, run: str, groups: Sequence[PlotMarks]) -> pd.DataFrame:
        import pandas as pd

        parts = []
        for m in groups:
            until = {} if m.end is None else {f"until {self.x.title}": m.end}
            values = {"name": list(m.text), self.x.title: m.x, **until, self.y.title: m.y}
            parts.append(pd.DataFrame({"run": run, "group": m.group} | values))
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _on(grid: Floats, curve: PlotCurve) -> list[float | None]:
    if not len(curve.x):
        return [None] * len(grid)
    values = np.interp(grid, curve.x, curve.y, left=np.nan, right=np.nan)
    return [None if np.isnan(value) else value for value in _short(values)]


def _short(values: Floats) -> list[float]:
    """The values with five significant digits, which a screen cannot distinguish from all digits."""
    scale = float(np.nanmax(np.abs(values), initial=0.0))
    digits = 4 - int(np.floor(np.log10(scale))) if 0 < scale < np.inf else 0
    return [int(v) if v == v and v == int(v) else v for v in np.round(values, max(digits, 0)).tolist()]


# From Okabe and Ito's colour-blind safe palette, adjusted in lightness for white and black backgrounds.
POLICY_COLOURS = ("#d9622b", "#2f7fc1", "#1b9e77", "#b66bb0", "#d9a01c", "#4fb3e3", "#7f8790", "#a3623a")
_CDF_POINTS_MAX = 300
_BINS_MAX = 160
_KEY_METRICS = ("avg_jct_s", "p99_jct_s", "makespan_s", "ftf_worst")


@dataclass(frozen=True)
class Bars:
    """One metric of all runs; `length`: 0 to 1 of the longest bar, 0 without a value."""

    title: str
    labels: tuple[str, ...]
    values: tuple[float, ...]
    texts: tuple[str, ...]
    length: tuple[float, ...]
    colours: tuple[str, ...]
    is_faint: tuple[bool, ...]


def colours(results: Sequence[Result]) -> dict[str, str]:
    """The colour of each policy, in order of first appearance."""
    policies = dict.fromkeys(policy_of(result.label) for result in results)
    return {policy: POLICY_COLOURS[i % len(POLICY_COLOURS)] for i, policy in enumerate(policies)}


def comparisons(results: Sequence[Result]) -> list[Figure]:
    """All figures with a curve for each run."""
    return [
        completion_times(results),
        *fairness(results),
        *utilization(results),
        queue_length(results),
        *marginal_values(results),
    ]


def key_metrics(results: Sequence[Result]) -> list[Bars]:
    """Bars of four metrics, without those that no run has."""
    palette = colours(results)
    labels = tuple(result.label for result in results)
    found = []
    for column in (next(column for column in COLUMNS if column.field == name) for name in _KEY_METRICS):
        filled = cells(column, results)
        values = tuple(float(getattr(result.metrics, column.field)) for result in results)
        if all(map(math.isnan, values)):
            continue
        longest = max((v for v in values if math.isfinite(v)), default=0.0) or 1.0
        found.append(
            Bars(
                f"{filled.title} [{filled.unit}]" if filled.unit else filled.title,
                labels,
                values,
                filled.texts,
                tuple(v / longest if math.isfinite(v) else 0.0 for v in values),
                tuple(palette[policy_of(label)] for label in labels),
                tuple(map(is_blind, labels)),
            )
        )
    return found


def completion_times(results: Sequence[Result]) -> Figure:
    """CDF of job completion times per run, over all measured jobs: unfinished ones keep it below one."""
    medians = [float(r.jobs["jct_s"].median()) for r in results]
    unit, scale = time_unit(max((m for m in medians if math.isfinite(m)), default=0.0))
    return Figure(
        "completion",
        "Job completion times",
        Axis(f"completion time [{unit}]", Scale.LOG),
        Axis("jobs finished", Scale.PERCENT, (0.0, 1.01)),
        _distributions(results, "jct_s", scale),
        height=400,
    )


def fairness(results: Sequence[Result]) -> list[Figure]:
    """CDF of finish-time fairness per run; none if it is unknown."""
    known = [result for result in results if "ftf" in result.jobs and result.jobs["ftf"].notna().any()]
    if not known:
        return []
    return [
        Figure(
            "fairness",
            "Finish-time fairness",
            Axis("JCT over the job's own JCT under isolated", Scale.LOG),
            Axis("jobs", Scale.PERCENT, (0.0, 1.01)),
            tuple(curve for curve in _distributions(results, "ftf", 1.0) if len(curve.x)),
            height=400,
        )
    ]


def utilization(results: Sequence[Result]) -> list[Figure]:
    """Leased fraction of each GPU type over time: one figure per type."""
    gpu_types = dict.fromkeys(str(t) for result in results for t in result.utilization.columns)
    axis, scale = _time_axis(results)
    found = []
    for gpu_type in gpu_types:
        frames = [(r, _coarser(r.utilization)) for r in results if gpu_type in r.utilization.columns]
        lines = [
            _curve(results, r, frame.index.to_numpy(dtype=float) / scale, frame[gpu_type].to_numpy(dtype=float))
            for r, frame in frames
        ]
        y = Axis(f"{gpu_type} leased", Scale.PERCENT, (0.0, 1.04))
        found.append(
            Figure(f"utilization_{gpu_type}", f"{gpu_type}: fraction leased", axis, y, tuple(lines), height=220)
        )
    return found


def queue_length(results: Sequence[Result]) -> Figure:
    """Jobs that have arrived, have not finished and have no GPUs, over time."""
    axis, scale = _time_axis(results)
    lines = []
    for result in results:
        end_s = _end_s(result)
        times = np.linspace(0.0, end_s, _BINS_MAX + 1)
        arrived = _count(result.jobs["arrival_s"], times)
        finished = _count(result.jobs["finish_s"].dropna(), times)
        running = _count(result.leases["start_s"], times) - _count(result.leases["end_s"], times)
        lines.append(_curve(results, result, times / scale, np.maximum(arrived - finished - running, 0)))
    return Figure("queue", "Queue length", axis, Axis("jobs waiting"), tuple(lines), height=260)


def marginal_values(results: Sequence[Result]) -> list[Figure]:
    """Relative marginal value of a GPU of each type over time: its part of the values of all types.

    Policies have different objectives, so only the parts can be compared. Runs of rules have no values.
    """
    frames = {r.label: _coarser(_parts(r.marginal_values)) for r in results}
    axis, scale = _time_axis(results)
    found = []
    for gpu_type in dict.fromkeys(str(t) for frame in frames.values() for t in frame.columns):
        lines = [
            _curve(results, r, frame.index.to_numpy(dtype=float) / scale, frame[gpu_type].to_numpy(dtype=float))
            for r in results
            if len(frame := frames[r.label]) and gpu_type in frame.columns
        ]
        y = Axis(f"{gpu_type}: part of all", Scale.PERCENT, (0.0, 1.04))
        title = f"{gpu_type}: marginal value"
        if lines:
            found.append(Figure(f"marginal_value_{gpu_type}", title, axis, y, tuple(lines), height=220))
    return found


def _parts(values: pd.DataFrame) -> pd.DataFrame:
    """Each row divided by its sum; rows without a positive value are left out."""
    finite = values.where(np.isfinite(values), 0.0).clip(lower=0.0)
    total = finite.sum(axis=1)
    return finite[total > 0].div(total[total > 0], axis=0)


def _distributions(results: Sequence[Result], field: str, scale: float) -> tuple[PlotCurve, ...]:
    """The CDF of a column of measured jobs, on one grid for all runs."""
    samples = []
    for result in results:
        measured = result.jobs[result.jobs["measured"].astype(bool)]
        values = np.sort(measured[field].to_numpy(dtype=float) / scale)
        samples.append((values[np.isfinite(values) & (values > 0)], max(len(measured), 1)))
    everything = np.sort(np.concatenate([values for values, _ in samples]))
    kept = np.unique(np.linspace(0, len(everything) - 1, min(len(everything), _CDF_POINTS_MAX)).round().astype(int))
    grid = np.unique(everything[kept])
    curves = []
    for result, (values, count) in zip(results, samples, strict=True):
        own = grid[grid <= values[-1]] if len(values) else grid[:0]
        curves.append(_curve(results, result, own, np.searchsorted(values, own, side="right") / count))
    return tuple(curves)


def _curve(results: Sequence[Result], result: Result, x: Floats, y: Floats) -> PlotCurve:
    return PlotCurve(result.label, x, y, colours(results)[policy_of(result.label)], is_blind(result.label))


def _time_axis(results: Sequence[Result]) -> tuple[Axis, float]:
    """The axis of time and its unit in seconds; it first shows the longest run of an aware policy."""
    ends_s = {result.label: _end_s(result) for result in results}
    unit, scale = time_unit(max(ends_s.values(), default=0.0))
    aware_s = max((end_s for label, end_s in ends_s.items() if not is_blind(label)), default=0.0)
    return Axis(f"time [{unit}]", range=(0.0, aware_s / scale) if aware_s > 0 else None), scale


def _end_s(result: Result) -> float:
    """The end of its last lease, or the last arrival."""
    ends = [result.leases["end_s"].max() if len(result.leases) else 0.0, result.jobs["arrival_s"].max()]
    return float(np.nanmax([0.0, *(end for end in ends if end == end)]))


def _count(moments: pd.Series[float], times: Floats) -> Floats:
    """How many of the moments are at or before each time."""
    found: Floats = np.searchsorted(np.sort(moments.to_numpy(dtype=float)), times, side="right").astype(float)
    return found


def _coarser(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with neighbouring bins averaged, at most _BINS_MAX rows."""
    every = -(-len(frame) // _BINS_MAX)
    if every <= 1:
        return frame
    groups = np.arange(len(frame)) // every
    means = frame.groupby(groups).mean()
    means.index = frame.index[::every]
    return means
