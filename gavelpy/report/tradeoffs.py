"""Trade-offs between policies: one metric against the average JCT, a point for each policy, and the best of both.

A policy is on the front of two metrics if no other policy is at least as good in both and better in one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.report.comparison import COLUMNS, MetricKind, unit_of
from gavelpy.report.html import page_of, write_page
from gavelpy.report.plots import Axis, Figure, PlotMarks, Scale

X: Final = "avg_jct_s"
# Metrics that are drawn against the average JCT; less is better in all of them.
AGAINST: Final = ("ftf_worst", "makespan_s", "cost_usd", "deadline_misses", "stops_per_job", "cpu_solve_s")
_ADDED: Final = {
    "stops_per_job": ("preemptions per job", MetricKind.RATIO),
    "cpu_solve_s": ("time in the policy", MetricKind.TIME),
}
FRONT, OTHERS = "on the front: no policy is better in both", "others"
_FRONT_COLOUR, _OTHERS_COLOUR = "#d9622b", "#7f8790"
_LOG_FROM: Final = 8.0  # largest over smallest value from which an axis is logarithmic
_SAME: Final = 1e-9  # relative: values so close are one value


@dataclass(frozen=True)
class ComparedPolicy:
    """A policy and its metrics, by the names of the columns of a sweep; unknown ones are missing or NaN."""

    label: str
    values: Mapping[str, float]

    def value(self, field: str) -> float:
        """The metric; NaN if it is not known."""
        if field == "stops_per_job":
            jobs = self.values.get("jobs", math.nan)
            return self.values.get("preemptions", math.nan) / jobs if jobs else math.nan
        return float(self.values.get(field, math.nan))


def title_of(field: str) -> tuple[str, MetricKind]:
    """The name of a metric and what it measures."""
    if field in _ADDED:
        return _ADDED[field]
    column = next(one for one in COLUMNS if one.field == field)
    return column.title, column.kind


def front(x: Floats, y: Floats) -> Bools:
    """Which points (n,) no other point dominates, less being better in both; points with NaN are not on it.

    >>> front(np.array([1.0, 2.0, 3.0, 2.0]), np.array([3.0, 2.0, 2.5, 2.0])).tolist()
    [True, True, False, True]
    """
    best, found = math.inf, np.zeros(len(x), dtype=np.bool_)
    known = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    order = known[np.lexsort((y[known], x[known]))].tolist()
    for place, row in enumerate(order):
        before = order[place - 1] if place else -1
        is_same = before >= 0 and x[before] == x[row] and y[before] == y[row]
        found[row] = found[before] if is_same else y[row] < best
        best = min(best, float(y[row]))
    return found


def figures(policies: Sequence[ComparedPolicy]) -> list[Figure]:
    """A figure for each metric of `AGAINST` that differs between policies."""
    x = np.array([one.value(X) for one in policies], dtype=np.float64)
    found = []
    for field in AGAINST:
        y = np.array([one.value(field) for one in policies], dtype=np.float64)
        known = np.isfinite(x) & np.isfinite(y)
        if known.sum() > 1 and np.ptp(y[known]) > _SAME * np.abs(y[known]).max():
            found.append(_figure(field, x, y, known, [one.label for one in policies]))
    return found


def _figure(field: str, x: Floats, y: Floats, known: Bools, labels: Sequence[str]) -> Figure:
    axes, columns = [], []
    for name, values in ((X, x), (field, y)):
        title, kind = title_of(name)
        unit, scale, _ = unit_of(kind, float(values[known].max()))
        axes.append(Axis(f"{title} [{unit}]" if unit else title, _scale_of(values[known])))
        columns.append(values / scale)
    is_best = front(x, y)
    spans = [_span(values[known], axis) for values, axis in zip(columns, axes, strict=True)]
    marks = tuple(
        PlotMarks(
            group,
            colour,
            columns[0][rows],
            columns[1][rows],
            tuple(labels[row] for row in np.flatnonzero(rows).tolist()),
            width=width,
            is_named=is_named,
        )
        for group, colour, width, rows, is_named in (
            (OTHERS, _OTHERS_COLOUR, 6.0, known & ~is_best, False),
            (FRONT, _FRONT_COLOUR, 9.0, is_best, True),
        )
    )
    return Figure(
        f"tradeoff_{field}",
        f"{title_of(field)[0]} against average JCT",
        axes[0],
        axes[1],
        marks={"": marks},
        x_ranges={"": spans[0]},
        y_ranges={"": spans[1]},
        height=340,
    )


def _span(values: Floats, axis: Axis) -> tuple[float, float]:
    """The range of an axis, with room around the points."""
    least, largest = float(values.min()), float(values.max())
    if axis.scale is Scale.LOG:
        return least / 1.3, largest * 1.3
    room = 0.06 * (largest - least) or 0.06 * abs(largest) or 1.0
    return max(least - room, 0.0) if least >= 0 else least - room, largest + room


def _scale_of(values: Floats) -> Scale:
    least, largest = float(values.min()), float(values.max())
    return Scale.LOG if least > 0 and largest / least >= _LOG_FROM else Scale.LINEAR


def sentences(policies: Sequence[ComparedPolicy]) -> list[str]:
    """The best policy of each metric, and those on the front of average JCT and worst finish-time fairness."""
    found = []
    x = np.array([one.value(X) for one in policies], dtype=np.float64)
    for field in (X, *AGAINST):
        values = np.array([one.value(field) for one in policies], dtype=np.float64)
        if not np.isfinite(values).any() or np.nanmax(values) - np.nanmin(values) <= _SAME * np.nanmax(np.abs(values)):
            continue
        best = np.flatnonzero(values <= np.nanmin(values) * (1 + _SAME)).tolist()
        title, kind = title_of(field)
        unit, scale, digits = unit_of(kind, float(np.nanmin(values)))
        amount = f"{np.nanmin(values) / scale:,.{digits}f} {unit}".strip()
        found.append(f"Least {title}: {amount} under {', '.join(policies[row].label for row in best)}.")
    y = np.array([one.value("ftf_worst") for one in policies], dtype=np.float64)
    if (rows := np.flatnonzero(front(x, y))).size:
        ordered = sorted(rows.tolist(), key=lambda row: float(x[row]))
        names = ", ".join(policies[row].label for row in ordered)
        found.append(f"No policy is better both in average JCT and in worst FTF than {names}.")
    return found


def render(
    title: str,
    policies: Sequence[ComparedPolicy],
    table: tuple[Sequence[str], Sequence[Sequence[str]]],
    notes: Sequence[str],
) -> str:
    """The whole page: `table` has titles and rows, `notes` what was not compared and why; deterministic."""
    drawn = figures(policies)
    return page_of(
        "compare.html",
        drawn,
        title=title,
        sentences=sentences(policies) or ["No policy has finished a job."],
        titles=table[0],
        rows=table[1],
        notes=notes,
        names=[(figure.name, figure.title) for figure in drawn],
    )


def write(path: Path, *arguments: Any) -> None:  # Any: as of `render`
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    write_page(path, render(*arguments))
