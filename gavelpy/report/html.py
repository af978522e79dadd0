"""HTML pages: the report of a comparison, and estimated against true rates. One file each, which needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from gavelpy.errors import InvalidInput, require
from gavelpy.model.arrays import Bools, Floats
from gavelpy.report import plots, timeline, uses
from gavelpy.report.comparison import Result, comparison_columns, is_blind, title_of
from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotMarks, Scale
from gavelpy.report.summary import sentences, unfinished

_STUCK_MAX = 40
_UPLOT = "uPlot-1.6.32"
_UNIT = re.compile(r"(\d) (%|h\b|min\b|s\b)")  # a number and its unit stay on one line


def check_installed(option: str = "--report") -> None:
    """Raises InvalidInput, with the command that installs it, if jinja2, or for `--figures` matplotlib, is missing."""
    require(option, ("jinja2",) if option == "--report" else ("matplotlib",))


def render(results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> str:  # Any: JSON values
    """The whole page; deterministic."""
    figures = [*plots.comparisons(results), *timeline.of_each_run(results)]
    names = [figure.name for figure in figures]
    bars = uses.by_use(results)
    return page_of(
        "report.html",
        figures,
        title=title,
        sentences=[_UNIT.sub("\\1\u00a0\\2", sentence) for sentence in sentences(results)],
        columns=[column for _, column in comparison_columns(results)],
        labels=[result.label for result in results],
        titles=[title_of(result) for result in results],
        metrics=plots.key_metrics(results),
        uses=bars,
        uses_legend=uses.legend(bars),
        names=names,
        marginal=[name for name in names if name.startswith("marginal_value_")],
        families=timeline.families(results),
        shown=_first_shown(results),
        delivered={result.label: _percent(timeline.delivered(result)) for result in results},
        stuck=_stuck(results),
        parameters={name: _plain(value) for name, value in parameters.items()},
    )


def page_of(template: str, figures: Sequence[Figure], **values: Any) -> str:  # Any: what the template uses
    """The page of a template with these figures, which `figures.js` draws."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    check_installed()
    environment = Environment(loader=PackageLoader("gavelpy.report"), autoescape=True, undefined=StrictUndefined)
    vendor = resources.files("gavelpy.report") / "vendor"
    document = json.dumps({figure.name: figure.to_json() for figure in figures}, separators=(",", ":"), allow_nan=False)
    packed = base64.b64encode(gzip.compress(document.encode(), 9, mtime=0)).decode()
    page = environment.get_template(template).render(
        figures=packed,
        uplot=Markup((vendor / f"{_UPLOT}.iife.min.js").read_text("utf-8")),
        uplot_css=Markup((vendor / f"{_UPLOT}.min.css").read_text("utf-8")),
        **values,
    )
    return page + "\n"


def write(path: Path, results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    write_page(path, render(results, title=title, parameters=parameters))


def write_page(path: Path, page: str) -> None:
    """Writes a page of any template."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--report cannot be written ({error.strerror})", file=str(path)) from error


def _first_shown(results: Sequence[Result]) -> str:
    """The run that the page shows first: the first aware run other than fifo and isolated, else the first run."""
    aware = [r.label for r in results if not is_blind(r.label) and r.label not in {"fifo", "isolated"}]
    return aware[0] if aware else results[0].label


def _stuck(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """(run, job, reason) of measured jobs that never finished, at most _STUCK_MAX per run."""
    return [
        (result.label, str(job), str(reason))
        for result in results
        for job, reason in unfinished(result)["reason"].head(_STUCK_MAX).items()
    ]


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.0f} %" if math.isfinite(fraction) else "nothing"


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_plain(inner)}" for key, inner in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(_plain, value))
    return "none" if value is None else str(value)


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


def estimates_figure(panel: Panel, name: str) -> Figure:
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
            groups.append(PlotMarks(title, colour, panel.truth[rows], panel.estimate[rows], text, is_hollow=is_hollow))
    x, y = (Axis(f"{kind}, {panel.unit}", Scale.LOG) for kind in ("true", "estimated"))
    return Figure(name, panel.title, x, y, marks={"": tuple(groups)}, has_diagonal=True, height=520)


def render_estimates(panels: Sequence[Panel]) -> str:
    """The whole page; deterministic."""
    figures = [estimates_figure(panel, f"panel{number}") for number, panel in enumerate(panels)]
    return page_of(
        "estimates.html",
        figures,
        panels=[(f.name, f.title, _sentence(p)) for f, p in zip(figures, panels, strict=True)],
    )


def write_estimates(path: Path, panels: Sequence[Panel]) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    write_page(path, render_estimates(panels))


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
