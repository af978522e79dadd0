"""The command `gavel`: its parts put together, and every failure turned into one line and an exit code."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, cast

import typer

from gavelpy.cli import allocate, demo, policies, simulate, trace
from gavelpy.cli.output import printable
from gavelpy.errors import GavelError, InvalidInput

# What a mistyped command line raises, all of it: click's UsageError, which some versions of typer carry inside.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0]
OK, WORLD_FAILED, BAD_INPUT, INTERRUPTED, READER_LEFT = 0, 1, 2, 130, 141

app = typer.Typer(
    name="gavel",
    invoke_without_command=True,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
app.command("simulate")(simulate.simulate)
app.command("allocate")(allocate.allocate)
app.command("policies")(policies.policies)
app.add_typer(trace.app, name="trace")
app.command("demo")(demo.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        from gavelpy import __version__

        typer.echo(f"gavel {__version__}")
        raise typer.Exit


@app.callback()
def gavel(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and leave.")
    ] = False,
) -> None:
    """Schedule heterogeneous GPU clusters: simulate traces, solve allocations, compare policies.

    \b
    Start with:   gavel demo
    Exit codes:   0 done, 1 no certified answer, 2 bad input, 130 interrupted
    """
    if context.invoked_subcommand is None and not version:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; nothing but a bug of ours leaves a traceback."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal or file that cannot hold a character gets its code
            stream.reconfigure(errors="backslashreplace")
    try:
        given = list(sys.argv[1:] if arguments is None else arguments)
        code = app(args=given, prog_name="gavel", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as leaving:
        if not isinstance(leaving.__context__, BrokenPipeError):
            raise
        return _leave_stdout()
    except BrokenPipeError:
        return _leave_stdout()
    except OSError as error:  # what is read complains itself; left is what is written: a full disk
        _leave_stdout()
        name = error.filename or "output"
        return _complain(f"error: {name} cannot be written ({error.strerror})", WORLD_FAILED)
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", INTERRUPTED)
    except _USAGE_ERROR as error:
        return _complain(f"error: {cast(typer.BadParameter, error).format_message()}", BAD_INPUT)
    except InvalidInput as error:
        return _complain(f"error: {error}", BAD_INPUT)
    except GavelError as error:
        return _complain(f"error: {error}", WORLD_FAILED)
    return _complain("interrupted", INTERRUPTED) if code == INTERRUPTED else OK


def _open_closed_streams() -> None:
    """What goes to a stdout or stderr that the caller has closed goes nowhere, and no other file takes its place."""
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 open to the end, as stdout is
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _complain(message: str, code: int) -> int:
    """One line on stderr, whatever the message holds; what cannot be printed is escaped."""
    sys.stderr.write(printable(" ".join(message.split())) + "\n")
    return code


def _leave_stdout() -> int:
    """Points stdout at nothing, so that the interpreter's last flush does not complain that the reader left."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return READER_LEFT
