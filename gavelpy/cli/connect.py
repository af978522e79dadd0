"""Connects commands to the scheduler: the connection options, and shell completion of jobs and nodes."""

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
_COMPLETION_S = 1.0  # timeout of shell completion

SchedulerOption = Annotated[
    str | None,
    typer.Option(
        "--scheduler",
        metavar="HOST:PORT",
        rich_help_panel=_CONNECTION,
        help="Address of the scheduler. Default: GAVEL_SCHEDULER, else ~/.config/gavel/config.toml, else "
        "/etc/gavel/config.toml, else 127.0.0.1:7077.",
    ),
]
TokenFileOption = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        metavar="FILE",
        rich_help_panel=_CONNECTION,
        help="File with the token. Default: GAVEL_TOKEN, GAVEL_TOKEN_FILE or the configuration.",
    ),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="S",
        parser=number(0.001, 3600),
        rich_help_panel=_CONNECTION,
        help="Give up if the scheduler does not answer for S seconds. Default: 10; commands that wait or follow retry "
        "through outages.",
    ),
]
StaleOption = Annotated[
    bool,
    typer.Option(
        "--stale-ok",
        rich_help_panel=_CONNECTION,
        help="Also accept the answer of a standby, which may be older; stderr and JSON (stale) have its age.",
    ),
]


def settings(scheduler: str | None, token_file: Path | None, timeout_s: float | None) -> ClientSettings:
    """The client's settings, given the options."""
    from gavelpy.runtime.client.settings import load_settings

    flags = {
        "scheduler": scheduler or "",
        "token_file": str(token_file or ""),
        "timeout_s": "" if timeout_s is None else str(timeout_s),
    }
    return load_settings(flags, os.environ)


@contextmanager
def connected(
    scheduler: str | None, token_file: Path | None, timeout_s: float | None, *, stale_ok: bool = False
) -> Iterator[Client]:
    """A client of the scheduler, closed at the end. With `stale_ok`, stderr has the age of a standby's answer."""
    from gavelpy.runtime.service_manager import quiet_grpc

    quiet_grpc()
    from gavelpy.cli.output import notify
    from gavelpy.runtime.client.connection import Client

    with Client(settings(scheduler, token_file, timeout_s), stale_ok=stale_ok) as client:
        yield client
        if (stale := client.stale) is not None:
            leader = f"{stale.leader} leads" if stale.leader else "no scheduler leads"
            notify(f"as of event {stale.sequence}, {stale.age_s:.1f} s ago, by the standby {stale.scheduler}; {leader}")


def staleness(client: Client) -> dict[str, Any]:  # Any: JSON values
    """The field `stale` for JSON, if it was accepted: null if the leader has answered."""
    if not client.stale_ok:
        return {}
    return {"stale": client.stale._asdict() if client.stale is not None else None}


@contextmanager
def reconnecting(scheduler: str | None, token_file: Path | None, timeout_s: float | None) -> Iterator[Client]:
    """A client that waits through outages unless a timeout is given; stderr shows each outage."""
    from gavelpy.cli.output import notify

    with connected(scheduler, token_file, timeout_s) as client:
        if timeout_s is None:
            client.wait_through_outages(notify)
        yield client


def complete_job(incomplete: str) -> list[str]:
    """Names of the caller's unfinished jobs, for shell completion; empty if the scheduler does not answer at once."""
    return [job.name for job in _fetched("jobs") if job.name.startswith(incomplete)]


def complete_node(incomplete: str) -> list[str]:
    """Node ids for shell completion."""
    return [node.node_id for node in _fetched("nodes") if node.node_id.startswith(incomplete)]


def _fetched(method: str) -> list[Any]:  # Any: jobs or nodes
    from gavelpy.errors import GavelError

    try:
        with connected(None, None, _COMPLETION_S) as client:
            found: list[Any] = getattr(client, method)()
    except GavelError:  # shell completion cannot show an error
        return []
    return found


JobArgument = Annotated[str, typer.Argument(metavar="JOB", autocompletion=complete_job, help="Job number or name.")]
JobsArgument = Annotated[
    list[str], typer.Argument(metavar="JOB...", autocompletion=complete_job, help="Job numbers or names.")
]
NodeArgument = Annotated[str, typer.Argument(metavar="NODE", autocompletion=complete_node, help="Node id.")]
