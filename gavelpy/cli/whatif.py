"""`gavel whatif`: replays a scheduler's journal with another policy, cluster or teams, and compares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import simulation_options as so
from gavelpy.cli.output import (
    DASH,
    Output,
    TableData,
    console,
    count,
    duration,
    echo_json,
    notify,
    printable,
    show_table,
)
from gavelpy.cli.parsing import teams as teams_in
from gavelpy.cli.parsing import writable_file
from gavelpy.cli.progress import shown_progress

if TYPE_CHECKING:
    from gavelpy.simulator.past.whatif import Summary, WhatIfAnswer
    from gavelpy.statistics import MeanInterval

CHANGE = "Change"
JournalOption = Annotated[
    str,
    typer.Option(
        "--journal",
        metavar="URL",
        help="The scheduler's journal: sqlite:///PATH, PATH or postgresql://..., or a file of gavel simulate "
        "--journal. It is only read, also while the scheduler runs.",
        show_default=False,
    ),
]
SinceOption = Annotated[
    str,
    typer.Option(
        metavar="TIME",
        help="Replay from this time on: a date (2026-11-01, 2026-11-01T08:00) or seconds since the journal began. "
        "Default: the begin.",
        show_default=False,
    ),
]
UntilOption = Annotated[
    str, typer.Option(metavar="TIME", help="Replay events up to this time. Default: the end.", show_default=False)
]
PolicyOption = Annotated[
    str,
    typer.Option(
        "--policy",
        metavar="NAME",
        rich_help_panel=CHANGE,
        autocompletion=o.complete_policy,
        help="Another policy, with parameters as for gavel simulate.",
        show_default=False,
    ),
]
ClusterChangeOption = Annotated[
    str,
    typer.Option(
        "--cluster",
        metavar="CHANGE",
        rich_help_panel=CHANGE,
        help='GPUs that are added or removed when the replay begins: "+8 h100", "+8 h100,-2 k80".',
        show_default=False,
    ),
]
GpusPerNodeOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=1_000,
        rich_help_panel=CHANGE,
        help="GPUs of each added node. Default: as the largest node of this type in the journal, else 8.",
        show_default=False,
    ),
]
WithoutNodeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--without-node", metavar="NODE", rich_help_panel=CHANGE, help="A node that is absent. Repeatable.",
        show_default=False,
    ),
]  # fmt: skip
RecordedPolicyOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        help="The policy that was in force, for a journal that does not record it (of gavel simulate).",
        show_default=False,
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=1_000,
        help="Pairs of replays with noise on rates and costs, as in the journal, in addition to one pair without.",
    ),
]


def whatif(
    journal: JournalOption,
    since: SinceOption = "",
    until: UntilOption = "",
    policy: PolicyOption = "",
    cluster: ClusterChangeOption = "",
    gpus_per_node: GpusPerNodeOption = 0,
    without_node: WithoutNodeOption = None,
    teams: so.TeamsOption = None,
    round_s: so.RoundOption = None,
    recorded_policy: RecordedPolicyOption = "",
    seeds: SeedsOption = 5,
    report: so.ReportOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Replay a scheduler's journal: what another policy, cluster or other teams would have done.

    Without a change, compares the replay with what happened, which shows how far it can be trusted.

    \b
    Examples:
      gavel whatif --journal sqlite:////var/lib/gavel/journal.sqlite
      gavel whatif --journal journal.sqlite --since 2026-11-01 --policy max_min_fairness
      gavel whatif --journal journal.sqlite --cluster "+8 h100"
      gavel whatif --journal postgresql://gavel@db/gavel --without-node n3 -o json
    """
    from gavelpy.simulator.past.change import Change, gpu_changes
    from gavelpy.simulator.past.whatif import what_if

    if report is not None:
        from gavelpy.report import html

        html.check_installed()
        writable_file("--report", report)
    change = Change(
        policy,
        gpu_changes(cluster) if cluster else {},
        tuple(without_node or ()),
        teams_in(teams),
        {} if round_s is None else {"round_s": round_s},
        gpus_per_node,
    )
    with shown_progress(quiet=output is Output.JSON) as progress:
        found = what_if(
            journal, change, since=since, until=until, recorded_policy=recorded_policy, seeds=seeds, progress=progress
        )
    for warning in found.warnings:
        notify(f"warning: {warning}")
    if report is not None:
        _write_report(report, found)
    if output is Output.JSON:
        from gavelpy import __version__

        echo_json(found.to_json() | {"gavelpy": __version__})
        return
    show(found)


