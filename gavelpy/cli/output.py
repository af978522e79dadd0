"""Output: data on stdout, messages and progress on stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

JSON_VERSION = 1  # of the output of all commands, docs/json.md; a change that breaks readers increases it
_INDENTED_MAX = 300
_FILE_COLUMNS = 200  # width of a table in a file or a pipe

Progress = Callable[[str, int, int], None]  # (label of the run, jobs finished, total jobs)


class Output(StrEnum):
    """The format of the output."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """The console for tables. Colours only on a terminal, and never if NO_COLOR is set."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _FILE_COLUMNS
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """`text` with its control characters escaped, so that a name from a file cannot control the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def tabbed(*cells: object) -> str:
    """Cells joined by tabs, for programs; tabs within cells are escaped."""
    return "\t".join(printable(str(cell)) for cell in cells)


def echo_json(value: dict[str, Any] | list[Any]) -> None:  # Any: JSON values
    """Prints strict JSON: no NaN, no Infinity, ASCII only. An object starts with its version."""
    document = {"version": JSON_VERSION, **value} if isinstance(value, dict) else value
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


def echo_json_list(name: str, entries: Sequence[dict[str, Any]]) -> None:  # Any: JSON values
    """Prints an object with one list; a long list has one line per entry, which is much faster."""
    if len(entries) <= _INDENTED_MAX:
        echo_json({name: entries})
        return
    lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
    typer.echo(f'{{"version": {JSON_VERSION}, {json.dumps(name)}: [\n{lines}\n]}}')


def json_line(value: dict[str, Any]) -> str:  # Any: JSON values
    """An object and its version on one line."""
    return json.dumps({"version": JSON_VERSION, **value}, allow_nan=False)


def notify(message: str) -> None:
    """Prints a message on stderr."""
    typer.echo(printable(message), err=True)


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """One progress bar per run on stderr; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        tasks: dict[str, Any] = {}  # rich's ids of bars
        drawn: dict[str, int] = {}

        def advance(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
                drawn[label] = -1
            if done != drawn[label]:  # called for each event, drawn on change only
                bars.update(tasks[label], completed=done)
                drawn[label] = done

        yield advance
