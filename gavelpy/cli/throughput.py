"""`gavel throughput`: shows, merges, completes, fits and evaluates throughput tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import Output, console, echo_json_list, notify, printable
from gavelpy.cli.parsing import believed
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.estimator.completion import EstimatorModel
    from gavelpy.estimator.evaluate import HoldOut
    from gavelpy.model.throughput import ThroughputTable

_INSTEAD = "an estimate takes its place"
_SHOWN_MAX = 200  # rows of the table; JSON has all of them
_SEEDS_MAX = 1000

ModelOption = Annotated[
    Path | None,
    typer.Option("--model", metavar="FILE", help="Model from `gavel throughput fit`. Default: the shipped model."),
]
TableArgument = Annotated[Path, typer.Argument(metavar="TABLE", help="Throughput table: CSV or Gavel's JSON.")]

app = typer.Typer(
    no_args_is_help=True,
    help="Show throughputs, estimate unknown ones, evaluate the estimates.",
    rich_markup_mode="rich",
)


@app.command()
def show(
    throughputs: o.ThroughputsOption = None,
    job_type: Annotated[
        list[str] | None, typer.Option("--job-type", metavar="NAME", help="Only this job type. Repeatable.")
    ] = None,
    gpus: Annotated[int, typer.Option(metavar="N", parser=o.whole(1, o.GPUS_MAX), help="GPUs of each --job-type.")] = 1,
    gpu_types: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="Only these GPU types, which need not be in the table. Default: the table's."),
    ] = None,
    model: ModelOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Show rates with provenance and 90 % intervals. Unknown rates are estimated.

    \b
    Examples:
      gavel throughput show --throughputs rates.csv
      gavel throughput show --job-type "GPT-350M (batch size 8)" --gpu-types a100,h100,b200
    """
    from gavelpy.estimator.completion import Completion, aligned
    from gavelpy.model.throughput import Provenance

    table = believed(p.table_of(throughputs), throughputs, _INSTEAD)
    keys = tuple((name, gpus) for name in job_type) if job_type else table.keys
    types = _names(gpu_types) if gpu_types is not None else table.gpu_types
    estimates = Completion(table, _model(model, table)).estimates(keys, types)
    known = aligned(table, keys, types)
    rates = estimates.rates()
    low, high = estimates.interval()
    found = []
    for i, (name, count) in enumerate(keys):
        for t, gpu_type in enumerate(types):
            is_known = known[i, t] == known[i, t]
            found.append(
                {
                    "job_type": name,
                    "gpus": count,
                    "gpu_type": gpu_type,
                    "rate_steps_per_s": float(known[i, t] if is_known else rates[i, t]),
                    "low_steps_per_s": float(low[i, t]),
                    "high_steps_per_s": float(high[i, t]),
                    "fits": float(estimates.fits[i, t]),
                    "provenance": Provenance(int(estimates.provenance[i, t])).name.lower(),
                }
            )
    _rows(found, output, "rates")


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Throughput table to import: CSV or Gavel's JSON.")],
    target: Annotated[Path, typer.Argument(metavar="TABLE", help="CSV to update; created if missing.")],
) -> None:
    """Merge the rates of IN into TABLE. The rate with the better provenance wins; if equal, the one of IN.

    \b
    Examples:
      gavel throughput import simulation_throughputs.json rates.csv
    """
    from gavelpy.estimator.sanity import merged
    from gavelpy.traces.csv_format import write_csv_throughputs
    from gavelpy.traces.reader import read_throughputs

    imported = read_throughputs(source)
    found = merged(read_throughputs(target) if target.exists() else _empty(), imported)
    for note in found.notes:
        notify(note)
    if not found.taken:
        raise InvalidInput("IN must have at least one plausible rate, got none", file=str(source))
    p.writable_file("TABLE", target)
    write_csv_throughputs(found.table, target)
    notify(f"{len(imported.keys):,} rows imported; {target} has {len(found.table.keys):,}")


@app.command()
def export(
    table: TableArgument,
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The CSV to write.")],
    fill: Annotated[bool, typer.Option("--fill", help="Add estimates of unknown rates, marked as estimated.")] = False,
    quantile: Annotated[
        float, typer.Option(metavar="Q", help="Quantile of the estimates: 0.5 is the median, smaller is more cautious.")
    ] = 0.5,
    model: ModelOption = None,
) -> None:
    """Write TABLE as CSV, with --fill including estimates of unknown rates.

    \b
    Examples:
      gavel throughput export rates.csv full.csv --fill
      gavel throughput export rates.csv cautious.csv --fill --quantile 0.2
    """
    from gavelpy.estimator.completion import Completion, with_estimates
    from gavelpy.traces.csv_format import write_csv_throughputs
    from gavelpy.traces.reader import read_throughputs

    if not 0.0 < quantile < 1.0:
        raise InvalidInput(f"--quantile must be in (0, 1), got {quantile!r}")
    found = read_throughputs(table)
    p.writable_file("OUT", target)
    sound = believed(found, table, _INSTEAD)
    if fill:
        estimates = Completion(sound, _model(model, sound)).estimates(found.keys, found.gpu_types)
        found = with_estimates(sound, estimates, quantile)
    write_csv_throughputs(found, target)
    notify(f"{len(found.keys):,} rows written to {target}")


