"""The command `gavel`: each error becomes one line on stderr and an exit code.

Imports are late, because they are most of the time of a short command.
"""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import cast


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; only a bug leaves a traceback."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # escapes characters that the encoding lacks
            stream.reconfigure(errors="backslashreplace")
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _print_version() if given == ["--version"] else _run(given)
        sys.stdout.flush()
    except SystemExit as exit_request:
        if not isinstance(exit_request.__context__, BrokenPipeError):
            raise
        return _abandon_stdout()
    except BrokenPipeError:
        return _abandon_stdout()
    except _reported() as error:
        return _fail(error, given)
    return code


def _print_version() -> int:
    """Prints the version without the imports that parsing needs."""
    from gavelpy import __version__

    sys.stdout.write(f"gavel {__version__}\n")
    return 0


def _run(given: list[str]) -> int:
    """Runs a command and returns its exit code."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # more threads spin between the short sums of a solve, and slow it down
    from gavelpy.cli.commands import app
    from gavelpy.cli.output import INTERRUPTED, OK

    if sys.stderr.isatty():
        from gavelpy.solve.compiling import on_first_compilation

        on_first_compilation(_announce_compilation)
    code = app(args=given, prog_name="gavel", standalone_mode=False)
    if code == INTERRUPTED:  # typer has caught the signal
        raise KeyboardInterrupt
    return code if isinstance(code, int) else OK


def _announce_compilation(is_stored: bool) -> None:
    once = "once for this installation" if is_stored else "in each process, because NUMBA_CACHE_DIR cannot be written"
    sys.stderr.write(f"note: compiling kernels, {once}; this takes up to half a minute\n")
    sys.stderr.flush()


def _reported() -> tuple[type[BaseException], ...]:
    """The errors that end a command with one line; others are bugs."""
    import typer

    from gavelpy.errors import GavelError

    # The base of BadParameter is click's UsageError, a mistyped command line; some versions of typer vendor click.
    usage_error = typer.BadParameter.__bases__[0]
    return (OSError, KeyboardInterrupt, typer.Abort, ModuleNotFoundError, GavelError, usage_error)


def _fail(error: BaseException, given: Sequence[str]) -> int:
    """Writes the error on stderr, as one line of text or JSON, and returns the exit code."""
    from gavelpy.cli.output import INTERRUPTED, NAMES, json_line
    from gavelpy.errors import InvalidInput, one_line

    message, code = _message_and_code(error, given)
    try:
        sys.stdout.flush()  # what was printed before the error
    except OSError:
        _abandon_stdout()
    message = one_line(message)
    if _is_json(given):
        place = {"file": error.file, "line": error.line} if isinstance(error, InvalidInput) and error.file else {}
        sys.stderr.write(
            json_line({"error": {"code": NAMES[code], "exit_code": code, "message": message, **place}}) + "\n"
        )
    else:
        sys.stderr.write(f"{message if code == INTERRUPTED else f'error: {message}'}\n")
    return code


def _message_and_code(error: BaseException, given: Sequence[str]) -> tuple[str, int]:
    import typer

    from gavelpy.cli.output import BAD_INPUT, FAILED, INTERRUPTED, NOT_ALLOWED, UNREACHABLE
    from gavelpy.errors import GavelError, InvalidInput, NotAllowed, SchedulerUnreachable, missing_extra

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
            why = "stdout is closed" if error.errno == errno.EBADF else error.strerror
            return f"{error.filename or 'output'} cannot be written ({why})", FAILED
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
    """Opens /dev/null as stdout or stderr if the caller closed it, so that no other file takes its descriptor.

    As stdout it is open for reading only, so that a command fails that prints there.
    """
    if sys.stdout is None:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(descriptor, "w")), encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


def _abandon_stdout() -> int:
    """Points stdout at /dev/null, so that the interpreter's last flush does not fail on the closed pipe."""
    from gavelpy.cli.output import PIPE_CLOSED

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return PIPE_CLOSED
