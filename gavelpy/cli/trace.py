"""`gavel trace`: generates, describes and converts traces."""

from __future__ import annotations

from typing import Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json, notify, printable
from gavelpy.cli.parsing import believed_table_of
from gavelpy.cli.simulation_choices import takes_choices
from gavelpy.errors import InvalidInput

_SHOWN_MAX = 8  # entries of a mapping; JSON has all of them

app = typer.Typer(no_args_is_help=True, help="Generate, describe and convert traces.", rich_markup_mode="rich")


@app.command()
@takes_choices
def generate(
    jobs: o.JobsOption,
    choices: p.GeneratorChoices,
    *,
    throughputs: o.ThroughputsOption = None,
    seed: o.SeedOption = 0,
    out: o.TargetOption = None,
    output: o.DeprecatedTargetOption = None,
) -> None:
    """Generate a trace from Gavel's distributions.

    \b
    Examples:
      gavel trace generate --jobs 300 --rate-per-h 12 --out trace.csv
      gavel trace generate --jobs 1000 --multi-gpu --weights 1:0.8,5:0.2
    """
    import numpy as np

    from gavelpy.traces.csv_format import trace_cells
    from gavelpy.traces.fields import csv_text, write_text
    from gavelpy.traces.generator import generate as draw

    generator_options = choices.options(jobs)
    target = p.target(out, output)
    trace = draw(generator_options, believed_table_of(throughputs), np.random.default_rng(seed))
    text = csv_text(*trace_cells(trace))
    if target is None:
        typer.echo(text, nl=False)
    else:
        write_text(target, text)
        notify(f"{len(trace):,} jobs written to {target}")


@app.command()
def describe(
    trace: o.TraceArgument, throughputs: o.ThroughputsOption = None, output: o.OutputOption = Output.TABLE
) -> None:
    """Show statistics of a trace: jobs, arrival rate, run times, GPUs per job.

    \b
    Examples:
      gavel trace describe trace.csv
      gavel trace describe trace.csv -o json
    """
    from gavelpy.model.job import statistics_of
    from gavelpy.traces.reader import read_trace

    found = statistics_of(read_trace(trace, throughputs=believed_table_of(throughputs)))
    if output is Output.JSON:
        echo_json(found)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, value in found.items():
        table.add_row(name, _plain(value))
    console().print(table)


@app.command()
def convert(
    source: o.SourceArgument,
    target: o.TargetArgument,
    format: o.FormatOption = None,
    throughputs: o.ConvertThroughputsOption = None,
) -> None:
    """Convert a trace to another format. Gavel's format has neither ids nor rates.

    \b
    Examples:
      gavel trace convert old_7_columns.trace trace.csv
      gavel trace convert trace.csv gavel.trace
      gavel trace convert gavel.trace trace.csv --throughputs rates.json
    """
    from gavelpy.traces.reader import TraceFormat, read_throughputs, read_trace, write_trace

    formats = {".csv": TraceFormat.CSV, ".trace": TraceFormat.GAVEL}
    if format is not None and format not in list(TraceFormat):
        raise InvalidInput(f"--format must be one of {', '.join(TraceFormat)}, got {format!r}")
    if format is None and target.suffix not in formats:
        raise InvalidInput(f"OUT must end in {' or '.join(formats)}, or --format must be given, got {str(target)!r}")
    chosen = TraceFormat(format) if format is not None else formats[target.suffix]
    p.writable_file("OUT", target)
    table = read_throughputs(throughputs) if throughputs is not None else None
    trace = read_trace(source, throughputs=table)
    write_trace(trace, target, chosen)
    notify(f"{len(trace):,} jobs written to {target} ({chosen.value})")


def _plain(value: Any) -> str:  # Any: a value of `describe`
    match value:
        case dict():
            shown = [f"{printable(str(key))}: {_plain(inner)}" for key, inner in list(value.items())[:_SHOWN_MAX]]
            rest = [f"and {len(value) - _SHOWN_MAX} more"] if len(value) > _SHOWN_MAX else []
            return ", ".join(shown + rest) or "–"
        case float():
            return f"{value:,.6g}"
        case None:
            return "–"
        case _:
            return printable(str(value))
