"""Measurements as rows of a CSV file, written immediately: an interrupted run keeps its rows."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TextIO

from benchmarks.problems import Case


@dataclass(frozen=True)
class Measurement:
    """The result of one contender. NaN = unknown, or not applicable to this contender."""

    case: Case
    contender: str  # "ours", or the peer's name
    median_s: float = math.nan
    runs: int = 0
    solver_s: float = math.nan  # of one run, inside the peer's solver, as it reports it
    apart: float = math.nan  # relative difference between its figures and ours
    gap: float = math.nan
    violation: float = math.nan
    path: str = ""
    memory_mb: float = math.nan  # peak of a process that draws and solves only this case
    memory_before_mb: float = math.nan  # after drawing the problem, before solving it
    note: str = ""  # why there is no time, or what is wrong with the answer


class Record:
    """An open CSV file of measurements."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._writer = csv.DictWriter(file, _COLUMNS)
        self._writer.writeheader()

    def add(self, measurement: Measurement) -> None:
        """Writes a row and flushes it."""
        values = asdict(measurement)
        case = values.pop("case")
        self._writer.writerow(
            {name: "" if value != value else value for name, value in (case | values).items()}  # NaN is not itself
        )
        self._file.flush()


@contextmanager
def recording(path: Path) -> Iterator[Record]:
    """Creates a file at `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        yield Record(file)


def read(path: Path) -> list[Measurement]:
    """The measurements in a file."""
    with path.open(newline="", encoding="utf-8") as file:
        return [_measurement(row) for row in csv.DictReader(file)]


_CASE = [field.name for field in fields(Case)]
_REST = [field.name for field in fields(Measurement) if field.name != "case"]
_COLUMNS = [*_CASE, *_REST]
_WHOLE, _REAL = {"types", "jobs", "seed", "runs"}, {"load", "median_s", "solver_s", "apart", "gap", "violation"}
_FIGURES = _REAL | {"memory_mb", "memory_before_mb"}


def _measurement(row: dict[str, str]) -> Measurement:
    values: dict[str, Any] = {
        name: int(text) if name in _WHOLE else float(text or "nan") if name in _FIGURES else text
        for name, text in row.items()
    }
    case = Case(**{name: values.pop(name) for name in _CASE})
    return Measurement(case, **values)
