"""`gavel profile`: measures the rates of jobs and writes them into a throughput table."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json, notify, printable
from gavelpy.errors import GavelError, InvalidInput

if TYPE_CHECKING:
    from gavelpy.cli.job_files import JobTemplate
    from gavelpy.cli.rate_profiles import MeasuredRate

_SECONDS_MAX = 24 * 3600.0
_DEVICES, _PLACES = ("auto", "cpu"), ("here", "cluster")
_HERE, _CLUSTER = "On this machine", "On a cluster"

JobsArgument = Annotated[
    list[Path], typer.Argument(metavar="JOBS.toml...", help=r"Job files with [\[job]] tables, as for gavel submit.")
]
SecondsOption = Annotated[
    float,
    typer.Option(
        metavar="S", parser=o.number(0.1, _SECONDS_MAX), help="Measurement time of each job, after its first steps."
    ),
]
PlaceOption = Annotated[
    str,
    typer.Option("--on", metavar="here|cluster", help="Measure on this machine, or on each GPU type of a cluster."),
]
DeviceOption = Annotated[
    str,
    typer.Option(metavar="auto|cpu", rich_help_panel=_HERE, help="Device to use; cpu hides the GPUs from the jobs."),
]
GpuTypeOption = Annotated[
    str,
    typer.Option(
        metavar="NAME", rich_help_panel=_HERE, help="GPU type to record. Default: from the GPU's product name."
    ),
]
PatienceOption = Annotated[
    float,
    typer.Option(
        metavar="S",
        parser=o.number(0.1, _SECONDS_MAX),
        rich_help_panel=_CLUSTER,
        help="Give up on a job that has no rate S seconds after its submission.",
    ),
]
TableOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Throughput table (CSV) to update with the rates; its other rows stay."),
]


def profile(
    jobs: JobsArgument,
    seconds: SecondsOption = 20.0,
    on: PlaceOption = "here",
    device: DeviceOption = "auto",
    gpu_type: GpuTypeOption = "",
    table: TableOption = None,
    patience: PatienceOption = 1800.0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Measure the rates of jobs in steps/s. Their scripts must use LeaseIterator.

    On this machine the jobs run one after the other. On a cluster one probe job per GPU type is submitted, runs next
    to other jobs, and is cancelled after the measurement.

    \b
    Examples:
      gavel profile jobs.toml
      gavel profile jobs.toml --table rates.csv
      gavel profile jobs.toml --on cluster --table rates.csv
      gavel profile workloads/jobs/small.toml --device cpu --seconds 5 -o json
      gavel simulate trace.csv --throughputs rates.csv
    """
    from gavelpy.cli.rate_profiles import read_templates

    _check_choice("--device", device, _DEVICES)
    _check_choice("--on", on, _PLACES)
    templates = read_templates(jobs)
    if table is not None:
        p.writable_file("--table", table)
        _with(table, [])
    if on == "here":
        expected, rates = len(templates), _here(templates, seconds, device, gpu_type)
    else:
        from gavelpy.cli.rate_profiles import gpu_types_up, measured_on_cluster

        with c.connected(scheduler, token_file, timeout) as client:
            types = gpu_types_up(client)
            expected = len(templates) * len(types)
            rates = list(measured_on_cluster(templates, types, client, seconds, patience, notify))
    if table is not None and rates:
        from gavelpy.traces.fields import write_text

        write_text(table, _with(table, rates))
        notify(f"{len(rates)} rates written to {table}")
    _show(rates, output)
    if len(rates) < expected:
        raise GavelError(f"{expected - len(rates)} of {expected} rates were not measured")


def _check_choice(option: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InvalidInput(f"{option} must be one of {', '.join(allowed)}, got {value!r}")


def _here(jobs: list[JobTemplate], seconds: float, device: str, gpu_type: str) -> list[MeasuredRate]:
    from gavelpy.cli.rate_profiles import measured_here
    from gavelpy.runtime.profile import Bench, here

    machine = here(on_cpu=device == "cpu", gpu_type=gpu_type)
    bench = Bench(machine.gpu_type, seconds, on_cpu=device == "cpu")
    return list(measured_here(jobs, bench, machine, notify))


def _with(table: Path, rates: list[MeasuredRate]) -> str:
    """The table's text with these rates; raises InvalidInput if it is not a throughput table."""
    from gavelpy.cli.rate_profiles import with_measured
    from gavelpy.traces.csv_format import parse_csv_throughputs
    from gavelpy.traces.fields import read_text

    before = read_text(table) if table.exists() else ""
    text = with_measured(before, rates, str(table))
    if before or rates:
        parse_csv_throughputs(text, str(table))
    return text


def _show(rates: list[MeasuredRate], output: Output) -> None:
    if output is Output.JSON:
        echo_json({"rates": [vars(rate) for rate in rates]})
        return
    from rich import box
    from rich.table import Table

    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("job type", style="bold")
    shown.add_column("GPUs", justify="right")
    shown.add_column("GPU type")
    shown.add_column("steps/s", justify="right")
    for rate in rates:
        cells = (rate.job_type, str(rate.gpus), rate.gpu_type, f"{rate.rate_steps_per_s:,.5g}")
        shown.add_row(*map(printable, cells))
    console().print(shown)
