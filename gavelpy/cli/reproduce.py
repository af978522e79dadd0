"""`gavel reproduce`: figures of papers, each next to the published value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, echo_json, notify, show_table

if TYPE_CHECKING:
    from gavelpy.model.arrays import Floats
    from gavelpy.model.fractional import FractionalNodes, FractionalTasks

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
LoadOption = Annotated[
    float,
    typer.Option(metavar="X", parser=o.number(0.01, 10), help="GPUs that tasks need in all, as a share of the GPUs."),
]
SeedsOption = Annotated[
    int, typer.Option(metavar="N", parser=o.whole(1, 1000), help="Runs, with the seeds --seed, --seed + 1 and so on.")
]
FullOption = Annotated[bool, typer.Option("--full", help=f"As many runs as the source: {_FGD_SEEDS}.")]


@app.callback()
def _group() -> None:
    """A group, however few commands it has."""


@app.command()
def fgd(
    nodes: NodesOption,
    pods: PodsOption,
    load: LoadOption = _FGD_LOAD,
    seeds: SeedsOption = 3,
    full: FullOption = False,
    seed: o.SeedOption = 0,
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Place the pods of Alibaba's openb one by one: how many GPUs random, first fit, best fit and FGD allocate.

    \b
    Examples:
      gavel reproduce fgd --nodes openb_node_list_gpu_node.csv --pods openb_pod_list_default.csv
      gavel reproduce fgd --nodes NODES.csv --pods PODS.csv --full -o json
    """
    from gavelpy.traces.openb import read_openb_nodes, read_openb_pods

    cluster = read_openb_nodes(nodes)
    tasks = read_openb_pods(pods, cluster.models).tasks
    count = _FGD_SEEDS if full else seeds
    found = _allocated(cluster, tasks, load, range(seed, seed + count))
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


def _allocated(
    cluster: FractionalNodes, tasks: FractionalTasks, load: float, seeds: Sequence[int]
) -> dict[str, Floats]:
    """Share of GPUs allocated by each strategy, (runs,). Strategies see the same tasks in the same order."""
    import numpy as np

    from gavelpy.simulator.fragmentation import StudyStrategy, inflated, study

    shares: dict[str, list[float]] = {strategy.value: [] for strategy in StudyStrategy}
    for seed in seeds:
        arrivals = inflated(tasks, cluster.capacity_milli, load, np.random.default_rng([seed, 0]))
        for strategy in StudyStrategy:
            result = study(cluster, tasks, arrivals, strategy, np.random.default_rng([seed, 1]))
            shares[strategy.value].append(result.allocated)
    return {name: np.array(values) for name, values in shares.items()}


def _percent(share: object) -> str:
    return f"{share:.1%}".replace("%", " %") if isinstance(share, float) else DASH
