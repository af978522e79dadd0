"""The comparison as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gavelpy.report.columns import Cells, comparison_columns
from gavelpy.report.result import Result

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_PADDING = 3  # what a column costs beside its text


def comparison(results: Sequence[Result], *, width: int = 200) -> Table:
    """A row a run, a column a figure, the best of each in bold green; as many columns as `width` characters hold."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("policy", no_wrap=True, style="bold")
    columns = _fitting(comparison_columns(results), width - max(len(result.label) for result in results) - 2)
    for column in columns:
        table.add_column(_header(column), justify="right", no_wrap=True)
    for row, result in enumerate(results):
        marked = (_marked(column.texts[row], column.best[row]) for column in columns)
        table.add_row(result.label, *marked)
    return table


def _fitting(ranked: Sequence[tuple[int, Cells]], width: int) -> list[Cells]:
    """The columns of the lowest ranks that fit, in their own order; never fewer than two."""
    chosen: list[int] = []
    for index in sorted(range(len(ranked)), key=lambda index: ranked[index][0]):
        column = ranked[index][1]
        width -= max(len(line) for line in (*_header(column).split("\n"), *column.texts)) + _PADDING
        if width < 0 and len(chosen) >= 2:
            break
        chosen.append(index)
    return [ranked[index][1] for index in sorted(chosen)]


def _header(column: Cells) -> str:
    if column.title.startswith("vs "):
        return column.title.replace(" ", "\n", 1)
    return f"{column.title}\n{column.unit}" if column.unit else column.title


def _marked(text: str, best: bool) -> Text:
    from rich.text import Text

    return Text(text, style="bold green" if best else "")
