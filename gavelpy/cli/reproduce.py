"""`gavel reproduce`: figures of papers, each next to the published value."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as so
from gavelpy.cli.output import DASH, Output, TableData, console, echo_json, notify, show_table
from gavelpy.cli.progress import shown_progress
from gavelpy.cli.simulation_choices import takes_choices
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.model.fractional import FractionalNodes, FractionalTasks
    from gavelpy.report.plots import Figure
    from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction
    from gavelpy.simulator.fragmentation import PlacementStudy

FGD_PUBLISHED: Mapping[str, float] = {"random": 0.8747, "best_fit": 0.9308, "fgd": 0.9539}
"""Share of GPUs allocated on `openb_pod_list_default` at a load of 1.3, mean of ten seeds, by the authors' program.

Source: experiments/analysis/expected_results in github.com/hkust-adsl/kubernetes-scheduler-simulator.
"""
_FGD_SEEDS = 10  # of the source
_FGD_LOAD = 1.3

app = typer.Typer(no_args_is_help=True, help="Compute figures of papers again, next to the published values.")

NodesOption = Annotated[
    Path, typer.Option("--nodes", metavar="FILE", help="Node list of openb (openb_node_list_gpu_node.csv).")
]
PodsOption = Annotated[
    Path, typer.Option("--pods", metavar="FILE", help="Pod list of openb (openb_pod_list_default.csv).")
]
TraceFileOption = Annotated[
    Path, typer.Option("--trace", metavar="FILE", help="Shockwave's trace (12 columns): 120_jobs_dynamic.trace.")
]
WorkloadOption = Annotated[
    Path, typer.Option("--workload", metavar="FILE", help="One of Sia's workloads, with its profiles in ../profiles.")
]
LoadOption = Annotated[
    float,
    typer.Option(metavar="X", parser=o.number(0.01, 10), help="GPUs that tasks need in all, as a share of the GPUs."),
]
SeedsOption = Annotated[
    int, typer.Option(metavar="N", parser=o.whole(1, 1000), help="Runs, with the seeds --seed, --seed + 1 and so on.")
]
FullOption = Annotated[bool, typer.Option("--full", help=f"As many runs as the source: {_FGD_SEEDS}.")]


PaperSizeOption = Annotated[
    bool, typer.Option("--full", help="The size of the paper: minutes to hours, where the small one takes a minute.")
]
TracesOption = Annotated[
    int | None,
    typer.Option("--seeds", metavar="N", parser=o.whole(1, 1000), help="Number of traces. Default: 1; --full: 3."),
]
RatesOption = Annotated[
    str | None, typer.Option(metavar="X,Y,...", help="Loads in jobs per hour. Default: the figure's.")
]


@dataclass(frozen=True)
class NoChoices:
    """Of a figure with one size."""

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {}


@dataclass(frozen=True)
class FullChoices(NoChoices):
    """Small, or as in the paper."""

    full: PaperSizeOption = False

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {"is_full": self.full}


@dataclass(frozen=True)
class TraceNumberChoices(FullChoices):
    """Also the number of traces."""

    seeds: TracesOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "seeds": self.seeds}


@dataclass(frozen=True)
class RateChoices(TraceNumberChoices):
    """Also the loads."""

    rates: RatesOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "rates_per_h": _rates(self.rates) if self.rates is not None else None}


@dataclass(frozen=True)
class LoadChoices(RateChoices):
    """Also the jobs that are measured."""

    window: so.WindowOption = None

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "window": p.window(self.window) if self.window is not None else None}


@app.callback()
def _group() -> None:
    """A group, however few commands it has."""


def _register(name: str, place: str, choices: type[NoChoices], text: str, *examples: str) -> None:
    """Adds the command of a figure, which is at `place` (module:name) of `gavelpy.reproduction`."""

    def command(
        *,
        choices: NoChoices,
        throughputs: Path | None = None,
        figures: Path | None = None,
        output: Output = Output.TABLE,
    ) -> None:
        module, _, attribute = place.partition(":")
        _reproduce(
            lambda: getattr(import_module(f"gavelpy.reproduction.{module}"), attribute),
            choices,
            throughputs,
            figures,
            output,
        )

    command.__annotations__ = {
        "choices": choices,
        "throughputs": o.ThroughputsOption,
        "figures": so.FiguresOption,
        "output": o.OutputOption,
        "return": None,
    }
    lines = "".join(f"  gavel reproduce {name} {example}".rstrip() + "\n" for example in examples)
    command.__doc__ = f"{text}\n\n\b\nExamples:\n{lines}"
    app.command(name)(takes_choices(command))


_OVER_LOAD = "--rates 1,4 --seeds 3 --figures out"
_register("fig8", "load:FIG8", LoadChoices, "Gavel: max-min fairness over load, jobs of one GPU.", "", _OVER_LOAD)
_register("fig9", "load:FIG9", LoadChoices, "Gavel: max-min fairness over load, jobs of 1 to 8 GPUs.", "", _OVER_LOAD)
_register("fig10", "load:FIG10", LoadChoices, "Gavel: finish-time fairness over load.", "", _OVER_LOAD)
_register("fig11", "answers:FIG11", NoChoices, "Gavel: multi-level fairness as jobs arrive.", "", "--figures out")
_register("fig12", "answers:FIG12", FullChoices, "Gavel: CPU time of policies over jobs.", "", "--full -o json")
_register("fig13", "rounds:FIG13", RateChoices, "Gavel: the round mechanism against ideal shares.", "", "--rates 2,4")
_register(
    "fig14",
    "estimates:FIG14",
    RateChoices,
    "Gavel: co-location with estimated and with true rates.",
    "--throughputs simulation_throughputs.json",
    "--throughputs simulation_throughputs.json --rates 2,8 --figures out",
)
_register("makespan", "objectives:MAKESPAN", TraceNumberChoices, "Gavel: makespan of jobs at once.", "", "--seeds 3")
_register(
    "cost", "objectives:COST", RateChoices, "Gavel: cost of all jobs, with deadlines or without.", "", "--rates 1,2"
)

_register("slaq", "slaq:SLAQ", TraceNumberChoices, "SLAQ: losses over time, against fair shares.", "", "--seeds 3")


def _reproduce(
    find: Callable[[], PublishedFigure],
    choices: NoChoices,
    throughputs: Path | None,
    figures: Path | None,
    output: Output,
) -> None:
    _check_figures(figures)
    from gavelpy.reproduction.published import FigureSize

    table = p.table_of(throughputs) if throughputs is not None else None
    with shown_progress(quiet=output is Output.JSON) as progress:
        size = FigureSize(**choices.size(), throughputs=table, progress=progress)
        figure = find()
        found = figure.reproduce(size)
    if figures is not None:
        _draw(figures, found.figures)
    _show(figure, found, size, output)


def _check_figures(directory: Path | None) -> None:
    if directory is not None:
        from gavelpy.report import html

        html.check_installed("--figures")
        p.writable_directory("--figures", directory)


def _draw(directory: Path, figures: Sequence[Figure]) -> None:
    from gavelpy.report.export import write_curves

    notify(f"{len(write_curves(directory, figures))} files of figures and tables written to {directory}")


def _rates(text: str) -> tuple[float, ...]:
    read = o.number(0.0, 1e6)
    try:
        return tuple(map(read, text.split(",")))
    except typer.BadParameter as error:
        raise InvalidInput(f"--rates must look like 1,4.5 (jobs per hour), got {text[:60]!r}") from error


def _show(figure: PublishedFigure, found: Reproduction, size: FigureSize, output: Output) -> None:
    if output is Output.JSON:
        about = {key: getattr(figure, key) for key in ("name", "title", "source", "differences")}
        given = {"full": size.is_full, **found.parameters}
        rows = [row.to_json() for row in found.rows]
        echo_json({**about, "parameters": given, "rows": rows, "remarks": list(found.remarks)})
        return
    cells = [(row.at, row.run, row.quantity, *map(_text, (row.published, row.ours, row.ratio))) for row in found.rows]
    titles = ("at", "run", "quantity", "published", "ours", "ours / published")
    out = console()
    out.print(figure.title)
    show_table(TableData(titles, frozenset(titles[3:]), cells))
    out.print(f"source: {figure.source}")
    out.print(f"differences: {figure.differences}")
    for remark in found.remarks:
        notify(f"warning: {remark}")


def _text(value: float) -> str:
    return f"{value:.3g}" if math.isfinite(value) else DASH


@dataclass(frozen=True)
class _OnTrace(NoChoices):
    trace: Path

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {"trace": self.trace}


@app.command()
def shockwave(
    trace: TraceFileOption,
    throughputs: o.ThroughputsOption,
    figures: so.FiguresOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Shockwave and its baselines on 120 jobs with changing batch sizes.

    The trace and the table are those of its artifact (github.com/uw-mad-dash/shockwave, scheduler/).

    \b
    Examples:
      gavel reproduce shockwave --trace 120_jobs_dynamic.trace --throughputs tacc_throughputs.json
      gavel reproduce shockwave --trace FILE --throughputs FILE --figures out -o json
    """

    def find() -> PublishedFigure:
        from gavelpy.reproduction.shockwave import SHOCKWAVE

        return SHOCKWAVE

    _reproduce(find, _OnTrace(trace), throughputs, figures, output)


