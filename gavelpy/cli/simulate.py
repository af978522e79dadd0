"""`gavel simulate`: simulates a trace under policies; prints a table or JSON, writes a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli.output import FAILED, Output, console, echo_json, notify, printable, progress_bar
from gavelpy.cli.parsing import GeneratorChoices, believed_table_of, warn_of_trace
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.model.cluster import Cluster
    from gavelpy.model.job import Trace
    from gavelpy.model.throughput import ThroughputTable
    from gavelpy.policies.base import PolicyRun
    from gavelpy.simulator.estimation import Learning
    from gavelpy.simulator.metrics import SimulationResult
    from gavelpy.simulator.settings import SimulationSettings


@dataclass(frozen=True)
class Experiment:
    """The complete input of a simulation, checked before the work starts."""

    trace: Trace
    cluster: Cluster
    runs: Sequence[PolicyRun]
    settings: SimulationSettings
    seed: int = 0
    window: tuple[int, int] | None = None
    journal: Path | None = None
    throughputs: ThroughputTable | None = None  # true rates of co-located jobs, if jobs may share GPUs
    learning: Learning | None = None  # how the scheduler learns rates, if they are hidden from it
    options: Mapping[str, Any] = field(default_factory=dict)  # from the command line, for the record

    @property
    def fairness(self) -> bool:
        """Whether `isolated` is simulated in addition, for finish-time fairness."""
        return bool(self.options.get("fairness"))

    @property
    def title(self) -> str:
        """One line: the trace, its jobs and the cluster."""
        gpus = zip(self.cluster.gpu_counts.tolist(), self.cluster.gpu_types, strict=True)
        return f"{self.trace.name}: {len(self.trace):,} jobs on {', '.join(f'{n} {gpu_type}' for n, gpu_type in gpus)}"

    @property
    def parameters(self) -> dict[str, Any]:  # Any: JSON values
        """All parameters, so that the simulation can be repeated."""
        from gavelpy import __version__

        mechanism = self.settings.mechanism
        return {
            "trace": self.trace.name,
            "jobs": len(self.trace),
            "cluster": dict(zip(self.cluster.gpu_types, self.cluster.gpu_counts.tolist(), strict=True)),
            **_amounts(self.cluster),
            "prices_usd_per_gpu_h": dict(zip(self.cluster.gpu_types, self.cluster.prices.tolist(), strict=True)),
            "policies": [run.label for run in self.runs],
            "window": list(self.window) if self.window is not None else None,
            **self.options,
            "round_s": mechanism.round_s,
            "solve_interval_s": mechanism.solve_interval_s,
            "solve_at_least_every_s": mechanism.solve_at_least_every_s,
            "lease_min_s": mechanism.lease_min_s,
            "start_max_s": mechanism.start_max_s,
            "move_lag_s": mechanism.move_lag_s,
            "retry_s": mechanism.retry_s,
            "retry_max_s": mechanism.retry_max_s,
            **({"teams": [asdict(team) for team in mechanism.teams]} if mechanism.teams else {}),
            **self._by_policy("move_lag_s"),
            **self._by_policy("solve_interval_s"),
            **asdict(self.settings.costs),
            "version": __version__,
        }

    def _by_policy(self, name: str) -> dict[str, dict[str, float]]:
        """A setting of the runs for which it differs from the mechanism's, by label, if there are any."""
        from gavelpy.policies.base import policy_from

        by_label = {run.label: self.settings.for_policy(policy_from(run.policy)) for run in self.runs}
        values = {label: getattr(settings.mechanism, name) for label, settings in by_label.items()}
        others = {label: value for label, value in values.items() if value != getattr(self.settings.mechanism, name)}
        return {f"{name}_by_policy": others} if others else {}


FairnessOption = Annotated[
    bool,
    typer.Option(
        "--fairness",
        rich_help_panel=o.RESULTS,
        help="Report finish-time fairness, which takes another simulation, under `isolated`. Without this, it is "
        "reported if `isolated` is one of the policies.",
    ),
]


