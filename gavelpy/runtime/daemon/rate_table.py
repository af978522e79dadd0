"""The file of throughputs: whether it is right and what it was, and the question that follows when it has changed."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.commands import EstimateThroughput
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.model.throughput import ThroughputTable

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class RatesAgain(EstimateThroughput):
    """The same question, asked by the shell: the core's own does not take its place."""


def read_table(file: str) -> str:
    """A digest of what a file says, "" for none; raises InvalidInput where the engine could not read it."""
    if not file:
        return ""
    for note in believable_table(file).notes:
        logger.warning("rate not believed", extra={"detail": note})
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInput(f"throughputs.file cannot be read: {error.strerror}", file=file) from None


@dataclass(frozen=True, eq=False)
class RateTable:
    """What of a file is believed, and a line for each entry that is not."""

    table: ThroughputTable
    notes: tuple[str, ...]


def believable_table(file: str) -> RateTable:
    """The table in a file without its absurd entries; raises InvalidInput where it cannot be read."""
    from gavelpy.estimator.roofline import Roofline  # loaded where a file is named only
    from gavelpy.estimator.sanity import believable, located
    from gavelpy.traces.csv_format import throughput_lines
    from gavelpy.traces.job_types import gpu_specs, job_types
    from gavelpy.traces.reader import read_throughputs

    found = believable(read_throughputs(file), Roofline(job_types(), gpu_specs()))
    return RateTable(found.table, located(found.absurd, file, throughput_lines(file) if found.absurd else {}))


def rates_again(core: SchedulerCore) -> RatesAgain:
    """Asks for the rates of all living jobs that came without any."""
    jobs = core.jobs
    rows = np.array([job for job in jobs.active.tolist() if not jobs.specs[job].rates_steps_per_s], dtype=np.int64)
    types = tuple(jobs.specs[job].job_type for job in rows.tolist())
    return RatesAgain(rows, types, jobs.gpus[rows], core.pool.gpu_types)
