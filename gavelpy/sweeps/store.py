"""The directory of a sweep: a file for each finished cell, and the table of all of them.

    DIR/cells/KEY.json     the results of a cell, written under another name and renamed: whole, or not there
    DIR/results.parquet    the rows of the sweep that ran last

A sweep that was killed at any moment finds its finished cells again. A file that is damaged does not count, and its
cell runs again. Several sweeps may use one directory, also at the same time: equal keys have equal results, a cell that
two of them run is stored twice under one name, and the table is that of the sweep that ends last.
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gavelpy.errors import InvalidInput
from gavelpy.runtime.whole_files import write_text_whole
from gavelpy.sweeps.cells import Cell

if TYPE_CHECKING:
    import pandas as pd

CELLS: Final = "cells"
RESULTS: Final = "results.parquet"
LEFTOVER_S: Final = 3600.0  # no file takes so long to write
_FROM: Final = ("trace_sha256", "trace_provenance", "version")  # what a row is from
_FIRST: Final = ("error", "error_type", "warnings", *_FROM, "cell_cpu_s", "key")  # among the last


class Store:
    """Finished cells on disk."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            (directory / CELLS).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"--out must be a directory to write to ({error.strerror})", file=str(directory)
            ) from None

    def add(self, cell: Cell, results: Mapping[str, Any]) -> None:
        """Writes the results of a cell."""
        document = {"key": cell.key, "options": cell.shown(), "version": cell.version, "results": dict(results)}
        write_text_whole(self.directory / CELLS / f"{cell.key}.json", json.dumps(document, indent=1) + "\n")

    def write_table(self, frame: pd.DataFrame) -> Path:
        """Writes the rows of a sweep as Parquet, in place of the table before."""
        path = self.directory / RESULTS
        self._remove_leftovers()
        temporary = path.with_name(f".{RESULTS}.{uuid.uuid4().hex}")  # another machine may have the same process ids
        try:
            frame.to_parquet(temporary, engine="pyarrow", index=False)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        return path

    def _remove_leftovers(self) -> None:
        """Removes parts of files that sweeps had begun to write when they were killed."""
        now_s = time.time()
        for pattern in (f".{RESULTS}.*", f"{CELLS}/.*"):
            for path in self.directory.glob(pattern):
                with contextlib.suppress(FileNotFoundError):  # another sweep has just renamed or removed it
                    if now_s - path.stat().st_mtime > LEFTOVER_S:
                        path.unlink()


def finished_in(directory: Path, cells: Sequence[Cell]) -> dict[str, dict[str, Any]]:
    """The results of these cells that are in a directory, by key; there need not be one."""
    there = {path.stem for path in (directory / CELLS).glob("*.json")}
    found = {cell.key: _read(directory / CELLS / f"{cell.key}.json", cell.key) for cell in cells if cell.key in there}
    return {key: results for key, results in found.items() if results is not None}


def _read(path: Path, key: str) -> dict[str, Any] | None:
    """The results in a file; None if it is damaged."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    is_whole = isinstance(document, dict) and document.get("key") == key
    results = document.get("results") if is_whole else None
    return results if isinstance(results, dict) else None


def table_of(cells: Sequence[Cell], results: Mapping[str, Mapping[str, Any]]) -> pd.DataFrame:
    """One row for each cell with results, in the order of the cells: options, metrics, error, provenance."""
    import pandas as pd

    rows = [
        {
            **cell.shown(),
            **results[cell.key],
            "trace_sha256": cell.contents.get("trace", ""),
            "version": cell.version,
            "key": cell.key,
        }
        for cell in cells
        if cell.key in results
    ]
    frame = pd.DataFrame(rows)
    for name in ("error", "error_type", "trace_provenance"):
        frame[name] = frame[name].fillna("") if name in frame else ""
    options = list(dict.fromkeys(name for cell in cells for name in cell.options))
    metrics = [name for name in frame.columns if name not in options and name not in _FIRST]
    frame[metrics] = frame[metrics].astype(float)
    return frame[[*(name for name in options if name in frame), *metrics, *(n for n in _FIRST if n in frame)]]