def simulate(
    trace: o.OptionalTraceArgument = None,
    generate: o.GenerateOption = None,
    rate_per_h: o.RateOption = None,
    mean_interarrival_s: o.InterarrivalOption = None,
    multi_gpu: o.MultiGpuOption = False,
    gpu_mix: o.GpuMixOption = None,
    weights: o.WeightsOption = None,
    deadlines: o.DeadlinesOption = None,
    reference_gpu_type: o.ReferenceTypeOption = None,
    cluster: o.ClusterOption = "v100:36,p100:36,k80:36",
    gpus_per_node: o.GpusPerNodeOption = 4,
    prices: o.PricesOption = None,
    node_resources: o.NodeResourcesOption = None,
    throughputs: o.ThroughputsOption = None,
    policy: o.PoliciesOption = "max_min_fairness",
    blind: o.BlindOption = False,
    estimate: o.EstimateOption = False,
    claims_off: o.ClaimsOffOption = None,
    profile_gpu_s: o.ProfileGpuSOption = None,
    preset: o.PresetOption = "default",
    round_s: o.RoundOption = None,
    solve_interval_s: o.SolveIntervalOption = None,
    checkpoint_s: o.CheckpointOption = None,
    restart_s: o.RestartOption = None,
    migration_s: o.MigrationOption = None,
    lease_min_s: o.LeaseMinOption = None,
    start_max_s: o.StartMaxOption = None,
    move_lag_s: o.MoveLagOption = None,
    retry_s: o.RetryOption = None,
    retry_max_s: o.RetryMaxOption = None,
    packing: o.PackingOption = False,
    teams: o.TeamsOption = None,
    seed: o.SeedOption = 0,
    window: o.WindowOption = None,
    fairness: FairnessOption = False,
    output: o.OutputOption = Output.TABLE,
    report: o.ReportOption = None,
    figures: o.FiguresOption = None,
    journal: o.JournalOption = None,
) -> None:
    """Simulate a trace on a cluster under one or more policies.

    \b
    Examples:
      gavel simulate trace.csv --cluster v100:36,k80:36 --policy fifo,las
      gavel simulate trace.csv --cluster v100:36,k80:36 --policy ./mine.py:HighestThroughput,las
      gavel simulate --generate 300 --rate-per-h 12 --report report.html
      gavel simulate gavel.trace --throughputs gavel.json --preset gavel-osdi20
      gavel simulate gavel.trace --throughputs gavel.json --packing --estimate
    """
    new = GeneratorChoices(rate_per_h, mean_interarrival_s, multi_gpu, gpu_mix, weights, deadlines, reference_gpu_type)
    costs = {"checkpoint_s": checkpoint_s, "restart_s": restart_s, "migration_s": migration_s}
    rounds = {"round_s": round_s, "solve_interval_s": solve_interval_s, "move_lag_s": move_lag_s}
    rounds |= {"lease_min_s": lease_min_s, "start_max_s": start_max_s, "retry_s": retry_s, "retry_max_s": retry_max_s}
    check_report(report, figures)
    experiment = Experiment(
        runs=p.runs(policy, blind=blind),
        cluster=_cluster(cluster, gpus_per_node, prices, node_resources),
        settings=_settings(preset, rounds | {"packing": packing or None, "teams": p.teams(teams)}, costs),
        window=p.window(window) if window is not None else None,
        journal=p.writable_directory("--journal", journal) if journal is not None else None,
        trace=_trace(trace, generate, new, table := believed_table_of(throughputs), seed),
        seed=seed,
        throughputs=_pairs(table, throughputs) if packing else None,
        learning=_learning(estimate, claims_off, profile_gpu_s),
        options=_record(gpus_per_node, throughputs, preset, packing=packing, fairness=fairness, estimate=estimate)
        | _given({"generate": generate and new.given(), "claims_off": claims_off, "profile_gpu_s": profile_gpu_s}),
    )
    _output(experiment, run(experiment), report, figures, output)


def _amounts(cluster: Cluster) -> dict[str, dict[str, list[float]]]:
    """CPU cores and memory of a node of each type, for the record; empty if none are stated."""
    found = {node.gpu_type: [node.cpus, node.memory_gib] for node in cluster.nodes if node.cpus or node.memory_gib}
    return {"node_resources": found} if found else {}


