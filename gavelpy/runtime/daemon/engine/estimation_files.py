"""Reads the estimator's model from a file, or returns the shipped one."""

from __future__ import annotations

import json
from typing import Final

import numpy as np

from gavelpy.errors import InvalidInput
from gavelpy.estimator.completion import EstimatorModel
from gavelpy.estimator.isolated import IsolatedModel
from gavelpy.estimator.roofline import Roofline
from gavelpy.estimator.stored import from_json
from gavelpy.model.throughput import ThroughputTable
from gavelpy.traces.fields import read_text
from gavelpy.traces.job_types import gpu_specs, job_types

NO_TABLE: Final = ThroughputTable((), (), np.zeros((0, 0)), np.zeros((0, 0), dtype=np.int64), ())


def read_model(path: str, table: ThroughputTable = NO_TABLE) -> EstimatorModel:
    """The model at `path`, with the shipped specifications of GPUs and job types.

    If `path` is empty: the shipped model, with the roofline calibrated on `table`, which takes milliseconds.
    """
    roofline = Roofline(job_types(), gpu_specs())
    if not path:
        return EstimatorModel(IsolatedModel(roofline=roofline.calibrated(table)))
    try:
        return from_json(json.loads(read_text(path)), roofline)
    except InvalidInput as error:
        raise error.located(path) from error
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"text must be JSON, got {error}", file=path) from error
