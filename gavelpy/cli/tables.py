"""Tables of jobs and nodes: with rich on a terminal; as plain columns in a file, in a pipe, or if they are long.

rich measures each cell several times, which takes seconds for thousands of rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from gavelpy.cli.output import console

if TYPE_CHECKING:
    from rich.table import Table

RICH_ROWS_MAX: Final = 300
_GAP = "  "


@dataclass(frozen=True)
class TableData:
    """Titles and rows of printable cells, one cell for each title; `right`: titles of right-aligned columns."""

    titles: tuple[str, ...]
    right: frozenset[str]
    rows: Sequence[tuple[str, ...]]


def show(data: TableData) -> None:
    """Prints the table on stdout."""
    if sys.stdout.isatty() and len(data.rows) <= RICH_ROWS_MAX:
        console().print(as_rich(data))
    else:
        typer.echo(as_text(data), nl=False)


def as_rich(data: TableData) -> Table:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in data.titles:
        table.add_column(title, justify="right" if title in data.right else "left")
    for row in data.rows:
        table.add_row(*row)
    return table


def as_text(data: TableData) -> str:
    """A line of titles, then one line per row; nothing is cut or wrapped."""
    lines = [data.titles, *data.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    signs = (">" if title in data.right else "<" for title in data.titles)
    layout = _GAP.join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    return "".join(f"{layout.format(*line).rstrip()}\n" for line in lines)
