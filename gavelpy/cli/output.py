"""What is written where: data on stdout, messages and progress on stderr."""

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

_INDENTED_MAX = 300
_WIDTH_OF_FILES = 200  # a table that goes to a file or a pipe is not cut to somebody's terminal

Progress = Callable[[str, int, int], None]  # (label of the run, jobs done, jobs in all)


class Output(StrEnum):
    """How an answer is printed."""

    TABLE = "table"
    JSON = "json"


def console() -> Console:
    """Where tables go. Colours only on a terminal, and never when NO_COLOR is set."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDTH_OF_FILES
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """`text` with its control characters escaped: a name from a file must not command the terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def tabbed(*cells: object) -> str:
    """A line of cells for programs that cut at tabs; nothing within a cell is one."""
    return "\t".join(printable(str(cell)) for cell in cells)


def echo_json(value: dict[str, Any] | list[Any]) -> None:  # Any: whatever JSON can say
    """Strict JSON on stdout: no NaN, no Infinity, ASCII only."""
    typer.echo(json.dumps(value, indent=2, allow_nan=False))


def echo_json_list(name: str, entries: Sequence[dict[str, Any]]) -> None:  # Any: whatever JSON can say
    """An object with one list; one that is long has a line an entry, which is written much faster."""
    if len(entries) <= _INDENTED_MAX:
        echo_json({name: entries})
        return
    lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
    typer.echo(f"{{{json.dumps(name)}: [\n{lines}\n]}}")


def notify(message: str) -> None:
    """A message for the person at the terminal."""
    typer.echo(printable(message), err=True)


@contextmanager
def progress_bar() -> Iterator[Progress | None]:
    """A bar a run on stderr; None where stderr is no terminal."""
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
            if done != drawn[label]:  # told of every event, drawn when something has changed
                bars.update(tasks[label], completed=done)
                drawn[label] = done

        yield advance
