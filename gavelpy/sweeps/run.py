"""Runs a sweep: the cells that are not finished, in parallel, with the results of each stored as it ends."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gavelpy.errors import InvalidInput, require
from gavelpy.sweeps.backends import Backend, Ended, run_all
from gavelpy.sweeps.cells import Cell
from gavelpy.sweeps.grid import Grid, grid_of
from gavelpy.sweeps.store import Store, finished_in, table_of

if TYPE_CHECKING:
    import pandas as pd

Tick = Callable[["Standing"], None]
Runner = Callable[[Sequence[Cell]], Iterator[Ended]]
Again = Callable[[Mapping[str, Any]], bool]  # Any: JSON values


def has_failed(results: Mapping[str, Any]) -> bool:
    """Whether a cell ended with an error."""
    return bool(results.get("error"))


@dataclass
class Standing:
    """How far a sweep is."""

    cells: int
    finished: int = 0  # those of an earlier run included
    failed: int = 0
    reused: int = 0  # finished in an earlier run
    began_s: float = field(default_factory=time.monotonic)
    left_weight: float = 0.0  # expected work of the cells that are not finished
    done_weight: float = 0.0  # of those that this run has finished

    @property
    def left_s(self) -> float:
        """Expected seconds until the end; NaN before the first cell of this run ends."""
        if self.finished == self.cells:
            return 0.0
        elapsed_s = time.monotonic() - self.began_s
        return elapsed_s * self.left_weight / self.done_weight if self.done_weight > 0 else float("nan")


def sweep(
    source: str | Path | Mapping[str, Any],  # Any: values of options, alone or in lists
    *,
    out: str | Path | None = None,
    jobs: int = 0,
    backend: str = "processes",
    address: str = "",
    retry_failed: bool = False,
) -> pd.DataFrame:
    """Simulates all combinations of options; one row for each, with the options and the metrics.

    `source` is a TOML file, or a mapping like one: options of `gavel simulate`, each with a value or a list of values.
    With a directory `out`, cells that are finished there do not run again, and the rows are also in its
    results.parquet. `jobs` processes (0 = one for each core), or a cluster: `backend` dask or ray, at `address`. A cell
    that fails has a row with its `error`.

    >>> import gavelpy
    >>> frame = gavelpy.sweep({"generate": 20, "cluster": "v100:4", "policy": ["fifo", "las"], "seed": [0, 1]}, jobs=1)
    >>> frame[["policy", "seed", "jobs_measured"]].values.tolist()
    [['fifo', 0, 20.0], ['fifo', 1, 20.0], ['las', 0, 20.0], ['las', 1, 20.0]]
    """
    store = Store(Path(out)) if out is not None else None
    if backend not in list(Backend):
        raise InvalidInput(f"backend must be one of {', '.join(Backend)}, got {backend!r}")
    where = Backend(backend)
    return sweep_grid(grid_of(source), store, jobs=jobs, backend=where, address=address, retry_failed=retry_failed)


def sweep_grid(
    grid: Grid,
    store: Store | None,
    *,
    jobs: int = 0,
    backend: Backend = Backend.PROCESSES,
    address: str = "",
    retry_failed: bool = False,
    tick: Tick | None = None,
) -> pd.DataFrame:
    """The same for a grid; calls `tick` at the start and after each cell."""

    def runner(cells: Sequence[Cell]) -> Iterator[Ended]:
        return run_all(cells, backend, jobs=jobs, address=address)

    return sweep_with(runner, grid, store, again=has_failed if retry_failed else None, tick=tick)


def sweep_with(
    runner: Runner, grid: Grid, store: Store | None, *, again: Again | None = None, tick: Tick | None = None
) -> pd.DataFrame:
    """The same with `runner`; stored cells for whose results `again` is true run again."""
    if store is not None:
        require("--out", ("pyarrow",))
    results = finished_in(store.directory, grid.cells) if store is not None else {}
    if again is not None:
        results = {key: found for key, found in results.items() if not again(found)}
    left = [cell for cell in grid.cells if cell.key not in results]
    standing = Standing(len(grid.cells), len(results), reused=len(results))
    standing.failed = sum(bool(found.get("error")) for found in results.values())
    standing.left_weight = sum(map(weight, left))
    _call(tick, standing)
    try:
        for cell, found in runner(left):
            results[cell.key] = found
            if store is not None:
                store.add(cell, found)
            standing.finished += 1
            standing.failed += bool(found.get("error"))
            standing.left_weight -= weight(cell)
            standing.done_weight += weight(cell)
            _call(tick, standing)
    finally:
        frame = table_of(grid.cells, results)
        if store is not None and results:
            store.write_table(frame)
    return frame


def weight(cell: Cell) -> float:
    """Expected work of a cell, relative to other cells of its sweep: its jobs, if they are generated."""
    count = cell.options.get("generate", 1)
    return float(count) if isinstance(count, int) else 1.0


def _call(tick: Tick | None, standing: Standing) -> None:
    if tick is not None:
        tick(standing)
