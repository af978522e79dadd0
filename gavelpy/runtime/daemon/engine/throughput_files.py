"""Reads the throughputs file and the estimator's model file, and makes the request for new rates."""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.mechanism import sizes
from gavelpy.mechanism.commands import EstimateThroughput
from gavelpy.mechanism.core import SchedulerCore
from gavelpy.mechanism.requests import estimate_of
from gavelpy.model.throughput import ThroughputTable

if TYPE_CHECKING:  # the functions import it when they need it: most schedulers have no file
    from gavelpy.estimator.completion import EstimatorModel

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
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.sanity import believable, located
    from gavelpy.traces.csv_format import throughput_lines
    from gavelpy.traces.reader import read_throughputs
    from gavelpy.traces.workloads import gpu_specs, job_types

    found = believable(read_throughputs(file), Roofline(job_types(), gpu_specs()))
    return RateTable(found.table, located(found.absurd, file, throughput_lines(file) if found.absurd else {}))


def rates_again(core: SchedulerCore) -> RatesAgain:
    """A request for rates of all living jobs on all numbers of GPUs for which they were submitted without any."""
    jobs = core.jobs
    position, gpus = sizes.every(jobs, jobs.active)
    both = zip(jobs.active[position].tolist(), gpus.tolist(), strict=True)
    wanted = [(row, size) for row, size in both if not jobs.specs[row].rates_on(size)]
    asked = estimate_of(jobs, np.array(wanted, dtype=np.int64).reshape(-1, 2), core.pool)
    return RatesAgain(**vars(asked) | {"jobs": jobs.ids.of_rows(asked.jobs)})


NO_TABLE: Final = ThroughputTable((), (), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64), ())


def read_model(path: str, table: ThroughputTable = NO_TABLE) -> EstimatorModel:
    """The model at `path`, with the shipped specifications of GPUs and job types.

    If `path` is empty: the shipped model, with the roofline calibrated on `table`, which takes milliseconds.
    """
    from gavelpy.estimator.completion import EstimatorModel
    from gavelpy.estimator.isolated import IsolatedModel
    from gavelpy.estimator.roofline import Roofline
    from gavelpy.estimator.stored import from_json
    from gavelpy.traces.fields import read_text
    from gavelpy.traces.workloads import gpu_specs, job_types

    roofline = Roofline(job_types(), gpu_specs())
    if not path:
        return EstimatorModel(IsolatedModel(roofline=roofline.calibrated(table)))
    try:
        return from_json(json.loads(read_text(path)), roofline)
    except InvalidInput as error:
        raise error.located(path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"text must be JSON, got {error}", file=path) from error