def show(found: WhatIfAnswer) -> None:
    """Prints the tables and the answer."""
    from gavelpy.simulator.past.whatif import SUMMED

    out = console()
    deviations = found.deviations
    rows = [
        (name, *_cells(key, found.recorded, found.reproduced), _signed(deviations[key]))
        for key, name in zip(SUMMED, _NAMES, strict=True)
    ]
    titles = (f"{found.recorded.jobs:,} jobs", "recorded", "replayed", "difference")
    show_table(TableData(titles, frozenset(titles[1:]), rows))
    if not found.change.is_nothing:
        out.print()
        show_table(_change_table(found))
        out.print()
        show_table(_affected(found))
    out.print()
    out.print(printable(found.sentence), highlight=False)


_NAMES = ("average JCT", "90th percentile of JCT", "makespan", "average waiting", "GPU-hours", "preemptions")


def _cells(key: str, *summaries: Summary) -> tuple[str, ...]:
    values = [getattr(one, key) for one in summaries]
    if key.endswith("_s"):
        return tuple(_time(value) for value in values)
    return tuple(f"{value:,.1f}" if key == "gpu_hours" else count(value) for value in values)


def _time(seconds: float) -> str:
    if not math.isfinite(seconds):
        return DASH
    return f"{seconds:.1f} s" if seconds < 120 else duration(seconds)


def _signed(share: float) -> str:
    return f"{share:+.1%}" if math.isfinite(share) else DASH


def _change_table(found: WhatIfAnswer) -> TableData:
    from gavelpy.simulator.past.whatif import SUMMED

    titles = (f"{found.baseline.jobs:,} jobs", "unchanged", "changed", "difference", "95 % interval")
    rows = []
    for key, name in zip(SUMMED, _NAMES, strict=True):
        before, after = getattr(found.baseline, key), getattr(found.changed, key)
        one = found.differences.get(key)
        difference = _signed(after / before - 1.0) if before else DASH
        rows.append((name, *_cells(key, found.baseline, found.changed), difference, _interval(one)))
    return TableData(titles, frozenset(titles[1:]), rows)


def _interval(one: MeanInterval | None) -> str:
    if one is None or not math.isfinite(one.low):
        return DASH
    return f"{_difference(one.low)} to {_difference(one.high)}"


def _difference(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + _time(abs(seconds))


def _affected(found: WhatIfAnswer) -> TableData:
    titles = ("most affected", "GPUs", "recorded", "unchanged", "changed", "difference")
    rows: Sequence[tuple[str, ...]] = [
        (
            printable(f"{job} {row['name']}"),
            str(row["gpus"]),
            *(_time(float(row[name])) for name in ("recorded_jct_s", "baseline_jct_s", "changed_jct_s")),
            _difference(float(row["difference_s"])),
        )
        for job, row in _records(found)
    ]
    return TableData(titles, frozenset(titles[1:]), rows)


def _records(found: WhatIfAnswer) -> list[tuple[Any, dict[str, Any]]]:  # Any: values of a data frame
    return [
        (job, {str(name): value for name, value in row.items()})
        for job, row in found.most_affected.to_dict("index").items()
    ]


def _write_report(path: Path, found: WhatIfAnswer) -> None:
    from gavelpy.report.whatif_page import write

    write(path, found.to_json(), found.jobs)
    notify(f"report: {path}")
