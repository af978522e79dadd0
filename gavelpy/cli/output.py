"""Output of all commands: data on stdout as JSON or tables, messages and progress on stderr, exit codes.

Values are formatted here, too: the scheduler's messages as JSON; durations, times, numbers and percentages as text.

Tables are drawn by rich on a terminal. In a file, in a pipe and if they are long, they are plain columns: rich measures
each cell several times, which takes seconds for thousands of rows.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


import math
import time
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from google.protobuf.message import Message


OK = 0
FAILED = 1  # a job failed, the scheduler could not do it, or no allocation could be certified
BAD_INPUT = 2
UNREACHABLE = 3
NOT_ALLOWED = 4
TIMED_OUT = 124
INTERRUPTED = 130
PIPE_CLOSED = 141

NAMES = {FAILED: "failed", BAD_INPUT: "bad_input", UNREACHABLE: "unreachable", NOT_ALLOWED: "not_allowed",
         INTERRUPTED: "interrupted"}  # fmt: skip
"""The codes of errors under `-o json`."""

JSON_VERSION = 1  # of the output of all commands, docs/json.md; a change that breaks readers increases it
_INDENTED_MAX = 300
MORE: Final[Mapping[str, Any]] = {}  # fields of JSON: none
_FILE_COLUMNS = 200  # width of a table in a file or a pipe


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


def echo_json(value: dict[str, Any]) -> None:  # Any: JSON values
    """Prints an object that starts with its version, as strict JSON: no NaN, no Infinity, ASCII only."""
    typer.echo(json.dumps({"version": JSON_VERSION, **value}, indent=2, allow_nan=False))


def echo_json_list(name: str, entries: Sequence[dict[str, Any]], more: Mapping[str, Any] = MORE) -> None:
    """Prints an object with one list, and `more`; a long list has one line per entry, which is much faster."""
    if len(entries) <= _INDENTED_MAX:
        echo_json({name: entries, **more})
        return
    rest = "".join(f", {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in more.items())
    lines = ",\n".join(json.dumps(entry, allow_nan=False) for entry in entries)
    typer.echo(f'{{"version": {JSON_VERSION}, {json.dumps(name)}: [\n{lines}\n]{rest}}}')


def json_line(value: dict[str, Any]) -> str:  # Any: JSON values
    """An object and its version on one line."""
    return json.dumps({"version": JSON_VERSION, **value}, allow_nan=False)


def notify(message: str) -> None:
    """Prints a message on stderr."""
    typer.echo(printable(message), err=True)


RICH_ROWS_MAX: Final = 300
_GAP = "  "


@dataclass(frozen=True)
class TableData:
    """Titles and rows of printable cells, one cell for each title; `right`: titles of right-aligned columns."""

    titles: tuple[str, ...]
    right: frozenset[str]
    rows: Sequence[tuple[str, ...]]


def show_table(data: TableData) -> None:
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


DASH = "–"
_RENAMED = {"price": ("marginal_value",)}  # newer keys of a field; its own name stays for one version
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3_600, 86_400


def as_json(message: Message) -> dict[str, Any]:  # Any: JSON values
    """Each field by its name: enums as lower-case words (`running`), NaN and infinity as null."""
    return {key: convert(getattr(message, name)) for key, name, convert in _converters(message.DESCRIPTOR)}


def enum_name(kind: Any, value: int) -> str:  # Any: an enum of the protocol
    """`running` for JOB_STATE_RUNNING; the number if this client does not know the value."""
    if value not in kind.values():
        return str(value)
    prefix = kind.Name(0).removesuffix("UNSPECIFIED")
    name: str = kind.Name(value)
    return name.removeprefix(prefix).lower()


@cache
def _converters(kind: Any) -> tuple[tuple[str, str, Callable[[Any], Any]], ...]:
    """Keys in JSON, and for each its field and a converter, built once per message type."""
    named = [(key, field) for field in kind.fields for key in (*_RENAMED.get(field.name, ()), field.name)]
    return tuple((key, field.name, _converter(field)) for key, field in named)


def _converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        value = _single_converter(field.message_type.fields_by_name["value"])
        return lambda values: {str(key): value(inner) for key, inner in sorted(values.items(), key=itemgetter(0))}
    single = _single_converter(field)
    return (lambda values: [single(inner) for inner in values]) if field.is_repeated else single


def _single_converter(field: Any) -> Callable[[Any], Any]:
    if field.message_type is not None:
        return as_json
    if field.enum_type is None:
        return _number
    prefix = field.enum_type.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = {entry.number: entry.name.removeprefix(prefix).lower() for entry in field.enum_type.values}
    return lambda value: names.get(value, str(value))


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`; a dash if negative or not finite."""
    if not math.isfinite(seconds) or seconds < 0:
        return DASH
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 2 * _MINUTE_S:
        return f"{whole} s"
    if whole < _HOUR_S:
        return f"{whole // _MINUTE_S} min"
    if whole < _DAY_S:
        return f"{whole // _HOUR_S} h {whole % _HOUR_S // _MINUTE_S:02d} min"
    return f"{whole // _DAY_S} d {whole % _DAY_S // _HOUR_S} h"


def with_interval(seconds: float, low_s: float, high_s: float) -> str:
    """A forecast and its interval: `12 min (80 %: 8 min to 25 min)`; without one (-1), or if it has no width, alone."""
    if low_s < 0 or low_s == high_s:
        return duration(seconds)
    until = f"{duration(low_s)} to {duration(high_s)}" if high_s >= 0 else f"{duration(low_s)} or more"
    return f"{duration(seconds)} (80 %: {until})"


def timestamp(unix_s: float) -> str:
    """Local date and time; a dash for 0."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(unix_s)) if unix_s > 0 else DASH


def compact(value: float) -> str:
    """A number with four significant digits; a dash if not finite."""
    return f"{value:,.4g}" if math.isfinite(value) else DASH


def count(value: float) -> str:
    """A whole number with thousands separators; a dash if not finite."""
    return f"{value:,.0f}" if math.isfinite(value) else DASH


def percent(part: float, whole: float) -> str:
    """`42 %`."""
    return f"{100 * part / whole:.0f} %" if whole > 0 else DASH
