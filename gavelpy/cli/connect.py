"""How the commands that talk to a scheduler find it: options, environment, files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gavelpy.cli.options import number

if TYPE_CHECKING:
    from gavelpy.runtime.client.connection import Client
    from gavelpy.runtime.client.settings import ClientSettings

_CONNECTION = "Connection"
_COMPLETION_S = 1.0  # a shell that completes does not wait longer

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="HOST:PORT",
        rich_help_panel=_CONNECTION,
        help="Default: GAVEL_SCHEDULER, else ~/.config/gavel/config.toml, else /etc/gavel/config.toml, "
        "else 127.0.0.1:7077.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        rich_help_panel=_CONNECTION,
        help="Holds the token. Default: GAVEL_TOKEN, GAVEL_TOKEN_FILE or the configuration.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        parser=number(0.001, 3600),
        rich_help_panel=_CONNECTION,
        help="How long a scheduler that does not answer is tried. Default: 10; a command that waits or follows waits "
        "through outages.",
    ),
]


def settings(scheduler: str | None, token_file: Path | None, timeout_s: float | None) -> ClientSettings:
    """What holds, given the options."""
    from gavelpy.runtime.client.settings import load_settings

    flags = {
        "scheduler": scheduler or "",
        "token_file": str(token_file or ""),
        "timeout_s": "" if timeout_s is None else str(timeout_s),
    }
    return load_settings(flags, os.environ)


@contextmanager
def connected(scheduler: str | None, token_file: Path | None, timeout_s: float | None) -> Iterator[Client]:
    """A client of the scheduler, closed at the end."""
    from gavelpy.runtime.client.connection import Client

    with Client(settings(scheduler, token_file, timeout_s)) as client:
        yield client


@contextmanager
def reconnecting(scheduler: str | None, token_file: Path | None, timeout_s: float | None) -> Iterator[Client]:
    """A client that waits through outages of the scheduler, unless a timeout is given; it says so on stderr."""
    from gavelpy.cli.output import notify

    with connected(scheduler, token_file, timeout_s) as client:
        if timeout_s is None:
            client.wait_through_outages(notify)
        yield client


def complete_job(incomplete: str) -> list[str]:
    """Names of the caller's living jobs, for the shell's completion; none where no scheduler answers at once."""
    return [job.name for job in _asked("jobs") if job.name.startswith(incomplete)]


def complete_node(incomplete: str) -> list[str]:
    """Ids of nodes, for the shell's completion."""
    return [node.node_id for node in _asked("nodes") if node.node_id.startswith(incomplete)]


def _asked(method: str) -> list[Any]:  # Any: jobs or nodes
    from gavelpy.errors import GavelError

    try:
        with connected(None, None, _COMPLETION_S) as client:
            found: list[Any] = getattr(client, method)()
    except GavelError:  # a shell that completes has nowhere to say it
        return []
    return found


JobArgument = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_job, help="Its number or its name.")]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", autocompletion=complete_job, help="Numbers or names.")
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", autocompletion=complete_node, help="Its id.")]
