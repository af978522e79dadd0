"""`gavel demo`: simulates three policies, each blind and aware, on the shipped trace; then runs real jobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli import simulate as s
from gavelpy.cli.demo_live import check_installed, run_live

_POLICIES = ("fifo", "max_min_fairness", "min_makespan")
_GPUS = {"v100": 36, "p100": 36, "k80": 36}
_TRACE = "demo_trace.csv"  # in the workloads directory


def demo(
    report: Annotated[Path, typer.Option(metavar="FILE", help="HTML report to write.")] = Path("out/demo/report.html"),
    figures: o.FiguresOption = None,
    seed: o.SeedOption = 0,
    live: Annotated[
        bool,
        typer.Option("--live/--no-live", help="Then run real training jobs on three local agents (about a minute)."),
    ] = True,
) -> None:
    """Compare policies with and without knowledge of the throughputs, on 108 simulated GPUs of three types.

    Then run seven training jobs on this machine, with a scheduler and three agents, one of which is killed on the way.

    \b
    Examples:
      gavel demo
      gavel demo --no-live
    """
    from gavelpy.model.cluster import Cluster
    from gavelpy.simulator.compare import PolicyRun
    from gavelpy.simulator.presets import preset
    from gavelpy.traces.reader import read_trace
    from gavelpy.traces.workloads import workloads_directory

    s.check_report(report, figures)
    if live:
        check_installed()
    trace = read_trace(workloads_directory() / _TRACE)
    experiment = s.Experiment(
        trace=trace,
        cluster=Cluster.of(_GPUS, price_usd_per_gpu_h=s.list_prices(list(_GPUS))),
        runs=[PolicyRun(policy, blind) for policy in _POLICIES for blind in (True, False)],
        settings=preset("default"),
        seed=seed,
    )
    typer.echo(experiment.title)
    results = s.run(experiment)
    s.show(results)
    s.write_report(report, figures, experiment, results)
    typer.echo(f"\nreport: {report}")
    if live:
        run_live(report.parent / "live")