@dataclass(frozen=True)
class _OnWorkload(_OnTrace):
    full: bool

    def size(self) -> dict[str, Any]:  # Any: of several types
        """Fields of the size."""
        return {**super().size(), "is_full": self.full}


@app.command()
def sia(
    workload: WorkloadOption,
    full: PaperSizeOption = False,
    figures: so.FiguresOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Sia, Pollux and max-min fairness on Sia's workloads.

    Workloads and profiles are those of its artifact (github.com/siasosp23/artifacts). By default the first 40 jobs;
    with --full all jobs of all workloads of the same kind (philly, newtrace) next to this one.

    \b
    Examples:
      gavel reproduce sia --workload workloads/philly-workload-1.csv
      gavel reproduce sia --workload workloads/newtrace-workload-1.csv --full -o json
    """

    def find() -> PublishedFigure:
        from gavelpy.reproduction.sia import SIA

        return SIA

    _reproduce(find, _OnWorkload(workload, full), None, figures, output)


@app.command()
def fgd(
    nodes: NodesOption,
    pods: PodsOption,
    load: LoadOption = _FGD_LOAD,
    seeds: SeedsOption = 3,
    full: FullOption = False,
    seed: o.SeedOption = 0,
    figures: so.FiguresOption = None,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Place the pods of Alibaba's openb one by one: how many GPUs random, first fit, best fit and FGD allocate.

    \b
    Examples:
      gavel reproduce fgd --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv
      gavel reproduce fgd --nodes NODES.csv --pods PODS.csv --full -o json
      gavel reproduce fgd --nodes NODES.csv --pods PODS.csv --figures out
    """
    import numpy as np

    from gavelpy.traces.openb import read_openb_nodes, read_openb_pods

    _check_figures(figures)
    cluster = read_openb_nodes(nodes)
    tasks = read_openb_pods(pods, cluster.models).tasks
    count = _FGD_SEEDS if full else seeds
    courses = _courses(cluster, tasks, load, range(seed, seed + count))
    found = {name: np.array([course.allocated for course in runs]) for name, runs in courses.items()}
    if figures is not None:
        _draw(figures, (_over_demand({name: runs[0] for name, runs in courses.items()}),))
    rows = [
        {
            "strategy": name,
            "published": FGD_PUBLISHED.get(name) if load == _FGD_LOAD else None,
            "allocated": float(shares.mean()),
            "least": float(shares.min()),
            "most": float(shares.max()),
        }
        for name, shares in found.items()
    ]
    if output is Output.JSON:
        parameters = {"nodes": str(nodes), "pods": str(pods), "load": load, "seed": seed, "seeds": count}
        echo_json({"parameters": parameters, "strategies": rows})
        return
    titles = ("strategy", "published", "allocated", "least", "most")
    cells = [(str(row["strategy"]), *(_percent(row[title]) for title in titles[1:])) for row in rows]
    show_table(TableData(titles, frozenset(titles[1:]), cells))
    gpus, what = cluster.capacity_milli // 1000, f"{len(tasks):,} pods, inflated to {load:.0%} of the GPUs"
    notify(f"{len(cluster.node_ids):,} nodes with {gpus:,} GPUs; {what}; {count} runs")


def _courses(
    cluster: FractionalNodes, tasks: FractionalTasks, load: float, seeds: Sequence[int]
) -> dict[str, list[PlacementStudy]]:
    """The runs of each strategy, one for each seed. Strategies see the same tasks in the same order."""
    import numpy as np

    from gavelpy.simulator.fragmentation import StudyStrategy, inflated, study

    found: dict[str, list[PlacementStudy]] = {strategy.value: [] for strategy in StudyStrategy}
    for seed in seeds:
        arrivals = inflated(tasks, cluster.capacity_milli, load, np.random.default_rng([seed, 0]))
        for strategy in StudyStrategy:
            found[strategy.value].append(study(cluster, tasks, arrivals, strategy, np.random.default_rng([seed, 1])))
    return found


def _over_demand(courses: Mapping[str, PlacementStudy]) -> Figure:
    """Share of GPUs allocated over the GPUs that tasks so far need: one run of each strategy."""
    from gavelpy.report.plots import POLICY_COLOURS, Axis, Figure, PlotCurve, Scale

    curves = tuple(
        PlotCurve(name, run.arrived_milli / run.capacity_milli, run.allocated_milli / run.capacity_milli, colour)
        for (name, run), colour in zip(courses.items(), POLICY_COLOURS, strict=False)
    )
    axes = Axis("GPUs needed so far / GPUs"), Axis("GPUs allocated", Scale.PERCENT)
    return Figure("allocated", "Share of GPUs allocated as tasks arrive", *axes, curves)


def _percent(share: object) -> str:
    return f"{share:.1%}".replace("%", " %") if isinstance(share, float) else DASH
