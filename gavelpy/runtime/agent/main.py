"""The command `gavel-node`: flags, environment and file put together, then the agent until a signal."""

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

from gavelpy.errors import GavelError, InvalidInput
from gavelpy.extras import explained
from gavelpy.runtime.agent import options
from gavelpy.runtime.agent.config import NodeConfig, node_config
from gavelpy.runtime.agent.gpus import Gpus, find_gpus
from gavelpy.runtime.agent.memory import lock_state
from gavelpy.runtime.json_log import set_up_logging
from gavelpy.runtime.notify import notify
from gavelpy.runtime.quiet_grpc import quiet_grpc

logger = logging.getLogger(__name__)

OK, WORLD_FAILED, BAD_INPUT = 0, 1, 2
# What a mistyped command line raises, all of it: click's UsageError, which some versions of typer carry inside.
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
    scheduler: options.Scheduler = None,
    node_id: options.NodeId = None,
    gpus: options.GpuTypeAndCount = None,
    state_dir: options.StateDirectory = None,
    checkpoint_dir: options.CheckpointDirectory = None,
    address: options.Address = None,
    speed_factor: options.SpeedFactor = None,
    token_file: options.TokenFile = None,
    tls_ca: options.TlsCa = None,
    tls_certificate: options.TlsCertificate = None,
    tls_key: options.TlsKey = None,
    stop_jobs_on_exit: options.StopJobsOnExit = None,
    config: options.ConfigFile = None,
    verbose: options.Verbose = False,
    version: options.Version = False,
) -> None:
    """Offer this machine's GPUs to a gavel scheduler and run the jobs it sends.

    \b
    One machine:  gavel-node --gpus v100:4
    A cluster:    gavel-node --config /etc/gavel/node.toml
    A slower GPU: gavel-node --state-dir /tmp/k80 --node-id slow --gpus k80:1 --speed-factor 0.3
    Check first:  gavel-node --config node.toml check-config

    \b
    Flags go before the environment (GAVEL_NODE_...), and that before the file.
    Exit codes:   0 left in good order, 1 failed, 2 bad input
    """
    said = {
        "scheduler": scheduler,
        "node_id": node_id,
        "gpus": gpus,
        "state_directory": state_dir,
        "checkpoint_directory": checkpoint_dir,
        "address": address,
        "speed_factor": speed_factor,
        "token_file": token_file,
        "tls_ca": tls_ca,
        "tls_certificate": tls_certificate,
        "tls_key": tls_key,
        "stop_jobs_on_exit": stop_jobs_on_exit,
    }
    context.obj = ({name: value for name, value in said.items() if value is not None}, config)
    if context.invoked_subcommand is None and not version:
        set_up_logging(verbose=verbose)
        run_node(node_config(*context.obj))


@app.command("check-config")
def check_config(
    context: typer.Context,
    file: Annotated[Path | None, typer.Argument(help="The file; the same as --config FILE.")] = None,
) -> None:
    """Say what the node would do, and whether anything is wrong with that; start nothing."""
    given, config = context.obj
    found, gpus = _checked(node_config(given, file or config))
    typer.echo(f"node {found.node_id}: {len(gpus.devices)} GPUs of type {gpus.gpu_type}, scheduler {found.scheduler}")
    typer.echo(f"state in {found.state}, checkpoints in {found.checkpoints}")


def run_node(config: NodeConfig) -> None:
    """Runs the agent until it is told to leave."""
    config, gpus = _checked(config)
    if os.geteuid() == 0:
        logger.warning("gavel-node runs as root, and so will every job; a user of its own is safer")
    lock = lock_state(config.state)
    try:
        asyncio.run(_run(config, gpus))
    finally:
        os.close(lock)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; nothing but a bug of ours leaves a traceback."""
    quiet_grpc()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="gavel-node", standalone_mode=False)
    except _USAGE_ERROR as error:
        return _complain(cast(typer.BadParameter, error).format_message(), BAD_INPUT)
    except InvalidInput as error:
        return _complain(str(error), BAD_INPUT)
    except ModuleNotFoundError as error:
        return _complain(explained(error, "gavel-node"), BAD_INPUT)
    except (GavelError, OSError) as error:
        return _complain(str(error), WORLD_FAILED)
    return OK


async def _run(config: NodeConfig, gpus: Gpus) -> None:
    from gavelpy.runtime.agent.agent import Agent  # grpc is loaded once the rest is known to be right

    agent = Agent(config, gpus)
    loop = asyncio.get_running_loop()

    def leave(number: signal.Signals) -> None:
        logger.info("leaving", extra={"signal": number.name, "stop_jobs": config.stop_jobs_on_exit})
        loop.remove_signal_handler(number)  # a second one ends it at once
        notify("STOPPING=1")
        agent.leave()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, leave, number)

    def ready() -> None:
        logger.info("node is up", extra={"node": config.node_id, "gpus": f"{gpus.gpu_type}:{len(gpus.devices)}"})
        notify("READY=1")

    await agent.run(ready)


def _checked(config: NodeConfig) -> tuple[NodeConfig, Gpus]:
    from gavelpy.runtime.agent.link import Link

    Link(config)  # reads the token and the certificates
    return config, find_gpus(config.gpus, os.environ)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"error: {' '.join(message.split())}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
