"""`gavel simulate`: simulates a trace under policies; prints a table or JSON, writes a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as s
from gavelpy.cli.ablation import Ablation, ablated, ablation_json, check_ablation, show_ablation, show_gpu_hours
from gavelpy.cli.experiment import Experiment, run
from gavelpy.cli.output import FAILED, INTERRUPTED, Output, console, echo_json, notify, printable
from gavelpy.cli.parsing import GeneratorChoices, believed_table_of
from gavelpy.cli.simulation_choices import (
    ClusterChoices,
    ConditionChoices,
    CostChoices,
    LearningChoices,
    MechanismChoices,
    RunChoices,
    TraceChoices,
    given,
    takes_choices,
)
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.simulator.metrics import SimulationResult


@takes_choices
def simulate(
    traces: TraceChoices,
    new: GeneratorChoices,
    nodes: ClusterChoices,
    rates: LearningChoices,
    mechanism: MechanismChoices,
    costs: CostChoices,
    conditions: ConditionChoices,
    runs: RunChoices,
    *,
    output: o.OutputOption = Output.TABLE,
    report: s.ReportOption = None,
    figures: s.FiguresOption = None,
    journal: s.JournalOption = None,
    ablate: s.AblateOption = False,
) -> None:
    """Simulate a trace on a cluster under one or more policies.

    \b
    Examples:
      gavel simulate trace.csv --cluster v100:36,k80:36 --policy fifo,las
      gavel simulate trace.csv --cluster v100:36,k80:36 --policy ./mine.py:HighestThroughput,las
      gavel simulate --generate 300 --rate-per-h 12 --report report.html
      gavel simulate gavel.trace --throughputs gavel.json --preset gavel-osdi20
      gavel simulate gavel.trace --throughputs gavel.json --packing --estimate
      gavel simulate trace.csv --conditions conditions.toml --ablate
    """
    check_report(report, figures)
    directory = p.writable_directory("--journal", journal) if journal is not None else None
    experiment = replace(
        experiment_of(traces, new, nodes, rates, mechanism, costs, conditions, runs), journal=directory
    )
    if ablate:
        check_ablation(experiment)
    results = run(experiment, quiet=output is Output.JSON)
    whole = not interruption(experiment, results)
    without = ablated(experiment, quiet=output is Output.JSON) if ablate and whole else None
    _output(experiment, results, report, figures, output, without)


def experiment_of(
    traces: TraceChoices,
    new: GeneratorChoices,
    nodes: ClusterChoices,
    rates: LearningChoices,
    mechanism: MechanismChoices,
    costs: CostChoices,
    conditions: ConditionChoices,
    runs: RunChoices,
    *,
    already_read: Any = None,  # Any: a Trace; `takes_choices` evaluates annotations, without numpy
) -> Experiment:
    """The experiment of these choices: those of a command, or of a cell of a sweep that has read the trace before."""
    file, settings = mechanism.file, replace(mechanism.settings(costs), conditions=conditions.build())
    throughputs = runs.throughputs
    if throughputs is None and file is not None and file.config.throughputs.file:
        throughputs = Path(file.config.throughputs.file)
    packs = settings.mechanism.packing
    table = believed_table_of(throughputs)
    trace = already_read or traces.read(new, table, runs.seed)
    return Experiment(
        runs=runs.policies(file),
        cluster=nodes.build(file.config.prices.usd_per_gpu_h if file is not None else {}, trace),
        settings=settings,
        window=p.window(runs.window) if runs.window is not None else None,
        trace=trace,
        seed=runs.seed,
        throughputs=_pairs(table, throughputs) if packs else None,
        learning=rates.build(file.config.throughputs.profile_gpu_s if file is not None else 0.0),
        options={
            "gpus_per_server": nodes.gpus_per_node,
            **({"cluster_file": nodes.cluster} if nodes.is_file else {}),
            "throughputs": str(throughputs or "published"),
            "preset": mechanism.preset,
            **({"scheduler_config": file.record} if file is not None else {}),
            **_set(packing=packs, fairness=runs.fairness, ideal=runs.ideal, estimate=rates.estimate),
            **given({"generate": traces.generate and new.given()}),
            **given({"claims_off": rates.claims_off, "profile_gpu_s": rates.profile_gpu_s}),
        },
    )


def show(results: Mapping[str, SimulationResult]) -> None:
    """Prints the comparison and its summary."""
    from gavelpy.report.comparison import comparison
    from gavelpy.report.summary import sentences

    out = console()
    found = list(results.values())
    out.print(comparison(found, width=out.width))
    for sentence in sentences(found):
        out.print(printable(sentence))


def write_report(
    path: Path | None, figures: Path | None, experiment: Experiment, results: Mapping[str, SimulationResult]
) -> None:
    """Writes the HTML report to `path`, and the figures and tables into the directory `figures`."""
    found = list(results.values())
    if path is not None:
        from gavelpy.report import html

        parameters = experiment.parameters | {"seed": experiment.seed}
        html.write(path, found, title=experiment.title, parameters=parameters)
    if figures is not None:
        from gavelpy.report.export import write_figures

        notify(f"{len(write_figures(figures, found))} files of figures and tables written to {figures}")


def _set(**flags: bool) -> dict[str, bool]:
    return {name: True for name, is_set in flags.items() if is_set}


def check_report(path: Path | None, figures: Path | None) -> None:
    """Raises InvalidInput if an extra is missing, or the file or the directory cannot be written."""
    if path is None and figures is None:
        return
    from gavelpy.report import html

    if path is not None:
        html.check_installed()
        p.writable_file("--report", path)
    if figures is not None:
        html.check_installed("--figures")
        p.writable_directory("--figures", figures)


def _output(
    experiment: Experiment,
    results: Mapping[str, SimulationResult],
    report: Path | None,
    figures: Path | None,
    output: Output,
    without: Ablation | None,
) -> None:
    write_report(report, figures, experiment, results)
    if report is not None:
        notify(f"report: {report}")
    if output is Output.JSON:
        found = {label: result.metrics.to_json() for label, result in results.items()}
        stopped = interruption(experiment, results)
        more = {"interrupted": stopped} if stopped else {}
        more |= {"ablation": ablation_json(without)} if without is not None else {}
        echo_json({"parameters": experiment.parameters, "seed": experiment.seed, "results": found, **more})
    else:
        show(results)
        if experiment.settings.conditions.causes:
            show_gpu_hours(results)
        if without is not None:
            show_ablation(results, without)
    _end_if_stalled(results)
    end_if_interrupted(experiment, results)


def interruption(experiment: Experiment, results: Mapping[str, SimulationResult]) -> dict[str, Any]:  # Any: JSON
    """Which runs are partial, and which did not begin; empty if the experiment is complete."""
    partial = {label: result.partial for label, result in results.items() if result.partial}
    missing = [run.label for run in experiment.runs if run.label not in results]
    return {"partial": partial, "not_run": missing} if partial or missing else {}


def end_if_interrupted(experiment: Experiment, results: Mapping[str, SimulationResult]) -> None:
    """Exits with code 130 if the experiment is not complete."""
    if stopped := interruption(experiment, results):
        if stopped["not_run"]:
            notify(f"not simulated: {', '.join(stopped['not_run'])}")
        raise typer.Exit(INTERRUPTED)


def _end_if_stalled(results: Mapping[str, SimulationResult]) -> None:
    """Exits with code 1, after an error per run, if a run ended because its jobs made no progress any more."""
    baseline = next(iter(results.values())).isolated_stalled
    if baseline and "isolated" not in results:
        notify(f"warning: finish-time fairness is unknown for some jobs: isolated: {baseline}")
    stalled = {label: result.stalled for label, result in results.items() if result.stalled}
    for label, reason in stalled.items():
        notify(f"error: {label}: {reason}")
    if stalled:
        raise typer.Exit(FAILED)


def _pairs(table: ThroughputTable, path: Path | None) -> ThroughputTable:
    if not len(table.pair_rows):
        what = "the published table" if path is None else repr(str(path))
        raise InvalidInput(f"--packing needs --throughputs FILE with rates of pairs (Gavel's JSON), got {what} without")
    return table
