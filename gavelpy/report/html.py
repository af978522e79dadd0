"""The report: one HTML file that holds everything it needs, and asks the network for nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gavelpy.errors import InvalidInput
from gavelpy.extras import require
from gavelpy.report import figures, whereabouts
from gavelpy.report.columns import comparison_columns
from gavelpy.report.headline import sentences, unfinished
from gavelpy.report.result import Result, is_blind

_STUCK_MAX = 40
_UNIT = re.compile(r"(\d) (%|h\b|min\b|s\b)")  # a number and its unit stay on one line


def check_installed() -> None:
    """Raises InvalidInput saying what to install when the report's own dependencies are missing."""
    require("--report", ("plotly", "jinja2"))


def render(results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> str:  # Any: whatever JSON says
    """The whole page. The same results give the same bytes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup
    from plotly.offline import get_plotlyjs

    check_installed()
    environment = Environment(loader=PackageLoader("gavelpy.report"), autoescape=True, undefined=StrictUndefined)
    drawn = {
        "glance": figures.glance(results),
        "completion": figures.completion_times(results),
        "utilisation": figures.utilisation(results),
        "families": whereabouts.families(results),
        "timeline": whereabouts.timeline(results),
        "shares": whereabouts.shares(results),
    }
    page = environment.get_template("report.html").render(
        title=title,
        sentences=[_UNIT.sub("\\1\u00a0\\2", sentence) for sentence in sentences(results)],
        columns=[column for _, column in comparison_columns(results)],
        labels=[result.label for result in results],
        shown=_first_shown(results),
        delivered={result.label: _percent(whereabouts.delivered(result)) for result in results},
        stuck=_stuck(results),
        parameters={name: _plain(value) for name, value in parameters.items()},
        figures=Markup(_safe_json({name: json.loads(figure.to_json()) for name, figure in drawn.items()})),
        plotly=Markup(get_plotlyjs().replace("</script", "<\\/script")),
    )
    return page + "\n"


def write(path: Path, results: Sequence[Result], *, title: str, parameters: Mapping[str, Any]) -> None:
    """The page at `path`, whose folder is made if need be. Raises InvalidInput where it cannot be written."""
    page = render(results, title=title, parameters=parameters)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--report must be a file that can be written ({error.strerror})", file=str(path)) from error


def _first_shown(results: Sequence[Result]) -> str:
    """The run that the page opens with: the first that is no baseline, else the first."""
    aware = [r.label for r in results if not is_blind(r.label) and r.label not in {"fifo", "isolated"}]
    return aware[0] if aware else results[0].label


def _stuck(results: Sequence[Result]) -> list[tuple[str, str, str]]:
    """(run, job, reason) of measured jobs that never finished; a few dozen a run at most."""
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
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("</", "<\\/").replace("<!--", "<\\u0021--")
