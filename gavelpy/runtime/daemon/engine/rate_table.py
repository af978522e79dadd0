"""Reads the throughputs file, detects its changes, and makes the request for new rates."""

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
    """The same request from the shell; a request from the core does not replace it."""


def read_table(file: str) -> str:
    """A digest of a file's contents, "" for no file; raises InvalidInput for an invalid file."""
    if not file:
        return ""
    for note in believable_table(file).notes:
        logger.warning("implausible rate ignored", extra={"detail": note})
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInput(f"throughputs.file cannot be read: {error.strerror}", file=file) from None


@dataclass(frozen=True, eq=False)
class RateTable:
    """Plausible entries of a file, and a line for each implausible one."""

    table: ThroughputTable
    notes: tuple[str, ...]


def believable_table(file: str) -> RateTable:
    """The table in a file without implausible entries; raises InvalidInput if it cannot be read."""
    from gavelpy.estimator.roofline import Roofline  # imported only if a file is configured
    from gavelpy.estimator.sanity import believable, located
    from gavelpy.traces.csv_format import throughput_lines
    from gavelpy.traces.job_types import gpu_specs, job_types
    from gavelpy.traces.reader import read_throughputs

    found = believable(read_throughputs(file), Roofline(job_types(), gpu_specs()))
    return RateTable(found.table, located(found.absurd, file, throughput_lines(file) if found.absurd else {}))


def rates_again(core: SchedulerCore) -> RatesAgain:
    """A request for rates of all living jobs that were submitted without any."""
    jobs = core.jobs
    rows = np.array([job for job in jobs.active.tolist() if not jobs.specs[job].rates_steps_per_s], dtype=np.int64)
    types = tuple(jobs.specs[job].job_type for job in rows.tolist())
    return RatesAgain(rows, types, jobs.gpus[rows], core.pool.gpu_types)
