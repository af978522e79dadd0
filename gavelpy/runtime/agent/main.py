"""The command `gavel-node`: reads flags, environment and file, and runs the agent until a signal."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from gavelpy.errors import GavelError, InvalidInput, missing_extra, one_line
from gavelpy.runtime.agent.agent_state import lock_state
from gavelpy.runtime.agent.config import NodeConfig, node_config
from gavelpy.runtime.agent.machine import machine_of
from gavelpy.runtime.agent.parts import NodePart, parts_of
from gavelpy.runtime.service_manager import quiet_grpc, sd_notify, set_up_logging
from gavelpy.runtime.shim import isolation


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
    typer.Option(
        envvar="GAVEL_NODE_GPUS", metavar="TYPE:COUNT", help="The GPUs. Default: detected by NVIDIA's driver."
    ),
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
    typer.Option(envvar="GAVEL_NODE_CHECKPOINT_DIR", help="Checkpoints. Jobs can migrate between nodes that share it."),
]
Address = Annotated[
    str | None,
    typer.Option(
        envvar="GAVEL_NODE_ADDRESS", help="Address for other nodes. Default: that of the interface to the scheduler."
    ),
]
Cpus = Annotated[
    float | None,
    typer.Option(metavar="N", envvar="GAVEL_NODE_CPUS", help="CPU cores of the node. Default: detected."),
]
MemoryGib = Annotated[
    float | None,
    typer.Option(metavar="GIB", envvar="GAVEL_NODE_MEMORY_GIB", help="Memory of the node. Default: detected."),
]
Rack = Annotated[
    str | None,
    typer.Option(metavar="NAME", envvar="GAVEL_NODE_RACK", help="Rack of the node, for the placement of gangs."),
]
Zone = Annotated[
    str | None, typer.Option(metavar="NAME", envvar="GAVEL_NODE_ZONE", help="Zone of the node, such as a hall.")
]
Region = Annotated[
    str | None, typer.Option(metavar="NAME", envvar="GAVEL_NODE_REGION", help="Region of the node, such as a site.")
]
SpeedFactor = Annotated[
    float | None,
    typer.Option(
        envvar="GAVEL_NODE_SPEED_FACTOR", help="Let jobs run this share of the time, to emulate a slower GPU."
    ),
]
TokenFile = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_NODE_TOKEN_FILE", help="File with the token that `gavel token create` printed."),
]
TlsCa = Annotated[
    str | None, typer.Option(envvar="GAVEL_NODE_TLS_CA", help="PEM of the CA of the scheduler's certificate.")
]
TlsCertificate = Annotated[
    str | None,
    typer.Option(envvar="GAVEL_NODE_TLS_CERTIFICATE", help="PEM of this node, if the scheduler requires one."),
]
TlsKey = Annotated[str | None, typer.Option(envvar="GAVEL_NODE_TLS_KEY", help="PEM of the key of --tls-certificate.")]
StopJobsOnExit = Annotated[
    bool | None,
    typer.Option(
        "--stop-jobs-on-exit/--keep-jobs-on-exit",
        envvar="GAVEL_NODE_STOP_JOBS_ON_EXIT",
        help="On SIGTERM, stop all jobs gracefully. Default: they continue, and the next gavel-node takes them over.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option(envvar="GAVEL_NODE_CONFIG", help=r"TOML file with a table \[node]. Default: /etc/gavel/node.toml."),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")]
Version = Annotated[
    bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
]


logger = logging.getLogger(__name__)

OK, FAILED, BAD_INPUT = 0, 1, 2
# click's UsageError, for any mistake on the command line; some versions of typer bundle click.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="gavel-node",
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


@app.callback()
def gavel_node(
    context: typer.Context,
    scheduler: Scheduler = None,
    node_id: NodeId = None,
    gpus: GpuTypeAndCount = None,
    state_dir: StateDirectory = None,
    checkpoint_dir: CheckpointDirectory = None,
    address: Address = None,
    cpus: Cpus = None,
    memory_gib: MemoryGib = None,
    rack: Rack = None,
    zone: Zone = None,
    region: Region = None,
    speed_factor: SpeedFactor = None,
    token_file: TokenFile = None,
    tls_ca: TlsCa = None,
    tls_certificate: TlsCertificate = None,
    tls_key: TlsKey = None,
    stop_jobs_on_exit: StopJobsOnExit = None,
    config: ConfigFile = None,
    verbose: Verbose = False,
    version: Version = False,
) -> None:
    """Offer this machine's GPUs to a gavel scheduler and run the jobs it sends.

    \b
    One machine:  gavel-node --gpus v100:4
    A cluster:    gavel-node --config /etc/gavel/node.toml
    A slower GPU: gavel-node --state-dir /tmp/k80 --node-id slow --gpus k80:1 --speed-factor 0.3
    Check first:  gavel-node --config node.toml check-config

    \b
    Flags go before the environment (GAVEL_NODE_...), and that before the file.
    Exit codes:   0 stopped by a signal, 1 failed, 2 bad input
    """
    flags = {
        "scheduler": scheduler,
        "node_id": node_id,
        "gpus": gpus,
        "state_directory": state_dir,
        "checkpoint_directory": checkpoint_dir,
        "address": address,
        "cpus": cpus,
        "memory_gib": memory_gib,
        "rack": rack,
        "zone": zone,
        "region": region,
        "speed_factor": speed_factor,
        "token_file": token_file,
        "tls_ca": tls_ca,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "stop_jobs_on_exit": stop_jobs_on_exit,
    }
    context.obj = ({name: value for name, value in flags.items() if value is not None}, config)
    if context.invoked_subcommand is None and not version:
        set_up_logging(verbose=verbose)
        run_node(node_config(*context.obj))


@app.command("check-config")
def check_config(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="The file; the same as --config FILE.")] = None,
) -> None:
    """Check the configuration and print what the node would offer; start nothing."""
    given, config = context.obj
    found = node_config(given, file or config)
    for own, gpus in _checked_parts(found):
        typer.echo(f"node {own.node_id}: {len(gpus.devices)} GPUs of type {gpus.gpu_type}, scheduler {own.scheduler}")
        typer.echo(f"for jobs: {machine_of(own).text}")
        typer.echo(f"state in {own.state}, checkpoints in {own.checkpoints}")


def run_node(config: NodeConfig) -> None:
    """Runs the agent until a signal."""
    parts = _checked_parts(config)
    logger.log(*_who_runs(config))
    for part in parts if config.switches_accounts else ():
        _check_passage(part.config.state)
    if config.isolates and (why := isolation.is_possible()):
        raise InvalidInput(
            f"jobs cannot be isolated here ({why}): set hide_processes = false and private_tmp = false, or let the "
            "agent make mount namespaces (CAP_SYS_ADMIN, Linux 5.8 or newer)"
        )
    mode = 0o711 if config.switches_accounts else 0o700
    states = dict.fromkeys((config.state, *(part.config.state for part in parts)))
    locks = [lock_state(state, mode) for state in states]
    try:
        asyncio.run(_run(config, parts))
    finally:
        for lock in locks:
            os.close(lock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code. Only a bug leaves a traceback."""
    quiet_grpc()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="gavel-node", standalone_mode=False)
    except _USAGE_ERROR as error:
        return _print_error(cast(typer.BadParameter, error).format_message(), BAD_INPUT)
    except InvalidInput as error:
        return _print_error(str(error), BAD_INPUT)
    except ModuleNotFoundError as error:
        return _print_error(missing_extra(error, "gavel-node"), BAD_INPUT)
    except (GavelError, OSError) as error:
        return _print_error(str(error), FAILED)
    return OK


