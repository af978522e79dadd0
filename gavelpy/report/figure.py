"""A figure as data: curves of several runs, or marks of one run at a time. The page and the files draw the same values.

`html` draws it with uPlot, `export` with matplotlib, and `table` is its CSV.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import numpy as np

from gavelpy.model.arrays import Floats

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
    """One line; `is_faint` draws it dashed and lighter, for a blind run."""

    label: str
    x: Floats  # (n,) increasing
    y: Floats  # (n,)
    colour: str  # #rrggbb
    is_faint: bool = False


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
            parts = [pd.DataFrame({"run": c.label, self.x.title: c.x, self.y.title: c.y}) for c in self.curves]
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