def run(experiment: Experiment) -> dict[str, SimulationResult]:
    """The results by label; shows progress bars on a terminal."""
    from gavelpy.simulator.compare import compare

    if experiment.settings.little_work:
        notify(f"warning: {experiment.settings.little_work}")
    with progress_bar() as progress:
        return compare(
            experiment.trace,
            experiment.cluster,
            experiment.runs,
            settings=experiment.settings,
            seed=experiment.seed,
            window=experiment.window,
            progress=progress,
            journal_directory=experiment.journal,
            throughputs=experiment.throughputs,
            learning=experiment.learning,
            fairness=experiment.fairness,
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


def _record(gpus_per_node: int, throughputs: Path | None, preset: str, **flags: bool) -> dict[str, Any]:  # Any: JSON
    """Options for the record, with those of these flags that are set."""
    given = {"gpus_per_server": gpus_per_node, "throughputs": str(throughputs or "published"), "preset": preset}
    return given | {name: True for name, is_set in flags.items() if is_set}


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


def list_prices(gpu_types: Sequence[str]) -> dict[str, float]:
    """List prices in USD per GPU-hour of the types in the catalogue."""
    from gavelpy.traces.workloads import catalogue

    known = catalogue()
    return {name: known[name].price_usd_per_gpu_h for name in gpu_types if name in known}


def _output(
    experiment: Experiment,
    results: Mapping[str, SimulationResult],
    report: Path | None,
    figures: Path | None,
    output: Output,
) -> None:
    write_report(report, figures, experiment, results)
    if report is not None:
        notify(f"report: {report}")
    if output is Output.JSON:
        found = {label: result.metrics.to_json() for label, result in results.items()}
        echo_json({"parameters": experiment.parameters, "seed": experiment.seed, "results": found})
    else:
        show(results)
    _end_if_stalled(results)


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


def _learning(estimate: bool, claims_off: float | None, profile_gpu_s: float | None) -> Learning | None:
    if not estimate and claims_off is not None:
        raise InvalidInput(f"--claims-off needs --estimate, got --claims-off {claims_off:g} without")
    if not estimate and profile_gpu_s is not None:
        raise InvalidInput(f"--profile-gpu-s needs --estimate, got --profile-gpu-s {profile_gpu_s:g} without")
    if not estimate:
        return None
    from gavelpy.simulator.estimation import Learning

    return Learning(claims_off or 0.0, profile_gpu_s or 0.0)


def _cluster(text: str, gpus_per_node: int, prices: str | None, node_resources: str | None) -> Cluster:
    from gavelpy.model.cluster import Cluster

    if any(len(part) > 100 for part in text.split(",")):  # int() refuses numbers of thousands of digits
        raise InvalidInput(f"--cluster must look like v100:36,k80:12, got {text[:60]!r}...")
    bare = Cluster.parse(text, gpus_per_node=gpus_per_node)
    usd_per_gpu_h = list_prices(bare.gpu_types) | (p.prices(prices) if prices is not None else {})
    for gpu_type in usd_per_gpu_h:
        if gpu_type not in bare.gpu_types:
            raise InvalidInput(
                f"--prices must name types of the cluster ({', '.join(bare.gpu_types)}), got {gpu_type!r}"
            )
    amounts = p.node_resources(node_resources) if node_resources is not None else ({}, {})
    return Cluster.parse(text, gpus_per_node=gpus_per_node, price_usd_per_gpu_h=usd_per_gpu_h).with_amounts(*amounts)


def _settings(
    preset: str,
    mechanism: Mapping[str, Any],
    costs: Mapping[str, float | None],  # Any: settings of several types
) -> SimulationSettings:
    from gavelpy.simulator.settings import preset as settings_of

    base, given = settings_of(preset), _given(mechanism)
    settings = base.mechanism
    if settings.lease_min_s and "round_s" in given:
        settings = settings.with_round(given["round_s"])
    if "retry_s" in given and "retry_max_s" not in given:
        given["retry_max_s"] = max(settings.retry_max_s, given["retry_s"])
    return replace(
        base,
        mechanism=replace(settings, **given),
        costs=replace(base.costs, **_given(costs)),
        mechanism_given=frozenset(given),
    )


def _given(values: Mapping[str, Any]) -> dict[str, Any]:  # Any: values of several types
    return {name: value for name, value in values.items() if value is not None}


def _trace(path: Path | None, count: int | None, choices: GeneratorChoices, table: ThroughputTable, seed: int) -> Trace:
    if (path is None) == (count is None):
        raise InvalidInput(
            "simulate takes either a TRACE or --generate N, got " + ("neither" if path is None else "both")
        )
    if count is None:
        from gavelpy.traces.reader import read_trace

        assert path is not None
        for name in choices.given():
            raise InvalidInput(f"--{name.replace('_', '-')} needs --generate N, got the trace {str(path)!r}")
        found = read_trace(path, throughputs=table)
        warn_of_trace(found)
        return _warned_of_unknown(found)
    import numpy as np

    from gavelpy.traces.generator import generate

    return _warned_of_unknown(generate(choices.options(count), table, np.random.default_rng(seed)))


def _warned_of_unknown(trace: Trace) -> Trace:
    unknown = sorted({(job.job_type, job.gpus) for job in trace.jobs if not job.rates_steps_per_s})
    if unknown:
        count = sum(not job.rates_steps_per_s for job in trace.jobs)
        name, gpus = unknown[0]
        notify(
            f"warning: {count:,} of {len(trace):,} jobs have no throughputs and cannot run, such as {name!r} on {gpus} "
            "GPUs; --throughputs FILE gives them"
        )
    return trace
