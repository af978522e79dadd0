"""`gavel trace`: generates, describes and converts traces."""

from __future__ import annotations

from typing import Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json, notify, printable
from gavelpy.cli.parsing import believed_table_of
from gavelpy.cli.simulation_choices import takes_choices
from gavelpy.cli.trace_choices import FormatChoices
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
@takes_choices
def describe(
    trace: o.TraceArgument,
    reading: FormatChoices,
    *,
    throughputs: o.ThroughputsOption = None,
    reference_gpu_type: o.ReferenceTypeOption = None,
    seed: o.SeedOption = 0,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Show statistics of a trace: jobs, arrival rate, run times, GPUs per job.

    \b
    Examples:
      gavel trace describe trace.csv
      gavel trace describe trace.csv -o json
      gavel trace describe cluster_job_log.json --from philly --durations seconds
    """
    from gavelpy.model.job import statistics_of

    read = reading.read_file(trace, believed_table_of(throughputs), seed, reference_gpu_type)
    found = statistics_of(read) | {"provenance": dict(read.provenance)}
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
@takes_choices
def convert(
    source: o.SourceArgument,
    target: o.TargetArgument,
    reading: FormatChoices,
    *,
    format: o.FormatOption = None,
    throughputs: o.ConvertThroughputsOption = None,
    reference_gpu_type: o.ReferenceTypeOption = None,
    seed: o.SeedOption = 0,
) -> None:
    """Convert a trace to another format. Gavel's format has neither ids nor rates.

    OUT.provenance.json receives the source, its SHA-256, and the rule and seed by which durations became steps;
    OUT.nodes.csv the nodes of the trace, if it has any.

    \b
    Examples:
      gavel trace convert old_7_columns.trace trace.csv
      gavel trace convert trace.csv gavel.trace
      gavel trace convert gavel.trace trace.csv --throughputs rates.json
      gavel trace convert philly.csv trace.csv --seed 1
    """
    from gavelpy import __version__
    from gavelpy.traces.provenance import write_provenance
    from gavelpy.traces.reader import TraceFormat, read_throughputs, write_trace

    formats = {".csv": TraceFormat.CSV, ".trace": TraceFormat.GAVEL}
    if format is not None and format not in list(TraceFormat):
        raise InvalidInput(f"--format must be one of {', '.join(TraceFormat)}, got {format!r}")
    if format is None and target.suffix not in formats:
        raise InvalidInput(f"OUT must end in {' or '.join(formats)}, or --format must be given, got {str(target)!r}")
    chosen = TraceFormat(format) if format is not None else formats[target.suffix]
    p.writable_file("OUT", target)
    table = read_throughputs(throughputs) if throughputs is not None else None
    trace = reading.read_file(source, table, seed, reference_gpu_type)
    write_trace(trace, target, chosen)
    write_provenance(trace, target, __version__)
    if trace.nodes:
        from gavelpy.traces.node_events import write_node_events

        nodes = target.with_name(f"{target.name}.nodes.csv")
        write_node_events(trace.nodes, nodes)
        notify(f"{len(trace.nodes):,} nodes written to {nodes}, for --cluster none --node-events")
    notify(f"{len(trace):,} jobs written to {target} ({chosen.value})")


@app.command("formats")
def list_formats(output: o.OutputOption = Output.TABLE) -> None:
    """List the formats that --from names, with those of other packages.

    \b
    Examples:
      gavel trace formats
      gavel trace formats -o json
    """
    from gavelpy.traces.formats import reader_named, reader_names

    found = {name: reader_named(name).title for name in reader_names()}
    if output is Output.JSON:
        echo_json({"formats": found})
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False)
    table.add_column("format", style="bold", no_wrap=True)
    table.add_column("what it is")
    for name, title in found.items():
        table.add_row(name, printable(title))
    console().print(table)


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
