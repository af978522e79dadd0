"""Where cells run: joblib is the one interface to processes of this machine, to Dask and to Ray.

Results come in the order in which cells end. A process that dies takes its cell's results with it, and with processes
those of its neighbours too: then the next cells run alone, each in a process of its own, until the cell that kills its
process is found. Dask and Ray start cells of dead processes elsewhere.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from enum import StrEnum
from typing import Any, Final

from gavelpy.errors import InvalidInput, require
from gavelpy.sweeps.cells import Cell, run_cell

IDLE_S: Final = 20  # processes end after this time without a cell, also if the sweep was killed
PART: Final = 4  # cells for each CPU of a Ray cluster between two times at which results are stored
DIED: Final = {
    "error": "the process of this cell died, perhaps because memory was short",
    "error_type": "ProcessDied",
    "warnings": "",
}
Ended = tuple[Cell, dict[str, Any]]


class Backend(StrEnum):
    """What runs the cells."""

    PROCESSES = "processes"
    DASK = "dask"
    RAY = "ray"


def run_all(cells: Sequence[Cell], backend: Backend, *, jobs: int = 0, address: str = "") -> Iterator[Ended]:
    """Runs the cells and yields each with its results when it ends. `jobs`: processes, 0 = one for each core."""
    if address and backend is Backend.PROCESSES:
        raise InvalidInput(f"--address needs --backend dask or ray, got {address!r} with processes")
    require("a sweep", ("joblib",))
    by_key = {cell.key: cell for cell in cells}
    jobs = min(jobs or os.cpu_count() or 1, max(len(cells), 1))
    if backend is Backend.PROCESSES and jobs == 1:
        yield from ((cell, run_cell(cell)) for cell in cells)
        return
    if backend is Backend.PROCESSES:
        yield from _in_processes(by_key, jobs)
        return
    with ExitStack() as stack:
        stack.enter_context(_dask(address, jobs) if backend is Backend.DASK else _ray(address, jobs))
        found = _parallel(cells, -1) if backend is Backend.DASK else _in_parts(cells)
        yield from ((by_key[key], results) for key, results in found)


def _in_processes(left: dict[str, Cell], jobs: int) -> Iterator[Ended]:
    from joblib import parallel_config
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    alone = 0  # how many of the next cells run alone
    while left:
        keys = list(left)[: 1 if alone else None]
        try:
            with parallel_config(backend="loky", n_jobs=jobs, idle_worker_timeout=IDLE_S):
                for key, results in _parallel([left[key] for key in keys], 2 if alone else jobs):  # 1: no process
                    yield left.pop(key), results
            alone = max(alone - 1, 0)
        except TerminatedWorkerError:
            if alone:
                yield left.pop(keys[0]), dict(DIED)
                alone -= 1
            else:
                alone = 2 * jobs  # cells that were running or about to run


def _parallel(cells: Iterable[Cell], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    from joblib import Parallel, delayed

    work = Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
    yield from work(delayed(_ended)(cell) for cell in cells)


def _in_parts(cells: Sequence[Cell]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The same for Ray's backend, which returns lists only: each part ends before the next begins."""
    from joblib import Parallel, delayed, effective_n_jobs

    size = PART * effective_n_jobs(-1)
    for start in range(0, len(cells), size):
        yield from Parallel(n_jobs=-1, batch_size=1)(delayed(_ended)(cell) for cell in cells[start : start + size])


def _ended(cell: Cell) -> tuple[str, dict[str, Any]]:
    return cell.key, run_cell(cell)


def _dask(address: str, jobs: int) -> AbstractContextManager[object]:
    """A client of a Dask scheduler, or of one of this machine, as joblib's backend."""
    require("--backend dask", ("distributed",))
    from distributed import Client
    from joblib import parallel_config

    stack = ExitStack()
    try:
        local = {} if address else {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
        client = stack.enter_context(Client(address or None, timeout="5s", **local))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"--address must be that of a Dask scheduler, got {address!r} ({error})") from None
    stack.enter_context(parallel_config(backend="dask", client=client))
    return stack


def _ray(address: str, jobs: int) -> AbstractContextManager[object]:
    """A connection to a Ray cluster, or to one of this machine, as joblib's backend."""
    require("--backend ray", ("ray",))
    import ray
    from joblib import parallel_config
    from ray.util.joblib import register_ray

    try:
        ray.init(
            address=address or None, num_cpus=None if address else jobs, log_to_driver=False, logging_level="ERROR"
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"--address must be that of a Ray cluster, got {address!r} ({error})") from None
    register_ray()
    stack = ExitStack()
    stack.callback(ray.shutdown)
    stack.enter_context(parallel_config(backend="ray", n_jobs=-1))
    return stack
