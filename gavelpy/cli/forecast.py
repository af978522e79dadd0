"""`gavel forecast score`: how well the forecasts of `gavel explain` did, from a journal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, console, echo_json, show_table
from gavelpy.cli.whatif import JournalOption, RecordedPolicyOption

if TYPE_CHECKING:
    from gavelpy.simulator.past.score import ForecastScores

app = typer.Typer(help="Forecasts of starts and ends of jobs.", no_args_is_help=True)
TimesOption = Annotated[
    int, typer.Option(min=1, max=1_000_000, help="Instants at which all jobs that are not over are forecast.")
]
CoverageOption = Annotated[
    float, typer.Option(min=0.01, max=0.99, help="Share of outcomes that the intervals are to contain.")
]


@app.callback()
def forecast() -> None:
    """Forecasts of starts and ends of jobs."""


@app.command()
def score(
    journal: JournalOption,
    times: TimesOption = 200,
    coverage: CoverageOption = 0.8,
    recorded_policy: RecordedPolicyOption = "",
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Compute the forecasts of gavel explain again from the states of a journal, and compare with what happened.

    Intervals come from the outcomes that were known at the time of each forecast. The journal is only read.

    \b
    Examples:
      gavel forecast score --journal sqlite:////var/lib/gavel/journal.sqlite
      gavel forecast score --journal journals/fifo.journal --recorded-policy fifo --times 50 -o json
    """
    from gavelpy.simulator.past.score import score_forecasts

    found = score_forecasts(journal, times=times, recorded_policy=recorded_policy, coverage=coverage)
    if output is Output.JSON:
        from gavelpy import __version__

        echo_json(found.to_json() | {"gavelpy": __version__})
        return
    show(found)


def show(found: ForecastScores) -> None:
    """Prints a row for starts, for ends and for both."""
    titles = (
        "forecasts of",
        "scored",
        "in interval",
        "median error",
        "bias",
        "high / low",
        "no interval",
        "no outcome",
    )
    rows = [
        (
            name,
            f"{one.forecasts:,}",
            _percent(one.coverage),
            _percent(one.median_error),
            _percent(one.bias, "+"),
            f"{one.median_width:.2f}" if math.isfinite(one.median_width) else DASH,
            f"{one.without_interval:,}",
            f"{one.without_outcome:,}",
        )
        for name, one in {"starts": found.by_kind["start"], "ends": found.by_kind["end"], "both": found.all}.items()
    ]
    show_table(TableData(titles, frozenset(titles[1:]), rows))
    console().print(f"Intervals are to contain {found.target:.0%} of outcomes.", highlight=False)


def _percent(share: float, sign: str = "") -> str:
    return f"{share:{sign}.1%}" if math.isfinite(share) else DASH
