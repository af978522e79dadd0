"""The HTML page of `gavel whatif`: the answer, its tables, and completion times job by job."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.model.arrays import Floats
from gavelpy.report.html import page_of, write_page
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotMarks, Scale

if TYPE_CHECKING:
    import pandas as pd

_POINTS_MAX = 5000
_TITLES = {
    "jobs": "jobs",
    "avg_jct_s": "average JCT, s",
    "p90_jct_s": "90th percentile of JCT, s",
    "makespan_s": "makespan, s",
    "avg_waiting_s": "average waiting, s",
    "gpu_hours": "GPU-hours",
    "preemptions": "preemptions",
}
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def render(answer: Mapping[str, Any], jobs: pd.DataFrame) -> str:  # Any: JSON values
    """The whole page, from the documented object of the answer and its data frame; deterministic."""
    recorded, baseline, changed = (_column(jobs, f"{name}_jct_s") for name in ("recorded", "baseline", "changed"))
    names = [str(name) for name in jobs["name"]]
    figures = [_figure("replayed", "Each job: recorded and replayed unchanged", (recorded, baseline), names)]
    tables = [_table(answer, {"recorded": "recorded", "replayed": "reproduced"})]
    if "changed" in answer:
        figures.append(_figure("changed", "Each job: unchanged and changed", (baseline, changed), names))
        tables.append(_table(answer, {"unchanged": "baseline", "changed": "changed"}))
    return page_of(
        "whatif.html",
        figures,
        title=f"What if: {answer.get('change', 'nothing had changed')}",
        answer=answer["answer"],
        warnings=answer["warnings"],
        tables=tables,
        names=[(figure.name, figure.title) for figure in figures],
    )


def write(path: Path, answer: Mapping[str, Any], jobs: pd.DataFrame) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    write_page(path, render(answer, jobs))


def _column(jobs: pd.DataFrame, name: str) -> Floats:
    return np.asarray(jobs[name], dtype=np.float64)


def _table(answer: Mapping[str, Any], columns: Mapping[str, str]) -> Table:
    """Titles and rows of the summaries with these keys in the answer."""
    rows = [(title, *(_text(answer[key][name]) for key in columns.values())) for name, title in _TITLES.items()]
    return ("", *columns), rows


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:,.1f}" if isinstance(value, float) else f"{value:,}"


def _figure(name: str, title: str, columns: tuple[Floats, Floats], names: Sequence[str]) -> Figure:
    """Points on logarithmic axes; jobs without one of the two times are left out."""
    first, second = columns
    rows = np.flatnonzero((first > 0) & (second > 0))
    rows = rows[np.linspace(0, len(rows) - 1, min(len(rows), _POINTS_MAX)).astype(np.int64)]
    marks = PlotMarks("jobs", POLICY_COLOURS[0], first[rows], second[rows], tuple(names[row] for row in rows.tolist()))
    before, after = ("recorded", "replayed") if name == "replayed" else ("unchanged", "changed")
    x, y = (Axis(f"JCT {kind}, s", Scale.LOG) for kind in (before, after))
    has_any = bool(len(rows)) and math.isfinite(float(first[rows].sum()))
    return Figure(name, title, x, y, marks={"": (marks,)} if has_any else {}, has_diagonal=True, height=460)
