"""`gavel nodes`, `drain` and `node`: the machines that jobs run on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.formatting import DASH, as_json, duration
from gavelpy.cli.output import Output, echo_json_list, printable
from gavelpy.cli.tables import TableData, show

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

app = typer.Typer(no_args_is_help=True, help="Declare a node lost, or take it back.", rich_markup_mode="rich")


def nodes(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """List the nodes: their GPUs, what runs on them, when they were last heard of.

    \b
    Examples:
      gavel nodes
      gavel nodes -o json
    """
    with c.connected(scheduler, token_file, timeout) as client:
        found = client.nodes()
    _show(found, output)


def drain(
    node: c.NodeArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also stop jobs that never saved a checkpoint; they start from scratch.")
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Give a node no new leases; those it has end with the round. For admins.

    A job that never saved a checkpoint is not preempted: it runs until it ends, unless you drain with --force.

    \b
    Examples:
      gavel drain n1
      gavel drain n1 --force
      gavel node resume n1
    """
    _wish(node, "NODE_WISH_DRAIN", output, scheduler, token_file, timeout, force=force)


@app.command()
def lost(
    node: c.NodeArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Vouch that nothing runs on a node any more: its jobs start elsewhere at once. For admins.

    Say it of a machine that is off, not of one that is cut off: there jobs may still run.

    \b
    Example:
      gavel node lost n1
    """
    _wish(node, "NODE_WISH_LOST", output, scheduler, token_file, timeout)


@app.command()
def resume(
    node: c.NodeArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Give a drained node leases again. For admins.

    \b
    Example:
      gavel node resume n1
    """
    _wish(node, "NODE_WISH_RESUME", output, scheduler, token_file, timeout)


def nodes_table(found: Iterable[client_pb2.NodeStatus]) -> TableData:
    """A row a node."""
    titles = ("node", "state", "GPUs", "in use", "type", "jobs", "heard", "address", "containment", "remarks")
    rows = [
        (
            printable(node.node_id),
            printable(node.state),
            str(node.gpu_count),
            str(node.gpus_in_use),
            printable(node.gpu_type),
            ", ".join(str(job) for job in node.jobs) or DASH,
            duration(node.heartbeat_age_s),
            printable(node.address),
            printable(node.containment) or DASH,
            printable(", ".join(_remarks(node))),
        )
        for node in found
    ]
    return TableData(titles, frozenset(("GPUs", "in use", "heard")), rows)


def _remarks(node: client_pb2.NodeStatus) -> Iterator[str]:
    if not node.sees_checkpoints:
        yield "does not use the cluster's checkpoint directory"
    if node.detail:
        yield node.detail


def _wish(
    node: str,
    wish: str,
    output: Output,
    scheduler: str | None,
    token_file: Path | None,
    timeout: float | None,
    *,
    force: bool = False,
) -> None:
    from gavelpy.runtime.wire import client_pb2

    with c.connected(scheduler, token_file, timeout) as client:
        found = client.set_node(node, client_pb2.NodeWish.Value(wish), force=force)
    _show([found], output)


def _show(found: Sequence[client_pb2.NodeStatus], output: Output) -> None:
    if output is Output.JSON:
        echo_json_list("nodes", [as_json(node) for node in found])
    else:
        show(nodes_table(found))