@app.command()
def fit(
    table: TableArgument,
    out: Annotated[Path | None, typer.Option("--out", metavar="FILE", help="Model file to write (required).")] = None,
    output: o.DeprecatedTargetOption = None,
) -> None:
    """Fit the estimator's hyper-parameters and the roofline to TABLE and save them (takes up to a minute).

    \b
    Examples:
      gavel throughput fit rates.csv --out model.json
    """
    from gavelpy.estimator.stored import to_json
    from gavelpy.traces.fields import write_text
    from gavelpy.traces.reader import read_throughputs

    found = believed(read_throughputs(table), table, _INSTEAD)
    if (target := p.target(out, output)) is None:
        raise InvalidInput("--out FILE must be given: the model file to write")
    fitted = _model(None).fitted(found)
    write_text(target, json.dumps(to_json(fitted), indent=2, allow_nan=False) + "\n")
    notify(f"model fitted to {len(found.keys):,} rows written to {target}")


@app.command()
def evaluate(
    table: TableArgument,
    seeds: Annotated[
        int, typer.Option(metavar="N", parser=o.whole(1, _SEEDS_MAX), help="Number of random hold-outs.")
    ] = 5,
    share: Annotated[float, typer.Option(metavar="S", help="Fraction of a new job's pairs that are measured.")] = 0.2,
    model: ModelOption = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML page to write, with estimated against true rates.")
    ] = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Hold out parts of TABLE and estimate them: errors, baselines, and the coverage of the 90 % intervals.

    \b
    Examples:
      gavel throughput evaluate rates.csv
      gavel throughput evaluate rates.csv --seeds 20 -o json
      gavel throughput evaluate rates.csv --report estimates.html
    """
    from gavelpy.estimator.evaluate import half_full, isolated_from_one_type, one_gpu, pairs_of_a_new_job
    from gavelpy.traces.reader import read_throughputs

    if report is not None:
        _check_report(report)
    found, chosen, drawn = read_throughputs(table), _model(model), range(seeds)
    if len(found.keys) < 2 or len(found.gpu_types) < 2:
        raise InvalidInput(
            f"TABLE must have at least two rows and two GPU types, got {len(found.keys)} and {len(found.gpu_types)}"
        )
    errors = [("alone, from one GPU type", isolated_from_one_type(found, chosen.isolated, drawn, refit=model is None))]
    halves = half_full(found, chosen.isolated, drawn, refit=model is None)
    errors += [("alone, half of the rows known on one GPU type", part) for part in halves]
    if len(one_gpu(found).pair_rows):
        pairs = pairs_of_a_new_job(found, chosen.pairs, drawn, share=share)
        errors += [(f"pairs, {share:.0%} measured", part) for part in pairs]
    if report is not None:
        _draw(report, errors)
    _rows([_summary(what, part) for what, part in errors], output, "hold_outs")


def _check_report(path: Path) -> None:
    from gavelpy.report.html import check_installed

    check_installed()
    p.writable_file("--report", path)


def _draw(path: Path, errors: list[tuple[str, HoldOut]]) -> None:
    from gavelpy.report.html import Panel, write_estimates

    ours = [(what, part) for what, part in errors if part.method == "estimator"]
    units = ["part of the rate alone" if what.startswith("pairs") else "steps/s" for what, _ in ours]
    panels = [
        Panel(what, part.truth, part.estimate, part.is_inside, part.label, unit)
        for (what, part), unit in zip(ours, units, strict=True)
    ]
    write_estimates(path, panels)
    notify(f"report written to {path}")


def _summary(what: str, found: HoldOut) -> dict[str, Any]:
    row: dict[str, Any] = {"held_out": what, "method": found.method, "entries": len(found.error)}
    row |= {f"p{share * 100:g}_error": found.quantile(share) for share in (0.5, 0.9, 0.95)}
    return row | {"inside_90_percent": found.coverage if found.is_inside.any() else None}


def _rows(rows: list[dict[str, Any]], output: Output, name: str) -> None:
    """Prints rows as a table, or as the list `name` of a JSON object."""
    if output is Output.JSON:
        echo_json_list(name, [{k: None if v != v else v for k, v in row.items()} for row in rows])
        return
    from rich import box
    from rich.table import Table

    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name, value in rows[0].items() if rows else ():
        drawn.add_column(
            name.replace("_steps_per_s", "").replace("_", " "), justify="left" if isinstance(value, str) else "right"
        )
    for row in rows[:_SHOWN_MAX]:
        drawn.add_row(*(_cell(value) for value in row.values()))
    console().print(drawn)
    if len(rows) > _SHOWN_MAX:
        notify(f"and {len(rows) - _SHOWN_MAX:,} more; -o json prints all of them")


def _cell(value: Any) -> str:  # Any: a number or a name
    if value is None or value != value:
        return "–"
    return f"{value:,.3g}" if isinstance(value, float) else printable(str(value))


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    if "" in names:
        raise InvalidInput(f"--gpu-types must look like v100,a100, got {text!r}")
    return names


def _empty() -> ThroughputTable:
    import numpy as np

    from gavelpy.model.throughput import ThroughputTable

    return ThroughputTable((), (), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64), ())


def _model(path: Path | None, table: ThroughputTable | None = None) -> EstimatorModel:
    """The model stored at `path`; without a path the shipped one, fitted to `table` if given."""
    from gavelpy.estimator.completion import EstimatorModel
    from gavelpy.estimator.isolated import IsolatedModel
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.stored import from_json
    from gavelpy.traces.fields import read_text
    from gavelpy.traces.workloads import gpu_specs, job_types

    roofline = Roofline(job_types(), gpu_specs())
    if path is None:
        shipped = IsolatedModel(roofline=roofline)
        return EstimatorModel(shipped if table is None else shipped.fitted(table))
    try:
        return from_json(json.loads(read_text(path)), roofline)
    except InvalidInput as error:
        raise error.located(str(path)) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"text must be JSON, got {error}", file=str(path)) from error