async def _run(config: NodeConfig, parts: Sequence[NodePart]) -> None:
    from gavelpy.runtime.agent.agent import Agent  # loads grpc, after the configuration has been checked
    from gavelpy.runtime.agent.leases.registry import LeaseRegistry

    registries: list[LeaseRegistry] = []
    agents = [Agent(own, gpus, registries) for own, gpus in parts]
    loop = asyncio.get_running_loop()

    def leave(number: signal.Signals) -> None:
        logger.info("leaving", extra={"signal": number.name, "stop_jobs": config.stop_jobs_on_exit})
        loop.remove_signal_handler(number)  # a second signal ends the process at once
        sd_notify("STOPPING=1")
        for agent in agents:
            agent.leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave, number)

    waiting = len(agents)

    def ready() -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting:
            all_gpus = ",".join(f"{gpus.gpu_type}:{len(gpus.devices)}" for _, gpus in parts)
            logger.info("node is up", extra={"node": config.node_id, "gpus": all_gpus})
            sd_notify("READY=1")

    await asyncio.gather(*(agent.run(ready) for agent in agents))


def _who_runs(config: NodeConfig) -> tuple[int, str]:
    """Whose rights the jobs have, for the log: level and message."""
    if config.switches_accounts:
        return logging.INFO, "jobs run as their owners"
    if os.geteuid() == 0:
        why = "run_as = 'agent'" if config.run_as else "there is no token_file, so there is a single user"
        return logging.WARNING, f"gavel-node runs as root, and so will all jobs ({why})"
    if config.runs_as_owner:
        return logging.WARNING, "gavel-node does not run as root: it runs jobs of its own account only"
    return logging.INFO, "all jobs run as the account of gavel-node"


def _check_passage(state: Path) -> None:
    """Raises InvalidInput if the owners of jobs could not reach their directories in the state directory."""
    for parent in state.parents:
        if parent.is_dir() and not parent.stat().st_mode & 0o001:
            raise InvalidInput(
                f"state_directory must be where the owners of jobs can pass, as jobs run as their owners; "
                f"{str(parent)!r} is closed to them (chmod o+x), got {str(state)!r}"
            )


def _checked_parts(config: NodeConfig) -> tuple[NodePart, ...]:
    from gavelpy.runtime.agent.connection import SchedulerEndpoint

    SchedulerEndpoint(config)  # reads the token and the certificates
    return parts_of(config, os.environ)


def _print_error(message: str, code: int) -> int:
    sys.stderr.write(f"error: {one_line(message)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
