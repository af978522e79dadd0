"""The results of a sweep over its seeds: means with 95 % bootstrap intervals, and the expected time of cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gavelpy.report.comparison import COLUMNS
from gavelpy.statistics import MeanInterval, mean_interval
from gavelpy.sweeps.cells import Cell, run_cell
from gavelpy.sweeps.grid import Grid

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_JOBS: Final = 50  # of a cell, to estimate its time
_REDRAWN: Final = frozenset({"seed", "rate_per_h", "mean_interarrival_s"})  # of options that do not change the work


@dataclass(frozen=True)
class Group:
    """Cells that differ in their seed only."""

    options: Mapping[str, Any]  # varied ones, without the seed
    means: Mapping[str, MeanInterval]  # by metric
    failed: int

    def to_json(self) -> dict[str, Any]:  # Any: JSON values
        """The documented object; NaN becomes null."""
        means = {name: _without_nan(asdict(one)) for name, one in self.means.items()}
        return {"options": dict(self.options), "failed": self.failed, "means": means}


def groups_of(frame: pd.DataFrame, grid: Grid) -> list[Group]:
    """The groups in the order of the grid. Failed cells, and metrics that are never known, are left out of means."""
    import pandas as pd

    by = [name for name in grid.varied if name != "seed" and name in frame]
    metrics = [column.field for column in COLUMNS if column.field in frame and frame[column.field].notna().any()]
    parts = frame.groupby(by, sort=False, dropna=False) if by else [((), frame)]
    groups = []
    for values, part in parts:
        good = part[part["error"] == ""]
        options = dict(zip(by, np.atleast_1d(np.array(values, dtype=object)).tolist(), strict=True))
        means = {name: mean_interval(good[name].to_numpy(dtype=float)) for name in metrics}
        known = {name: value for name, value in options.items() if not pd.isna(value)}
        groups.append(Group(known, means, len(part) - len(good)))
    return groups


def expected_cpu_s(grid: Grid, finished: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    """Expected CPU time by key of the cells that are not finished: a rough figure.

    That of finished cells that differ in load or seed only; else of the first SAMPLE_JOBS jobs of such a cell, in
    proportion. Jobs beyond a sample wait in longer queues, so it rather is too low.
    """
    known: dict[tuple[object, ...], list[float]] = {}
    for cell in grid.cells:
        if cell.key in finished:
            known.setdefault(_kind(cell), []).append(float(finished[cell.key].get("cell_cpu_s") or 0.0))
    left = [cell for cell in grid.cells if cell.key not in finished]
    for cell in left:
        if _kind(cell) not in known:
            known[_kind(cell)] = [_sampled_s(cell)]
    return {cell.key: float(np.mean(known[_kind(cell)])) for cell in left}


def _kind(cell: Cell) -> tuple[object, ...]:
    return tuple((name, value) for name, value in cell.options.items() if name not in _REDRAWN)


def _sampled_s(cell: Cell) -> float:
    jobs = len(cell.experiment().trace)
    few = min(SAMPLE_JOBS, jobs)
    found = run_cell(Cell.of({**cell.options, "window": f"0:{few}"}))
    return float(found["cell_cpu_s"]) * jobs / few


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: None if value != value else value for name, value in values.items()}


def rows_of(frame: pd.DataFrame, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """The rows as JSON values; NaN becomes null."""
    chosen = frame if columns is None else frame[list(columns)]
    return [_without_nan({str(name): value for name, value in row.items()}) for row in chosen.to_dict("records")]
