"""`gavel reproduce`: figures of papers, each next to the published value."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import reproduction_choices as c
from gavelpy.cli import simulation_options as so
from gavelpy.cli.output import DASH, Output, TableData, console, echo_json, notify, show_table
from gavelpy.cli.progress import shown_progress
from gavelpy.cli.simulation_choices import takes_choices

if TYPE_CHECKING:
    from gavelpy.report.plots import Figure
    from gavelpy.reproduction.published import FigureSize, PublishedFigure, Reproduction

_FGD_SEEDS = 10  # of the source
_FGD_LOAD = 1.3  # the same

app = typer.Typer(no_args_is_help=True, help="Compute figures of papers again, next to the published values.")

NodesOption = Annotated[
    Path, typer.Option("--nodes", metavar="FILE", help="Node list of openb (openb_node_list_gpu_node.csv).")
]
PodsOption = Annotated[
    Path, typer.Option("--pods", metavar="FILE", help="Pod list of openb (openb_pod_list_default.csv).")
]
LoadOption = Annotated[
    float,
    typer.Option(metavar="X", parser=o.number(0.01, 10), help="GPUs that tasks need in all, as a share of the GPUs."),
]
SeedsOption = Annotated[
    int, typer.Option(metavar="N", parser=o.whole(1, 1000), help="Runs, with the seeds --seed, --seed + 1 and so on.")
]
FullOption = Annotated[bool, typer.Option("--full", help=f"As many runs as the source: {_FGD_SEEDS}.")]


@dataclass(frozen=True)
class FigureCommand:
    """The command of a figure, which is at `place` (module:name) of `gavelpy.reproduction`."""

    name: str
    place: str
    choices: type[c.NoChoices]
    text: str
    examples: tuple[str, ...]  # options

    def find(self) -> PublishedFigure:
        """The figure, loaded at its first use."""
        module, _, attribute = self.place.partition(":")
        found: PublishedFigure = getattr(import_module(f"gavelpy.reproduction.{module}"), attribute)
        return found

    def register(self) -> None:
        """Adds the command to `app`."""

        def command(*, choices: c.NoChoices, figures: Path | None = None, output: Output = Output.TABLE) -> None:
            _reproduce(self, choices, figures, output)

        command.__annotations__ = {
            "choices": self.choices,
            "figures": so.FiguresOption,
            "output": o.OutputOption,
            "return": None,
        }
        lines = "".join(f"  gavel reproduce {self.name} {options}".rstrip() + "\n" for options in self.examples)
        command.__doc__ = f"{self.text}\n\n\b\nExamples:\n{lines}"
        app.command(self.name)(takes_choices(command))


_OVER_LOAD = ("", "--rates 1,4 --seeds 3 --figures out")
_GAVEL_RATES = "--throughputs simulation_throughputs.json"
COMMANDS = (
    FigureCommand(
        "fig8", "load:FIG8", c.LoadChoices, "Gavel: max-min fairness over load, jobs of one GPU.", _OVER_LOAD
    ),
    FigureCommand(
        "fig9", "load:FIG9", c.LoadChoices, "Gavel: max-min fairness over load, jobs of 1 to 8 GPUs.", _OVER_LOAD
    ),
    FigureCommand("fig10", "load:FIG10", c.LoadChoices, "Gavel: finish-time fairness over load.", _OVER_LOAD),
    FigureCommand(
        "fig11",
        "answers:FIG11",
        c.TableChoices,
        "Gavel: multi-level fairness as jobs arrive.",
        ("", "--figures out"),
    ),
    FigureCommand(
        "fig12", "answers:FIG12", c.FullChoices, "Gavel: CPU time of policies over jobs.", ("", "--full -o json")
    ),
    FigureCommand(
        "fig13",
        "rounds:FIG13",
        c.RateChoices,
        "Gavel: the round mechanism against ideal shares.",
        ("", "--rates 2,4"),
    ),
    FigureCommand(
        "preemption",
        "preemption:PREEMPTION",
        c.RateChoices,
        "Gavel: GPU time that starts and stops take, with and without extended leases.",
        ("", "--rates 2,4 --figures out"),
    ),
    FigureCommand(
        "fig14",
        "estimates:FIG14",
        c.RateChoices,
        "Gavel: co-location with estimated and with true rates.",
        (_GAVEL_RATES, f"{_GAVEL_RATES} --rates 2,8 --figures out"),
    ),
    FigureCommand(
        "makespan",
        "objectives:MAKESPAN",
        c.TraceNumberChoices,
        "Gavel: makespan of jobs at once.",
        ("", "--seeds 3"),
    ),
    FigureCommand(
        "cost",
        "objectives:COST",
        c.RateChoices,
        "Gavel: cost of all jobs, with deadlines or without.",
        ("", "--rates 1,2"),
    ),
    FigureCommand(
        "slaq",
        "slaq:SLAQ",
        c.TraceNumberChoices,
        "SLAQ: losses over time, against fair shares.",
        ("", "--seeds 3"),
    ),
    FigureCommand(
        "tiresias",
        "tiresias:TIRESIAS_ON_PHILLY",
        c.RecordedChoices,
        "Tiresias: completion times on Philly's jobs, against FIFO and capacity queues.\n\n"
        "The trace is Philly's CSV (timestamp, duration, num_gpus, gpu_time, cluster).",
        ("", "--trace philly.csv", "--trace philly.csv --full --figures out"),
    ),
    FigureCommand(
        "elasticflow",
        "elasticflow:DEADLINES_MET",
        c.RecordedChoices,
        "ElasticFlow: deadlines met, against other schedulers.\n\n"
        "The trace is cluster01.csv of github.com/microsoft/elasticflow-traces, with deadlines.",
        ("", "--trace cluster01.csv", "--trace cluster01.csv --full --figures out"),
    ),
    FigureCommand(
        "dorm",
        "dorm:AGAINST_PARTITIONS",
        c.TraceNumberChoices,
        "Dorm: utilisation, against static partitions.",
        ("", "--full --figures out"),
    ),
    FigureCommand(
        "oasis",
        "oasis:TOTAL_VALUES",
        c.TraceNumberChoices,
        "OASiS: total value of completed jobs, against FIFO, DRF and Dorm.",
        ("", "--full --figures out"),
    ),
    FigureCommand(
        "themis",
        "themis:WORST_RATIOS",
        c.TraceNumberChoices,
        "Themis: worst finish-time ratio, against Tiresias and Gandiva.",
        ("", "--full --figures out"),
    ),
    FigureCommand(
        "shockwave",
        "shockwave:SHOCKWAVE",
        c.ShockwaveChoices,
        "Shockwave and its baselines on 120 jobs with changing batch sizes.\n\n"
        "The trace and the table are those of its artifact (github.com/uw-mad-dash/shockwave, scheduler/).",
        (
            "--trace 120_jobs_dynamic.trace --throughputs tacc_throughputs.json",
            "--trace FILE --throughputs FILE --figures out -o json",
        ),
    ),
    FigureCommand(
        "sia",
        "sia:SIA",
        c.SiaChoices,
        "Sia, Pollux and max-min fairness on Sia's workloads.\n\n"
        "Workloads and profiles are those of its artifact (github.com/siasosp23/artifacts). By default the first 40"
        " jobs; with --full all jobs of all workloads of the same kind (philly, newtrace) next to this one.",
        ("--workload workloads/philly-workload-1.csv", "--workload workloads/newtrace-workload-1.csv --full -o json"),
    ),
    FigureCommand(
        "pollux",
        "sia_learning:POLLUX",
        c.SiaChoices,
        "Pollux in Sia's simulator: what its search and its learning change.\n\n"
        "By default the first 15 jobs; with --full all jobs of all workloads of the same kind next to this one.",
        ("--workload workloads/philly-workload-1.csv", "--workload workloads/philly-workload-1.csv --full -o json"),
    ),
)


@app.callback()
def _group() -> None:
    """A group, however few commands it has."""


for _command in COMMANDS:
    _command.register()


def _reproduce(command: FigureCommand, choices: c.NoChoices, figures: Path | None, output: Output) -> None:
    _check_figures(figures)
    from gavelpy.reproduction.published import FigureSize

    fields, source = choices.size(), _source(choices.files())
    with shown_progress(quiet=output is Output.JSON) as progress:
        size = FigureSize(**fields, progress=progress)
        figure = command.find()
        found = figure.reproduce(size)
    if figures is not None:
        _draw(figures, found.figures)
    _show(figure, found, size, source, output)


def _source(files: Sequence[Path]) -> dict[str, Any]:  # Any: JSON values
    """SHA-256 of the files that were given, and the version of gavelpy."""
    from gavelpy import __version__
    from gavelpy.traces.node_events import hashes_of

    return {"sha256": hashes_of(files), "version": __version__}


def _check_figures(directory: Path | None) -> None:
    if directory is not None:
        from gavelpy.report import html

        html.check_installed("--figures")
        p.writable_directory("--figures", directory)


def _draw(directory: Path, figures: Sequence[Figure]) -> None:
    from gavelpy.report.export import write_curves

    notify(f"{len(write_curves(directory, figures))} files of figures and tables written to {directory}")


def _show(
    figure: PublishedFigure,
    found: Reproduction,
    size: FigureSize,
    source: Mapping[str, Any],  # Any: JSON values
    output: Output,
) -> None:
    if output is Output.JSON:
        about = {key: getattr(figure, key) for key in ("name", "title", "source", "differences")}
        given = {"full": size.is_full, **found.parameters, **source}
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
    from gavelpy.reproduction.fgd import allocated_rows, courses_of, over_demand
    from gavelpy.traces.openb import read_openb_nodes, read_openb_pods

    _check_figures(figures)
    cluster = read_openb_nodes(nodes)
    tasks = read_openb_pods(pods, cluster.models).tasks
    count = _FGD_SEEDS if full else seeds
    courses = courses_of(cluster, tasks, load, range(seed, seed + count))
    if figures is not None:
        _draw(figures, (over_demand({name: runs[0] for name, runs in courses.items()}),))
    rows = allocated_rows(courses, load)
    if output is Output.JSON:
        choices = {"nodes": str(nodes), "pods": str(pods), "load": load, "seed": seed, "seeds": count}
        parameters = choices | _source([nodes, pods])
        echo_json({"parameters": parameters, "strategies": rows})
        return
    titles = ("strategy", "published", "allocated", "least", "most")
    cells = [(str(row["strategy"]), *(_percent(row[title]) for title in titles[1:])) for row in rows]
    show_table(TableData(titles, frozenset(titles[1:]), cells))
    gpus, what = cluster.capacity_milli // 1000, f"{len(tasks):,} pods, inflated to {load:.0%} of the GPUs"
    notify(f"{len(cluster.node_ids):,} nodes with {gpus:,} GPUs; {what}; {count} runs")


def _percent(share: object) -> str:
    return f"{share:.1%}".replace("%", " %") if isinstance(share, float) else DASH
