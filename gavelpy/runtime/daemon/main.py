"""The command `gavel-scheduler`."""

from __future__ import annotations

import asyncio
import gc
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from gavelpy.errors import EventsLost, GavelError, InvalidInput, missing_extra, one_line
from gavelpy.runtime.service_manager import quiet_grpc, set_up_logging

if TYPE_CHECKING:
    from gavelpy.runtime.daemon.config_sections import ThroughputSettings

OK, WORLD_FAILED, BAD_INPUT, EVENTS_LOST, INTERRUPTED = 0, 1, 2, 3, 130
# Base of all errors of a wrong command line: click's UsageError, which some versions of typer vendor.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]

app = typer.Typer(
    name="gavel-scheduler",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from gavelpy import __version__

        typer.echo(f"gavel-scheduler {__version__}")
        raise typer.Exit


@app.callback()
def gavel_scheduler(
    context: typer.Context,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="Configuration, TOML.")] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Start although events of the journal are lost; no number is used again."),
    ] = False,
    take_over: Annotated[
        bool,
        typer.Option("--take-over", help="Fence out a scheduler that is alive on the same PostgreSQL journal."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log more.")] = False,
    version: Annotated[  # noqa: ARG001 its callback does it
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedule a cluster's jobs on its GPUs: write the journal, run the policy, send orders to the agents on the nodes.

    \b
    Run:          gavel-scheduler --config /etc/gavel/scheduler.toml
    Check first:  gavel-scheduler check-config /etc/gavel/scheduler.toml
    Stand by:     gavel-scheduler members --config FILE; gavel-scheduler promote --config FILE   ([standby])
    Reload:       kill -HUP PID   (policy, mechanism, priorities, jobs, throughputs; the rest needs a restart)
    Stop:         kill -TERM PID  (jobs continue: the agents extend their leases for up to orphan_max_s)

    \b
    Exit codes:   0 stopped, 1 failed (journal failure, or another scheduler uses it), 2 bad input,
                  3 events of the journal are lost: nothing was changed, the message has the details
    """
    if context.invoked_subcommand is not None:
        return
    if config is None:
        raise InvalidInput("--config must be given; gavel-scheduler --help shows an example")
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # blocked until `serve` handles it
    set_up_logging(verbose=verbose)
    gc.disable()  # until the scheduler is ready: objects that are loaded until then are no garbage
    from gavelpy.runtime.daemon.config import read_config

    checked = read_config(config)
    _check_throughputs(checked.throughputs)
    from gavelpy.runtime.daemon.service import EventLoop, serve

    if checked.standby.enabled:
        from gavelpy.runtime.daemon.standby import serve_in_turn as serve

    with asyncio.Runner(loop_factory=EventLoop) as runner:
        runner.run(serve(checked, accept_loss=accept_loss, take_over=take_over))


@app.command("check-config")
def check_config(file: Annotated[Path, typer.Argument(help="The file to check.")]) -> None:
    """Validate a configuration file without starting the scheduler."""
    from gavelpy.runtime.daemon.capacity import shortages
    from gavelpy.runtime.daemon.config import read_config
    from gavelpy.runtime.daemon.recovery import configured_choice
    from gavelpy.runtime.security.exposure import server_credentials
    from gavelpy.runtime.security.identity import missing_tokens, verifier_of

    config = read_config(file)
    choice = configured_choice(config)
    server_credentials(config.security)
    verifier_of(config.security.tokens_path)
    for note in _check_throughputs(config.throughputs):
        typer.echo(f"warning: {note}", err=True)
    for note in shortages(config.limits):
        typer.echo(f"warning: {note}", err=True)
    if missing := missing_tokens(config.security.tokens_path):
        typer.echo(f"warning: {missing}", err=True)
    blind = f", blind ({choice.blind})" if choice.blind else ""
    typer.echo(
        f"{file}: cluster {config.scheduler.name!r} listens on {config.scheduler.listen}, policy {choice.name}{blind}"
    )


@app.command("promote")
def promote(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="Configuration of a standby.")],
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, max=3600.0, help="Seconds to wait.")] = 30.0,
) -> None:
    """Make the standby with this configuration the leader; the leader stops in order and stands by.

    \b
    Example:      gavel-scheduler promote --config /etc/gavel/scheduler.toml
    """
    from gavelpy.runtime.daemon.config import read_config
    from gavelpy.runtime.daemon.promotion import promoted

    typer.echo(promoted(read_config(config), timeout))


@app.command("members")
def members(
    config: Annotated[Path, typer.Option("--config", "-c", metavar="FILE", help="Configuration of any of them.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the schedulers that share a journal: which one leads, and how far the others have followed.

    \b
    Example:      gavel-scheduler members --config /etc/gavel/scheduler.toml
    """
    from gavelpy.runtime.daemon.config import read_config
    from gavelpy.runtime.daemon.promotion import as_table, members_of

    found = members_of(read_config(config))
    typer.echo(json.dumps(found) if as_json else as_table(found))


def _check_throughputs(settings: ThroughputSettings) -> tuple[str, ...]:
    """Raises InvalidInput for unreadable files; returns a note for each implausible entry."""
    notes: tuple[str, ...] = ()
    if settings.file:
        from gavelpy.runtime.daemon.engine.throughput_files import believable_table

        notes = believable_table(settings.file).notes
    if settings.model:
        from gavelpy.runtime.daemon.engine.throughput_files import read_model

        read_model(settings.model)
    return notes


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; only bugs print a traceback."""
    quiet_grpc()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        app(args=given, prog_name="gavel-scheduler", standalone_mode=False)
    except _USAGE_ERROR as error:
        return _complain(cast(typer.BadParameter, error).format_message(), BAD_INPUT)
    except EventsLost as error:
        return _complain(str(error), EVENTS_LOST)
    except InvalidInput as error:
        return _complain(str(error), BAD_INPUT)
    except ModuleNotFoundError as error:
        return _complain(missing_extra(error, "gavel-scheduler"), BAD_INPUT)
    except (GavelError, OSError) as error:
        return _complain(str(error), WORLD_FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    return OK


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"error: {one_line(message)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
