"""Grids of cells: from a TOML file or from a mapping of options to values, each value alone or in a list.

    policy = ["fifo", "max_min_fairness"]
    generate = 200
    rate_per_h = [2, 4, 6]
    seed = "0..4"

The cells are all combinations, in the order of the file; the last option varies fastest. If there are tables [[grid]],
each is a grid of its own: its options, and those above that it does not replace. Errors name the file, the line, the
key, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.toml_text import parsed_toml
from gavelpy.sweeps.cells import Cell, Scalar, cell_options
from gavelpy.traces.fields import read_text, shown

CELLS_MAX: Final = 1_000_000
GRID: Final = "grid"
_RANGE = re.compile(r"(\d{1,18})\.\.(\d{1,18})")
_HEADER = re.compile(r"\s*\[\[?\s*([\w.-]+)\s*\]")


@dataclass(frozen=True)
class Grid:
    """The cells of a sweep, in order, each once."""

    cells: tuple[Cell, ...]
    varied: tuple[str, ...]  # options with several values
    name: str = ""  # of the file, without its suffix

    @property
    def numeric(self) -> tuple[str, ...]:
        """The varied options whose values are numbers, except the seed."""
        columns = {name: {cell.options.get(name) for cell in self.cells} for name in self.varied if name != "seed"}
        return tuple(n for n, values in columns.items() if all(isinstance(v, int | float) for v in values))


def grid_of(source: str | Path | Mapping[str, Any]) -> Grid:  # Any: scalars, lists of them, a list of grids
    """The grid of a TOML file, or of a mapping like one. Raises InvalidInput; no cell is simulated."""
    if isinstance(source, Mapping):
        return _grid(dict(source), _Lines("", ""), Path.cwd())
    text = read_text(source)
    lines = _Lines(str(source), text)
    grid = _grid(parsed_toml(text, lines.file), lines, Path(source).parent)
    return replace(grid, name=Path(source).stem)


def _grid(document: dict[str, Any], lines: _Lines, directory: Path) -> Grid:
    tables = document.pop(GRID, [{}])
    if not isinstance(tables, list) or not tables or not all(isinstance(table, Mapping) for table in tables):
        raise lines.error(GRID, -1, f"must be tables, [[{GRID}]], got {shown(tables)}")
    cells: dict[str, Cell] = {}
    varied: dict[str, None] = {}
    for number, table in enumerate(tables):
        axes = {
            key: _axis(key, value, _Place(lines, key, number if key in table else -1), directory)
            for key, value in {**document, **table}.items()
        }
        count = math.prod(len(axis) for axis in axes.values())
        if not axes or len(cells) + count > CELLS_MAX:
            raise InvalidInput(
                f"a sweep must have 1 to {CELLS_MAX:,} cells, got {count if axes else 0:,}", file=lines.file
            )
        varied |= dict.fromkeys(key for key, axis in axes.items() if len(axis) > 1)
        _check_cells(axes, lines, number, table)
        for values in itertools.product(*axes.values()):
            cell = Cell.of(dict(zip(axes, values, strict=True)))
            cells.setdefault(cell.key, cell)
    names = dict.fromkeys(name for cell in cells.values() for name in cell.options)
    differing = [n for n in names if n in varied or len({c.options.get(n) for c in cells.values()}) > 1]
    return Grid(tuple(cells.values()), tuple(differing))


def _axis(key: str, given: object, place: _Place, directory: Path) -> list[Scalar]:
    """The values of an option, each checked."""
    option = cell_options().get(key)
    if option is None:
        near = difflib.get_close_matches(key, cell_options(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise place.error(f"is not an option of simulations; {hint}Known are {', '.join(cell_options())}")
    if isinstance(given, Mapping):
        raise place.error(f"must be a value or a list of values, got the table {shown(dict(given))}")
    values = _listed(key, given, option.is_whole)
    try:
        found = [option.value(value, directory) for value in values]
    except InvalidInput as error:
        raise place.located(error) from None
    if not found:
        raise place.error("must have at least one value, got []")
    for value in found:
        if found.count(value) > 1:
            raise place.error(f"must have each value once, got {value!r} twice")
    return found


def _listed(key: str, given: object, is_whole: bool) -> list[object]:
    """The values of `[1, 2]`, of `"0..4"`, of `"fifo,las"`, of an array, or of one value."""
    if isinstance(given, np.ndarray | range):
        return list(np.asarray(given).tolist())
    if isinstance(given, Sequence) and not isinstance(given, str):
        return list(given)
    if isinstance(given, str) and is_whole and (ends := _RANGE.fullmatch(given.strip())):
        first, last = int(ends[1]), int(ends[2])
        if last - first < CELLS_MAX:
            return list(range(first, last + 1))
    if isinstance(given, str) and key == "policy":
        return [name.strip() for name in given.split(",")]
    return [given]


def _check_cells(axes: Mapping[str, list[Scalar]], lines: _Lines, number: int, table: Mapping[str, Any]) -> None:
    """Builds the experiment of the first cell, and one for each other value; none is simulated."""
    first = {key: axis[0] for key, axis in axes.items()}
    changes = [{}, *({key: value} for key, axis in axes.items() for value in axis[1:])]
    for change in changes:
        try:
            _small({**first, **change}).experiment()
        except InvalidInput as error:
            named = error.args[0].split()[0].removeprefix("--").replace("-", "_")
            key = next(iter(change), named if named in axes else "")
            raise _Place(lines, key, number if key in table else -1).located(error) from None


def _small(options: dict[str, Scalar]) -> Cell:
    """The cell, with few jobs if they are generated."""
    count = options.get("generate")
    few = {"generate": min(count, 10)} if isinstance(count, int) else {}
    return Cell.of({**options, **few})


@dataclass(frozen=True)
class _Lines:
    """The text of the file, to find the line of a key."""

    file: str
    text: str

    def line(self, key: str, table: int) -> int:
        """The line of a key, from 1; `table`: of the n-th [[grid]], or -1; 0 = not found."""
        here = -1
        for number, line in enumerate(self.text.splitlines(), 1):
            if (header := _HEADER.match(line)) is not None:
                here += 1
                if header[1] == key:
                    return number
            elif here == table and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
                return number
        return 0

    def error(self, key: str, table: int, text: str) -> InvalidInput:
        return InvalidInput(f"{key} {text}", file=self.file, line=self.line(key, table) if key else 0)


@dataclass(frozen=True)
class _Place:
    """Where a key is."""

    lines: _Lines
    key: str
    table: int

    def error(self, text: str) -> InvalidInput:
        return self.lines.error(self.key, self.table, text)

    def located(self, error: InvalidInput) -> InvalidInput:
        """The error with this place; that of another file keeps its own."""
        if error.file:
            return error
        line = self.lines.line(self.key, self.table) if self.key else 0
        return InvalidInput(error.args[0], file=self.lines.file, line=line)
