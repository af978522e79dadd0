"""The HTML report: one self-contained file, which needs no network."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.extras import require
from gavelpy.report import plots, timeline
from gavelpy.report.comparison import comparison_columns
from gavelpy.report.result import Result, is_blind
from gavelpy.report.summary import sentences, unfinished

_STUCK_MAX = 40
_UNIT = re.compile(r"(\d) (%|h\b|min\b|s\b)")  # a number and its unit stay on one line


def check_installed() -> None:
    """Raises InvalidInput, with the command that installs them, if plotly or jinja2 is missing."""
    require("--report", ("plotly", "jinja2"))


def render(results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> str:  # Any: JSON values
    """The whole page; deterministic."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    check_installed()
    environment = Environment(loader=PackageLoader("gavelpy.report"), autoescape=True, undefined=StrictUndefined)
    drawn = {
        "glance": plots.glance(results),
        "completion": plots.completion_times(results),
        "utilization": plots.utilization(results),
        "families": timeline.families(results),
        "timeline": timeline.timeline(results),
        "shares": timeline.shares(results),
    }
    page = environment.get_template("report.html").render(
        title=title,
        sentences=[_UNIT.sub("\\1\u00a0\\2", sentence) for sentence in sentences(results)],
        columns=[column for _, column in comparison_columns(results)],
        labels=[result.label for result in results],
        shown=_first_shown(results),
        delivered={result.label: _percent(timeline.delivered(result)) for result in results},
        stuck=_stuck(results),
        parameters={name: _plain(value) for name, value in parameters.items()},
        figures=Markup(_safe_json({name: json.loads(figure.to_json()) for name, figure in drawn.items()})),
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )
    return page + "\n"


def write(path: Path, results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> None:
    """Writes the page to `path`, creating its directory. Raises InvalidInput if it cannot be written."""
    page = render(results, title=title, parameters=parameters)
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


def _safe_json(value: object) -> str:
    """JSON that cannot close the script element around it."""
    return json.dumps(value, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\u0021--")
