"""The command `gavel`: all subcommands; each error becomes one line on stderr and an exit code."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from gavelpy.cli import (
    allocate,
    credentials,
    demo,
    init,
    job_orders,
    jobs,
    logs,
    nodes,
    policy,
    profile,
    reserve,
    secret,
    simulate,
    submit,
    throughput,
    top,
    trace,
    tunnels,
    usage,
    wait,
)
from gavelpy.cli.output import (
    BAD_INPUT,
    FAILED,
    INTERRUPTED,
    NAMES,
    NOT_ALLOWED,
    OK,
    PIPE_CLOSED,
    UNREACHABLE,
    json_line,
    printable,
)
from gavelpy.errors import GavelError, InvalidInput, NotAllowed, SchedulerUnreachable, missing_extra
from gavelpy.runtime.service_manager import quiet_grpc

# click's UsageError, which a mistyped command line raises; some versions of typer vendor click.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
_LIBRARY, _CLUSTER = "Library and simulator", "A running cluster"

app = typer.Typer(
    name="gavel",
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("demo", rich_help_panel=_LIBRARY)(demo.demo)
app.command("simulate", rich_help_panel=_LIBRARY)(simulate.simulate)
app.command("allocate", rich_help_panel=_LIBRARY)(allocate.allocate)
app.command("policies", rich_help_panel=_LIBRARY)(policy.policies)
app.add_typer(trace.app, name="trace", rich_help_panel=_LIBRARY)
app.add_typer(throughput.app, name="throughput", rich_help_panel=_LIBRARY)
app.command("profile", rich_help_panel=_CLUSTER)(profile.profile)
app.command("init", rich_help_panel=_CLUSTER)(init.init)
app.command("submit", rich_help_panel=_CLUSTER)(submit.submit)
app.command("run", rich_help_panel=_CLUSTER)(tunnels.run)
app.command("forward", rich_help_panel=_CLUSTER)(tunnels.forward)
app.command("jobs", rich_help_panel=_CLUSTER)(jobs.jobs)
app.command("status", rich_help_panel=_CLUSTER)(jobs.status)
app.command("explain", rich_help_panel=_CLUSTER)(jobs.explain)
app.command("logs", rich_help_panel=_CLUSTER)(logs.logs)
app.command("cancel", rich_help_panel=_CLUSTER)(job_orders.cancel)
app.command("hold", rich_help_panel=_CLUSTER)(job_orders.hold)
app.command("release", rich_help_panel=_CLUSTER)(job_orders.release)
app.command("reserve", rich_help_panel=_CLUSTER)(reserve.reserve)
app.command("reservations", rich_help_panel=_CLUSTER)(reserve.reservations)
app.command("requeue", rich_help_panel=_CLUSTER)(job_orders.requeue)
app.command("wait", rich_help_panel=_CLUSTER)(wait.wait)
app.command("top", rich_help_panel=_CLUSTER)(top.top)
app.command("nodes", rich_help_panel=_CLUSTER)(nodes.nodes)
app.command("usage", rich_help_panel=_CLUSTER)(usage.usage)
app.command("drain", rich_help_panel=_CLUSTER)(nodes.drain)
app.add_typer(nodes.app, name="node", rich_help_panel=_CLUSTER)
app.add_typer(policy.app, name="policy", rich_help_panel=_CLUSTER)
app.command("events", rich_help_panel=_CLUSTER)(logs.events)
app.add_typer(secret.app, name="secret", rich_help_panel=_CLUSTER)
app.add_typer(credentials.tokens_app, name="token", rich_help_panel=_CLUSTER)
app.add_typer(credentials.certificates_app, name="cert", rich_help_panel=_CLUSTER)


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


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; only a bug leaves a traceback."""
    _open_closed_streams()
    quiet_grpc()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escapes characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = app(args=given, prog_name="gavel", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as exit_request:
        if not isinstance(exit_request.__context__, BrokenPipeError):
            raise
        return _abandon_stdout()
    except BrokenPipeError:
        return _abandon_stdout()
    except (OSError, KeyboardInterrupt, typer.Abort, ModuleNotFoundError, GavelError, _USAGE_ERROR) as error:
        return _fail(error, given)
    if code == INTERRUPTED:
        return _fail(KeyboardInterrupt(), given)
    return code if isinstance(code, int) else OK


def _fail(error: BaseException, given: Sequence[str]) -> int:
    """Writes the error on stderr, as one line of text or JSON, and returns the exit code."""
    message, code = _message_and_code(error, given)
    message = printable(" ".join(message.split()))
    if _is_json(given):
        place = {"file": error.file, "line": error.line} if isinstance(error, InvalidInput) and error.file else {}
        sys.stderr.write(
            json_line({"error": {"code": NAMES[code], "exit_code": code, "message": message, **place}}) + "\n"
        )
    else:
        sys.stderr.write(f"{message if code == INTERRUPTED else f'error: {message}'}\n")
    return code


def _message_and_code(error: BaseException, given: Sequence[str]) -> tuple[str, int]:
    match error:
        case InvalidInput():
            return str(error), BAD_INPUT
        case SchedulerUnreachable():
            return str(error), UNREACHABLE
        case NotAllowed():
            return str(error), NOT_ALLOWED
        case GavelError():
            return str(error), FAILED
        case ModuleNotFoundError():
            return missing_extra(error, _command(given)), BAD_INPUT
        case OSError():  # errors of reading are InvalidInput; this is an error of writing, such as a full disk
            _abandon_stdout()
            return f"{error.filename or 'output'} cannot be written ({error.strerror})", FAILED
        case KeyboardInterrupt() | typer.Abort():
            return "interrupted", INTERRUPTED
        case _:
            message = cast(typer.BadParameter, error).format_message()  # empty if typer printed the help instead
            return message or "missing command; choose one of those above", BAD_INPUT


def _is_json(given: Sequence[str]) -> bool:
    """Whether `-o json` is among the options. They are not parsed, because they can be what is wrong."""
    options = given[: given.index("--")] if "--" in given else given
    return re.search(r"(^| )(-o ?|--output[ =])json( |$)", " ".join(options)) is not None


def _command(given: Sequence[str]) -> str:
    """The command line up to the subcommand, for a message."""
    return " ".join(["gavel", *[word for word in given if not word.startswith("-")][:1]])


def _open_closed_streams() -> None:
    """Opens /dev/null as stdout or stderr if the caller closed it, so that no other file takes its descriptor."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 open until exit, as stdout is
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _abandon_stdout() -> int:
    """Points stdout at /dev/null, so that the interpreter's last flush does not fail on the closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
