"""`gavel policies` lists the policies; `gavel policy` shows or changes the policy of a running scheduler."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli import connect as c
from gavelpy.cli import job_texts
from gavelpy.cli import options as o
from gavelpy.cli.output import (
    DASH,
    MORE,
    Output,
    as_json,
    compact,
    console,
    duration,
    echo_json,
    echo_json_list,
    printable,
)
from gavelpy.errors import InvalidInput

if TYPE_CHECKING:
    from gavelpy.runtime.wire import client_pb2

app = typer.Typer(invoke_without_command=True, rich_markup_mode="rich")


def policies(output: o.OutputOption = Output.TABLE) -> None:
    """List the available policies, with what each optimises, guarantees and uses.

    \b
    Examples:
      gavel policies
      gavel policies -o json
    """
    from gavelpy.policies.base import Guarantee, ProblemInput, aliases, guarantees_of, needs_of, registered, uses_of

    listed = []
    for name, policy in registered().items():
        uses = uses_of(policy())
        entry: dict[str, Any] = {  # Any: texts and lists
            "name": name,
            "aliases": [alias for alias, own in aliases().items() if own == name],
            "summary": policy.summary,
            "guarantees": [each for each in Guarantee if each in guarantees_of(policy)],
            "uses": None if uses is None else [each for each in ProblemInput if each in uses],
            "needs": [each for each in ProblemInput if each in needs_of(policy())],
        }
        listed.append(entry)
    if output is Output.JSON:
        echo_json_list("policies", listed)
        return
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", style="bold", no_wrap=True)
    table.add_column("aliases", no_wrap=True)
    for heading in ("summary", "guarantees", "uses"):
        table.add_column(heading)
    for entry in listed:
        lists = [", ".join(each.in_words for each in entry[key] or ()) for key in ("guarantees", "uses")]
        if entry["uses"] is None:
            lists[1] = "not declared"
        if entry["needs"]:
            lists[1] += f" (needs {', '.join(each.in_words for each in entry['needs'])})"
        table.add_row(entry["name"], ", ".join(entry["aliases"]), entry["summary"], *lists)
    console().print(table)


_PER_RESOURCE = {"cpus": "of a core", "memory_gib": "of a GiB"}


@app.callback()
def policy(
    context: typer.Context,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Show the policy of a running scheduler; `gavel policy set` changes it.

    \b
    Examples:
      gavel policy
      gavel policy set min_makespan
    """
    if context.invoked_subcommand is None:
        show(output, scheduler, token_file, timeout)
    elif scheduler or token_file or timeout is not None or output is not Output.TABLE:
        raise InvalidInput(f"options must come after `policy {context.invoked_subcommand}`, got some before")


@app.command()
def show(
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
    stale_ok: c.StaleOption = False,
) -> None:
    """Show the policy, the quality of its last allocation, and the marginal value of each GPU type.

    \b
    Example:
      gavel policy show
    """
    with c.connected(scheduler, token_file, timeout, stale_ok=stale_ok) as client:
        found = client.cluster()
    _show(found, output, c.staleness(client))


@app.command(name="set")
def change(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", autocompletion=o.complete_policy, help="New policy. Default: unchanged.")
    ] = "",
    parameter: Annotated[
        list[str] | None,
        typer.Option("--parameter", "-p", metavar="NAME=VALUE", help="Parameter of the policy. Repeatable."),
    ] = None,
    round_s: Annotated[
        float, typer.Option("--round-s", metavar="S", parser=o.number(), help="Length of a round. 0 = unchanged.")
    ] = 0.0,
    output: o.OutputOption = Output.TABLE,
    scheduler: c.SchedulerOption = None,
    token_file: c.TokenFileOption = None,
    timeout: c.TimeoutOption = None,
) -> None:
    """Change the policy or the round length from the next allocation on. For admins.

    \b
    Examples:
      gavel policy set max_min_fairness
      gavel policy set shortest_job_first -p by=total
      gavel policy set --round-s 120
    """
    if not name and not parameter and not round_s:
        raise InvalidInput("policy set needs NAME, --parameter or --round-s, got none of them")
    values = {key: _value(text) for key, text in job_texts.pairs("--parameter", parameter or [], "=").items()}
    with c.connected(scheduler, token_file, timeout) as client:
        parameters = json.dumps(values) if values else ""
        _show(client.set_policy(policy=name, parameters=parameters, round_s=round_s), output)


def _value(text: str) -> str | float:
    """A number if `text` is one, else `text`."""
    try:
        return float(text)
    except ValueError:
        return text


def _class_in_words(one: client_pb2.PriorityClass) -> str:
    """`high: value 100, preempts low, for alice`."""
    preempts = f"preempts {', '.join(one.preempts)}" if one.preempts else "preempts none"
    protected = " except protected leases" if one.preempts and one.respect_lease_min else ""
    owners = f", for {', '.join(one.owners)}" if one.owners else ""
    return f"{one.name}: value {one.value}, {preempts}{protected}{owners}"


def _show(found: client_pb2.GetClusterResponse, output: Output, more: Mapping[str, Any] = MORE) -> None:
    if output is Output.JSON:
        echo_json(as_json(found) | dict(more))
        return
    from rich import box
    from rich.table import Table

    out = console()
    blind = ", blind to GPU types" if found.blind else ""
    given = f" with {found.policy_parameters}" if found.policy_parameters not in ("", "{}") else ""
    out.print(printable(f"Policy {found.policy}{given}{blind}; rounds of {duration(found.round_s)}."))
    if found.path:
        out.print(printable(f"Objective {compact(found.objective)}, gap {found.gap:.1g}, path {found.path}."))
    if found.warning:
        out.print(printable(f"Warning: the allocation in force is {found.warning}."))
    if found.detail:
        out.print(printable(f"The allocation in force is outdated: {found.detail}"))
    for one in found.priorities if len(found.priorities) > 1 else ():
        out.print(printable(f"Priority class {_class_in_words(one)}."))
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("GPU type", "GPUs", "in use", "marginal value"):
        table.add_column(title, justify="left" if title == "GPU type" else "right")
    others = [name for name in _PER_RESOURCE if any(name in kind.resource_prices for kind in found.types)]
    for name in others:
        table.add_column(_PER_RESOURCE[name], justify="right")
    for kind in found.types:
        values = [kind.price, *(kind.resource_prices.get(name, math.nan) for name in others)]
        prices = [compact(value) if value == value else DASH for value in values]
        table.add_row(printable(kind.gpu_type), str(kind.gpus), str(kind.gpus_in_use), *prices)
    out.print(table)
