"""The page that plots estimated rates against true ones: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.arrays import Bools, Floats
from gavelpy.report.html import check_installed
from gavelpy.report.plots import POLICY_COLOURS

_POINTS_MAX = 2000  # per family; an even sample of more


@dataclass(frozen=True, eq=False)
class Panel:
    """The n entries of one hold-out."""

    title: str
    truth: Floats  # (n,)
    estimate: Floats  # (n,)
    is_inside: Bools  # (n,) whether the truth is in the 90 % interval
    label: tuple[str, ...]  # (n,)
    unit: str = "steps/s"


def figure(panel: Panel) -> Any:  # plotly has no types
    """Points by family on logarithmic axes; a cross is a true rate outside its 90 % interval."""
    from plotly.graph_objects import Figure

    drawn = Figure()
    for number, name in enumerate(sorted(set(panel.label))):
        mine = np.flatnonzero([label == name for label in panel.label])
        mine = mine[np.linspace(0, len(mine) - 1, min(len(mine), _POINTS_MAX)).astype(np.int64)]
        drawn.add_scatter(
            x=panel.truth[mine].tolist(),
            y=panel.estimate[mine].tolist(),
            mode="markers",
            name=name,
            marker={
                "color": POLICY_COLOURS[number % len(POLICY_COLOURS)],
                "symbol": ["circle" if inside else "x" for inside in panel.is_inside[mine].tolist()],
                "size": 6,
            },
            hovertemplate="true %{x:.3g}, estimated %{y:.3g}",
        )
    ends = [float(panel.truth.min(initial=1.0)), float(panel.truth.max(initial=1.0))]
    drawn.add_scatter(x=ends, y=ends, mode="lines", name="equal", line={"color": "#7f8790", "width": 1})
    drawn.update_layout(height=520, margin={"l": 60, "r": 20, "t": 20, "b": 50}, template="plotly_white")
    drawn.update_xaxes(type="log", title=f"true, {panel.unit}")
    drawn.update_yaxes(type="log", title=f"estimated, {panel.unit}")
    return drawn


def render(panels: Sequence[Panel]) -> str:
    """The whole page; deterministic."""
    from plotly.offline import get_plotlyjs

    check_installed()
    parts = []
    for number, panel in enumerate(panels):
        plot = figure(panel).to_html(full_html=False, include_plotlyjs=False, div_id=f"panel{number}")
        parts.append(f"<h2>{escape(panel.title)}</h2>\n<p>{escape(_sentence(panel))}</p>\n{plot}")
    style = "body{font-family:system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    head = f"<meta charset='utf-8'><title>Estimated against true rates</title><style>{style}</style>"
    body = "<h1>Estimated against true rates</h1>\n" + "\n".join(parts)
    script = f"<script>{get_plotlyjs()}</script>"
    return f"<!doctype html><html lang='en'><head>{head}{script}</head><body>{body}</body></html>\n"


def write(path: Path, panels: Sequence[Panel]) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    page = render(panels)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--report cannot be written ({error.strerror})", file=str(path)) from error


def _sentence(panel: Panel) -> str:
    if not len(panel.truth):
        return "No held-out entry could be compared."
    error = np.abs(panel.estimate / panel.truth - 1.0)
    middle, high = (100.0 * float(np.quantile(error, share)) for share in (0.5, 0.9))
    inside = 100.0 * float(panel.is_inside.mean())
    return (
        f"{len(error)} entries held out: median error {middle:.1f} %, 90 % of errors below {high:.1f} %; "
        f"{inside:.0f} % of true rates inside their 90 % intervals."
    )
