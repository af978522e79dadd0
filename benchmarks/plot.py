"""Plots time over the number of jobs, from a CSV file of measurements: a panel per policy, both axes logarithmic.

    python -m benchmarks.plot out/benchmarks/allocation.csv

writes an HTML page next to the file and, if Chromium or Chrome is installed, a picture.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import OURS
from benchmarks.record import Measurement, read
from gavelpy.report.plots import POLICY_COLOURS

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
COLUMNS, PANEL_PX = 3, (400, 300)
_COLOURS = dict(zip((OURS, "ecos", "clarabel", "highs"), POLICY_COLOURS, strict=False))
_MARKERS = {"cold": {"symbol": "circle", "size": 6}, "warm": {"symbol": "triangle-up-open", "size": 8}}
_DASHES = ("solid", "dot", "dash", "dashdot")


class _Line(NamedTuple):
    policy: str
    contender: str
    mode: str
    mix: str
    types: int


def draw(rows: Path) -> list[Path]:
    """Draws the plots of a CSV file and returns their paths; none if it has no times."""
    found = [m for m in read(rows) if not math.isnan(m.median_s)]
    if not found:
        return []
    figure = time_over_jobs(found)
    page = rows.with_suffix(".html")
    figure.write_html(page, include_plotlyjs=True, full_html=True, config={"displayModeBar": False})
    picture = rows.with_suffix(".png")
    return [page, picture] if photographed(page, picture, figure.layout.width, figure.layout.height) else [page]


def time_over_jobs(found: Sequence[Measurement]) -> Any:  # plotly has no types
    """A panel per policy, those with most peers first; ours in every mix and number of types, the others in one."""
    from plotly.subplots import make_subplots

    lines: dict[_Line, list[Measurement]] = defaultdict(list)
    for m in found:
        lines[_Line(m.case.policy, m.contender, m.case.mode, m.case.mix, m.case.types)].append(m)
    contenders = {policy: len({line.contender for line in lines if line.policy == policy}) for policy, *_ in lines}
    policies = sorted(contenders, key=lambda policy: -contenders[policy])
    kinds = list(dict.fromkeys((line.mix, line.types) for line in lines))
    rows = math.ceil(len(policies) / COLUMNS)
    figure = make_subplots(
        rows,
        COLUMNS,
        subplot_titles=policies,
        horizontal_spacing=0.05,
        vertical_spacing=0.3 / (rows + 2),
        shared_xaxes="all",
        shared_yaxes="all",
    )
    shown: set[str] = set()
    for line, measured in lines.items():
        kind = kinds.index((line.mix, line.types))
        if kind and (line.contender, line.mode) != (OURS, "cold"):
            continue
        panel = policies.index(line.policy)
        name = f"{line.contender}, {line.mode}, {line.mix}, {line.types} types"
        figure.add_scatter(
            row=panel // COLUMNS + 1,
            col=panel % COLUMNS + 1,
            x=[m.case.jobs for m in measured],
            y=[m.median_s for m in measured],
            mode="lines+markers",
            name=name,
            legendgroup=name,
            showlegend=name not in shown,
            line={"color": _COLOURS.get(line.contender, "#555555"), "dash": _DASHES[kind % len(_DASHES)], "width": 1.6},
            marker=_MARKERS[line.mode],
        )
        shown.add(name)
    ticks = {"type": "log", "dtick": 1, "exponentformat": "power", "showticklabels": True, "title_standoff": 2}
    figure.update_xaxes(title_text="jobs", **ticks)
    figure.update_yaxes(title_text="seconds", **ticks)
    width, height = PANEL_PX[0] * COLUMNS, PANEL_PX[1] * rows + 150
    legend = {"orientation": "h", "yanchor": "bottom", "y": 1.0 + 50 / height}
    figure.update_layout(template="plotly_white", width=width, height=height, legend=legend, margin={"l": 60, "r": 20})
    return figure


def photographed(page: Path, picture: Path, width: int, height: int) -> bool:
    """Whether a browser was found and made a picture of the page."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return False
    root = ["--no-sandbox"] if getattr(os, "geteuid", lambda: 1)() == 0 else []  # Chromium's sandbox refuses root
    size = f"--window-size={width + 20},{height + 20}"
    shot = f"--screenshot={picture.resolve()}"
    flags = ["--headless", "--disable-gpu", "--hide-scrollbars", "--force-device-scale-factor=2"]
    command = [browser, *flags, *root, size, shot, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, timeout=120, check=False)
    return done.returncode == 0 and picture.exists()


if __name__ == "__main__":
    for drawn in draw(Path(sys.argv[1])):
        print(drawn)
