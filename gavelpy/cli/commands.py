"""The commands of `gavel` and their modules, which are imported when a command needs them.

Importing all of them takes longer than most commands do. The help of `gavel` shows all commands, so it imports all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Annotated, Any, cast

import typer
from typer.core import TyperGroup

_LIBRARY, _CLUSTER = "Library and simulator", "A running cluster"

_COMMANDS = {
    "demo": ("demo:demo", _LIBRARY),
    "simulate": ("simulate:simulate", _LIBRARY),
    "compare": ("gavelpy.sweeps.compare:compare", _LIBRARY),
    "sweep": ("gavelpy.sweeps.command:sweep", _LIBRARY),
    "whatif": ("whatif:whatif", _LIBRARY),
    "plan": ("gavelpy.sweeps.questions:plan", _LIBRARY),
    "capacity": ("gavelpy.sweeps.questions:capacity", _LIBRARY),
    "forecast": ("forecast:app", _LIBRARY),
    "allocate": ("allocate:allocate", _LIBRARY),
    "policies": ("policy:policies", _LIBRARY),
    "trace": ("trace:app", _LIBRARY),
    "throughput": ("throughput:app", _LIBRARY),
    "reproduce": ("reproduce:app", _LIBRARY),
    "profile": ("profile:profile", _CLUSTER),
    "init": ("init:init", _CLUSTER),
    "submit": ("submit:submit", _CLUSTER),
    "spool": ("spool:app", _CLUSTER),
    "run": ("tunnels:run", _CLUSTER),
    "forward": ("tunnels:forward", _CLUSTER),
    "app": ("app:app", _CLUSTER),
    "jobs": ("jobs:jobs", _CLUSTER),
    "status": ("jobs:status", _CLUSTER),
    "explain": ("jobs:explain", _CLUSTER),
    "logs": ("logs:logs", _CLUSTER),
    "cancel": ("job_orders:cancel", _CLUSTER),
    "hold": ("job_orders:hold", _CLUSTER),
    "release": ("job_orders:release", _CLUSTER),
    "reserve": ("reserve:reserve", _CLUSTER),
    "reservations": ("reserve:reservations", _CLUSTER),
    "requeue": ("job_orders:requeue", _CLUSTER),
    "update": ("job_orders:update", _CLUSTER),
    "wait": ("wait:wait", _CLUSTER),
    "top": ("top:top", _CLUSTER),
    "nodes": ("nodes:nodes", _CLUSTER),
    "usage": ("usage:usage", _CLUSTER),
    "shadow-prices": ("shadow_prices:shadow_prices", _CLUSTER),
    "drain": ("nodes:drain", _CLUSTER),
    "node": ("nodes:app", _CLUSTER),
    "policy": ("policy:app", _CLUSTER),
    "team": ("team:app", _CLUSTER),
    "events": ("logs:events", _CLUSTER),
    "secret": ("secret:app", _CLUSTER),
    "token": ("credentials:tokens_app", _CLUSTER),
    "cert": ("credentials:certificates_app", _CLUSTER),
}
"""By name, in the order of the help: where the function or the group of commands is, and its panel."""


class _Loaded(Mapping[str, Any]):  # Any: click's commands
    """The commands by name; each is imported when it is read."""

    def __getitem__(self, name: str) -> Any:
        place, panel = _COMMANDS[name]
        module, _, attribute = place.partition(":")
        found = getattr(import_module(module if "." in module else f"gavelpy.cli.{module}"), attribute)
        alone = typer.Typer(rich_markup_mode="rich", add_completion=False, pretty_exceptions_enable=False)
        alone.callback()(_nothing)  # makes it a group
        if isinstance(found, typer.Typer):
            alone.add_typer(found, name=name, rich_help_panel=panel)
        else:
            alone.command(name, rich_help_panel=panel)(found)
        group = typer.main.get_command(alone)
        assert isinstance(group, TyperGroup), type(group)
        return group.commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)


class _LazyGroup(TyperGroup):
    """A group that imports the module of a command when the command is run or shown."""

    def __init__(self, **attributes: Any) -> None:  # Any: click's
        super().__init__(**attributes)
        self.commands = cast(Any, _Loaded())  # click only reads it

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 click's signature
        """The names in the order of the help."""
        return list(_COMMANDS)


def _nothing() -> None:
    """A group without options of its own."""


app = typer.Typer(
    name="gavel",
    cls=_LazyGroup,
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _show_version(requested: bool) -> None:
    if requested:
        from gavelpy import __version__

        typer.echo(f"gavel {__version__}")
        raise typer.Exit


@app.callback()
def gavel(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedule heterogeneous GPU clusters: run jobs, simulate traces, solve allocations, compare policies.

    \b
    Start with:   gavel demo; on a cluster, gavel submit --help
    Exit codes:   0 success, 1 a job or the operation failed, 2 bad input, 3 scheduler unreachable,
                  4 not allowed, 124 wait timed out, 130 interrupted
    """
    if context.invoked_subcommand is None and not version:
        typer.echo(context.get_help())
