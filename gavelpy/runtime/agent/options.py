"""The options of gavel-node. None = not given: the environment or the file may say it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def _show_version(wanted: bool) -> None:
    if wanted:
        from gavelpy import __version__

        typer.echo(f"gavel-node {__version__}")
        raise typer.Exit


Scheduler = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_SCHEDULER", metavar="HOST:PORT", help="The scheduler. Default: 127.0.0.1:7077."),
]
NodeId = Annotated[
    str | None, typer.Option(envvar="GAVEL_NODE_ID", help="Name of this node. Default: the host's name.")
]
GpuTypeAndCount = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_NODE_GPUS", metavar="TYPE:COUNT", help="The GPUs. Default: what NVIDIA's driver says."),
]
StateDirectory = Annotated[
    str | None,
    typer.Option(
        envvar="GAVEL_NODE_STATE_DIR",
        help="The node's state, on a local disk; keep it while jobs run. Default: ~/.local/state/gavel-node, "
        "for root /var/lib/gavel-node.",
    ),
]
CheckpointDirectory = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_NODE_CHECKPOINT_DIR", help="Checkpoints. Jobs can move between nodes that share it."),
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar="GAVEL_NODE_ADDRESS", help="Where other nodes reach this one. Default: what faces the scheduler."
    ),
]
SpeedFactor = Annotated[
    float | None,
    typer.Option(envvar="GAVEL_NODE_SPEED_FACTOR", help="Let jobs run this share of the time, to play a slower GPU."),
]
TokenFile = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_NODE_TOKEN_FILE", help="File with the token that `gavel token create` printed."),
]
TlsCa = Annotated[
    str | None, typer.Option(envvar="GAVEL_NODE_TLS_CA", help="PEM of the authority of the scheduler's certificate.")
]
TlsCertificate = Annotated[
    str | None, typer.Option(envvar="GAVEL_NODE_TLS_CERTIFICATE", help="PEM of this node, where one is asked for.")
]
TlsKey = Annotated[str | None, typer.Option(envvar="GAVEL_NODE_TLS_KEY", help="PEM of its key.")]
StopJobsOnExit = Annotated[
    bool | None,
    typer.Option(
        "--stop-jobs-on-exit/--keep-jobs-on-exit",
        envvar="GAVEL_NODE_STOP_JOBS_ON_EXIT",
        help="On SIGTERM, stop all jobs in good order. Default: they go on, and the next gavel-node finds them.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(envvar="GAVEL_NODE_CONFIG", help=r"TOML file with a table \[node]. Default: /etc/gavel/node.toml."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
]
