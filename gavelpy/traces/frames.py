"""Traces, throughput tables and problems from and to pandas frames, with the columns and checks of the files.

Errors name the third row `frame:3:`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.model.cluster import Cluster
from gavelpy.model.job import GPUS_MAX, Trace
from gavelpy.model.problem import AllocationProblem, Entity
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.csv_format import RATE_PREFIX, throughputs_from_table, trace_cells, trace_from_table
from gavelpy.traces.fields import CsvTable, Place
from gavelpy.traces.problem_json import NUMBERS, JobColumns, build_problem
from gavelpy.traces.problem_resources import added

if TYPE_CHECKING:
    import pandas as pd

_FILE = "frame"
_DEFAULTS = {"weight": 1.0, "steps_remaining": 1.0, "steps_total": math.nan, "deadline_s": math.inf}
_TEXTS = ("id", "job_type", "entity", "owner", "gpu_types", "command", "working_directory")


def trace_from_frame(frame: pd.DataFrame) -> Trace:
    """The trace in a frame with the columns of a trace CSV; missing values count as empty cells."""
    return trace_from_table(_table(frame))


def trace_to_frame(trace: Trace) -> pd.DataFrame:
    """One row per job with the columns of a trace CSV; NaN = no deadline, unknown rate."""
    import pandas as pd

    header, rows = trace_cells(trace)
    frame = pd.DataFrame(rows, columns=header, dtype=str)
    numbers = [name for name in header if name not in _TEXTS]
    frame[numbers] = frame[numbers].replace("", "nan").astype("float64")
    return frame.astype({"gpus": "int64"})


def table_from_frame(frame: pd.DataFrame) -> ThroughputTable:
    """The throughput table in a frame with the columns of a table CSV, such as `ThroughputTable.to_frame` returns."""
    return throughputs_from_table(_table(frame))


def problem_from_frame(
    jobs: pd.DataFrame,
    cluster: Cluster,
    *,
    entities: Sequence[Entity] = (),
    resources: Mapping[str, Mapping[str, float]] = MappingProxyType({}),  # by name, then by GPU type
) -> AllocationProblem:
    """The problem of the jobs in a frame (rows in order of arrival) on a cluster, with the cluster's prices.

    Columns: id, then optionally gpus, weight, steps_remaining, steps_total, age_s, isolated_s, attained_gpu_s,
    deadline_s (from now; NaN = none), entity, `rate_<gpu type>` (NaN = cannot run there), and `demand_<resource>` for
    each of the `resources` (NaN = 0).
    """
    table = _table(jobs)
    table.require(("id",), ("gpus", "entity", *NUMBERS, *(f"demand_{name}" for name in resources)), RATE_PREFIX)
    cells = [(place, dict(zip(table.header, row, strict=True))) for place, row in table.rows]

    def numbers(name: str) -> list[float]:
        default = _DEFAULTS.get(name, 0.0)
        return [
            place.signed(name, cell[name]) if cell.get(name, "") not in ("", "inf") else default
            for place, cell in cells
        ]

    by_name = {name: numbers(name) for name in NUMBERS}
    by_name["steps_total"] = [
        remaining if math.isnan(total) else total
        for total, remaining in zip(by_name["steps_total"], by_name["steps_remaining"], strict=True)
    ]

    def error(row: int, field: Sequence[str | int], allowed: str, value: object) -> InvalidInput:
        name = f"{RATE_PREFIX}{field[1]}" if len(field) > 1 else str(field[0])
        return cells[row][0].error(name, allowed, value)

    columns = JobColumns(
        ids=[cell["id"] for _, cell in cells],
        gpus=[place.whole("gpus", cell.get("gpus", "") or "1", 1, GPUS_MAX) for place, cell in cells],
        entities=[cell.get("entity", "") for _, cell in cells],
        rates_steps_per_s=[
            {
                name.removeprefix(RATE_PREFIX): place.number(name, text)
                for name, text in cell.items()
                if name.startswith(RATE_PREFIX) and text
            }
            for place, cell in cells
        ],
        numbers=by_name,
    )
    problem = build_problem(columns, cluster, entities, error)
    capacity = np.array([[by_type.get(t, 0.0) for by_type in resources.values()] for t in problem.gpu_types])
    demand = np.array([
        [place.number(f"demand_{name}", cell.get(f"demand_{name}", "") or "0") for name in resources]
        for place, cell in cells
    ])  # fmt: skip
    return added(problem, tuple(resources), capacity, demand.reshape(len(cells), len(resources)))


def _table(frame: pd.DataFrame) -> CsvTable:
    """The frame as text cells: floats in full precision, missing values empty."""
    columns = [_cells(frame.iloc[:, i]) for i in range(frame.shape[1])]

    def rows() -> Iterator[tuple[Place, Sequence[str]]]:
        for i, cells in enumerate(zip(*columns, strict=True)):
            yield Place(_FILE, i + 1), cells

    return CsvTable(tuple(map(str, frame.columns)), rows(), _FILE)


def _cells(series: pd.Series) -> list[str]:
    return [
        ""
        if is_missing
        else value
        if isinstance(value, str)
        else repr(value)
        if isinstance(value, float)
        else str(value)
        for value, is_missing in zip(series.tolist(), series.isna().tolist(), strict=True)
    ]
