"""`gavel sweep`: simulates a grid of options in parallel; resumes where it was stopped; tables, figures, Parquet."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from gavelpy.cli import options as o
from gavelpy.cli import parsing as p
from gavelpy.cli import simulation_options as s
from gavelpy.cli.output import DASH, FAILED, Output, TableData, duration, echo_json, notify, show_table
from gavelpy.errors import require

if TYPE_CHECKING:
    import pandas as pd

    from gavelpy.report.comparison import Column
    from gavelpy.statistics import MeanInterval
    from gavelpy.sweeps.grid import Grid
    from gavelpy.sweeps.run import Standing, Tick
    from gavelpy.sweeps.store import Store
    from gavelpy.sweeps.summary import Group

_PARALLEL: Final = "Parallel runs"
_EVERY_S: Final = 30.0  # between two lines of progress in a file
_SHOWN: Final = ("avg_jct_s", "p90_jct_s", "makespan_s", "utilization", "cost_usd", "ftf_worst", "jobs_unfinished")
_NAMED_MAX: Final = 5
SEEDS_MIN: Final = 8  # from here on, the intervals hold in 94 % of cases or more


def _backend(text: str) -> str:
    from gavelpy.sweeps.backends import Backend

    if text not in list(Backend):
        raise typer.BadParameter(f"must be one of {', '.join(Backend)}, got {text[:60]!r}")
    return text


SweepArgument = Annotated[
    Path,
    typer.Argument(metavar="SWEEP.toml", help="Options of `gavel simulate`, each with a value or a list of values."),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        rich_help_panel=s.RESULTS,
        help="Directory of the results. Default: SWEEP.sweep in the current directory.",
    ),
]
JobsOption = Annotated[
    int,
    typer.Option(
        "--jobs",
        metavar="N",
        parser=o.whole(0, 10_000),
        rich_help_panel=_PARALLEL,
        help="Processes on this machine; 0 = one for each core.",
    ),
]
BackendOption = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        parser=_backend,
        rich_help_panel=_PARALLEL,
        help="processes, dask or ray: a cluster that sees the same files. Without --address, one of this machine.",
    ),
]
AddressOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", rich_help_panel=_PARALLEL, help="Address of the Dask or Ray cluster.")
]
RetryFailedOption = Annotated[
    bool, typer.Option("--retry-failed", rich_help_panel=_PARALLEL, help="Run cells again that failed before.")
]
AxisOption = Annotated[
    str,
    typer.Option(
        "--x",
        metavar="OPTION",
        rich_help_panel=s.RESULTS,
        help="With --figures: the option along the x-axis. Default: the first one with several numbers.",
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="List the cells with an estimate of their CPU time, and run none.")
]


def sweep(
    file: SweepArgument,
    out: OutOption = None,
    jobs: JobsOption = 0,
    backend: BackendOption = "processes",
    address: AddressOption = "",
    retry_failed: RetryFailedOption = False,
    dry_run: DryRunOption = False,
    figures: s.FiguresOption = None,
    x: AxisOption = "",
    output: o.OutputOption = Output.TABLE,
) -> None:
    """Simulate a grid of policies, clusters, loads, seeds and settings in parallel.

    A sweep that was stopped continues where it was: finished cells do not run again.

    \b
    Examples:
      gavel sweep load.toml --dry-run
      gavel sweep load.toml --out results --figures figures
      gavel sweep load.toml --backend dask --address tcp://head:8786
    """
    require("gavel sweep", ("joblib", "pyarrow"))
    from gavelpy.cli.simulate import check_report
    from gavelpy.report.export import write_curves
    from gavelpy.sweeps.backends import Backend
    from gavelpy.sweeps.figures import axis_of, figures_of
    from gavelpy.sweeps.grid import grid_of
    from gavelpy.sweeps.run import sweep_grid
    from gavelpy.sweeps.store import Store
    from gavelpy.sweeps.summary import groups_of

    directory = p.writable_directory("--out", out or Path(f"{file.stem}.sweep"))
    grid = grid_of(file)
    if figures is not None:
        check_report(None, figures)
        x = axis_of(grid, x)
    if dry_run:
        _show_plan(grid, directory, output)
        return
    store = Store(directory)
    with shown_cells() as tick:
        frame = sweep_grid(
            grid, store, jobs=jobs, backend=Backend(backend), address=address, retry_failed=retry_failed, tick=tick
        )
    groups = groups_of(frame, grid)
    if figures is not None:
        drawn = write_curves(figures, figures_of(groups, x))
        notify(f"{len(drawn)} files of figures and tables written to {figures}")
    _end(groups, frame, store, output)


def _end(groups: Sequence[Group], frame: pd.DataFrame, store: Store, output: Output) -> None:
    """Prints the results; exits with code 1 if a cell failed."""
    from gavelpy.sweeps.summary import rows_of

    failed = frame[frame["error"] != ""]
    for warning in dict.fromkeys(line for text in frame["warnings"] for line in text.splitlines()):
        notify(warning)
    if output is Output.JSON:
        counts = {"directory": str(store.directory), "cells": len(frame), "failed": len(failed)}
        echo_json({**counts, "summary": [group.to_json() for group in groups], "rows": rows_of(frame)})
    else:
        show_table(table_of_groups(groups))
        notify(f"{len(frame):,} cells in {store.directory}; in brackets: {_meaning(groups)}")
    for error, part in list(failed.groupby("error", sort=False))[:_NAMED_MAX]:
        notify(f"error: {len(part):,} of {len(frame):,} cells failed, such as {part.index[0] + 1}: {error}")
    if len(failed):
        raise typer.Exit(FAILED)


def _meaning(groups: Sequence[Group]) -> str:
    """What the intervals are; of few values they are too narrow."""
    counts = [one.count for group in groups for one in group.means.values()]
    narrow = f"; too narrow with {min(counts)} seeds" if counts and min(counts) < SEEDS_MIN else ""
    return f"the 95 % bootstrap interval of the mean over seeds{narrow}"


def table_of_groups(groups: Sequence[Group]) -> TableData:
    """One row for each group: its options, and metrics as `mean [low, high]`."""
    from gavelpy.report.comparison import COLUMNS

    names = list(dict.fromkeys(name for group in groups for name in group.options))
    known = [one for one in COLUMNS if one.field in _SHOWN and any(one.field in group.means for group in groups)]
    columns = [_column(one, [group.means.get(one.field) for group in groups]) for one in known]
    titles = (*names, "seeds", *(title for title, _ in columns))
    rows = [
        (*(str(group.options.get(name, "")) for name in names), _seeds(group), *(texts[row] for _, texts in columns))
        for row, group in enumerate(groups)
    ]
    return TableData(titles, frozenset(titles[len(names) :]), rows)


def _column(column: Column, means: Sequence[MeanInterval | None]) -> tuple[str, list[str]]:
    """The title with the unit, and `mean [low, high]` for each group."""
    from gavelpy.report.comparison import unit_of

    finite = [abs(one.mean) for one in means if one is not None and math.isfinite(one.mean)]
    unit, scale, digits = unit_of(column.kind, max(finite, default=0.0))
    texts = [DASH if one is None else _text(one, scale, digits) for one in means]
    return f"{column.title} [{unit}]" if unit else column.title, texts


def _text(one: MeanInterval, scale: float, digits: int) -> str:
    if not math.isfinite(one.mean):
        return DASH
    mean, low, high = (f"{value / scale:,.{digits}f}" for value in (one.mean, one.low, one.high))
    return f"{mean} [{low}, {high}]" if math.isfinite(one.low) else mean


def _seeds(group: Group) -> str:
    count = max((one.count for one in group.means.values()), default=0)
    return f"{count} ({group.failed} failed)" if group.failed else str(count)


def _show_plan(grid: Grid, directory: Path, output: Output) -> None:
    """Prints the cells, which are finished, and the expected CPU time of the others."""
    from gavelpy.sweeps.store import finished_in
    from gavelpy.sweeps.summary import expected_cpu_s

    finished = finished_in(directory, grid.cells)
    expected_s = expected_cpu_s(grid, finished)
    total_s = sum(expected_s.values())
    if output is Output.JSON:
        entries = [
            {"options": one.shown(), "key": one.key, "finished": one.key in finished, "cpu_s": expected_s.get(one.key)}
            for one in grid.cells
        ]
        echo_json({"directory": str(directory), "expected_cpu_s": total_s, "cells": entries})
        return
    rows = [
        (
            *(str(one.shown().get(name, "")) for name in grid.varied),
            "finished" if one.key in finished else duration(expected_s[one.key]),
        )
        for one in grid.cells
    ]
    show_table(TableData((*grid.varied, "CPU time"), frozenset({"CPU time"}), rows))
    notify(
        f"{len(grid.cells):,} cells, {len(expected_s):,} to run: about {duration(total_s)} of CPU time, estimated from "
        "finished cells or from the first jobs of one cell; long queues take more"
    )


@contextmanager
def shown_cells() -> Iterator[Tick]:
    """A bar on a terminal, else a line at the start, at the end, and now and then."""
    if not sys.stderr.isatty():
        last_s = -math.inf

        def tell(standing: Standing) -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= _EVERY_S or standing.finished == standing.cells:
                last_s = time.monotonic()
                notify(_sentence(standing))

        yield tell
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    columns = (BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as bars:
        bar = bars.add_task("")
        yield lambda standing: bars.update(
            bar, total=standing.cells, completed=standing.finished, description=_sentence(standing)
        )


def _sentence(standing: Standing) -> str:
    parts = [f"{standing.finished:,} of {standing.cells:,} cells"]
    parts += [f"{standing.reused:,} of them from before"] if standing.reused else []
    parts += [f"{standing.failed:,} failed"] if standing.failed else []
    parts += [f"{duration(standing.left_s)} left"] if standing.finished < standing.cells else []
    return ", ".join(parts)
