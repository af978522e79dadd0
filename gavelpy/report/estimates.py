"""The page that plots estimated rates against true ones: one self-contained HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gavelpy.model.arrays import Bools, Floats
from gavelpy.report.figure import Axis, Figure, Marks, Scale
from gavelpy.report.html import page_of, write_page
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


def figure(panel: Panel, name: str) -> Figure:
    """Points by family on logarithmic axes; a hollow one is a true rate outside its 90 % interval."""
    groups = []
    label = np.array(panel.label, dtype=object)
    for number, family in enumerate(sorted(set(panel.label))):
        mine = np.flatnonzero(label == family)
        mine = mine[np.linspace(0, len(mine) - 1, min(len(mine), _POINTS_MAX)).astype(np.int64)]
        colour = POLICY_COLOURS[number % len(POLICY_COLOURS)]
        for title, rows, is_hollow in (
            (family, mine[panel.is_inside[mine]], False),
            (f"{family}, outside its interval", mine[~panel.is_inside[mine]], True),
        ):
            text = (family,) * len(rows)
            groups.append(Marks(title, colour, panel.truth[rows], panel.estimate[rows], text, is_hollow=is_hollow))
    x, y = (Axis(f"{kind}, {panel.unit}", Scale.LOG) for kind in ("true", "estimated"))
    return Figure(name, panel.title, x, y, marks={"": tuple(groups)}, has_diagonal=True, height=520)


def render(panels: Sequence[Panel]) -> str:
    """The whole page; deterministic."""
    figures = [figure(panel, f"panel{number}") for number, panel in enumerate(panels)]
    return page_of(
        "estimates.html",
        figures,
        panels=[(f.name, f.title, _sentence(p)) for f, p in zip(figures, panels, strict=True)],
    )


def write(path: Path, panels: Sequence[Panel]) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    write_page(path, render(panels))


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
