"""Tables of jobs and nodes: drawn for a person at a terminal, else, or where they are long, written as plain columns.

Drawing measures every cell many times over; plain columns are written as fast as they can be read.
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

DRAWN_ROWS_MAX: Final = 300
_GAP = "  "


@dataclass(frozen=True)
class Sheet:
    """Titles and rows of printable cells, as many in each row as there are titles; `right`: titles of figures."""

    titles: tuple[str, ...]
    right: frozenset[str]
    rows: Sequence[tuple[str, ...]]


def show(sheet: Sheet) -> None:
    """On stdout."""
    if sys.stdout.isatty() and len(sheet.rows) <= DRAWN_ROWS_MAX:
        console().print(drawn(sheet))
    else:
        typer.echo(written(sheet), nl=False)


def drawn(sheet: Sheet) -> Table:
    """For a terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in sheet.titles:
        table.add_column(title, justify="right" if title in sheet.right else "left")
    for row in sheet.rows:
        table.add_row(*row)
    return table


def written(sheet: Sheet) -> str:
    """A line a row under a line of titles; nothing is cut or wrapped."""
    lines = [sheet.titles, *sheet.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    signs = (">" if title in sheet.right else "<" for title in sheet.titles)
    layout = _GAP.join(f"{{:{sign}{width}}}" for sign, width in zip(signs, widths, strict=True))
    return "".join(f"{layout.format(*line).rstrip()}\n" for line in lines)
