"""`gavel reserve` and `reservations`: reserves nodes for users or maintenance, lists and deletes reservations."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import (
    DASH,
    MORE,
    Output,
    TableData,
    as_json,
    echo_json_list,
    notify,
    printable,
    show_table,
    timestamp,
)
from gavelpy.cli.times import moment, span
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the reservation.")]
NodesOption = Annotated[
    str, typer.Option("--nodes", metavar="NODE,NODE", help="Nodes to reserve. Required unless you delete.")
]
FromOption = Annotated[
    str | None,
    typer.Option("--from", metavar="TIME", help="Begin: 2026-05-01T08:00, 22:00, or +2h (local time). Default: now."),
]
ToOption = Annotated[str | None, typer.Option("--to", metavar="TIME", help="End, as --from.")]
ForOption = Annotated[
    str | None, typer.Option("--for", metavar="SPAN", help="Length, in place of an end: 90m, 2h, 1d.")
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user",
        metavar="USER,USER",
        help="Reserve for these users: only their jobs that name the reservation run there.",
    ),
]
ForceOption = Annotated[
    bool,
    typer.Option(
        "--force",
        help="With --user: reserve even if jobs that are not preempted may still run there at the begin. They run on.",
    ),
]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="Why; users see it.")]
DeleteOption = Annotated[bool, typer.Option("--delete", help="Delete the reservation; its nodes are usable at once.")]


def reserve(
    name: NameArgument,
    nodes: NodesOption = "",
    begin: FromOption = None,
    end: ToOption = None,
    length: ForOption = None,
    user: UserOption = None,
    reason: ReasonOption = "",
    force: ForceOption = False,
    delete: DeleteOption = False,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Reserve nodes for users or, without --user, for maintenance. For admins.

    For users: between the two times only their jobs run there that name the reservation (gavel submit --reservation).
    For maintenance: no job runs there. All jobs leave the nodes at the begin, also those without a checkpoint.
    The same name again replaces a reservation.

    \b
    Examples:
      gavel reserve disks --nodes n1,n2 --from 22:00 --for 2h --reason 'new disks'
      gavel reserve course --nodes n1,n2 --user alice,bob --from 2026-05-01T08:00 --for 8h
      gavel reserve course --delete
    """
    if delete:
        if nodes or reason or force or any(one is not None for one in (begin, end, length, user)):
            raise InvalidInput("--delete takes the name of a reservation and no other option of a reservation")
        with c.connected(scheduler, token_file, timeout) as client:
            _show(client.delete_reservation(name), output)
        return
    if force and user is None:
        raise InvalidInput("--force needs --user: at the begin of maintenance all jobs leave")
    wanted = _wanted(name, nodes, (begin, end, length), reason)
    wanted.users.extend(_named("--user", "users", user) if user is not None else ())
    with c.connected(scheduler, token_file, timeout) as client:
        answer = client.reserve(wanted, force=force)
        for note in answer.notes:
            notify(f"note: {note}")
        _show(answer.reservations, output)


def reservations(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """List the reservations of nodes that are not over.

    \b
    Example:
      gavel reservations
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.reservations()
    _show(found, output, c.staleness(client))


def _wanted(
    name: str, nodes: str, times: tuple[str | None, str | None, str | None], reason: str
) -> client_pb2.Reservation:
    from gavelpy.runtime.wire import client_pb2

    begin, end, length = times
    names = _named("--nodes", "nodes", nodes)
    if (end is None) == (length is None):
        raise InvalidInput("a reservation needs either --to TIME or --for SPAN")
    now_s = time.time()
    begin_s = now_s if begin is None else moment("--from", begin, now_s)
    end_s = moment("--to", end, now_s) if end is not None else begin_s + span("--for", length or "")
    return client_pb2.Reservation(name=name, node_ids=names, begin_at_s=begin_s, end_at_s=end_s, reason=reason)


def _named(option: str, what: str, text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        example = {"nodes": "n1,n2", "users": "alice,bob"}[what]
        raise InvalidInput(f"{option} must name one or more {what}, each once, such as {example}, got {text[:60]!r}")
    return names


def _show(found: Sequence[client_pb2.Reservation], output: Output, more: Mapping[str, Any] = MORE) -> None:
    if output is Output.JSON:
        echo_json_list("reservations", [as_json(each) for each in found], more)
        return
    rows = [
        (
            printable(each.name),
            "in force" if each.in_force else "coming",
            timestamp(each.begin_at_s),
            timestamp(each.end_at_s),
            printable(", ".join(each.node_ids)),
            f"{each.gpus_in_use}/{each.gpus}" if each.users else DASH,
            printable(", ".join(each.users) or DASH),
            printable(each.reason),
        )
        for each in found
    ]
    show_table(TableData(("name", "state", "begin", "end", "nodes", "GPUs used", "users", "reason"), frozenset(), rows))
