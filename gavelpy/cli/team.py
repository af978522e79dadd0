"""`gavel team list`: the teams that share the cluster, with what each has of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import options as o
from gavelpy.cli.output import DASH, Output, TableData, as_json, console, echo_json, printable, show_table
from gavelpy.runtime.wire import client_pb2

app = typer.Typer(help="Show the teams that share the cluster.", no_args_is_help=True)


@app.command(name="list")
def show(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Show the teams as a tree: weight, members, and the jobs and GPUs of each without those of the teams below it.

    A second table has quotas and guaranteed GPUs, and what each team holds, borrows and lends with those below it.

    \b
    Examples:
      gavel team list
      gavel team list -o json
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.cluster()
    if output is Output.JSON:
        echo_json({"policy": found.policy, "teams": [as_json(team) for team in found.teams]} | c.staleness(client))
        return
    out = console()
    if not found.teams:
        out.print("No teams are configured ([teams.NAME] of the scheduler): each entity that a job names has weight 1.")
        return
    if found.policy != "hierarchical":
        out.print(printable(f"The policy {found.policy} does not use weights of teams; hierarchical does."))
    show_table(_table(found.teams))
    if any(team.limits for team in found.teams):
        here = {kind.gpu_type for kind in found.types}
        show_table(_limits(found.teams))
        absent = sorted({limit.gpu_type.partition(":")[0] for team in found.teams for limit in team.limits} - here)
        if absent:
            out.print(printable(f"The cluster has no GPUs of type {', '.join(absent)}."))


def _table(teams: Sequence[client_pb2.Team]) -> TableData:
    rows = [
        (
            "  " * depth + printable(team.name),
            f"{team.weight:g}",
            team.policy,
            str(team.jobs_waiting),
            str(team.jobs_running),
            str(team.gpus_in_use),
            f"{team.gpus_owed:.1f}" if team.gpus_owed else DASH,
            printable(", ".join(team.members)) or "all",
        )
        for depth, team in _in_order(teams, "")
    ]
    titles = ("team", "weight", "divides by", "waiting", "running", "GPUs", "GPUs owed", "members")
    return TableData(titles, frozenset({"weight", "waiting", "running", "GPUs", "GPUs owed"}), rows)


def _limits(teams: Sequence[client_pb2.Team]) -> TableData:
    rows = [
        (
            "  " * depth + printable(team.name),
            printable(limit.gpu_type),
            str(limit.quota) if limit.quota >= 0 else DASH,
            str(limit.guaranteed or DASH),
            str(limit.held),
            str(limit.borrowed or DASH),
            str(limit.lent or DASH),
            f"{limit.marginal_value:.3g}" if limit.marginal_value > 0 else DASH,
        )
        for depth, team in _in_order(teams, "")
        for limit in team.limits
    ]
    titles = ("team", "GPU type", "quota", "guaranteed", "held", "borrowed", "lent", "price")
    return TableData(titles, frozenset(titles[2:]), rows)


def _in_order(teams: Sequence[client_pb2.Team], parent: str, depth: int = 0) -> Iterator[tuple[int, client_pb2.Team]]:
    """Each team with its depth, those below it right after it."""
    for team in teams:
        if team.parent == parent:
            yield depth, team
            yield from _in_order(teams, team.name, depth + 1)
