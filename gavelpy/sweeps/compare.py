"""`gavel compare`: a bake-off of policies on one trace; a table, and pictures of the trade-offs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as s
from gavelpy.cli.output import DASH, FAILED, Output, TableData, echo_json, notify, show_table
from gavelpy.errors import InvalidInput, require
from gavelpy.sweeps.cells import Scalar
from gavelpy.sweeps.command import JobsOption, RetryFailedOption, shown_cells
from gavelpy.sweeps.trials import takes_cell_options

if TYPE_CHECKING:
    from gavelpy.report.tradeoffs import ComparedPolicy
    from gavelpy.sweeps.bakeoff import BakeOff

_SHOWN: Final = (
    "avg_jct_s", "p99_jct_s", "makespan_s", "ftf_worst", "cost_usd", "deadline_misses", "stops_per_job", "cpu_solve_s",
)  # fmt: skip

PoliciesOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        metavar="NAME[:PARAM=X],...",
        rich_help_panel="Policies",
        help="Policies, or FILE.py:CLASS; with parameters, and NAME@blind. Default: all that can serve the jobs.",
    ),
]
LimitOption = Annotated[
    float,
    typer.Option(
        "--time-limit",
        metavar="S",
        parser=o.number(0.1, 1e7),
        rich_help_panel="Policies",
        help="CPU seconds after which a policy is stopped. Its row shows how far it was.",
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        rich_help_panel=s.RESULTS,
        help="Directory of the results. Default: TRACE.compare in the current directory.",
    ),
]


@takes_cell_options("policy", "fairness", "ideal", "blind")
def compare(
    options: Mapping[str, Scalar],
    *,
    policy: PoliciesOption = None,
    time_limit: LimitOption = 60.0,
    out: OutOption = None,
    jobs: JobsOption = 0,
    retry_failed: RetryFailedOption = False,
    report: s.ReportOption = None,
    figures: s.FiguresOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Compare all policies on one trace: completion times, fairness, cost, preemptions, time in the policy.

    Each policy runs in a process of its own, for a limited time. The same command continues a comparison that was
    stopped.

    \b
    Examples:
      gavel compare trace.csv --cluster v100:36,k80:36 --report compare.html
      gavel compare trace.csv --cluster v100:36,k80:36 --policy fifo,las,./mine.py:HighestThroughput
      gavel compare --generate 200 --rate-per-h 12 --time-limit 20 --jobs 2
      gavel compare philly.csv --cluster v100:48,p100:48 --seed 1 -o json
    """
    require("gavel compare", ("pyarrow",))
    from gavelpy.cli.simulate import check_report
    from gavelpy.sweeps.bakeoff import bake_off

    if not {"trace", "generate"} & options.keys():
        raise InvalidInput("compare takes either a TRACE or --generate N, got neither")
    check_report(report, figures)
    stem = Path(str(options["trace"])).stem if "trace" in options else f"generate-{options['generate']}"
    directory = p.writable_directory("--out", out or Path(f"{stem}.compare"))
    names = () if policy is None else tuple(name.strip() for name in policy.split(","))
    with shown_cells() as tick:
        found = bake_off(
            options, directory, policies=names, limit_s=time_limit, jobs=jobs, retry_failed=retry_failed, tick=tick
        )
    _draw(found, report, figures)
    if output is Output.JSON:
        echo_json(_json(found))
    else:
        _show(found)
    if found.failed:
        raise typer.Exit(FAILED)


def _draw(found: BakeOff, report: Path | None, figures: Path | None) -> None:
    from gavelpy.report import tradeoffs
    from gavelpy.report.export import write_curves

    if report is not None:
        table = table_of(found)
        tradeoffs.write(report, found.title, found.finished, (table.titles, table.rows), notes_of(found))
        notify(f"report: {report}")
    if figures is not None:
        drawn = write_curves(figures, tradeoffs.figures(found.finished))
        notify(f"{len(drawn)} files of figures and tables written to {figures}")


def _show(found: BakeOff) -> None:
    from gavelpy.report.tradeoffs import sentences

    show_table(table_of(found))
    for sentence in sentences(found.finished):
        typer.echo(sentence)
    for note in notes_of(found):
        notify(note)
    notify(f"results: {found.directory}")


def table_of(found: BakeOff) -> TableData:
    """A row for each policy: those that finished, by average JCT; then those that were stopped, failed or refused."""
    from gavelpy.report.tradeoffs import title_of

    finished = found.finished
    shown = [name for name in _SHOWN if name != "deadline_misses" or any(one.value(name) > 0 for one in finished)]
    columns = [_column(name, finished) for name in shown]
    rows = [(one.label, *(texts[row] for _, texts in columns), _unfinished(one)) for row, one in enumerate(finished)]
    others = {**found.stopped, **found.failed, **dict.fromkeys(found.refused, "cannot serve these jobs")}
    rows += [(label, *[DASH] * len(columns), text) for label, text in others.items()]
    titles = ("policy", *(title for title, _ in columns), "note")
    assert len(shown) == len({title_of(name) for name in shown}), "titles must differ"
    return TableData(titles, frozenset(titles[1:-1]), rows)


def _column(name: str, policies: Sequence[ComparedPolicy]) -> tuple[str, list[str]]:
    """The title with the unit, and the values as texts."""
    from gavelpy.report.comparison import unit_of
    from gavelpy.report.tradeoffs import title_of

    title, kind = title_of(name)
    values = [one.value(name) for one in policies]
    unit, scale, digits = unit_of(kind, max((value for value in values if math.isfinite(value)), default=0.0))
    texts = [f"{value / scale:,.{digits}f}" if math.isfinite(value) else DASH for value in values]
    return f"{title} [{unit}]" if unit else title, texts


def _unfinished(one: ComparedPolicy) -> str:
    count = one.value("jobs_unfinished")
    return f"{count:,.0f} of {one.value('jobs'):,.0f} jobs never finished" if count > 0 else ""


def notes_of(found: BakeOff) -> list[str]:
    """A sentence for each policy that has no figures, and the warnings of the others, each once."""
    lines = [line for text in found.frame.get("warnings", ()) for line in str(text).splitlines()]
    return [
        *dict.fromkeys(lines),
        *(f"{name} was {text}" for name, text in found.stopped.items()),
        *(f"error: {name}: {text}" for name, text in found.failed.items()),
        *(f"{name} cannot serve these jobs: {text}" for name, text in found.refused.items()),
    ]


def _json(found: BakeOff) -> dict[str, Any]:  # Any: JSON values
    from gavelpy.sweeps.summary import rows_of

    return {
        "title": found.title,
        "directory": str(found.directory),
        "policies": rows_of(found.frame),
        "stopped": found.stopped,
        "failed": found.failed,
        "refused": dict(found.refused),
    }
