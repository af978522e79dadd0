"""The file of throughputs: whether it is right and what it was, and the question that follows when it has changed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism.commands import EstimateThroughput
from gavelpy.mechanism.core import SchedulerCore


@dataclass(frozen=True, eq=False)
class RatesAgain(EstimateThroughput):
    """The same question, asked by the shell: the core's own does not take its place."""


def read_table(file: str) -> str:
    """A digest of what a file says, "" for none; raises InvalidInput where the engine could not read it."""
    if not file:
        return ""
    from gavelpy.traces.reader import read_throughputs  # loaded where a file is named only

    read_throughputs(file)
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        raise InvalidInput(f"throughputs.file cannot be read: {error.strerror}", file=file) from None


def rates_again(core: SchedulerCore) -> RatesAgain:
    """Asks for the rates of all living jobs that came without any."""
    jobs = core.jobs
    rows = np.array([job for job in jobs.active.tolist() if not jobs.specs[job].rates_steps_per_s], dtype=np.int64)
    types = tuple(jobs.specs[job].job_type for job in rows.tolist())
    return RatesAgain(rows, types, jobs.gpus[rows], core.pool.gpu_types)
