"""`gavel nodes`, `drain` and `node`: lists, drains and resumes nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, MORE, Output, TableData, as_json, duration, echo_json_list, printable, show_table

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

app = typer.Typer(no_args_is_help=True, help="Declare a node lost, or resume it.", rich_markup_mode="rich")


def nodes(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """List the nodes with their GPUs, their jobs and the age of their last report.

    \b
    Examples:
      gavel nodes
      gavel nodes -o json
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.nodes()
    _show(found, output, c.staleness(client))


def drain(
    node: c.NodeArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Stop jobs without a checkpoint, too; they restart from scratch.")
    ] = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Drain a node: no new leases; the present ones end with the round. For admins.

    Jobs that have never saved a checkpoint keep running until they finish, unless you use --force.

    \b
    Examples:
      gavel drain n1
      gavel drain n1 --force
      gavel node resume n1
    """
    _set_node(node, "NODE_WISH_DRAIN", output, scheduler, token_file, timeout, force=force)


@app.command()
def lost(
    node: c.NodeArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Declare that nothing runs on a node any more: its jobs restart elsewhere at once. For admins.

    Use it only for a node that is powered off. On a node that is merely unreachable jobs may still be running.

    \b
    Example:
      gavel node lost n1
    """
    _set_node(node, "NODE_WISH_LOST", output, scheduler, token_file, timeout)


@app.command()
def resume(
    node: c.NodeArgument,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Resume a drained node: grant leases on it again. For admins.

    \b
    Example:
      gavel node resume n1
    """
    _set_node(node, "NODE_WISH_RESUME", output, scheduler, token_file, timeout)


def nodes_table(found: Iterable[client_pb2.NodeStatus]) -> TableData:
    """One row per node."""
    titles = (
        "node",
        "state",
        "GPUs",
        "in use",
        "type",
        "place",
        "free cores",
        "free GiB",
        "jobs",
        "last report",
        "address",
        "containment",
        "images",
        "remarks",
    )
    rows = [
        (
            printable(node.node_id),
            printable(node.state),
            str(node.gpu_count),
            str(node.gpus_in_use),
            printable(node.gpu_type),
            printable("/".join(name for name in (node.region, node.zone, node.rack) if name)) or DASH,
            _free(node.cpus, node.cpus_in_use),
            _free(node.memory_gib, node.memory_gib_in_use),
            ", ".join(str(job) for job in node.jobs) or DASH,
            duration(node.heartbeat_age_s),
            printable(node.address),
            printable(node.containment) or DASH,
            printable(DASH if node.images.startswith("no: ") else node.images) or DASH,
            printable(", ".join(_remarks(node))),
        )
        for node in found
    ]
    return TableData(titles, frozenset(("GPUs", "in use", "free cores", "free GiB", "last report")), rows)


def _free(amount: float, in_use: float) -> str:
    """What is left of an amount, as `12/32`; 0 = the amount is not known."""
    return f"{amount - in_use:g}/{amount:g}" if amount else DASH


def _remarks(node: client_pb2.NodeStatus) -> Iterator[str]:
    if not node.sees_checkpoints:
        yield "does not use the cluster's checkpoint directory"
    if node.detail:
        yield node.detail


def _set_node(
    node: str,
    action: str,
    output: Output,
    scheduler: str | None,
    token_file: Path | None,
    timeout: float | None,
    *,
    force: bool = False,
) -> None:
    from gavelpy.runtime.wire import client_pb2

    with c.connected(scheduler, token_file, timeout) as client:
        found = client.set_node(node, client_pb2.NodeWish.Value(action), force=force)
    _show([found], output)


def _show(found: Sequence[client_pb2.NodeStatus], output: Output, more: Mapping[str, Any] = MORE) -> None:
    if output is Output.JSON:
        echo_json_list("nodes", [as_json(node) for node in found], more)
    else:
        show_table(nodes_table(found))
