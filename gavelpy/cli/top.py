"""`gavel top`: a live view of the cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.formatting import as_json, compact, duration
from gavelpy.cli.output import Output, console, echo_json, printable
from gavelpy.cli.tables import as_rich

if TYPE_CHECKING:
    from rich.console import Group

    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.wire import client_pb2

_JOBS_SHOWN = 40


def top(
    once: Annotated[bool, typer.Option("--once", help="Print once; the default if stdout is not a terminal.")] = False,
    every: Annotated[float, typer.Option(metavar="S", parser=o.number(0.1, 3600), help="Refresh interval.")] = 1.0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Watch the cluster: GPUs by type, nodes, and your jobs with their progress. Ctrl-C to quit.

    \b
    Examples:
      gavel top
      gavel top --once -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        if output is Output.JSON:
            cluster, nodes, jobs = _fetched(client)
            echo_json(
                {
                    "cluster": as_json(cluster),
                    "nodes": [as_json(node) for node in nodes],
                    "jobs": [as_json(job) for job in jobs],
                }
            )
        elif once or not sys.stdout.isatty():
            console().print(_drawn(client))
        else:
            _watch(client, every, outlasts=timeout is None)


def _watch(client: Client, every_s: float, *, outlasts: bool) -> None:
    from rich.live import Live

    with Live(_drawn(client), console=console(), screen=True, auto_refresh=False) as live:
        for shown in pictures(lambda: _drawn(client), outlasts=outlasts):
            live.update(shown, refresh=True)
            time.sleep(every_s)


def pictures(draw: Callable[[], Group], *, outlasts: bool) -> Iterator[Group]:
    """Successive screens; during an outage the last one, under a message."""
    from rich.console import Group
    from rich.text import Text

    from gavelpy.errors import SchedulerUnreachable

    last = shown = draw()
    while True:
        yield shown
        try:
            last = shown = draw()
        except SchedulerUnreachable as error:
            if not outlasts:
                raise
            shown = Group(Text(printable(f"{error}; waiting for it. Last known state:")), last)


def _fetched(
    client: Client,
) -> tuple[client_pb2.GetClusterResponse, list[client_pb2.NodeStatus], list[client_pb2.Job]]:
    return client.cluster(), client.nodes(), client.jobs()


def _drawn(client: Client) -> Group:
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    from gavelpy.cli.jobs import jobs_table
    from gavelpy.cli.nodes import nodes_table

    cluster, nodes, jobs = _fetched(client)
    head = (
        f"{cluster.cluster_name}: policy {cluster.policy}{' (blind)' if cluster.blind else ''}, round {cluster.round} "
        f"ends in {duration(cluster.round_ends_in_s)}; jobs: {cluster.jobs_running:,} running, "
        f"{cluster.jobs_waiting:,} waiting, {cluster.jobs_over:,} over; up for {duration(cluster.uptime_s)}"
    )
    types = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("GPU type", "GPUs", "in use", "marginal value"):
        types.add_column(title, justify="left" if title == "GPU type" else "right")
    for kind in cluster.types:
        types.add_row(printable(kind.gpu_type), str(kind.gpus), str(kind.gpus_in_use), compact(kind.price))
    ordered = sorted(jobs, key=lambda job: (job.lease < 0, job.job))
    more = [Text(f"and {len(jobs) - _JOBS_SHOWN:,} more jobs")] if len(jobs) > _JOBS_SHOWN else []
    trouble = [Text(printable(text)) for text in (cluster.warning, cluster.detail) if text]
    tables = (types, as_rich(nodes_table(nodes)), as_rich(jobs_table(ordered[:_JOBS_SHOWN])))
    return Group(Text(printable(head)), *trouble, *tables, *more)
