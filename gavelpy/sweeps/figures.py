"""Figures of a sweep: each metric over a numeric option, a curve with a 95 % confidence band for each policy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.report.comparison import COLUMNS, Column, MetricKind, is_blind, policy_of, unit_of
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve, Scale
from gavelpy.statistics import MeanInterval
from gavelpy.sweeps.grid import Grid
from gavelpy.sweeps.summary import Group

_TITLES: Final = {"rate_per_h": "jobs per hour", "mean_interarrival_s": "seconds between arrivals"}
_MAGNITUDES: Final = 30.0  # largest over smallest value from which an axis is logarithmic


def axis_of(grid: Grid, chosen: str = "") -> str:
    """The option along which figures are drawn: `chosen`, or the first one that is numeric."""
    if chosen and chosen not in grid.numeric:
        numeric = ", ".join(grid.numeric) or "none"
        raise InvalidInput(f"--x must be an option with several numbers in this sweep ({numeric}), got {chosen!r}")
    if not grid.numeric:
        raise InvalidInput("--figures needs an option with several numbers, such as rate_per_h = [2, 4], got none")
    return chosen or grid.numeric[0]


def figures_of(groups: Sequence[Group], x: str) -> list[Figure]:
    """One figure for each metric that is known and not the same everywhere."""
    lines = _lines(groups, x)
    fields = dict.fromkeys(name for group in groups for name in group.means)
    found = []
    for column in (column for column in COLUMNS if column.field in fields):
        means = {(line.label, at): group.means.get(column.field) for line in lines for at, group in line.groups.items()}
        values = {one.mean for one in means.values() if one is not None and math.isfinite(one.mean)}
        if len(values) > 1:
            found.append(_figure(column, lines, means, x, max(map(abs, values))))
    return found


@dataclass(frozen=True)
class _Line:
    """The groups of one curve, by their values of x, ascending."""

    label: str
    colour: str
    is_faint: bool
    groups: Mapping[float, Group]


def _lines(groups: Sequence[Group], x: str) -> list[_Line]:
    by_options: dict[tuple[tuple[str, Any], ...], dict[float, Group]] = {}
    for group in groups:
        others = tuple((name, value) for name, value in group.options.items() if name != x)
        by_options.setdefault(others, {})[float(group.options[x])] = group
    policies = [policy_of(str(dict(others).get("policy", ""))) for others in by_options]
    is_by_policy = all({name for name, _ in others} <= {"policy"} for others in by_options)
    colours = list(dict.fromkeys(policies)) if is_by_policy else list(by_options)
    lines = []
    for others, policy in zip(by_options, policies, strict=True):
        rank = colours.index(policy if is_by_policy else others)  # type: ignore[arg-type]  # of the same kind
        label = ", ".join(f"{value}" if name == "policy" else f"{name}={value}" for name, value in others) or "all"
        faint = is_by_policy and is_blind(str(dict(others).get("policy", "")))
        ordered = dict(sorted(by_options[others].items()))
        lines.append(_Line(label, POLICY_COLOURS[rank % len(POLICY_COLOURS)], faint, ordered))
    return lines


def _figure(
    column: Column,
    lines: Sequence[_Line],
    means: Mapping[tuple[str, float], MeanInterval | None],
    x: str,
    largest: float,
) -> Figure:
    unit, scale, _ = unit_of(column.kind, largest)
    if column.kind is MetricKind.FRACTION:
        unit, scale = "", 1.0  # the axis prints percent
    curves = []
    for line in lines:
        known = [
            (at, one) for at in line.groups if (one := means[line.label, at]) is not None and math.isfinite(one.mean)
        ]
        values = np.array([(at, one.mean, one.low, one.high) for at, one in known], dtype=np.float64).reshape(-1, 4)
        at, mean, low, high = values.T / np.array([[1.0], [scale], [scale], [scale]])
        curves.append(PlotCurve(line.label, at, mean, line.colour, line.is_faint, low=low, high=high))
    spread = [at for line in lines for at in line.groups]
    is_log = min(spread) > 0 and max(spread) / min(spread) >= _MAGNITUDES
    y = Axis(
        f"{column.title} [{unit}]" if unit else column.title,
        Scale.PERCENT if column.kind is MetricKind.FRACTION else Scale.LINEAR,
    )
    title = f"{column.title} over {x}"
    return Figure(column.field, title, Axis(_TITLES.get(x, x), Scale.LOG if is_log else Scale.LINEAR), y, tuple(curves))
