"""The HTML report: one self-contained file, which needs no network."""

from __future__ import annotations

import base64
import gzip
import json
import math
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.extras import require
from gavelpy.report import plots, timeline
from gavelpy.report.comparison import Result, comparison_columns, is_blind
from gavelpy.report.figure import Figure
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
    return page_of(
        "report.html",
        figures,
        title=title,
        sentences=[_UNIT.sub("\\1\u00a0\\2", sentence) for sentence in sentences(results)],
        columns=[column for _, column in comparison_columns(results)],
        labels=[result.label for result in results],
        metrics=plots.key_metrics(results),
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
